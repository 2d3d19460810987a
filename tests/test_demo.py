"""The demonstration at a tiny size: what it leaves, that it goes on, and how it is interrupted."""

import pytest
from typer.testing import CliRunner

from cogd import demo
from cogd.cli import app


@pytest.fixture
def tiny(monkeypatch):
    """Make every part as small as it can be."""
    sizes = {"SIDE": 3, "LEARNING_SECONDS": 0.01, "EPOCHS": 1, "SEEDS": range(1), "CROP": 40}
    for name, value in {**sizes, "MASK_EPOCHS": 1, "FINETUNING_EPOCHS": 1}.items():
        monkeypatch.setattr(demo, name, value)
    cat = demo.grey(demo.photographs.chelsea().transpose(2, 0, 1))
    monkeypatch.setattr(demo, "_photographs_to_learn_from", lambda: [cat[20:60, 60:100], cat[60:100, 100:140]])


def run(folder):
    return CliRunner().invoke(app, ["demo", "-o", str(folder)])


def test_it_leaves_one_report_and_goes_on_from_what_is_there(tiny, tmp_path, monkeypatch):
    calls = []
    learned = demo.ConvDictionaryLearner.fit

    def interrupted(self, *arguments, **options):
        calls.append(self)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return learned(self, *arguments, **options)

    monkeypatch.setattr(demo.ConvDictionaryLearner, "fit", interrupted)
    first = run(tmp_path / "d")
    assert first.exit_code == 130
    assert f"`cogd demo -o {tmp_path / 'd'}` goes on" in first.stderr
    assert not (tmp_path / "d" / "report.html").exists()
    written = (tmp_path / "d" / "beale.json").stat().st_mtime_ns

    second = run(tmp_path / "d")
    assert second.exit_code == 0, second.output
    assert (tmp_path / "d" / "beale.json").stat().st_mtime_ns == written
    lines = second.stdout.strip().splitlines()
    assert len(lines) == len(demo.PARTS) + 1
    assert lines[-1] == f"Report: {tmp_path / 'd' / 'report.html'}"
    text = (tmp_path / "d" / "report.html").read_text()
    assert text.count("<h2") == len(demo.PARTS) + 1  # the pruned network, and how it was pruned

    third = run(tmp_path / "d")
    assert third.stdout == second.stdout
    assert len(calls) == 2
