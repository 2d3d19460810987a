"""The learning rate as a function of the step alone, so that resuming it needs no state."""

import math

from torch.optim import Optimizer

from cogd.training.recipe import Recipe


def rate_factor(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """Return what multiplies the first learning rate at a step, counted from 0.

    >>> recipe = Recipe(epochs=4, batch_size=1, lr=0.1)
    >>> [round(rate_factor(recipe, step, 1), 3) for step in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """
    epoch = step / steps_per_epoch
    if epoch < recipe.warmup_epochs:
        return (step + 1) / math.ceil(recipe.warmup_epochs * steps_per_epoch)
    match recipe.schedule:
        case "cosine":
            done = (epoch - recipe.warmup_epochs) / (recipe.epochs - recipe.warmup_epochs)
            return 0.5 * (1 + math.cos(math.pi * done))
        case "step":
            return recipe.step_factor ** (int(epoch) // recipe.step_epochs)
        case "constant":
            return 1.0


def set_rate(optimizer: Optimizer, factor: float) -> None:
    """Give every parameter group its own first rate times the factor."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
