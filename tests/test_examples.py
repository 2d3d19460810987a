"""Every example runs, draws the picture that its page shows, and those with a framework stay short."""

import re
import runpy
import sys
from hashlib import sha256
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
PAGES = ("imaging", "pruning", "training", "optimization")
INTEGRATIONS = {  # what each prints, and above which the largest number in it must be: gates opened, an accuracy
    "with_accelerate": (r"opened=(\d+)", 0),
    "with_amp": (r"opened=(\d+)", 0),
    "with_lightning": (r"'open gates/[^']+': ([\d.]+)", 0),
    "with_sklearn": (r"accuracy ([\d.]+)", 0.5),
    "with_transformers": (r"opened=(\d+)", 0),
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run an example in an empty folder, as `python examples/NAME.py ARGUMENTS` does."""
    monkeypatch.chdir(tmp_path)

    def run_example(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")

    yield run_example
    plt.close("all")


def test_no_example_is_left_out():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*PAGES, *INTEGRATIONS}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_s_example_draws_its_picture(name, run, tmp_path, capsys):
    run(name, "--quick")
    assert capsys.readouterr().out
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_what_the_pages_show_was_made_by_the_scripts_as_they_are():
    """After a change to a script, `make examples` makes pictures, texts and these sums anew."""
    lines = (EXAMPLES.parent / "docs/examples/sha256.txt").read_text().splitlines()
    sums = {name: digest for digest, name in map(str.split, lines)}
    assert sums == {f"{name}.py": sha256((EXAMPLES / f"{name}.py").read_bytes()).hexdigest() for name in PAGES}


# Lightning uses what PyTorch has deprecated; the Trainer pins memory for an accelerator that isn't there.
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
@pytest.mark.filterwarnings("ignore:The '.*dataloader' does not have many workers")
@pytest.mark.parametrize("name", INTEGRATIONS)
def test_an_integration_is_short_and_works(name, run, capsys):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 40
    run(name)
    pattern, least = INTEGRATIONS[name]
    assert max(map(float, re.findall(pattern, capsys.readouterr().out)), default=-1.0) > least


def test_the_imaging_example_takes_a_photograph_of_one_s_own(run, tmp_path):
    from PIL import Image
    from skimage import data

    Image.fromarray(data.astronaut()[:80, :100]).save(tmp_path / "photo.jpg")
    run("imaging", "photo.jpg", "--quick")
    assert (tmp_path / "imaging.png").exists()
