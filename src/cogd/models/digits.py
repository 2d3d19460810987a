"""A small CNN for the 8x8 grey digits."""

from torch import Tensor, nn

from cogd.models.resnet import BasicBlock, conv3x3, first_convolutions, initialize, projection_shortcut


class DigitsCNN(nn.Module):
    """A 3x3 stem of 16 channels and two residual blocks of 16 and 32: 20 thousand parameters."""

    def __init__(self, num_classes: int = 10):
        super().__init__()
        self.conv1 = conv3x3(1, 16)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = BasicBlock(16, 16, 1, None)
        self.layer2 = BasicBlock(16, 32, 2, projection_shortcut(16, 32, 2))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(32, num_classes)
        self.gated_layers = first_convolutions(self)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        return self.fc(self.avgpool(self.layer2(self.layer1(x))).flatten(1))


def digits(num_classes: int = 10) -> DigitsCNN:
    """Return the small CNN for 8x8 digits.

    >>> digits().fc
    Linear(in_features=32, out_features=10, bias=True)
    """
    return DigitsCNN(num_classes)
