"""Pruned networks on the command line, and on a machine that has nothing but the user's own model and CoGD."""

import copy
import json
import subprocess
import sys
from typing import Any

import pytest
import safetensors.torch
import torch
from test_commands import cogd

from cogd.models import build
from cogd.pruning import remove_channels, save_pruned

QUICK = ["--device", "cpu", "--warm-up", "0", "--rounds", "4"]


@pytest.fixture
def folder(tmp_path):
    original, images = build("digits", 10), torch.zeros(2, 1, 8, 8)
    small = copy.deepcopy(original)
    keep = {"layer1.conv1": [1, 5], "layer2.conv1": [0]}
    remove_channels(small, keep, example_inputs=images)
    facts: dict[str, Any] = {"keep": keep, "example_inputs": images}
    facts |= {"builder": "digits", "arguments": {"num_classes": 10}}
    save_pruned(tmp_path / "small", small, original, **facts)
    return tmp_path / "small"


def test_latency_compares_with_the_network_before_pruning(folder):
    done = cogd("latency", folder, *QUICK, "--batch", 1, "--threads", 1, "--dtype", "float64", "--json")
    found = json.loads(done.stdout)
    assert found["conditions"]["dtype"] == "float64"
    assert found["work"]["original"]["macs"] > found["work"]["small"]["macs"]
    assert found["seconds"]["rounded"]["median"] > 0
    shown = cogd("latency", folder, *QUICK)
    assert "before pruning" in shown.stdout
    assert "times fewer MACs" in " ".join(shown.stdout.split())
    assert shown.stderr == "each network passes 4 times\n"


def test_latency_compares_two_pruned_networks(folder):
    found = json.loads(cogd("latency", folder, "--against", folder, *QUICK, "--json").stdout)
    assert found["work"]["original"] == found["work"]["small"]
    assert found["rounded_speedup"] is None


def test_what_cannot_be_measured_is_a_usage_error(folder):
    done = cogd("latency", folder, "--rounds", 1)
    assert done.exit_code == 2
    assert "rounds must be an integer from 4; got 1" in done.stderr
    done = cogd("latency", folder.parent)
    assert done.exit_code == 1
    assert "should be a folder that save_pruned wrote" in done.stderr


def test_export_writes_beside_the_weights_and_never_over_a_file(folder):
    pytest.importorskip("onnxruntime", reason="needs the extra export")
    done = cogd("export", folder, "--onnx")
    assert f"{folder / 'model.onnx'}: " in done.stdout
    assert "outputs differ by" in done.stdout
    again = cogd("export", folder, "--onnx")
    assert again.exit_code == 1
    assert "is there; name another file, or set overwrite=True" in again.stderr


def test_export_wants_to_know_what_to_write(folder):
    for flags in ([], ["--onnx", "--program"]):
        done = cogd("export", folder, *flags)
        assert done.exit_code == 2
        assert "say what to write: --onnx or --program, one of them" in done.stderr


USERS_CODE = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
"""
USERS_SCRIPT = """
import sys
import safetensors.torch, torch
from cogd.cli import main
from cogd.pruning import load_pruned

torch.load = None  # nothing is unpickled
sys.path.remove("")  # as in a console script, which does not look into the working directory
sys.argv[1:] = "latency small --device cpu --warm-up 0 --rounds 4 --json --model mine:build".split()
try:
    main()
except SystemExit as end:
    assert end.code == 0
sys.path.insert(0, "")
import mine
model = load_pruned(mine.build, "small")
assert model[0].out_channels == 3
inputs = safetensors.torch.load_file("inputs.safetensors")
assert torch.equal(model(inputs["images"]), inputs["expected"])
"""


def test_a_process_with_the_users_code_alone_measures_and_loads(tmp_path):
    (tmp_path / "mine.py").write_text(USERS_CODE)
    code: dict[str, Any] = {}
    exec(USERS_CODE, code)
    original, images, keep = code["build"]().eval(), torch.randn(2, 3, 8, 8), {"0": [1, 4, 5]}
    small = copy.deepcopy(original)
    remove_channels(small, keep, example_inputs=images)
    save_pruned(tmp_path / "small", small, original, keep=keep, example_inputs=images, builder="mine:build")
    expected = small(images).detach()
    safetensors.torch.save_file({"images": images, "expected": expected}, tmp_path / "inputs.safetensors")
    command = [sys.executable, "-c", USERS_SCRIPT]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["work"]["original"]["macs"] > found["work"]["small"]["macs"]
