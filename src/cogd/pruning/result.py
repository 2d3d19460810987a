"""What pruning came to: the small network, its report, and the folder that others load it from."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from cogd.models.macs import count_macs
from cogd.pruning.artefact import save_pruned
from cogd.pruning.budget import Target
from cogd.pruning.cutting import Keep
from cogd.pruning.latency import Conditions, Spread
from cogd.pruning.speedup import LatencyComparison, compare_latency
from cogd.training.loop import Status


@dataclass(frozen=True)
class Outcome:
    """What a complete run made: the small network, the channels it keeps, the metrics of each stage, the target met."""

    model: nn.Module
    keep: Keep
    channels: dict[str, int]  # of each of these layers before
    metrics: dict[str, dict[str, float]]
    reached: Spread  # in the target's unit; quartiles where it was measured
    missed: str | None = None  # in words, where the target is further away than the tolerance


@dataclass(frozen=True, repr=False)
class Pruned:
    """A pruning run; one that was stopped has no outcome yet, and the same call goes on with it.

    >>> Pruned("stopped", Target("macs", 0.5), base=nn.Linear(2, 1), inputs=())
    Pruned(stopped, target_macs=0.5)
    """

    status: Status
    target: Target
    base: nn.Module
    inputs: tuple[Any, ...]
    outcome: Outcome | None = None
    _latencies: dict[str, LatencyComparison] = field(default_factory=dict, init=False, compare=False)

    def __repr__(self) -> str:
        reached = f", reached {self.outcome.reached.median:.3f}" if self.outcome is not None else ""
        return f"Pruned({self.status}, {self.target.argument}={self.target.share:g}{reached})"

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

    def latency(self, **conditions: Any) -> LatencyComparison:
        """Return how the small network's time compares, both in turn, where the run was; measured once.

        Args:
            conditions: the fields of `cogd.pruning.latency.Conditions`, such as batch=256.
        """
        stated = {"device": str(self.inputs[0].device), **conditions}
        if (key := repr(sorted(stated.items()))) not in self._latencies:
            self._latencies[key] = compare_latency(self.base, self.model, self.inputs, keep=self.keep, **stated)
        return self._latencies[key]

    def report(self, **conditions: Any) -> dict[str, Any]:
        """Return what was asked for and what was reached; latency under the conditions, as in `latency`.

        Its findings say whether the network is faster, and if that is less than the MACs promise, why. The notes say
        what else is not as it was asked for.
        """
        outcome = self._complete()
        Conditions(**conditions)  # refused, not noted
        notes = [outcome.missed] if outcome.missed else []
        try:
            latency = self.latency(**conditions).report()
        except ValueError as error:  # such as a network for one batch size
            latency = None
            notes.append(f"latency was not measured: {error}")
        return {
            "target": {self.target.argument: self.target.share},
            "reached": asdict(outcome.reached),
            "macs": _change(*(count_macs(model, *self.inputs) for model in (self.base, self.model))),
            "parameters": _change(*(_parameters(model) for model in (self.base, self.model))),
            "metrics": self.metrics,
            "channels": {name: [len(kept), outcome.channels[name]] for name, kept in self.keep.items()},
            "latency": latency,
            "notes": notes,
        }

    def save(
        self,
        folder: str | Path,
        *,
        builder: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        command: str | None = None,
        **conditions: Any,
    ) -> None:
        """Write the small network and its report into a folder, which `load_pruned` reads.

        Args:
            folder: made if it isn't there; one with something in it is refused, unless `overwrite` is set.
            builder: what makes the network before pruning: a name of `cogd.models`, or "package.module:function".
            arguments: what the builder is called with; numbers, strings and lists of them.
            overwrite: replace the two files if they are there.
            command: the command that made it, for the report.
            conditions: of the latency in the report, as in `latency`.
        """
        report = self.report(**conditions) | ({"command": command} if command else {})
        save_pruned(
            folder,
            self.model,
            self.base,
            keep=self.keep,
            example_inputs=self.inputs,
            builder=builder,
            arguments=arguments,
            report=report,
            overwrite=overwrite,
        )

    def _complete(self) -> Outcome:
        if self.outcome is None:
            raise ValueError("this run was stopped; call prune again with the same folder to go on with it.")
        return self.outcome


def _change(before: int, after: int) -> dict[str, float]:
    return {"before": before, "after": after, "share": after / before}


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
