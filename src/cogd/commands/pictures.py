"""`cogd inpaint`, `denoise` and `reconstruct`: a picture in, a picture of the same kind out."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cogd.commands.conventions import FIGURES, Answer, Device, OnDevice, Quiet, Seed, add, note, ready_to_write
from cogd.commands.errors import usage_errors

if TYPE_CHECKING:
    import numpy as np

    from cogd.sparse_coding.learner import ConvDictionaryLearner

Photo = Annotated[Path, typer.Argument(help="The picture, in grey with 8 or 16 bits or in colour with 8.")]
Output = Annotated[Path, typer.Option("-o", "--output", help="Where to write.")]
Dictionary = Annotated[
    Path | None,
    typer.Option("-d", "--dictionary", help="A dictionary that `cogd learn` wrote; by default one that CoGD brings."),
]
Penalty = Annotated[float | None, typer.Option(help="Weight of the l1 norm; by default the dictionary's own.")]
Figure = Annotated[Path | None, typer.Option(help="Draw before and after beside each other: .png, .svg or .pdf.")]


def inpaint(
    context: typer.Context,
    photo: Photo,
    output: Output,
    dictionary: Dictionary = None,
    holes: Annotated[Path | None, typer.Option(help="A picture as large, white where the photo is missing.")] = None,
    missing: Annotated[
        float | None, typer.Option(help="Or hide this share of all pixels, and say how well they come back.")
    ] = None,
    penalty: Penalty = None,
    figure: Figure = None,
    results: Annotated[
        bool, typer.Option("--results", help="Also leave what `cogd report` needs, beside the output.")
    ] = False,
    seed: Seed = 0,
    device: OnDevice = Device.auto,
    quiet: Quiet = False,
) -> Answer:
    """Fill in the missing pixels of a picture.

    All others stay as they are. --seed decides which pixels --missing hides.

    Examples:
      cogd inpaint photo.png -o filled.png --holes scratches.png
      cogd inpaint photo.png -o trial.png --missing 0.5 --device cpu     # with PSNR
      cogd inpaint photo.png -o restored/p.png --missing 0.5 --results   # then: cogd report restored
      cogd inpaint photo.png -o filled.png --holes scratches.png -d dict.safetensors --figure both.png
    """
    from cogd.sparse_coding.checks import chosen_device
    from cogd.sparse_coding.figures import before_and_after
    from cogd.sparse_coding.pictures import LOSSLESS, SUFFIXES, write_picture
    from cogd.sparse_coding.results import write_inpainting

    _ready(output, SUFFIXES, figure)
    if output.suffix.lower() not in LOSSLESS:
        raise typer.BadParameter(f"-o {output} would alter the pixels that were seen; use {', '.join(LOSSLESS)}.")
    picture = _read(photo, output)
    hidden = _hidden_pixels(picture, holes, missing, seed)
    observed = ~hidden[None].repeat(len(picture), axis=0)
    learner, together = _load_for(dictionary, picture, penalty, device)
    chosen = {"holes": str(holes)} if missing is None else {"missing": missing, "seed": seed}
    height, width = hidden.shape
    note(f"filling {hidden.mean():.1%} of {width} x {height} pixels", quiet)
    if holes is not None and hidden.mean() > 0.5:
        note(f"most of {holes} is white, which marks what is missing; invert it if black was to", quiet)
    began = time.perf_counter()
    filled = learner.inpaint(together(picture), observed=together(observed)).reshape(picture.shape)
    if results:
        write_inpainting(
            output,
            filled,
            hidden,
            {"photo": str(photo), "dictionary": str(dictionary or "shipped"), "penalty": learner.penalty_, **chosen},
            name=photo.name,
            original=None if missing is None else picture,
            seconds=time.perf_counter() - began,
            device=chosen_device(learner.device),
            command=context.obj,
        )
    else:
        write_picture(output, filled)
    if figure is not None:
        before_and_after(picture, filled, figure, hidden)
    said = f"{output}: {hidden.mean():.1%} of {picture.shape[2]} x {picture.shape[1]} pixels filled in"
    result = Answer({"output": output, "missing": float(hidden.mean())}, said)
    return result if missing is None else _with_quality(result, picture, filled, hidden)


def denoise(
    photo: Photo,
    output: Output,
    dictionary: Dictionary = None,
    noise: Annotated[
        float | None, typer.Option(help="Its standard deviation in grey values; estimated unless given.")
    ] = None,
    figure: Figure = None,
    device: OnDevice = Device.auto,
) -> Answer:
    """Take the noise out of a picture.

    What the dictionary can't say at the price that noise of this strength sets is left out.

    Examples:
      cogd denoise photo.png -o clean.png               # the noise is estimated
      cogd denoise photo.png -o clean.png --noise 15    # of 0 to 255
    """
    from cogd.sparse_coding.checks import check_noise
    from cogd.sparse_coding.figures import before_and_after
    from cogd.sparse_coding.pictures import SUFFIXES, write_picture

    _ready(output, SUFFIXES, figure)
    picture = _read(photo, output)
    learner, together = _load_for(dictionary, picture, None, device)
    with usage_errors():
        check_noise(noise)
    levels = [noise] * len(together(picture)) if noise is not None else learner.noise_levels(together(picture))
    cleaned = learner.denoise(together(picture), noise=noise).reshape(picture.shape)
    write_picture(output, cleaned)
    if figure is not None:
        before_and_after(picture, cleaned, figure)
    shown = ", ".join(f"{level:.3g}" for level in levels)
    return Answer({"output": output, "noise": levels}, f"{output}: noise of {shown} taken out")


def reconstruct(
    photo: Photo,
    output: Output,
    dictionary: Dictionary = None,
    penalty: Penalty = None,
    device: OnDevice = Device.auto,
) -> Answer:
    """Make a picture of its sparse codes.

    It shows what the dictionary can say of the picture.

    Examples:
      cogd reconstruct photo.png -o sparse.png
      cogd reconstruct photo.png -d dict.safetensors -o sparse.png --penalty 0.01 --json
    """
    import numpy as np

    from cogd.sparse_coding.pictures import SUFFIXES, write_picture

    ready_to_write(output, SUFFIXES)
    picture = _read(photo, output)
    learner, together = _load_for(dictionary, picture, penalty, device)
    made = learner.reconstruct(together(picture)).reshape(picture.shape)
    write_picture(output, made)
    everywhere = np.ones(picture.shape[1:], bool)
    return _with_quality(Answer({"output": output}, str(output)), picture, made, everywhere)


def _ready(output: Path, suffixes: tuple[str, ...], figure: Path | None) -> None:
    """Refuse before the work what could not be written after it."""
    ready_to_write(output, suffixes)
    if figure is not None:
        ready_to_write(figure, FIGURES, "--figure")


def _read(photo: Path, output: Path) -> "np.ndarray":
    """Return the picture; refuse an output that is the photo itself, or cannot hold its depth."""
    from cogd.sparse_coding.pictures import check_suffix, read_picture

    if photo.exists() and output.exists() and output.samefile(photo):
        raise typer.BadParameter(f"-o {output} is the photo itself, which would be lost; give another name.")
    picture = read_picture(photo)
    with usage_errors():
        check_suffix(output, picture.dtype)
    return picture


def _load_for(
    path: Path | None, picture: "np.ndarray", penalty: float | None, device: Device
) -> tuple["ConvDictionaryLearner", Any]:
    """Return the learner, and how it takes the picture: channels together, or each as an image of its own."""
    from cogd.sparse_coding.checks import checked_penalty
    from cogd.sparse_coding.learner import ConvDictionaryLearner

    learner = ConvDictionaryLearner.shipped(len(picture)) if path is None else ConvDictionaryLearner.load(path)
    learner.device = device.value
    if penalty is not None:
        with usage_errors():
            learner.penalty_ = checked_penalty(penalty)
    if learner.dictionary_.shape[1] == 1:
        return learner, lambda array: array[:, None]
    if len(picture) == 1:
        raise ValueError(f"{str(path)!r} has atoms in colour and the picture is grey; learn without --colour.")
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
    from cogd.sparse_coding.results import quality

    found = quality(picture, made, where)
    said = f"{answer.shown}\nPSNR {found['psnr']:.2f} dB, SSIM {found['ssim']:.4f} on those pixels"
    return Answer({**answer.data, **found}, said)


def register(app: typer.Typer) -> None:
    """Add this file's commands to the command line."""
    for command in (inpaint, denoise, reconstruct):
        add(app, command)
