"""The training benchmark's report: whole after every contender, whatever becomes of one."""

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks/training.py"


@pytest.fixture
def bench():
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("training_bench", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_contender_that_fails_is_named_and_the_others_are_measured(bench, monkeypatch, tmp_path):
    def failing():
        raise RuntimeError("no such kernel")

    def measured(seconds):
        return lambda: {"images_per_second": 1e3, "seconds_per_epoch": seconds}

    found = {"cogd": measured(1.9), "plain loop": failing, "cogd, rule paper": measured(2.5), "not asked for": failing}
    monkeypatch.setattr(bench, "contenders", lambda args: found)
    monkeypatch.setattr(bench, "matrix_rate", lambda device: 1e12)
    found["cogd, again"] = measured(2.1)
    args = argparse.Namespace(device="cpu", model="resnet18", seconds=1e3, only=[*list(found)[:3], "cogd, again"])
    bench.measure(argparse.Namespace(**vars(args), output=tmp_path / "report.json"))
    report = json.loads((tmp_path / "report.json").read_text())
    assert {"config", "versions", "device", "commit", "threads", "matrix_rate"} < set(report)
    assert list(report["results"]) == ["cogd", "cogd, rule paper", "cogd, again"]
    assert report["not_measured"]["plain loop"]["failed"] == "RuntimeError: no such kernel"
    assert report["cogd_overhead"] == {"paper": pytest.approx(0.25)}
    # 6 * 555.4 million multiply-adds for each of 1000 images a second, of 1e12 operations
    assert report["results"]["cogd"]["fraction_of_matrix_rate"] == pytest.approx(3.3326, rel=1e-3)


def test_what_the_time_does_not_suffice_for_is_said(bench):
    assert bench.attempt(lambda: pytest.fail("begun too late"), deadline=time.monotonic()) == {
        "left_out": "the time was over"
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_quick_benchmark_measures_everything(tmp_path):
    command = [sys.executable, SCRIPT, "--quick", "--seconds", "500", "-o", tmp_path / "report.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["not_measured"] == {}
    expected = {"cogd", "cogd, rule paper", "cogd, rule rollback", "cogd, again", "plain loop", "cogd, saving"}
    assert set(report["results"]) == {*expected, "cogd, 2 processes"}
    assert all(figures["images_per_second"] > 0 for figures in report["results"].values())
    assert set(report["cogd_overhead"]) == {"paper", "rollback"}
