"""What the conformance tests train: two tiny models, seeded data, every base optimizer and every rule."""

import copy
import inspect
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cogd import CoGD, Coupling, Quantile, couple_conv_norm, couple_factors
from cogd.optimizer import Rule

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SIMPLE: dict[str, partial[Any]] = {
    "sgd": partial(torch.optim.SGD, lr=0.05),
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "nesterov": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "adam": partial(torch.optim.Adam, lr=0.02),
    "adamw": partial(torch.optim.AdamW, lr=0.02, amsgrad=True),
    "nadam": partial(torch.optim.NAdam, lr=0.02),
    "radam": partial(torch.optim.RAdam, lr=0.02),
    "adagrad": partial(torch.optim.Adagrad, lr=0.02),
    "adadelta": partial(torch.optim.Adadelta, lr=1.0),
    "adamax": partial(torch.optim.Adamax, lr=0.02),
    "adafactor": partial(torch.optim.Adafactor, lr=0.02),
    "asgd": partial(torch.optim.ASGD, lr=0.05),
    "rprop": partial(torch.optim.Rprop, lr=0.02),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.02, momentum=0.5, centered=True),
    "lbfgs": partial(torch.optim.LBFGS, lr=0.1, max_iter=3, history_size=3),
}
FLAGGED: dict[str, partial[Any]] = {
    f"{name}-{flag}": partial(make, **{flag: True})
    for name, make in SIMPLE.items()
    for flag in ("foreach", "fused", "capturable")
    if flag in inspect.signature(make.func).parameters
}
BASES = SIMPLE | FLAGGED
RULES: tuple[Rule, ...] = ("descent", "paper", "rollback", None)

CAPTURABLE = tuple(name for name in BASES if name.endswith("capturable"))


def bases_soon(*soon: str, without: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Run a test for every base, those not named `soon` among the slow tests."""
    marks = {
        name: ([] if name in soon else [pytest.mark.slow]) + ([needs_cuda] if name in CAPTURABLE else [])
        for name in BASES
        if name not in without
    }
    return pytest.mark.parametrize("base", [pytest.param(name, marks=marks[name]) for name in marks])


all_bases = bases_soon(*BASES)
all_rules = pytest.mark.parametrize("rule", RULES)
moving_rules = pytest.mark.parametrize("rule", RULES[:-1])


def factors() -> nn.Sequential:
    """Return two linear maps in a row: coupled with project="sparse"."""
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 8, bias=False), nn.Linear(8, 3))


def conv_norm() -> nn.Sequential:
    """Return a convolution and its norm, with scales that tell gates apart: coupled with project="partner"."""
    model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3))
    nn.init.uniform_(model.get_parameter("1.weight"), 0.2, 1.0)
    return model


def new_model(rule: Rule, base: str = "sgd") -> nn.Sequential:
    """Return the model that the rule coordinates, the same at every call."""
    torch.manual_seed(0)
    model = conv_norm() if rule in ("paper", "rollback") else factors()
    return model.cuda() if base.endswith("capturable") else model


def couple(model: nn.Sequential, **changes) -> list[Coupling]:
    """Return the couplings of either model, with thresholds that open some gate whatever the values."""
    found = couple_conv_norm(model) if isinstance(model[0], nn.Conv2d) else couple_factors(model)
    settings: dict[str, Any] = {"sparse_threshold": Quantile(0.75), "partner_threshold": Quantile(0.25), **changes}
    return [replace(coupling, **settings) for coupling in found]


def wrap(base: Optimizer, couplings: list[Coupling], rule: Rule, period: int = 3) -> CoGD:
    """Return the wrapper with a scale at which its corrections show."""
    if rule in ("descent", "paper"):
        return CoGD(base, couplings, rule=rule, scale=0.01, period=period)
    return CoGD(base, couplings, rule=rule, period=period)


def build(base: str, rule: Rule, period: int = 3, **changes) -> tuple[nn.Sequential, CoGD]:
    """Return a model and its wrapped optimizer, the same at every call; `changes` go to every coupling."""
    return around(new_model(rule, base), base, rule, period, **changes)


def around(model: nn.Sequential, base: str, rule: Rule, period: int = 3, **changes) -> tuple[nn.Sequential, CoGD]:
    """Return the model and a wrapped optimizer of its parameters."""
    return model, wrap(BASES[base](model.parameters()), couple(model, **changes), rule, period)


def build_bare(base: str, rule: Rule = None) -> tuple[nn.Sequential, Optimizer]:
    """Return the same model with the base optimizer alone."""
    model = new_model(rule, base)
    return model, BASES[base](model.parameters())


def batches(count: int, *, seed: int = 0, size: int = 8) -> list[tuple[Tensor, Tensor]]:
    """Return (inputs, targets) for either model."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 2, 4, 4, generator=generator), torch.randn(size, 3, generator=generator))
        for _ in range(count)
    ]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the model's loss on a batch, on the model's device and in its precision."""
    like = next(model.parameters())
    inputs, targets = (tensor.to(like) for tensor in batch)
    return nn.functional.mse_loss(model(inputs), targets)


def step_with_closure(model: nn.Module, optimizer: Optimizer, batch: tuple[Tensor, Tensor]) -> Any:
    """Take one step that computes its gradients in the closure."""

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        return loss

    return optimizer.step(closure)


def step_without_closure(model: nn.Module, optimizer: Optimizer, batch: tuple[Tensor, Tensor]) -> Any:
    """Take one step on gradients computed before."""
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    return optimizer.step()


def train(model: nn.Module, optimizer: Optimizer, data: Iterable[tuple[Tensor, Tensor]], scheduler=None) -> None:
    """Take one step, of the scheduler too, on every batch."""
    base = optimizer.base if isinstance(optimizer, CoGD) else optimizer
    step = step_with_closure if isinstance(base, torch.optim.LBFGS) else step_without_closure
    for batch in data:
        step(model, optimizer, batch)
        if scheduler is not None:
            scheduler.step()


def everything(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Return a copy of all that training may change."""
    return copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})


def identical(a: Any, b: Any) -> bool:
    """Whether two nested states agree in structure, types and every bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(identical(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(identical, a, b))
    return a == b
