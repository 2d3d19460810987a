"""Put the committed results into README.md and the pages of docs/, between their begin and end marks.

python experiments/readme.py           # after a results file has changed
python experiments/readme.py --check   # fail if a page differs from the results files; the tests run this
"""

import argparse
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import bilinear_page
import csc_page
from page_tables import markdown

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"<!-- begin (\w+) -->\n.*?<!-- end \1 -->", re.DOTALL)
PRINTED = {"rule": "paper", "order": 1, "scale": 0.001}
BASES = {"sgd": "SGD", "momentum": "Momentum", "adam": "Adam"}
Row = dict[str, Any]


def beale(results: dict[str, Any]) -> str:
    """Return the table of what CoGD and a learning rate do on the paper's first problem."""
    rows = results["printed"]
    columns = {
        "`paper`, order 1, scale 0.001": lambda mine: next(r for r in mine if r["settings"] == PRINTED),
        "CoGD, best of 25": lambda mine: best(mine, "cogd"),
        "learning rate, best of 25": lambda mine: best(mine, "rate"),
    }
    lines = [["ends lower / higher", *columns]]
    for base, label in BASES.items():
        mine = [row for row in rows if row["optimizer"] == base]
        chosen = [choose(mine) for choose in columns.values()]
        lines.append([label, *(f"{row['improved']:.1%} / {row['worsened']:.1%}" for row in chosen)])
    return f"Shares of {rows[0]['starts']} starts on Beale's function, {rows[0]['steps']} steps:\n\n{markdown(lines)}"


def overhead(*measured: dict[str, Any]) -> str:
    """Return a table per device of what the wrapper costs."""
    return "\n\n".join(map(overhead_table, measured)) or "Not measured yet."


def overhead_table(results: dict[str, Any]) -> str:
    """Return the table of one device."""
    ways = list(dict.fromkeys(way for row in results["results"] for way in row["overhead_percent"]))
    memory = {
        "held per coupled byte": "held_bytes_per_coupled_byte",
        "at most, during a step": "bytes_per_coupled_byte_during_a_step",
    }
    memory = {label: key for label, key in memory.items() if any(key in row for row in results["results"])}
    lines = [["network", "batch", "projects every", "rule", *ways, *memory]]
    for row in results["results"]:
        period = f"{row['period']} steps" if row["period"] > 1 else "step"
        costs = [f"{row['overhead_percent'][way]:+.2f}%" if way in row["overhead_percent"] else "" for way in ways]
        copies = [f"{row[key]:.2f}" if key in row else "" for key in memory.values()]
        lines.append([row["case"].split("-")[0], str(row["batch"]), period, row["rule"], *costs, *copies])
    about = f"Of a training step on {results['device']}, medians of {results['config']['repeats']} alternating rounds:"
    failures = "".join(f"\n\nNot measured: {what}: {error}" for what, error in results["failed"].items())
    return f"{about}\n\n{markdown(lines)}{failures}"


def sparse_coding(*measured: dict[str, Any]) -> str:
    """Return the tables of learning and of coding, one row for each set of images and peer."""
    learning = [["images", "peer", "its best", "after, s", "CoGD there after, s", "times sooner", "CoGD's best"]]
    coding = [["images", "sporco, cold", "warm", "CoGD, cold", "warm"]]
    for results in measured:
        for peer in ("sporco", "FFCSC"):
            learning.append([results["set"], peer, *compared(results["learning"], peer)])
        if "coding" in results:
            coding.append([results["set"], *coded(results["coding"])])
    if not measured:
        return "Not measured yet."
    about = f"{measured[0]['device']}, {measured[0]['threads']} threads, {measured[0]['seconds']:g} s for each solver"
    said = f"Mean and deviation over {len(measured[0]['learning']['CoGD'])} starts ({about}); lower is better:"
    then = "Seconds of coding alone, to an objective 0.1% above the optimum:"
    return f"{said}\n\n{markdown(learning)}\n\n{then}\n\n{markdown(coding)}"


def compared(learning: dict[str, Any], peer: str) -> list[str]:
    """Return a peer's best objective, when it has it, when CoGD does, how many times sooner, and CoGD's best."""
    rows = []
    for seed, theirs in learning[peer].items():
        ours = [point for point in learning["CoGD"][seed]["curve"] if point[1] is not None]
        when, lowest = min((p for p in theirs["curve"] if p[1] is not None), key=lambda point: point[1])
        there = seconds_to(ours, lowest)
        rows.append([lowest, when, there, when / there, min(value for _, value in ours)])
    formats = ("{:.0f}", "{:.0f}", "{:.2f}", "{:.0f}", "{:.0f}")
    return [spread(column, shown) for column, shown in zip(zip(*rows, strict=True), formats, strict=True)]


def coded(coding: dict[str, Any]) -> list[str]:
    """Return the seconds of sporco and of CoGD to the goal, from zero codes and from those of similar atoms."""
    shown = []
    for solver in ("sporco", "CoGD"):
        for start in ("cold", "warm"):
            curve = coding["curves"][solver][start]
            seconds = seconds_to(curve, coding["goal"])
            shown.append(f"{seconds:.3g}" if math.isfinite(seconds) else f"more than {curve[-1][0]:.0f}")
    return shown


def seconds_to(curve: list[list[float]], goal: float) -> float:
    return next((seconds for seconds, value in curve if value is not None and value <= goal), math.inf)


def spread(values: Sequence[float], shown: str) -> str:
    return f"{shown.format(statistics.mean(values))} ± {shown.format(statistics.stdev(values))}"


def inpainting(*measured: dict[str, Any]) -> str:
    """Return the table of what comes back of hidden pixels, by kind of hole."""
    return "\n\n".join(map(inpainting_table, measured)) or "Not measured yet."


def inpainting_table(results: dict[str, Any]) -> str:
    """Return PSNR by kind of hole and method, over photographs and the masks that all have, the best in bold."""
    config, rows = results["config"], results["rows"]
    names = list(next(iter(rows.values())))
    masks = [s for s in map(str, config["seeds"]) if all(s in row.get(n, {}) for row in rows.values() for n in names)]
    if not masks:
        return "Not measured yet."
    lines = [["hidden", *names]]
    for holes in config["holes"]:
        mine = [rows[f"{photo}, {holes}"] for photo in config["photos"]]
        means = [sum(row[n][s]["psnr"] for row in mine for s in masks) / (len(mine) * len(masks)) for n in names]
        lines.append([holes, *(f"**{mean:.2f}**" if mean == max(means) else f"{mean:.2f}" for mean in means)])
    of = f"{', '.join(config['photos'])} ({config['side']} x {config['side']}, in grey)"
    return f"PSNR on hidden pixels in dB, mean over {len(masks)} masks of {of}:\n\n{markdown(lines)}"


def pruning(*measured: dict[str, Any]) -> str:
    """Return a table per target of what pruners leave of a network's accuracy."""
    return "\n\n".join(map(pruning_table, measured)) or "Not measured yet."


def pruning_table(results: dict[str, Any]) -> str:
    """Return accuracy by method, mean and deviation over seeds, and the paired difference to the first."""
    config, (first, *_) = results["config"], results["summary"]
    before = [run["accuracy_before"] for run in results["runs"] if run["method"] == first["method"]]
    lines = [["method", "accuracy", f"difference to {first['method']}, points", "p", "MACs kept"]]
    for row in results["summary"]:
        gap = row["difference"]
        points = [f"{100 * gap['mean']:+.2f} ± {100 * gap['half_width']:.2f}", f"{gap['p']:.2f}"] if gap else ["", ""]
        lines.append([row["method"], f"{row['mean']:.2%} ± {row['deviation']:.2%}", *points, f"{row['macs']:.1%}"])
    asked = f"{config['data']}, {config['target_macs']:.0%} of the MACs asked for, {len(before)} seeds"
    epochs = f"{config['base_epochs']} epochs of training, {config['epochs']} of pruning, {config['finetune_epochs']}"
    return (
        f"{asked}; {epochs} of fine-tuning. Before pruning {statistics.mean(before):.2%}. Means, deviations, and the "
        f"95% interval of the paired difference:\n\n{markdown(lines)}"
    )


def best(rows: list[Row], kind: str) -> Row:
    return max((r for r in rows if r["kind"] == kind), key=lambda row: row["improved"] - row["worsened"])


BLOCKS: dict[str, tuple[Callable[..., str], list[Path]]] = {
    "beale": (beale, [ROOT / "experiments/results/beale.json"]),
    "bilinear": (bilinear_page.summary, sorted((ROOT / "experiments/results").glob("bilinear.json"))),
    "sparse_coding": (sparse_coding, sorted((ROOT / "benchmarks/results").glob("sparse_coding_*.json"), reverse=True)),
    "inpainting": (inpainting, sorted((ROOT / "benchmarks/results").glob("inpainting_quality.json"))),
    "paper_tables": (csc_page.summary, sorted((ROOT / "experiments/results").glob("[ri]*.json"), reverse=True)),
    "pruning": (pruning, sorted((ROOT / "benchmarks/results").glob("pruning_*.json"))),
    "overhead": (overhead, sorted((ROOT / "benchmarks/results").glob("optimizer_overhead_*.json"))),
}


def filled(text: str) -> str:
    """Return a page's text with every block made anew."""

    def made(found: re.Match[str]) -> str:
        make, files = BLOCKS[found[1]]
        block = make(*(json.loads(file.read_text()) for file in files))
        return f"<!-- begin {found[1]} -->\n{block}\n<!-- end {found[1]} -->"

    blocks = BLOCK.findall(text)
    if len(blocks) != text.count("<!-- begin ") or len(blocks) != text.count("<!-- end "):
        raise ValueError(f"a begin or end mark has no counterpart; whole blocks are {blocks}.")
    return BLOCK.sub(made, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 where a page is stale")
    options = parser.parse_args()
    stale = {page: new for page in PAGES if (new := filled(text := page.read_text())) != text}
    if options.check and stale:
        names = ", ".join(page.relative_to(ROOT).as_posix() for page in stale)
        sys.exit(f"{names} differ from the results files; run python experiments/readme.py")
    for page, text in stale.items():
        page.write_text(text)


if __name__ == "__main__":
    main()
