"""The tables and the picture of what `sparse_coding.py` measured."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from csc_runs import ATOMS, PENALTY, SIDE, seconds_to

Result = dict[str, Any]
MARK = 10650.0  # on fruit: below what any peer reaches


def tables(name: str, result: Result) -> str:
    """Return the markdown tables of one set, of the parts that are there."""
    made = [f"## {name}: {result['device']}, {result['threads']} threads for each, {result['slots']} at a time"]
    made += [search(result["search"])] if "search" in result else []
    made += [learning(result)] if result["learning"]["CoGD"] else []
    made += [coding(result["coding"])] if "coding" in result else []
    made += [scaling(result["scaling"]["rows"])] if "scaling" in result else []
    made += [kernels(result["kernels"])] if "kernels" in result else []
    made += [profile(result["profile"])] if "profile" in result else []
    batches = [part for part in result.values() if isinstance(part, dict) and "growth_mebibytes" in part]
    made += [online(sorted(batches, key=lambda part: part["images"]))] if batches else []
    return "\n\n".join(made)


def learning(result: Result) -> str:
    """Return who is where when, seed by seed."""
    head = ["seed", "peer", "its best", "at, s", "CoGD there, s", "times faster", "CoGD's best"]
    rows = [[*head, f"CoGD at {MARK:g}, s"]]
    for seed, ours in result["learning"]["CoGD"].items():
        for peer in ("sporco", "FFCSC"):
            if seed not in result["learning"][peer]:
                continue
            theirs = [point for point in result["learning"][peer][seed]["curve"] if point[1] is not None]
            when, best = min(theirs, key=lambda point: point[1])
            there, mark = seconds_to(ours["curve"], best), seconds_to(ours["curve"], MARK)
            times = f"{when / there:.0f}" if np.isfinite(there) else "not reached"
            least = min(value for _, value in ours["curve"])
            rows.append(
                [seed, peer, f"{best:.1f}", f"{when:.0f}", f"{there:.2f}", times, f"{least:.1f}", f"{mark:.2f}"]
            )
    recoded = [f"{part['recoded']:.1f}" for part in result["learning"]["sporco"].values()]
    text = f"Learning {ATOMS} atoms of {SIDE} x {SIDE} at penalty {PENALTY:g} for {result['seconds']:g} s each:\n\n"
    return f"{text}{markdown(rows)}\n\nsporco's last atoms with optimal codes, by seed: {', '.join(recoded) or 'none'}"


def search(tried: Result) -> str:
    """Return what sporco's settings reached on one image."""
    kinds = {"learning": ("objective",), "coding": ("seconds", "objective")}
    made = []
    for kind, keys in kinds.items():
        rows = [["setting", *keys]]
        for entry in tried[kind]:
            setting = ", ".join(f"{k} {v}" for k, v in entry.items() if k not in ("objective", "seconds", "goal"))
            rows.append([setting, *(_number(entry[key]) for key in keys)])
        made.append(f"sporco's settings, {kind} on one image:\n\n{markdown(rows)}")
    return "\n\n".join(made)


def coding(result: Result) -> str:
    """Return the seconds that coding takes to the gap."""
    rows = [["solver", "start", "seconds", "times CoGD's"]]
    ours = {kind: seconds_to(curve, result["goal"]) for kind, curve in result["curves"]["CoGD"].items()}
    for kind, seconds in ours.items():
        rows.append(["CoGD", kind, f"{seconds:.3f}", "1"])
    for kind, curve in result["curves"]["sporco"].items():
        seconds = seconds_to(curve, result["goal"])
        reached = f"{seconds:.1f}" if np.isfinite(seconds) else f"more than {curve[-1][0]:.0f}"
        rows.append(
            [
                f"sporco, rho {result['setting']['rho']:g}{' auto' * result['setting']['auto']}",
                kind,
                reached,
                _times(seconds, curve, ours[kind]),
            ]
        )
    text = f"Coding alone, to {result['gap']:g} above the optimum {result['optimum']:.1f} (cold: from zero; warm: from "
    return f"{text}the codes of the atoms one pass earlier):\n\n{markdown(rows)}"


def scaling(rows: list[Result]) -> str:
    """Return time per pass against pixels."""
    x, y = np.log([row["side"] ** 2 for row in rows]), np.log([row["seconds"] for row in rows])
    lines = [["image", "seconds per pass", "codes"]]
    lines += [[f"{row['side']} x {row['side']}", f"{row['seconds']:.4f}", str(row["nonzeros"])] for row in rows]
    steps = ", ".join(f"{step:.2f}" for step in np.diff(y) / np.diff(x))
    return f"{markdown(lines)}\n\nTime grows as pixels^{np.polyfit(x, y, 1)[0]:.2f}; from size to size: {steps}."


def kernels(result: Result) -> str:
    """Return what compiled kernels cost a process."""
    rows = [["cache of kernels", "import, s", "first fit, s", "second fit, s"]]
    rows += [[name, *(f"{result[name][key]:.3f}" for key in result[name])] for name in ("empty", "full")]
    return markdown(rows)


def profile(result: Result) -> str:
    """Return where a learning pass spends its time, and how far each part is from a matrix product."""
    limit, names = result["matrix_product"], {"enter": "full gradient and who enters", "sweep": "sweeps over the codes"}
    names |= {"improve_atoms": "atoms", "drop_zeros": "who leaves", "refresh": "residual afresh, every 10th"}
    lines = [["part of a pass", "ms", "GFLOP/s", "of a matrix product"]]
    for row in result["passes"]:
        rate = row["operations"] / row["seconds"]
        share = [f"{rate / 1e9:.1f}", f"{rate / limit:.0%}"] if rate else ["", ""]
        lines.append([names[row["part"]], f"{1e3 * row['seconds']:.2f}", *share])
    lines.append(["all", f"{1e3 * result['pass_seconds']:.2f}", "", ""])
    lines.append(["a matrix product, 2048 x 2048", "", f"{limit / 1e9:.1f}", "100%"])
    return f"A pass of learning, with {result['codes']} codes:\n\n{markdown(lines)}"


def online(rows: list[Result]) -> str:
    """Return the memory of learning from batches."""
    lines = [["images", "seconds", "peak, MiB", "more than after the first batch, MiB"]]
    for row in rows:
        figures = [f"{row[key]:.1f}" for key in ("seconds", "peak_mebibytes", "growth_mebibytes")]
        lines.append([str(row["images"]), *figures])
    return f"Learning from batches of 10 crops of 64 x 64:\n\n{markdown(lines)}"


def plot(name: str, result: Result, path: Path) -> None:
    """Draw objective against time."""
    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    for c, (solver, seeds) in enumerate(result["learning"].items()):
        for i, part in enumerate(seeds.values()):
            curve = [point for point in part["curve"] if point[1] is not None]
            axis.plot(*zip(*curve, strict=True), f"C{c}", label=None if i else solver, alpha=0.7)
    axis.set(title=name, xlabel="seconds", ylabel="objective", xscale="log", yscale="log")
    axis.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def markdown(lines: list[list[str]]) -> str:
    head, *body = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([head, "|" + " --- |" * len(lines[0]), *body])


def _times(seconds: float, curve: list[tuple[float, float]], ours: float) -> str:
    return f"{seconds / ours:.0f}" if np.isfinite(seconds) else f"more than {curve[-1][0] / ours:.0f}"


def _number(value: float | None) -> str:
    return "not reached" if value is None else f"{value:.6g}"
