"""`cogd train`, `cogd evaluate` and `cogd compare`."""

import math
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from cogd.commands.conventions import Answer, Device, OnDevice, Quiet, Seed, add
from cogd.commands.errors import INTERRUPTED, usage_errors

DEFAULTS = {  # of each kind of data: its model and its recipe
    "digits": ("digits", "digits"),
    "cifar10": ("resnet18", "cifar10"),
    "folder": ("resnet18_imagenet", "imagenet"),
}


def train(
    context: typer.Context,
    data: Annotated[str, typer.Option(help='"digits", "cifar10:DIR" or "folder:DIR_OR_ZIP".')] = "digits",
    model: Annotated[str | None, typer.Option(help="A network's name; the data's usual one by default.")] = None,
    recipe: Annotated[str | None, typer.Option(help="digits, cifar10, imagenet or a .toml file.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The run's folder.")] = None,
    seed: Seed = 0,
    seeds: Annotated[int | None, typer.Option(min=1, help="Train with so many seeds, a folder for each.")] = None,
    at_once: Annotated[int, typer.Option(min=1, help="So many of the seeds at once, on one device.")] = 1,
    baseline: Annotated[Path | None, typer.Option(help="A folder of runs to compare the seeds with.")] = None,
    device: OnDevice = Device.auto,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard's events too.")] = False,
    quiet: Quiet = False,
) -> Answer:
    """Train a network, or resume its training.

    The same command again goes on where a run was stopped or killed, and does nothing once it is complete. Every field
    of the recipe is an option too: epochs, batch-size, eval-batch-size, lr, momentum, nesterov, weight-decay,
    label-smoothing, schedule, step-epochs, step-factor, warmup-epochs, image-size, crop, flip, cutout, bad-images,
    rule, order, scale, active, precision, compile.

    Examples:
      cogd train                                                  # a small network on 8x8 digits
      cogd train -o runs/paper --epochs 3 --rule paper --order 2  # fields of the recipe
      cogd train --data cifar10:data --seeds 5 --at-once 5        # ResNet-18, five seeds on one GPU
      cogd train --data folder:photos.zip --no-flip --device cpu --json
    """
    from cogd.models import build
    from cogd.training import fit, read_recipe
    from cogd.training.data import load_data
    from cogd.training.seeds import fit_seeds, seeded
    from cogd.training.summary import summarize

    if (baseline is not None or at_once > 1) and seeds is None:
        raise typer.BadParameter("--baseline and --at-once are for several seeds; give --seeds too.")
    with usage_errors():
        fields = overrides(context.args)
        loaded = load_data(data)
        kind = data.partition(":")[0]
        name = model or DEFAULTS[kind][0]
        settings = read_recipe(recipe or DEFAULTS[kind][1], **fields)
        network = partial(build, name, len(loaded.classes))
        first = seeded(network, seed)
        if baseline is not None:
            summarize([baseline])  # refused before the training, not after it
    folder = output or Path("runs") / kind
    how: dict[str, Any] = {"folder": folder, "device": device.value, "name": name}
    how |= {"progress": not quiet, "tensorboard": tensorboard}
    if seeds is None:
        results = [fit(first, loaded, settings, seed=seed, **how)]
    else:
        results = fit_seeds(network, loaded, settings, range(seed, seed + seeds), at_once=at_once, **how)
    if any(result.status == "stopped" for result in results):
        return Answer(
            {"status": "stopped", "folder": folder}, f"stopped; {folder} is resumed by the same command", INTERRUPTED
        )
    if seeds is None:
        return _metrics(results[0].metrics)
    return _comparison([folder] if baseline is None else [baseline, folder], "accuracy")


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs; the first is the baseline.")],
    metric: Annotated[str, typer.Option(help="Which of the runs' metrics.")] = "accuracy",
) -> Answer:
    """Compare runs over several seeds.

    Mean, deviation, and over the seeds that both have the mean difference to the first folder with its 95% interval and
    Student's paired test.

    Examples:
      cogd compare runs/plain runs/cogd                # accuracy
      cogd compare runs/plain runs/cogd --metric test_loss --json
    """
    return _comparison(runs, metric)


def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    data: Annotated[str | None, typer.Option(help="Other data of the same kind, or the same moved.")] = None,
    device: OnDevice = Device.auto,
) -> Answer:
    """Measure a trained network on its test data.

    Examples:
      cogd evaluate runs/digits
      cogd evaluate runs/cifar10 --data cifar10:/mnt/data --device cpu --json
    """
    from cogd.training.evaluation import evaluate_run

    return _metrics(evaluate_run(run, data=data, device=device.value))


def overrides(arguments: list[str]) -> dict[str, str]:
    """Return the recipe fields in arguments such as --lr 0.05, --lr=0.05, --flip or --no-flip.

    >>> overrides(["--weight-decay", "1e-4", "--no-flip", "--epochs=3"])
    {'weight_decay': '1e-4', 'flip': 'false', 'epochs': '3'}
    """
    fields: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        option = rest.pop(0)
        if not option.startswith("--"):
            raise ValueError(f"cannot make sense of {option!r}; recipe fields are given as --field value.")
        name, equals, value = option[2:].partition("=")
        if not equals and rest and not rest[0].startswith("--"):
            value = rest.pop(0)
        elif not equals:
            name, value = (name.removeprefix("no-"), "false") if name.startswith("no-") else (name, "true")
        fields[name.replace("-", "_")] = value
    return fields


def _metrics(metrics: dict[str, float]) -> Answer:
    return Answer(metrics, "\n".join(f"{name} {value:.4f}" for name, value in metrics.items()))


def _comparison(folders: list[Path], metric: str) -> Answer:
    """Return a line for each folder; differences are to the first, over the seeds that both have."""
    from rich.table import Table

    from cogd.training.summary import summarize

    rows = summarize(folders, metric)
    table = Table("runs", "n", f"mean {metric}", "deviation", "difference (95%)", "p, paired t-test")
    for row in rows:
        difference = row.difference
        compared = (
            f"{difference.mean:+.4f} +- {difference.half_width:.4f} (n = {difference.pairs})" if difference else ""
        )
        p = f"{difference.p:.3f}" if difference else ""
        table.add_row(row.name, str(len(row.values)), f"{row.mean:.4f}", f"{row.deviation:.4f}", compared, p)
    return Answer([{**asdict(row), "mean": row.mean, "deviation": _finite(row.deviation)} for row in rows], table)


def _finite(value: float) -> float | None:
    """Return what JSON can hold of a number: a deviation over one seed is none."""
    return value if math.isfinite(value) else None


def register(app: typer.Typer) -> None:
    """Add this file's commands to the command line."""
    add(app, train, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    add(app, evaluate)
    add(app, compare)
