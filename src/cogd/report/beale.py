"""Beale's function: the paths on its contours, and from which shares of the starts coordination changed the end."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes

from cogd import toy, toy_report
from cogd.report.blocks import Block, Chart, Charts, Key, Origin, Section, Table, shown
from cogd.report.collect import Results
from cogd.report.documents import BealeOptimizer, BealeRow, Document, Point, Shares
from cogd.report.drawing import INK, LINE, MUTED, PAPER, SERIES, chart, dash, line_style

VERDICTS = {"lower": 2, "same": 5, "higher": 1}  # the final value with CoGD, and the series whose colour it has
LEVELS = np.geomspace(2.5, 1e4, 16)


def sections(found: Sequence[Results]) -> list[Section]:
    """Return a section for every file of paths."""
    return [_section(results) for results in found]


def _section(results: Results) -> Section:
    optimizers: Mapping[str, BealeOptimizer] = results.content.beale
    window = _window([point for pair in optimizers.values() for point in (*pair.plain, *pair.cogd)])
    keys = [Key("without CoGD", 0, dash(0)), Key("with CoGD", 1, dash(1))]
    panels = [_paths(name, pair, window) for name, pair in optimizers.items()]
    caption = "Paths on the contours of F. Circles: starts; stars: the two minima; dots: where the paths end."
    blocks: list[Block] = [Charts(panels, caption, keys), _endings(optimizers)]
    compared = {_label(name): pair.comparison for name, pair in optimizers.items() if pair.comparison}
    if compared:
        blocks.insert(1, shares_chart(compared, "Ends of the paths from a grid of starts, with CoGD against without."))
    return Section("Beale's function", _verdict(compared), blocks, [origin(results)])


def settings_sections(found: Sequence[Results]) -> list[Section]:
    """Return a section for every file of settings tried over a grid of starts."""
    sections = []
    for results in found:
        rows: Sequence[BealeRow] = results.content.printed
        chosen = {
            f"{_label(name)}, {kind}": row
            for name in dict.fromkeys(r.optimizer for r in rows)
            for kind, row in _chosen(rows, name)
        }
        caption = (
            f"Ends of the paths from {rows[0].starts} starts after {rows[0].steps} steps, against the plain optimizer."
        )
        said = "; ".join(f"{name}: {row.improved:.0%} lower, {row.worsened:.0%} higher" for name, row in chosen.items())
        sections.append(
            Section(
                "Beale's function, every setting",
                f"{said}.",
                [shares_chart(chosen, caption), _all_settings(rows)],
                [origin(results)],
            )
        )
    return sections


def shares_chart(shares: Mapping[str, Shares], caption: str) -> Charts:
    """Return bars of the shares of starts from which F ends lower, the same and higher."""

    def draw(axes: Axes) -> None:
        names = list(shares)[::-1]
        left = np.zeros(len(names))
        for verdict, field in zip(VERDICTS, ("improved", "unchanged", "worsened"), strict=True):
            widths = np.array([getattr(shares[name], field) for name in names])
            faint = 0.25 if verdict == "same" else 1.0
            axes.barh(range(len(names)), widths, 0.62, left, color=SERIES[VERDICTS[verdict]], alpha=faint)
            left += widths
        axes.set(xlim=(0, 1), yticks=range(len(names)), yticklabels=names, xticks=[0, 0.25, 0.5, 0.75, 1])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.tick_params("y", labelcolor=INK)
        axes.grid(visible=False, axis="y")

    words = "; ".join(
        f"{name}: lower from {s.improved:.1%}, same {s.unchanged:.1%}, higher {s.worsened:.1%}"
        for name, s in shares.items()
    )
    panel = chart("Shares of the starts", f"{words}.", draw, (6.4, 0.9 + 0.34 * len(shares)))
    return Charts([panel], caption, [Key(f"F ends {v}", series, "bar", v == "same") for v, series in VERDICTS.items()])


def origin(results: Results) -> Origin:
    """Return where a results file comes from."""
    document: Document = results.content
    settings = getattr(document, "settings", None) or getattr(document, "config", {})
    machine = {
        "device": document.device or document.machine,
        "threads": document.threads,
        "commit": document.commit,
        "date": document.date,
    }
    return Origin(
        str(results.path),
        document.command,
        shown(settings),
        document.versions | {name: str(value) for name, value in machine.items() if value is not None},
    )


def _paths(name: str, pair: BealeOptimizer, window: tuple[Point, Point]) -> Chart:
    def draw(axes: Axes) -> None:
        _contours(axes, window)
        for series, path in enumerate((pair.plain, pair.cogd)):
            x1, x2 = np.array(path).T
            axes.plot(x1, x2, **line_style(series), linewidth=1.6 + series)
            axes.plot(x1[-1], x2[-1], "o", color=SERIES[series], markersize=5)
        axes.plot(*pair.plain[0], "o", markerfacecolor=PAPER, markeredgecolor=INK, markersize=6)
        axes.set(xlim=window[0], ylim=window[1], xlabel="x₁", ylabel="x₂")

    start, end, coordinated_end = (f"({x1:.2f}, {x2:.2f})" for x1, x2 in (pair.plain[0], pair.plain[-1], pair.cogd[-1]))
    words = f"{_label(name)} goes from {start} to {end} without CoGD and to {coordinated_end} with it."
    return chart(_label(name), words, draw, (3.4, 3.2))


def _contours(axes: Axes, window: tuple[Point, Point]) -> None:
    x1, x2 = np.meshgrid(*(np.linspace(low, high, 120) for low, high in window))
    values = toy.objective(torch.from_numpy(x1), torch.from_numpy(x2)).numpy()
    axes.contour(x1, x2, values, LEVELS, colors=MUTED, linewidths=0.5, alpha=0.55)
    axes.plot(
        *toy.minima().T.numpy(), "*", color=SERIES[4], markeredgecolor=INK, markeredgewidth=0.6, markersize=10, zorder=4
    )
    axes.grid(visible=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(LINE)


def _window(points: Sequence[Point]) -> tuple[Point, Point]:
    """Return the ranges of x1 and x2 that hold the minima and all points, within [-5, 5]."""
    known = np.concatenate([np.array(points), toy.minima().numpy()]).clip(-5, 5)
    (low1, low2), (high1, high2) = known.min(0) - 0.5, known.max(0) + 0.5
    return (float(low1), float(high1)), (float(low2), float(high2))


def _endings(optimizers: Mapping[str, BealeOptimizer]) -> Table:
    rows = []
    for name, pair in optimizers.items():
        for label, path in ((_label(name), pair.plain), (f"{_label(name)} + CoGD", pair.cogd)):
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


def _chosen(rows: Sequence[BealeRow], optimizer: str) -> list[tuple[str, BealeRow]]:
    """Return CoGD as printed, the best of its settings, and the best learning rate."""
    mine = [row for row in rows if row.optimizer == optimizer]
    tried = [row for row in mine if row.kind == "cogd"]
    rates = [row for row in mine if row.kind == "rate"]
    printed = next((r for r in tried if r.settings == {"rule": "descent", "order": 1, "scale": 1e-3}), None)
    best = {"CoGD as printed": printed, "best CoGD": _best(tried), "best learning rate": _best(rates)}
    return [(kind, row) for kind, row in best.items() if row is not None]


def _best(rows: Sequence[BealeRow]) -> BealeRow | None:
    return max(rows, key=lambda row: row.improved - row.worsened, default=None)


def _all_settings(rows: Sequence[BealeRow]) -> Table:
    lines = [
        [
            f"{_label(r.optimizer)}: {r.kind}, {', '.join(f'{n} {v}' for n, v in shown(r.settings).items())}",
            f"{r.improved:.1%}",
            f"{r.unchanged:.1%}",
            f"{r.worsened:.1%}",
        ]
        for r in rows
    ]
    return Table("Every setting that was tried.", ["setting", "F lower", "same", "higher"], lines)


def _label(optimizer: str) -> str:
    return toy_report.LABELS.get(optimizer, optimizer)  # type: ignore[call-overload]
