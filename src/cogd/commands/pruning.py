"""`cogd prune`: a smaller network from a trained one."""

import warnings
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cogd.commands.conventions import Answer, Device, OnDevice, Quiet, Seed, add, importable_here, note
from cogd.commands.errors import INTERRUPTED, usage_errors
from cogd.commands.training import DEFAULTS

if TYPE_CHECKING:
    from torch import Tensor, nn

    from cogd.pruning import Pruned
    from cogd.training.data import Data


class Teaching(StrEnum):
    """What the network learns from while it is pruned."""

    gal = "gal"
    kd = "kd"
    none = "none"


class RuleName(StrEnum):
    """The rules of coordination, and none."""

    paper = "paper"
    descent = "descent"
    rollback = "rollback"
    none = "none"


Weights = Annotated[Path | None, typer.Option(help="A run's folder of `cogd train`, or a .safetensors file.")]
Model = Annotated[
    str | None, typer.Option(help='A network\'s name, or "package.module:function" that makes yours; it is run.')
]
Source = Annotated[str | None, typer.Option(help='"digits", "cifar10:DIR" or "folder:DIR_OR_ZIP"; the run\'s own.')]
Output = Annotated[Path, typer.Option("--output", "-o", help="The folder for the small network.")]
Macs = Annotated[float | None, typer.Option(help="Share of multiply-accumulates to keep; 0.5 without a target.")]
Params = Annotated[float | None, typer.Option(help="Or the share of parameters.")]
Time = Annotated[float | None, typer.Option(help="Or the share of a forward pass's time, measured here.")]
Active = Annotated[float | None, typer.Option(help="Or the share of every layer's channels: CoGD-a.")]
Distill = Annotated[
    Teaching, typer.Option(help="Learn from its own answers (gal), labels too (kd), labels alone (none).")
]
Rule = Annotated[RuleName | None, typer.Option(help="How gates and filters are coordinated; paper.")]
Order = Annotated[int | None, typer.Option(min=1, help="Exponent of the rule's kernel; 1.")]
Scale = Annotated[float | None, typer.Option(min=0, help="Strength of the rule; 0.001.")]
Penalty = Annotated[float, typer.Option(min=0, help="Weight of the gates' l1 norm.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Of learning masks; the data's recipe says how many.")]
Tuning = Annotated[int | None, typer.Option(min=1, help="Of fine-tuning, likewise.")]
RoundTo = Annotated[int, typer.Option(min=1, help="Every layer keeps a multiple of so many channels.")]
Ignore = Annotated[list[str] | None, typer.Option(help="A module that keeps its channels; may be given again.")]


def prune(
    context: typer.Context,
    weights: Weights = None,
    model: Model = None,
    data: Source = None,
    output: Output = Path("small"),
    target_macs: Macs = None,
    target_params: Params = None,
    target_latency: Time = None,
    active: Active = None,
    distill: Distill = Teaching.gal,
    rule: Rule = None,
    order: Order = None,
    scale: Scale = None,
    penalty: Penalty = 0.01,
    epochs: Epochs = None,
    finetune_epochs: Tuning = None,
    round_to: RoundTo = 1,
    ignore: Ignore = None,
    seed: Seed = 0,
    device: OnDevice = Device.auto,
    quiet: Quiet = False,
) -> Answer:
    """Make a trained network smaller, to a target.

    Masks are learned, the channels behind the smallest are removed, and what is left is fine-tuned and saved with its
    report. The run is kept beside the output, in small.run, so that the same command goes on after Ctrl-C. Time is that
    of two examples; `cogd latency` measures other batches.

    Examples:
      cogd prune --weights runs/digits                       # half the multiply-accumulates
      cogd prune --weights runs/digits --active 0.8 --rule none --epochs 20 -o smaller
      cogd prune --model resnet56 --weights W.safetensors --data cifar10:data --round-to 8
      cogd prune --model package.module:function --weights W.safetensors --target-latency 0.6
    """
    _refuse_a_used_folder(output)
    targets = {"target_macs": target_macs, "target_params": target_params, "target_latency": target_latency}
    learning: dict[str, Any] = {"active": active, "epochs": epochs, "order": order, "scale": scale}
    if rule is not None:
        learning["rule"] = None if rule is RuleName.none else rule.value
    rest: dict[str, Any] = {
        "distill": distill.value,
        "penalty": penalty,
        "finetune_epochs": finetune_epochs,
        "round_to": round_to,
    }
    rest |= {"ignore": ignore or (), "seed": seed, "device": device.value, "progress": not quiet}
    with importable_here():
        trained = _trained(weights, model, data)
        _check(trained, targets, learning)
        pruned = _pruned(trained, _beside(output), {**targets, **learning, **rest})
        if pruned is None:
            return Answer({"status": "stopped"}, "stopped; the same command goes on", INTERRUPTED)
        note("measuring latency", quiet)
        pruned.save(output, builder=trained.builder, arguments=trained.arguments, command=context.obj)
        report = pruned.report()
    return Answer({"folder": output, **report}, _shown(report, output))


@dataclass(frozen=True)
class Trained:
    """A network to prune, the data that it was trained on, and what makes it."""

    network: "nn.Module"
    data: "Data"
    builder: str
    arguments: dict[str, Any]


def _refuse_a_used_folder(output: Path) -> None:
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise typer.BadParameter(f"-o {output} is there and not empty; name another folder.")


def _beside(output: Path) -> Path:
    """Return the folder of the run: `small.run` for `small`."""
    output = output if output.name else output.resolve()
    return output.with_name(f"{output.name}.run")


def _trained(weights: Path | None, model: str | None, source: str | None) -> Trained:
    """Return the network with its weights; a run says itself what network it is, and of which data."""
    from cogd.models import build
    from cogd.pruning.artefact import imported, refuse_differences, shapes
    from cogd.pruning.refusals import check_plain
    from cogd.training.data import load_data
    from cogd.training.run import load_run

    if weights is None:
        raise typer.BadParameter(_how_to_get_weights(model, source))
    run = load_run(weights) if weights.is_dir() else None
    tensors = _tensors(weights) if run is None else run.weights
    with usage_errors():
        data = load_data(source or (run.config["source"] if run else "digits"))
        name = model or (run.config["model"]["name"] if run else DEFAULTS[data.source.partition(":")[0]][0])
        arguments = {} if ":" in name else {"num_classes": len(data.classes)}
        network = imported(name)() if ":" in name else build(name, **arguments)
    check_plain(network)
    refuse_differences(f"--weights {weights}", shapes(tensors), name, shapes(network.state_dict()))
    network.load_state_dict(tensors)
    return Trained(network, data, name, arguments)


def _how_to_get_weights(model: str | None, source: str | None) -> str:
    kind = (source or "digits").partition(":")[0]
    made = f"`cogd train{f' --data {source}' if source else ''}{f' --model {model}' if model else ''} -o runs/{kind}`"
    if model and ":" in model:
        made = "safetensors.torch.save_file(model.state_dict(), FILE)"
    return f"a trained network is pruned: give its --weights, a run's folder or a .safetensors file; {made} makes one."


def _tensors(file: Path) -> "dict[str, Tensor]":
    from cogd.pruning.artefact import read_tensors

    if not file.is_file():
        raise FileNotFoundError(f"--weights {file} isn't there; name a run's folder or a .safetensors file.")
    return read_tensors(file, file.read_bytes())


def _check(trained: Trained, targets: dict[str, float | None], learning: dict[str, Any]) -> None:
    """Refuse as a usage error what can be told without the network."""
    from cogd.pruning.budget import one_target
    from cogd.pruning.settings import learning_recipe

    shares = {name.removeprefix("target_"): share for name, share in targets.items()}
    with usage_errors():
        one_target(**shares, active=learning["active"])
        learning_recipe(None, trained.data, **learning)


def _pruned(trained: Trained, folder: Path, options: dict[str, Any]) -> "Pruned | None":
    """Prune the network in a folder; None where that was stopped."""
    from cogd.pruning import prune
    from cogd.pruning.budget import BudgetWarning

    try:
        with warnings.catch_warnings(action="ignore", category=BudgetWarning):  # the report says it
            pruned = prune(trained.network, trained.data, folder=folder, **options)
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(f"what is done is kept in {folder}; the same command goes on from there") from interrupt
    return None if pruned.status == "stopped" else pruned


def _shown(report: dict[str, Any], output: Path) -> Any:
    """Return the report as tables and sentences."""
    from rich.console import Group
    from rich.table import Table

    stages = Table("", "before", "pruned", "fine-tuned")
    for name, change in (("multiply-accumulates", report["macs"]), ("parameters", report["parameters"])):
        stages.add_row(name, f"{change['before']:,}", f"{change['after']:,} ({change['share']:.1%})", "")
    for name in report["metrics"]["before"]:
        stages.add_row(name, *(f"{report['metrics'][stage][name]:.4f}" for stage in ("before", "after", "fine_tuned")))
    layers = Table("layer", "channels", "before")
    for name, (kept, of) in report["channels"].items():
        layers.add_row(name, str(kept), str(of))
    [(argument, share)] = report["target"].items()
    latency = report["latency"]["findings"] if report["latency"] else []
    said = [
        f"asked for {argument.replace('_', ' ')} {share:g}, reached {report['reached']['median']:.3f}",
        *(f"latency: {finding}" for finding in latency),
        *report["notes"],
    ]
    return Group(layers, stages, *(f"- {sentence}" for sentence in said), f"Saved: {output}")


def register(app: typer.Typer) -> None:
    """Add this file's command to the command line."""
    add(app, prune)
