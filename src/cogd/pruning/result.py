"""What pruning came to: the small network and its report."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from cogd.models.macs import count_macs
from cogd.pruning.budget import Keep, Target
from cogd.training.loop import Status


@dataclass(frozen=True)
class Outcome:
    """What a complete run made: the small network, the channels it keeps, the metrics of each stage."""

    model: nn.Module
    keep: Keep
    channels: dict[str, int]  # of each of these layers before
    metrics: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Pruned:
    """A pruning run; one that was stopped has no outcome yet, and the same call goes on with it.

    >>> Pruned("stopped", Target("macs", 0.5), base=nn.Linear(2, 1), inputs=()).status
    'stopped'
    """

    status: Status
    target: Target
    base: nn.Module
    inputs: tuple[Any, ...]
    outcome: Outcome | None = None

    @property
    def model(self) -> nn.Module:
        """The small network."""
        return self._complete().model

    @property
    def keep(self) -> Keep:
        """The channels that each pruned layer keeps."""
        return self._complete().keep

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """What was measured "before", "after" the removal, and when "fine_tuned"."""
        return self._complete().metrics

    def report(self) -> dict[str, Any]:
        """Return what was asked for and what was reached."""
        outcome = self._complete()
        macs = _change(*(count_macs(model, *self.inputs) for model in (self.base, self.model)))
        parameters = _change(*(_parameters(model) for model in (self.base, self.model)))
        return {
            "target": {self.target.argument: self.target.share},
            "macs": macs,
            "parameters": parameters,
            "metrics": self.metrics,
            "channels": {name: [len(kept), outcome.channels[name]] for name, kept in self.keep.items()},
        }

    def _complete(self) -> Outcome:
        if self.outcome is None:
            raise ValueError("this run was stopped; call prune again with the same folder to go on with it.")
        return self.outcome


def _change(before: int, after: int) -> dict[str, float]:
    return {"before": before, "after": after, "share": after / before}


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
