"""ResNets for images of ImageNet's size, with torchvision's parameter names, so that its weights load."""

from torch import Tensor, nn


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


def conv1x1(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 1, stride, bias=False)


def projection_shortcut(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    """Return what brings a block's input to its output's shape, or None where they agree."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; `downsample` None is the identity."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None):
        super().__init__()
        self.conv1 = conv3x3(inputs, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = conv3x3(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut; the 3x3 has the stride, as in torchvision."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None):
        super().__init__()
        self.conv1 = conv1x1(inputs, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv1x1(width, width * self.expansion)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


Block = type[BasicBlock] | type[Bottleneck]


def stage(
    block: Block, inputs: int, width: int, depth: int, stride: int, shortcut=projection_shortcut
) -> nn.Sequential:
    """Return `depth` blocks of one width, the first of which has the stride."""
    outputs = width * block.expansion
    first = block(inputs, width, stride, shortcut(inputs, outputs, stride))
    return nn.Sequential(first, *(block(outputs, width, 1, None) for _ in range(depth - 1)))


def initialize(model: nn.Module) -> None:
    """Draw the convolutions' weights as torchvision does (He et al., fan out); norms start as the identity."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def first_convolutions(model: nn.Module) -> list[str]:
    """Return the names of every block's first convolution, whose channels the paper prunes."""
    return [f"{name}.conv1" for name, module in model.named_modules() if isinstance(module, BasicBlock | Bottleneck)]


class ResNet(nn.Module):
    """A 7x7 stem with pooling and four stages of 64, 128, 256 and 512 channels."""

    def __init__(self, block: Block, depths: tuple[int, int, int, int], num_classes: int = 1000):
        super().__init__()
        width = block.expansion
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = stage(block, 64, 64, depths[0], 1)
        self.layer2 = stage(block, 64 * width, 128, depths[1], 2)
        self.layer3 = stage(block, 128 * width, 256, depths[2], 2)
        self.layer4 = stage(block, 256 * width, 512, depths[3], 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * width, num_classes)
        self.gated_layers = first_convolutions(self)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def resnet18_imagenet(num_classes: int = 1000) -> ResNet:
    """Return ResNet-18 with torchvision's parameter names.

    >>> resnet18_imagenet().fc
    Linear(in_features=512, out_features=1000, bias=True)
    """
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes)


def resnet50_imagenet(num_classes: int = 1000) -> ResNet:
    """Return ResNet-50 with torchvision's parameter names.

    >>> resnet50_imagenet(10).fc
    Linear(in_features=2048, out_features=10, bias=True)
    """
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes)
