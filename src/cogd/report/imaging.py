"""Restored pictures beside what they were restored from, and the atoms of dictionaries."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from cogd.report.beale import origin
from cogd.report.blocks import ABSENT, Charts, Origin, Picture, Section, Slider, Sliders, Table, shown
from cogd.report.collect import Results
from cogd.report.documents import InpaintedPicture, Point
from cogd.report.drawing import chart, line_style, png
from cogd.sparse_coding import ConvDictionaryLearner
from cogd.sparse_coding.pictures import read_picture, tiling


def inpainting_sections(found: Sequence[Results]) -> list[Section]:
    """Return a section of all restored pictures."""
    sliders = Sliders([_slider(results.content.inpainting, results.path.parent) for results in found])
    rows = [_row(results.content.inpainting) for results in found]
    table = Table("Quality on the hidden pixels alone.", ["picture", "missing", "PSNR", "SSIM", "seconds"], rows)
    verdict = " ".join(_said(results.content.inpainting) for results in found)
    return [Section("Missing pixels, restored", verdict, [sliders, table], [origin(results) for results in found])]


def dictionary_sections(found: Sequence[Results]) -> list[Section]:
    """Return a section for every dictionary."""
    return [_dictionary(results) for results in found]


def _slider(picture: InpaintedPicture, folder: Path) -> Slider:
    holes, restored = (read_picture(folder / name) for name in (picture.holes, picture.restored))
    damaged = np.where(holes[:1] > np.iinfo(holes.dtype).max // 2, np.iinfo(restored.dtype).max, restored)
    return Slider(
        png(_eight_bit(damaged)),
        png(_eight_bit(restored)),
        f"{picture.missing:.0%} missing",
        "restored",
        f"{picture.name}, with {picture.missing:.0%} of its pixels missing and restored",
        f"{picture.name}: what is missing is white. Pixels that were seen are unchanged.",
        (restored.shape[2], restored.shape[1]),
    )


def _row(picture: InpaintedPicture) -> list[str]:
    figures = (picture.psnr, "{:.2f} dB"), (picture.ssim, "{:.4f}"), (picture.seconds, "{:.1f}")
    return [picture.name, f"{picture.missing:.1%}", *(ABSENT if v is None else form.format(v) for v, form in figures)]


def _said(picture: InpaintedPicture) -> str:
    known = "" if picture.psnr is None else f", PSNR {picture.psnr:.2f} dB on those pixels"
    return f"{picture.name}: {picture.missing:.0%} of the pixels filled in{known}."


def _dictionary(results: Results) -> Section:
    learner: ConvDictionaryLearner = results.content
    count, channels, height, width = learner.dictionary_.shape
    tiles = tiling(learner.dictionary_)
    picture = Picture(
        png(tiles),
        f"{count} atoms of {height} by {width} pixels in a square, each at its own contrast",
        "The atoms, each at its own contrast.",
        (tiles.shape[-1], tiles.shape[-2]),
    )
    history = [(progress.seconds, progress.objective) for progress in learner.history_]
    size, penalty = f"{height} x {width}", f"{learner.penalty_:.4g}"
    row = [results.path.name, str(count), size, str(channels), penalty, str(len(history)), str(learner.status_)]
    head = ["file", "atoms", "size", "channels", "penalty", "iterations", "ended by"]
    learned = f", learned in {history[-1][0]:.1f} s" if history else ""
    curve = [_objective(history)] if len(history) > 1 else []
    return Section(
        "A dictionary of atoms",
        f"{count} atoms of {height} x {width} pixels{learned}.",
        [picture, *curve, Table("The dictionary.", head, [row])],
        [Origin(str(results.path), None, shown(learner.get_params()))],
    )


def _objective(history: Sequence[Point]) -> Charts:
    seconds, objective = np.array(history).T

    def draw(axes: Axes) -> None:
        axes.plot(seconds, objective, **line_style(0))
        axes.set(xlabel="seconds", ylabel="objective")

    words = f"The objective goes from {objective[0]:.6g} to {objective[-1]:.6g} in {seconds[-1]:.1f} seconds."
    return Charts([chart("Objective against time", words, draw, (4.8, 2.6))], words)


def _eight_bit(picture: np.ndarray) -> np.ndarray:
    return picture if picture.dtype == np.uint8 else (picture >> 8).astype(np.uint8)
