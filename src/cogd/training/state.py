"""What a run is at one moment, whole: with it a resumed run goes on exactly as one never stopped."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from cogd.optimizer import CoGD


class Stateful(Protocol):
    """A model, an optimizer, or anything else that changes in training and must be in the checkpoints."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


@dataclass
class TrainingState:
    """The position of a run and the parts that change with it.

    >>> TrainingState({}, losses=torch.zeros(10), epoch=2, batch=3).step
    23
    """

    parts: Mapping[str, Stateful]
    losses: Tensor  # of the present epoch's batches, on the device
    epoch: int = 0  # epochs completed
    batch: int = 0  # batches completed in the present epoch
    history: list[dict[str, Any]] = field(default_factory=list)  # one record per completed epoch

    @property
    def step(self) -> int:
        """Batches completed in all."""
        return self.epoch * len(self.losses) + self.batch

    def snapshot(self) -> dict[str, Any]:
        """Return a copy of everything, in the CPU's memory."""
        snapshot = {
            "parts": {name: _copy(part.state_dict()) for name, part in self.parts.items()},
            "losses": _copy(self.losses),
            "position": {"epoch": self.epoch, "batch": self.batch},
            "history": [dict(record) for record in self.history],
            "random": random_state(self.losses.device),
        }
        if self.losses.is_cuda:
            torch.cuda.synchronize(self.losses.device)  # all copies at once, not one after the other
        return snapshot

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Become what the snapshot was taken of, but for the random state, which is due after the batches to skip."""
        if (saved := set(snapshot["parts"])) != set(self.parts):
            raise ValueError(f"the checkpoint holds {sorted(saved)}, but this run consists of {sorted(self.parts)}.")
        for name, part in self.parts.items():
            part.load_state_dict(snapshot["parts"][name])
            if isinstance(part, Optimizer):
                lay_out_as_parameters(part)
        self.losses.copy_(snapshot["losses"])
        self.epoch, self.batch = snapshot["position"]["epoch"], snapshot["position"]["batch"]
        self.history = snapshot["history"]


def lay_out_as_parameters(optimizer: Optimizer) -> None:
    """Give an optimizer's tensors the layout in memory of their parameters, which fused steps take for granted.

    Without it a run with channels last, gone on with on a device where they are first, would mix up its momentum.
    """
    base = optimizer.base if isinstance(optimizer, CoGD) else optimizer
    for parameter, state in base.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                state[name] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the state of torch's global generators, the CPU's and the device's."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def seed_epoch(seed: int, epoch: int) -> None:
    """Give every epoch its own random numbers, whatever was drawn before it."""
    digest = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "little"))


def _copy(value: Any) -> Any:
    """Return a deep copy whose tensors are on the CPU; those of a GPU arrive when it is synchronized."""
    match value:
        case Tensor():
            host = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda, requires_grad=False)
            return host.copy_(value.detach(), non_blocking=True)
        case Mapping():
            return {key: _copy(entry) for key, entry in value.items()}
        case list() | tuple():
            return type(value)(_copy(entry) for entry in value)
        case _:
            return value
