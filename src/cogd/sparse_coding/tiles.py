"""The default solver's state on a GPU: a working set in tiles of four colours, swept tile by tile, side by side.

Codes whose atoms overlap cannot be minimised over at the same time. Tiles at least as large as an atom, coloured like
    0 1 0 1
    2 3 2 3
never touch another tile of their colour, so that a sweep is four launches, each exact. All images have one size:
smaller ones get a margin that nobody saw, where no code can pay. `working_set` says what the methods do.
"""

from collections.abc import Sequence
from types import ModuleType

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from cogd.sparse_coding import model, tile_steps
from cogd.sparse_coding.storage import taken

GRADIENT_BYTES = 2**31  # of the codes' gradient that are held at once
SMALLEST_TILE = 8
ATOMS_STEP = 2.0  # in units of 1 / sum of an atom's squared codes; a line search makes it safe


class TiledWorkingSet:
    """Codes sorted by tile, their residual, and the steps that change them; atoms are tensors on the same device."""

    _atom_order: tuple[Tensor, Tensor] | None

    def __init__(
        self,
        images: Sequence[np.ndarray],
        seen: Sequence[np.ndarray],
        atom_shape: tuple[int, int, int],
        device: str | torch.device,
    ):
        channels, height, width = atom_shape
        self.atom_shape, self.sizes = atom_shape, [image.shape[1:] for image in images]
        rows, columns = np.max(self.sizes, 0).tolist()
        self.shape = (len(images), channels, rows + 2 * (height - 1), columns + 2 * (width - 1))
        self.codes_shape = (rows + height - 1, columns + width - 1)
        self._plane, self._stride = self.shape[2] * self.shape[3], self.shape[3]
        self.seen = self._scattered(seen, images[0].dtype).to(device)
        self.signal = self._scattered([np.where(m, b, 0) for b, m in zip(images, seen, strict=True)]).to(device)
        self.residual = self.signal.clone()
        self.steps = fastest_steps(self.residual.device)
        c, y, x = np.indices(atom_shape).reshape(3, -1)
        self.offsets = torch.from_numpy(c * self._plane + y * self._stride + x).to(device)
        self.tile = max(height, width, SMALLEST_TILE)
        self._across = [-(-side // (2 * self.tile)) for side in self.codes_shape]  # tiles of one colour in an image
        none = torch.empty(0, dtype=torch.int64, device=device)
        self._place(none, none, self.residual.new_empty(0))

    def own(self, atoms: np.ndarray) -> Tensor:
        """Return atoms as this working set's methods take them."""
        return torch.from_numpy(atoms).to(self.residual)

    def enter(self, atoms: Tensor, limit: float, block: int) -> int:
        columns = self.codes_shape[1]
        positions, entering = [self.position], [self.atom]
        for first, gradient in self._gradients(atoms):
            smallest, largest = torch.aminmax(gradient, dim=1)
            top, where = max_pool2d(torch.maximum(largest, -smallest), block, ceil_mode=True, return_indices=True)
            i, y, x = (top > limit).nonzero(as_tuple=True)
            y, x = where[i, y, x] // columns, where[i, y, x] % columns
            positions.append((i + first) * self.shape[1] * self._plane + y * self._stride + x)
            entering.append(gradient[i, :, y, x].abs().argmax(1))
        position = torch.cat(positions)
        entered = len(position) - len(self.position)
        self._place(position, torch.cat(entering), torch.cat([self.value, self.value.new_zeros(entered)]))
        return entered

    def largest_gradient(self, atoms: Tensor) -> float:
        return max(gradient.abs().max().item() for _, gradient in self._gradients(atoms))

    def sweep(self, atoms: Tensor, penalty: float, sweeps: int) -> Tensor:
        signal, codes = (self.residual, self.seen, self.offsets), (self.position, self.atom, self.value, self.starts)
        flat = atoms.flatten(1)
        for _ in range(sweeps):
            moved = [self.steps.sweep(*signal, flat, penalty, *codes, colour) for colour in self._colours()]
        return torch.stack(moved).max()

    def improve_atoms(self, atoms: Tensor) -> Tensor:
        """Return better atoms for the present codes: all take a step, as much of it as is best for the objective."""
        order, edges = self._by_atom(len(atoms))
        sums, squares = self.steps.patch_sums(self.residual, self.offsets, self.position, self.value, order, edges)
        old = atoms.flatten(1)
        new = old + ATOMS_STEP * sums / torch.where(squares > 0, squares, 1.0)[:, None]
        new = new / new.square().sum(1, keepdim=True).sqrt().clamp(min=1.0)  # the projection on the unit ball
        response = torch.zeros_like(self.residual)
        self._add(response, self.seen, new - old)
        best = (self.residual @ response) / (response @ response)  # minimises ||r - share * response||
        share = best.nan_to_num(0.0).clamp(0, 1)
        self.residual -= share * response
        return (old + share * (new - old)).view_as(atoms)

    def refresh(self, atoms: Tensor) -> None:
        self.residual.copy_(self.signal)
        self._add(self.residual, self.seen, -atoms.flatten(1))

    def drop_zeros(self) -> None:
        kept = self.value != 0
        self._place(self.position[kept], self.atom[kept], self.value[kept])

    @property
    def nonzeros(self) -> int:
        return int(self.value.count_nonzero())

    def objective(self, penalty: float) -> float:
        return (0.5 * self.residual.double().square().sum() + penalty * self.value.double().abs().sum()).item()

    def weights(self, n_atoms: int) -> np.ndarray:
        squares = self.value.cpu().double().square()
        return torch.zeros(n_atoms, dtype=torch.float64).index_add_(0, self.atom.cpu(), squares).numpy()

    def state(self) -> dict[str, np.ndarray]:
        names = ("residual", "position", "atom", "value")
        return {name: getattr(self, name).cpu().numpy().copy() for name in names}

    def restore(self, state: dict[str, np.ndarray], n_atoms: int) -> None:
        dtype = np.dtype(str(self.residual.dtype).removeprefix("torch."))
        residual = taken(state, "residual", tuple(self.residual.shape), dtype)
        position = taken(state, "position", (-1,), np.int64)
        atom, value = taken(state, "atom", position.shape, np.int64), taken(state, "value", position.shape, dtype)
        image, row, column = self._places(torch.from_numpy(position))
        rows, columns = self.codes_shape
        inside = (image >= 0) & (image < self.shape[0]) & (row < rows) & (column < columns)
        if not inside.all() or ((atom < 0) | (atom >= n_atoms)).any():
            raise ValueError("codes lie outside of the images, or belong to atoms that there are not")
        self.residual.copy_(torch.from_numpy(residual))
        self._place(*(torch.from_numpy(array).to(self.residual.device) for array in (position, atom, value)))

    def codes(self, n_atoms: int) -> list[Tensor]:
        codes = self.value.new_zeros(len(self.sizes), n_atoms, *self.codes_shape)
        image, row, column = self._places(self.position)
        codes[image, self.atom, row, column] = self.value
        _, height, width = self.atom_shape
        return [z[:, : h + height - 1, : w + width - 1] for z, (h, w) in zip(codes, self.sizes, strict=True)]

    def dense(self, n_atoms: int) -> list[np.ndarray]:
        return [codes.cpu().numpy() for codes in self.codes(n_atoms)]

    def sparse(self, n_atoms: int) -> Tensor:
        if len(set(self.sizes)) > 1:
            raise ValueError("sparse=True needs images of one size; code the sizes one after the other.")
        image, row, column = self._places(self.position)
        index, shape = torch.stack([image, self.atom, row, column]), (len(self.sizes), n_atoms, *self.codes_shape)
        return torch.sparse_coo_tensor(index.cpu(), self.value.cpu(), shape, check_invariants=True).coalesce()

    def replace(self, codes: Sequence[Tensor], atoms: Tensor) -> None:
        entries = []
        for i, dense in enumerate(codes):
            atom, row, column = dense.nonzero(as_tuple=True)
            position = i * self.shape[1] * self._plane + row * self._stride + column
            entries.append((position, atom, dense[atom, row, column]))
        self._place(*map(torch.cat, zip(*entries, strict=True)))
        self.refresh(atoms)

    def reconstruction(self, atoms: Tensor) -> list[np.ndarray]:
        canvas = torch.zeros_like(self.residual)
        self._add(canvas, None, atoms.flatten(1))
        return [image.cpu().numpy() for image in self._images(canvas)]

    def residuals(self) -> list[Tensor]:
        return self._images(self.residual)

    def _gradients(self, atoms: Tensor):
        """Yield (first image, the codes' gradient of as many images as fit), 0 at the set's codes."""
        size = len(atoms) * self.codes_shape[0] * self.codes_shape[1] * atoms.element_size()
        at_once = max(1, GRADIENT_BYTES // size)
        image, row, column = self._places(self.position)
        for first in range(0, self.shape[0], at_once):
            gradient = model.correlate(self.residual.view(self.shape)[first : first + at_once], atoms)
            mine = (image >= first) & (image < first + at_once)
            gradient[image[mine] - first, self.atom[mine], row[mine], column[mine]] = 0
            yield first, gradient

    def _add(self, target: Tensor, weight: Tensor | None, atoms: Tensor) -> None:
        """Add the sum of value * atom, times `weight`."""
        codes = self.position, self.atom, self.value, self.starts
        self.steps.add_atoms(target, weight, self.offsets, atoms, *codes, self._colours())

    def _scattered(self, images: Sequence[np.ndarray], dtype=None) -> Tensor:
        """Return images (C, H, W) in one flat tensor with zero margins."""
        canvas = np.zeros(self.shape, dtype or images[0].dtype)
        for inner, image in zip(self._images(torch.from_numpy(canvas)), images, strict=True):
            inner.copy_(torch.from_numpy(np.ascontiguousarray(image)))
        return torch.from_numpy(canvas).flatten()

    def _images(self, flat: Tensor) -> list[Tensor]:
        """Return views of the images (C, H, W) in a flat tensor."""
        top, left = self.atom_shape[1] - 1, self.atom_shape[2] - 1
        canvas = flat.view(self.shape)
        return [image[:, top : top + h, left : left + w] for image, (h, w) in zip(canvas, self.sizes, strict=True)]

    def _places(self, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (image, row, column)."""
        image, within = position // (self.shape[1] * self._plane), position % (self.shape[1] * self._plane)
        return image, within // self._stride, within % self._stride

    def _colours(self) -> list[tuple[int, int]]:
        """Return (first, last) tile of every colour."""
        count = (len(self.starts) - 1) // 4
        return [(c * count, (c + 1) * count) for c in range(4)]

    def _by_atom(self, n_atoms: int) -> tuple[Tensor, Tensor]:
        """Return the codes in order of atom, and where each atom's begin."""
        if self._atom_order is None:
            ordered, order = torch.sort(self.atom, stable=True)
            edges = torch.searchsorted(ordered, torch.arange(n_atoms + 1, device=ordered.device))
            self._atom_order = order, edges
        return self._atom_order

    def _place(self, position: Tensor, atom: Tensor, value: Tensor) -> None:
        """Hold these codes, in order of tile and of position in it."""
        image, row, column = self._places(position)
        y, x = row // self.tile, column // self.tile
        per_colour = self.shape[0] * self._across[0] * self._across[1]
        tile = (2 * (y % 2) + x % 2) * per_colour + (image * self._across[0] + y // 2) * self._across[1] + x // 2
        key, order = torch.sort(tile * self.residual.numel() + position, stable=True)
        self.position, self.atom, self.value = position[order], atom[order], value[order]
        edges = torch.arange(4 * per_colour + 1, device=key.device) * self.residual.numel()
        self.starts = torch.searchsorted(key, edges)
        self._atom_order = None


def fastest_steps(device: torch.device) -> ModuleType:
    """Return the steps for a device: in Triton on a CUDA device, in plain torch elsewhere."""
    if device.type != "cuda":
        return tile_steps
    try:
        from cogd.sparse_coding import tile_kernels
    except ModuleNotFoundError as error:
        raise ImportError(
            'device="cuda" needs Triton, which PyTorch brings on Linux; it is not installed. On Windows install '
            'triton-windows, or give device="cpu".'
        ) from error
    return tile_kernels
