"""What the learner refuses before it starts, each refusal with the argument, the range, the value and the remedy."""

import math
import numbers
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sklearn.base import BaseEstimator

from cogd.checks import RULES

MEMORY_SHARE = 0.8  # of what is free, which one result may take


def check_parameters(learner: BaseEstimator) -> None:
    """Refuse settings of a `ConvDictionaryLearner` outside of their range."""
    settings = learner.get_params()
    _check_integer("n_atoms", settings["n_atoms"])
    _check_integer("max_iter", settings["max_iter"])
    shape = settings["atom_shape"]
    if not isinstance(shape, tuple | list) or len(shape) != 2:
        raise ValueError(f"atom_shape must be (height, width); got {shape!r}.")
    for side in shape:
        _check_integer("atom_shape's sides", side)
    if settings["penalty"] != "auto":
        checked_penalty(settings["penalty"])
    _check_rule(settings["rule"], settings["order"], settings["scale"])
    if settings["solver"] not in ("working_set", "ffcsc"):
        raise ValueError(f'solver must be "working_set" or "ffcsc"; got {settings["solver"]!r}.')
    _check_number("smoothing", settings["smoothing"], zero=True)
    if settings["batch_size"] is not None:
        _check_integer("batch_size", settings["batch_size"])
        if settings["solver"] != "working_set" or settings["rule"] is not None:
            raise ValueError('batch_size works with solver="working_set" and rule=None only; give batch_size=None.')
    _check_number("tol", settings["tol"], zero=True)
    _check_number("transform_tol", settings["transform_tol"])
    if settings["time_limit"] is not None:
        _check_number("time_limit", settings["time_limit"])
    chosen_device(settings["device"])
    if settings["dtype"] not in ("float32", "float64"):
        raise ValueError(f'dtype must be "float32" or "float64"; got {settings["dtype"]!r}.')


def checked_penalty(penalty: Any) -> float:
    """Return the penalty, or refuse it."""
    _check_number("penalty", penalty, hint=' Give "auto" for a share of the least penalty at which all codes vanish.')
    return float(penalty)


def check_noise(noise: Any) -> None:
    """Refuse what is no standard deviation of noise; None is."""
    if noise is not None:
        _check_number("noise", noise, hint=" Leave it out to have it estimated.")


def chosen_device(device: Any) -> str:
    """Return "cpu" or "cuda"; "auto" is the GPU if there is one."""
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f'device must be "auto", "cpu" or "cuda"; got {device!r}.')
    found = torch.cuda.is_available()
    if device == "cuda" and not found:
        raise ValueError('device="cuda" needs a GPU that PyTorch can use; there is none. Give device="cpu" or "auto".')
    return "cuda" if found and device == "auto" else "cpu" if device == "auto" else device


def check_memory(needed: int, what: str, remedy: str, device: str = "cpu") -> None:
    """Refuse what will not fit into the memory of a device."""
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else free_memory()
    if needed > MEMORY_SHARE * free:
        where = " on the GPU" if device == "cuda" else ""
        raise MemoryError(
            f"{what} would take {needed / 2**30:.1f} GiB{where}; {free / 2**30:.1f} GiB are free. {remedy}"
        )


@contextmanager
def plain_memory_errors() -> Iterator[None]:
    """Tell that a GPU ran out of memory as everything else is told, with the remedy."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).partition(". ")[0]
        raise MemoryError(f'{reason}. Give fewer images at a time, to fit batch_size, or device="cpu".') from error


def free_memory() -> float:
    """Return the bytes of memory that are free, infinite where the system does not say."""
    try:
        with open("/proc/meminfo") as lines:
            kilobytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable"))
            return int(kilobytes) * 1024.0
    except (OSError, StopIteration):
        return math.inf


def _check_rule(rule: Any, order: Any, scale: Any) -> None:
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(map(repr, RULES))}; got {rule!r}.")
    _check_integer("order", order)
    _check_number("scale", scale, zero=True)
    if rule == "rollback" and (order, scale) != (1, 1.0):
        raise ValueError(f"rule='rollback' takes no order or scale; got order={order}, scale={scale}. Leave them out.")


def _check_integer(name: str, value: Any) -> None:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
        raise ValueError(f"{name} must be an integer >= 1; got {value!r}.")


def _check_number(name: str, value: Any, *, zero: bool = False, hint: str = "") -> None:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{name} must be a finite number {'>=' if zero else '>'} 0; got {value!r}.{hint}")
