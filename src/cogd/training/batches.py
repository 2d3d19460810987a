"""What a run reads and learns from, refused before the training where it does not fit."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cogd.training.data import Data, load_data
from cogd.training.labels import with_checked_labels
from cogd.training.loop import TrainData
from cogd.training.metrics import Batch, Batches, Evaluate, classification_metrics
from cogd.training.placement import Placement
from cogd.training.recipe import Recipe


class RunData(NamedTuple):
    """The batches, with what the run's config says of them."""

    train: TrainData
    test: Batches
    source: str
    fingerprint: str
    classes: int | None = None  # so many, where the labels are known to be below it


def load_batches(data: str | Data | tuple[TrainData, Batches], recipe: Recipe, placement: Placement) -> RunData:
    loaded = load_data(data) if isinstance(data, str) else data
    if isinstance(loaded, Data):
        batches: tuple[TrainData, Batches] = loaded.batches(recipe, placement.device)
        return RunData(*batches, loaded.source, loaded.fingerprint, len(loaded.classes))
    if not isinstance(loaded, tuple | list) or len(loaded) != 2:
        raise TypeError(
            f"data must be a pair (train, test) of iterables of (inputs, targets) batches, or a name such as 'digits'; "
            f"got a {type(loaded).__name__}."
        )
    train, test = loaded
    if (batches_in_train := _length(train)) is None:
        raise TypeError(
            f"the training data must have a length, its number of batches; this {type(train).__name__} has none. "
            "Give a list of batches, or a DataLoader of a data set with a length."
        )
    if not batches_in_train:
        raise ValueError("the training data has no batch.")
    if not isinstance(test, Iterable) or isinstance(test, Iterator):
        raise TypeError(
            "the test data must be batches that can be had anew after each epoch, such as a list or a DataLoader; "
            f"got a {type(test).__name__}."
        )
    of_test = _length(test)
    lengths = f"{batches_in_train} batches" + ("" if of_test is None else f", {of_test} of test")
    return RunData(train, test, source="iterables", fingerprint=lengths)


def _length(batches: Any) -> int | None:
    """Return how many batches there are; None where that isn't known, as of a DataLoader of a stream."""
    try:
        return len(batches)
    except TypeError:
        return None


def check_labels_of(data: RunData, outputs: int, evaluate: Evaluate) -> RunData:
    """Refuse labels that the network has no output for."""
    if data.classes is not None:
        if data.classes > outputs:
            raise ValueError(
                f"the model has {outputs} outputs, but {data.source} has {data.classes} classes. Build it with as many."
            )
        return data
    train: Any = with_checked_labels(data.train, outputs, "the training data")
    measured = evaluate is classification_metrics
    return data._replace(
        train=train, test=with_checked_labels(data.test, outputs, "the test data") if measured else data.test
    )


def first_batch(batches: Batches, name: str) -> Batch:
    """Return the first batch; refuse what is no pair of tensors with as many examples each."""
    batch = next(iter(batches), None)
    if batch is None:
        raise ValueError(f"{name} yielded no batches.")
    if not isinstance(batch, tuple | list) or [isinstance(part, Tensor) for part in batch] != [True, True]:
        kinds = [type(part).__name__ for part in batch] if isinstance(batch, tuple | list) else type(batch).__name__
        raise TypeError(f"{name} must yield pairs (inputs, targets) of tensors; its first batch is {kinds}.")
    inputs, targets = batch
    if not inputs.ndim or not targets.ndim or len(inputs) != len(targets):
        raise ValueError(
            f"{name} must yield batches, with as many targets as inputs; the first pair is shaped "
            f"{tuple(inputs.shape)} and {tuple(targets.shape)}. Put a data set of single examples in a DataLoader."
        )
    return inputs, targets


def first_examples(train: TrainData, placement: Placement) -> Batch:
    """Return the first two examples, as the model will see them."""
    return examples(first_batch(train, "the data"), placement)


def examples(batch: Batch, placement: Placement) -> Batch:
    """Return a batch's first two examples, as the model will see them."""
    inputs, targets = batch
    return placement.move(inputs[:2]), placement.move(targets[:2])


def description(batch: Batch) -> str:
    """Return what tells batches apart: shapes, kinds of numbers, and a fingerprint of the numbers."""
    digest = hashlib.sha256()
    for tensor in batch:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    kinds = [f"{tuple(tensor.shape)} {_kind(tensor)}" for tensor in batch]
    return f"{', '.join(kinds)}, {digest.hexdigest()[:16]}"


def check_fit(model: nn.Module, inputs: Tensor, targets: Tensor, classes: bool) -> Any:
    """Refuse data that the model or, for `classes`, cross-entropy does not take; return what the model answers."""
    shape = tuple(inputs.shape)
    try:
        with torch.no_grad():
            outputs = model.eval()(inputs)
    except RuntimeError as error:
        raise ValueError(
            f"the model does not take the data's inputs, shaped {shape} in {_kind(inputs)}: {error}"
        ) from error
    if classes:
        _check_cross_entropy(shape, outputs, targets)
    return outputs


def _check_cross_entropy(shape: tuple[int, ...], outputs: Any, targets: Tensor) -> None:
    _check_one_tensor(outputs, "cross-entropy", "a loss (outputs, targets) -> number and an evaluate")
    answers = f"the model answers {shape} with {tuple(outputs.shape)}, which does not fit"
    if outputs.ndim < 2 or int(targets.max()) >= outputs.shape[1] or int(targets.min()) < 0:
        raise ValueError(
            f"{answers} class numbers such as {targets.tolist()}: cross-entropy needs one output per class. "
            "Give num_classes accordingly, or a loss."
        )
    try:
        cross_entropy(outputs.float(), targets)
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"{answers} targets shaped {tuple(targets.shape)} in {_kind(targets)}: {error}. "
            "Give class numbers in int64, probabilities of the classes, or a loss."
        ) from error


def check_measurable(outputs: Any, data: RunData) -> None:
    """Refuse what has no accuracy, before an epoch was trained for it."""
    _check_one_tensor(outputs, "accuracy", "an evaluate (model, batches) -> named numbers")
    if data.classes is not None:
        return
    _, targets = first_batch(data.test, "the test data")
    if targets.is_floating_point() or outputs.ndim < 2 or targets.ndim != outputs.ndim - 1:
        raise ValueError(
            f"accuracy needs class numbers and an output for each class; the test data has {_kind(targets)} shaped "
            f"{tuple(targets.shape)}, and the model answers {len(outputs)} examples with {tuple(outputs.shape)}. "
            "Give an evaluate (model, batches) -> named numbers."
        )


def _check_one_tensor(outputs: Any, needs: str, remedy: str) -> None:
    if not isinstance(outputs, Tensor):
        kind = type(outputs).__name__
        raise TypeError(f"{needs} needs one tensor of outputs, but the model answers with a {kind}. Give {remedy}.")


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
