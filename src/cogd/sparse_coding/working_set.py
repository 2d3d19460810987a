"""The state of the default solver: one residual over all images, and the few codes that may be nonzero."""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from cogd.sparse_coding import kernels
from cogd.sparse_coding.storage import taken

STRIP_ROWS = 64  # fewest rows of codes in a strip; strips are what threads share out


@dataclass(frozen=True)
class Layout:
    """Where every image lies in the flat arrays. `shapes` are the codes', (rows, columns) of every image."""

    atom_shape: tuple[int, int, int]
    shapes: tuple[tuple[int, int], ...]
    starts: np.ndarray
    planes: np.ndarray
    strides: np.ndarray
    size: int

    @classmethod
    def of(cls, image_shapes: Iterable[tuple[int, int]], atom_shape: tuple[int, int, int]) -> "Layout":
        """Lay out images of these (rows, columns), each with a margin of an atom less one pixel on every side."""
        channels, height, width = atom_shape
        shapes, starts, planes, strides, end = [], [], [], [], 0
        for rows, columns in image_shapes:
            stride = columns + width - 2 + _padded(width, kernels.LANES)
            plane = (rows + 2 * (height - 1)) * stride
            start = -(-end // stride) * stride  # a multiple of the stride, so that position % stride is a column
            shapes.append((rows + height - 1, columns + width - 1))
            starts.append(start)
            planes.append(plane)
            strides.append(stride)
            end = start + channels * plane
        as_array = lambda numbers: np.array(numbers, dtype=np.int64)  # noqa: E731
        return cls(atom_shape, tuple(shapes), as_array(starts), as_array(planes), as_array(strides), end)

    def strips(self) -> list[tuple[int, int, int]]:
        """Return (image, first row, end row) of every strip.

        Strips of one image that are not neighbours touch no common pixel, as each is at least an atom high.
        """
        fewest = max(STRIP_ROWS, self.atom_shape[1])
        found = []
        for i, (rows, _) in enumerate(self.shapes):
            edges = np.linspace(0, rows, max(1, rows // fewest) + 1).astype(int)
            found += [(i, int(top), int(bottom)) for top, bottom in pairwise(edges)]
        return found

    def scatter(self, images: Sequence[np.ndarray], dtype) -> np.ndarray:
        """Return images (channels, rows, columns) in one flat array with zero margins."""
        _, height, width = self.atom_shape
        flat = np.zeros(self.size + kernels.CHUNK + kernels.LANES, dtype)
        for i, image in enumerate(images):
            top, left = height - 1, width - 1
            self.view(flat, i)[:, top : top + image.shape[1], left : left + image.shape[2]] = image
        return flat

    def view(self, flat: np.ndarray, i: int) -> np.ndarray:
        """Return image i of a flat array as (channels, padded rows, stride)."""
        channels = self.atom_shape[0]
        end = self.starts[i] + channels * self.planes[i]
        return flat[self.starts[i] : end].reshape(channels, -1, self.strides[i])

    def offsets(self, i: int) -> np.ndarray:
        """Return where the numbers of an atom lie from a position in image i, padded for the gradient's kernel."""
        c, y, x = np.indices(self.atom_shape).reshape(3, -1)
        offsets = c * self.planes[i] + y * self.strides[i] + x
        return np.pad(offsets, (0, _padded(len(offsets), kernels.TAPS) - len(offsets)))


class WorkingSet:
    """Codes in order of position, their residual, and the steps that change them.

    Steps use one thread per core that this process may use, and give the same result for any number of threads.
    """

    def __init__(self, images: Sequence[np.ndarray], seen: Sequence[np.ndarray], atom_shape: tuple[int, int, int]):
        dtype = images[0].dtype
        self.layout = Layout.of([image.shape[1:] for image in images], atom_shape)
        self.seen = self.layout.scatter(seen, dtype)
        self.signal = self.layout.scatter([np.where(m, b, 0) for b, m in zip(images, seen, strict=True)], dtype)
        self.residual = self.signal.copy()
        self.position = np.empty(0, np.int64)
        self.image = np.empty(0, np.int32)
        self.atom = np.empty(0, np.int32)
        self.value = np.empty(0, dtype)
        self._strips = self.layout.strips()
        self._offsets = [self.layout.offsets(i) for i in range(len(images))]
        self._best = np.zeros_like(self.residual)
        self._which = np.zeros(len(self.residual), np.int32)
        self._threads = ThreadPoolExecutor(cores())

    def own(self, atoms: np.ndarray) -> np.ndarray:
        """Return atoms as this working set's methods take them."""
        return atoms

    def enter(self, atoms: np.ndarray, limit: float, block: int) -> int:
        """Let the largest |g| above `limit` of every block of positions into the set; return how many entered."""
        matrix = _gradient_matrix(atoms)
        found = list(self._threads.map(lambda strip: self._winners(strip, matrix, limit, block), self._strips))
        position = np.concatenate(found)
        image = np.repeat(np.array([i for i, _, _ in self._strips], np.int32), [len(f) for f in found])
        self._merge(position, image, self._which[position], np.zeros(len(position), self.value.dtype))
        return len(position)

    def sweep(self, atoms: np.ndarray, penalty: float, sweeps: int) -> float:
        """Minimise over the set's codes, one after the other; return the largest change of the last sweep."""
        norms = np.empty_like(self.value)
        lanes = pad_atoms(atoms)
        layout = self.layout

        def sweep_strip(strip):
            part = self._part(strip)
            where = (self.position[part], self.image[part], self.atom[part])
            kernels.squared_norms(self.seen, layout.planes, layout.strides, lanes, *where, norms[part])
            return kernels.sweep(
                self.residual, self.seen, layout.planes, layout.strides, lanes, self.value.dtype.type(penalty),
                *where, norms[part], self.value[part], sweeps,
            )  # fmt: skip

        first = {i: s for s, (i, top, _) in enumerate(self._strips) if top == 0}
        even = [strip for s, strip in enumerate(self._strips) if (s - first[strip[0]]) % 2 == 0]
        odd = [strip for s, strip in enumerate(self._strips) if (s - first[strip[0]]) % 2]
        return max([*self._threads.map(sweep_strip, even), *self._threads.map(sweep_strip, odd)], default=0.0)

    def refresh(self, atoms: np.ndarray) -> None:
        """Compute the residual afresh from the codes."""
        np.copyto(self.residual, self.signal)
        self._subtract_codes(self.residual, self.seen, atoms)

    @property
    def nonzeros(self) -> int:
        return int(np.count_nonzero(self.value))

    def objective(self, penalty: float) -> float:
        """Return 1/2 ||r||^2 + penalty ||z||_1 by the solver's own residual."""
        squares = np.square(self.residual, dtype=np.float64).sum()
        return float(0.5 * squares + penalty * np.abs(self.value, dtype=np.float64).sum())

    def weights(self, n_atoms: int) -> np.ndarray:
        """Return the sum of every atom's squared codes, in float64."""
        return np.bincount(self.atom, np.square(self.value, dtype=np.float64), minlength=n_atoms)

    def dense(self, n_atoms: int) -> list[np.ndarray]:
        """Return every image's codes as an array (K, rows, columns)."""
        dense = [np.zeros((n_atoms, *shape), self.value.dtype) for shape in self.layout.shapes]
        edges = np.searchsorted(self.image, np.arange(len(dense) + 1))
        for i, codes in enumerate(dense):
            _, atom, row, column, value = self.entries(slice(edges[i], edges[i + 1]))
            codes[atom, row, column] = value
        return dense

    def sparse(self, n_atoms: int) -> torch.Tensor:
        """Return the codes as a sparse COO tensor (N, K, rows, columns)."""
        if len(set(self.layout.shapes)) > 1:
            raise ValueError("sparse=True needs images of one size; code the sizes one after the other.")
        image, atom, row, column, value = self.entries()
        index = torch.from_numpy(np.stack([image, atom, row, column]).astype(np.int64))
        shape = (len(self.layout.shapes), n_atoms, *self.layout.shapes[0])
        return torch.sparse_coo_tensor(index, torch.from_numpy(value), shape, check_invariants=True).coalesce()

    def reconstruction(self, atoms: np.ndarray) -> list[np.ndarray]:
        """Return D z of every image (C, H, W)."""
        flat = np.zeros_like(self.residual)
        self._subtract_codes(flat, np.ones_like(flat), atoms)
        return [-image for image in self._images(flat)]

    def largest_gradient(self, atoms: np.ndarray) -> float:
        """Return the largest |g| of the codes outside of the set."""
        matrix = _gradient_matrix(atoms)
        block = max(map(max, self.layout.shapes))
        found = self._threads.map(lambda strip: self._winners(strip, matrix, 0.0, block), self._strips)
        return float(max((self._best[winner].max(initial=0) for winner in found), default=0.0))

    def replace(self, codes: Sequence[torch.Tensor], atoms: np.ndarray) -> None:
        """Put dense codes (K, rows, columns) of every image in place of the set's."""
        layout, entries = self.layout, []
        for i, dense in enumerate(map(np.asarray, codes)):
            row, column, atom = np.nonzero(dense.transpose(1, 2, 0))
            position = layout.starts[i] + row * layout.strides[i] + column
            entries.append((position, np.full(len(row), i, np.int32), atom.astype(np.int32), dense[atom, row, column]))
        self.position, self.image, self.atom, self.value = map(np.concatenate, zip(*entries, strict=True))
        self.refresh(atoms)

    def state(self) -> dict[str, np.ndarray]:
        """Return copies of the codes and their residual, as it is with its rounding."""
        names = ("residual", "position", "image", "atom", "value")
        return {name: getattr(self, name).copy() for name in names}

    def restore(self, state: dict[str, np.ndarray], n_atoms: int) -> None:
        """Take the codes and the residual of an earlier `state`; compiled loops trust what is checked here."""
        residual = taken(state, "residual", self.residual.shape, self.residual.dtype)
        position = taken(state, "position", (-1,), np.int64)
        image, atom = (taken(state, name, position.shape, np.int32) for name in ("image", "atom"))
        value = taken(state, "value", position.shape, self.value.dtype)
        layout, shapes = self.layout, np.array(self.layout.shapes)
        if ((image < 0) | (image >= len(shapes)) | (atom < 0) | (atom >= n_atoms)).any():
            raise ValueError("codes belong to images or atoms that there are not")
        row, column = np.divmod(position - layout.starts[image], layout.strides[image])
        inside = (row >= 0) & (row < shapes[image, 0]) & (column < shapes[image, 1])
        if not inside.all() or (np.diff(position) < 0).any() or residual[self.seen == 0].any():
            raise ValueError(
                "codes lie outside of their images or out of order, or the residual where nothing was seen"
            )
        np.copyto(self.residual, residual)
        self.position, self.image, self.atom, self.value = position, image, atom, value

    def codes(self, n_atoms: int) -> list[torch.Tensor]:
        """Return every image's codes as a tensor (K, rows, columns)."""
        return [torch.from_numpy(codes) for codes in self.dense(n_atoms)]

    def residuals(self) -> list[torch.Tensor]:
        """Return b - D z of every image (C, H, W), 0 where hidden: views of the working set's own."""
        return [torch.from_numpy(image) for image in self._images(self.residual)]

    def entries(self, part: slice = slice(None)) -> tuple[np.ndarray, ...]:
        """Return (image, atom, row, column, value) of the codes."""
        image = self.image[part]
        row, column = np.divmod(self.position[part] - self.layout.starts[image], self.layout.strides[image])
        return image, self.atom[part], row, column, self.value[part]

    def drop_zeros(self) -> None:
        """Let codes that are zero leave."""
        kept = self.value != 0
        self.position, self.image = self.position[kept], self.image[kept]
        self.atom, self.value = self.atom[kept], self.value[kept]

    def improve_atoms(self, atoms: np.ndarray) -> np.ndarray:
        """Return better atoms for the present codes."""
        lanes = pad_atoms(atoms)
        order = np.argsort(self.atom.astype(np.min_scalar_type(len(atoms))), kind="stable")  # radix for few atoms
        starts = np.concatenate([[0], np.cumsum(np.bincount(self.atom, minlength=len(atoms)))])
        kernels.improve_atoms(
            self.residual, self.seen, self.layout.planes, self.layout.strides, lanes, atoms.shape[-1],
            self.position, self.image, self.value, order, starts,
        )  # fmt: skip
        return lanes[..., : atoms.shape[-1]].copy()

    def _images(self, flat: np.ndarray) -> list[np.ndarray]:
        """Return views of the images (C, H, W) in a flat array."""
        _, height, width = self.layout.atom_shape
        shapes = enumerate(self.layout.shapes)  # of codes, whose rows are H + h - 1
        return [self.layout.view(flat, i)[:, height - 1 : h, width - 1 : w] for i, (h, w) in shapes]

    def _winners(self, strip, matrix, limit, block) -> np.ndarray:
        i, top, bottom = strip
        stride, part = int(self.layout.strides[i]), self._part(strip)
        begin = int(self.layout.starts[i]) + top * stride
        rows, columns = bottom - top, self.layout.shapes[i][1]
        kernels.strongest(
            self.residual, begin, begin + rows * stride, self._offsets[i], matrix,
            self.position[part], self.atom[part], self._best, self._which,
        )  # fmt: skip
        found = np.empty(-(-rows // block) * -(-columns // block), np.int64)
        return found[: kernels.winners(self._best, begin, stride, rows, columns, block, limit, found)]

    def _subtract_codes(self, flat, seen, atoms) -> None:
        kernels.subtract_all(
            flat, seen, self.layout.planes, self.layout.strides, pad_atoms(atoms),
            self.position, self.image, self.atom, self.value,
        )  # fmt: skip

    def _part(self, strip) -> slice:
        i, top, bottom = strip
        edges = self.layout.starts[i] + np.array([top, bottom]) * self.layout.strides[i]
        return slice(*np.searchsorted(self.position, edges))

    def _merge(self, position, image, atom, value) -> None:
        order = np.argsort(np.concatenate([self.position, position]), kind="stable")
        self.position = np.concatenate([self.position, position])[order]
        self.image = np.concatenate([self.image, image])[order]
        self.atom = np.concatenate([self.atom, atom])[order]
        self.value = np.concatenate([self.value, value])[order]


def pad_atoms(atoms: np.ndarray) -> np.ndarray:
    """Return a copy whose rows are zero-padded to whole lanes."""
    width = atoms.shape[-1]
    return np.pad(atoms, [(0, 0)] * (atoms.ndim - 1) + [(0, _padded(width, kernels.LANES) - width)])


def _gradient_matrix(atoms: np.ndarray) -> np.ndarray:
    """Return atoms as (K, Q), zero-padded to the tile sizes of the gradient's kernel."""
    matrix = atoms.reshape(len(atoms), -1)
    count, size = matrix.shape
    return np.pad(matrix, [(0, _padded(count, kernels.GROUP) - count), (0, _padded(size, kernels.TAPS) - size)])


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
