"""Numbers and names as people read them."""

from pathlib import Path

NETWORKS = {
    "digits": "a small CNN",
    "DigitsCNN": "a small CNN",
    "resnet18": "ResNet-18",
    "resnet56": "ResNet-56",
    "resnet110": "ResNet-110",
    "mobilenet_v2": "MobileNetV2",
    "resnet18_imagenet": "ResNet-18",
    "resnet50_imagenet": "ResNet-50",
}


def network(name: str) -> str:
    """Return what people call a network of `cogd.models`; any other has the name that it has."""
    return NETWORKS.get(name, name)


def data(source: str) -> str:
    """Return what people call the data of `cogd train --data`.

    >>> data("cifar10:/mnt/data"), data("folder:photos.zip"), data("digits")
    ('CIFAR-10', 'photos.zip', 'digits')
    """
    kind, _, where = source.partition(":")
    return "CIFAR-10" if kind == "cifar10" else Path(where).name or source


def metric(name: str, value: float) -> str:
    """Return a metric's value: shares in percent, others with four decimals.

    >>> metric("accuracy", 0.98523), metric("test_loss", 0.0695)
    ('98.52%', '0.0695')
    """
    return f"{value:.2%}" if is_share(name) else f"{value:.4f}"


def spread(name: str, value: float) -> str:
    """Return a deviation or the half of an interval, of a share in percentage points."""
    return f"{100 * value:.2f}" if is_share(name) else f"{value:.4f}"


def difference(name: str, value: float) -> str:
    """Return a difference of a metric with its sign, of a share in percentage points.

    >>> difference("accuracy", -0.0019), difference("test_loss", 0.0064)
    ('−0.19', '+0.0064')
    """
    return signed(f"{100 * value:+.2f}" if is_share(name) else f"{value:+.4f}")


def signed(number: str) -> str:
    """Return a number with a minus sign as long as the plus."""
    return number.replace("-", "−")


def is_share(name: str) -> bool:
    """Return whether a metric is a share of all."""
    return "accuracy" in name or name.endswith("_at_zero")
