"""Targets are met, and what is missed is said; every kind of network, answer and teacher that can be pruned is."""

import copy
from typing import Any

import pytest
import torch
from pruning import networks
from pruning.short_runs import SHORT, equal, frozen_recipe, network
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from cogd.pruning import budget
from cogd.pruning.budget import BudgetWarning
from cogd.pruning.latency import Spread
from cogd.pruning.prune import prune


@pytest.mark.parametrize("target", [{"active": 0.5}, {"target_params": 0.5}, {"target_macs": 0.5, "round_to": 4}])
def test_other_targets(target):
    settings = {**SHORT, "epochs": 1, "finetune_epochs": 1, "target_macs": None, **target}
    result = prune(network(), **settings)
    counts = {name: len(kept) for name, kept in result.keep.items()}
    if "active" in target:
        assert counts == {"layer1.conv1": 8, "layer2.conv1": 16}
    elif "round_to" in target:
        assert all(count % 4 == 0 for count in counts.values())
    else:
        sizes = [sum(p.numel() for p in model.parameters()) for model in (result.model, network())]
        assert sizes[0] / sizes[1] == pytest.approx(0.5, abs=0.02)


def test_a_target_of_latency_is_bisected_at_the_final_choice_and_measured_again_at_the_end(tmp_path, monkeypatch):
    """With a clock that knows what a channel takes."""
    asked = []

    def clock(model, layers, inputs, keep, **conditions):
        asked.append(keep)
        share = 0.3 + 0.7 * sum(map(len, keep.values())) / sum(layer.channels for layer in layers)
        return Spread(share - 0.01, share, share + 0.01)

    monkeypatch.setattr(budget, "latency_share", clock)
    settings = {**SHORT, "target_macs": None, "target_latency": 0.6}
    result = prune(network(), folder=tmp_path / "run", **settings)
    report = result.report()
    assert report["target"] == {"target_latency": 0.6}
    assert report["reached"]["median"] == pytest.approx(0.6, abs=0.02)
    assert report["reached"]["high"] - report["reached"]["low"] == pytest.approx(0.02)
    assert report["notes"] == []
    tried = len(asked)
    assert tried <= 1 + 6 + 2 + 1  # the least, the bisection of 48 channels with its ends, the result
    again = prune(network(), folder=tmp_path / "run", **settings)
    assert len(asked) == tried + 1  # the choice is kept, and only what it comes to measured again
    assert again.keep == result.keep
    with pytest.raises(ValueError, match=r"target_latency=0.2 is out of reach: .* keeps 0.3\d+.* A larger batch in"):
        prune(network(), **{**settings, "target_latency": 0.2})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::cogd.pruning.budget.BudgetWarning")
def test_a_target_of_latency_is_measured():
    """On a network whose time is in its work; the report says where this machine is too busy to tell."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )
    images = torch.randn(16, 3, 24, 24)
    batches = [(images, torch.arange(16) % 10)]
    short: dict[str, Any] = {"epochs": 2, "finetune_epochs": 1, "progress": False, "device": "cpu"}
    report = prune(model, (batches, batches), target_latency=0.6, example_inputs=images, **short).report()
    assert report["macs"]["share"] < 0.9
    assert report["reached"]["median"] == pytest.approx(0.6, abs=0.2)
    assert bool(report["notes"]) == (abs(report["reached"]["median"] - 0.6) > 0.02)


def test_a_target_that_is_missed_is_warned_of_and_in_the_report():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 10))
    with pytest.warns(BudgetWarning, match=r"target_macs=0.7 was asked for and 0.\d+ reached, as near as whole"):
        result = prune(model, ignore=["2"], **{**SHORT, "target_macs": 0.7, "epochs": 1, "finetune_epochs": 1})
    assert len(result.report()["notes"]) == 1
    rounded = {**SHORT, "epochs": 1, "finetune_epochs": 1, "target_macs": 0.5, "round_to": 16}
    (note,) = prune(network(), **rounded).report()["notes"]  # as near as it allows, which is no reason to warn
    assert note.endswith("as near as whole channels in multiples of 16 come")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::cogd.pruning.budget.BudgetWarning")
@pytest.mark.parametrize("distill", ["gal", "none"])
@pytest.mark.parametrize("name", networks.NETWORKS)
def test_every_network_is_pruned_from_end_to_end(name, distill):
    """Some answer with maps, so loss and evaluation are one's own."""
    model, images = networks.build(name)
    batches = [(images, model(images).detach()), (-images, model(-images).detach())]

    def error(network, batches):
        return {"error": sum(mse_loss(network(x), y).item() for x, y in batches)}

    short: dict[str, Any] = {"epochs": 2, "finetune_epochs": 1, "progress": False, "device": "cpu"}
    result = prune(model, (batches, batches), target_macs=0.7, distill=distill, loss=mse_loss, evaluate=error, **short)
    report = result.report()
    assert report["macs"]["share"] == pytest.approx(0.7, abs=0.1)
    assert bool(report["notes"]) == (abs(report["macs"]["share"] - 0.7) > 0.02)
    assert report["metrics"]["before"]["error"] == pytest.approx(0, abs=1e-20)
    assert set(report["metrics"]["fine_tuned"]) == {"error"}
    assert result.model(images).shape == model(images).shape
    assert any(kept < of for kept, of in report["channels"].values())


def test_a_users_own_network_loss_and_evaluation():
    """Answers that are images: no classes to be accurate about, and iterables for data."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        nn.Conv2d(8, 2, 3, padding=1),
    )
    batches = [(x, torch.cat([x, -x], 1)) for x in torch.randn(3, 4, 1, 6, 6)]

    def error(model, batches):
        return {"mse": sum(mse_loss(model(x), y).item() for x, y in batches)}

    before = copy.deepcopy(model)
    result = prune(
        model,
        (batches, batches),
        target_macs=0.55,
        loss=mse_loss,
        evaluate=error,
        epochs=2,
        finetune_epochs=1,
        progress=False,
    )
    assert set(result.metrics["after"]) == {"mse"}
    assert equal(model, before)
    assert result.model(torch.zeros(1, 1, 6, 6)).shape == (1, 2, 6, 6)


def test_a_teacher_of_another_architecture_may_answer_alike():
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    settings = {**SHORT, "epochs": 2, "finetune_epochs": 1, "finetune_recipe": frozen_recipe()}
    taught, alone = (prune(network(), teacher=chosen, **settings) for chosen in (teacher, None))
    assert taught.metrics["before"] == alone.metrics["before"]
    assert not equal(taught.model, alone.model)


def test_norms_are_not_needed():
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(64, 10),
    )
    result = prune(model, **{**SHORT, "epochs": 2, "finetune_epochs": 1, "target_macs": 0.6})
    assert result.report()["macs"]["share"] == pytest.approx(0.6, abs=0.02)


class Named(nn.Module):
    """Answers with a dictionary."""

    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return {"logits": self.head(self.network(x))}


class OneNumber(Named):
    """Answers with a number for each example."""

    def forward(self, x):
        return super().forward(x)["logits"].sum(1)


ANSWERS: list[Any] = [
    (Named, "a dict", lambda made, labels: cross_entropy(made["logits"], labels)),
    (OneNumber, r"shape \(2,\)", lambda made, labels: mse_loss(made, labels.float())),
]


@pytest.mark.parametrize(("model", "answer", "loss"), ANSWERS)
def test_whatever_a_network_answers_can_be_learned_from_labels_but_not_be_distilled(model, answer, loss):
    def evaluate(network, batches):
        return {"loss": sum(loss(network(x), y).item() for x, y in batches)}

    settings = {**SHORT, "epochs": 1, "finetune_epochs": 1, "target_macs": 0.5, "loss": loss, "evaluate": evaluate}
    result = prune(model(), distill="none", **settings)
    assert result.report()["macs"]["share"] == pytest.approx(0.5, abs=0.02)
    for distill in ("gal", "kd"):
        with pytest.raises(ValueError, match=rf"distill='{distill}' compares .* with {answer}. Set distill='no"):
            prune(model(), distill=distill, **settings)
