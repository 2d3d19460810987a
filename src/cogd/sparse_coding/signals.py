"""Images as users hold them, and as the solvers read them: containers, shapes, dtypes and what is refused."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cogd.sparse_coding.checks import check_memory

COPIES = 15  # of all images, that reading, splitting and coding them hold at once


@dataclass(frozen=True)
class Signals:
    """Images as arrays (C, H, W) of the solver's dtype, 0 where not observed; `pictures` are what came in.

    Integers are read as shares of their type's range: 255 of uint8 is 1. `give_back` puts arrays, one per image, into
    the kind of container that the images came in.
    """

    images: list[np.ndarray]
    observed: list[np.ndarray]
    pictures: list[np.ndarray]
    give_back: Callable[[list[np.ndarray]], Any]

    @property
    def channels(self) -> int:
        return self.images[0].shape[0]

    def as_pictures(self, results: list[np.ndarray]) -> Any:
        """Return results (C, H, W) in the shape, range, dtype and container of the pictures."""
        return self.give_back([_as_picture(r, p) for r, p in zip(results, self.pictures, strict=True)])

    def filled_with(self, results: list[np.ndarray]) -> Any:
        """Return the pictures themselves, with results where they were not observed."""
        triples = zip(self.observed, self.pictures, results, strict=True)
        return self.give_back([np.where(seen.reshape(p.shape), p, _as_picture(r, p)) for seen, p, r in triples])


def read_signals(X: Any, observed: Any, dtype: np.dtype, device: str = "cpu") -> Signals:
    """Check images and their observed pixels, and bring them into the solver's form.

    Raises:
        TypeError, ValueError: What cannot be coded, by name, with what is expected and what to do.
        MemoryError: Working on so many images would not fit into the memory of this machine or of the device.
    """
    pictures = [as_array(picture, "X") for picture in _items(X, "X")]
    if not pictures:
        raise ValueError("X holds no images; give at least one.")
    count_images(pictures, observed)
    masks = (
        [None] * len(pictures) if observed is None else [as_array(m, "observed") for m in _items(observed, "observed")]
    )
    numbers = sum(picture.size for picture in pictures)
    what = f"working on {len(pictures)} images of {numbers / 1e6:.1f} million numbers"
    remedy = "Give fewer images at a time; to fit, give batch_size."
    for place in ("cpu", device):
        check_memory(COPIES * numbers * dtype.itemsize, what, remedy, place)
    planes = [_as_planes(picture, i) for i, picture in enumerate(pictures)]
    if len({plane.shape[0] for plane in planes}) > 1:
        counts = sorted({plane.shape[0] for plane in planes})
        raise ValueError(f"all images of X must have equally many channels; got {counts}. Convert them to one mode.")
    seen = [_as_seen(mask, plane.shape, i) for i, (mask, plane) in enumerate(zip(masks, planes, strict=True))]
    images = [_as_signal(plane, m, i, dtype) for i, (plane, m) in enumerate(zip(planes, seen, strict=True))]
    return Signals(images, seen, pictures, _container(X))


def count_images(X: Any, observed: Any) -> int:
    """Return how many images there are, without reading them, and refuse masks that are more or fewer."""
    count, masks = len(_items(X, "X")), None if observed is None else len(_items(observed, "observed"))
    if masks not in (None, count):
        raise ValueError(f"observed must hold one mask per image; got {masks} for {count} images.")
    return count


def check_sizes(signals: Signals, atom_shape: tuple[int, int]) -> None:
    """Refuse images that are smaller than an atom."""
    for i, image in enumerate(signals.images):
        if image.shape[1] < atom_shape[0] or image.shape[2] < atom_shape[1]:
            raise ValueError(
                f"X[{i}] must be at least as large as an atom, {tuple(atom_shape)}; got {image.shape[1:]}. "
                "Leave it out, or choose smaller atoms."
            )


def some(X: Any, observed: Any, indices: Sequence[int]) -> tuple[list[Any], list[Any] | None]:
    """Return the images with these indices and their masks, as lists; indices past the end are left out."""
    kept = [i for i in indices if i < count_images(X, observed)]
    return [X[i] for i in kept], None if observed is None else [observed[i] for i in kept]


def read_codes(codes: Any, n_atoms: int, dtype: np.dtype) -> tuple[list[np.ndarray], Callable]:
    """Return codes as arrays (K, rows, columns), and how to give images back."""
    if isinstance(codes, torch.Tensor) and codes.is_sparse:
        codes = codes.to_dense()
    items = [as_array(item, "codes") for item in _items(codes, "codes")]
    for i, item in enumerate(items):
        if item.ndim != 3 or item.shape[0] != n_atoms:
            raise ValueError(
                f"codes[{i}] must have the shape (K, H + h - 1, W + w - 1) with K = {n_atoms} atoms; got {item.shape}."
            )
    return [item.astype(dtype, copy=False) for item in items], _container(codes)


def as_array(item: Any, name: str) -> np.ndarray:
    """Return an array or tensor as a NumPy array."""
    if isinstance(item, torch.Tensor):
        if item.dtype == torch.bfloat16:
            raise TypeError(f"{name} must hold numbers that NumPy has too; got {item.dtype}. Give {name}.float().")
        item = item.detach().cpu().numpy()
    array = np.asarray(item)
    if array.dtype == object or array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must hold real numbers; got dtype {array.dtype}.")
    return array


def _items(X: Any, name: str) -> Any:
    """Return the images of a stack, or of a sequence of them."""
    if isinstance(X, Sequence) and not isinstance(X, str | bytes):
        return X
    array = X if isinstance(X, torch.Tensor) else as_array(X, name)
    if array.ndim not in (3, 4):
        raise ValueError(
            f"{name} must have the shape (N, H, W) or (N, C, H, W), or be a list of images; got shape "
            f"{tuple(array.shape)}. For a single image add the first dimension: {name}[None]."
        )
    return array


def _as_planes(picture: np.ndarray, i: int) -> np.ndarray:
    if picture.ndim not in (2, 3):
        raise ValueError(f"X[{i}] must have the shape (H, W) or (C, H, W); got {picture.shape}.")
    if 0 in picture.shape:
        raise ValueError(f"X[{i}] is empty: its shape is {picture.shape}.")
    if picture.dtype == bool:
        raise TypeError(f"X[{i}] is boolean; give images as numbers, and masks as observed=.")
    if picture.dtype.kind in "iu" and picture.dtype.itemsize > 2:
        raise TypeError(
            f"X[{i}] has dtype {picture.dtype}; integers count as shares of their type's range, of which pictures fill "
            "next to nothing here. Give X.astype(np.uint8) for grey values up to 255, np.uint16 up to 65535, or floats."
        )
    if picture.ndim == 3 and picture.shape[0] > 4 and picture.shape[2] <= 4:
        raise ValueError(
            f"X[{i}] has the shape {picture.shape}, which reads as {picture.shape[0]} channels. "
            "Put the channels first: X.transpose(2, 0, 1) for one image."
        )
    return picture.reshape(-1, *picture.shape[-2:])


def _as_seen(mask: np.ndarray | None, shape: tuple[int, ...], i: int) -> np.ndarray:
    if mask is None:
        return np.ones(shape, bool)
    if mask.dtype != bool:
        raise TypeError(f"observed[{i}] must be boolean, True where a pixel was seen; got {mask.dtype}. Use mask > 0.")
    if mask.shape not in (shape, shape[1:], (1, *shape[1:])):
        raise ValueError(f"observed[{i}] must have its image's shape {shape} or {shape[1:]}; got {mask.shape}.")
    seen = np.broadcast_to(mask, shape)
    if not seen.any():
        raise ValueError(f"observed[{i}] is False everywhere: the image has no observed pixel. Leave it out.")
    return seen


def _as_signal(plane: np.ndarray, seen: np.ndarray, i: int, dtype: np.dtype) -> np.ndarray:
    scale = range_of(plane.dtype)
    signal = np.where(seen, plane, 0).astype(dtype) / dtype.type(scale)
    if not np.isfinite(signal).all():
        raise ValueError(f"X[{i}] has NaN or infinite values among its observed pixels; mark them observed=False.")
    return signal


def _as_picture(result: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Return a result in the shape, range and dtype of the picture it belongs to."""
    result = result.reshape(like.shape)
    if like.dtype.kind in "iu":
        limits = np.iinfo(like.dtype)
        result = np.clip(np.rint(result.astype(np.float64) * range_of(like.dtype)), limits.min, limits.max)
    return result.astype(like.dtype)


def range_of(dtype: np.dtype) -> int:
    return int(np.iinfo(dtype).max) if dtype.kind in "iu" else 1


def _container(like: Any) -> Callable[[list[np.ndarray]], Any]:
    """Return the function that puts arrays into the kind of container that `like` is."""
    if isinstance(like, Sequence):
        members = [_tensor_like(item) if isinstance(item, torch.Tensor) else np.asarray for item in like]
        container = tuple if isinstance(like, tuple) else list
        return lambda arrays: container([make(a) for make, a in zip(members, arrays, strict=True)])
    if isinstance(like, torch.Tensor):
        return lambda arrays: _tensor_like(like)(np.stack(arrays))
    return np.stack


def _tensor_like(like: torch.Tensor) -> Callable[[np.ndarray], torch.Tensor]:
    return lambda array: torch.from_numpy(array).to(like.device)
