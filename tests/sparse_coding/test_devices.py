"""The same results on a CUDA device as on the processor, to rounding."""

from itertools import islice

import numpy as np
import pytest
import torch
from conformance import needs_cuda
from textures import textured, unit_atoms

from cogd.sparse_coding import ConvDictionaryLearner, model
from cogd.sparse_coding.code_projection import CodeProjection
from cogd.sparse_coding.ffcsc import FFCSC, learn_ffcsc


@pytest.fixture
def problem(random):
    images, atoms = textured(random, 2, 1, 22, 18), unit_atoms(random, 6, 1, 5, 4)
    return images, random.random(images.shape) < 0.8, atoms


@needs_cuda
def test_convolutions_are_not_in_reduced_precision(random):
    atoms, codes = (torch.from_numpy(random.standard_normal(s)) for s in ((64, 3, 11, 11), (1, 64, 60, 60)))
    exact = model.reconstruct(atoms, codes)
    ours = model.reconstruct(atoms.float().cuda(), codes.float().cuda()).cpu().double()
    assert (ours - exact).norm() < 2e-6 * exact.norm()


@needs_cuda
@pytest.mark.parametrize("rule", [None, "paper", "descent", "rollback"])
def test_ffcsc_on_a_gpu(problem, rule):
    images, observed, atoms = problem
    results = []
    for device in ("cpu", "cuda"):
        solver = FFCSC(list(images), list(observed), atoms, 0.3, device)
        projection = None if rule is None else CodeProjection(rule, 1, 1.0)
        results.append((next(islice(learn_ffcsc(solver, projection), 5, None)), solver.codes.cpu().numpy()))
        assert solver.codes.device.type == solver.atoms.device.type == device
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-9)


@needs_cuda
@pytest.mark.parametrize("kind", [{}, {"rule": "paper"}, {"solver": "ffcsc"}, {"batch_size": 2}], ids=str)
def test_the_learner_on_a_gpu(problem, tmp_path, kind):
    images, observed, _ = problem
    settings = {"n_atoms": 6, "atom_shape": (5, 4), "max_iter": 8, "random_state": 0, "dtype": "float64", **kind}
    on_gpu, on_cpu = (
        ConvDictionaryLearner(**settings, device=device).fit(images, observed=observed) for device in ("cuda", "cpu")
    )
    assert on_gpu.penalty_ == pytest.approx(on_cpu.penalty_, rel=1e-9)
    assert on_gpu.history_[-1].objective == pytest.approx(on_cpu.history_[-1].objective, rel=0.05)
    on_gpu.save(tmp_path / "atoms")
    on_gpu.transform_tol = 1e-3
    codes = on_gpu.transform(images, observed=observed)
    elsewhere = ConvDictionaryLearner.load(tmp_path / "atoms").set_params(device="cpu", transform_tol=1e-3)
    np.testing.assert_allclose(
        on_gpu.score(images, observed=observed), elsewhere.score(images, observed=observed), 1e-6
    )
    np.testing.assert_allclose(codes, elsewhere.transform(images, observed=observed), atol=0.02)
    filled = on_gpu.inpaint(images, observed=observed)
    np.testing.assert_array_equal(filled[observed], images[observed])


@needs_cuda
@pytest.mark.parametrize("kind", [{}, {"rule": "paper"}, {"solver": "ffcsc"}, {"batch_size": 1}], ids=str)
def test_resumed_on_a_gpu_is_never_stopped(problem, tmp_path, kind):
    def interrupt(progress):
        if progress.iteration == 3:
            raise KeyboardInterrupt

    images, settings = problem[0], {"tol": 0.0, "max_iter": 6, "random_state": 0, "device": "cuda", **kind}
    with pytest.raises(KeyboardInterrupt):
        ConvDictionaryLearner(6, (5, 4), 0.3, **settings, on_progress=interrupt).fit(images, checkpoint=tmp_path / "f")
    resumed = ConvDictionaryLearner(6, (5, 4), 0.3, **settings).fit(images, checkpoint=tmp_path / "f")
    whole = ConvDictionaryLearner(6, (5, 4), 0.3, **settings).fit(images)
    np.testing.assert_array_equal(resumed.dictionary_, whole.dictionary_)


def test_a_device_that_is_not_there_is_refused(problem, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match='device="cuda" needs a GPU that PyTorch can use; there is none'):
        ConvDictionaryLearner(device="cuda").fit(problem[0])
    with pytest.raises(ValueError, match=r"device must be .*; got 'tpu'"):
        ConvDictionaryLearner().set_params(device="tpu").fit(problem[0])
