"""GAL's losses against their formulas, the discriminator's shape, and who learns from whom."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, softmax

from cogd.pruning.gal import (
    Discriminator,
    Game,
    adversarial_loss,
    data_loss,
    discriminator_loss,
    rows,
    softened,
    softened_loss,
)


@pytest.mark.parametrize("classes", [10, 100, 3])
def test_the_discriminator_follows_the_class_count(classes):
    shapes = [tuple(layer.weight.shape) for layer in Discriminator(classes) if isinstance(layer, nn.Linear)]
    assert shapes == [(128, classes), (256, 128), (128, 256), (1, 128)]


def test_the_losses_are_the_formulas():
    torch.manual_seed(0)
    teacher, student = torch.randn(2, 5, 1, dtype=torch.float64)
    on_teacher, on_student = teacher.sigmoid(), student.sigmoid()
    expected = -on_teacher.log().mean() - (1 - on_student).log().mean()
    assert torch.allclose(discriminator_loss(teacher, student), expected)
    assert torch.allclose(adversarial_loss(student), -on_student.log().mean())
    a, b = torch.randn(2, 5, 3, dtype=torch.float64)
    assert torch.allclose(data_loss(a, b), sum((x - y).norm() ** 2 for x, y in zip(a, b, strict=True)) / 10)


def test_the_softened_loss_has_its_minimum_at_the_teacher_and_the_gradient_of_a_cross_entropy():
    torch.manual_seed(0)
    student, teacher = (
        torch.randn(5, 3, dtype=torch.float64, requires_grad=True),
        torch.randn(5, 3, dtype=torch.float64),
    )
    assert softened_loss(teacher, teacher).item() == pytest.approx(0, abs=1e-12)
    [gradient] = torch.autograd.grad(softened_loss(student, teacher), student)
    expected = 4.0 * (softmax(student / 4, 1) - softmax(teacher / 4, 1)) / 5
    assert torch.allclose(gradient, expected)


def test_rows_count_places_too():
    assert rows(torch.zeros(2, 5)).shape == (2, 5)
    outputs = torch.randn(2, 5, 3, 4)
    assert torch.equal(rows(outputs)[7], outputs[0, :, 1, 3])


def game():
    torch.manual_seed(0)
    student, teacher = nn.Linear(6, 4), nn.Linear(6, 4)
    return student, teacher, Game(teacher, Discriminator(4)), torch.randn(16, 6)


def test_each_side_learns_from_its_own_loss():
    student, teacher, played, inputs = game()
    D = played.discriminator
    made, wanted = student(inputs), teacher(inputs).detach()
    for_student = torch.autograd.grad(
        data_loss(made, wanted) + adversarial_loss(D(made)), [*student.parameters()], retain_graph=True
    )
    for_discriminator = torch.autograd.grad(discriminator_loss(D(wanted), D(made)), [*D.parameters()])
    played(student, inputs, torch.zeros(16)).backward()
    for parameter, expected in zip(student.parameters(), for_student, strict=True):
        assert torch.allclose(parameter.grad, expected)
    for parameter, expected in zip(D.parameters(), for_discriminator, strict=True):
        assert torch.allclose(parameter.grad, expected)
    assert teacher.weight.grad is None


def test_the_game_needs_no_labels():
    losses = []
    for labels in (torch.zeros(16), torch.full((16,), torch.nan)):
        student, _, played, inputs = game()
        losses.append(played(student, inputs, labels).item())
    assert losses[0] == losses[1]


def test_the_discriminator_learns_to_tell_them_apart():
    student, teacher, played, inputs = game()
    optimizer = torch.optim.SGD(played.discriminator.parameters(), lr=0.1, momentum=0.9)
    for _ in range(200):
        optimizer.zero_grad()
        played(student, inputs, torch.zeros(16)).backward()
        optimizer.step()
    answers = played.discriminator(teacher(inputs)), played.discriminator(student(inputs))
    assert (answers[0] > 0).float().mean() > 0.9
    assert (answers[1] < 0).float().mean() > 0.9


def test_kd_is_the_loss_and_the_softened_answer_half_each():
    student, teacher, _, inputs = game()
    labels = torch.arange(16) % 4
    expected = 0.5 * cross_entropy(student(inputs), labels) + 0.5 * softened_loss(student(inputs), teacher(inputs))
    assert torch.allclose(softened(teacher, cross_entropy)(student, inputs, labels), expected)
