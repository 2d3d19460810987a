"""The table of CNN training: the script as people call it, small."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "experiments/table_training.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_quick_table_is_whole_and_made_once(tmp_path):
    command = [sys.executable, SCRIPT, "--quick", "--into", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "experiments/results/training_digits.json").read_text())
    assert len(document["runs"]) == 10
    assert document["unfinished"] == []
    accuracies = {row["variant"]: row for row in document["summary"] if row["metric"] == "accuracy"}
    assert len(accuracies) == 5
    assert all(row["n"] == 2 and ("difference" in row) == (name != "SGD") for name, row in accuracies.items())
    page = (tmp_path / "docs/results/training.md").read_text()
    for name, row in accuracies.items():
        assert f"| {name} | 2 | {row['mean']:.2%} |" in page
    weights = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")}
    again = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")} == weights
    assert (tmp_path / "docs/results/training.md").read_text() == page
