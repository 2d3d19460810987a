"""What the CoGD optimizer computes, when, and for whom: its mathematics in double precision."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, AdamW, Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cogd import CoGD, Coupling, ProjectionStats, Quantile

OPEN: dict[str, Any] = {"sparse_threshold": math.inf, "partner_threshold": 0.0}
SHUT: dict[str, Any] = {"sparse_threshold": 0.0, "partner_threshold": 0.0}
RULES = ("descent", "paper", "rollback")
DEFINED = [("descent", "sparse"), *itertools.product(("paper", "rollback"), ("sparse", "partner"))]

# The same examples every time: a draw whose |delta x| is tiny would magnify rounding beyond any tolerance.
explore = settings(max_examples=60, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


def draw(seed: int, *shapes: tuple[int, ...]) -> list[Parameter]:
    """Return double-precision parameters from a normal distribution."""
    generator = torch.Generator().manual_seed(seed)
    return [Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]


def parameter(*numbers: float) -> Parameter:
    return Parameter(torch.tensor(numbers, dtype=torch.float64))


def copies(*tensors: Tensor) -> list[Parameter]:
    return [Parameter(tensor.detach().clone()) for tensor in tensors]


def around_sgd(coupling: Coupling, lr: Any = 0.1, maximize: bool = False, **options: Any) -> CoGD:
    """Return CoGD around plain gradient descent on one coupling."""
    return CoGD(SGD([coupling.sparse, coupling.partner], lr=lr, maximize=maximize), [coupling], **options)


def descend(optimizer: Optimizer, loss: Callable[[], Tensor], steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


def follow(optimizer: Optimizer, *gradients: dict[Any, Any]) -> None:
    """Take one step for each set of gradients, given by hand."""
    for step_gradients in gradients:
        for p, gradient in step_gradients.items():
            p.grad = torch.as_tensor(gradient, dtype=p.dtype)
        optimizer.step()


def least_squares(x: Tensor, A: Tensor, b: Tensor) -> Callable[[], Tensor]:
    """Return G(A, x) = 1/2 |b - A x|^2 + 1/10 |x|_1 for x of shape (J,) and A_j = A[j]."""
    return lambda: (b - x @ A).square().sum() / 2 + x.abs().sum() / 10


def assert_close(actual: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


# --- The derivation: a total derivative ---


@explore
@given(seeds, st.integers(1, 6), st.lists(st.integers(1, 3), max_size=2), st.integers(0, 2), st.booleans())
def test_descent_follows_the_total_derivative(seed, J, rest, position, maximize):
    """With A_j affine in x_j alone, x(t+1) = x(t) -+ eta dG(A(x), x)/dx from the second step on."""
    dim = position % (len(rest) + 1)
    shape = (*rest[:dim], J, *rest[dim:])
    along = [J if d == dim else 1 for d in range(len(shape))]
    x, A, intercept, direction, b = draw(seed, (J,), shape, shape, shape, tuple(rest))

    def partner(x):
        return intercept.detach() + direction.detach() * x.view(along)

    def objective(A, x):
        return (b.detach() - (A * x.view(along)).sum(dim)).tanh().square().sum() + x.abs().sum() / 10

    eta = 0.05
    optimizer = around_sgd(Coupling(x, A, partner_dim=dim, **OPEN), lr=eta, maximize=maximize, scale=1.0)
    for step in range(4):
        A.data.copy_(partner(x))
        before = x.detach().clone().requires_grad_()
        (total,) = torch.autograd.grad(objective(partner(before) if step else A, before), before)
        optimizer.zero_grad()
        objective(A, x).backward()
        optimizer.step()
        # (delta A) / (delta x) loses what rounding is against delta x: 1e-16 / 1e-5 where a gradient is small
        assert_close(x, before + (eta if maximize else -eta) * total, 1e-8)


# --- The times ---


def test_three_steps_by_hand():
    """G = 1/2 (3 - A x)^2, so that with g = A x - 3: dG/dx = A g and dG/dA = x g; eta = 1/2, scale = 3/2.

    t  x(t)  A(t)   g   A g   x g   r                          x(t+1)   <x g, r>   x_hat = x(t+1) - 3/4 <x g, r>
    0    1     2   -1   -2    -1   -                              2                    2
    1    2    5/2   2    5     4   (5/2 - 2) / (2 - 1) = 1/2    -1/2       2          -2
    2   -2    1/2  -4   -2     8   (1/2 - 5/2) / (-2 - 2) = 1/2  -1        4          -4
    3   -4   -7/2
    """
    x, A = parameter(1), parameter(2)
    optimizer = around_sgd(Coupling(x, A, **OPEN), lr=0.5, scale=1.5)
    path = []
    for _ in range(3):
        descend(optimizer, lambda: (3 - A * x).square().sum() / 2, 1)
        path.append((x.item(), A.item()))
    assert path == [(2, 2.5), (-2, 0.5), (-4, -3.5)]


@pytest.mark.parametrize(("rule", "end"), [("descent", 10), ("paper", 0)])
def test_a_period_by_hand(rule, end):
    """Steps 2 and 4 project, with x and A read before them: x: 1 2 [3] 4 [5], A: 1 2 [4] 7 [11]; eta = 1, scale = 1/2.

    At step 4 r = (7 - 2) / (4 - 2) = 5/2 and dG/dA = -4, so that x_hat = 5 -+ 1/2 (-4 5/2) = 5 +- 5.
    """
    x, A = parameter(1), parameter(1)
    optimizer = around_sgd(Coupling(x, A, **OPEN), lr=1.0, rule=rule, scale=0.5, period=2)
    follow(optimizer, {x: [-1], A: [-1]}, {x: [-1], A: [-2]}, {x: [-1], A: [-3]})
    assert (x.item(), A.item()) == (4, 7)
    follow(optimizer, {x: [-1], A: [-4]})
    assert (x.item(), A.item()) == (end, 11)


def test_an_order_by_hand():
    """x: 1 2, A: 1 3; r = 2; dG/dA = 1/2; u = (1/2 2) / 2 = 1/2; c = 1/4; x_hat = 3 - 4/5 1/4 2 = 13/5.

    A softened division by x differs from the division by machine epsilon / x^2.
    """
    x, A = parameter(1), parameter(1)
    optimizer = around_sgd(Coupling(x, A, **OPEN), lr=1.0, order=2, scale=0.8)
    follow(optimizer, {x: [-1], A: [-2]}, {x: [-1], A: [0.5]})
    assert x.item() == pytest.approx(2.6, rel=1e-15)


def test_rollback_by_hand():
    """Steps 2, 4 and 6 project. At 4 and 6 the open coordinate (norm below 9/2) returns to 3, its value after step 2.

    Coordinate 0: 1 2 3 | 4 [5 ->] 3 | 4 [5 ->] 3; coordinate 1, never open: 5 6 7 8 9 10 11.
    """
    x, A = parameter(1, 5), parameter(1, 1)
    coupling = Coupling(x, A, sparse_threshold=4.5, partner_threshold=1.0)
    optimizer = around_sgd(coupling, lr=1.0, rule="rollback", period=2)
    path = []
    for _ in range(6):
        follow(optimizer, {x: [-1, -1], A: [0, 0]})
        path.append(x.tolist())
    assert path == [[2, 6], [3, 7], [4, 8], [3, 9], [4, 10], [3, 11]]


def test_the_gate_is_judged_before_the_base_steps():
    x, A = parameter(2, 4), parameter(1, 1)
    optimizer = around_sgd(Coupling(x, A, sparse_threshold=3.0, partner_threshold=1.0), lr=1.0, scale=1.0)
    follow(optimizer, {x: [0, 0], A: [0, 0]}, {x: [-2, 2], A: [1, 1]})  # to x = 4, 2, and A below its threshold
    assert x.tolist() == [4 - 1, 2]


# --- The literal version ---


def as_array(tensor: Tensor) -> reference.Array:
    return {i: tensor[i].item() for i in itertools.product(*map(range, tensor.shape))}


def as_tensor(array: reference.Array) -> Tensor:
    shape = [1 + last for last in max(array)]
    return torch.tensor(list(array.values()), dtype=torch.float64).view(shape)  # both count in row-major order


thresholds = st.sampled_from(["mean", "median", 0.7, 3.0, math.inf]) | st.floats(0.01, 0.99).map(Quantile)


@st.composite
def couplings(draw_one):
    """Return (shape of x, shape of A, settings of the coupling): up to three dimensions, any of which counts j."""
    J = draw_one(st.integers(1, 5))
    shapes, options = [], {}
    for side in ("sparse", "partner"):
        rest = draw_one(st.lists(st.integers(1, 3), max_size=2))
        dim = draw_one(st.integers(0, len(rest)))
        shapes.append((*rest[:dim], J, *rest[dim:]))
        options[f"{side}_dim"] = dim - (len(rest) + 1) * draw_one(st.booleans())
        options[f"{side}_threshold"] = draw_one(thresholds)
    return *shapes, options


def with_one_number_each(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return tuple(n if d == dim % len(shape) else 1 for d, n in enumerate(shape))


def blockwise_loss(seed: int, x: Tensor, A: Tensor, sparse_dim: int, partner_dim: int):
    """Return a smooth G(x, A) for any shapes, whose gradient is 0 at about a sixth of x."""
    J = x.shape[sparse_dim]
    drawn = draw(seed, (J, x.numel() // J), (A.numel() // J,), x.shape)
    weights, b, coin = (p.detach() for p in drawn)

    def objective(x: Tensor, A: Tensor) -> Tensor:
        mobile = torch.where(coin > -1, x, x.detach())
        coefficients = (mobile.movedim(sparse_dim, 0).reshape(weights.shape) * weights).sum(1)
        return (coefficients @ A.movedim(partner_dim, 0).reshape(J, -1) - b).square().add(1).sqrt().sum()

    return objective


def literally(objective) -> Callable[[reference.Array, reference.Array], tuple[reference.Array, reference.Array]]:
    """Return the gradients of `objective(x, A)` as functions of arrays."""

    def gradients(*arrays):
        at = [as_tensor(array).requires_grad_() for array in arrays]
        return tuple(map(as_array, torch.autograd.grad(objective(*at), at)))

    return gradients


@pytest.mark.parametrize(
    ("rule", "project", "order"),
    [(rule, project, order) for rule, project in DEFINED for order in range(1, 5) if rule != "rollback" or order == 1],
)
@settings(explore, max_examples=40)
@given(couplings(), st.integers(1, 3), st.floats(0.01, 0.5), seeds, st.booleans())
def test_every_run_equals_the_literal_one(rule, project, order, coupling, period, scale, seed, maximize):
    x_shape, A_shape, options = coupling
    if (rule, project) == ("paper", "partner"):
        x_shape = with_one_number_each(x_shape, options["sparse_dim"])
    kernel = {} if rule == "rollback" else {"order": order, "scale": scale}
    x, A = draw(seed, x_shape, A_shape)
    objective = blockwise_loss(seed + 1, x, A, options["sparse_dim"], options["partner_dim"])
    optimizer = around_sgd(
        Coupling(x, A, project=project, **options), 0.1, maximize, rule=rule, period=period, **kernel
    )
    options = {name: ("quantile", v.q) if isinstance(v, Quantile) else v for name, v in options.items()}
    options |= {"period": period, "project": project, "maximize": maximize, **kernel}
    run = reference.Run(literally(objective), 0.1, rule, **options)
    for x_literal, A_literal in reference.trajectory(run, as_array(x), as_array(A), steps=7):
        descend(optimizer, lambda: objective(x, A), 1)
        # Rounding, 1e-16, grows by 1 / (delta x) in r and by the order in c, at each of up to six projections
        assert_close(x, as_tensor(x_literal), 1e-7)
        assert_close(A, as_tensor(A_literal), 1e-7)


# --- Symmetries and scaling ---


@explore
@given(seeds, st.sampled_from(RULES), st.integers(2, 9))
def test_the_order_of_the_coordinates_does_not_matter(seed, rule, J):
    x, A, b = draw(seed, (J,), (J, 3), (3,))
    permutation = torch.randperm(J, generator=torch.Generator().manual_seed(seed))
    x_permuted, A_permuted = copies(x[permutation], A[permutation])
    options: dict[str, Any] = {} if rule == "rollback" else {"order": 2, "scale": 0.5}
    descend(around_sgd(Coupling(x, A), rule=rule, **options), least_squares(x, A, b), 5)
    other = around_sgd(Coupling(x_permuted, A_permuted), rule=rule, **options)
    descend(other, least_squares(x_permuted, A_permuted, b), 5)
    assert_close(x_permuted, x[permutation], 1e-8)
    assert_close(A_permuted, A[permutation], 1e-8)


def first_correction(*, loss_scale: float = 1.0, sign: float = 1.0, maximize: bool = False, **options: Any) -> Tensor:
    """Return x_hat(2) - x(2) of a run that comes to the same x(1), A(1) whatever the options but `sign`."""
    x, A, g_x, g_A = draw(0, (5,), (5, 3), (5,), (5, 3))
    x, A = copies(sign * x, sign * A)
    up, lr = (-sign if maximize else sign), options.pop("lr", 0.1)
    optimizer = around_sgd(Coupling(x, A, **OPEN), maximize=maximize, **options)
    follow(optimizer, {x: up * g_x.detach(), A: up * g_A.detach()})
    optimizer.param_groups[0]["lr"] = lr
    (x_base,) = copies(x)
    gradient = torch.full_like(A, up * loss_scale)
    follow(optimizer, {x: gradient[:, 0], A: gradient})
    follow(SGD([x_base], lr=lr, maximize=maximize), {x_base: gradient[:, 0]})
    return (x - x_base).detach()


@pytest.mark.parametrize("rule", ["descent", "paper"])
def test_the_correction_is_linear_in_scale_and_rate_for_order_1(rule):
    unit = first_correction(rule=rule, scale=1e-3)
    assert (unit.abs() > 1e-6).all()
    assert_close(first_correction(rule=rule, scale=3e-3), 3 * unit, 1e-14)
    assert_close(first_correction(rule=rule, scale=1e-3, lr=0.3), 3 * unit, 1e-14)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_a_loss_scaled_by_s_scales_c_by_s_to_the_order(order):
    unit = first_correction(order=order, scale=1e-4)
    assert (unit.abs() > 1e-9).all()
    assert_close(first_correction(order=order, scale=1e-4, loss_scale=2.0), 2.0**order * unit, 1e-14)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_paper_is_descent_with_the_other_sign(order):
    assert_close(first_correction(order=order, rule="paper"), -first_correction(order=order, rule="descent"), 1e-14)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_the_joint_sign_of_both_sides_is_free(order):
    """G(A, x) = G(-A, -x) for a bilinear G, so the mirrored run is the mirror image, bit for bit."""
    assert torch.equal(first_correction(order=order, sign=-1.0), -first_correction(order=order))


@pytest.mark.parametrize(
    ("rule", "order", "sign"), [("descent", 1, 1), ("descent", 2, -1), ("paper", 1, -1), ("paper", 2, 1)]
)
def test_maximizing_flips_descents_sign_alone(rule, order, sign):
    """To maximize -G is to minimize G: descent's correction stays for odd orders, where c = <g, r>^k turns with g."""
    maximizing = first_correction(rule=rule, order=order, maximize=True)
    assert_close(maximizing, sign * first_correction(rule=rule, order=order), 1e-14)


# --- The gate ---


def opened(x: Tensor, A: Tensor, **coupling_options) -> list[bool]:
    """Return which coordinates the gate opens at (x, A): a rollback takes them to x = -7."""
    sparse, partner = Parameter(torch.full_like(x, -7)), Parameter(torch.zeros_like(A))
    optimizer = around_sgd(Coupling(sparse, partner, **coupling_options), rule="rollback")
    still = {sparse: torch.zeros_like(x), partner: torch.zeros_like(A)}
    follow(optimizer, still)
    sparse.data.copy_(x)
    partner.data.copy_(A)
    follow(optimizer, still)
    return (sparse == -7).view(len(x), -1)[:, 0].tolist()


FIVE = torch.tensor([-4.0, 1.0, 3.0, -2.0, 5.0], dtype=torch.float64)


@pytest.mark.parametrize("threshold", [3.0, "mean", "median", Quantile(0.5)])
def test_the_gate_at_its_threshold(threshold):
    """3 is the number, the mean, the median: strictly below it for x, at or above it for A."""
    ones, two = torch.ones_like(FIVE), {"sparse_threshold": 2.0, "partner_threshold": 1.0}
    assert opened(FIVE, ones, **{**two, "sparse_threshold": threshold}) == [False, True, False, True, False]
    assert opened(ones, FIVE, **{**two, "partner_threshold": threshold}) == [True, False, True, False, True]


@pytest.mark.parametrize("q", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_a_quantile_on_an_order_statistic_is_that_statistic(q):
    norm = 1 + 4 * q
    assert opened(FIVE, torch.ones_like(FIVE), sparse_threshold=Quantile(q), partner_threshold=0.0) == [
        abs(x) < norm for x in FIVE.tolist()
    ]
    assert opened(torch.ones_like(FIVE), FIVE, sparse_threshold=2.0, partner_threshold=Quantile(q)) == [
        abs(A) >= norm for A in FIVE.tolist()
    ]


@pytest.mark.parametrize("threshold", ["median", Quantile(0.5)])
def test_an_infinite_norm_beside_the_quantile_does_not_shut_the_gate(threshold):
    norms, ones = torch.tensor([1.0, 2.0, math.inf]), torch.ones(3)
    assert opened(norms, ones, sparse_threshold=threshold, partner_threshold=0.0) == [True, False, False]
    assert opened(ones, norms, sparse_threshold=2.0, partner_threshold=threshold) == [False, True, True]


@explore
@given(seeds, st.integers(1, 8), thresholds, thresholds)
def test_the_gate_opens_where_numpy_says(seed, J, sparse_threshold, partner_threshold):
    def alpha(policy, of):
        if isinstance(policy, Quantile):
            return np.quantile(of, policy.q)
        return {"mean": np.mean(of), "median": np.median(of)}.get(policy, policy)

    x, A = draw(seed, (J, 2), (J, 3, 2))
    x_norms, A_norms = x.detach().abs().sum(1).numpy(), A.detach().abs().sum((1, 2)).numpy()
    expected = (x_norms < alpha(sparse_threshold, x_norms)) & (A_norms >= alpha(partner_threshold, A_norms))
    assert opened(x, A, sparse_threshold=sparse_threshold, partner_threshold=partner_threshold) == expected.tolist()


def test_only_open_coordinates_move():
    x, A, b = draw(3, (6,), (6, 4), (4,))
    x_base, A_base = copies(x, A)
    optimizer, base = around_sgd(Coupling(x, A), scale=1.0), SGD([x_base, A_base], lr=0.1)
    for o, loss in ((optimizer, least_squares(x, A, b)), (base, least_squares(x_base, A_base, b))):
        descend(o, loss, 1)
    is_open = torch.tensor(opened(x, A))
    for o, loss in ((optimizer, least_squares(x, A, b)), (base, least_squares(x_base, A_base, b))):
        descend(o, loss, 1)
    assert 0 < is_open.sum() < 6
    assert torch.equal(x != x_base, is_open)
    assert torch.equal(A, A_base)


# --- Reductions to the base ---


@pytest.mark.parametrize("base", [lambda p: SGD(p, 0.1, momentum=0.9, nesterov=True), lambda p: AdamW(p, 0.1)])
@pytest.mark.parametrize(
    ("couple", "options"),
    [
        (lambda x, A: [Coupling(x, A, **OPEN)], {"rule": None}),
        (lambda x, A: [], {"rule": "descent", "scale": 1.0}),
        *[(lambda x, A: [Coupling(x, A, **SHUT)], {"rule": rule}) for rule in RULES],
        *[(lambda x, A: [Coupling(x, A, partner_threshold=math.inf)], {"rule": rule}) for rule in RULES],
        (lambda x, A: [Coupling(x, A, **SHUT, project="partner")], {"rule": "paper"}),
        (lambda x, A: [Coupling(x, A, **OPEN)], {"rule": "descent", "period": 6}),
        (lambda x, A: [Coupling(x, A, **OPEN)], {"rule": "descent", "scale": 0.0}),
    ],
)
def test_without_a_correction_the_base_alone_runs(base, couple, options):
    x, A, b = draw(5, (6,), (6, 4), (4,))
    x_alone, A_alone = copies(x, A)
    optimizer, alone = CoGD(base([x, A]), couple(x, A), **options), base([x_alone, A_alone])
    descend(optimizer, least_squares(x, A, b), 11)
    descend(alone, least_squares(x_alone, A_alone, b), 11)
    assert torch.equal(x, x_alone)
    assert torch.equal(A, A_alone)


def test_the_bases_state_and_the_gradients_are_not_touched():
    x, A, b = draw(5, (6,), (6, 4), (4,))
    x_alone, A_alone = copies(x, A)
    pairs = [
        (CoGD(SGD([x, A], 0.1, momentum=0.9), [Coupling(x, A, **OPEN)], scale=1.0), least_squares(x, A, b)),
        (SGD([x_alone, A_alone], 0.1, momentum=0.9), least_squares(x_alone, A_alone, b)),
    ]
    for optimizer, loss in pairs:
        descend(optimizer, loss, 2)
    assert not torch.equal(x, x_alone)
    for p, alone in ((x, x_alone), (A, A_alone)):
        assert p.grad is not None
        assert alone.grad is not None
        assert torch.equal(p.grad, alone.grad)
        assert torch.equal(pairs[0][0].state[p]["momentum_buffer"], pairs[1][0].state[alone]["momentum_buffer"])


# --- The learning rate ---


@pytest.mark.parametrize("project", ["sparse", "partner"])
def test_eta_is_the_present_rate_of_the_projected_tensors_group(project):
    """x: 1 2, A: 2 4 at rates 1 and 2, then 1/2 and 1/4; r = (4 - 2) / (2 - 1) = 2; <dG/dA, r> = 1/2; c = 1/4."""
    x, A = parameter(1), parameter(2)
    base = SGD([{"params": [x], "lr": 1.0}, {"params": [A], "lr": 2.0}], lr=100.0)
    optimizer = CoGD(base, [Coupling(x, A, **OPEN, project=project)], rule="paper", scale=0.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda t: 0.5**t, lambda t: 0.125**t])
    follow(optimizer, {x: [-1], A: [-1]})
    scheduler.step()
    follow(optimizer, {x: [0], A: [0.25]})
    if project == "sparse":
        assert x.item() == 2 + 0.5 * 0.5 * 0.25 * 2
    else:
        assert A.item() == pytest.approx(4 - 0.25 * 0.25 + 0.5 * 0.25 * 0.25 * 4, rel=1e-15)


def test_a_rate_may_be_a_tensor():
    paths = []
    for lr in (0.1, torch.tensor(0.1, dtype=torch.float64)):
        x, A, b = draw(5, (6,), (6, 4), (4,))
        descend(around_sgd(Coupling(x, A, **OPEN), lr=lr, scale=1.0), least_squares(x, A, b), 3)
        paths.append(x)
    assert_close(paths[0], paths[1], 1e-15)


# --- Ways to call it ---


@pytest.mark.parametrize("rule", ["descent", "paper"])
def test_projecting_by_hand_equals_a_projecting_step_of_plain_descent(rule):
    """The correction reads (x(t), A(t)) alone, and plain descent adds to whatever it finds."""
    x, A, b = draw(7, (6,), (6, 4), (4,))
    x_hand, A_hand = copies(x, A)
    optimizer = around_sgd(Coupling(x, A), rule=rule, scale=1.0)
    by_hand = around_sgd(Coupling(x_hand, A_hand), rule=rule, scale=1.0)
    for _ in range(4):
        descend(optimizer, least_squares(x, A, b), 1)
        by_hand.zero_grad()
        least_squares(x_hand, A_hand, b)().backward()
        by_hand.project()
        by_hand.base.step()
    assert sum(stats.opened for stats in by_hand.last_stats) > 0
    assert_close(x_hand, x, 1e-12)
    assert_close(A_hand, A, 1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_a_closure_gives_the_same_run(rule):
    x, A, b = draw(7, (6,), (6, 4), (4,))
    x_closed, A_closed = copies(x, A)
    optimizer, closed = (around_sgd(Coupling(*pair), rule=rule, period=2) for pair in ((x, A), (x_closed, A_closed)))
    values = []

    def closure():
        closed.zero_grad()
        loss = least_squares(x_closed, A_closed, b)()
        loss.backward()
        values.append(loss.item())
        return loss

    for step in range(6):
        descend(optimizer, least_squares(x, A, b), 1)
        assert closed.step(closure) == values[step]
    assert len(values) == 6
    assert torch.equal(x, x_closed)
    assert torch.equal(A, A_closed)


def test_a_base_that_evaluates_often_is_observed_at_its_first_point():
    x, A, b = draw(7, (6,), (6, 4), (4,))
    optimizer = CoGD(torch.optim.LBFGS([x, A], lr=0.1, max_iter=4), [Coupling(x, A)])
    before = x.detach().clone()
    evaluated = []

    def closure():
        evaluated.append(x.detach().clone())
        optimizer.zero_grad()
        loss = least_squares(x, A, b)()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert len(evaluated) > 1
    assert torch.equal(optimizer.memory_of(x)["cogd_held"], before)


def test_couplings_of_one_tensor_are_all_read_before_any_projects():
    """Along x - A - y each correction is the one that its coupling has alone."""
    finals = {}
    for chosen in ("both", "first", "second"):
        x, A, y = draw(8, (4,), (4, 4), (4,))
        couplings = {
            "first": Coupling(x, A, **OPEN, name="first"),
            "second": Coupling(A, y, sparse_dim=1, **OPEN, name="second"),
        }
        taken = [coupling for name, coupling in couplings.items() if chosen in ("both", name)]
        optimizer = CoGD(SGD([x, A, y], lr=0.1), taken, scale=1.0)
        for _ in range(2):
            optimizer.zero_grad()
            (x @ A @ y - 1).square().backward()
            optimizer.step()
        finals[chosen] = {"x": x, "A": A}
        assert [stats.name for stats in optimizer.last_stats] == [coupling.name for coupling in taken]
    assert torch.equal(finals["both"]["x"], finals["first"]["x"])
    assert torch.equal(finals["both"]["A"], finals["second"]["A"])
    assert not torch.equal(finals["first"]["A"], finals["second"]["A"])


# --- last_stats ---


@pytest.mark.parametrize(("rule", "project"), [("descent", "sparse"), ("paper", "partner"), ("rollback", "partner")])
def test_last_stats_tell_what_the_last_projection_did(rule, project):
    x, A, b = draw(9, (6,), (6, 4), (4,))
    coupling = Coupling(x, A, project=project, name="pair")
    optimizer = around_sgd(coupling, rule=rule, period=2)
    for _ in range(3):
        descend(optimizer, least_squares(x, A, b), 1)
        assert optimizer.last_stats == []  # nothing yet to compare with
    x_base, A_base = copies(x, A)
    is_open = opened(x, A)
    descend(optimizer, least_squares(x, A, b), 1)
    descend(SGD([x_base, A_base], lr=0.1), least_squares(x_base, A_base, b), 1)
    moved = torch.linalg.vector_norm(coupling.projected - (x_base if project == "sparse" else A_base)).item()
    assert moved > 0
    (stats,) = optimizer.last_stats
    assert stats == ProjectionStats("pair", opened=sum(is_open), coordinates=6, correction=stats.correction)
    assert stats.correction == pytest.approx(moved, rel=1e-12)
    descend(optimizer, least_squares(x, A, b), 1)
    assert optimizer.last_stats == [stats]
    descend(optimizer, least_squares(x, A, b), 1)
    assert len(optimizer.last_stats) == 1
    assert optimizer.last_stats != [stats]


# --- Rest ---


@pytest.mark.parametrize("absent", ["sparse", "partner"])
@pytest.mark.parametrize("rule", RULES)
def test_a_coupling_rests_without_one_of_its_gradients(rule, absent):
    x, A = parameter(1, 1), parameter(1, 1)
    y, B = parameter(1, 1), parameter(1, 1)
    couplings = [Coupling(x, A, **OPEN, name="rests"), Coupling(y, B, **OPEN, name="works")]
    optimizer = CoGD(SGD([x, A, y, B], lr=1.0), couplings, rule=rule)
    follow(optimizer, {p: [-1, -1] for p in (x, A, y, B)})
    resting = x if absent == "sparse" else A
    resting.grad = None
    follow(optimizer, {p: [-1, -1] for p in (x, A, y, B) if p is not resting})
    assert [stats.name for stats in optimizer.last_stats] == ["works"]
    assert x.tolist() == ([2, 2] if absent == "sparse" else [3, 3])
    assert A.tolist() == ([3, 3] if absent == "sparse" else [2, 2])
    assert y.tolist() != [3, 3]


def test_after_a_rest_the_difference_is_to_the_last_projecting_step():
    """x: 1 2 3 4, A: 1 2 2 4, read 2, 2 in the resting step; then r = (2 - 2) / (3 - 2), not (2 - 1) / (3 - 1)."""
    x, A = parameter(1), parameter(1)
    optimizer = around_sgd(Coupling(x, A, **OPEN), lr=1.0, scale=1.0)
    follow(optimizer, {x: [-1], A: [-1]})
    A.grad = None
    follow(optimizer, {x: [-1]}, {x: [-1], A: [-2]})
    assert (x.item(), A.item()) == (4, 4)


@pytest.mark.parametrize(("rule", "project"), DEFINED)
@pytest.mark.parametrize("frozen", ["sparse", "partner"])
def test_a_frozen_tensor_never_moves(rule, project, frozen):
    x, A, b = draw(10, (6,), (6, 4), (4,))
    stays = x if frozen == "sparse" else A
    stays.requires_grad_(False)
    before = stays.clone()
    optimizer = around_sgd(Coupling(x, A, **OPEN, project=project), rule=rule)
    descend(optimizer, least_squares(x, A, b), 4)
    assert torch.equal(stays, before)
    assert optimizer.last_stats == []


# --- Gradients that are not finite ---


class CautiousSGD(SGD):
    """Plain descent that skips, and overwrites, what is not finite in a gradient."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.nan_to_num_(0.0, 0.0, 0.0)
        return super().step(closure)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("project", ["sparse", "partner"])
def test_a_gradient_that_is_not_finite_corrects_nothing(bad, order, project):
    """A_1 gets a bad gradient in the third step: there the base's step stands, elsewhere nothing changes."""
    finals = {}
    for third in (1.0, bad):
        x, A = parameter(1, 1, 1), parameter(1, 1, 1)
        base = CautiousSGD([x, A], lr=0.1)
        optimizer = CoGD(base, [Coupling(x, A, **OPEN, project=project)], rule="paper", order=order, scale=1.0)
        follow(optimizer, *[{x: [-1, -1, -1], A: [-1, -2, -3]}] * 2)
        was = torch.stack((x, A)).detach()
        follow(optimizer, {x: [-1, -1, -1], A: [-1, third, -3]})
        finals[third] = torch.stack((x, A)).detach()
        held = [optimizer.memory_of(p)["cogd_held"] for p in (x, A)]
        assert torch.equal(torch.stack(held), was)
        follow(optimizer, {x: [-1, -1, -1], A: [-1, 1, -3]})
        assert optimizer.last_stats[0].opened == 3
        assert torch.isfinite(torch.stack((x, A))).all()
    assert torch.equal(finals[bad][:, ::2], finals[1.0][:, ::2])
    assert_close(finals[bad][:, 1], torch.tensor([was[0, 1] + 0.1, was[1, 1]], dtype=torch.float64), 1e-15)


@pytest.mark.parametrize("rule", RULES)
def test_what_the_base_makes_infinite_is_never_held(rule):
    """A bad gradient ruins A_1 through the base; once it is repaired the run goes on from the last finite value."""
    x, A = parameter(1, 1), parameter(1, 1)
    optimizer = around_sgd(Coupling(x, A, **OPEN), rule=rule)
    kept = "cogd_projected" if rule == "rollback" else "cogd_held"
    follow(optimizer, *[{x: [-1, -1], A: [-1, -1]}] * 2)
    follow(optimizer, {x: [-1, -1], A: [-1, math.inf]}, {x: [-1, -1], A: [-1, -1]})
    assert not torch.isfinite(A[1])
    assert torch.isfinite(x).all()
    assert all(torch.isfinite(optimizer.memory_of(p).get(kept, torch.zeros(1))).all() for p in (x, A))
    A.data[1] = 1.0
    follow(optimizer, *[{x: [-1, -1], A: [-1, -1]}] * 3)
    assert torch.isfinite(torch.stack((x, A))).all()
    assert optimizer.last_stats[0].correction > 0


# --- Resources ---


@pytest.mark.parametrize(
    ("rule", "project", "kept"),
    [
        ("descent", "sparse", {"x": (6,), "A": (6, 4)}),
        ("paper", "partner", {"x": (6,), "A": (6, 4)}),
        ("rollback", "sparse", {"x": (6,)}),
        ("rollback", "partner", {"A": (6, 4)}),
        (None, "sparse", {}),
    ],
)
def test_at_most_one_copy_of_the_coupled_tensors_is_held(rule, project, kept):
    x, A, free, b = draw(11, (6,), (6, 4), (9,), (4,))
    named = {"x": x, "A": A, "free": free}
    couplings = [Coupling(x, A, project=project)]
    optimizer = CoGD(SGD(named.values(), lr=0.1), couplings, rule=rule)
    descend(optimizer, lambda: least_squares(x, A, b)() + free.square().sum(), 3)
    held = {name: [v.shape for v in optimizer.state[p].values() if isinstance(v, Tensor)] for name, p in named.items()}
    assert held == {name: [kept[name]] if name in kept else [] for name in named}


class OneDevice(TorchDispatchMode):
    """Refuses operations between devices: a copy from the host waits, and no CUDA graph takes it."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        assert {t.device.type for t in tree_leaves((args, kwargs, result)) if isinstance(t, Tensor)} <= {"meta"}
        return result


class NoNumbers(TorchFunctionMode):
    """Refuses tensors of Python's numbers, which come from the host unseen by `OneDevice`."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        assert function not in (torch.tensor, torch.as_tensor, Tensor.new_tensor)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("rule", "project"), DEFINED)
@pytest.mark.parametrize("policy", [0.5, "mean", "median", Quantile(0.3)])
@pytest.mark.parametrize("order", [1, 3])
def test_a_projection_never_waits_for_the_device(rule, project, policy, order):
    """Meta tensors have no values: whatever asks for one, as .item(), bool() and masks do, raises."""
    couplings = []
    for shape in [(6, 4), (6, 4), (6, 2, 3)]:  # a bundle of two and one of one
        x, A = Parameter(torch.empty(6, device="meta")), Parameter(torch.empty(shape, device="meta"))
        x.grad, A.grad = torch.empty_like(x), torch.empty_like(A)
        couplings.append(Coupling(x, A, sparse_threshold=policy, partner_threshold=policy, project=project))
    base = SGD([side for c in couplings for side in (c.sparse, c.partner)], lr=0.1)
    base.param_groups[0]["lr"] = torch.empty((), device="meta")
    optimizer = CoGD(base, couplings, rule=rule, **({} if rule == "rollback" else {"order": order}))
    with OneDevice(), NoNumbers():
        for _ in range(3):
            optimizer.project()
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        optimizer.last_stats  # noqa: B018  the one that may wait, and the proof that something was projected
