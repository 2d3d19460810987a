"""The command line, in processes of its own: kills included."""

import json
import random
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from cogd.cli import app

QUICK = ("--epochs", "3", "--batch-size", "128", "--rule", "paper")


def cogd(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def start(folder, *options: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "cogd", "train", "-o", str(folder), *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> str:
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    return out + err


def test_train_then_evaluate_then_again(tmp_path):
    trained = cogd("train", "-o", str(tmp_path / "run"), *QUICK)
    assert trained.exit_code == 0, trained.output
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert (config["model"]["name"], config["recipe"]["epochs"], config["recipe"]["rule"]) == ("digits", 3, "paper")
    accuracy = json.loads((tmp_path / "run/result.json").read_text())["metrics"]["accuracy"]
    evaluated = cogd("evaluate", str(tmp_path / "run"))
    assert f"accuracy {accuracy:.4f}" in evaluated.output
    assert "complete; nothing to do" in cogd("train", "-o", str(tmp_path / "run"), *QUICK).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--learning-rat", "1"), "no field 'learning_rat'"),
        (("--epoch", "1"), "Did you mean 'epochs'"),
        (("--data", "digit"), "Did you mean 'digits'"),
        (("--model", "resnet"), "Did you mean 'resnet"),
        (("--recipe", "cifar"), "recipe must be one of"),
        (("extra",), "cannot make sense of 'extra'"),
    ],
)
def test_mistakes_are_one_line(tmp_path, arguments, message):
    result = cogd("train", "-o", str(tmp_path / "run"), *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "run").exists()


def test_the_examples_of_the_help_work_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [line.split("#")[0].split()[1:] for line in cogd("train", "--help").stdout.splitlines() if "  cogd" in line]
    first, second = (line for line in lines if "--data" not in line)
    for line in (first, second):
        done = cogd(*line, "--epochs", "1")
        assert done.exit_code == 0, done.output
    compared = next(line for line in cogd("compare", "--help").stdout.splitlines() if "--metric" in line).split()
    metric = compared[compared.index("--metric") + 1]
    assert cogd("compare", "runs/digits", "runs/paper", "--metric", metric).exit_code == 0


def test_seeds_are_refused_in_the_folder_of_a_single_run(tmp_path):
    folder = tmp_path / "run"
    assert cogd("train", "-o", str(folder), "--epochs", "1").exit_code == 0
    for more in ((), ("--at-once", "2")):
        result = cogd("train", "-o", str(folder), "--epochs", "1", "--seeds", "2", *more)
        assert result.exit_code == 1
        assert f"{folder} holds a single run" in result.stderr
    assert not list(folder.glob("seed-*"))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "holds no finished run"),
        ({"config.json": {"seed": 0}, "result.json": {"metrics": {"loss": 1.0}}}, "has no metric 'accuracy'"),
    ],
)
def test_a_bad_baseline_is_refused_before_training(tmp_path, files, message):
    baseline = tmp_path / "baseline"
    baseline.mkdir()
    for name, content in files.items():
        (baseline / name).write_text(json.dumps(content))
    result = cogd("train", "-o", str(tmp_path / "new"), "--seeds", "2", "--baseline", str(baseline))
    assert result.exit_code != 0
    assert message in result.stderr
    assert not (tmp_path / "new").exists()


def test_seeds_that_diverge_at_once_are_no_fault_of_cogd(tmp_path):
    options = ("--seeds", "2", "--at-once", "2", "--epochs", "1", "--lr", "1e30", "--device", "cpu")
    process = start(tmp_path, *options)
    _, err = process.communicate(timeout=280)
    assert process.returncode == 1
    assert err.count("DivergedError: the loss is nan at step") == 2
    assert f"error: not complete: {tmp_path / 'seed-0'}, {tmp_path / 'seed-1'}; why is said above" in err
    assert "fault" not in err


def test_a_gpu_without_enough_memory_is_no_fault_of_cogd(monkeypatch):
    def too_large(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr("cogd.training.evaluation.evaluate_run", too_large)
    result = cogd("evaluate", "run")
    assert result.exit_code == 1
    assert "the GPU's memory is not enough: CUDA out of memory. Tried to allocate 2.00 GiB." in result.stderr


def test_evaluating_on_data_that_do_not_fit_is_refused(tmp_path):
    """Other classes; then as many classes, but pictures in colour."""
    assert cogd("train", "-o", str(tmp_path / "run"), *QUICK).exit_code == 0
    for classes, message in (
        (2, "was trained on other classes than the 2 of folder:"),
        (10, "does not take the data's"),
    ):
        root = tmp_path / str(classes)
        for split in ("train", "val"):
            for name in range(classes):
                (root / split / str(name)).mkdir(parents=True)
                Image.new("RGB", (8, 8)).save(root / split / str(name) / "0.png")
        config = json.loads((tmp_path / "run/config.json").read_text())
        config["recipe"] |= {"image_size": 8, "batch_size": 2}
        (tmp_path / "run/config.json").write_text(json.dumps(config))
        result = cogd("evaluate", str(tmp_path / "run"), "--data", f"folder:{root}")
        assert result.exit_code == 1
        assert message in result.stderr


def test_a_run_that_is_not_there():
    result = cogd("evaluate", "nowhere")
    assert result.exit_code == 1
    assert "nowhere holds no finished run" in result.stderr


@pytest.mark.slow
def test_the_digits_recipe_takes_less_than_a_minute(tmp_path):
    began = time.monotonic()
    out = finish(start(tmp_path / "run", "--json"))
    assert time.monotonic() - began < 60
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert len(result["history"]) == 12
    assert result["metrics"]["accuracy"] > 0.95
    assert f'"accuracy": {result["metrics"]["accuracy"]}' in out


def entries(folder, event: str) -> list[dict[str, Any]]:
    """Return the log's whole lines about an event."""
    log = folder / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [entry for line in lines if line.endswith("\n") and (entry := json.loads(line))["event"] == event]


def kill_and_resume(folder, kills: int, options, seconds: float) -> None:
    """Start the same command until it completes, killing it so often, each time within so long after it began."""
    pick = random.Random(kills)
    for begun in range(kills):
        process = start(folder, *options)
        while len(entries(folder, "begin")) == begun:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        time.sleep(pick.uniform(0.0, seconds))
        assert process.poll() is None, "it was done before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.communicate()
    finish(start(folder, *options))


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_killed_and_resumed_equals_never_killed(tmp_path, kills):
    """Killed by -9 at random moments of its training: the same weights, bit for bit, and every epoch logged once."""
    epochs = 10 * kills if kills > 2 else 24
    options = ("--epochs", str(epochs), "--batch-size", "128", "--rule", "rollback", "--cutout", "3")
    finish(start(tmp_path / "whole", *options))
    seconds = sum(epoch["seconds"] for epoch in entries(tmp_path / "whole", "epoch"))
    kill_and_resume(tmp_path / "killed", kills, options, seconds / kills / 2)  # half of the run in all, at most
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert weights[0] == weights[1]
    assert [epoch["epoch"] for epoch in entries(tmp_path / "killed", "epoch")] == list(range(1, epochs + 1))
    begun = [begin["epoch"] for begin in entries(tmp_path / "killed", "begin")]
    assert len(begun) == kills + 1
    assert begun == sorted(begun)
    assert sum(epoch > 0 for epoch in begun) >= kills / 2, begun  # it went on, it did not begin anew
    assert len(set(begun)) > kills / 4, begun  # from one place and another


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(tmp_path, number):
    options = ("--epochs", "200", "--batch-size", "64")
    process = start(tmp_path, *options)
    while not (tmp_path / "log.jsonl").exists():
        time.sleep(0.02)
        assert process.poll() is None
    second = cogd("train", "-o", str(tmp_path), *options)
    assert "another process is training in" in second.stderr
    process.send_signal(number)
    _, err = process.communicate(timeout=280)
    assert process.returncode == 130
    assert "the same command again goes on from there" in err
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["event"] == "stopped"
    assert list((tmp_path / "checkpoints").glob("*.pt"))
