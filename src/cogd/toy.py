"""The paper's baseline problem: Beale's function with a sparse x1, followed from many starts in one run.

F(x1, x2) = sum_i (b_i - x1 + x1 x2^i)^2 + |x1| + x2^2 is bilinear-like: x1 is the sparse side, x2 its partner, and each
start is one coordinate of the coupling. Positions are tensors (..., 2), paths are (steps + 1, starts, 2), all float64.
A path that holds a number that is not finite, or that leaves |x| <= 10, counts as diverged and has the value inf.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer

from cogd.coupling import Coupling
from cogd.optimizer import CoGD, Rule

__all__ = [
    "Comparison", "Ending", "against_plain", "compare", "ending", "final_values", "follow", "minima", "objective",
    "paths", "positions", "start_grid",
]  # fmt: skip

Name = Literal["sgd", "momentum", "adam"]

CONSTANTS = (1.5, 2.25, 2.62)  # as printed; Beale's own third is 2.625
LEARNING_RATES: dict[Name, float] = {"sgd": 0.001, "momentum": 0.005, "adam": 0.1}
SPARSE_THRESHOLD, PARTNER_THRESHOLD = 1.0, 0.5
START = (0.5, 1.5)  # the paper prints none; from here all three optimizers pass where the gate is open
FAR = 10.0
NEAR = 0.1  # a path that ends this close to a minimum has reached it
TOLERANCE = 0.01  # smaller relative changes count as unchanged
QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)
OUTCOMES = ("best minimum", "other minimum", "unfinished", "diverged")
UNFINISHED, DIVERGED = 2, 3


def objective(x1: Tensor, x2: Tensor) -> Tensor:
    """Return F, elementwise.

    >>> round(float(objective(torch.tensor(2.0), torch.tensor(0.0))), 4)
    2.6969
    """
    b1, b2, b3 = CONSTANTS
    beale = (b1 - x1 + x1 * x2).square() + (b2 - x1 + x1 * x2 * x2).square() + (b3 - x1 + x1 * x2 * x2 * x2).square()
    return beale + x1.abs() + x2.square()


def start_grid(side: int, reach: float) -> Tensor:
    """Return side^2 starts, evenly spaced over [-reach, reach]^2.

    >>> start_grid(3, 2.0).shape
    torch.Size([9, 2])
    """
    axis = torch.linspace(-reach, reach, side, dtype=torch.float64).mul(1e9).round().div(1e9)
    return torch.cartesian_prod(axis, axis)


def positions(pairs: Sequence[tuple[float, float]]) -> Tensor:
    """Return (x1, x2) pairs as starts.

    >>> positions([(0.5, 1.5)])
    tensor([[0.5000, 1.5000]], dtype=torch.float64)
    """
    return torch.tensor(pairs, dtype=torch.float64)


def paths(
    starts: Tensor,
    optimizer: Name = "sgd",
    *,
    rule: Rule = "descent",
    order: int = 1,
    scale: float = 1e-3,
    steps: int = 200,
    learning_rate: float | None = None,
) -> Tensor:
    """Follow `optimizer`, coordinated by `rule`, from every start; the learning rate is the paper's unless given.

    >>> paths(positions([START]), "adam", steps=3).shape
    torch.Size([4, 1, 2])
    """
    rate = default_rate(optimizer) if learning_rate is None else learning_rate

    def build(x1: Tensor, x2: Tensor) -> Optimizer:
        coupling = Coupling(
            sparse=x1, partner=x2, sparse_threshold=SPARSE_THRESHOLD, partner_threshold=PARTNER_THRESHOLD
        )
        return CoGD(base_optimizer(optimizer, [x1, x2], rate), [coupling], rule=rule, order=order, scale=scale)

    return follow(starts, build, steps)


def against_plain(
    starts: Tensor, *, rule: Rule = "descent", order: int = 1, scale: float = 1e-3, steps: int = 200
) -> dict[Name, tuple[Tensor, Tensor]]:
    """Return (coordinated, plain) paths of each of the paper's three optimizers.

    >>> coordinated, plain = against_plain(positions([START]), steps=3)["sgd"]
    >>> coordinated.shape == plain.shape
    True
    """
    return {
        name: (
            paths(starts, name, rule=rule, order=order, scale=scale, steps=steps),
            paths(starts, name, rule=None, steps=steps),
        )
        for name in LEARNING_RATES
    }


def follow(starts: Tensor, build: Callable[[Tensor, Tensor], Optimizer], steps: int = 200) -> Tensor:
    """Return the paths of the optimizer that `build` makes for x1 and x2, the starts' coordinates as two vectors.

    >>> follow(positions([START]), lambda x1, x2: SGD([x1, x2], lr=1e-3), steps=3).shape
    torch.Size([4, 1, 2])
    """
    x1, x2 = (column.clone().requires_grad_() for column in starts.to(torch.float64).unbind(-1))
    optimizer = build(x1, x2)
    visited = [torch.stack([x1, x2], -1).detach()]
    for _ in range(steps):
        optimizer.zero_grad()
        objective(x1, x2).sum().backward()
        optimizer.step()
        visited.append(torch.stack([x1, x2], -1).detach())
    return torch.stack(visited)


def default_rate(optimizer: Name) -> float:
    """Return the paper's learning rate."""
    if optimizer not in LEARNING_RATES:
        raise ValueError(f"optimizer must be one of {', '.join(map(repr, LEARNING_RATES))}; got {optimizer!r}.")
    return LEARNING_RATES[optimizer]


def base_optimizer(optimizer: Name, parameters: list, learning_rate: float) -> Optimizer:
    """Return one of the paper's three optimizers for tensors or parameter groups."""
    if optimizer == "adam":
        return Adam(parameters, lr=learning_rate)
    return SGD(parameters, lr=learning_rate, momentum=0.9 if optimizer == "momentum" else 0.0)


def gate_open(positions: Tensor) -> Tensor:
    """Return where the coupling's gate is open."""
    x1, x2 = positions.unbind(-1)
    return (x1.abs() < SPARSE_THRESHOLD) & (x2.abs() >= PARTNER_THRESHOLD)


def diverged(trajectories: Tensor) -> Tensor:
    """Return which paths diverged."""
    return ~(trajectories.abs() <= FAR).all(-1).all(0)


def path_lengths(trajectories: Tensor) -> Tensor:
    """Return the lengths of the paths, inf where diverged."""
    lengths = torch.linalg.vector_norm(trajectories.diff(dim=0), dim=-1).sum(0)
    return torch.where(diverged(trajectories), torch.inf, lengths)


def final_values(trajectories: Tensor) -> Tensor:
    """Return F where the paths end, inf where diverged.

    >>> path = positions([(3.0, 3.0), (2.0, 0.0)]).unsqueeze(1)  # one start, one step
    >>> round(float(final_values(path)), 4)
    2.6969
    """
    return torch.where(diverged(trajectories), torch.inf, objective(*trajectories[-1].unbind(-1)))


@cache
def minima() -> Tensor:
    """Return the local minima of F, best first: those of a fine grid, polished by Newton's method.

    On the kink x1 = 0 only (0, 0) is stationary along x2, and there |d Beale / d x1| = 12.7 > 1: it is no minimum.

    >>> [round(value, 2) for value in objective(*minima().T).tolist()]
    [2.51, 4.81]
    """
    side = 451
    starts = start_grid(side, 4.5)
    values = objective(*starts.unbind(-1)).reshape(1, 1, side, side)
    lowest = -torch.nn.functional.max_pool2d(-values, 3, stride=1, padding=1)
    x = starts[(values == lowest).flatten()]
    for _ in range(30):
        gradients, hessians = derivatives(x)
        x = x - torch.linalg.solve(hessians, gradients)
    gradients, hessians = derivatives(x)
    is_minimum = (gradients.abs().amax(-1) < 1e-9) & (torch.linalg.eigvalsh(hessians)[:, 0] > 0)
    distinct = torch.unique(x[is_minimum].mul(1e9).round().div(1e9), dim=0)
    return distinct[objective(*distinct.unbind(-1)).argsort()]


def derivatives(positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return gradients (n, 2) and Hessians (n, 2, 2) of F at positions (n, 2)."""
    x = positions.detach().requires_grad_()
    (gradients,) = torch.autograd.grad(objective(*x.unbind(-1)).sum(), x, create_graph=True)
    rows = [torch.autograd.grad(column.sum(), x, retain_graph=True)[0] for column in gradients.unbind(-1)]
    return gradients.detach(), torch.stack(rows, 1)


def outcomes(trajectories: Tensor) -> Tensor:
    """Return how each path ended, as an index into OUTCOMES."""
    distances = torch.cdist(trajectories[-1].nan_to_num(posinf=0.0, neginf=0.0), minima())
    reached = torch.where(distances.amin(1) <= NEAR, distances.argmin(1), UNFINISHED)
    return torch.where(diverged(trajectories), DIVERGED, reached)


def verdicts(coordinated: Tensor, plain: Tensor) -> Tensor:
    """Return 1 where coordination improved the final value, -1 where it worsened it, 0 where it did neither.

    What counts is a change of more than 1% of max(1, the plain optimizer's value); diverged is worse than any value and
    equal to diverged.
    """
    value, plain_value = final_values(coordinated), final_values(plain)
    margin = TOLERANCE * plain_value.clamp(min=1.0).nan_to_num(posinf=0.0)
    return (value < plain_value - margin).int() - (value > plain_value + margin).int()


@dataclass(frozen=True)
class Comparison:
    """What coordination changed. Shares are of all starts; quantiles over the starts where neither path diverged.

    >>> compare(*against_plain(start_grid(3, 2.0), steps=3)["adam"]).starts
    9
    """

    starts: int
    touched: float  # the paths differ at all
    improved: float
    unchanged: float
    worsened: float
    shorter: float  # by more than 1%
    longer: float
    length_ratio: dict[str, float]
    value_difference: dict[str, float]
    outcomes: dict[str, float]
    transitions: dict[str, int]


def compare(coordinated: Tensor, plain: Tensor) -> Comparison:
    """Compare paths with the plain optimizer's from the same starts.

    >>> path = paths(start_grid(3, 2.0), steps=3)
    >>> compare(path, path).unchanged
    1.0
    """
    starts = coordinated.shape[1]
    verdict, ended, ended_plain = verdicts(coordinated, plain), outcomes(coordinated), outcomes(plain)
    finite = (ended != DIVERGED) & (ended_plain != DIVERGED)
    ratio = path_lengths(coordinated)[finite] / path_lengths(plain)[finite]
    return Comparison(
        starts=starts,
        touched=_share((coordinated.nan_to_num() != plain.nan_to_num()).any(-1).any(0), starts),
        improved=_share(verdict == 1, starts),
        unchanged=_share(verdict == 0, starts),
        worsened=_share(verdict == -1, starts),
        shorter=_share(ratio < 1 - TOLERANCE, starts),
        longer=_share(ratio > 1 + TOLERANCE, starts),
        length_ratio=_quantiles(ratio),
        value_difference=_quantiles((final_values(coordinated) - final_values(plain))[finite]),
        outcomes={name: _share(ended == i, starts) for i, name in enumerate(OUTCOMES)},
        transitions=_transitions(ended_plain, ended),
    )


def _share(mask: Tensor, of: int) -> float:
    return int(mask.sum()) / of


def _quantiles(values: Tensor) -> dict[str, float]:
    """Return the quantiles by name, and no quantiles of no values."""
    if not len(values):
        return {}
    return {f"{q:.0%}": float(v) for q, v in zip(QUANTILES, values.quantile(values.new_tensor(QUANTILES)), strict=True)}


def _transitions(before: Tensor, after: Tensor) -> dict[str, int]:
    """Return how many starts ended one way by the plain optimizer and another way when coordinated."""
    counts = torch.bincount(before * len(OUTCOMES) + after, minlength=len(OUTCOMES) ** 2).tolist()
    pairs = [(i, j) for i in range(len(OUTCOMES)) for j in range(len(OUTCOMES))]
    return {
        f"{OUTCOMES[i]} -> {OUTCOMES[j]}": count
        for (i, j), count in zip(pairs, counts, strict=True)
        if i != j and count
    }


@dataclass(frozen=True)
class Ending:
    """Where one path ended; only the outcome where it diverged.

    >>> ending(paths(positions([(4.5, 4.5)]), rule=None))
    Ending(x1=None, x2=None, value=None, length=None, outcome='diverged')
    """

    x1: float | None
    x2: float | None
    value: float | None
    length: float | None
    outcome: str


def ending(trajectories: Tensor, start: int = 0) -> Ending:
    """Return how the path from one of the starts ended.

    >>> ending(paths(positions([START]), steps=3)).outcome
    'unfinished'
    """
    path = trajectories[:, start : start + 1]
    outcome = int(outcomes(path))
    if outcome == DIVERGED:
        return Ending(None, None, None, None, OUTCOMES[outcome])
    x1, x2 = path[-1, 0].tolist()
    return Ending(x1, x2, float(final_values(path)), float(path_lengths(path)), OUTCOMES[outcome])
