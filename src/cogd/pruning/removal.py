"""Removing channels in place, with the optimizer following."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from cogd.pruning.cutting import Cut, Keep, cut_channels, cut_tensor, plan_removal
from cogd.pruning.graph import Prunable, as_tuple, candidates, check_names
from cogd.pruning.layers import difference, shaken
from cogd.pruning.refusals import check_plain


def remove_channels(
    model: nn.Module,
    keep: Keep,
    *,
    example_inputs: Tensor | Sequence[Any],
    optimizer: Optimizer | None = None,
) -> None:
    """Remove every channel of the layers named in `keep` but those it lists, in place.

    Every parameter stays the same object, so that the optimizer and its schedulers go on with it; what the optimizer
    remembers of it (momentum, averages) is cut alike. Before anything is changed, a copy without the channels is
    compared with one that ignores them, in float64 and with every weight disturbed, so that no 0 hides a difference;
    if they differ the model stays as it was.

    Args:
        model: the model; fold or remove its gates first.
        keep: the channels to keep, by layer, as `Gates.keep` gives them.
        example_inputs: what the model's forward accepts, a tensor or a tuple.
        optimizer: an optimizer of the model's parameters that goes on training it.

    >>> import torch
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> remove_channels(model, {"0": [1, 4, 5]}, example_inputs=torch.zeros(1, 3, 8, 8))
    >>> model[0], model[3].in_channels
    (Conv2d(3, 3, kernel_size=(3, 3), stride=(1, 1)), 3)
    """
    check_plain(model)
    inputs = as_tuple(example_inputs)
    layers = _named_in(keep, model, inputs)
    keep = {layer.name: _checked(keep[layer.name], layer) for layer in layers}
    plan = plan_removal(model, layers, keep)
    state = _cut_state(model, optimizer, plan.cuts) if optimizer else {}
    if difference(shaken(model), layers, keep, inputs) is not None:
        raise ValueError(_blame(shaken(model), layers, keep, inputs))
    cut_channels(model, plan)
    if optimizer:
        for parameter, entries in state:
            optimizer.state[parameter] = entries


def _named_in(keep: Keep, model: nn.Module, inputs: tuple[Any, ...]) -> list[Prunable]:
    """Return the layers that `keep` names, or refuse those that can't lose channels."""
    check_names("keep", keep, model)
    layers, reasons = candidates(model, inputs, list(keep))
    for name in keep.keys() - {layer.name for layer in layers}:
        owner = next((layer.name for layer in layers if name in layer.producers), None)
        reason = f"its channels are those of {owner}; name one of the two" if owner else reasons[name]
        raise ValueError(f"keep names {name!r}, whose channels can't be removed: {reason}.")
    return layers


def _checked(kept: Sequence[int], layer: Prunable) -> list[int]:
    """Return the channels to keep in order, or refuse what the layer doesn't have or can't do."""
    channels = sorted(int(channel) for channel in kept)
    where = f"keep[{layer.name!r}]"
    if not channels:
        raise ValueError(f"{where} is empty; a layer must keep at least one of its {layer.channels} channels.")
    if len(set(channels)) < len(channels) or channels[0] < 0 or channels[-1] >= layer.channels:
        raise ValueError(f"{where} must list different channels from 0 to {layer.channels - 1}; got {channels}.")
    size = layer.channels // layer.blocks
    counts = {sum(channel // size == block for channel in channels) for block in range(layer.blocks)}
    if len(counts) > 1:
        raise ValueError(
            f"{where} must keep equally many of each run of {size} channels, because a grouped convolution holds "
            f"them; got from {min(counts)} to {max(counts)}. Gates.keep sees to that."
        )
    return channels


def _cut_state(model: nn.Module, optimizer: Optimizer, cuts: dict[str, list[Cut]]) -> list[tuple[Tensor, dict]]:
    """Return what the optimizer will remember of each parameter that is cut."""
    mine = dict(model.named_parameters())
    optimized = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    if not optimized.intersection(mine.values()):
        raise ValueError("optimizer holds no parameter of this model; pass the optimizer that trains it.")
    return [
        (
            mine[name],
            {key: _cut_entry(value, mine[name], cuts[name], f"{key} of {name}") for key, value in entries.items()},
        )
        for name, entries in (
            (name, optimizer.state[mine[name]]) for name in cuts if name in mine and mine[name] in optimizer.state
        )
    ]


def _cut_entry(value: Any, parameter: Tensor, cuts: Iterable[Cut], what: str) -> Any:
    """Return an entry of an optimizer's state for the parameter after its cuts."""
    if value is None or isinstance(value, bool | int | float) or (isinstance(value, Tensor) and value.numel() == 1):
        return value
    if isinstance(value, Tensor) and value.shape == parameter.shape:
        return cut_tensor(value, cuts)
    shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
    raise ValueError(
        f"can't cut the optimizer's {what}: {shape}, where the parameter is {tuple(parameter.shape)}. "
        "Remove the channels first and build a new optimizer."
    )


def _blame(model: nn.Module, layers: list[Prunable], keep: Keep, inputs: tuple[Any, ...]) -> str:
    """Return which layers can't lose their channels, and why."""
    reasons = {layer.name: difference(model, [layer], keep, inputs) for layer in layers}
    reasons["all together"] = difference(model, layers, keep, inputs)
    listed = "".join(f"\n  {name}: {reason}" for name, reason in reasons.items() if reason)
    return f"nothing was removed from this {type(model).__name__}.{listed}"
