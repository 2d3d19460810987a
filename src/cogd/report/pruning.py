"""Pruned networks: the channels kept in every layer, what that saved and cost, and how the masks were learned."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from cogd.report import figures
from cogd.report.blocks import ABSENT, Block, Chart, Charts, Key, Origin, Section, Table, shown
from cogd.report.collect import Results
from cogd.report.documents import Epoch, PrunedNetwork, PruningLatency, PruningReport, PruningRun
from cogd.report.drawing import INK, SERIES, bars, bars_size, chart, dash, line_style
from cogd.report.training import made_with, main_metric

KEPT, REMOVED = 0, 5
FEW = 12  # layers that have a bar with a name each
AT_ZERO = "channels_at_zero"
TIMED = {
    "original": "before",
    "small": "pruned",
    "doubled": "pruned, twice the batch",
    "rounded": "pruned less, to multiples of 8 channels",
}
STAGES = {"before": "before", "after": "pruned", "fine_tuned": "fine-tuned"}


def network_sections(found: Sequence[Results]) -> list[Section]:
    """Return a section for every pruned network."""
    return [_network(results) for results in found]


def run_sections(found: Sequence[Results]) -> list[Section]:
    """Return a section for every pruning run with an epoch behind it."""
    return [_run(results) for results in found if results.content.masks.epochs]


def _network(results: Results) -> Section:
    document: PrunedNetwork = results.content
    report: PruningReport = document.report
    name = figures.network(document.builder) if document.builder else results.path.parent.name
    blocks: list[Block] = [_channels_chart(report.channels), _stages_table(report)]
    if report.latency:
        blocks += [_latency_chart(report.latency), _latency_table(report.latency)]
    if len(report.channels) > FEW:
        blocks.append(_channels_table(report.channels))
    settings = {"target": report.target, "builder": document.builder, "arguments": document.arguments}
    return Section(
        f"Pruning {name} to {report.macs.share:.0%} of its multiply-accumulates",
        _verdict(report),
        blocks,
        [Origin(str(results.path), report.command, shown(settings), document.versions)],
        _headline(report),
    )


def _headline(report: PruningReport) -> str:
    faster = f"; {report.latency.findings[0].partition(' (')[0]}" if report.latency else ""
    return f"{report.macs.share:.0%} of the multiply-accumulates{faster}"


def _verdict(report: PruningReport) -> str:
    said = (
        f"{report.macs.share:.1%} of the multiply-accumulates and {report.parameters.share:.1%} of the parameters stay."
    )
    if all("accuracy" in report.metrics.get(stage, {}) for stage in STAGES):
        before, after, tuned = (report.metrics[stage]["accuracy"] for stage in STAGES)
        said += f" Accuracy {before:.2%} before, {after:.2%} with the channels removed, {tuned:.2%} fine-tuned."
    if report.latency:
        said += f" A forward pass is {report.latency.findings[0]}."
    return said + "".join(f" {note[:1].upper()}{note[1:].rstrip('.')}." for note in report.notes)


def _channels_chart(channels: Mapping[str, tuple[int, int]]) -> Charts:
    kept, whole = np.array(list(channels.values())).T

    def draw_bars(axes: Axes) -> None:
        notes = [f"{k} of {n}" for k, n in channels.values()]
        bars(axes, {name: [k, n - k] for name, (k, n) in channels.items()}, [KEPT, REMOVED], [REMOVED], notes)
        axes.set(xlabel="channels")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))

    def draw_columns(axes: Axes) -> None:
        places = np.arange(1, len(kept) + 1)
        axes.bar(places, whole, 0.8, color=SERIES[REMOVED], alpha=0.25)
        axes.bar(places, kept, 0.8, color=SERIES[KEPT])
        axes.set(xlabel="layer, from the input on", ylabel="channels", xlim=(0.4, len(kept) + 0.6))
        axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
        axes.grid(visible=False, axis="x")

    words = "; ".join(f"{name} {k} of {n}" for name, (k, n) in channels.items())
    draw, size = (draw_bars, bars_size(len(kept))) if len(kept) <= FEW else (draw_columns, (7.0, 2.8))
    keys = [Key("kept", KEPT, "bar"), Key("removed", REMOVED, "bar", faint=True)]
    panel = chart("Channels kept in every layer", f"Channels kept: {words}.", draw, size)
    caption = f"{kept.sum()} of {whole.sum()} channels are kept, in the layers where channels can be removed."
    return Charts([panel], caption, keys)


def _stages_table(report: PruningReport) -> Table:
    rows = []
    for name, change in (("multiply-accumulates", report.macs), ("parameters", report.parameters)):
        after = f"{change.after:,.0f}"
        rows.append([name, f"{change.before:,.0f}", after, after, figures.signed(f"{change.share - 1:+.1%}")])
    for name in report.metrics.get("before", {}):
        values = [report.metrics.get(stage, {}).get(name) for stage in STAGES]
        first, last = values[0], values[-1]
        difference = ABSENT if first is None or last is None else figures.difference(name, last - first)
        cells = [ABSENT if value is None else figures.metric(name, value) for value in values]
        rows.append([name.replace("_", " "), *cells, difference])
    return Table(
        "The network at each stage; accuracy changes by points.", ["measure", *STAGES.values(), "change"], rows
    )


def _latency_chart(latency: PruningLatency) -> Charts:
    times = {TIMED.get(name, name): spread for name, spread in latency.seconds.items()}

    def draw(axes: Axes) -> None:
        notes = [f"{_milliseconds(spread.median)} ms" for spread in times.values()]
        bars(axes, {name: [1e3 * spread.median] for name, spread in times.items()}, [KEPT], [], notes)
        for row, spread in enumerate(times.values()):
            axes.plot([1e3 * spread.low, 1e3 * spread.high], [row, row], color=INK, linewidth=1.2)
        axes.set(xlabel="milliseconds")

    words = "; ".join(f"{name} {_milliseconds(spread.median)} ms" for name, spread in times.items())
    panel = chart("Time of a forward pass", f"Medians: {words}.", draw, bars_size(len(times)))
    found = "".join(f" {finding[:1].upper()}{finding[1:]}." for finding in latency.findings[1:])
    return Charts([panel], f"Bars are medians, lines quartiles.{found}")


def _latency_table(latency: PruningLatency) -> Table:
    rows = [
        [
            TIMED.get(name, name),
            _milliseconds(spread.median),
            f"{_milliseconds(spread.low)} to {_milliseconds(spread.high)}",
        ]
        for name, spread in latency.seconds.items()
    ]
    how = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in latency.conditions.items())
    return Table(f"Milliseconds, the networks in turn: {how}.", ["network", "median", "quartiles"], rows)


def _milliseconds(seconds: float) -> str:
    """Return milliseconds with three digits, as many decimals as that takes.

    >>> _milliseconds(0.0119), _milliseconds(1.5e-05), _milliseconds(0.25)
    ('11.9', '0.0150', '250')
    """
    value = 1e3 * seconds
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}" if value > 0 else "0"


def _channels_table(channels: Mapping[str, tuple[int, int]]) -> Table:
    rows = [[name, str(k), str(n), f"{k / n:.0%}"] for name, (k, n) in channels.items()]
    return Table("Channels of every layer.", ["layer", "kept", "of", "share"], rows)


def _run(results: Results) -> Section:
    run: PruningRun = results.content
    phases = {"learning masks": run.masks.epochs, "fine-tuning": run.finetuning.epochs if run.finetuning else []}
    phases = {name: epochs for name, epochs in phases.items() if epochs}
    metric = main_metric(run.masks)
    ends = [
        f"{name} {figures.metric(metric, epochs[-1].metrics[metric])} after {len(epochs)} epochs"
        for name, epochs in phases.items()
    ]
    network, data = figures.network(run.masks.config.model.name), figures.data(run.masks.config.source)
    keys = [Key(name, i, dash(i)) for i, name in enumerate(phases)]
    panels = [_curves(phases, name) for name in (metric, AT_ZERO) if name in run.masks.epochs[-1].metrics]
    recipes = {"masks": run.masks.config.recipe}
    if run.finetuning:
        recipes["fine-tuning"] = run.finetuning.config.recipe
    return Section(
        f"How {network} on {data} was pruned",
        f"{metric.capitalize()} at the end: {'; '.join(ends)}.",
        [Charts(panels, "Fine-tuning goes on where learning the masks ended.", keys)],
        [Origin(str(results.path), None, shown({**run.settings, **recipes}), made_with([run.masks]))],
        ends[-1],
    )


def _curves(phases: Mapping[str, Sequence[Epoch]], name: str) -> Chart:
    """Draw a metric over the epochs of the phases that have it, one after the other."""
    curves, done = {}, 0
    for phase, epochs in phases.items():
        if name in epochs[0].metrics:
            curves[phase] = np.arange(done, done + len(epochs)) + 1, [epoch.metrics[name] for epoch in epochs]
        done += len(epochs)

    def draw(axes: Axes) -> None:
        for series, (places, values) in enumerate(curves.values()):
            axes.plot(places, values, **line_style(series))
        axes.set(xlabel="epoch", xlim=(0.5, done + 0.5))
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        if figures.is_share(name):
            axes.yaxis.set_major_formatter(PercentFormatter(1))

    title = name.replace("_", " ").capitalize()
    ends = (
        f"{phase} from {figures.metric(name, values[0])} to {figures.metric(name, values[-1])}"
        for phase, (_, values) in curves.items()
    )
    return chart(title, f"{title} against epoch: {'; '.join(ends)}.", draw)
