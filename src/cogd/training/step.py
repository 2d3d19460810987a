"""One training step as it is written: forward, backward, the optimizer."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from cogd.training.metrics import Objective
from cogd.training.placement import Placement


@dataclass(frozen=True)
class Step:
    """Takes steps of the optimizer on batches; `model` is the module or what was compiled of it."""

    model: Any
    objective: Objective
    optimizer: Optimizer
    placement: Placement

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Take one step and return the loss before it, without waiting for the device."""
        self.placement.begin_step()
        loss = self.find_gradients(inputs, targets)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def find_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Add to the parameters' gradients and return the loss."""
        inputs, targets = self.placement.move(inputs), self.placement.move(targets)
        with self.placement.autocast():
            loss = self.objective(self.model, inputs, targets)
        loss.backward()
        return loss.detach()
