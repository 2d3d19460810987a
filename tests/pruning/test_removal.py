"""A network without its closed channels computes what it computed with them."""

import copy

import pytest
import torch

from cogd.models import build, count_macs
from cogd.pruning import Gates, Size, prunable_layers, remove_channels


@pytest.fixture
def digits():
    torch.manual_seed(0)
    return build("digits", 10).double(), torch.randn(4, 1, 8, 8, dtype=torch.float64)


def test_folded_gates_and_the_compact_network_agree(digits):
    model, images = digits
    gates = Gates(model, images, generator=torch.Generator().manual_seed(0))
    keep = gates.keep(0.5)
    for name, value in gates.values.items():
        closed = torch.ones_like(value, dtype=torch.bool).index_fill(0, torch.tensor(keep[name]), False)
        value.data[closed] = 0
    masked = model.eval()(images)
    gates.fold()
    remove_channels(model, keep, example_inputs=images)
    assert model.layer1.conv1.out_channels == len(keep["layer1.conv1"]) < 16
    torch.testing.assert_close(model(images), masked, rtol=0, atol=1e-9)


def test_removed_gates_leave_no_trace(digits):
    model, images = digits
    before, parameters = copy.deepcopy(model.state_dict()), dict(model.named_parameters())
    Gates(model, images).remove()
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())


def test_the_sizes_are_those_of_the_compact_network(digits):
    model, images = digits
    size = Size(model, prunable_layers(model, images), images)
    keep = {"layer1.conv1": [0, 3, 4], "layer2.conv1": list(range(0, 32, 3))}
    macs, parameters = size.macs(keep), size.parameters(keep)
    remove_channels(model, keep, example_inputs=images)
    assert macs == count_macs(model, images)
    assert parameters == sum(parameter.numel() for parameter in model.parameters())
