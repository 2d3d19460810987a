"""TensorBoard shows the log's numbers, once per epoch, also after a stop."""

import json
import os
import signal
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cogd.models import build
from cogd.training import fit, read_recipe
from cogd.training.board import Board, figures

RECIPE = read_recipe("digits", epochs=3, batch_size=256, rule="paper")


def train(folder, **options):
    return fit(build("digits", 10), "digits", RECIPE, folder=folder, tensorboard=True, progress=False, **options)


def events(folder):
    accumulator = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def test_the_events_are_the_logs_numbers_also_when_resumed(tmp_path):
    def stop(state):
        if state.step == 12:
            os.kill(os.getpid(), signal.SIGINT)

    assert train(tmp_path, after_step=stop).status == "stopped"
    train(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if line["event"] == "epoch"]
    written = events(tmp_path)
    assert {"train_loss", "lr", "images_per_second", "metrics/accuracy", "cogd/opened"} <= set(written)
    for tag, points in written.items():
        logged = [(epoch["epoch"], dict(figures(epoch))[tag]) for epoch in epochs]
        assert [step for step, _ in points] == [1, 2, 3]
        assert points == [pytest.approx(pair, rel=1e-6) for pair in logged]


def test_an_epoch_that_is_run_again_counts_once(tmp_path):
    """As after a kill between an epoch's events and its checkpoint."""
    for first, values in ((1, (1.0, 2.0, 3.0)), (3, (4.0, 5.0))):
        board = Board(tmp_path / "tensorboard", first)
        for epoch, value in enumerate(values, start=first):
            board.epoch({"epoch": epoch, "loss": value})
        board.close()
    assert events(tmp_path)["loss"] == [(1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0)]


def test_without_the_package_the_remedy_is_named_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"pip install 'cogd\[tensorboard\]'"):
        train(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_it_needs_a_folder():
    with pytest.raises(ValueError, match="give a folder too"):
        train(None)
