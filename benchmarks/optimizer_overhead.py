"""What the wrapper costs: base and wrapped steps alternate on the same model and gradients in one run.

    python benchmarks/optimizer_overhead.py -o benchmarks/results/optimizer_overhead_cpu.json
    python benchmarks/optimizer_overhead.py --device cuda -o benchmarks/results/optimizer_overhead_h200.json

Only ratios within one run mean something. A training step is forward, backward and the optimizer's step. On a CPU its
parts are timed alone; on a GPU whole steps are, ten in a row, as a loop launches them without waiting, and where every
step projects, also replayed from a CUDA graph. The overhead of a period P compares ((P - 1) plain + 1 projecting
wrapped steps) / P with the base's step, round by round, in shares of a training step. Memory, on a GPU, is what a
projecting step takes beyond the base's, the copies held from step to step included, in shares of the coupled tensors.
Results are written after each way of measuring; one that fails is named in them.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from cogd import CoGD, couple_conv_norm
from cogd.models import build
from cogd.provenance import provenance

Kinds = dict[str, Callable[[], object]]
Times = dict[str, list[float]]  # kind of step: seconds in each round
CASES = {  # name: (network, image size, classes, batch on CPU, batch on GPU, steps from one projection to the next)
    "resnet18-epoch": ("resnet18", 32, 10, 128, 128, 391),
    "resnet50-every-step": ("resnet50_imagenet", 224, 1000, 16, 128, 1),
}
Rule = Literal["paper", "rollback"]
RULES: tuple[Rule, ...] = ("paper", "rollback")
NEVER = 10**9
IN_A_ROW = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=15, help="rounds (default 15; ResNet-18 has 3 times as many)")
    parser.add_argument("--seconds", type=float, default=30.0, help="begin no round after so many, in each way (30)")
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that everything works")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    if args.quick:
        args.repeats = 1
    config = {"repeats": args.repeats, "seconds": args.seconds, "quick": args.quick}
    report: dict[str, Any] = {"config": config, **provenance(args.device), "results": [], "failed": {}}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        for rows, failed in Case(case, args).measured():
            report["results"] = [row for row in report["results"] if row["case"] != case] + rows
            report["failed"] |= failed
            args.output.write_text(json.dumps(report, indent=1) + "\n")


class Case:
    """A network, a batch, and an optimizer for every kind of step."""

    def __init__(self, name: str, args: argparse.Namespace):
        network, size, classes, cpu_batch, gpu_batch, self.period = CASES[name]
        size = 32 if args.quick else size
        self.name, self.seconds, self.device = name, args.seconds, torch.device(args.device)
        self.rounds = args.repeats * (3 if self.period > 1 else 1)
        self.batch = 2 if args.quick else gpu_batch if self.device.type == "cuda" else cpu_batch
        self.model, self.forward_backward = training_of(network, size, classes, self.batch, self.device)
        couplings = couple_conv_norm(self.model)
        self.busy = {rule: CoGD(sgd(self.model), couplings, rule=rule, period=1) for rule in RULES}
        idle = {rule: CoGD(sgd(self.model), couplings, rule=rule, period=NEVER) for rule in RULES}
        self.steps: Kinds = {"base": sgd(self.model).step}
        if self.period > 1:
            self.steps |= {f"plain, {rule}": optimizer.step for rule, optimizer in idle.items()}
        self.steps |= {f"projecting, {rule}": optimizer.step for rule, optimizer in self.busy.items()}

    def measured(self) -> Iterator[tuple[list[dict[str, Any]], dict[str, str]]]:
        """Measure in one way after the other; yield a row per rule with all ways so far, and what failed."""
        self.forward_backward()
        rows = [self._about(rule) for rule in RULES]
        for way, measure in self._ways().items():
            try:
                times = measure()
            except Exception as error:  # noqa: BLE001 - it is in the report; what else is measured counts
                yield rows, {f"{self.name}, {way}": f"{type(error).__name__}: {error}"[:2000]}
                continue
            for row in rows:
                row["overhead_percent"][way] = 100 * share(times, row["rule"], self.period)
                row["median_seconds"][way] = {kind: statistics.median(of) for kind, of in times.items()}
                print(f"{self.name:20} {row['rule']:9} {way} {row['overhead_percent'][way]:+.2f} %", flush=True)
            yield rows, {}

    def _ways(self) -> dict[str, Callable[[], Times]]:
        if self.device.type != "cuda":
            return {"parts timed alone": self._parts}
        ways = {"whole steps": self._whole_steps}
        return ways if self.period > 1 else ways | {"in a CUDA graph": self._graphs}

    def _about(self, rule: Rule) -> dict[str, Any]:
        optimizer = self.busy[rule]
        for _ in range(2):  # the first step makes what stays and has nothing to project yet
            base_peak, peak = (peak_of(step, self.device) for step in (self.steps["base"], optimizer.step))
        of = coupled_bytes(optimizer)
        row: dict[str, Any] = {"case": self.name, "rule": rule, "batch": self.batch, "period": self.period}
        row |= {"couplings": len(optimizer.couplings), "held_bytes_per_coupled_byte": held_bytes(optimizer) / of}
        if peak is not None and base_peak is not None:
            row["bytes_per_coupled_byte_during_a_step"] = (peak - base_peak + held_bytes(optimizer)) / of
        return row | {"overhead_percent": {}, "median_seconds": {}}

    def _parts(self) -> Times:
        kinds = {"forward and backward": self.forward_backward, **self.steps}
        times = rounds_of(kinds, self.rounds, self.seconds, self.device)
        pairs = zip(times["forward and backward"], times["base"], strict=True)
        return {**times, "whole step": [sum(pair) for pair in pairs]}

    def _whole_steps(self) -> Times:
        return self._in_a_row({name: in_turn(self.forward_backward, step) for name, step in self.steps.items()})

    def _graphs(self) -> Times:
        whole = {name: in_turn(self.forward_backward, step) for name, step in self.steps.items()}
        return self._in_a_row({name: recorded(run).replay for name, run in whole.items()})

    def _in_a_row(self, kinds: Kinds) -> Times:
        many: Kinds = {name: in_turn(*[run] * IN_A_ROW) for name, run in kinds.items()}
        times = rounds_of(many, self.rounds, self.seconds, self.device)
        times = {name: [seconds / IN_A_ROW for seconds in of] for name, of in times.items()}
        return {**times, "whole step": times["base"]}


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


def training_of(
    network: str, size: int, classes: int, batch: int, device: torch.device
) -> tuple[nn.Module, Callable[[], None]]:
    """Return a network and its forward and backward pass on one batch, in bfloat16 on a GPU."""
    torch.manual_seed(0)
    model = build(network, num_classes=classes).to(device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(batch, 3, size, size, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(classes, (batch,), device=device)

    def forward_backward() -> None:
        model.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()

    return model, forward_backward


def share(times: Times, rule: str, period: int) -> float:
    """Return what a wrapped step takes longer than the base's, on average over a period, in shares of a whole step."""
    projecting = times[f"projecting, {rule}"]
    plain = times.get(f"plain, {rule}", projecting)
    rounds = zip(times["base"], plain, projecting, strict=True)
    extra = [idle - base + (busy - idle) / period for base, idle, busy in rounds]
    return statistics.median(extra) / statistics.median(times["whole step"])


def rounds_of(kinds: Kinds, count: int, seconds: float, device: torch.device) -> Times:
    """Time every kind once in each round, beginning with another each time; the first two rounds don't count."""
    times: Times = {kind: [] for kind in kinds}
    order, began = list(kinds), time.perf_counter()
    for i in range(2 + count):
        if i > 2 and time.perf_counter() - began > seconds:
            break
        for kind in order:
            times[kind].append(timed(kinds[kind], device))
        order = order[1:] + order[:1]
    return {kind: values[2:] for kind, values in times.items()}


def in_turn(*functions: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls these one after another."""

    def run() -> None:
        for function in functions:
            function()

    return run


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9, weight_decay=1e-4)


def timed(run: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one call, the device's work included."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak_of(run: Callable[[], object], device: torch.device) -> int | None:
    """Return the most bytes that a call had beyond those before it; a CPU's memory is not counted."""
    if device.type != "cuda":
        run()
        return None
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    return torch.cuda.max_memory_allocated(device) - before


def held_bytes(optimizer: CoGD) -> int:
    held = [optimizer.memory_of(p) for group in optimizer.param_groups for p in group["params"]]
    return sum(v.nbytes for entries in held for v in entries.values() if isinstance(v, torch.Tensor))


def coupled_bytes(optimizer: CoGD) -> int:
    coupled = {side for coupling in optimizer.couplings for side in (coupling.sparse, coupling.partner)}
    return sum(tensor.nbytes for tensor in coupled)


if __name__ == "__main__":
    main()
