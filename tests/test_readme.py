"""The README's examples run."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()


@pytest.mark.filterwarnings("error")
def test_the_examples_run_in_order(capsys):
    examples = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    namespace: dict[str, object] = {}
    for example in examples:
        exec(compile(example, "README.md", "exec"), namespace)
    assert "ProjectionStats" in capsys.readouterr().out
