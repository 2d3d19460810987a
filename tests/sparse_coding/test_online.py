"""Learning batch by batch: what it comes to, what it remembers, and what it holds in memory."""

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from textures import textured

from cogd.sparse_coding import ConvDictionaryLearner
from cogd.sparse_coding.online import FADING, OnlineRun

SMALL: dict[str, Any] = {"n_atoms": 6, "atom_shape": (5, 5), "penalty": 0.3, "random_state": 0, "dtype": "float64"}


class Made(Sequence[np.ndarray]):
    """Images that exist only while they are looked at."""

    def __init__(self, count, side):
        self.images, self.side = count, side

    def __len__(self):
        return self.images

    def __getitem__(self, i):
        if i >= self.images:
            raise IndexError(i)
        return textured(np.random.default_rng(i), 1, self.side, self.side)[0]


@pytest.fixture
def images(random):
    return textured(random, 9, 24, 24)


def test_it_learns_what_holds_for_other_images_too(images):
    held_out = Made(4, 24)
    start = ConvDictionaryLearner(**SMALL, max_iter=1).fit(images)  # its one iteration moves no atom
    online = ConvDictionaryLearner(**SMALL, batch_size=3, max_iter=24).fit(images)
    whole = ConvDictionaryLearner(**SMALL, max_iter=30).fit(images)
    scores = [learner.score(held_out) for learner in (start, online, whole)]
    assert scores[1] - scores[0] > 0.8 * (scores[2] - scores[0])
    assert np.sqrt((online.dictionary_**2).sum((1, 2, 3))).max() <= 1 + 1e-9
    assert len(online.history_) == 24


def test_partial_fit_weighs_a_batch_by_its_share(images):
    learner = ConvDictionaryLearner(**SMALL).partial_fit(images[:3])
    before, weights = learner.dictionary_, learner.weights_
    assert (learner.status_, len(learner.history_), learner.penalty_) == ("partial_fit", 1, 0.3)
    learner.partial_fit(images[3:5])
    batch = learner.weights_ - FADING * weights
    assert (batch >= 0).all()
    heavy = ConvDictionaryLearner(**SMALL).partial_fit(images[:3])
    heavy.weights_ = weights * 1e6
    heavy.partial_fit(images[3:5])
    light = np.abs(learner.dictionary_ - before).max()
    assert 0 < np.abs(heavy.dictionary_ - before).max() < 1e-4 * light


def test_partial_fit_goes_on_from_fit(images):
    learner = ConvDictionaryLearner(**SMALL, max_iter=10).fit(images[:6])
    before = learner.dictionary_
    assert learner.weights_ == pytest.approx((learner.transform(images[:6]) ** 2).sum((0, 2, 3)), rel=0.2)
    learner.partial_fit(images[6:])
    assert 0 < np.abs(learner.dictionary_ - before).max() < 0.5
    assert len(learner.history_) == 11
    with pytest.raises(ValueError, match="as many channels"):
        learner.partial_fit(np.ones((1, 3, 24, 24)))


@pytest.mark.parametrize("change", [{"rule": "paper"}, {"solver": "ffcsc"}])
def test_partial_fit_refuses_what_it_would_not_do(images, change):
    with pytest.raises(ValueError, match='partial_fit works with solver="working_set" and rule=None only'):
        ConvDictionaryLearner(**{**SMALL, **change}).partial_fit(images[:2])


def test_an_unused_atom_stays_as_it_is(images):
    learner = ConvDictionaryLearner(**SMALL).partial_fit(images[:2])
    learner.dictionary_[3] = 0
    learner.partial_fit(images[2:4])
    assert not learner.dictionary_[3].any()


def test_hidden_pixels_change_nothing_bit_for_bit(images, random):
    observed = random.random(images.shape) < 0.6
    others = np.where(observed, images, np.nan)
    one, two = (ConvDictionaryLearner(**SMALL).partial_fit(X, observed=observed) for X in (images, others))
    np.testing.assert_array_equal(one.dictionary_, two.dictionary_)
    one, two = (
        ConvDictionaryLearner(**SMALL, batch_size=5, max_iter=4).fit(X, observed=observed) for X in (images, others)
    )
    np.testing.assert_array_equal(one.dictionary_, two.dictionary_)


def test_every_image_comes_once_in_a_pass():
    run = OnlineRun(lambda _: pytest.fail("not read"), 7, 3, np.zeros(1), 1.0, seed=5, device="cpu")
    passes = [[i for n in range(3 * p, 3 * p + 3) for i in run.batch(n)] for p in range(2)]
    assert [sorted(order) for order in passes] == [list(range(7))] * 2
    assert passes[0] != passes[1]
    assert [len(run.batch(n)) for n in range(3)] == [3, 3, 1]


def test_memory_does_not_grow_with_the_number_of_images():
    """Over a whole pass, so that what a batch would leave behind adds up."""
    settings = {**SMALL, "batch_size": 2, "dtype": "float32"}
    ConvDictionaryLearner(**settings, max_iter=1).fit(Made(2, 40))
    peaks = []
    for count in (10, 110):
        tracemalloc.start()
        ConvDictionaryLearner(**settings, max_iter=count // 2).fit(Made(count, 40))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    image = 8 * 40 * 40
    assert peaks[1] < peaks[0] + 15 * image  # Python's own stock of freed tuples, and the history; not 100 more images


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an integer >= 1; got 0"),
        ({"batch_size": 2, "rule": "paper"}, "rule=None only"),
        ({"batch_size": 2, "solver": "ffcsc"}, 'solver="working_set"'),
    ],
)
def test_settings_out_of_range_are_refused(images, change, message):
    with pytest.raises(ValueError, match=message):
        ConvDictionaryLearner(**{**SMALL, **change}).fit(images)
