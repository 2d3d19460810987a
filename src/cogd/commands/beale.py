"""`cogd beale`."""

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cogd.commands.conventions import FIGURES, Answer, add, ready_to_write
from cogd.commands.errors import usage_errors


class RuleName(StrEnum):
    """The rules of coordination."""

    descent = "descent"
    paper = "paper"
    rollback = "rollback"


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
) -> Answer:
    """Follow Beale's function with and without CoGD.

    The paper's baseline problem: SGD, Momentum and Adam. From one start it draws the paths on the contours; over a grid
    it maps where CoGD ends lower, and where higher.

    Examples:
      cogd beale                                      # the paper's constants: hardly a change
      cogd beale --rule paper --order 2 --scale 0.1   # pushes x1 away from 0
      cogd beale --start -1 0.5 --scale 1 -o b.svg    # starts elsewhere
      cogd beale --grid 41 --json                     # over 1681 starts, for machines
    """
    if start and grid:
        raise typer.BadParameter("--start and --grid exclude each other: one start, or a grid of them.")
    if start and not all(map(math.isfinite, start)):
        raise typer.BadParameter(f"--start takes two finite numbers; got {start[0]} {start[1]}.")
    ready_to_write(output, FIGURES)
    from rich.console import Group

    from cogd import toy, toy_report
    from cogd.checks import check_rule

    with usage_errors():
        check_rule(rule.value, order, scale, period=1)
    starts = toy.start_grid(grid, 3.0) if grid else toy.positions([start or toy.START])
    pairs = toy.against_plain(starts, rule=rule.value, order=order, scale=scale, steps=steps)
    title = f"rule {rule.value}" + ("" if rule == "rollback" else f", order {order}, scale {scale:g}")
    if grid:
        comparisons = {name: toy.compare(*both) for name, both in pairs.items()}
        toy_report.starts_figure({title: pairs}, output)
        return Answer(comparisons, Group(toy_report.comparisons_table(comparisons, title), f"Figure: {output}"))
    toy_report.paths_figure({title: pairs}, output)
    return Answer(toy_report.endings(pairs), Group(toy_report.endings_table(pairs, title), f"Figure: {output}"))


def register(app: typer.Typer) -> None:
    """Add this file's commands to the command line."""
    add(app, beale)
