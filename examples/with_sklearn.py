"""scikit-learn: the dictionary learner is a transformer, here in a Pipeline that classifies digits by their codes."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from cogd.sparse_coding import ConvDictionaryLearner


def strengths(codes: np.ndarray) -> np.ndarray:
    """Return how much each atom says in each quarter of an image: codes (N, K, H, W) as features (N, 4 K)."""
    halves = [half for rows in np.array_split(np.abs(codes), 2, 2) for half in np.array_split(rows, 2, 3)]
    return np.concatenate([half.sum((2, 3)) for half in halves], axis=1)


if __name__ == "__main__":
    digits = load_digits()
    images = digits.images / 16
    train, test, labels, truth = train_test_split(images, digits.target, random_state=0, train_size=150, test_size=100)
    pipeline = make_pipeline(
        ConvDictionaryLearner(n_atoms=8, atom_shape=(4, 4), max_iter=5, random_state=0),
        FunctionTransformer(strengths),
        StandardScaler(),
        LogisticRegression(max_iter=1000),
    )
    search = GridSearchCV(pipeline, {"convdictionarylearner__penalty": [0.1, 0.3]}, cv=2).fit(train, labels)
    print(search.best_params_, f"accuracy {search.score(test, truth):.3f}")
