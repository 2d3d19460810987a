"""FFCSC, the paper's baseline (Heide, Heidrich, Wetzstein 2015): ADMM in the Fourier domain on padded images.

Each iteration takes ten steps on the atoms and ten on the codes. Both are one problem with two terms,

    minimise f(B x) + h(x),        f the masked data term, B a product per frequency, h the constraint or the l1 norm,

split as v = (B x, x) with multipliers (gamma_1, gamma_2).  [Eqs. problem_csc_sum, eq:proximal_csc; Alg. alg_csc]
Codes live on the torus of (H + h - 1) x (W + w - 1) positions, whose margin is never observed: the boundary is unknown.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softshrink

from cogd.sparse_coding import model
from cogd.sparse_coding.code_projection import CodeProjection
from cogd.sparse_coding.storage import taken

STEPS = 10  # of ADMM on each side in an iteration
HEURISTIC = 60.0  # gamma_2 = HEURISTIC * penalty / max |b|, as the method's authors set it
ATOMS_RATIO, CODES_RATIO = 5000.0, 500.0  # gamma_2 / gamma_1


class FFCSC:
    """Images of one size, and the iterates: feasible atoms and sparse codes, all on one device."""

    def __init__(
        self,
        images: Sequence[np.ndarray],
        observed: Sequence[np.ndarray],
        atoms: np.ndarray,
        penalty: float,
        device: str = "cpu",
    ):
        if len({image.shape for image in images}) > 1:
            raise ValueError('solver="ffcsc" needs images of one size; choose solver="working_set".')
        seen = [np.where(m, b, 0) for b, m in zip(images, observed, strict=True)]
        largest = max(float(np.abs(b).max()) for b in seen)
        if largest == 0:
            raise ValueError('solver="ffcsc" needs images that are not all blank; these are. Check X and smoothing.')
        self.images = torch.from_numpy(np.stack(seen)).to(device)
        self.observed = torch.from_numpy(np.stack(list(observed))).to(device)
        self.penalty = penalty
        self.atoms = torch.from_numpy(atoms.copy()).to(device)
        height, width = atoms.shape[2:]
        margin = (width - 1, 0, height - 1, 0)
        self._b = torch.nn.functional.pad(self.images, margin)
        self._seen = torch.nn.functional.pad(self.observed.to(self.images), margin)
        self._shape = tuple(self._b.shape[2:])
        self.codes = self.images.new_zeros((len(images), len(atoms), *self._shape))
        self._gamma = HEURISTIC * penalty / largest
        self._z = self.codes.clone()
        self._d = torch.fft.irfft2(torch.fft.rfft2(self.atoms, s=self._shape), s=self._shape)
        self._duals: dict[str, tuple[Tensor, ...]] = {
            "atoms": (torch.zeros_like(self._b.transpose(0, 1)), torch.zeros_like(self._d.transpose(0, 1))),
            "codes": (torch.zeros_like(self._b), torch.zeros_like(self._z)),
        }

    @property
    def nonzeros(self) -> int:
        return int(self.codes.count_nonzero())

    def objective(self, penalty: float) -> float:
        """Return the objective of the feasible atoms and the sparse codes."""
        return model.objective(self.images, self.observed, self.atoms, self.codes, penalty)

    def residuals(self) -> list[Tensor]:
        """Return b - D z of every image (C, H, W), 0 where hidden."""
        return list(model.residual(self.images, self.observed, self.atoms, self.codes))

    def reconstruction(self) -> list[np.ndarray]:
        """Return the images (C, H, W) that the feasible atoms and the sparse codes stand for."""
        return list(model.reconstruct(self.atoms, self.codes).cpu().numpy())

    def weights(self, _n_atoms: int) -> np.ndarray:
        """Return the sum of every atom's squared codes, in float64."""
        return self.codes.double().square().sum((0, 2, 3)).cpu().numpy()

    def update_atoms(self) -> None:
        """Take the steps on the atoms, the codes fixed."""
        data, seen, d = (images.transpose(0, 1) for images in (self._b, self._seen, self._d))
        B = Products(self._z, ATOMS_RATIO)
        solution, feasible = self._steps(B, data, seen, d, self._duals["atoms"], self._feasible)
        self._d = solution.transpose(0, 1).contiguous()
        self.atoms = feasible.transpose(0, 1)[..., : self.atoms.shape[2], : self.atoms.shape[3]].contiguous()

    def update_codes(self) -> None:
        """Take the steps on the codes, the atoms fixed; on a processor one image at a time, which its caches hold."""
        B = Products(self._d.transpose(0, 1), CODES_RATIO)
        prox = partial(softshrink, lambd=self.penalty / self._gamma)
        at_once = 1 if self.codes.device.type == "cpu" else len(self.codes)
        parts = (t.split(at_once) for t in (self._b, self._seen, self._z, *self._duals["codes"]))
        solved = [self._steps(B, data, seen, z, duals, prox) for data, seen, z, *duals in zip(*parts, strict=True)]
        self._z, self.codes = map(torch.cat, zip(*solved, strict=True))

    def correct(self, projected: Tensor) -> None:
        """Put projected codes in place of the sparse ones; ADMM's own iterate moves along."""
        self._z = self._z + (projected - self.codes)
        self.codes = projected

    def state(self) -> dict[str, np.ndarray]:
        """Return copies of the iterates and multipliers."""
        tensors = {"codes": self.codes, "z": self._z, "d": self._d}
        tensors |= {f"dual.{side}.{i}": dual for side, pair in self._duals.items() for i, dual in enumerate(pair)}
        return {name: tensor.cpu().numpy().copy() for name, tensor in tensors.items()}

    def restore(self, state: dict[str, np.ndarray], _n_atoms: int) -> None:
        """Take the iterates and multipliers of an earlier `state`; the atoms are given at construction."""

        def tensor(name: str, like: Tensor) -> Tensor:
            array = taken(state, name, tuple(like.shape), str(like.dtype).removeprefix("torch."))
            return torch.empty_like(like).copy_(torch.from_numpy(array))  # in its layout too, on which rounding depends

        codes, z, d = tensor("codes", self.codes), tensor("z", self._z), tensor("d", self._d)
        for side, duals in self._duals.items():
            self._duals[side] = tuple(tensor(f"dual.{side}.{i}", dual) for i, dual in enumerate(duals))
        self.codes, self._z, self._d = codes, z, d

    def _steps(
        self,
        B: "Products",
        data: Tensor,
        seen: Tensor,
        x: Tensor,
        duals: Sequence[Tensor],
        prox: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Return (x, the prox's last result) and move the multipliers; data is (R, M, P, Q), x (R, K, P, Q)."""
        dual_1, dual_2 = duals
        gamma_1 = self._gamma / B.ratio
        spectrum, constrained = torch.fft.rfft2(x), x
        for _ in range(STEPS):
            v_1 = torch.fft.irfft2(B.times(spectrum), s=self._shape)
            dual_1 += v_1
            dual_2 += x
            u_1 = (seen * data + gamma_1 * dual_1) / (seen + gamma_1)  # prox of the data term
            constrained = prox(dual_2)
            dual_1 -= u_1
            dual_2 -= constrained
            spectrum = B.ridge(torch.fft.rfft2(u_1 - dual_1), torch.fft.rfft2(constrained - dual_2))
            x = torch.fft.irfft2(spectrum, s=self._shape)
        return x, constrained

    def _feasible(self, d: Tensor) -> Tensor:
        """Return the nearest atoms of the right size and norm at most 1.  [ind_c of Eq. eq:proximal_csc]"""
        height, width = self.atoms.shape[2:]
        cropped = torch.zeros_like(d)
        cropped[..., :height, :width] = d[..., :height, :width]
        norms = cropped.square().sum((0, 2, 3), keepdim=True).sqrt()
        return cropped / norms.clamp(min=1.0)


class Products:
    """B of every frequency, from planes (M, K, P, Q); spectra are (R, K or M, P, Q / 2 + 1)."""

    def __init__(self, planes: Tensor, ratio: float):
        self.ratio = ratio
        B = torch.fft.rfft2(planes).permute(2, 3, 0, 1).contiguous()  # a matrix per frequency, each in one piece
        gram = B @ B.mH
        inverse = torch.linalg.inv(gram + ratio * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device))
        self._B, self._adjoint, self._inverse = B, B.mH.resolve_conj(), inverse  # (ratio I + B B^H)^-1, by Woodbury

    def times(self, x: Tensor) -> Tensor:
        """Return B x."""
        return _per_frequency(self._B, x)

    def ridge(self, target: Tensor, prior: Tensor) -> Tensor:
        """Return the minimiser of ||B x - target||^2 + ratio ||x - prior||^2."""
        return prior + _per_frequency(self._adjoint, _per_frequency(self._inverse, target - self.times(prior)))


def learn_ffcsc(solver: FFCSC, projection: CodeProjection | None = None) -> Iterator[np.ndarray]:
    """Improve atoms and codes in turn, for ever, with the rule's projection after each; yield the atoms."""
    while True:
        observation = None
        if projection is not None:
            observation = projection.observe(solver.residuals(), solver.atoms, list(solver.codes))
        solver.update_atoms()
        solver.update_codes()
        if projection is not None:
            solver.correct(torch.stack(projection.project(observation, list(solver.codes))))
        yield solver.atoms.cpu().numpy()


def _per_frequency(matrices: Tensor, spectra: Tensor) -> Tensor:
    """Return a matrix (P, Q, M, K) of every frequency times the spectra (R, K, P, Q)."""
    return torch.einsum("pqmk,rkpq->rmpq", matrices, spectra)
