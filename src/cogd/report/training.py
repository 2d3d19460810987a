"""Training runs: curves with bands over seeds, a table with a paired test, and the command that makes each folder."""

import itertools
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from cogd.report import figures
from cogd.report.blocks import ABSENT, Chart, Charts, Key, Origin, Section, Table, shown
from cogd.report.collect import Results
from cogd.report.documents import Config, Epoch, Run
from cogd.report.drawing import SERIES, chart, dash, line_style
from cogd.training.recipe import SHIPPED, read_recipe
from cogd.training.summary import CONFIDENCE, Row, paired_difference

LOSS = "training loss"
Measure = Callable[[Epoch], float]


@dataclass(frozen=True)
class Group:
    """The runs of one folder, which differ in the seed alone."""

    name: str
    folder: Path
    in_series: bool  # each run has a folder of its own in this one
    runs: Sequence[Run]

    @property
    def config(self) -> Config:
        return self.runs[0].config

    @property
    def seeds(self) -> list[int]:
        return sorted(run.config.seed for run in self.runs)

    @property
    def rule(self) -> str:
        return str(self.config.recipe.get("rule", "none"))

    def finished(self, measure: Measure) -> dict[int, float]:
        """Return the last epoch's measure of every finished run, by seed."""
        return {run.config.seed: measure(run.epochs[-1]) for run in self.runs if run.finished}

    def curves(self, measure: Measure) -> np.ndarray:
        """Return a measure (runs, epochs), as far as all runs have come."""
        length = min(len(run.epochs) for run in self.runs)
        return np.array([[measure(epoch) for epoch in run.epochs[:length]] for run in self.runs])


def sections(found: Sequence[Results]) -> list[Section]:
    """Return a section for every network, data set and metric, in which the folders of runs stand side by side."""
    subjects: dict[tuple[str, str, str], list[Results]] = {}
    for results in found:
        if results.content.epochs:
            config = results.content.config
            subjects.setdefault((config.model.name, config.data, main_metric(results.content)), []).append(results)
    return [_section(metric, groups_of(mine)) for (_, _, metric), mine in subjects.items()]


def groups_of(found: Iterable[Results]) -> list[Group]:
    """Return the runs by folder, named by what sets the folders apart; runs without coordination come first."""
    groups: dict[tuple[Path, bool, str], list[Run]] = {}
    for results in found:
        in_series = re.fullmatch(r"seed-\d+", results.path.name) is not None
        folder = results.path.parent if in_series else results.path
        recipe = json.dumps(results.content.config.recipe, sort_keys=True)
        groups.setdefault((folder, in_series, recipe), []).append(results.content)
    above = os.path.commonpath([folder.absolute().parent for folder, _, _ in groups])
    named = [
        Group(os.path.relpath(folder.absolute(), above), folder, in_series, runs)
        for (folder, in_series, _), runs in groups.items()
    ]
    return sorted(named, key=lambda group: group.rule != "none")


def _section(metric: str, groups: Sequence[Group]) -> Section:
    measure = _measure(metric)
    values = [group.finished(measure) for group in groups]
    rows = [
        Row(group.name, mine, paired_difference(mine, values[0]) if i else None)
        for i, (group, mine) in enumerate(zip(groups, values, strict=True))
    ]
    panels = [_curves(groups, name) for name in dict.fromkeys((metric, LOSS))]
    network, data = figures.network(groups[0].config.model.name), figures.data(groups[0].config.source)
    caption = "Lines are means over the seeds; bands reach from the lowest to the highest seed."
    keys = [Key(group.name, i, dash(i)) for i, group in enumerate(groups)]
    return Section(
        f"Training {network} on {data}",
        _verdict(rows, metric),
        [Charts(panels, caption, keys), _table(groups, rows, metric)],
        [_origin(group) for group in groups],
        "; ".join(f"{row.name} {figures.metric(metric, row.mean)}" for row in rows if row.values),
    )


def main_metric(run: Run) -> str:
    """Return the accuracy, or else the first metric that the run measures."""
    names = list(run.epochs[-1].metrics)
    return "accuracy" if "accuracy" in names else next(iter(names), LOSS)


def _measure(metric: str) -> Measure:
    return (lambda epoch: epoch.train_loss) if metric == LOSS else (lambda epoch: epoch.metrics[metric])


def _verdict(rows: Sequence[Row], metric: str) -> str:
    done = [row for row in rows if row.values]
    if not done:
        return "No run is finished yet."
    ends = "; ".join(f"{row.name} {_mean(row, metric)} (n = {len(row.values)})" for row in done)
    said = [f"{metric.capitalize()} at the end: {ends}."]
    for row in done:
        if (difference := row.difference) is not None:
            judged = "unlikely to be chance" if difference.p < 1 - CONFIDENCE else "within what chance explains"
            less = figures.difference(metric, difference.mean) + (" points" if figures.is_share(metric) else "")
            said.append(f"{row.name} less {rows[0].name}: {less}, {judged} (p = {difference.p:.2f}).")
    return " ".join(said)


def _mean(row: Row, metric: str) -> str:
    deviation = f" ± {figures.spread(metric, row.deviation)}" if len(row.values) > 1 else ""
    return figures.metric(metric, row.mean) + deviation


def _table(groups: Sequence[Group], rows: Sequence[Row], metric: str) -> Table:
    difference, p = f"difference ({CONFIDENCE:.0%})", "p, paired t-test"
    head = ["runs", "rule", "finished", f"mean {metric}", "deviation", difference, p]
    lines = [_line(group, row, metric) for group, row in zip(groups, rows, strict=True)]
    points = " in percentage points" if figures.is_share(metric) else ""
    caption = f"The last epoch. Differences{points} are to the first row, over the seeds that both have."
    return Table(caption, head, lines)


def _line(group: Group, row: Row, metric: str) -> list[str]:
    difference = row.difference
    return [
        group.name,
        group.rule,
        f"{len(row.values)} of {len(group.runs)}",
        figures.metric(metric, row.mean) if row.values else ABSENT,
        figures.spread(metric, row.deviation) if len(row.values) > 1 else ABSENT,
        f"{figures.difference(metric, difference.mean)} ± {figures.spread(metric, difference.half_width)}"
        if difference
        else ABSENT,
        f"{difference.p:.3f}" if difference else ABSENT,
    ]


def _curves(groups: Sequence[Group], name: str) -> Chart:
    all_curves = [group.curves(_measure(name)) for group in groups]

    def draw(axes: Axes) -> None:
        for i, curves in enumerate(all_curves):
            epochs = np.arange(1, curves.shape[1] + 1)
            band: Any = {"color": SERIES[i % len(SERIES)], "alpha": 0.18, "linewidth": 0}
            axes.fill_between(epochs, curves.min(0), curves.max(0), **band)
            axes.plot(epochs, curves.mean(0), **line_style(i))
        axes.set(xlabel="epoch")
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        if figures.is_share(name):
            axes.yaxis.set_major_formatter(PercentFormatter(1))

    ends = "; ".join(
        f"{group.name} goes from {figures.metric(name, curves.mean(0)[0])} to "
        f"{figures.metric(name, curves.mean(0)[-1])} in {curves.shape[1]} epochs"
        for group, curves in zip(groups, all_curves, strict=True)
    )
    return chart(name.capitalize(), f"{name} against epoch, mean over the seeds: {ends}.", draw)


def _origin(group: Group) -> Origin:
    config = group.config
    about = {"network": config.model.name, "data": config.source, "seeds": group.seeds, "precision": config.precision}
    return Origin(str(group.folder), command(group), shown({**about, **config.recipe}), made_with(group.runs))


def made_with(runs: Iterable[Run]) -> dict[str, str]:
    """Return the versions and the device with which runs last went on."""
    begins = [begin for run in runs for begin in run.begins]
    if not begins:
        return {}
    last = begins[-1]
    return {"cogd": last.cogd, "torch": last.torch, "device": f"{last.device}, {last.hardware}, {last.threads} threads"}


def command(group: Group) -> str | None:
    """Return what makes the runs again, several commands if need be; None where they had data of Python's."""
    config = group.config
    kind = config.source.partition(":")[0]
    recipe = {"folder": "imagenet"}.get(kind, kind)
    if recipe not in SHIPPED:
        return None
    usual, fields = read_recipe(recipe).model_dump(mode="json"), list[str]()
    for name, value in {**config.recipe, "precision": config.precision}.items():
        if value != usual.get(name):
            option = name.replace("_", "-")
            is_switch = isinstance(value, bool)
            fields += [f"--{'' if value else 'no-'}{option}"] if is_switch else [f"--{option}", str(value)]
    start = ["cogd", "train", "--data", config.source, "--model", config.model.name]
    return " && ".join(
        shlex.join([*start, *seeds, *fields, "-o", str(group.folder)])
        for seeds in (_seed_options(group.seeds) if group.in_series else [["--seed", str(group.seeds[0])]])
    )


def _seed_options(seeds: Sequence[int]) -> list[list[str]]:
    """Return the options for seeds in order, of one command for each run of numbers without a gap.

    >>> _seed_options([0, 1, 2, 7])
    [['--seed', '0', '--seeds', '3'], ['--seed', '7', '--seeds', '1']]
    """
    firsts = [seed for seed in seeds if seed - 1 not in seeds]
    lengths = [next(n for n in itertools.count() if first + n not in seeds) for first in firsts]
    return [["--seed", str(first), "--seeds", str(n)] for first, n in zip(firsts, lengths, strict=True)]
