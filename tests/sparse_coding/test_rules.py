"""The paper's baseline and its rules: against slow literal versions, and what must reduce to what."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from textures import textured, unit_atoms

from cogd.sparse_coding import ConvDictionaryLearner, model
from cogd.sparse_coding.code_projection import CodeProjection, code_betas, open_atoms, step_size
from cogd.sparse_coding.coder import encode, learn
from cogd.sparse_coding.ffcsc import FFCSC, learn_ffcsc
from cogd.sparse_coding.working_set import WorkingSet


@pytest.fixture
def problem(random):
    images, atoms = textured(random, 2, 1, 22, 18), unit_atoms(random, 6, 1, 5, 4)
    return images, random.random(images.shape) < 0.8, atoms


def test_betas_against_loops(random):
    image, observed = random.standard_normal((1, 6, 5)), random.random((1, 6, 5)) < 0.8
    atoms, change = unit_atoms(random, 2, 1, 3, 2), random.standard_normal((2, 1, 3, 2))
    x, x_change = random.standard_normal((2, 2, 8, 6))
    x_change[random.random(x_change.shape) < 0.3] = 0
    for order in (1, 2, 3):
        d, delta_d, z, delta_z = (torch.from_numpy(array) for array in (atoms, change, x, x_change))
        residual = model.residual(torch.from_numpy(image[None]), torch.from_numpy(observed[None]), d, z[None])[0]
        betas = code_betas(residual, delta_d, z, delta_z, -0.1, order)
        g = np.where(observed, model.reconstruct(d, z[None])[0].numpy() - image, 0)[0]
        g = np.pad(g, ((2, 2), (1, 1)))
        for k in range(2):
            for row in range(8):
                for column in range(6):
                    patch, moved = g[row : row + 3, column : column + 2], x_change[k, row, column]
                    slope = np.ones((3, 2)) if moved == 0 else change[k, 0] / moved  # r_kp = delta A_k / delta x_kp
                    beta = -0.1 * (patch * slope).sum() ** order
                    expected = beta if order == 1 else np.clip(beta, -1, 1)
                    assert betas[k, row, column].item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_the_gate_opens_for_little_used_atoms_with_much_to_correct():
    codes = [torch.tensor([[[0.0, 1.0]], [[3.0, 4.0]], [[1.0, 0.0]], [[0.5, 0.5]]])]  # l1 norms 1, 7, 1, 1; mean 2.5
    betas = [torch.tensor([[[-5.0, 0.0]], [[9.0, 9.0]], [[0.1, 0.0]], [[2.0, -2.0]]])]  # 5, 18, 0.1, 4; median 4.5
    assert open_atoms(codes, betas).tolist() == [True, False, False, False]


def test_step_size_bounds_the_curvature(random):
    atoms = torch.from_numpy(unit_atoms(random, 3, 2, 3, 3))
    basis = torch.eye(3 * 8 * 9, dtype=torch.float64).reshape(-1, 3, 8, 9)
    matrix = model.reconstruct(atoms, basis).flatten(1)
    largest = torch.linalg.eigvalsh(matrix @ matrix.T).max().item()
    assert largest <= 1 / step_size(atoms, (8, 9)) * (1 + 1e-9)


def correction_by_loops(image, held, now, rate, order):
    """Return beta of every code and the open gates, of pairs (atoms, codes) held before two iterations, by design.md.

    r = (A- - A_s) / (x- - x_s) per code, 1 where x hardly moved; the gate is judged at (x-, A-).
    """
    (atoms_s, x_s), (atoms, x) = held, now
    g = np.pad(model.reconstruct(atoms, x[None])[0, 0].numpy() - image, 1)
    beta = np.empty(x.shape)
    for k, row, column in np.ndindex(*x.shape):
        moved = (x[k, row, column] - x_s[k, row, column]).item()
        slope = ((atoms[k, 0] - atoms_s[k, 0]).numpy() / moved) if moved else np.ones((2, 2))
        beta[k, row, column] = rate * (g[row : row + 2, column : column + 2] * slope).sum() ** order
    sparse, partner = x.abs().sum((1, 2)).numpy(), np.abs(beta).sum((1, 2))
    return beta, (sparse < sparse.mean()) & (partner >= np.sort(partner)[(len(partner) - 1) // 2])


@pytest.mark.parametrize("rule", ["paper", "descent", "rollback"])
def test_three_iterations_by_loops(random, rule):
    """What is held when, what is added when: design.md's timing; other slopes would open other gates."""
    image = random.standard_normal((4, 4))
    size = np.array([1.0, 0.1, 0.2, 0.05, 2.0, 0.1, 0.3, 3.0, 0.2])[:, None, None]
    made = [(unit_atoms(random, 9, 1, 2, 2), random.standard_normal((9, 5, 5)) * size) for _ in range(4)]
    made[2][1][:, 0] = made[1][1][:, 0]  # codes that did not move
    steps = [(torch.from_numpy(atoms), torch.from_numpy(codes)) for atoms, codes in made]
    projection, at = CodeProjection(rule, 1, 0.5), steps[0]  # what the solver holds; its next step is the next of steps
    held, differs = None, 0
    for atoms, new in steps[1:]:
        residual = torch.from_numpy(image) - model.reconstruct(at[0], at[1][None])[0]
        observation = projection.observe([residual], at[0], [at[1]])
        (projected,) = projection.project(observation, [new])
        assert (observation is None) == (held is None)
        expected = new.numpy()
        if held is not None:
            rate = (-0.5 if rule == "descent" else 0.5) * step_size(at[0], (5, 5))
            beta, opened = correction_by_loops(image, held, at, rate, 1)
            x = at[1].numpy()
            corrected = x if rule == "rollback" else expected + beta * x
            expected = np.where(opened[:, None, None], corrected, expected)
            assert 0 < opened.sum() == projection.opened < 9
            differs += (opened != correction_by_loops(image, at, at, rate, 1)[1]).sum()
        np.testing.assert_allclose(projected, expected, atol=1e-12)
        held, at = at, (atoms, projected)
    assert differs > 0


@pytest.mark.parametrize("solver", ["working_set", "ffcsc"])
def test_scale_zero_is_no_rule(problem, solver):
    images, observed, _ = problem
    settings: dict[str, Any] = {
        "n_atoms": 6,
        "atom_shape": (5, 4),
        "penalty": 0.3,
        "max_iter": 5,
        "solver": solver,
        "random_state": 0,
    }
    changes: list[dict[str, Any]] = [{"rule": None}, {"rule": "paper", "scale": 0.0}]
    results = [ConvDictionaryLearner(**settings, **change).fit(images, observed=observed) for change in changes]
    np.testing.assert_array_equal(results[0].dictionary_, results[1].dictionary_)


@pytest.mark.parametrize("solver", ["working_set", "ffcsc"])
@pytest.mark.parametrize(("rule", "order"), [("descent", 1), ("paper", 2), ("paper", 3), ("rollback", 1)])
def test_every_rule_runs_with_either_solver(problem, solver, rule, order):
    images, observed, _ = problem
    learner = ConvDictionaryLearner(
        6, (5, 4), 0.3, rule=rule, order=order, solver=solver, max_iter=6, tol=0.0, random_state=0
    ).fit(images, observed=observed)
    plain = ConvDictionaryLearner(6, (5, 4), 0.3, solver=solver, max_iter=6, tol=0.0, random_state=0)
    plain.fit(images, observed=observed)
    assert learner.history_[0].opened == 0 < learner.history_[-1].opened
    assert np.isfinite(learner.dictionary_).all()
    assert not np.array_equal(learner.dictionary_, plain.dictionary_)


def test_replacing_codes_by_themselves_changes_nothing(problem):
    images, observed, atoms = problem
    working_set = WorkingSet(list(images), list(observed), atoms.shape[1:])
    improved = next(islice(learn(working_set, atoms, 0.3), 3, None))
    before = working_set.position, working_set.atom, working_set.value, working_set.objective(0.3)
    working_set.replace(working_set.codes(6), improved)
    order = np.lexsort((before[1], before[0]))
    np.testing.assert_array_equal(working_set.position, before[0][order])
    np.testing.assert_array_equal(working_set.value, before[2][order])
    assert working_set.objective(0.3) == pytest.approx(before[3], rel=1e-12)
    b, seen, d = map(torch.from_numpy, (images, observed, improved))
    expected = model.residual(b, seen, d, torch.stack(working_set.codes(6)))
    np.testing.assert_allclose(torch.stack(working_set.residuals()), expected, atol=1e-12)


def test_ffcsc_approaches_the_default_solvers_optimum(problem):
    images, observed, atoms = problem
    solver = FFCSC(list(images), list(observed), atoms, 0.3)
    for _ in range(60):
        solver.update_codes()
    best = encode(list(images), list(observed), atoms, 0.3, 1e-6).working_set
    assert solver.objective(0.3) == pytest.approx(best.objective(0.3), rel=1e-3)
    assert solver.objective(0.3) >= best.objective(0.3) * (1 - 1e-9)


def test_ffcsc_keeps_atoms_feasible_and_lowers_the_objective(problem):
    images, observed, atoms = problem
    solver, values = FFCSC(list(images), list(observed), atoms, 0.3), []
    for improved in islice(learn_ffcsc(solver), 30):
        assert np.sqrt((improved**2).sum((1, 2, 3))).max() <= 1 + 1e-9
        values.append(solver.objective(0.3))
    assert values[-1] < 0.9 * values[2]


def test_ffcsc_hidden_pixels_change_nothing_bit_for_bit(problem):
    images, observed, atoms = problem
    others = np.where(observed, images, np.nan)
    results = [next(islice(learn_ffcsc(FFCSC(list(b), list(observed), atoms, 0.3)), 2, None)) for b in (images, others)]
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rule": "magic"}, "rule must be one of"),
        ({"order": 0}, "order must be an integer >= 1"),
        ({"scale": -1.0}, "scale must be a finite number >= 0"),
        ({"rule": "rollback", "order": 2}, "takes no order or scale"),
        ({"solver": "fast"}, 'solver must be "working_set" or "ffcsc"'),
    ],
)
def test_settings_out_of_range_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ConvDictionaryLearner(**change).fit(np.ones((1, 20, 20)))


def test_ffcsc_refuses_images_of_different_sizes(random):
    with pytest.raises(ValueError, match="images of one size"):
        ConvDictionaryLearner(2, (3, 3), 0.1, solver="ffcsc").fit([random.random((9, 9)), random.random((9, 8))])
