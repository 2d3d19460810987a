"""Models that can't be pruned as they come, each refusal with its remedy."""

from typing import Any

from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

HOOKS = {  # that compute a weight before each forward pass, and what takes them off
    WeightNorm: "remove_weight_norm",
    SpectralNorm: "remove_spectral_norm",
    BasePruningMethod: "prune.remove",
}


def check_plain(model: Any) -> None:
    """Refuse wrapped, compiled, quantised and unfinished models, and parametrized weights, gates among them."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    for name, module in model.named_modules():
        name = name or "model"
        _check_unwrapped(name, module)
        _check_module(name, module)


def _check_unwrapped(name: str, module: nn.Module) -> None:
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        kind = type(module).__name__
        raise TypeError(f"{name} is wrapped in {kind}; put {name}.module in its place and wrap it again afterwards.")
    if hasattr(module, "_orig_mod"):
        raise TypeError(
            f"{name} is compiled; put the module given to torch.compile in its place and compile it again afterwards."
        )


def _check_module(name: str, module: Any) -> None:
    if parametrize.is_parametrized(module):
        if any(getattr(entry, "is_gate", False) for entries in module.parametrizations.values() for entry in entries):
            raise ValueError("gates are already inserted in this model; fold() or remove() them first.")
        raise ValueError(
            f"{name} has a parametrized weight, which can't be cut; apply torch.nn.utils.parametrize."
            "remove_parametrizations to it first and parametrize again afterwards."
        )
    for kind in (kind for hook in module._forward_pre_hooks.values() for kind in HOOKS if isinstance(hook, kind)):
        raise ValueError(
            f"{name} has a weight that a hook computes ({kind.__name__}), which can't be cut; "
            f"apply torch.nn.utils.{HOOKS[kind]} to it first."
        )
    if type(module).__module__.startswith(("torch.ao.nn", "torch.nn.quantized", "torchao")):
        raise ValueError(f"{name} is a quantised {type(module).__name__}; prune the float model, then quantise it.")
    for kind in map(type, module.parameters(recurse=False)):
        if kind.__module__.startswith("torchao"):
            raise ValueError(f"{name} has a quantised {kind.__name__}; prune the float model, then quantise it.")
    if any(isinstance(parameter, nn.UninitializedParameter) for parameter in module.parameters(recurse=False)):
        raise ValueError(f"{name} has no shapes yet; run the model once on an example before pruning it.")
