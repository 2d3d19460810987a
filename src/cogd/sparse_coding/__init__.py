"""Convolutional sparse coding with missing pixels: the model, the default solver and the estimator."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cogd.sparse_coding.atoms import from_sporco as from_sporco
    from cogd.sparse_coding.fitting import Progress as Progress
    from cogd.sparse_coding.learner import ConvDictionaryLearner as ConvDictionaryLearner
    from cogd.sparse_coding.preprocessing import normalize_contrast as normalize_contrast

_HOMES = {
    "ConvDictionaryLearner": "cogd.sparse_coding.learner",
    "Progress": "cogd.sparse_coding.fitting",
    "from_sporco": "cogd.sparse_coding.atoms",
    "normalize_contrast": "cogd.sparse_coding.preprocessing",
}
__all__ = ["ConvDictionaryLearner", "Progress", "from_sporco", "normalize_contrast"]


def __getattr__(name: str):
    """Import a public name on first use, so that the command line imports no torch before a command runs."""
    if name not in _HOMES:
        raise AttributeError(f"module 'cogd.sparse_coding' has no attribute {name!r}; it has {', '.join(__all__)}.")
    return getattr(import_module(_HOMES[name]), name)
