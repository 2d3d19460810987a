"""`cogd latency` and `cogd export`: what to do with a pruned network."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cogd.commands.conventions import Answer, Device, OnDevice, Quiet, add, importable_here, note
from cogd.commands.errors import usage_errors

if TYPE_CHECKING:
    from cogd.pruning.export import Exported
    from cogd.pruning.latency import Latency
    from cogd.pruning.speedup import LatencyComparison

Folder = Annotated[Path, typer.Argument(help="The folder of a pruned network.")]
Builder = Annotated[
    str | None,
    typer.Option("--model", help='What makes the network before pruning, "package.module:function"; it is run.'),
]


def latency(
    folder: Folder,
    against: Annotated[Path | None, typer.Option(help="Another pruned network to compare with.")] = None,
    model: Builder = None,
    device: OnDevice = Device.auto,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or float64.")] = "float32",
    batch: Annotated[int | None, typer.Option(help="Examples per pass; those of the folder by default.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of the CPU; as PyTorch chooses by default.")] = None,
    warm_up: Annotated[int, typer.Option(help="Rounds that don't count.")] = 10,
    rounds: Annotated[int, typer.Option(help="Rounds that do.")] = 50,
    quiet: Quiet = False,
) -> Answer:
    """Measure how much faster a pruned network is.

    The network before pruning and the pruned one take turns in one run. Where fewer multiply-accumulates (MACs) did not
    mean as much less time, it says why: bytes moved, the cost of launching operations, odd channel counts.

    Examples:
      cogd latency small                                          # on the GPU if there is one
      cogd latency small --device cpu --batch 1 --threads 1       # as on a small device
      cogd latency small --device cuda --dtype bfloat16 --batch 256 --json
      cogd latency small --model package.module:function          # a network of your own
    """
    from cogd.pruning import compare_latency, load_pruned, read_recipe
    from cogd.pruning.artefact import build_original, examples
    from cogd.pruning.latency import Conditions

    conditions: dict[str, Any] = {"device": device.value, "dtype": dtype, "batch": batch}
    conditions |= {"threads": threads, "warm_up": warm_up, "rounds": rounds}
    with usage_errors():
        Conditions(**conditions)
    recipe = read_recipe(folder)
    with importable_here():
        small = load_pruned(model, folder)
        other = build_original(model, recipe) if against is None else load_pruned(model, against)
    note(f"each network passes {warm_up + rounds} times", quiet)
    keep = recipe.keep if against is None else None
    found = compare_latency(other, small, examples(recipe), keep=keep, **conditions)
    return Answer(found.report(), _latencies(found, against))


def export(
    folder: Folder,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write an ONNX file; needs the extra export.")] = False,
    program: Annotated[bool, typer.Option("--program", help="Write a torch.export archive.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file; in FOLDER by default.")] = None,
    model: Builder = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")] = False,
) -> Answer:
    """Write a pruned network for other runtimes.

    Batches can have any size. A file is written only if its outputs are the network's, to 1e-5 of the largest; for ONNX
    onnxruntime computes them. torch.export.load unpickles what an archive tells it to: load only archives of your own,
    and pass on ONNX files.

    Examples:
      cogd export small --onnx                  # small/model.onnx
      cogd export small --program -o model.pt2  # for torch.export.load, without the network's code
      cogd export small --onnx --model package.module:function -o model.onnx
    """
    from cogd.pruning import export_onnx, export_program, load_pruned, read_recipe
    from cogd.pruning.artefact import examples

    if onnx == program:
        raise typer.BadParameter("say what to write: --onnx or --program, one of them.")
    recipe = read_recipe(folder)
    with importable_here():
        network = load_pruned(model, folder)
    write, name = (export_onnx, "model.onnx") if onnx else (export_program, "model.pt2")
    exported = write(network, examples(recipe), output or folder / name, overwrite=overwrite)
    return Answer(exported, _written(exported))


def _latencies(found: "LatencyComparison", against: Path | None) -> Any:
    from rich.console import Group
    from rich.table import Table

    conditions = found.small.conditions
    about = (
        f"{conditions.device}, {conditions.threads} threads, {conditions.dtype}, batch {conditions.batch}, "
        f"{conditions.rounds} rounds after {conditions.warm_up}"
    )
    table = Table("network", "MACs", "ms, median", "quartiles", title=about, title_justify="left")
    table.add_row(str(against or "before pruning"), *_row(found.original_work.macs, found.original))
    table.add_row("pruned", *_row(found.small_work.macs, found.small))
    return Group(table, *(f"- {sentence}" for sentence in found.findings()))


def _row(macs: int, latency: "Latency") -> list[str]:
    spread = latency.spread
    return [f"{macs:,}", f"{1e3 * spread.median:.3f}", f"{1e3 * spread.low:.3f} to {1e3 * spread.high:.3f}"]


def _written(exported: "Exported") -> str:
    sizes = ", ".join(map(str, exported.batches))
    return (
        f"{exported.path}: {exported.bytes:,} bytes, outputs differ by {exported.difference:.1e} at batches of {sizes}"
    )


def register(app: typer.Typer) -> None:
    """Add this file's commands to the command line."""
    add(app, latency)
    add(app, export)
