"""`cogd demo`."""

from pathlib import Path
from typing import Annotated

import typer

from cogd.commands.conventions import Answer, add


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder for its files.")] = Path("runs/demo"),
) -> Answer:
    """Run the main jobs at a small size.

    For now that is Beale's function with CoGD and without: a figure, a JSON file and a summary of five lines, in a few
    seconds on a CPU.

    Examples:
      cogd demo              # files in runs/demo
      cogd demo -o /tmp/try  # elsewhere
    """
    from cogd.demo import run

    lines = run(output)
    return Answer({"folder": output, "summary": lines}, "\n".join(lines))


def register(app: typer.Typer) -> None:
    """Add this file's commands to the command line."""
    add(app, demo)
