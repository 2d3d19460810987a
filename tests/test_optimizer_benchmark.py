"""The benchmark of what the wrapper costs: it runs, its shares are right, and README shows all that it found."""

import importlib.util
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks/optimizer_overhead.py"
RULES = ("paper", "rollback")


@pytest.fixture(scope="module")
def bench():
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("overhead_bench", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def table():
    return runpy.run_path(str(ROOT / "experiments/readme.py"))["overhead_table"]


def test_a_share_is_of_a_whole_step_and_averaged_over_the_period(bench):
    """(9 * 1.1 + 2.1) / 10 - 1 = 0.2 of a step of 10, whatever one slow round says."""
    times = {
        "base": [1.0, 1.0, 50.0],
        "plain, paper": [1.1, 1.1, 1.1],
        "projecting, paper": [2.1, 2.1, 2.1],
        "whole step": [10.0, 10.0, 10.0],
    }
    assert bench.share(times, "paper", 10) == pytest.approx(0.02)


def test_where_every_step_projects_there_is_no_plain_one(bench):
    times = {"base": [1.0, 2.0, 3.0], "projecting, rollback": [1.5, 2.5, 3.5], "whole step": [4.0, 5.0, 6.0]}
    assert bench.share(times, "rollback", 1) == pytest.approx(0.1)


def test_rounds_begin_with_another_kind_each_and_the_first_two_do_not_count(bench):
    called: list[str] = []
    kinds = {name: lambda name=name: called.append(name) for name in "abc"}
    times = bench.rounds_of(kinds, 2, 1e3, bench.torch.device("cpu"))
    assert {name: len(seconds) for name, seconds in times.items()} == dict.fromkeys("abc", 2)
    assert "".join(called) == "abcbcacababc"


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path, table):
    report = tmp_path / "overhead.json"
    subprocess.run([sys.executable, SCRIPT, "--quick", "-o", report], check=True, capture_output=True)
    results = json.loads(report.read_text(), parse_constant=pytest.fail)
    assert results["failed"] == {}
    assert {"config", "versions", "device", "commit", "threads"} <= results.keys()
    assert [(row["case"], row["rule"]) for row in results["results"]] == [
        (case, rule) for case in ("resnet18-epoch", "resnet50-every-step") for rule in RULES
    ]
    for row in results["results"]:
        assert list(row["overhead_percent"]) == ["parts timed alone"]
        assert 0 < row["held_bytes_per_coupled_byte"] <= 1
    assert table(results).count("\n| resnet") == 4


def test_the_table_shows_memory_and_what_failed(table):
    row = {"case": "resnet50-every-step", "rule": "paper", "batch": 128, "period": 1}
    row |= {"held_bytes_per_coupled_byte": 1.0, "overhead_percent": {"whole steps": 12.345}}
    results = {"results": [row], "device": "a GPU", "config": {"repeats": 15}, "failed": {}}
    shown = table(results)
    assert "| resnet50 | 128 | step | paper | +12.35% | 1.00 |" in shown
    assert "during" not in shown
    row["bytes_per_coupled_byte_during_a_step"] = 1.876
    results["failed"] = {"resnet50-every-step, in a CUDA graph": "RuntimeError: out of memory"}
    shown = table(results)
    assert "| held per coupled byte | at most, during a step |" in shown
    assert "| +12.35% | 1.00 | 1.88 |" in shown
    assert shown.endswith("\n\nNot measured: resnet50-every-step, in a CUDA graph: RuntimeError: out of memory")
