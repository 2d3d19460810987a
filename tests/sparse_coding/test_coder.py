"""The default solver: optimality, agreement with slow solvers, invariances, bit for bit where it matters."""

from itertools import islice

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso
from textures import textured, unit_atoms

from cogd.sparse_coding import coder, model
from cogd.sparse_coding import working_set as working_set_module
from cogd.sparse_coding.coder import encode, learn
from cogd.sparse_coding.working_set import Layout, WorkingSet


def solve(images, observed, atoms, penalty, tolerance=1e-6):
    """Return dense codes (N, K, rows, columns) of images (N, C, H, W)."""
    coding = encode(list(images), list(observed), atoms, penalty, tolerance)
    assert coding.converged
    return np.stack(coding.working_set.dense(len(atoms)))


def graded(grade, images, observed, atoms, codes, penalty):
    """Return what a function of `model` says of arrays."""
    return grade(*[torch.from_numpy(array) for array in (images, observed, atoms, codes)], penalty)


def gap(*arrays_and_penalty):
    return graded(model.optimality_gap, *arrays_and_penalty)


@pytest.mark.parametrize("shape", [(1, 5, 5), (2, 3, 6), (3, 11, 17), (1, 1, 1)])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_codes_are_optimal(random, shape, share):
    images, atoms = textured(random, 2, shape[0], 23, 31), unit_atoms(random, 7, *shape)
    observed = random.random(images.shape) < share
    codes = solve(images, observed, atoms, 0.3)
    assert np.count_nonzero(codes) > 20
    assert gap(images, observed, atoms, codes, 0.3) < 2e-6


@pytest.mark.parametrize("tolerance", [1e-1, 1e-2, 1e-3])
def test_the_tolerance_is_kept_in_float32(random, tolerance):
    images, atoms = textured(random, 2, 1, 40, 40).astype(np.float32), unit_atoms(random, 8, 1, 7, 7).astype(np.float32)
    observed = np.ones(images.shape, bool)
    codes = solve(images, observed, atoms, 0.3, tolerance)
    assert codes.dtype == np.float32
    assert gap(images, observed, atoms, codes, 0.3) < 1.1 * tolerance + 1e-4


def test_agrees_with_a_general_lasso_solver(random):
    image, atoms = textured(random, 1, 1, 6, 6), unit_atoms(random, 3, 1, 3, 3)
    observed = random.random(image.shape) < 0.8
    codes = solve(image, observed, atoms, 0.05, 1e-9)
    basis = torch.eye(codes.size, dtype=torch.float64).reshape(-1, *codes.shape[1:])
    matrix = model.reconstruct(torch.from_numpy(atoms), basis).reshape(codes.size, -1).T.numpy()[observed.ravel()]
    lasso = Lasso(alpha=0.05 / observed.sum(), fit_intercept=False, tol=1e-14, max_iter=10**6)
    lasso.fit(matrix, image[observed])  # scales its data term by 1 / samples
    ours = graded(model.objective, image, observed, atoms, codes, 0.05)
    theirs = 0.5 * ((image[observed] - matrix @ lasso.coef_) ** 2).sum() + 0.05 * np.abs(lasso.coef_).sum()
    assert ours == pytest.approx(theirs, rel=1e-9)


def test_hidden_pixels_change_nothing_bit_for_bit(random):
    images, atoms = textured(random, 3, 1, 20, 20), unit_atoms(random, 5, 1, 4, 4)
    observed = random.random(images.shape) < 0.6
    others = np.where(observed, images, random.standard_normal(images.shape) * 1e6)
    others[~observed & (random.random(images.shape) < 0.1)] = np.nan
    np.testing.assert_array_equal(solve(images, observed, atoms, 0.2), solve(others, observed, atoms, 0.2))


def test_permuting_images_permutes_codes(random):
    images, atoms = textured(random, 4, 1, 18, 22), unit_atoms(random, 5, 1, 4, 4)
    observed = random.random(images.shape) < 0.8
    order = [2, 0, 3, 1]
    codes, permuted = (solve(images[o], observed[o], atoms, 0.2, 1e-3) for o in (range(4), order))
    np.testing.assert_allclose(permuted, codes[order], atol=1e-3)


def test_images_of_different_sizes_do_not_disturb_one_another(random):
    sizes, atoms = [(15, 40), (33, 9), (8, 8)], unit_atoms(random, 4, 2, 5, 3)
    images = [textured(random, 1, 2, *size)[0] for size in sizes]
    observed = [random.random(image.shape) < 0.8 for image in images]
    together = encode(images, observed, atoms, 0.3, 1e-8).working_set.dense(4)
    for image, seen, codes in zip(images, observed, together, strict=True):
        np.testing.assert_allclose(solve(image[None], seen[None], atoms, 0.3, 1e-8)[0], codes, atol=1e-6)


def test_the_result_does_not_depend_on_the_number_of_threads(random, monkeypatch):
    images, atoms = textured(random, 2, 1, 200, 30), unit_atoms(random, 6, 1, 5, 5)
    observed, results = np.ones(images.shape, bool), []
    for threads in (1, 3):
        monkeypatch.setattr(working_set_module, "cores", lambda threads=threads: threads)
        working_set = WorkingSet(list(images), list(observed), atoms.shape[1:])
        results.append(next(islice(learn(working_set, atoms, 0.3), 3, None)))
    np.testing.assert_array_equal(results[0], results[1])


def test_strips_that_run_together_share_no_pixel():
    layout = Layout.of([(900, 20), (30, 30)], (1, 80, 3))
    strips = layout.strips()
    assert sum(bottom - top for _, top, bottom in strips) == 900 + 79 + 30 + 79
    for (i, _, end), (j, begin, _) in zip(strips, strips[2:], strict=False):
        assert i != j or begin >= end + 80 - 1


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_learning_never_raises_the_objective_and_keeps_atoms_feasible(random, share):
    images, atoms = textured(random, 3, 1, 30, 30), unit_atoms(random, 6, 1, 5, 5)
    observed = random.random(images.shape) < share
    working_set, values = WorkingSet(list(images), list(observed), atoms.shape[1:]), []
    for improved in islice(learn(working_set, atoms, 0.3), 25):
        codes = np.stack(working_set.dense(6))
        values.append(graded(model.objective, images, observed, improved, codes, 0.3))
        assert working_set.objective(0.3) == pytest.approx(values[-1], rel=1e-9)
        assert np.sqrt((improved**2).sum((1, 2, 3))).max() <= 1 + 1e-12
    assert max(np.diff(values)) <= 1e-9 * values[0]
    assert values[-1] < 0.9 * values[0]


def test_learning_ends_where_neither_side_can_improve_alone(random):
    images, atoms = textured(random, 2, 1, 24, 24), unit_atoms(random, 4, 1, 5, 5)
    observed = random.random(images.shape) < 0.8
    working_set = WorkingSet(list(images), list(observed), atoms.shape[1:])
    improved = next(islice(learn(working_set, atoms, 0.5), 2999, None))
    codes = np.stack(working_set.dense(4))
    assert gap(images, observed, improved, codes, 0.5) < 2 * coder.LEARNING_TOLERANCE
    d = torch.from_numpy(improved).requires_grad_()
    r = model.residual(torch.from_numpy(images), torch.from_numpy(observed), d, torch.from_numpy(codes))
    (gradient,) = torch.autograd.grad(0.5 * r.square().sum(), d)
    step = d.detach() - 1e-3 * gradient
    projected = step / step.square().sum((1, 2, 3), keepdim=True).sqrt().clamp(min=1)
    assert ((projected - d).abs().max() / 1e-3).item() < 1e-3 * gradient.abs().max().item()


def test_a_blank_image_has_no_codes(random):
    images = np.zeros((1, 1, 12, 12))
    coding = encode(list(images), [np.ones((1, 12, 12), bool)], unit_atoms(random, 3, 1, 3, 3), 0.1)
    assert coding.converged
    assert coding.working_set.nonzeros == 0
