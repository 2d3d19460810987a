"""Learning on a GPU beside our own two cores of the same machine: time to the same objective, and what fits.

    python benchmarks/sparse_coding_gpu.py --data DATA -o results/sparse_coding_gpu.json
    python benchmarks/sparse_coding_gpu.py --data DATA --quick -o /tmp/gpu.json      # on any machine

Images of 256 x 256 are four photographs of DATA/imagenette128.zip beside and below each other, at their own resolution,
each contrast-normalised: 128 x 128 is what the archive has, and enlarged ones would have no detail. Both devices start
from the same atoms; a clock stands still while the solver's objective is read.
"""

import argparse
import io
import os
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from cogd.provenance import provenance
from cogd.sparse_coding import ConvDictionaryLearner, normalize_contrast
from cogd.sparse_coding.atoms import initial_atoms
from cogd.sparse_coding.coder import learn, new_working_set
from cogd.training.files import write_json

PENALTY, ATOMS, SIDE, TILE = 1.0, 100, 11, 128
Point = tuple[float, float]  # seconds, objective
Images = list[np.ndarray]


def photographs(archive: Path, count: int) -> Iterable[np.ndarray]:
    """Yield contrast-normalised pieces of 128 x 128, one from each photograph, evenly over the archive."""
    with zipfile.ZipFile(archive) as file:
        names = [name for name in sorted(file.namelist()) if name.endswith(".webp") and "/train/" in name]
        for number in np.linspace(0, len(names) - 1, count).astype(int):
            picture = Image.open(io.BytesIO(file.read(names[number]))).convert("L")
            yield normalize_contrast(np.asarray(picture)[:TILE, :TILE] / 255).astype(np.float32)


def mosaics(archive: Path, count: int, side: int) -> Images:
    """Return so many images (1, side, side) of photographs beside and below each other."""
    across = side // TILE
    pieces = iter(photographs(archive, count * across**2))
    rows = lambda: [np.hstack([next(pieces) for _ in range(across)]) for _ in range(across)]  # noqa: E731
    return [np.vstack(rows())[None] for _ in range(count)]


def curve(images: Images, atoms: np.ndarray, device: str, seconds: float) -> list[Point]:
    """Return (seconds, objective) after every pass, the objective by the solver's own residual, read off the clock."""
    observed = [np.ones(image.shape, bool) for image in images]
    points, spent, began = list[Point](), 0.0, time.perf_counter()
    working_set = new_working_set(images, observed, atoms.shape[1:], device)
    for _ in learn(working_set, atoms, PENALTY):
        synchronize(device)
        spent += time.perf_counter() - began
        points.append((spent, working_set.objective(PENALTY)))
        if spent >= seconds:
            return points
        began = time.perf_counter()
    raise AssertionError("learn() never ends")


def speed(archive: Path, count: int, side: int, device: str, seconds: float, cpu_seconds: float) -> dict[str, Any]:
    """Return both curves and, for a row of objectives, how many times sooner the device was there."""
    images = mosaics(archive, count, side)
    atoms = initial_atoms(images, ATOMS, (SIDE, SIDE), np.random.RandomState(0))
    curve(images[:1], atoms, "cpu", 0.1)
    curve(images[:1], atoms, device, 0.1)  # kernels and algorithms are compiled or chosen
    curves = {"device": curve(images, atoms, device, seconds), "cpu": curve(images, atoms, "cpu", cpu_seconds)}
    last = curves["cpu"][-1][0]
    goals = [min(value for s, value in curves["cpu"] if s <= share * last) for share in (0.1, 0.25, 0.5, 1.0)]
    there = lambda name, goal: next((s for s, value in curves[name] if value <= goal), None)  # noqa: E731
    rows = [{"objective": goal, **{name: there(name, goal) for name in curves}} for goal in goals]
    return {"images": count, "side": side, "cores": len(os.sched_getaffinity(0)), "rows": rows, "curves": curves}


def fits(archive: Path, count: int, side: int, device: str, passes: int) -> dict[str, Any]:
    """Return time and peak memory of fit and sparse transform on so many images."""
    images = np.stack(mosaics(archive, count, side))
    learner = ConvDictionaryLearner(ATOMS, (SIDE, SIDE), PENALTY, max_iter=passes, device=device, random_state=0)  # type: ignore[arg-type]
    began = time.perf_counter()
    codes = learner.fit(images).transform(images, sparse=True)
    synchronize(device)
    gibibytes = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
    found = {"seconds": time.perf_counter() - began, "peak_gibibytes": gibibytes, "nonzeros": codes._nnz()}
    return {"images": count, "side": side, "passes": passes, "objective": learner.history_[-1].objective, **found}


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def attempted(part: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Return a part's result, or what stopped it: one that fails leaves the others standing."""
    try:
        return part(*arguments)
    except (RuntimeError, MemoryError, ValueError) as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def table(report: dict[str, Any]) -> str:
    """Return the markdown of what is there."""
    lines = [f"{report['device']}, torch {report['versions']['torch']}", ""]
    found = report.get("speed", {})
    if "rows" in found:
        lines += [
            f"{found['images']} images of {found['side']} x {found['side']}, {ATOMS} atoms of {SIDE} x {SIDE}:",
            "",
        ]
        lines += [f"| objective | GPU, s | {found['cores']} cores, s | times |", "| --- | --- | --- | --- |"]
        for row in found["rows"]:
            times = f"{row['cpu'] / row['device']:.0f}" if row["device"] else "not reached"
            lines.append(
                f"| {row['objective']:.0f} | {row['device'] or float('nan'):.3f} | {row['cpu']:.1f} | {times} |"
            )
    lines += [
        "",
        "| images | side | passes | seconds | peak, GiB | nonzeros |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in ("many", "large"):
        row = report.get(name, {"failed": "not run"})
        cells = [str(row.get(k)) for k in ("images", "side", "passes")] + [f"{row.get('seconds', 0):.1f}"]
        cells += [f"{row.get('peak_gibibytes') or 0:.1f}", str(row.get("nonzeros"))]
        lines.append(f"| {' | '.join(cells)} |" if "failed" not in row else f"| {name}: {row['failed']} |")
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("COGD_DATA", "data"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=20.0, help="on the GPU")
    parser.add_argument("--cpu-seconds", type=float, default=240.0)
    parser.add_argument("--cores", type=int, default=2, help="that this process may use")
    parser.add_argument("--quick", action="store_true", help="a few small images, to see that it runs")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.cores :])
    torch.set_num_threads(options.cores)
    archive, device = Path(options.data) / "imagenette128.zip", options.device
    times = (1.0, 1.0) if options.quick else (options.seconds, options.cpu_seconds)
    report: dict[str, Any] = {**provenance(device), "processor": provenance()["device"], "penalty": PENALTY}
    sizes = {"speed": (2, 128), "many": (3, 128), "large": (1, 256)}
    if not options.quick:
        sizes = {"speed": (50, 256), "many": (1000, 256), "large": (1, 1024)}
    for name, size in sizes.items():
        if name == "speed":
            report[name] = attempted(speed, archive, *size, device, *times)
        else:
            report[name] = attempted(fits, archive, *size, device, 3 if options.quick else 30)
        write_json(options.output, report)
    print(table(report))


if __name__ == "__main__":
    main()
