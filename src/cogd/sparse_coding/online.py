"""Learning from one batch of images after the other: memory depends on the batch, not on how many images there are.

A batch is coded, and codes and atoms then improved in turn on it alone. Every atom moves to where the batch took it by
the share that the batch has in what the atom has carried so far: its weight, the sum of its squared codes, in which
earlier batches fade.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from cogd.sparse_coding.coder import LEARNING_TOLERANCE, learn, new_working_set, settle
from cogd.sparse_coding.fitting import Progress
from cogd.sparse_coding.signals import Signals
from cogd.sparse_coding.storage import taken

FADING = 0.9  # what is left of a weight after one more batch
TURNS = 3  # over codes and atoms, on each batch


class Step(NamedTuple):
    """What a batch made of the atoms and their weights, and its objective before."""

    atoms: np.ndarray
    weights: np.ndarray
    objective: float
    nonzeros: int


def batch_step(signals: Signals, atoms: np.ndarray, weights: np.ndarray, penalty: float, device: str = "cpu") -> Step:
    """Return the step of one batch."""
    working_set = new_working_set(signals.images, signals.observed, atoms.shape[1:], device)
    settle(working_set, atoms, penalty, LEARNING_TOLERANCE)
    objective, nonzeros = working_set.objective(penalty), working_set.nonzeros
    target = next(islice(learn(working_set, atoms, penalty, iteration=1), TURNS - 1, None))
    batch = working_set.weights(len(atoms))
    total = FADING * weights + batch
    share = np.divide(batch, total, out=np.zeros_like(batch), where=total > 0).astype(atoms.dtype)
    return Step(atoms + share[:, None, None, None] * (target - atoms), total, objective, nonzeros)


class OnlineRun:
    """Iterations over batches in random order, every image once in a pass; `read` returns the images of a batch."""

    def __init__(
        self,
        read: Callable[[Sequence[int]], Signals],
        n_images: int,
        batch_size: int,
        weights: np.ndarray,
        penalty: float,
        seed: int,
        device: str,
    ):
        self.read, self.n_images, self.batch_size = read, n_images, batch_size
        self.weights, self.penalty, self.seed, self.device = weights, penalty, seed, device
        self._last: Step | None = None

    def iterations(self, atoms: np.ndarray, done: int = 0) -> Iterator[np.ndarray]:
        """Yield the atoms after every batch, for ever; `done` went before."""
        while True:
            self._last = batch_step(self.read(self.batch(done)), atoms, self.weights, self.penalty, self.device)
            atoms, self.weights = self._last.atoms, self._last.weights
            done += 1
            yield atoms

    def batch(self, number: int) -> list[int]:
        """Return which images are in a batch."""
        turn, place = divmod(number, -(-self.n_images // self.batch_size))
        order = np.random.RandomState([self.seed, turn]).permutation(self.n_images)
        return order[place * self.batch_size : (place + 1) * self.batch_size].tolist()

    def progress(self, iteration: int, seconds: float) -> Progress:
        if self._last is None:
            raise RuntimeError("there is no progress before the first iteration.")
        return Progress(iteration, seconds, self._last.objective, self._last.nonzeros)

    def state(self) -> dict[str, np.ndarray]:
        """Return copies of all that the next iteration reads beside images and atoms."""
        return {"weights": self.weights.copy(), "seed": np.array([self.seed])}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from an earlier run's state; refuse one that is damaged."""
        weights, (seed,) = taken(state, "weights", self.weights.shape, np.float64), taken(state, "seed", (1,), np.int64)
        if (weights < 0).any() or not 0 <= seed < 2**31:
            raise ValueError("weights and seed must be at least 0")
        self.weights, self.seed = weights, int(seed)
