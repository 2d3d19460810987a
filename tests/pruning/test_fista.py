"""The proximal step's optimality, FISTA against a lasso oracle and plain ISTA, and resuming in between."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Lasso
from torch import nn

from cogd.pruning.fista import FistaSGD, next_time, shrink

PENALTY = 0.3


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.floats(0, 3))
def test_shrink_satisfies_the_optimality_condition(values, threshold):
    """0 lies in m - v + threshold * d|m|: a subgradient of norm 1 at m = 0, the sign elsewhere."""
    v = torch.tensor(values, dtype=torch.float64)
    m = shrink(v, threshold)
    remainder = v - m
    assert torch.all(remainder.abs() <= threshold + 1e-12)
    assert torch.allclose(remainder[m != 0], threshold * m[m != 0].sign(), atol=1e-12)


def test_the_first_times_are_those_of_beck_and_teboulle():
    time = torch.ones((), dtype=torch.float64)
    assert next_time(time).item() == pytest.approx((1 + 5**0.5) / 2)


def lasso(seed=0):
    """Return design, target, and the minimizer of 1/2 |Xw - y|^2 + penalty |w|_1 by coordinate descent."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(20, 12, generator=generator, dtype=torch.float64)
    X[:, 1:] += 2 * X[:, :1]  # correlated columns, on which plain ISTA is slow
    y = X[:, :4].sum(1) + 0.1 * torch.randn(20, generator=generator, dtype=torch.float64)
    oracle = Lasso(alpha=PENALTY / 20, fit_intercept=False, tol=1e-12, max_iter=1_000_000).fit(X.numpy(), y.numpy())
    return X, y, torch.from_numpy(oracle.coef_)


def objective(X, y, w):
    return (0.5 * (X @ w - y).square().sum() + PENALTY * w.abs().sum()).item()


def fista(X, y, steps, parts=1):
    start = torch.full((X.shape[1],), 0.5, dtype=torch.float64)
    gates = [nn.Parameter(part.clone()) for part in start.chunk(parts)]
    rate = 1 / torch.linalg.matrix_norm(X, 2).item() ** 2
    optimizer = FistaSGD([{"params": gates, "penalty": PENALTY}], lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        (0.5 * (X @ torch.cat(list(gates)) - y).square().sum()).backward()
        optimizer.step()
    optimizer.settle()
    return torch.cat([gate.detach() for gate in gates])


def ista(X, y, steps):
    w = torch.full((X.shape[1],), 0.5, dtype=torch.float64)
    rate = 1 / torch.linalg.matrix_norm(X, 2).item() ** 2
    for _ in range(steps):
        w = shrink(w - rate * X.T @ (X @ w - y), rate * PENALTY)
    return w


def test_fista_finds_the_lasso_solution():
    X, y, oracle = lasso()
    found = fista(X, y, 1500)
    assert objective(X, y, found) == pytest.approx(objective(X, y, oracle), rel=1e-9)
    assert torch.equal(found != 0, oracle != 0)


def test_one_step_is_istas_and_many_are_faster():
    X, y, oracle = lasso()
    assert torch.allclose(fista(X, y, 1), ista(X, y, 1), atol=1e-15)
    best = objective(X, y, oracle)
    gap, plain_gap = (objective(X, y, solve(X, y, 300)) - best for solve in (fista, ista))
    assert 0 <= gap < plain_gap / 10


def test_the_split_into_parameters_does_not_matter():
    X, y, _ = lasso()
    assert torch.equal(fista(X, y, 50), fista(X, y, 50, parts=3))


def weight_and_gate():
    torch.manual_seed(0)
    weight, gate = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
    groups: list[dict] = [
        {"params": [weight]},
        {"params": [gate], "penalty": 0.1, "momentum": 0, "weight_decay": 0},
    ]
    return weight, gate, FistaSGD(groups, lr=0.05, momentum=0.9, weight_decay=0.01)


def descend(run, steps):
    weight, gate, optimizer = run
    for _ in range(steps):
        optimizer.zero_grad()
        ((weight * gate).sum() - 1).square().backward()
        optimizer.step()


def test_resumed_equals_never_stopped():
    whole = weight_and_gate()
    descend(whole, 9)
    first = weight_and_gate()
    descend(first, 4)
    second = weight_and_gate()
    for parameter, saved in zip(second[:2], first[:2], strict=True):
        parameter.data.copy_(saved.data)
    second[2].load_state_dict(first[2].state_dict())
    descend(second, 5)
    assert torch.equal(second[0], whole[0])
    assert torch.equal(second[1], whole[1])


def test_groups_without_a_penalty_are_sgds():
    """The gate's group aside, nothing differs from SGD: same weights, bit for bit, for the same gradients."""
    weight, gate, optimizer = weight_and_gate()
    plain_weight, _, _ = weight_and_gate()
    plain = torch.optim.SGD([plain_weight], lr=0.05, momentum=0.9, weight_decay=0.01)
    for _ in range(5):
        plain.zero_grad()
        ((plain_weight * gate.detach()).sum() - 1).square().backward()
        plain.step()
        descend((weight, gate, optimizer), 1)
    assert torch.equal(weight, plain_weight)


def test_iterates_are_shown_for_a_while_and_settled_for_good():
    weight, gate, optimizer = weight_and_gate()
    descend((weight, gate, optimizer), 6)
    point = gate.detach().clone()
    with optimizer.at_iterates():
        iterate = gate.detach().clone()
    assert torch.equal(gate, point)
    assert not torch.equal(iterate, point)
    optimizer.settle()
    assert torch.equal(gate, iterate)


def test_what_cogd_changes_becomes_the_iterate():
    _, gate, optimizer = run = weight_and_gate()
    descend(run, 3)
    with optimizer.at_iterates():
        before = gate.detach().clone()
    optimizer.adopt()
    with torch.no_grad():
        gate[1] = 7.0
    optimizer.adopt()
    optimizer.settle()
    assert gate.tolist() == [before[0], 7.0, before[2], before[3]]


def test_a_penalty_beside_momentum_is_refused():
    with pytest.raises(ValueError, match=r"momentum and no weight decay.*got 0.9 and 0"):
        FistaSGD([{"params": [nn.Parameter(torch.ones(1))], "penalty": 1.0}], lr=0.1, momentum=0.9)
