"""ResNets for images of CIFAR's size: a 3x3 stem without pooling."""

from torch import Tensor, nn
from torch.nn.functional import pad

from cogd.models.resnet import BasicBlock, conv3x3, first_convolutions, initialize, projection_shortcut, stage


class SubsampledShortcut(nn.Module):
    """The parameter-free shortcut of He et al., option A: every second pixel, and zeros for the added channels."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.stride = stride
        self.added = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        before = self.added // 2
        return pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.added - before))


def subsampled_shortcut(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    return None if stride == 1 and inputs == outputs else SubsampledShortcut(inputs, outputs, stride)


class CifarResNet(nn.Module):
    """Stages `layer1`, `layer2`, ... of basic blocks; every stage but the first halves the image."""

    def __init__(self, widths: tuple[int, ...], depth: int, num_classes: int, shortcut=projection_shortcut):
        super().__init__()
        self.conv1 = conv3x3(3, widths[0])
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        self.stages = [f"layer{i}" for i in range(1, len(widths) + 1)]
        for name, inputs, width in zip(self.stages, (widths[0], *widths), widths, strict=False):
            stride = 1 if name == "layer1" else 2
            self.add_module(name, stage(BasicBlock, inputs, width, depth, stride, shortcut))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(widths[-1], num_classes)
        self.gated_layers = first_convolutions(self)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        for name in self.stages:
            x = getattr(self, name)(x)
        return self.fc(self.avgpool(x).flatten(1))


def resnet18(num_classes: int = 10) -> CifarResNet:
    """Return ResNet-18 with stages of 64-128-256-512; parameter names as torchvision's resnet18.

    >>> resnet18(100).fc
    Linear(in_features=512, out_features=100, bias=True)
    """
    return CifarResNet((64, 128, 256, 512), 2, num_classes)


def resnet56(num_classes: int = 10) -> CifarResNet:
    """Return ResNet-56 with stages of 16-32-64 and parameter-free shortcuts.

    >>> resnet56().fc
    Linear(in_features=64, out_features=10, bias=True)
    """
    return CifarResNet((16, 32, 64), 9, num_classes, subsampled_shortcut)


def resnet110(num_classes: int = 10) -> CifarResNet:
    """Return ResNet-110 with stages of 16-32-64 and parameter-free shortcuts.

    >>> len(resnet110().layer1)
    18
    """
    return CifarResNet((16, 32, 64), 18, num_classes, subsampled_shortcut)
