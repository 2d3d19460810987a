"""Data by name: "digits", "cifar10:DIR", "folder:DIR_OR_ZIP"."""

import difflib
from pathlib import Path

from cogd.training.data.cifar10 import load_cifar10
from cogd.training.data.digits import load_digits
from cogd.training.data.folder import FolderData, load_folder
from cogd.training.data.memory import MemoryData

Data = MemoryData | FolderData
KINDS = {"digits": "digits", "cifar10": "cifar10:DIR", "folder": "folder:DIR_OR_ZIP"}


def load_data(source: str) -> Data:
    """Return the data set that a source such as "digits" or "cifar10:DIR" names.

    >>> load_data("digits").source
    'digits'
    """
    kind, _, place = source.partition(":")
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"data must be one of {', '.join(KINDS.values())}; got {source!r}.{hint}")
    if kind == "digits":
        if place:
            raise ValueError(f'data "digits" comes with scikit-learn and takes no folder; got {source!r}.')
        return load_digits()
    path = Path(place).expanduser()
    if not place or not (path.is_dir() or (kind == "folder" and path.is_file())):
        raise FileNotFoundError(f"data must name what exists, as in {KINDS[kind]}; {place!r} does not.")
    return load_cifar10(path) if kind == "cifar10" else load_folder(path)
