"""PSNR and SSIM as the paper's code computes them, and as everybody else does. Higher is better in all.

The paper's: image and reconstruction are each min-max scaled to [0, 1] separately, so that errors of brightness and
contrast do not count, and SSIM is one global window. Its pair is for its own tables only.  [Eqs. eq_psnr, eq_ssim]
"""

from typing import Any

import numpy as np
from skimage.metrics import structural_similarity


def psnr(reference: Any, estimate: Any, data_range: float | None = None, where: Any = None) -> float:
    """Return the peak signal-to-noise ratio in dB, over the pixels `where` is True, or all.

    `data_range` is the reference's, max - min, unless given; give 255 for 8-bit pictures.

    >>> round(psnr(np.array([0.0, 1.0]), np.array([0.1, 1.0])), 2)
    23.01
    """
    reference, estimate = _pair(reference, estimate)
    data_range = float(np.ptp(reference)) if data_range is None else data_range
    errors = np.square(reference - estimate)
    mean = errors.mean() if where is None else errors[_checked_where(where, errors.shape)].mean()
    return float("inf") if mean == 0 else float(10 * np.log10(data_range**2 / mean))


def ssim(reference: Any, estimate: Any, data_range: float | None = None, where: Any = None) -> float:
    """Return the structural similarity of two images (H, W), 7x7 sliding window, averaged `where` True, or all over.

    >>> round(ssim(np.eye(8), np.eye(8)), 6)
    1.0
    """
    reference, estimate = _pair(reference, estimate)
    data_range = float(np.ptp(reference)) if data_range is None else data_range
    mean, everywhere = structural_similarity(reference, estimate, data_range=data_range, full=True)
    return float(mean if where is None else everywhere[_checked_where(where, everywhere.shape)].mean())


def paper_psnr(reference: Any, estimate: Any) -> float:
    """Return the paper's PSNR: both min-max scaled, MAX = 1.  [Eq. eq_psnr]

    >>> paper_psnr(np.array([0.0, 1.0]), np.array([5.0, 7.0]))  # brightness and contrast don't count
    inf
    """
    x, y = map(_min_max_scaled, _pair(reference, estimate))
    return psnr(x, y, data_range=1.0)


def paper_ssim(reference: Any, estimate: Any) -> float:
    """Return the paper's SSIM: both min-max scaled, one window over the whole image.  [Eq. eq_ssim]

    >>> round(paper_ssim(np.array([0.0, 1.0]), np.array([5.0, 7.0])), 6)
    1.0
    """
    x, y = map(_min_max_scaled, _pair(reference, estimate))
    c1, c2 = 0.01**2, 0.03**2
    covariance = ((x - x.mean()) * (y - y.mean())).mean()
    luminance = (2 * x.mean() * y.mean() + c1) / (x.mean() ** 2 + y.mean() ** 2 + c1)
    return float(luminance * (2 * covariance + c2) / (x.var() + y.var() + c2))


def _pair(reference: Any, estimate: Any) -> tuple[np.ndarray, np.ndarray]:
    reference, estimate = np.asarray(reference, np.float64), np.asarray(estimate, np.float64)
    if reference.shape != estimate.shape:
        raise ValueError(f"reference and estimate must have one shape; got {reference.shape} and {estimate.shape}.")
    return reference, estimate


def _checked_where(where: Any, shape: tuple[int, ...]) -> np.ndarray:
    where = np.asarray(where)
    if where.dtype != bool or where.shape != shape or not where.any():
        raise ValueError(
            f"where must be boolean, of shape {shape} and True somewhere; got {where.dtype} {where.shape}."
        )
    return where


def _min_max_scaled(image: np.ndarray) -> np.ndarray:
    spread = np.ptp(image)
    return (image - image.min()) / spread if spread else np.zeros_like(image)
