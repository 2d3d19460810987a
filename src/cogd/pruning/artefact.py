"""A pruned model as two files and no pickle: weights.safetensors, and recipe.json to shape a model for them."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from torch import Tensor, nn

from cogd.models import BUILDERS
from cogd.pruning.cutting import Keep, set_data
from cogd.pruning.graph import as_tuple
from cogd.pruning.refusals import check_plain
from cogd.training.files import write_atomically

WEIGHTS, RECIPE = "weights.safetensors", "recipe.json"
DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
Shapes = dict[str, list[int]]
SizeName = Literal[
    "in_channels", "out_channels", "groups", "in_features", "out_features", "num_features", "num_parameters"
]
SIZES = get_args(SizeName)


class ExampleInput(BaseModel):
    """What one of the example inputs was."""

    model_config = ConfigDict(extra="forbid", strict=True)

    shape: list[int]
    dtype: str


class Recipe(BaseModel):
    """How a model, as its builder makes it, becomes the pruned one; `report` is the caller's to fill."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal[1] = 1
    builder: str | None
    arguments: dict[str, Any]
    keep: dict[str, list[int]]
    sizes: dict[str, dict[SizeName, int]]
    built: Shapes
    pruned: Shapes
    dtypes: dict[str, str]  # of the pruned model
    example_inputs: list[ExampleInput]
    versions: dict[str, str]
    sha256: str
    report: dict[str, Any] = {}


def save_pruned(
    folder: str | Path,
    model: nn.Module,
    original: nn.Module,
    *,
    keep: Keep,
    example_inputs: Tensor | Sequence[Any],
    builder: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    report: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a pruned model into a folder, which `load_pruned` reads.

    Args:
        folder: made if it isn't there; one with something in it is refused, unless `overwrite` is set.
        model: the pruned model.
        original: the model as its builder makes it, or as it was before pruning.
        keep: the channels that were kept.
        example_inputs: what the model's forward accepts; their shapes are noted.
        builder: what makes the original: a name of `cogd.models`, or "package.module:function".
        arguments: what the builder is called with; numbers, strings and lists of them.
        report: figures to keep beside the weights.
        overwrite: replace the two files if they are there.

    >>> from tempfile import TemporaryDirectory
    >>> whole, small = (nn.Sequential(nn.Linear(2, n), nn.Linear(n, 1)) for n in (4, 3))
    >>> with TemporaryDirectory() as folder:
    ...     save_pruned(folder, small, whole, keep={"0": [0, 1, 3]}, example_inputs=torch.zeros(1, 2))
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['recipe.json', 'weights.safetensors']
    """
    folder = Path(folder)
    check_plain(model)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not overwrite:
        raise FileExistsError(f"{folder} is there and not empty; name another folder, or set overwrite=True.")
    weights = safetensors.torch.save({name: tensor.contiguous().clone() for name, tensor in _tensors(model).items()})
    recipe = Recipe(
        builder=builder,
        arguments=dict(arguments or {}),
        keep={name: list(kept) for name, kept in keep.items()},
        sizes=_changed_sizes(model, original),
        built=shapes(_tensors(original)),
        pruned=shapes(_tensors(model)),
        dtypes=_dtypes(_tensors(model)),
        example_inputs=[
            ExampleInput(shape=list(x.shape), dtype=_name(x.dtype))
            for x in as_tuple(example_inputs)
            if isinstance(x, Tensor)
        ],
        versions={name: version(name) for name in ("cogd", "torch", "torch-pruning")},
        sha256=hashlib.sha256(weights).hexdigest(),
        report=dict(report or {}),
    )
    text = recipe.model_dump_json(indent=2)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / WEIGHTS, weights)
    write_atomically(folder / RECIPE, f"{text}\n".encode())


def load_pruned(build_model: Callable[[], nn.Module] | str | None, folder: str | Path) -> nn.Module:
    """Return the pruned model of a folder, in evaluation mode.

    Args:
        build_model: a function that makes the model before pruning; or its name as "package.module:function", which is
            called with the arguments in the recipe; or None for a model of `cogd.models` that the recipe names.
        folder: what `save_pruned` wrote.

    >>> from tempfile import TemporaryDirectory
    >>> whole, small = (nn.Sequential(nn.Linear(2, n), nn.Linear(n, 1)) for n in (4, 3))
    >>> with TemporaryDirectory() as folder:
    ...     save_pruned(folder, small, whole, keep={"0": [0, 1, 3]}, example_inputs=torch.zeros(1, 2))
    ...     load_pruned(lambda: nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1)), folder)[0]
    Linear(in_features=2, out_features=3, bias=True)
    """
    recipe = read_recipe(folder)
    tensors = _read_weights(Path(folder), recipe)
    model = build_original(build_model, recipe)
    refuse_differences(
        "the model that build_model makes", shapes(_tensors(model)), f"{RECIPE} of {folder}", recipe.built
    )
    refuse_differences(
        f"pruned in {RECIPE} of {folder}", dict.fromkeys(recipe.pruned), "built", dict.fromkeys(recipe.built)
    )
    refuse_differences(f"{WEIGHTS} of {folder}", shapes(tensors), RECIPE, recipe.pruned)
    refuse_differences(f"{WEIGHTS} of {folder}", _dtypes(tensors), RECIPE, recipe.dtypes)
    for name, sizes in recipe.sizes.items():
        for attribute, size in sizes.items():
            setattr(_submodule(model, name), attribute, size)
    for name, tensor in _tensors(model).items():
        set_data(tensor, tensors[name])
    return model.eval()


def read_recipe(folder: str | Path) -> Recipe:
    """Return the recipe of a folder that `save_pruned` wrote.

    >>> from tempfile import TemporaryDirectory
    >>> whole, small = (nn.Sequential(nn.Linear(2, n), nn.Linear(n, 1)) for n in (4, 3))
    >>> with TemporaryDirectory() as folder:
    ...     save_pruned(folder, small, whole, keep={"0": [0, 1, 3]}, example_inputs=torch.zeros(1, 2))
    ...     read_recipe(folder).keep
    {'0': [0, 1, 3]}
    """
    path = Path(folder) / RECIPE
    if not path.is_file():
        raise FileNotFoundError(f"{path} isn't there; {folder} should be a folder that save_pruned wrote.")
    try:
        return Recipe.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ValueError(f"{path} is no recipe of format 1: {place}: {first['msg']}.") from error


def examples(recipe: Recipe) -> tuple[Tensor, ...]:
    """Return inputs as the recipe notes them: random, and zeros where they are integers, which are often indices."""
    generator = torch.Generator().manual_seed(0)
    return tuple(_example(noted, generator) for noted in recipe.example_inputs)


def _example(noted: ExampleInput, generator: torch.Generator) -> Tensor:
    if noted.dtype not in DTYPES:
        raise ValueError(f"{RECIPE} notes an example input of dtype {noted.dtype!r}, which PyTorch doesn't have.")
    dtype = DTYPES[noted.dtype]
    if dtype.is_floating_point:
        return torch.randn(noted.shape, generator=generator).to(dtype)
    return torch.zeros(noted.shape, dtype=dtype)


def read_tensors(path: Path, content: bytes) -> dict[str, Tensor]:
    """Return the tensors in a safetensors file's content."""
    try:
        return safetensors.torch.load(content)
    except SafetensorError as error:
        raise ValueError(f"{path} is no safetensors file: {error}.") from error


def _read_weights(folder: Path, recipe: Recipe) -> dict[str, Tensor]:
    path = folder / WEIGHTS
    if not path.is_file():
        raise FileNotFoundError(f"{path} isn't there; both {WEIGHTS} and {RECIPE} are needed.")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != recipe.sha256:
        raise ValueError(f"{path} isn't the file that {RECIPE} was written for: its checksum differs. Copy both again.")
    return read_tensors(path, content)


def build_original(build_model: Callable[[], nn.Module] | str | None, recipe: Recipe) -> nn.Module:
    """Return the model before pruning with weights of its own; `build_model` as in `load_pruned`."""
    if isinstance(build_model, str):
        return imported(build_model)(**recipe.arguments)
    if build_model is not None:
        return build_model()
    if recipe.builder in BUILDERS:
        builder: Callable[..., nn.Module] = BUILDERS[recipe.builder]
        return builder(**recipe.arguments)
    if recipe.builder is None:
        raise ValueError(
            "the recipe names no builder; pass build_model (--model), which makes the model before pruning."
        )
    raise ValueError(
        f"the recipe names code outside of cogd, {recipe.builder!r}, which isn't run unasked; "
        f"if you trust it, pass build_model={recipe.builder!r} (--model {recipe.builder})."
    )


def imported(path: str) -> Callable[..., nn.Module]:
    """Return the function that "package.module:function" names."""
    package, _, name = path.partition(":")
    try:
        function = getattr(import_module(package), name)
    except (ImportError, ValueError, AttributeError) as error:
        raise ValueError(
            f'build_model (--model) must name a "package.module:function" that Python finds; got {path!r} ({error}).'
        ) from error
    return function


def _changed_sizes(model: nn.Module, original: nn.Module) -> dict[str, dict[Any, int]]:
    """Return the modules' sizes that pruning changed."""
    before = dict(original.named_modules())
    changed: dict[str, dict[Any, int]] = {}
    for name, module in model.named_modules():
        if name not in before:
            raise ValueError(f"model has a module {name!r} that original hasn't; pass the model before pruning.")
        sizes = {size: getattr(module, size) for size in SIZES if isinstance(getattr(module, size, None), int)}
        if differing := {size: n for size, n in sizes.items() if n != getattr(before[name], size)}:
            changed[name] = differing
    return changed


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model's state; they are those of the model, not copies."""
    return model.state_dict(keep_vars=True)


def shapes(tensors: Mapping[str, Tensor]) -> Shapes:
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


def _dtypes(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: _name(tensor.dtype) for name, tensor in tensors.items()}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def refuse_differences(what: str, got: Mapping[str, Any], reference: str, expected: Mapping[str, Any]) -> None:
    """Refuse tensors that are missing, too many or of another shape or dtype, and say which."""
    lines = [f"{name}: missing" for name in expected if name not in got]
    lines += [f"{name}: not in {reference}" for name in got if name not in expected]
    both = (name for name in got if name in expected and got[name] != expected[name])
    lines += [f"{name}: {got[name]}, in {reference} {expected[name]}" for name in both]
    if lines:
        shown = "".join(f"\n  {line}" for line in lines[:8]) + (f"\n  and {len(lines) - 8} more" if lines[8:] else "")
        raise ValueError(f"{what} doesn't fit:{shown}")


def _submodule(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        raise ValueError(f"{RECIPE} changes the sizes of {name!r}, a module that the model doesn't have.") from error
