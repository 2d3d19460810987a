"""Restored pictures beside what they were restored from, and the atoms of dictionaries."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from cogd.report.beale import origin
from cogd.report.blocks import ABSENT, Charts, Picture, Section, Slider, Sliders, Table
from cogd.report.collect import Results
from cogd.report.documents import InpaintedPicture, Point
from cogd.report.drawing import chart, line_style, png
from cogd.sparse_coding import ConvDictionaryLearner
from cogd.sparse_coding.pictures import read_picture, tiling

ENDINGS = {
    "tol": "converged",
    "max_iter": "at the limit of iterations",
    "time_limit": "at the limit of time",
    "interrupted": "interrupted",
    "partial_fit": "with its last batch",
}


def inpainting_sections(found: Sequence[Results]) -> list[Section]:
    """Return a section of all restored pictures."""
    sliders = [slider for r in found for slider in _sliders(r.content.inpainting, r.path.parent)]
    rows = [_row(results.content.inpainting) for results in found]
    table = Table("Quality on the hidden pixels alone.", ["picture", "missing", "PSNR", "SSIM", "seconds"], rows)
    verdict = " ".join(_said(results.content.inpainting) for results in found)
    first: InpaintedPicture = found[0].content.inpainting
    headline = "" if first.psnr is None else f"{first.psnr:.1f} dB on the hidden pixels"
    origins = [origin(results) for results in found]
    return [Section("Missing pixels, restored", verdict, [Sliders(sliders), table], origins, headline)]


def dictionary_sections(found: Sequence[Results]) -> list[Section]:
    """Return a section for every dictionary."""
    return [_dictionary(results) for results in found]


def _sliders(picture: InpaintedPicture, folder: Path) -> list[Slider]:
    """Return a slider from the holes to what fills them, and where the original is known one from that to it."""
    holes, restored = (read_picture(folder / name) for name in (picture.holes, picture.restored))
    damaged = np.where(holes[:1] > np.iinfo(holes.dtype).max // 2, np.iinfo(restored.dtype).max, restored)
    size, missing = (restored.shape[2], restored.shape[1]), f"{picture.missing:.0%}"
    filled = png(_eight_bit(restored))
    sliders = [
        Slider(
            png(_eight_bit(damaged)),
            filled,
            f"{missing} missing",
            "restored",
            f"{picture.name}, with {missing} of its pixels missing and restored",
            "White is missing. Pixels that were seen are unchanged. Drag, or use the arrow keys.",
            size,
        )
    ]
    if picture.original is not None:
        original = png(_eight_bit(read_picture(folder / picture.original)))
        labels = "restored", "original"
        said = f"{picture.name}, restored and as it was"
        sliders.append(Slider(filled, original, *labels, said, f"{picture.name}, beside what was hidden.", size))
    return sliders


def _row(picture: InpaintedPicture) -> list[str]:
    figures = (picture.psnr, "{:.2f} dB"), (picture.ssim, "{:.4f}"), (picture.seconds, "{:.1f}")
    return [picture.name, f"{picture.missing:.1%}", *(ABSENT if v is None else form.format(v) for v, form in figures)]


def _said(picture: InpaintedPicture) -> str:
    known = "" if picture.psnr is None else f", PSNR {picture.psnr:.2f} dB on those pixels"
    return f"{picture.name}: {picture.missing:.0%} of the pixels filled in{known}."


def _dictionary(results: Results) -> Section:
    learner: ConvDictionaryLearner = results.content.learner
    count, channels, height, width = learner.dictionary_.shape
    tiles = tiling(learner.dictionary_)
    picture = Picture(
        png(tiles),
        f"{count} atoms of {height} by {width} pixels in a square, each at its own contrast",
        "The atoms, each at its own contrast.",
        (tiles.shape[-1], tiles.shape[-2]),
    )
    history = [(progress.seconds, progress.objective) for progress in learner.history_]
    size, penalty = f"{height} × {width}", f"{learner.penalty_:.4g}"
    ended = ENDINGS.get(learner.status_, learner.status_)
    rows = [["atoms", str(count)], ["size", size], ["channels", str(channels)], ["penalty", penalty]]
    rows += [["iterations", str(len(history))], ["ended", ended]]
    learned = f", learned in {history[-1][0]:.1f} s" if history else ""
    curve = [_objective(history)] if len(history) > 1 else []
    return Section(
        "A dictionary of atoms",
        f"{count} atoms of {size} pixels{learned}.",
        [picture, *curve, Table(f"The dictionary in {results.path.name}.", ["property", "value"], rows)],
        [origin(results)],
        f"{count} atoms{learned}",
    )


def _objective(history: Sequence[Point]) -> Charts:
    seconds, objective = np.array(history).T

    def draw(axes: Axes) -> None:
        axes.plot(seconds, objective, **line_style(0))
        axes.set(xlabel="seconds", ylabel="objective", xlim=(0, None))

    words = f"The objective goes from {objective[0]:.6g} to {objective[-1]:.6g} in {seconds[-1]:.1f} seconds."
    return Charts([chart("Objective against time", words, draw)], words)


def _eight_bit(picture: np.ndarray) -> np.ndarray:
    return picture if picture.dtype == np.uint8 else (picture >> 8).astype(np.uint8)
