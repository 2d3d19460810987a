"""A dictionary in a file: safetensors for the numbers, JSON in its metadata for the rest; nothing in it is ever run."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from cogd.sparse_coding.atoms import check_atoms

FORMAT = "cogd-dictionary-1"


def save_dictionary(path: str | Path, dictionary: np.ndarray, about: dict[str, Any]) -> None:
    """Write atoms (K, C, h, w) and what is known about them; the file is whole or, on failure, the old one."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    save_file({"dictionary": dictionary}, partial, {"format": FORMAT, "about": json.dumps(about, default=_plain)})
    os.replace(partial, path)


def load_dictionary(path: str | Path) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the atoms and what is known about them.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is no dictionary of CoGD's, or a damaged one.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}.")
    try:
        with safe_open(path, "numpy") as file:
            metadata, names = file.metadata() or {}, list(file.keys())
            if metadata.get("format") != FORMAT or "dictionary" not in names:
                raise ValueError(f"{str(path)!r} is no dictionary written by this version of CoGD ({FORMAT}).")
            dictionary, about = file.get_tensor("dictionary"), json.loads(metadata["about"])
    except (SafetensorError, json.JSONDecodeError, KeyError, OSError) as error:
        raise ValueError(f"{str(path)!r} is damaged or no safetensors file: {error}. Save or copy it again.") from error
    if dictionary.dtype not in (np.float32, np.float64) or not isinstance(about, dict):
        raise ValueError(f"{str(path)!r} holds no dictionary of floating-point numbers with a description.")
    check_atoms(dictionary, f"the dictionary in {str(path)!r}")
    return dictionary, about


def _plain(number: Any) -> Any:
    """Return a NumPy number as Python's own."""
    if isinstance(number, np.generic):
        return number.item()
    raise TypeError(f"a dictionary file keeps numbers and text; got {type(number).__name__}.")
