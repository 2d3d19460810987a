"""Prune any network: learn masks, remove the channels behind the smallest, fine-tune what is left."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cogd.optimizer import Rule
from cogd.pruning.budget import one_target
from cogd.pruning.gal import Distillation
from cogd.pruning.graph import as_tuple
from cogd.pruning.phases import Phases, placed_copy
from cogd.pruning.refusals import check_plain
from cogd.pruning.result import Pruned
from cogd.pruning.settings import Settings, learning_recipe, phase_recipe
from cogd.training.batches import check_fit, check_labels_of, first_examples, load_batches
from cogd.training.data import Data
from cogd.training.loop import TrainData
from cogd.training.metrics import Batches, Evaluate, Loss, classification_metrics
from cogd.training.placement import Placement, choose_placement
from cogd.training.recipe import Recipe
from cogd.training.state import seed_epoch


def prune(
    model: nn.Module,
    data: str | Data | tuple[TrainData, Batches],
    *,
    target_macs: float | None = None,
    target_params: float | None = None,
    target_latency: float | None = None,
    active: float | None = None,
    distill: Distillation = "gal",
    rule: Rule | Literal["auto"] = "auto",
    order: int | None = None,
    scale: float | None = None,
    penalty: float = 0.01,
    initial: Literal["ones", "normal"] = "ones",
    epochs: int | None = None,
    finetune_epochs: int | None = None,
    recipe: str | Path | Recipe | None = None,
    finetune_recipe: str | Path | Recipe | None = None,
    round_to: int = 1,
    ignore: Iterable[str] = (),
    teacher: nn.Module | None = None,
    loss: Loss | None = None,
    evaluate: Evaluate = classification_metrics,
    example_inputs: Tensor | Sequence[Any] | None = None,
    seed: int = 0,
    device: str | torch.device = "auto",
    folder: str | Path | None = None,
    progress: bool = True,
) -> Pruned:
    """Return a smaller network; `model` comes back unchanged. With a `folder`, the same call again resumes.

    Args:
        model: the trained network, with norms or without.
        data: as in `cogd.training.fit`.
        target_macs: the share of multiply-accumulates to keep; 0.5 if no target is given.
        target_params: or the share of parameters.
        target_latency: or the share of the time of a forward pass over the example inputs, on the device. MACs stand in
            for it while masks are learned; the final choice is measured, and what it came to once more at the end.
        active: or the share of channels to keep in every layer: CoGD-a.
        distill: what the network learns from while it is pruned: "gal", the teacher's outputs and a discriminator,
            without labels; "kd", the labels and the teacher's softened answers; "none", the labels alone.
        rule: how gates are coordinated with their filters once per epoch; None is GAL by plain SGD; "auto" the recipe's
            rule, or "paper" where it names none.
        order: the rule's kernel; the recipe's by default, 1 where it names none.
        scale: the rule's strength, likewise; 0.001.
        penalty: the weight of the gates' l1 norm, lambda_m; the paper chose in [0.01, 0.1].
        initial: the gates at the start: "ones" leaves the network as it is; "normal", as in the paper, draws N(0, 1).
        epochs: of learning masks; the recipe's by default: 100 on CIFAR-10 and on batches of your own.
        finetune_epochs: of fine-tuning, likewise: 60.
        recipe: of learning masks; the data's usual one by default. A step schedule is shortened with `epochs`.
        finetune_recipe: of fine-tuning.
        round_to: every layer keeps a multiple of so many channels, where it has them.
        ignore: modules that keep their channels.
        teacher: by default the model itself; or any network, of whatever architecture, whose answers have the shape of
            the model's.
        loss: as in `fit`, for fine-tuning and wherever labels are used.
        evaluate: as in `fit`.
        example_inputs: what the model's forward accepts; by default the data's first two inputs. Their number is also
            the batch that `target_latency` is about.
        seed: of the gates, the discriminator, the order of the data and its augmentation.
        device: "auto", "cpu" or "cuda".
        folder: where both phases and the choice of channels are kept; None keeps nothing.
        progress: whether to show how it goes on stderr.

    >>> from cogd.models import build
    >>> pruned = prune(build("digits", 10), "digits", epochs=1, finetune_epochs=1, progress=False)
    >>> pruned.status, round(pruned.report()["macs"]["share"], 1)
    ('complete', 0.5)
    """
    check_plain(model)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("model is frozen, but its weights learn beside the gates; call model.requires_grad_() first.")
    settings = Settings(
        target=one_target(macs=target_macs, params=target_params, latency=target_latency, active=active),
        learning=learning_recipe(recipe, data, epochs, rule, order=order, scale=scale, active=active),
        finetuning=phase_recipe("finetune", finetune_recipe, data, finetune_epochs),
        distill=distill,
        penalty=penalty,
        initial=initial,
        round_to=round_to,
        ignore=(ignore,) if isinstance(ignore, str) else tuple(ignore),
        seed=seed,
    )
    placement = choose_placement(device, settings.learning)
    base = placed_copy(model, placement)
    test, inputs = _test_and_example(base, data, settings, placement, evaluate if loss is None else None)
    inputs = inputs if example_inputs is None else tuple(map(placement.move, as_tuple(example_inputs)))
    return Phases(
        settings=settings,
        base=base,
        teacher=base if teacher is None else _checked_teacher(placed_copy(teacher, placement), base, inputs, distill),
        data=data,
        test=test,
        inputs=inputs,
        placement=placement,
        loss=loss,
        evaluate=evaluate,
        folder=None if folder is None else Path(folder),
        progress=progress,
    ).run()


def _test_and_example(
    model: nn.Module, data, settings: Settings, placement: Placement, evaluate: Evaluate | None
) -> tuple[Batches, tuple]:
    """Return the test batches and the first two inputs, once the model is seen to take them.

    Without a loss of the user's, labels are checked too; `evaluate` then says whether the test's are used.
    """
    with torch.random.fork_rng([placement.device] if placement.on_gpu else []):
        seed_epoch(settings.seed, -1)
        batches = load_batches(data, settings.learning, placement)
        inputs, targets = first_examples(batches.train, placement)
    outputs = check_fit(model, inputs, targets, classes=False)
    if evaluate is not None and isinstance(outputs, Tensor) and outputs.ndim > 1:
        batches = check_labels_of(batches, outputs.shape[1], evaluate)
    return batches.test, (inputs,)


def _checked_teacher(teacher: nn.Module, model: nn.Module, inputs: tuple, distill: str) -> nn.Module:
    """Refuse a teacher that nobody asks, or whose answers can't be compared with the model's."""
    if distill == "none":
        raise ValueError("teacher is not asked with distill='none'; leave it out, or set distill='gal' or 'kd'.")
    with torch.no_grad():
        made = model(*inputs)
        try:
            wanted = teacher(*inputs)
        except RuntimeError as error:
            raise ValueError(
                f"teacher does not take the model's inputs, shaped {tuple(inputs[0].shape)}: {error}"
            ) from error
    if _shape(wanted) != _shape(made):
        raise ValueError(
            f"teacher must answer as the model does, with {_shape(made)} to {tuple(inputs[0].shape)}; it answers "
            f"with {_shape(wanted)}. Give a teacher of the same classes, or none: the model is its own teacher."
        )
    return teacher


def _shape(answer: Any) -> tuple[int, ...] | str:
    return tuple(answer.shape) if isinstance(answer, Tensor) else f"a {type(answer).__name__}"
