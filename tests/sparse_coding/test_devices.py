"""The same results on a CUDA device as on the processor, to rounding."""

from itertools import islice

import numpy as np
import pytest
import torch
from conformance import needs_cuda
from textures import textured, unit_atoms

from cogd.sparse_coding import model
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
