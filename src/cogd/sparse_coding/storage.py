"""Arrays in a file: safetensors for the numbers, JSON in its metadata for the rest; nothing in it is ever run."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from cogd.sparse_coding.atoms import check_atoms

DICTIONARY, CHECKPOINT = "cogd-dictionary-1", "cogd-fit-1"
KINDS = {DICTIONARY: "dictionary", CHECKPOINT: "checkpoint of a fit"}


def write_arrays(path: str | Path, kind: str, arrays: dict[str, np.ndarray], about: dict[str, Any]) -> None:
    """Write arrays and what is known about them; the file is whole or, on failure, the old one."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    try:
        partial.touch()
        mode = partial.stat().st_mode  # of new files here; safetensors makes its own, for their owner alone
        save_file(contiguous, partial, {"format": kind, "about": json.dumps(about, default=_plain)})
        partial.chmod(mode)
        os.replace(partial, path)
    except (SafetensorError, OSError) as error:
        partial.unlink(missing_ok=True)
        raise OSError(f"cannot write {str(path)!r}: {error}. Is there such a folder, and room in it?") from error


def read_arrays(path: str | Path, kind: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays of a file of this kind, and what is known about them.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is of another kind, or damaged.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}.")
    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != kind:
                raise ValueError(f"{str(path)!r} is no {KINDS[kind]} written by this version of CoGD ({kind}).")
            arrays, about = {name: file.get_tensor(name) for name in file.keys()}, json.loads(metadata["about"])  # noqa: SIM118
    except (SafetensorError, json.JSONDecodeError, KeyError, OSError, RecursionError, TypeError) as error:
        raise ValueError(f"{str(path)!r} is damaged or no safetensors file: {error}. Save or copy it again.") from error
    if isinstance(about, dict):
        return arrays, about
    raise ValueError(f"{str(path)!r} holds no description of its numbers. Save it again.")


def read_dictionary(path: str | Path) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Return atoms (K, C, h, w), their weights (K,) and what is known about them, or refuse the file."""
    arrays, about = read_arrays(path, DICTIONARY)
    name = f"the dictionary in {str(path)!r}"
    if set(arrays) != {"dictionary", "weights"}:
        raise ValueError(f"{name} must come with its weights and nothing else; the file holds {sorted(arrays)}.")
    dictionary, weights = arrays["dictionary"], arrays["weights"]
    if dictionary.dtype not in (np.float32, np.float64):
        raise ValueError(f"{name} must hold floating-point numbers of 32 or 64 bits; got {dictionary.dtype}.")
    check_atoms(dictionary, name)
    if weights.shape != dictionary.shape[:1] or not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(f"{name} must have one weight >= 0 per atom.")
    return dictionary, weights.astype(np.float64), about


def taken(state: dict[str, np.ndarray], name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an array of a file, or refuse one of another shape or type, or not finite; -1 stands for any length."""
    array = state[name]
    fits = len(shape) == array.ndim and all(n in (-1, m) for n, m in zip(shape, array.shape, strict=True))
    if not fits or array.dtype != dtype or not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite {np.dtype(dtype)} of shape {shape}; got {array.dtype} {array.shape}")
    return array


def _plain(number: Any) -> Any:
    """Return a NumPy number as Python's own."""
    if isinstance(number, np.generic):
        return number.item()
    raise TypeError(f"a file keeps numbers and text; got {type(number).__name__}.")
