"""The paper's figure of Beale's function, and what its settings, and others, do from every start.

    python experiments/figure_beale.py            # 5 to 10 minutes on one core
    python experiments/figure_beale.py --quick --into /tmp/beale

Each optimizer of the paper runs from a grid of starts with CoGD at 25 settings and, as controls, at 25 learning rates,
at 25 learning rates of x1 alone, and with 12 pushes, which know nothing of the coupling: where the gate is open,
x1(t+1) gets a fixed share of x1(t), added, subtracted, or either by the toss of a coin. Then again on top of the best
learning rate, and for ten times the steps. Figures and page (from beale.md.in) are made from the one results file.
"""

import argparse
import itertools
import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from page_tables import markdown
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.optim import Optimizer

from cogd import toy, toy_report
from cogd.provenance import provenance

ROOT = Path(__file__).resolve().parents[1]
PRINTED: dict[str, Any] = {"rule": "descent", "order": 1, "scale": 0.001}
ALL_PRINTED = dict.fromkeys(toy.LEARNING_RATES, PRINTED)
NAMED = {"descent": PRINTED, "paper": {**PRINTED, "rule": "paper"}, "rollback": {"rule": "rollback"}}
KINDS = {"cogd": "CoGD", "rate": "learning rate", "x1 rate": "learning rate of x1", "push": "push without coupling"}
Row = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """What is run; side^2 starts fill [-reach, reach]^2, and a base's rates are multiplied by 1/16 to 16."""

    side: int = 61
    reach: float = 3.0
    steps: int = 200
    orders: tuple[int, ...] = (1, 2, 3)
    scales: tuple[float, ...] = (0.001, 0.01, 0.1, 1.0)
    rates: int = 25
    longer: tuple[int, int] = (31, 2000)  # side and steps
    other_boxes: tuple[tuple[int, float], ...] = ((41, 2.0), (91, 4.5))  # side and reach


QUICK = Config(side=4, steps=12, scales=(0.001, 1.0), rates=3, longer=(3, 15), other_boxes=((3, 2.0),))


@dataclass(frozen=True)
class Trial:
    """One optimizer run in one way from one grid of starts; `rate` is the plain one's learning rate."""

    optimizer: toy.Name
    rate: float
    kind: str
    settings: dict[str, Any]
    side: int
    reach: float
    steps: int

    def plain(self, factor: float = 1.0) -> Tensor:
        return plain_paths(self.optimizer, self.rate * factor, self.side, self.reach, self.steps)

    def paths(self) -> Tensor:
        starts = toy.start_grid(self.side, self.reach)
        match self.kind:
            case "cogd":
                return toy.paths(starts, self.optimizer, learning_rate=self.rate, steps=self.steps, **self.settings)
            case "rate":
                return self.plain(self.settings["factor"])
            case "x1 rate":
                return toy.follow(starts, self._two_rates, self.steps)
            case _:
                return toy.follow(starts, self._pushed, self.steps)

    def _two_rates(self, x1: Tensor, x2: Tensor) -> Optimizer:
        groups = [{"params": [x1], "lr": self.rate * self.settings["factor"]}, {"params": [x2]}]
        return toy.base_optimizer(self.optimizer, groups, self.rate)

    def _pushed(self, x1: Tensor, x2: Tensor) -> Optimizer:
        """Return the base with steps that end with x1(t+1) + push where the gate is open."""
        base, coin = toy.base_optimizer(self.optimizer, [x1, x2], self.rate), torch.Generator().manual_seed(0)
        push = torch.zeros_like(x1)

        @torch.no_grad()
        def before(*_: Any) -> None:
            tossed = torch.randint(0, 2, x1.shape, generator=coin) * 2 - 1
            sign = {"grow": 1, "shrink": -1, "coin": tossed}[self.settings["push"]]
            push.copy_(torch.where(toy.gate_open(torch.stack([x1, x2], -1)), sign * self.settings["share"] * x1, 0.0))

        @torch.no_grad()
        def after(*_: Any) -> None:
            x1.add_(push)

        base.register_step_pre_hook(before)
        base.register_step_post_hook(after)
        return base


@lru_cache(maxsize=6)
def plain_paths(optimizer: toy.Name, rate: float, side: int, reach: float, steps: int) -> Tensor:
    """Return the optimizer's paths without coordination."""
    return toy.paths(toy.start_grid(side, reach), optimizer, rule=None, learning_rate=rate, steps=steps)


def trials(config: Config, optimizer: toy.Name, rate: float, kinds: list[str], side: int, steps: int) -> list[Trial]:
    """Return the trials of these kinds on top of one base."""
    factors = [{"factor": float(f"{factor:.3g}")} for factor in np.geomspace(1 / 16, 16, config.rates)]
    rules = itertools.product(("descent", "paper"), config.orders, config.scales)
    coordinated = [*(dict(zip(PRINTED, rule, strict=True)) for rule in rules), NAMED["rollback"]]
    pushes = [{"push": push, "share": share} for push in ("grow", "shrink", "coin") for share in config.scales]
    settings: dict[str, list] = {"cogd": coordinated, "rate": factors, "x1 rate": factors, "push": pushes}
    return [Trial(optimizer, rate, kind, s, side, config.reach, steps) for kind in kinds for s in settings[kind]]


def measure(work: list[Trial], what: str) -> list[Row]:
    """Return the trials with their comparisons to the plain base, stalled where its path ends with the gate open."""
    rows = []
    for trial in track(work, what, console=Console(stderr=True)):
        paths, plain = trial.paths(), trial.plain()
        stalled, improved = toy.gate_open(plain[-1]), toy.verdicts(paths, plain) == 1
        row = {**asdict(trial), **asdict(toy.compare(paths, plain)), "stalled": int(stalled.sum())}
        row["improved_of_stalled"] = int((improved & stalled).sum())
        rows.append({**row, "plain_best": float((toy.outcomes(plain) == 0).double().mean())})
    return rows


def run(config: Config) -> dict[str, Any]:
    """Return all results: at the paper's learning rates, at the best, for more steps, and from other boxes."""
    kinds, box = list(KINDS), (config.side, config.steps)
    bases = toy.LEARNING_RATES.items()
    printed = measure([t for base in bases for t in trials(config, *base, kinds, *box)], "printed")
    tuned, boxes = [], []
    for name, rate in bases:
        best_rate = rate * best(printed, name, "rate")["settings"]["factor"]
        tuned += trials(config, name, best_rate, [kind for kind in kinds if kind != "rate"], *box)
        settings = [*NAMED.values(), best(printed, name, "cogd")["settings"]]
        boxes += [Trial(name, rate, "cogd", s, n, r, config.steps) for s in settings for n, r in config.other_boxes]
    longer = [t for base in bases for t in trials(config, *base, kinds, *config.longer)]
    more = {"tuned": tuned, "longer": longer, "boxes": boxes}
    return {**setting(config), "printed": printed, **{part: measure(work, part) for part, work in more.items()}}


def best(rows: list[Row], optimizer: str, kind: str) -> Row:
    """Return the row with the largest share of starts improved less the share worsened."""
    mine = [row for row in rows if row["optimizer"] == optimizer and row["kind"] == kind]
    return max(mine, key=lambda row: row["improved"] - row["worsened"])


def setting(config: Config) -> dict[str, Any]:
    """Return what the numbers depend on."""
    values = toy.objective(*toy.minima().unbind(-1))
    return {
        "config": asdict(config),
        **provenance(),
        "minima": torch.column_stack([toy.minima(), values]).tolist(),
        "start": json.loads(json.dumps(toy_report.endings(from_start(ALL_PRINTED)), default=asdict)),
    }


def from_start(settings: dict[toy.Name, dict[str, Any]]) -> toy_report.Pairs:
    """Return paths from the figure's start, with each optimizer's settings."""
    start = toy.positions([toy.START])
    return {name: (toy.paths(start, name, **own), toy.paths(start, name, rule=None)) for name, own in settings.items()}


def draw(results: dict[str, Any], folder: Path) -> None:
    """Write both figures."""
    chosen = {kind: {n: best(results["printed"], n, kind) for n in toy.LEARNING_RATES} for kind in KINDS}
    own = {name: row["settings"] for name, row in chosen["cogd"].items()}
    panels = {"CoGD, descent: order 1, scale 0.001": from_start(ALL_PRINTED), "CoGD, best of 25": from_start(own)}
    toy_report.paths_figure(panels, folder / "beale-paths.png")
    titles = ("CoGD, best of 25", "learning rate,\nbest of 25", "learning rate of x1,\nbest of 25", "push, best of 12")
    printed = {name: {**row, "settings": PRINTED} for name, row in chosen["cogd"].items()}
    rows = {"descent, order 1,\nscale 0.001": printed, **dict(zip(titles, chosen.values(), strict=True))}
    fields = Trial.__dataclass_fields__
    shown = {title: {n: Trial(**{f: row[f] for f in fields}) for n, row in of.items()} for title, of in rows.items()}
    maps = {title: {n: (trial.paths(), trial.plain()) for n, trial in of.items()} for title, of in shown.items()}
    toy_report.starts_figure(maps, folder / "beale-starts.png")


def page(results: dict[str, Any]) -> str:
    """Return the page: the template with its numbers and tables."""
    values = {name: facts(results, name) for name in toy.LEARNING_RATES}
    kept = {kind: [row for row in results["printed"] if row["kind"] == kind] for kind in KINDS}
    everywhere = [v for v, rows in by_variant(kept["cogd"]).items() if {"helps"} == set(map(verdict, rows))]
    tables = {
        "printed_table": table([values[n][f"printed {k}"] for n in values for k in NAMED]),
        "best_table": table([best(results["printed"], n, k) for n in values for k in KINDS]),
        "tuned_table": table([best(results["tuned"], n, k) for n in values for k in KINDS if k != "rate"]),
        "longer_table": table([best(results["longer"], n, k) for n in values for k in KINDS]),
        "boxes_table": table(results["boxes"]),
        "all_table": wide_table(kept["cogd"] + kept["push"]),
        "everywhere": "; ".join(everywhere) or "none",
        "most": max(row["improved"] for row in kept["cogd"]),
    }
    return (ROOT / "experiments/beale.md.in").read_text().format(**values, **tables, results=results)


def facts(results: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the rows of one optimizer that the page's text speaks of, by names that the template uses."""
    strong = {f"{r}{k}": {"rule": r, "order": k, "scale": 1.0} for r in ("descent", "paper") for k in (1, 2, 3)}
    strong["coin"] = {"push": "coin", "share": 1.0}
    rows: dict[str, Row] = {}
    for part in ("printed", "tuned", "longer"):
        mine = [row for row in results[part] if row["optimizer"] == name]
        rows |= {f"{part} {key}": row for key, s in (strong | NAMED).items() for row in mine if row["settings"] == s}
        rows |= {f"{part} {kind}": best(mine, name, kind) for kind in {row["kind"] for row in mine}}
    rows["nearer"] = next(r for r in results["boxes"] if r["optimizer"] == name and r["settings"] == PRINTED)
    counted = {key: {**row, "transitions": defaultdict(int, row["transitions"])} for key, row in rows.items()}
    return {**counted, "start": results["start"][name]}


def table(rows: list[Row]) -> str:
    """Return a markdown table of comparisons."""
    head = ("starts", "base", "rate", "variant", "F lower", "same", "higher", "shorter", "longer")
    lines = [[*head, "length 5%, 50%, 95%", "F change 5%, 50%, 95%", "best minimum", "so it"]]
    for row in rows:
        spreads = [
            ", ".join(f"{row[of].get(q, float('nan')):{form}}" for q in ("5%", "50%", "95%"))
            for of, form in (("length_ratio", ".2f"), ("value_difference", "+z.2f"))
        ]
        shares = [f"{row[key]:.1%}" for key in ("improved", "unchanged", "worsened", "shorter", "longer")]
        who = [f"{row['starts']}", toy_report.LABELS[row["optimizer"]], f"{row['rate']:.2g}", variant(row)]
        reached = f"{row['plain_best']:.1%} -> {row['outcomes'][toy.OUTCOMES[0]]:.1%}"
        lines.append([*who, *shares, *spreads, reached, verdict(row)])
    return markdown(lines)


def by_variant(rows: list[Row]) -> dict[str, list[Row]]:
    """Return the rows by variant, one per optimizer."""
    return {label: [row for row in rows if variant(row) == label] for label in dict.fromkeys(map(variant, rows))}


def wide_table(rows: list[Row]) -> str:
    """Return a markdown table with a line per variant and a column per optimizer."""
    lines = [["variant", *toy_report.LABELS.values()]]
    for label, same in by_variant(rows).items():
        lines.append([label, *(f"{row['improved']:.1%} / {row['worsened']:.1%}, {verdict(row)}" for row in same)])
    return markdown(lines)


def variant(row: Row) -> str:
    s = row["settings"]
    if row["kind"] == "cogd":
        return f"CoGD, {s['rule']}" + (f", order {s['order']}, scale {s['scale']:g}" if "order" in s else "")
    if row["kind"] == "push":
        return f"push, {s['push']} by {s['share']:g} x1"
    return f"{KINDS[row['kind']]} x {s['factor']:.3g}"


def verdict(row: Row) -> str:
    """Say in a word what a variant does; 1% of the starts is where an effect begins."""
    if row["improved"] + row["worsened"] < 0.01:
        return "has no effect"
    if row["improved"] >= 2 * row["worsened"]:
        return "helps"
    return "hurts" if row["worsened"] >= 2 * row["improved"] else "helps and hurts"


def dump(results: dict[str, Any]) -> str:
    """Return the results as JSON, numbers at 5 significant digits, a line per row."""
    rounded = json.loads(json.dumps(results), parse_float=lambda text: float(f"{float(text):.5g}"))
    return json.dumps(rounded).replace('{"optimizer"', '\n{"optimizer"') + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny grid and few steps, to see that it runs")
    parser.add_argument("--into", type=Path, default=ROOT, help="the folder for experiments/results and docs")
    parser.add_argument("--redraw", action="store_true", help="page and figures from the results file as it is")
    options = parser.parse_args()
    torch.set_num_threads(1)
    file, docs = options.into / "experiments/results/beale.json", options.into / "docs"
    for folder in (file.parent, docs / "results", docs / "figures"):
        folder.mkdir(parents=True, exist_ok=True)
    if not options.redraw:
        file.write_text(dump(run(QUICK if options.quick else Config())))
    results = json.loads(file.read_text())  # page and figures hold what the file holds
    (docs / "results/beale.md").write_text(page(results))
    draw(results, docs / "figures")


if __name__ == "__main__":
    main()
