"""The README's examples run, its numbers are those of the results files, and every public name has an example."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cogd

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


@pytest.mark.parametrize("name", [name for name in cogd.__all__ if not name.startswith("_")])
def test_every_public_name_has_an_example(name):
    assert doctest.DocTestParser().get_examples(getattr(cogd, name).__doc__)
