"""CIFAR-10 as its authors distribute it, in the binary or the python layout, every file verified by its checksum."""

import hashlib
import pickletools
from pathlib import Path

import numpy as np
import torch

from cogd.training.data.memory import Images, MemoryData

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
RECORDS, PIXELS = 10_000, 3 * 32 * 32
CHECKSUMS = {  # of the binary layout; the python layout is verified by the same bytes, put together from its parts
    "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}


def load_cifar10(folder: Path) -> MemoryData:
    """Return the 50 000 training and 10 000 test images in `folder`.

    >>> load_cifar10(Path("elsewhere"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileNotFoundError: found neither data_batch_1.bin nor data_batch_1 in elsewhere. Give the folder that holds ...
    """
    batches = [_verified(folder, name) for name in CHECKSUMS]
    return MemoryData(
        source=f"cifar10:{folder}",
        train=_images(np.concatenate(batches[:-1])),
        test=_images(batches[-1]),
        classes=CLASSES,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        fingerprint="cifar10-" + CHECKSUMS["test_batch"][:16],
    )


def _images(records: np.ndarray) -> Images:
    pixels = records[:, 1:].reshape(-1, 3, 32, 32)
    return Images(torch.from_numpy(pixels.copy()), torch.from_numpy(records[:, 0].astype(np.int64)))


def _verified(folder: Path, name: str) -> np.ndarray:
    """Return a batch as rows of 1 label and 3072 pixels."""
    binary, python = folder / f"{name}.bin", folder / name
    if binary.is_file():
        path, content = binary, binary.read_bytes()
    elif python.is_file():
        path, content = python, records_in_pickle(python.read_bytes(), python)
    else:
        raise FileNotFoundError(
            f"found neither {binary.name} nor {python.name} in {folder}. Give the folder that holds the unpacked "
            "cifar-10-binary.tar.gz or cifar-10-python.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html."
        )
    if (found := hashlib.sha256(content).hexdigest()) != CHECKSUMS[name]:
        raise ValueError(
            f"{path} ({len(content)} bytes, sha256 {found[:16]}...) is not CIFAR-10's {name} "
            f"({RECORDS * (1 + PIXELS)} bytes, sha256 {CHECKSUMS[name][:16]}...). Unpack the archive again."
        )
    return np.frombuffer(content, np.uint8).reshape(RECORDS, 1 + PIXELS)


def records_in_pickle(content: bytes, path: Path) -> bytes:
    """Return a batch of the python layout in the binary layout, reading the pickle's strings without running it.

    The pixels are the one string of their size, and the labels the numbers that follow the word "labels".
    """
    pixels, labels, in_labels = None, bytearray(), False
    try:
        for opcode, argument, _ in pickletools.genops(content):
            if isinstance(argument, str | bytes):
                in_labels = argument in ("labels", b"labels")
                if len(argument) == RECORDS * PIXELS:
                    pixels = argument if isinstance(argument, bytes) else argument.encode("latin-1")
            elif in_labels and isinstance(argument, int) and opcode.name in ("BININT1", "BININT"):
                labels.append(argument)
    except ValueError as error:
        raise ValueError(f"{path} is not a batch of CIFAR-10's python layout: {error}.") from error
    if pixels is None or len(labels) != RECORDS:
        raise ValueError(f"{path} is not a batch of CIFAR-10's python layout: it holds no {RECORDS} labelled images.")
    rows = np.frombuffer(pixels, np.uint8).reshape(RECORDS, PIXELS)
    return np.concatenate([np.frombuffer(labels, np.uint8)[:, None], rows], axis=1).tobytes()
