"""Cogradient descent between codes and atoms: which codes are corrected after an iteration of a solver, and by what.

Coordinate (k, p) couples the code x_kp with the atom A_k. With g = A x - b on the observed pixels,

    c_kp = [<g, delta A_k at p> / delta x_kp]^order        beta_kp = -+ scale eta c_kp        x_hat = x(t+1) + beta x(t)

where the gate of atom k is open: ||x_k||_1 below its mean over k, and sum_p |beta_kp| at or above its median over k
(all atoms have norm <= 1, so that their own norm says nothing).  [Eqs. bt_csc, bczhangkernel; Alg. alg_csc, line 4]
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cogd.coupling import threshold_value
from cogd.projection import is_open
from cogd.sparse_coding import model

Rule = Literal["descent", "paper", "rollback"] | None


class Observation(NamedTuple):
    """What a projection needs from before an iteration: the codes, beta for each, and which atoms are open."""

    codes: list[Tensor]
    betas: list[Tensor]
    opened: Tensor


class CodeProjection:
    """The rule's memory over a run: call `observe` before an iteration of a solver and `project` after it."""

    def __init__(self, rule: Rule, order: int, scale: float):
        self.rule, self.order, self.scale = rule, order, scale
        self.opened = 0  # atoms whose gate the last projection found open
        self._held: tuple[Tensor, list[Tensor]] | None = None

    def observe(self, residuals: Sequence[Tensor], atoms: Tensor, codes: list[Tensor]) -> Observation | None:
        """Judge gates and corrections at (x(t), A(t)); None on the first call, which has nothing to compare with.

        `residuals` are b - A x of every image (C, H, W), 0 where nothing was observed.
        """
        held, self._held = self._held, (atoms, codes)
        if held is None:
            return None
        rate = (-1 if self.rule == "descent" else 1) * self.scale * step_size(atoms, codes[0].shape[1:])
        change = atoms - held[0]
        betas = [
            code_betas(residual, change, x, x - x_s, rate, self.order)
            for residual, x, x_s in zip(residuals, codes, held[1], strict=True)
        ]
        return Observation(codes, betas, open_atoms(codes, betas))

    def project(self, observation: Observation | None, new_codes: list[Tensor]) -> list[Tensor]:
        """Return the codes after an iteration, corrected where the gate was open.  [Eq. bt_csc]

        Every iteration projects, so that those just after the previous projection, to which rollback returns, are x(t).
        """
        if observation is None:
            return new_codes
        self.opened = int(observation.opened.sum())
        opened = observation.opened.view(-1, 1, 1)
        return [
            _finite(torch.where(opened, x if self.rule == "rollback" else new + beta * x, new), new)
            for new, beta, x in zip(new_codes, observation.betas, observation.codes, strict=True)
        ]

    def state(self) -> dict[str, np.ndarray]:
        """Return copies of what is held from one iteration to the next."""
        if self._held is None:
            return {}
        named = {"atoms": self._held[0], **{f"codes.{i}": x for i, x in enumerate(self._held[1])}}
        return {name: tensor.cpu().numpy().copy() for name, tensor in named.items()}

    def restore(self, atoms: np.ndarray, codes: Sequence[np.ndarray], device: torch.device | str = "cpu") -> None:
        """Hold the atoms and the codes of every image that an earlier `state` named."""
        self._held = torch.from_numpy(atoms).to(device), [torch.from_numpy(x).to(device) for x in codes]


def code_betas(residual: Tensor, atoms_change: Tensor, x: Tensor, x_change: Tensor, rate: float, order: int) -> Tensor:
    """Return beta (K, rows, columns), at most 1 in size for orders above 1.  [Eqs. coupled5, bczhangkernel]

    Where a code hardly moved, its slope dA/dx is taken as 1.
    """
    g = -residual[None]
    smallness = torch.finfo(x.dtype).eps ** 0.5
    near_zero = x_change.abs() <= smallness * x.abs().clamp(min=1.0)
    along_change = model.adjoint(atoms_change, g)[0] / torch.where(near_zero, 1.0, x_change)
    along_ones = model.adjoint(torch.ones_like(atoms_change[:1]), g)[0]
    beta = rate * torch.where(near_zero, along_ones, along_change) ** order
    return beta if order == 1 else beta.clamp(-1.0, 1.0)


def open_atoms(codes: list[Tensor], betas: list[Tensor]) -> Tensor:
    """Return the gate of every atom.  [Eqs. bch2, sign_function]"""
    sparse = torch.stack([x.abs().sum((1, 2)) for x in codes]).sum(0)
    partner = torch.stack([beta.abs().sum((1, 2)) for beta in betas]).sum(0)
    return is_open(sparse, partner, threshold_value("mean", sparse), threshold_value("median", partner))


def step_size(atoms: Tensor, shape: Sequence[int]) -> float:
    """Return eta = 1/L, L a bound on the curvature in the codes: max over frequencies of sum_k |fft(A_k)|^2."""
    spectrum = torch.fft.rfft2(atoms, s=tuple(shape)).abs().square().sum((0, 1)).max().item()
    return 1 / spectrum if spectrum > 0 else 0.0


def _finite(projected: Tensor, new: Tensor) -> Tensor:
    return torch.where(projected.isfinite(), projected, new)
