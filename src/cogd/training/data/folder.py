"""Images in one folder per class, in a directory or a zip file: streamed, decoded by workers, augmented on the device.

Chance is drawn once per epoch in the main process, so that a run does not depend on the number of workers.
"""

import hashlib
import io
import logging
import math
import os
import signal
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cogd.training.augment import Augmentation, normalize
from cogd.training.data.archive import Archive, FolderArchive, ZipArchive
from cogd.training.recipe import Recipe

TRAIN, TEST = ("train",), ("val", "validation", "test")
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, as torchvision's weights expect
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of a training crop, as usual on ImageNet
TEST_SHARE = 224 / 256  # of a test image's shorter side
UNREADABLE = (  # what Pillow and zipfile raise at damaged, encrypted or enormous images
    UnidentifiedImageError,
    Image.DecompressionBombError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    OSError,
    EOFError,
    ValueError,
    SyntaxError,
    RuntimeError,
)

logger = logging.getLogger(__name__)
Box = tuple[float, float, float, float]  # left, upper, right, lower


@dataclass(frozen=True)
class FolderData:
    """Images by name, with their class numbers; `fingerprint` covers every name and file size.

    >>> FolderData("mine", FolderArchive(Path("photos")), [("train/cat/1.png", 0)], [], ("cat",), "mine-1").classes
    ('cat',)
    """

    source: str
    archive: Archive
    train: list[tuple[str, int]]
    test: list[tuple[str, int]]
    classes: tuple[str, ...]
    fingerprint: str

    def batches(self, recipe: Recipe, device: torch.device) -> tuple["FolderBatches", "FolderBatches"]:
        """Return the recipe's training and test batches."""
        if recipe.image_size is None:
            raise ValueError("image_size must be set for images in folders, such as image_size=224; got None.")
        if recipe.batch_size > len(self.train):
            raise ValueError(
                f"batch_size must be at most the number of training images, {len(self.train)}; got {recipe.batch_size}."
            )
        augmentation = Augmentation(recipe.crop, recipe.flip, recipe.cutout)
        train, test = (DecodedImages(self.archive, images, recipe.image_size) for images in (self.train, self.test))
        return (
            FolderBatches(train, recipe.batch_size, device, augmentation, recipe.bad_images),
            FolderBatches(test, recipe.eval_batch_size, device, None, recipe.bad_images),
        )


def load_folder(path: Path) -> FolderData:
    """Find the images below train/CLASS/ and val/CLASS/ (or test/) in a directory or a zip file.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     for path in (Path(folder, "train/cat"), Path(folder, "val/cat")):
    ...         path.mkdir(parents=True)
    ...         Image.new("RGB", (8, 8)).save(path / "1.png")
    ...     load_folder(Path(folder)).train
    [('train/cat/1.png', 0)]
    """
    archive: Archive = FolderArchive(path) if path.is_dir() else ZipArchive(path, tops=TRAIN + TEST)
    files = archive.sizes()
    sizes = {name: size for name, size in sorted(files.items()) if name.lower().endswith(SUFFIXES)}
    train, test = _split(path, sizes, TRAIN), _split(path, sizes, TEST)
    classes = tuple(sorted({_class_of(name) for name in train}))
    if strangers := sorted({_class_of(name) for name in test} - set(classes)):
        raise ValueError(f"{path}: the test images have classes that training lacks: {', '.join(strangers[:5])}.")
    _refuse_empty_classes(path, [*files, *archive.folders()], [*train, *test])
    numbers = {name: number for number, name in enumerate(classes)}
    digest = hashlib.sha256(repr(sorted(sizes.items())).encode()).hexdigest()
    return FolderData(
        source=f"folder:{path}",
        archive=archive,
        train=[(name, numbers[_class_of(name)]) for name in train],
        test=[(name, numbers[_class_of(name)]) for name in test],
        classes=classes,
        fingerprint=f"folder-{digest[:16]}",
    )


class Decoded(NamedTuple):
    """One batch as a worker makes it: the images that decoded, the slots that they fill, and what did not decode."""

    pixels: Tensor
    labels: Tensor
    slots: Tensor
    bad: list[tuple[str, str]]


class FolderBatches:
    """One split: shuffled, cropped and augmented where there is an augmentation; else every image once, in order.

    An image that does not decode is named once. In training another of its batch takes its place.
    """

    def __init__(
        self,
        images: "DecodedImages",
        batch_size: int,
        device: torch.device,
        augmentation: Augmentation | None,
        bad_share: float,
    ):
        self.images, self.batch_size, self.device, self.augmentation = images, batch_size, device, augmentation
        self.bad_share = bad_share
        self.bad: dict[str, str] = {}
        self._mean, self._std = (torch.tensor(values, device=device).view(-1, 1, 1) for values in (MEAN, STD))
        self._requests = _Requests()
        workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 16)
        self._loader: DataLoader[Any] = DataLoader(
            images,
            batch_sampler=self._requests,
            num_workers=workers,
            collate_fn=_together,
            pin_memory=device.type == "cuda",
            persistent_workers=True,
            worker_init_fn=_leave_interrupts_to_the_parent,
        )

    def __len__(self) -> int:
        whole = len(self.images) // self.batch_size
        return whole if self.augmentation else -(-len(self.images) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self._plain() if self.augmentation is None else self._augmented(self.augmentation)

    def _plain(self) -> Iterator[tuple[Tensor, Tensor]]:
        self._requests.present = [
            [(int(i), None) for i in rows] for rows in torch.arange(len(self.images)).split(self.batch_size)
        ]
        for batch in self._loader:
            self._note(batch)
            yield normalize(self._move(batch.pixels), self._mean, self._std), self._move(batch.labels)

    def _augmented(self, augmentation: Augmentation) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.images))[: len(self) * self.batch_size].split(self.batch_size)
        crops = torch.rand(len(self.images), 4)
        draws = augmentation.draw(len(self.images), self.images.size, self.images.size).to(self.device)
        self._requests.present = [[(int(i), crops[i]) for i in rows] for rows in order]
        for rows, batch in zip(order, self._loader, strict=True):
            self._note(batch)
            pixels, labels = self._move(batch.pixels), self._move(batch.labels)
            if batch.bad:
                filled = torch.zeros(len(rows), dtype=torch.long)
                filled[batch.slots] = torch.arange(len(batch.slots))
                filled = self._move(filled)
                pixels, labels = pixels[filled], labels[filled]
            yield augmentation.apply(pixels, draws[rows.to(self.device)], self._mean, self._std), labels

    def _move(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)

    def _note(self, batch: Decoded) -> None:
        """Name images that do not decode; stop past the share of them that is allowed, or without any that does."""
        for name, reason in batch.bad:
            if name not in self.bad:
                self.bad[name] = reason
                logger.warning("image %s does not decode (%s); %d so far", name, reason, len(self.bad))
        if len(self.bad) > self.bad_share * len(self.images):
            raise ValueError(
                f"{len(self.bad)} of {len(self.images)} images do not decode, more than the share bad_images = "
                f"{self.bad_share}: {', '.join(list(self.bad)[:5])}. Repair or remove them, or allow a larger share."
            )
        if not len(batch.slots):
            names = ", ".join(name for name, _ in batch.bad[:5])
            raise ValueError(f"not one image of a batch decodes: {names}. Repair or remove them.")


class DecodedImages(Dataset[tuple[Tensor | None, int, str, str]]):
    """What workers do: read an image, cut out a piece, and bring it to the size."""

    def __init__(self, archive: Archive, images: list[tuple[str, int]], size: int):
        self.archive, self.images, self.size = archive, images, size

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, request: tuple[int, Tensor | None]) -> tuple[Tensor | None, int, str, str]:
        """Return (pixels or None, label, name, what is wrong) for (index, four numbers from chance or None)."""
        index, chance = request
        name, label = self.images[index]
        try:
            with Image.open(io.BytesIO(self.archive.read(name))) as image:
                box = middle_box(*image.size) if chance is None else random_box(*image.size, *chance.tolist())
                piece = image.convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR, box)
        except UNREADABLE as error:
            return None, label, name, str(error) or type(error).__name__
        return torch.from_numpy(np.array(piece)).permute(2, 0, 1), label, name, ""


def random_box(width: int, height: int, area: float, ratio: float, left: float, upper: float) -> Box:
    """Return a piece of the image from four numbers in [0, 1): its area, its aspect ratio and its place.

    >>> [round(edge, 1) for edge in random_box(100, 100, area=0.5, ratio=0.5, left=0.0, upper=0.5)]
    [0.0, 13.3, 73.5, 86.7]
    """
    share = AREA[0] + area * (AREA[1] - AREA[0])
    aspect = math.exp(math.log(RATIO[0]) + ratio * (math.log(RATIO[1]) - math.log(RATIO[0])))
    side = math.sqrt(share * width * height)
    across, down = min(side * math.sqrt(aspect), width), min(side / math.sqrt(aspect), height)
    left, upper = left * (width - across), upper * (height - down)
    return left, upper, left + across, upper + down


def middle_box(width: int, height: int) -> Box:
    """Return the square in the middle whose side is 224/256 of the shorter side.

    >>> middle_box(256, 512)
    (16.0, 144.0, 240.0, 368.0)
    """
    half = min(width, height) * TEST_SHARE / 2
    return width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half


class _Requests:
    """The batches of requests of the present epoch, as a DataLoader asks for them."""

    def __init__(self) -> None:
        self.present: list[list[tuple[int, Tensor | None]]] = []

    def __iter__(self) -> Iterator[list[tuple[int, Tensor | None]]]:
        return iter(self.present)


def _together(samples: list[tuple[Tensor | None, int, str, str]]) -> Decoded:
    good = [(slot, pixels, label) for slot, (pixels, label, _, _) in enumerate(samples) if pixels is not None]
    bad = [(name, reason) for pixels, _, name, reason in samples if pixels is None]
    pixels = torch.stack([pixels for _, pixels, _ in good]) if good else torch.empty(0)
    slots, labels = (torch.tensor([sample[i] for sample in good], dtype=torch.long) for i in (0, 2))
    return Decoded(pixels, labels, slots, bad)


def _leave_interrupts_to_the_parent(_: int) -> None:
    """Ctrl-C reaches workers too, whose batches are still wanted; SIGTERM is how the parent ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _split(path: Path, names: Iterable[str], folders: tuple[str, ...]) -> list[str]:
    """Return the images of the first of these top folders that there is."""
    for folder in folders:
        if found := [name for name in names if name.count("/") >= 2 and name.startswith(f"{folder}/")]:
            return found
    raise ValueError(f"{path} holds no images as {' or '.join(f'{folder}/CLASS/IMAGE' for folder in folders)}.")


def _class_folder(name: str) -> tuple[str, str]:
    split, label = name.split("/")[:2]
    return split, label


def _class_of(name: str) -> str:
    return _class_folder(name)[1]


def _refuse_empty_classes(path: Path, names: Iterable[str], images: Iterable[str]) -> None:
    """Refuse a class folder without a single image in it, among the folders that the images are taken from."""
    filled = {_class_folder(name) for name in images}
    splits = {split for split, _ in filled}
    folders = {_class_folder(name) for name in names if name.count("/") >= 2}
    if empty := sorted("/".join(folder) for folder in folders - filled if folder[0] in splits):
        raise ValueError(
            f"{path}: no image in the class folder {', '.join(empty[:5])}; fill or remove it. "
            f"Images are files that end in {', '.join(SUFFIXES)}."
        )
