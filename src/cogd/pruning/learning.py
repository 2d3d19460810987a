"""The first phase of pruning: weights and gates learn together, under an l1 penalty and a budget that tightens.

Over the first `TIGHTENING` of the epochs the least gates are set to 0 after each epoch, so many that the rest costs
1 - (1 - target)(1 - (1 - progress)^3): they may come back, through their gradients or CoGD. Then the choice is final,
the penalty is lifted, and what is left recovers.
"""

from typing import Any

import torch
from torch import nn

from cogd.pruning.budget import Budget, zeros
from cogd.pruning.cutting import Keep
from cogd.pruning.fista import FistaSGD
from cogd.pruning.gates import Gates
from cogd.training.metrics import Batches, Evaluate
from cogd.training.recipe import Recipe
from cogd.training.state import TrainingState

TIGHTENING = 0.5


class GatedNetwork(nn.Module):
    """A network, its gates, and which of them are open: what is trained, watched and saved as one."""

    def __init__(self, network: nn.Module, gates: Gates):
        super().__init__()
        self.network = network
        self.gates = nn.ParameterList(gates.parameters())
        self.open = nn.ParameterList(nn.Parameter(torch.ones_like(gate), requires_grad=False) for gate in self.gates)
        self.names = list(gates.values)

    def forward(self, *inputs: Any) -> Any:
        return self.network(*inputs)

    @property
    def keep(self) -> Keep:
        """The channels behind open gates."""
        return {name: mask.nonzero().flatten().tolist() for name, mask in zip(self.names, self.open, strict=True)}


class MaskLearning:
    """What the training loop needs to learn masks: the optimizer, and what happens to the gates after steps and epochs.

    Evaluation, choices and the end are at FISTA's iterates, where gates are exactly zero; steps are taken from beyond.
    A discriminator learns beside the network, by the same rates.
    """

    def __init__(
        self,
        network: nn.Module,
        gates: Gates,
        recipe: Recipe,
        penalty: float,
        budget: Budget,
        evaluate: Evaluate,
        discriminator: nn.Module | None = None,
    ):
        self.model, self.gates, self.recipe = GatedNetwork(network, gates), gates, recipe
        self.penalty, self.budget, self.measure = penalty, budget, evaluate
        self.discriminator = discriminator
        self.tightening = max(1, round(TIGHTENING * recipe.epochs))

    def make_optimizer(self, _: nn.Module) -> FistaSGD:
        weights = list(self.model.network.parameters())
        if self.discriminator is not None:
            weights += self.discriminator.parameters()
        gates = list(self.gates.parameters())
        recipe = self.recipe
        self.optimizer = FistaSGD(
            [
                {
                    "params": weights,
                    "momentum": recipe.momentum,
                    "weight_decay": recipe.weight_decay,
                    "nesterov": recipe.nesterov,
                },
                {"params": gates, "penalty": self.penalty},
            ],
            lr=recipe.lr,
            fused=gates[0].is_cuda,
        )
        return self.optimizer

    def evaluate(self, _: nn.Module, batches: Batches) -> dict[str, float]:
        with self.optimizer.at_iterates():
            counts = zeros(self.gates.values).values()
            at_zero = sum(count for count, _ in counts) / sum(channels for _, channels in counts)
            return {**self.measure(self.model.network, batches), "channels_at_zero": at_zero}

    def after_step(self, state: TrainingState) -> None:
        if state.batch == len(state.losses):  # when CoGD projects
            self.optimizer.adopt()
        if state.step > self.tightening * len(state.losses):
            self.optimizer.mask(self.gates.parameters(), self.model.open)

    def after_epoch(self, state: TrainingState) -> dict[str, Any]:
        with self.optimizer.at_iterates():
            counts = zeros(self.gates.values)
            keep = self.budget.keep(self.gates, state.epoch / self.tightening)
        if keep is not None:
            self._cut(keep, final=state.epoch == self.tightening)
        if state.epoch == self.recipe.epochs:
            self.optimizer.settle()
        return {"channels_at_zero": counts}

    @torch.no_grad()
    def _cut(self, keep: Keep, final: bool) -> None:
        masks = [torch.zeros_like(gate) for gate in self.gates.parameters()]
        for mask, name in zip(masks, self.gates.values, strict=True):
            mask[list(keep[name])] = 1
        self.optimizer.mask(self.gates.parameters(), masks)
        if final:
            torch._foreach_copy_(list(self.model.open), masks)
            self.optimizer.lift_penalty()
