"""What the sparse-coding tests learn from."""

import numpy as np


def unit_atoms(random, *shape):
    atoms = random.standard_normal(shape)
    return atoms / np.sqrt((atoms**2).sum((1, 2, 3), keepdims=True))


def textured(random, *shape):
    """Images of overlapping smooth bumps: something to learn from."""
    from scipy.ndimage import gaussian_filter

    images = random.standard_normal(shape)
    smooth = [gaussian_filter(image, 1.5, axes=(-2, -1)) for image in images]
    return np.stack(smooth) / np.std(smooth)
