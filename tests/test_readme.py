"""The README's examples run, and its numbers are those of the results files."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.mark.filterwarnings("error")
def test_the_examples_run_in_order(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    namespace: dict[str, object] = {}
    for example in examples:
        exec(compile(example, "README.md", "exec"), namespace)
    assert "ProjectionStats" in capsys.readouterr().out


def test_the_numbers_are_those_of_the_results_files():
    subprocess.run([sys.executable, ROOT / "experiments/readme.py", "--check"], check=True)
