"""`cogd` and `cogd beale`."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from cogd import __version__, toy
from cogd.cli import app

FIELDS = {"x1", "x2", "value", "length", "outcome"}


@pytest.fixture
def cogd(tmp_path, monkeypatch):
    """Run the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


def test_module_help():
    done = subprocess.run([sys.executable, "-m", "cogd", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "beale" in done.stdout
    assert "demo" in done.stdout


def test_version(cogd):
    assert cogd("--version").stdout.strip() == f"cogd {__version__}"


def test_help_teaches(cogd):
    text = cogd("beale", "--help").stdout
    assert "cogd beale --grid 41 --json" in text
    for option in ("--rule", "--order", "--scale", "--steps", "--start", "--grid", "--output", "--json"):
        assert option in text


def test_beale_prints_a_table_and_writes_the_figure(cogd, tmp_path):
    done = cogd("beale", "--steps", 20)
    assert done.exit_code == 0, done.output
    assert "Momentum + CoGD" in done.stdout
    assert "Figure: runs/beale.png" in done.stdout
    assert (tmp_path / "runs" / "beale.png").read_bytes().startswith(b"\x89PNG")


def test_beale_json_is_what_the_library_says(cogd):
    done = cogd("beale", "--start", -1, 0.5, "--scale", 1, "--order", 2, "--rule", "paper", "--json", "-o", "b.svg")
    printed = json.loads(done.stdout)
    assert set(printed) == set(toy.LEARNING_RATES)
    assert set(printed["sgd"]["plain"]) == FIELDS
    path = toy.paths(toy.positions([(-1.0, 0.5)]), "adam", rule="paper", order=2, scale=1.0)
    assert printed["adam"]["cogd"]["value"] == float(toy.final_values(path))


def test_beale_over_a_grid(cogd, tmp_path):
    done = cogd("beale", "--grid", 5, "--steps", 30, "--json", "-o", "map.png")
    assert json.loads(done.stdout)["momentum"]["starts"] == 25
    assert (tmp_path / "map.png").exists()
    assert "F lower" in cogd("beale", "--grid", 3, "--steps", 5).stdout


def test_diverged_paths_are_shown_as_such(cogd):
    done = cogd("beale", "--start", 4.5, 4.5)
    assert done.exit_code == 0, done.output
    assert "diverged" in done.stdout
    ending = json.loads(cogd("beale", "--start", 4.5, 4.5, "--json").stdout)["sgd"]["plain"]
    assert ending == {**dict.fromkeys(FIELDS), "outcome": "diverged"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rule", "rollback", "--scale", "1"], "takes no order or scale"),
        (["--rule", "sideways"], "descent"),
        (["--order", "0"], "order must be an integer >= 1"),
        (["--scale", "-1"], "scale must be a finite number >= 0"),
        (["--steps", "0"], "--steps"),
        (["--grid", "1"], "--grid"),
        (["--grid", "5", "--start", "1", "1"], "exclude each other"),
        (["--start", "nan", "1"], "two finite numbers"),
        (["-o", "figure.txt"], ".png, .svg, .pdf"),
    ],
)
def test_usage_errors_are_one_paragraph_and_exit_with_2(cogd, arguments, message):
    done = cogd("beale", *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.output
    assert done.stdout == ""
