"""Small networks in the manner of well-known ones, and what is special about their channels."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cogd.models.mobilenet import InvertedResidual
from cogd.models.resnet import Bottleneck, stage
from cogd.models.resnet_cifar import CifarResNet, subsampled_shortcut


def conv_norm(inputs: int, outputs: int, kernel=3, activation: nn.Module | None = None, **options) -> nn.Sequential:
    """Return a convolution that keeps the image's size, its norm and an activation."""
    conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False, **options)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), activation or nn.ReLU(inplace=True))


class VGG(nn.Module):
    """VGG-BN: a chain whose last map is flattened, so that the classifier reads every channel nine times."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            conv_norm(3, 6), conv_norm(6, 8), nn.MaxPool2d(2), conv_norm(8, 10), nn.AdaptiveAvgPool2d(3)
        )
        self.classifier = nn.Sequential(nn.Linear(90, 12), nn.ReLU(), nn.Dropout(), nn.Linear(12, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.features(x), 1))


class DenseLayer(nn.Module):
    """Norm and activation come before the convolution, and what it makes is read by all that follow."""

    def __init__(self, inputs: int, growth: int):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, 2 * growth, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(2 * growth), nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))
        return torch.cat([x, out], 1)


class DenseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.block1 = nn.Sequential(DenseLayer(6, 4), DenseLayer(10, 4))
        self.transition = nn.Sequential(nn.BatchNorm2d(14), nn.ReLU(), nn.Conv2d(14, 7, 1), nn.AvgPool2d(2))
        self.block2 = nn.Sequential(DenseLayer(7, 4), DenseLayer(11, 4))
        self.norm, self.classifier = nn.BatchNorm2d(15), nn.Linear(15, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block2(self.transition(self.block1(self.stem(x))))
        return self.classifier(F.relu(self.norm(x)).mean((2, 3)))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.hardsigmoid(self.fc2(F.relu(self.fc1(self.pool(x))))) * x


class MobileNetV3Block(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int):
        super().__init__()
        self.expand = conv_norm(inputs, hidden, 1, nn.Hardswish())
        self.depthwise = conv_norm(hidden, hidden, 3, nn.Hardswish(), groups=hidden)
        self.excite = SqueezeExcite(hidden)
        self.project = conv_norm(hidden, outputs, 1, nn.Identity())
        self.skips = inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out = self.project(self.excite(self.depthwise(self.expand(x))))
        return x + out if self.skips else out


def mobilenet_v3() -> nn.Module:
    return nn.Sequential(
        conv_norm(3, 6, 3, nn.Hardswish()),
        MobileNetV3Block(6, 12, 8),
        MobileNetV3Block(8, 16, 8),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10), nn.Hardswish(), nn.Linear(10, 5)),
    )


class ResNeXtBlock(nn.Module):
    """The middle convolution has groups, so that every group must keep equally many channels."""

    def __init__(self, inputs: int, width: int, groups: int):
        super().__init__()
        self.conv1 = conv_norm(inputs, width, 1)
        self.conv2 = conv_norm(width, width, 3, groups=groups)
        self.conv3 = conv_norm(width, inputs, 1, nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.conv3(self.conv2(self.conv1(x))))


def resnext() -> nn.Module:
    blocks = [ResNeXtBlock(8, 12, 3), ResNeXtBlock(8, 16, 4)]
    return nn.Sequential(conv_norm(3, 8), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


class ConvNeXtBlock(nn.Module):
    """A layer norm spans the channels of the stream, so that only those inside the block can go."""

    def __init__(self, channels: int):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.expand, self.project = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(1e-6 * torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        out = self.gamma * self.project(F.gelu(self.expand(out)))
        return x + out.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 6, 2, 2), nn.Sequential(ConvNeXtBlock(6), ConvNeXtBlock(6))
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.stem(x)).mean((2, 3))))


class UNet(nn.Module):
    """Skips are concatenated with what transposed convolutions make; the output is a map."""

    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.bottom = conv_norm(3, 6), conv_norm(6, 8), conv_norm(8, 10)
        self.up2, self.side2 = nn.ConvTranspose2d(10, 8, 2, 2), conv_norm(16, 7)
        self.up1, self.side1 = nn.ConvTranspose2d(7, 6, 2, 2), conv_norm(12, 6)
        self.head = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.up2(self.bottom(F.max_pool2d(second, 2)))
        x = self.up1(self.side2(torch.cat([x, second], 1)))
        return self.head(self.side1(torch.cat([x, first], 1)))


class ConcatSkipGrouped(nn.Module):
    """A user's own module: two branches joined, a skip over a grouped convolution, a learned scale per channel."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 6, 3, padding=1), conv_norm(3, 4, 1, nn.PReLU(4))
        self.mix = nn.Conv2d(10, 8, 1)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.scale = nn.Parameter(torch.rand(8, 1, 1))
        self.head = nn.Linear(8 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.mix(torch.cat([self.left(x), self.right(x)], 1)))
        x = x + self.scale * F.relu(self.grouped(x))
        return self.head(F.adaptive_avg_pool2d(x, 4).flatten(1))


def shuffled(x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    return x.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, width)


class ShuffleBlock(nn.Module):
    """Half of the channels pass, the other half is convolved, and the halves are interleaved."""

    def __init__(self, channels: int):
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(
            conv_norm(half, half, 1), conv_norm(half, half, 3, nn.Identity(), groups=half), conv_norm(half, half, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        passed, convolved = x.chunk(2, dim=1)
        return shuffled(torch.cat([passed, self.branch(convolved)], 1))


def shufflenet_v2() -> nn.Module:
    blocks = [ShuffleBlock(8), ShuffleBlock(8)]
    return nn.Sequential(
        conv_norm(3, 8), *blocks, conv_norm(8, 12, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5)
    )


def gated_linear() -> nn.Module:
    """Half of a layer's channels gate the other half: two channels go together, which no single gate expresses."""
    return nn.Sequential(conv_norm(3, 8), nn.GLU(dim=1), conv_norm(4, 6), nn.AdaptiveAvgPool2d(2), nn.Conv2d(6, 5, 2))


def mobilenet_v2() -> nn.Module:
    blocks = [InvertedResidual(6, 8, 2, 1), InvertedResidual(8, 8, 3, 1), InvertedResidual(8, 10, 2, 2)]
    return nn.Sequential(conv_norm(3, 6), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(10, 5))


def resnet() -> nn.Module:
    """A ResNet of CIFAR's kind with parameter-free shortcuts, as ResNet-56."""
    return CifarResNet((6, 8, 10), 2, 5, subsampled_shortcut)


def bottlenecks() -> nn.Module:
    """A ResNet of ImageNet's kind with blocks of three convolutions and projections, as ResNet-50."""
    stages = [stage(Bottleneck, 8, 4, 2, 1), stage(Bottleneck, 16, 6, 2, 2)]
    return nn.Sequential(conv_norm(3, 8), *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5))


NETWORKS = {
    "vgg": VGG,
    "densenet": DenseNet,
    "mobilenet_v2": mobilenet_v2,
    "mobilenet_v3": mobilenet_v3,
    "resnext": resnext,
    "convnext": ConvNeXt,
    "unet": UNet,
    "concat_skip_grouped": ConcatSkipGrouped,
    "shufflenet_v2": shufflenet_v2,
    "gated_linear": gated_linear,
    "resnet": resnet,
    "bottlenecks": bottlenecks,
}


def build(name: str) -> tuple[nn.Module, Tensor]:
    """Return a network in float64 with norms that have seen data, and images for it."""
    torch.manual_seed(0)
    model, images = NETWORKS[name]().double(), torch.randn(4, 3, 12, 12, dtype=torch.float64)
    model.train()(images)
    return model.eval(), images
