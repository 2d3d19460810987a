"""Section "CNN Training" of the paper: accuracy without and with CoGD, over seeds.

    python experiments/table_training.py        # the digits: minutes on a CPU
    python experiments/table_training.py --data cifar10:DIR --device cuda --epochs 10 --at-once 5 --time-limit 240
    python experiments/table_training.py --quick --into /tmp/training

The recipe's SGD alone and with each rule at the paper's constants, the same seeds for all: a seed decides the first
weights, the order of the images and their augmentation. Nobody's settings were tuned. Runs are resumed by the same
command; the results file, and the page made of all such files, are written anew after every run.
"""

import argparse
import json
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from page_tables import markdown

from cogd.models import build
from cogd.provenance import provenance
from cogd.training import Result, read_recipe
from cogd.training.data import KINDS, load_data
from cogd.training.recipe import Recipe
from cogd.training.summary import Row, paired_difference
from cogd.training.together import Job, run_together

ROOT = Path(__file__).resolve().parents[1]
RULES: dict[str, dict[str, Any]] = {
    "SGD": {"rule": "none"},
    "paper, order 1": {"rule": "paper", "order": 1},
    "paper, order 2": {"rule": "paper", "order": 2},
    "rollback": {"rule": "rollback"},
    "paper, order 1, scale 1": {"rule": "paper", "order": 1, "scale": 1.0},
}
PAPERS = tuple(RULES)[:4]
SGD, *RULED = RULES
METRICS = {"accuracy": "test accuracy", "test_loss": "test loss", "train_loss": "training loss of the last epoch"}
Entry = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """What is trained on one kind of data, in which variants; in small layers a must be below the paper's 0.95."""

    model: str
    recipe: str
    active: float
    variants: tuple[str, ...]


OF_DATA = {
    "digits": Kind("digits", "digits", 0.8, tuple(RULES)),
    "cifar10": Kind("resnet18", "cifar10", 0.95, PAPERS),
}


def jobs_of(options: argparse.Namespace) -> list[tuple[str, Job]]:
    """Return every run with its variant, seed by seed, so that what time ends leaves whole comparisons."""
    name = options.data.partition(":")[0]
    kind, classes = OF_DATA[name], len(load_data(options.data).classes)
    fields = {"active": kind.active} | ({"epochs": options.epochs} if options.epochs else {})
    recipes = {variant: read_recipe(kind.recipe, **fields, **RULES[variant]) for variant in kind.variants}

    def job(variant: str, seed: int) -> Job:
        folder = options.runs / name / f"{re.sub('[, ]+', '-', variant)}-{recipes[variant].epochs}" / f"seed-{seed}"
        network = partial(build, kind.model, classes)
        return Job(network, options.data, recipes[variant], seed, folder, {"name": kind.model})

    return [(variant, job(variant, seed)) for seed in range(options.seeds) for variant in kind.variants]


def entry(variant: str, job: Job, result: Result) -> Entry:
    """Return what one run came to."""
    last = result.history[-1]
    found: Entry = {"variant": variant, "seed": job.seed, **result.metrics, "train_loss": last["train_loss"]}
    found["seconds"] = math.fsum(record["seconds"] for record in result.history)
    projections = [record["cogd"] for record in result.history if record.get("cogd", {}).get("coordinates")]
    if projections:
        found["opened"] = sum(p["opened"] for p in projections) / sum(p["coordinates"] for p in projections)
        found["correction"] = math.fsum(p["correction"] for p in projections) / len(projections)
    return found


def summary(runs: Sequence[Entry]) -> list[Entry]:
    """Return n, mean, deviation and the paired difference to SGD of each variant and metric."""
    rows: list[Entry] = []
    for metric in METRICS:
        values = {v: {run["seed"]: run[metric] for run in runs if run["variant"] == v} for v in RULES}
        for variant, mine in values.items():
            if len(mine) > 1:
                row, gap = Row(variant, mine), paired_difference(mine, values[SGD]) if variant != SGD else None
                rows.append({"metric": metric, "variant": variant, "n": len(mine), "mean": row.mean})
                rows[-1] |= {"deviation": row.deviation} | ({"difference": asdict(gap)} if gap else {})
    return rows


def page(documents: Sequence[Entry]) -> str:
    """Return the page of all results files."""
    return "\n\n".join([head(), *map(section, documents)]) + "\n"


def section(document: Entry) -> str:
    """Return the part of the page about one data set."""
    config, versions = document["config"], document["versions"]
    recipe = config["recipe"]
    seeds = sorted({run["seed"] for run in document["runs"]})
    about = (
        f"{config['model']}, {recipe['epochs']} epochs of recipe `{config['recipe_name']}` (a = {recipe['active']}), "
        f"{len(document['runs'])} runs over {len(seeds)} seeds; {document['device']}, torch {versions['torch']}, "
        f"commit `{(document['commit'] or 'unknown')[:7]}`: "
        f"[every run](../../experiments/results/{config['file']})."
    )
    unfinished = document["unfinished"]
    ended = [f"The time did not suffice for {len(unfinished)} runs: {', '.join(unfinished)}."] if unfinished else []
    tables = [table(document, metric, title) for metric, title in METRICS.items()]
    return "\n\n".join([f"## {config['data']}", about, *ended, *tables, projections(document["runs"])])


def table(document: Entry, metric: str, title: str) -> str:
    """Return a metric's table."""
    shown = "{:.2%}" if metric == "accuracy" else "{:.4f}"
    lines = [[title, "n", "mean", "deviation", "difference to SGD, 95%", "p"]]
    for row in document["summary"]:
        if row["metric"] == metric:
            d, spread = row.get("difference"), shown.format(row["deviation"])
            gap = (
                f"{'+' if d['mean'] > 0 else ''}{shown.format(d['mean'])} ± {shown.format(d['half_width'])}"
                if d
                else ""
            )
            mean, p = shown.format(row["mean"]), (f"{d['p']:.2f}" if d["p"] >= 0.005 else "< 0.005") if d else ""
            lines.append([row["variant"], str(row["n"]), mean, spread, gap, p])
    return markdown(lines)


def projections(runs: Sequence[Entry]) -> str:
    """Say how much of the network the rules moved."""
    said = []
    for variant in RULED:
        mine = [run for run in runs if run["variant"] == variant and "opened" in run]
        if mine:
            opened, correction = (math.fsum(run[key] for run in mine) / len(mine) for key in ("opened", "correction"))
            said.append(f"{variant} {opened:.1%} of the gates, moving the kernels by {correction:.2g} (l2 norm)")
    return f"A projection opened on average: {'; '.join(said)}." if said else "No rule made a projection."


HEAD = """
# CNN training

Made by `experiments/table_training.py`. The paper's table (ResNet-18, CIFAR-10, 200 epochs, one number each): SGD
{sgd}%, CoGD of order 1 {k1}%, of order 2 {k2}%. Here every variant runs with the same seeds, so that differences are
paired: their mean, its 95% interval, and Student's p for each comparison alone; with several, p must be that much
smaller to be a finding. Nothing was tuned for anybody.
"""


def head() -> str:
    """Return how the page begins."""
    printed = tomllib.loads((ROOT / "experiments/paper_values.toml").read_text())["training"]
    values = (printed[name]["cifar10"] for name in ("sgd", "cogd-k1", "cogd-k2"))
    return HEAD.strip().format(**dict(zip(("sgd", "k1", "k2"), values, strict=True)))


def measure(options: argparse.Namespace, file: Path, write: Any) -> None:
    """Take all runs, and call `write` with the document after each that is complete."""
    tasks = jobs_of(options)
    variants, kind = {id(job): variant for variant, job in tasks}, OF_DATA[options.data.partition(":")[0]]
    recipe: Recipe = tasks[0][1].recipe
    config = {
        "data": options.data.partition(":")[0],
        "model": kind.model,
        "recipe_name": kind.recipe,
        "file": file.name,
    }
    config |= {"recipe": recipe.model_dump(), "rules": RULES, "seeds": options.seeds, "at_once": options.at_once}
    about, done = provenance(options.device), list[Entry]()

    def complete(job: Job, result: Result) -> None:
        done.append(entry(variants[id(job)], job, result))
        done.sort(key=lambda run: (run["seed"], list(RULES).index(run["variant"])))
        had = {(run["variant"], run["seed"]) for run in done}
        left = [f"{variant} seed {job.seed}" for variant, job in tasks if (variant, job.seed) not in had]
        write({"config": config, **about, "runs": done, "summary": summary(done), "unfinished": left})
        print(f"{len(done)} of {len(tasks)}: {variants[id(job)]}, seed {job.seed}: {result.metrics}", flush=True)

    run_together(
        [job for _, job in tasks],
        options.at_once,
        options.device,
        when_complete=complete,
        note=print,
        seconds=options.time_limit,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits", help=f"{' or '.join(KINDS[kind] for kind in OF_DATA)}")
    parser.add_argument("--epochs", type=int, help="the recipe's by default")
    parser.add_argument("--seeds", type=int, default=5, help="so many of each variant (default 5)")
    parser.add_argument("--at-once", type=int, default=2, help="so many runs at once (default 2)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--time-limit", type=float, default=math.inf, metavar="SECONDS", help="then stop and save")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/table_training", help="the folder of the runs")
    parser.add_argument("--into", type=Path, default=ROOT, help="the folder for experiments/results and docs/results")
    parser.add_argument("--quick", action="store_true", help="two seeds of the digits, two epochs each")
    parser.add_argument("--redraw", action="store_true", help="only the page, from the results files as they are")
    options = parser.parse_args()
    if options.quick:
        options.data, options.epochs, options.seeds, options.runs = "digits", 2, 2, options.into / "runs"
    results, docs = options.into / "experiments/results", options.into / "docs/results"
    for folder in (results, docs):
        folder.mkdir(parents=True, exist_ok=True)
    file = results / f"training_{options.data.partition(':')[0]}.json"

    def write(document: Entry) -> None:
        file.write_text(json.dumps(document, indent=1) + "\n")
        draw()

    def draw() -> None:
        found = [json.loads(path.read_text()) for path in sorted(results.glob("training_*.json"))]
        (docs / "training.md").write_text(page(found))

    draw() if options.redraw else measure(options, file, write)


if __name__ == "__main__":
    main()
