"""What a recorded step does, with CUDA graphs that are played on the CPU: the same as the step as it is written."""

import logging
import random

import numpy as np
import pytest
import torch
from graphs_on_cpu import play_graphs
from recorded_networks import Asking, Dropping, Network
from torch.nn.functional import cross_entropy

from cogd import CoGD, couple_conv_norm
from cogd.training import Recipe, recorded
from cogd.training.fit import sgd
from cogd.training.metrics import minimize
from cogd.training.placement import Placement
from cogd.training.recorded import REHEARSALS, RecordedStep
from cogd.training.step import Step

RECIPE = Recipe(epochs=1, batch_size=8, lr=0.1, momentum=0.9, weight_decay=1e-3)
FLOAT32, BFLOAT16 = (Placement(torch.device("cpu"), precision, "graph") for precision in ("float32", "bfloat16"))


class Skipping(Network):
    """Leaves its norm out where chance on the CPU says so."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        return super().forward(x) if self.draw() < 0.5 else self.fc(self.conv(x).mean((2, 3)))


class AskingLater(Network):
    """Asks the device from the recording on."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (x.sum().item() if self.calls > REHEARSALS else 1.0)


def batches(sizes=(8,) * 10):
    torch.manual_seed(1)
    return [(torch.randn(n, 2, 4, 4), torch.randint(3, (n,))) for n in sizes]


def fused(model):
    return sgd(model, RECIPE, fused=True)


def run(
    make_step,
    data,
    make=Network,
    rule=None,
    placement=FLOAT32,
    make_base=fused,
    rate=0.1,
    between=lambda model, base: None,
):
    """Take a step for each batch, at a rate that changes; return the network and the losses."""
    torch.manual_seed(0)
    model = make().train()
    optimizer = base = make_base(model)
    if rule is not None:
        optimizer = CoGD(base, couple_conv_norm(model, active=0.6), rule=rule, period=5)
    step, losses = make_step(model, minimize(cross_entropy), optimizer, placement), []
    for number, batch in enumerate(data):
        base.param_groups[0]["lr"] = rate / (1 + number)
        losses.append(float(step(*batch)))
        if number == 5:
            between(model, base)
    return model, losses


def assert_same(one, other):
    torch.testing.assert_close(one[0].state_dict(), other[0].state_dict(), rtol=1e-6, atol=1e-7)  # rates in float32
    assert one[1] == pytest.approx(other[1], rel=1e-6)


@pytest.fixture
def graphs(monkeypatch):
    return play_graphs(monkeypatch)


@pytest.mark.parametrize("placement", [FLOAT32, BFLOAT16], ids=lambda placement: placement.precision)
@pytest.mark.parametrize(("rule", "replays"), [(None, 7), ("paper", 5), ("rollback", 5)])
def test_recorded_equals_as_written(graphs, rule, replays, placement):
    """Weights, momentum, running statistics and losses, at rates that change; a tenth and a fifth step project."""
    data = batches()
    assert_same(
        run(RecordedStep, data, rule=rule, placement=placement), run(Step, data, rule=rule, placement=placement)
    )
    assert [graph.replays for graph in graphs] == [replays]


@pytest.mark.parametrize("sizes", [(8, 8, 8, 8, 8, 5) * 2, (5, 8, 8, 8, 8, 8) * 2], ids=["last", "first"])
def test_a_smaller_batch_is_taken_as_written_even_where_it_comes_first(graphs, sizes):
    """As the first batch is that a run sees when it goes on just before an epoch's last."""
    data = batches(sizes)
    assert_same(run(RecordedStep, data), run(Step, data))
    assert [graph.replays for graph in graphs] == [7]


class Counting(Network):
    """Takes numbers of any kind, and whole ones otherwise than others."""

    def forward(self, x):
        return super().forward(x.float()) * (1.0 if x.is_floating_point() else 0.5)


def test_a_batch_of_another_kind_of_numbers_is_taken_as_written(graphs):
    data = batches()
    data[6] = data[6][0].int(), data[6][1]
    assert_same(run(RecordedStep, data, Counting), run(Step, data, Counting))
    assert [graph.replays for graph in graphs] == [6]


def test_chance_on_the_device_differs_in_every_replay(graphs, monkeypatch):
    monkeypatch.setattr(recorded, "chance_on_cpu", lambda: ())  # here the device is the CPU
    _, losses = run(RecordedStep, batches((8,)) * 8, Dropping, rate=0.0)
    assert len(set(losses)) == len(losses)
    assert graphs[0].replays == 5


@pytest.mark.parametrize(
    "draw", [lambda: float(torch.rand(())), np.random.rand, random.random], ids=["torch", "numpy", "python"]
)
def test_a_model_that_draws_on_the_cpu_is_not_recorded_and_says_so(graphs, draw, caplog):
    random.seed(0)
    data = batches()
    with caplog.at_level(logging.WARNING):
        run(RecordedStep, data, lambda: Skipping(draw))
    assert "so steps are not recorded" in caplog.text
    assert not graphs


@pytest.mark.parametrize(
    ("make", "make_base"),
    [
        (Asking, fused),
        (Network, lambda model: torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)),
        (Network, lambda model: torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)),
    ],
    ids=["model", "SGD as a loop", "SGD by foreach"],
)
def test_a_step_that_waits_for_the_device_is_not_recorded_and_says_so(graphs, caplog, make, make_base):
    """The model's, or an optimizer's that asks what its rate is."""
    data = batches()
    with caplog.at_level(logging.WARNING):
        assert_same(run(RecordedStep, data, make, make_base=make_base), run(Step, data, make, make_base=make_base))
    assert "waits for the device" in caplog.text
    assert not graphs


def test_what_cannot_be_recorded_is_refused_with_the_remedy(graphs):
    with pytest.raises(
        ValueError, match=r"recorded in a CUDA graph: .*not permitted.*recordable=False\), or compile='off'"
    ):
        run(RecordedStep, batches(), AskingLater)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_the_compiler_knows_the_options_that_it_is_given():
    from torch._inductor import list_options

    assert set(recorded.KERNELS | recorded.SEARCH) <= set(list_options())


def unfreeze(model, _):
    model.conv.requires_grad_(True)


def fix_statistics(model, _):
    model.norm.eval()


def decay(_, base):
    base.param_groups[0]["weight_decay"] = 0.5


def add_group(_, base):
    """The kernels get a rate of their own."""
    kernels = base.param_groups[0]["params"].pop(0)
    base.add_param_group({"params": [kernels], "lr": 0.01})


def frozen():
    model = Network()
    model.conv.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("make", "change"),
    [(Network, unfreeze), (frozen, unfreeze), (Network, fix_statistics), (Network, decay), (Network, add_group)],
)
def test_what_a_recording_holds_fast_may_change_between_steps(graphs, make, change):
    """A new recording is made of it."""
    data = batches()
    assert_same(run(RecordedStep, data, make, between=change), run(Step, data, make, between=change))
    unchanged = make is Network and change is unfreeze
    assert [graph.replays for graph in graphs] == ([7] if unchanged else [3, 1])
