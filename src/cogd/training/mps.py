"""NVIDIA's Multi-Process Service, with which the kernels of several processes run side by side on one GPU.

Without it a GPU gives each process turns, and several runs at once take as long as one after the other.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

FOLDERS = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")


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
            begun = subprocess.run([control, "-d"], capture_output=True, text=True, timeout=20)
            yield f"nvidia-cuda-mps-control: {begun.stderr.strip()}" if begun.returncode else None
        finally:
            subprocess.run([control], input="quit\n", capture_output=True, text=True, timeout=20)
            for name in FOLDERS:
                del os.environ[name]
