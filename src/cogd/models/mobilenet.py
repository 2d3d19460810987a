"""MobileNet-V2 for images of CIFAR's size.

It is the paper's variant, whose MACs are 91.15 M: strides 1, 1, 2, 2, 1, 2, 1, an expansion also at t = 1, and a
convolution in the shortcut where the stride is 1 and the widths differ. Torchvision's weights therefore do not fit it.
"""

from torch import Tensor, nn

from cogd.models.resnet import conv1x1, initialize

STAGES = (  # expansion t, channels c, blocks n, stride s of the first
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def conv_norm(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class InvertedResidual(nn.Module):
    """Expand by 1x1, filter by a depthwise 3x3, project by 1x1 without an activation."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int):
        super().__init__()
        hidden = inputs * expansion
        self.conv = nn.Sequential(
            conv_norm(inputs, hidden).append(nn.ReLU(inplace=True)),
            conv_norm(hidden, hidden, 3, stride, groups=hidden).append(nn.ReLU(inplace=True)),
            conv1x1(hidden, outputs),
            nn.BatchNorm2d(outputs),
        )
        self.has_shortcut = stride == 1
        self.shortcut = conv_norm(inputs, outputs) if stride == 1 and inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + self.shortcut(x) if self.has_shortcut else self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(self, num_classes: int = 10):
        super().__init__()
        layers: list[nn.Module] = [conv_norm(3, 32, 3).append(nn.ReLU(inplace=True))]
        inputs = 32
        for expansion, outputs, blocks, stride in STAGES:
            for i in range(blocks):
                layers.append(InvertedResidual(inputs, outputs, expansion, stride if i == 0 else 1))
                inputs = outputs
        layers.append(conv_norm(inputs, 1280).append(nn.ReLU(inplace=True)))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(1280, num_classes)
        self.gated_layers = [
            f"{name}.conv.0.0" for name, module in self.named_modules() if isinstance(module, InvertedResidual)
        ]
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def mobilenet_v2(num_classes: int = 10) -> MobileNetV2:
    """Return the paper's MobileNet-V2 for images of 32x32.

    Torchvision's weights do not fit it: it has an expansion also at t = 1, and a convolution in the shortcut where the
    stride is 1 and the widths differ; theirs has neither.

    >>> mobilenet_v2(100).classifier
    Linear(in_features=1280, out_features=100, bias=True)
    """
    return MobileNetV2(num_classes)
