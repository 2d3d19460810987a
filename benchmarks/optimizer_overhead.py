"""What the wrapper costs: base and wrapped steps alternate on the same model and gradients in one run.

    python benchmarks/optimizer_overhead.py -o benchmarks/results/optimizer_overhead_cpu.json
    python benchmarks/optimizer_overhead.py --device cuda -o benchmarks/results/optimizer_overhead_h200.json

Only ratios within one run mean something. A training step is forward, backward and the optimizer's step. On a CPU its
parts are timed alone; on a GPU whole steps are, ten in a row, as a loop launches them without waiting, and where every
step projects, also replayed from a CUDA graph. The overhead of a period P compares ((P - 1) plain + 1 projecting
wrapped steps) / P with the base's step, in shares of a training step.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from cogd import CoGD, couple_conv_norm
from cogd.models import build
from cogd.provenance import provenance

Kinds = dict[str, Callable[[], object]]
Measured = dict[str, dict[str, float]]  # way of measuring, kind of step: seconds
CASES = {  # name: (network, image size, classes, batch on CPU, batch on GPU, steps from one projection to the next)
    "resnet18-epoch": ("resnet18", 32, 10, 128, 128, 391),
    "resnet50-every-step": ("resnet50_imagenet", 224, 1000, 16, 128, 1),
}
RULES: tuple[Literal["paper", "rollback"], ...] = ("paper", "rollback")
NEVER = 10**9
IN_A_ROW = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=15, help="timed steps of each kind (default 15)")
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that everything works")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    repeats = 2 if args.quick else args.repeats
    results = [row for case in CASES for row in measure(case, args.device, repeats, args.quick)]
    report = {"config": {"repeats": repeats, "quick": args.quick}, **provenance(args.device), "results": results}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(report, indent=1) + "\n")


def measure(case: str, device: str, repeats: int, quick: bool) -> list[dict[str, Any]]:
    """Time a network's training step with the base and with every rule around it; return a row per rule."""
    network, size, classes, cpu_batch, gpu_batch, period = CASES[case]
    batch = 2 if quick else gpu_batch if device.startswith("cuda") else cpu_batch
    model, forward_backward = training_of(network, size, classes, batch, device)
    busy = {rule: CoGD(sgd(model), couple_conv_norm(model), rule=rule, period=1) for rule in RULES}
    idle = {rule: CoGD(sgd(model), couple_conv_norm(model), rule=rule, period=NEVER) for rule in RULES}
    steps: Kinds = {"base": sgd(model).step}
    if period > 1:
        steps |= {f"plain, {rule}": optimizer.step for rule, optimizer in idle.items()}
    steps |= {f"projecting, {rule}": optimizer.step for rule, optimizer in busy.items()}
    forward_backward()
    measured = (on_cpu if device == "cpu" else on_gpu)(forward_backward, steps, repeats)
    rows = []
    for rule in RULES:
        shares = {way: 100 * extra(seconds, rule, period) / seconds["whole step"] for way, seconds in measured.items()}
        print(f"{case:20} {rule:9} " + ", ".join(f"{way} {share:+.2f} %" for way, share in shares.items()), flush=True)
        row: dict[str, Any] = {"case": case, "rule": rule, "batch": batch, "period": period}
        row |= {"couplings": len(busy[rule].couplings), "overhead_percent": shares, "median_seconds": measured}
        row["held_bytes_per_coupled_byte"] = held_bytes(busy[rule]) / coupled_bytes(busy[rule])
        rows.append(row)
    return rows


def on_cpu(forward_backward: Callable[[], object], steps: Kinds, repeats: int) -> Measured:
    seconds = medians({"forward and backward": forward_backward, **steps}, repeats, "cpu")
    return {"parts timed alone": {**seconds, "whole step": seconds["forward and backward"] + seconds["base"]}}


def on_gpu(forward_backward: Callable[[], object], steps: Kinds, repeats: int) -> Measured:
    whole: Kinds = {name: in_turn(forward_backward, step) for name, step in steps.items()}
    ways = {"whole steps": whole}
    if not any(name.startswith("plain") for name in steps):
        ways["in a CUDA graph"] = {name: recorded(run).replay for name, run in whole.items()}
    measured = {}
    for way, kinds in ways.items():
        in_a_row: Kinds = {name: in_turn(*[run] * IN_A_ROW) for name, run in kinds.items()}
        seconds = {name: value / IN_A_ROW for name, value in medians(in_a_row, repeats, "cuda").items()}
        measured[way] = {**seconds, "whole step": seconds["base"]}
    return measured


def recorded(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Return a CUDA graph of a training step, warmed up as PyTorch asks."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def training_of(network: str, size: int, classes: int, batch: int, device: str) -> tuple[nn.Module, Callable[[], None]]:
    """Return a network and its forward and backward pass on one batch, in bfloat16 on a GPU."""
    torch.manual_seed(0)
    model = build(network, num_classes=classes).to(device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(batch, 3, size, size, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(classes, (batch,), device=device)

    def forward_backward() -> None:
        model.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=device.startswith("cuda")):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()

    return model, forward_backward


def extra(seconds: dict[str, float], rule: str, period: int) -> float:
    """Return what a wrapped step takes longer than the base's, on average over a period."""
    projecting = seconds[f"projecting, {rule}"]
    plain = seconds.get(f"plain, {rule}", projecting)
    return plain - seconds["base"] + (projecting - plain) / period


def medians(kinds: Kinds, repeats: int, device: str) -> dict[str, float]:
    """Return each kind's median time; the kinds take turns, and the first two rounds don't count."""
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(2 + repeats):
        for kind, run in kinds.items():
            seconds[kind].append(timed(run, device))
    return {kind: statistics.median(values[2:]) for kind, values in seconds.items()}


def in_turn(*functions: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls these one after another."""

    def run() -> None:
        for function in functions:
            function()

    return run


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9, weight_decay=1e-4)


def timed(run: Callable[[], object], device: str) -> float:
    """Return the seconds of one call, the device's work included."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - start


def held_bytes(optimizer: CoGD) -> int:
    held = [optimizer.memory_of(p) for group in optimizer.param_groups for p in group["params"]]
    return sum(v.nbytes for entries in held for v in entries.values() if isinstance(v, torch.Tensor))


def coupled_bytes(optimizer: CoGD) -> int:
    coupled = {side for coupling in optimizer.couplings for side in (coupling.sparse, coupling.partner)}
    return sum(tensor.nbytes for tensor in coupled)


if __name__ == "__main__":
    main()
