"""Beale's function: the paths on its contours, and from which shares of the starts coordination changed the end."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba

from cogd import toy, toy_report
from cogd.report.blocks import Block, Chart, Charts, Key, Origin, Section, Table, shown
from cogd.report.collect import Results
from cogd.report.documents import BealeOptimizer, BealeRow, Document, Point, Shares
from cogd.report.drawing import INK, MUTED, PAPER, SERIES, bars, bars_size, chart, dash, line_style

Path = Sequence[Point]

VERDICTS = {"lower": 2, "the same": 5, "higher": 1}  # the final value with CoGD, and the series whose colour it has
PRINTED = {"rule": "descent", "order": 1, "scale": 1e-3}
LEVELS = np.geomspace(2.5, 1e4, 18)


def sections(found: Sequence[Results]) -> list[Section]:
    """Return a section for every file of paths."""
    return [_section(results) for results in found]


def settings_sections(found: Sequence[Results]) -> list[Section]:
    """Return a section for every file of settings tried over a grid of starts."""
    return [_settings_section(results) for results in found]


def _section(results: Results) -> Section:
    optimizers: Mapping[str, BealeOptimizer] = results.content.beale
    followed = {name: (o.plain, o.cogd) for name, o in optimizers.items() if o.plain and o.cogd}
    compared = {_label(name): o.comparison for name, o in optimizers.items() if o.comparison}
    blocks: list[Block] = []
    if followed:
        window = _window([point for pair in followed.values() for path in pair for point in path])
        panels = [_paths(_label(name), *pair, window) for name, pair in followed.items()]
        caption = "Paths on the contours of F, darker where it is lower. Circle: start; stars: minima; dots: ends."
        blocks.append(Charts(panels, caption, [Key("without CoGD", 0, dash(0)), Key("with CoGD", 1, dash(1))]))
    if compared:
        blocks.append(shares_chart(compared, "Ends of the paths from a grid of starts, with CoGD against without."))
    if followed:
        blocks.append(_endings(followed))
    return Section("Beale's function", _verdict(compared), blocks, [origin(results)], _headline(compared))


def _settings_section(results: Results) -> Section:
    rows: Sequence[BealeRow] = results.content.printed
    chosen = {_label(name): _chosen(rows, name) for name in dict.fromkeys(row.optimizer for row in rows)}
    drawn = {f"{name}, {kind}": row for name, kinds in chosen.items() for kind, row in kinds.items()}
    caption = (
        f"Ends of the paths from {rows[0].starts} starts after {rows[0].steps} steps, against the plain optimizer."
    )
    balances = (
        f"{name}: " + ", ".join(f"{row.improved - row.worsened:+.0%} {kind}" for kind, row in kinds.items())
        for name, kinds in chosen.items()
    )
    return Section(
        "Beale's function, every setting",
        f"Starts that end lower, less those that end higher. {'; '.join(balances)}.",
        [shares_chart(drawn, caption), _all_settings(rows)],
        [origin(results)],
    )


def shares_chart(shares: Mapping[str, Shares], caption: str) -> Charts:
    """Return bars of the shares of starts from which F ends lower, the same and higher."""
    parts = {name: (s.improved, s.unchanged, s.worsened) for name, s in shares.items()}

    def draw(axes: Axes) -> None:
        notes = [f"{s.improved:.1%} lower, {s.worsened:.1%} higher" for s in shares.values()]
        bars(axes, parts, list(VERDICTS.values()), [VERDICTS["the same"]], notes)
        axes.set(xlim=(0, 1), xticks=[0, 0.25, 0.5, 0.75, 1])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")

    words = "; ".join(
        f"{name}: lower from {s.improved:.1%}, same {s.unchanged:.1%}, higher {s.worsened:.1%}"
        for name, s in shares.items()
    )
    panel = chart("Shares of the starts", f"{words}.", draw, bars_size(len(shares)))
    return Charts(
        [panel], caption, [Key(f"F ends {v}", series, "bar", v == "the same") for v, series in VERDICTS.items()]
    )


def origin(results: Results) -> Origin:
    """Return where a results file comes from."""
    document: Document = results.content
    settings = getattr(document, "settings", None) or getattr(document, "config", {})
    machine = {"device": document.device, "threads": document.threads, "commit": document.commit}
    return Origin(
        str(results.path),
        document.command,
        shown(settings),
        document.versions | {name: str(value) for name, value in machine.items() if value is not None},
    )


def _paths(label: str, plain: Path, coordinated: Path, window: tuple[Point, Point]) -> Chart:
    def draw(axes: Axes) -> None:
        _contours(axes, window)
        for series, path in enumerate((plain, coordinated)):
            axes.plot(*np.array(path).T, **line_style(series), linewidth=1.6 + series)
            axes.plot(*path[-1], "o", color=SERIES[series], markersize=5)
        axes.plot(*plain[0], "o", markerfacecolor=PAPER, markeredgecolor=INK, markersize=6)
        axes.set(xlim=window[0], ylim=window[1], xlabel="x₁", ylabel="x₂")

    start, end, other_end = (f"({x1:.2f}, {x2:.2f})" for x1, x2 in (plain[0], plain[-1], coordinated[-1]))
    return chart(
        label, f"{label} goes from {start} to {end} without CoGD and to {other_end} with it.", draw, (3.2, 3.0)
    )


def _contours(axes: Axes, window: tuple[Point, Point]) -> None:
    x1, x2 = np.meshgrid(*(np.linspace(low, high, 120) for low, high in window))
    values = toy.objective(torch.from_numpy(x1), torch.from_numpy(x2)).numpy()
    depth = np.linspace(0.34, 0.0, len(LEVELS) - 1)
    axes.contourf(x1, x2, values, LEVELS, colors=[to_rgba(SERIES[0], alpha) for alpha in depth])
    axes.contour(x1, x2, values, LEVELS, colors=MUTED, linewidths=0.5, alpha=0.45)
    star: dict[str, Any] = {"markeredgecolor": INK, "markeredgewidth": 0.6, "markersize": 11, "zorder": 2.5}
    axes.plot(*toy.minima().T.numpy(), "*", color=SERIES[4], **star)
    axes.grid(visible=False)


def _window(points: Sequence[Point]) -> tuple[Point, Point]:
    """Return the ranges of x1 and x2 that hold the minima and all points, within [-5, 5]."""
    known = np.concatenate([np.array(points), toy.minima().numpy()]).clip(-5, 5)
    (low1, low2), (high1, high2) = known.min(0) - 0.5, known.max(0) + 0.5
    return (float(low1), float(high1)), (float(low2), float(high2))


def _endings(followed: Mapping[str, tuple[Path, Path]]) -> Table:
    rows = []
    for name, pair in followed.items():
        for label, path in zip((_label(name), f"{_label(name)} + CoGD"), pair, strict=True):
            x = torch.tensor(path, dtype=torch.float64)
            value, length = float(toy.objective(*x[-1])), float(x.diff(dim=0).norm(dim=1).sum())
            rows.append([label, f"{x[-1, 0]:.4f}", f"{x[-1, 1]:.4f}", f"{value:.4f}", f"{length:.4f}"])
    return Table("Where the paths end.", ["optimizer", "x₁", "x₂", "F", "length of the path"], rows)


def _verdict(compared: Mapping[str, Shares]) -> str:
    if not compared:
        return "Paths from one start, with CoGD and without."
    least = min(shares.unchanged for shares in compared.values())
    changed = "; ".join(f"{name}: {s.improved:.1%} lower, {s.worsened:.1%} higher" for name, s in compared.items())
    return f"At least {least:.0%} of the starts end at the same value with CoGD as without. {changed}."


def _headline(compared: Mapping[str, Shares]) -> str:
    least = min((shares.unchanged for shares in compared.values()), default=None)
    return "" if least is None else f"{least:.0%} of the starts or more end the same"


def _chosen(rows: Sequence[BealeRow], optimizer: str) -> dict[str, BealeRow]:
    """Return CoGD as printed, the best of its settings, and the best learning rate."""
    mine = [row for row in rows if row.optimizer == optimizer]
    tried = [row for row in mine if row.kind == "cogd"]
    printed = next((row for row in tried if row.settings == PRINTED), None)
    best = {"CoGD as printed": printed, "best CoGD": _best(tried)}
    best["best learning rate"] = _best([row for row in mine if row.kind == "rate"])
    return {kind: row for kind, row in best.items() if row is not None}


def _best(rows: Sequence[BealeRow]) -> BealeRow | None:
    return max(rows, key=lambda row: row.improved - row.worsened, default=None)


def _all_settings(rows: Sequence[BealeRow]) -> Table:
    lines = []
    for row in rows:
        settings = ", ".join(f"{name} {value}" for name, value in shown(row.settings).items())
        shares = (f"{share:.1%}" for share in (row.improved, row.unchanged, row.worsened))
        lines.append([f"{_label(row.optimizer)}: {row.kind}, {settings}", *shares])
    return Table("Every setting that was tried.", ["setting", "F lower", "same", "higher"], lines)


def _label(optimizer: str) -> str:
    return toy_report.LABELS.get(optimizer, optimizer)  # type: ignore[call-overload]
