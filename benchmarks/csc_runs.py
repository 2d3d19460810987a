"""What `sparse_coding.py` measures: learning, coding, time per pass, kernels from the cache, memory of batches."""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import csc_sporco
import numpy as np
import torch
from PIL import Image

from cogd.sparse_coding import ConvDictionaryLearner, model, normalize_contrast
from cogd.sparse_coding.atoms import initial_atoms
from cogd.sparse_coding.coder import encode, learn, new_working_set, settle
from cogd.sparse_coding.ffcsc import FFCSC, learn_ffcsc

PENALTY, ATOMS, SIDE = 1.0, 100, 11
GAP = 1e-3  # relative, to which coding goes
TOLERANCES = (0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02)  # of our coder, until one reaches the gap
PASSES = 50  # of learning, before coding alone is timed
PARTS = ("enter", "sweep", "improve_atoms", "drop_zeros", "refresh")  # of a learning pass
Point = tuple[float, float]  # seconds, objective


class Run:
    """A solver's clock and curve; the clock stands still while an iterate is graded, ever more rarely.

    Ends after `budget` seconds, or at the first objective that is no more than `goal`.
    """

    def __init__(self, images: np.ndarray, budget: float, goal: float = -np.inf, growth: float = 1.15):
        self.images, self.budget, self.goal, self.growth = images, budget, goal, growth
        self.curve: list[Point] = []
        self.restart()

    def restart(self) -> None:
        """Set the clock to zero."""
        self._begun, self._paused, self._due = time.perf_counter(), 0.0, 0.02

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._begun - self._paused

    def ends(self, iterate: Callable[[], csc_sporco.Arrays]) -> bool:
        """Grade the (atoms, codes) that `iterate` returns where that is due; return whether the run is over."""
        seconds, began = self.seconds, time.perf_counter()
        if seconds >= min(self._due, self.budget):
            self.curve.append((seconds, graded(self.images, *iterate())))
            self._due = self.growth * max(self._due, seconds)
            self._paused += time.perf_counter() - began
        return seconds >= self.budget or (bool(self.curve) and self.curve[-1][1] <= self.goal)


def graded(images: np.ndarray, atoms: np.ndarray, codes: np.ndarray) -> float:
    """Return the objective of a feasible iterate, by code that no solver owns."""
    b, d, z = (torch.from_numpy(np.ascontiguousarray(array, np.float32)) for array in (images, atoms, codes))
    return model.objective(b, torch.ones_like(b, dtype=torch.bool), d, z, PENALTY)


def learn_with_cogd(images: np.ndarray, atoms: np.ndarray, budget: float) -> dict[str, Any]:
    """Return the curve of the default solver."""
    run = Run(images, budget)
    working_set = new_working_set(list(images), all_seen(images), atoms.shape[1:])
    for improved in learn(working_set, atoms, PENALTY):
        if run.ends(lambda improved=improved: (improved, np.stack(working_set.dense(ATOMS)))):  # type: ignore[misc]
            break
    return {"curve": run.curve}


def learn_with_ffcsc(images: np.ndarray, atoms: np.ndarray, budget: float) -> dict[str, Any]:
    """Return the curve of the paper's baseline."""
    run = Run(images, budget)
    solver = FFCSC(list(images), all_seen(images), atoms, PENALTY)
    for improved in learn_ffcsc(solver):
        if run.ends(lambda improved=improved: (improved, solver.codes.numpy())):  # type: ignore[misc]
            break
    return {"curve": run.curve}


def learn_with_sporco(images: np.ndarray, atoms: np.ndarray, budget: float, setting: dict[str, Any]) -> dict[str, Any]:
    """Return the curve of ConvBPDNMaskDictLearn, and the objective of its last atoms with optimal codes."""
    run = Run(images, budget)
    learned = csc_sporco.learn(images, atoms, PENALTY, setting, run.ends)
    return {"curve": run.curve, "recoded": optimum(images, learned, 1e-3)}


def search_sporco(images: np.ndarray, budget: float) -> dict[str, Any]:
    """Return sporco's settings and what each reaches on one image: in learning, and to code it to the gap."""
    image, atoms = images[:1], start(images, 0)
    learning, coding = [], []
    for setting in csc_sporco.LEARNING:
        run = Run(image, budget)
        csc_sporco.learn(image, atoms, PENALTY, setting, run.ends)
        learning.append({**setting, "objective": min((v for _, v in run.curve if np.isfinite(v)), default=np.inf)})
    trained = learned_atoms(images)
    goal = optimum(image, trained, 1e-5) * (1 + GAP)
    for setting in csc_sporco.CODING:
        run = Run(image, budget, goal, 1.05)
        csc_sporco.code(image, trained, PENALTY, setting, run.ends)
        coding.append({**setting, "seconds": seconds_to(run.curve, goal), "objective": run.curve[-1][1], "goal": goal})
    return {"learning": learning, "coding": coding}


def best_setting(tried: list[dict[str, Any]], *keys: str) -> dict[str, Any]:
    """Return the setting with the least of what was measured."""
    best = min(tried, key=lambda entry: [entry[key] for key in keys])
    return {name: value for name, value in best.items() if name not in ("objective", "seconds", "goal")}


def code(images: np.ndarray, budget: float, setting: dict[str, Any]) -> dict[str, Any]:
    """Return seconds to the relative gap with fixed atoms, from zero codes and from those of an earlier dictionary."""
    before, atoms = learned_atoms(images), learned_atoms(images, PASSES + 1)
    result: dict[str, Any] = {"gap": GAP, "optimum": optimum(images, atoms, 1e-5), "setting": setting}
    goal = result["optimum"] * (1 + GAP)
    sides = {
        "CoGD": _code_with_cogd(images, before, atoms, goal),
        "sporco": _code_with_sporco(images, before, atoms, goal, budget, setting),
    }
    return {**result, "goal": goal, "curves": sides}


def _code_with_cogd(images: np.ndarray, before: np.ndarray, atoms: np.ndarray, goal: float) -> dict[str, list[Point]]:
    """Return (seconds, objective) of `transform` from zero, and of the solver from the earlier atoms' codes.

    Tolerances shrink until the goal is reached; a call is timed as a whole, as nothing of it can be read in between.
    """
    cold: list[Point] = []
    for tolerance in TOLERANCES:
        learner = ConvDictionaryLearner.from_atoms(atoms, PENALTY, transform_tol=tolerance, device="cpu")
        began = time.perf_counter()
        codes = learner.transform(images, sparse=True)
        cold.append((time.perf_counter() - began, graded(images, atoms, codes.to_dense().numpy())))
        if cold[-1][1] <= goal:
            break
    warm: list[Point] = []
    for tolerance in TOLERANCES:
        codes = encode(list(images), all_seen(images), before, PENALTY, 1e-2).working_set
        began = time.perf_counter()
        codes.refresh(codes.own(atoms))
        settle(codes, atoms, PENALTY, tolerance)
        warm.append((time.perf_counter() - began, graded(images, atoms, np.stack(codes.dense(ATOMS)))))
        if warm[-1][1] <= goal:
            break
    return {"cold": cold, "warm": warm}


def _code_with_sporco(
    images: np.ndarray, before: np.ndarray, atoms: np.ndarray, goal: float, budget: float, setting: dict[str, Any]
) -> dict[str, list[Point]]:
    """Return the curves from zero and, where the earlier codes are as exact as our warm start's, from those."""
    cold, warm = Run(images, budget, goal, 1.05), Run(images, budget, goal, 1.05)
    csc_sporco.code(images, atoms, PENALTY, setting, cold.ends)
    earlier = Run(images, budget, optimum(images, before, 1e-5) * (1 + GAP), 1.05)
    start = csc_sporco.code(images, before, PENALTY, setting, earlier.ends)
    warm.restart()
    csc_sporco.code(images, atoms, PENALTY, setting, warm.ends, start)
    return {"cold": cold.curve, "warm": warm.curve}


def time_per_pass(images: np.ndarray, sides: Sequence[int] = (100, 200, 400, 800)) -> list[dict[str, Any]]:
    """Return the median time of a learning pass on one image of each size, tiled of the set's images.

    Every size starts with the same atoms: of atoms that were cut out of it, a small image needs hardly any codes.
    """
    rows, atoms = [], start(images, 0)
    for side in sides:
        image = tiled(images, side)
        working_set = new_working_set(list(image), all_seen(image), atoms.shape[1:])
        steps, seconds = learn(working_set, atoms, PENALTY), []
        for _ in range(15):
            began = time.perf_counter()
            next(steps)
            seconds.append(time.perf_counter() - began)
        rows.append({"side": side, "seconds": float(np.median(seconds[5:])), "nonzeros": working_set.nonzeros})
    return rows


def tiled(images: np.ndarray, side: int) -> np.ndarray:
    """Return one image (1, 1, side, side), the images beside and below each other, turned where they come again."""
    across, height = -(-side // images.shape[-1]), images.shape[-1]
    canvas = np.empty((1, 1, across * height, across * height), np.float32)
    for n in range(across**2):
        top, left = divmod(n, across)
        turned = np.rot90(images[n % len(images), 0], n // len(images))
        canvas[0, 0, top * height : (top + 1) * height, left * height : (left + 1) * height] = turned
    return canvas[..., :side, :side].copy()


def profile(images: np.ndarray, before: int = 30, passes: int = 50) -> dict[str, Any]:
    """Return the seconds and arithmetic of each part of a learning pass, and the rate of a matrix product to compare.

    Arithmetic is what the mathematics asks for, 2 operations for a multiply-add: the gradient at every position, an
    atom read and the residual changed at every visit of a code.
    """
    atoms = start(images, 0)
    working_set = new_working_set(list(images), all_seen(images), atoms.shape[1:])
    seconds, visits = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0)
    for name in PARTS:
        setattr(working_set, name, _timed(working_set, name, seconds, visits))
    steps = learn(working_set, atoms, PENALTY)
    for _ in islice(steps, before):
        pass
    seconds.update(dict.fromkeys(PARTS, 0.0))
    visits.update(dict.fromkeys(PARTS, 0))
    began = time.perf_counter()
    for _ in islice(steps, passes):
        pass
    whole, patch = (time.perf_counter() - began) / passes, atoms[0].size
    positions = sum((image.shape[1] + SIDE - 1) * (image.shape[2] + SIDE - 1) for image in images)
    operations = {name: 2 * 2 * patch * visits[name] / passes for name in PARTS}
    operations |= {"enter": 2 * atoms.size * positions, "refresh": operations["refresh"] / 2, "drop_zeros": 0}
    rows = [{"part": name, "seconds": seconds[name] / passes, "operations": operations[name]} for name in PARTS]
    return {"passes": rows, "pass_seconds": whole, "codes": working_set.nonzeros, "matrix_product": matrix_rate()}


def _timed(working_set: Any, name: str, seconds: dict[str, float], visits: dict[str, int]) -> Callable[..., Any]:
    """Return a method that adds the time it takes, and how many codes there are."""
    method = getattr(working_set, name)

    def timed(*arguments: Any) -> Any:
        began = time.perf_counter()
        result = method(*arguments)
        seconds[name] += time.perf_counter() - began
        visits[name] += len(working_set.position)
        return result

    return timed


def matrix_rate(side: int = 2048) -> float:
    """Return the operations per second of the best of 5 products of matrices in float32, on the same threads."""
    one, other = torch.rand(side, side), torch.rand(side, side)
    taken = []
    for _ in range(6):
        began = time.perf_counter()
        one @ other
        taken.append(time.perf_counter() - began)
    return 2 * side**3 / min(taken[1:])


FIRST_CALL = """
import sys, time
began = time.perf_counter()
import numpy as np
from cogd.sparse_coding import ConvDictionaryLearner
imported = time.perf_counter()
images = np.random.default_rng(0).standard_normal((1, 32, 32)).astype(np.float32)
learner = ConvDictionaryLearner(4, (5, 5), 0.5, max_iter=2, device="cpu", random_state=0)
calls = []
for _ in range(2):
    start = time.perf_counter()
    learner.fit(images).transform(images)
    calls.append(time.perf_counter() - start)
print(imported - began, *calls)
"""


def kernel_cache() -> dict[str, Any]:
    """Return the seconds of the first and second tiny fit in a process, with an empty cache of kernels and a full."""
    rows = {}
    with tempfile.TemporaryDirectory() as cache:
        for name in ("empty", "full"):
            done = subprocess.run(
                [sys.executable, "-c", FIRST_CALL],
                env={**os.environ, "NUMBA_CACHE_DIR": cache},
                capture_output=True,
                text=True,
                check=True,
            )
            rows[name] = dict(zip(("import", "first", "second"), map(float, done.stdout.split()), strict=True))
    return rows


class Crops(Sequence[np.ndarray]):
    """So many random crops of the set's images, each made when it is looked at."""

    def __init__(self, images: np.ndarray, number: int, side: int = 64):
        self.images, self.number, self.side = images, number, side

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, i: Any) -> Any:
        random = np.random.RandomState(i)
        image = self.images[random.randint(len(self.images)), 0]
        top, left = random.randint(image.shape[0] - self.side), random.randint(image.shape[1] - self.side)
        return image[top : top + self.side, left : left + self.side]


def online_memory(images: np.ndarray, count: int) -> dict[str, Any]:
    """Return the process's peak memory after one pass over so many images in batches of 10, above that before."""
    learner = ConvDictionaryLearner(ATOMS, (SIDE, SIDE), PENALTY, batch_size=10, device="cpu", random_state=0)
    learner.set_params(max_iter=1).fit(Crops(images, 10))
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    learner.set_params(max_iter=-(-count // 10)).fit(Crops(images, count))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "images": count,
        "seconds": time.perf_counter() - began,
        "peak_mebibytes": peak / 1024,
        "growth_mebibytes": (peak - before) / 1024,
    }


def seconds_to(curve: Sequence[Point], goal: float) -> float:
    """Return when a curve first is at or below a goal, infinite if never."""
    return next((seconds for seconds, value in curve if value <= goal), np.inf)


def load(folder: Path) -> np.ndarray:
    """Return the contrast-normalised images (N, 1, H, W) of a set, in order of number."""
    paths = sorted(folder.glob("*.jpg"), key=lambda path: int(path.stem))
    if not paths:
        raise FileNotFoundError(f"{str(folder)!r} holds no .jpg; give --data, the folder that holds csc/.")
    images = [normalize_contrast(np.asarray(Image.open(path).convert("L")) / 255) for path in paths]
    return np.stack(images)[:, None].astype(np.float32)


def limit_threads(threads: int) -> None:
    """Give every solver so many threads."""
    from sporco import fft

    torch.set_num_threads(threads)
    fft.pyfftw_threads = threads


def all_seen(images: np.ndarray) -> list[np.ndarray]:
    return [np.ones(image.shape, bool) for image in images]


def start(images: np.ndarray, seed: int) -> np.ndarray:
    return initial_atoms(list(images), ATOMS, (SIDE, SIDE), np.random.RandomState(seed))


def optimum(images: np.ndarray, atoms: np.ndarray, tolerance: float) -> float:
    """Return the objective at the optimal codes, computed in float64."""
    coding = encode(list(images.astype(float)), all_seen(images), atoms.astype(float), PENALTY, tolerance)
    return coding.working_set.objective(PENALTY)


def learned_atoms(images: np.ndarray, passes: int = PASSES) -> np.ndarray:
    """Return the atoms after so many passes of the default solver from the first seed's start."""
    working_set = new_working_set(list(images), all_seen(images), (1, SIDE, SIDE))
    return next(islice(learn(working_set, start(images, 0), PENALTY), passes - 1, None))
