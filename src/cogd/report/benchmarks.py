"""Benchmarks: objective against time beside peers, speeds, and any other results file as tables."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from cogd.report.beale import origin
from cogd.report.blocks import ABSENT, Charts, Key, Origin, Section, Table, shown
from cogd.report.collect import Results
from cogd.report.documents import AnyTable, Point, SparseCoding, Speed
from cogd.report.drawing import bars, bars_size, chart, dash, line_style

LONGEST = 200  # rows of a table that are shown


def sparse_coding_sections(found: Sequence[Results]) -> list[Section]:
    """Return a section for every image set."""
    return [_sparse_coding(results) for results in found]


def speed_sections(found: Sequence[Results]) -> list[Section]:
    """Return a section for every machine."""
    return [_speed(results) for results in found]


def table_sections(found: Sequence[Results]) -> list[Section]:
    """Return a section of tables for every results file without a picture of its own."""
    return [_any(results) for results in found]


def _sparse_coding(results: Results) -> Section:
    document: SparseCoding = results.content
    keys = [Key(solver, i, dash(i)) for i, solver in enumerate(document.curves)]

    def draw(axes: Axes) -> None:
        for i, curves in enumerate(document.curves.values()):
            for curve in curves:
                axes.plot(*np.array(curve).T, **line_style(i), alpha=0.85)
        axes.set(xlabel="seconds", ylabel="objective", xscale="log", yscale="log")

    best = {
        solver: [min(value for _, value in curve) for curve in curves] for solver, curves in document.curves.items()
    }
    words = "; ".join(f"{solver} reaches {statistics.mean(values):.1f}" for solver, values in best.items())
    caption = (
        f"One line per seed ({len(document.seeds)}); lower and further left is better. {document.seconds:g} s each."
    )
    name = results.path.stem.removeprefix("sparse_coding_")
    panel = chart("Objective against time", f"Mean of the best objectives: {words}.", draw, (4.8, 3.2))
    return Section(
        f"Learning a dictionary, {name} set",
        f"{words[:1].upper()}{words[1:]} (mean over {len(document.seeds)} seeds; lower is better).",
        [Charts([panel], caption, keys), _learning_table(document), _coding_table(document)],
        [_origin(results, {"seeds": document.seeds, "seconds": document.seconds, "sporco": document.sporco_setting})],
    )


def _learning_table(document: SparseCoding) -> Table:
    ours = next(iter(document.curves))
    rows = []
    for solver, runs in document.curves.items():
        for seed, run, mine in zip(document.seeds, runs, document.curves[ours], strict=True):
            when, best = min(run, key=lambda point: point[1])
            there = seconds_to(mine, best)
            reached = ABSENT if there is None or solver == ours else f"{there:.2f} s"
            rows.append([f"{solver}, seed {seed}", f"{best:.1f}", f"{when:.1f} s", reached])
    return Table(
        "The best objective of each run.", ["run", "objective", "reached after", f"{ours} is there after"], rows
    )


def _coding_table(document: SparseCoding) -> Table:
    optimum = document.coding["optimum"][0][1]
    rows = []
    for solver, curve in document.coding.items():
        if solver != "optimum":
            there = seconds_to(curve, optimum * (1 + 1e-3))
            gap = min(value for _, value in curve) / optimum - 1
            rows.append([solver, "never" if there is None else f"{there:.2f} s", f"{gap:.1e}"])
    return Table(
        f"Coding alone, the dictionary fixed; the optimum is {optimum:.1f}.",
        ["solver", "to 0.1% of it", "best gap"],
        rows,
    )


def seconds_to(curve: Sequence[Point], goal: float) -> float | None:
    """Return when a curve first is at or below a goal.

    >>> seconds_to([(0.5, 9.0), (1.5, 7.0)], 8.0)
    1.5
    """
    return next((seconds for seconds, value in curve if value <= goal), None)


def _speed(results: Results) -> Section:
    document: Speed = results.content
    rates = {name: row.images_per_second for name, row in document.results.items()}

    def draw(axes: Axes) -> None:
        bars(axes, {name: [rate] for name, rate in rates.items()}, [0])
        axes.set(xlabel="images/s")

    words = "; ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
    rows = [
        [name, f"{row.images_per_second:,.0f}", f"{row.fraction_of_matrix_rate:.1%}"]
        for name, row in document.results.items()
    ]
    costs = ", ".join(f"{rule} {share:+.2%}" for rule, share in document.cogd_overhead.items())
    panel = chart("Images per second", f"{words} images per second.", draw, bars_size(len(rates)))
    return Section(
        f"Speed of training ({results.path.stem})",
        f"What CoGD adds to an epoch: {costs}.",
        [
            Charts([panel], "More is better."),
            Table("Speeds in one run.", ["contender", "images/s", "of the matrix rate"], rows),
        ],
        [origin(results)],
    )


def _any(results: Results) -> Section:
    document: AnyTable = results.content
    extra: dict[str, Any] = document.model_extra or {}
    lists = {name: value for name, value in extra.items() if _is_rows(value)}
    tables = [_flat_table(name, rows) for name, rows in lists.items()]
    plain = {name: value for name, value in extra.items() if not isinstance(value, list | dict)}
    settings = extra.get("config") or extra.get("settings") or {}
    title = results.path.stem.replace("_", " ").replace("-", " ").capitalize()
    verdict = (
        f"{sum(map(len, lists.values()))} rows from {results.path.name}." if lists else f"From {results.path.name}."
    )
    return Section(title, verdict, tables, [_origin(results, {**plain, **settings})])


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)


def _flat_table(name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return what is flat in the rows; lists of measurements stay in the file."""
    flat = [{k: v for k, v in row.items() if not isinstance(v, list | dict)} for row in rows[:LONGEST]]
    head = list(dict.fromkeys(key for row in flat for key in row))
    cut = f" The first {LONGEST} of {len(rows)}." if len(rows) > LONGEST else ""
    cells = [[shown({"": row[key]})[""] if key in row else ABSENT for key in head] for row in flat]
    return Table(f"{name}.{cut}", [key.replace("_", " ") for key in head], cells)


def _origin(results: Results, settings: dict[str, Any]) -> Origin:
    made = origin(results)
    return Origin(made.file, made.command, shown(settings), made.made_with)
