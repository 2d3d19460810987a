"""Our masks with and without CoGD beside Torch-Pruning's pruners, in one run.

    python benchmarks/pruning.py --data cifar10:DIR --device cuda -o benchmarks/results/pruning_h200.json
    python benchmarks/pruning.py --quick -o /tmp/pruning.json

For every seed a base network is trained. From it every method makes a network of the same MACs, out of the same
candidates (the channels inside the residual blocks), in as many epochs, and each is fine-tuned by the same recipe. A
pruner that learns nothing before it removes gets those epochs after the removal, on the small network. Torch-Pruning's
settings are those of its own CIFAR-10 script (reg 5e-4, no weight decay while it regularizes, global ranking).

The file is written anew after every run; the same command again adds what is missing. On a GPU the processes share it
through NVIDIA's MPS where that is installed. `--speed` measures first, with the machine to itself, what an epoch of
pruning takes by the shipped recipes, and what gates add to a step.
"""

import argparse
import copy
import json
import multiprocessing
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from multiprocessing.pool import AsyncResult
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from pruning_methods import METHODS, Setting, ours
from pruning_report import Report
from torch import Tensor, nn

from cogd.models import count_macs
from cogd.training.mps import side_by_side
from cogd.training.run import save_weights
from cogd.training.seeds import seeded


def make_base(setting: Setting, seed: int, path: Path) -> dict[str, Any]:
    """Train a network of the seed and keep its weights."""
    torch.set_num_threads(1)
    began, model = time.perf_counter(), seeded(setting.build, seed)
    metrics = setting.fit(model, setting.recipe("", setting.base_epochs), seed).metrics
    save_weights(model, path)
    return {"seed": seed, **metrics, "seconds": time.perf_counter() - began}


def run(setting: Setting, method: str, seed: int, path: Path) -> dict[str, Any]:
    """Prune the seed's network by one method."""
    torch.set_num_threads(1)
    began, base = time.perf_counter(), setting.build()
    base.load_state_dict(safetensors.torch.load_file(path))
    before = setting.measure(copy.deepcopy(base))
    model, metrics = METHODS[method](setting, base, seed)
    inputs = torch.zeros(1, *setting.load().train.pixels.shape[1:])
    macs, parameters = ((count(model.cpu()) / count(base)) for count in (partial(_macs, inputs=inputs), _parameters))
    return {
        "method": method,
        "seed": seed,
        "accuracy_before": before["accuracy"],
        "accuracy_after": metrics["after"]["accuracy"],
        "accuracy": metrics["fine_tuned"]["accuracy"],
        "macs": macs,
        "parameters": parameters,
        "seconds": time.perf_counter() - began,
        "channels": [model.get_submodule(name).out_channels for name in base.gated_layers],  # type: ignore[union-attr]
    }


def _macs(model: nn.Module, inputs: Tensor) -> int:
    return count_macs(model, inputs)


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def speed(setting: Setting) -> dict[str, float]:
    """Time epochs of learning and of fine-tuning by the shipped recipes, all before them, and a step without gates."""
    began = time.perf_counter()
    shipped = replace(setting, epochs=3, finetune_epochs=3, batch_size=None)
    learning, finetuning = epochs_of_pruning(shipped)
    rest = time.perf_counter() - began - 3 * (learning[-1]["seconds"] + finetuning[-1]["seconds"])
    whole = rest + 100 * learning[-1]["seconds"] + 60 * finetuning[-1]["seconds"]
    plain = shipped.fit(seeded(setting.build, 0), shipped.learning, 0).history
    gated, _ = epochs_of_pruning(replace(shipped, finetune_epochs=1), rule=None, distill="none")
    seconds = {name: seconds_of_step(epochs, shipped) for name, epochs in (("plain", plain), ("gated", gated))}
    return {
        "learning_epoch": learning[-1]["seconds"],
        "finetuning_epoch": finetuning[-1]["seconds"],
        "rest": rest,
        "epochs_100_and_60": whole,
        "step_without_gates": seconds["plain"],
        "step_with_gates": seconds["gated"],
        "gate_overhead": seconds["gated"] / seconds["plain"] - 1,
    }


def epochs_of_pruning(setting: Setting, **options: Any) -> list[list[dict[str, Any]]]:
    """Prune a network by our masks and return the records of the epochs of both phases."""
    with tempfile.TemporaryDirectory() as folder:
        ours(setting, seeded(setting.build, 0), 0, folder=folder, **options)
        logs = [Path(folder, phase, "log.jsonl").read_text().splitlines() for phase in ("masks", "finetune")]
    entries = [[json.loads(line) for line in log] for log in logs]
    return [[entry for entry in log if entry["event"] == "epoch"] for log in entries]


def seconds_of_step(epochs: list[dict[str, Any]], setting: Setting) -> float:
    """Return what a step took in the fastest epoch but the first, which warms up."""
    return setting.learning.batch_size / max(record["images_per_second"] for record in epochs[1:])


def measure_speed(setting: Setting, report: Report, seconds: float) -> None:
    """Measure in another process, so that this one never holds the GPU that the runs share."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        report.add_outcome("speed", pool.apply_async(speed, (setting,)), seconds)


def run_all(setting: Setting, report: Report, args: argparse.Namespace, deadline: float) -> None:
    """Make all bases, then all runs, each in a process of its own, so many at once, until the time is up."""
    jobs: dict[AsyncResult[dict[str, Any]], tuple[str, str, int]] = {}
    wanted = {seed: [m for m in args.methods if not report.has(m, seed)] for seed in range(args.seeds)}
    args.bases.mkdir(parents=True, exist_ok=True)
    paths = {seed: args.bases / f"{setting.base_name}-seed{seed}.safetensors" for seed in wanted}
    with multiprocessing.get_context("spawn").Pool(args.processes, maxtasksperchild=1) as pool:

        def prune_all(seed: int) -> None:
            for method in wanted[seed]:
                jobs[pool.apply_async(run, (setting, method, seed, paths[seed]))] = ("runs", method, seed)

        for seed in wanted:
            if paths[seed].exists():
                prune_all(seed)
            elif wanted[seed]:
                jobs[pool.apply_async(make_base, (setting, seed, paths[seed]))] = ("bases", "", seed)
        while jobs and time.perf_counter() < deadline:
            for job in [job for job in jobs if job.ready()]:
                kind, method, seed = jobs.pop(job)
                if report.add_outcome(kind, job, 0.0, method=method, seed=seed) and kind == "bases":
                    prune_all(seed)
            time.sleep(0.1)
    if jobs:
        print(f"the time is up; {len(jobs)} jobs are unfinished, and the same command makes them.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits", help='"digits" or "cifar10:DIR" (default digits)')
    parser.add_argument("--images", type=int, help="use so many of the training and of the test images")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--target-macs", type=float, default=0.5)
    parser.add_argument("--base-epochs", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=30, help="of learning what to remove (default 30)")
    parser.add_argument("--finetune-epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, help="everywhere; the recipes' own by default")
    parser.add_argument("--compile", default="auto", help="the recipes' field")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    parser.add_argument("--processes", type=int, default=2, help="so many at once (default 2)")
    parser.add_argument("--bases", type=Path, help="the folder of the base networks (default: beside the output)")
    parser.add_argument("--time-limit", type=float, default=86_400.0, help="seconds after which it ends")
    parser.add_argument("--speed", action="store_true", help="measure the seconds of an epoch first")
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that everything works")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    deadline = time.perf_counter() + args.time_limit
    if args.quick:
        args.images, args.base_epochs, args.epochs, args.finetune_epochs, args.seeds = 256, 1, 1, 1, 2
    args.bases = args.bases or args.output.parent / "bases"
    setting = Setting(
        **{name: getattr(args, name) for name in Setting.__dataclass_fields__}  # the options are named after them
    )
    report = Report(args.output, setting, processes=args.processes)
    if args.speed and not report.content["speed"]:
        measure_speed(setting, report, deadline - time.perf_counter())
    with side_by_side() if args.device.startswith("cuda") else nullcontext("it is no GPU") as obstacle:
        report.content["sharing"] = obstacle or "MPS"
        run_all(setting, report, args, deadline)
    for row in report.content["summary"]:
        print(f"{row['method']:34} n={row['n']}  {row['mean']:.2%} +- {row['deviation'] or 0:.2%}  {row['difference']}")


if __name__ == "__main__":
    main()
