import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image


@pytest.fixture(scope="session")
def fruit():
    """Three images of the fruit set as the paper prepares them, (3, 100, 100)."""
    from cogd.sparse_coding import normalize_contrast

    folder = Path(os.environ.get("COGD_DATA", "no-data")) / "csc" / "fruit"
    if not folder.is_dir():
        pytest.skip("needs the fruit set: set COGD_DATA to the folder that holds csc/fruit")
    images = [np.asarray(Image.open(folder / f"{i}.jpg").convert("L")) / 255 for i in (1, 2, 3)]
    return np.stack([normalize_contrast(image) for image in images])


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small tensors gain nothing from threads, and lose much where other processes want the cores too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def random():
    return np.random.default_rng(0)
