"""The dictionaries that come with CoGD: what they are, how they were made, and what they restore."""

import json

import numpy as np
import pytest
from skimage import data
from skimage.restoration import inpaint_biharmonic
from typer.testing import CliRunner

from cogd.cli import app
from cogd.sparse_coding.atoms import check_atoms
from cogd.sparse_coding.coding import SHIPPED
from cogd.sparse_coding.learner import ConvDictionaryLearner
from cogd.sparse_coding.metrics import psnr
from cogd.sparse_coding.pictures import read_picture, write_picture
from cogd.sparse_coding.storage import read_dictionary

NAMES = {1: "grey", 3: "colour"}


@pytest.mark.parametrize("channels", NAMES)
def test_what_is_shipped(channels):
    path = SHIPPED / f"{NAMES[channels]}.safetensors"
    learner = ConvDictionaryLearner.shipped(channels)
    check_atoms(learner.dictionary_)
    assert learner.dictionary_.shape == (learner.n_atoms, channels, *learner.atom_shape)
    assert learner.dictionary_.dtype == np.float32
    assert learner.smoothing > 0
    assert learner.weights_.all()
    assert path.stat().st_size < 300_000
    *_, about = read_dictionary(path)
    assert about["command"] == "python experiments/shipped_dictionaries.py"


def test_others_than_grey_and_colour_are_refused():
    with pytest.raises(ValueError, match="channels must be 1 or 3"):
        ConvDictionaryLearner.shipped(2)


def test_hidden_pixels_come_back_better_than_by_smoothness(random):
    """Camera was never learned from. Measured on 2026-11-19: 27.52 dB against 27.17."""
    picture = data.camera()[100:196, 180:276]
    observed = random.random(picture.shape) < 0.5
    restored = ConvDictionaryLearner.shipped().inpaint(picture[None], observed=observed[None])[0]
    np.testing.assert_array_equal(restored[observed], picture[observed])
    smooth = 255 * inpaint_biharmonic(np.where(observed, picture, 0), ~observed)
    assert psnr(picture, restored, 255, ~observed) > psnr(picture, smooth, 255, ~observed) + 0.2


@pytest.mark.parametrize("channels", NAMES)
def test_the_command_without_a_dictionary(channels, tmp_path):
    picture = data.astronaut()[60:124, 180:244].transpose(2, 0, 1)[:channels]
    write_picture(tmp_path / "photo.png", picture)
    arguments = ["inpaint", tmp_path / "photo.png", "--missing", "0.5", "-o", tmp_path / "out.png", "--json"]
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["psnr"] > 20
    assert read_picture(tmp_path / "out.png").shape == picture.shape
