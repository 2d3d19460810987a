"""The demonstration at a tiny size: what it leaves, that it goes on, and how it is interrupted."""

import os
import subprocess
import sys

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
    assert "another version" not in third.stderr
    assert len(calls) == 2


def test_what_another_version_left_is_made_again(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "PARTS", {"Beale's function": demo.follow_paths})
    run(tmp_path)
    (tmp_path / "mine.txt").touch()
    written = (tmp_path / "beale.json").read_text()
    monkeypatch.setattr(demo, "SIDE", 5)
    again = run(tmp_path)
    assert again.exit_code == 0, again.output
    assert "is of another version of the demonstration, which runs again" in again.stderr
    assert (tmp_path / "beale.json").read_text() != written
    assert (tmp_path / "mine.txt").exists()


OFFLINE = """
import socket, sys

def refused(*_):
    raise OSError("the network is refused")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refused
from cogd.cli import main
main()
"""


@pytest.mark.slow
def test_the_whole_takes_four_minutes_at_most_and_no_network(tmp_path):
    own = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}  # the tests' single thread
    command = [sys.executable, "-c", OFFLINE, "demo", "-o", str(tmp_path)]
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 6
    assert (tmp_path / "report.html").read_text().count("<h2") == 6
