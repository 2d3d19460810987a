"""The 1797 handwritten digits that come inside scikit-learn: 8x8, grey, no download."""

import hashlib

import numpy as np
import torch

from cogd.training.data.memory import Images, MemoryData

TEST_IMAGES = 360


def load_digits() -> MemoryData:
    """Return 1437 training and 360 test images, always the same.

    >>> data = load_digits()
    >>> len(data.train), len(data.test)
    (1437, 360)
    """
    from sklearn.datasets import load_digits as load

    digits = load()
    pixels = np.round(digits.images * (255 / 16)).astype(np.uint8)
    labels = digits.target.astype(np.int64)
    order = np.random.RandomState(0).permutation(len(labels))  # the generator that no numpy release changes
    pixels, labels = pixels[order], labels[order]
    images = Images(torch.from_numpy(pixels).unsqueeze(1), torch.from_numpy(labels))
    return MemoryData(
        source="digits",
        train=Images(images.pixels[TEST_IMAGES:], images.labels[TEST_IMAGES:]),
        test=Images(images.pixels[:TEST_IMAGES], images.labels[:TEST_IMAGES]),
        classes=tuple("0123456789"),
        mean=(0.305,),
        std=(0.376,),
        fingerprint="digits-" + hashlib.sha256(pixels.tobytes() + labels.tobytes()).hexdigest()[:16],
    )
