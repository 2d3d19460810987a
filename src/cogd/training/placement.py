"""Where and in which arithmetic a model runs."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cogd.training.recipe import Recipe


@dataclass(frozen=True)
class Placement:
    """A device, a precision, and how steps are put on the device: "off", "graph", "compiled" or "tuned"."""

    device: torch.device
    precision: str
    compilation: str

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of forward passes: bfloat16 where it is safe, or nothing."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16")

    def place(self, model: nn.Module) -> nn.Module:
        """Move the model; on a GPU its convolutions run faster with the channels last."""
        if self.on_gpu:
            return model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model.to(self.device)

    def move(self, batch: Tensor) -> Tensor:
        """Move a batch without waiting; images get the layout of the model's convolutions."""
        if self.on_gpu and batch.ndim == 4:
            return batch.to(self.device, non_blocking=True, memory_format=torch.channels_last)
        return batch.to(self.device, non_blocking=True)

    def compile(self, model: nn.Module) -> Any:
        """Return what steps that cannot be recorded whole call in place of the model."""
        return model if self.compilation in ("off", "graph") else torch.compile(model, mode="reduce-overhead")

    def begin_step(self) -> None:
        """Let the CUDA graphs use the memory of the step before again."""
        if self.compilation not in ("off", "graph"):
            torch.compiler.cudagraph_mark_step_begin()


def choose_device(device: str | torch.device) -> torch.device:
    """Return the device that "auto" means on this machine, or refuse one that it doesn't have."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = torch.device(device)
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f'device must be "auto", "cpu" or "cuda"; got {str(device)!r}.')
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {str(device)!r} asks for a GPU, but torch {torch.__version__} finds none; use 'cpu'.")
    return chosen


def choose_placement(device: str | torch.device, recipe: Recipe) -> Placement:
    """Return the placement that "auto" means on this machine."""
    chosen = choose_device(device)
    if recipe.compile not in ("auto", "off") and chosen.type == "cpu":
        raise ValueError(f"compile={recipe.compile!r} makes CUDA graphs and needs a GPU; on a CPU leave it at 'auto'.")
    on_gpu = chosen.type == "cuda"
    usual_precision, usual_compilation = ("bfloat16", "compiled") if on_gpu else ("float32", "off")
    return Placement(
        chosen,
        usual_precision if recipe.precision == "auto" else recipe.precision,
        usual_compilation if recipe.compile == "auto" else recipe.compile,
    )
