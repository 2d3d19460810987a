"""NVIDIA's service for several processes on a GPU, played by a script; whatever it does, the runs go on."""

import os

import pytest

from cogd.training import mps


@pytest.fixture
def control(tmp_path, monkeypatch):
    """Return what makes a shell script the control program; what it is told goes to the file `told`."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv(mps.FOLDERS[0], raising=False)

    def write(script: str) -> None:
        path = tmp_path / "nvidia-cuda-mps-control"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return write


TELLING = 'if [ "$1" = -d ]; then echo "begin in $CUDA_MPS_PIPE_DIRECTORY"; else cat; fi >> "$(dirname "$0")/told"'


def test_the_service_runs_meanwhile_and_is_told_to_quit(control, tmp_path):
    control(TELLING)
    with mps.side_by_side() as obstacle:
        assert obstacle is None
        folder = os.environ[mps.FOLDERS[0]]
        assert os.path.isdir(folder)
    assert (tmp_path / "told").read_text() == f"begin in {folder}\nquit\n"
    assert not os.path.exists(folder)
    assert not set(mps.FOLDERS) & set(os.environ)


def test_a_service_that_holds_on_to_its_streams_is_not_waited_for(control, monkeypatch):
    monkeypatch.setattr(mps, "SECONDS_TO_ANSWER", 1.0)
    control('[ "$1" = -d ] && sleep 3 &')
    with mps.side_by_side() as obstacle:
        assert obstacle is None


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ('[ "$1" = -d ] && exec sleep 60', "did not answer within 1 s"),
        ("echo no such device >&2; exit 1", "no such device"),
    ],
)
def test_a_service_that_fails_or_hangs_is_said_and_harmless(control, monkeypatch, script, reason):
    monkeypatch.setattr(mps, "SECONDS_TO_ANSWER", 1.0)
    control(script)
    with mps.side_by_side() as obstacle:
        assert obstacle is not None
        assert reason in obstacle
    assert not set(mps.FOLDERS) & set(os.environ)


def test_without_the_program_that_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(mps.FOLDERS[0], raising=False)
    with mps.side_by_side() as obstacle:
        assert obstacle == "nvidia-cuda-mps-control is not installed"


def test_a_service_that_somebody_runs_already_is_left_alone(control, monkeypatch, tmp_path):
    control(TELLING)
    monkeypatch.setenv(mps.FOLDERS[0], "/theirs")
    with mps.side_by_side() as obstacle:
        assert obstacle is None
    assert os.environ[mps.FOLDERS[0]] == "/theirs"
    assert not (tmp_path / "told").exists()
