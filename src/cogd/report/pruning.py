"""Pruned networks: the channels kept in every layer, what that saved and cost, and how the masks were learned."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from cogd.report.blocks import ABSENT, Block, Chart, Charts, Key, Origin, Section, Table, shown
from cogd.report.collect import Results
from cogd.report.documents import Epoch, PrunedNetwork, PruningLatency, PruningReport, PruningRun, Spread
from cogd.report.drawing import SERIES, bars, bars_size, chart, dash, line_style
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
STAGES = {"before": "before", "after": "channels removed", "fine_tuned": "fine-tuned"}


def network_sections(found: Sequence[Results]) -> list[Section]:
    """Return a section for every pruned network ."""
    return [_network(results) for results in found]


def run_sections(found: Sequence[Results]) -> list[Section]:
    """Return a section for every pruning run with an epoch behind it."""
    return [_run(results) for results in found if results.content.masks.epochs]


def _network(results: Results) -> Section:
    document: PrunedNetwork = results.content
    report: PruningReport = document.report
    name = document.builder or results.path.parent.name
    blocks: list[Block] = [_channels_chart(report.channels), _stages_table(report)]
    if report.latency:
        blocks.append(_latency_table(report.latency))
    blocks.append(_channels_table(report.channels))
    settings = {"target": report.target, "builder": document.builder, "arguments": document.arguments}
    return Section(
        f"Pruning {name} to {report.macs.share:.0%} of its multiply-accumulates",
        _verdict(report),
        blocks,
        [Origin(str(results.path), None, shown(settings), document.versions)],
    )


def _verdict(report: PruningReport) -> str:
    said = (
        f"{report.macs.share:.1%} of the multiply-accumulates and {report.parameters.share:.1%} of the parameters stay."
    )
    if all("accuracy" in report.metrics.get(stage, {}) for stage in STAGES):
        before, after, tuned = (report.metrics[stage]["accuracy"] for stage in STAGES)
        said += f" Accuracy {before:.2%} before, {after:.2%} with the channels removed, {tuned:.2%} fine-tuned."
    if report.latency:
        said += f" A forward pass is {_times(report.latency.speedup)} as fast."
    return said


def _channels_chart(channels: Mapping[str, tuple[int, int]]) -> Charts:
    kept, whole = np.array(list(channels.values())).T

    def draw_bars(axes: Axes) -> None:
        bars(axes, {name: [k, n - k] for name, (k, n) in channels.items()}, [KEPT, REMOVED], [REMOVED])
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
    return Charts([panel], f"{kept.sum()} of {whole.sum()} channels are kept.", keys)


def _stages_table(report: PruningReport) -> Table:
    rows = []
    for name, change in (("multiply-accumulates", report.macs), ("parameters", report.parameters)):
        after = f"{change.after:,.0f}"
        rows.append([name, f"{change.before:,.0f}", after, after, f"{change.share:.1%}"])
    for name in report.metrics.get("before", {}):
        values = [report.metrics.get(stage, {}).get(name) for stage in STAGES]
        first, last = values[0], values[-1]
        difference = ABSENT if first is None or last is None else f"{last - first:+.4f}"
        rows.append([name.replace("_", " "), *(ABSENT if v is None else f"{v:.4f}" for v in values), difference])
    return Table("The network at each stage.", ["", *STAGES.values(), "kept, or difference"], rows)


def _latency_table(latency: PruningLatency) -> Table:
    rows = [
        [TIMED.get(name, name), f"{1e3 * spread.median:.3g}", f"{1e3 * spread.low:.3g} to {1e3 * spread.high:.3g}"]
        for name, spread in latency.seconds.items()
    ]
    how = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in latency.conditions.items())
    caption = f"Milliseconds of a forward pass, the networks in turn ({how}). Found: {'; '.join(latency.findings)}."
    return Table(caption, ["network", "median", "quartiles"], rows)


def _times(spread: Spread) -> str:
    return f"{spread.median:.2f} times ({spread.low:.2f} to {spread.high:.2f})"


def _channels_table(channels: Mapping[str, tuple[int, int]]) -> Table:
    rows = [[name, str(k), str(n), f"{k / n:.0%}"] for name, (k, n) in channels.items()]
    return Table("Channels of every layer.", ["layer", "kept", "of", "share"], rows)


def _run(results: Results) -> Section:
    run: PruningRun = results.content
    phases = {"learning masks": run.masks.epochs, "fine-tuning": run.finetuning.epochs if run.finetuning else []}
    phases = {name: epochs for name, epochs in phases.items() if epochs}
    metric = main_metric(run.masks)
    ends = (f"{name} {epochs[-1].metrics[metric]:.4f}, {len(epochs)} epochs" for name, epochs in phases.items())
    keys = [Key(name, i, dash(i)) for i, name in enumerate(phases)]
    panels = [_curves(phases, name) for name in (metric, AT_ZERO) if name in run.masks.epochs[-1].metrics]
    recipes = {"masks": run.masks.config.recipe}
    if run.finetuning:
        recipes["fine-tuning"] = run.finetuning.config.recipe
    return Section(
        f"How {run.masks.config.model.name} on {run.masks.config.source} was pruned",
        f"{metric.capitalize()} at the end: {'; '.join(ends)}.",
        [Charts(panels, "Fine-tuning goes on where learning the masks ended.", keys)],
        [Origin(str(results.path), None, shown({**run.settings, **recipes}), made_with([run.masks]))],
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

    title = name.replace("_", " ").capitalize()
    ends = (f"{phase} from {values[0]:.4f} to {values[-1]:.4f}" for phase, (_, values) in curves.items())
    return chart(title, f"{title} against epoch: {'; '.join(ends)}.", draw)
