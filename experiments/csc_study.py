"""What the paper's tables of convolutional sparse coding share: the methods, one run of each, a file that grows.

Every method learns on the same contrast-normalised images from the same starting atoms, by seed. FFCSC's solver takes
the paper's 20 iterations of 10 + 10 steps; ours, whose iterations are far shorter, takes 100.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from cogd.provenance import provenance
from cogd.sparse_coding import metrics, normalize_contrast
from cogd.sparse_coding.atoms import initial_atoms
from cogd.sparse_coding.coder import CodeSet
from cogd.sparse_coding.ffcsc import FFCSC
from cogd.sparse_coding.fitting import WholeRun
from cogd.sparse_coding.signals import Signals, read_signals
from cogd.training.files import write_atomically

ROOT = Path(__file__).resolve().parents[1]
SOLVERS = {"ffcsc": "FFCSC's solver", "working_set": "CoGD's own solver"}
Row = dict[str, Any]


@dataclass(frozen=True)
class Method:
    """A solver and the rule on it; None is the plain solver."""

    solver: str
    rule: str | None = None
    order: int = 1
    scale: float = 1.0

    @property
    def label(self) -> str:
        if self.rule is None:
            return "FFCSC" if self.solver == "ffcsc" else "no rule"
        if self.rule == "rollback":
            return "CoGD, rollback"
        scale = "" if self.scale == 1 else f", scale {self.scale:g}"
        return f"CoGD, {self.rule}, k = {self.order}{scale}"

    @property
    def slug(self) -> str:
        return self.label.lower().replace(",", "").replace(" = ", "").replace(" ", "-")


RULES = [("paper", 1, 1.0), ("paper", 2, 1.0), ("paper", 3, 1.0), ("paper", 1, 0.1), ("descent", 1, 1.0)]
METHODS = [
    method
    for solver in SOLVERS
    for method in (Method(solver), *(Method(solver, *rule) for rule in RULES), Method(solver, "rollback"))
]


@dataclass(frozen=True)
class Config:
    """What is run, apart from the seeds."""

    sets: tuple[str, ...] = ("fruit", "city")
    images: int = 10
    side: int = 100
    n_atoms: int = 100
    atom_side: int = 11
    penalty: float = 1.0
    ffcsc_iterations: int = 20
    own_iterations: int = 100
    kept: float = 0.75  # of the pixels, where some are hidden

    def iterations(self, method: Method) -> int:
        return self.ffcsc_iterations if method.solver == "ffcsc" else self.own_iterations


QUICK = Config(images=2, side=32, n_atoms=6, atom_side=5, ffcsc_iterations=3, own_iterations=4)


@dataclass(frozen=True)
class Task:
    """One run."""

    set: str
    method: Method
    seed: int

    @property
    def key(self) -> Row:
        return {"set": self.set, **asdict(self.method), "seed": self.seed}


@dataclass(frozen=True)
class Place:
    """Where a run finds its images, computes, and leaves its pictures."""

    data: Path
    device: str
    threads: int
    figures: Path


@dataclass
class Learned:
    """The atoms that a run ends with, the solver that holds their codes, and what is known of the run."""

    atoms: np.ndarray
    solver: CodeSet | FFCSC
    facts: Row

    def reconstructions(self) -> list[np.ndarray]:
        """Return D z of every image (C, H, W)."""
        return reconstructions(self.solver, self.atoms)


Measure = Callable[[Task, Config, Place], Row]


def learn(images: np.ndarray, observed: np.ndarray, task: Task, config: Config, device: str) -> Learned:
    """Learn a dictionary from images (N, H, W) where they were observed."""
    signals: Signals = read_signals(images, observed, np.dtype("float32"))
    shape = (config.atom_side, config.atom_side)
    atoms = start = initial_atoms(signals.images, config.n_atoms, shape, np.random.RandomState(task.seed))
    run = WholeRun({**asdict(task.method), "device": device}, signals, start, config.penalty)
    began, opened = time.perf_counter(), []
    count = config.iterations(task.method)
    for atoms in islice(run.iterations(start), count):  # noqa: B007
        opened.append(0 if run.projection is None else run.projection.opened)
    last = run.progress(count, time.perf_counter() - began)
    facts = {"objective": last.objective, "nonzeros": last.nonzeros, "seconds": last.seconds}
    return Learned(atoms, run.solver, {**facts, "opened": float(np.mean(opened))})


def reconstructions(solver: CodeSet | FFCSC, atoms: np.ndarray) -> list[np.ndarray]:
    """Return D z of every image (C, H, W), of feasible atoms and sparse codes."""
    if isinstance(solver, FFCSC):
        return list(solver.reconstruction())
    return solver.reconstruction(solver.own(atoms))


def load(folder: Path, config: Config) -> np.ndarray:
    """Return the contrast-normalised images (N, H, W) of a set, in order of number."""
    paths = sorted(folder.glob("*.jpg"), key=lambda path: int(path.stem))[: config.images]
    if len(paths) < config.images:
        raise FileNotFoundError(f"{str(folder)!r} holds {len(paths)} .jpg of {config.images}; give --data.")
    greys = [np.asarray(Image.open(path).convert("L")) / 255 for path in paths]
    return np.stack([normalize_contrast(g)[: config.side, : config.side] for g in greys]).astype(np.float32)


def quality(images: np.ndarray, made: Sequence[np.ndarray]) -> dict[str, list[float]]:
    """Return PSNR and SSIM of every image, the paper's way and the usual."""
    functions = {name: getattr(metrics, name) for name in ("paper_psnr", "paper_ssim", "psnr", "ssim")}
    pairs = [(image, estimate[0]) for image, estimate in zip(images, made, strict=True)]
    return {name: [measure(*pair) for pair in pairs] for name, measure in functions.items()}


def hidden_quality(images: np.ndarray, made: Sequence[np.ndarray], hidden: np.ndarray) -> dict[str, list[float]]:
    """Return the same four of the hidden pixels alone; the paper's way scales those alone."""
    found: dict[str, list[float]] = {f"hidden_{name}": [] for name in ("paper_psnr", "paper_ssim", "psnr", "ssim")}
    for image, (estimate,), where in zip(images, made, hidden, strict=True):
        found["hidden_paper_psnr"].append(metrics.paper_psnr(image[where], estimate[where]))
        found["hidden_paper_ssim"].append(metrics.paper_ssim(image[where], estimate[where]))
        found["hidden_psnr"].append(metrics.psnr(image, estimate, where=where))
        found["hidden_ssim"].append(metrics.ssim(image, estimate, where=where))
    return found


def strip(images: Iterable[np.ndarray]) -> np.ndarray:
    """Return the picture of images (H, W) beside each other, each over its own range."""
    scaled = [255 * (image - image.min()) / max(np.ptp(image), 1e-6) for image in images]
    return np.hstack([np.pad(image, 1) for image in scaled]).round().astype(np.uint8)


def run(
    name: str,
    measure: Measure,
    page: Callable[[Row], str],
    description: str,
) -> None:
    """Be the command line of a table's script."""
    options = _options(description)
    config = QUICK if options.quick else Config()
    file = options.into / f"experiments/results/{name}.json"
    docs = options.into / "docs"
    for folder in (file.parent, docs / "results", docs / "figures"):
        folder.mkdir(parents=True, exist_ok=True)
    if not options.print:
        results = _earlier(file, config)
        threads = max(1, len(os.sched_getaffinity(0)) // options.processes)
        place = Place(options.data, options.device, threads, docs / "figures")
        _run_missing(results, file, _tasks(config, options), measure, config, place, options)
    text = page(json.loads(file.read_text()))  # the page holds what the file holds
    (docs / f"results/{name}.md").write_text(text)
    print(text)


def _options(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("COGD_DATA", "data"), help="holds csc/SET/*.jpg")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to N - 1")
    parser.add_argument("--solvers", nargs="+", default=list(SOLVERS), choices=list(SOLVERS))
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="begin no run after so many seconds")
    parser.add_argument("--quick", action="store_true", help="tiny images and few steps, to see that it runs")
    parser.add_argument("--into", type=Path, default=ROOT, help="the folder for experiments/results and docs")
    parser.add_argument("--print", action="store_true", help="run nothing; page and tables from the results file")
    return parser.parse_args()


def _tasks(config: Config, options: argparse.Namespace) -> list[Task]:
    """Return all runs, the paper's own methods first, seed after seed: what there is time for is then complete."""
    methods = [method for method in METHODS if method.solver in options.solvers]
    tasks = [Task(name, m, seed) for seed in range(options.seeds) for name in config.sets for m in methods]
    return sorted(tasks, key=lambda task: task.method.rule not in (None, "paper"))


def _earlier(file: Path, config: Config) -> Row:
    about = json.loads(json.dumps(asdict(config)))
    if not file.exists():
        return {"config": about, "made_with": [], "runs": [], "failures": []}
    results = json.loads(file.read_text())
    if results["config"] != about:
        raise SystemExit(f"{file} was made with another configuration; give --into another folder, or remove it.")
    return {**results, "failures": []}


def begin(results: Row, about: Row) -> None:
    """Note with what the next runs are made: at the top, as every results file says it, and beside earlier ones."""
    results |= about
    results["made_with"].append(about)


def _run_missing(
    results: Row,
    file: Path,
    tasks: list[Task],
    measure: Measure,
    config: Config,
    place: Place,
    options: argparse.Namespace,
) -> None:
    """Do the runs that the results lack, several at a time, and write the file after every one."""
    began, done = time.perf_counter(), [{key: row[key] for key in tasks[0].key} for row in results["runs"]]
    missing = [task for task in tasks if task.key not in done]
    if not missing:
        return
    begin(results, {**provenance(place.device), "threads": place.threads, "processes": options.processes})
    made_with, running = len(results["made_with"]) - 1, dict[Future, Task]()
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        while running or (missing and time.perf_counter() - began < options.time_limit):
            while missing and len(running) < options.processes and time.perf_counter() - began < options.time_limit:
                task = missing.pop(0)
                running[pool.submit(_measured, measure, task, config, place)] = task
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task, error = running.pop(future), future.exception()
                if error is None:
                    results["runs"].append({**task.key, "made_with": made_with, **future.result()})
                else:
                    results["failures"].append({**task.key, "error": f"{type(error).__name__}: {error}"})
                write_atomically(file, dump(results).encode())
                left = f"{len(missing) + len(running)} left, {time.perf_counter() - began:.0f} s"
                about = f"{task.set}, {task.method.solver}, {task.method.label}, seed {task.seed}"
                print(f"{about}: {error or 'done'}; {left}", flush=True)


def _measured(measure: Measure, task: Task, config: Config, place: Place) -> Row:
    torch.set_num_threads(place.threads)
    return measure(task, config, place)


def dump(results: Row) -> str:
    """Return the results as JSON, numbers at 6 significant digits, a line per run."""
    rounded = json.loads(json.dumps(results), parse_float=lambda text: float(f"{float(text):.6g}"))
    return json.dumps(rounded).replace('{"set"', '\n{"set"') + "\n"
