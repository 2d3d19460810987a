"""`cogd demo`."""

from pathlib import Path
from typing import Annotated

import typer

from cogd.commands.conventions import Answer, Quiet, add


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder for its files.")] = Path("runs/demo"),
    quiet: Quiet = False,
) -> Answer:
    """Run every problem of the library at a small size.

    A few minutes on a CPU, without the internet; the results come on one page, report.html. Ctrl-C keeps what is done,
    and the same command goes on from there.

    Examples:
      cogd demo              # files in runs/demo
      cogd demo -o /tmp/try  # elsewhere
    """
    from cogd.demo import run

    try:
        lines = run(output, progress=not quiet)
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(f"what is done is kept; `cogd demo -o {output}` goes on from there") from interrupt
    report = output / "report.html"
    return Answer({"report": report, "summary": lines}, "\n".join([*lines, f"Report: {report}"]))


def register(app: typer.Typer) -> None:
    """Add this file's commands to the command line."""
    add(app, demo)
