"""Small networks whose training steps are recorded, and some that cannot be."""

from torch import nn
from torch.nn.functional import dropout


class Network(nn.Module):
    """With what a step changes beside the parameters: running statistics."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16, 3)

    def forward(self, x):
        return self.fc(self.norm(self.conv(x)).relu().mean((2, 3)))


class Dropping(Network):
    def forward(self, x):
        return super().forward(dropout(x, 0.3, self.training))


class Asking(Network):
    """Waits for the device in every step."""

    def forward(self, x):
        return super().forward(x) * (1.0 if x.sum().item() < 1e9 else 0.5)
