import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded():
    """Start every test from the same random state."""
    torch.manual_seed(0)
