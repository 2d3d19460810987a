"""Training runs: curves with bands over seeds, a table with a paired test, and the command of each run."""

import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from cogd.report.blocks import ABSENT, Chart, Charts, Key, Origin, Section, Table, shown
from cogd.report.collect import Results
from cogd.report.documents import Epoch, Run
from cogd.report.drawing import SERIES, chart, dash, line_style
from cogd.training.recipe import SHIPPED, read_recipe
from cogd.training.summary import CONFIDENCE, Row, paired_difference


@dataclass(frozen=True)
class Group:
    """The runs of one folder, which differ in the seed alone."""

    name: str
    runs: Sequence[Run]

    @property
    def rule(self) -> str:
        return str(self.runs[0].config.recipe.get("rule", "none"))

    def finished(self, metric: str) -> dict[int, float]:
        """Return the last epoch's metric of every finished run, by seed."""
        return {run.config.seed: run.epochs[-1].metrics[metric] for run in self.runs if run.finished}

    def curves(self, measure: Callable[[Epoch], float]) -> np.ndarray:
        """Return a measure (runs, epochs), as far as all runs have come."""
        length = min(len(run.epochs) for run in self.runs)
        return np.array([[measure(epoch) for epoch in run.epochs[:length]] for run in self.runs])


def sections(found: Sequence[Results]) -> list[Section]:
    """Return a section for every network and data set, in which the groups of runs stand side by side."""
    subjects: dict[tuple[str, str], list[Results]] = {}
    for results in found:
        if results.content.epochs:
            config = results.content.config
            subjects.setdefault((config.model.name, config.data), []).append(results)
    return [_section(mine) for mine in subjects.values()]


def _section(found: Sequence[Results]) -> Section:
    groups = _groups(found)
    config = groups[0].runs[0].config
    metric = (
        "accuracy"
        if "accuracy" in groups[0].runs[0].epochs[-1].metrics
        else next(iter(groups[0].runs[0].epochs[-1].metrics))
    )
    rows = _rows(groups, metric)
    keys = [Key(group.name, i, dash(i)) for i, group in enumerate(groups)]
    panels = [
        _curves(groups, f"test {metric}", lambda epoch: epoch.metrics[metric]),
        _curves(groups, "training loss", lambda epoch: epoch.train_loss),
    ]
    caption = "Lines are means over the seeds; bands reach from the lowest to the highest seed."
    return Section(
        f"Training {config.model.name} on {config.source}",
        _verdict(rows, metric),
        [Charts(panels, caption, keys), _table(groups, rows, metric)],
        [_origin(results) for results in found],
    )


def _groups(found: Sequence[Results]) -> list[Group]:
    """Return the runs by folder, named by what sets the folders apart; runs without coordination come first."""
    folders: dict[Path, list[Run]] = {}
    for results in found:
        in_series = re.fullmatch(r"seed-\d+", results.path.name)
        folders.setdefault(results.path.parent if in_series else results.path, []).append(results.content)
    above = Path(os.path.commonpath([folder.absolute().parent for folder in folders]))
    groups = [Group(str(folder.absolute().relative_to(above)), runs) for folder, runs in folders.items()]
    return sorted(groups, key=lambda group: group.rule != "none")


def _rows(groups: Sequence[Group], metric: str) -> list[Row]:
    """Return the finished runs' values, every group but the first compared with the first."""
    values = [group.finished(metric) for group in groups]
    return [
        Row(group.name, mine, paired_difference(mine, values[0]) if i else None)
        for i, (group, mine) in enumerate(zip(groups, values, strict=True))
    ]


def _verdict(rows: Sequence[Row], metric: str) -> str:
    done = [row for row in rows if row.values]
    if not done:
        return "No run is finished yet."
    said = "; ".join(f"{row.name}: {_spread(row)}, n = {len(row.values)}" for row in done)
    said = f"{metric.capitalize()} at the end: {said}."
    for row in done:
        if (difference := row.difference) is not None:
            outcome = "is more than chance explains" if difference.p < 1 - CONFIDENCE else "may be chance"
            said += f" The difference of {row.name} to {rows[0].name}, {difference.mean:+.4f}, {outcome} "
            said += f"(p = {difference.p:.2f})."
    return said


def _spread(row: Row) -> str:
    return f"{row.mean:.4f}" + (f" ± {row.deviation:.4f}" if len(row.values) > 1 else "")


def _table(groups: Sequence[Group], rows: Sequence[Row], metric: str) -> Table:
    head = [
        "runs",
        "rule",
        "finished",
        f"mean {metric}",
        "deviation",
        f"difference ({CONFIDENCE:.0%})",
        "p, paired t-test",
    ]
    lines = []
    for group, row in zip(groups, rows, strict=True):
        d = row.difference
        finished = f"{len(row.values)} of {len(group.runs)}"
        mean = f"{row.mean:.4f}" if row.values else ABSENT
        deviation = f"{row.deviation:.4f}" if len(row.values) > 1 else ABSENT
        difference = f"{d.mean:+.4f} ± {d.half_width:.4f}" if d else ABSENT
        lines.append([group.name, group.rule, finished, mean, deviation, difference, f"{d.p:.3f}" if d else ABSENT])
    return Table(
        "The last epoch, over the seeds; differences are to the first row, over the seeds that both have.", head, lines
    )


def _curves(groups: Sequence[Group], name: str, measure: Callable[[Epoch], float]) -> Chart:
    all_curves = [group.curves(measure) for group in groups]

    def draw(axes: Axes) -> None:
        for i, curves in enumerate(all_curves):
            epochs = np.arange(1, curves.shape[1] + 1)
            axes.fill_between(
                epochs, curves.min(0), curves.max(0), color=SERIES[i % len(SERIES)], alpha=0.18, linewidth=0
            )
            axes.plot(epochs, curves.mean(0), **line_style(i))
        axes.set(xlabel="epoch")

    ends = "; ".join(
        f"{group.name} goes from {curves.mean(0)[0]:.4f} to {curves.mean(0)[-1]:.4f} in {curves.shape[1]} epochs"
        for group, curves in zip(groups, all_curves, strict=True)
    )
    return chart(name, f"{name} against epoch, mean over the seeds: {ends}.", draw)


def _origin(results: Results) -> Origin:
    run: Run = results.content
    last = run.begins[-1] if run.begins else None
    made_with = (
        {}
        if last is None
        else {
            "cogd": last.cogd,
            "torch": last.torch,
            "device": f"{last.device}, {last.hardware}, {last.threads} threads",
        }
    )
    settings = shown(
        {"network": run.config.model.name, "data": run.config.source, "seed": run.config.seed, **run.config.recipe}
    )
    return Origin(str(results.path), command(results), settings, made_with)


def command(results: Results) -> str | None:
    """Return the command that makes the run again; None where it was made in Python with data of its own."""
    config = results.content.config
    kind = config.source.partition(":")[0]
    recipe = {"folder": "imagenet"}.get(kind, kind)
    if recipe not in SHIPPED:
        return None
    usual = read_recipe(recipe).model_dump(mode="json")
    changed = {name: value for name, value in config.recipe.items() if value != usual.get(name)}
    words = ["cogd", "train", "--data", config.source, "--model", config.model.name, "--seed", str(config.seed)]
    for name, value in changed.items():
        option = name.replace("_", "-")
        words += [f"--{'' if value else 'no-'}{option}"] if isinstance(value, bool) else [f"--{option}", str(value)]
    return shlex.join([*words, "-o", str(results.path)])
