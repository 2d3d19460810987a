"""How much faster a pruned network is than the one it was made from, and why not more."""

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cogd.models.macs import count_macs
from cogd.pruning.cutting import Keep, cut_channels, plan_removal
from cogd.pruning.graph import as_tuple, candidates
from cogd.pruning.latency import Conditions, Latency, Spread, measure_in_turn, ratios

MULTIPLE = 8  # of channels, which most kernels are written for
NOTABLE = 0.9  # of what would be expected: what is below it gets a reason
WIDE = 1.5  # quartiles further apart than this say that the machine was busy
GROWTH = 1.75  # of the time at twice the batch: where it grows less, much of it doesn't depend on the work


@dataclass(frozen=True)
class Work:
    """What a forward pass over the example inputs does: per example, its MACs; in all, operations and their bytes."""

    macs: int
    bytes: int
    operations: int


@dataclass(frozen=True)
class LatencyComparison:
    """Two networks that took turns in one run.

    `doubled` is the small one at twice the batch, `rounded` the small one with more channels: multiples of `MULTIPLE`;
    None where it has such counts already.
    """

    original: Latency
    small: Latency
    doubled: Latency
    rounded: Latency | None
    original_work: Work
    small_work: Work

    @property
    def speedup(self) -> Spread:
        """How many times as fast the small network is."""
        return ratios(self.original, self.small)

    @property
    def fewer_macs(self) -> float:
        return self.original_work.macs / self.small_work.macs

    def findings(self) -> list[str]:
        """Return what was found, in sentences: how much faster, and if that is less than the MACs promise, why."""
        speedup = self.speedup
        verdict = "slower" if speedup.high < 1 else "faster" if speedup.low > 1 else "no faster that can be told"
        found = [f"{verdict}: {_times(speedup)} as fast, with {self.fewer_macs:.2f} times fewer MACs"]
        if speedup.high > WIDE * speedup.low:
            found.append("the rounds differ too much to explain anything: measure again while nothing else runs")
        elif speedup.high < NOTABLE * self.fewer_macs:
            found += ["fewer MACs did not mean as much less time", *self._reasons()]
        return found

    def report(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        kinds = {"original": self.original, "small": self.small, "doubled": self.doubled, "rounded": self.rounded}
        return {
            "conditions": asdict(self.small.conditions),
            "seconds": {name: asdict(latency.spread) for name, latency in kinds.items() if latency},
            "speedup": asdict(self.speedup),
            "rounded_speedup": asdict(ratios(self.small, self.rounded)) if self.rounded else None,
            "doubled_batch": asdict(ratios(self.doubled, self.small)),
            "work": {"original": asdict(self.original_work), "small": asdict(self.small_work)},
            "findings": self.findings(),
        }

    def _reasons(self) -> list[str]:
        reasons = []
        before, after = self.original_work, self.small_work
        if (fewer_bytes := before.bytes / after.bytes) < NOTABLE * self.fewer_macs:
            reasons.append(f"its operations read and write only {fewer_bytes:.2f} times fewer bytes")
        if (growth := ratios(self.doubled, self.small)).high < GROWTH:
            reasons.append(
                f"at twice the batch it takes only {_times(growth)} as long: much of its time goes into launching its "
                f"{after.operations} operations ({before.operations} before) or leaves cores idle; try a larger batch "
                'or torch.compile(mode="reduce-overhead")'
            )
        if self.rounded:
            gain = ratios(self.small, self.rounded)
            told = f"with channels in multiples of {MULTIPLE}, and so more MACs, it is {_times(gain)} as fast"
            odd = f"{told}: odd channel counts cost time, so prune with round_to={MULTIPLE} (--round-to {MULTIPLE})"
            reasons.append(odd if gain.low > 1 else f"{told}: odd channel counts are not the reason")
        rates = [
            work.macs * (latency.conditions.batch or 1) / latency.spread.median / 1e9
            for work, latency in ((before, self.original), (after, self.small))
        ]
        if rates[1] < NOTABLE * rates[0]:
            reasons.append(f"it computes {rates[1]:.3g} billion MACs per second, the original {rates[0]:.3g}")
        return reasons


def compare_latency(
    original: nn.Module,
    small: nn.Module,
    example_inputs: Tensor | Sequence[Any],
    *,
    keep: Keep | None = None,
    **conditions: Any,
) -> LatencyComparison:
    """Time a pruned network and the one it was made from in turn, and measure what explains the difference.

    Args:
        original: the network before pruning; its weights don't matter.
        small: the network after it.
        example_inputs: what both accept, a tensor or a tuple.
        keep: the channels that were kept; with them it is tried whether odd channel counts cost time.
        conditions: the fields of `Conditions`.

    >>> wide, narrow = (nn.Sequential(nn.Linear(8, n), nn.Linear(n, 2)) for n in (64, 4))
    >>> found = compare_latency(wide, narrow, torch.zeros(1, 8), device="cpu", warm_up=1, rounds=4)
    >>> found.fewer_macs, found.original_work.operations
    (16.0, 2)
    """
    inputs = as_tuple(example_inputs)
    models = {"original": original, "small": small, "doubled": small}
    if keep and (wider := rounded_up(original, keep, inputs)):
        models["rounded"] = wider
    latencies = measure_in_turn(models, inputs, Conditions(**conditions), batches={"doubled": 2})
    return LatencyComparison(
        original=latencies["original"],
        small=latencies["small"],
        doubled=latencies["doubled"],
        rounded=latencies.get("rounded"),
        original_work=measure_work(original, inputs),
        small_work=measure_work(small, inputs),
    )


def measure_work(model: nn.Module, inputs: tuple[Any, ...]) -> Work:
    """Count what one forward pass does."""
    model = copy.deepcopy(model).eval()
    with torch.no_grad(), _Counter() as counter:
        model(*inputs)
    return Work(count_macs(model, *inputs), counter.bytes, counter.operations)


def rounded_up(original: nn.Module, keep: Keep, inputs: tuple[Any, ...]) -> nn.Module | None:
    """Return the original with each layer's kept channels rounded up to a multiple; None if they are one already."""
    layers, _ = candidates(original, inputs, list(keep))
    more = {layer.name: _filled_up(list(keep[layer.name]), layer.channels, layer.blocks) for layer in layers}
    if all(len(more[layer.name]) == len(keep[layer.name]) for layer in layers):
        return None
    model = copy.deepcopy(original)
    cut_channels(model, plan_removal(model, layers, more))
    return model


def _filled_up(kept: list[int], channels: int, blocks: int) -> list[int]:
    """Return the kept channels and as many others of every block as make the whole a multiple."""
    size = channels // blocks
    unit = MULTIPLE // math.gcd(MULTIPLE, blocks)
    count = min(size, math.ceil(len(kept) // blocks / unit) * unit)
    filled = []
    for start in range(0, channels, size):
        block = range(start, start + size)
        mine = [channel for channel in block if channel in kept]
        filled += mine + [channel for channel in block if channel not in kept][: count - len(mine)]
    return sorted(filled)


class _Counter(TorchDispatchMode):
    """Counts operations, but not views, and the bytes of all tensors that they read and write."""

    def __init__(self):
        super().__init__()
        self.operations = self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if not function.is_view:
            self.operations += 1
            self.bytes += sum(t.nbytes for t in tree_leaves((args, kwargs, result)) if isinstance(t, Tensor))
        return result


def _times(spread: Spread) -> str:
    return f"{spread.median:.2f} times (quartiles {spread.low:.2f} to {spread.high:.2f})"
