"""Training ResNet-18 on images of CIFAR-10's shape: our engine beside the loop that everybody writes, in one run.

    python benchmarks/training.py --device cuda -o benchmarks/results/training_h200.json
    python benchmarks/training.py --quick -o /tmp/training.json

Every contender trains the same network on the same random bytes in the same precision; what an image shows costs
nothing. Warming up and compiling are timed apart. `fraction_of_matrix_rate` is the network's multiply-adds, forward and
backward, over the rate of a large matrix product measured in the same run. Contenders come in order of importance and
those that the time does not suffice for are named in the results, as are those that fail.
"""

import argparse
import functools
import itertools
import json
import multiprocessing
import os
import queue
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad
from torch.utils.data import DataLoader, Dataset

from cogd.models import build, count_macs
from cogd.provenance import provenance
from cogd.training import Recipe, fit, read_recipe
from cogd.training.data.memory import Images, MemoryData
from cogd.training.metrics import cross_entropy_objective
from cogd.training.mps import side_by_side
from cogd.training.placement import choose_placement
from cogd.training.recorded import REHEARSALS, RecordedStep

RULES, OTHERS = ("paper", "rollback"), ("graph", "tuned")
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
WARM_UP = 12  # steps of the plain loops
PATIENCE = 90.0  # seconds that runs in other processes may take
LEAST = 15.0  # seconds that must be left for a contender to begin
Figures = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=8, help="timed epochs of each contender (default 8)")
    parser.add_argument("--at-once", type=int, nargs="+", default=[6, 3], help="so many runs at once (default 6 3)")
    parser.add_argument("--seconds", type=float, default=240.0, help="how long all may take (default 240)")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="only these contenders")
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that everything works")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.set_defaults(model="resnet18", images=50_000, batch_size=128)
    args = parser.parse_args()
    if args.quick:
        args.model, args.images, args.batch_size, args.epochs, args.at_once = "resnet56", 16, 8, 2, [2]
    args.output.parent.mkdir(parents=True, exist_ok=True)
    measure(args)


def measure(args: argparse.Namespace) -> None:
    """Run every contender and write the report anew after each."""
    began = time.monotonic()
    config = {key: value for key, value in vars(args).items() if key != "output"}
    args.deadline = began + args.seconds
    rate = matrix_rate(args.device)
    work = 6 * count_macs(build(args.model, 10), torch.zeros(1, 3, 32, 32))  # 2 operations; forward and twice backward
    report: Figures = {"config": config | {"data": "random bytes"}, **provenance(args.device), "matrix_rate": rate}
    report |= {"operations_per_image": work, "results": {}, "not_measured": {}}
    for name, contender in contenders(args).items():
        if args.only and name not in args.only:
            continue
        figures = attempt(contender, args.deadline)
        if "images_per_second" in figures:
            figures["fraction_of_matrix_rate"] = figures["images_per_second"] * work / rate
        report["results" if "images_per_second" in figures else "not_measured"][name] = figures
        report["cogd_overhead"] = overhead(report["results"])
        args.output.write_text(json.dumps(report, indent=1) + "\n")
        print(f"{time.monotonic() - began:5.0f} s  {name}: {figures}", flush=True)


def attempt(contender: Callable[[], Figures], deadline: float) -> Figures:
    """Return the contender's figures, or what became of it."""
    here = time.monotonic()
    if deadline - here < LEAST:
        return {"left_out": "the time was over"}
    try:
        figures = contender()
    except Exception as error:  # noqa: BLE001 - it is in the report; the others' figures count
        figures = {"failed": f"{type(error).__name__}: {error}"[:2000]}
    return figures | {"seconds_in_all": time.monotonic() - here}


def contenders(args: argparse.Namespace) -> dict[str, Callable[[], Figures]]:
    """Return what is measured, by name."""
    on_gpu, most = args.device.startswith("cuda"), args.at_once[0]
    found: dict[str, Callable[[], Figures]] = {"cogd": lambda: alone(args, recipe_of(args))}
    for rule in RULES:
        found[f"cogd, rule {rule}"] = functools.partial(alone, args, recipe_of(args, rule=rule))
    found["cogd, again"] = found["cogd"]
    if on_gpu:
        found[f"cogd, {most} streams"] = lambda: streams(args, most)
    found["plain loop"] = lambda: plain_loop(args, compiled=False)
    if on_gpu:
        found["plain loop, compiled"] = lambda: plain_loop(args, compiled=True)
    found["cogd, saving"] = lambda: saving(args)
    for n in args.at_once:
        found[f"cogd, {n} processes"] = functools.partial(processes, args, n)
    if on_gpu:
        found |= {f"cogd, {n} streams": functools.partial(streams, args, n) for n in args.at_once[1:]}
        found |= {f"cogd, {kind}": functools.partial(alone, args, recipe_of(args, compile=kind)) for kind in OTHERS}
    return found


def recipe_of(args: argparse.Namespace, **fields: Any) -> Recipe:
    usual = {"epochs": 1 + args.epochs, "batch_size": args.batch_size, "eval_batch_size": 500}
    return read_recipe("cifar10", **(usual | fields))


def overhead(results: Figures) -> dict[str, float]:
    """Return what a rule adds to a whole epoch: its projection, and reading what that did."""
    seconds = {name: result["seconds_per_epoch"] for name, result in results.items() if "seconds_per_epoch" in result}
    plain = [seconds[name] for name in ("cogd", "cogd, again") if name in seconds]
    timed = {rule: seconds[name] for rule in RULES if (name := f"cogd, rule {rule}") in seconds}
    return {rule: mine / statistics.mean(plain) - 1 for rule, mine in timed.items()} if plain else {}


@functools.cache
def random_images(count: int) -> MemoryData:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    images = Images(pixels, torch.randint(10, (count,), generator=generator))
    few = Images(images.pixels[:500], images.labels[:500])
    return MemoryData("random", images, few, tuple("0123456789"), MEAN, STD, fingerprint="random")


def network(args: argparse.Namespace, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return build(args.model, 10)


def alone(args: argparse.Namespace, recipe: Recipe, **how: Any) -> Figures:
    """Time one run's epochs but the first, which warms up: of each the training, and all with a short evaluation."""
    model, data = network(args), random_images(args.images)
    first, *rest = fit(model, data, recipe, device=args.device, progress=False, **how).history
    return {
        "images_per_second": statistics.median(record["images_per_second"] for record in rest),
        "seconds_per_epoch": statistics.median(record["seconds"] for record in rest),
        "of_each_epoch": [[record["images_per_second"], record["seconds"]] for record in rest],
        "seconds_of_the_first": first["seconds"],
    }


def saving(args: argparse.Namespace) -> Figures:
    """Time one run from epoch to epoch with all that `cogd train` does, a checkpoint after each among it."""
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        alone(args, recipe_of(args), folder=Path(folder) / "run", after_epoch=lambda _: ends.append(time.monotonic()))
    seconds = statistics.median(after - before for before, after in itertools.pairwise(ends))
    images = args.images // args.batch_size * args.batch_size
    return {"images_per_second": images / seconds, "seconds_per_epoch": seconds}


class Lane:
    """One run of several in a process: its steps are recorded, and replayed on a stream of its own."""

    def __init__(self, args: argparse.Namespace, seed: int):
        recipe = recipe_of(args)
        self.placement = choose_placement(args.device, recipe)
        self.model = self.placement.place(network(args, seed)).train()
        self.train, _ = random_images(args.images).batches(recipe, self.placement.device)
        optimizer = torch.optim.SGD(
            self.model.parameters(), recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay, fused=True
        )
        self.step = RecordedStep(self.model, cross_entropy_objective(0.0), optimizer, self.placement)
        self.stream = torch.cuda.Stream(self.placement.device)
        self.batches: Iterator[tuple[Tensor, Tensor]] = iter(())

    def take_step(self) -> None:
        with torch.cuda.stream(self.stream):
            batch = next(self.batches, None)
            if batch is None:
                self.batches = iter(self.train)
                batch = next(self.batches)
            self.step(*batch)


def streams(args: argparse.Namespace, count: int) -> Figures:
    """Time as many runs as there are streams, their steps in turn, for one epoch each."""
    lanes = [Lane(args, seed) for seed in range(count)]
    for lane in lanes:
        for _ in range(REHEARSALS + 3):
            lane.take_step()
    steps = len(lanes[0].train)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        for lane in lanes:
            lane.take_step()
    launched = time.perf_counter() - began
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    return {"images_per_second": count * steps * args.batch_size / seconds, "share_spent_launching": launched / seconds}


def processes(args: argparse.Namespace, count: int) -> Figures:
    """Time so many runs in their own processes, from when all have warmed up to when the last has finished."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(count), context.Queue()
    runs = [context.Process(target=one_of_several, args=(args, seed, barrier, results)) for seed in range(count)]
    with side_by_side() as obstacle:
        for run in runs:
            run.start()
        try:
            times = answers(results, runs, min(PATIENCE, args.deadline - time.monotonic()))
            for run in runs:
                run.join(timeout=10)
        finally:
            for run in runs:
                run.kill()
    began, ended, images = (list(values) for values in zip(*times, strict=True))
    speed = sum(images) / (max(ended) - min(began))
    return {"images_per_second": speed, "spread_of_ends": max(ended) - min(ended), "not_side_by_side": obstacle}


def answers(results: Any, runs: list[Any], seconds: float) -> list[tuple[float, float, int]]:
    """Return what each of the runs says, unless one fails or they take too long."""
    began, found = time.monotonic(), list[tuple[float, float, int]]()
    while len(found) < len(runs):
        try:
            found.append(results.get(timeout=0.5))
        except queue.Empty:
            if any(run.exitcode for run in runs):
                raise RuntimeError(f"failed; exit codes {[run.exitcode for run in runs]}") from None
            if time.monotonic() - began > seconds:
                raise TimeoutError(f"not done within {seconds:.0f} s") from None
    return found


def one_of_several(args: argparse.Namespace, seed: int, barrier: Any, results: Any) -> None:
    recipe, marks = recipe_of(args, epochs=3), []

    def mark(state: Any) -> None:
        if state.epoch == 1:
            barrier.wait(timeout=PATIENCE)
        marks.append(time.monotonic())

    how: Figures = {"evaluate": lambda model, batches: {"nothing": 0.0}, "after_epoch": mark, "progress": False}
    fit(network(args, seed), random_images(args.images), recipe, seed=seed, device=args.device, **how)
    results.put((marks[0], marks[-1], (len(marks) - 1) * (args.images // args.batch_size) * args.batch_size))


class AugmentedBytes(Dataset[tuple[Tensor, int]]):
    """One image at a time, cropped, flipped and cut out in a worker, as in the usual CIFAR-10 script."""

    def __init__(self, images: Images):
        self.images = images
        self.mean, self.std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        upper, left, row, column, mirrored = (torch.rand(5) * torch.tensor([9, 9, 32, 32, 2])).int().tolist()
        piece = pad(self.images.pixels[index], (4, 4, 4, 4))[:, upper : upper + 32, left : left + 32]
        image = ((piece.flip(2) if mirrored else piece) / 255 - self.mean) / self.std
        image[:, max(0, row - 8) : row + 8, max(0, column - 8) : column + 8] = 0.0
        return image, int(self.images.labels[index])


def plain_loop(args: argparse.Namespace, compiled: bool, seconds: float = 6.0) -> Figures:
    """Time a DataLoader, a model, a loss and SGD, without anything of ours."""
    recipe, device = recipe_of(args), torch.device(args.device)
    on_gpu, bfloat16 = device.type == "cuda", choose_placement(device, recipe).precision == "bfloat16"
    images = AugmentedBytes(random_images(args.images).train)
    how: Figures = {"num_workers": min(len(os.sched_getaffinity(0)), 16), "pin_memory": on_gpu}
    loader = DataLoader(images, recipe.batch_size, True, drop_last=True, persistent_workers=True, **how)
    model = network(args).to(device)
    call: Any = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))

    def step() -> Tensor:
        inputs, targets = (tensor.to(device, non_blocking=True) for tensor in next(batches))
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            loss = cross_entropy(call(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(WARM_UP):
        float(step())
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < (seconds if on_gpu else 0.1):
        for _ in range(9):
            step()
        float(step())  # wait for the device
        count += 10
    return {"images_per_second": count * recipe.batch_size / (time.perf_counter() - began)}


def matrix_rate(device: str) -> float:
    """Return the operations per second of a large matrix product, in bfloat16 on a GPU and float32 on a CPU."""
    on_gpu = device.startswith("cuda")
    size, repeats, dtype = (8192, 50, torch.bfloat16) if on_gpu else (1024, 5, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    for count in (3, repeats):
        began = time.perf_counter()
        for _ in range(count):
            product = a @ b
        float(product[0, 0])  # wait for the device
        seconds = time.perf_counter() - began
    return repeats * 2 * size**3 / seconds


if __name__ == "__main__":
    main()
