"""`cogd train`, `cogd evaluate` and `cogd compare`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cogd.commands.errors import told_plainly

RECIPE_FIELDS = (
    "epochs, batch-size, eval-batch-size, lr, momentum, nesterov, weight-decay, label-smoothing, schedule, "
    "step-epochs, step-factor, warmup-epochs, image-size, crop, flip, cutout, bad-images, rule, order, scale, "
    "active, precision, compile"
)
DEFAULTS = {  # of each kind of data: its model and its recipe
    "digits": ("digits", "digits"),
    "cifar10": ("resnet18", "cifar10"),
    "folder": ("resnet18_imagenet", "imagenet"),
}
STOPPED = 130  # the exit code of a run that a signal stopped and that can go on


def train(
    context: typer.Context,
    data: Annotated[str, typer.Option(help='"digits", "cifar10:DIR" or "folder:DIR_OR_ZIP".')] = "digits",
    model: Annotated[str | None, typer.Option(help="A network's name; the data's usual one by default.")] = None,
    recipe: Annotated[str | None, typer.Option(help="digits, cifar10, imagenet or a .toml file.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The run's folder.")] = None,
    seed: Annotated[int, typer.Option(help="Of the weights, the order and the augmentation.")] = 0,
    seeds: Annotated[int | None, typer.Option(min=1, help="Train with so many seeds, a folder for each.")] = None,
    baseline: Annotated[Path | None, typer.Option(help="A folder of runs to compare the seeds with.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Train a network; the same command again resumes a run that was stopped or killed."""
    with told_plainly():
        from cogd.models import build
        from cogd.training import fit, read_recipe
        from cogd.training.data import load_data
        from cogd.training.seeds import fit_seeds, seeded

        if baseline is not None and seeds is None:
            raise ValueError("--baseline compares several seeds; give --seeds too.")
        loaded = load_data(data)
        kind = data.partition(":")[0]
        name = model or DEFAULTS[kind][0]
        settings = read_recipe(recipe or DEFAULTS[kind][1], **overrides(context.args))
        folder = output or Path("runs") / kind
        network = partial(build, name, len(loaded.classes))
        if seeds is None:
            results = [fit(seeded(network, seed), loaded, settings, seed=seed, folder=folder, device=device, name=name)]
        else:
            chosen = range(seed, seed + seeds)
            results = fit_seeds(network, loaded, settings, chosen, folder, device=device, name=name)
        if results[-1].status == "stopped":
            raise typer.Exit(STOPPED)
        if seeds is None:
            _print_metrics(results[-1].metrics)
        else:
            _print_table([folder] if baseline is None else [baseline, folder], "accuracy")


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs; the first is the baseline.")],
    metric: Annotated[str, typer.Option(help="Which of the runs' metrics.")] = "accuracy",
) -> None:
    """Compare runs over several seeds: mean, deviation, and a paired test against the first."""
    with told_plainly():
        _print_table(runs, metric)


def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    data: Annotated[str | None, typer.Option(help="Other data of the same kind, or the same moved.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Measure a finished run's network on its test data."""
    with told_plainly():
        from cogd.training.evaluation import evaluate_run

        _print_metrics(evaluate_run(run, data=data, device=device))


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


def _print_metrics(metrics: dict[str, float]) -> None:
    for name, value in metrics.items():
        typer.echo(f"{name} {value:.4f}")


def _print_table(folders: list[Path], metric: str) -> None:
    """Print a line for each folder; differences are to the first, over the seeds that both have."""
    from rich.console import Console
    from rich.table import Table

    from cogd.training.summary import summarize

    table = Table("runs", "n", f"mean {metric}", "deviation", "difference (95%)", "p, paired t-test")
    for row in summarize(folders, metric):
        difference = row.difference
        compared = (
            f"{difference.mean:+.4f} +- {difference.half_width:.4f} (n = {difference.pairs})" if difference else ""
        )
        p = f"{difference.p:.3f}" if difference else ""
        table.add_row(row.name, str(len(row.values)), f"{row.mean:.4f}", f"{row.deviation:.4f}", compared, p)
    Console().print(table)


def register(app: typer.Typer) -> None:
    """Add this file's commands to the command line."""
    any_field = {"allow_extra_args": True, "ignore_unknown_options": True}
    note = f"Every field of the recipe is an option too, as in --lr 0.05 --no-flip: {RECIPE_FIELDS}."
    app.command(context_settings=any_field, epilog=note)(train)
    app.command()(evaluate)
    app.command()(compare)
