"""The masked convolutional model, in plain torch: what is minimised, and how far from the minimum a point is.

    G(d, z) = 1/2 sum over observed pixels (b - D z)^2 + penalty ||z||_1,    ||d_k||_2 <= 1
                                                                            [Eqs. problem_csc_sum, eq:proximal_csc]

Shapes: images b, observed (N, C, H, W); dictionary d (K, C, h, w); codes z (N, K, H + h - 1, W + w - 1). The boundary
is unknown, not circular: codes whose atoms overlap an image only in part are codes like all others.
No solver is used here, so that this file may grade them all.
"""

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad


def reconstruct(dictionary: Tensor, codes: Tensor) -> Tensor:
    """Return D z: out(i) = sum_k sum_q d_k(q) z_k(i + h-1 - q), the valid part of the convolution.

    >>> reconstruct(torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[0.0, 3.0, 0.0]]]]))
    tensor([[[[3., 6.]]]])
    """
    return correlate(codes, dictionary.flip(-2, -1).transpose(0, 1))


def adjoint(dictionary: Tensor, images: Tensor) -> Tensor:
    """Return D^T b, shaped as codes: every atom correlated with the images at every shift that touches them.

    >>> adjoint(torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[3.0, 6.0]]]]))
    tensor([[[[ 6., 15.,  6.]]]])
    """
    height, width = dictionary.shape[-2:]
    return correlate(pad(images, (width - 1, width - 1, height - 1, height - 1)), dictionary)


def correlate(images: Tensor, kernels: Tensor) -> Tensor:
    """Return torch's conv2d in the tensors' own precision, the same bits each time: on a GPU not in TF32.

    >>> correlate(torch.ones(1, 1, 2, 3), torch.ones(1, 1, 2, 2))
    tensor([[[[4., 4.]]]])
    """
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        return conv2d(images, kernels)


def residual(images: Tensor, observed: Tensor, dictionary: Tensor, codes: Tensor) -> Tensor:
    """Return b - D z where a pixel was observed, else 0.

    >>> b, d, z = torch.tensor([[[[4.0, 9.0]]]]), torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[0.0, 3.0, 0.0]]]])
    >>> residual(b, torch.tensor([[[[True, False]]]]), d, z)
    tensor([[[[1., 0.]]]])
    """
    return torch.where(observed, images - reconstruct(dictionary, codes), 0)


def objective(images: Tensor, observed: Tensor, dictionary: Tensor, codes: Tensor, penalty: float) -> float:
    """Return G(d, z), summed in float64.

    >>> b, d, z = torch.tensor([[[[4.0, 9.0]]]]), torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[0.0, 3.0, 0.0]]]])
    >>> objective(b, torch.ones_like(b, dtype=torch.bool), d, z, penalty=0.5)
    6.5
    """
    r = residual(images, observed, dictionary, codes).double()
    return (0.5 * r.square().sum() + penalty * codes.double().abs().sum()).item()


def codes_gradient(images: Tensor, observed: Tensor, dictionary: Tensor, codes: Tensor) -> Tensor:
    """Return the gradient of the data term in the codes, -D^T (b - D z).

    >>> b, d, z = torch.tensor([[[[4.0, 9.0]]]]), torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[0.0, 3.0, 0.0]]]])
    >>> codes_gradient(b, torch.ones_like(b, dtype=torch.bool), d, z)
    tensor([[[[-2., -7., -3.]]]])
    """
    return -adjoint(dictionary, residual(images, observed, dictionary, codes))


def optimality_gap(images: Tensor, observed: Tensor, dictionary: Tensor, codes: Tensor, penalty: float) -> float:
    """Return the largest violation of the optimality conditions of the codes, as a share of the penalty.

    At the minimum, gradient = -penalty sign(z) where z is not 0, and |gradient| <= penalty where it is.

    >>> b, d, z = torch.tensor([[[[4.0, 9.0]]]]), torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[0.0, 3.0, 0.0]]]])
    >>> optimality_gap(b, torch.ones_like(b, dtype=torch.bool), d, z, penalty=0.5)
    13.0
    """
    gradient = codes_gradient(images, observed, dictionary, codes)
    at_zero = (gradient.abs() - penalty).clamp(min=0)
    return torch.where(codes == 0, at_zero, (gradient + penalty * codes.sign()).abs()).max().item() / penalty


def duality_gap(images: Tensor, observed: Tensor, dictionary: Tensor, codes: Tensor, penalty: float) -> float:
    """Return a bound on how far G is above its minimum over the codes, as a share of G.

    The residual scaled until |D^T r| <= penalty is feasible for the dual problem, max <r, b> - 1/2 ||r||^2.

    >>> b, d = torch.tensor([[[[4.0, 9.0]]]]), torch.tensor([[[[1.0, 2.0]]]])
    >>> seen = torch.ones_like(b, dtype=torch.bool)
    >>> duality_gap(b, seen, d, torch.zeros(1, 1, 1, 3), penalty=largest_penalty(b, seen, d))
    0.0
    """
    r = residual(images, observed, dictionary, codes)
    scale = min(1.0, penalty / adjoint(dictionary, r).abs().max().item())
    dual_point, b = scale * r.double(), torch.where(observed, images, 0).double()
    dual = ((dual_point * b).sum() - 0.5 * dual_point.square().sum()).item()
    primal = objective(images, observed, dictionary, codes, penalty)
    return (primal - dual) / primal


def largest_penalty(images: Tensor, observed: Tensor, dictionary: Tensor) -> float:
    """Return lambda_max = max |D^T b|, the smallest penalty at which all codes vanish.

    >>> b, d = torch.tensor([[[[4.0, 9.0]]]]), torch.tensor([[[[1.0, 2.0]]]])
    >>> largest_penalty(b, torch.ones_like(b, dtype=torch.bool), d)
    22.0
    """
    return adjoint(dictionary, torch.where(observed, images, 0)).abs().max().item()
