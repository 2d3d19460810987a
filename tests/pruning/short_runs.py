"""Pruning in seconds, of a small network on some of the digits."""

import json
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from cogd.models import build
from cogd.training import Recipe, read_recipe
from cogd.training.data.digits import load_digits
from cogd.training.data.memory import Images, MemoryData


def some_digits() -> MemoryData:
    whole = load_digits()
    train, test = (Images(part.pixels[:n], part.labels[:n]) for part, n in ((whole.train, 256), (whole.test, 64)))
    return replace(whole, train=train, test=test)


DATA = some_digits()
SHORT: dict[str, Any] = {"data": DATA, "epochs": 4, "finetune_epochs": 2, "target_macs": 0.4, "progress": False}


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build("digits", 10)


def equal(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def frozen_recipe() -> Recipe:
    """A fine-tuning that leaves the weights as they are."""
    return read_recipe("finetune_digits", lr=1e-45, weight_decay=0, momentum=0)


def epochs_in(folder):
    """Return what the log of learning masks says of each epoch."""
    log = [json.loads(line) for line in (folder / "masks" / "log.jsonl").read_text().splitlines()]
    return [entry for entry in log if entry["event"] == "epoch"]
