"""The benchmark's stand-in for Torch-Pruning's group regularization does what the original does."""

import copy
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_pruning as tp

from cogd.models import build


@pytest.fixture(scope="module")
def bench():
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("bench", Path(__file__).parents[1] / "benchmarks/pruning.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["bench"] = module = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["digits", "resnet56"])
def test_the_group_penalty_is_torch_prunings(bench, name):
    torch.manual_seed(0)
    model: Any = build(name, 10)
    inputs = torch.zeros(2, 1 if name == "digits" else 3, 8, 8)
    whole = [m for n, m in model.named_modules() if isinstance(m, torch.nn.Conv2d) and n not in model.gated_layers]
    pruner = tp.pruner.GroupNormPruner(
        model, inputs, importance=copy.deepcopy(bench.GROUP_NORM), reg=5e-4, ignored_layers=[*whole, model.fc]
    )
    expected = gradients_of(model, lambda: pruner.regularize(model))
    assert sum(bool(gradient.any()) for gradient in expected) == 3 * len(list(model.gated_layers))
    for gradient, wanted in zip(gradients_of(model, bench.GroupPenalty(pruner, model)), expected, strict=True):
        torch.testing.assert_close(gradient, wanted)


def gradients_of(model, penalize):
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    penalize()
    return [parameter.grad for parameter in model.parameters()]
