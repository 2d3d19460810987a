"""A network for other runtimes: as ONNX, verified in onnxruntime, or as a torch.export program.

Either takes batches of any size, computes in float32, and holds no example. An ONNX file holds no code. The archive of
torch.export is read by torch.export.load, which unpickles whatever an archive tells it to, with no way to forbid it:
load only archives that you made yourself, and pass on ONNX files or what `save_pruned` writes.
"""

import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils._pytree import tree_map_only

from cogd.pruning.graph import as_tuple
from cogd.pruning.layers import outputs_of
from cogd.pruning.refusals import check_plain
from cogd.training.files import write_atomically

TOLERANCE = 1e-5
BATCHES = (1, 2, 5)  # at which an export is compared with the network
Run = Callable[[tuple[Any, ...]], Sequence[Tensor]]


@dataclass(frozen=True)
class Exported:
    """What was written, and how far its outputs are from the network's, in shares of the largest (or of 1)."""

    path: Path
    bytes: int
    difference: float
    batches: tuple[int, ...] = BATCHES


def export_onnx(
    model: nn.Module, example_inputs: Tensor | Sequence[Any], path: str | Path, *, overwrite: bool = False
) -> Exported:
    """Write a network as an ONNX file; nothing is written unless onnxruntime computes what the network does, to 1e-5.

    Args:
        model: a network, pruned or not; it stays as it is.
        example_inputs: what its forward accepts, a tensor or a tuple.
        path: the file to write.
        overwrite: replace it if it is there.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     export_onnx(nn.Linear(2, 1), torch.zeros(1, 2), f"{folder}/model.onnx").path.name
    'model.onnx'
    """
    onnxruntime = _onnxruntime()
    path = _free(path, overwrite)
    network, inputs = _prepared(model, example_inputs)
    program = _program(network, inputs)
    with _quiet():
        content = torch.onnx.export(program, verbose=False).model_proto.SerializeToString()  # type: ignore[union-attr]
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]

    def run(batch: tuple[Any, ...]) -> list[Tensor]:
        arrays = [value.numpy() for value in batch if isinstance(value, Tensor)]
        return [torch.from_numpy(array) for array in session.run(None, dict(zip(names, arrays, strict=True)))]

    return _verified(network, inputs, run, content, path)


def export_program(
    model: nn.Module, example_inputs: Tensor | Sequence[Any], path: str | Path, *, overwrite: bool = False
) -> Exported:
    """Write a network as a torch.export archive (.pt2), once its program is seen to compute what the network does.

    `torch.export.load` reads it and needs none of the network's code; see this module's first words before loading one.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     export_program(nn.Linear(2, 1), torch.zeros(1, 2), f"{folder}/model.pt2").path.name
    'model.pt2'
    """
    path = _free(path, overwrite)
    network, inputs = _prepared(model, example_inputs)
    program, buffer = _program(network, inputs), io.BytesIO()
    with _quiet():
        torch.export.save(program, buffer)
    called = program.module()
    return _verified(network, inputs, lambda batch: outputs_of(called(*batch)), buffer.getvalue(), path)


def _onnxruntime() -> Any:
    """Return onnxruntime, or refuse to go on without what the extra installs."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"an ONNX file is written and checked by onnx, onnxscript and onnxruntime; {error.name} is missing. "
            "Install them with pip install 'cogd[export]'."
        ) from error
    return onnxruntime


def _free(path: str | Path, overwrite: bool) -> Path:
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"path must be a file in a folder that is there; got {path}.")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} is there; name another file, or set overwrite=True (--overwrite).")
    return path


def _prepared(model: nn.Module, example_inputs: Tensor | Sequence[Any]) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a copy in float32 on the CPU, and the example inputs with it."""
    check_plain(model)
    inputs = tree_map_only(Tensor, lambda x: x.cpu().float() if x.is_floating_point() else x.cpu(), example_inputs)
    return copy.deepcopy(model).cpu().float().eval(), as_tuple(inputs)


def _program(network: nn.Module, inputs: tuple[Any, ...]) -> ExportedProgram:
    batch = Dim("batch", min=1)
    shapes = tuple({0: batch} if isinstance(value, Tensor) else None for value in inputs)
    example = _batch_of(2, inputs, torch.Generator().manual_seed(0))
    try:
        with _quiet(), torch.no_grad():
            return torch.export.export(network, example, dynamic_shapes=shapes)
    except (RuntimeError, ValueError, torch._dynamo.exc.UserError) as error:
        raise ValueError(
            f"torch.export can't follow this {type(network).__name__} for batches of any size: {error}"
        ) from error


def _verified(network: nn.Module, inputs: tuple[Any, ...], run: Run, content: bytes, path: Path) -> Exported:
    """Write an export, unless its outputs differ from the network's."""
    generator = torch.Generator().manual_seed(0)
    difference = 0.0
    for size in BATCHES:
        batch = _batch_of(size, inputs, generator)
        with torch.no_grad():
            expected, got = outputs_of(network(*batch)), run(batch)
        difference = max(difference, *(_difference(a, b) for a, b in zip(expected, got, strict=True)))
    if not difference <= TOLERANCE:
        raise ArithmeticError(
            f"the export differs from this {type(network).__name__} by {difference:.1e} of its largest output, more "
            f"than {TOLERANCE:g}; {path} was not written."
        )
    write_atomically(path, content)
    return Exported(path, len(content), difference)


def _batch_of(size: int, inputs: tuple[Any, ...], generator: torch.Generator) -> tuple[Any, ...]:
    """Return inputs of a batch size: random where they are floating-point numbers, else the example's once more."""

    def resized(x: Tensor) -> Tensor:
        if x.is_floating_point():
            return torch.randn(size, *x.shape[1:], generator=generator)
        return x[torch.arange(size) % len(x)]

    return tree_map_only(Tensor, resized, inputs)


def _difference(expected: Tensor, got: Tensor) -> float:
    if expected.shape != got.shape:
        return float("inf")
    return (expected - got).abs().max().item() / max(1.0, expected.abs().max().item())


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's notes about itself to itself."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)
