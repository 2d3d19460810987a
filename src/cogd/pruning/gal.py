"""What the pruned network learns from: the teacher's outputs and a discriminator, a softened teacher, or the labels."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, kl_div, log_softmax
from torch.optim import SGD

from cogd.training.loop import AfterStep
from cogd.training.metrics import Loss, Objective, minimize
from cogd.training.placement import Placement
from cogd.training.recipe import Recipe
from cogd.training.schedule import rate_factor, set_rate
from cogd.training.state import Stateful, TrainingState

Distillation = Literal["gal", "kd", "none"]
WIDTHS = (128, 256, 128)
TEMPERATURE = 4.0


class Discriminator(nn.Sequential):
    """Tells the teacher's outputs from the pruned network's: classes-128-256-128-1, with ReLU between."""

    def __init__(self, classes: int):
        layers: list[nn.Module] = []
        for inputs, outputs in zip((classes, *WIDTHS), WIDTHS, strict=False):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        super().__init__(*layers, nn.Linear(WIDTHS[-1], 1))


def discriminator_loss(of_teacher: Tensor, of_student: Tensor) -> Tensor:
    """Return -E[log D(teacher)] - E[log(1 - D(student))] of D's answers before the sigmoid.  [Eq. optimization, max]"""
    return _surprise(of_teacher, 1.0) + _surprise(of_student, 0.0)


def adversarial_loss(of_student: Tensor) -> Tensor:
    """Return -E[log D(student)], whose gradient does not vanish while D wins.  [L_Adv of Eq. optimization, min]"""
    return _surprise(of_student, 1.0)


def data_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return half the mean squared distance of the outputs.  [L_data of Eq. optimization]"""
    return 0.5 * (student - teacher).square().sum(1).mean()


def softened_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the divergence from the teacher's softened answer, scaled to the gradient of an unsoftened one."""
    made, wanted = (log_softmax(outputs / TEMPERATURE, 1) for outputs in (student, teacher))
    return TEMPERATURE**2 * kl_div(made, wanted, reduction="batchmean", log_target=True)


def rows(outputs: Tensor) -> Tensor:
    """Return outputs (N, classes, ...) as float32 (examples or places, classes)."""
    return outputs.float().movedim(1, -1).flatten(0, -2)


class Game:
    """GAL's objective: on every batch the discriminator takes a step, and then the pruned network meets it.

    It needs no labels. The discriminator's rate follows the recipe, like the network's.
    """

    def __init__(self, teacher: Any, discriminator: Discriminator, recipe: Recipe):
        self.teacher, self.discriminator, self.recipe = teacher, discriminator, recipe
        parameters = discriminator.parameters()
        self.optimizer = SGD(parameters, recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay)

    def __call__(self, student: Any, inputs: Tensor, _: Tensor) -> Tensor:
        wanted, made = rows(_answer(self.teacher, inputs)), rows(student(inputs))
        with torch.autocast(made.device.type, enabled=False):  # it would remember weights that the step changes
            self._step(wanted, made.detach())
            fixed = {name: weight.detach() for name, weight in self.discriminator.named_parameters()}
            fooled = adversarial_loss(functional_call(self.discriminator, fixed, made))
            return data_loss(made, wanted) + fooled

    def after_step(self, state: TrainingState) -> None:
        """Set the discriminator's rate for the step to come."""
        set_rate(self.optimizer, rate_factor(self.recipe, state.step, len(state.losses)))

    def state_dict(self) -> dict[str, Any]:
        return {"discriminator": self.discriminator.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.discriminator.load_state_dict(state["discriminator"])
        self.optimizer.load_state_dict(state["optimizer"])

    def _step(self, of_teacher: Tensor, of_student: Tensor) -> None:
        self.optimizer.zero_grad()
        discriminator_loss(self.discriminator(of_teacher), self.discriminator(of_student)).backward()
        self.optimizer.step()


@dataclass(frozen=True)
class Distilled:
    """An objective, what of it changes in training, and what it does after each step."""

    objective: Objective
    companions: dict[str, Stateful] = field(default_factory=dict)
    after_step: AfterStep | None = None


def distillation(
    kind: Distillation, teacher: nn.Module, recipe: Recipe, loss: Loss | None, placement: Placement, classes: int
) -> Distilled:
    """Return what the pruned network learns from: "gal", "kd" or "none"."""
    if kind == "none":
        return Distilled(minimize(loss or nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing)))
    call = placement.compile(teacher)
    if kind == "kd":
        return Distilled(softened(call, loss or cross_entropy))
    game = Game(call, Discriminator(classes).to(placement.device), recipe)
    return Distilled(game, {"game": game}, game.after_step)


def softened(teacher: Any, loss: Loss) -> Objective:
    """Return the objective of distillation with labels: the loss and the teacher's softened answer, half each."""

    def objective(student: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        wanted, made = _answer(teacher, inputs), student(inputs)
        return 0.5 * (loss(made, targets) + softened_loss(rows(made), rows(wanted)))

    return objective


def _answer(teacher: Any, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return teacher(inputs)


def _surprise(logits: Tensor, label: float) -> Tensor:
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, label))
