"""What was learned and what came back, drawn: the atoms, the objective against time, how much each atom carries."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cogd.sparse_coding.pictures import tiling

FORMATS = (".png", ".svg", ".pdf")
BESIDES = (0.85, 0.35, 0.1)  # what marks a hole


def dictionary_figure(learner: Any, path: str | Path) -> None:
    """Draw a fitted learner's atoms, the objective against time, and each atom's weight in order of size."""
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    shape = figure.add_gridspec(2, 2, width_ratios=(1.2, 1))
    atoms, curve, weights = (figure.add_subplot(place) for place in (shape[:, 0], shape[0, 1], shape[1, 1]))
    order = np.argsort(-learner.weights_, kind="stable")
    _picture(atoms, np.atleast_3d(_last(tiling(learner.dictionary_[order]))), "atoms, the most used first")
    curve.plot([p.seconds for p in learner.history_], [p.objective for p in learner.history_], marker=".", lw=1)
    curve.set(xlabel="seconds", ylabel="objective", title=f"{len(learner.history_)} iterations: {learner.status_}")
    weights.bar(np.arange(len(order)), learner.weights_[order], width=1.0)
    weights.set(xlabel="atom", ylabel="sum of squared codes", title="how much each atom carries")
    _save(figure, path)


def before_and_after(before: np.ndarray, after: np.ndarray, path: str | Path, hidden: np.ndarray | None = None) -> None:
    """Draw a picture (C, H, W), its holes in colour where there are any, and what was made of it."""
    panels = {"before": _last(_unit(before)), "after": _last(_unit(after))}
    if hidden is not None:
        shown = np.where(hidden[..., None], BESIDES, _last(_unit(before)))
        panels = {"before": panels["before"], f"{hidden.mean():.0%} hidden": shown, "after": panels["after"]}
    figure = Figure(figsize=(4 * len(panels), 4.3), layout="constrained")
    for axes, (title, picture) in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels.items(), strict=True):
        _picture(axes, picture, title)
    _save(figure, path)


def _picture(axes: Any, picture: np.ndarray, title: str) -> None:
    axes.imshow(picture if picture.shape[-1] == 3 else picture[..., 0], cmap="gray", interpolation="nearest")
    axes.set_title(title)
    axes.set_axis_off()


def _unit(picture: np.ndarray) -> np.ndarray:
    return picture / float(np.iinfo(picture.dtype).max)


def _last(picture: np.ndarray) -> np.ndarray:
    """Return (C, H, W) or (H, W) with the channels last."""
    return picture if picture.ndim == 2 else picture.transpose(1, 2, 0)


def _save(figure: Figure, path: str | Path) -> None:
    if Path(path).suffix.lower() not in FORMATS:
        raise ValueError(f"a figure's file must end in one of {', '.join(FORMATS)}; got {str(path)!r}.")
    figure.savefig(path, dpi=130)
