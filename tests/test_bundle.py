"""Couplings computed side by side are the couplings computed one by one, in fewer device operations."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cogd import CoGD, Coupling, Quantile, bundle, couple_conv_norm
from cogd.bundle import bundled

LAYERS = 6


def network() -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [layer for _ in range(LAYERS) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))]
    return nn.Sequential(nn.Conv2d(3, 8, 3), *blocks).double()


def couplings(model: nn.Sequential, project: Any) -> list[Coupling]:
    thresholds: dict[str, Any] = {"sparse_threshold": Quantile(0.7), "partner_threshold": "mean"}
    return [Coupling(c.sparse, c.partner, project=project, **thresholds) for c in couple_conv_norm(model)]


def trained(rule: Any, project: Any, frozen: tuple[int, ...] = ()) -> tuple[dict[str, Any], list[Any]]:
    model = network()
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    strength: dict[str, Any] = {} if rule == "rollback" else {"scale": 0.5}
    optimizer = CoGD(base, couplings(model, project), rule=rule, period=2, **strength)
    for layer in frozen:
        model[layer].weight.requires_grad_(False)
    for _ in range(6):
        optimizer.zero_grad()
        (model(torch.randn(2, 3, 7, 7).double()) - 1).square().sum().backward()
        optimizer.step()
    return model.state_dict(), optimizer.last_stats


@pytest.mark.parametrize(
    ("rule", "project"),
    [("descent", "sparse"), ("paper", "sparse"), ("paper", "partner"), ("rollback", "partner")],
)
@pytest.mark.parametrize("frozen", [(), (5,)])
def test_side_by_side_equals_one_by_one(rule, project, frozen, monkeypatch):
    torch.manual_seed(1)
    together, stats = trained(rule, project, frozen)
    assert sum(stat.opened for stat in stats) > 0
    assert len(stats) == LAYERS - len(frozen)
    monkeypatch.setattr(bundle, "LARGEST", 0)
    torch.manual_seed(1)
    apart, stats_apart = trained(rule, project, frozen)
    torch.testing.assert_close(together, apart, rtol=1e-12, atol=1e-12)
    assert [(s.name, s.opened) for s in stats] == [(s.name, s.opened) for s in stats_apart]
    assert [s.correction for s in stats] == pytest.approx([s.correction for s in stats_apart], rel=1e-12)


def test_a_bundle_is_of_one_kind_and_bounded(monkeypatch):
    model = network()
    found = couple_conv_norm(model)
    groups: list[dict[str, Any]] = [{"params": list(model.parameters())}]
    assert [len(each.couplings) for each in bundled(found, groups)] == [LAYERS]
    other = Coupling(found[0].sparse, found[0].partner, sparse_threshold=Quantile(0.5), project="partner")
    assert [len(each.couplings) for each in bundled([other, *found[1:]], groups)] == [1, LAYERS - 1]
    head = {id(p) for p in model[3].parameters()}
    split = [
        {"params": [p for p in model.parameters() if (id(p) in head) == first], "lr": 0.1} for first in (True, False)
    ]
    assert sorted(len(each.couplings) for each in bundled(found, split)) == [1, LAYERS - 1]
    numbers = found[0].partner.numel()
    monkeypatch.setattr(bundle, "LARGEST", 4 * numbers)
    assert [len(each.couplings) for each in bundled(found, groups)] == [4, 2]
    monkeypatch.setattr(bundle, "LARGEST", numbers - 1)
    assert [len(each.couplings) for each in bundled(found, groups)] == [1] * LAYERS


class Counted(TorchDispatchMode):
    """Counts what would be kernels of a device: operations that return new numbers."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.count += not function.is_view
        return result


@pytest.mark.parametrize("rule", ["paper", "rollback"])
def test_another_coupling_of_a_kind_costs_few_operations(rule):
    def operations(count: int) -> int:
        model = network()
        optimizer = CoGD(torch.optim.SGD(model.parameters(), lr=0.0), couple_conv_norm(model)[:count], rule=rule)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.project()
        with Counted() as counted:
            optimizer.project()
        return counted.count

    assert operations(LAYERS) - operations(LAYERS - 1) <= 8  # to hold both tensors and write one
    assert operations(LAYERS) <= operations(1) + 8 * LAYERS


class Live(TorchDispatchMode):
    """Follows how many bytes live at most of what was made since."""

    def __init__(self):
        super().__init__()
        self.bytes: dict[StorageWeakRef, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        given = {StorageWeakRef(tensor.untyped_storage()) for tensor in tensors_in((args, kwargs))}
        made = {StorageWeakRef(tensor.untyped_storage()): tensor for tensor in tensors_in(result)}
        self.bytes |= {of: tensor.untyped_storage().nbytes() for of, tensor in made.items() if of not in given}
        self.bytes = {of: count for of, count in self.bytes.items() if not of.expired()}
        self.peak = max(self.peak, sum(self.bytes.values()))
        return result


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("rule", "project", "shapes", "partner_dim"),
    [
        ("paper", "partner", [((64,), (64, 64, 3, 3))] * 6, 0),
        ("paper", "partner", [((512,), (512, 400))], 0),  # a kernel of one number: beta is as large as the partner
        ("paper", "partner", [((512,), (400, 512))], 1),
        ("rollback", "partner", [((64,), (64, 3000))], 0),
        ("descent", "sparse", [((64, 3000), (2, 64))], 1),
        ("descent", "sparse", [((64, 1500), (20, 64, 75))], 1),
        ("rollback", "sparse", [((30, 6400), (30,))], 0),
    ],
)
@pytest.mark.parametrize("order", [1, 2])
def test_a_step_takes_two_copies_of_what_is_coupled(rule, project, shapes, partner_dim, order, dtype, monkeypatch):
    monkeypatch.setattr(bundle, "LARGEST", 2**12)
    pairs = [[nn.Parameter(torch.randn(shape).to(dtype)) for shape in sides] for sides in shapes]
    found = [Coupling(x, A, partner_dim=partner_dim, project=project) for x, A in pairs]
    strength: dict[str, Any] = {} if rule == "rollback" else {"order": order}
    sides = [side for pair in pairs for side in pair]
    optimizer = CoGD(torch.optim.SGD(sides, lr=0.1, foreach=False), found, rule=rule, **strength)
    for side in sides:
        side.grad = torch.randn_like(side)
    with Live() as live:
        for _ in range(3):
            optimizer.step()
    assert sum(stat.opened for stat in optimizer.last_stats) > 0
    at_a_time = 4 * max(2**12, *(x.numel() // len(x) for x, _ in pairs))
    assert live.peak <= 2 * sum(side.nbytes for side in sides) + 7 * at_a_time
