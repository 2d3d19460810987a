"""The command line: parse, call, print. Nothing here imports torch before a command needs it."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from cogd import __version__
from cogd.commands import sparse_coding, training

app = typer.Typer(
    no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)
FIGURES = (".png", ".svg", ".pdf")


class RuleName(StrEnum):
    """The rules of coordination."""

    descent = "descent"
    paper = "paper"
    rollback = "rollback"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cogd {__version__}")
        raise typer.Exit


@app.callback()
def cogd(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Cogradient descent for coupled variables in PyTorch."""


@app.command()
def beale(
    rule: Annotated[RuleName, typer.Option(help="Sign of the total derivative, printed sign, or rollback.")] = (
        RuleName.descent
    ),
    order: Annotated[int, typer.Option(help="Exponent of the kernel.")] = 1,
    scale: Annotated[float, typer.Option(help="|beta| = scale * learning rate * |c|; the paper's is 0.001.")] = 1e-3,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each optimizer.")] = 200,
    start: Annotated[tuple[float, float] | None, typer.Option(help="x1 and x2; 0.5 1.5 unless given.")] = None,
    grid: Annotated[
        int | None, typer.Option(min=2, max=301, help="Compare over N x N starts in [-3, 3]^2 instead.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The figure: .png, .svg or .pdf.")] = Path(
        "runs/beale.png"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """The paper's baseline problem: SGD, Momentum and Adam on Beale's function, with CoGD and without.

    From one start it draws the paths on the contours; over a grid it maps where CoGD ends lower, and where higher.

    For example,

    - `cogd beale` follows the paths with the paper's constants, which hardly changes them

    - `cogd beale --rule paper --order 2 --scale 0.1` pushes x1 away from 0

    - `cogd beale --start -1 0.5 --scale 1 -o paths.svg` starts elsewhere

    - `cogd beale --grid 41 --json` compares over 1681 starts, for machines
    """
    if start and grid:
        raise typer.BadParameter("--start and --grid exclude each other: one start, or a grid of them.")
    if start and not all(map(math.isfinite, start)):
        raise typer.BadParameter(f"--start takes two finite numbers; got {start[0]} {start[1]}.")
    if output.suffix not in FIGURES:
        raise typer.BadParameter(f"-o {output} must end in one of {', '.join(FIGURES)}.")
    from cogd import toy, toy_report
    from cogd.checks import check_rule

    with _usage_errors():
        check_rule(rule.value, order, scale, period=1)
    starts = toy.start_grid(grid, 3.0) if grid else toy.positions([start or toy.START])
    pairs = toy.against_plain(starts, rule=rule.value, order=order, scale=scale, steps=steps)
    title = f"rule {rule.value}" + ("" if rule == "rollback" else f", order {order}, scale {scale:g}")
    if grid:
        comparisons = {name: toy.compare(*both) for name, both in pairs.items()}
        toy_report.starts_figure({title: pairs}, output)
        _show(comparisons, toy_report.comparisons_table(comparisons, title), as_json, output)
    else:
        toy_report.paths_figure({title: pairs}, output)
        _show(toy_report.endings(pairs), toy_report.endings_table(pairs, title), as_json, output)


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder for its files.")] = Path("runs/demo"),
) -> None:
    """Run the main jobs at a small size, in a few seconds on a CPU.

    For now that is Beale's function with CoGD and without: a figure, a JSON file and a summary of five lines.
    """
    from cogd.demo import run

    typer.echo("\n".join(run(output)))


def _show(results: Any, table: Table, as_json: bool, figure: Path) -> None:
    """Print the results as JSON for machines, or the table and where the figure is."""
    if as_json:
        typer.echo(json.dumps(results, default=asdict, indent=1))
    else:
        Console().print(table, f"Figure: {figure}", sep="\n")


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Turn what the library refuses into a usage error."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from error


sparse_coding.register(app)
training.register(app)


def main() -> None:
    """Run the command line."""
    app()
