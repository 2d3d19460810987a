"""The steps of the tiled solver in Triton, one warp per tile: `tile_steps` says what each does.

A warp holds a whole patch, goes through its tile's codes one after the other, and meets no other warp's numbers, so
that a step is exact and the same bits each time. Names: r residual, m seen, d atom, z code, q numbers of an atom.
"""

import triton
import triton.language as tl
from torch import Tensor

SPLITS = 64  # programs that share an atom's codes; their partial sums are added in a fixed order


def sweep(
    residual: Tensor,
    seen: Tensor,
    offsets: Tensor,
    atoms: Tensor,
    penalty: float,
    position: Tensor,
    atom: Tensor,
    value: Tensor,
    starts: Tensor,
    colour: tuple[int, int],
) -> Tensor:
    first, last = colour
    moved, threshold = value.new_empty(last - first), value.new_full((1,), penalty)
    _sweep[(last - first,)](
        residual, seen, offsets, atoms, threshold, position, atom, value, starts[first:], moved,
        Q=len(offsets), LANES=triton.next_power_of_2(len(offsets)), num_warps=1, num_stages=1,
    )  # fmt: skip
    return moved.max()


def add_atoms(
    target: Tensor,
    weight: Tensor | None,
    offsets: Tensor,
    atoms: Tensor,
    position: Tensor,
    atom: Tensor,
    amount: Tensor,
    starts: Tensor,
    colours: list[tuple[int, int]],
) -> None:
    for first, last in colours:
        _add_atoms[(last - first,)](
            target, target if weight is None else weight, offsets, atoms, position, atom, amount, starts[first:],
            Q=len(offsets), LANES=triton.next_power_of_2(len(offsets)), WEIGHTED=weight is not None,
            num_warps=1, num_stages=1,
        )  # fmt: skip


def patch_sums(
    residual: Tensor, offsets: Tensor, position: Tensor, value: Tensor, order: Tensor, edges: Tensor
) -> tuple[Tensor, Tensor]:
    count = len(edges) - 1
    sums = residual.new_empty(count, SPLITS, len(offsets))
    squares = residual.new_empty(count, SPLITS)
    _patch_sums[(count, SPLITS)](
        residual, offsets, position, value, order, edges, sums, squares,
        Q=len(offsets), LANES=triton.next_power_of_2(len(offsets)), SPLITS=SPLITS, num_warps=1, num_stages=1,
    )  # fmt: skip
    return sums.sum(1), squares.sum(1)


@triton.jit
def _sweep(
    residual, seen, offsets, atoms, penalty, position, atom, value, starts, moved, Q: tl.constexpr, LANES: tl.constexpr
):
    tile = tl.program_id(0)
    q = tl.arange(0, LANES)
    inside = q < Q
    offset = tl.load(offsets + q, mask=inside, other=0)
    threshold = tl.load(penalty)
    largest = tl.full((), 0, residual.dtype.element_ty)
    for j in range(tl.load(starts + tile), tl.load(starts + tile + 1)):
        patch = residual + tl.load(position + j) + offset
        z = tl.load(value + j)
        d = tl.load(atoms + tl.load(atom + j) * Q + q, mask=inside, other=0)
        m = tl.load(seen + tl.load(position + j) + offset, mask=inside, other=0)
        r = tl.load(patch, mask=inside, other=0)
        norm = tl.sum(d * d * m)
        pull = z * norm + tl.sum(d * r)
        new = tl.maximum(pull - threshold, 0) + tl.minimum(pull + threshold, 0)
        new = tl.where(norm > 0, new / tl.where(norm > 0, norm, 1.0), z)
        tl.store(patch, r - (new - z) * d * m, mask=inside)
        tl.store(value + j, new)
        largest = tl.maximum(largest, tl.abs(new - z) * norm)
        tl.debug_barrier()  # the next code's lanes read what other lanes wrote
    tl.store(moved + tile, largest)


@triton.jit
def _add_atoms(
    target, weight, offsets, atoms, position, atom, amount, starts,
    Q: tl.constexpr, LANES: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    q = tl.arange(0, LANES)
    inside = q < Q
    offset = tl.load(offsets + q, mask=inside, other=0)
    for j in range(tl.load(starts + tile), tl.load(starts + tile + 1)):
        here = tl.load(position + j) + offset
        d = tl.load(amount + j) * tl.load(atoms + tl.load(atom + j) * Q + q, mask=inside, other=0)
        if WEIGHTED:
            d *= tl.load(weight + here, mask=inside, other=0)
        tl.store(target + here, tl.load(target + here, mask=inside, other=0) + d, mask=inside)
        tl.debug_barrier()  # as above


@triton.jit
def _patch_sums(
    residual, offsets, position, value, order, edges, sums, squares,
    Q: tl.constexpr, LANES: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    k, split = tl.program_id(0), tl.program_id(1)
    q = tl.arange(0, LANES)
    inside = q < Q
    offset = tl.load(offsets + q, mask=inside, other=0)
    total = tl.zeros((LANES,), residual.dtype.element_ty)
    square = tl.full((), 0, residual.dtype.element_ty)
    for i in range(tl.load(edges + k) + split, tl.load(edges + k + 1), SPLITS):
        j = tl.load(order + i)
        z = tl.load(value + j)
        total += z * tl.load(residual + tl.load(position + j) + offset, mask=inside, other=0)
        square += z * z
    tl.store(sums + (k * SPLITS + split) * Q + q, total, mask=inside)
    tl.store(squares + k * SPLITS + split, square)
