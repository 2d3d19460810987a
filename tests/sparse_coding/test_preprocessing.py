import numpy as np
import pytest

from cogd.sparse_coding.metrics import paper_psnr, paper_ssim, psnr, ssim
from cogd.sparse_coding.preprocessing import bent_part, continuation, normalize_contrast, smooth_part


def test_normalize_contrast_against_loops(random):
    image = random.random((16, 15))
    padded = np.pad(image, 6, mode="reflect")
    steps = np.arange(-6, 7)
    window = np.exp(-0.5 * (steps[:, None] ** 2 + steps[None] ** 2) / (3 * 1.591) ** 2)
    window /= window.sum()
    mean, deviation = np.empty_like(image), np.empty_like(image)
    for y in range(16):
        for x in range(15):
            patch = padded[y : y + 13, x : x + 13]
            mean[y, x] = (window * patch).sum()
            deviation[y, x] = np.sqrt((window * patch**2).sum() - mean[y, x] ** 2)
    expected = (image - mean) / np.maximum(deviation, np.sort(deviation.ravel())[120 - 1])
    np.testing.assert_allclose(normalize_contrast(image), expected - expected.mean(), atol=1e-10)


def test_normalize_contrast_ignores_brightness_and_contrast_and_survives_constants(random):
    image = random.random((20, 20))
    np.testing.assert_allclose(normalize_contrast(3 * image + 5), normalize_contrast(image), atol=1e-9)
    assert not normalize_contrast(np.full((20, 20), 0.25)).any()
    with pytest.raises(ValueError, match="at least 13"):
        normalize_contrast(random.random((12, 20)))
    with pytest.raises(ValueError, match="NaN"):
        normalize_contrast(np.full((20, 20), np.nan))


def test_smooth_part_solves_its_equation_and_ignores_holes(random):
    image, observed = random.random((2, 14, 17)), random.random((2, 14, 17)) < 0.6
    s = smooth_part(image, observed, 2.0, tolerance=1e-12)
    for c in range(2):
        padded = np.pad(s[c], 1, mode="edge")
        neighbours = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
        laplacian = neighbours - 4 * s[c]
        np.testing.assert_allclose(observed[c] * (s[c] - image[c]), 2.0 * laplacian, atol=1e-9)
    np.testing.assert_array_equal(smooth_part(np.where(observed, image, np.nan), observed, 2.0, 1e-12), s)
    np.testing.assert_allclose(smooth_part(np.full((1, 9, 9), 7.0), observed[:1, :9, :9], 5.0), 7.0)


def test_a_continuation_bends_least_and_ignores_holes(random):
    image, observed = random.random((2, 9, 7)), random.random((2, 9, 7)) < 0.5
    found = continuation(image, observed, tolerance=1e-12)
    for c in range(2):
        unknown = ~observed[c].ravel()
        pixels = np.eye(63).reshape(63, 9, 7)
        across, down = (np.diff(pixels, 2, axis=axis).reshape(63, -1) for axis in (1, 2))
        mixed = np.sqrt(2) * np.diff(np.diff(pixels, axis=1), axis=2).reshape(63, -1)
        bend = np.hstack([across, down, mixed])
        filled, *_ = np.linalg.lstsq(bend[unknown].T, -image[c].ravel()[~unknown] @ bend[~unknown])
        np.testing.assert_allclose(found[c].ravel()[unknown], filled, atol=1e-9)
    np.testing.assert_array_equal(found[observed], image[observed])
    np.testing.assert_array_equal(continuation(np.where(observed, image, np.nan), observed, 1e-12), found)
    plane = np.add.outer(np.arange(9.0), 2 * np.arange(7.0))[None]
    np.testing.assert_allclose(continuation(plane, observed[:1], 1e-12), plane, atol=1e-9)
    tiny = image[:, :1, :2]
    np.testing.assert_array_equal(continuation(tiny, np.ones(tiny.shape, bool)), tiny)


def test_a_bent_part_goes_on_as_its_continuation(random):
    image, observed = random.random((1, 12, 11)), random.random((1, 12, 11)) < 0.5
    s = bent_part(image, observed, 2.0, tolerance=1e-12)
    np.testing.assert_allclose(continuation(s, observed, 1e-12), s, atol=1e-8)
    flat = bent_part(image, observed, 1e4, tolerance=1e-12)
    ones = np.ones((12, 11))
    plane = np.stack([ones, *np.indices((12, 11))]).reshape(3, -1).T
    seen = observed.ravel()
    best, *_ = np.linalg.lstsq(plane[seen], image.ravel()[seen])
    np.testing.assert_allclose(flat.ravel(), plane @ best, atol=1e-3)


def test_metrics(random):
    image = random.random((30, 40))
    noisy = image + 0.1 * random.standard_normal(image.shape)
    assert psnr(image, image) == np.inf
    assert psnr(image * 255, noisy * 255, 255) == pytest.approx(psnr(image, noisy, 1.0))
    where = random.random(image.shape) < 0.5
    assert psnr(image, np.where(where, image, 0), where=where) == np.inf
    assert ssim(image, image) == pytest.approx(1)
    assert 0 < ssim(image, noisy, where=where) < 1
    assert paper_psnr(image, 3 * image + 7) > 200  # scaled separately, so brightness and contrast do not count
    assert paper_ssim(image, 3 * image + 7) == pytest.approx(1)
    assert paper_ssim(image, noisy) < 1
    assert paper_ssim(image, np.zeros_like(image)) < 0.1
    with pytest.raises(ValueError, match="one shape"):
        psnr(image, noisy[:-1])
    with pytest.raises(ValueError, match="where"):
        psnr(image, noisy, where=where[:-1])
