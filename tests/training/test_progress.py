"""What a run says on stderr while it goes."""

import itertools
import re

import pytest
import torch
from torch import nn

from cogd.training import Recipe, fit
from cogd.training.progress import LiveProgress


def test_an_epochs_line_has_loss_accuracy_speed_and_the_time_left(capsys):
    generator = torch.Generator().manual_seed(0)
    batches = [(torch.randn(4, 5, generator=generator), torch.tensor([0, 1, 2, 0])) for _ in range(3)]
    fit(nn.Linear(5, 3), (batches, batches), Recipe(epochs=2, batch_size=4, lr=0.1))
    lines = capsys.readouterr().err.splitlines()
    number = r"\d+\.\d{4}"
    for epoch, line in zip((1, 2), lines, strict=True):
        figures = rf"loss {number}  test_loss {number}  accuracy {number}  [\d,]+ images/s  [\d,]+ s left"
        assert re.fullmatch(rf"epoch {epoch}/2  {figures}", line)


def test_the_time_left_of_a_resumed_run_counts_only_the_steps_that_it_took(monkeypatch):
    """The bar jumps to where the run goes on, which says nothing about its speed."""
    reporter = LiveProgress("training", epochs=10, steps_per_epoch=100, shown=False)
    seconds = itertools.count()
    monkeypatch.setattr(reporter._bar, "get_time", lambda: float(next(seconds)))
    for batch in (10, 20, 30):
        reporter.step(8, batch, loss=0.5, images_per_second=100.0)
    assert reporter._bar.tasks[0].speed == pytest.approx(10)
    assert reporter._bar.tasks[0].remaining == 170
