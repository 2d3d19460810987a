"""The estimator: convolutional dictionaries by the scikit-learn protocol."""

import numbers
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

import cogd
from cogd.sparse_coding import model
from cogd.sparse_coding.atoms import initial_atoms
from cogd.sparse_coding.checks import check_memory, check_parameters, checked_penalty
from cogd.sparse_coding.code_projection import CodeProjection, Rule
from cogd.sparse_coding.coder import encode, learn, workers
from cogd.sparse_coding.ffcsc import FFCSC, learn_ffcsc
from cogd.sparse_coding.preprocessing import smooth_part
from cogd.sparse_coding.signals import Signals, read_codes, read_signals
from cogd.sparse_coding.storage import load_dictionary, save_dictionary
from cogd.sparse_coding.working_set import WorkingSet

AUTO_FRACTION = 0.1  # penalty="auto" is this share of lambda_max
DENSE_COPIES = 12  # of all codes, that FFCSC and the rules hold at once
NOT_SAVED = ("on_progress", "warm_start")


class Progress(NamedTuple):
    """One iteration of `fit`: its number, the seconds since the start, the objective, how many codes are not 0, and
    how many atoms' gates the rule found open.
    """

    iteration: int
    seconds: float
    objective: float
    nonzeros: int
    opened: int = 0


class ConvDictionaryLearner(TransformerMixin, BaseEstimator):
    """Learn atoms d_k whose sparse sums of shifts make up images, also where some pixels are missing.

    Minimises 1/2 sum over observed pixels (b - D z)^2 + penalty ||z||_1 over codes z and atoms of norm at most 1.
    Images are (N, H, W), (N, C, H, W) or a list of different sizes, arrays or tensors; results come in the same
    container. Integers count as shares of their type's range (255 of uint8 is 1); floats are taken as they are.

    Args:
        n_atoms: How many atoms, K.
        atom_shape: Their height and width (h, w).
        penalty: Weight of the l1 norm, or "auto": a tenth of lambda_max of the starting dictionary, the least penalty
            at which all codes vanish. What was used is `penalty_`.
        rule: The coordination of codes and atoms: "descent", "paper", "rollback" or None.
        order: Of the rule's kernel, 1, 2, 3, ...; `rollback` has none.
        scale: Of the rule's step; `rollback` has none.
        solver: "working_set", coordinate descent on the few codes that matter, or "ffcsc", the paper's baseline.
        smoothing: Where above 0, images are coded without their smooth part (`preprocessing.smooth_part` of this
            strength), which pictures get back. 5 suits photographs; 0 is for images without a smooth part.
        max_iter: `fit` stops after so many iterations,
        tol: or once an iteration changes the objective by no more than this share of it,
        time_limit: or after so many seconds.
        transform_tol: How exact codes are: the largest violation of optimality, as a share of the penalty.
        dtype: "float32" or "float64".
        warm_start: Whether `fit` starts from the dictionary of the last `fit`.
        random_state: Seed of the starting dictionary; the same seed gives the same result for any number of threads.
        on_progress: Called with the `Progress` of every iteration.

    Attributes:
        dictionary_: The atoms, an array (K, C, h, w).
        penalty_: The penalty used.
        history_: The `Progress` of every iteration.
        status_: What ended `fit`: "max_iter", "tol", "time_limit" or "interrupted".

    >>> images = np.random.default_rng(0).standard_normal((2, 24, 24))
    >>> learner = ConvDictionaryLearner(n_atoms=4, atom_shape=(5, 5), max_iter=3, random_state=0).fit(images)
    >>> learner.dictionary_.shape, learner.transform(images).shape, learner.status_
    ((4, 1, 5, 5), (2, 4, 28, 28), 'max_iter')
    """

    def __init__(
        self,
        n_atoms: int = 100,
        atom_shape: tuple[int, int] = (11, 11),
        penalty: float | Literal["auto"] = "auto",
        *,
        rule: Rule = None,
        order: int = 1,
        scale: float = 1.0,
        solver: Literal["working_set", "ffcsc"] = "working_set",
        smoothing: float = 0.0,
        max_iter: int = 100,
        tol: float = 1e-5,
        time_limit: float | None = None,
        transform_tol: float = 1e-2,
        dtype: Literal["float32", "float64"] = "float32",
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ):
        self.n_atoms = n_atoms
        self.atom_shape = atom_shape
        self.penalty = penalty
        self.rule = rule
        self.order = order
        self.scale = scale
        self.solver = solver
        self.smoothing = smoothing
        self.max_iter = max_iter
        self.tol = tol
        self.time_limit = time_limit
        self.transform_tol = transform_tol
        self.dtype = dtype
        self.warm_start = warm_start
        self.random_state = random_state
        self.on_progress = on_progress

    def fit(self, X: Any, y: None = None, *, observed: Any = None) -> Self:
        """Learn the dictionary from images and, where given, only their observed pixels (boolean, True = seen).

        An interrupt (Ctrl-C) leaves the dictionary of the last whole iteration in place and is raised again.
        """
        started = time.perf_counter()
        check_parameters(self)
        signals, _ = self._split(read_signals(X, observed, np.dtype(self.dtype)), self.atom_shape)
        atoms = self._starting_atoms(signals)
        self.penalty_ = self._resolved_penalty(signals, atoms)
        self.dictionary_, self.status_ = atoms, "interrupted"
        self.history_: list[Progress] = []
        solver, projection, iterations = self._solver(signals, atoms)
        for improved in iterations:
            objective, seconds = solver.objective(self.penalty_), time.perf_counter() - started
            opened = projection.opened if projection is not None else 0
            self.dictionary_ = improved
            self.history_.append(Progress(len(self.history_) + 1, seconds, objective, solver.nonzeros, opened))
            if self.on_progress is not None:
                self.on_progress(self.history_[-1])
            reason = self._reason_to_stop()
            if reason is not None:
                self.status_ = reason
                break
        self._warn_if_vanished(solver.nonzeros)
        return self

    def transform(self, X: Any, *, observed: Any = None, sparse: bool = False) -> Any:
        """Return the codes (N, K, H + h - 1, W + w - 1) that minimise the objective for the learned dictionary.

        With `sparse`, a sparse COO tensor of that shape; the images must be of one size then.
        """
        signals, _ = self._read(X, observed)
        if not sparse:
            remedy = "Use transform(..., sparse=True), or fewer images."
            _check_room(signals, self.dictionary_, 1, "the dense codes of these images", remedy)
        codes = self._encode(signals)
        return codes.sparse(len(self.dictionary_)) if sparse else signals.give_back(codes.dense(len(self.dictionary_)))

    def inverse_transform(self, codes: Any) -> Any:
        """Return the images (N, C, H, W) that codes stand for, without any smooth part."""
        check_is_fitted(self, "dictionary_")
        arrays, give_back = read_codes(codes, len(self.dictionary_), self.dictionary_.dtype)
        atoms = torch.from_numpy(self.dictionary_)
        return give_back([model.reconstruct(atoms, torch.from_numpy(z)[None])[0].numpy() for z in arrays])

    def reconstruct(self, X: Any, *, observed: Any = None) -> Any:
        """Return pictures made of the codes of `X` and its smooth part, in the shape, range and dtype of `X`."""
        signals, smooth = self._read(X, observed)
        return signals.as_pictures(self._reconstruction(signals, smooth))

    def inpaint(self, X: Any, *, observed: Any) -> Any:
        """Return `X` with hidden pixels taken from its reconstruction; what was observed comes back unchanged."""
        signals, smooth = self._read(X, observed)
        return signals.filled_with(self._reconstruction(signals, smooth))

    def score(self, X: Any, y: None = None, *, observed: Any = None) -> float:
        """Return minus the objective at the codes of `X`, per observed pixel: higher is better."""
        signals, _ = self._read(X, observed)
        return -self._encode(signals).objective(self.penalty_) / sum(int(seen.sum()) for seen in signals.observed)

    def save(self, path: str | Path) -> None:
        """Write the dictionary, the settings and the history to a safetensors file."""
        check_is_fitted(self, "dictionary_")
        settings = {name: value for name, value in self.get_params().items() if name not in NOT_SAVED}
        if not isinstance(settings["random_state"], numbers.Integral):
            settings["random_state"] = None
        about = {
            "cogd": cogd.__version__,
            "settings": settings,
            "penalty": self.penalty_,
            "history": self.history_,
            "status": self.status_,
        }
        save_dictionary(path, self.dictionary_, about)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the learner that `save` wrote."""
        dictionary, about = load_dictionary(path)
        try:
            settings = {**about["settings"], "atom_shape": tuple(about["settings"]["atom_shape"])}
            learner = cls(**settings)
            check_parameters(learner)
            learner.penalty_ = checked_penalty(about["penalty"])
            learner.history_ = [Progress(*entry) for entry in about["history"]]
            learner.status_ = about["status"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{str(path)!r} describes no learner of this version of CoGD: {error}.") from error
        learner.dictionary_ = dictionary
        return learner

    def _read(self, X: Any, observed: Any) -> tuple[Signals, list[np.ndarray]]:
        """Return what is to be coded of `X` by the learned dictionary, and the smooth parts."""
        check_is_fitted(self, "dictionary_")
        signals = read_signals(X, observed, self.dictionary_.dtype)
        if signals.channels != self.dictionary_.shape[1]:
            raise ValueError(
                f"X must have as many channels as the atoms, {self.dictionary_.shape[1]}; got {signals.channels}. "
                "Convert the images."
            )
        return self._split(signals, self.dictionary_.shape[2:])

    def _split(self, signals: Signals, atom_shape: tuple[int, int]) -> tuple[Signals, list[np.ndarray]]:
        for i, image in enumerate(signals.images):
            if image.shape[1] < atom_shape[0] or image.shape[2] < atom_shape[1]:
                raise ValueError(
                    f"X[{i}] must be at least as large as an atom, {tuple(atom_shape)}; got {image.shape[1:]}. "
                    "Leave it out, or choose smaller atoms."
                )
        if not self.smoothing:
            return signals, [np.zeros_like(image) for image in signals.images]
        smooth = [smooth_part(b, m, self.smoothing) for b, m in zip(signals.images, signals.observed, strict=True)]
        triples = zip(signals.images, smooth, signals.observed, strict=True)
        return replace(signals, images=[np.where(m, b - s, 0) for b, s, m in triples]), smooth

    def _starting_atoms(self, signals: Signals) -> np.ndarray:
        if self.warm_start and hasattr(self, "dictionary_"):
            if self.dictionary_.shape != (self.n_atoms, signals.channels, *self.atom_shape):
                raise ValueError("warm_start=True needs the n_atoms, atom_shape and channels of the last fit.")
            return self.dictionary_.astype(self.dtype)
        return initial_atoms(signals.images, self.n_atoms, self.atom_shape, check_random_state(self.random_state))

    def _solver(
        self, signals: Signals, atoms: np.ndarray
    ) -> tuple[WorkingSet | FFCSC, CodeProjection | None, Iterator[np.ndarray]]:
        """Return the solver's state, the rule's, and the iterations over both."""
        if self.solver == "ffcsc" or self.rule is not None:
            what = 'solver="ffcsc"' if self.solver == "ffcsc" else f"rule={self.rule!r}"
            _check_room(signals, atoms, DENSE_COPIES, what, 'Use solver="working_set" with rule=None, or fewer images.')
        projection = None if self.rule is None else CodeProjection(self.rule, self.order, self.scale)
        if self.solver == "ffcsc":
            ffcsc = FFCSC(signals.images, signals.observed, atoms, self.penalty_)
            return ffcsc, projection, learn_ffcsc(ffcsc, projection)
        working_set = WorkingSet(signals.images, signals.observed, atoms.shape[1:])
        return working_set, projection, learn(working_set, atoms, self.penalty_, projection)

    def _resolved_penalty(self, signals: Signals, atoms: np.ndarray) -> float:
        if self.penalty != "auto":
            return float(self.penalty)
        working_set = WorkingSet(signals.images, signals.observed, atoms.shape[1:])
        with workers() as run:
            largest = working_set.largest_gradient(atoms, run)
        if largest <= 0:
            raise ValueError('penalty="auto" needs images that are not all blank; these are. Check X and smoothing.')
        return AUTO_FRACTION * largest

    def _reason_to_stop(self) -> str | None:
        last = self.history_[-1]
        if len(self.history_) > 2 and abs(self.history_[-2].objective - last.objective) <= self.tol * last.objective:
            return "tol"
        if last.iteration >= self.max_iter:
            return "max_iter"
        return "time_limit" if self.time_limit is not None and last.seconds >= self.time_limit else None

    def _encode(self, signals: Signals) -> WorkingSet:
        coding = encode(signals.images, signals.observed, self.dictionary_, self.penalty_, self.transform_tol)
        if not coding.converged:
            warnings.warn(
                f"the codes did not reach transform_tol={self.transform_tol} in {coding.passes} passes; "
                'raise transform_tol, or choose dtype="float64".',
                ConvergenceWarning,
                stacklevel=3,
            )
        self._warn_if_vanished(len(coding.working_set.value))
        return coding.working_set

    def _reconstruction(self, signals: Signals, smooth: list[np.ndarray]) -> list[np.ndarray]:
        detail = self._encode(signals).reconstruction(self.dictionary_)
        return [d + s for d, s in zip(detail, smooth, strict=True)]

    def _warn_if_vanished(self, nonzeros: int) -> None:
        if nonzeros == 0:
            warnings.warn(
                f"all codes are zero: penalty={self.penalty_:.6g} is too large for these images. Lower it.",
                UserWarning,
                stacklevel=3,
            )


def _check_room(signals: Signals, atoms: np.ndarray, copies: int, what: str, remedy: str) -> None:
    """Refuse what holds dense codes of these images where they will not fit into memory."""
    height, width = atoms.shape[2:]
    positions = sum((b.shape[1] + height - 1) * (b.shape[2] + width - 1) for b in signals.images)
    check_memory(copies * len(atoms) * positions * atoms.itemsize, what, remedy)
