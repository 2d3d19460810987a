"""The scripts that make tables of sparse coding, end to end on a few generated pictures."""

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from textures import textured, unit_atoms

from cogd.sparse_coding import model
from cogd.sparse_coding.coder import encode

ROOT = Path(__file__).parents[2]


@pytest.fixture
def data(tmp_path, random):
    """Two sets of two pictures, where the scripts look for them."""
    for name in ("fruit", "city"):
        folder = tmp_path / "data" / "csc" / name
        folder.mkdir(parents=True)
        for i, image in enumerate(textured(random, 2, 70, 70)):
            Image.fromarray(np.clip(128 + 40 * image, 0, 255).astype(np.uint8)).save(folder / f"{i + 1}.jpg")
    return tmp_path / "data"


@pytest.fixture
def bench(monkeypatch):
    """The benchmark's module, with few and small atoms, and as many threads as there are."""
    pytest.importorskip("sporco")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("sparse_coding")
    monkeypatch.setattr(module.runs, "ATOMS", 8)
    monkeypatch.setattr(module.runs, "SIDE", 5)
    monkeypatch.setattr(module.runs, "limit_threads", lambda _: None)
    return module


def options_for(data, **changes):
    given = {"data": data, "sets": ["fruit"], "seeds": [0], "seconds": 0.3, "search_seconds": 0.02, "slots": 1}
    given |= {"threads": 1, "cores": os.sched_getaffinity(0), "parts": data.parent / "parts", "results": data.parent}
    (data.parent / "parts").mkdir(exist_ok=True)
    return argparse.Namespace(**{**given, **changes})


@pytest.mark.parametrize("name", ["reconstruction", "inpainting"])
def test_the_papers_tables(name, data, tmp_path):
    command = [sys.executable, str(ROOT / f"experiments/table_{name}.py"), "--data", str(data), "--quick"]
    command += ["--seeds", "1", "--into", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / f"out/experiments/results/{name}.json").read_text())
    assert results["failures"] == []
    assert len(results["runs"]) == 28  # of two sets, two solvers with six rules or none
    assert all(np.isfinite(row["images"]["paper_psnr"]).all() for row in results["runs"])
    assert len({row["objective"] for row in results["runs"]}) > 20
    page = (tmp_path / f"out/docs/results/{name}.md").read_text()
    assert page in done.stdout
    assert [*(tmp_path / "out/docs/figures").glob("*.png")]
    assert subprocess.run([*command, "--print"], capture_output=True, text=True, check=True).stdout == f"{page}\n"


def test_as_many_pixels_are_kept_as_is_said_and_others_for_every_seed(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    kept = [importlib.import_module("table_inpainting").kept_pixels((3, 20, 16), 0.75, seed) for seed in (0, 0, 1)]
    assert (kept[0].sum((1, 2)) == 240).all()
    assert (kept[0] == kept[1]).all()
    assert (kept[0] != kept[2]).any()
    assert (kept[0][0] != kept[0][1]).any()


@pytest.mark.filterwarnings("ignore")  # sporco's own
def test_the_benchmarks_parts_and_their_tables(bench, data):
    options = options_for(data)
    names = ["search", "coding", "CoGD-0", "FFCSC-0", "sporco-0", "online-10", "profile"]
    for name in names:
        bench.run_part(bench.parts(options)[f"fruit-{name}"], options)
    result = bench.merged(bench.Files(options.parts), "fruit")
    assert (result["seconds"], result["search_seconds"], result["slots"]) == (0.3, 0.02, 1)
    curves = {solver: result["learning"][solver]["0"]["curve"] for solver in bench.SOLVERS}
    assert all(curve[-1][0] >= 0.3 for curve in curves.values())
    assert result["coding"]["curves"]["CoGD"]["cold"][-1][1] <= result["coding"]["goal"]
    bench.publish(bench.Files(options.parts), options)
    assert json.loads((data.parent / "sparse_coding_fruit.json").read_text()) == json.loads(json.dumps(result))
    assert result["command"].startswith("python benchmarks/sparse_coding.py --sets fruit")
    said = bench.csc_tables.tables("fruit", result)
    for heading in ("Learning", "sporco's settings, coding", "Coding alone", "batches of 10", "GFLOP/s"):
        assert heading in said


def test_parts_of_different_runs_are_not_mixed(bench, data, monkeypatch):
    options = options_for(data)
    files, measure = bench.Files(options.parts), lambda *_: {"curve": [[1.0, 2.0]]}
    one, other = (bench.Part(f"fruit-CoGD-{seed}", measure) for seed in (0, 1))
    bench.run_part(one, options)
    monkeypatch.setattr(bench, "provenance", lambda real=bench.provenance: {**real(), "commit": "abc"})
    bench.run_part(other, options)
    assert "abc, " in bench.merged(files, "fruit")["commit"] + ", "
    for changes in ({"seconds": 60.0}, {"slots": 2}):
        bench.run_part(other, options_for(data, **changes))
        with pytest.raises(SystemExit, match=r"fruit-CoGD-1.json has the settings .* Remove one of them"):
            bench.merged(files, "fruit")
        with pytest.raises(SystemExit, match=r"was measured with \{.*, not \{"):
            bench.run_parts({other.name: other}, options)
    monkeypatch.setattr(bench, "provenance", lambda real=bench.provenance: {**real(), "device": "another"})
    bench.run_part(other, options)
    with pytest.raises(SystemExit, match="has the device another"):
        bench.merged(files, "fruit")


@pytest.mark.filterwarnings("ignore")
def test_sporcos_coder_as_the_benchmark_runs_it_reaches_our_objective(bench, random):
    images, atoms = textured(random, 2, 1, 24, 24), unit_atoms(random, 6, 1, 5, 5)
    values = list[float]()

    def watch(iterate):
        d, z = (torch.from_numpy(np.ascontiguousarray(array, float)) for array in iterate())
        b = torch.from_numpy(images)
        values.append(model.objective(b, torch.ones_like(b, dtype=torch.bool), d, z, 0.2))
        return len(values) == 600

    bench.runs.csc_sporco.code(images, atoms, 0.2, {"rho": 2.0, "auto": False}, watch)
    ours = encode(list(images), [np.ones((1, 24, 24), bool)] * 2, atoms, 0.2, 1e-6).working_set.objective(0.2)
    assert ours * (1 - 1e-9) <= values[-1] <= ours * (1 + 1e-3)
