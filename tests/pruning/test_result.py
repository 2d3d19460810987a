"""A result reports what was asked and reached, time included, and saves itself."""

import json
from typing import Any

import pytest
import torch
from torch import nn

from cogd.models import build, count_macs
from cogd.pruning import load_pruned, prune, read_recipe, result
from cogd.report import write_report

FEW: dict[str, Any] = {"warm_up": 1, "rounds": 4}


@pytest.fixture(scope="module")
def pruned():
    torch.manual_seed(0)
    return prune(build("digits", 10), "digits", epochs=1, finetune_epochs=1, progress=False, device="cpu")


def test_the_report_says_what_was_asked_and_reached(pruned):
    report = json.loads(json.dumps(pruned.report(**FEW)))
    inputs = torch.zeros(1, 1, 8, 8)
    assert report["target"] == {"target_macs": 0.5}
    assert report["macs"]["after"] == count_macs(pruned.model, inputs)
    assert report["macs"]["before"] == count_macs(build("digits", 10), inputs)
    assert report["reached"] == dict.fromkeys(("low", "median", "high"), report["macs"]["share"])
    assert report["channels"] == {
        name: [len(kept), {"layer1.conv1": 16, "layer2.conv1": 32}[name]] for name, kept in pruned.keep.items()
    }
    assert set(report["metrics"]) == {"before", "after", "fine_tuned"}
    assert report["notes"] == []


def test_latency_is_measured_once_and_says_whether_it_is_faster(pruned, monkeypatch):
    report = pruned.report(batch=3, threads=1, **FEW)["latency"]
    assert (report["conditions"]["batch"], report["conditions"]["rounds"]) == (3, 4)
    assert report["work"]["original"]["macs"] > report["work"]["small"]["macs"]
    assert report["findings"][0].partition(":")[0] in ("faster", "slower", "no faster that can be told")
    monkeypatch.setattr(result, "compare_latency", None)  # so that a second measurement fails
    assert pruned.report(batch=3, threads=1, **FEW)["latency"] == report
    with pytest.raises(ValueError, match="rounds must be an integer from 4; got 1"):
        pruned.report(rounds=1)


class BatchOfTwo(nn.Module):
    """Takes two examples at once, no more and no fewer."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 16, 3), nn.Linear(16 * 36, 2)

    def forward(self, x):
        return self.head(self.conv(x).relu().view(2, -1))


def test_a_network_whose_time_cannot_be_compared_has_a_report_all_the_same():
    batches = [(torch.randn(2, 1, 8, 8), torch.tensor([0, 1]))]
    settings: dict[str, Any] = {"epochs": 1, "finetune_epochs": 1, "progress": False, "device": "cpu"}
    report = prune(BatchOfTwo(), (batches, batches), **settings).report(**FEW)
    assert report["latency"] is None
    assert report["notes"][0].startswith("latency was not measured: this BatchOfTwo does not take inputs shaped")


def test_it_saves_itself_with_its_report(pruned, tmp_path):
    pruned.save(tmp_path / "small", builder="digits", arguments={"num_classes": 10}, command="cogd prune", **FEW)
    images = torch.randn(3, 1, 8, 8)
    assert torch.equal(load_pruned(None, tmp_path / "small")(images), pruned.model(images))
    recipe = read_recipe(tmp_path / "small")
    assert recipe.report == json.loads(json.dumps(pruned.report(**FEW) | {"command": "cogd prune"}))
    assert recipe.keep == pruned.keep
    with pytest.raises(FileExistsError, match="name another folder"):
        pruned.save(tmp_path / "small", **FEW)
    pruned.save(tmp_path / "small", overwrite=True, **FEW)
    assert read_recipe(tmp_path / "small").builder is None
    write_report([tmp_path / "small"], tmp_path / "report.html", "Pruned")
    assert "multiply-accumulates" in (tmp_path / "report.html").read_text()
