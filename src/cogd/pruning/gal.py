"""What the pruned network learns from: the teacher's outputs and a discriminator, a softened teacher, or the labels."""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, kl_div, linear, log_softmax

from cogd.training.metrics import Loss, Objective, minimize
from cogd.training.recipe import Recipe

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

    def as_fixed(self, x: Tensor) -> Tensor:
        """Judge outputs; the gradient goes to them alone."""
        for layer in self:
            x = linear(x, layer.weight.detach(), layer.bias.detach()) if isinstance(layer, nn.Linear) else layer(x)
        return x


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
    """GAL's objective: the pruned network meets the discriminator, and both learn from one backward pass.

    It needs no labels. Each side's loss stops short of the other's weights, so that their sum gives both gradients.
    """

    def __init__(self, teacher: nn.Module, discriminator: Discriminator):
        self.teacher, self.discriminator = teacher, discriminator

    def __call__(self, student: Any, inputs: Tensor, _: Tensor) -> Tensor:
        D, wanted, made = self.discriminator, rows(_answer(self.teacher, inputs)), rows(student(inputs))
        with torch.autocast(made.device.type, enabled=False):
            told_apart = discriminator_loss(D(wanted), D(made.detach()))
            return data_loss(made, wanted) + adversarial_loss(D.as_fixed(made)) + told_apart


class Distilled(NamedTuple):
    """An objective, and what else learns by it."""

    objective: Objective
    discriminator: Discriminator | None = None


def distillation(
    kind: Distillation, teacher: nn.Module, recipe: Recipe, loss: Loss | None, inputs: tuple[Any, ...]
) -> Distilled:
    """Return what the pruned network learns from: "gal", "kd" or "none"; `inputs` are examples."""
    if kind == "none":
        return Distilled(minimize(loss or nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing)))
    with torch.no_grad():
        answer = teacher(*inputs)
    if not isinstance(answer, Tensor) or answer.ndim < 2:
        what = f"shape {tuple(answer.shape)}" if isinstance(answer, Tensor) else f"a {type(answer).__name__}"
        raise ValueError(
            f"distill={kind!r} compares answers shaped (examples, classes, ...), but this {type(teacher).__name__} "
            f"answers with {what}. Set distill='none', with a loss of your own."
        )
    if kind == "kd":
        return Distilled(softened(teacher, loss or cross_entropy))
    discriminator = Discriminator(answer.shape[1])
    return Distilled(Game(teacher, discriminator), discriminator)


def softened(teacher: nn.Module, loss: Loss) -> Objective:
    """Return the objective of distillation with labels: the loss and the teacher's softened answer, half each."""

    def objective(student: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        wanted, made = _answer(teacher, inputs), student(inputs)
        return 0.5 * (loss(made, targets) + softened_loss(rows(made), rows(wanted)))

    return objective


def _answer(teacher: nn.Module, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return teacher(inputs)


def _surprise(logits: Tensor, label: float) -> Tensor:
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, label))
