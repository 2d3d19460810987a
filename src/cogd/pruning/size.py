"""What a model costs after a removal, counted without carrying it out."""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from torch import Tensor, nn

from cogd.models.macs import macs_by_layer
from cogd.pruning.cutting import Keep, Plan, plan_removal
from cogd.pruning.graph import Prunable, as_tuple


class Size:
    """A model's MACs and parameters as functions of the channels that are kept; gates count nothing.

    >>> import torch
    >>> from cogd.pruning import prunable_layers
    >>> model, x = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)), torch.zeros(1, 3, 1, 1)
    >>> size = Size(model, prunable_layers(model, x), x)
    >>> size.macs({}), size.macs({"0": [1, 5]}), size.parameters({"0": [1, 5]})
    (56, 14, 20)
    """

    def __init__(self, model: nn.Module, layers: Iterable[Prunable], example_inputs: Tensor | Sequence[Any]):
        self._model, self._layers = model, list(layers)
        inputs = as_tuple(example_inputs)
        names = {module: name for name, module in model.named_modules()}
        self._examples = len(inputs[0])
        self._macs = {names[module]: count for module, count in macs_by_layer(model, *inputs).items()}
        self._shapes = {
            name.replace("parametrizations.weight.original", "weight"): parameter.shape
            for name, parameter in model.named_parameters()
        }

    def macs(self, keep: Keep) -> int:
        """Return what `count_macs` would say of the model with only the channels in `keep`."""
        plan = plan_removal(self._model, self._layers, keep)
        return sum(self._layer_macs(name, plan) for name in self._macs) // self._examples

    def parameters(self, keep: Keep) -> int:
        """Return how many numbers the parameters of the model would hold."""
        cuts = plan_removal(self._model, self._layers, keep).cuts
        shapes = {name: list(shape) for name, shape in self._shapes.items()}
        for name in cuts.keys() & shapes.keys():
            for cut in cuts[name]:
                shapes[name][cut.dim] = len(cut.kept) // cut.groups
        return sum(prod(shape) for shape in shapes.values())

    def _layer_macs(self, name: str, plan: Plan) -> int:
        module: Any = self._model.get_submodule(name)
        macs, sizes = self._macs[name], plan.sizes.get(name, {})
        if "groups" in sizes:
            return macs * sizes["groups"] // module.groups
        for attribute, size in sizes.items():
            macs = macs * size // getattr(module, attribute)
        return macs
