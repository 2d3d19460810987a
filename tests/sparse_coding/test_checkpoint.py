"""A fit that was interrupted and goes on is the fit that was never stopped, bit for bit."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from textures import textured

from cogd.sparse_coding import ConvDictionaryLearner, checkpoint, storage

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


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_resumed_is_never_stopped(random, tmp_path, kind, channels, monkeypatch):
    images = textured(random, 3, channels, 24, 20)
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


@pytest.mark.parametrize("kind", [{}, {"rule": "paper"}, {"solver": "ffcsc"}, {"batch_size": 2}], ids=str)
def test_malicious_checkpoints_are_refused_before_a_compiled_loop_reads_them(images, tmp_path, kind):
    """Every array in turn absent, of another shape, type or range: a message, and the learner as it was."""
    path, settings = tmp_path / "fit", {**SMALL, **kind, "max_iter": 4}
    with pytest.raises(KeyboardInterrupt):
        ConvDictionaryLearner(**settings, on_progress=stopped_after(2)).fit(images, checkpoint=path)
    arrays, about = storage.read_arrays(path, storage.CHECKPOINT)
    far = np.iinfo(np.int64).max

    def refused(changed, about=about):
        storage.write_arrays(path, storage.CHECKPOINT, changed, about)
        learner = ConvDictionaryLearner(**settings)
        with pytest.raises(ValueError, match=r"fit' is damaged: .*\. Delete it to start anew"):
            learner.fit(images, checkpoint=path)
        assert not hasattr(learner, "dictionary_")

    for name, array in arrays.items():
        refused({n: a for n, a in arrays.items() if n != name})
        refused({**arrays, name: array[:-1]})
        refused({**arrays, name: array[None]})
        refused({**arrays, name: array.astype(np.int8)})
        refused({**arrays, name: array * np.nan if array.dtype.kind == "f" else -1 - array})
    for name in {"position", "image", "atom"} & set(arrays):
        for place, number in ((0, -1), (-1, far), (-1, 5 * 28 * 24 * 100)):
            changed = arrays[name].copy()
            changed[place] = number if name == "position" else min(number, 2**31 - 1)
            refused({**arrays, name: changed})
    if "position" in arrays:
        refused({**arrays, "position": arrays["position"][::-1].copy()})
        refused({**arrays, "image": arrays["image"][::-1].copy()})
        refused({**arrays, "residual": np.ones_like(arrays["residual"])})
    changes: list[dict[str, Any]] = [
        {"history": []},
        {"history": [["a", 1, 1, 1, 1]]},
        {"history": [[1]]},
        {"history": [[1, 1e999, 1, 1, 1]]},
        {"penalty": "much"},
        {"identity": None},
        {"identity": {}},
    ]
    for change in changes:
        refused(arrays, {**about, **change})
    storage.write_arrays(path, storage.CHECKPOINT, arrays, about)
    assert len(ConvDictionaryLearner(**settings).fit(images, checkpoint=path).history_) == 4


def test_a_checkpoint_may_stay_until_the_result_is_saved(images, tmp_path):
    path, whole = tmp_path / "fit", ConvDictionaryLearner(**SMALL, max_iter=4).fit(images)
    for max_iter in (3, 3, 4, 2):
        learner = ConvDictionaryLearner(**SMALL, max_iter=max_iter).fit(images, checkpoint=path, keep_checkpoint=True)
        assert (learner.status_, path.exists()) == ("max_iter", True)
    assert without_times(learner) == without_times(whole)  # what is complete is not gone on from
    np.testing.assert_array_equal(learner.dictionary_, whole.dictionary_)


def test_whatever_breaks_a_fit_off_leaves_its_checkpoint(images, tmp_path):
    """An image of a later batch that cannot be read, as one removed from a folder in the meantime."""

    class Vanishing(Sequence):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            if len(looks) == 7:
                raise ValueError("'3.png' is damaged")
            looks.append(i)
            return images[i]

    looks, path = list[int](), tmp_path / "fit"
    settings = {**SMALL, "batch_size": 1, "max_iter": 9}
    with pytest.raises(ValueError, match=r"3\.png"):
        ConvDictionaryLearner(**settings).fit(Vanishing(), checkpoint=path)
    looks = [0] * 8
    resumed = ConvDictionaryLearner(**settings).fit(Vanishing(), checkpoint=path)
    np.testing.assert_array_equal(resumed.dictionary_, ConvDictionaryLearner(**settings).fit(images).dictionary_)


def test_a_lost_process_costs_at_most_the_time_between_writes(images, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN", 0.0)
    path = tmp_path / "fit"

    def copy(progress):
        if progress.iteration == 3:
            (tmp_path / "then").write_bytes(path.read_bytes())

    ConvDictionaryLearner(**SMALL, max_iter=4, on_progress=copy).fit(images, checkpoint=path)
    (tmp_path / "then").rename(path)
    resumed = ConvDictionaryLearner(**SMALL, max_iter=5).fit(images, checkpoint=path)
    whole = ConvDictionaryLearner(**SMALL, max_iter=5).fit(images)
    np.testing.assert_array_equal(resumed.dictionary_, whole.dictionary_)


def test_a_checkpoint_that_cannot_be_written_says_so(images, tmp_path):
    with pytest.raises(OSError, match="cannot write"):
        ConvDictionaryLearner(**SMALL, on_progress=stopped_after(2)).fit(images, checkpoint=tmp_path / "none" / "fit")
