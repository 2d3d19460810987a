"""The command line: every command of `cogd.commands`. Nothing here imports torch before a command needs it."""

import sys
from typing import Annotated

import typer
from typer.main import get_command

from cogd.commands import beale, demo, doctor, pictures, pruning, report, small_networks, sparse_coding, training
from cogd.commands.errors import Commands, tell_unforeseen

# Plain help: drawing it with rich would take as long again as everything else that `cogd --help` does.
app = typer.Typer(cls=Commands, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def cogd(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version.")] = False,
) -> None:
    """Cogradient descent for coupled variables in PyTorch.

    `cogd COMMAND --help` has examples of each command. Every command prints JSON with --json, only its result with
    --quiet, and the traceback of an error with --debug; -o names what it writes, or a file for that JSON. Progress and
    errors go to stderr. The exit code is 0, or 1 where the command failed, 2 where it cannot be understood, 130 where
    it was interrupted.
    """
    if version:
        from cogd import __version__

        typer.echo(f"cogd {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


for commands in (demo, beale, sparse_coding, pictures, training, pruning, small_networks, report, doctor):
    commands.register(app)


def main() -> None:
    """Run the command line."""
    if "--debug" not in sys.argv:
        sys.excepthook = tell_unforeseen
    get_command(app)()
