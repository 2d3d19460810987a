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
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from cogd.models import build, count_macs
from cogd.provenance import provenance
from cogd.training import Recipe, fit, read_recipe, recorded
from cogd.training.augment import Augmentation
from cogd.training.data.memory import Images, MemoryData
from cogd.training.metrics import minimize
from cogd.training.mps import side_by_side
from cogd.training.placement import choose_placement
from cogd.training.recorded import RecordedStep

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
WARM_UP = 12  # steps of the plain loops
OBJECTIVE = minimize(torch.nn.CrossEntropyLoss())
Figures = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=5, help="timed epochs of each contender (default 5)")
    parser.add_argument("--streams", type=int, nargs="*", default=[4, 8], help="so many runs on streams of one process")
    parser.add_argument("--processes", type=int, nargs="*", default=[4, 8], help="so many runs in their own processes")
    parser.add_argument("--seconds", type=float, default=150.0, help="begin no contender after so many (default 150)")
    parser.add_argument("--only", nargs="*", default=[], help="only contenders whose names begin so")
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that everything works")
    parser.add_argument("--plain-compiled", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    if args.quick:
        args.model, args.images, args.batch_size, args.epochs, args.processes = "resnet56", 16, 8, 1, [2]
    if args.plain_compiled:
        print(json.dumps(plain_loop(args, compiled=True)))
        return
    args.output.parent.mkdir(parents=True, exist_ok=True)
    measure(args)


def measure(args: argparse.Namespace) -> None:
    """Run every contender and write the report anew after each."""
    began, on_gpu = time.perf_counter(), args.device.startswith("cuda")
    recorded.compiled = functools.cache(recorded.compiled)  # one compilation for contenders that are alike
    companion = start_plain_compiled() if on_gpu and wanted(args, "plain loop, compiled") else None
    rate = matrix_rate(args.device)
    work = 6 * count_macs(build(args.model, 10), torch.zeros(1, 3, 32, 32))  # 2 operations; forward and twice backward
    config = {key: value for key, value in vars(args).items() if key not in ("output", "plain_compiled")}
    report: Figures = {"config": config | {"data": "random bytes"}, **provenance(args.device), "matrix_rate": rate}
    report |= {"operations_per_image": work, "results": {}}
    for name, contender in contenders(args, companion).items():
        if not wanted(args, name):
            continue
        report["results"][name] = result = attempt(contender, began, args.seconds)
        if "images_per_second" in result:
            result["fraction_of_matrix_rate"] = result["images_per_second"] * work / rate
        report["cogd_overhead"] = overhead(report["results"])
        args.output.write_text(json.dumps(report, indent=1) + "\n")
        print(f"{time.perf_counter() - began:5.0f} s  {name}: {result}", flush=True)
    if companion is not None:
        companion.kill()


def wanted(args: argparse.Namespace, name: str) -> bool:
    return not args.only or name.startswith(tuple(args.only))


def attempt(contender: Callable[[], Figures], began: float, seconds: float) -> Figures:
    """Return the contender's figures, or what became of it."""
    here = time.perf_counter()
    if here - began > seconds:
        return {"left_out": f"{seconds:.0f} s were over"}
    try:
        figures = contender()
    except Exception as error:  # noqa: BLE001 - it is in the report; the others' figures count
        figures = {"failed": f"{type(error).__name__}: {error}"[:2000]}
    return figures | {"seconds_in_all": time.perf_counter() - here}


def contenders(args: argparse.Namespace, companion: "subprocess.Popen[str] | None") -> dict[str, Callable[[], Figures]]:
    on_gpu = args.device.startswith("cuda")
    found: dict[str, Callable[[], Figures]] = {"cogd": lambda: alone(args, recipe_of(args))}
    if on_gpu:
        found["cogd, the graph alone"] = lambda: graph_alone(args)
        found |= {f"cogd, {n} streams": functools.partial(streams, args, n) for n in args.streams}
        found |= {f"cogd, {n} processes, MPS": functools.partial(served_processes, args, n) for n in args.processes}
    for rule in ("paper", "rollback"):
        found[f"cogd, rule {rule}"] = functools.partial(alone, args, recipe_of(args, rule=rule))
    found["plain loop"] = lambda: plain_loop(args, compiled=False)
    if companion is not None:
        found["plain loop, compiled"] = lambda: go_plain_compiled(companion)
    found |= {f"cogd, {n} processes": functools.partial(processes, args, n) for n in args.processes[:1]}
    if on_gpu:
        found["cogd, tuned"] = lambda: alone(args, recipe_of(args, compile="tuned"))
        found |= {f"cogd, tuned, {n} streams": functools.partial(streams, args, n, "tuned") for n in args.streams}
    return found


def recipe_of(args: argparse.Namespace, **fields: Any) -> Recipe:
    usual = {"epochs": 1 + args.epochs, "batch_size": args.batch_size, "eval_batch_size": 500}
    return read_recipe("cifar10", **(usual | fields))


def overhead(results: Figures) -> dict[str, float]:
    """Return what a rule adds to an epoch, its evaluation left out and the projection in it."""
    found = {}
    for rule in ("paper", "rollback"):
        mine, plain = (results.get(name, {}).get("seconds_per_epoch") for name in (f"cogd, rule {rule}", "cogd"))
        if mine and plain:
            found[rule] = mine / plain - 1
    return found


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


def alone(args: argparse.Namespace, recipe: Recipe) -> Figures:
    """Time one run's epochs but the first, which warms up; of each the training, without its evaluation."""
    how: Figures = {"objective": OBJECTIVE, "recordable": True, "device": args.device, "progress": False}
    result = fit(network(args), random_images(args.images), recipe, **how)
    images = len(random_images(args.images).train) // args.batch_size * args.batch_size
    first, *rest = [images / record["images_per_second"] for record in result.history]
    seconds = statistics.median(rest)
    return {
        "images_per_second": images / seconds,
        "seconds_per_epoch": seconds,
        "seconds_of_each_epoch": rest,
        "seconds_of_the_first": first,
    }


class Lane:
    """One run of several in a process: its steps are recorded, and replayed on a stream of its own."""

    def __init__(self, args: argparse.Namespace, recipe: Recipe, seed: int, objective: Any):
        self.placement = choose_placement(args.device, recipe)
        self.model = self.placement.place(network(args, seed)).train()
        self.train, _ = random_images(args.images).batches(recipe, self.placement.device)
        optimizer = torch.optim.SGD(
            self.model.parameters(), recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay, fused=True
        )
        self.step = RecordedStep(self.model, objective, optimizer, self.placement)
        self.stream = torch.cuda.Stream(self.placement.device)
        self.batches: Iterator[tuple[Tensor, Tensor]] = iter(())

    def take_step(self) -> None:
        with torch.cuda.stream(self.stream):
            batch = next(self.batches, None)
            if batch is None:
                self.batches = iter(self.train)
                batch = next(self.batches)
            self.step(*batch)


def streams(args: argparse.Namespace, count: int, compilation: str = "compiled") -> Figures:
    """Time as many runs as there are streams, their steps in turn, for one epoch each."""
    recipe = recipe_of(args, compile=compilation)
    lanes = [Lane(args, recipe, seed, OBJECTIVE) for seed in range(count)]
    for lane in lanes:
        for _ in range(recorded.REHEARSALS + 3):
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


def graph_alone(args: argparse.Namespace) -> Figures:
    """Time the recorded step again and again on the same batch: the bound of the engine around it."""
    lane = Lane(args, recipe_of(args), 0, OBJECTIVE)
    for _ in range(recorded.REHEARSALS + 3):
        lane.take_step()
    graph, steps = lane.step._graph, len(lane.train)
    assert graph is not None
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        graph.replay()
    torch.cuda.synchronize()
    return {"images_per_second": steps * args.batch_size / (time.perf_counter() - began)}


def served_processes(args: argparse.Namespace, count: int) -> Figures:
    with side_by_side() as obstacle:
        return {"failed": obstacle} if obstacle else processes(args, count)


def processes(args: argparse.Namespace, count: int) -> Figures:
    """Time so many runs in their own processes, from when all have warmed up to when the last has finished."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(count), context.Queue()
    runs = [context.Process(target=one_of_several, args=(args, seed, barrier, results)) for seed in range(count)]
    for run in runs:
        run.start()
    try:
        times = [answer_of(results, runs) for _ in runs]
    finally:
        for run in runs:
            run.join(timeout=5)
            run.kill()
    began, ended, images = (list(values) for values in zip(*times, strict=True))
    return {"images_per_second": sum(images) / (max(ended) - min(began)), "spread_of_ends": max(ended) - min(ended)}


def answer_of(results: Any, runs: list[Any], seconds: float = 90.0) -> tuple[float, float, int]:
    """Return what one of the runs says, unless one of them fails."""
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        try:
            return results.get(timeout=0.5)
        except queue.Empty:
            if any(run.exitcode for run in runs):
                break
    raise RuntimeError(f"a run failed or took too long; exit codes: {[run.exitcode for run in runs]}")


def one_of_several(args: argparse.Namespace, seed: int, barrier: Any, results: Any) -> None:
    recipe, marks = recipe_of(args, epochs=3), []

    def mark(state: Any) -> None:
        if state.epoch == 1:
            barrier.wait(timeout=80)
        marks.append(time.monotonic())

    data = random_images(args.images)
    how: Figures = {"evaluate": lambda model, batches: {"nothing": 0.0}, "after_epoch": mark, "progress": False}
    fit(network(args, seed), data, recipe, seed=seed, device=args.device, **how)
    results.put((marks[0], marks[-1], (len(marks) - 1) * (args.images // args.batch_size) * args.batch_size))


class AugmentedBytes(Dataset[tuple[Tensor, int]]):
    """One image at a time, augmented in a worker, as in the usual CIFAR-10 script."""

    def __init__(self, data: MemoryData, augmentation: Augmentation):
        self.images, self.augmentation = data.train, augmentation
        self.mean, self.std = (torch.tensor(values).view(3, 1, 1) for values in (data.mean, data.std))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pixels = self.images.pixels[index : index + 1]
        draws = self.augmentation.draw(1, *pixels.shape[2:])
        return self.augmentation.apply(pixels, draws, self.mean, self.std)[0], int(self.images.labels[index])


def plain_loop(args: argparse.Namespace, compiled: bool, seconds: float = 6.0) -> Figures:
    """Time a DataLoader, a model, a loss and SGD, without anything of ours but the augmentation."""
    recipe, device = recipe_of(args), torch.device(args.device)
    on_gpu, bfloat16 = device.type == "cuda", choose_placement(device, recipe).precision == "bfloat16"
    augmentation = Augmentation(recipe.crop, recipe.flip, recipe.cutout)
    loader = DataLoader(
        AugmentedBytes(random_images(args.images), augmentation),
        recipe.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=min(len(os.sched_getaffinity(0)), 16),
        pin_memory=on_gpu,
        persistent_workers=True,
    )
    model = network(args).to(device)
    call: Any = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def steps() -> Iterator[Tensor]:
        for inputs, targets in itertools.chain.from_iterable(itertools.repeat(loader)):
            inputs, targets = inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
                loss = cross_entropy(call(inputs), targets)
            loss.backward()
            optimizer.step()
            yield loss.detach()

    running = steps()
    for _ in range(WARM_UP):
        float(next(running))
    if compiled:
        wait_for_turn()
        for _ in range(WARM_UP):  # what the loader had ready is used up
            float(next(running))
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < (seconds if on_gpu else 0.1):
        for _ in range(10):
            loss = next(running)
        count += 10
        float(loss)  # wait for the device
    return {"images_per_second": count * recipe.batch_size / (time.perf_counter() - began)}


def start_plain_compiled() -> "subprocess.Popen[str]":
    """Begin to compile the plain loop beside the first contender; it is timed when its turn has come."""
    command = [sys.executable, *sys.argv, "--plain-compiled"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def wait_for_turn() -> None:
    sys.stdin.readline()


def go_plain_compiled(companion: "subprocess.Popen[str]") -> Figures:
    answer, _ = companion.communicate("go\n", timeout=60)
    return json.loads(answer.splitlines()[-1])


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
