"""What the wrapper costs: base and wrapped steps alternate on the same model and gradients in one run.

    python benchmarks/optimizer_overhead.py -o benchmarks/results/optimizer_overhead_cpu.json
    python benchmarks/optimizer_overhead.py --device cuda -o benchmarks/results/optimizer_overhead_h200.json

Only ratios within one run mean something. A training step is forward, backward and the optimizer's step; each part is
timed alone, the device's work included, so that the overhead is an upper bound: nothing of the rule's work hides behind
the backward pass. On a GPU, where some of it does, whole training steps are timed, too. The overhead of a period P
compares ((P - 1) plain + 1 projecting wrapped steps) / P with the base's step, in shares of a training step.
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
CASES = {  # name: (network, image size, classes, batch on CPU, batch on GPU, steps from one projection to the next)
    "resnet18-epoch": ("resnet18", 32, 10, 128, 128, 391),
    "resnet50-every-step": ("resnet50_imagenet", 224, 1000, 16, 128, 1),
}
RULES: tuple[Literal["paper", "rollback"], ...] = ("paper", "rollback")
NEVER = 10**9


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
    on_gpu = device.startswith("cuda")
    batch = 2 if quick else gpu_batch if on_gpu else cpu_batch
    model, forward_backward = training_of(network, size, classes, batch, device)
    busy = {rule: CoGD(sgd(model), couple_conv_norm(model), rule=rule, period=1) for rule in RULES}
    idle = {rule: CoGD(sgd(model), couple_conv_norm(model), rule=rule, period=NEVER) for rule in RULES}
    steps: Kinds = {"base": sgd(model).step}
    steps.update({f"plain, {rule}": optimizer.step for rule, optimizer in idle.items()})
    steps.update({f"projecting, {rule}": optimizer.step for rule, optimizer in busy.items()})
    parts = medians({"forward and backward": forward_backward, **steps}, repeats, device)
    entire: Kinds = {name: in_turn(forward_backward, step) for name, step in steps.items()}
    whole = medians(entire, repeats, device) if on_gpu else {}
    rows = []
    for rule in RULES:
        share = extra(parts, rule, period) / (parts["forward and backward"] + parts["base"])
        print(f"{case:20} {rule:9} overhead {100 * share:6.3f} % of a training step", flush=True)
        row: dict[str, Any] = {
            "case": case,
            "rule": rule,
            "batch": batch,
            "period": period,
            "couplings": len(busy[rule].couplings),
        }
        row |= {"overhead_percent": 100 * share, "median_seconds": parts}
        row["held_bytes_per_coupled_byte"] = held_bytes(busy[rule]) / coupled_bytes(busy[rule])
        if whole:
            row["whole_steps_overhead_percent"] = 100 * extra(whole, rule, period) / whole["base"]
            row["whole_steps_median_seconds"] = whole
        rows.append(row)
    return rows


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
    plain, projecting = seconds[f"plain, {rule}"], seconds[f"projecting, {rule}"]
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
