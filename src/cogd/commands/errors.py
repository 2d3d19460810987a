"""What a user did wrong, or a machine ran out of, as one line instead of a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def told_plainly() -> Iterator[None]:
    """Print the message of an error that names its own remedy and exit with 1."""
    try:
        yield
    except (ValueError, TypeError, OSError, ArithmeticError, MemoryError) as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from error
