"""`cogd report`."""

from pathlib import Path
from typing import Annotated

import typer

from cogd.commands.conventions import Answer, Quiet, add, note, ready_to_write


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUNS...", help="Folders and files of results; folders with all below them.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Its heading.")] = "CoGD report",
    quiet: Quiet = False,
) -> Answer:
    """Put results on one HTML page that needs nothing else.

    Pictures, tables, settings, versions and commands of trainings, dictionaries, restored pictures, paths on Beale's
    function, and the results files of experiments and benchmarks.

    Examples:
      cogd report runs                                 # everything below runs/
      cogd report runs/plain runs/cogd -o both.html    # two folders of seeds side by side
      cogd report experiments/results benchmarks/results -o results.html
    """
    from cogd.report import write_report

    ready_to_write(output, (".html", ".htm"))
    left_out = write_report(runs, output, title)
    for reason in left_out:
        note(f"left out: {reason}", quiet)
    return Answer({"report": output, "left_out": left_out}, str(output))


def register(app: typer.Typer) -> None:
    """Add this file's commands to the command line."""
    add(app, report)
