"""The rule of Cogradient Descent as pure tensor functions. Equations are named after their LaTeX labels in the paper.

Row j of every tensor belongs to coordinate j. Shapes:

    sparse    (J, P)     x_j: P numbers a coordinate, 1 for norm scales and masks
    partner   (J, I, M)  A_j: I kernels of M numbers; I = 1 where the kernels of a coordinate are not told apart
    slope     (J, P) or (J, I), by broadcasting
    beta      like slope

Low precision is computed in float32. A value that would leave the finite numbers is never written: see `project`.
"""

import torch
from torch import Tensor


def block_norms(blocks: Tensor) -> Tensor:
    """Return R(.) of every coordinate, its l1 norm.

    >>> block_norms(torch.tensor([[1.0, -2.0], [0.0, 0.5]]))
    tensor([3.0000, 0.5000])
    """
    return torch.linalg.vector_norm(_wide(blocks), ord=1, dim=tuple(range(1, blocks.ndim)))


def is_open(sparse_norms: Tensor, partner_norms: Tensor, sparse_threshold, partner_threshold) -> Tensor:
    """Return where the sparse side fell behind: (not s(x)) and s(A).  [Eqs. bch2, sign_function]

    >>> is_open(torch.tensor([0.2, 0.2, 2.0]), torch.tensor([3.0, 0.1, 3.0]), 1.0, 0.5)
    tensor([ True, False, False])
    """
    return (sparse_norms < sparse_threshold) & (partner_norms >= partner_threshold)


def change(present: Tensor, earlier: Tensor) -> Tensor:
    """Return delta = present - earlier; in half precision the difference of two near values would keep few digits.

    >>> change(torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([0.001953125], dtype=torch.bfloat16))
    tensor([0.9980])
    """
    return _wide(present) - earlier


def slope_product(partner_gradient: Tensor, partner_change: Tensor, sparse_change: Tensor, sparse: Tensor) -> Tensor:
    """Return <dL/dA_j, r_j> with r_j = (delta A_j) / (delta x_j), and r_j = 1 where delta x_j is near 0.

    Since dL/dA_j = x_j g, this is c_j x_j for order 1 without dividing by x_j.  [Eqs. final, eq_hatg]

    >>> gradient, change = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[0.5, 0.25]]])
    >>> slope_product(gradient, change, sparse_change=torch.tensor([[0.5]]), sparse=torch.tensor([[0.1]]))
    tensor([[2.]])
    """
    smallness = _smallness(sparse)
    dL_dA, delta_A, delta_x, x = _wide(partner_gradient), _wide(partner_change), _wide(sparse_change), _wide(sparse)
    near_zero = delta_x.abs() <= smallness * x.abs().clamp(min=1.0)
    along_change = (dL_dA * delta_A).sum(-1) / torch.where(near_zero, 1.0, delta_x)
    return torch.where(near_zero, dL_dA.sum(-1), along_change)


def kernel(slope: Tensor, sparse: Tensor, order: int) -> Tensor:
    """Return c_j = <g, r_j>^order, with g = (dL/dA_j) / x_j softened at x_j = 0.  [Eqs. bczhangkernel, gcapcnn]

    >>> kernel(torch.tensor([[2.0]]), torch.tensor([[0.5]]), order=2).round(decimals=3)
    tensor([[16.]])
    """
    x = _wide(sparse)
    u = slope * x / (x.square() + _smallness(sparse) ** 2)
    return u if order == 1 else u**order


def sparse_correction(slope: Tensor, sparse: Tensor, rate, order: int) -> Tensor:
    """Return beta_j x_j(t) for the signed `rate` = +-scale * eta; |beta_j| <= 1 for orders above 1.  [Eq. coupled5]

    >>> sparse_correction(torch.tensor([[2.0]]), torch.tensor([[0.5]]), rate=-0.25, order=1)
    tensor([[-0.5000]])
    """
    return rate * slope if order == 1 else bounded_beta(slope, sparse, rate, order) * _wide(sparse)


def partner_correction(beta: Tensor, partner: Tensor) -> Tensor:
    """Return beta_ij A_ij(t) for a beta of each kernel.  [Eq. bt_cnnlearning]

    >>> partner_correction(torch.tensor([[0.5]]), torch.tensor([[[1.0, 2.0]]]))
    tensor([[[0.5000, 1.0000]]])
    """
    return beta.unsqueeze(-1) * _wide(partner)


def bounded_beta(slope: Tensor, sparse: Tensor, rate, order: int) -> Tensor:
    """Return beta = rate * c_j within |beta| <= 1, for the signed `rate` = +-scale * eta.  [Eqs. coupled4, gcapcnn]

    It is NaN, which `project` refuses, where the slope itself is not finite.

    >>> bounded_beta(torch.tensor([[2.0], [torch.inf]]), torch.tensor([[0.5]]), rate=0.125, order=1).round(decimals=3)
    tensor([[0.5000],
            [   nan]])
    """
    beta = (rate * kernel(slope, sparse, order)).clamp(-1.0, 1.0)
    return torch.where(finite(slope), beta, torch.nan)


def project(new: Tensor, correction: Tensor, opened: Tensor) -> Tensor:
    """Return new + correction where the gate is open and the sum is finite, else `new`.  [Eq. bt_x]

    >>> project(torch.tensor([[1.0], [1.0]]), torch.tensor([[0.5], [0.5]]), torch.tensor([True, False])).flatten()
    tensor([1.5000, 1.0000])
    """
    projected = (_wide(new) + correction).to(new.dtype)
    return torch.where(_rows(opened, new) & finite(projected), projected, new)


def rollback(new: Tensor, earlier: Tensor, opened: Tensor) -> Tensor:
    """Return `earlier` where the gate is open and `earlier` is finite, else `new`.  [Section "CNN Training"]

    >>> rollback(torch.tensor([[1.0], [1.0]]), torch.tensor([[0.5], [0.5]]), torch.tensor([True, False])).flatten()
    tensor([0.5000, 1.0000])
    """
    return torch.where(_rows(opened, new) & finite(earlier), earlier, new)


def finite(tensor: Tensor) -> Tensor:
    """Return where the tensor is neither infinite nor NaN: isfinite, in 2 device operations instead of 4.

    >>> finite(torch.tensor([1.0, torch.inf, torch.nan]))
    tensor([ True, False, False])
    """
    return tensor.abs() < torch.inf


def _wide(tensor: Tensor) -> Tensor:
    """Return the tensor in float32 or wider."""
    return tensor if tensor.dtype.itemsize >= 4 else tensor.float()


def _smallness(tensor: Tensor) -> float:
    """Return what counts as near 0 in the tensor's own precision."""
    return torch.finfo(tensor.dtype).eps ** 0.5


def _rows(opened: Tensor, like: Tensor) -> Tensor:
    return opened.view(-1, *[1] * (like.ndim - 1))
