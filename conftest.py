"""What holds for every test, doctests in the package among them."""

import signal

import pytest
import torch

collect_ignore = ["src/cogd/sparse_coding/tile_kernels.py"]  # imports Triton, which there is only with a GPU


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Small tensors gain nothing from threads, and lose much where other processes want the cores too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # for processes that tests start
        yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="session")
def _interruptible():
    """Take SIGINT as in a terminal, also where a shell started the tests in the background and had it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _reproducible():
    """Start every test from the same random state, with convolutions that give the same bits each time."""
    torch.manual_seed(0)
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        yield
