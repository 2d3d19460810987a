"""Random crops, flips and cutout for a whole batch at once, on whatever device the images are.

Everything random is drawn before, as one row of numbers per image; the rest is a pure function of images and draws.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Draws:
    """What chance decided for each image."""

    corner: Tensor  # (N, 2) row and column of the crop in the padded image
    flipped: Tensor  # (N,)
    hole: Tensor  # (N, 2) row and column of the cutout's centre

    def __getitem__(self, rows: slice | Tensor) -> "Draws":
        return Draws(self.corner[rows], self.flipped[rows], self.hole[rows])

    def to(self, device: torch.device) -> "Draws":
        return Draws(self.corner.to(device), self.flipped.to(device), self.hole.to(device))


@dataclass(frozen=True)
class Augmentation:
    """A crop out of the image with `crop` black pixels around it, a flip, and a square of side `cutout` set to 0."""

    crop: int = 0
    flip: bool = False
    cutout: int = 0

    def draw(self, count: int, height: int, width: int) -> Draws:
        """Draw for `count` images from torch's global generator, on the CPU: the same on every device."""
        corner = torch.randint(2 * self.crop + 1, (count, 2))
        flipped = torch.rand(count) < (0.5 if self.flip else 0.0)
        hole = torch.stack([torch.randint(height, (count,)), torch.randint(width, (count,))], dim=1)
        return Draws(corner, flipped, hole)

    def apply(self, pixels: Tensor, draws: Draws, mean: Tensor, std: Tensor) -> Tensor:
        """Return normalized floats (N, C, H, W) of bytes (N, C, H, W); the hole is at the mean, which is 0."""
        if self.crop or self.flip:
            pixels = crop_and_flip(pixels, self.crop, draws.corner, draws.flipped)
        images = normalize(pixels, mean, std)
        return cut_out(images, self.cutout, draws.hole) if self.cutout else images


def normalize(pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return (pixels / 255 - mean) / std, channel by channel."""
    return (pixels.float() - 255 * mean) / (255 * std)


def crop_and_flip(pixels: Tensor, margin: int, corner: Tensor, flipped: Tensor) -> Tensor:
    """Cut the image's own size at `corner` out of the image with a black margin; then mirror where `flipped`."""
    count, channels, height, width = pixels.shape
    across = torch.arange(width, device=pixels.device)
    across = torch.where(flipped[:, None], across.flip(0), across)
    rows = corner[:, :1] + torch.arange(height, device=pixels.device)
    columns = corner[:, 1:] + across
    image = torch.arange(count, device=pixels.device)[:, None, None, None]
    channel = torch.arange(channels, device=pixels.device)[None, :, None, None]
    return pad(pixels, (margin,) * 4)[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def cut_out(images: Tensor, side: int, centre: Tensor) -> Tensor:
    """Set a square around each centre to 0; what lies outside of the image is cut off."""
    height, width = images.shape[2:]
    first = centre - side // 2
    rows = torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device)
    in_rows = (rows >= first[:, :1]) & (rows < first[:, :1] + side)
    in_columns = (columns >= first[:, 1:]) & (columns < first[:, 1:] + side)
    return images.masked_fill((in_rows[:, :, None] & in_columns[:, None, :])[:, None], 0.0)
