"""How a network is trained: every number of a run, validated, from small TOML files."""

import difflib
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

SHIPPED = tuple(phase + data for phase in ("", "prune_", "finetune_") for data in ("digits", "cifar10", "imagenet"))


class Recipe(BaseModel):
    """SGD, its schedule, the augmentation and the coupling.

    `batch_size`, `eval_batch_size` and the augmentation concern data named by a string; iterables bring their own.

    >>> Recipe(epochs=2, batch_size=64, lr=0.1, rule="rollback").active
    0.95
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    epochs: int = Field(gt=0)
    batch_size: int = Field(gt=0)
    eval_batch_size: int = Field(default=1000, gt=0)

    lr: float = Field(gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(default=0.0, ge=0)
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    step_epochs: int = Field(default=30, gt=0)  # of the step schedule: every so many epochs the rate is multiplied by
    step_factor: float = Field(default=0.1, gt=0)
    warmup_epochs: float = Field(default=0.0, ge=0)  # the rate climbs linearly from 0

    image_size: int | None = Field(default=None, gt=0)  # of folders: the side of the square that the network sees
    crop: int = Field(default=0, ge=0)  # pixels of black around the image, from which a piece of its own size is cut
    flip: bool = False  # left to right, every second image
    cutout: int = Field(default=0, ge=0)  # the side of a square set to the mean colour
    bad_images: float = Field(default=0.001, ge=0, le=1)  # of folders: the share that may fail to decode

    rule: Literal["none", "descent", "paper", "rollback"] = "none"
    order: int = Field(default=1, ge=1)
    scale: float = Field(default=1e-3, ge=0)
    active: float = Field(default=0.95, ge=0, le=1)  # the paper's a: both thresholds are the (1 - a)-quantile

    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on a GPU
    # On a GPU: "graph" records each step as a CUDA graph, "compiled" compiles it first (auto), "tuned" at length.
    compile: Literal["auto", "off", "graph", "compiled", "tuned"] = "auto"

    @model_validator(mode="before")
    @classmethod
    def _name_the_nearest(cls, values: Any) -> Any:
        for name in values:
            if name not in cls.model_fields:
                near = difflib.get_close_matches(name, cls.model_fields, n=1)
                hint = f"Did you mean {near[0]!r}?" if near else f"The fields are {', '.join(cls.model_fields)}."
                raise ValueError(f"a recipe has no field {name!r}. {hint}")
        return values

    @model_validator(mode="after")
    def _agree(self) -> "Recipe":
        if self.rule == "rollback" and (self.order, self.scale) != (1, 1e-3):
            raise ValueError("rule='rollback' takes no order or scale; leave them out.")
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"warmup_epochs must be below epochs = {self.epochs}; got {self.warmup_epochs}.")
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0; got 0.")
        return self


def read_recipe(recipe: "str | Path | Recipe", **overrides: Any) -> Recipe:
    """Return a recipe by its shipped name or from a TOML file, with some fields replaced.

    >>> read_recipe("cifar10", epochs=40).epochs
    40
    """
    values = recipe.model_dump(exclude_unset=True) if isinstance(recipe, Recipe) else _values(recipe)
    try:
        return Recipe.model_validate({**values, **overrides})
    except ValidationError as error:
        raise ValueError(f"recipe {recipe if isinstance(recipe, str | Path) else ''}: {_readable(error)}") from error


def _values(recipe: str | Path) -> dict[str, Any]:
    if recipe in SHIPPED:
        text = (resources.files("cogd.training") / "recipes" / f"{recipe}.toml").read_text()
    elif Path(recipe).suffix == ".toml":
        text = Path(recipe).read_text()
    else:
        raise ValueError(f"recipe must be one of {', '.join(SHIPPED)} or a .toml file; got {str(recipe)!r}.")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{recipe} is not valid TOML: {error}.") from error


def _readable(error: ValidationError) -> str:
    """Return every complaint with its field and the value that was given."""
    complaints = []
    for detail in error.errors():
        message = detail["msg"].removeprefix("Value error, ")
        field = ".".join(map(str, detail["loc"]))
        missing = detail["type"] == "missing"
        complaints.append(
            f"{field}: {message}" + ("" if missing else f"; got {detail['input']!r}") if field else message
        )
    return "; ".join(complaints)
