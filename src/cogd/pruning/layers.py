"""Which channels of a model can be removed exactly: what the dependency graph offers, put to the trial."""

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from cogd.pruning.cutting import Keep, cut_channels, plan_removal
from cogd.pruning.graph import FAILURES, Prunable, as_tuple, candidates, considered_layers
from cogd.pruning.masking import silence
from cogd.pruning.refusals import check_plain

TOLERANCE = 1e-9


def prunable_layers(
    model: nn.Module, example_inputs: Tensor | Sequence[Any], ignore: Iterable[str] = ()
) -> list[Prunable]:
    """Return every layer of the model whose channels can be removed exactly.

    A model may say in an attribute `gated_layers` which layers' channels it wants to be considered, as the paper's
    networks do: the first convolution of every block. Otherwise it is all but those that `ignore` names: a module's
    name stands for all within it.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> [(layer.name, layer.channels) for layer in prunable_layers(model, torch.zeros(1, 3, 8, 8))]
    [('0', 8)]
    """
    return survey(model, example_inputs, ignore)[0]


def survey(
    model: nn.Module, example_inputs: Tensor | Sequence[Any], ignore: Iterable[str] = ()
) -> tuple[list[Prunable], dict[str, str]]:
    """Return the prunable layers, and for every other layer that was considered the reason why it is not."""
    check_plain(model)
    inputs = as_tuple(example_inputs)
    found, reasons = candidates(model, inputs, considered_layers(model, ignore))
    exact, inexact = _exact_only(model, found, inputs)
    reasons |= inexact
    if not exact:
        listed = "".join(f"\n  {name}: {reason}" for name, reason in reasons.items()) or " There is no such layer."
        raise ValueError(f"no channel of this {type(model).__name__} can be removed exactly.{listed}")
    return exact, reasons


def _exact_only(
    model: nn.Module, found: list[Prunable], inputs: tuple[Any, ...]
) -> tuple[list[Prunable], dict[str, str]]:
    """Return the layers that can lose channels together without a change of the outputs, and what hinders the rest."""
    disturbed = shaken(model)
    keep = {layer.name: _half(layer) for layer in found}
    if difference(disturbed, found, keep, inputs) is None:
        return found, {}
    exact: list[Prunable] = []
    reasons = {}
    for layer in found:
        if reason := difference(disturbed, [*exact, layer], keep, inputs):
            reasons[layer.name] = reason
        else:
            exact.append(layer)
    return exact, reasons


def difference(model: nn.Module, layers: Sequence[Prunable], keep: Keep, inputs: tuple[Any, ...]) -> str | None:
    """Return how the model without the channels differs from the model that ignores them, or None if it doesn't.

    Both run in evaluation mode and in float64.
    """
    inputs = tree_map_only(Tensor, lambda x: x.double() if x.is_floating_point() else x, inputs)
    masked, compact = (copy.deepcopy(model).double().eval() for _ in range(2))
    silence(masked, layers, keep)
    try:
        cut_channels(compact, plan_removal(compact, layers, keep))
        with torch.no_grad():
            expected, got = outputs_of(masked(*inputs)), outputs_of(compact(*inputs))
    except FAILURES as error:
        return f"without some of its channels the model fails ({type(error).__name__}: {error})"
    for before, after in zip(expected, got, strict=True):
        if before.shape != after.shape:
            return f"removing its channels changes the output's shape, {tuple(before.shape)} to {tuple(after.shape)}"
        if not before.isfinite().all():
            return "the model's outputs are not finite numbers even with all of its channels; its training diverged"
        gap = (before - after).abs().max().item() / max(1.0, before.abs().max().item())
        if not gap <= TOLERANCE:
            return f"removing its channels changes the output by {gap:.1e} of its largest value"
    return None


def outputs_of(result: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


def _half(layer: Prunable) -> list[int]:
    """Return channels to keep in the trial: half of every block, drawn at random."""
    size = layer.channels // layer.blocks
    generator = torch.Generator().manual_seed(layer.channels)
    runs = [torch.randperm(size, generator=generator)[: (size + 1) // 2] for _ in range(layer.blocks)]
    return sorted(int(i) + block * size for block, run in enumerate(runs) for i in run)


def shaken(model: nn.Module) -> nn.Module:
    """Return a copy whose every weight counts: a scale that starts at 0 would hide what lies behind it."""
    disturbed = copy.deepcopy(model).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in disturbed.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.device)
        parameter.data.add_(noise, alpha=0.1 / max(1, parameter[0].numel()) ** 0.5 if parameter.ndim else 0.1)
    return disturbed
