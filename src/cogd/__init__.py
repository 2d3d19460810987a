"""CoGD: cogradient descent for coupled variables in PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cogd.coupling import Coupling as Coupling
    from cogd.coupling import Quantile as Quantile
    from cogd.coupling import couple_conv_norm as couple_conv_norm
    from cogd.coupling import couple_factors as couple_factors
    from cogd.coupling import couple_named as couple_named
    from cogd.optimizer import CoGD as CoGD
    from cogd.optimizer import ProjectionStats as ProjectionStats

    __version__: str

_HOMES = {
    "CoGD": "cogd.optimizer",
    "ProjectionStats": "cogd.optimizer",
    "Coupling": "cogd.coupling",
    "Quantile": "cogd.coupling",
    "couple_conv_norm": "cogd.coupling",
    "couple_factors": "cogd.coupling",
    "couple_named": "cogd.coupling",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str):
    """Import a public name on first use, so that importing cogd, or its command line, imports no torch."""
    if name == "__version__":
        from importlib.metadata import version

        return version("cogd")
    if name not in _HOMES:
        raise AttributeError(f"module 'cogd' has no attribute {name!r}; it has {', '.join(__all__)}.")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
