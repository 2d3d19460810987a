"""Figures and tables of the baseline problem: paths on F's contours, and what coordination changed from which start."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from rich.table import Column, Table
from torch import Tensor

from cogd import toy
from cogd.provenance import provenance
from cogd.training.files import write_json

LABELS: dict[toy.Name, str] = {"sgd": "SGD", "momentum": "Momentum", "adam": "Adam"}
COLOURS: dict[toy.Name, str] = {"sgd": "#0072B2", "momentum": "#D55E00", "adam": "#009E73"}  # Okabe and Ito's
VERDICT_COLOURS = ("#D55E00", "#EBEBEB", "#0072B2")
BOTH_DIVERGED = "#B0B0B0"
GATE_COLOUR = "#CC79A7"
PLAIN: dict[str, Any] = {"linewidth": 1.4}
COORDINATED: dict[str, Any] = {"linewidth": 2.6, "linestyle": (0, (1, 1.6))}
START: dict[str, Any] = {"marker": "o", "markersize": 6, "markerfacecolor": "white", "markeredgecolor": "black"}
MINIMUM: dict[str, Any] = {"marker": "*", "markersize": 11, "color": "#F0E442", "markeredgecolor": "black"}
LABEL_BOX: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0}

Pairs = Mapping[toy.Name, tuple[Tensor, Tensor]]


def paths_figure(panels: Mapping[str, Pairs], file: Path) -> None:
    """Write one panel of paths per title; every panel holds (coordinated, plain) paths by optimizer."""
    figure = Figure(figsize=(2.2 + 4.6 * len(panels), 5.0), layout="constrained")
    all_axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    limits = _limits([p for pairs in panels.values() for both in pairs.values() for p in both])
    for axes, (title, pairs) in zip(all_axes, panels.items(), strict=True):
        _contours(axes, limits)
        for name, (coordinated, plain) in pairs.items():
            _draw(axes, plain, COLOURS[name], PLAIN)
            _draw(axes, coordinated, COLOURS[name], COORDINATED)
        axes.set(title=title, xlabel="$x_1$", xlim=limits[0], ylim=limits[1])
    all_axes[0].set_ylabel("$x_2$")
    figure.legend(handles=_path_handles(panels), loc="outside lower center", ncols=5, frameon=False, fontsize=8.5)
    _save(figure, file)


def starts_figure(rows: Mapping[str, Pairs], file: Path) -> None:
    """Write a map of the verdicts over a square grid of starts: a row per title, a column per optimizer."""
    names = list(next(iter(rows.values())))
    figure = Figure(figsize=(2.6 * len(names) + 0.6, 2.55 * len(rows) + 1.1), layout="constrained")
    grid = figure.subplots(len(rows), len(names), sharex=True, sharey=True, squeeze=False)
    for row_axes, (title, pairs) in zip(grid, rows.items(), strict=True):
        for axes, (coordinated, plain) in zip(row_axes, pairs.values(), strict=True):
            _verdict_map(axes, coordinated, plain)
        row_axes[0].set_ylabel(f"{title}\n\nstart $x_2$")
    for top, bottom, name in zip(grid[0], grid[-1], names, strict=True):
        top.set_title(LABELS[name])
        bottom.set_xlabel("start $x_1$")
    meanings = ("worsened", "unchanged", "improved")
    handles = [Patch(color=c, label=m) for c, m in zip(VERDICT_COLOURS, meanings, strict=True)]
    handles.append(Patch(color=BOTH_DIVERGED, label="diverges either way"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    _save(figure, file)


def write_results(file: Path, shown: Pairs, grid: Pairs | None, settings: dict[str, Any], command: str) -> None:
    """Write the paths from one start, and what coordination changed over a grid, as a results file of `cogd report`."""
    optimizers: dict[str, Any] = {}
    for name, (coordinated, plain) in shown.items():
        optimizers[name] = {"plain": plain[:, 0].tolist(), "cogd": coordinated[:, 0].tolist()}
        if grid is not None:
            optimizers[name]["comparison"] = asdict(toy.compare(*grid[name]))
    write_json(file, {**provenance(), "command": command, "settings": settings, "beale": optimizers})


def endings_table(pairs: Pairs, title: str) -> Table:
    """Return where the path from the first start ended, a row per optimizer without CoGD and with it."""
    table = Table("optimizer", *(_right(name) for name in ("x1", "x2", "F", "path length")), "ended", title=title)
    for name, both in endings(pairs).items():
        for label, end in zip((LABELS[name], f"{LABELS[name]} + CoGD"), both.values(), strict=True):
            numbers = ("-" if v is None else f"{v:.4f}" for v in (end.x1, end.x2, end.value, end.length))
            table.add_row(label, *numbers, end.outcome)
    return table


def endings(pairs: Pairs) -> dict[toy.Name, dict[str, toy.Ending]]:
    """Return how the path from the first start ended, by optimizer, plain and coordinated."""
    return {name: {"plain": toy.ending(pair[1]), "cogd": toy.ending(pair[0])} for name, pair in pairs.items()}


def comparisons_table(comparisons: Mapping[toy.Name, toy.Comparison], title: str) -> Table:
    """Return the shares of starts that coordination changed, a row per optimizer."""
    table = Table("optimizer", *map(_right, ("F lower", "same", "higher", "shorter", "longer", "length")), title=title)
    for name, c in comparisons.items():
        shares = (f"{share:.1%}" for share in (c.improved, c.unchanged, c.worsened, c.shorter, c.longer))
        table.add_row(LABELS[name], *shares, f"x {c.length_ratio['50%']:.3f}" if c.length_ratio else "-")
    return table


def _right(header: str) -> Column:
    return Column(header, justify="right")


def _limits(all_paths: list[Tensor]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the x1 and x2 ranges that hold the minima and every path that stays finite, within [-5, 5]."""
    kept = [p[:, ~toy.diverged(p)].reshape(-1, 2) for p in all_paths]
    points = torch.cat([*kept, toy.minima()]).clamp(-5, 5)
    low, high = (points.amin(0) - 0.5).tolist(), (points.amax(0) + 0.5).tolist()
    return (low[0], high[0]), (low[1], high[1])


def _contours(axes: Axes, limits) -> None:
    x1, x2 = np.meshgrid(*(np.linspace(low, high, 300) for low, high in limits))
    values = toy.objective(torch.from_numpy(x1), torch.from_numpy(x2)).numpy()
    levels = np.geomspace(values.min(), 1e4, 22)
    axes.contourf(x1, x2, values, levels, norm=LogNorm(values.min(), 3e4), cmap="Greys", alpha=0.55, extend="max")
    axes.contour(x1, x2, values, levels, colors="0.55", linewidths=0.4)
    gate = toy.gate_open(torch.from_numpy(np.stack([x1, x2], -1))).numpy()
    axes.contourf(x1, x2, gate, [0.5, 1.5], colors=GATE_COLOUR, alpha=0.12)
    for (m1, m2), value in zip(toy.minima().tolist(), toy.objective(*toy.minima().unbind(-1)).tolist(), strict=True):
        axes.plot(m1, m2, zorder=4, **MINIMUM)
        axes.annotate(f"F = {value:.2f}", (m1, m2), (12, -32), textcoords="offset points", fontsize=8, bbox=LABEL_BOX)


def _draw(axes: Axes, trajectories: Tensor, colour: str, style: dict[str, Any]) -> None:
    kept = trajectories[:, ~toy.diverged(trajectories)].numpy()
    axes.plot(kept[..., 0], kept[..., 1], color=colour, **style)
    axes.plot(kept[-1, :, 0], kept[-1, :, 1], "o", markersize=4, color=colour, zorder=3)
    axes.plot(*trajectories[0].T.numpy(), linestyle="", zorder=5, **START)


def _path_handles(panels: Mapping[str, Pairs]) -> list[Artist]:
    handles: list[Artist] = []
    for name in next(iter(panels.values())):
        handles.append(Line2D([], [], label=LABELS[name], color=COLOURS[name], **PLAIN))
        handles.append(Line2D([], [], label=f"{LABELS[name]} + CoGD", color=COLOURS[name], **COORDINATED))
    handles.append(Line2D([], [], label="start", linestyle="", **START))
    handles.append(Line2D([], [], label="minimum", linestyle="", **MINIMUM))
    return [*handles, Patch(color=GATE_COLOUR, alpha=0.25, label="gate open")]


def _verdict_map(axes: Axes, coordinated: Tensor, plain: Tensor) -> None:
    verdict = toy.verdicts(coordinated, plain)
    verdict[toy.diverged(coordinated) & toy.diverged(plain)] = 2
    side = round(len(verdict) ** 0.5)
    reach = float(plain[0].max())
    image = verdict.reshape(side, side).T.numpy()
    colours = ListedColormap([*VERDICT_COLOURS, BOTH_DIVERGED])
    half = reach / (side - 1)
    extent = (-reach - half, reach + half, -reach - half, reach + half)
    axes.imshow(image, origin="lower", extent=extent, cmap=colours, vmin=-1, vmax=2, interpolation="nearest")
    axes.plot(*toy.minima().T.numpy(), linestyle="", **MINIMUM)


def _save(figure: Figure, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)
