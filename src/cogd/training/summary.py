"""Runs over several seeds as one table: mean, deviation, and whether a difference to the baseline is chance."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """A paired comparison over the seeds that both have: the mean difference, its interval at 95%, and Student's p."""

    pairs: int
    mean: float
    half_width: float
    p: float


@dataclass(frozen=True)
class Row:
    """One folder of runs: its seeds' values of one metric."""

    name: str
    values: dict[int, float]
    difference: Difference | None = None

    @property
    def mean(self) -> float:
        return math.fsum(self.values.values()) / len(self.values)

    @property
    def deviation(self) -> float:
        """The sample's standard deviation; NaN for one run."""
        if len(self.values) < 2:
            return math.nan
        return math.sqrt(math.fsum((v - self.mean) ** 2 for v in self.values.values()) / (len(self.values) - 1))


def paired_difference(values: dict[int, float], baseline: dict[int, float]) -> Difference | None:
    """Compare the runs of the same seeds; None where fewer than two seeds are shared.

    >>> difference = paired_difference({0: 0.92, 1: 0.94, 2: 0.93}, {0: 0.91, 1: 0.92, 2: 0.90})
    >>> f"{difference.mean:.3f} +- {difference.half_width:.3f}, p = {difference.p:.3f}"
    '0.020 +- 0.025, p = 0.074'
    """
    from scipy import stats

    shared = sorted(set(values) & set(baseline))
    if len(shared) < 2:
        return None
    gaps = [values[seed] - baseline[seed] for seed in shared]
    mean = math.fsum(gaps) / len(gaps)
    error = math.sqrt(math.fsum((gap - mean) ** 2 for gap in gaps) / (len(gaps) - 1) / len(gaps))
    degrees = len(gaps) - 1
    p = float(2 * stats.t.sf(abs(mean) / error, degrees)) if error else float(mean == 0)
    return Difference(len(gaps), mean, error * float(stats.t.ppf(0.5 + CONFIDENCE / 2, degrees)), p)


def summarize(folders: Sequence[str | Path], metric: str = "accuracy") -> list[Row]:
    """Return a row for each folder of finished runs, every row but the first compared with the first.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "config.json").write_text('{"seed": 0}')
    ...     _ = Path(folder, "result.json").write_text('{"metrics": {"accuracy": 0.97}}')
    ...     summarize([folder])[0].mean
    0.97
    """
    values = [_values(Path(folder), metric) for folder in folders]
    return [
        Row(str(folder), runs, paired_difference(runs, values[0]) if i else None)
        for i, (folder, runs) in enumerate(zip(folders, values, strict=True))
    ]


def _values(folder: Path, metric: str) -> dict[int, float]:
    """Return the metric by seed of the finished run in `folder`, or of those right below it."""
    runs = [path.parent for path in (*folder.glob("result.json"), *folder.glob("*/result.json"))]
    if not runs:
        raise FileNotFoundError(f"{folder} holds no finished run; `cogd train --seeds 5 -o {folder}` makes some.")
    found: dict[int, float] = {}
    for run in sorted(runs):
        seed, metrics = _read(run / "config.json")["seed"], _read(run / "result.json")["metrics"]
        if metric not in metrics:
            raise ValueError(f"{run} has no metric {metric!r}; it has {', '.join(metrics)}.")
        if seed in found:
            raise ValueError(
                f"{folder} holds two runs of seed {seed}; give folders whose runs differ in the seed alone."
            )
        found[seed] = metrics[metric]
    return found


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())
