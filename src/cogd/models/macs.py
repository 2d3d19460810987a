"""Multiply-accumulates of a network's convolutions and linear layers, as the papers on pruning count them."""

from typing import Any

import torch
from torch import Tensor, nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def count_macs(model: nn.Module, *inputs: Tensor) -> int:
    """Return the MACs of one forward pass over `inputs`, divided by their number of examples.

    Biases, norms, activations, pooling and shortcuts' additions count nothing, as in the paper's tables.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(128, 2))
    >>> count_macs(model, torch.zeros(1, 3, 4, 4))
    3712
    """
    counts: list[int] = []
    hooks = [
        module.register_forward_hook(lambda layer, _, output: counts.append(_macs(layer, output)))
        for module in model.modules()
        if isinstance(module, (*CONVOLUTIONS, nn.Linear))
    ]
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            model.eval()(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes.items():
            module.training = training
    return sum(counts) // inputs[0].shape[0]


def _macs(layer: Any, output: Tensor) -> int:
    """Return one multiply-accumulate per output number and per weight that makes it."""
    return output.numel() * layer.weight[0].numel()
