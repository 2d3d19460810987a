"""On a GPU a run whose steps are recorded in a CUDA graph is the run whose steps are taken as they are written."""

import logging
import math
import os
import signal
from functools import partial

import pytest
import torch
from conformance import needs_cuda
from recorded_networks import Asking, Dropping, Network
from torch.nn.functional import cross_entropy

from cogd.training import DivergedError, Recipe, fit, read_recipe

pytestmark = [
    needs_cuda,
    pytest.mark.filterwarnings("ignore:::torch"),  # the compiler's own
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature"),
]

RECIPE = Recipe(epochs=3, batch_size=8, lr=0.1, weight_decay=1e-3, precision="float32", active=0.6)
close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)  # float64, but for the rates in the graph: float32


def batches(sizes=(8,) * 5):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(n, 2, 4, 4, generator=generator).double(), torch.randint(3, (n,), generator=generator))
        for n in sizes
    ]


def run(compile, data=None, network=Network, rule="none", lr=0.1, **options):
    torch.manual_seed(0)
    model = network().double()
    recipe = read_recipe(RECIPE, compile=compile, rule=rule, lr=lr)
    data = batches() if data is None else data
    return model, fit(model, (data, batches()[:2]), recipe, device="cuda", progress=False, **options)


def assert_same_run(one, other):
    (model, result), (twin, twin_result) = one, other
    close(model.state_dict(), twin.state_dict())
    for record, twin_record in zip(result.history, twin_result.history, strict=True):
        assert record["train_loss"] == pytest.approx(twin_record["train_loss"], rel=1e-5)
        assert record.get("cogd", {}).get("opened") == twin_record.get("cogd", {}).get("opened")


@pytest.fixture
def replays(monkeypatch):
    """Count the launches of recorded steps."""
    count = []

    class Counted(torch.cuda.CUDAGraph):
        def replay(self):
            count.append(1)
            super().replay()

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Counted)
    return count


@pytest.mark.parametrize(("rule", "recorded"), [("none", 12), ("paper", 9), ("rollback", 9)])
@pytest.mark.parametrize("compile", ["graph", "compiled"])
def test_recorded_equals_as_written(compile, rule, recorded, replays):
    """15 steps, of which 3 come before the recording and 3 project."""
    assert_same_run(run(compile, rule=rule), run("off", rule=rule))
    assert len(replays) == recorded


def test_batches_of_another_shape_are_taken_as_written(replays):
    data = batches((8, 8, 8, 8, 8, 5))
    assert_same_run(run("graph", data), run("off", data))
    assert len(replays) == 12


@pytest.mark.parametrize("stop_at", [2, 7, 10])
def test_stopped_and_resumed_equals_never_stopped(stop_at, tmp_path, replays):
    def stop(state):
        if state.step == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    _, first = run("graph", rule="paper", folder=tmp_path, after_step=stop)
    resumed = run("graph", rule="paper", folder=tmp_path)
    assert (first.status, resumed[1].status) == ("stopped", "complete")
    assert_same_run(resumed, run("off", rule="paper"))
    assert replays


def test_a_recorded_run_goes_on_without_a_gpu(tmp_path):
    def stop(state):
        if state.step == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    run("graph", folder=tmp_path, after_step=stop)
    model = Network().double()
    recipe = read_recipe(RECIPE, compile="off")
    result = fit(model, (batches(), batches()[:2]), recipe, device="cpu", progress=False, folder=tmp_path)
    whole, whole_result = run("off")
    assert_same_run((model, result), (whole.cpu(), whole_result))


def test_a_nan_loss_in_the_graph_stops_with_its_step():
    data = batches()
    data[4][0][3] = math.nan
    with pytest.raises(DivergedError, match=r"loss is nan at step 5 \(epoch 1\)"):
        run("graph", data)


def test_a_model_that_waits_for_the_device_is_not_recorded_and_says_so(replays, caplog):
    with caplog.at_level(logging.WARNING):
        assert_same_run(run("graph", network=Asking), run("off", network=Asking))
    assert "waits for the device" in caplog.text
    assert not replays


def test_chance_repeats_by_seed_and_differs_by_step(replays):
    first, second = run("graph", network=Dropping), run("graph", network=Dropping)
    other = run("graph", network=Dropping, seed=1)
    assert_same_run(first, second)
    assert not torch.allclose(first[0].conv.weight, other[0].conv.weight)
    held, losses = [batches()[0]] * 5, []
    note = lambda state: losses.append(round(float(state.losses[state.batch - 1]), 5))  # noqa: E731
    run("graph", held, Dropping, lr=1e-12, after_step=note)
    assert len(set(losses)) == len(losses)
    assert replays


def test_no_recorded_step_waits_for_the_device():
    data = [(inputs.cuda(), targets.cuda()) for inputs, targets in batches((8,) * 12)]

    def watch(state):
        if state.batch == 5:
            torch.cuda.set_sync_debug_mode("error")
        if state.batch == 11:
            torch.cuda.set_sync_debug_mode("default")

    try:
        run("graph", data, after_step=watch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_an_own_loss_is_recorded_and_an_own_objective_only_if_told(replays):
    def objective(model, inputs, targets):
        return cross_entropy(model(inputs), targets)

    written = run("off")
    assert_same_run(run("graph", loss=cross_entropy), written)
    assert len(replays) == 12
    assert_same_run(run("graph", objective=objective), written)
    assert len(replays) == 12
    assert_same_run(run("graph", objective=objective, recordable=True), written)
    assert len(replays) == 24
