"""NVIDIA's Multi-Process Service, with which the kernels of several processes run side by side on one GPU.

Without it a GPU gives each process turns, and several runs at once take as long as one after the other.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FOLDERS = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
SECONDS_TO_ANSWER = 20.0


@contextmanager
def side_by_side() -> Iterator[str | None]:
    """Let the processes that start meanwhile share the GPU; yield what prevents it, or None."""
    control = shutil.which("nvidia-cuda-mps-control")
    if FOLDERS[0] in os.environ:  # somebody runs the service already
        yield None
        return
    if control is None:
        yield "nvidia-cuda-mps-control is not installed"
        return
    with tempfile.TemporaryDirectory(prefix="cogd-mps-", ignore_cleanup_errors=True) as folder:
        os.environ |= dict.fromkeys(FOLDERS, folder)
        try:
            yield _refusal([control, "-d"])
        finally:
            _refusal([control], "quit\n")
            for name in FOLDERS:
                del os.environ[name]


def _refusal(command: list[str], said: str = "") -> str | None:
    """Run the control program and return why it did not do what it was told, or None.

    Its complaints go to a file: the service that it leaves behind may hold on to a pipe, whose end would never come.
    """
    with tempfile.TemporaryFile("w+") as complaints:
        how: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": complaints, "timeout": SECONDS_TO_ANSWER}
        try:
            done = subprocess.run(command, input=said, text=True, **how)
        except subprocess.TimeoutExpired:
            return f"nvidia-cuda-mps-control did not answer within {SECONDS_TO_ANSWER:.0f} s"
        except OSError as error:
            return f"nvidia-cuda-mps-control: {error}"
        complaints.seek(0)
        return f"nvidia-cuda-mps-control: {complaints.read().strip()}" if done.returncode else None
