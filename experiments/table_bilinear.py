"""Where two tensors are multiplied: does coordination help, once the baseline got as many trials?

    python experiments/table_bilinear.py            # ten minutes on one core
    python experiments/table_bilinear.py --quick --into /tmp/bilinear

Four problems (bilinear_problems.py) under three base optimizers. Every method's settings are chosen on some seeds and
judged on others. Without a rule there is one learning rate for all, or one for the sparse side and one for the rest: 25
coarse trials, then three times 25 finer ones around the best so far. CoGD, and pushes that know nothing of the
coupling, get 25 trials instead of the last. Where the best partner is a closed form, one more method, beyond the paper,
keeps it at that. A problem and base that the results file already has is not run again.
"""

import argparse
import itertools
import json
import random
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import bilinear_page
import numpy as np
import torch
from bilinear_problems import HELD_OUT, PROBLEMS, Build, Model, Problem, follow, swapped, task
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer

from cogd import CoGD, Coupling, Quantile
from cogd.bundle import Bundle
from cogd.coupling import ALL
from cogd.projection import block_norms, project
from cogd.provenance import provenance

ROOT = Path(__file__).resolve().parents[1]
STEPS = 4.0, 1.6, 1.15, 1.04  # between learning rates, from coarse to fine
NEAR = 1 / STEPS[2], 1.0, STEPS[2]  # of the best rates, where CoGD and pushes are tried
RULES = ["descent", "paper", "descent", "paper", "descent", "paper", "rollback"]
PERIODS = [1, 5, 20]
GATES: dict[str, tuple[Any, Any]] = {
    "below the mean, partner above the median": ("mean", "median"),
    "lowest fifth, partner above the median": (Quantile(0.2), "median"),
    "lower half": ("median", 0.0),
    "always open": (float("inf"), 0.0),
}
LEAST = 1e-3  # what a choice tells from zero: half an image of the test error
Settings = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """How much is run: seeds that choose and seeds that judge, trials at a time, and at most so many steps."""

    choosing: int = 16
    judging: int = 40
    side: int = 5  # side^2 trials at a time
    most_steps: int = 1000
    every: int = 5  # steps between grades of a judged run

    def seeds(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(range(self.choosing)), tuple(range(HELD_OUT, HELD_OUT + self.judging))


QUICK = Config(choosing=2, judging=3, side=2, most_steps=3, every=1)


def base_optimizer(base: str, groups: list[dict[str, Any]]) -> Optimizer:
    if base == "adam":
        return Adam(groups, foreach=True)
    return SGD(groups, momentum=0.9 if base == "momentum" else 0.0, foreach=True)


def builder(base: str, settings: Settings) -> Build:
    """Return what makes the optimizer of all seeds' models; with the exact partner it steps the sparse side alone."""

    def build(models: list[Model]) -> Optimizer:
        couplings = [model.couple() for model in models]
        sparse = [coupling.sparse for coupling in couplings]
        rest = [p for m in models for p in m.parameters() if p.requires_grad and all(p is not x for x in sparse)]
        sides = [sparse] if settings.get("exact") == "always" else [sparse, rest]
        groups = [{"params": side, "lr": rate} for side, rate in zip(sides, settings["rates"], strict=True)]
        optimizer = base_optimizer(base, groups)
        if "cogd" in settings:
            return CoGD(optimizer, gated(couplings, settings), **settings["cogd"])
        if "push" in settings:
            push(optimizer, gated(couplings, settings), **settings["push"])
        return optimizer

    return build


def gated(couplings: list[Coupling], settings: Settings) -> list[Coupling]:
    """Return the couplings with the thresholds and the projected side that the settings name."""
    names = "sparse_threshold", "partner_threshold"
    gate = dict(zip(names, GATES[settings["gate"]], strict=True))
    sided = map(swapped, couplings) if settings["swap"] else couplings
    return [replace(coupling, project=settings["project"], **gate) for coupling in sided]


def push(optimizer: Optimizer, couplings: list[Coupling], sign: str, share: float, period: int) -> None:
    """Make every `period`-th step add, where the gate is open, a share of x(t): CoGD with a beta that knows nothing."""
    bundle, steps, coin = Bundle(tuple(couplings)), itertools.count(1), torch.Generator().manual_seed(0)
    pending: list[tuple[Tensor, Tensor]] = []

    def present(parameter: Tensor) -> Tensor:
        return parameter

    @torch.no_grad()
    def before(*_: Any) -> None:
        if next(steps) % period == 0:
            norms = [block_norms(side(present, ALL)) for side in (bundle.sparse, bundle.partner)]
            old = bundle.projected(present, ALL).clone()
            tossed = torch.randint(0, 2, old.shape, generator=coin) * 2.0 - 1.0
            signs = tossed if sign == "coin" else {"grow": 1.0, "shrink": -1.0}[sign]
            pending.append((signs * share * old, bundle.is_open([norms[0]], [norms[1]]).flatten()))

    @torch.no_grad()
    def after(*_: Any) -> None:
        while pending:
            bundle.put(project(bundle.projected(present, ALL), *pending.pop()), ALL)

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def one_rate(around: list[float], side: int, step: float) -> list[Settings]:
    """Return side^2 learning rates around one, over the range that `two_rates` has on each axis."""
    factors = np.geomspace(step ** -(side // 2), step ** (side // 2), side**2)
    return [{"rates": [rate * float(factor) for rate in around]} for factor in factors]


def two_rates(around: list[float], side: int, step: float) -> list[Settings]:
    factors = [step**i for i in range(-(side // 2), side - side // 2)]
    return [{"rates": [around[0] * f, around[1] * g]} for f, g in itertools.product(factors, factors)]


def cogd_trials(around: list[float], count: int, ways: tuple[Settings, ...]) -> list[Settings]:
    """Return CoGD at settings drawn at random, for each base the same; descent projects no partner."""
    draw, found = random.Random(0), []
    for rule in itertools.islice(itertools.cycle(RULES), count):
        own = common(around, draw, [way for way in ways if rule != "descent" or way["project"] == "sparse"])
        kernel = {"order": draw.choice([1, 2, 3]), "scale": draw.choice([0.001, 0.01, 0.1, 1.0])}
        cogd = {"rule": rule, "period": draw.choice(PERIODS)}
        found.append({**own, "cogd": cogd if rule == "rollback" else cogd | kernel})
    return found


def push_trials(around: list[float], count: int, ways: tuple[Settings, ...]) -> list[Settings]:
    draw, found = random.Random(1), []
    for sign in itertools.islice(itertools.cycle(["grow", "shrink", "coin"]), count):
        own, share = common(around, draw, ways), draw.choice([0.0001, 0.001, 0.01, 0.1])
        found.append({**own, "push": {"sign": sign, "share": share, "period": draw.choice(PERIODS)}})
    return found


def common(around: list[float], draw: random.Random, ways: Sequence[Settings]) -> Settings:
    """Draw what CoGD and pushes share: the rates' distance from the best, the gate, and the sides."""
    factor, gate, way = draw.choice(NEAR), draw.choice(list(GATES)), draw.choice(ways)
    return {"rates": [rate * factor for rate in around], "gate": gate, **way}


def measure(name: str, base: str, config: Config) -> dict[str, Any]:
    """Return every method's trials on the seeds that choose, and its best one's results on those that judge."""
    began, (choosing, judging) = time.process_time(), config.seeds()
    problem = replace(PROBLEMS[name], steps=min(PROBLEMS[name].steps, config.most_steps))
    centre, trials = [problem.rates[base]] * 2, config.side**2

    def tried(settings: list[Settings]) -> list[dict[str, Any]]:
        builds, exact = [builder(base, own) for own in settings], settings[0].get("exact", "")
        ends = finals(follow(task(problem, choosing), builds, exact))
        means = ends.clamp(min=LEAST).log().mean(1).exp()  # of logarithms, as a seed that diverges would decide a mean
        return [{"settings": own, "value": float(mean)} for own, mean in zip(settings, means, strict=True)]

    found: dict[str, list[dict[str, Any]]] = {}
    for rated, rates in {"one rate": one_rate, "two rates": two_rates}.items():
        rows, around = list[dict[str, Any]](), centre
        for step in STEPS[:-1]:
            rows += tried(rates(around, config.side, step))
            around = best(rows)["rates"]
        found[rated] = rows + tried(rates(around, config.side, STEPS[-1]))
        for kind, drawn in {"CoGD": cogd_trials, "push": push_trials}.items():
            found[f"{kind}, {rated}"] = tried(drawn(around, trials, problem.ways))
    if problem.exact():
        rows = tried([{**s, "exact": "always"} for s in one_rate(centre[:1], config.side, STEPS[0])])
        finer = one_rate(best(rows)["rates"], config.side, STEPS[1])
        found["exact partner"] = rows + tried([{**s, "exact": "always"} for s in finer])
        found["two rates, exact at the end"] = tried([{**best(found["two rates"]), "exact": "graded"}])
    curves = {name: judged(problem, base, best(rows), judging, config.every) for name, rows in found.items()}
    goals = finals(curves["two rates"])
    methods = {
        name: {**summary(curves[name], goals, config.every), "chosen": best(rows), "trials": rows}
        for name, rows in found.items()
    }
    return {"methods": methods, "seconds": time.process_time() - began}


def best(rows: list[dict[str, Any]]) -> Settings:
    return min(rows, key=lambda row: row["value"])["settings"]


def finals(grades: Tensor) -> Tensor:
    """Return where runs end; none counts as worse than its start."""
    return torch.minimum(grades[-1], grades[0])


def judged(problem: Problem, base: str, settings: Settings, seeds: tuple[int, ...], every: int) -> Tensor:
    """Return the grades (grade, seeds) on the seeds that judge."""
    return follow(task(problem, seeds), [builder(base, settings)], settings.get("exact", ""), every)[:, 0]


def summary(curves: Tensor, goals: Tensor, every: int) -> dict[str, Any]:
    """Return each seed's end, and after how many steps it is where the best two rates end, None for never."""
    there = curves <= goals
    first = torch.where(there.any(0), there.int().argmax(0), -1).tolist()
    return {"final": finals(curves).tolist(), "steps": [None if grade < 0 else grade * every for grade in first]}


def run(config: Config, file: Path, processes: int) -> None:
    """Measure what the results file lacks, and write it anew after each problem and base."""
    about = provenance()
    document: dict[str, Any] = {"config": asdict(config), "problems": described(config), **about, "units": {}}
    if file.exists():
        earlier = json.loads(file.read_text())
        for what in ("config", "problems"):
            if earlier[what] != document[what]:
                raise SystemExit(f"{file} was measured with the {what} {earlier[what]}; remove it to measure anew.")
        document["units"] = earlier["units"]
    units = {f"{name}, {base}": (name, base) for name, problem in PROBLEMS.items() for base in problem.rates}
    with ProcessPoolExecutor(processes, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        jobs = {pool.submit(measure, *units[unit], config): unit for unit in units if unit not in document["units"]}
        for job in as_completed(jobs):
            found = {**document["units"], jobs[job]: {**job.result(), "commit": about["commit"]}}
            document["units"] = {unit: found[unit] for unit in units if unit in found}
            file.write_text(dump(document))
            print(f"{jobs[job]}: {found[jobs[job]]['seconds']:.0f} s", flush=True)


def described(config: Config) -> dict[str, Any]:
    return {
        name: {"title": p.title, "metric": p.metric, "steps": min(p.steps, config.most_steps), "rates": p.rates}
        for name, p in PROBLEMS.items()
    }


def dump(document: dict[str, Any]) -> str:
    """Return JSON with numbers at 6 significant digits and a line for each trial."""
    rounded = json.loads(json.dumps(document), parse_float=lambda text: float(f"{float(text):.6g}"))
    return json.dumps(rounded).replace('{"settings"', '\n{"settings"') + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few seeds, trials and steps, to see that it runs")
    parser.add_argument("--into", type=Path, default=ROOT, help="the folder for experiments/results and docs/results")
    parser.add_argument("--processes", type=int, default=1, help="so many problems at once (default 1)")
    parser.add_argument("--redraw", action="store_true", help="only the page, from the results file as it is")
    options = parser.parse_args()
    torch.set_num_threads(1)
    file, docs = options.into / "experiments/results/bilinear.json", options.into / "docs/results"
    for folder in (file.parent, docs):
        folder.mkdir(parents=True, exist_ok=True)
    if not options.redraw:
        run(QUICK if options.quick else Config(), file, options.processes)
    (docs / "bilinear.md").write_text(bilinear_page.page(json.loads(file.read_text())))


if __name__ == "__main__":
    main()
