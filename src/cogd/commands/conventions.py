"""What all commands share: their common options, how they answer people and machines, and their examples."""

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cogd.commands.errors import told_plainly

if TYPE_CHECKING:
    from rich.console import RenderableType


class Device(StrEnum):
    """Where a command computes; auto is the GPU if there is one."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


OnDevice = Annotated[Device, typer.Option(help="Where to compute; auto is the GPU if there is one.")]
Seed = Annotated[int, typer.Option(min=0, help="Of everything random: the same seed gives the same result.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result alone: no progress, no notes.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for machines.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
FIGURES = (".png", ".svg", ".pdf")
AnswerFile = Annotated[Path | None, typer.Option("--output", "-o", help="Also write the answer there, as JSON.")]
COMMON: dict[str, tuple[Any, Any]] = {  # with their defaults
    "output": (AnswerFile, None),
    "quiet": (Quiet, False),
    "as_json": (AsJson, False),
    "debug": (Debug, False),
}


@dataclass(frozen=True)
class Answer:
    """A command's result: `data` that JSON can hold, and the same for people, as text or as what rich draws."""

    data: Any
    shown: "RenderableType"
    exit_code: int = 0


def add(app: typer.Typer, command: Callable[..., Answer], **settings: Any) -> None:
    """Register a command with what all commands share.

    The command returns its `Answer` and raises what the library raises. It gets --quiet, --json, --debug and, for the
    answer, --output; one that has something to keep quiet, or writes something else, declares `quiet: Quiet = False` or
    `output` itself. Its docstring ends with "Examples:", one command
    line each, and after a # what it does.
    """
    own = inspect.signature(command)
    missing = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in COMMON.items()
        if name not in own.parameters
    ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        with told_plainly(given["debug"]):
            file = None if "output" in own.parameters else given["output"]
            if file is not None:
                ready_to_write(file)
            answer = command(**{name: value for name, value in given.items() if name in own.parameters})
            if file is not None:
                file.write_text(as_json(answer.data) + "\n")
            show(answer, given["as_json"])
        raise typer.Exit(answer.exit_code)

    whole = own.replace(parameters=[*own.parameters.values(), *missing], return_annotation=None)
    run.__signature__ = whole  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in whole.parameters.items()}
    app.command(help=_unwrapped_examples(command), **settings)(run)


def show(answer: Answer, for_machines: bool) -> None:
    """Print an answer on stdout."""
    if for_machines:
        typer.echo(as_json(answer.data))
    elif isinstance(answer.shown, str):
        typer.echo(answer.shown)
    else:
        from rich.console import Console

        Console().print(answer.shown)


def as_json(data: Any) -> str:
    """Return data as JSON, which has no numbers that are not finite: null stands for them.

    >>> print(as_json({"deviation": float("nan"), "folder": Path("runs")}))
    {
     "deviation": null,
     "folder": "runs"
    }
    """
    text = json.dumps(data, default=_plain)
    return json.dumps(json.loads(text, parse_constant=lambda _: None), indent=1)


def ready_to_write(output: Path, suffixes: Collection[str] = (), option: str = "-o") -> None:
    """Make an output's folder; refuse before the work what could not be written after it."""
    if suffixes and output.suffix.lower() not in suffixes:
        raise typer.BadParameter(f"{option} {output} must end in one of {', '.join(suffixes)}.")
    if output.is_dir():
        raise typer.BadParameter(f"{option} {output} is a folder; name a file.")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(output if output.exists() else output.parent, os.W_OK):
            raise PermissionError("it may not be written")
    except OSError as error:
        raise typer.BadParameter(f"cannot write {option} {output}: {error.strerror or error}.") from error


def note(message: str, quiet: bool) -> None:
    """Say something on stderr that is not the result."""
    if not quiet:
        typer.echo(message, err=True)


@contextmanager
def importable_here() -> Iterator[None]:
    """Let Python find modules of the working directory, as `python -m` does."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _unwrapped_examples(command: Callable[..., Answer]) -> str:
    """Return the docstring with the mark that keeps the lines of its examples as they are."""
    return (inspect.getdoc(command) or "").replace("\n\nExamples:", "\n\n\b\nExamples:")


def _plain(value: Any) -> Any:
    """Return what JSON can hold of a dataclass or a path."""
    return str(value) if hasattr(value, "__fspath__") else asdict(value)
