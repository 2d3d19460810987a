"""What training minimizes and what evaluation measures, for classification; both can be replaced in `fit`."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Batch = tuple[Tensor, Tensor]
Batches = Iterable[Batch]
Loss = Callable[[Any, Tensor], Tensor]
Objective = Callable[[Any, Tensor, Tensor], Tensor]
Evaluate = Callable[[nn.Module, Batches], dict[str, float]]


def minimize(loss: Loss) -> Objective:
    """Return the objective (model, inputs, targets) -> number of a loss (outputs, targets) -> number."""
    return lambda model, inputs, targets: loss(model(inputs), targets)


@lru_cache(maxsize=4)
def cross_entropy_objective(label_smoothing: float) -> Objective:
    """Return the usual objective of classification, the same at every call, so that it is compiled once."""
    return minimize(nn.CrossEntropyLoss(label_smoothing=label_smoothing))


def classification_metrics(model: nn.Module, batches: Batches) -> dict[str, float]:
    """Return the mean cross-entropy and the share of right answers; the device is asked once, at the end.

    Where every pixel has a class, they are means over pixels.

    >>> batches = [(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0]))]
    >>> classification_metrics(nn.Identity(), batches)["accuracy"]
    0.5
    """
    sums: list[Tensor] = []
    count = 0
    for inputs, targets in batches:
        outputs = model(inputs).float()
        right = (outputs.argmax(1) == targets).sum()
        sums.append(torch.stack([cross_entropy(outputs, targets, reduction="sum"), right]))
        count += targets.numel()
    if not count:
        raise ValueError(
            "the test data yielded no batches. Give an iterable that begins anew each time, such as a list or a "
            "DataLoader, not a generator."
        )
    loss, right = (torch.stack(sums).double().sum(0) / count).tolist()
    return {"test_loss": loss, "accuracy": right}
