"""Training ResNet-18 on images of CIFAR-10's shape: our engine beside the loop that everybody writes, in one run.

    python benchmarks/training.py --device cuda -o benchmarks/results/training_h200.json
    python benchmarks/training.py --quick -o /tmp/training.json

Every contender trains the same network on the same random bytes in the same precision; the first epoch warms up and
compiles, the last is timed. `fraction_of_matrix_rate` is the network's multiply-adds, forward and backward, over the
rate of a large matrix product measured in the same run.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from cogd.models import build, count_macs
from cogd.provenance import provenance
from cogd.training import Recipe, fit, read_recipe
from cogd.training.augment import Augmentation
from cogd.training.data.memory import Images, MemoryData
from cogd.training.placement import choose_placement

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4, help="the last is timed (default 4)")
    parser.add_argument("--processes", type=int, nargs="*", default=[2, 4], help="so many runs at once (default 2 4)")
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that everything works")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    if args.quick:
        args.model, args.images, args.batch_size, args.epochs, args.processes = "resnet56", 64, 16, 2, [2]
    report = {"config": vars(args) | {"output": str(args.output)}, **provenance(args.device), **measure(args)}
    for name, result in report["results"].items():
        print(f"{name:32} {result['images_per_second']:10,.0f} images/s   {result['fraction_of_matrix_rate']:.1%}")
    print("CoGD per epoch:", ", ".join(f"{rule} {share:+.2%}" for rule, share in report["cogd_overhead"].items()))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(report, indent=1) + "\n")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    recipe = read_recipe("cifar10", epochs=args.epochs, batch_size=args.batch_size, eval_batch_size=500)
    contenders: dict[str, Callable[[], float]] = {
        "plain loop": lambda: plain_loop(args, recipe, compiled=False),
        "cogd, rule none": lambda: ours(args, recipe),
        "cogd, rule paper": lambda: ours(args, read_recipe(recipe, rule="paper")),
        "cogd, rule rollback": lambda: ours(args, read_recipe(recipe, rule="rollback")),
    }
    if args.device.startswith("cuda"):
        contenders["plain loop, compiled"] = lambda: plain_loop(args, recipe, compiled=True)
        tuned = read_recipe(recipe, compile="max-autotune")
        contenders["cogd, max-autotune"] = lambda: ours(args, tuned)
    contenders |= {f"cogd, {n} processes": lambda n=n: several(args, recipe, n) for n in args.processes}  # type: ignore[misc]
    rate = matrix_rate(args.device)
    work = 6 * count_macs(build(args.model, 10), torch.zeros(1, 3, 32, 32))  # 2 operations; forward and twice backward
    speeds = {name: contender() for name, contender in contenders.items()}
    plain = speeds["cogd, rule none"]
    return {
        "matrix_rate": rate,
        "operations_per_image": work,
        "results": {
            name: {"images_per_second": speed, "fraction_of_matrix_rate": speed * work / rate}
            for name, speed in speeds.items()
        },
        "cogd_overhead": {rule: plain / speeds[f"cogd, rule {rule}"] - 1 for rule in ("paper", "rollback")},
    }


def random_images(count: int) -> MemoryData:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    images = Images(pixels, torch.randint(10, (count,), generator=generator))
    few = Images(images.pixels[:500], images.labels[:500])
    return MemoryData("random", images, few, tuple("0123456789"), MEAN, STD, fingerprint="random")


def ours(args: argparse.Namespace, recipe: Recipe, seed: int = 0) -> float:
    torch.manual_seed(seed)
    data = random_images(args.images)
    result = fit(build(args.model, 10), data, recipe, seed=seed, device=args.device, progress=False)
    return result.history[-1]["images_per_second"]


def several(args: argparse.Namespace, recipe: Recipe, count: int) -> float:
    """Return the images/s of so many runs together, each in its own process, timed while all of them run."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(count) as pool:
        return sum(pool.starmap(ours, [(args, recipe, seed) for seed in range(count)], chunksize=1))


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


def plain_loop(args: argparse.Namespace, recipe: Recipe, compiled: bool) -> float:
    """Time the last epoch of a DataLoader, a model, a loss and SGD, without anything of ours but the augmentation."""
    device = torch.device(args.device)
    on_gpu, bfloat16 = device.type == "cuda", choose_placement(device, recipe).precision == "bfloat16"
    augmentation = Augmentation(recipe.crop, recipe.flip, recipe.cutout)
    workers = min(len(os.sched_getaffinity(0)), 16)
    loader = DataLoader(
        AugmentedBytes(random_images(args.images), augmentation),
        recipe.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=on_gpu,
        persistent_workers=True,
    )
    model = build(args.model, 10).to(device)
    call: nn.Module = torch.compile(model) if compiled else model  # type: ignore[assignment]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    speed = 0.0
    for _ in range(args.epochs):
        began = time.perf_counter()
        for inputs, targets in loader:
            inputs, targets = inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
                loss = cross_entropy(call(inputs), targets)
            loss.backward()
            optimizer.step()
        float(loss.detach())  # wait for the device
        speed = len(loader) * recipe.batch_size / (time.perf_counter() - began)
    return speed


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
