"""A whole training step as one CUDA graph: recorded once and replayed from then on.

The first steps of a run are taken as they are written; that compiles them and makes cuDNN choose its kernels, unless
the recipe says compile="graph", which records what the model's own kernels do and so begins sooner. Then the step is
recorded, which takes none, and every later one is a single launch. So nothing needs to be undone: a recorded
run takes the steps of an unrecorded one. Steps that are not like the recorded one are taken as they are written: those
on batches of another shape, and CoGD's projections, whose launches hide behind the steps still under way.
"""

import logging
import warnings
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cogd.optimizer import CoGD
from cogd.training.metrics import Objective
from cogd.training.placement import Placement
from cogd.training.step import Step

REHEARSALS = 3  # steps before the recording; the last shows whether the step waits for the device
KERNELS = {"combo_kernels": True, "benchmark_combo_kernel": False}  # many small tensors, such as the norms, in one
SEARCH = {"coordinate_descent_tuning": True}  # of every kernel's block sizes

logger = logging.getLogger(__name__)
Batch = tuple[Tensor, Tensor]


class RecordedStep:
    """Takes the steps that `Step` takes; see above. The objective must be a function of the model and the batch."""

    def __init__(self, model: nn.Module, objective: Objective, optimizer: Optimizer, placement: Placement):
        self.optimizer, self.placement = optimizer, placement
        self.base = optimizer.base if isinstance(optimizer, CoGD) else optimizer
        self._as_written = Step(model, objective, optimizer, placement)
        shapes = tuple((name, value.shape) for name, value in model.state_dict().items())
        self._recordable = replace(self._as_written, objective=compiled(objective, placement, (type(model), shapes)))
        self._stream = torch.cuda.Stream(placement.device)
        self._rehearsed = 0
        self._waits = False  # for the device, so that it cannot be recorded
        self._batch: Batch | None = None
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Take one step and return the loss before it, without waiting for the device."""
        if self._batch is None:
            self._batch = self.placement.move(inputs).clone(), self.placement.move(targets).clone()
        if (inputs.shape, targets.shape) != tuple(tensor.shape for tensor in self._batch):
            return self._as_written(inputs, targets)
        if self._rehearsed < REHEARSALS:
            return self._rehearse(inputs, targets)
        if self._waits or (isinstance(self.optimizer, CoGD) and self.optimizer.projects_next):
            return self._recordable(inputs, targets)
        return self._replay(self._batch, (inputs, targets))

    def _rehearse(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self._rehearsed += 1
        inputs, targets = self.placement.move(inputs), self.placement.move(targets)
        with self._on_own_stream(), self._kernels_chosen():
            if self._rehearsed < REHEARSALS:
                return self._recordable(inputs, targets)
            with waits_noted() as waits:
                loss = self._recordable(inputs, targets)
        if waits:
            self._waits = True
            logger.warning("a step of this model waits for the device (as .item() does), so steps are not recorded.")
        return loss

    def _replay(self, places: Batch, batch: Batch) -> Tensor:
        if self._graph is None:
            self._record(places)
        assert self._graph is not None
        for place, tensor in zip(places, batch, strict=True):
            place.copy_(tensor, non_blocking=True)
        for rate, group in zip(self._rates, self.base.param_groups, strict=True):
            rate.fill_(group["lr"])
        self._graph.replay()
        if isinstance(self.optimizer, CoGD):
            self.optimizer.count_step()
        return self._loss

    def _record(self, places: Batch) -> None:
        """Record a step of the base on what will lie in `places`; nothing is computed yet."""
        self._rates = [torch.zeros((), device=self.placement.device) for _ in self.base.param_groups]
        graph = torch.cuda.CUDAGraph()
        # "thread_local": others, such as the thread that pins a loader's memory, may go on with what they do.
        recording = torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local")
        with self._on_own_stream(), self._kernels_chosen(), rates_from(self._rates, self.base), recording:
            self._loss = self._recordable.find_gradients(*places)
            self.base.step()
            self.base.zero_grad()
        self._graph = graph

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
def waits_noted() -> Iterator[list[str]]:
    """Collect PyTorch's warnings of what waits for the device; they are complete on leaving."""
    usual = torch.cuda.get_sync_debug_mode()
    waits: list[str] = []
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waits
        finally:
            torch.cuda.set_sync_debug_mode(usual)
            messages = (str(warning.message) for warning in noted)
            waits += [message for message in messages if "synchronizing CUDA operation" in message]
