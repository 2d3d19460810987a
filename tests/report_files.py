"""Results files as the library writes them, tiny and made up."""

import argparse
import contextlib
import io
import json
import math
import runpy
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cogd import toy, toy_report
from cogd.sparse_coding import ConvDictionaryLearner
from cogd.sparse_coding.results import write_inpainting

ROOT = Path(__file__).parents[1]
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> $x^2$ & _a"
RECIPE = {"epochs": 3, "batch_size": 64, "lr": 0.1, "rule": "none", "order": 1, "scale": 0.001, "flip": False}


def write_run(folder, seed, accuracies, rule="none", finished=True, name="digits", more=None):
    """Write a training run's folder."""
    folder.mkdir(parents=True)
    config = {
        "model": {"name": name, "parameters": 19706, "shapes": "0"},
        "data": "digits-0",
        "source": "digits",
        "seed": seed,
        "precision": "float32",
        "recipe": {**RECIPE, "rule": rule},
    }
    history = [
        {
            "epoch": i + 1,
            "train_loss": 1 / (i + 1),
            "metrics": {"accuracy": a, **(more or {})},
            "seconds": 1.0,
            "images_per_second": 9.0,
        }
        for i, a in enumerate(accuracies)
    ]
    begin = {"event": "begin", "device": "cpu", "hardware": "x86_64", "threads": 2, "cogd": "0.1.0", "torch": "2.13.0"}
    lines = [begin, *({"event": "epoch", **record} for record in history)]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        (folder / "result.json").write_text(json.dumps({"metrics": history[-1]["metrics"], "history": history}))


def write_trainings(folder):
    """Write two folders of three seeds, of which the second is 0.01, 0.02 and 0.03 better."""
    for seed in range(3):
        write_run(folder / "plain" / f"seed-{seed}", seed, [0.5, 0.7, 0.9])
        write_run(folder / "cogd" / f"seed-{seed}", seed, [0.5, 0.7, 0.91 + seed / 100], rule="paper")


def write_beale(file):
    start = toy.against_plain(toy.positions([toy.START]), steps=20)
    grid = toy.against_plain(toy.start_grid(3, 2.0), steps=20)
    toy_report.write_results(file, start, grid, {"scale": 1e-3}, "cogd beale --scale 0.001")


def write_dictionary(file):
    images = np.random.default_rng(0).standard_normal((1, 12, 12))
    ConvDictionaryLearner(6, (5, 5), max_iter=2, random_state=0).fit(images).save(file)


def write_restored(file, name="cat", dtype=np.uint8):
    random = np.random.default_rng(0)
    original = random.integers(0, np.iinfo(dtype).max, (3 if dtype == np.uint8 else 1, 40, 60)).astype(dtype)
    hidden = random.random((40, 60)) < 0.5
    write_inpainting(file, original, hidden, {"missing": 0.5}, name=name, original=original[:, ::-1], seconds=1.5)


def write_pruned(folder, name="digits", layers=2, report=True):
    """Write what `save_pruned` leaves of a network with half its channels, but for the weights."""
    folder.mkdir(parents=True)
    figures = {
        "target": {"target_macs": 0.5},
        "macs": {"before": 533824, "after": 267000, "share": 0.50016},
        "parameters": {"before": 19706, "after": 10442, "share": 0.5299},
        "metrics": {"before": {"accuracy": 0.99}, "after": {"accuracy": 0.9}, "fine_tuned": {"accuracy": 0.98}},
        "channels": {f"layer{i}.conv1": [8 + i, 16 + 2 * i] for i in range(layers)},
    }
    quartiles = {"low": 1.5e-3, "median": 2e-3, "high": 3e-3}
    figures["latency"] = {
        "conditions": {"device": "EPYC", "batch": 8},
        "seconds": {"original": quartiles, "small": quartiles},
        "speedup": {"low": 1.2, "median": 1.25, "high": 1.3},
        "findings": ["faster: 1.25 times as fast", "fewer MACs did not mean as much less time"],
    }
    recipe = {"format": 1, "builder": name, "arguments": {}, "keep": {}, "sha256": "0", "versions": {"cogd": "0.1.0"}}
    (folder / "recipe.json").write_text(json.dumps({**recipe, "report": figures if report else {}}))
    (folder / "weights.safetensors").write_bytes(b"")


def write_pruning(folder, tuned=True):
    """Write the folder of a pruning run."""
    write_run(folder / "masks", 0, [0.9, 0.7, 0.8], name="DigitsCNN", more={"channels_at_zero": 0.5})
    if tuned:
        write_run(folder / "finetune", 0, [0.85, 0.95], name="DigitsCNN")
    (folder / "prune.json").write_text(json.dumps({"target": {"kind": "macs", "share": 0.5}, "distill": "gal"}))


def write_benchmark(folder):
    """Write what `benchmarks/sparse_coding.py` publishes of its parts; a reading of infinity becomes null there."""
    settings = {"seconds": 9.0, "search_seconds": 8.0, "slots": 1}
    about = {"versions": {"cogd": "0.1.0"}, "device": "EPYC", "commit": "1234abc", "threads": 2, "siblings": "0"}
    about |= {"sporco": "0.2.2", "numba": "0.68.1", "cores": [0, 1], "load_before": [0.1, 0.1, 0.1], "took": 12.0}
    about |= {"settings": settings}
    cold, warm = [[0.2, 41.0], [0.5, 40.03]], [[0.1, 40.02]]
    rho = {"rho": 10, "auto": False}
    parts = {
        "CoGD-0": {"curve": [[0.1, 90.0], [1.0, 50.0]]},
        "CoGD-1": {"curve": [[0.1, 91.0], [1.0, 52.0]]},
        "sporco-0": {"curve": [[0.2, math.inf], [0.5, 80.0], [5.0, 60.0]], "recoded": 58.0},
        "search": {
            "learning": [{"rho": 10, "objective": 61.0}],
            "coding": [{**rho, "seconds": math.inf, "objective": 61.0}],
        },
        "coding": {
            "gap": 1e-3,
            "optimum": 40.0,
            "setting": rho,
            "goal": 40.04,
            "curves": {"CoGD": {"cold": cold, "warm": warm}, "sporco": {"cold": [[3.0, 41.0]], "warm": cold}},
        },
        "scaling": {"rows": [{"side": 100 * n, "seconds": 0.01 * n, "nonzeros": 1200 * n} for n in (1, 2)]},
    }
    options = argparse.Namespace(**settings, threads=2, sets=["fruit"], seeds=[0, 1], results=folder)
    with tempfile.TemporaryDirectory() as parts_folder:
        for name, part in parts.items():
            Path(parts_folder, f"fruit-{name}.json").write_text(json.dumps({**about, **part}))
        benchmark = script("benchmarks/sparse_coding.py")
        with contextlib.redirect_stdout(io.StringIO()):
            benchmark["publish"](benchmark["Files"](Path(parts_folder)), options)


def script(name):
    """Return what a script outside of the package defines, without running it."""
    path = ROOT / name
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path.parent)
        return runpy.run_path(str(path))


def write_everything(folder):
    """Write results of every kind, and files that are no results."""
    write_trainings(folder)
    write_beale(folder / "beale.json")
    write_dictionary(folder / "atoms.safetensors")
    write_restored(folder / "cat.png")
    write_pruned(folder / "small")
    write_pruning(folder / "pruning")
    (folder / "notes.txt").write_text("mine")
    (folder / "other.json").write_text('{"mine": 1}')
    Image.new("L", (4, 4)).save(folder / "unrelated.png")
    write_benchmark(folder)
    row = {"case": "resnet18", "overhead_percent": {"whole steps": 0.61}, "rounds": [1.0, 2.0]}
    table = {"versions": {}, "config": {"repeats": 5}, "results": [row], "speed": {"images": 50, "rows": [row]}}
    (folder / "overhead.json").write_text(json.dumps(table))
