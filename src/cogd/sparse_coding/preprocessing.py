"""What images are made into before they are coded: contrast normalisation, and the split off of a smooth part."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.ndimage import correlate1d

from cogd.sparse_coding.signals import Signals

WINDOW, SIGMA = 13, 3 * 1.591  # the paper's, after Zeiler et al. 2010
BENDING_STEPS = 2000  # of conjugate gradients, at most


def normalize_contrast(image: np.ndarray) -> np.ndarray:
    """Return a grey image less its local mean, divided by its local standard deviation, with zero mean.

    Mean and deviation are weighted by a 13 x 13 Gaussian, the image reflected about its edge pixels; a deviation below
    the median of all is replaced by it. This is the preprocessing of the paper's experiments.

    >>> normalized = normalize_contrast(np.random.default_rng(0).random((20, 30)))
    >>> normalized.shape, round(abs(float(normalized.mean())), 6)
    ((20, 30), 0.0)
    """
    image = np.asarray(image, np.float64)
    if image.ndim != 2 or min(image.shape) < WINDOW:
        raise ValueError(f"image must have the shape (H, W), both at least {WINDOW}; got {image.shape}.")
    if not np.isfinite(image).all():
        raise ValueError("image has NaN or infinite values.")
    mean = _gaussian(image)
    deviation = np.sqrt(np.maximum(_gaussian(image**2) - mean**2, 0))
    deviation = np.maximum(deviation, _median_above_zero(deviation))
    normalized = (image - mean) / deviation
    return normalized - normalized.mean()


def without_smooth_part(
    signals: Signals, strength: float, part: Callable[[np.ndarray, np.ndarray, float], np.ndarray]
) -> tuple[Signals, list[np.ndarray]]:
    """Return images less their smooth parts, of one kind, and these; with a strength of 0 there are none.

    >>> from cogd.sparse_coding.signals import read_signals
    >>> signals = read_signals(np.ones((1, 8, 8)), None, np.dtype("float32"))
    >>> detail, smooth = without_smooth_part(signals, strength=5.0, part=smooth_part)
    >>> float(detail.images[0].max()), float(smooth[0].max())
    (0.0, 1.0)
    """
    if not strength:
        return signals, [np.zeros_like(image) for image in signals.images]
    smooth = [part(b, m, strength) for b, m in zip(signals.images, signals.observed, strict=True)]
    triples = zip(signals.images, smooth, signals.observed, strict=True)
    return replace(signals, images=[np.where(m, b - s, 0) for b, s, m in triples]), smooth


def smooth_part(image: np.ndarray, observed: np.ndarray, strength: float, tolerance: float = 1e-5) -> np.ndarray:
    """Return the minimiser s of 1/2 sum over observed (b - s)^2 + strength/2 ||grad s||^2, by conjugate gradients.

    Shapes are (C, H, W); every channel is smoothed on its own. What varies over distances of more than about
    2 pi sqrt(strength) pixels passes, and holes are bridged.

    >>> seen = np.arange(64).reshape(1, 8, 8) % 5 > 0  # every fifth pixel is missing
    >>> float(smooth_part(np.where(seen, 1.0, 0.0), seen, strength=5.0).min())
    1.0
    """
    weight = observed.astype(np.float64)
    b = np.where(observed, image, 0).astype(np.float64)

    def normal_matrix(s):  # of (M + strength L) s = M b
        return weight * s + strength * _negative_laplacian(s)

    solved = _conjugate_gradients(
        normal_matrix,
        b,
        _mean(b, weight),
        preconditioner=1 / (weight + 4 * strength),
        tolerance=tolerance,
        most=10 * sum(image.shape),
    )
    return solved.astype(image.dtype)


def bent_part(image: np.ndarray, observed: np.ndarray, strength: float, tolerance: float = 1e-4) -> np.ndarray:
    """Return the minimiser s of 1/2 sum over observed (b - s)^2 + strength^2/2 bending(s), by conjugate gradients.

    What passes is what passes `smooth_part` of this strength, but holes are bridged as by `continuation`.

    >>> seen = np.arange(64).reshape(1, 8, 8) % 5 > 0  # every fifth pixel is missing
    >>> slope = np.arange(64.0).reshape(1, 8, 8)
    >>> bool(np.abs(bent_part(np.where(seen, slope, 0), seen, strength=5.0) - slope).max() < 0.1)
    True
    """
    weight, b = observed.astype(np.float64), np.where(observed, image, 0).astype(np.float64)

    def normal_matrix(s):
        return weight * s + strength**2 * _bending(s)

    preconditioner = 1 / (weight + 20 * strength**2)
    s = _conjugate_gradients(normal_matrix, b, _mean(b, weight), preconditioner, tolerance, BENDING_STEPS)
    return s.astype(image.dtype)


def continuation(image: np.ndarray, observed: np.ndarray, tolerance: float = 1e-4) -> np.ndarray:
    """Return an image (C, H, W) continued into its hidden pixels with the least bending, by conjugate gradients.

    Bending is the sum of all squared second derivatives: hidden pixels are biharmonic. So far from observed pixels that
    more steps were needed than are done, they stay near 0.

    >>> seen = np.arange(64).reshape(1, 8, 8) % 5 > 0  # every fifth pixel is missing
    >>> slope = np.arange(64.0).reshape(1, 8, 8)
    >>> bool(np.abs(continuation(np.where(seen, slope, 0), seen, tolerance=1e-9) - slope).max() < 1e-6)
    True
    """
    known = np.where(observed, image, 0).astype(np.float64)
    hidden = ~observed

    def bending_of_hidden(s):
        return np.where(hidden, _bending(s), 0)

    zero = np.zeros_like(known)
    bent = _conjugate_gradients(bending_of_hidden, -bending_of_hidden(known), zero, 1.0, tolerance, BENDING_STEPS)
    return (known + bent).astype(image.dtype)


def noise_level(image: np.ndarray, observed: np.ndarray) -> float:
    """Return the standard deviation of an image's noise (C, H, W), where blocks of 3 x 3 pixels were observed.

    The second difference in both directions, [1 -2 1] by [1 -2 1], has 6 times the noise's deviation and hardly sees a
    picture; its median is that of 0.6745 deviations.  (J. Immerkaer 1996, with the median for the mean)

    >>> noise = np.random.default_rng(0).normal(0, 0.1, (1, 64, 64))
    >>> round(noise_level(noise, np.ones(noise.shape, bool)), 2)
    0.1
    """
    differences, whole = image.astype(np.float64), observed
    for axis in (-2, -1):
        differences = np.diff(differences, 2, axis=axis)
        n = whole.shape[axis]
        parts = [np.take(whole, range(i, n - 2 + i), axis) for i in range(3)]
        whole = np.logical_and.reduce(parts)
    if not whole.any():
        raise ValueError("noise cannot be estimated where no block of 3 x 3 pixels was observed; give noise=.")
    return float(max(np.median(np.abs(differences[whole])) / (6 * 0.6745), np.finfo(np.float32).eps))


def _gaussian(image: np.ndarray) -> np.ndarray:
    steps = np.arange(WINDOW) - WINDOW // 2
    kernel = np.exp(-0.5 * (steps / SIGMA) ** 2)
    kernel /= kernel.sum()
    return correlate1d(correlate1d(image, kernel, 0, mode="mirror"), kernel, 1, mode="mirror")


def _median_above_zero(deviation: np.ndarray) -> float:
    """Return the lower median, or that of the values above 0 where it is 0, or the smallest float where none is."""
    for values in (deviation.ravel(), deviation[deviation > 0]):
        ordered = np.sort(values)
        middle = ordered[max(round(len(ordered) / 2), 1) - 1] if len(ordered) else 0.0
        if middle > 0:
            return float(middle)
    return float(np.finfo(np.float64).eps)


def _mean(b: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the observed pixels' mean everywhere."""
    return np.full_like(b, b.sum() / weight.sum())


def _conjugate_gradients(matrix, b, s, preconditioner, tolerance, most):
    """Return s, from the one given, with matrix(s) = b to tolerance * ||b||, or what so many steps reach."""
    r = b - matrix(s)
    p = preconditioner * r
    rho, goal = (r * p).sum(), tolerance * np.linalg.norm(b)
    for _ in range(most):
        if np.linalg.norm(r) <= goal:
            break
        q = matrix(p)
        step = rho / (p * q).sum()
        s, r = s + step * p, r - step * q
        rho_before, rho = rho, (r * preconditioner * r).sum()
        p = preconditioner * r + rho / rho_before * p
    return s


def _negative_laplacian(s: np.ndarray) -> np.ndarray:
    """Return -(laplacian) of every channel (C, H, W), without flow over the boundary."""
    out = np.zeros_like(s)
    down, right = np.diff(s, axis=-2), np.diff(s, axis=-1)
    out[..., :-1, :] -= down
    out[..., 1:, :] += down
    out[..., :-1] -= right
    out[..., 1:] += right
    return out


def _bending(s: np.ndarray) -> np.ndarray:
    """Return half the gradient of a channel's squared second differences (C, H, W), the mixed ones counted twice."""
    out = np.zeros_like(s)
    for along, back in ((s, out), (s.swapaxes(-1, -2), out.swapaxes(-1, -2))):
        d = along[..., 2:] - 2 * along[..., 1:-1] + along[..., :-2]
        back[..., 2:] += d
        back[..., 1:-1] -= 2 * d
        back[..., :-2] += d
    d = 2 * np.diff(np.diff(s, axis=-1), axis=-2)
    out[..., 1:, 1:] += d
    out[..., 1:, :-1] -= d
    out[..., :-1, 1:] -= d
    out[..., :-1, :-1] += d
    return out
