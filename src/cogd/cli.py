"""The command line: parse, call, print."""

from typing import Annotated

import typer

from cogd import __version__
from cogd.sparse_coding import commands as sparse_coding

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)
sparse_coding.add_to(app)


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


def main() -> None:
    """Run the command line."""
    app()
