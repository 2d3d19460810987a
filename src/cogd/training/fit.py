"""Train any model on any data: the pieces that a run is made of, put together."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from cogd.coupling import Coupling, couple_conv_norm
from cogd.optimizer import CoGD
from cogd.training.batches import (
    RunData,
    check_fit,
    check_labels_of,
    check_measurable,
    description,
    examples,
    first_batch,
    load_batches,
)
from cogd.training.data import Data
from cogd.training.loop import AfterEpoch, AfterStep, Plan, TrainData
from cogd.training.metrics import (
    Batch,
    Batches,
    Evaluate,
    Loss,
    Objective,
    classification_metrics,
    cross_entropy_objective,
    minimize,
)
from cogd.training.placement import Placement, choose_placement
from cogd.training.recipe import Recipe, read_recipe
from cogd.training.run import RunFolder
from cogd.training.runner import Result, run_plan
from cogd.training.state import Stateful, seed_epoch

IMPLEMENTATIONS = ("foreach", "fused", "capturable", "differentiable")  # of the same steps
UNDESCRIBED = ("params", "param_names", *IMPLEMENTATIONS)


def fit(
    model: nn.Module,
    data: str | Data | tuple[TrainData, Batches],
    recipe: str | Path | Recipe,
    *,
    seed: int = 0,
    device: str | torch.device = "auto",
    folder: str | Path | None = None,
    name: str | None = None,
    task: str = "training",
    loss: Loss | None = None,
    objective: Objective | None = None,
    evaluate: Evaluate = classification_metrics,
    optimizer: Callable[[nn.Module], Optimizer] | None = None,
    couplings: Iterable[Coupling] | None = None,
    companions: Mapping[str, Stateful] | None = None,
    after_step: AfterStep | None = None,
    after_epoch: AfterEpoch | None = None,
    recordable: bool | None = None,
    progress: bool = True,
    tensorboard: bool = False,
) -> Result:
    """Train `model` in place by a recipe; with a `folder`, the same call again resumes what was stopped or killed.

    Args:
        model: any module; it is moved to the device and left in evaluation mode.
        data: "digits", "cifar10:DIR", "folder:DIR_OR_ZIP", what `load_data` makes of these, or a pair (train, test) of
            iterables of (inputs, targets) batches. Both must begin anew at each iteration, train must have a length,
            and what it draws must come from torch's generators: a run is resumed only with the same first batch.
        recipe: a shipped recipe's name, a TOML file or a `Recipe`.
        seed: of the order of the data, its augmentation and whatever the model draws, but not of its initial weights.
        device: "auto", "cpu" or "cuda".
        folder: where config, log, checkpoints, weights and result go; None keeps nothing.
        name: what the folder's config calls the model; its class by default.
        task: what the progress is called.
        loss: (outputs, targets) -> number, of these alone; cross-entropy by default.
        objective: (model, inputs, targets) -> number, in place of `loss`, where outputs and targets are not enough.
        evaluate: (model, batches) -> named numbers; test loss and accuracy by default.
        optimizer: makes the base optimizer of the model; the recipe's SGD by default.
        couplings: what the recipe's rule coordinates; by default every norm's scale with its convolution's kernels.
        companions: what else changes in training and must be in the checkpoints, such as a discriminator.
        after_step: called with the `TrainingState` after each step.
        after_epoch: called likewise after each epoch; what it returns is added to the epoch's record.
        recordable: whether a step does the same on every batch, whatever Python variables say, and reads nothing back
            from the device, so that a GPU can replay it from a CUDA graph; by default it may without an `objective` or
            `optimizer` of your own.
        progress: whether to show how it goes on stderr.
        tensorboard: whether to write TensorBoard's events too, in `folder`/tensorboard (extra `tensorboard`).

    >>> from cogd.models import build
    >>> result = fit(build("digits", 10), "digits", read_recipe("digits", epochs=1), progress=False)
    >>> result.status, len(result.history)
    ('complete', 1)
    """
    recipe = read_recipe(recipe)
    placement = choose_placement(device, recipe)
    if loss is not None and objective is not None:
        raise ValueError("give loss or objective, not both: an objective computes its own loss.")
    if tensorboard and folder is None:
        raise ValueError("tensorboard=True writes into the run's folder; give a folder too.")
    batches = load_batches(data, recipe, placement)
    placement.place(model)
    with torch.random.fork_rng([placement.device] if placement.on_gpu else []):
        seed_epoch(seed, -1)
        first = first_batch(batches.train, "the training data")
        inputs, targets = examples(first, placement)
        if objective is None:
            outputs = check_fit(model, inputs, targets, classes=loss is None)
            if evaluate is classification_metrics:
                check_measurable(outputs, batches)
            if loss is None:
                batches = check_labels_of(batches, outputs.shape[1], evaluate)
        stepping = _optimizer(model, recipe, optimizer, couplings, len(batches.train), inputs, placement)
        plan = Plan(
            model=model,
            optimizer=stepping,
            train=batches.train,
            test=batches.test,
            recipe=recipe,
            seed=seed,
            placement=placement,
            objective=objective or (minimize(loss) if loss else cross_entropy_objective(recipe.label_smoothing)),
            evaluate=evaluate,
            after_step=after_step,
            after_epoch=after_epoch,
            task=task,
            recordable=(objective is None and optimizer is None) if recordable is None else recordable,
        )
        config = _config(model, batches, first, recipe, seed, placement, name)
        config |= {} if optimizer is None else {"optimizer": _description(stepping)}
        run = None if folder is None else RunFolder(folder, config, tensorboard)
        return run_plan(plan, run, companions or {}, progress)


def _config(
    model, data: RunData, first: Batch, recipe: Recipe, seed: int, placement: Placement, name: str | None
) -> dict[str, Any]:
    """Return what makes a run this run and no other, as far as data can tell: code is not compared."""
    shapes = [(key, tuple(value.shape)) for key, value in model.state_dict().items()]
    first_batch = {"first_batch": description(first)} if data.classes is None else {}
    return {
        "model": {
            "name": name or type(model).__name__,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "shapes": hashlib.sha256(repr(shapes).encode()).hexdigest()[:16],
        },
        "data": data.fingerprint,
        "source": data.source,
        **first_batch,
        "seed": seed,
        "precision": placement.precision,
        "recipe": recipe.model_dump(exclude={"precision", "compile"}),
    }


def _description(optimizer: Optimizer) -> dict[str, Any]:
    """Return the kind and the numbers of an optimizer of the user's own, as JSON holds them."""
    base = optimizer.base if isinstance(optimizer, CoGD) else optimizer
    groups = {
        number: {name: value for name, value in group.items() if name not in UNDESCRIBED}
        for number, group in enumerate(base.param_groups)
    }
    return json.loads(json.dumps({"name": type(base).__name__, "groups": groups}, default=_plain))


def _plain(value: Any) -> Any:
    """Return a tensor's numbers; of what else JSON and checkpoints don't hold, the kind, without a place in memory."""
    return value.tolist() if isinstance(value, Tensor) else type(value).__name__


def _optimizer(model, recipe, make, couplings, period: int, inputs: Tensor, placement: Placement) -> Optimizer:
    """Return the base optimizer, coordinated once per epoch if the recipe has a rule."""
    if isinstance(make, Optimizer | type):
        kind, made = ("the class", make) if isinstance(make, type) else ("an", type(make))
        raise TypeError(
            "optimizer must be a function that makes one of the model, as in "
            f"lambda model: AdamW(model.parameters(), lr=1e-3); got {kind} {made.__name__}."
        )
    base = sgd(model, recipe, fused=placement.on_gpu) if make is None else make(model)
    stepping = base.base if isinstance(base, CoGD) else base  # CoGD passes modes on, and has none of its own
    if hasattr(stepping, "train") and hasattr(stepping, "eval"):
        raise ValueError(
            f"{type(stepping).__name__} has modes for training and evaluation, between which this loop does not go. "
            "Use it in a loop of your own, or give another optimizer."
        )
    if recipe.rule == "none":
        return base
    if couplings is None:
        couplings = couple_conv_norm(model, active=recipe.active, example_inputs=(inputs,))
    return CoGD(base, couplings, rule=recipe.rule, order=recipe.order, scale=recipe.scale, period=period)


def sgd(model: nn.Module, recipe: Recipe, fused: bool) -> SGD:
    """Return the recipe's SGD.

    A fused step fails where some momentum is there and some isn't yet, as of layers that the first batch passed by or
    that learn later; zeros from the start come to the same.
    """
    made = SGD(
        model.parameters(),
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.nesterov,
        fused=fused,
    )
    if fused and recipe.momentum:
        for parameter in model.parameters():
            made.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)
    return made
