"""Pruning as a whole: the budget is met by what is learned, nothing is lost when it is stopped, the model stays."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from pruning.short_runs import DATA, SHORT, epochs_in, equal, frozen_recipe, network
from torch import nn

from cogd import CoGD
from cogd.models import build, count_macs
from cogd.pruning import Gates
from cogd.pruning.fista import FistaSGD
from cogd.pruning.gal import Discriminator, adversarial_loss, data_loss, discriminator_loss
from cogd.pruning.prune import prune
from cogd.pruning.settings import learning_recipe
from cogd.training import read_recipe
from cogd.training.schedule import rate_factor
from cogd.training.state import seed_epoch


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A whole run in a folder, never stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return prune(network(), folder=folder, **SHORT), folder


def test_the_budget_is_met_and_the_removal_changes_nothing(done):
    result, folder = done
    shape = torch.zeros(1, 1, 8, 8)
    assert count_macs(result.model, shape) / count_macs(network(), shape) == pytest.approx(0.4, abs=0.02)
    learned = epochs_in(folder)
    assert result.metrics["after"]["accuracy"] == pytest.approx(learned[-1]["metrics"]["accuracy"])
    assert result.metrics["after"]["test_loss"] == pytest.approx(learned[-1]["metrics"]["test_loss"], rel=1e-4)
    zero = {name: of - len(result.keep[name]) for name, (_, of) in learned[-1]["channels_at_zero"].items()}
    assert {name: count for name, (count, _) in learned[-1]["channels_at_zero"].items()} == zero


def test_the_model_comes_back_unchanged(done):
    model = network()
    gradients = [p.requires_grad for p in model.parameters()]
    prune(model, **{**SHORT, "epochs": 1, "finetune_epochs": 1})
    assert model.training
    assert equal(model, network())
    assert gradients == [p.requires_grad for p in model.parameters()]
    assert [name for name, _ in model.named_modules()] == [name for name, _ in network().named_modules()]


@pytest.mark.parametrize("rule", [None, "paper", "descent", "rollback"])
def test_learning_masks_is_gal_with_plain_sgd_and_cogd_around_it(rule, tmp_path):
    """Against the loop written out: bit for bit, before the first channel is closed, at a strength that shows."""
    strength: dict[str, Any] = {"scale": 1.0} if rule in ("paper", "descent") else {}
    settings = {**SHORT, "target_macs": 1.0, "epochs": 2, "finetune_epochs": 1, "finetune_recipe": frozen_recipe()}
    settings |= {"initial": "normal"}
    result = prune(network(), rule=rule, folder=tmp_path / "run", **strength, **settings)
    recipe = read_recipe("prune_digits", epochs=2, step_epochs=1, rule=rule or "none", **strength)
    by_hand = gal_by_hand(recipe, rule)
    assert [p.shape for p in result.model.parameters()] == [p.shape for p in by_hand.parameters()]
    for ours, expected in zip(result.model.parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(ours, expected)
    if rule is not None:
        assert epochs_in(tmp_path / "run")[-1]["cogd"]["opened"] > 0  # the first projection has no slope yet
        assert not equal(result.model, prune(network(), rule=None, **settings).model)


def gal_by_hand(recipe, rule):
    teacher, student = network().eval(), network()
    gates = Gates(student, torch.zeros(1, 1, 8, 8), initial="normal", generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    D = Discriminator(10)
    weights = {"params": [*student.parameters(), *D.parameters()], "momentum": 0.9, "weight_decay": 2e-4}
    base = FistaSGD([weights, {"params": list(gates.parameters()), "penalty": 0.01}], lr=recipe.lr)
    train, _ = DATA.batches(recipe, torch.device("cpu"))
    optimizer = CoGD(base, gates.couplings(0.5), rule=rule, scale=recipe.scale, period=len(train))
    for epoch in range(2):
        student.train()
        seed_epoch(0, epoch)
        for i, (inputs, _) in enumerate(train):
            for group in optimizer.param_groups:
                group["lr"] = recipe.lr * rate_factor(recipe, epoch * len(train) + i, len(train))
            with torch.no_grad():
                wanted = teacher(inputs)
            made = student(inputs)
            for_discriminator = discriminator_loss(D(wanted), D(made.detach()))
            (data_loss(made, wanted) + adversarial_loss(D.as_fixed(made)) + for_discriminator).backward()
            optimizer.step()
            optimizer.zero_grad()
        base.adopt()
        if epoch == 0:  # the choice is final: everything stays, without a penalty
            base.lift_penalty()
    base.settle()
    gates.fold()
    return student


@pytest.mark.parametrize(
    ("phase", "stop_at"), [("masks", 3), ("masks", 8), ("masks", 13), ("masks", 16), ("finetune", 5)]
)
def test_stopped_and_resumed_equals_never_stopped(done, tmp_path, phase, stop_at, monkeypatch):
    """Within the tightening, at an epoch's end, after the final choice, at the last step, and while fine-tuning."""
    from cogd.pruning import phases

    original = phases.fit

    def stopping(model, data, recipe, *, after_step=None, task, **options):
        def stop(state):
            if after_step is not None:
                after_step(state)
            if state.step == stop_at and (task == "learning masks") == (phase == "masks"):
                os.kill(os.getpid(), signal.SIGINT)

        return original(model, data, recipe, after_step=stop, task=task, **options)

    whole, _ = done
    monkeypatch.setattr(phases, "fit", stopping)
    first = prune(network(), folder=tmp_path / "run", **SHORT)
    assert first.status == "stopped"
    assert (tmp_path / "run" / "finetune").exists() == (phase == "finetune")
    with pytest.raises(ValueError, match="this run was stopped; call prune again"):
        first.report()
    monkeypatch.undo()
    second = prune(network(), folder=tmp_path / "run", **SHORT)
    assert second.status == "complete"
    assert second.keep == whole.keep
    assert second.metrics == whole.metrics
    assert equal(second.model, whole.model)


KILLED = """
import sys
sys.path.insert(0, {tests!r})
import torch; torch.set_num_threads(1)
from pruning.short_runs import SHORT, network
from cogd.pruning.prune import prune
prune(network(), folder={folder!r}, **SHORT)
"""


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["masks", "finetune"])
def test_a_kill_loses_at_most_an_epoch(done, tmp_path, phase):
    whole, _ = done
    folder = tmp_path / "run"
    script = KILLED.format(tests=str(Path(__file__).parents[1]), folder=str(folder))
    process = subprocess.Popen([sys.executable, "-c", script])
    log = folder / phase / "log.jsonl"
    while not (log.exists() and '"event": "epoch"' in log.read_text()):
        time.sleep(0.005)
        assert process.poll() is None, "it ended before it could be killed"
    process.kill()
    process.wait()
    resumed = prune(network(), folder=folder, **SHORT)
    assert resumed.metrics == whole.metrics
    assert equal(resumed.model, whole.model)


def test_a_complete_run_is_not_run_again(done):
    whole, folder = done
    weights = (folder / "finetune" / "model.safetensors").stat().st_mtime_ns
    again = prune(network(), folder=folder, **SHORT)
    assert equal(again.model, whole.model)
    assert (folder / "finetune" / "model.safetensors").stat().st_mtime_ns == weights


@pytest.mark.parametrize("change", [{"target_macs": 0.6}, {"seed": 1}, {"model": network(1)}, {"distill": "kd"}])
def test_another_run_in_the_same_folder_is_refused(done, change):
    _, folder = done
    settings = {**SHORT, "model": network(), **change}
    with pytest.raises(ValueError, match="holds another pruning run: "):
        prune(folder=folder, **settings)


def test_a_folder_with_something_else_in_it_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match=r"holds files but no pruning run \(no prune.json\)"):
        prune(network(), folder=tmp_path, **SHORT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thesis.tex"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_macs": 0}, r"target_macs must be the share to keep, above 0 and at most 1; got 0"),
        ({"target_macs": 1.2}, r"target_macs must be .* got 1.2"),
        ({"target_macs": 0.001}, r"target_macs=0.001 is out of reach"),
        ({"active": 0.5}, r"give one target; got target_macs=0.4 and active=0.5"),
        ({"distill": "gan"}, r"distill must be one of 'gal', 'kd', 'none'; got 'gan'"),
        ({"initial": "zeros"}, r"initial must be one of 'normal', 'ones'; got 'zeros'"),
        ({"round_to": 0}, r"round_to must be an integer from 1, such as 8; got 0"),
        ({"penalty": -1.0}, r"penalty must be a finite number from 0, such as 0.01; got -1.0"),
        ({"rule": "backwards"}, r"rule"),
        ({"teacher": build("digits", 7)}, r"teacher must answer as the model does, with \(2, 10\)"),
        ({"teacher": nn.Conv2d(3, 1, 1)}, r"teacher does not take the model's inputs"),
        ({"teacher": network(1), "distill": "none"}, r"teacher is not asked with distill='none'; leave it out"),
        ({"target_macs": None, "target_latency": 1.5}, r"target_latency must be the share to keep, .* got 1.5"),
        ({"model": build("resnet56", 10)}, r"the model does not take the data's inputs, shaped \(2, 1, 8, 8\)"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 10))}, r"no channel of this Sequential can be removed"),
        ({"ignore": ["layer9"]}, r"ignore names 'layer9'"),
        ({"model": network().requires_grad_(False)}, r"model is frozen, .* call model.requires_grad_\(\) first"),
        ({"model": build("digits", 7)}, r"the model has 7 outputs, but .* has 10 classes"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(change, message, tmp_path):
    settings = {**SHORT, "model": network(), "folder": tmp_path / "run", **change}
    with pytest.raises(ValueError, match=message):
        prune(**settings)
    assert not (tmp_path / "run").exists()


def test_a_recipe_s_own_rule_stays_and_only_what_is_given_is_replaced():
    plain = read_recipe("prune_digits", epochs=3)
    mine = read_recipe(plain, rule="descent", order=2, scale=0.1, active=0.7)
    assert (plain.rule, learning_recipe(plain, "digits", None).rule) == ("none", "paper")
    assert learning_recipe(None, "digits", None).rule == "paper"
    assert learning_recipe(mine, "digits", None) == mine
    assert learning_recipe(mine, "digits", None, scale=0.2) == read_recipe(mine, scale=0.2)
    assert learning_recipe(mine, "digits", None, "paper", active=0.5) == read_recipe(mine, rule="paper", active=0.5)
    assert learning_recipe(mine, "digits", None, None).rule == "none"
    assert learning_recipe(read_recipe(mine, rule="none"), "digits", None).rule == "none"


def test_progress_says_how_many_channels_of_each_layer_are_at_zero(capsys, tmp_path):
    prune(network(), folder=tmp_path / "run", **{**SHORT, "progress": True})
    said = [line for line in capsys.readouterr().err.splitlines() if "at zero by layer" in line]
    counts = [entry["channels_at_zero"].values() for entry in epochs_in(tmp_path / "run")]
    assert [line.partition("at zero by layer: ")[2] for line in said] == [
        " ".join(str(zero) for zero, _ in layers) for layers in counts
    ]
    assert len(said) == 4
