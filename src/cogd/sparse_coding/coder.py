"""The default solver: coordinate descent on a working set of codes, and on the atoms between its passes.

A pass lets in, from every block of positions, the code that violates optimality most; sweeps minimise exactly over one
code of the set after the other; codes that end at zero leave. 0.1% of all codes are ever nonzero, so a sweep costs a
small part of the one gradient that looks for them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cogd.sparse_coding.code_projection import CodeProjection

BLOCK = 4  # positions, in both directions, that send one code per pass
SWEEPS_PER_PASS = 8
LEARNING_TOLERANCE = 1e-2  # violation, as a share of the penalty, below which a code stays out while atoms still move
UPDATES_PER_PASS = 8  # sweeps over the codes and the atoms in turn, between two gradients
REFRESH_EVERY = 10  # iterations after which the residual is computed afresh, against rounding


class CodeSet(Protocol):
    """The few codes that may be nonzero, and their residual; `own` makes the atoms that its other methods take."""

    def own(self, atoms: np.ndarray) -> Any: ...
    def enter(self, atoms: Any, limit: float, block: int) -> int: ...
    def sweep(self, atoms: Any, penalty: float, sweeps: int) -> Any: ...
    def drop_zeros(self) -> None: ...
    def improve_atoms(self, atoms: Any) -> Any: ...
    def refresh(self, atoms: Any) -> None: ...
    def replace(self, codes: Sequence[Tensor], atoms: Any) -> None: ...
    def largest_gradient(self, atoms: Any) -> float: ...
    def objective(self, penalty: float) -> float: ...
    def weights(self, n_atoms: int) -> np.ndarray: ...
    def state(self) -> dict[str, np.ndarray]: ...
    def restore(self, state: dict[str, np.ndarray], n_atoms: int) -> None: ...
    def residuals(self) -> list[Tensor]: ...
    def codes(self, n_atoms: int) -> list[Tensor]: ...
    def dense(self, n_atoms: int) -> list[np.ndarray]: ...
    def sparse(self, n_atoms: int) -> Tensor: ...
    def reconstruction(self, atoms: Any) -> list[np.ndarray]: ...
    @property
    def nonzeros(self) -> int: ...


@dataclass(frozen=True)
class Coding:
    """Codes of a fixed dictionary: the working set, whether its tolerance was reached, and after how many passes."""

    working_set: CodeSet
    converged: bool
    passes: int


def new_working_set(
    images: Sequence[np.ndarray], observed: Sequence[np.ndarray], atom_shape: tuple[int, int, int], device: str = "cpu"
) -> CodeSet:
    """Return an empty working set: compiled loops on the processor, tiles of tensors on another device."""
    if device == "cpu":
        from cogd.sparse_coding.working_set import WorkingSet  # compiles, which no other device needs

        return WorkingSet(images, observed, atom_shape)
    from cogd.sparse_coding.tiles import TiledWorkingSet

    return TiledWorkingSet(images, observed, atom_shape, device)


def encode(
    images: Sequence[np.ndarray],
    observed: Sequence[np.ndarray],
    atoms: np.ndarray,
    penalty: float,
    tolerance: float = 1e-3,
    max_passes: int = 1000,
    device: str = "cpu",
) -> Coding:
    """Return the codes that minimise the objective, every optimality condition met to tolerance * penalty."""
    return settle(new_working_set(images, observed, atoms.shape[1:], device), atoms, penalty, tolerance, max_passes)


def settle(working_set: CodeSet, atoms: np.ndarray, penalty: float, tolerance: float, max_passes: int = 1000) -> Coding:
    """Bring a working set to its optimum for fixed atoms."""
    dictionary = working_set.own(atoms)
    for passes in range(1, max_passes + 1):
        entered = working_set.enter(dictionary, penalty * (1 + tolerance), BLOCK)
        moved = working_set.sweep(dictionary, penalty, SWEEPS_PER_PASS)
        working_set.drop_zeros()
        if entered == 0:
            if moved <= 0.5 * tolerance * penalty:
                return Coding(working_set, True, passes)
            working_set.refresh(dictionary)
    return Coding(working_set, False, max_passes)


def learn(
    working_set: CodeSet,
    atoms: np.ndarray,
    penalty: float,
    projection: CodeProjection | None = None,
    iteration: int = 0,
) -> Iterator[np.ndarray]:
    """Improve codes and atoms in turn, for ever, with the rule's projection after each; yield the atoms.

    `iteration` is how many went before, where the working set comes from a checkpoint.
    """
    d = working_set.own(atoms)
    while True:
        observation = None
        if projection is not None:
            observation = projection.observe(working_set.residuals(), torch.as_tensor(d), working_set.codes(len(d)))
        working_set.enter(d, penalty * (1 + LEARNING_TOLERANCE), BLOCK)
        for _ in range(UPDATES_PER_PASS):
            working_set.sweep(d, penalty, 1)
            if iteration > 0:  # the first codes are too few to learn from
                d = working_set.improve_atoms(d)
        working_set.drop_zeros()
        iteration += 1
        if iteration % REFRESH_EVERY == 0:
            working_set.refresh(d)
        if projection is not None:
            codes = working_set.codes(len(d))
            projected = projection.project(observation, codes)
            if not all(map(torch.equal, projected, codes)):
                working_set.replace(projected, d)
        yield torch.as_tensor(d).cpu().numpy()
