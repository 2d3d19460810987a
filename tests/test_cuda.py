"""On a CUDA device no step waits for the device, and CUDA graphs hold whole steps.

The capturable bases of the other conformance tests run there, too.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from conformance import (
    BASES,
    all_rules,
    batches,
    couple,
    everything,
    identical,
    loss_of,
    moving_rules,
    needs_cuda,
    new_model,
    train,
    wrap,
)
from torch import Tensor, nn

from cogd import CoGD

pytestmark = needs_cuda

DATA = batches(10)
WARM_UP = 3


def build(base: str, rule: Any, period: int = 1) -> tuple[nn.Sequential, CoGD]:
    """Return a run on the device, in float64, so that rounding opens no other gates; the same at every call."""
    model = new_model(rule).double().cuda()
    return model, wrap(BASES[base](model.parameters()), couple(model), rule, period)


def on_device(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return a copy of the batch on the device, in float64."""
    inputs, targets = batch
    return inputs.to("cuda", torch.float64), targets.to("cuda", torch.float64)


def put(static: Iterable[Tensor], batch: Iterable[Tensor]) -> None:
    """Fill the tensors that a graph reads."""
    for place, tensor in zip(static, batch, strict=True):
        place.copy_(tensor)


def warm_up(step: Callable[[], None], static: Iterable[Tensor]) -> None:
    """Take the first steps on a side stream, as PyTorch asks before a capture."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for batch in DATA[:WARM_UP]:
            put(static, batch)
            step()
    torch.cuda.current_stream().wait_stream(stream)


def captured(step: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Return the graph of one step, which capturing does not take."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def assert_close(model: nn.Module, optimizer: CoGD, twin: nn.Module, twin_optimizer: CoGD) -> None:
    """Compare parameters and held tensors; kernels may be chosen otherwise under capture, so in float64 to rounding."""
    close = partial(torch.testing.assert_close, rtol=1e-8, atol=1e-10)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        close(p.detach(), q.detach())
        held, twin_held = (
            {name: value for name, value in memory.items() if isinstance(value, Tensor)}
            for memory in (optimizer.memory_of(p), twin_optimizer.memory_of(q))
        )
        close(held, twin_held)


@pytest.mark.parametrize("base", ["momentum", "momentum-fused", "adam-capturable", "adamw-capturable"])
@all_rules
def test_a_cuda_graph_holds_a_whole_step(base, rule):
    """With period 1 every step projects, so that one graph serves them all."""
    twin, twin_optimizer = build(base, rule)
    train(twin, twin_optimizer, DATA)
    model, optimizer = build(base, rule)
    static = on_device(DATA[0])

    def step():
        optimizer.zero_grad()
        loss_of(model, static).backward()
        optimizer.step()

    warm_up(step, static)
    optimizer.zero_grad()  # the gradients of the graph live in its own memory
    graph = captured(step)
    for batch in DATA[WARM_UP:]:
        put(static, batch)
        graph.replay()
    torch.cuda.synchronize()
    assert_close(model, optimizer, twin, twin_optimizer)
    if rule is not None:
        assert sum(entry.opened for entry in optimizer.last_stats) > 0
        assert optimizer.last_stats[0].correction > 0


@pytest.mark.parametrize("base", ["momentum", "adam-capturable"])
@moving_rules
def test_a_cuda_graph_holds_the_bases_step_with_projections_outside(base, rule):
    """Longer periods: graphs of the gradients and of the base's step; every third step projects between them."""

    def run(optimizer: CoGD, gradients: Callable, base_step: Callable, first: int, data: list) -> None:
        for i, batch in enumerate(data, first):
            gradients(batch)
            if i % 3 == 0:
                optimizer.project()
            base_step()

    def eager_gradients(batch):
        twin_optimizer.zero_grad()
        loss_of(twin, batch).backward()

    twin, twin_optimizer = build(base, rule)
    run(twin_optimizer, eager_gradients, twin_optimizer.base.step, 0, DATA)

    model, optimizer = build(base, rule)
    static = on_device(DATA[0])

    def forward_and_backward():
        optimizer.zero_grad(set_to_none=False)  # both graphs share the gradients
        loss_of(model, static).backward()

    def warm_step():
        forward_and_backward()
        if next(count) % 3 == 0:
            optimizer.project()
        optimizer.base.step()

    count = iter(range(WARM_UP))
    warm_up(warm_step, static)
    gradient_graph, step_graph = captured(forward_and_backward), captured(optimizer.base.step)

    def replayed_gradients(batch):
        put(static, batch)
        gradient_graph.replay()

    run(optimizer, replayed_gradients, step_graph.replay, WARM_UP, DATA[WARM_UP:])
    torch.cuda.synchronize()
    assert_close(model, optimizer, twin, twin_optimizer)
    assert sum(entry.opened for entry in optimizer.last_stats) > 0


@contextmanager
def waiting_refused() -> Iterator[None]:
    """Fail at whatever waits for the device."""
    torch.cuda.synchronize()
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")  # PyTorch's, of its own tool
@pytest.mark.parametrize("base", ["momentum", "adam", "adam-capturable"])
@moving_rules
def test_no_step_waits_for_the_device(base, rule):
    model, optimizer = build(base, rule)
    data = [on_device(batch) for batch in DATA]
    train(model, optimizer, data[:WARM_UP])
    with waiting_refused():
        train(model, optimizer, data[WARM_UP:])


@pytest.mark.parametrize("base", ["momentum-fused", "adam-fused", "adamw-fused"])
@all_rules
def test_a_gradient_scaler_and_a_fused_base_change_nothing(base, rule):
    model, optimizer = build(base, rule)
    scaled, scaled_optimizer = build(base, rule)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    for batch in DATA:
        train(model, optimizer, [batch])
        scaled_optimizer.zero_grad()
        scaler.scale(loss_of(scaled, batch)).backward()
        scaler.step(scaled_optimizer)
        scaler.update()
    assert_close(scaled, scaled_optimizer, model, optimizer)


@moving_rules
def test_a_checkpoint_moves_between_devices(rule):
    model, optimizer = build("momentum", rule, period=3)
    train(model, optimizer, DATA[:4])
    saved = everything(model, optimizer)
    host = new_model(rule).double()
    host_optimizer = wrap(BASES["momentum"](host.parameters()), couple(host), rule, 3)
    host.load_state_dict(saved["model"])
    host_optimizer.load_state_dict(saved["optimizer"])
    for p in host.parameters():
        assert "cuda" not in str(host_optimizer.memory_of(p))
    model.load_state_dict(host.state_dict())
    optimizer.load_state_dict(host_optimizer.state_dict())
    assert identical(everything(model, optimizer), saved)
