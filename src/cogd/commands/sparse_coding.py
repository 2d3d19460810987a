"""`cogd learn` and `cogd show`: dictionaries made and looked at."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cogd.commands.beale import RuleName
from cogd.commands.conventions import FIGURES, Answer, Device, OnDevice, Quiet, Seed, add, note, ready_to_write
from cogd.commands.errors import INTERRUPTED, usage_errors

if TYPE_CHECKING:
    from cogd.sparse_coding.learner import ConvDictionaryLearner, Progress

Output = Annotated[Path, typer.Option("-o", "--output", help="Where to write.")]


class SolverName(StrEnum):
    """What minimises."""

    working_set = "working_set"
    ffcsc = "ffcsc"


def learn(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="A folder of pictures.")],
    output: Output = Path("dict.safetensors"),
    atoms: Annotated[int, typer.Option(help="How many atoms.")] = 100,
    atom_size: Annotated[int, typer.Option(help="Their height and width.")] = 11,
    penalty: Annotated[str, typer.Option(help='Weight of the l1 norm, or "auto".')] = "auto",
    smoothing: Annotated[
        float, typer.Option(help="Strength of the smooth part that is not learned from; 0: none.")
    ] = 5.0,
    rule: Annotated[
        RuleName | None, typer.Option(help="The coordination of codes and atoms; none unless given.")
    ] = None,
    order: Annotated[int, typer.Option(help="Exponent of the rule's kernel.")] = 1,
    scale: Annotated[float, typer.Option(help="|beta| = scale * step of the codes * |c|.")] = 1.0,
    solver: Annotated[
        SolverName, typer.Option(help="Coordinate descent on few codes, or the paper's baseline.")
    ] = SolverName.working_set,
    colour: Annotated[bool, typer.Option("--colour", help="Learn atoms in colour, not in grey.")] = False,
    batch_size: Annotated[
        int | None, typer.Option(help="Learn from so many pictures at a time, for more than fit into memory.")
    ] = None,
    max_iter: Annotated[int, typer.Option(help="Stop after so many iterations, batches with --batch-size.")] = 100,
    time_limit: Annotated[float | None, typer.Option(help="Stop after so many seconds.")] = None,
    seed: Seed = 0,
    device: OnDevice = Device.auto,
    quiet: Quiet = False,
) -> Answer:
    """Learn a dictionary from the pictures of a folder.

    Ctrl-C ends it and keeps what was learned; the same command then goes on, to what it would have been. Once it is
    complete, the same command learns anew.

    Examples:
      cogd learn photos                                             # 100 atoms of 11 x 11
      cogd learn photos --atoms 64 --time-limit 60 -o small.safetensors
      cogd learn photos --colour --batch-size 8 --max-iter 500      # a large folder
      cogd learn photos --penalty 0.1 --seed 1 --device cpu --quiet --json
      cogd learn photos --rule paper --order 2 --solver ffcsc       # the paper; pictures of one size
    """
    from cogd.sparse_coding.checks import check_parameters
    from cogd.sparse_coding.learner import ConvDictionaryLearner
    from cogd.sparse_coding.pictures import picture_folder

    with usage_errors():
        weight: float | Literal["auto"] = "auto" if penalty == "auto" else _number(penalty)
    ready_to_write(output)
    learner = ConvDictionaryLearner(
        atoms,
        (atom_size, atom_size),
        weight,
        rule=None if rule is None else rule.value,
        order=order,
        scale=scale,
        solver=solver.value,
        smoothing=smoothing,
        batch_size=batch_size,
        max_iter=max_iter,
        time_limit=time_limit,
        device=device.value,
        random_state=seed,
        on_progress=None if quiet else lambda progress: _show_progress(progress, max_iter, time_limit),
    )
    with usage_errors():
        check_parameters(learner)
    pictures, left_out = picture_folder(folder, colour, (atom_size, atom_size))
    for reason in left_out:
        note(f"left out {reason}", quiet)
    checkpoint = Path(f"{output}.checkpoint")
    try:
        with _line_of_progress(quiet):
            learner.fit(pictures, checkpoint=checkpoint, keep_checkpoint=True)
    except KeyboardInterrupt:
        if not getattr(learner, "history_", None):
            raise
        note("interrupted; the same command goes on from here", quiet)
    learner.save(output, command=context.obj)
    if learner.status_ != "interrupted":
        checkpoint.unlink(missing_ok=True)
    return _what_was_learned(learner, len(pictures), output)


def show(
    dictionary: Annotated[Path, typer.Argument(help="A dictionary that `cogd learn` wrote.")],
    output: Output = Path("dictionary.png"),
) -> Answer:
    """Say what a dictionary holds, and draw it.

    The drawing has the atoms, the objective against time, and how much each atom carries.

    Examples:
      cogd show dict.safetensors                # the drawing is dictionary.png
      cogd show dict.safetensors -o atoms.pdf --json
    """
    from cogd.sparse_coding.figures import dictionary_figure
    from cogd.sparse_coding.learner import ConvDictionaryLearner

    ready_to_write(output, FIGURES)
    learner = ConvDictionaryLearner.load(dictionary)
    dictionary_figure(learner, output)
    count, channels, height, width = learner.dictionary_.shape
    about = {
        "output": output,
        "atoms": count,
        "channels": channels,
        "atom_shape": [height, width],
        "penalty": learner.penalty_,
        "iterations": len(learner.history_),
        "status": learner.status_,
    }
    shown = (
        f"{count} atoms of {height} x {width}, {channels} channel(s), penalty {learner.penalty_:.4g}\n"
        f"learned in {len(learner.history_)} iterations, ended by {learner.status_}; drawn in {output}"
    )
    return Answer(about, shown)


@contextmanager
def _line_of_progress(quiet: bool) -> Iterator[None]:
    """End the line that progress is written over, however it ends."""
    try:
        yield
    finally:
        if not quiet and sys.stderr.isatty():
            typer.echo(err=True)


def _show_progress(progress: "Progress", max_iter: int, time_limit: float | None) -> None:
    left = progress.seconds / progress.iteration * (max_iter - progress.iteration)
    left = left if time_limit is None else max(0.0, min(left, time_limit - progress.seconds))
    line = f"iteration {progress.iteration}/{max_iter}  objective {progress.objective:.6g}  "
    line += f"{progress.nonzeros} codes  at most {left:.0f} s left"
    if sys.stderr.isatty():
        typer.echo(f"\r{line}\033[K", err=True, nl=False)
    elif progress.iteration == 1 or progress.iteration % 10 == 0:
        typer.echo(line, err=True)


def _what_was_learned(learner: "ConvDictionaryLearner", n_pictures: int, output: Path) -> Answer:
    last = learner.history_[-1] if learner.history_ else None
    ending = f"objective {last.objective:.6g} after {last.seconds:.1f} s" if last else "no iteration"
    data = {
        "output": output,
        "pictures": n_pictures,
        "atoms": learner.n_atoms,
        "penalty": learner.penalty_,
        "iterations": len(learner.history_),
        "objective": last and last.objective,
        "seconds": last and last.seconds,
        "status": learner.status_,
    }
    said = (
        f"{output}: {learner.n_atoms} atoms from {n_pictures} pictures, penalty {learner.penalty_:.4g}, {ending}, "
        f"ended by {learner.status_}"
    )
    return Answer(data, said, INTERRUPTED if learner.status_ == "interrupted" else 0)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f'--penalty must be a number > 0 or "auto"; got {text!r}.') from None


def register(app: typer.Typer) -> None:
    """Add this file's commands to the command line."""
    for command in (learn, show):
        add(app, command)
