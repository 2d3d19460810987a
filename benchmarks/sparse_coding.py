"""CoGD, sporco and FFCSC on the same images, start, threads and grading, in one run.

    pip install "cogd[bench]"
    python benchmarks/sparse_coding.py --data DATA                 # two cores, about an hour
    python benchmarks/sparse_coding.py --data DATA --slots 8       # 8 parts at a time, each on two cores of its own
    python benchmarks/sparse_coding.py --data DATA --part fruit-sporco-0
    python benchmarks/sparse_coding.py --print

DATA holds csc/fruit and csc/city. Every solver gets the same contrast-normalised images, the same unknown boundary,
the same starting dictionary and the same wall-clock time; its clock stands still while `model.objective` grades its
sparse iterate. sporco's parameters are searched first, on one image. A run is made of parts, each a process and a file
in PARTS; the same command again does those that are missing, and whatever is there goes into
results/sparse_coding_SET.json and .png, and the tables. Parts of different settings, versions or machines are not
mixed: give each its own --parts.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import csc_runs as runs
import csc_tables
import numpy as np

from cogd.provenance import provenance
from cogd.training.files import write_json

RESULTS = Path(__file__).parent / "results"
SOLVERS = ("CoGD", "FFCSC", "sporco")
SETTINGS = ("seconds", "search_seconds", "slots")  # which all parts of a run share
ONLINE = (10, 100, 1000)
OTHER = "Remove one of them, or give --parts another folder."
Result = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A piece of the run that a process of its own can do, once the parts that it reads are there."""

    name: str
    measure: Callable[[np.ndarray, "Files"], Result]
    needs: tuple[str, ...] = ()


class Files:
    """The folder of the parts that are done."""

    def __init__(self, folder: Path):
        self.folder = folder

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def read(self, name: str) -> Result:
        return json.loads(self.path(name).read_text())

    def __contains__(self, name: str) -> bool:
        return self.path(name).exists()


def parts(options: argparse.Namespace) -> dict[str, Part]:
    """Return all parts by name, those that others wait for first."""
    found = [
        Part(f"{name}-search", lambda images, _: runs.search_sporco(images, options.search_seconds))
        for name in options.sets
    ]
    for solver in SOLVERS:
        if solver == "sporco":
            found += [
                Part(f"{name}-coding", _coding(name, options.seconds), (f"{name}-search",)) for name in options.sets
            ]
        for name in options.sets:
            needs = (f"{name}-search",) if solver == "sporco" else ()
            found += [
                Part(f"{name}-{solver}-{seed}", _learning(solver, name, seed, options.seconds), needs)
                for seed in options.seeds
            ]
    first = options.sets[0]
    found.append(Part(f"{first}-scaling", lambda images, _: {"rows": runs.time_per_pass(images)}))
    found.append(Part(f"{first}-kernels", lambda *_: runs.kernel_cache()))
    found.append(Part(f"{first}-profile", lambda images, _: runs.profile(images)))
    for count in ONLINE:
        measure = lambda images, _, count=count: runs.online_memory(images, count)  # noqa: E731
        found.append(Part(f"{first}-online-{count}", measure))
    return {part.name: part for part in found}


def _learning(solver: str, name: str, seed: int, seconds: float) -> Callable[[np.ndarray, Files], Result]:
    def measure(images: np.ndarray, files: Files) -> Result:
        atoms = runs.start(images, seed)
        if solver == "CoGD":
            runs.learn_with_cogd(images[:1], atoms, 0.1)  # loads the kernels, or compiles them
            return runs.learn_with_cogd(images, atoms, seconds)
        if solver == "FFCSC":
            return runs.learn_with_ffcsc(images, atoms, seconds)
        setting = runs.best_setting(files.read(f"{name}-search")["learning"], "objective")
        return runs.learn_with_sporco(images, atoms, seconds, setting)

    return measure


def _coding(name: str, seconds: float) -> Callable[[np.ndarray, Files], Result]:
    def measure(images: np.ndarray, files: Files) -> Result:
        tried = files.read(f"{name}-search")["coding"]
        return runs.code(images, min(seconds, 60.0), runs.best_setting(tried, "seconds", "objective"))

    return measure


def run_part(part: Part, options: argparse.Namespace) -> None:
    """Measure a part in this process, on its cores, and write its file."""
    os.sched_setaffinity(0, options.cores)
    runs.limit_threads(len(options.cores))
    images = runs.load(Path(options.data) / "csc" / part.name.partition("-")[0])
    load, began = os.getloadavg(), time.time()
    result = part.measure(images, Files(options.parts))
    about = {**provenance(), "sporco": version("sporco"), "numba": version("numba"), "cores": sorted(options.cores)}
    about |= {"siblings": siblings(), "load_before": load, "took": time.time() - began}
    about |= {"settings": {name: getattr(options, name) for name in SETTINGS}}
    write_json(options.parts / f"{part.name}.json", {**about, **result})


def run_parts(wanted: dict[str, Part], options: argparse.Namespace) -> None:
    """Run what is missing, as many parts at a time as there are slots, beside parts of the same settings."""
    files, free = Files(options.parts), slots(options)
    asked = {name: getattr(options, name) for name in SETTINGS}
    for name in wanted:
        if name in files and files.read(name)["settings"] != asked:
            raise SystemExit(
                f"{files.path(name)} was measured with {files.read(name)['settings']}, not {asked}. {OTHER}"
            )
    waiting = [part for part in wanted.values() if part.name not in files]
    running: dict[str, tuple[subprocess.Popen, set[int]]] = {}
    while waiting or running:
        for part in [part for part in waiting if all(need in files for need in part.needs)][: len(free)]:
            cores = free.pop()
            waiting.remove(part)
            running[part.name] = subprocess.Popen(_command(part, cores, options)), cores
        time.sleep(0.2)
        for name, (process, cores) in list(running.items()):
            if process.poll() is not None:
                print(f"{name}: {'done' if name in files else f'failed ({process.returncode})'}", flush=True)
                free.append(cores)
                del running[name]
        if not running and not any(all(need in files for need in part.needs) for part in waiting):
            break  # what is left needs a part that failed


def _command(part: Part, cores: set[int], options: argparse.Namespace) -> list[str]:
    numbers = [word for name in SETTINGS for word in (f"--{name.replace('_', '-')}", str(getattr(options, name)))]
    where = ["--data", str(options.data), "--parts", str(options.parts), "--cores", *map(str, sorted(cores))]
    which = ["--sets", *options.sets, "--seeds", *map(str, options.seeds)]
    return [sys.executable, __file__, "--part", part.name, *where, *which, *numbers]


def slots(options: argparse.Namespace) -> list[set[int]]:
    """Return the cores of every slot."""
    cores, each = sorted(os.sched_getaffinity(0)), options.threads
    if options.slots * each > len(cores):
        raise SystemExit(f"{options.slots} slots of {each} cores need more than the {len(cores)} cores here.")
    return [set(cores[i * each : (i + 1) * each]) for i in range(options.slots)]


def siblings() -> str:
    """Return which numbers of cores share one core, as the system says."""
    path = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    return path.read_text().strip() if path.exists() else "unknown"


def merged(files: Files, name: str) -> Result | None:
    """Return a set's result, of the parts that are there; refuse what differs in more than the commit."""
    mine = {path.stem.partition("-")[2]: files.read(path.stem) for path in sorted(files.folder.glob(f"{name}-*.json"))}
    if not mine:
        return None
    shared, first = dict[str, Any](), next(iter(mine))
    for key in ("settings", "versions", "sporco", "numba", "device", "threads", "siblings"):
        shared[key] = mine[first][key]
        for part, found in mine.items():
            if found[key] != shared[key]:
                raise SystemExit(
                    f"{files.path(f'{name}-{part}')} has the {key} {found[key]}, that of {first} {shared[key]}. {OTHER}"
                )
    commits = ", ".join(sorted({str(found["commit"]) for found in mine.values()}))
    own = {part: {k: v for k, v in found.items() if k not in shared} for part, found in mine.items()}
    learning = {s: {n.partition("-")[2]: p for n, p in own.items() if n.startswith(f"{s}-")} for s in SOLVERS}
    others = {n: p for n, p in own.items() if n.partition("-")[0] not in SOLVERS}
    result = {"set": name, **shared, **shared["settings"], "commit": commits, "learning": learning, **others}
    return rounded({**result, "command": command(name, result)})


def rounded(value: Any) -> Any:
    """Return JSON with 6 significant digits, infinite numbers as null."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("COGD_DATA", "data"))
    parser.add_argument("--sets", nargs="+", default=["fruit", "city"], choices=["fruit", "city"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=120.0, help="of every solver and seed")
    parser.add_argument("--search-seconds", type=float, default=8.0, help="of every setting of sporco that is tried")
    parser.add_argument("--slots", type=int, default=1, help="parts at a time")
    parser.add_argument("--threads", type=int, default=2, help="cores of each part")
    parser.add_argument("--parts", type=Path, default=RESULTS / "parts", help="the folder of what is done")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for what is merged")
    parser.add_argument("--part", help="do this part alone, and merge nothing; `--part list` names them")
    parser.add_argument("--cores", type=int, nargs="+", help="of the one part; by default all that this process has")
    parser.add_argument("--print", action="store_true", help="measure nothing")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # sporco's, about what it finds at import
    wanted = parts(options)
    options.parts.mkdir(parents=True, exist_ok=True)
    if options.part == "list":
        print(*wanted, sep="\n")
    elif options.part:
        options.cores = set(options.cores or os.sched_getaffinity(0))
        run_part(wanted[options.part], options)
    else:
        if not options.print:
            run_parts(wanted, options)
        publish(Files(options.parts), options)


def publish(files: Files, options: argparse.Namespace) -> None:
    """Write each set's result and picture, and print its tables; without parts, those of the result that is there."""
    for name in options.sets:
        path = options.results / f"sparse_coding_{name}.json"
        result = merged(files, name)
        if result is not None:
            path.write_text(json.dumps(result) + "\n")
            csc_tables.plot(name, result, path.with_suffix(".png"))
        if path.exists():
            print(csc_tables.tables(name, json.loads(path.read_text())), flush=True)


def command(name: str, result: Result) -> str:
    """Return the command that makes a set's result."""
    seeds = sorted({seed for runs in result["learning"].values() for seed in runs}, key=int)
    words = [word for key in ("seconds", "search_seconds", "slots") for word in (_option(key), f"{result[key]:g}")]
    return shlex.join(["python", "benchmarks/sparse_coding.py", "--sets", name, "--seeds", *seeds, *words])


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


if __name__ == "__main__":
    main()
