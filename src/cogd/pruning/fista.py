"""FISTA on the gates: the l1 penalty acts once, in the proximal step; gradients are taken at an extrapolated point."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD


def shrink(values: Tensor, threshold: Tensor | float) -> Tensor:
    """Return the minimizer of 1/2 (m - values)^2 + threshold |m|, the proximal map of the l1 norm.

    >>> shrink(torch.tensor([-3.0, 0.5, 2.0]), 1.0).tolist()
    [-2.0, 0.0, 1.0]
    """
    return values - values.clamp(-threshold, threshold)  # type: ignore[arg-type]


def next_time(time: Tensor) -> Tensor:
    """Return t(k+1) of FISTA's sequence, which begins with 1."""
    return (1 + (1 + 4 * time.square()).sqrt()) / 2


def extrapolate(new: Tensor, old: Tensor, point: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Return the point where the next gradient is due and its time; the time begins anew where the path turns back.

    `point` is where the last gradient was taken, `new` the proximal step from there, `old` the one before. The path
    turns back when the step from `point` opposes the way from `old` to `new` (O'Donoghue and Candes, 2015).
    """
    time = torch.where(torch.dot(point - new, new - old) > 0, torch.ones_like(time), time)
    later = next_time(time)
    return new + (time - 1) / later * (new - old), later


class FistaSGD(SGD):
    """SGD that takes FISTA's steps in the groups with a `penalty`, the weight of their l1 norm.

    The parameters of such a group hold the extrapolated point, where the next gradient is due; FISTA's iterates, which
    are sparse, are those that `at_iterates` shows and `settle` leaves behind.

    >>> gate, weight = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    >>> optimizer = FistaSGD([{"params": [weight]}, {"params": [gate], "penalty": 2.0}], lr=0.25)
    >>> (gate + weight).sum().backward()
    >>> optimizer.step()
    >>> gate.item(), weight.item()
    (0.25, 0.75)
    """

    def __init__(self, groups: list[dict[str, Any]], **options: Any):
        super().__init__(groups, **options)
        for group in self._penalized():
            if group["momentum"] or group["weight_decay"]:
                raise ValueError(
                    "a group with a penalty takes FISTA's steps, which have their own momentum and no weight decay; "
                    f"set both to 0 there, got {group['momentum']} and {group['weight_decay']}."
                )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take SGD's step, and from there FISTA's where there is a penalty."""
        points = [_flat(group["params"]) for group in self._penalized()]
        loss = super().step(closure)
        for group, point in zip(self._penalized(), points, strict=True):
            self._proximal_step(group, point)
        return loss

    @torch.no_grad()
    def lift_penalty(self) -> None:
        """From the next step on, take FISTA's steps without a penalty; a recorded step knows of it too."""
        for group in self._penalized():
            torch._foreach_zero_([self.state[gate]["strength"] for gate in group["params"]])

    @contextmanager
    def at_iterates(self) -> Iterator[None]:
        """Let the parameters be FISTA's iterates for a while."""
        points = [_flat(group["params"]) for group in self._penalized()]
        self.settle()
        try:
            yield
        finally:
            for group, point in zip(self._penalized(), points, strict=True):
                _assign(group["params"], point)

    def settle(self) -> None:
        """Leave the parameters at FISTA's iterates."""
        for group in self._penalized():
            if self.state[group["params"][0]]:
                _assign(group["params"], _flat([self.state[gate]["iterate"] for gate in group["params"]]))

    @torch.no_grad()
    def adopt(self) -> None:
        """Let what somebody else made of the parameters since the last step, such as CoGD, be FISTA's iterates."""
        for group in self._penalized():
            gates = group["params"]
            iterates, left = ([self.state[gate][name] for gate in gates] for name in ("iterate", "left"))
            present = _flat(gates)
            _assign(iterates, torch.where(present == _flat(left), _flat(iterates), present))

    @torch.no_grad()
    def mask(self, gates: Iterable[Tensor], masks: Iterable[Tensor]) -> None:
        """Multiply gates, both their point and FISTA's iterate, by masks of 0 and 1."""
        gates, masks = list(gates), list(masks)
        torch._foreach_mul_(gates, masks)
        iterates = [self.state[gate]["iterate"] for gate in gates if self.state[gate]]
        if iterates:
            torch._foreach_mul_(iterates, masks)

    def _penalized(self) -> list[dict[str, Any]]:
        return [group for group in self.param_groups if "penalty" in group]

    @torch.no_grad()
    def _proximal_step(self, group: dict[str, Any], point: Tensor) -> None:
        gates = group["params"]
        memory = [self.state[gate] for gate in gates]
        if "iterate" not in memory[0]:
            for gate, entry, start in zip(gates, memory, _split(point, gates), strict=True):
                entry["iterate"], entry["left"] = start.clone(), start.clone()
                entry["time"], entry["strength"] = gate.new_ones(()), gate.new_ones(())
        iterates = [entry["iterate"] for entry in memory]
        threshold = group["lr"] * group["penalty"] * memory[0]["strength"]
        new = shrink(_flat(gates), threshold)  # SGD has left the gradient's step there
        extrapolated, time = extrapolate(new, _flat(iterates), point, memory[0]["time"])
        _assign(iterates, new)
        _assign(gates, extrapolated)
        _assign([entry["left"] for entry in memory], extrapolated)
        torch._foreach_copy_([entry["time"] for entry in memory], [time] * len(memory))


def _flat(tensors: list[Tensor]) -> Tensor:
    """Return all numbers as one vector: a few large operations instead of many small ones."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def _split(vector: Tensor, like: list[Tensor]) -> list[Tensor]:
    parts = vector.split([tensor.numel() for tensor in like])
    return [part.view_as(tensor) for part, tensor in zip(parts, like, strict=True)]


@torch.no_grad()
def _assign(tensors: list[Tensor], vector: Tensor) -> None:
    torch._foreach_copy_(tensors, _split(vector, tensors))
