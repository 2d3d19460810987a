import os
from pathlib import Path

import numpy as np
import pytest
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


@pytest.fixture
def random():
    return np.random.default_rng(0)
