"""Couplings of one kind, computed side by side: many small tensors then cost few device operations."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cogd import projection
from cogd.coupling import Coupling, threshold_value

LARGEST = 5 * 2**19  # numbers computed at a time; past that their size takes the time, and results between memory


@dataclass(frozen=True, eq=False)
class Bundle:
    """Couplings of equal shapes, thresholds and learning rate; their blocks stand one below the other.

    Blocks are shaped as in `cogd.projection`, with a row for each coordinate `of` each coupling that is asked for.
    """

    couplings: tuple[Coupling, ...]

    @property
    def holds(self) -> bool:
        """Whether the shapes are still equal: removing channels changes them under a running optimizer."""
        return len({(c.sparse.shape, c.partner.shape) for c in self.couplings}) == 1

    def parts(self) -> list[slice]:
        """Return the coordinates in slices of at most `LARGEST` numbers, to compute one after the other."""
        coordinates = self.couplings[0].size
        length = max(1, LARGEST * coordinates // sum(map(_numbers, self.couplings)))
        return [slice(j, j + length) for j in range(0, coordinates, length)]

    def sparse(self, values: Callable[[Tensor], Tensor], of: slice) -> Tensor:
        """Return the blocks of what `values` says for each sparse tensor."""
        return _joined([c.sparse_blocks(values(c.sparse), of) for c in self.couplings])

    def partner(self, values: Callable[[Tensor], Tensor], of: slice) -> Tensor:
        """Return the blocks of what `values` says for each partner."""
        return _joined([c.partner_blocks(values(c.partner), of) for c in self.couplings])

    def projected(self, values: Callable[[Tensor], Tensor], of: slice) -> Tensor:
        """Return the blocks of what `values` says for each projected tensor."""
        return _joined([c.projected_blocks(values(c.projected), of) for c in self.couplings])

    def put(self, blocks: Tensor, of: slice) -> None:
        """Write blocks into the projected tensors."""
        for coupling, rows in zip(self.couplings, self.apart(blocks), strict=True):
            coupling.put(rows, of)

    def apart(self, blocks: Tensor) -> Tensor:
        """Return blocks with the couplings told apart by a first dimension."""
        return blocks.unflatten(0, (len(self.couplings), -1))

    def is_open(self, x_norms: list[Tensor], A_norms: list[Tensor]) -> Tensor:
        """Return each coupling's gates (couplings, J), by its own thresholds, from the norms of all parts.

        [Eqs. bch2, sign_function]
        """
        of_kind = self.couplings[0]
        R_x, R_A = (_joined([self.apart(part) for part in norms], 1) for norms in (x_norms, A_norms))
        alpha_x = threshold_value(of_kind.sparse_threshold, R_x)
        alpha_A = threshold_value(of_kind.partner_threshold, R_A)
        return projection.is_open(R_x, R_A, alpha_x, alpha_A)

    def with_gradients(self) -> "Bundle":
        """Return those couplings of which both sides have a gradient."""
        return Bundle(tuple(c for c in self.couplings if c.sparse.grad is not None and c.partner.grad is not None))


def bundled(couplings: Iterable[Coupling], param_groups: Sequence[dict[str, Any]]) -> list[Bundle]:
    """Return the couplings in bundles of at most `LARGEST` numbers, or of one coupling."""
    group_of = {p: i for i, group in enumerate(param_groups) for p in group["params"]}
    kinds: dict[Any, list[list[Coupling]]] = {}
    for coupling in couplings:
        bundles = kinds.setdefault((*_kind(coupling), group_of[coupling.projected]), [[]])
        if (len(bundles[-1]) + 1) * _numbers(coupling) > LARGEST:
            bundles.append([])
        bundles[-1].append(coupling)
    return [Bundle(tuple(bundle)) for bundles in kinds.values() for bundle in bundles if bundle]


def pieces(tensor: Tensor) -> Sequence[Tensor]:
    """Return views of a tensor that hold at most `LARGEST` numbers each."""
    longest = list(tensor.shape).index(max(tensor.shape))
    return tensor.split(max(1, LARGEST * tensor.shape[longest] // tensor.numel()), longest)


def _numbers(coupling: Coupling) -> int:
    return max(coupling.sparse.numel(), coupling.partner.numel())


def _kind(coupling: Coupling) -> tuple[Any, ...]:
    sides = [(side.shape, side.dtype, side.device) for side in (coupling.sparse, coupling.partner)]
    policies = coupling.sparse_threshold, coupling.partner_threshold, coupling.project
    return *sides, coupling.sparse_dim, coupling.partner_dim, *policies


def _joined(tensors: list[Tensor], dim: int = 0) -> Tensor:
    return torch.cat(tensors, dim) if len(tensors) > 1 else tensors[0]
