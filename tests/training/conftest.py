import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    """Small tensors are quicker so, and a busy machine does not slow them down."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
