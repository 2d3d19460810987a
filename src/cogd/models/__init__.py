"""The paper's networks, by name."""

import difflib
from collections.abc import Callable

from torch import nn

from cogd.models.digits import digits
from cogd.models.macs import count_macs as count_macs
from cogd.models.mobilenet import mobilenet_v2
from cogd.models.resnet import resnet18_imagenet, resnet50_imagenet
from cogd.models.resnet_cifar import resnet18, resnet56, resnet110

BUILDERS: dict[str, Callable[[int], nn.Module]] = {
    "digits": digits,
    "resnet18": resnet18,
    "resnet56": resnet56,
    "resnet110": resnet110,
    "mobilenet_v2": mobilenet_v2,
    "resnet18_imagenet": resnet18_imagenet,
    "resnet50_imagenet": resnet50_imagenet,
}


def build(name: str, num_classes: int) -> nn.Module:
    """Return a freshly initialized network; torch's random state decides its weights.

    >>> sum(p.numel() for p in build("resnet56", 10).parameters())
    853018
    """
    if name not in BUILDERS:
        near = difflib.get_close_matches(name, BUILDERS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"model must be one of {', '.join(BUILDERS)}; got {name!r}.{hint}")
    if num_classes < 1:
        raise ValueError(f"num_classes must be at least 1; got {num_classes}.")
    return BUILDERS[name](num_classes)
