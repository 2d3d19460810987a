"""Where a dictionary starts, and what every dictionary must fulfil."""

from collections.abc import Sequence

import numpy as np

PATCH_TRIALS = 100  # draws per atom of a patch that is not blank


def initial_atoms(
    images: Sequence[np.ndarray], n_atoms: int, atom_shape: tuple[int, int], random: np.random.RandomState
) -> np.ndarray:
    """Return atoms (K, C, h, w) of norm 1: patches of the images at random places, noise where those are blank."""
    height, width = atom_shape
    atoms = np.empty((n_atoms, images[0].shape[0], height, width), images[0].dtype)
    for atom in atoms:
        for _ in range(PATCH_TRIALS):
            image = images[random.randint(len(images))]
            top, left = random.randint(image.shape[1] - height + 1), random.randint(image.shape[2] - width + 1)
            atom[:] = image[:, top : top + height, left : left + width]
            if np.ptp(atom) > 0:
                break
        else:
            atom[:] = random.standard_normal(atom.shape)
    return unit_norm(atoms)


def unit_norm(atoms: np.ndarray) -> np.ndarray:
    """Return atoms scaled to norm 1."""
    return atoms / np.sqrt(np.square(atoms).sum((1, 2, 3), keepdims=True))


def from_sporco(dictionary: np.ndarray) -> np.ndarray:
    """Return sporco's dictionary (h, w, K), (h, w, C, K) or (h, w, C, 1, K) as (K, C, h, w).

    >>> from_sporco(np.ones((8, 8, 3, 32))).shape
    (32, 3, 8, 8)
    """
    dictionary = np.asarray(dictionary)
    shape = dictionary.shape
    if dictionary.ndim not in (3, 4, 5) or (dictionary.ndim == 5 and shape[3] != 1):
        raise ValueError(f"dictionary must have the shape (h, w, K), (h, w, C, K) or (h, w, C, 1, K); got {shape}.")
    channels = 1 if dictionary.ndim == 3 else shape[2]
    return np.ascontiguousarray(dictionary.reshape(*shape[:2], channels, shape[-1]).transpose(3, 2, 0, 1))


def check_atoms(atoms: np.ndarray, name: str = "dictionary") -> None:
    """Refuse what is no dictionary: (K, C, h, w), finite, every atom's norm at most 1."""
    if atoms.ndim != 4 or 0 in atoms.shape:
        raise ValueError(f"{name} must have the shape (K, C, h, w), none of them 0; got {atoms.shape}.")
    if not np.isfinite(atoms).all():
        raise ValueError(f"{name} has NaN or infinite values.")
    norms = np.sqrt(np.square(atoms, dtype=np.float64).sum((1, 2, 3)))
    if norms.max() > 1 + 1e-4:
        raise ValueError(f"{name} must have atoms of norm at most 1; the largest is {norms.max():.6g}. Divide by it.")
