import numpy as np
import pytest
import torch
from scipy.signal import convolve2d

from cogd.sparse_coding import model


@pytest.fixture
def problem(random):
    """Images, observed, dictionary and sparse codes of odd sizes, two channels, in float64."""
    images, dictionary = random.standard_normal((2, 2, 9, 12)), random.standard_normal((3, 2, 4, 3))
    codes = random.standard_normal((2, 3, 12, 14)) * (random.random((2, 3, 12, 14)) < 0.2)
    observed = random.random((2, 2, 9, 12)) < 0.7
    return tuple(map(torch.from_numpy, (images, observed, dictionary, codes)))


def test_reconstruct_is_the_valid_part_of_the_true_convolution(problem):
    _, _, dictionary, codes = problem
    out = model.reconstruct(dictionary, codes)
    assert out.shape == (2, 2, 9, 12)
    for n in range(2):
        for c in range(2):
            parts = [convolve2d(codes[n, k], dictionary[k, c], mode="valid") for k in range(3)]
            np.testing.assert_allclose(out[n, c], sum(parts), atol=1e-12)


def test_adjoint(problem):
    images, _, dictionary, codes = problem
    forward = (model.reconstruct(dictionary, codes) * images).sum()
    assert forward.item() == pytest.approx((codes * model.adjoint(dictionary, images)).sum().item(), rel=1e-12)


def test_codes_gradient_is_autograds(problem):
    images, observed, dictionary, codes = problem
    codes = codes.clone().requires_grad_()
    loss = 0.5 * model.residual(images, observed, dictionary, codes).square().sum()
    (expected,) = torch.autograd.grad(loss, codes)
    torch.testing.assert_close(model.codes_gradient(images, observed, dictionary, codes.detach()), expected)


def test_objective_counts_observed_pixels_only(problem):
    images, observed, dictionary, codes = problem
    elsewhere = torch.where(observed, images, torch.nan)
    assert model.objective(elsewhere, observed, dictionary, codes, 0.3) == model.objective(
        images, observed, dictionary, codes, 0.3
    )
    by_hand = 0.5 * ((images - model.reconstruct(dictionary, codes))[observed] ** 2).sum() + 0.3 * codes.abs().sum()
    assert model.objective(images, observed, dictionary, codes, 0.3) == pytest.approx(by_hand.item())


def test_zero_codes_are_optimal_from_the_largest_penalty_on(problem):
    images, observed, dictionary, codes = problem
    largest = model.largest_penalty(images, observed, dictionary)
    zero = torch.zeros_like(codes)
    assert model.optimality_gap(images, observed, dictionary, zero, largest) == 0
    assert model.optimality_gap(images, observed, dictionary, zero, 0.99 * largest) > 0
    assert model.duality_gap(images, observed, dictionary, zero, largest) == pytest.approx(0, abs=1e-12)
