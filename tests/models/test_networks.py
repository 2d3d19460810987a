"""The networks are the paper's: multiply-accumulates, names, shapes."""

import pytest
import torch

from cogd import couple_conv_norm
from cogd.models import BUILDERS, build, count_macs

RESNET18 = [
    "conv1.weight",
    "bn1.weight",
    "bn1.bias",
    "layer1.0.conv1.weight",
    "layer1.0.bn1.weight",
    "layer1.0.bn1.bias",
    "layer1.0.conv2.weight",
    "layer1.0.bn2.weight",
    "layer1.0.bn2.bias",
    "layer1.1.conv1.weight",
    "layer1.1.bn1.weight",
    "layer1.1.bn1.bias",
    "layer1.1.conv2.weight",
    "layer1.1.bn2.weight",
    "layer1.1.bn2.bias",
    "layer2.0.conv1.weight",
    "layer2.0.bn1.weight",
    "layer2.0.bn1.bias",
    "layer2.0.conv2.weight",
    "layer2.0.bn2.weight",
    "layer2.0.bn2.bias",
    "layer2.0.downsample.0.weight",
    "layer2.0.downsample.1.weight",
    "layer2.0.downsample.1.bias",
    "layer2.1.conv1.weight",
    "layer2.1.bn1.weight",
    "layer2.1.bn1.bias",
    "layer2.1.conv2.weight",
    "layer2.1.bn2.weight",
    "layer2.1.bn2.bias",
    "layer3.0.conv1.weight",
    "layer3.0.bn1.weight",
    "layer3.0.bn1.bias",
    "layer3.0.conv2.weight",
    "layer3.0.bn2.weight",
    "layer3.0.bn2.bias",
    "layer3.0.downsample.0.weight",
    "layer3.0.downsample.1.weight",
    "layer3.0.downsample.1.bias",
    "layer3.1.conv1.weight",
    "layer3.1.bn1.weight",
    "layer3.1.bn1.bias",
    "layer3.1.conv2.weight",
    "layer3.1.bn2.weight",
    "layer3.1.bn2.bias",
    "layer4.0.conv1.weight",
    "layer4.0.bn1.weight",
    "layer4.0.bn1.bias",
    "layer4.0.conv2.weight",
    "layer4.0.bn2.weight",
    "layer4.0.bn2.bias",
    "layer4.0.downsample.0.weight",
    "layer4.0.downsample.1.weight",
    "layer4.0.downsample.1.bias",
    "layer4.1.conv1.weight",
    "layer4.1.bn1.weight",
    "layer4.1.bn1.bias",
    "layer4.1.conv2.weight",
    "layer4.1.bn2.weight",
    "layer4.1.bn2.bias",
    "fc.weight",
    "fc.bias",
]

BOTTLENECK = [
    "conv1.weight",
    "bn1.weight",
    "bn1.bias",
    "conv2.weight",
    "bn2.weight",
    "bn2.bias",
    "conv3.weight",
    "bn3.weight",
    "bn3.bias",
]
DOWNSAMPLE = ["downsample.0.weight", "downsample.1.weight", "downsample.1.bias"]
RESNET50 = [
    *["conv1.weight", "bn1.weight", "bn1.bias"],
    *(f"layer1.0.{name}" for name in BOTTLENECK + DOWNSAMPLE),
    *(f"layer1.{i}.{name}" for i in (1, 2) for name in BOTTLENECK),
    *(f"layer2.0.{name}" for name in BOTTLENECK + DOWNSAMPLE),
    *(f"layer2.{i}.{name}" for i in (1, 2, 3) for name in BOTTLENECK),
    *(f"layer3.0.{name}" for name in BOTTLENECK + DOWNSAMPLE),
    *(f"layer3.{i}.{name}" for i in (1, 2, 3, 4, 5) for name in BOTTLENECK),
    *(f"layer4.0.{name}" for name in BOTTLENECK + DOWNSAMPLE),
    *(f"layer4.{i}.{name}" for i in (1, 2) for name in BOTTLENECK),
    *["fc.weight", "fc.bias"],
]


def image(name: str, batch: int = 1) -> torch.Tensor:
    if name == "digits":
        return torch.zeros(batch, 1, 8, 8)
    size = 224 if name.endswith("imagenet") else 32
    return torch.zeros(batch, 3, size, size)


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("resnet18", 555.4),
        ("resnet56", 125.5),
        ("resnet110", 252.9),
        ("mobilenet_v2", 91.15),
        ("resnet50_imagenet", 4090),
    ],
)
def test_macs_are_the_papers(name, millions):
    assert count_macs(build(name, 1000 if "imagenet" in name else 10), image(name)) / 1e6 == pytest.approx(
        millions, rel=3e-4
    )


def test_macs_do_not_depend_on_the_batch_and_leave_the_model_as_it_was():
    model = build("resnet18", 10)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert count_macs(model, image("resnet18", 1)) == count_macs(model, image("resnet18", 3))
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("name", "names", "parameters"),
    [
        ("resnet18_imagenet", RESNET18, 11_689_512),  # the counts are torchvision's documentation's
        ("resnet50_imagenet", RESNET50, 25_557_032),
    ],
)
def test_names_and_sizes_are_torchvisions(name, names, parameters):
    model = build(name, 1000)
    assert [name for name, _ in model.named_parameters()] == names
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_the_cifar_resnet18_has_torchvisions_names_too():
    assert [name for name, _ in build("resnet18", 10).named_parameters()] == RESNET18


@pytest.mark.parametrize("name", ["resnet56", "resnet110"])
def test_shortcuts_without_parameters(name):
    model = build(name, 10)
    assert not any("downsample" in key for key in model.state_dict())
    x = torch.randn(2, 16, 8, 8)
    passed = model.get_submodule("layer2.0.downsample")(x)
    assert passed.shape == (2, 32, 4, 4)
    assert torch.equal(passed[:, 8:24], x[:, :, ::2, ::2])
    assert passed[:, :8].abs().sum() + passed[:, 24:].abs().sum() == 0


@pytest.mark.parametrize("name", BUILDERS)
def test_every_convolution_is_coupled_with_its_norm(name):
    """Found alike by symbolic tracing and in a run."""
    model = build(name, 7)
    convolutions = sum(isinstance(module, torch.nn.Conv2d) for module in model.modules())
    traced = [coupling.name for coupling in couple_conv_norm(model)]
    observed = [coupling.name for coupling in couple_conv_norm(model, example_inputs=(image(name, 2),))]
    assert len(traced) == convolutions
    assert sorted(traced) == sorted(observed)
    assert model(image(name, 2)).shape == (2, 7)


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'resnet56'"):
        build("resnet-56", 10)
