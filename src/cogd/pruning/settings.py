"""The numbers of a pruning run, checked once, and the recipes of its two phases."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cogd.optimizer import Rule
from cogd.pruning.budget import Target
from cogd.pruning.gal import Distillation
from cogd.training.recipe import Recipe, read_recipe

CHOICES = {"distill": ("gal", "kd", "none"), "initial": ("normal", "ones")}


@dataclass(frozen=True)
class Settings:
    """What decides the outcome beside the model and the data; `cogd.pruning.prune` says what each number means."""

    target: Target
    learning: Recipe
    finetuning: Recipe
    distill: Distillation
    penalty: float
    initial: Literal["normal", "ones"]
    round_to: int
    ignore: tuple[str, ...]
    seed: int

    def __post_init__(self):
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {getattr(self, name)!r}.")
        if isinstance(self.round_to, bool) or not isinstance(self.round_to, int) or self.round_to < 1:
            raise ValueError(f"round_to must be an integer from 1, such as 8; got {self.round_to!r}.")
        if not math.isfinite(self.penalty) or self.penalty < 0:
            raise ValueError(f"penalty must be a finite number from 0, such as 0.01; got {self.penalty!r}.")

    def identity(self) -> dict[str, Any]:
        """Return what tells this run from others, but for the recipes, which their phases keep."""
        names = ("distill", "penalty", "initial", "round_to", "seed")
        return {
            "target": {"kind": self.target.kind, "share": self.target.share},
            "ignore": list(self.ignore),
            **{name: getattr(self, name) for name in names},
        }


def phase_recipe(phase: str, recipe: str | Path | Recipe | None, data: Any, epochs: int | None) -> Recipe:
    """Return the recipe of a phase, "prune" or "finetune"; a schedule of steps is shortened or stretched with it.

    >>> phase_recipe("prune", None, "cifar10:DIR", epochs=30).step_epochs
    9
    """
    found = read_recipe(f"{phase}_{_kind(data)}" if recipe is None else recipe)
    if epochs is not None:
        stretched = max(1, round(found.step_epochs * epochs / found.epochs))
        found = read_recipe(found, epochs=epochs, step_epochs=stretched)
    return found


def learning_recipe(
    recipe: str | Path | Recipe | None,
    data: Any,
    epochs: int | None,
    rule: Rule | Literal["auto"] = "auto",
    **given: float | None,
) -> Recipe:
    """Return the recipe of learning masks; only what is given replaces its fields.

    The rule "auto" is the one that the recipe names, and "paper" where it names none.

    >>> recipe = Recipe(epochs=2, batch_size=64, lr=0.1, scale=1.0)
    >>> found = learning_recipe(recipe, "digits", None, order=2)
    >>> found.rule, found.order, found.scale
    ('paper', 2, 1.0)
    """
    found = phase_recipe("prune", recipe, data, epochs)
    fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if rule != "auto":
        fields["rule"] = "none" if rule is None else rule
    elif "rule" not in found.model_fields_set:
        fields["rule"] = "paper"
    return read_recipe(found, **fields)


def _kind(data: Any) -> str:
    """Return whose recipe suits the data: CIFAR-10's where nothing else is known."""
    source = data if isinstance(data, str) else getattr(data, "source", "")
    kind = source.partition(":")[0]
    return {"digits": "digits", "folder": "imagenet"}.get(kind, "cifar10")
