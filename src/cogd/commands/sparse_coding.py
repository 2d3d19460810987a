"""`cogd learn`, `inpaint`, `reconstruct` and `show`: parse, call, print."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cogd.commands.errors import told_plainly

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
    seed: Annotated[int, typer.Option(help="Seed of the starting dictionary.")] = 0,
) -> None:
    """Learn a dictionary from the pictures of a folder. Ctrl-C ends it and keeps what was learned."""
    with told_plainly():
        from cogd.sparse_coding.learner import ConvDictionaryLearner
        from cogd.sparse_coding.pictures import read_grey_folder

        pictures, left_out = read_grey_folder(folder)
        for reason in left_out:
            typer.echo(f"left out {reason}", err=True)
        learner = ConvDictionaryLearner(
            atoms,
            (atom_size, atom_size),
            "auto" if penalty == "auto" else _number(penalty),
            smoothing=smoothing,
            max_iter=max_iter,
            time_limit=time_limit,
            random_state=seed,
            on_progress=lambda progress: _show_progress(progress, max_iter, time_limit),
        )
        try:
            learner.fit(pictures)
        except KeyboardInterrupt:
            if not hasattr(learner, "dictionary_"):
                raise
        learner.save(output)
        _say_what_was_learned(learner, len(pictures), output)


def inpaint(
    photo: Annotated[Path, typer.Argument(help="The picture.")],
    dictionary: Dictionary,
    output: Output,
    holes: Annotated[Path | None, typer.Option(help="A picture as large, white where the photo is missing.")] = None,
    missing: Annotated[
        float | None, typer.Option(help="Or hide this share of all pixels, and say how well they come back.")
    ] = None,
    penalty: Penalty = None,
    seed: Annotated[int, typer.Option(help="Seed of which pixels --missing hides.")] = 0,
) -> None:
    """Fill in the missing pixels of a picture; all others stay as they are."""
    with told_plainly():
        from cogd.sparse_coding.pictures import read_picture, write_picture

        picture = read_picture(photo)
        hidden = _hidden_pixels(picture, holes, missing, seed)
        observed = ~hidden[None].repeat(len(picture), axis=0)
        learner, together = _load_for(dictionary, picture, penalty)
        filled = learner.inpaint(together(picture), observed=together(observed)).reshape(picture.shape)
        write_picture(output, filled)
        typer.echo(f"{output}: {hidden.mean():.1%} of {picture.shape[2]} x {picture.shape[1]} pixels filled in")
        if missing is not None:
            _say_how_good(picture, filled, hidden)


def reconstruct(photo: Path, dictionary: Dictionary, output: Output, penalty: Penalty = None) -> None:
    """Make a picture of its sparse codes: what the dictionary can say of it."""
    with told_plainly():
        import numpy as np

        from cogd.sparse_coding.pictures import read_picture, write_picture

        picture = read_picture(photo)
        learner, together = _load_for(dictionary, picture, penalty)
        made = learner.reconstruct(together(picture)).reshape(picture.shape)
        write_picture(output, made)
        typer.echo(str(output))
        _say_how_good(picture, made, np.ones(picture.shape[1:], bool))


def show(
    dictionary: Annotated[Path, typer.Argument(help="A dictionary that `cogd learn` wrote.")],
    output: Output = Path("dictionary.png"),
) -> None:
    """Say what a dictionary file holds, and draw its atoms."""
    with told_plainly():
        from cogd.sparse_coding.learner import ConvDictionaryLearner
        from cogd.sparse_coding.pictures import tiling, write_picture

        learner = ConvDictionaryLearner.load(dictionary)
        write_picture(output, tiling(learner.dictionary_))
        count, channels, height, width = learner.dictionary_.shape
        typer.echo(f"{count} atoms of {height} x {width}, {channels} channel(s), penalty {learner.penalty_:.4g}")
        typer.echo(f"learned in {len(learner.history_)} iterations, ended by {learner.status_}; drawn in {output}")


def _load_for(path: Path, picture: "np.ndarray", penalty: float | None) -> tuple["ConvDictionaryLearner", Any]:
    """Return the learner, and how it takes the picture: channels together, or each as an image of its own."""
    from cogd.sparse_coding.checks import checked_penalty
    from cogd.sparse_coding.learner import ConvDictionaryLearner

    learner = ConvDictionaryLearner.load(path)
    if penalty is not None:
        learner.penalty_ = checked_penalty(penalty)
    if learner.dictionary_.shape[1] == 1:
        return learner, lambda array: array[:, None]
    return learner, lambda array: array[None]


def _hidden_pixels(picture: "np.ndarray", holes: Path | None, missing: float | None, seed: int) -> "np.ndarray":
    import numpy as np

    from cogd.sparse_coding.pictures import read_holes

    if (holes is None) == (missing is None):
        raise ValueError("give either --holes HOLES.png or --missing SHARE.")
    if holes is not None:
        return read_holes(holes, picture.shape[1:])
    if missing is None or not 0 < missing < 1:
        raise ValueError(f"--missing must be a share of the pixels between 0 and 1; got {missing}.")
    return np.random.default_rng(seed).random(picture.shape[1:]) < missing


def _say_how_good(picture: "np.ndarray", made: "np.ndarray", where: "np.ndarray") -> None:
    import numpy as np

    from cogd.sparse_coding.metrics import psnr, ssim

    top = float(np.iinfo(picture.dtype).max)
    in_all = np.broadcast_to(where, picture.shape)
    similarity = np.mean([ssim(p, m, top, where) for p, m in zip(picture, made, strict=True)])
    typer.echo(f"PSNR {psnr(picture, made, top, in_all):.2f} dB, SSIM {similarity:.4f} on those pixels")


def _show_progress(progress: "Progress", max_iter: int, time_limit: float | None) -> None:
    left = progress.seconds / progress.iteration * (max_iter - progress.iteration)
    left = left if time_limit is None else max(0.0, min(left, time_limit - progress.seconds))
    line = f"iteration {progress.iteration}/{max_iter}  objective {progress.objective:.6g}  "
    line += f"{progress.nonzeros} codes  at most {left:.0f} s left"
    if sys.stderr.isatty():
        typer.echo(f"\r{line}\033[K", err=True, nl=progress.iteration == max_iter)
    elif progress.iteration == 1 or progress.iteration % 10 == 0:
        typer.echo(line, err=True)


def _say_what_was_learned(learner: "ConvDictionaryLearner", n_pictures: int, output: Path) -> None:
    if sys.stderr.isatty():
        typer.echo(err=True)
    last = learner.history_[-1] if learner.history_ else None
    ending = f"objective {last.objective:.6g} after {last.seconds:.1f} s" if last else "no iteration"
    typer.echo(
        f"{output}: {learner.n_atoms} atoms from {n_pictures} pictures, penalty {learner.penalty_:.4g}, {ending}, "
        f"ended by {learner.status_}"
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f'--penalty must be a number > 0 or "auto"; got {text!r}.') from None


def register(app: typer.Typer) -> None:
    """Add this file's commands to the command line."""
    for command in (learn, inpaint, reconstruct, show):
        app.command()(command)
