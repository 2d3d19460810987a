"""Cutting channels out of a model: which tensor loses what, and how the modules' sizes follow."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cogd.pruning.graph import PER_CHANNEL, TRANSPOSED, Prunable, is_depthwise, side_size, size_names

Keep = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Cut:
    """Keep the positions `kept` of a tensor's dimension; where `groups` > 1, each run of rows keeps its own share."""

    dim: int
    kept: tuple[int, ...]
    groups: int = 1

    def of(self, tensor: Tensor) -> Tensor:
        """Return what remains of the tensor.

        >>> Cut(0, (0, 2)).of(torch.tensor([1, 2, 3]))
        tensor([1, 3])
        """
        kept = torch.tensor(self.kept, dtype=torch.long, device=tensor.device)
        if self.groups == 1:
            return tensor.index_select(self.dim, kept)
        rows = tensor.unflatten(0, (self.groups, -1))
        columns = kept.view(self.groups, 1, -1) % tensor.shape[1]
        index = columns[(...,) + (None,) * (tensor.ndim - 2)].expand(-1, rows.shape[1], -1, *tensor.shape[2:])
        return rows.gather(2, index).flatten(0, 1)


@dataclass(frozen=True)
class Plan:
    """What a removal does: the cuts of every tensor, by its name, and the new sizes of every module."""

    cuts: dict[str, list[Cut]]
    sizes: dict[str, dict[str, int]]


def plan_removal(model: nn.Module, layers: Iterable[Prunable], keep: Keep) -> Plan:
    """Return how the model loses every channel of the layers but those in `keep`; layers not in it stay whole."""
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    cuts: dict[str, list[Cut]] = defaultdict(list)
    sizes: dict[str, dict[str, int]] = defaultdict(dict)
    for (name, side, dim), gone in _gone(layers, keep).items():
        if name in parameters:
            cuts[name].append(Cut(dim, _rest(parameters[name].shape[dim], gone)))
            continue
        module = modules[name]
        kept = _rest(side_size(module, side), gone)
        if not kept:
            raise ValueError(f"{name} would lose everything on its {side} side")
        for tensor, cut in _cuts(module, side, kept):
            cuts[f"{name}.{tensor}" if name else tensor].append(cut)
        for attribute in size_names(module, side):
            sizes[name][attribute] = len(kept)
    return Plan(dict(cuts), dict(sizes))


def cut_channels(model: nn.Module, plan: Plan) -> None:
    """Carry out a plan in place. Every parameter and buffer stays the same object, so that whoever holds it follows."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, cuts in plan.cuts.items():
        tensor = tensors[name]
        gradient, tensor.grad = tensor.grad, None
        set_data(tensor, cut_tensor(tensor.data, cuts))
        if gradient is not None:
            tensor.grad = cut_tensor(gradient, cuts)
    for name, attributes in plan.sizes.items():
        for attribute, size in attributes.items():
            setattr(model.get_submodule(name), attribute, size)


def cut_tensor(tensor: Tensor, cuts: Iterable[Cut]) -> Tensor:
    for cut in cuts:
        tensor = cut.of(tensor)
    return tensor


def set_data(tensor: Tensor, data: Tensor) -> None:
    """Give a tensor other data of another shape.

    Autograd keeps the shape that gradients have for as long as an earlier loss is alive, and forgets it when the dtype
    changes: hence the detour.
    """
    other = torch.float64 if data.dtype == torch.float32 else torch.float32
    tensor.data = data.new_empty(0, dtype=other)
    tensor.data = data


def _cuts(module: nn.Module, side: str, kept: tuple[int, ...]) -> list[tuple[str, Cut]]:
    """Return the tensors of a module that a side cuts, and how."""
    if isinstance(module, PER_CHANNEL) or is_depthwise(module):
        names = [*module._parameters, *(name for name in module._buffers if name.startswith("running_"))]
        return [(name, Cut(0, kept)) for name in names if getattr(module, name) is not None]
    rows, columns = (1, 0) if isinstance(module, TRANSPOSED) else (0, 1)
    if side == "in":
        return [("weight", Cut(columns, kept, getattr(module, "groups", 1)))]
    bias = [("bias", Cut(0, kept))] if module.bias is not None else []
    return [("weight", Cut(rows, kept)), *bias]


def _gone(layers: Iterable[Prunable], keep: Keep) -> dict[tuple[str, str, int], set[int]]:
    """Return the positions that each side of each module loses."""
    gone: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for layer in layers:
        removed = set(range(layer.channels)).difference(keep.get(layer.name, range(layer.channels)))
        for place in layer.places if removed else ():
            positions = zip(place.positions, place.channels, strict=True)
            gone[place.module, place.side, place.dim].update(at for at, channel in positions if channel in removed)
    return gone


def _rest(size: int, gone: set[int]) -> tuple[int, ...]:
    return tuple(i for i in range(size) if i not in gone)
