"""Data by name: "digits", "cifar10:DIR"."""

import difflib
from pathlib import Path

from cogd.training.data.cifar10 import load_cifar10
from cogd.training.data.digits import load_digits
from cogd.training.data.memory import MemoryData as MemoryData

KINDS = ("digits", "cifar10")


def load_data(source: str) -> MemoryData:
    """Return the data set that a source such as "digits" or "cifar10:DIR" names."""
    kind, _, place = source.partition(":")
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f'data must be "digits" or "cifar10:DIR"; got {source!r}.{hint}')
    if kind == "digits":
        if place:
            raise ValueError(f'data "digits" comes with scikit-learn and takes no folder; got {source!r}.')
        return load_digits()
    folder = Path(place).expanduser()
    if not place or not folder.is_dir():
        raise FileNotFoundError(f"data {source!r} must name a folder, as in {kind}:DIR; {place!r} is none.")
    return load_cifar10(folder)
