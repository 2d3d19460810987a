"""The phases of pruning one after the other; a folder holds what each came to, and the same call goes on from there."""

import copy
import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cogd.pruning.budget import Budget, BudgetWarning, budget_of
from cogd.pruning.cutting import Keep
from cogd.pruning.gal import Distilled, distillation
from cogd.pruning.gates import Gates
from cogd.pruning.learning import MaskLearning
from cogd.pruning.removal import remove_channels
from cogd.pruning.result import Outcome, Pruned
from cogd.pruning.settings import Settings
from cogd.training.fit import fit
from cogd.training.loop import Status, measure
from cogd.training.metrics import Batches, Evaluate, Loss
from cogd.training.placement import Placement
from cogd.training.run import claim
from cogd.training.runner import Result

CLAIM = "prune.json"  # in the folder of a run that has begun


@dataclass
class Phases:
    """A pruning run of the network `base`, which stays as it is."""

    settings: Settings
    base: nn.Module
    teacher: nn.Module
    data: Any
    test: Batches
    inputs: tuple[Any, ...]
    placement: Placement
    loss: Loss | None
    evaluate: Evaluate
    folder: Path | None
    progress: bool

    def run(self) -> Pruned:
        student, gates = self._gated()
        budget, source = self._budget(gates), self._source()
        self._claim_folder()  # nothing is written before the checks above
        before = self._measure(self.base)
        result, keep = self._learn(student, gates, budget, source)
        if result.stop_requested:  # perhaps in the last epoch: fine-tuning doesn't begin either
            return self._outcome(None)
        gates.fold()
        remove_channels(student, keep, example_inputs=self.inputs)
        after = self._measure(student)
        if self._finetune(student).status == "stopped":
            return self._outcome(None)
        metrics = {"before": before, "after": after, "fine_tuned": self._measure(student)}
        reached = budget.reached(gates.layers, keep)
        missed = budget.missed(reached)
        if missed and budget.round_to == 1:  # larger multiples come as near as they can
            warnings.warn(f"{missed}.", BudgetWarning, stacklevel=3)
        channels = {layer.name: layer.channels for layer in gates.layers}
        return self._outcome(Outcome(student, keep, channels, metrics, reached, missed))

    def _outcome(self, outcome: Outcome | None) -> Pruned:
        status: Status = "stopped" if outcome is None else "complete"
        return Pruned(status, self.settings.target, self.base, self.inputs, outcome)

    def _gated(self) -> tuple[nn.Module, Gates]:
        """Return a copy of the network with gates."""
        student, settings = copy.deepcopy(self.base), self.settings
        generator = torch.Generator().manual_seed(settings.seed)
        gates = Gates(student, self.inputs, initial=settings.initial, ignore=settings.ignore, generator=generator)
        return student, gates

    def _budget(self, gates: Gates) -> Budget:
        """Return the budget; one out of reach is refused, unless the run has begun: time is never measured alike."""
        settings = self.settings
        budget = budget_of(settings.target, settings.round_to, self.base, gates.layers, self.inputs)
        if self.folder is None or not (self.folder / CLAIM).exists():
            budget.check(gates)
        return budget

    def _learn(self, student: nn.Module, gates: Gates, budget: Budget, source: Distilled) -> tuple[Result, Keep]:
        """Learn the gates in place; return how that went and the channels behind open gates."""
        settings, discriminator = self.settings, source.discriminator
        learning = MaskLearning(
            student, gates, settings.learning, settings.penalty, budget, self.evaluate, discriminator
        )
        result = fit(
            learning.model,
            self.data,
            settings.learning,
            objective=source.objective,
            companions={} if discriminator is None else {"discriminator": discriminator},
            optimizer=learning.make_optimizer,
            couplings=gates.couplings(settings.learning.active),
            evaluate=learning.evaluate,
            after_step=learning.after_step,
            after_epoch=learning.after_epoch,
            task="learning masks",
            recordable=True,
            **self._options("masks"),
        )
        return result, learning.model.keep

    def _source(self) -> Distilled:
        """Return what the network learns from, a discriminator drawn and placed."""
        settings = self.settings
        with torch.random.fork_rng([self.placement.device] if self.placement.on_gpu else []):
            torch.manual_seed(settings.seed)
            source = distillation(settings.distill, self.teacher, settings.learning, self.loss, self.inputs)
        if source.discriminator is not None:
            self.placement.place(source.discriminator)
        return source

    def _finetune(self, student: nn.Module) -> Result:
        recipe, options = self.settings.finetuning, self._options("finetune")
        return fit(student, self.data, recipe, loss=self.loss, evaluate=self.evaluate, task="fine-tuning", **options)

    def _options(self, phase: str) -> dict[str, Any]:
        return {
            "seed": self.settings.seed,
            "device": self.placement.device,
            "folder": None if self.folder is None else self.folder / phase,
            "name": type(self.base).__name__,
            "progress": self.progress,
        }

    def _measure(self, model: nn.Module) -> dict[str, float]:
        return measure(model, self.test, self.evaluate, self.placement)

    def _claim_folder(self) -> None:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            identity = {
                **self.settings.identity(),
                "model": digest(self.base),
                "teacher": digest(self.teacher),
            }
            claim(self.folder, identity, CLAIM, "pruning run")


def digest(model: nn.Module) -> str:
    """Return a fingerprint of a model's weights."""
    state = hashlib.sha256()
    for name, value in model.state_dict().items():
        plain = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        state.update(f"{name} {value.dtype} {tuple(value.shape)}".encode() + plain.numpy().tobytes())
    return state.hexdigest()[:16]


def placed_copy(model: nn.Module, placement: Placement) -> nn.Module:
    """Return a copy on the device, in evaluation mode."""
    return placement.place(copy.deepcopy(model)).eval()
