"""How long forward passes take: several networks in turn, in one run, under stated conditions."""

import copy
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from cogd.provenance import device_name
from cogd.pruning.cutting import Keep, cut_channels, plan_removal
from cogd.pruning.graph import Prunable, as_tuple
from cogd.pruning.refusals import check_plain
from cogd.training.placement import Placement, choose_device
from cogd.training.threads import using_threads

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


@dataclass(frozen=True)
class Conditions:
    """Under what forward passes are timed.

    Args:
        device: "auto", "cpu" or "cuda"; once measured, the device's name.
        dtype: of weights and activations: "float32" (convolutions on a GPU then use TF32, as PyTorch does by default),
            "bfloat16", "float16" or "float64".
        batch: how many examples pass together; by default as many as the example inputs hold.
        threads: of the CPU; by default as many as PyTorch uses.
        warm_up: rounds that don't count.
        rounds: rounds that do; in each, every network passes once.
    """

    device: str = "auto"
    dtype: str = "float32"
    batch: int | None = None
    threads: int | None = None
    warm_up: int = 10
    rounds: int = 50

    def __post_init__(self):
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(map(repr, DTYPES))}; got {self.dtype!r}.")
        for name, least in {"batch": 1, "threads": 1, "warm_up": 0, "rounds": 4}.items():
            value = getattr(self, name)
            if value is None and name in ("batch", "threads"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer from {least}; got {value!r}.")


@dataclass(frozen=True)
class Spread:
    """The median of many measurements and their quartiles."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Return the quartiles of at least two numbers.

        >>> Spread.of([1.0, 2.0, 3.0, 4.0, 5.0])
        Spread(low=2.0, median=3.0, high=4.0)
        """
        return cls(*statistics.quantiles(values, n=4, method="inclusive"))


@dataclass(frozen=True)
class Latency:
    """The seconds that each forward pass over one batch took, the device's work included."""

    conditions: Conditions
    seconds: tuple[float, ...]

    @property
    def spread(self) -> Spread:
        return Spread.of(self.seconds)


def measure_latency(model: nn.Module, example_inputs: Tensor | Sequence[Any], **conditions: Any) -> Latency:
    """Return how long forward passes of a model take; it stays as and where it is.

    Args:
        model: any model; a copy in evaluation mode is timed.
        example_inputs: what its forward accepts, a tensor or a tuple.
        conditions: the fields of `Conditions`.

    >>> latency = measure_latency(nn.Linear(2, 3), torch.zeros(1, 2), device="cpu", batch=8, warm_up=1, rounds=4)
    >>> latency.conditions.batch, len(latency.seconds), latency.spread.median > 0
    (8, 4, True)
    """
    return measure_in_turn({"model": model}, example_inputs, Conditions(**conditions))["model"]


def latency_share(
    model: nn.Module, layers: Iterable[Prunable], example_inputs: Tensor | Sequence[Any], keep: Keep, **conditions: Any
) -> Spread:
    """Return the share of a model's latency that is left with only the channels in `keep`, both in turn in one run.

    >>> from cogd.pruning.layers import prunable_layers
    >>> model, x = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1)), torch.zeros(1, 2)
    >>> latency_share(model, prunable_layers(model, x), x, {"0": [1]}, device="cpu", warm_up=1, rounds=4).median > 0
    True
    """
    small = copy.deepcopy(model)
    cut_channels(small, plan_removal(small, layers, keep))
    both = measure_in_turn({"whole": model, "small": small}, example_inputs, Conditions(**conditions))
    return ratios(both["small"], both["whole"])


def ratios(first: Latency, second: Latency) -> Spread:
    """Return how many times as long as the second the first takes, by the rounds that both passed."""
    return Spread.of(a / b for a, b in zip(first.seconds, second.seconds, strict=True))


def measure_in_turn(
    models: Mapping[str, nn.Module],
    example_inputs: Tensor | Sequence[Any],
    conditions: Conditions,
    batches: Mapping[str, int] | None = None,
) -> dict[str, Latency]:
    """Time several models, which take turns; `batches` holds how many times the batch some of them get."""
    for model in models.values():
        check_plain(model)
    placement = Placement(choose_device(conditions.device), "float32", "off")
    inputs = as_tuple(example_inputs)
    with using_threads(conditions.threads):
        batch = conditions.batch or len(inputs[0])
        exact = replace(conditions, device=device_name(str(placement.device)), threads=torch.get_num_threads())
        passes: dict[str, Callable[[], Any]] = {}
        found = {}
        for name, model in models.items():
            found[name] = replace(exact, batch=batch * (batches or {}).get(name, 1))
            passes[name] = _pass(model, inputs, found[name], placement)
        seconds = _in_turn(passes, conditions, placement)
    return {name: Latency(found[name], tuple(seconds[name])) for name in models}


def _pass(model: nn.Module, inputs: tuple[Any, ...], conditions: Conditions, placement: Placement) -> Callable[[], Any]:
    """Return a forward pass of a copy of the model, once it is seen to work."""
    dtype, batch = DTYPES[conditions.dtype], conditions.batch or 1
    placed = placement.place(copy.deepcopy(model).to(dtype)).eval()
    batched = tree_map_only(Tensor, lambda x: placement.move(_converted(_repeated(x, batch), dtype)), inputs)
    try:
        with torch.inference_mode():
            placed(*batched)
    except (RuntimeError, ValueError) as error:
        shapes = [tuple(x.shape) for x in batched if isinstance(x, Tensor)]
        raise ValueError(
            f"this {type(model).__name__} does not take inputs shaped {shapes} in {conditions.dtype} on "
            f"{placement.device}: {error} Choose another dtype, batch or device."
        ) from error
    return lambda: placed(*batched)


@torch.inference_mode()
def _in_turn(
    passes: Mapping[str, Callable[[], Any]], conditions: Conditions, placement: Placement
) -> dict[str, list[float]]:
    """Return the seconds of every pass in every round that counts; every second round goes backwards."""
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    order = list(passes)
    for number in range(conditions.warm_up + conditions.rounds):
        for name in order if number % 2 else reversed(order):
            began = time.perf_counter()
            passes[name]()
            if placement.on_gpu:
                torch.cuda.synchronize(placement.device)
            took = time.perf_counter() - began
            if number >= conditions.warm_up:
                seconds[name].append(took)
    return seconds


def _repeated(x: Tensor, batch: int) -> Tensor:
    """Return a batch of the examples, over and over."""
    return x[torch.arange(batch, device=x.device) % len(x)]


def _converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if x.is_floating_point() else x
