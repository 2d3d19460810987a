"""The benchmark's stand-ins for Torch-Pruning's penalties do what the originals do, and every method makes a row."""

import copy
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_pruning as tp
from torch import nn

from cogd.models import build

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def bench():
    """Return the benchmark's methods."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("pruning_methods")


def pruner_of(kind, importance, name):
    """Return one of Torch-Pruning's pruners for a network's gated layers, and the network."""
    torch.manual_seed(0)
    model: Any = build(name, 10)
    inputs = torch.zeros(2, 1 if name == "digits" else 3, 8, 8)
    whole = [m for n, m in model.named_modules() if isinstance(m, nn.Conv2d) and n not in model.gated_layers]
    return kind(model, inputs, importance=copy.deepcopy(importance), reg=5e-4, ignored_layers=[*whole, model.fc]), model


@pytest.mark.parametrize("name", ["digits", "resnet56"])
def test_the_group_penalty_is_torch_prunings(bench, name):
    pruner, model = pruner_of(tp.pruner.GroupNormPruner, bench.GROUP_NORM, name)
    expected = gradients_of(model, lambda: pruner.regularize(model))
    assert sum(bool(gradient.any()) for gradient in expected) == 3 * len(list(model.gated_layers))
    for gradient, wanted in zip(gradients_of(model, bench.GroupPenalty(pruner, model)), expected, strict=True):
        torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("name", ["digits", "resnet56"])
def test_the_scale_penalty_is_torch_prunings_on_norms_whose_channels_can_go_and_leaves_the_others_alone(bench, name):
    pruner, model = pruner_of(tp.pruner.BNScalePruner, tp.importance.BNScaleImportance(), name)
    expected = gradients_of(model, lambda: pruner.regularize(model))
    found = gradients_of(model, bench.ScalePenalty(pruner, model))
    removable = {f"{layer.removesuffix('conv1')}bn1.weight" for layer in model.gated_layers}
    assert all(name in dict(model.named_parameters()) for name in removable)
    for (name, parameter), gradient, wanted in zip(model.named_parameters(), found, expected, strict=True):
        torch.testing.assert_close(gradient, wanted if name in removable else torch.zeros_like(parameter))


def gradients_of(model, penalize):
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    penalize()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_method_has_a_row_and_none_fails(bench, tmp_path):
    command = [sys.executable, str(BENCHMARKS / "pruning.py"), "--quick", "--processes", "2", "-o", "pruning.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "pruning.json").read_text())
    assert report["failures"] == []
    assert {(row["method"], row["seed"]) for row in report["runs"]} == {
        (m, seed) for m in bench.METHODS for seed in (0, 1)
    }
    assert [row["method"] for row in report["summary"]] == list(bench.METHODS)
    assert all(row["macs"] <= 0.53 for row in report["runs"])
