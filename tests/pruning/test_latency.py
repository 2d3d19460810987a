"""Latency is measured under stated conditions, and less of it is claimed only where it can be told."""

import copy
import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from pruning import networks
from torch import nn

from cogd.pruning import Gates, compare_latency, latency_share, measure_latency, remove_channels
from cogd.pruning.latency import Conditions, Latency
from cogd.pruning.speedup import MULTIPLE, LatencyComparison, Work, measure_work, rounded_up

FEW: dict[str, Any] = {"device": "cpu", "warm_up": 1, "rounds": 4}


def timed(milliseconds, count=9, noise=0.01):
    """Return a latency whose rounds lie evenly around so many milliseconds."""
    seconds = [milliseconds / 1e3 * (1 + noise * (i - count // 2)) for i in range(count)]
    return Latency(Conditions("a processor", batch=1), tuple(seconds))


def compared(**changes):
    """Return a comparison of networks with half the MACs in half the time."""
    whole = LatencyComparison(
        original=timed(10),
        small=timed(5),
        doubled=timed(10),
        rounded=None,
        original_work=Work(10**9, 10**6, 40),
        small_work=Work(10**9 // 2, 10**6 // 2, 40),
    )
    return replace(whole, **changes)


def test_as_much_faster_as_the_macs_say_needs_no_explanation():
    assert compared().findings() == ["faster: 2.00 times (quartiles 2.00 to 2.00) as fast, with 2.00 times fewer MACs"]


@pytest.mark.parametrize(("milliseconds", "verdict"), [(9, "faster: 1.11"), (10, "no faster"), (11, "slower: 0.91")])
def test_the_verdict_says_whether_it_is_faster_at_all(milliseconds, verdict):
    first, second, *_ = compared(small=timed(milliseconds)).findings()
    assert first.startswith(verdict)
    assert second == "fewer MACs did not mean as much less time"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"small_work": Work(10**9 // 2, 10**6, 40)}, "read and write only 1.00 times fewer bytes"),
        ({"doubled": timed(9)}, r"only 1.12 times \(.*\) as long: much of its time goes into launching its 40 operati"),
        ({"rounded": timed(6)}, r"channels in multiples of 8, .* it is 1.33 times .* prune with round_to=8"),
        ({"rounded": timed(9)}, r"it is 0.89 times .* odd channel counts are not the reason"),
        ({}, "it computes 62.5 billion MACs per second, the original 100"),
    ],
)
def test_every_measured_reason_is_told(changes, reason):
    slow = compared(**{"small": timed(8), "doubled": timed(16)} | changes)
    reasons = slow.findings()[2:]
    assert len(reasons) == (2 if changes else 1)
    assert re.search(reason, reasons[0])


def test_nothing_is_explained_while_the_machine_is_busy():
    findings = compared(original=timed(9, noise=0.2), small=timed(8, noise=-0.2)).findings()
    assert len(findings) == 2
    assert "measure again while nothing else runs" in findings[1]


@pytest.fixture(scope="module")
def pruned():
    model, images = networks.build("vgg")
    keep = Gates(copy.deepcopy(model), images, generator=torch.Generator().manual_seed(0)).keep(0.7)
    small = copy.deepcopy(model)
    remove_channels(small, keep, example_inputs=images)
    return model, small, images, keep


def test_a_comparison_states_its_conditions_and_counts_the_work(pruned):
    model, small, images, keep = pruned
    found = compare_latency(model, small, images[:1], keep=keep, dtype="float64", batch=3, threads=1, **FEW)
    report = json.loads(json.dumps(found.report()))
    assert report["conditions"] | {"device": ""} == {
        "device": "",
        "dtype": "float64",
        "batch": 3,
        "threads": 1,
        "warm_up": 1,
        "rounds": 4,
    }
    assert "cores" in report["conditions"]["device"]
    assert found.doubled.conditions.batch == 6
    assert report["work"]["small"]["macs"] < report["work"]["original"]["macs"]
    assert report["work"]["small"]["operations"] == report["work"]["original"]["operations"]
    assert set(report["seconds"]) == {"original", "small", "doubled", "rounded"}


def test_bytes_are_those_of_all_operations_but_views():
    layer = nn.Sequential(nn.Linear(8, 4, bias=False), nn.ReLU(), nn.Flatten())
    work = measure_work(layer, (torch.zeros(2, 8),))
    assert (work.macs, work.operations) == (32, 2)
    assert work.bytes == 4 * (16 + 32 + 8) + 4 * (8 + 8)


def test_rounding_up_keeps_what_was_kept(pruned):
    model, _, images, keep = pruned
    wider = rounded_up(model, keep, (images,))
    assert wider is not None
    kept_of = {"features.0.0": 6, "features.1.0": 8, "features.3.0": 8, "classifier.0": 8}
    for name, count in kept_of.items():
        layer = wider.get_submodule(name)
        assert getattr(layer, "out_channels", getattr(layer, "out_features", 0)) == count
        assert count % MULTIPLE == 0 or count == 6  # all that it had
    assert rounded_up(model, {"features.1.0": list(range(8))}, (images,)) is None


def test_less_work_takes_a_smaller_share_of_the_time():
    model, x = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 64)), torch.zeros(256, 64)
    layers = Gates(copy.deepcopy(model), x).layers
    assert latency_share(model, layers, x, {"0": [0, 1]}, **FEW).median < 0.5
    assert compare_latency(model, model, x, **FEW).fewer_macs == 1


def test_the_models_stay_as_they_are(pruned):
    model, _, images, _ = pruned
    state = copy.deepcopy(model.state_dict())
    model.train()
    measure_latency(model, images, batch=2, **FEW)
    assert model.training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    model.eval()


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"dtype": "int8"}, "dtype must be one of 'float32', .*; got 'int8'"),
        ({"rounds": 1}, "rounds must be an integer from 4; got 1"),
        ({"batch": 0}, "batch must be an integer from 1; got 0"),
        ({"threads": 0.5}, "threads must be an integer from 1; got 0.5"),
        ({"device": "mps"}, '"auto", "cpu" or "cuda"'),
    ],
)
def test_wrong_conditions_are_refused(conditions, message):
    with pytest.raises(ValueError, match=message):
        measure_latency(nn.Linear(2, 2), torch.zeros(1, 2), **conditions)


def test_inputs_that_the_model_does_not_take_are_refused():
    with pytest.raises(ValueError, match=r"this Linear does not take inputs shaped \[\(1, 3\)\] in float32 on cpu: "):
        measure_latency(nn.Linear(2, 2), torch.zeros(1, 3), **FEW)
