"""Couplings of one kind, computed side by side: many small tensors then cost few device operations."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cogd import projection
from cogd.coupling import Coupling, threshold_value

LARGEST = 2**22  # numbers in a bundle's partners; past that their size takes the time, and copies take memory


@dataclass(frozen=True, eq=False)
class Bundle:
    """Couplings of equal shapes, thresholds and learning rate; their blocks stand one below the other.

    Blocks are shaped as in `cogd.projection`, with a row for each coordinate of each coupling.
    """

    couplings: tuple[Coupling, ...]

    @property
    def holds(self) -> bool:
        """Whether the shapes are still equal: removing channels changes them under a running optimizer."""
        return len({(c.sparse.shape, c.partner.shape) for c in self.couplings}) == 1

    def sparse(self, values: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the blocks of what `values` says for each sparse tensor."""
        return _one_below_the_other([c.sparse_blocks(values(c.sparse)) for c in self.couplings])

    def partner(self, values: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the blocks of what `values` says for each partner."""
        return _one_below_the_other([c.partner_blocks(values(c.partner)) for c in self.couplings])

    def projected(self, values: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the blocks of what `values` says for each projected tensor."""
        return _one_below_the_other([c.projected_blocks(values(c.projected)) for c in self.couplings])

    def put(self, blocks: Tensor) -> None:
        """Write blocks into the projected tensors."""
        for coupling, rows in zip(self.couplings, self.apart(blocks), strict=True):
            coupling.projected.copy_(coupling.from_projected_blocks(rows))

    def apart(self, blocks: Tensor) -> Tensor:
        """Return blocks with the couplings told apart by a first dimension."""
        return blocks.unflatten(0, (len(self.couplings), -1))

    def is_open(self, x: Tensor, A: Tensor) -> Tensor:
        """Return each coordinate's gate, by the thresholds of its own coupling.  [Eqs. bch2, sign_function]"""
        of_kind = self.couplings[0]
        x_norms, A_norms = self.apart(projection.block_norms(x)), self.apart(projection.block_norms(A))
        alpha_x = threshold_value(of_kind.sparse_threshold, x_norms)
        alpha_A = threshold_value(of_kind.partner_threshold, A_norms)
        return projection.is_open(x_norms, A_norms, alpha_x, alpha_A).flatten()

    def with_gradients(self) -> "Bundle | None":
        """Return those couplings of which both sides have a gradient."""
        active = tuple(c for c in self.couplings if c.sparse.grad is not None and c.partner.grad is not None)
        return Bundle(active) if active else None


def bundled(couplings: Iterable[Coupling], param_groups: Sequence[dict[str, Any]]) -> list[Bundle]:
    """Return the couplings in bundles of at most `LARGEST` numbers."""
    group_of = {p: i for i, group in enumerate(param_groups) for p in group["params"]}
    kinds: dict[Any, list[list[Coupling]]] = {}
    for coupling in couplings:
        bundles = kinds.setdefault((*_kind(coupling), group_of[coupling.projected]), [[]])
        if (len(bundles[-1]) + 1) * coupling.partner.numel() > LARGEST:
            bundles.append([])
        bundles[-1].append(coupling)
    return [Bundle(tuple(bundle)) for bundles in kinds.values() for bundle in bundles if bundle]


def _kind(coupling: Coupling) -> tuple[Any, ...]:
    sides = [(side.shape, side.dtype, side.device) for side in (coupling.sparse, coupling.partner)]
    policies = coupling.sparse_threshold, coupling.partner_threshold, coupling.project
    return *sides, coupling.sparse_dim, coupling.partner_dim, *policies


def _one_below_the_other(blocks: list[Tensor]) -> Tensor:
    return torch.cat(blocks) if len(blocks) > 1 else blocks[0]
