"""The demonstration: every problem of the library at a small size, as a user would run it, and one page of the results.

Each part is a function of its folder that leaves results files there, and is not run again where they are, unless
another version made them.
"""

import itertools
import json
import math
import shlex
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from skimage import data as photographs
from sklearn.datasets import load_sample_images
from torch import nn

from cogd import __version__, toy, toy_report
from cogd.models import build
from cogd.provenance import provenance
from cogd.pruning import Pruned, load_pruned, prune
from cogd.pruning import read_recipe as read_pruned
from cogd.pruning.artefact import RECIPE
from cogd.report import write_report
from cogd.sparse_coding import ConvDictionaryLearner
from cogd.sparse_coding.checks import chosen_device
from cogd.sparse_coding.pictures import grey
from cogd.sparse_coding.results import write_inpainting
from cogd.training import fit_seeds, read_recipe, summarize
from cogd.training.data import load_data
from cogd.training.metrics import Batches, classification_metrics
from cogd.training.run import load_run
from cogd.training.threads import using_threads

SIDE, REACH = 41, 3.0
SEEDS = range(3)
LEARNING_SECONDS = 25.0
MISSING, CROP = 0.5, 256
EPOCHS = 8
MASK_EPOCHS, FINETUNING_EPOCHS = 10, 6
BATCH = 256  # whose time is taken
NAMES = {"none": "digits/plain", "paper": "digits/cogd"}
STAMP = "demo-version"
SIZES = (
    *("SIDE", "REACH", "SEEDS", "LEARNING_SECONDS", "MISSING", "CROP"),
    *("EPOCHS", "MASK_EPOCHS", "FINETUNING_EPOCHS", "BATCH"),
)
LEFT = (
    *("beale.json", "dictionary.safetensors", *NAMES.values(), "pruning", "pruned", "report.html"),
    *(f"photograph{ending}" for ending in (".png", ".json", ".holes.png", ".original.png")),
)

Advance = Callable[[float], None]  # takes the share of a part that is done


def run(folder: Path, progress: bool = True) -> list[str]:
    """Run what is not there yet, write `folder`/report.html and return a line about each part.

    Raises:
        KeyboardInterrupt: It was interrupted; the same call goes on from there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True, quiet=not progress)
    _begin_anew_if_other(folder, console)
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    lines = []
    with Progress(*columns, console=console, disable=not (progress and console.is_terminal)) as bars:
        tasks = [bars.add_task(title, total=1.0, start=False) for title in PARTS]
        for task, (title, part) in zip(tasks, PARTS.items(), strict=True):
            began = time.perf_counter()
            bars.start_task(task)
            lines.append(part(folder, lambda share, task=task: bars.update(task, completed=share)))  # type: ignore[misc]
            bars.update(task, completed=1.0)
            bars.stop_task(task)
            if not console.is_terminal:
                console.print(f"{title}: done in {time.perf_counter() - began:.0f} s", highlight=False)
    write_report([folder], folder / "report.html", "CoGD demonstration")
    return lines


def _begin_anew_if_other(folder: Path, console: Console) -> None:
    """Take away what a demonstration of another version, commit or size left in the folder, and nothing else."""
    about = {"cogd": __version__, "commit": provenance()["commit"], **{name: str(globals()[name]) for name in SIZES}}
    stamp, file = json.dumps(about, indent=1), folder / STAMP
    left = [path for name in LEFT if (path := folder / name).exists()]
    if left and not (file.exists() and file.read_text() == stamp):
        console.print(
            f"{folder} is of another version of the demonstration, which runs again.", soft_wrap=True, markup=False
        )
        for path in left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    file.write_text(stamp)


def command(folder: Path) -> str:
    """Return the command that makes what is in the folder."""
    return shlex.join(["cogd", "demo", "-o", str(folder)])


def follow_paths(folder: Path, advance: Advance) -> str:
    """Follow three optimizers on Beale's function, with CoGD's printed constants and without."""
    file = folder / "beale.json"
    if not file.exists():
        shown = toy.against_plain(toy.positions([toy.START]))
        advance(0.2)
        grid = toy.against_plain(toy.start_grid(SIDE, REACH))
        toy_report.write_results(file, shown, grid, {"rule": "descent", "order": 1, "scale": 1e-3}, command(folder))
    shares = [pair["comparison"] for pair in json.loads(file.read_text())["beale"].values()]
    return f"Beale's function: at least {min(s['unchanged'] for s in shares):.0%} of the starts end the same with CoGD"


def learn_dictionary(folder: Path, advance: Advance) -> str:
    """Learn atoms from photographs, other than the one that is restored."""
    file = folder / "dictionary.safetensors"
    if not file.exists():
        learner = ConvDictionaryLearner(
            n_atoms=64,
            atom_shape=(11, 11),
            smoothing=5.0,
            time_limit=LEARNING_SECONDS,
            random_state=0,
            on_progress=lambda progress: advance(min(progress.seconds / LEARNING_SECONDS, 1.0)),
        )
        learner.fit(_photographs_to_learn_from()).save(file, command=command(folder))
    learner = ConvDictionaryLearner.load(file)
    return f"Dictionary: {learner.n_atoms} atoms learned in {learner.history_[-1].seconds:.0f} s"


def restore_photograph(folder: Path, advance: Advance) -> str:
    """Hide half of a photograph's pixels and fill them in."""
    output = folder / "photograph.png"
    if not output.with_suffix(".json").exists():
        photograph = photographs.chelsea()[20 : 20 + CROP, 100 : 100 + CROP].transpose(2, 0, 1)
        hidden = np.random.default_rng(0).random(photograph.shape[1:]) < MISSING
        observed = np.broadcast_to(~hidden, photograph.shape)
        began = time.perf_counter()
        learner = ConvDictionaryLearner.load(folder / "dictionary.safetensors")
        restored = learner.inpaint(photograph[:, None], observed=observed[:, None])[:, 0]
        write_inpainting(
            output,
            restored,
            hidden,
            {"dictionary": "dictionary.safetensors", "missing": MISSING, "seed": 0, "penalty": learner.penalty_},
            name="Chelsea",
            original=photograph,
            seconds=time.perf_counter() - began,
            device=chosen_device(learner.device),
            command=command(folder),
        )
    result = json.loads(output.with_suffix(".json").read_text())["inpainting"]
    return f"Photograph: {result['missing']:.0%} of its pixels restored, PSNR {result['psnr']:.1f} dB on them"


def train_networks(folder: Path, advance: Advance) -> str:
    """Train the same small network on digits with CoGD and without, from the same seeds."""
    data = load_data("digits")
    runs = [(rule, seed) for rule in ("none", "paper") for seed in SEEDS]
    for done, (rule, seed) in enumerate(runs):
        with using_threads(1):  # so small a network is quicker so
            (result,) = fit_seeds(
                partial(build, "digits", 10),
                data,
                read_recipe("digits", rule=rule, epochs=EPOCHS),
                [seed],
                folder / NAMES[rule],
                name="digits",
                progress=False,
                after_epoch=lambda state, done=done: advance((done + state.epoch / EPOCHS) / len(runs)),
            )
        if result.status == "stopped":
            raise KeyboardInterrupt
    plain, coordinated = summarize([folder / NAMES["none"], folder / NAMES["paper"]])
    p = coordinated.difference.p if coordinated.difference else math.nan
    return (
        f"Digits: accuracy {coordinated.mean:.1%} with CoGD, {plain.mean:.1%} without (n = {len(SEEDS)}, p = {p:.2f})"
    )


def prune_network(folder: Path, advance: Advance) -> str:
    """Prune the first of those networks to half of its multiply-accumulates, fine-tune, save, load and time it."""
    small = folder / "pruned"
    if not (small / RECIPE).exists():
        network = build("digits", 10)
        network.load_state_dict(load_run(folder / NAMES["none"] / f"seed-{SEEDS[0]}").weights)
        with using_threads(1):
            pruned = _pruned(network, folder / "pruning", advance)
        pruned.save(small, builder="digits", command=command(folder), batch=BATCH, threads=1, warm_up=5, rounds=30)
    load_pruned(None, small)
    report = read_pruned(small).report
    accuracy = {stage: metrics["accuracy"] for stage, metrics in report["metrics"].items()}
    return (
        f"Pruned: {report['macs']['share']:.0%} of the multiply-accumulates, "
        f"accuracy {accuracy['fine_tuned']:.1%} ({accuracy['before']:.1%} before), "
        f"{report['latency']['findings'][0].partition(' (')[0]}"
    )


def _pruned(network: nn.Module, folder: Path, advance: Advance) -> Pruned:
    measured = itertools.count(1)  # the whole network, every epoch, after the removal, at the end

    def evaluate(model: nn.Module, batches: Batches) -> dict[str, float]:
        advance(next(measured) / (MASK_EPOCHS + FINETUNING_EPOCHS + 3))
        return classification_metrics(model, batches)

    pruned = prune(
        network,
        load_data("digits"),
        target_macs=0.5,
        epochs=MASK_EPOCHS,
        finetune_epochs=FINETUNING_EPOCHS,
        evaluate=evaluate,
        folder=folder,
        progress=False,
    )
    if pruned.status == "stopped":
        raise KeyboardInterrupt
    return pruned


def _photographs_to_learn_from() -> list[np.ndarray]:
    """Return grey crops of photographs inside of scikit-learn and scikit-image."""
    china, flower = (grey(photograph.transpose(2, 0, 1)) for photograph in load_sample_images().images)
    pieces = china[100:228, 200:328], china[250:378, 350:478], flower[150:278, 250:378]
    return [*pieces, photographs.grass()[:128, :128], photographs.coins()[60:188, 60:188]]


PARTS: dict[str, Callable[[Path, Advance], str]] = {
    "Beale's function": follow_paths,
    "A dictionary from photographs": learn_dictionary,
    "A photograph with half its pixels": restore_photograph,
    "Digits, with CoGD and without": train_networks,
    "The same network at half the work": prune_network,
}
