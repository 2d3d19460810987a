"""Convolutional sparse coding with missing pixels: the model, the default solver and the estimator."""

from cogd.sparse_coding.learner import ConvDictionaryLearner as ConvDictionaryLearner
from cogd.sparse_coding.learner import Progress as Progress
from cogd.sparse_coding.preprocessing import normalize_contrast as normalize_contrast

__all__ = ["ConvDictionaryLearner", "Progress", "normalize_contrast"]
