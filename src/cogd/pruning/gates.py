"""Gates: one learnable factor for every channel that can be removed.

A gate multiplies what the consuming layers read, after norm and activation (F_i m_i in Eq. problem_pruning), through
their weights; see `masking`. A channel whose gate is 0 can be removed without a change.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from cogd.coupling import Coupling, Quantile
from cogd.pruning.graph import TRANSPOSED, Prunable, side_size
from cogd.pruning.layers import survey
from cogd.pruning.masking import scale_inputs


class Gates:
    """Insert a gate for every prunable channel of a model.

    The gates are no parameters of the model; hand `parameters()` to the optimizer beside the model's own. They are in
    `values`, by the name of the layer that makes the channels, and move with the model from device to device;
    `skipped` says of every layer without gates why it has none.

    Args:
        model: the model to prune; it is changed in place until `remove` or `fold`.
        example_inputs: what its forward accepts, a tensor or a tuple.
        initial: "normal" draws each gate from N(0, 1), as Alg. alg_gal does; "ones" leaves the outputs as they are.
        ignore: modules whose channels get no gates.
        generator: decides the draw.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> gates = Gates(model, torch.zeros(1, 3, 8, 8), initial="ones")
    >>> [(name, len(value)) for name, value in gates.values.items()]
    [('0', 8)]
    """

    def __init__(
        self,
        model: nn.Module,
        example_inputs: Tensor | Sequence[Any],
        *,
        initial: Literal["normal", "ones"] = "normal",
        ignore: Iterable[str] = (),
        generator: torch.Generator | None = None,
    ):
        if initial not in ("normal", "ones"):
            raise ValueError(f'initial must be "normal" or "ones"; got {initial!r}.')
        self.layers, self.skipped = survey(model, example_inputs, ignore)
        self.model = model
        self.values = {layer.name: _gate(model, layer, initial, generator) for layer in self.layers}
        self._orders = {name: list(model.get_submodule(name)._parameters) for name in _readers(self.layers)}
        for name in self._orders:
            module = model.get_submodule(name)
            parametrize.register_parametrization(module, "weight", self._read_by(name, module))

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the gates, one parameter for every layer."""
        yield from self.values.values()

    def couplings(self, active: float) -> list[Coupling]:
        """Couple every gate with the filters that make its channel (Eq. bt_pruning); the gate is projected.

        Args:
            active: the share of filters that count as active; their norms' threshold is the (1 - active)-quantile.
        """
        if isinstance(active, bool) or not isinstance(active, int | float) or not 0 <= active <= 1:
            raise ValueError(f"active must be the share of channels that count as active, from 0 to 1; got {active!r}.")
        return [
            Coupling(
                self.values[layer.name],
                _weight(self.model, layer.name),
                partner_dim=int(isinstance(self.model.get_submodule(layer.name), TRANSPOSED)),
                sparse_threshold=0.5,
                partner_threshold=Quantile(1 - active),
                name=f"gate * {layer.name}",
            )
            for layer in self.layers
        ]

    def keep(self, threshold: float = 0.0, *, round_to: int = 1) -> dict[str, list[int]]:
        """Return which channels of every layer to keep: those whose gate's magnitude is above the threshold.

        No layer loses its last channel. With `round_to` every count is rounded up to a multiple of it where the layer
        has so many; the channels of the largest gates fill up.
        """
        return {
            layer.name: kept_channels(self.values[layer.name].detach(), threshold, layer.blocks, round_to)
            for layer in self.layers
        }

    def fold(self) -> None:
        """Multiply the gates into the weights that they scale and take them out."""
        self._take_out(leave_parametrized=True)

    def remove(self) -> None:
        """Take the gates out and leave the model as it would be without them."""
        self._take_out(leave_parametrized=False)

    def state_dict(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self.values.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        expected = {name: tuple(value.shape) for name, value in self.values.items()}
        got = {name: tuple(value.shape) for name, value in state.items()}
        if got != expected:
            differ = sorted(name for name in {*got, *expected} if got.get(name) != expected.get(name))
            raise ValueError(f"the state belongs to gates of other layers or sizes; they differ in {differ}.")
        for name, value in self.values.items():
            value.copy_(state[name])

    def _read_by(self, name: str, module: nn.Module) -> "_GatedRead":
        """Return what scales the weight of a module by the gates of all the channels it reads."""
        owners: list[tuple[str, int] | None] = [None] * side_size(module, "in")
        for layer in self.layers:
            for place in layer.readers:
                if place.module == name:
                    for at, channel in zip(place.positions, place.channels, strict=True):
                        owners[at] = (layer.name, channel)
        names = list(dict.fromkeys(owner[0] for owner in owners if owner))
        starts = dict(zip(names, _starts(len(self.values[name]) for name in names), strict=False))
        ungated = sum(len(self.values[name]) for name in names)
        index = [starts[owner[0]] + owner[1] if owner else ungated for owner in owners]
        return _GatedRead(module, [self.values[name] for name in names], index)

    def _take_out(self, leave_parametrized: bool) -> None:
        for name, order in self._orders.items():
            module = self.model.get_submodule(name)
            _leave_shared_class(module)
            parametrize.remove_parametrizations(module, "weight", leave_parametrized)
            for parameter in order:  # torch puts the weight last
                module._parameters[parameter] = module._parameters.pop(parameter)


class _GatedRead(nn.Module):
    """Scales a layer's weight by the gates of what it reads; `index` finds each input's gate, or the 1 after them."""

    is_gate = True
    index: Tensor

    def __init__(self, layer: nn.Module, gates: list[nn.Parameter], index: list[int]):
        super().__init__()
        self.groups, self.transposed = getattr(layer, "groups", 1), isinstance(layer, TRANSPOSED)
        self.gates = gates  # in a list: they are no parameters of the model
        self.is_direct = len(gates) == 1 and index == list(range(len(gates[0])))
        self.register_buffer("index", torch.tensor(index, device=gates[0].device), persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        return scale_inputs(weight, self.scale(), self.groups, self.transposed)

    def scale(self) -> Tensor:
        if self.is_direct:
            return self.gates[0]
        return torch.cat([*self.gates, self.gates[0].new_ones(1)])[self.index]

    def _apply(self, fn, recurse=True):
        """Let the gates move with the model."""
        for gate in self.gates:
            gate.data = fn(gate.data)
        return super()._apply(fn, recurse)


def kept_channels(values: Tensor, threshold: float = 0.0, blocks: int = 1, round_to: int = 1) -> list[int]:
    """Return the channels whose gate's magnitude is above the threshold, in order.

    Every block keeps as many as the one that keeps most, at least one; the total is rounded up to a multiple of
    `round_to`, or to all of them. The largest gates come first.

    >>> kept_channels(torch.tensor([0.0, 2.0, -1.0, 0.1]), threshold=0.5)
    [1, 2]
    >>> kept_channels(torch.tensor([0.0, 2.0, -1.0, 0.1]), threshold=0.5, round_to=3)
    [1, 2, 3]
    """
    magnitudes = values.abs().view(blocks, -1)
    size = magnitudes.shape[1]
    unit = round_to // math.gcd(round_to, blocks)
    count = max(1, int((magnitudes > threshold).sum(1).max()))
    count = min(size, math.ceil(count / unit) * unit)
    places = magnitudes.argsort(dim=1, descending=True, stable=True)[:, :count]
    starts = size * torch.arange(blocks, device=values.device).unsqueeze(1)
    return sorted((places + starts).flatten().tolist())


def _gate(model: nn.Module, layer: Prunable, initial: str, generator: torch.Generator | None) -> nn.Parameter:
    weight = _weight(model, layer.name)
    if initial == "ones":
        return nn.Parameter(weight.new_ones(layer.channels))
    return nn.Parameter(torch.randn(layer.channels, generator=generator).to(weight))


def _weight(model: nn.Module, name: str) -> nn.Parameter:
    """Return a layer's own weight, gated or not."""
    module: Any = model.get_submodule(name)
    return module.parametrizations.weight.original if parametrize.is_parametrized(module, "weight") else module.weight


def _leave_shared_class(module: nn.Module) -> None:
    """Give a parametrized module a class of its own: torch edits the class on removal, and deep copies share it."""
    shared = type(module)
    module.__class__ = type(shared.__name__, shared.__bases__, dict(vars(shared)))


def _readers(layers: Iterable[Prunable]) -> list[str]:
    return list(dict.fromkeys(place.module for layer in layers for place in layer.readers))


def _starts(lengths: Iterable[int]) -> Iterator[int]:
    start = 0
    for length in lengths:
        yield start
        start += length
