"""Data sets that fit in memory: the images stay on the device as bytes and are augmented there."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cogd.training.augment import Augmentation, normalize
from cogd.training.labels import check_labels
from cogd.training.recipe import Recipe

AUGMENTED_AT_ONCE = 4096  # images; a few large operations instead of many small ones


@dataclass(frozen=True)
class Images:
    """Labelled images: bytes (N, C, H, W) and class numbers (N,)."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> "Images":
        return Images(self.pixels.to(device), self.labels.to(device))


@dataclass(frozen=True)
class MemoryData:
    """Training and test images with what normalizes them; `fingerprint` tells data sets apart, wherever they are.

    >>> images = Images(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
    >>> MemoryData("mine", images, images, ("cat", "dog"), mean=(0.5,), std=(0.25,), fingerprint="mine-1").classes
    ('cat', 'dog')
    """

    source: str

    train: Images
    test: Images
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fingerprint: str

    def __post_init__(self):
        for name, images in (("training", self.train), ("test", self.test)):
            check_labels(images.labels, len(self.classes), f"the {name} part of {self.source}")

    def batches(self, recipe: Recipe, device: torch.device) -> tuple["TrainBatches", "TestBatches"]:
        """Return the recipe's training and test batches."""
        if recipe.image_size is not None:
            raise ValueError(f"image_size is for images in folders, not for {self.source}; got {recipe.image_size}.")
        mean = torch.tensor(self.mean, device=device).view(-1, 1, 1)
        std = torch.tensor(self.std, device=device).view(-1, 1, 1)
        augmentation = Augmentation(recipe.crop, recipe.flip, recipe.cutout)
        train = TrainBatches(self.train.to(device), recipe.batch_size, augmentation, mean, std)
        return train, TestBatches(self.test.to(device), recipe.eval_batch_size, mean, std)


class TrainBatches:
    """Shuffled, augmented batches of one size; what does not fill the last one waits for another epoch.

    All chance is drawn from torch's global generator when an epoch's iteration begins.
    """

    def __init__(self, images: Images, batch_size: int, augmentation: Augmentation, mean: Tensor, std: Tensor):
        if batch_size > len(images):
            raise ValueError(
                f"batch_size must be at most the number of training images, {len(images)}; got {batch_size}."
            )
        self.images, self.batch_size = images, batch_size
        self.augmentation, self.mean, self.std = augmentation, mean, std

    def __len__(self) -> int:
        return len(self.images) // self.batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        pixels, labels = self.images.pixels, self.images.labels
        order = torch.randperm(len(self.images)).to(pixels.device)
        draws = self.augmentation.draw(len(self.images), *pixels.shape[2:]).to(pixels.device)
        used = len(self) * self.batch_size
        at_once = self.batch_size * max(1, AUGMENTED_AT_ONCE // self.batch_size)
        for start in range(0, used, at_once):
            rows = slice(start, min(start + at_once, used))
            augmented = self.augmentation.apply(pixels[order[rows]], draws[rows], self.mean, self.std)
            yield from zip(augmented.split(self.batch_size), labels[order[rows]].split(self.batch_size), strict=True)


class TestBatches:
    """Every test image once, in order."""

    def __init__(self, images: Images, batch_size: int, mean: Tensor, std: Tensor):
        self.images, self.batch_size, self.mean, self.std = images, batch_size, mean, std

    def __len__(self) -> int:
        return -(-len(self.images) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        pairs = zip(self.images.pixels.split(self.batch_size), self.images.labels.split(self.batch_size), strict=True)
        return ((normalize(pixels, self.mean, self.std), labels) for pixels, labels in pairs)
