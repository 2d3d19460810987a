"""`cogd learn`, `inpaint`, `reconstruct` and `show`: parse, call, answer."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cogd.commands.conventions import Answer, Quiet, Seed, add, note
from cogd.commands.errors import INTERRUPTED, usage_errors

if TYPE_CHECKING:
    import numpy as np

    from cogd.sparse_coding.learner import ConvDictionaryLearner, Progress

Output = Annotated[Path, typer.Option("-o", "--output", help="Where to write.")]
Dictionary = Annotated[Path, typer.Option("-d", "--dictionary", help="A dictionary that `cogd learn` wrote.")]
Penalty = Annotated[float | None, typer.Option(help="Weight of the l1 norm; by default the dictionary's own.")]


def learn(
    folder: Annotated[Path, typer.Argument(help="A folder of pictures; colours are learned from in grey.")],
    output: Output = Path("dict.safetensors"),
    atoms: Annotated[int, typer.Option(help="How many atoms.")] = 100,
    atom_size: Annotated[int, typer.Option(help="Their height and width.")] = 11,
    penalty: Annotated[str, typer.Option(help='Weight of the l1 norm, or "auto".')] = "auto",
    smoothing: Annotated[
        float, typer.Option(help="Strength of the smooth part that is not learned from; 0: none.")
    ] = 5.0,
    max_iter: Annotated[int, typer.Option(help="Stop after so many iterations.")] = 100,
    time_limit: Annotated[float | None, typer.Option(help="Stop after so many seconds.")] = None,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> Answer:
    """Learn a dictionary from the pictures of a folder.

    Ctrl-C ends it and keeps what was learned; the same command then goes on, to what it would have been.

    Examples:
      cogd learn photos                                             # 100 atoms of 11 x 11
      cogd learn photos --atoms 64 --time-limit 60 -o small.safetensors
      cogd learn photos --penalty 0.1 --seed 1 --quiet --json
    """
    from cogd.sparse_coding.learner import ConvDictionaryLearner
    from cogd.sparse_coding.pictures import read_grey_folder

    with usage_errors():
        weight: float | Literal["auto"] = "auto" if penalty == "auto" else _number(penalty)
    pictures, left_out = read_grey_folder(folder)
    for reason in left_out:
        note(f"left out {reason}", quiet)
    learner = ConvDictionaryLearner(
        atoms,
        (atom_size, atom_size),
        weight,
        smoothing=smoothing,
        max_iter=max_iter,
        time_limit=time_limit,
        random_state=seed,
        on_progress=None if quiet else lambda progress: _show_progress(progress, max_iter, time_limit),
    )
    try:
        learner.fit(pictures, checkpoint=f"{output}.checkpoint")
    except KeyboardInterrupt:
        if not getattr(learner, "history_", None):
            raise
        note("interrupted; the same command goes on from here", quiet)
    learner.save(output)
    return _what_was_learned(learner, len(pictures), output)


def inpaint(
    photo: Annotated[Path, typer.Argument(help="The picture.")],
    dictionary: Dictionary,
    output: Output,
    holes: Annotated[Path | None, typer.Option(help="A picture as large, white where the photo is missing.")] = None,
    missing: Annotated[
        float | None, typer.Option(help="Or hide this share of all pixels, and say how well they come back.")
    ] = None,
    penalty: Penalty = None,
    seed: Seed = 0,
) -> Answer:
    """Fill in the missing pixels of a picture.

    All others stay as they are. --seed decides which pixels --missing hides.

    Examples:
      cogd inpaint photo.png -d dict.safetensors -o filled.png --holes scratches.png
      cogd inpaint photo.png -d dict.safetensors -o trial.png --missing 0.5   # with PSNR
    """
    from cogd.sparse_coding.pictures import read_picture, write_picture

    picture = read_picture(photo)
    hidden = _hidden_pixels(picture, holes, missing, seed)
    observed = ~hidden[None].repeat(len(picture), axis=0)
    learner, together = _load_for(dictionary, picture, penalty)
    filled = learner.inpaint(together(picture), observed=together(observed)).reshape(picture.shape)
    write_picture(output, filled)
    said = f"{output}: {hidden.mean():.1%} of {picture.shape[2]} x {picture.shape[1]} pixels filled in"
    result = Answer({"output": output, "missing": float(hidden.mean())}, said)
    return result if missing is None else _with_quality(result, picture, filled, hidden)


def reconstruct(
    photo: Annotated[Path, typer.Argument(help="The picture.")],
    dictionary: Dictionary,
    output: Output,
    penalty: Penalty = None,
) -> Answer:
    """Make a picture of its sparse codes.

    It shows what the dictionary can say of the picture.

    Examples:
      cogd reconstruct photo.png -d dict.safetensors -o sparse.png
      cogd reconstruct photo.png -d dict.safetensors -o sparse.png --penalty 0.01 --json
    """
    import numpy as np

    from cogd.sparse_coding.pictures import read_picture, write_picture

    picture = read_picture(photo)
    learner, together = _load_for(dictionary, picture, penalty)
    made = learner.reconstruct(together(picture)).reshape(picture.shape)
    write_picture(output, made)
    everywhere = np.ones(picture.shape[1:], bool)
    return _with_quality(Answer({"output": output}, str(output)), picture, made, everywhere)


def show(
    dictionary: Annotated[Path, typer.Argument(help="A dictionary that `cogd learn` wrote.")],
    output: Output = Path("dictionary.png"),
) -> Answer:
    """Say what a dictionary holds, and draw its atoms.

    Examples:
      cogd show dict.safetensors                # the drawing is dictionary.png
      cogd show dict.safetensors -o atoms.png --json
    """
    from cogd.sparse_coding.learner import ConvDictionaryLearner
    from cogd.sparse_coding.pictures import tiling, write_picture

    learner = ConvDictionaryLearner.load(dictionary)
    write_picture(output, tiling(learner.dictionary_))
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


def _load_for(path: Path, picture: "np.ndarray", penalty: float | None) -> tuple["ConvDictionaryLearner", Any]:
    """Return the learner, and how it takes the picture: channels together, or each as an image of its own."""
    from cogd.sparse_coding.checks import checked_penalty
    from cogd.sparse_coding.learner import ConvDictionaryLearner

    learner = ConvDictionaryLearner.load(path)
    if penalty is not None:
        with usage_errors():
            learner.penalty_ = checked_penalty(penalty)
    if learner.dictionary_.shape[1] == 1:
        return learner, lambda array: array[:, None]
    return learner, lambda array: array[None]


def _hidden_pixels(picture: "np.ndarray", holes: Path | None, missing: float | None, seed: int) -> "np.ndarray":
    import numpy as np

    from cogd.sparse_coding.pictures import read_holes

    if (holes is None) == (missing is None):
        raise typer.BadParameter("give either --holes HOLES.png or --missing SHARE.")
    if holes is not None:
        return read_holes(holes, picture.shape[1:])
    if missing is None or not 0 < missing < 1:
        raise typer.BadParameter(f"--missing must be a share of the pixels between 0 and 1; got {missing}.")
    return np.random.default_rng(seed).random(picture.shape[1:]) < missing


def _with_quality(answer: Answer, picture: "np.ndarray", made: "np.ndarray", where: "np.ndarray") -> Answer:
    """Add how well the pixels came back."""
    import numpy as np

    from cogd.sparse_coding.metrics import psnr, ssim

    top = float(np.iinfo(picture.dtype).max)
    decibels = psnr(picture, made, top, np.broadcast_to(where, picture.shape))
    similarity = float(np.mean([ssim(p, m, top, where) for p, m in zip(picture, made, strict=True)]))
    said = f"{answer.shown}\nPSNR {decibels:.2f} dB, SSIM {similarity:.4f} on those pixels"
    return Answer({**answer.data, "psnr": decibels, "ssim": similarity}, said)


def _show_progress(progress: "Progress", max_iter: int, time_limit: float | None) -> None:
    left = progress.seconds / progress.iteration * (max_iter - progress.iteration)
    left = left if time_limit is None else max(0.0, min(left, time_limit - progress.seconds))
    line = f"iteration {progress.iteration}/{max_iter}  objective {progress.objective:.6g}  "
    line += f"{progress.nonzeros} codes  at most {left:.0f} s left"
    if sys.stderr.isatty():
        typer.echo(f"\r{line}\033[K", err=True, nl=progress.iteration == max_iter)
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
    for command in (learn, inpaint, reconstruct, show):
        add(app, command)
