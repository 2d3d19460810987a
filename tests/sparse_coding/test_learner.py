"""The estimator: protocol, containers, pictures in and out, files, and what is refused."""

import json
import math
import os
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch_file
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from textures import textured

from cogd.sparse_coding import ConvDictionaryLearner, from_sporco, kernels, model
from cogd.sparse_coding import learner as learner_module
from cogd.sparse_coding import signals as signals_module
from cogd.sparse_coding.checks import MEMORY_SHARE

SMALL: dict[str, Any] = {"n_atoms": 5, "atom_shape": (5, 5), "penalty": 0.3, "max_iter": 4, "random_state": 0}


@pytest.fixture
def images(random):
    return textured(random, 3, 24, 20)


@pytest.fixture
def learner(images):
    return ConvDictionaryLearner(**SMALL).fit(images)


def test_the_scikit_learn_protocol(images):
    learner = ConvDictionaryLearner(**SMALL)
    assert ConvDictionaryLearner(**learner.get_params()).get_params() == learner.get_params()
    assert learner.set_params(penalty=0.4).penalty == 0.4
    assert learner.fit(images) is learner
    copy = clone(learner)
    assert copy.get_params() == learner.get_params()
    with pytest.raises(NotFittedError):
        copy.transform(images)
    assert learner.fit_transform(images).shape == (3, 5, 28, 24)
    assert "ConvDictionaryLearner" in repr(learner)


def test_shapes_dtypes_and_feasible_atoms(learner, images):
    codes = learner.transform(images)
    assert learner.dictionary_.shape == (5, 1, 5, 5)
    assert np.sqrt((learner.dictionary_**2).sum((1, 2, 3))).max() <= 1 + 1e-6
    assert codes.shape == (3, 5, 28, 24)
    assert codes.dtype == learner.dictionary_.dtype == np.float32
    assert learner.inverse_transform(codes).shape == (3, 1, 24, 20)
    assert ConvDictionaryLearner(**SMALL, dtype="float64").fit_transform(images).dtype == np.float64


def test_history_is_graded_by_the_model(images):
    learner = ConvDictionaryLearner(**SMALL, dtype="float64").fit(images)
    objectives = [progress.objective for progress in learner.history_]
    assert learner.status_ == "max_iter"
    assert [progress.iteration for progress in learner.history_] == [1, 2, 3, 4]
    assert objectives == sorted(objectives, reverse=True)
    b, d = torch.from_numpy(images[:, None]), torch.from_numpy(learner.dictionary_)
    codes = torch.from_numpy(learner.transform(images))
    assert model.objective(b, torch.ones_like(b, dtype=torch.bool), d, codes, 0.3) <= objectives[-1] * (1 + 1e-3)


@pytest.mark.parametrize("setting", [{"tol": 0.5}, {"time_limit": 1e-9}, {"max_iter": 1}])
def test_what_stops_fit_is_said(images, setting):
    learner = ConvDictionaryLearner(**{**SMALL, **setting}).fit(images)
    assert learner.status_ in setting
    assert len(learner.history_) <= 3


def test_an_interrupt_leaves_the_last_dictionary(images):
    def interrupt(progress):
        if progress.iteration == 2:
            raise KeyboardInterrupt

    learner = ConvDictionaryLearner(**SMALL, on_progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        learner.fit(images)
    assert learner.status_ == "interrupted"
    expected = ConvDictionaryLearner(**{**SMALL, "max_iter": 2}).fit(images)
    np.testing.assert_array_equal(learner.dictionary_, expected.dictionary_)


def test_the_seed_decides(images, learner):
    again = ConvDictionaryLearner(**SMALL).fit(images)
    np.testing.assert_array_equal(again.dictionary_, learner.dictionary_)
    other = ConvDictionaryLearner(**{**SMALL, "random_state": 1}).fit(images)
    assert not np.array_equal(other.dictionary_, learner.dictionary_)


def test_warm_start_goes_on(images, learner):
    before = learner.history_[-1].objective
    learner.set_params(warm_start=True).fit(images)
    assert learner.history_[-1].objective < before


def test_hidden_pixels_change_nothing_bit_for_bit(images, random):
    observed = random.random(images.shape) < 0.6
    others = np.where(observed, images, np.nan)
    for smoothing in (0.0, 3.0):
        one, two = (
            ConvDictionaryLearner(**SMALL, smoothing=smoothing).fit(X, observed=observed) for X in (images, others)
        )
        np.testing.assert_array_equal(one.dictionary_, two.dictionary_)
        np.testing.assert_array_equal(
            one.transform(images, observed=observed), two.transform(others, observed=observed)
        )
        filled = one.inpaint(images, observed=observed), two.inpaint(others, observed=observed)
        np.testing.assert_array_equal(filled[0], filled[1])


def test_fit_transform_codes_what_was_observed_in_a_pipeline_too(images, random):
    observed = random.random(images.shape) < 0.6
    hidden = np.where(observed, images, np.nan)  # refused where `observed` gets lost on the way
    codes = ConvDictionaryLearner(**SMALL).fit(hidden, observed=observed).transform(hidden, observed=observed)
    np.testing.assert_array_equal(ConvDictionaryLearner(**SMALL).fit_transform(hidden, observed=observed), codes)
    pipeline = make_pipeline(ConvDictionaryLearner(**SMALL))
    np.testing.assert_array_equal(pipeline.fit_transform(hidden, convdictionarylearner__observed=observed), codes)


def test_containers_in_are_containers_out(images, learner):
    codes, tensor = learner.transform(images), torch.from_numpy(images)
    assert isinstance(learner.transform(tensor), torch.Tensor)
    np.testing.assert_array_equal(learner.transform(tensor), codes)
    as_list = learner.transform([images[0], images[1][:, :12]])
    assert [item.shape for item in as_list] == [(5, 28, 24), (5, 28, 16)]
    assert isinstance(learner.inpaint([tensor[0]], observed=[tensor[0] > 0])[0], torch.Tensor)
    assert learner.inpaint(images[:, None], observed=images[:, None] > 0).shape == (3, 1, 24, 20)
    back = learner.inverse_transform(as_list)
    assert [item.shape for item in back] == [(1, 24, 20), (1, 24, 12)]


def test_sparse_codes_are_the_dense_ones(images, learner):
    sparse = learner.transform(images, sparse=True)
    assert sparse.is_sparse
    np.testing.assert_array_equal(sparse.to_dense(), learner.transform(images))
    np.testing.assert_array_equal(learner.inverse_transform(sparse), learner.inverse_transform(sparse.to_dense()))


def test_inpaint_keeps_what_was_seen_and_fills_the_rest(images, random):
    observed = random.random(images.shape) < 0.7
    learner = ConvDictionaryLearner(**{**SMALL, "n_atoms": 20, "max_iter": 30}).fit(images, observed=observed)
    filled = learner.inpaint(images, observed=observed)
    assert filled.dtype == images.dtype == np.float64
    np.testing.assert_array_equal(filled[observed], images[observed])
    assert np.square(filled - images)[~observed].mean() < 0.5 * np.square(images)[~observed].mean()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_pictures_come_back_in_their_range_and_type(images, random, dtype):
    top = np.iinfo(dtype).max
    pictures = (np.clip(0.5 + 0.15 * images, 0, 1) * top).astype(dtype)
    observed = random.random(pictures.shape) < 0.7
    learner = ConvDictionaryLearner(**{**SMALL, "penalty": 0.02, "max_iter": 20}, smoothing=3.0)
    filled = learner.fit(pictures, observed=observed).inpaint(pictures, observed=observed)
    assert filled.dtype == dtype
    np.testing.assert_array_equal(filled[observed], pictures[observed])
    errors = np.abs(filled.astype(float) - pictures)[~observed] / top
    assert errors.mean() < 0.06
    whole = learner.reconstruct(pictures)
    assert whole.dtype == dtype
    assert np.abs(whole.astype(float) - pictures).mean() / top < 0.05


def test_grey_channels_that_repeat_code_as_one_scaled(images, learner):
    colour = np.repeat(images[:, None], 3, axis=1) / np.sqrt(3)
    three = ConvDictionaryLearner(**SMALL)
    three.dictionary_, three.penalty_ = np.repeat(learner.dictionary_, 3, axis=1) / np.float32(np.sqrt(3)), 0.3
    np.testing.assert_allclose(three.transform(colour), learner.transform(images), atol=2e-2)


def test_auto_penalty_is_a_tenth_of_lambda_max(images):
    learner = ConvDictionaryLearner(**{**SMALL, "penalty": "auto", "dtype": "float64"}).fit(images)
    atoms = learner_module.initial_atoms(list(images[:, None]), 5, (5, 5), np.random.RandomState(0))
    b = torch.from_numpy(images[:, None])
    largest = model.largest_penalty(b, torch.ones_like(b, dtype=torch.bool), torch.from_numpy(atoms))
    assert learner.penalty_ == pytest.approx(0.1 * largest)


def test_save_and_load(tmp_path, images, learner):
    learner.save(tmp_path / "d.safetensors")
    loaded = ConvDictionaryLearner.load(tmp_path / "d.safetensors")
    assert loaded.get_params() == learner.get_params()
    assert (loaded.penalty_, loaded.history_, loaded.status_) == (
        learner.penalty_,
        learner.history_,
        learner.status_,
    )
    np.testing.assert_array_equal(loaded.weights_, learner.weights_)
    np.testing.assert_array_equal(loaded.transform(images), learner.transform(images))
    assert [path.name for path in tmp_path.iterdir()] == ["d.safetensors"]


def test_files_that_hold_no_dictionary_are_refused(tmp_path, learner):
    path = tmp_path / "d.safetensors"
    with pytest.raises(FileNotFoundError, match=r"no file .*d\.safetensors"):
        ConvDictionaryLearner.load(path)
    learner.save(path)
    whole = path.read_bytes()
    for damaged in (b"", whole[:100], whole[:-10], b"\x80\x04pickle", b"\xff" * 300):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"d\.safetensors' is damaged"):
            ConvDictionaryLearner.load(path)
    save_file({"dictionary": learner.dictionary_}, path)
    with pytest.raises(ValueError, match="no dictionary written by"):
        ConvDictionaryLearner.load(path)
    good: dict[str, Any] = {"settings": learner.get_params(), "penalty": 1.0, "history": [], "status": "tol"}
    good["settings"].pop("on_progress")
    for atoms, about, message in [
        (learner.dictionary_ * np.nan, good, "NaN"),
        (learner.dictionary_ * 9, good, "norm at most 1"),
        (learner.dictionary_[0], good, "shape"),
        (learner.dictionary_, {**good, "penalty": -1}, "penalty must be"),
        (learner.dictionary_, {**good, "settings": {"n_atoms": 3}}, "describes no learner"),
        (learner.dictionary_, {**good, "settings": {**good["settings"], "n_atoms": 4}}, "not those of atoms of"),
        (
            learner.dictionary_,
            {**good, "settings": {**good["settings"], "atom_shape": [5, 4]}},
            "not those of atoms of",
        ),
        (learner.dictionary_, {**good, "settings": {**good["settings"], "on_progress": "x"}}, "that no file keeps"),
        (learner.dictionary_, {**good, "history": [["a", 0, 0, 0]]}, "describes no learner.*finite numbers"),
        (learner.dictionary_, {**good, "status": 3}, "or no status"),
        (learner.dictionary_, {**good, "settings": {**good["settings"], "evil": 1}}, "describes no learner"),
    ]:
        save_file(
            {"dictionary": atoms, "weights": np.ones(5)},
            path,
            {"format": "cogd-dictionary-1", "about": json.dumps(about)},
        )
        with pytest.raises(ValueError, match=message):
            ConvDictionaryLearner.load(path)


def test_numbers_that_numpy_has_not_are_refused(tmp_path, learner):
    path, halves = tmp_path / "d.safetensors", torch.from_numpy(learner.dictionary_).bfloat16()
    weights = torch.zeros(len(halves), dtype=torch.float64)
    save_torch_file({"dictionary": halves, "weights": weights}, path, {"format": "cogd-dictionary-1", "about": "{}"})
    refused = r"d\.safetensors' (is damaged or|must hold floating-point numbers of 32)"  # once ml_dtypes is imported
    with pytest.raises(ValueError, match=refused):
        ConvDictionaryLearner.load(path)


def test_a_fit_that_is_refused_leaves_the_results_of_the_last(images, learner, monkeypatch):
    before = learner.dictionary_, learner.weights_, learner.penalty_, learner.history_, learner.status_
    monkeypatch.setattr("cogd.sparse_coding.fitting.DENSE_COPIES", 10**12)
    with pytest.raises(MemoryError):
        learner.set_params(rule="paper", penalty=0.4).fit(images + 1)
    after = learner.dictionary_, learner.weights_, learner.penalty_, learner.history_, learner.status_
    assert all(one is other for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"penalty": 0}, "penalty must be a finite number > 0; got 0"),
        ({"penalty": -1.0}, "penalty must be"),
        ({"penalty": math.nan}, "penalty must be"),
        ({"penalty": "much"}, "penalty must be"),
        ({"n_atoms": 0}, "n_atoms must be an integer >= 1; got 0"),
        ({"n_atoms": 2.5}, "n_atoms"),
        ({"atom_shape": 11}, "atom_shape must be"),
        ({"atom_shape": (5, 0)}, "atom_shape"),
        ({"max_iter": 0}, "max_iter"),
        ({"tol": -1e-3}, "tol must be a finite number >= 0"),
        ({"time_limit": 0}, "time_limit"),
        ({"transform_tol": 0.0}, "transform_tol"),
        ({"smoothing": -1}, "smoothing"),
        ({"dtype": "float16"}, "dtype must be"),
        ({"atom_shape": (21, 5)}, "at least as large as an atom"),
    ],
)
def test_settings_out_of_range_are_refused(images, change, message):
    with pytest.raises(ValueError, match=message):
        ConvDictionaryLearner(**{**SMALL, **change}).fit(images[:, :20])


@pytest.mark.parametrize(
    ("X", "observed", "message"),
    [
        (np.ones((9, 9)), None, r"shape \(N, H, W\).*X\[None\]"),
        (np.ones((1, 1, 1, 9, 9)), None, "shape"),
        (np.ones((0, 9, 9)), None, "no images"),
        ([], None, "no images"),
        (np.ones((2, 0, 9)), None, "empty"),
        ([np.ones((9, 9)), np.ones((3, 9, 9))], None, "equally many channels"),
        (np.full((1, 9, 9), np.nan), None, "NaN or infinite"),
        (np.full((1, 9, 9), np.inf), None, "NaN or infinite"),
        (np.ones((1, 9, 9, 3)), None, "channels first"),
        (np.ones((1, 9, 9), bool), None, "boolean"),
        (np.ones((1, 9, 9), complex), None, "real numbers"),
        (torch.ones((1, 9, 9), dtype=torch.complex64), None, "real numbers; got dtype complex64"),
        (torch.ones((1, 9, 9), dtype=torch.bfloat16), None, r"X must hold numbers that NumPy has too; .* X\.float\(\)"),
        (np.ones((1, 9, 9), int), None, r"X\[0\] has dtype int64; .* X\.astype\(np\.uint8\)"),
        ([torch.ones((9, 9), dtype=torch.int32)], None, r"X\[0\] has dtype int32"),
        ([["a"]], None, "real numbers"),
        (np.ones((1, 9, 9)), np.ones((1, 9, 8), bool), r"observed\[0\] must have its image's shape"),
        (np.ones((2, 9, 9)), np.ones((1, 9, 9), bool), "one mask per image"),
        (np.ones((1, 9, 9)), np.ones((1, 9, 9)), "boolean, True where"),
        (np.ones((1, 9, 9)), np.zeros((1, 9, 9), bool), "no observed pixel"),
    ],
)
def test_images_that_cannot_be_coded_are_refused(X, observed, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ConvDictionaryLearner(**SMALL).fit(X, observed=observed)


def test_a_penalty_that_leaves_no_code_is_warned_of(images):
    with pytest.warns(UserWarning, match="all codes are zero: penalty=1e"):
        learner = ConvDictionaryLearner(**{**SMALL, "penalty": 1e6}).fit(images)
    assert np.isfinite(learner.dictionary_).all()


@pytest.mark.parametrize(("level", "smoothing"), [(0.0, 0.0), (0.0, 5.0), (0.5, 5.0), (1 / 3, 5.0)])
def test_images_with_nothing_to_learn(level, smoothing, random):
    blank, seen = np.full((2, 12, 14), level), random.random((2, 12, 14)) < 0.8
    for change in ({"penalty": "auto"}, {"solver": "ffcsc"}):
        with pytest.raises(ValueError, match=r"images that are not all blank; these are\. Check X and smoothing"):
            ConvDictionaryLearner(**{**SMALL, **change}, smoothing=smoothing).fit(blank, observed=seen)
    with pytest.warns(UserWarning, match="all codes are zero"):
        learner = ConvDictionaryLearner(**SMALL, smoothing=smoothing).fit(blank, observed=seen)
    with pytest.warns(UserWarning, match="all codes are zero"):
        np.testing.assert_allclose(learner.inpaint(blank, observed=seen), level if smoothing else 0, atol=1e-6)


@pytest.mark.parametrize("change", [{"penalty": "auto"}, {"penalty": 0.1}, {"penalty": 0.1, "solver": "ffcsc"}])
def test_constant_images(change):
    grey = np.full((2, 12, 14), 0.5)
    learner = ConvDictionaryLearner(**{**SMALL, "max_iter": 20, **change}).fit(grey)
    assert np.isfinite(learner.dictionary_).all()
    np.testing.assert_allclose(learner.reconstruct(grey), grey, atol=0.2)


def test_codes_that_would_not_fit_are_refused(images, learner, monkeypatch):
    monkeypatch.setattr("cogd.sparse_coding.signals.COPIES", 0)
    monkeypatch.setattr("cogd.sparse_coding.checks.free_memory", lambda: 1000.0)
    with pytest.raises(MemoryError, match="sparse=True"):
        learner.transform(images)
    assert learner.transform(images, sparse=True).is_sparse
    dense = np.prod(learner.transform(images, sparse=True).shape) * learner.dictionary_.itemsize
    monkeypatch.setattr("cogd.sparse_coding.checks.free_memory", lambda: 1.5 * dense / MEMORY_SHARE)
    with pytest.raises(MemoryError, match="sparse=True"):  # each image's, and the stack of them, are there at once
        learner.transform(images)
    for change in ({"solver": "ffcsc"}, {"rule": "paper"}):
        with pytest.raises(MemoryError, match="working_set"):
            ConvDictionaryLearner(**{**SMALL, **change}).fit(images)


def test_images_that_would_not_fit_are_refused_before_they_are_converted(images, monkeypatch):
    monkeypatch.setattr("cogd.sparse_coding.checks.free_memory", lambda: 1000.0)
    with pytest.raises(MemoryError, match=r"working on 3 images .* give batch_size"):
        ConvDictionaryLearner(**SMALL).fit(images)


def test_a_gpu_that_runs_out_of_memory_is_told_plainly(images, learner, monkeypatch):
    def out_of_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total")

    monkeypatch.setattr("cogd.sparse_coding.coding.new_working_set", out_of_memory)
    monkeypatch.setattr("cogd.sparse_coding.fitting.new_working_set", out_of_memory)
    monkeypatch.setattr("cogd.sparse_coding.online.new_working_set", out_of_memory)
    for method in (learner.transform, learner.reconstruct, learner.fit, learner.partial_fit):
        with pytest.raises(MemoryError, match=r'^CUDA out of memory\. Give fewer images .* or device="cpu"\.$'):
            method(images)


def test_images_that_would_not_fit_into_a_gpu_are_refused(images, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (1000, 1000))
    with pytest.raises(MemoryError, match=r"working on 3 images .* GiB on the GPU; .* give batch_size"):
        ConvDictionaryLearner(**SMALL).fit(images)


def test_the_memory_estimate_covers_the_peak(random):
    X = textured(random, 2, 256, 256).astype(np.float32)
    for smoothing in (0.0, 3.0):
        ConvDictionaryLearner(**SMALL, smoothing=smoothing).fit(X[:, :32])  # compiles
        tracemalloc.start()
        ConvDictionaryLearner(**{**SMALL, "penalty": 2.0, "max_iter": 2}, smoothing=smoothing).fit(X)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert 0.5 < peak / (signals_module.COPIES * X.nbytes) < 1.0, smoothing


def test_dictionaries_from_elsewhere(images, learner):
    theirs = learner.dictionary_[:, 0].transpose(1, 2, 0)  # sporco's order, (h, w, K)
    for atoms in (theirs, theirs[:, :, None], theirs[:, :, None, None]):
        given = ConvDictionaryLearner.from_atoms(from_sporco(atoms), 0.3)
        np.testing.assert_array_equal(given.transform(images), learner.transform(images))
    assert from_sporco(np.zeros((8, 7, 3, 5))).shape == (5, 3, 8, 7)
    with pytest.raises(ValueError, match=r"shape \(h, w, K\)"):
        from_sporco(np.zeros((8, 8)))
    with pytest.raises(ValueError, match="norm at most 1"):
        ConvDictionaryLearner.from_atoms(2 * learner.dictionary_, 0.3)


def test_numpys_own_numbers_are_numbers(images, tmp_path):
    own = {"penalty": np.float32(0.25), "tol": np.float64(1e-5), "n_atoms": np.int64(5), "random_state": np.int32(0)}
    learner = ConvDictionaryLearner(**{**SMALL, **own}).fit(images, checkpoint=tmp_path / "fit")
    learner.save(tmp_path / "d")
    same = ConvDictionaryLearner(**{**SMALL, "penalty": 0.25}).fit(images)
    np.testing.assert_array_equal(ConvDictionaryLearner.load(tmp_path / "d").dictionary_, same.dictionary_)


def test_denoise_names_the_penalty_it_used(images, learner):
    with pytest.warns(UserWarning, match=r"all codes are zero: penalty=3e\+06 is too large"):
        learner.denoise(images, noise=1e6)


def test_a_folder_for_kernels_that_cannot_be_written_is_told_with_the_remedy(monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("cannot cache function 'sweep': no locator available for file 'kernels.py'")

    monkeypatch.setattr(kernels, "njit", refuse)
    with pytest.raises(OSError, match=r"cannot keep compiled code: .* NUMBA_CACHE_DIR"):
        kernels.compiled(len)


KERNEL_IN_A_PROCESS = """
import numpy as np
from cogd.sparse_coding import kernels
best, found = np.array([1.0, 3.0, 2.0, 0.5], np.float32), np.empty(4, np.int64)
assert kernels.winners(best, 0, 2, 2, 2, 2, 0.1, found) == 1 and found[0] == 1
print(len(kernels.winners.stats.cache_hits), len(kernels.winners.stats.cache_misses))
"""


def test_a_second_process_compiles_nothing(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    said = [
        subprocess.run(
            [sys.executable, "-c", KERNEL_IN_A_PROCESS], env=environment, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert said == [["0", "1"], ["1", "0"]]


def test_wrong_channels_and_codes_are_refused(images, learner):
    with pytest.raises(ValueError, match="as many channels as the atoms, 1; got 3"):
        learner.transform(np.ones((1, 3, 9, 9)))
    with pytest.raises(ValueError, match="K = 5 atoms"):
        learner.inverse_transform(np.ones((1, 4, 9, 9)))
