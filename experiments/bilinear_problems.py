"""Four problems in which two tensors are multiplied, small enough for thousands of runs; all seeds run side by side."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy, relu
from torch.optim import Optimizer

from cogd import Coupling, couple_conv_norm, couple_factors

HELD_OUT = 1000  # seeds from here on judge, those below choose; of the digits they never see the same image
RIDGE = 0.1  # of the partner's squares
Data = tuple[Tensor, ...]


class Factors(nn.Module):
    """A times x explains b where it was observed; partner A, sparse side x."""

    def __init__(self, A: Tensor, x: Tensor, penalty: float, ridge: float):
        super().__init__()
        self.A, self.x, self.penalty, self.ridge = nn.Parameter(A), nn.Parameter(x), penalty, ridge

    def forward(self, b: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        squares = 0.5 * (observed * (b - self.A @ self.x)).square().sum() + self.penalty * self.x.abs().sum()
        F = squares + 0.5 * (RIDGE * self.A.square().sum() + self.ridge * self.x.square().sum())
        return F, F

    def couple(self) -> Coupling:
        return Coupling(self.x, self.A, sparse_dim=0, partner_dim=1)


class Adapted(nn.Module):
    """A frozen network whose first layer gets an adapter of low rank, of which the second factor starts at 0."""

    def __init__(self, hidden: nn.Linear, head: nn.Linear, rank: int):
        super().__init__()
        self.hidden, self.head = hidden.requires_grad_(False), head.requires_grad_(False)
        down, up = nn.Linear(64, rank, bias=False), nn.Linear(rank, hidden.out_features, bias=False)
        self.adapter = nn.Sequential(down, up)
        nn.init.zeros_(up.weight)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.head(relu(self.hidden(images) + self.adapter(images)))
        return cross_entropy(scores, labels), (scores.argmax(1) != labels).float().mean()

    def couple(self) -> Coupling:
        return couple_factors(self.adapter)[0]


class Slimmed(nn.Module):
    """A network whose norm has small scales and an l1 penalty on them; it normalises by the batch it is given."""

    def __init__(self, width: int, penalty: float, scale: float):
        super().__init__()
        self.layer, self.head = nn.Linear(64, width, bias=False), nn.Linear(width, 10)
        self.norm, self.penalty = nn.BatchNorm1d(width, track_running_stats=False), penalty
        nn.init.constant_(self.norm.weight, scale)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.head(relu(self.norm(self.layer(images))))
        objective = cross_entropy(scores, labels) + self.penalty * self.norm.weight.abs().sum()
        return objective, (scores.argmax(1) != labels).float().mean()

    def couple(self) -> Coupling:
        return couple_conv_norm(self)[0]


Model = Factors | Adapted | Slimmed
Build = Callable[[list[Model]], Optimizer]
Drawn = tuple[Model, Data, Data]  # the model, what it learns from, what it is graded on


def sparse_coding(seed: int) -> Drawn:
    random = torch.Generator().manual_seed(seed)
    rows, factors, columns = 30, 8, 40
    truth = normal(random, factors, columns) * (torch.rand(factors, columns, generator=random) < 0.2)
    b = normal(random, rows, factors) @ truth + 0.1 * normal(random, rows, columns)
    data = b, (torch.rand(rows, columns, generator=random) < 0.6).float()
    A, x = 0.3 * normal(random, rows, factors), 0.3 * normal(random, factors, columns)
    return Factors(A, x, penalty=0.1, ridge=0.0), data, data


def completion(seed: int) -> Drawn:
    random = torch.Generator().manual_seed(seed)
    side, rank, factors = 40, 4, 6
    b = normal(random, side, rank) @ normal(random, rank, side) + 0.1 * normal(random, side, side)
    data = b, (torch.rand(side, side, generator=random) < 0.4).float()
    A, x = normal(random, side, factors), 0.01 * normal(random, factors, side)
    return Factors(A, x, penalty=0.0, ridge=RIDGE), data, data


def adaptation(seed: int) -> Drawn:
    torch.manual_seed(seed)
    images, labels = digits(seed)
    hidden, head = nn.Linear(64, 48), nn.Linear(48, 10)
    optimizer = torch.optim.Adam([*hidden.parameters(), *head.parameters()], lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        cross_entropy(head(relu(hidden(images[:400]))), labels[:400]).backward()
        optimizer.step()
    lying = images.view(-1, 8, 8).rot90(1, (1, 2)).flatten(1)
    return Adapted(hidden, head, rank=8), (lying[:200], labels[:200]), (lying[400:], labels[400:])


def slimming(seed: int) -> Drawn:
    torch.manual_seed(seed)
    images, labels = digits(seed)
    return Slimmed(32, penalty=0.005, scale=0.02), (images[:400], labels[:400]), (images[400:], labels[400:])


def digits(seed: int) -> Data:
    """Return one half of scikit-learn's digits, shuffled: one for seeds that choose, the other for those that judge."""
    images, labels = (torch.as_tensor(values) for values in load_digits(return_X_y=True))
    halves = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).chunk(2)
    half = halves[int(seed >= HELD_OUT)]
    mine = half[torch.randperm(len(half), generator=torch.Generator().manual_seed(seed))]
    return images[mine].float() / 16, labels[mine]


def normal(random: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=random)


PLAIN = {"project": "sparse", "swap": False}


@dataclass(frozen=True, eq=False)
class Problem:
    """How a problem is drawn by seed, and around which learning rates an optimizer is tried."""

    title: str
    metric: str
    draw: Callable[[int], Drawn]
    steps: int
    batch: int | None
    rates: dict[str, float]
    ways: tuple[dict[str, Any], ...] = (PLAIN,)  # which side is projected, and whether the sides are exchanged

    def exact(self) -> bool:
        """Whether the best partner for the present sparse side is a closed form."""
        return self.draw in (sparse_coding, completion)


PROBLEMS = {
    "coding": Problem(
        "Sparse coding with missing entries", "objective", sparse_coding, 200, None,
        {"sgd": 0.02, "momentum": 0.01, "adam": 0.1},
    ),
    "completion": Problem(
        "Matrix completion, one factor small", "objective", completion, 120, None,
        {"sgd": 0.02, "momentum": 0.01, "adam": 0.2},
    ),
    "adaptation": Problem(
        "Low-rank adaptation of a network", "test error", adaptation, 80, 32,
        {"sgd": 0.1, "momentum": 0.02, "adam": 0.05}, (PLAIN, {"project": "sparse", "swap": True}),
    ),
    "slimming": Problem(
        "A network with an l1 penalty on its norm's scales", "test error", slimming, 60, 32,
        {"sgd": 0.5, "momentum": 0.05, "adam": 0.02}, (PLAIN, {"project": "partner", "swap": False}),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Task:
    """One problem drawn for several seeds, and the rows of each step's batch."""

    models: list[Model]
    train: Data
    test: Data
    steps: int
    rows: Tensor | None

    def batch(self, step: int) -> Data:
        if self.rows is None:
            return self.train
        seeds = torch.arange(len(self.models)).unsqueeze(1)
        return tuple(values[seeds, self.rows[:, step]] for values in self.train)


@lru_cache(maxsize=2)
def task(problem: Problem, seeds: tuple[int, ...]) -> Task:
    """Draw a problem; every run of it starts from the same and sees the same batches."""
    drawn = [problem.draw(seed) for seed in seeds]
    train, test = (tuple(torch.stack(of) for of in zip(*[d[i] for d in drawn], strict=True)) for i in (1, 2))
    rows = None
    if problem.batch is not None:
        size = (problem.steps, problem.batch)
        sources = [torch.Generator().manual_seed(seed) for seed in seeds]
        rows = torch.stack([torch.randint(train[0].shape[1], size, generator=source) for source in sources])
    return Task([model for model, _, _ in drawn], train, test, problem.steps, rows)


def follow(task: Task, builds: Sequence[Build], exact: str = "", every: int = 0) -> Tensor:
    """Return the metric (grades, trials, seeds) at the start, at every `every`-th step and at the end.

    What is not finite is inf. All trials, one for each optimizer that `builds` make of the seeds' models, run side by
    side. With `exact`, they are graded with the best partner for their sparse side; with "always" they also step there.
    """
    trials = [copy.deepcopy(task.models) for _ in builds]
    optimizers = [build(models) for build, models in zip(builds, trials, strict=True)]
    named = [dict(model.named_parameters()) for models in trials for model in models]
    learned = [name for name, parameter in named[0].items() if parameter.requires_grad]
    shape = len(trials), len(task.models)

    def values(P: dict[str, Tensor], data: Data) -> tuple[Tensor, Tensor]:
        repeated = [of_seed.repeat(len(trials), *[1] * (of_seed.ndim - 1)) for of_seed in data]
        return vmap(lambda P, *inputs: functional_call(task.models[0], P, inputs))(P, *repeated)

    @torch.no_grad()
    def stacked(best: bool) -> dict[str, Tensor]:
        P = {name: torch.stack([of[name] for of in named]) for name in named[0]}
        if best:
            x = P["x"].unflatten(0, shape)
            P["A"] = torch.cat([best_partner(of_trial, task.train) for of_trial in x])
        return P

    def grade() -> Tensor:
        with torch.no_grad():
            return values(stacked(bool(exact)), task.test)[1].nan_to_num(nan=torch.inf).unflatten(0, shape)

    grades = [grade()]
    for step in range(task.steps):
        P = stacked(exact == "always")
        sides = [P[name].requires_grad_() for name in learned]
        gradients = torch.autograd.grad(values(P, task.batch(step))[0].sum(), sides)
        for name, of_all in zip(learned, gradients, strict=True):
            for of, gradient in zip(named, of_all, strict=True):
                of[name].grad = gradient
        for optimizer in optimizers:
            optimizer.step()
        if step == task.steps - 1 or (every and (step + 1) % every == 0):
            grades.append(grade())
    return torch.stack(grades)


def best_partner(x: Tensor, data: Data) -> Tensor:
    """Return the A (seeds, R, J) that is best for x (seeds, J, N): row by row, a ridge regression."""
    b, observed = data
    squares = (x.unsqueeze(1) * observed.unsqueeze(2)) @ x.mT.unsqueeze(1) + RIDGE * torch.eye(x.shape[1])
    return torch.linalg.solve_ex(squares, (observed * b) @ x.mT)[0]


def swapped(coupling: Coupling) -> Coupling:
    """Return the coupling with its sides exchanged."""
    return replace(
        coupling, sparse=coupling.partner, partner=coupling.sparse,
        sparse_dim=coupling.partner_dim, partner_dim=coupling.sparse_dim,
    )  # fmt: skip
