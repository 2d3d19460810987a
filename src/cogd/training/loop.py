"""The one loop that training, pruning and fine-tuning run.

One device. For several, `train` yields this rank's share of each batch, the records' means are reduced where they are
made, in `_record`, and the first rank alone saves.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cogd.optimizer import CoGD
from cogd.training.metrics import Batches, Evaluate, Objective
from cogd.training.placement import Placement
from cogd.training.recipe import Recipe
from cogd.training.recorded import RecordedStep
from cogd.training.schedule import rate_factor, set_rate
from cogd.training.state import TrainingState, seed_epoch, set_random_state
from cogd.training.step import Step
from cogd.training.stop import StopRequest

Status = Literal["complete", "stopped"]
TakeStep = Callable[[Tensor, Tensor], Tensor]
AfterStep = Callable[[TrainingState], None]
AfterEpoch = Callable[[TrainingState], dict[str, Any] | None]
SECONDS_BETWEEN_LOOKS = 1.0


class TrainData(Iterable[tuple[Tensor, Tensor]], Sized, Protocol):
    """Batches whose number is known; iterating draws whatever is random from torch's global generator."""


class Reporter(Protocol):
    """Who shows how the run goes."""

    def step(self, epoch: int, batch: int, loss: float, images_per_second: float) -> None: ...

    def epoch(self, record: dict[str, Any]) -> None: ...


class DivergedError(ArithmeticError):
    """The loss or the weights stopped being finite numbers.

    >>> issubclass(DivergedError, ArithmeticError)
    True
    """


@dataclass(frozen=True)
class Plan:
    """What stays the same during a run."""

    model: nn.Module
    optimizer: Optimizer
    train: TrainData
    test: Batches
    recipe: Recipe
    seed: int
    placement: Placement
    objective: Objective
    evaluate: Evaluate
    after_step: AfterStep | None = None
    after_epoch: AfterEpoch | None = None
    task: str = "training"
    recordable: bool = False  # a step does the same on every batch and reads nothing back from the device

    def rate_at(self, step: int) -> float:
        """Return the first group's learning rate at a step, counted from 0."""
        group = self.optimizer.param_groups[0]
        return group.get("initial_lr", group["lr"]) * rate_factor(self.recipe, step, len(self.train))


def train(
    plan: Plan,
    state: TrainingState,
    random: dict[str, Tensor] | None,
    stop: StopRequest,
    reporter: Reporter,
    save: Callable[[TrainingState], None],
) -> Status:
    """Run from the state's position to the last epoch, saving after each, or until a stop is requested.

    `random` is the random state of a run that was stopped within an epoch.
    """
    take_step = _step(plan)
    while state.epoch < plan.recipe.epochs:
        began = time.perf_counter()
        images = _train_epoch(plan, take_step, state, random, stop, reporter)
        random = None
        _refuse_divergence(plan, state)  # whether the epoch is over or stopped: nothing that diverged is saved
        if stop.requested and state.batch < len(plan.train):
            save(state)
            return "stopped"
        record = _record(plan, state, images / (time.perf_counter() - began))
        state.epoch, state.batch = state.epoch + 1, 0
        record |= (plan.after_epoch(state) if plan.after_epoch else None) or {}
        record["seconds"] = time.perf_counter() - began
        record = json.loads(json.dumps(record, default=float))  # numpy's numbers would spoil the checkpoint
        state.history.append(record)
        reporter.epoch(record)
        save(state)
        if stop.requested and state.epoch < plan.recipe.epochs:
            return "stopped"
    return "complete"


def _step(plan: Plan) -> TakeStep:
    """Return what takes the run's steps: recorded whole on a GPU where that is possible, else as written."""
    if plan.recordable and plan.placement.compilation != "off":
        return RecordedStep(plan.model, plan.objective, plan.optimizer, plan.placement)
    return Step(plan.placement.compile(plan.model), plan.objective, plan.optimizer, plan.placement)


def _train_epoch(
    plan: Plan,
    take_step: TakeStep,
    state: TrainingState,
    random: dict[str, Tensor] | None,
    stop: StopRequest,
    reporter: Reporter,
) -> int:
    """Take the epoch's remaining steps and return the number of images they saw."""
    plan.model.train()
    seed_epoch(plan.seed, state.epoch)
    batches = _skip(iter(plan.train), state.batch)
    if random is not None:
        set_random_state(random, plan.placement.device)
    began = looked = time.perf_counter()
    images = 0
    for inputs, targets in batches:
        if state.batch == len(plan.train):
            raise ValueError(f"the training data yielded more batches than its length, {len(plan.train)}.")
        set_rate(plan.optimizer, rate_factor(plan.recipe, state.step, len(plan.train)))
        state.losses[state.batch].copy_(take_step(inputs, targets))
        state.batch += 1
        if plan.after_step is not None:
            plan.after_step(state)
        images += len(targets)
        if stop.requested:
            return images
        if (now := time.perf_counter()) - looked > SECONDS_BETWEEN_LOOKS:
            looked = now
            _refuse_divergence(plan, state)
            reporter.step(state.epoch, state.batch, float(state.losses[state.batch - 1]), images / (now - began))
    if state.batch < len(plan.train):
        raise ValueError(
            f"the training data yielded {state.batch} batches, but its length is {len(plan.train)}. Give an iterable "
            "that begins anew each epoch, such as a list or a DataLoader, not a generator."
        )
    return images


def _skip(batches: Iterator[tuple[Tensor, Tensor]], count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pass by what the run had seen of this epoch before it was stopped."""
    for _ in range(count):
        next(batches)
    return batches


def _refuse_divergence(plan: Plan, state: TrainingState) -> None:
    """Raise where a loss of this epoch, or a weight, is no finite number; this waits for the device."""
    bad = (~state.losses[: state.batch].isfinite()).nonzero()
    if len(bad):
        step = state.epoch * len(plan.train) + int(bad[0])
        what = f"the loss is {float(state.losses[int(bad[0])])}"
    elif not _finite(plan.model):
        step, what = state.step - 1, "a weight is not a finite number"
    else:
        return
    rate = plan.rate_at(step)
    raise DivergedError(
        f"{what} at step {step + 1} (epoch {state.epoch + 1}), where the learning rate is {rate:.4g}. "
        f"Try a lower lr (such as {plan.recipe.lr / 10:.2g}), warmup_epochs=5, or precision='float32'; "
        "if inputs can hold NaN, look there first."
    )


def _finite(model: nn.Module) -> bool:
    finite = [parameter.detach().isfinite().all() for parameter in model.parameters()]
    return bool(torch.stack(finite).all())


def _record(plan: Plan, state: TrainingState, images_per_second: float) -> dict[str, Any]:
    """Return what the log says about the epoch that just ended."""
    record = {
        "epoch": state.epoch + 1,
        "step": state.step,
        "lr": plan.rate_at(state.step - 1),
        "train_loss": float(state.losses.double().mean()),
        "metrics": measure(plan.model, plan.test, plan.evaluate, plan.placement),
        "images_per_second": images_per_second,
    }
    if isinstance(plan.optimizer, CoGD) and plan.optimizer.rule is not None:
        record["cogd"] = _coordination(plan.optimizer)
    return record


def measure(model: nn.Module, batches: Batches, evaluate: Evaluate, placement: Placement) -> dict[str, float]:
    """Evaluate the model in evaluation mode, without gradients, on batches moved to its device."""
    moved = ((placement.move(inputs), placement.move(targets)) for inputs, targets in batches)
    model.eval()
    with torch.no_grad(), placement.autocast():
        metrics = evaluate(model, moved)
    if not isinstance(metrics, dict):
        raise TypeError(f'evaluate must return named numbers, as {{"accuracy": 0.9}}; got {metrics!r:.60}.')
    return metrics


def _coordination(optimizer: CoGD) -> dict[str, Any]:
    """Return `last_stats`, in sum and by coupling as [opened, of, size of the correction]."""
    stats = optimizer.last_stats
    return {
        "opened": sum(stat.opened for stat in stats),
        "coordinates": sum(stat.coordinates for stat in stats),
        "correction": sum(stat.correction**2 for stat in stats) ** 0.5,
        "couplings": {stat.name: [stat.opened, stat.coordinates, stat.correction] for stat in stats},
    }
