"""Scaling what convolutions and linear layers read, channel by channel, through their weights.

A convolution of scaled channels equals a convolution whose weights are scaled along their inputs:
conv(m x, W) = conv(x, W m). The weights are small and activations are not, so the gates live there.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from cogd.pruning.cutting import Keep
from cogd.pruning.graph import TRANSPOSED, Prunable, side_size


def scale_inputs(weight: Tensor, scale: Tensor, groups: int = 1, transposed: bool = False) -> Tensor:
    """Return a layer's weight times one factor for each channel that it reads.

    >>> scale_inputs(torch.ones(2, 2), torch.tensor([1.0, 3.0]))
    tensor([[1., 3.],
            [1., 3.]])
    """
    rest = (1,) * (weight.ndim - 2)
    if transposed:
        return weight * scale.view(-1, 1, *rest)
    if groups == 1:
        return weight * scale.view(1, -1, *rest)
    return (weight.unflatten(0, (groups, -1)) * scale.view(groups, 1, -1, *rest)).flatten(0, 1)


@torch.no_grad()
def silence(model: nn.Module, layers: Iterable[Prunable], keep: Keep) -> None:
    """Make every reader ignore the channels that are not in `keep`, in place."""
    modules = dict(model.named_modules())
    for layer in layers:
        kept = set(keep.get(layer.name, range(layer.channels)))
        for place in layer.readers:
            module = modules[place.module]
            scale = module.weight.new_ones(side_size(module, "in"))
            scale[[at for at, channel in zip(place.positions, place.channels, strict=True) if channel not in kept]] = 0
            module.weight.copy_(scaled_weight(module, scale))


def scaled_weight(module: Any, scale: Tensor) -> Tensor:
    return scale_inputs(module.weight, scale, getattr(module, "groups", 1), isinstance(module, TRANSPOSED))
