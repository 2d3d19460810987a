"""A whole training step as one CUDA graph: recorded once and replayed from then on.

The first steps of a run are taken as they are written; that compiles them and makes cuDNN choose its kernels, unless
the recipe says compile="graph", which records what the model's own kernels do and so begins sooner. Then the step is
recorded, which takes none, and every later one is a single launch. So nothing needs to be undone: a recorded
run takes the steps of an unrecorded one. Steps that are not like the recorded one are taken as they are written: those
on batches of another shape or kind of numbers, and CoGD's projections, whose launches hide behind the steps still under
way. Where the parameters that learn, a module's mode or an optimizer's setting changes between two steps, the step is
recorded anew.
"""

import logging
import random
import warnings
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cogd.optimizer import CoGD
from cogd.training.metrics import Batch, Objective
from cogd.training.placement import Placement
from cogd.training.step import Step

REHEARSALS = 3  # steps before a recording; the last shows whether there can be one
MOVING = ("params", "lr", "initial_lr")  # of a parameter group: what a recording does not hold fast
KERNELS = {"combo_kernels": True, "benchmark_combo_kernel": False}  # many small tensors, such as the norms, in one
SEARCH = {"coordinate_descent_tuning": True}  # of every kernel's block sizes

logger = logging.getLogger(__name__)


class RecordedStep:
    """Takes the steps that `Step` takes; see above. The objective must be a function of the model and the batch."""

    def __init__(self, model: nn.Module, objective: Objective, optimizer: Optimizer, placement: Placement):
        self.optimizer, self.placement = optimizer, placement
        self.base = optimizer.base if isinstance(optimizer, CoGD) else optimizer
        self._as_written = Step(model, objective, optimizer, placement)
        shapes = tuple((name, value.shape) for name, value in model.state_dict().items())
        self._recordable = replace(self._as_written, objective=compiled(objective, placement, (type(model), shapes)))
        self._stream = torch.cuda.Stream(placement.device)
        self._obstacle = ""  # to a recording
        self._places: Batch | None = None
        self._begin_anew()

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Take one step and return the loss before it, without waiting for the device."""
        if self._places is None or (self._graph is None and inputs.numel() > self._places[0].numel()):
            self._places = self.placement.move(inputs).clone(), self.placement.move(targets).clone()
            self._rehearsed = 0  # an epoch's last batch may be the first that is seen, and is smaller
        if kinds((inputs, targets)) != kinds(self._places):
            return self._as_written(inputs, targets)
        for place, tensor in zip(self._places, (inputs, targets), strict=True):
            place.copy_(tensor, non_blocking=True)
        if self._fixed_settings() != self._settings:
            self._begin_anew()
        if self._rehearsed < REHEARSALS:
            return self._rehearse(self._places)
        if self._obstacle or (isinstance(self.optimizer, CoGD) and self.optimizer.projects_next):
            return self._recordable(*self._places)
        return self._replay(self._places)

    def _begin_anew(self) -> None:
        """Note what a recording of the model and the optimizer as they are now would hold fast; there is none yet."""
        model = self._as_written.model
        self._modules, self._parameters = list(model.modules()), list(model.parameters())
        self._rates = [torch.zeros((), device=self.placement.device) for _ in self.base.param_groups]
        self._settings = self._fixed_settings()
        self._rehearsed = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def _fixed_settings(self) -> Any:
        """Return what a recording holds fast: what learns, what is in training mode, the optimizer's other numbers."""
        learns = [parameter.requires_grad for parameter in self._parameters]
        trains = [module.training for module in self._modules]
        numbers = [
            {name: value for name, value in group.items() if name not in MOVING and not isinstance(value, Tensor)}
            for group in self.base.param_groups
        ]
        return learns, trains, numbers

    def _rehearse(self, places: Batch) -> Tensor:
        """Take a step; the last rehearsal is as the recording will be."""
        self._rehearsed += 1
        with self._on_own_stream(), self._kernels_chosen():
            if self._rehearsed < REHEARSALS:
                return self._recordable(*places)
            self._set_rates()
            with rates_from(self._rates, self.base), obstacles_noted() as obstacles:
                loss = self._recordable(*places)
        self._obstacle = next(iter(obstacles), "")
        if obstacles:
            logger.warning("a step of this model %s, so steps are not recorded.", self._obstacle)
        return loss

    def _replay(self, places: Batch) -> Tensor:
        if self._graph is None:
            self._graph = self._recorded(places)
        self._set_rates()
        self._graph.replay()
        if isinstance(self.optimizer, CoGD):
            self.optimizer.count_step()
        return self._loss

    def _set_rates(self) -> None:
        for rate, group in zip(self._rates, self.base.param_groups, strict=True):
            rate.fill_(group["lr"])

    def _recorded(self, places: Batch) -> torch.cuda.CUDAGraph:
        """Record a step of the base on what will lie in `places`; nothing is computed yet."""
        graph = torch.cuda.CUDAGraph()
        # "thread_local": others, such as the thread that pins a loader's memory, may go on with what they do.
        recording = torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local")
        try:
            with self._on_own_stream(), self._kernels_chosen(), rates_from(self._rates, self.base), recording:
                self._loss = self._recordable.find_gradients(*places)
                self.base.step()
                self.base.zero_grad()
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise ValueError(
                f"this model's step cannot be recorded in a CUDA graph: {error} Give fit(recordable=False), or "
                "compile='off' in the recipe."
            ) from error
        return graph

    @contextmanager
    def _on_own_stream(self) -> Iterator[None]:
        """Run on a stream of our own, after what was asked for before and before what comes after."""
        usual = torch.cuda.current_stream(self.placement.device)
        self._stream.wait_stream(usual)
        with torch.cuda.stream(self._stream):
            yield
        usual.wait_stream(self._stream)

    @contextmanager
    def _kernels_chosen(self) -> Iterator[None]:
        """Let cuDNN measure all its kernels for a shape that it meets for the first time, where steps are compiled."""
        cudnn = torch.backends.cudnn
        usual = cudnn.benchmark, cudnn.benchmark_limit
        try:
            if self.placement.compilation != "graph":
                cudnn.benchmark, cudnn.benchmark_limit = True, 0
            yield
        finally:
            cudnn.benchmark, cudnn.benchmark_limit = usual


def kinds(batch: Batch) -> list[tuple[torch.Size, torch.dtype]]:
    """Return what a batch must share with the recorded one."""
    return [(tensor.shape, tensor.dtype) for tensor in batch]


@lru_cache(maxsize=1)  # it holds on to the objective, which may hold a network
def compiled(objective: Objective, placement: Placement, network: Hashable) -> Objective:
    """Return the objective, the model's forward pass and with it the backward pass, in few kernels.

    The next run of the same kind of network in this process finds it compiled.
    """
    if placement.compilation == "graph":
        return objective

    def loss(model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        return objective(model, inputs, targets)

    loss.__code__ = loss.__code__.replace()  # torch.compile gives up on code that it has met in eight variants
    options: dict[str, Any] = KERNELS | (SEARCH if placement.compilation == "tuned" else {})
    return torch.compile(loss, dynamic=False, options=options)


@contextmanager
def rates_from(rates: list[Tensor], base: Optimizer) -> Iterator[None]:
    """Let the base read its learning rates from tensors, where later steps find theirs."""
    usual = [group["lr"] for group in base.param_groups]
    try:
        for rate, group in zip(rates, base.param_groups, strict=True):
            group["lr"] = rate
        yield
    finally:
        for rate, group in zip(usual, base.param_groups, strict=True):
            group["lr"] = rate


@contextmanager
def obstacles_noted() -> Iterator[list[str]]:
    """Collect what keeps a step from being recorded, as parts of a sentence; they are complete on leaving.

    PyTorch warns of what waits for the device. Chance on the CPU would decide once, and for all replays.
    """
    usual, chance = torch.cuda.get_sync_debug_mode(), chance_on_cpu()
    obstacles: list[str] = []
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield obstacles
        finally:
            torch.cuda.set_sync_debug_mode(usual)
    if any("synchronizing CUDA operation" in str(warning.message) for warning in noted):
        obstacles.append("waits for the device (as .item() does)")
    if chance_on_cpu() != chance:
        obstacles.append("draws random numbers on the CPU")


def chance_on_cpu() -> tuple[object, ...]:
    """Return the states of the CPU's global generators, torch's, NumPy's and Python's."""
    of_numpy = repr(np.random.get_state())  # noqa: NPY002 - the generator that models draw from, whatever its kind
    return torch.get_rng_state().numpy().tobytes(), of_numpy, random.getstate()
