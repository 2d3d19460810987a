"""What the wrapper costs: base and wrapped steps alternate on the same model and gradients in one run.

    python benchmarks/optimizer_overhead.py [--device cuda] [--quick] -o benchmarks/results/optimizer_overhead_cpu.json

Only ratios within one run mean something. A whole training step is forward, backward and the base's step. The overhead
of a period P compares ((P - 1) plain + 1 projecting wrapped steps) / P with the base's step, in shares of a whole step.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F

from cogd import CoGD, couple_conv_norm
from cogd.models import build
from cogd.optimizer import Rule
from cogd.provenance import provenance

CASES = {  # name: (network, image size, classes, batch on CPU, batch on GPU, steps from one projection to the next)
    "resnet18-epoch": ("resnet18", 32, 10, 128, 128, 391),
    "resnet50-every-step": ("resnet50_imagenet", 224, 1000, 16, 128, 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=15, help="timed steps of each kind (default 15)")
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that everything works")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    repeats = 2 if args.quick else args.repeats
    rules: tuple[Rule, ...] = ("paper", "rollback")
    results = [measure(case, rule, args.device, repeats, args.quick) for case in CASES for rule in rules]
    for result in results:
        print("{case:20} {rule:9} overhead {overhead_percent:6.3f} % of a training step".format(**result))
    report = {"config": {"repeats": repeats, "quick": args.quick}, **provenance(args.device), "results": results}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(report, indent=1) + "\n")


def measure(case: str, rule: Rule, device: str, repeats: int, quick: bool) -> dict:
    """Time forward and backward, the base's step, and the wrapped plain and projecting steps in turn."""
    network, size, classes, cpu_batch, gpu_batch, period = CASES[case]
    batch = 2 if quick else gpu_batch if device.startswith("cuda") else cpu_batch
    torch.manual_seed(0)
    model = build(network, num_classes=classes).to(device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(batch, 3, size, size, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(classes, (batch,), device=device)
    base = sgd(model)
    idle = CoGD(sgd(model), couple_conv_norm(model), rule=rule, period=10**9)
    busy = CoGD(sgd(model), couple_conv_norm(model), rule=rule, period=1)

    def forward_backward() -> None:
        model.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=device.startswith("cuda")):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()

    kinds: dict[str, Callable[[], object]] = {
        "forward_backward": forward_backward,
        "base": base.step,
        "plain": idle.step,
        "projecting": busy.step,
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(2 + repeats):
        for kind, run in kinds.items():
            seconds[kind].append(timed(run, device))
    medians = {kind: statistics.median(values[2:]) for kind, values in seconds.items()}
    extra = medians["plain"] - medians["base"] + (medians["projecting"] - medians["plain"]) / period
    return {
        "case": case,
        "rule": rule,
        "batch": batch,
        "period": period,
        "couplings": len(busy.couplings),
        "median_seconds": medians,
        "all_seconds": {kind: values[2:] for kind, values in seconds.items()},
        "overhead_percent": 100 * extra / (medians["forward_backward"] + medians["base"]),
        "held_bytes_per_coupled_byte": held_bytes(busy) / coupled_bytes(busy),
    }


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
