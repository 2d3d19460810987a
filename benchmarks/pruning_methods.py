"""The pruning benchmark's methods, our masks and Torch-Pruning's pruners: from a base network to a small one."""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch_pruning as tp
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch_pruning.pruner import function

from cogd.models import build, count_macs
from cogd.pruning import prune
from cogd.training import Recipe, Result, fit, read_recipe
from cogd.training.batches import load_batches
from cogd.training.data import load_data
from cogd.training.data.memory import Images, MemoryData
from cogd.training.loop import measure
from cogd.training.metrics import classification_metrics
from cogd.training.placement import choose_placement

TP_STRENGTH, TP_RANGE = 5e-4, 2**4  # Torch-Pruning's --reg and regularize's alpha
REMOVALS = 100  # steps from the whole network to none of it, of which as many are taken as the MACs ask for
REFERENCE = "masks, CoGD"
NETWORKS = {"digits": ("digits", "digits"), "cifar10": ("resnet56", "cifar10")}  # of each data: model, recipe
Metrics = dict[str, float]
Made = tuple[nn.Module, dict[str, Metrics]]


@dataclass(frozen=True)
class Setting:
    """What all methods share."""

    data: str
    images: int | None
    target_macs: float
    base_epochs: int
    epochs: int
    finetune_epochs: int
    batch_size: int | None
    compile: str
    device: str

    def load(self) -> MemoryData:
        return some_images(self.data, self.images)

    def build(self) -> nn.Module:
        return build(NETWORKS[self.data.partition(":")[0]][0], 10)

    @property
    def base_name(self) -> str:
        """What a base network is made of, so that none is taken for another."""
        network = NETWORKS[self.data.partition(":")[0]][0]
        return f"{network}-{self.images or 'all'}images-{self.base_epochs}epochs-batch{self.batch_size or 'usual'}"

    def recipe(self, phase: str, epochs: int, **fields: Any) -> Recipe:
        """Return the data's shipped recipe of a phase, its steps shortened with its epochs."""
        shipped = read_recipe(phase + NETWORKS[self.data.partition(":")[0]][1])
        fields |= {"step_epochs": max(1, round(shipped.step_epochs * epochs / shipped.epochs))}
        if self.batch_size is not None:
            fields["batch_size"] = self.batch_size
        return read_recipe(shipped, epochs=epochs, compile=self.compile, **fields)

    @property
    def learning(self) -> Recipe:
        return self.recipe("prune_", self.epochs)

    @property
    def finetuning(self) -> Recipe:
        return self.recipe("finetune_", self.finetune_epochs)

    def fit(self, model: nn.Module, recipe: Recipe, seed: int, **options: Any) -> Result:
        return fit(model, self.load(), recipe, seed=seed, device=self.device, progress=False, **options)

    def measure(self, model: nn.Module) -> Metrics:
        placement = choose_placement(self.device, self.finetuning)
        test = load_batches(self.load(), self.finetuning, placement).test
        return measure(placement.place(model), test, classification_metrics, placement)


@functools.cache
def some_images(source: str, count: int | None) -> MemoryData:
    """Return the data, of which so many images for a quick try."""
    whole: MemoryData = load_data(source)  # type: ignore[assignment]
    train, test = (Images(part.pixels[:count], part.labels[:count]) for part in (whole.train, whole.test))
    return replace(whole, train=train, test=test)


@dataclass(frozen=True)
class Pruner:
    """One of Torch-Pruning's: how it ranks channels, and what it adds to the gradients before that, if anything."""

    kind: type[tp.pruner.BasePruner]
    importance: tp.importance.Importance
    penalty: Callable[[Any, nn.Module], Callable[[], None]] | None = None


class ScalePenalty:
    """Torch-Pruning's l1 penalty on the norms' scales, but only on those of channels that can be removed.

    `BNScalePruner.regularize` also pulls at the norms of channels that stay whatever happens, which would only harm it.
    """

    def __init__(self, pruner: tp.pruner.BNScalePruner, _: nn.Module):
        layers = [dependency.layer for group in pruner._groups for dependency in _layers(group)]
        self.scales = [layer.weight for layer in dict.fromkeys(layers) if isinstance(layer, nn.BatchNorm2d)]

    @torch.no_grad()
    def __call__(self) -> None:
        for scale in self.scales:
            assert scale.grad is not None
            scale.grad.add_(scale.sign(), alpha=TP_STRENGTH)


class GroupPenalty:
    """What `GroupNormPruner.regularize` adds to the gradients, in few operations that don't wait for the device.

    `tests/test_pruning_benchmark.py` compares the two.
    """

    def __init__(self, pruner: tp.pruner.GroupNormPruner, _: nn.Module):
        self.groups = [list(map(_scaled, _layers(group))) for group in pruner._groups]

    @torch.no_grad()
    def __call__(self) -> None:
        for group in self.groups:
            squares = torch.stack([_along(weight.square(), dim).sum(1) for weight, dim in group]).sum(0)
            norms = (squares / squares.max()).sqrt()
            least, largest = norms.aminmax()
            factors = TP_STRENGTH * TP_RANGE ** ((largest - norms) / (largest - least))
            for weight, dim in group:
                assert weight.grad is not None
                shape = [-1 if i == dim else 1 for i in range(weight.ndim)]
                weight.grad.addcmul_(weight, factors.view(shape))


def _layers(group: Any) -> list[Any]:
    return [dependency for dependency, _ in group if hasattr(dependency.layer, "weight")]


def _scaled(dependency: Any) -> tuple[nn.Parameter, int]:
    """Return a weight and the dimension of it that counts the group's channels."""
    return dependency.layer.weight, int(dependency.handler == function.prune_conv_in_channels)


def _along(tensor: Tensor, dim: int) -> Tensor:
    return tensor.movedim(dim, 0).flatten(1) if tensor.ndim > 1 else tensor[:, None]


def ours(setting: Setting, base: nn.Module, seed: int, **options: Any) -> Made:
    result = prune(
        base,
        setting.load(),
        target_macs=setting.target_macs,
        recipe=setting.learning,
        finetune_recipe=setting.finetuning,
        seed=seed,
        device=setting.device,
        progress=False,
        **options,
    )
    return result.model, {"after": result.metrics["after"], "fine_tuned": result.metrics["fine_tuned"]}


def peer(setting: Setting, base: nn.Module, seed: int, peer: Pruner) -> Made:
    model, shape = copy.deepcopy(base), setting.load().train.pixels.shape[1:]
    inputs = torch.zeros(1, *shape)
    kept_whole = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear) and name not in base.gated_layers  # type: ignore[operator]
    ]
    shared: dict[str, Any] = {"pruning_ratio": 1.0, "iterative_steps": REMOVALS, "global_pruning": True}
    strength = {} if peer.penalty is None else {"reg": TP_STRENGTH}
    pruner = peer.kind(
        model, inputs, importance=copy.deepcopy(peer.importance), ignored_layers=kept_whole, **shared, **strength
    )
    if peer.penalty is None:
        model = remove(pruner, model, inputs, setting.target_macs)
        after = setting.measure(model)
        setting.fit(model, setting.learning, seed)
    else:
        recipe = read_recipe(setting.learning, weight_decay=0.0)
        optimizer = partial(penalized_sgd, recipe, peer.penalty(pruner, model))
        setting.fit(model, recipe, seed, optimizer=optimizer, recordable=True)
        model = remove(pruner, model, inputs, setting.target_macs)
        after = setting.measure(model)
    return model, {"after": after, "fine_tuned": setting.fit(model, setting.finetuning, seed).metrics}


def penalized_sgd(recipe: Recipe, penalty: Callable[[], None], model: nn.Module) -> Optimizer:
    """Return the recipe's SGD, which adds the penalty's gradient before each step."""
    parameters = list(model.parameters())
    optimizer = SGD(parameters, recipe.lr, recipe.momentum, fused=parameters[0].is_cuda)
    optimizer.register_step_pre_hook(lambda *_: penalty())
    return optimizer


def remove(pruner: tp.pruner.BasePruner, model: nn.Module, inputs: Tensor, share: float) -> nn.Module:
    """Return the model without its least important channels, some at a time: as near to a share of the MACs as ours."""
    larger = model.cpu().eval()
    wanted = share * count_macs(model, inputs)
    while count_macs(model, inputs) > wanted:
        larger = copy.deepcopy(model)
        pruner.step()
    nearest = min((larger, model), key=lambda side: abs(count_macs(side, inputs) - wanted))
    nearest.zero_grad()
    return nearest


GROUP_NORM = tp.importance.GroupMagnitudeImportance(p=2, normalizer="max")
METHODS: dict[str, Callable[[Setting, nn.Module, int], Made]] = {
    REFERENCE: partial(ours, rule="paper"),
    "masks, GAL alone": partial(ours, rule=None),
    "Torch-Pruning, group norm sparse": partial(peer, peer=Pruner(tp.pruner.GroupNormPruner, GROUP_NORM, GroupPenalty)),
    "Torch-Pruning, BN scale": partial(
        peer, peer=Pruner(tp.pruner.BNScalePruner, tp.importance.BNScaleImportance(), ScalePenalty)
    ),
    "Torch-Pruning, group magnitude": partial(
        peer, peer=Pruner(tp.pruner.MagnitudePruner, tp.importance.GroupMagnitudeImportance(p=2))
    ),
    "masks, CoGD, labels": partial(ours, rule="paper", distill="none"),
}
