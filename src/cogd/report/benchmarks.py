"""Benchmarks: objective against time beside peers, speeds, and any other results file as tables."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from cogd.report.beale import origin
from cogd.report.blocks import ABSENT, Block, Charts, Key, Origin, Section, Table, shown
from cogd.report.collect import Results
from cogd.report.documents import AnyTable, Coding, Point, Reading, SparseCoding, Speed
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
    runs = {
        solver: {seed: points for seed, run in seeds.items() if (points := finite(run.curve))}
        for solver, seeds in document.learning.items()
    }
    runs = {solver: curves for solver, curves in runs.items() if curves}
    best = {s: [min(value for _, value in curve) for curve in curves.values()] for s, curves in runs.items()}
    words = "; ".join(f"{solver} reaches {statistics.mean(of):.1f} (n = {len(of)})" for solver, of in best.items())
    name = document.set or results.path.stem.removeprefix("sparse_coding_")
    blocks: list[Block] = [_learning_chart(runs, words, document.seconds), _learning_table(runs)] if runs else []
    blocks += [_coding_table(document.coding)] if document.coding else []
    settings = {"seconds": document.seconds, "runs at a time": document.slots}
    settings |= {"sporco": document.coding.setting} if document.coding else {}
    made = _origin(results, settings)
    versions = {**made.made_with, "sporco": document.sporco, "numba": document.numba}
    return Section(
        f"Learning a dictionary, {name} set",
        f"Lowest objective, mean over seeds: {words}. Lower is better." if runs else "No run has ended yet.",
        blocks,
        [replace(made, made_with=versions)],
        words.partition(";")[0],
    )


def finite(curve: Sequence[Reading]) -> list[Point]:
    """Return a curve without the readings that were no finite number.

    >>> finite([(0.5, None), (1.5, 7.0)])
    [(1.5, 7.0)]
    """
    return [(seconds, value) for seconds, value in curve if value is not None]


def _learning_chart(runs: Mapping[str, Mapping[str, Sequence[Point]]], words: str, seconds: float) -> Charts:
    def draw(axes: Axes) -> None:
        for i, curves in enumerate(runs.values()):
            for curve in curves.values():
                axes.plot(*np.array(curve).T, **line_style(i), alpha=0.85)
        axes.set(xlabel="seconds", ylabel="objective", xscale="log", yscale="log")
        for axis, at in ((axes.xaxis, (1.0,)), (axes.yaxis, (1.0, 1.5, 2.0, 3.0, 5.0, 7.0))):
            axis.set_major_locator(LogLocator(subs=at))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(lambda value, _: f"{value:g}")  # the usual one writes formulas

    panel = chart("Objective against time", f"Mean of the lowest objectives: {words}.", draw)
    keys = [Key(solver, i, dash(i)) for i, solver in enumerate(runs)]
    return Charts([panel], f"One line per seed; lower and further left is better. {seconds:g} s each.", keys)


def _learning_table(runs: Mapping[str, Mapping[str, Sequence[Point]]]) -> Table:
    ours, rows = next(iter(runs)), []
    for solver, curves in runs.items():
        for seed, curve in curves.items():
            when, best = min(curve, key=lambda point: point[1])
            there = seconds_to(runs[ours].get(seed, []), best)
            reached = ABSENT if there is None or solver == ours else f"{there:.2f} s"
            rows.append([f"{solver}, seed {seed}", f"{best:.1f}", f"{when:.1f} s", reached])
    return Table("The lowest objective of each run.", ["run", "objective", "after", f"{ours} is there after"], rows)


def _coding_table(coding: Coding) -> Table:
    rows = []
    for solver, starts in coding.curves.items():
        for start, readings in starts.items():
            curve = finite(readings)
            there = seconds_to(curve, coding.goal)
            gap = f"{min(value for _, value in curve) / coding.optimum - 1:.1e}" if curve else ABSENT
            rows.append([f"{solver}, {start}", "never" if there is None else f"{there:.2f} s", gap])
    share = coding.goal / coding.optimum - 1
    return Table(
        f"Coding alone, the atoms fixed, from zero codes (cold) or those of earlier atoms (warm); the optimum is "
        f"{coding.optimum:.1f}.",
        ["solver", f"to {share:.1%} above it", "lowest, above it"],
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
    settings = extra.get("config") or extra.get("settings") or {}
    plain = {name: value for name, value in extra.items() if not isinstance(value, list | dict)}
    parts = {name: value for name, value in extra.items() if name not in (*plain, "config", "settings") and value}
    lists = dict(_lists(parts))
    tables = [_flat_table(name, rows) for name, rows in lists.items()]
    tables += [_figures(name, value) for name, value in parts.items() if isinstance(value, dict) and _flat(value)]
    title = results.path.stem.replace("_", " ").replace("-", " ").capitalize()
    verdict = (
        f"{sum(map(len, lists.values()))} rows from {results.path.name}." if lists else f"From {results.path.name}."
    )
    return Section(title, verdict, tables, [_origin(results, {**plain, **settings})])


def _lists(parts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Sequence[Mapping[str, Any]]]]:
    """Yield every list of rows, however deep, with its name."""
    for name, value in parts.items():
        if isinstance(value, Mapping):
            yield from _lists(value, f"{prefix}{name}: ")
        elif isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
            yield prefix + name, value


def _flat_table(name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows with what is nested in them; lists of measurements stay in the file."""
    flat = [_flat(row) for row in rows[:LONGEST]]
    head = list(dict.fromkeys(key for row in flat for key in row))
    cut = f" The first {LONGEST} of {len(rows)}." if len(rows) > LONGEST else ""
    cells = [[row.get(key, ABSENT) for key in head] for row in flat]
    return Table(f"{name.replace('_', ' ')}.{cut}", [key.replace("_", " ") for key in head], cells)


def _figures(name: str, values: Mapping[str, Any]) -> Table:
    rows = [[key.replace("_", " "), text] for key, text in _flat(values).items()]
    return Table(f"{name.replace('_', ' ')}.", ["figure", "value"], rows)


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the numbers and words of a row as text, those of mappings within it by both names.

    >>> _flat({"rule": "paper", "difference": {"mean": 0.25}, "seconds": [1.0, 2.0]})
    {'rule': 'paper', 'difference: mean': '0.25'}
    """
    texts: dict[str, str] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            texts |= _flat(value, f"{prefix}{name}: ")
        elif not isinstance(value, list):
            texts |= shown({f"{prefix}{name}": value})
    return texts


def _origin(results: Results, settings: dict[str, Any]) -> Origin:
    made = origin(results)
    return Origin(made.file, made.command, shown(settings), made.made_with)
