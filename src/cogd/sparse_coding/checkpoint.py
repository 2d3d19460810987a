"""The file from which an interrupted `fit` goes on to what it would have been, bit for bit."""

import hashlib
import numbers
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cogd.sparse_coding.atoms import check_atoms
from cogd.sparse_coding.checks import checked_penalty
from cogd.sparse_coding.fitting import Progress, read_history
from cogd.sparse_coding.storage import CHECKPOINT, read_arrays, taken, write_arrays

SECONDS_BETWEEN = 60.0  # writes to disk, so that a lost process costs at most so much
MAY_CHANGE = ("max_iter", "tol", "time_limit", "transform_tol", "warm_start", "on_progress")


class Snapshot(NamedTuple):
    """A fit after a whole iteration: its results so far, and all else that the next iteration reads."""

    dictionary: np.ndarray
    weights: np.ndarray
    penalty: float
    history: list[Progress]
    state: dict[str, np.ndarray]


class Checkpoint:
    """A file for the snapshots of one fit, known by its settings and its images."""

    def __init__(self, path: str | Path, settings: dict[str, Any], arrays: Iterable[np.ndarray]):
        self.path = Path(path)
        self._identity = {**identifying(settings), "images": _digest(arrays)}
        self._latest: Snapshot | None = None
        self._written = time.monotonic()

    def read(self, shape: tuple[int, ...], dtype: Any) -> Snapshot | None:
        """Return where an earlier fit of a dictionary of this shape stopped, None if there was none; refuse another's.

        The state is checked by who restores it.
        """
        if not self.path.exists():
            return None
        arrays, about = read_arrays(self.path, CHECKPOINT)
        with self.refusing_damage():
            theirs = {name: about["identity"][name] for name in self._identity}
            penalty, history = checked_penalty(about["penalty"]), read_history(about["history"])
        self._check_same(theirs)
        with self.refusing_damage():
            dictionary, weights = taken(arrays, "dictionary", shape, dtype), taken(arrays, "weights_", shape[:1], float)
            check_atoms(dictionary)
            if not history or (weights < 0).any():
                raise ValueError("it must hold an iteration, and weights of at least 0")
        return Snapshot(dictionary, weights, penalty, history, arrays)

    @contextmanager
    def refusing_damage(self) -> Iterator[None]:
        """Name the file, and the remedy, where what is read from it is not what a fit wrote."""
        try:
            yield
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            what = f"it lacks {error}" if isinstance(error, KeyError) else str(error).removesuffix(".")
            raise ValueError(f"{str(self.path)!r} is damaged: {what}. Delete it to start anew.") from error

    def keep(self, snapshot: Snapshot) -> None:
        """Hold on to the latest snapshot, and write it where the last write was long ago."""
        self._latest = snapshot
        if time.monotonic() - self._written >= SECONDS_BETWEEN:
            self.write()

    def write(self) -> None:
        """Write the latest snapshot, if there is one."""
        if self._latest is not None:
            latest = self._latest
            about = {"identity": self._identity, "penalty": latest.penalty, "history": latest.history}
            results = {"dictionary": latest.dictionary, "weights_": latest.weights}
            write_arrays(self.path, CHECKPOINT, {**latest.state, **results}, about)
            self._written = time.monotonic()

    def remove(self) -> None:
        """Delete the file: the fit has ended by itself."""
        self.path.unlink(missing_ok=True)

    def _check_same(self, theirs: dict[str, Any]) -> None:
        changed = [name for name in self._identity if theirs[name] != self._identity[name]]
        if changed:
            what = "other images" if changed == ["images"] else ", ".join(c for c in changed if c != "images")
            raise ValueError(
                f"{str(self.path)!r} is the checkpoint of a fit with {what} changed since. Go on with what it was "
                "made with, or delete it to start anew."
            )


def identifying(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that decide a fit's iterations, as JSON gives them back."""
    kept = {name: value for name, value in settings.items() if name not in MAY_CHANGE}
    kept["atom_shape"] = list(kept["atom_shape"])
    if not isinstance(kept["random_state"], numbers.Integral):
        kept["random_state"] = None
    return kept


def _digest(arrays: Iterable[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.shape} {array.dtype} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
