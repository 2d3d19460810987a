"""A fit that was interrupted and goes on is the fit that was never stopped, bit for bit."""

from typing import Any

import numpy as np
import pytest
from textures import textured

from cogd.sparse_coding import ConvDictionaryLearner, checkpoint

SMALL: dict[str, Any] = {"n_atoms": 5, "atom_shape": (5, 4), "penalty": 0.3, "tol": 0.0, "random_state": 0}
KINDS: list[dict[str, Any]] = [
    {},
    {"rule": "descent"},
    {"rule": "rollback"},
    {"solver": "ffcsc"},
    {"solver": "ffcsc", "rule": "paper", "order": 2},
    {"batch_size": 2},
    {"batch_size": 2, "random_state": None},
]


@pytest.fixture
def images(random):
    return textured(random, 3, 24, 20)


def stopped_after(iterations):
    """Return a callback that interrupts as Ctrl-C does."""

    def interrupt(progress):
        if progress.iteration == iterations:
            raise KeyboardInterrupt

    return interrupt


def without_times(learner):
    return [progress._replace(seconds=0.0) for progress in learner.history_]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_resumed_is_never_stopped(images, random, tmp_path, kind, monkeypatch):
    observed, path = random.random(images.shape) < 0.8, tmp_path / "fit"
    settings = {**SMALL, "max_iter": 13, **kind}
    if settings["random_state"] is None:
        monkeypatch.setattr(np.random.mtrand, "_rand", np.random.RandomState(3))
    whole = ConvDictionaryLearner(**settings).fit(images, observed=observed)
    if settings["random_state"] is None:
        monkeypatch.setattr(np.random.mtrand, "_rand", np.random.RandomState(3))
    for stop in (4, 11):
        learner = ConvDictionaryLearner(**settings, on_progress=stopped_after(stop))
        with pytest.raises(KeyboardInterrupt):
            learner.fit(images, observed=observed, checkpoint=path)
        assert (len(learner.history_), learner.status_) == (stop, "interrupted")
    resumed = ConvDictionaryLearner(**settings).fit(images, observed=observed, checkpoint=path)
    np.testing.assert_array_equal(resumed.dictionary_, whole.dictionary_)
    np.testing.assert_array_equal(resumed.weights_, whole.weights_)
    assert without_times(resumed) == without_times(whole)
    assert resumed.history_[-1].seconds > resumed.history_[10].seconds > 0
    assert list(tmp_path.iterdir()) == []


def test_limits_may_change_and_nothing_else(images, tmp_path):
    path = tmp_path / "fit"
    with pytest.raises(KeyboardInterrupt):
        ConvDictionaryLearner(**SMALL, on_progress=stopped_after(2)).fit(images, checkpoint=path)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"penalty": 0.4}, "with penalty changed"),
        ({"n_atoms": 6, "random_state": 1}, "with n_atoms, random_state changed"),
    ]
    for change, message in changes:
        with pytest.raises(ValueError, match=message):
            ConvDictionaryLearner(**{**SMALL, **change}).fit(images, checkpoint=path)
    with pytest.raises(ValueError, match="with other images changed"):
        ConvDictionaryLearner(**SMALL).fit(images[:2], checkpoint=path)
    assert len(ConvDictionaryLearner(**SMALL, max_iter=3).fit(images, checkpoint=path).history_) == 3
    assert not path.exists()


def test_damaged_checkpoints_are_refused_and_kept(images, tmp_path):
    path = tmp_path / "fit"
    with pytest.raises(KeyboardInterrupt):
        ConvDictionaryLearner(**SMALL, on_progress=stopped_after(2)).fit(images, checkpoint=path)
    whole = path.read_bytes()
    for damaged in (b"", whole[:200], b"\x80\x04pickle"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="is damaged"):
            ConvDictionaryLearner(**SMALL).fit(images, checkpoint=path)
        assert path.read_bytes() == damaged
    ConvDictionaryLearner(**SMALL, max_iter=1).fit(images).save(path)
    with pytest.raises(ValueError, match="is no checkpoint of a fit"):
        ConvDictionaryLearner(**SMALL).fit(images, checkpoint=path)


def test_a_lost_process_costs_at_most_the_time_between_writes(images, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 0.0)

    def die(progress):
        if progress.iteration == 3:
            raise RuntimeError("lost")

    path = tmp_path / "fit"
    with pytest.raises(RuntimeError, match="lost"):
        ConvDictionaryLearner(**SMALL, on_progress=die).fit(images, checkpoint=path)
    resumed = ConvDictionaryLearner(**SMALL, max_iter=5).fit(images, checkpoint=path)
    whole = ConvDictionaryLearner(**SMALL, max_iter=5).fit(images)
    np.testing.assert_array_equal(resumed.dictionary_, whole.dictionary_)


def test_a_checkpoint_that_cannot_be_written_says_so(images, tmp_path):
    with pytest.raises(OSError, match="cannot write"):
        ConvDictionaryLearner(**SMALL, on_progress=stopped_after(2)).fit(images, checkpoint=tmp_path / "none" / "fit")
