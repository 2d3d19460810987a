"""Class numbers out of range, refused with what they are and where: a GPU would only say that some kernel failed."""

from collections.abc import Iterator, Sized
from dataclasses import dataclass

from torch import Tensor

from cogd.training.metrics import Batches


def check_labels(targets: Tensor, classes: int, where: str) -> None:
    """Refuse class numbers below 0 or from `classes` on; probabilities of classes are none.

    >>> import torch
    >>> check_labels(torch.tensor([0, 2]), 2, "the training data")
    Traceback (most recent call last):
    ValueError: labels must be from 0 to 1, one for each class; the training data has 2. Mend the labels, or
    give the model an output for each class.
    """
    if targets.is_floating_point() or not targets.numel():
        return
    least, most = (int(bound) for bound in targets.aminmax())
    if least < 0 or most >= classes:
        bad = least if least < 0 else most
        raise ValueError(
            f"labels must be from 0 to {classes - 1}, one for each class; {where} has {bad}. "
            "Mend the labels, or give the model an output for each class."
        )


@dataclass(frozen=True)
class LabelledBatches:
    """Batches whose labels are checked as they come; those on a GPU are not, which would wait for it."""

    batches: Batches
    classes: int
    name: str

    def __len__(self) -> int:
        assert isinstance(self.batches, Sized)
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self._checked(iter(self.batches))

    def _checked(self, batches: Iterator[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        for number, (inputs, targets) in enumerate(batches, 1):
            if not targets.is_cuda:
                check_labels(targets, self.classes, f"batch {number} of {self.name}")
            yield inputs, targets


def with_checked_labels(batches: Batches, classes: int, name: str) -> Batches:
    """Check what is at hand now, and return what checks the rest as it comes."""
    if not isinstance(batches, list | tuple):
        return LabelledBatches(batches, classes, name)
    for number, (_, targets) in enumerate(batches, 1):
        check_labels(targets, classes, f"batch {number} of {name}")
    return batches
