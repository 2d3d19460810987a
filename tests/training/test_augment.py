"""Augmentation against loops that do one image at a time."""

import pytest
import torch

from cogd.training.augment import Augmentation, Draws, crop_and_flip, cut_out, normalize

MEAN, STD = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1), torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1)


def bytes_of(count=20, channels=3, height=9, width=7):
    return torch.randint(256, (count, channels, height, width), dtype=torch.uint8)


def cropped_and_flipped(image, margin, corner, flipped):
    channels, height, width = image.shape
    canvas = torch.zeros(channels, height + 2 * margin, width + 2 * margin, dtype=image.dtype)
    canvas[:, margin : margin + height, margin : margin + width] = image
    row, column = corner
    piece = canvas[:, row : row + height, column : column + width]
    return piece.flip(-1) if flipped else piece


def with_a_hole(image, side, centre):
    image = image.clone()
    for row in range(centre[0] - side // 2, centre[0] - side // 2 + side):
        for column in range(centre[1] - side // 2, centre[1] - side // 2 + side):
            if 0 <= row < image.shape[1] and 0 <= column < image.shape[2]:
                image[:, row, column] = 0
    return image


@pytest.mark.parametrize("margin", [0, 1, 4])
def test_crop_and_flip_one_by_one(margin):
    torch.manual_seed(0)
    pixels = bytes_of()
    draws = Augmentation(crop=margin, flip=True).draw(20, 9, 7)
    assert draws.flipped.any()
    assert not draws.flipped.all()
    expected = [
        cropped_and_flipped(image, margin, corner.tolist(), flipped)
        for image, corner, flipped in zip(pixels, draws.corner, draws.flipped, strict=True)
    ]
    assert torch.equal(crop_and_flip(pixels, margin, draws.corner, draws.flipped), torch.stack(expected))


@pytest.mark.parametrize("side", [1, 4, 5, 30])
def test_cutout_one_by_one(side):
    torch.manual_seed(1)
    images = torch.randn(20, 3, 9, 7)
    centre = Augmentation(cutout=side).draw(20, 9, 7).hole
    expected = [with_a_hole(image, side, c.tolist()) for image, c in zip(images, centre, strict=True)]
    assert torch.equal(cut_out(images, side, centre), torch.stack(expected))


def test_the_whole_is_crop_then_normalization_then_hole():
    torch.manual_seed(2)
    pixels, augmentation = bytes_of(), Augmentation(2, True, 4)
    draws = augmentation.draw(20, 9, 7)
    expected = cut_out(normalize(crop_and_flip(pixels, 2, draws.corner, draws.flipped), MEAN, STD), 4, draws.hole)
    assert torch.equal(augmentation.apply(pixels, draws, MEAN, STD), expected)


def test_without_augmentation_images_are_only_normalized():
    pixels = bytes_of()
    images = Augmentation().apply(pixels, Augmentation().draw(20, 9, 7), MEAN, STD)
    torch.testing.assert_close(images, (pixels / 255 - MEAN) / STD)


def test_the_middle_crop_is_the_image():
    pixels = bytes_of()
    middle, straight = torch.full((20, 2), 4), torch.zeros(20, dtype=torch.bool)
    assert torch.equal(crop_and_flip(pixels, 4, middle, straight), pixels)


def test_draws_cover_their_range_evenly():
    """Every corner and centre within 5 standard deviations of its share of 20 000 draws."""
    torch.manual_seed(3)
    draws: Draws = Augmentation(crop=4, flip=True, cutout=2).draw(20_000, 9, 7)
    assert draws.flipped.float().mean() == pytest.approx(0.5, abs=5 * 0.5 / 20_000**0.5)
    for values, count in (
        (draws.corner[:, 0], 9),
        (draws.corner[:, 1], 9),
        (draws.hole[:, 0], 9),
        (draws.hole[:, 1], 7),
    ):
        shares = values.bincount(minlength=count) / 20_000
        assert len(shares) == count
        assert (shares - 1 / count).abs().max() < 5 * (1 / count / 20_000) ** 0.5


def test_draws_of_a_part_are_the_part_of_the_draws():
    draws = Augmentation(2, True, 4).draw(20, 9, 7)
    pixels = bytes_of()
    whole = Augmentation(2, True, 4).apply(pixels, draws, MEAN, STD)
    part = Augmentation(2, True, 4).apply(pixels[5:9], draws[5:9], MEAN, STD)
    assert torch.equal(whole[5:9], part)
