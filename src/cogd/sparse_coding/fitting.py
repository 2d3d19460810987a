"""What `fit` runs: a solver with its rule, until something ends it."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from cogd.sparse_coding.checks import check_memory
from cogd.sparse_coding.code_projection import CodeProjection
from cogd.sparse_coding.coder import CodeSet, learn, new_working_set
from cogd.sparse_coding.ffcsc import FFCSC, learn_ffcsc
from cogd.sparse_coding.signals import Signals
from cogd.sparse_coding.storage import taken

AUTO_FRACTION = 0.1  # penalty="auto" is this share of lambda_max
DENSE_COPIES = 12  # of all codes, that FFCSC and the rules hold at once


class Progress(NamedTuple):
    """One iteration of `fit`: its number, the seconds since the start, the objective, how many codes are not 0, and
    how many atoms' gates the rule found open. With a `batch_size` an iteration is a batch, and the objective that of
    the batch before it moved the atoms.

    >>> Progress(iteration=1, seconds=0.5, objective=12.0, nonzeros=34).opened
    0
    """

    iteration: int
    seconds: float
    objective: float
    nonzeros: int
    opened: int = 0


def read_history(entries: Any) -> list[Progress]:
    """Return the history that a file holds, or refuse it."""
    history = [Progress(*entry) for entry in entries]
    if not all(type(number) in (int, float) and math.isfinite(number) for entry in history for number in entry):
        raise ValueError("history must hold finite numbers only")
    return history


class WholeRun:
    """Iterations over all images at once, from the start or from an earlier run's state."""

    def __init__(self, settings: dict[str, Any], signals: Signals, atoms: np.ndarray, penalty: float):
        _check_dense_codes(settings, signals, atoms)
        rule = settings["rule"]
        self.penalty, self._atoms, self._device = penalty, atoms, settings["device"]
        self._codes_shapes = codes_shapes(signals, atoms)
        self.projection = None if rule is None else CodeProjection(rule, settings["order"], settings["scale"])
        self.solver: CodeSet | FFCSC
        if settings["solver"] == "ffcsc":
            self.solver = FFCSC(signals.images, signals.observed, atoms, penalty, self._device)
        else:
            self.solver = new_working_set(signals.images, signals.observed, atoms.shape[1:], self._device)

    def iterations(self, atoms: np.ndarray, done: int = 0) -> Iterator[np.ndarray]:
        """Yield the atoms after every iteration, for ever; `done` went before."""
        if isinstance(self.solver, FFCSC):
            return learn_ffcsc(self.solver, self.projection)
        return learn(self.solver, atoms, self.penalty, self.projection, done)

    def progress(self, iteration: int, seconds: float) -> Progress:
        opened = 0 if self.projection is None else self.projection.opened
        return Progress(iteration, seconds, self.solver.objective(self.penalty), self.solver.nonzeros, opened)

    @property
    def weights(self) -> np.ndarray:
        return self.solver.weights(len(self._atoms))

    def state(self) -> dict[str, np.ndarray]:
        """Return copies of all that the next iteration reads beside images and atoms."""
        rule = {} if self.projection is None else self.projection.state()
        return {**self.solver.state(), **{f"rule.{name}": array for name, array in rule.items()}}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from an earlier run's state; refuse one that is damaged."""
        self.solver.restore(state, len(self._atoms))
        if self.projection is not None:
            atoms = taken(state, "rule.atoms", self._atoms.shape, self._atoms.dtype)
            codes = [taken(state, f"rule.codes.{i}", shape, atoms.dtype) for i, shape in enumerate(self._codes_shapes)]
            self.projection.restore(atoms, codes, self._device)


def reason_to_stop(
    history: Sequence[Progress], max_iter: int, tol: float | None, time_limit: float | None
) -> str | None:
    """Return which limit the last iteration reached, if any."""
    last = history[-1]
    change = abs(history[-2].objective - last.objective) if len(history) > 2 else float("inf")
    if tol is not None and change <= tol * last.objective:
        return "tol"
    if last.iteration >= max_iter:
        return "max_iter"
    return "time_limit" if time_limit is not None and last.seconds >= time_limit else None


def auto_penalty(signals: Signals, atoms: np.ndarray, device: str) -> float:
    """Return a tenth of lambda_max, the least penalty at which all codes of these atoms vanish."""
    working_set = new_working_set(signals.images, signals.observed, atoms.shape[1:], device)
    largest = working_set.largest_gradient(working_set.own(atoms))
    if largest <= 0:
        raise ValueError('penalty="auto" needs images that are not all blank; these are. Check X and smoothing.')
    return AUTO_FRACTION * largest


def codes_shapes(signals: Signals, atoms: np.ndarray) -> list[tuple[int, int, int]]:
    """Return the shape (K, rows, columns) of every image's codes."""
    count, _, height, width = atoms.shape
    return [(count, b.shape[1] + height - 1, b.shape[2] + width - 1) for b in signals.images]


def check_dense_room(
    signals: Signals, atoms: np.ndarray, copies: int, what: str, remedy: str, device: str = "cpu"
) -> None:
    """Refuse what holds dense codes of these images where they will not fit into memory."""
    numbers = sum(map(math.prod, codes_shapes(signals, atoms)))
    check_memory(copies * numbers * atoms.itemsize, what, remedy, device)


def _check_dense_codes(settings: dict[str, Any], signals: Signals, atoms: np.ndarray) -> None:
    if settings["solver"] == "ffcsc" or settings["rule"] is not None:
        what = 'solver="ffcsc"' if settings["solver"] == "ffcsc" else f"rule={settings['rule']!r}"
        remedy = 'Use solver="working_set" with rule=None, or fewer images.'
        check_dense_room(signals, atoms, DENSE_COPIES, what, remedy, settings["device"])
