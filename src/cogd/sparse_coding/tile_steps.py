"""The steps of the tiled solver in plain torch, for any device; `tile_kernels` has the same in Triton.

A code's patch is the Q = C h w numbers of the flat residual that its atom touches: `position` plus `offsets`. Codes
come sorted by tile, starts[t] : starts[t + 1] being tile t's. A colour is a range of tiles: their codes' patches have
no number in common with those of another tile, so that such tiles go side by side.
"""

import torch
from torch import Tensor

CHUNK = 1 << 16  # codes whose patches are held at once


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
    """Minimise exactly over one code after the other of every tile of a colour, in place.

    Returns by how much any code's own gradient changed at most.
    """
    first, last = starts[colour[0] : colour[1]], starts[colour[0] + 1 : colour[1] + 1]
    largest = value.new_zeros(())
    for step in range(int((last - first).max()) if len(first) else 0):
        j = (first + step)[first + step < last]
        index = position[j, None] + offsets
        r, m, d, z = residual[index], seen[index], atoms[atom[j]], value[j]
        norm = (d.square() * m).sum(1)
        pull = z * norm + (d * r).sum(1)
        new = torch.where(norm > 0, soft_threshold(pull, penalty) / norm, z)
        change = new - z
        residual[index] = r - change[:, None] * d * m
        value[j] = new
        largest = torch.maximum(largest, (change.abs() * norm).max())
    return largest


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
    """Add amount * atom to every code's patch of the target, times `weight` where one is given, in place."""
    for j in torch.arange(len(position), device=position.device).split(CHUNK):
        index = position[j, None] + offsets
        patches = amount[j, None] * atoms[atom[j]]
        target.index_add_(0, index.flatten(), (patches if weight is None else patches * weight[index]).flatten())


def patch_sums(
    residual: Tensor, offsets: Tensor, position: Tensor, value: Tensor, order: Tensor, edges: Tensor
) -> tuple[Tensor, Tensor]:
    """Return, for every atom, the sums of value * patch (K, Q) and of value^2 (K,) over its codes.

    order[edges[k] : edges[k + 1]] are the codes of atom k.
    """
    count = len(edges) - 1
    sums, squares = residual.new_zeros(count, len(offsets)), residual.new_zeros(count)
    atom = torch.repeat_interleave(torch.arange(count, device=order.device), edges.diff())
    for j, k in zip(order.split(CHUNK), atom.split(CHUNK), strict=True):
        sums.index_add_(0, k, value[j, None] * residual[position[j, None] + offsets])
        squares.index_add_(0, k, value[j].square())
    return sums, squares


def soft_threshold(x: Tensor, threshold: float) -> Tensor:
    """Return x moved towards 0 by the threshold."""
    return x.sign() * (x.abs() - threshold).clamp(min=0)
