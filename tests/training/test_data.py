"""Data as they are distributed; damage is named before training begins."""

import hashlib
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cogd.training.data import cifar10, load_data
from cogd.training.data.digits import load_digits
from cogd.training.data.memory import Images
from cogd.training.recipe import Recipe

RECIPE = Recipe(epochs=1, batch_size=10, lr=0.1)
CPU = torch.device("cpu")


def test_the_digits_are_scikit_learns():
    from sklearn import datasets

    data, theirs = load_digits(), datasets.load_digits()
    assert data.train.pixels.shape == (1437, 1, 8, 8)
    assert data.test.pixels.shape == (360, 1, 8, 8)
    pixels = torch.cat([data.test.pixels, data.train.pixels]).numpy().reshape(-1, 64)
    assert sorted(map(bytes, pixels)) == sorted(map(bytes, np.round(theirs.data * 255 / 16).astype(np.uint8)))
    assert torch.cat([data.test.labels, data.train.labels]).bincount().tolist() == np.bincount(theirs.target).tolist()
    assert data.fingerprint == "digits-1319974c9194a131"


def test_what_convolutions_make_of_the_digits_can_be_viewed_as_rows():
    for batches in load_digits().batches(RECIPE, CPU):
        inputs, _ = next(iter(batches))
        assert torch.nn.functional.conv2d(inputs, torch.ones(2, 1, 3, 3)).is_contiguous()


def test_an_epoch_shows_every_image_at_most_once_and_repeats_with_the_seed():
    data = load_digits()
    train, test = data.batches(RECIPE, CPU)

    def epoch(seed):
        torch.manual_seed(seed)
        batches = list(train)
        assert len(batches) == len(train) == 143
        return torch.cat([inputs for inputs, _ in batches]), torch.cat([targets for _, targets in batches])

    inputs, targets = epoch(0)
    assert (
        len({row.numpy().tobytes() for row in inputs}) == len({row.numpy().tobytes() for row in data.train.pixels}) - 7
    )
    assert all(torch.equal(a, b) for a, b in zip(epoch(0), (inputs, targets), strict=True))
    assert not torch.equal(epoch(1)[1], targets)
    assert torch.equal(torch.cat([targets for _, targets in test]), data.test.labels)


def test_labels_stay_with_their_images():
    data = load_digits()
    train, _ = data.batches(RECIPE, CPU)
    label_of = {
        row.numpy().tobytes(): int(label) for row, label in zip(data.train.pixels, data.train.labels, strict=True)
    }
    for inputs, targets in train:
        pixels = ((inputs * 0.376 + 0.305) * 255).round().to(torch.uint8)
        assert [label_of[row.numpy().tobytes()] for row in pixels] == targets.tolist()


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match=r"at most the number of training images, 1437; got 2000"):
        load_digits().batches(Recipe(epochs=1, batch_size=2000, lr=0.1), CPU)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("digit", ValueError, "Did you mean 'digits'"),
        ("digits:there", ValueError, "takes no folder"),
        ("cifar10", FileNotFoundError, "must name what exists, as in cifar10:DIR"),
        ("cifar10:/nowhere", FileNotFoundError, "'/nowhere' does not"),
    ],
)
def test_sources_that_name_nothing(source, error, message):
    with pytest.raises(error, match=message):
        load_data(source)


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_label_out_of_range_is_refused_wherever_it_is(part):
    data = load_digits()
    images: Images = getattr(data, part)
    images = Images(images.pixels, images.labels.clone())
    images.labels[-1] = 10
    name = {"train": "training", "test": "test"}[part]
    with pytest.raises(ValueError, match=f"labels must be from 0 to 9.*the {name} part of digits has 10"):
        replace(data, train=images) if part == "train" else replace(data, test=images)


@pytest.fixture
def records(monkeypatch):
    """CIFAR-10 with 20 images a file, and its checksums."""
    monkeypatch.setattr(cifar10, "RECORDS", 20)
    rng = np.random.default_rng(0)
    files = {}
    for name in cifar10.CHECKSUMS:
        labels = rng.integers(10, size=(20, 1), dtype=np.uint8)
        files[name] = np.concatenate([labels, rng.integers(256, size=(20, 3072), dtype=np.uint8)], axis=1)
    sums = {name: hashlib.sha256(rows.tobytes()).hexdigest() for name, rows in files.items()}
    monkeypatch.setattr(cifar10, "CHECKSUMS", sums)
    return files


def write_binary(folder: Path, records):
    for name, rows in records.items():
        (folder / f"{name}.bin").write_bytes(rows.tobytes())


def write_python(folder: Path, records):
    """Write what Python 2's cPickle would: a dictionary with strings, an array and a list, in protocol 2."""
    for name, rows in records.items():
        batch = {
            b"batch_label": b"training batch",
            b"labels": rows[:, 0].tolist(),
            b"data": rows[:, 1:].copy(),
            b"filenames": [b"a.png"] * len(rows),
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


@pytest.mark.parametrize("write", [write_binary, write_python])
def test_cifar10_in_both_layouts(tmp_path, records, write):
    write(tmp_path, records)
    data = cifar10.load_cifar10(tmp_path)
    rows = np.concatenate(list(records.values()))
    assert torch.equal(torch.cat([data.train.labels, data.test.labels]), torch.from_numpy(rows[:, 0].astype(np.int64)))
    pixels = torch.cat([data.train.pixels, data.test.pixels])
    assert pixels.shape == (120, 3, 32, 32)
    assert torch.equal(pixels.flatten(1), torch.from_numpy(rows[:, 1:].copy()))
    inputs, _ = next(iter(data.batches(RECIPE, CPU)[1]))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (data.mean, data.std))
    torch.testing.assert_close(inputs, (data.test.pixels.float() / 255 - mean) / std)


@pytest.mark.parametrize("write", [write_binary, write_python])
def test_a_changed_file_is_refused_by_its_checksum(tmp_path, records, write):
    records["data_batch_3"][5, 100] ^= 1
    write(tmp_path, records)
    with pytest.raises(ValueError, match=r"data_batch_3.* is not CIFAR-10's data_batch_3 .*sha256"):
        cifar10.load_cifar10(tmp_path)


def test_missing_and_foreign_files_are_named(tmp_path, records):
    write_binary(tmp_path, records)
    (tmp_path / "test_batch.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"neither test_batch\.bin nor test_batch in"):
        cifar10.load_cifar10(tmp_path)
    (tmp_path / "test_batch").write_bytes(b"\x80\x02not a pickle")
    with pytest.raises(ValueError, match="test_batch is not a batch of CIFAR-10's python layout"):
        cifar10.load_cifar10(tmp_path)


def test_a_pickle_is_read_without_running_it(tmp_path, records):
    class Payload:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "touched",))

    write_python(tmp_path, records)
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"labels": Payload(), b"data": b""}, protocol=2))
    with pytest.raises(ValueError, match="holds no 20 labelled images"):
        cifar10.load_cifar10(tmp_path)
    assert not (tmp_path / "touched").exists()


@pytest.mark.slow
@pytest.mark.skipif("COGD_CIFAR10" not in os.environ, reason="COGD_CIFAR10 names no folder with CIFAR-10")
def test_the_real_cifar10():
    data = cifar10.load_cifar10(Path(os.environ["COGD_CIFAR10"]))
    assert data.train.labels.bincount().tolist() == [5000] * 10
    assert data.test.labels.bincount().tolist() == [1000] * 10
    pixels = data.train.pixels.float() / 255
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(data.mean, abs=1e-3)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx(data.std, abs=1e-3)
