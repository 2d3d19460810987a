"""Images in class folders and zips: complete, in order, the same however many workers decode them."""

import io
import json
import logging
import os
import shutil
import signal
import struct
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from cogd.cli import app
from cogd.training import Recipe, fit, read_recipe
from cogd.training.data import folder as folder_module
from cogd.training.data.folder import MEAN, STD, DecodedImages, load_folder, middle_box, random_box

RECIPE = Recipe(epochs=1, batch_size=4, lr=0.1, image_size=8, eval_batch_size=3)
CPU = torch.device("cpu")


def picture(shade: int, width: int = 20, height: int = 12) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (width, height), (shade, 255 - shade, 100)).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def images(tmp_path):
    """Ten training images and five of test, two classes, each of its own shade."""
    root = tmp_path / "set"
    for split, count in (("train", 10), ("val", 5)):
        for i in range(count):
            path = root / split / ("cat", "dog")[i % 2] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture(10 * i))
    return root


def shades(inputs: torch.Tensor) -> list[int]:
    """Return the red bytes of one-coloured images."""
    red = (inputs[:, 0] * STD[0] + MEAN[0]) * 255
    assert (red - red[:, :1, :1]).abs().max() < 1e-3
    return red[:, 0, 0].round().int().tolist()


def test_every_test_image_once_in_order_and_training_images_shuffled_with_their_labels(images):
    data = load_folder(images)
    assert data.classes == ("cat", "dog")
    train, test = data.batches(RECIPE, CPU)
    assert (len(train), len(test)) == (2, 2)
    inputs, labels = (torch.cat(parts) for parts in zip(*test, strict=True))
    assert shades(inputs) == [0, 20, 40, 10, 30]
    assert labels.tolist() == [0, 0, 0, 1, 1]
    epochs = []
    for seed in (0, 1, 0):
        torch.manual_seed(seed)
        inputs, labels = (torch.cat(parts) for parts in zip(*train, strict=True))
        assert inputs.shape == (8, 3, 8, 8)
        assert len(set(shades(inputs))) == 8
        assert [(shade // 10) % 2 for shade in shades(inputs)] == labels.tolist()
        epochs.append(shades(inputs))
    assert epochs[0] == epochs[2] != epochs[1]


def test_a_zip_holds_the_same_whatever_its_top_folder(images, tmp_path):
    from_folder = load_folder(images)
    for name, root in (("flat", images), ("nested", images.parent)):
        shutil.make_archive(str(tmp_path.parent / name), "zip", root)
        from_zip = load_folder(tmp_path.parent / f"{name}.zip")
        assert (from_zip.train, from_zip.fingerprint) == (from_folder.train, from_folder.fingerprint)
        for ours, theirs in zip(from_zip.batches(RECIPE, CPU)[1], from_folder.batches(RECIPE, CPU)[1], strict=True):
            assert torch.equal(ours[0], theirs[0])


def test_the_number_of_workers_changes_nothing(images, monkeypatch):
    epochs = []
    for workers in (1, 3):
        monkeypatch.setattr(folder_module.os, "sched_getaffinity", lambda _, workers=workers: set(range(workers)))
        recipe = read_recipe(RECIPE, flip=True, cutout=2, crop=1)
        train, _ = load_folder(images).batches(recipe, CPU)
        torch.manual_seed(0)
        epochs.append(torch.cat([inputs for inputs, _ in train]))
    assert torch.equal(*epochs)


def test_boxes_lie_within_the_image_and_have_their_area_and_ratio():
    generator = np.random.default_rng(0)
    for width, height in ((100, 80), (30, 500)):
        left, upper, right, lower = np.array([random_box(width, height, *generator.random(4)) for _ in range(500)]).T
        assert min(left.min(), upper.min()) >= 0
        assert right.max() <= width + 1e-9
        assert lower.max() <= height + 1e-9
        assert ((right - left) * (lower - upper)).min() > 0.04 * width * height * min(width / height, 1)
    assert middle_box(100, 60) == (50 - 26.25, 30 - 26.25, 50 + 26.25, 30 + 26.25)
    square = [random_box(100, 100, area, 0.5, 0.5, 0.5) for area in (0.0, 0.5)]
    assert [(box[2] - box[0]) * (box[3] - box[1]) for box in square] == pytest.approx([800, 5400])


def test_images_that_do_not_decode_are_named_replaced_in_training_and_left_out_of_the_test(images, caplog):
    (images / "train/cat/4.png").write_bytes(b"no image")
    (images / "val/dog/1.png").write_bytes(picture(10)[:40])
    train, test = load_folder(images).batches(read_recipe(RECIPE, bad_images=0.3, batch_size=5), CPU)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            seen = [shade for inputs, _ in train for shade in shades(inputs)]
            assert len(seen) == 10
            assert 40 not in seen
        assert [shade for inputs, _ in test for shade in shades(inputs)] == [0, 20, 40, 30]
    assert [record.args[0] for record in caplog.records] == ["train/cat/4.png", "val/dog/1.png"]


def test_too_many_bad_images_stop_the_run(images):
    (images / "train/cat/4.png").write_bytes(b"no image")
    train, _ = load_folder(images).batches(read_recipe(RECIPE, bad_images=0.05, batch_size=5), CPU)
    with pytest.raises(ValueError, match=r"1 of 10 images do not decode.*bad_images = 0\.05: train/cat/4\.png"):
        list(train)


class Raising:
    """An archive in which no image can be read, or that holds nothing but one picture."""

    def __init__(self, content: Exception | bytes):
        self.content = content

    def sizes(self) -> dict[str, int]:
        return {}

    def folders(self) -> list[str]:
        return []

    def read(self, name: str) -> bytes:
        if isinstance(self.content, bytes):
            return self.content
        raise self.content


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (struct.error("unpack requires a buffer of 4 bytes"), "unpack requires"),
        (EOFError(), "EOFError"),
        (NotImplementedError("compression type 9"), "compression type 9"),
        (picture(10, 200, 120), "could be decompression bomb"),
    ],
)
def test_whatever_is_wrong_with_an_image_is_said_by_the_worker(monkeypatch, content, reason):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    pixels, label, name, wrong = DecodedImages(Raising(content), [("train/cat/1.png", 3)], 8)[0, None]
    assert (pixels, label, name) == (None, 3, "train/cat/1.png")
    assert reason in wrong


def test_an_encrypted_image_in_a_zip_counts_as_bad(images, tmp_path, caplog):
    """The flag alone makes it so: zipfile cannot encrypt."""
    path = tmp_path / "encrypted.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for image in sorted(images.rglob("*.png")):
            archive.write(image, image.relative_to(images))
        [info] = [info for info in archive.infolist() if info.filename == "val/dog/1.png"]
        info.flag_bits |= 1
    content = bytearray(path.read_bytes())
    content[info.header_offset + 6] |= 1
    path.write_bytes(content)
    _, test = load_folder(path).batches(read_recipe(RECIPE, bad_images=0.3), CPU)
    with caplog.at_level(logging.WARNING):
        assert [shade for inputs, _ in test for shade in shades(inputs)] == [0, 20, 40, 30]
    assert "val/dog/1.png" in caplog.text
    assert "password required" in caplog.text


def test_a_batch_without_an_image_is_refused(images):
    for path in (images / "val/cat").iterdir():
        path.write_bytes(b"no image")
    _, test = load_folder(images).batches(read_recipe(RECIPE, bad_images=1.0), CPU)
    with pytest.raises(ValueError, match=r"not one image of a batch decodes: val/cat/0\.png"):
        list(test)


def empty_class(root):
    (root / "train/bird").mkdir()


def empty_test_class(root):
    for path in (root / "val/dog").iterdir():
        path.unlink()


def unsupported_class(root):
    (root / "train/bird").mkdir()
    (root / "train/bird/1.heic").write_bytes(b"ftypheic")


def stranger(root):
    (root / "val/cat").rename(root / "val/cow")


def no_test(root):
    shutil.rmtree(root / "val")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (empty_class, "no image in the class folder train/bird; fill or remove it"),
        (empty_test_class, "no image in the class folder val/dog"),
        (unsupported_class, r"no image in the class folder train/bird.*Images are files that end in \.bmp"),
        (stranger, "classes that training lacks: cow"),
        (no_test, "no images as val/CLASS/IMAGE or validation/CLASS/IMAGE or test/CLASS/IMAGE"),
    ],
)
def test_what_is_missing_is_said_before_training(images, tmp_path, damage, message):
    damage(images)
    for name, root in (("flat", images), ("nested", images.parent)):
        shutil.make_archive(str(tmp_path.parent / name), "zip", root)
    for path in (images, tmp_path.parent / "flat.zip", tmp_path.parent / "nested.zip"):
        with pytest.raises(ValueError, match=message):
            load_folder(path)


def test_recipes_that_do_not_fit_folders(images, tmp_path):
    with pytest.raises(ValueError, match="image_size must be set"):
        load_folder(images).batches(Recipe(epochs=1, batch_size=4, lr=0.1), CPU)
    with pytest.raises(ValueError, match="at most the number of training images, 10; got 11"):
        load_folder(images).batches(read_recipe(RECIPE, batch_size=11), CPU)
    (tmp_path / "not.zip").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"not\.zip is not a sound zip file"):
        load_folder(tmp_path / "not.zip")


def test_a_run_on_a_zip_resumes_exactly(images, tmp_path):
    shutil.make_archive(str(tmp_path / "set"), "zip", images)
    recipe = read_recipe(RECIPE, epochs=2, flip=True)

    def network():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))

    def attempt(name, stop_at=None):
        def after_step(state):
            if state.step == stop_at:
                os.kill(os.getpid(), signal.SIGINT)

        model = network()
        source = f"folder:{tmp_path / 'set.zip'}"
        return model, fit(model, source, recipe, folder=tmp_path / name, after_step=after_step, progress=False)

    whole, _ = attempt("whole")
    assert attempt("run", stop_at=3)[1].status == "stopped"
    resumed, result = attempt("run")
    assert result.status == "complete"
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


def train_and_evaluate(archive, folder, *options):
    """Return the metrics of `cogd train` and those of `cogd evaluate`."""
    commands = (
        ("train", "--data", f"folder:{archive}", "--epochs", "1", "-o", str(folder), *options),
        ("evaluate", str(folder)),
    )
    done = [CliRunner().invoke(app, [*command, "--device", "cpu", "--json"]) for command in commands]
    assert [result.exit_code for result in done] == [0, 0], [result.output for result in done]
    return [json.loads(result.stdout) for result in done]


def test_the_command_line_trains_on_a_zip_and_evaluates(images, tmp_path):
    shutil.make_archive(str(tmp_path / "set"), "zip", images)
    options = ("--image-size", "32", "--batch-size", "4", "--eval-batch-size", "3")
    trained, evaluated = train_and_evaluate(tmp_path / "set.zip", tmp_path / "run", *options)
    assert evaluated == trained
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert (config["model"]["name"], config["recipe"]["flip"]) == ("resnet18_imagenet", True)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif("COGD_DATA" not in os.environ, reason="COGD_DATA names no folder with imagenette128.zip")
def test_the_command_line_trains_on_imagenette_and_evaluates(tmp_path):
    archive = f"{os.environ['COGD_DATA']}/imagenette128.zip"
    trained, evaluated = train_and_evaluate(archive, tmp_path / "run", "--image-size", "48", "--lr", "0.05")
    assert evaluated == pytest.approx(trained)
    assert trained["accuracy"] > 0.2  # ten classes


@pytest.mark.slow
@pytest.mark.skipif("COGD_DATA" not in os.environ, reason="COGD_DATA names no folder with imagenette128.zip")
def test_imagenette_decodes_whole():
    path = f"{os.environ['COGD_DATA']}/imagenette128.zip"
    data = load_folder(folder_module.Path(path))
    with zipfile.ZipFile(path) as archive:
        assert len(data.train) + len(data.test) == sum(name.endswith(".webp") for name in archive.namelist())
    train, test = data.batches(Recipe(epochs=1, batch_size=100, lr=0.1, image_size=64, bad_images=0.0), CPU)
    assert sum(len(targets) for _, targets in train) == 9400
    assert sum(len(targets) for _, targets in test) == len(data.test)
