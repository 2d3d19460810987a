"""Which channels of a model hang together, and where each of them lies.

What hangs together is Torch-Pruning's to find; this module turns its groups into plain names and positions.
"""

import copy
import difflib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch_pruning
from torch import Tensor, nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
READERS = (*CONVOLUTIONS, *TRANSPOSED, nn.Linear)
PER_CHANNEL = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm, nn.PReLU)
FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class Place:
    """Where channels lie: position `positions[i]` of one side of a module holds channel `channels[i]`.

    The sides of convolutions and linear layers are "in" and "out"; norms, depthwise convolutions and parameters that
    belong to no layer, which have one, count as "out".
    """

    module: str
    side: Literal["in", "out"]
    positions: tuple[int, ...]
    channels: tuple[int, ...]
    dim: int = 0


@dataclass(frozen=True)
class Prunable:
    """The channels that one layer makes, and every place that must lose a channel together with it.

    Args:
        name: the convolution or linear layer that makes them; where a sum joins several, the first.
        channels: how many there are.
        blocks: each of these many equal runs of channels must keep equally many, for the sake of grouped convolutions.
        producers: every layer that makes these channels or a part of them.
        places: everything that holds a channel: producers, norms, depthwise convolutions, readers.

    >>> from cogd.pruning.layers import prunable_layers
    >>> (layer,) = prunable_layers(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1)), torch.zeros(1, 2))
    >>> layer.name, layer.channels, [place.module for place in layer.readers]
    ('0', 4, ['1'])
    """

    name: str
    channels: int
    blocks: int
    producers: tuple[str, ...]
    places: tuple[Place, ...]

    @property
    def readers(self) -> tuple[Place, ...]:
        """The inputs of convolutions and linear layers that read these channels: where a gate acts."""
        return tuple(place for place in self.places if place.side == "in")


def as_tuple(example_inputs: Tensor | Sequence[Any]) -> tuple[Any, ...]:
    return (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)


def is_depthwise(module: nn.Module) -> bool:
    """Whether each channel of a convolution comes from the one channel of the same number."""
    return isinstance(module, READERS[:-1]) and 1 < module.groups == module.in_channels == module.out_channels


def considered_layers(model: nn.Module, ignore: Iterable[str]) -> list[str]:
    modules = dict(model.named_modules())
    ignore = (ignore,) if isinstance(ignore, str) else tuple(ignore)
    check_names("ignore", ignore, model)
    names = getattr(model, "gated_layers", None) or [
        name for name, module in modules.items() if isinstance(module, READERS) and not is_depthwise(module)
    ]
    return [name for name in names if not any(name == at or name.startswith(f"{at}.") for at in ignore)]


def check_names(argument: str, names: Iterable[str], model: nn.Module) -> None:
    """Refuse names that are no module's."""
    modules = [name for name, _ in model.named_modules() if name]
    for name in names:
        if name not in modules:
            near = difflib.get_close_matches(name, modules) or modules[:5]
            raise ValueError(
                f"{argument} names {name!r}, not a module of this {type(model).__name__}; near it: {near}."
            )


def candidates(model: nn.Module, inputs: tuple[Any, ...], names: list[str]) -> tuple[list[Prunable], dict[str, str]]:
    """Return what the graph offers for the layers of these names, and the reasons against the rest."""
    found: list[Prunable] = []
    reasons: dict[str, str] = {}
    graph = _dependency_graph(copy.deepcopy(model), inputs)
    for name in names:
        if any(name in layer.producers for layer in found):
            continue  # a sum joins it with a layer before
        try:
            found.append(_prunable(graph, name))
        except _UnprunableError as reason:
            reasons[name] = str(reason)
    return found, reasons


class _UnprunableError(Exception):
    """The reason why a layer's channels must stay."""


def _dependency_graph(model: nn.Module, inputs: tuple[Any, ...]) -> torch_pruning.DependencyGraph:
    graph = torch_pruning.DependencyGraph()
    for parameter in model.parameters():
        parameter.requires_grad_(True)  # it follows gradients
    try:
        with torch.enable_grad(), warnings.catch_warnings(action="ignore"):
            return graph.build_dependency(model, inputs, verbose=False)
    except FAILURES as error:
        raise ValueError(
            f"Torch-Pruning can't follow this {type(model).__name__} on the example inputs "
            f"({type(error).__name__}: {error}). Check that model(*example_inputs) runs and returns tensors."
        ) from error


def _prunable(graph: torch_pruning.DependencyGraph, name: str) -> Prunable:
    module = graph.model.get_submodule(name)
    if not isinstance(module, READERS) or is_depthwise(module):
        raise _UnprunableError(f"a {type(module).__name__} makes none of its own")
    if module not in graph.module2node:
        raise _UnprunableError("the example inputs don't reach it")
    pruner = graph.get_pruner_of_module(module)
    channels = pruner.get_out_channels(module)
    if channels == 1:
        raise _UnprunableError("it has one channel")
    try:
        group = graph.get_pruning_group(module, pruner.prune_out_channels, list(range(channels)))
    except FAILURES as error:
        raise _UnprunableError(f"Torch-Pruning fails on it ({type(error).__name__}: {error})") from error
    places = tuple(_places(graph, group))
    _check_places(graph.model, places)
    producers = tuple(
        place.module for place in places if place.side == "out" and _is_producer(graph.model, place.module)
    )
    layer = Prunable(name, channels, _blocks(graph.model, channels, places), producers, places)
    if not layer.readers:
        raise _UnprunableError("no convolution or linear layer reads its channels")
    return layer


def _places(graph: torch_pruning.DependencyGraph, group: Any) -> Iterator[Place]:
    """Yield what a group of the graph holds, one place per module and side."""
    for item in group:
        node, module = item.dep.target, item.dep.target.module
        if isinstance(module, torch_pruning.ops._OutputOp):
            raise _UnprunableError("its channels are outputs of the model")
        if isinstance(module, nn.Parameter):
            yield Place(graph._param_to_name[module], "out", tuple(item.idxs), tuple(item.root_idxs), node.pruning_dim)
        elif node.type not in PASSING:
            yield Place(_name(graph, module), _side(graph, item.dep, module), tuple(item.idxs), tuple(item.root_idxs))


PASSING = {
    getattr(torch_pruning.ops.OPTYPE, kind)
    for kind in ("CONCAT", "SPLIT", "ELEMENTWISE", "RESHAPE", "UNBIND", "EXPAND", "SLICE")
}


def _name(graph: torch_pruning.DependencyGraph, module: nn.Module) -> str:
    return graph._module2name[module]


def _side(graph: torch_pruning.DependencyGraph, dependency: Any, module: nn.Module) -> Literal["in", "out"]:
    """Return the side of the module that a dependency cuts."""
    if isinstance(module, PER_CHANNEL) or is_depthwise(module):
        return "out"
    if not isinstance(module, READERS):
        raise _UnprunableError(f"{_name(graph, module)}, a {type(module).__name__}, mixes its channels")
    if isinstance(module, TRANSPOSED) and module.groups > 1:
        raise _UnprunableError(f"{_name(graph, module)} is a grouped transposed convolution")
    return "in" if graph.is_in_channel_pruning_fn(dependency.handler) else "out"


def _check_places(model: nn.Module, places: Iterable[Place]) -> None:
    """Refuse positions beyond a module's channels: Torch-Pruning misread an operation on the way there."""
    modules = dict(model.named_modules())
    misread = {
        place.module
        for place in places
        if place.module in modules and max(place.positions) >= side_size(modules[place.module], place.side)
    }
    if misread:  # Torch-Pruning's order of them changes from run to run
        first = next(name for name in modules if name in misread)
        raise _UnprunableError(f"the way of its channels to {first} can't be followed")


def _is_producer(model: nn.Module, name: str) -> bool:
    modules = dict(model.named_modules())
    return name in modules and isinstance(modules[name], READERS) and not is_depthwise(modules[name])


def _blocks(model: nn.Module, channels: int, places: Iterable[Place]) -> int:
    """Return into how many equal runs the grouped convolutions that hold the channels divide them."""
    modules = dict(model.named_modules())
    blocks = 1
    for place in places:
        module = modules.get(place.module)
        if not isinstance(module, CONVOLUTIONS) or module.groups == 1 or is_depthwise(module):
            continue
        size = module.in_channels if place.side == "in" else module.out_channels
        if size != channels or place.positions != place.channels:
            raise _UnprunableError(f"the grouped convolution {place.module} holds them together with other channels")
        if max(blocks, module.groups) % min(blocks, module.groups):
            raise _UnprunableError(f"the groups of {place.module} don't divide those of another convolution")
        blocks = max(blocks, module.groups)
    if blocks == channels:
        raise _UnprunableError("a grouped convolution holds one channel in each group")
    return blocks


def side_size(module: nn.Module, side: str) -> int:
    """Return how many channels a side of a module has."""
    return getattr(module, size_names(module, side)[0])


def size_names(module: nn.Module, side: str) -> tuple[str, ...]:
    """Return the attributes that hold the size of a module's side."""
    if isinstance(module, nn.PReLU):
        return ("num_parameters",)
    if isinstance(module, PER_CHANNEL):
        return ("num_features",)
    if is_depthwise(module):
        return ("out_channels", "in_channels", "groups")
    unit = "features" if isinstance(module, nn.Linear) else "channels"
    return (f"{side}_{unit}",)
