"""Multiply-accumulates of a network's convolutions and linear layers, as the papers on pruning count them."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def count_macs(model: nn.Module, *inputs: Tensor) -> int:
    """Return the MACs of one forward pass over `inputs`, divided by their number of examples.

    Biases, norms, activations, pooling and shortcuts' additions count nothing, as in the paper's tables.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(128, 2))
    >>> count_macs(model, torch.zeros(1, 3, 4, 4))
    3712
    """
    return sum(macs_by_layer(model, *inputs).values()) // inputs[0].shape[0]


def macs_by_layer(model: nn.Module, *inputs: Tensor) -> Counter[nn.Module]:
    """Return the MACs of every layer in one forward pass over all of `inputs`."""
    counts: Counter[nn.Module] = Counter()
    modes = {module: module.training for module in model.modules()}
    hooks = [
        module.register_forward_hook(lambda layer, inputs, output: counts.update({layer: _macs(layer, inputs, output)}))
        for module in modes
        if isinstance(module, (*CONVOLUTIONS, *TRANSPOSED, nn.Linear))
    ]
    try:
        with torch.no_grad():
            model.eval()(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes.items():
            module.training = training
    return counts


def _macs(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> int:
    """Return one multiply-accumulate per output number and weight that makes it; transposed, per input and weight."""
    return (inputs[0] if isinstance(layer, TRANSPOSED) else output).numel() * layer.weight[0].numel()
