"""`cogd train` and `cogd evaluate`."""

from pathlib import Path
from typing import Annotated

import typer

from cogd.commands.errors import told_plainly

RECIPE_FIELDS = (
    "epochs, batch-size, eval-batch-size, lr, momentum, nesterov, weight-decay, label-smoothing, schedule, "
    "step-epochs, step-factor, warmup-epochs, image-size, crop, flip, cutout, bad-images, rule, order, scale, "
    "active, precision, compile"
)
DEFAULTS = {
    "digits": ("digits", "digits"),
    "cifar10": ("resnet18", "cifar10"),
    "folder": ("resnet18_imagenet", "imagenet"),
}  # data: its model and its recipe


def train(
    context: typer.Context,
    data: Annotated[str, typer.Option(help='"digits", "cifar10:DIR" or "folder:DIR_OR_ZIP".')] = "digits",
    model: Annotated[str | None, typer.Option(help="A network's name; the data's usual one by default.")] = None,
    recipe: Annotated[str | None, typer.Option(help="digits, cifar10, imagenet or a .toml file.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The run's folder.")] = None,
    seed: Annotated[int, typer.Option(help="Of the weights, the order and the augmentation.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Train a network; the same command again resumes a run that was stopped or killed."""
    with told_plainly():
        import torch

        from cogd.models import build
        from cogd.training import fit, read_recipe
        from cogd.training.data import load_data

        kind = data.partition(":")[0]
        loaded = load_data(data)
        usual_model, usual_recipe = DEFAULTS[kind]
        model = model or usual_model
        settings = read_recipe(recipe or usual_recipe, **overrides(context.args))
        torch.manual_seed(seed)
        network = build(model, len(loaded.classes))
        folder = output or Path("runs") / kind
        result = fit(network, loaded, settings, seed=seed, device=device, folder=folder, name=model)
        for name, value in result.metrics.items():
            typer.echo(f"{name} {value:.4f}")
        if result.status == "stopped":
            raise typer.Exit(130)


def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    data: Annotated[str | None, typer.Option(help="Other data of the same kind, or the same moved.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Measure a finished run's network on its test data."""
    with told_plainly():
        from cogd.training.evaluation import evaluate_run

        for name, value in evaluate_run(run, data=data, device=device).items():
            typer.echo(f"{name} {value:.4f}")


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


def register(app: typer.Typer) -> None:
    """Add this file's commands to the command line."""
    any_field = {"allow_extra_args": True, "ignore_unknown_options": True}
    note = f"Every field of the recipe is an option too, as in --lr 0.05 --no-flip: {RECIPE_FIELDS}."
    app.command(context_settings=any_field, epilog=note)(train)
    app.command()(evaluate)
