"""The estimator: convolutional dictionaries by the scikit-learn protocol."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from sklearn.utils import check_random_state

from cogd.sparse_coding.atoms import initial_atoms
from cogd.sparse_coding.checkpoint import Checkpoint, Snapshot
from cogd.sparse_coding.checks import check_parameters, chosen_device, plain_memory_errors
from cogd.sparse_coding.code_projection import Rule
from cogd.sparse_coding.coding import DictionaryCoder
from cogd.sparse_coding.fitting import Progress, WholeRun, auto_penalty, reason_to_stop
from cogd.sparse_coding.online import OnlineRun, batch_step
from cogd.sparse_coding.preprocessing import smooth_part, without_smooth_part
from cogd.sparse_coding.signals import Signals, check_sizes, count_images, read_signals, some


class ConvDictionaryLearner(DictionaryCoder):
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
        batch_size: Learn from so many images at a time, in random order: memory then depends on the batch, not on how
            many images there are, and an iteration is one batch. None learns from all at once, which ends lower.
        max_iter: `fit` stops after so many iterations,
        tol: or once an iteration changes the objective by no more than this share of it (without `batch_size`),
        time_limit: or after so many seconds.
        transform_tol: How exact codes are: the largest violation of optimality, as a share of the penalty.
        dtype: "float32" or "float64".
        device: "cpu", "cuda", or "auto", the GPU if there is one. Results agree to rounding.
        warm_start: Whether `fit` starts from the dictionary of the last `fit`.
        random_state: Seed of the starting dictionary; the same seed gives the same result for any number of threads.
        on_progress: Called with the `Progress` of every iteration.

    Attributes:
        dictionary_: The atoms, an array (K, C, h, w).
        weights_: The sum of every atom's squared codes (K,): the more it carries, the less `partial_fit` moves it.
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
        batch_size: int | None = None,
        max_iter: int = 100,
        tol: float = 1e-5,
        time_limit: float | None = None,
        transform_tol: float = 1e-2,
        dtype: Literal["float32", "float64"] = "float32",
        device: Literal["auto", "cpu", "cuda"] = "auto",
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
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.time_limit = time_limit
        self.transform_tol = transform_tol
        self.dtype = dtype
        self.device = device
        self.warm_start = warm_start
        self.random_state = random_state
        self.on_progress = on_progress

    @plain_memory_errors()
    def fit(
        self,
        X: Any,
        y: None = None,
        *,
        observed: Any = None,
        checkpoint: str | Path | None = None,
        keep_checkpoint: bool = False,
    ) -> Self:
        """Learn the dictionary from images and, where given, only their observed pixels (boolean, True = seen).

        An interrupt (Ctrl-C) leaves the dictionary of the last whole iteration in place and is raised again. With a
        `checkpoint`, a file, the same call afterwards goes on to what it would have been, bit for bit; limits such as
        max_iter may change in between. The file is written every minute and whenever something breaks the fit off, and
        deleted at the end, or with `keep_checkpoint` left there complete, for who has yet to save what was learned.
        """
        started = time.perf_counter()
        check_parameters(self)
        first = self._read_new(X, observed, range(self.batch_size) if self.batch_size else None)
        file = None if checkpoint is None else Checkpoint(checkpoint, self._settings(), _identity(X, observed, first))
        run = self._start(X, observed, first, file)
        done, self.status_ = len(self.history_), "interrupted"
        started -= self.history_[-1].seconds if done else 0.0
        reason = self._reason_to_stop() if done else None
        steps = run.iterations(self.dictionary_, done)
        try:
            while reason is None:
                improved = next(steps)
                seconds = time.perf_counter() - started
                self.dictionary_, self.weights_ = improved, run.weights
                self.history_.append(run.progress(len(self.history_) + 1, seconds))
                if file is not None:
                    file.keep(Snapshot(improved, run.weights, self.penalty_, list(self.history_), run.state()))
                if self.on_progress is not None:
                    self.on_progress(self.history_[-1])
                reason = self._reason_to_stop()
        finally:
            if file is not None and (reason is None or keep_checkpoint):
                file.write()
        self.status_ = reason
        if file is not None and not keep_checkpoint:
            file.remove()
        self._warn_if_vanished(self.history_[-1].nonzeros, self.penalty_)
        return self

    def fit_transform(
        self, X: Any, y: None = None, *, observed: Any = None, checkpoint: str | Path | None = None
    ) -> Any:
        """Return the codes of the observed pixels of `X` for the dictionary learned from them."""
        return self.fit(X, y, observed=observed, checkpoint=checkpoint).transform(X, observed=observed)

    @plain_memory_errors()
    def partial_fit(self, X: Any, y: None = None, *, observed: Any = None) -> Self:
        """Learn from one more batch of images, and forget them; the first call chooses the starting dictionary.

        Each atom moves towards what this batch makes of it, by the batch's share of `weights_`, in which earlier
        batches fade by a tenth with every call.
        """
        check_parameters(self)
        if self.solver != "working_set" or self.rule is not None:
            raise ValueError('partial_fit works with solver="working_set" and rule=None only; use fit.')
        signals, started = self._read_new(X, observed), time.perf_counter()
        if not hasattr(self, "dictionary_"):
            self._take(self._beginning(signals))
        self._check_channels(signals)
        step = batch_step(signals, self.dictionary_, self.weights_, self.penalty_, chosen_device(self.device))
        self.dictionary_, self.weights_, self.status_ = step.atoms, step.weights, "partial_fit"
        seconds = time.perf_counter() - started + (self.history_[-1].seconds if self.history_ else 0.0)
        self.history_.append(Progress(len(self.history_) + 1, seconds, step.objective, step.nonzeros))
        self._warn_if_vanished(step.nonzeros, self.penalty_)
        return self

    def _read_new(self, X: Any, observed: Any, indices: Sequence[int] | None = None) -> Signals:
        """Return what is to be learned from, of all images or those with these indices."""
        if indices is not None:
            X, observed = some(X, observed, indices)
        signals = read_signals(X, observed, np.dtype(self.dtype), chosen_device(self.device))
        check_sizes(signals, self.atom_shape)
        return without_smooth_part(signals, self.smoothing, smooth_part)[0]

    def _beginning(self, signals: Signals) -> Snapshot:
        """Return the starting dictionary and the penalty."""
        atoms, device = self._starting_atoms(signals), chosen_device(self.device)
        penalty = float(self.penalty) if self.penalty != "auto" else auto_penalty(signals, atoms, device)
        return Snapshot(atoms, np.zeros(len(atoms)), penalty, [], {})

    def _take(self, snapshot: Snapshot) -> None:
        self.dictionary_, self.weights_, self.penalty_, self.history_, _ = snapshot

    def _reason_to_stop(self) -> str | None:
        return reason_to_stop(
            self.history_, self.max_iter, self.tol if self.batch_size is None else None, self.time_limit
        )

    def _start(self, X: Any, observed: Any, first: Signals, file: Checkpoint | None) -> WholeRun | OnlineRun:
        """Return the run, from its beginning or an interrupted one's end; it is refused before any result is lost."""
        shape = (self.n_atoms, first.channels, *self.atom_shape)
        earlier = None if file is None else file.read(shape, np.dtype(self.dtype))
        begin = self._beginning(first) if earlier is None else earlier
        run: WholeRun | OnlineRun
        if self.batch_size is None:
            run = WholeRun(self._settings(), first, begin.dictionary, begin.penalty)
        else:
            seed = int(check_random_state(self.random_state).randint(2**31))
            read = lambda indices: self._read_new(X, observed, indices)  # noqa: E731
            count, device = count_images(X, observed), chosen_device(self.device)
            run = OnlineRun(read, count, self.batch_size, begin.weights, begin.penalty, seed, device)
        if file is not None and earlier is not None:
            with file.refusing_damage():
                run.restore(earlier.state)
        self._take(begin)
        return run

    def _settings(self) -> dict[str, Any]:
        """Return the parameters, with the device that is chosen."""
        return {**self.get_params(), "device": chosen_device(self.device)}

    def _starting_atoms(self, signals: Signals) -> np.ndarray:
        if self.warm_start and hasattr(self, "dictionary_"):
            if self.dictionary_.shape != (self.n_atoms, signals.channels, *self.atom_shape):
                raise ValueError("warm_start=True needs the n_atoms, atom_shape and channels of the last fit.")
            return self.dictionary_.astype(self.dtype)
        return initial_atoms(signals.images, self.n_atoms, self.atom_shape, check_random_state(self.random_state))


def _identity(X: Any, observed: Any, first: Signals) -> list[np.ndarray]:
    """Return arrays that tell one set of images from another: all that is in memory, and how many there are."""
    return [np.array(count_images(X, observed)), *first.images, *first.observed]
