"""Which channels stay: those with the largest gates of all layers, found by bisection, or a share of every layer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cogd.projection import block_norms
from cogd.pruning.gates import Gates, kept_channels

Keep = dict[str, list[int]]
Cost = Callable[[Keep], float]
TOLERANCE = 0.02  # of the whole network's cost


class BudgetError(ValueError):
    """No choice among the gated channels costs what was asked for."""


@dataclass(frozen=True)
class Target:
    """What the small network may cost, as a share of the whole one; or the share of channels to keep, the paper's a."""

    kind: Literal["macs", "params", "active"]
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
    """Keep the same share of every layer's channels, as CoGD-a does with a."""
    keep = {}
    for layer in gates.layers:
        ascending = places[layer.name].sort().values
        gone = len(ascending) - max(1, round(share * len(ascending)))
        threshold = int(ascending[gone - 1]) if gone else 0
        keep[layer.name] = kept_channels(places[layer.name], threshold, layer.blocks, round_to)
    return keep


def keep_within(choice: Callable[[int], Keep], channels: int, cost: Cost, share: float, round_to: int = 1) -> Keep:
    """Find by bisection the number of channels above which the rest costs closest to a share of the whole.

    `choice(count)` leaves out the `count` least channels; `cost` must not rise with it. Rounding may exceed the share.
    """
    costs: dict[int, float] = {}

    def at(count: int) -> float:
        if count not in costs:
            costs[count] = cost(choice(count))
        return costs[count]

    low, high = 0, channels
    whole = at(low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle) >= share * whole else (low, middle)
    if round_to == 1 and (least := at(channels)) > (share + TOLERANCE) * whole:
        raise BudgetError(
            f"with one channel in each gated layer the network keeps {least / whole:.3f}. Give a target from there to "
            "1, or ignore fewer layers."
        )
    return choice(min((low, high), key=lambda count: abs(at(count) - share * whole)))


def keep_for(target: Target, share: float, gates: Gates, cost: Cost | None, round_to: int = 1) -> Keep:
    """Return the channels to keep for a share in the target's unit, in which `cost` counts."""
    places = ranks(gates)
    if cost is None:
        return keep_share(gates, places, share, round_to)
    channels = sum(map(len, places.values()))
    try:
        return keep_within(lambda count: keep_above(gates, places, count, round_to), channels, cost, share, round_to)
    except BudgetError as error:
        raise BudgetError(f"{target.argument}={target.share:g} is out of reach: {error}") from None


def zeros(gates: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """Return every layer's channels at zero, as [at zero, of]."""
    counts = torch.stack([(values == 0).sum() for values in gates.values()]).tolist()
    return {name: [count, len(values)] for (name, values), count in zip(gates.items(), counts, strict=True)}
