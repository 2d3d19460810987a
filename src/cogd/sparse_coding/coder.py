"""The default solver: coordinate descent on a working set of codes, and on the atoms between its passes.

A pass lets in, from every block of positions, the code that violates optimality most; sweeps minimise exactly over one
code of the set after the other; codes that end at zero leave. 0.1% of all codes are ever nonzero, so a sweep costs a
small part of the one gradient that looks for them.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from cogd.sparse_coding.code_projection import CodeProjection, Observation, as_signals
from cogd.sparse_coding.working_set import WorkingSet

BLOCK = 4  # positions, in both directions, that send one code per pass
SWEEPS_PER_PASS = 8
LEARNING_TOLERANCE = 1e-2  # violation, as a share of the penalty, below which a code stays out while atoms still move
UPDATES_PER_PASS = 8  # sweeps over the codes and the atoms in turn, between two gradients
REFRESH_EVERY = 10  # iterations after which the residual is computed afresh, against rounding


@dataclass(frozen=True)
class Coding:
    """Codes of a fixed dictionary: the working set, whether its tolerance was reached, and after how many passes."""

    working_set: WorkingSet
    converged: bool
    passes: int


@contextmanager
def workers() -> Iterator[Callable]:
    """Give a map(function, items) over one thread per core that this process may use; the order is kept."""
    with ThreadPoolExecutor(_cores()) as pool:
        yield lambda function, items: list(pool.map(function, items))


def encode(
    images: Sequence[np.ndarray],
    observed: Sequence[np.ndarray],
    atoms: np.ndarray,
    penalty: float,
    tolerance: float = 1e-3,
    max_passes: int = 1000,
) -> Coding:
    """Return the codes that minimise the objective, every optimality condition met to tolerance * penalty."""
    working_set = WorkingSet(images, observed, atoms.shape[1:])
    with workers() as run:
        for passes in range(1, max_passes + 1):
            entered = working_set.enter(atoms, penalty * (1 + tolerance), BLOCK, run)
            moved = working_set.sweep(atoms, penalty, SWEEPS_PER_PASS, run)
            working_set.drop_zeros()
            if entered == 0:
                if moved <= 0.5 * tolerance * penalty:
                    return Coding(working_set, True, passes)
                working_set.refresh(atoms)
    return Coding(working_set, False, max_passes)


def learn(
    working_set: WorkingSet,
    atoms: np.ndarray,
    penalty: float,
    projection: CodeProjection | None = None,
    iteration: int = 0,
) -> Iterator[np.ndarray]:
    """Improve codes and atoms in turn, for ever, with the rule's projection after each; yield the atoms.

    `iteration` is how many went before, where the working set comes from a checkpoint.
    """
    with workers() as run:
        while True:
            observation = None if projection is None else _observe(projection, working_set, atoms)
            working_set.enter(atoms, penalty * (1 + LEARNING_TOLERANCE), BLOCK, run)
            for _ in range(UPDATES_PER_PASS):
                working_set.sweep(atoms, penalty, 1, run)
                if iteration > 0:  # the first codes are too few to learn from
                    atoms = working_set.improve_atoms(atoms)
            working_set.drop_zeros()
            iteration += 1
            if iteration % REFRESH_EVERY == 0:
                working_set.refresh(atoms)
            if projection is not None:
                codes = [torch.from_numpy(x) for x in working_set.dense(len(atoms))]
                projected = projection.project(observation, torch.from_numpy(atoms), codes)
                if not all(map(torch.equal, projected, codes)):
                    working_set.replace([x.numpy() for x in projected], atoms)
            yield atoms


def _observe(projection: CodeProjection, working_set: WorkingSet, atoms: np.ndarray) -> Observation | None:
    signals = as_signals(*working_set.images_and_observed())
    codes = [torch.from_numpy(x) for x in working_set.dense(len(atoms))]
    return projection.observe(signals, torch.from_numpy(atoms), codes)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
