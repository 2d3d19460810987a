"""What is coupled with what: pairs of tensors, the thresholds of their gate, and finders of the pairs in a model."""

import difflib
import math
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cogd.dataflow import neighbours_in


@dataclass(frozen=True)
class Quantile:
    """A gate threshold at the q-quantile of a coupling's norms, with linear interpolation.

    >>> Quantile(0.25)
    Quantile(q=0.25)
    """

    q: float

    def __post_init__(self):
        if not _is_number(self.q) or not 0 <= self.q <= 1:
            raise ValueError(
                f"Quantile(q) takes a number from 0 to 1; got {self.q!r}. For the lower quarter give 0.25."
            )


ALL = slice(None)  # of the coordinates
Threshold = float | Literal["mean", "median"] | Quantile


def threshold_value(threshold: Threshold, norms: Tensor) -> Tensor | float:
    """Return the number, on the norms' device, that a threshold policy means for each last row of norms."""
    match threshold:
        case "mean":
            return norms.mean(-1, keepdim=True)
        case "median":
            return _quantile(norms, 0.5)
        case Quantile(q):
            return _quantile(norms, q)
        case _:
            return threshold


def _quantile(norms: Tensor, q: float) -> Tensor:
    """Return the q-quantile by linear interpolation: torch.quantile's, in 2 device operations instead of 14."""
    ordered = norms.sort().values
    place = q * (norms.shape[-1] - 1)
    low, high = int(place), math.ceil(place)
    return torch.lerp(ordered[..., low : low + 1], ordered[..., high : high + 1], place - low)


@dataclass(frozen=True, eq=False)
class Coupling:
    """A sparse tensor and its partner, whose slices along `sparse_dim` and `partner_dim` belong together pairwise.

    The gate opens for a slice whose l1 norm is below `sparse_threshold` while its partner's is at or above
    `partner_threshold`; then the slice of the projected side is corrected.

    Args:
        sparse: the side that is held to be sparse, x: codes, masks, norm scales, the first factor.
        partner: the side that it multiplies, A: atoms, filters, kernels, the second factor.
        sparse_dim: the dimension of `sparse` that counts the coupled slices.
        partner_dim: the dimension of `partner` that does.
        sparse_threshold: a number, "mean", "median" or `Quantile(q)` of this coupling's sparse norms.
        partner_threshold: likewise for the partner's norms.
        project: the side that is corrected, "sparse" or "partner".
        name: how statistics and errors call this coupling.

    >>> down, up = nn.Linear(64, 8, bias=False), nn.Linear(8, 64, bias=False)
    >>> Coupling(sparse=down.weight, partner=up.weight, partner_dim=1).size
    8
    """

    sparse: Tensor
    partner: Tensor
    sparse_dim: int = 0
    partner_dim: int = 0
    sparse_threshold: Threshold = "mean"
    partner_threshold: Threshold = "median"
    project: Literal["sparse", "partner"] = "sparse"
    name: str = ""

    def __post_init__(self):
        if self.project not in ("sparse", "partner"):
            raise ValueError(f'project must be "sparse" or "partner"; got {self.project!r}.')
        if self.sparse is self.partner:
            raise ValueError("sparse and partner are the same tensor; a coupling needs two.")
        for side in ("sparse", "partner"):
            _check_side(side, getattr(self, side), getattr(self, f"{side}_dim"))
            _check_threshold(f"{side}_threshold", getattr(self, f"{side}_threshold"))
        if self.sparse.device != self.partner.device:
            raise ValueError(
                f"sparse is on {self.sparse.device}, partner on {self.partner.device}; they must be on one device. "
                "Move the model there before coupling its parameters."
            )
        if self.sparse.shape[self.sparse_dim] != self.partner.shape[self.partner_dim]:
            raise ValueError(
                f"sparse has {self.sparse.shape[self.sparse_dim]} slices along sparse_dim={self.sparse_dim} "
                f"(shape {tuple(self.sparse.shape)}), partner {self.partner.shape[self.partner_dim]} along "
                f"partner_dim={self.partner_dim} (shape {tuple(self.partner.shape)}); they must be equally many. "
                "Set the dimension of each that counts the coupled slices."
            )

    @property
    def size(self) -> int:
        """How many coordinates are coupled."""
        return self.sparse.shape[self.sparse_dim]

    @property
    def projected(self) -> Tensor:
        """The tensor that the rule moves."""
        return self.sparse if self.project == "sparse" else self.partner

    def sparse_blocks(self, tensor: Tensor, of: slice = ALL) -> Tensor:
        """Return a tensor shaped like the sparse side as (coordinates, numbers of each)."""
        rows = tensor.movedim(self.sparse_dim, 0)[of]
        return rows.reshape(len(rows), -1)

    def partner_blocks(self, tensor: Tensor, of: slice = ALL) -> Tensor:
        """Return a tensor shaped like the partner as (coordinates, kernels, numbers of each).

        A projected partner is corrected kernel by kernel: the first dimension besides `partner_dim` tells them apart,
        as i does in W_ij of a convolution's weight; what follows belongs to the kernel. Otherwise a coordinate is one.
        """
        rows = tensor.movedim(self.partner_dim, 0)[of]
        if self.project == "sparse" or tensor.ndim == 1:
            return rows.reshape(len(rows), 1, -1)
        return rows.reshape(len(rows), rows.shape[1], -1)

    def projected_blocks(self, tensor: Tensor, of: slice = ALL) -> Tensor:
        """Return a tensor shaped like the projected side as its blocks."""
        return self.sparse_blocks(tensor, of) if self.project == "sparse" else self.partner_blocks(tensor, of)

    def put(self, blocks: Tensor, of: slice = ALL) -> None:
        """Write blocks into the projected tensor."""
        rows = self.projected.movedim(self.sparse_dim if self.project == "sparse" else self.partner_dim, 0)[of]
        rows.copy_(blocks.view(rows.shape))


def couple_named(model: nn.Module, pairs: Iterable[tuple[str, str]], **options) -> list[Coupling]:
    """Couple parameters by name: `pairs` of (sparse name, partner name); `options` go to every `Coupling`.

    >>> model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16))
    >>> [coupling.name for coupling in couple_named(model, [("1.weight", "0.weight")])]
    ['1.weight * 0.weight']
    """
    pairs = list(pairs) if isinstance(pairs, Iterable) else [pairs]
    if not pairs:
        raise ValueError("pairs is empty; give at least one (sparse name, partner name).")
    for i, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"pairs must hold tuples (sparse name, partner name); pairs[{i}] is {pair!r}.")
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name in (name for pair in pairs for name in pair if name not in parameters):
        near = difflib.get_close_matches(name, parameters) or list(parameters)[:5]
        raise ValueError(f"pairs names {name!r}, not a parameter of this {type(model).__name__}; near it: {near}.")
    return [
        Coupling(parameters[sparse], parameters[partner], name=f"{sparse} * {partner}", **options)
        for sparse, partner in pairs
    ]


def couple_conv_norm(model: nn.Module, *, active: float = 0.95, example_inputs: tuple | None = None) -> list[Coupling]:
    """Couple every norm's scale with the kernels of the convolution or linear layer whose output it scales.

    Pairs are found by data flow, traced symbolically or, with `example_inputs`, in one run of the model. The kernels
    are projected; both thresholds are the (1 - active)-quantile. Left out are frozen layers, layers that several norms
    scale, and grouped transposed convolutions, whose output channels no single dimension counts.

    >>> model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 4, 3))
    >>> [coupling.name for coupling in couple_conv_norm(model)]
    ['1.weight * 0.weight']
    """
    if not _is_number(active) or not 0 <= active <= 1:
        raise ValueError(
            f"active must be the share of channels that count as active, from 0 to 1; got {active!r}. 95% is 0.95."
        )
    return [
        Coupling(
            norm.weight,
            layer.weight,
            partner_dim=_output_dim(layer),
            sparse_threshold=Quantile(1 - active),
            partner_threshold=Quantile(1 - active),
            project="partner",
            name=f"{norm_name} * {layer_name}",
        )
        for layer, norm, layer_name, norm_name in _pairs(
            model, example_inputs, _scales, "layer followed by a norm with a learned scale"
        )
    ]


def couple_factors(model: nn.Module, *, example_inputs: tuple | None = None, **options) -> list[Coupling]:
    """Couple two linear maps in a row with nothing between: adapters such as LoRA's, low-rank layers.

    The first map's rows are the sparse side, the second's columns their partners. `options` go to every `Coupling`.

    >>> model = nn.Sequential(nn.Linear(64, 8, bias=False), nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 10))
    >>> [(coupling.name, coupling.size) for coupling in couple_factors(model)]
    [('0.weight * 1.weight', 8)]
    """
    return [
        Coupling(first.weight, second.weight, partner_dim=1, name=f"{first_name} * {second_name}", **options)
        for first, second, first_name, second_name in _pairs(
            model, example_inputs, _feeds, "two linear maps in a row with nothing between"
        )
    ]


CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LAYERS = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)
CHANNEL_NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.GroupNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
FEATURE_NORMS = (nn.LayerNorm, nn.RMSNorm)


def _scales(layer: nn.Module, norm: nn.Module) -> bool:
    """Whether the norm's weights scale the layer's output channels one by one."""
    if not isinstance(norm, CHANNEL_NORMS + FEATURE_NORMS):
        return False
    if not isinstance(layer, LAYERS if isinstance(norm, CHANNEL_NORMS) else nn.Linear):
        return False
    if isinstance(layer, TRANSPOSED) and layer.groups > 1:
        return False
    return _learned(layer, norm) and norm.weight.shape == (layer.weight.shape[_output_dim(layer)],)


def _feeds(first: Any, second: Any) -> bool:
    """Whether the second map's columns multiply what the first map's rows make."""
    if not any(isinstance(first, kind) and isinstance(second, kind) for kind in (nn.Linear, *CONVOLUTIONS)):
        return False  # a linear layer reads a convolution's last dimension, not its channels
    return _learned(first, second) and first.weight.shape[0] == second.weight.shape[1]


def _learned(*modules: nn.Module) -> bool:
    return all(isinstance(module.weight, nn.Parameter) and module.weight.requires_grad for module in modules)


def _output_dim(layer: nn.Module) -> int:
    return 1 if isinstance(layer, TRANSPOSED) else 0


def _pairs(model, example_inputs, belong, what) -> list[tuple[Any, Any, str, str]]:
    """Return neighbours in the data flow that `belong` together, once per first weight, and their weights' names.

    A layer that feeds itself is no pair, and one that feeds another besides is left out as others that feed two.
    """
    if not isinstance(example_inputs, tuple | list | None):
        raise TypeError(
            f"example_inputs must be a tuple of what the model's forward takes; got {type(example_inputs).__name__}. "
            "For one input write (input,)."
        )
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        model = model.module
    layers = LAYERS + CHANNEL_NORMS + FEATURE_NORMS
    candidates = dict.fromkeys(pair for pair in neighbours_in(model, layers, example_inputs) if belong(*pair))
    uses = Counter(first.weight for first, _ in candidates)
    found = [pair for pair in candidates if uses[pair[0].weight] == 1 and pair[0].weight is not pair[1].weight]
    if not found:
        raise ValueError(
            f"this {type(model).__name__} holds no {what}. Couple parameters by name: couple_named(model, pairs)."
        )
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [(first, second, names[first.weight], names[second.weight]) for first, second in found]


def _check_side(side: str, tensor: Any, dim: int) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{side} must be a tensor; got {type(tensor).__name__}. Pass the parameter itself.")
    if isinstance(tensor, nn.UninitializedParameter):
        raise TypeError(f"{side} has no shape yet; run the lazy module once before coupling it.")
    if is_sharded(tensor):
        raise TypeError(f"{side} is a DTensor; its coordinates span devices, which CoGD does not support. Use DDP.")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{side} must be dense; got layout {tensor.layout}. Convert it by to_dense().")
    if not tensor.is_floating_point():
        raise TypeError(f"{side} must hold real floating-point numbers; got {tensor.dtype}. Convert it by float().")
    if tensor.ndim == 0 or tensor.numel() == 0:
        raise ValueError(f"{side} must have at least one dimension and one element; got shape {tuple(tensor.shape)}.")
    if not isinstance(dim, int) or isinstance(dim, bool) or not -tensor.ndim <= dim < tensor.ndim:
        raise ValueError(
            f"{side}_dim must be an integer from {-tensor.ndim} to {tensor.ndim - 1} "
            f"for shape {tuple(tensor.shape)}; got {dim!r}."
        )


def _check_threshold(name: str, threshold: Any) -> None:
    if isinstance(threshold, Quantile) or threshold in ("mean", "median"):
        return
    if not _is_number(threshold) or math.isnan(threshold) or threshold < 0:
        raise ValueError(f'{name} must be a number >= 0, "mean", "median" or Quantile(q); got {threshold!r}.')


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_sharded(tensor: Tensor) -> bool:
    """Whether the tensor is a DTensor; asks nothing of torch.distributed before somebody has used it."""
    distributed = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(tensor, distributed.DTensor)
