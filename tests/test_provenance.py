"""What a results file says of where its numbers come from."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

import cogd.provenance
from cogd.provenance import provenance


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    return subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Pretend that the package lies in tmp_path/src/cogd."""
    file = tmp_path / "src/cogd/provenance.py"
    file.parent.mkdir(parents=True)
    file.touch()
    monkeypatch.setattr(cogd.provenance, "__file__", str(file))
    monkeypatch.delenv("COGD_COMMIT", raising=False)
    return file


def test_versions_are_those_of_the_running_packages():
    versions = provenance()["versions"]
    assert (versions["torch"], versions["cogd"]) == (torch.__version__, version("cogd"))


def test_the_command_says_nothing_of_where_this_machine_keeps_things(monkeypatch):
    root = Path(cogd.provenance.__file__).resolve().parents[2]
    data = ["--data=/home/me/photos", "--runs", f"{root}/runs/a b", "-n", "3", "folder:/mnt/x.zip"]
    monkeypatch.setattr(sys, "argv", [f"{root}/experiments/table.py", *data])
    said = "python experiments/table.py --data=photos --runs 'runs/a b' -n 3 folder:x.zip"
    assert provenance()["command"] == said
    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "argv", ["experiments/table.py"])
    assert provenance()["command"] == "python experiments/table.py"
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert provenance()["command"] is None


def test_the_commit_is_the_checkouts_and_marked_where_the_code_differs(module, monkeypatch):
    root = module.parents[2]
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "one")
    monkeypatch.setenv("COGD_COMMIT", "another")
    head = git(root, "rev-parse", "HEAD").strip()
    (root / "notes").touch()
    assert provenance()["commit"] == head
    module.write_text("changed")
    assert provenance()["commit"] == f"{head}+changes"


def test_without_a_history_the_commit_is_what_the_sender_says(module, monkeypatch):
    assert provenance()["commit"] is None
    monkeypatch.setenv("COGD_COMMIT", "abc123")
    assert provenance()["commit"] == "abc123"
    git(module.parents[0], "init", "-q")  # some other repository around the sources
    assert provenance()["commit"] == "abc123"
