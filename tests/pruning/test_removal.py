"""A network without its closed channels computes what it computed with them, and goes on training as it would have."""

import copy
from typing import Any

import pytest
import torch
from pruning import networks
from torch import nn
from torch.nn import functional as F

from cogd import CoGD, bundle, couple_conv_norm
from cogd.models import count_macs
from cogd.pruning import Gates, Size, prunable_layers, remove_channels


def closed(name, seed):
    """Return a network with gates folded in, some of which were 0, its images, and the channels that are left."""
    model, images = networks.build(name)
    gates = Gates(model, images, generator=torch.Generator().manual_seed(seed))
    keep = gates.keep(0.7)
    for layer, value in gates.values.items():
        value.data[[channel for channel in range(len(value)) if channel not in keep[layer]]] = 0
    gates.fold()
    return model, images, keep


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", networks.NETWORKS)
def test_the_masked_and_the_compact_network_agree(name, seed):
    model, images, keep = closed(name, seed)
    masked = model(images)
    size = Size(model, prunable_layers(model, images), images)
    macs, parameters = size.macs(keep), size.parameters(keep)
    assert size.macs({}) == count_macs(model, images)
    remove_channels(model, keep, example_inputs=images)
    torch.testing.assert_close(model(images), masked, rtol=0, atol=1e-9)
    assert macs == count_macs(model, images) < size.macs({})
    assert parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", ["resnext", "densenet"])
def test_they_agree_in_training_too(name):
    model, images, keep = closed(name, 0)
    compact = copy.deepcopy(model).train()
    remove_channels(compact, keep, example_inputs=images)
    torch.testing.assert_close(compact(images), model.train()(images), rtol=0, atol=1e-9)


def trained(model, images, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), torch.arange(len(images)))
        loss.backward()
        optimizer.step()
    return loss


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.0),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_goes_on_as_with_the_channels_held_at_zero(kind: str):
    """The reference keeps the closed channels and freezes what reads them at 0; what makes them then doesn't matter."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images, keep = torch.randn(4, 3, 8, 8, dtype=torch.float64), {"0": [0, 2, 5]}
    model = model.double()
    optimizer = OPTIMIZERS[kind](model.parameters())
    loss = trained(model, images, optimizer, 3)  # alive, and with it the shapes that autograd expects
    with torch.no_grad():
        model[2].weight[:, [1, 3, 4]] = 0
    reference, follower = copy.deepcopy((model, optimizer))
    for _ in range(3):
        trained(reference, images, follower, 1)
        with torch.no_grad():
            reference[2].weight[:, [1, 3, 4]] = 0
    remove_channels(model, keep, example_inputs=images, optimizer=optimizer)
    trained(model, images, optimizer, 3)
    assert loss.isfinite()
    for got, expected in [
        (model[0].weight, reference[0].weight[keep["0"]]),
        (model[0].bias, reference[0].bias[keep["0"]]),
        (model[2].weight, reference[2].weight[:, keep["0"]]),
        (model[2].bias, reference[2].bias),
    ]:
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_every_live_parameter_stays_in_the_optimizer():
    model, images, keep = closed("resnet", 0)
    parameters = list(model.parameters())
    norms: dict[str, Any] = {"params": [parameter for parameter in parameters if parameter.ndim == 1], "lr": 0.5}
    kernels = {"params": [parameter for parameter in parameters if parameter.ndim > 1]}
    optimizer = torch.optim.SGD([kernels, norms], lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    trained(model, images, optimizer, 1)
    remove_channels(model, keep, example_inputs=images, optimizer=optimizer)
    assert [id(p) for p in model.parameters()] == [id(p) for p in parameters]
    assert all(optimizer.state[p]["momentum_buffer"].shape == p.shape for p in parameters)
    assert all(p.grad is not None and p.grad.shape == p.shape for p in parameters)
    before = [parameter.detach().clone() for parameter in parameters]
    trained(model, images, optimizer, 1)
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.01, 0.05])
    assert all(not torch.equal(parameter, old) for parameter, old in zip(parameters, before, strict=True))


@pytest.mark.parametrize("rule", ["paper", "rollback"])
def test_a_coordinating_optimizer_goes_on_as_if_its_couplings_were_computed_one_by_one(rule, monkeypatch):
    together, opened = coordinated_through_a_removal(rule)
    monkeypatch.setattr(bundle, "LARGEST", 0)
    apart, opened_apart = coordinated_through_a_removal(rule)
    torch.testing.assert_close(together, apart, rtol=1e-12, atol=1e-12)
    assert opened == opened_apart
    assert sum(opened) > 0


def coordinated_through_a_removal(rule):
    """Return the weights and the gates opened of a model that loses channels while CoGD trains it."""
    model, images, keep = closed("resnet", 0)
    couplings = couple_conv_norm(model)
    base = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    strength: dict[str, Any] = {} if rule == "rollback" else {"scale": 1.0}
    optimizer = CoGD(base, couplings, rule=rule, **strength)
    trained(model, images, optimizer, 3)
    remove_channels(model, keep, example_inputs=images, optimizer=optimizer)
    trained(model, images, optimizer, 3)
    assert couplings[1].size == len(keep["layer1.0.conv1"])
    return model.state_dict(), [stat.opened for stat in optimizer.last_stats]


def test_state_that_cannot_be_cut_is_refused_before_anything_changes():
    model, images, keep = closed("vgg", 0)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    trained_by_closure(model, images, optimizer)
    state = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"can't cut the optimizer's .* of features.0.0.weight.*build a new optimizer"):
        remove_channels(model, keep, example_inputs=images, optimizer=optimizer)
    unchanged(model, state)
    with pytest.raises(ValueError, match="optimizer holds no parameter of this model"):
        remove_channels(model, keep, example_inputs=images, optimizer=torch.optim.SGD([torch.ones(1)], lr=1.0))


def trained_by_closure(model, images, optimizer):
    def closure():
        loss = model(images).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)


def unchanged(model, state):
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ({"layer1.0.bn2": [0]}, "keep names 'layer1.0.bn2', .* can't be removed: a BatchNorm2d makes none of its own"),
        ({"layer1.0.conv": [0]}, r"keep names 'layer1.0.conv', not a module.*near it: \['layer1.0.conv"),
        ({"fc": [0]}, "keep names 'fc', whose channels can't be removed: no convolution or linear layer reads"),
        ({"layer1.0.conv2": [0], "conv1": [0]}, "its channels are those of layer1.0.conv2; name one of the two"),
        ({"layer1.0.conv1": []}, r"keep\['layer1.0.conv1'\] is empty; a layer must keep at least one of its 6"),
        ({"layer1.0.conv1": [0, 6]}, "must list different channels from 0 to 5"),
        ({"layer1.0.conv1": [1, 1]}, "must list different channels from 0 to 5"),
    ],
)
def test_a_wrong_keep_is_refused(keep, message):
    model, images = networks.build("resnet")
    state = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        remove_channels(model, keep, example_inputs=images)
    unchanged(model, state)


def test_groups_must_keep_equally_many():
    model, images = networks.build("resnext")
    with pytest.raises(ValueError, match="must keep equally many of each run of 4 channels, because a grouped conv"):
        remove_channels(model, {"1.conv1.0": [0, 1, 4]}, example_inputs=images)


class Forgetful(nn.Module):
    """Its forward relies on the number of channels of one layer where the example inputs are large."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 6, 1), nn.Conv2d(6, 2, 1)

    def forward(self, x):
        x = F.relu(self.second(F.relu(self.first(x))))
        return self.head(x * torch.softmax(x, dim=1))


def test_a_layer_whose_channels_something_else_mixes_is_named_with_the_reason():
    torch.manual_seed(0)
    model, images = Forgetful().double(), torch.randn(2, 3, 4, 4, dtype=torch.float64)
    gates = Gates(model, images)
    assert list(gates.values) == ["first"]
    assert "removing its channels changes the output by" in gates.skipped["second"]
    gates.remove()
    with pytest.raises(
        ValueError, match=r"nothing was removed from this Forgetful.\n  second: removing its channels changes"
    ):
        remove_channels(model, {"second": [0]}, example_inputs=images)
    assert model.second.out_channels == 6
