"""Coding with a dictionary that is there: codes of images, and what can be done with pictures that have codes."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

import cogd
from cogd.provenance import provenance
from cogd.sparse_coding import model
from cogd.sparse_coding.atoms import check_atoms
from cogd.sparse_coding.checkpoint import identifying
from cogd.sparse_coding.checks import check_noise, check_parameters, checked_penalty, chosen_device, plain_memory_errors
from cogd.sparse_coding.coder import CodeSet, new_working_set, settle
from cogd.sparse_coding.fitting import Progress, check_dense_room, read_history
from cogd.sparse_coding.preprocessing import bent_part, continuation, noise_level, smooth_part, without_smooth_part
from cogd.sparse_coding.signals import Signals, check_sizes, range_of, read_codes, read_signals
from cogd.sparse_coding.storage import DICTIONARY, read_dictionary, write_arrays

NOT_SAVED = ("on_progress", "warm_start", "device")
SHIPPED = Path(__file__).parent / "dictionaries"
NOISE_FACTOR = 3.0  # penalty of `denoise` by the noise's standard deviation


class DictionaryCoder(TransformerMixin, BaseEstimator):
    """What `ConvDictionaryLearner` can do once it has a dictionary."""

    device: str
    dictionary_: np.ndarray
    weights_: np.ndarray
    penalty_: float
    history_: list[Progress]
    status_: str

    @plain_memory_errors()
    def transform(self, X: Any, *, observed: Any = None, sparse: bool = False) -> Any:
        """Return the codes (N, K, H + h - 1, W + w - 1) that minimise the objective for the learned dictionary.

        With `sparse`, a sparse COO tensor of that shape; the images must be of one size then.
        """
        signals, _ = self._read(X, observed)
        if not sparse:
            remedy = "Use transform(..., sparse=True), or fewer images."
            for place in ("cpu", chosen_device(self.device)):
                check_dense_room(signals, self.dictionary_, 2, "the dense codes of these images", remedy, place)
        codes = self._encode(signals)
        return codes.sparse(len(self.dictionary_)) if sparse else signals.give_back(codes.dense(len(self.dictionary_)))

    def inverse_transform(self, codes: Any) -> Any:
        """Return the images (N, C, H, W) that codes stand for, without any smooth part."""
        check_is_fitted(self, "dictionary_")
        arrays, give_back = read_codes(codes, len(self.dictionary_), self.dictionary_.dtype)
        atoms = torch.from_numpy(self.dictionary_)
        return give_back([model.reconstruct(atoms, torch.from_numpy(z)[None])[0].numpy() for z in arrays])

    @plain_memory_errors()
    def reconstruct(self, X: Any, *, observed: Any = None) -> Any:
        """Return pictures made of the codes of `X` and its smooth part, in the shape, range and dtype of `X`."""
        signals, smooth = self._read(X, observed)
        return signals.as_pictures(self._reconstruction(signals, smooth))

    @plain_memory_errors()
    def inpaint(self, X: Any, *, observed: Any) -> Any:
        """Return `X` with its hidden pixels filled in; what was observed is taken as right and comes back unchanged.

        Hidden pixels are the mean of what the atoms say and what they say turned by 90 degrees, and what that leaves
        of the observed pixels is continued smoothly.
        """
        signals, smooth = self._read(X, observed, bent_part)
        turned = np.rot90(self.dictionary_, axes=(-2, -1))
        ways = [
            self._reconstruction(signals, smooth, atoms=np.ascontiguousarray(a)) for a in (self.dictionary_, turned)
        ]
        made = [np.mean(each, axis=0) for each in zip(*ways, strict=True)]
        triples = zip(signals.images, signals.observed, smooth, made, strict=True)
        return signals.filled_with([e + continuation(b + s - e, m) for b, m, s, e in triples])

    @plain_memory_errors()
    def denoise(self, X: Any, *, noise: float | None = None, observed: Any = None) -> Any:
        """Return `X` without noise, in its shape, range and dtype: coded at a penalty of 3 times the noise.

        `noise` is the standard deviation in the units of `X`; unless given, each image's is estimated.
        """
        check_noise(noise)
        signals, smooth = self._read(X, observed)
        levels = self._noise_levels(signals) if noise is None else [noise / s for s in _ranges(signals)]
        cleaned = []
        for i, level in enumerate(levels):
            one = replace(signals, images=signals.images[i : i + 1], observed=signals.observed[i : i + 1])
            cleaned += self._reconstruction(one, smooth[i : i + 1], NOISE_FACTOR * level)
        return signals.as_pictures(cleaned)

    def noise_levels(self, X: Any, *, observed: Any = None) -> list[float]:
        """Return the estimated standard deviation of each image's noise, in the units of `X`."""
        signals, _ = self._read(X, observed)
        return [level * s for level, s in zip(self._noise_levels(signals), _ranges(signals), strict=True)]

    @plain_memory_errors()
    def score(self, X: Any, y: None = None, *, observed: Any = None) -> float:
        """Return minus the objective at the codes of `X`, per observed pixel: higher is better."""
        signals, _ = self._read(X, observed)
        return -self._encode(signals).objective(self.penalty_) / sum(int(seen.sum()) for seen in signals.observed)

    def save(self, path: str | Path, *, command: str | None = None) -> None:
        """Write the dictionary, the settings and the history to a safetensors file, and the command that made it."""
        check_is_fitted(self, "dictionary_")
        settings = {name: value for name, value in self.get_params().items() if name not in NOT_SAVED}
        settings["random_state"] = identifying(settings)["random_state"]
        about = {
            "cogd": cogd.__version__,
            **provenance(chosen_device(self.device)),
            **({"command": command} if command else {}),
            "settings": settings,
            "penalty": self.penalty_,
            "history": self.history_,
            "status": self.status_,
        }
        write_arrays(path, DICTIONARY, {"dictionary": self.dictionary_, "weights": self.weights_}, about)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the learner that `save` wrote."""
        dictionary, weights, about = read_dictionary(path)
        try:
            settings = {**about["settings"], "atom_shape": tuple(about["settings"]["atom_shape"])}
            if "on_progress" in settings or not isinstance(about["status"], str):
                raise ValueError("it holds settings that no file keeps, or no status")
            if (settings["n_atoms"], *settings["atom_shape"]) != (len(dictionary), *dictionary.shape[2:]):
                raise ValueError(f"its settings are not those of atoms of the shape {dictionary.shape}")
            learner = cls(**settings)
            check_parameters(learner)
            learner.penalty_ = checked_penalty(about["penalty"])
            learner.history_ = read_history(about["history"])
            learner.status_ = about["status"]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{str(path)!r} describes no learner of this version of CoGD: {error}.") from error
        learner.dictionary_, learner.weights_ = dictionary, weights
        return learner

    @classmethod
    def from_atoms(cls, atoms: Any, penalty: float, **settings: Any) -> Self:
        """Return a learner whose dictionary is `atoms`, (K, C, h, w); `from_sporco` converts those of sporco."""
        dictionary = np.array(atoms, settings.get("dtype", "float32"))
        check_atoms(dictionary, "atoms")
        learner = cls(len(dictionary), dictionary.shape[2:], penalty, **settings)
        check_parameters(learner)
        learner.dictionary_, learner.weights_ = dictionary, np.zeros(len(dictionary))
        learner.penalty_, learner.history_, learner.status_ = checked_penalty(penalty), [], "given"
        return learner

    @classmethod
    def shipped(cls, channels: int = 1) -> Self:
        """Return a learner with the dictionary that CoGD brings, of photographs in grey (1) or colour (3)."""
        names = {1: "grey", 3: "colour"}
        if channels not in names:
            raise ValueError(f"channels must be 1 or 3, for grey or colour; got {channels!r}.")
        return cls.load(SHIPPED / f"{names[channels]}.safetensors")

    def _read(self, X: Any, observed: Any, part: Any = smooth_part) -> tuple[Signals, list[np.ndarray]]:
        """Return what is to be coded of `X` by the learned dictionary, and the smooth parts, of either kind."""
        check_is_fitted(self, "dictionary_")
        signals = read_signals(X, observed, self.dictionary_.dtype, chosen_device(self.device))
        self._check_channels(signals)
        check_sizes(signals, self.dictionary_.shape[2:])
        return without_smooth_part(signals, self.smoothing, part)

    def _check_channels(self, signals: Signals) -> None:
        if signals.channels != self.dictionary_.shape[1]:
            raise ValueError(
                f"X must have as many channels as the atoms, {self.dictionary_.shape[1]}; got {signals.channels}. "
                "Convert the images."
            )

    def _encode(self, signals: Signals, penalty: float | None = None, atoms: np.ndarray | None = None) -> CodeSet:
        """Return the codes, at the learner's penalty and of its atoms unless others are given."""
        penalty = self.penalty_ if penalty is None else penalty
        atoms = self.dictionary_ if atoms is None else atoms
        working_set = new_working_set(signals.images, signals.observed, atoms.shape[1:], chosen_device(self.device))
        coding = settle(working_set, atoms, penalty, self.transform_tol)
        if not coding.converged:
            warnings.warn(
                f"the codes did not reach transform_tol={self.transform_tol} in {coding.passes} passes; "
                "raise transform_tol, scale the images as those that the dictionary was learned from, or "
                'choose dtype="float64".',
                ConvergenceWarning,
                stacklevel=4,
            )
        self._warn_if_vanished(coding.working_set.nonzeros, penalty)
        return coding.working_set

    def _reconstruction(
        self,
        signals: Signals,
        smooth: list[np.ndarray],
        penalty: float | None = None,
        atoms: np.ndarray | None = None,
    ) -> list[np.ndarray]:
        atoms = self.dictionary_ if atoms is None else atoms
        codes = self._encode(signals, penalty, atoms)
        detail = codes.reconstruction(codes.own(atoms))
        return [d + s for d, s in zip(detail, smooth, strict=True)]

    def _warn_if_vanished(self, nonzeros: int, penalty: float) -> None:
        if nonzeros == 0:
            warnings.warn(
                f"all codes are zero: penalty={penalty:.6g} is too large for these images. Lower it.",
                UserWarning,
                stacklevel=4,
            )

    def _noise_levels(self, signals: Signals) -> list[float]:
        return [noise_level(b, m) for b, m in zip(signals.images, signals.observed, strict=True)]


def _ranges(signals: Signals) -> list[int]:
    return [range_of(picture.dtype) for picture in signals.pictures]
