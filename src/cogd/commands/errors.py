"""What went wrong, as one paragraph on stderr and an exit code: 1 failed, 2 usage, 130 interrupted."""

import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Any

import typer
from typer.core import TyperGroup

FAILED, USAGE, INTERRUPTED = 1, 2, 130
FORESEEN = (ValueError, TypeError, OSError, ArithmeticError, MemoryError, ImportError)
UsageError: Any = typer.BadParameter.__base__  # typer has its own copy of click, which it keeps to itself


@contextmanager
def told_plainly(debug: bool = False) -> Iterator[None]:
    """Print an error that names its own remedy and exit with 1, and a warning in one line; not when debugging."""
    try:
        with nullcontext() if debug else warnings_told_plainly():
            yield
    except KeyboardInterrupt as interrupt:
        if debug:
            raise
        tell(f"interrupted; {interrupt}" if interrupt.args else "interrupted")
        raise typer.Exit(INTERRUPTED) from interrupt
    except FORESEEN as error:
        if debug or isinstance(error, BrokenPipeError):  # whoever read stdout, such as head, has seen enough
            raise
        tell(f"error: {error}")
        raise typer.Exit(FAILED) from error
    except RuntimeError as error:
        from torch import OutOfMemoryError  # here, so that a command begins without torch

        if debug or not isinstance(error, OutOfMemoryError):
            raise
        tell(f"error: the GPU's memory is not enough: {error} Smaller batches need less.")
        raise typer.Exit(FAILED) from error


@contextmanager
def warnings_told_plainly() -> Iterator[None]:
    """Print warnings without the line of code that they come from."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: tell(f"warning: {message}", "yellow")
        yield


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn what the library refuses about its arguments into a usage error, which exits with 2."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from error


class Commands(TyperGroup):
    """The commands; what cannot be parsed is one paragraph that says where help is."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **settings: Any) -> Any:
        words = sys.argv[1:] if args is None else args
        said = shlex.join(["cogd", *words])  # commands find it as context.obj
        try:
            code = super().main(args, *rest, **{"obj": said, **settings, "standalone_mode": False})
        except UsageError as error:
            where = f" `{error.ctx.command_path} --help` says more." if error.ctx else ""
            tell(f"error: {error.format_message().removeprefix('Invalid value: ')}{where}")
            code = USAGE
        except typer.Abort:
            code = INTERRUPTED
        sys.exit(code or 0)


def tell_unforeseen(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> None:
    """Stand in for Python's own traceback where an error is nothing that a user can mend."""
    tell(f"error: {kind.__name__}: {error} This is a fault of CoGD itself; the same command with --debug shows where.")


def tell(message: str, colour: str = "red") -> None:
    """Print one paragraph on stderr."""
    typer.secho(" ".join(message.split("\n")), fg=colour, err=True)
