"""FFCSC, the paper's baseline (Heide, Heidrich, Wetzstein 2015): ADMM in the Fourier domain on padded images.

Each iteration takes ten steps on the atoms and ten on the codes. Both are one problem with two terms,

    minimise f(B x) + h(x),        f the masked data term, B a product per frequency, h the constraint or the l1 norm,

split as v = (B x, x) with multipliers (gamma_1, gamma_2).  [Eqs. problem_csc_sum, eq:proximal_csc; Alg. alg_csc]
Codes live on the torus of (H + h - 1) x (W + w - 1) positions, whose margin is never observed: the boundary is unknown.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from cogd.sparse_coding import model
from cogd.sparse_coding.code_projection import CodeProjection, Signal
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
        self._duals: dict[str, tuple[Tensor, Tensor]] = {}

    @property
    def nonzeros(self) -> int:
        return int(self.codes.count_nonzero())

    def objective(self, penalty: float) -> float:
        """Return the objective of the feasible atoms and the sparse codes."""
        return model.objective(self.images, self.observed, self.atoms, self.codes, penalty)

    def reconstruction(self) -> list[np.ndarray]:
        """Return the images (C, H, W) that the feasible atoms and the sparse codes stand for."""
        return list(model.reconstruct(self.atoms, self.codes).cpu().numpy())

    def weights(self, _n_atoms: int) -> np.ndarray:
        """Return the sum of every atom's squared codes, in float64."""
        return self.codes.double().square().sum((0, 2, 3)).cpu().numpy()

    def update_atoms(self) -> None:
        """Take the steps on the atoms, the codes fixed."""
        B = _by_frequency(self._z)  # (F, N, K)
        steps = self._steps("atoms", B, self._d.transpose(0, 1), ATOMS_RATIO, self._feasible)
        solution, feasible = steps
        self._d = solution.transpose(0, 1).contiguous()
        self.atoms = feasible.transpose(0, 1)[..., : self.atoms.shape[2], : self.atoms.shape[3]].contiguous()

    def update_codes(self) -> None:
        """Take the steps on the codes, the atoms fixed."""
        B = _by_frequency(self._d).transpose(1, 2)  # (F, C, K)
        threshold = self.penalty / self._gamma
        self._z, self.codes = self._steps("codes", B, self._z, CODES_RATIO, lambda x: _soft(x, threshold))

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
            return torch.from_numpy(array).to(like.device)

        codes, z, d = tensor("codes", self.codes), tensor("z", self._z), tensor("d", self._d)
        swapped = self._b.transpose(0, 1), d.transpose(0, 1)
        for side, pair in {"atoms": swapped, "codes": (self._b, z)}.items():
            self._duals[side] = tensor(f"dual.{side}.0", pair[0]), tensor(f"dual.{side}.1", pair[1])
        self.codes, self._z, self._d = codes, z, d

    def _steps(
        self, side: str, B: Tensor, x: Tensor, ratio: float, prox: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return (x, the prox's last result); x is (R, K, P, Q), right-hand sides first."""
        gamma_1 = self._gamma / ratio
        data = self._b if side == "codes" else self._b.transpose(0, 1)  # (R, M, P, Q)
        seen = self._seen if side == "codes" else self._seen.transpose(0, 1)
        dual_1, dual_2 = self._duals.get(side, (torch.zeros_like(data), torch.zeros_like(x)))
        inverse = _woodbury(B, ratio)
        spectrum, constrained = _by_frequency(x), x
        for _ in range(STEPS):
            v_1 = self._from_frequency(B @ spectrum.transpose(1, 2), data.shape)
            u_1 = (seen * data + gamma_1 * (v_1 + dual_1)) / (seen + gamma_1)  # prox of the data term
            constrained = prox(x + dual_2)
            dual_1, dual_2 = dual_1 + v_1 - u_1, dual_2 + x - constrained
            target, prior = _by_frequency(u_1 - dual_1), _by_frequency(constrained - dual_2)
            spectrum = _ridge(B, inverse, target.transpose(1, 2), prior.transpose(1, 2)).transpose(1, 2)
            x = self._from_frequency(spectrum.transpose(1, 2), x.shape)
        self._duals[side] = (dual_1, dual_2)
        return x, constrained

    def _feasible(self, d: Tensor) -> Tensor:
        """Return the nearest atoms of the right size and norm at most 1.  [ind_c of Eq. eq:proximal_csc]"""
        height, width = self.atoms.shape[2:]
        cropped = torch.zeros_like(d)
        cropped[..., :height, :width] = d[..., :height, :width]
        norms = cropped.square().sum((0, 2, 3), keepdim=True).sqrt()
        return cropped / norms.clamp(min=1.0)

    def _from_frequency(self, spectrum: Tensor, shape: Sequence[int]) -> Tensor:
        """Return (F, M, R) as images (R, M, P, Q)."""
        planes = spectrum.permute(2, 1, 0).reshape(shape[0], shape[1], self._shape[0], -1)
        return torch.fft.irfft2(planes, s=self._shape)


def learn_ffcsc(solver: FFCSC, projection: CodeProjection | None = None) -> Iterator[np.ndarray]:
    """Improve atoms and codes in turn, for ever, with the rule's projection after each; yield the atoms."""
    signals = [Signal(b, m) for b, m in zip(solver.images, solver.observed, strict=True)]
    while True:
        observation = None if projection is None else projection.observe(signals, solver.atoms, list(solver.codes))
        solver.update_atoms()
        solver.update_codes()
        if projection is not None:
            solver.correct(torch.stack(projection.project(observation, list(solver.codes))))
        yield solver.atoms.cpu().numpy()


def _by_frequency(images: Tensor) -> Tensor:
    """Return (R, M, P, Q) as spectra (F, R, M)."""
    return torch.fft.rfft2(images).flatten(2).permute(2, 0, 1)


def _woodbury(B: Tensor, ratio: float) -> Tensor:
    """Return (ratio I + B B^H)^-1 of every frequency."""
    gram = B @ B.mH
    return torch.linalg.inv(gram + ratio * torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device))


def _ridge(B: Tensor, inverse: Tensor, target: Tensor, prior: Tensor) -> Tensor:
    """Return the minimiser of ||B x - target||^2 + ratio ||x - prior||^2, given the inverse for this ratio."""
    return prior + B.mH @ (inverse @ (target - B @ prior))


def _soft(x: Tensor, threshold: float) -> Tensor:
    return x.sign() * (x.abs() - threshold).clamp(min=0)
