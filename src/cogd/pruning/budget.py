"""Which channels stay: those with the largest gates of all layers, found by bisection, or a share of every layer."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cogd.projection import block_norms
from cogd.pruning.cutting import Keep
from cogd.pruning.gates import Gates, kept_channels
from cogd.pruning.graph import Prunable
from cogd.pruning.latency import Spread, latency_share
from cogd.pruning.size import Size

Cost = Callable[[Keep], float]
TOLERANCE = 0.02  # of the whole network's cost


class BudgetError(ValueError):
    """No choice among the gated channels costs what was asked for."""


class BudgetWarning(UserWarning):
    """The choice that comes nearest costs something else than was asked for, by more than the tolerance."""


@dataclass(frozen=True)
class Target:
    """What the small network may cost, as a share of the whole one; or the share of channels to keep, the paper's a."""

    kind: Literal["macs", "params", "latency", "active"]
    share: float

    def __post_init__(self):
        if isinstance(self.share, bool) or not isinstance(self.share, int | float) or not 0 < self.share <= 1:
            raise ValueError(f"{self.argument} must be the share to keep, above 0 and at most 1; got {self.share!r}.")

    @property
    def argument(self) -> str:
        return self.kind if self.kind == "active" else f"target_{self.kind}"


def one_target(**shares: float | None) -> Target:
    """Return the one target that is given, or half of the MACs.

    >>> one_target(macs=None, active=0.8)
    Target(kind='active', share=0.8)
    """
    given = [Target(kind, share) for kind, share in shares.items() if share is not None]  # type: ignore[arg-type]
    if len(given) > 1:
        raise ValueError(f"give one target; got {' and '.join(f'{t.argument}={t.share}' for t in given)}.")
    return given[0] if given else Target("macs", 0.5)


@dataclass(frozen=True)
class Budget:
    """A target, and what a choice of channels costs in its unit.

    Args:
        target: what is asked for.
        cost: what counting says that a choice costs; None where every layer keeps the same share. Latency is tightened
            by MACs.
        round_to: every layer keeps a multiple of so many channels.
        timed: the share of the latency that a choice leaves, measured: for the final choice of a target of latency.
    """

    target: Target
    cost: Cost | None
    round_to: int = 1
    timed: Callable[[Keep], Spread] | None = None

    def keep(self, gates: Gates, progress: float) -> Keep | None:
        """Return the channels to keep when this share of the tightening is done; None once it is over."""
        if progress > 1:
            return None
        share = self.target.share + (1 - self.target.share) * (1 - progress) ** 3
        if progress == 1 and self.timed is not None:
            return keep_for(share, gates, self._final_cost, self.round_to, measured=True)
        return keep_for(share, gates, self.cost, self.round_to)

    def check(self, gates: Gates) -> None:
        """Refuse a target that no choice of channels can meet."""
        cost = self._final_cost
        if cost is None or self.round_to > 1:
            return
        places = ranks(gates)
        least = cost(keep_above(gates, places, sum(map(len, places.values())))) / cost({})
        if least > self.target.share + TOLERANCE:
            larger = " A larger batch in example_inputs may leave less of the time." if self.timed else ""
            raise BudgetError(
                f"{self.target.argument}={self.target.share:g} is out of reach: with one channel in each gated layer "
                f"the network keeps {least:.3f}. Give a target from there to 1, or ignore fewer layers.{larger}"
            )

    def reached(self, layers: Iterable[Prunable], keep: Keep) -> Spread:
        """Return the share that a choice comes to, in the target's unit; latency is measured once more."""
        if self.timed is not None:
            return self.timed(keep)
        if self.cost is not None:
            share = self.cost(keep) / self.cost({})
        else:
            share = sum(len(keep[layer.name]) for layer in layers) / sum(layer.channels for layer in layers)
        return Spread(share, share, share)

    def missed(self, reached: Spread) -> str | None:
        """Return in words how far a choice is from the target, where that is further than the tolerance."""
        target = self.target
        if target.kind == "active" or abs(reached.median - target.share) <= TOLERANCE:
            return None
        said = f"{target.argument}={target.share:g} was asked for and {reached.median:.3f} reached"
        if self.timed is not None:
            noisy = reached.high - reached.low > 2 * TOLERANCE
            why = "time varies here by more than 2%" if noisy else "as near as the choices tried come"
            return f"{said} (quartiles {reached.low:.3f} to {reached.high:.3f}): {why}"
        multiples = f" in multiples of {self.round_to}" if self.round_to > 1 else ""
        return f"{said}, as near as whole channels{multiples} come"

    @property
    def _final_cost(self) -> Cost | None:
        timed = self.timed
        return self.cost if timed is None else lambda keep: timed(keep).median


def budget_of(
    target: Target, round_to: int, model: nn.Module, layers: Iterable[Prunable], inputs: tuple[Any, ...]
) -> Budget:
    """Return the budget of a model that loses channels of the layers."""
    layers = list(layers)
    if target.kind == "active":
        return Budget(target, None, round_to)
    size = Size(model, layers, inputs)
    if target.kind != "latency":
        return Budget(target, size.macs if target.kind == "macs" else size.parameters, round_to)

    def timed(keep: Keep) -> Spread:
        if all(len(keep.get(layer.name, range(layer.channels))) == layer.channels for layer in layers):
            return Spread(1.0, 1.0, 1.0)
        return latency_share(model, layers, inputs, keep, device=str(inputs[0].device))

    return Budget(target, size.macs, round_to, timed)


@torch.no_grad()
def ranks(gates: Gates) -> dict[str, Tensor]:
    """Return every channel's place, from 1, in the order of the gates' magnitudes over all layers.

    Gates of one magnitude, such as 0, are told apart by the norms of their filters.
    """
    couplings = gates.couplings(active=1.0)
    sizes = torch.cat([coupling.sparse.abs() for coupling in couplings])
    norms = torch.cat([block_norms(coupling.partner_blocks(coupling.partner)) for coupling in couplings])
    order = norms.argsort(stable=True)
    order = order[sizes[order].argsort(stable=True)]
    places = torch.empty_like(order)
    places[order] = torch.arange(1, len(order) + 1, device=order.device)
    return dict(zip(gates.values, places.cpu().split([coupling.size for coupling in couplings]), strict=True))


def keep_above(gates: Gates, places: dict[str, Tensor], threshold: int, round_to: int = 1) -> Keep:
    """Return the channels whose place is above the threshold, never none of a layer; see `kept_channels`."""
    return {layer.name: kept_channels(places[layer.name], threshold, layer.blocks, round_to) for layer in gates.layers}


def keep_share(gates: Gates, places: dict[str, Tensor], share: float, round_to: int = 1) -> Keep:
    """Keep the same share of every layer's channels, and of every block's in it, as CoGD-a does with a."""
    keep = {}
    for layer in gates.layers:
        within = 1 + places[layer.name].view(layer.blocks, -1).argsort().argsort()  # places in the own block
        size = within.shape[1]
        gone = size - max(1, round(share * size))
        keep[layer.name] = kept_channels(within.flatten(), gone, layer.blocks, round_to)
    return keep


def keep_for(share: float, gates: Gates, cost: Cost | None, round_to: int = 1, *, measured: bool = False) -> Keep:
    """Return the channels to keep for a share of the cost, or, without one, of every layer's channels.

    The least channels of all layers go, as many as leave the cost closest to the share. Where that misses it by more
    than the tolerance, a cost that is counted is met layer by layer; one that is measured would take too long.
    """
    places = ranks(gates)
    if cost is None:
        return keep_share(gates, places, share, round_to)
    whole = cost({})

    def surplus(keep: Keep) -> float:
        return cost(keep) - share * whole

    nearest, gap, first = nearest_threshold(
        lambda count: surplus(keep_above(gates, places, count, round_to)), sum(map(len, places.values()))
    )
    if measured or gap <= TOLERANCE * whole:
        return keep_above(gates, places, nearest, round_to)
    return layer_by_layer(first, surplus, TOLERANCE * whole, gates, places, round_to)


def nearest_threshold(surplus: Callable[[int], float], most: int) -> tuple[int, float, int]:
    """Return the threshold, up to `most`, whose surplus is nearest to 0, how near, and the first that falls below 0.

    Found by bisection: the surplus of 0 is at least 0 and falls from there. None is evaluated twice.
    """
    surplus = cache(surplus)
    first = bisect_right(range(most + 1), 0.0, key=lambda count: -surplus(count))
    nearest = min(range(first - 1, min(first, most) + 1), key=lambda count: abs(surplus(count)))
    return nearest, abs(surplus(nearest)), first


def layer_by_layer(
    first: int, surplus: Cost, tolerance: float, gates: Gates, places: dict[str, Tensor], round_to: int
) -> Keep:
    """Return the nearest choice found from the last threshold that costs enough on, or one within the tolerance.

    Layers whose next channel would cost too much stay, and the others go on.
    """
    keep = nearest = keep_above(gates, places, first - 1, round_to)
    gap, layers = abs(surplus(keep)), {layer.name: layer for layer in gates.layers}
    for place, name in sorted((place, name) for name, of in places.items() for place in of.tolist() if place >= first):
        if name not in layers:
            continue
        fewer = {**keep, name: kept_channels(places[name], place, layers[name].blocks, round_to)}
        left = surplus(fewer)
        if abs(left) < gap:
            nearest, gap = fewer, abs(left)
        if gap <= tolerance:
            break
        if left >= 0:
            keep = fewer
        else:
            del layers[name]
    return nearest


def zeros(gates: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """Return every layer's channels at zero, as [at zero, of]."""
    counts = torch.stack([(values == 0).sum() for values in gates.values()]).tolist()
    return {name: [count, len(values)] for (name, values), count in zip(gates.items(), counts, strict=True)}
