"""Models that can't be pruned as they come, each refusal with its remedy."""

from typing import Any

from torch import nn
from torch.nn.utils import parametrize


def check_plain(model: Any) -> None:
    """Refuse wrapped, compiled, quantised and unfinished models, and parametrized weights, gates among them."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise TypeError(f"model is wrapped in {type(model).__name__}; pass model.module and wrap it again afterwards.")
    if hasattr(model, "_orig_mod"):
        raise TypeError("model is compiled; pass the module given to torch.compile and compile it again afterwards.")
    for name, module in model.named_modules():
        _check_module(name, module)


def _check_module(name: str, module: Any) -> None:
    if parametrize.is_parametrized(module):
        if any(getattr(entry, "is_gate", False) for entries in module.parametrizations.values() for entry in entries):
            raise ValueError("gates are already inserted in this model; fold() or remove() them first.")
        raise ValueError(
            f"{name} has a parametrized weight, which can't be cut; apply torch.nn.utils.parametrize."
            "remove_parametrizations to it first and parametrize again afterwards."
        )
    if type(module).__module__.startswith(("torch.ao.nn", "torch.nn.quantized", "torchao")):
        raise ValueError(f"{name} is a quantised {type(module).__name__}; prune the float model, then quantise it.")
    for kind in map(type, module.parameters(recurse=False)):
        if kind.__module__.startswith("torchao"):
            raise ValueError(f"{name} has a quantised {kind.__name__}; prune the float model, then quantise it.")
    if any(isinstance(parameter, nn.UninitializedParameter) for parameter in module.parameters(recurse=False)):
        raise ValueError(f"{name} has no shapes yet; run the model once on an example before pruning it.")
