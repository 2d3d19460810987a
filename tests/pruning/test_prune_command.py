"""`cogd prune`: from a run of `cogd train`, or from one's own network, to a folder that others load."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from test_commands import cogd
from torch import nn

from cogd.models import build
from cogd.pruning import load_pruned, read_recipe
from cogd.training import data as data_sets
from cogd.training.data.memory import Images

QUICK = ("--epochs", 2, "--finetune-epochs", 1, "--device", "cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the folder of a short training."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert cogd("train", "--epochs", 2, "--device", "cpu", "-o", folder, "--quiet").exit_code == 0
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def test_digits_from_a_run_to_a_folder_that_loads(trained, here):
    done = cogd("prune", "--weights", trained, *QUICK, "--target-macs", 0.4, "-o", "small")
    assert done.exit_code == 0, done.output
    for said in (
        "layer1.conv1",
        "multiply-accumulates",
        "accuracy",
        "asked for target macs 0.4, reached 0.",
        "latency: ",
    ):
        assert said in done.stdout
    assert "at zero by layer" in done.stderr
    assert "Saved: small" in done.stdout
    recipe = read_recipe("small")
    assert (recipe.builder, recipe.arguments) == ("digits", {"num_classes": 10})
    assert recipe.report["macs"]["share"] == pytest.approx(0.4, abs=0.02)
    accuracy = json.loads((trained / "result.json").read_text())["metrics"]["accuracy"]
    assert recipe.report["metrics"]["before"]["accuracy"] == pytest.approx(accuracy)
    assert load_pruned(None, "small")(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    assert cogd("latency", "small", "--device", "cpu", "--warm-up", 0, "--rounds", 4).exit_code == 0


def test_json_is_the_report_and_options_are_heard(trained, here):
    rest = (
        "--distill",
        "none",
        "--rule",
        "none",
        "--penalty",
        0.05,
        "--round-to",
        4,
        "--ignore",
        "layer1",
        "--seed",
        3,
    )
    done = cogd("prune", "--weights", trained, *QUICK, "--active", 0.5, *rest, "-o", "s", "--quiet", "--json")
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert report["folder"] == "s"
    assert report["target"] == {"active": 0.5}
    assert report["channels"] == {"layer2.conv1": [16, 32]}
    asked = json.loads(Path("s.run/prune.json").read_text())
    assert (asked["distill"], asked["penalty"], asked["round_to"], asked["seed"]) == ("none", 0.05, 4, 3)
    learned = json.loads(Path("s.run/masks/config.json").read_text())["recipe"]
    assert (learned["rule"], learned["active"], learned["epochs"]) == ("none", 0.5, 2)


USERS_CODE = """
from torch import nn

def build():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10)
    )
"""


def test_a_user_s_own_network(here, monkeypatch):
    Path("mine_to_prune.py").write_text(USERS_CODE)
    code: dict[str, Any] = {}
    exec(USERS_CODE, code)
    safetensors.torch.save_file(code["build"]().state_dict(), "w.safetensors")
    done = cogd("prune", "--model", "mine_to_prune:build", "--weights", "w.safetensors", *QUICK, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["macs"]["share"] == pytest.approx(0.5, abs=0.02)
    assert read_recipe("small").builder == "mine_to_prune:build"
    small: nn.Sequential = load_pruned(code["build"], "small")  # type: ignore[assignment]
    assert small[0].out_channels == 8
    sys.modules.pop("mine_to_prune")


def start(*arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "cogd", "prune", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("phase", ["masks", pytest.param("finetune", marks=pytest.mark.slow)])
def test_stopped_and_resumed_equals_never_stopped(trained, here, phase):
    settings = ["--weights", str(trained), "--epochs", "6", "--finetune-epochs", "6", "--device", "cpu"]
    process = start(*settings, "-o", "small")
    log = Path("small.run", phase, "log.jsonl")
    while not (log.exists() and '"event": "epoch"' in log.read_text()):
        time.sleep(0.01)
        assert process.poll() is None, "it ended before it could be stopped"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "the same command goes on" in out + err
    assert not Path("small").exists()
    resumed = cogd("prune", *settings, "-o", "small")
    assert resumed.exit_code == 0, resumed.output
    assert "going on in small.run" in resumed.stderr
    assert cogd("prune", *settings, "-o", "whole").exit_code == 0
    assert Path("small/weights.safetensors").read_bytes() == Path("whole/weights.safetensors").read_bytes()


def test_a_folder_with_something_in_it_is_refused_before_any_training(trained, here):
    Path("small").mkdir()
    Path("small/thesis.tex").write_text("")
    done = cogd("prune", "--weights", trained, *QUICK)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "-o small is there and not empty; name another folder" in done.stderr
    assert [path.name for path in here.iterdir()] == ["small"]
    assert [path.name for path in Path("small").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give its --weights, .* `cogd train -o runs/digits` makes one"),
        (
            ["--data", "cifar10:x", "--model", "resnet56"],
            2,
            "`cogd train --data cifar10:x --model resnet56 -o runs/cif",
        ),
        (["--model", "mine:build"], 2, r"safetensors.torch.save_file\(model.state_dict\(\), FILE\) makes one"),
        (["--weights", "nowhere.safetensors"], 1, "--weights nowhere.safetensors isn't there"),
        (["--weights", "."], 1, "holds no finished run: config.json is missing"),
        (
            ["--weights", "RUN", "--model", "resnet56"],
            1,
            r"--weights .* doesn't fit: +layer1.0.conv1.weight: missing",
        ),
        (["--weights", "RUN", "--model", "nowhere:build"], 2, r"\(--model\) must name .* got 'nowhere:build'"),
        (["--weights", "RUN", "--target-macs", "1.5"], 2, "target_macs must be the share to keep"),
        (["--weights", "RUN", "--target-macs", "0.5", "--active", "0.5"], 2, "give one target"),
        (["--weights", "RUN", "--rule", "rollback", "--scale", "2"], 2, "takes no order or scale"),
        (["--weights", "RUN", "--rule", "sideways"], 2, "descent"),
        (["--weights", "RUN", "--target-macs", "0.01"], 1, "target_macs=0.01 is out of reach"),
        (["--weights", "RUN", "--ignore", "layer9"], 1, "ignore names 'layer9'"),
    ],
)
def test_mistakes_are_a_paragraph_and_leave_nothing(trained, here, arguments, code, message):
    done = cogd("prune", *(trained if argument == "RUN" else argument for argument in arguments), "--device", "cpu")
    assert (done.exit_code, done.stdout) == (code, "")
    assert len(done.stderr.splitlines()) == 1
    assert re.search(message, done.stderr), done.stderr
    assert list(here.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif("COGD_CIFAR10" not in os.environ, reason="COGD_CIFAR10 names no folder with CIFAR-10")
def test_resnet56_on_some_of_cifar10(here, monkeypatch):
    load = data_sets.load_data

    def some(source):
        whole: Any = load(source)
        train, test = (Images(part.pixels[:n], part.labels[:n]) for part, n in ((whole.train, 512), (whole.test, 128)))
        return replace(whole, train=train, test=test)

    monkeypatch.setattr(data_sets, "load_data", some)
    safetensors.torch.save_file(build("resnet56", 10).state_dict(), "w.safetensors")
    source = f"cifar10:{os.environ['COGD_CIFAR10']}"
    done = cogd(
        "prune", "--model", "resnet56", "--weights", "w.safetensors", "--data", source, *QUICK, "--json", "-o", "s"
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["macs"]["share"] == pytest.approx(0.5, abs=0.02)
    assert len(report["channels"]) == 27
