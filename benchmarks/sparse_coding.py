"""CoGD, sporco and FFCSC on the same images, start, threads and grading, in one run.

    pip install "cogd[bench]"
    python benchmarks/sparse_coding.py --data DATA --seconds 120 --seeds 0 1 2

DATA holds csc/fruit and csc/city. Every solver gets the same contrast-normalised images, the same unknown boundary,
the same starting dictionary and the same wall-clock time; its clock stands still while `model.objective` grades its
sparse iterate. sporco's parameters are searched first, on one image. Writes results/sparse_coding_SET.json
and .png for every set, and prints the tables; `--print` only prints those of the files that are there.
"""

import argparse
import json
import os
import platform
import subprocess
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image

from cogd.sparse_coding import model, normalize_contrast
from cogd.sparse_coding.atoms import initial_atoms
from cogd.sparse_coding.coder import encode, learn
from cogd.sparse_coding.ffcsc import FFCSC, learn_ffcsc
from cogd.sparse_coding.working_set import WorkingSet

PENALTY, ATOMS, SIDE = 1.0, 100, 11
RESULTS = Path(__file__).parent / "results"
Point = tuple[float, float]  # seconds, objective


class Run:
    """One solver's time and curve; its clock stands still while an iterate is graded, ever more rarely."""

    def __init__(self, images: np.ndarray, budget: float):
        self.images, self.budget, self.curve = images, budget, list[Point]()
        self._begun, self._paused, self._due = time.perf_counter(), 0.0, 0.02

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._begun - self._paused

    def ends(self, iterate: Callable[..., tuple[np.ndarray, np.ndarray]], *arguments) -> bool:
        """Grade the (atoms, codes) that `iterate` returns where that is due; return whether the time is over."""
        seconds, began = self.seconds, time.perf_counter()
        if seconds >= min(self._due, self.budget):
            b, d, z = (
                torch.from_numpy(np.ascontiguousarray(a, np.float32)) for a in (self.images, *iterate(*arguments))
            )
            self.curve.append((seconds, model.objective(b, torch.ones_like(b, dtype=torch.bool), d, z, PENALTY)))
            self._due = 1.15 * max(self._due, seconds)
            self._paused += time.perf_counter() - began
        return seconds >= self.budget


def learn_with_cogd(images: np.ndarray, atoms: np.ndarray, budget: float) -> list[Point]:
    """Return the curve of the default solver."""
    run = Run(images, budget)
    working_set = WorkingSet(list(images), _all_seen(images), atoms.shape[1:])
    for improved in learn(working_set, atoms, PENALTY):
        if run.ends(lambda atoms: (atoms, np.stack(working_set.dense(ATOMS))), improved):
            return run.curve
    raise AssertionError("learn() never ends")


def learn_with_ffcsc(images: np.ndarray, atoms: np.ndarray, budget: float) -> list[Point]:
    """Return the curve of the paper's baseline."""
    run = Run(images, budget)
    solver = FFCSC(list(images), _all_seen(images), atoms, PENALTY)
    for improved in learn_ffcsc(solver):
        if run.ends(lambda atoms: (atoms, solver.codes.numpy()), improved):
            return run.curve
    raise AssertionError("learn_ffcsc() never ends")


def learn_with_sporco(
    images: np.ndarray, atoms: np.ndarray, budget: float, setting: dict
) -> tuple[list[Point], np.ndarray]:
    """Return the curve and the last atoms of ConvBPDNMaskDictLearn; its mask hides the margin (see `_padded`)."""
    from sporco.dictlrn import cbpdndlmd

    run = Run(images, budget)

    def callback(solver) -> bool:
        return run.ends(lambda: (_our_atoms(solver.getdict()), _our_codes(solver.getcoef(), len(images))))

    options = cbpdndlmd.ConvBPDNMaskDictLearn.Options(
        {"Callback": callback, "MaxMainIter": 10**6, **_sporco_options(setting, len(images))},
        xmethod=setting["xmethod"],
        dmethod=setting["dmethod"],
    )
    padded, mask = _padded(images)
    solver = cbpdndlmd.ConvBPDNMaskDictLearn(
        atoms[:, 0].transpose(1, 2, 0), padded, PENALTY, mask, options, setting["xmethod"], setting["dmethod"]
    )
    solver.solve()
    return run.curve, _our_atoms(solver.getdict())


def search_sporco(image: np.ndarray, atoms: np.ndarray, budget: float) -> tuple[dict, list[dict]]:
    """Return the setting that reaches the lowest objective on one image, and all that were tried."""
    settings: list[dict] = [
        {"xmethod": "admm", "dmethod": "cns", "rho": rho, "sigma": sigma}
        for rho, sigma in product((10, 30, 100), (1, 10))
    ]
    settings += [
        {"xmethod": "admm", "dmethod": "pgm", "rho": rho, "L": L} for rho, L in product((10, 30, 100), (30, 100, 300))
    ]
    settings += [{"xmethod": "pgm", "dmethod": "pgm", "Lx": 1000, "L": 300}]
    tried = []
    for setting in settings:
        curve = [value for _, value in learn_with_sporco(image, atoms, budget, setting)[0] if np.isfinite(value)]
        tried.append({**setting, "objective": min(curve, default=float("inf"))})
        print("  sporco", tried[-1], flush=True)
    best = min(tried, key=lambda entry: entry["objective"])
    return {name: value for name, value in best.items() if name != "objective"}, tried


def code(images: np.ndarray, atoms: np.ndarray, budget: float) -> dict[str, list[Point]]:
    """Return curves of coding alone, the dictionary fixed; the optimum is one of 1e-5 in float64."""
    curves = {"optimum": [(0.0, _optimum(images, atoms, 1e-5))], "CoGD": _code_with_cogd(images, atoms)}
    for rho in (1, 5, 20):
        curves[f"sporco AddMaskSim, rho {rho}"] = _code_with_sporco(images, atoms, budget, rho)
    return curves


def _optimum(images: np.ndarray, atoms: np.ndarray, tolerance: float) -> float:
    """Return the objective at the optimal codes, computed in float64."""
    arrays = images.astype(float), atoms.astype(float)
    coding = encode(list(arrays[0]), _all_seen(images), arrays[1], PENALTY, tolerance)
    return coding.working_set.objective(PENALTY)


def _code_with_cogd(images: np.ndarray, atoms: np.ndarray) -> list[Point]:
    curve: list[Point] = []
    for tolerance in (0.3, 0.2, 0.1, 0.05, 0.02, 0.01):
        run = Run(images, 0.0)
        codes = encode(list(images), _all_seen(images), atoms, PENALTY, tolerance).working_set
        run.ends(lambda z: (atoms, np.stack(z.dense(len(atoms)))), codes)
        curve += run.curve
    return curve


def _code_with_sporco(images: np.ndarray, atoms: np.ndarray, budget: float, rho: float) -> list[Point]:
    from sporco.admm import cbpdn

    run = Run(images, budget)

    def callback(inner) -> bool:
        return run.ends(lambda: (atoms, _our_codes(inner.getcoef()[..., :ATOMS], len(images))))

    options = cbpdn.ConvBPDN.Options(
        {"Callback": callback, "MaxMainIter": 10**6, "RelStopTol": 0.0, "rho": rho, "AutoRho": {"Enabled": False}}
    )
    padded, mask = _padded(images)
    cbpdn.AddMaskSim(cbpdn.ConvBPDN, atoms[:, 0].transpose(1, 2, 0), padded, mask, PENALTY, opt=options, dimK=1).solve()
    return run.curve


def _padded(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return images (rows, columns, N) with an atom's margin, and the mask that hides it: circular becomes unknown."""
    margin = ((0, 0), (0, 0), (0, SIDE - 1), (0, SIDE - 1))
    padded = np.pad(images, margin)[:, 0].transpose(1, 2, 0)
    mask = np.pad(np.ones_like(images), margin)[0, 0]
    return padded, mask.reshape(*mask.shape, 1, 1, 1)


def _our_atoms(dictionary: np.ndarray) -> np.ndarray:
    """Return sporco's dictionary (h, w, 1, 1, K) in this library's order."""
    return np.ascontiguousarray(dictionary.reshape(SIDE, SIDE, -1).transpose(2, 0, 1)[:, None], np.float32)


def _our_codes(codes: np.ndarray, n_images: int) -> np.ndarray:
    """Return sporco's circular codes (rows, columns, 1, N, K) in this library's order and place."""
    reordered = codes.reshape(*codes.shape[:2], n_images, -1).transpose(2, 3, 0, 1)
    return np.roll(reordered, (SIDE - 1, SIDE - 1), axis=(-2, -1))


def _sporco_options(setting: dict, n_images: int) -> dict:
    """Return sporco's options; the atoms' curvature L is given per image, as it grows with their number."""
    xstep = {"L": setting["Lx"]} if "Lx" in setting else {"rho": setting["rho"]}
    dstep = {"L": n_images * setting["L"]} if "L" in setting else {"rho": setting["sigma"]}
    return {"CBPDN": xstep, "CCMOD": dstep}


def limit_threads(threads: int) -> None:
    """Confine this process, and with it every solver, to so many cores."""
    from sporco import fft

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    torch.set_num_threads(threads)
    fft.pyfftw_threads = threads


def load(folder: Path) -> np.ndarray:
    """Return the contrast-normalised images (N, 1, H, W) of a set, in order of number."""
    paths = sorted(folder.glob("*.jpg"), key=lambda path: int(path.stem))
    images = [normalize_contrast(np.asarray(Image.open(path).convert("L")) / 255) for path in paths]
    return np.stack(images)[:, None].astype(np.float32)


def seconds_to(curve: list[Point], goal: float) -> float:
    """Return when a curve first is at or below a goal, infinite if never."""
    return next((seconds for seconds, value in curve if value <= goal), float("inf"))


def run(name: str, images: np.ndarray, arguments: argparse.Namespace) -> dict:
    """Return the search, the curves of every seed, and the coding curves of one set."""
    warm = images[:1]
    learn_with_cogd(warm, _start(warm, 0), 0.1)  # compiles, or loads what an earlier run compiled
    setting, tried = search_sporco(images[:1], _start(images, 0), arguments.search_seconds)
    print(name, "best sporco setting:", setting, flush=True)
    curves: dict[str, list[list[Point]]] = {"CoGD": [], "sporco": [], "FFCSC": []}
    recoded, seconds = [], arguments.seconds
    for seed in arguments.seeds:
        atoms = _start(images, seed)
        curves["CoGD"].append(learn_with_cogd(images, atoms, seconds))
        curve, learned = learn_with_sporco(images, atoms, seconds, setting)
        curves["sporco"].append(curve)
        curves["FFCSC"].append(learn_with_ffcsc(images, atoms, seconds))
        recoded.append(_optimum(images, learned, 1e-3))
        best = {solver: min(value for _, value in found[-1]) for solver, found in curves.items()}
        print(f"{name} seed {seed}: {best}, sporco's atoms with optimal codes {recoded[-1]:.1f}", flush=True)
    coding = code(images, _trained(images, arguments.seeds[0]), min(seconds, 60.0))
    return {
        "sporco_setting": setting,
        "sporco_search": tried,
        "curves": curves,
        "sporco_recoded": recoded,
        "coding": coding,
    }


def table(name: str, result: dict) -> str:
    """Return the markdown tables of one set."""
    rows = [
        f"\n{name}: learning, penalty {PENALTY:g}, {ATOMS} atoms {SIDE}x{SIDE}, {result['threads']} thread(s)\n",
        "| run | peer | its best | CoGD there after | times faster | CoGD's best | CoGD to 10938, to 10650 |",
        "|---|---|---|---|---|---|---|",
    ]
    ours = result["curves"]["CoGD"]
    for peer, runs in result["curves"].items():
        for i, theirs in enumerate(runs if peer != "CoGD" else []):
            when, best = min(theirs, key=lambda point: point[1])
            there = seconds_to(ours[i], best)
            cells = [peer, f"{best:.1f} at {when:.0f} s", f"{there:.2f} s", f"{when / there:.0f}"]
            cells += [f"{min(value for _, value in ours[i]):.1f}"]
            cells += [f"{seconds_to(ours[i], 10938):.2f} s, {seconds_to(ours[i], 10650):.2f} s"]
            rows.append(f"| {i} | {' | '.join(cells)} |")
    recoded = ", ".join(f"{value:.1f}" for value in result["sporco_recoded"])
    optimum = result["coding"]["optimum"][0][1]
    rows += [f"\nsporco's last atoms with optimal codes: {recoded}"]
    rows += [f"\n{name}: coding alone, to a relative gap of 1e-3 (optimum {optimum:.1f})\n"]
    rows += ["| solver | seconds | best gap |", "|---|---|---|"]
    for solver, curve in result["coding"].items():
        if solver != "optimum":
            gap = min(value for _, value in curve) / optimum - 1
            rows.append(f"| {solver} | {seconds_to(curve, optimum * (1 + 1e-3)):.2f} | {gap:.1e} |")
    return "\n".join(rows)


def plot(name: str, result: dict, path: Path) -> None:
    """Draw objective against time."""
    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    for c, (solver, curves) in enumerate(result["curves"].items()):
        for i, curve in enumerate(curves):
            axis.plot(*zip(*curve, strict=True), f"C{c}", label=solver if i == 0 else None, alpha=0.7)
    axis.set(title=name, xlabel="seconds", ylabel="objective", xscale="log", yscale="log")
    axis.legend()
    figure.savefig(path, dpi=120)


def _all_seen(images: np.ndarray) -> list[np.ndarray]:
    return [np.ones(image.shape, bool) for image in images]


def _start(images: np.ndarray, seed: int) -> np.ndarray:
    return initial_atoms(list(images), ATOMS, (SIDE, SIDE), np.random.RandomState(seed))


def _trained(images: np.ndarray, seed: int) -> np.ndarray:
    atoms = _start(images, seed)
    working_set = WorkingSet(list(images), _all_seen(images), atoms.shape[1:])
    steps = learn(working_set, atoms, PENALTY)
    return [next(steps) for _ in range(50)][-1]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("COGD_DATA"), required="COGD_DATA" not in os.environ
    )
    parser.add_argument("--sets", nargs="+", default=["fruit", "city"])
    parser.add_argument("--seconds", type=float, default=120.0, help="of every solver and seed")
    parser.add_argument("--search-seconds", type=float, default=10.0, help="of every setting of sporco that is tried")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--print", action="store_true", help="only the tables of what was measured before")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # sporco's, about what it finds at import
    if not arguments.print:
        limit_threads(arguments.threads)
        for name in arguments.sets:
            images = load(Path(arguments.data) / "csc" / name)
            result = {**about(arguments), **run(name, images, arguments)}
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"sparse_coding_{name}.json").write_text(json.dumps(result, indent=1) + "\n")
            plot(name, result, RESULTS / f"sparse_coding_{name}.png")
    for path in sorted(RESULTS.glob("sparse_coding_*.json")):
        print(table(path.stem.removeprefix("sparse_coding_"), json.loads(path.read_text())))


def about(arguments: argparse.Namespace) -> dict:
    """Return what a result file must state of the run."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()}",
        "versions": {package: version(package) for package in ("cogd", "sporco", "torch", "numba", "numpy")},
        "commit": subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True
        ).stdout.strip(),
        "threads": arguments.threads,
        "seeds": arguments.seeds,
        "seconds": arguments.seconds,
    }


if __name__ == "__main__":
    main()
