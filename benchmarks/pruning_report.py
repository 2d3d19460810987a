"""The pruning benchmark's results file: a row for every run, a summary over seeds for every method."""

import json
import traceback
from dataclasses import asdict
from multiprocessing.pool import AsyncResult
from pathlib import Path
from typing import Any

from pruning_methods import METHODS, REFERENCE, Setting

from cogd.provenance import provenance
from cogd.training.summary import Row, paired_difference


class Report:
    """The results file: what is in it already counts, if it was made with the same settings."""

    def __init__(self, path: Path, setting: Setting, **config: Any):
        self.path = path
        self.content = {"config": asdict(setting) | config, **provenance(setting.device)}
        self.content |= {"sharing": "", "speed": {}, "bases": [], "runs": [], "failures": []}
        if path.exists():
            earlier = json.loads(path.read_text())
            if earlier["config"] != self.content["config"]:
                raise SystemExit(f"{path} was made with other settings; choose another file.")
            self.content |= {name: earlier[name] for name in ("speed", "bases", "runs")}

    def has(self, method: str, seed: int) -> bool:
        return any((row["method"], row["seed"]) == (method, seed) for row in self.content["runs"])

    def add(self, kind: str, row: Any) -> None:
        print(kind, {name: value for name, value in row.items() if name not in ("channels", "traceback")}, flush=True)
        self.content[kind] = row if kind == "speed" else [*self.content[kind], row]
        self.content["summary"] = summarize(self.content["runs"])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.content, indent=1) + "\n")

    def add_outcome(self, kind: str, job: AsyncResult[dict[str, Any]], timeout: float, **about: Any) -> bool:
        """Add what a job returns; a failure is a result too, not the end of the others. Return whether it was none."""
        try:
            self.add(kind, job.get(timeout))
        except Exception as error:  # noqa: BLE001
            told = {"error": f"{type(error).__name__}: {error}"[:300], "traceback": traceback.format_exc()}
            self.add("failures", {"kind": kind, **about, **told})
            return False
        return True


def summarize(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per method: mean accuracy, deviation, and the paired difference to our masks with CoGD."""
    values = {method: {row["seed"]: row["accuracy"] for row in runs if row["method"] == method} for method in METHODS}
    rows = []
    for method, mine in values.items():
        if mine:
            row, difference = Row(method, mine), paired_difference(mine, values[REFERENCE])
            deviation = row.deviation if len(mine) > 1 else None
            compared = asdict(difference) if difference and method != REFERENCE else {}
            macs = [run["macs"] for run in runs if run["method"] == method]
            rows.append({"method": method, "n": len(mine), "mean": row.mean, "deviation": deviation})
            rows[-1] |= {"macs": sum(macs) / len(macs), "difference": compared}
    return rows
