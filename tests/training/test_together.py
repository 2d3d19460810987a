"""Runs at once are the runs one after the other; nothing is lost when one fails or all are stopped or killed."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from operator import getitem
from typing import Any

import pytest
import torch

from cogd.models import build
from cogd.training import Recipe, fit_seeds, read_recipe
from cogd.training.data import load_data
from cogd.training.together import Job, run_together

DIGITS = partial(build, "digits", 10)
RECIPE = read_recipe("digits", epochs=2, batch_size=256)


@pytest.fixture
def one_thread():
    """Compute on as many threads alone as each of several runs does."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(usual)


@pytest.mark.usefixtures("one_thread")
def test_seeds_at_once_are_the_seeds_in_turn(tmp_path):
    data = load_data("digits")
    at_once = fit_seeds(DIGITS, data, RECIPE, range(3), tmp_path / "at once", at_once=2, progress=False)
    in_turn = fit_seeds(DIGITS, data, RECIPE, range(3), tmp_path / "in turn", progress=False)
    assert [result.metrics for result in at_once] == [result.metrics for result in in_turn]
    for seed in range(3):
        weights = [(tmp_path / how / f"seed-{seed}/model.safetensors").read_bytes() for how in ("at once", "in turn")]
        assert weights[0] == weights[1]


def test_a_run_that_fails_leaves_the_others_alone(tmp_path, capfd):
    jobs = [
        Job(DIGITS, "digits", read_recipe(RECIPE, lr=lr), seed, tmp_path / str(seed))
        for seed, lr in enumerate((1e30, 0.1, 0.1))
    ]
    told: list[int] = []
    with pytest.raises(ChildProcessError, match=f"not complete: {tmp_path / '0'}; why is said above"):
        run_together(jobs, 2, "cpu", when_complete=lambda job, result: told.append(job.seed))
    assert sorted(told) == [1, 2]
    assert "DivergedError: the loss is nan at step" in capfd.readouterr().err


def test_a_fault_in_a_run_leaves_its_shares_others_alone(tmp_path, capfd):
    faulty: Any = partial(getitem, {}, 10)
    jobs = [
        Job(faulty, "digits", RECIPE, 0, tmp_path / "0"),
        Job(DIGITS, "digits", RECIPE, 1, tmp_path / "1"),
    ]
    with pytest.raises(ChildProcessError, match=f"not complete: {tmp_path / '0'};"):
        run_together(jobs, 1, "cpu")
    assert jobs[1].result().status == "complete"
    assert "KeyError: 10" in capfd.readouterr().err


def test_the_times_end_stops_and_saves(tmp_path):
    job = Job(DIGITS, "digits", Recipe(epochs=4000, batch_size=64, lr=0.01), 0, tmp_path)
    seconds = 6.0
    while not (tmp_path / "log.jsonl").exists():  # a process that had not begun by then has nothing to save
        assert run_together([job], 1, "cpu", seconds=seconds) == "stopped"
        seconds *= 2
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["event"] == "stopped"


def start(folder, *options):
    command = [sys.executable, "-m", "cogd", "train", "-o", str(folder), "--seeds", "2", "--at-once", "2", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_checkpoints(process, folder):
    while len(list(folder.glob("seed-*/checkpoints/*.json"))) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_saves_all(tmp_path, number):
    process = start(tmp_path, "--epochs", "4000")
    wait_for_checkpoints(process, tmp_path)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    for seed in range(2):
        assert json.loads((tmp_path / f"seed-{seed}/log.jsonl").read_text().splitlines()[-1])["event"] == "stopped"


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_killed_together_with_its_runs_and_resumed(tmp_path):
    options = ("--epochs", "20", "--batch-size", "128", "--device", "cpu")
    process = start(tmp_path, *options)
    wait_for_checkpoints(process, tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    time.sleep(1)  # for the runs to notice
    assert not list(tmp_path.glob("seed-*/result.json")), "they were done before they could be killed"
    again = start(tmp_path, *options)
    out, err = again.communicate(timeout=250)
    assert again.returncode == 0, err
    assert err.count("is complete") == 2
    assert "mean accuracy" in out
    recipe = read_recipe("digits", epochs=20, batch_size=128)
    fit_seeds(DIGITS, load_data("digits"), recipe, range(2), tmp_path / "whole", device="cpu", progress=False)
    for seed in range(2):
        weights = [
            (folder / f"seed-{seed}/model.safetensors").read_bytes() for folder in (tmp_path, tmp_path / "whole")
        ]
        assert weights[0] == weights[1]
