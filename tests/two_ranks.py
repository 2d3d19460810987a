"""What the two processes of the data-parallel tests run; a module of its own, so that they can import it by name."""

import faulthandler
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from conformance import batches, build, everything, train
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.nn.parallel import DistributedDataParallel

from cogd import CoGD

DATA = batches(10)
WORLD = 2
PATIENCE = timedelta(seconds=100)
FULL = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
CASES = {
    "descent": ("momentum", "descent", False),
    "paper": ("momentum", "paper", False),
    "rollback": ("adam", "rollback", False),
    "no rule": ("adam", None, False),
    "descent, restored": ("adam", "descent", True),
    "rollback, restored": ("sgd", "rollback", True),
}


def new_run(base: str, rule: Any) -> tuple[nn.Sequential, CoGD]:
    """Return a run in float64 whose norm, if any, takes no statistics of the batch, of which a rank sees a part."""
    model, optimizer = build(base, rule)
    return model.double().eval(), optimizer


def restored(parallel: nn.Module, optimizer: CoGD, base: str, rule: Any) -> tuple[nn.Module, CoGD]:
    """Return a new run that took over the optimizer's state from rank 0."""
    states = get_optimizer_state_dict(parallel, optimizer, options=FULL)
    model, new_optimizer = new_run(base, rule)
    new = DistributedDataParallel(model)
    new.load_state_dict(parallel.state_dict())
    set_optimizer_state_dict(new, new_optimizer, states if dist.get_rank() == 0 else {}, options=FULL)
    return new, new_optimizer


def train_in_parallel(rank: int, folder: Path) -> None:
    """Train every case on this rank's part of the batches and save what came of it."""
    faulthandler.dump_traceback_later(0.9 * PATIENCE.total_seconds())  # a rank that hangs says where
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=PATIENCE)
    results = {}
    for case, (base, rule, interrupted) in CASES.items():
        model, optimizer = new_run(base, rule)
        parallel: nn.Module = DistributedDataParallel(model)
        mine = [(inputs.chunk(WORLD)[rank], targets.chunk(WORLD)[rank]) for inputs, targets in DATA]
        train(parallel, optimizer, mine[:4])
        if interrupted:
            parallel, optimizer = restored(parallel, optimizer, base, rule)
        train(parallel, optimizer, mine[4:])
        results[case] = everything(cast(nn.Module, parallel.module), optimizer)
    torch.save(results, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
