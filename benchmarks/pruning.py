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
import functools
import json
import multiprocessing
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing.pool import AsyncResult
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch_pruning as tp
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch_pruning.pruner import function

from cogd.models import build, count_macs
from cogd.provenance import provenance
from cogd.pruning import prune
from cogd.training import Recipe, Result, fit, read_recipe
from cogd.training.data import load_data
from cogd.training.data.memory import Images, MemoryData
from cogd.training.fit import load_batches
from cogd.training.loop import measure
from cogd.training.metrics import classification_metrics
from cogd.training.mps import side_by_side
from cogd.training.placement import choose_placement
from cogd.training.run import save_weights
from cogd.training.seeds import seeded
from cogd.training.summary import Row, paired_difference

TP_STRENGTH, TP_RANGE = 5e-4, 2**4  # Torch-Pruning's --reg and regularize's alpha
REMOVALS = 100  # steps from the whole network to none of it, of which as many are taken as the MACs ask for
REFERENCE = "masks, CoGD"
NETWORKS = {"digits": ("digits", "digits"), "cifar10": ("resnet56", "cifar10")}  # of each data: model, recipe
Metrics = dict[str, float]


@dataclass(frozen=True)
class Setting:
    """What all methods share."""

    data: str
    images: int | None
    target_macs: float
    base_epochs: int
    epochs: int
    finetune_epochs: int
    batch_size: int | None
    compile: str
    device: str

    def load(self) -> MemoryData:
        return some_images(self.data, self.images)

    def build(self) -> nn.Module:
        return build(NETWORKS[self.data.partition(":")[0]][0], 10)

    @property
    def base_name(self) -> str:
        """What a base network is made of, so that none is taken for another."""
        network = NETWORKS[self.data.partition(":")[0]][0]
        return f"{network}-{self.images or 'all'}images-{self.base_epochs}epochs-batch{self.batch_size or 'usual'}"

    def recipe(self, phase: str, epochs: int, **fields: Any) -> Recipe:
        """Return the data's shipped recipe of a phase, its steps shortened with its epochs."""
        shipped = read_recipe(phase + NETWORKS[self.data.partition(":")[0]][1])
        fields |= {"step_epochs": max(1, round(shipped.step_epochs * epochs / shipped.epochs))}
        if self.batch_size is not None:
            fields["batch_size"] = self.batch_size
        return read_recipe(shipped, epochs=epochs, compile=self.compile, **fields)

    @property
    def learning(self) -> Recipe:
        return self.recipe("prune_", self.epochs)

    @property
    def finetuning(self) -> Recipe:
        return self.recipe("finetune_", self.finetune_epochs)

    def fit(self, model: nn.Module, recipe: Recipe, seed: int, **options: Any) -> Result:
        return fit(model, self.load(), recipe, seed=seed, device=self.device, progress=False, **options)

    def measure(self, model: nn.Module) -> Metrics:
        placement = choose_placement(self.device, self.finetuning)
        test = load_batches(self.load(), self.finetuning, placement).test
        return measure(placement.place(model), test, classification_metrics, placement)


@functools.cache
def some_images(source: str, count: int | None) -> MemoryData:
    """Return the data, of which so many images for a quick try."""
    whole: MemoryData = load_data(source)  # type: ignore[assignment]
    train, test = (Images(part.pixels[:count], part.labels[:count]) for part in (whole.train, whole.test))
    return replace(whole, train=train, test=test)


@dataclass(frozen=True)
class Pruner:
    """One of Torch-Pruning's: how it ranks channels, and what it adds to the gradients before that, if anything."""

    kind: type[tp.pruner.BasePruner]
    importance: tp.importance.Importance
    penalty: Callable[[Any, nn.Module], Callable[[], None]] | None = None


def bn_scale_penalty(pruner: tp.pruner.BNScalePruner, model: nn.Module) -> Callable[[], None]:
    return partial(pruner.regularize, model)


class GroupPenalty:
    """What `GroupNormPruner.regularize` adds to the gradients, in few operations that don't wait for the device.

    `tests/test_pruning_benchmark.py` compares the two.
    """

    def __init__(self, pruner: tp.pruner.GroupNormPruner, _: nn.Module):
        self.groups = [list(map(_scaled, _layers(group))) for group in pruner._groups]

    @torch.no_grad()
    def __call__(self) -> None:
        for group in self.groups:
            squares = torch.stack([_along(weight.square(), dim).sum(1) for weight, dim in group]).sum(0)
            norms = (squares / squares.max()).sqrt()
            least, largest = norms.aminmax()
            factors = TP_STRENGTH * TP_RANGE ** ((largest - norms) / (largest - least))
            for weight, dim in group:
                assert weight.grad is not None
                shape = [-1 if i == dim else 1 for i in range(weight.ndim)]
                weight.grad.addcmul_(weight, factors.view(shape))


def _layers(group: Any) -> list[Any]:
    return [dependency for dependency, _ in group if hasattr(dependency.layer, "weight")]


def _scaled(dependency: Any) -> tuple[nn.Parameter, int]:
    """Return a weight and the dimension of it that counts the group's channels."""
    return dependency.layer.weight, int(dependency.handler == function.prune_conv_in_channels)


def _along(tensor: Tensor, dim: int) -> Tensor:
    return tensor.movedim(dim, 0).flatten(1) if tensor.ndim > 1 else tensor[:, None]


def ours(setting: Setting, base: nn.Module, seed: int, **options: Any) -> tuple[nn.Module, dict[str, Metrics]]:
    result = prune(
        base,
        setting.load(),
        target_macs=setting.target_macs,
        recipe=setting.learning,
        finetune_recipe=setting.finetuning,
        seed=seed,
        device=setting.device,
        progress=False,
        **options,
    )
    return result.model, {"after": result.metrics["after"], "fine_tuned": result.metrics["fine_tuned"]}


def peer(setting: Setting, base: nn.Module, seed: int, peer: Pruner) -> tuple[nn.Module, dict[str, Metrics]]:
    model, shape = copy.deepcopy(base), setting.load().train.pixels.shape[1:]
    inputs = torch.zeros(1, *shape)
    kept_whole = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear) and name not in base.gated_layers  # type: ignore[operator]
    ]
    shared: dict[str, Any] = {"pruning_ratio": 1.0, "iterative_steps": REMOVALS, "global_pruning": True}
    strength = {} if peer.penalty is None else {"reg": TP_STRENGTH}
    pruner = peer.kind(
        model, inputs, importance=copy.deepcopy(peer.importance), ignored_layers=kept_whole, **shared, **strength
    )
    if peer.penalty is None:
        remove(pruner, model, inputs, setting.target_macs)
        after = setting.measure(model)
        setting.fit(model, setting.learning, seed)
    else:
        recipe = read_recipe(setting.learning, weight_decay=0.0)
        optimizer = partial(penalized_sgd, recipe, peer.penalty(pruner, model))
        setting.fit(model, recipe, seed, optimizer=optimizer, recordable=True)
        remove(pruner, model, inputs, setting.target_macs)
        after = setting.measure(model)
    return model, {"after": after, "fine_tuned": setting.fit(model, setting.finetuning, seed).metrics}


def penalized_sgd(recipe: Recipe, penalty: Callable[[], None], model: nn.Module) -> Optimizer:
    """Return the recipe's SGD, which adds the penalty's gradient before each step."""
    parameters = list(model.parameters())
    optimizer = SGD(parameters, recipe.lr, recipe.momentum, fused=parameters[0].is_cuda)
    optimizer.register_step_pre_hook(lambda *_: penalty())
    return optimizer


def remove(pruner: tp.pruner.BasePruner, model: nn.Module, inputs: Tensor, share: float) -> None:
    """Remove the least important channels, some at a time, until the MACs are down to a share of the whole."""
    model.cpu().eval()
    whole = count_macs(model, inputs)
    while count_macs(model, inputs) > share * whole:
        pruner.step()
    for parameter in model.parameters():
        parameter.grad = None


GROUP_NORM = tp.importance.GroupMagnitudeImportance(p=2, normalizer="max")
METHODS: dict[str, Callable[[Setting, nn.Module, int], tuple[nn.Module, dict[str, Metrics]]]] = {
    REFERENCE: partial(ours, rule="paper"),
    "masks, GAL alone": partial(ours, rule=None),
    "Torch-Pruning, group norm sparse": partial(peer, peer=Pruner(tp.pruner.GroupNormPruner, GROUP_NORM, GroupPenalty)),
    "Torch-Pruning, BN scale": partial(
        peer, peer=Pruner(tp.pruner.BNScalePruner, tp.importance.BNScaleImportance(), bn_scale_penalty)
    ),
    "Torch-Pruning, group magnitude": partial(
        peer, peer=Pruner(tp.pruner.MagnitudePruner, tp.importance.GroupMagnitudeImportance(p=2))
    ),
    "masks, CoGD, labels": partial(ours, rule="paper", distill="none"),
}


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


class Report:
    """The results file: what is in it already counts, if it was made with the same settings."""

    def __init__(self, path: Path, setting: Setting, **config: Any):
        self.path = path
        self.content = {"config": asdict(setting) | config, **provenance(setting.device)}
        self.content |= {"sharing": "", "speed": {}, "bases": [], "runs": [], "failures": []}
        if path.exists():
            earlier = json.loads(path.read_text())
            if earlier["config"] != self.content["config"]:
                raise SystemExit(f"{path} was made with other settings; choose another file.")
            self.content |= {name: earlier[name] for name in ("speed", "bases", "runs")}

    def has(self, method: str, seed: int) -> bool:
        return any((row["method"], row["seed"]) == (method, seed) for row in self.content["runs"])

    def add(self, kind: str, row: Any) -> None:
        print(kind, {name: value for name, value in row.items() if name not in ("channels", "traceback")}, flush=True)
        self.content[kind] = row if kind == "speed" else [*self.content[kind], row]
        self.content["summary"] = summarize(self.content["runs"])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.content, indent=1) + "\n")

    def add_outcome(self, kind: str, job: AsyncResult[dict[str, Any]], timeout: float, **about: Any) -> bool:
        """Add what a job returns; a failure is a result too, not the end of the others. Return whether it was none."""
        try:
            self.add(kind, job.get(timeout))
        except Exception as error:  # noqa: BLE001
            told = {"error": f"{type(error).__name__}: {error}"[:300], "traceback": traceback.format_exc()}
            self.add("failures", {"kind": kind, **about, **told})
            return False
        return True


def summarize(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per method: mean accuracy, deviation, and the paired difference to our masks with CoGD."""
    values = {method: {row["seed"]: row["accuracy"] for row in runs if row["method"] == method} for method in METHODS}
    rows = []
    for method, mine in values.items():
        if mine:
            row, difference = Row(method, mine), paired_difference(mine, values[REFERENCE])
            deviation = row.deviation if len(mine) > 1 else None
            compared = asdict(difference) if difference and method != REFERENCE else {}
            macs = [run["macs"] for run in runs if run["method"] == method]
            rows.append({"method": method, "n": len(mine), "mean": row.mean, "deviation": deviation})
            rows[-1] |= {"macs": sum(macs) / len(macs), "difference": compared}
    return rows


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
