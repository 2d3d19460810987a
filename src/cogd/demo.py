"""The demonstration: the baseline problem with and without coordination, in a few seconds on a CPU."""

import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from cogd import toy, toy_report

SIDE, REACH, START = 41, 3.0, (0.5, 1.5)


def run(directory: Path) -> list[str]:
    """Write beale.png and beale.json to the directory and return the summary's five lines."""
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=Console(stderr=True)) as progress:
        task = progress.add_task(f"Beale's function: following {SIDE * SIDE} starts with three optimizers", total=None)
        pairs = toy.against_plain(toy.start_grid(SIDE, REACH))
        comparisons = {name: toy.compare(*both) for name, both in pairs.items()}
        progress.update(task, description="Beale's function: drawing the paths from one start")
        shown = toy.against_plain(toy.positions([START]))
        toy_report.paths_figure({"CoGD as printed: order 1, scale 0.001": shown}, directory / "beale.png")
        results = {name: asdict(comparison) for name, comparison in comparisons.items()}
        (directory / "beale.json").write_text(json.dumps(results, indent=1) + "\n")
        progress.update(task, description="Beale's function: done")
    return summary(comparisons, directory)


def summary(comparisons: dict[toy.Name, toy.Comparison], directory: Path) -> list[str]:
    """Return five lines that say what coordination changed."""
    lines = [f"Beale's function, {SIDE} x {SIDE} starts, 200 steps: CoGD with the paper's constants, and without"]
    for name, c in comparisons.items():
        low, median, high = (c.length_ratio[q] for q in ("5%", "50%", "95%"))
        lines.append(
            f"{toy_report.LABELS[name]:8}  F lower {c.improved:.1%}, same {c.unchanged:.1%}, higher {c.worsened:.1%}; "
            f"path length x {median:.3f} (90% of starts: {low:.3f} to {high:.3f})"
        )
    least = min(c.unchanged for c in comparisons.values())
    return [
        *lines,
        f"The path hardly changes: at least {least:.0%} of starts end the same. See {directory / 'beale.png'}",
    ]
