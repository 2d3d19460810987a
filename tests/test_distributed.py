"""Distributed checkpoints, data parallelism over real processes, and the refusal of sharded parameters."""

import copy
import socket
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from conformance import all_rules, bases_soon, build, everything, identical, new_model, train
from torch import multiprocessing, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from two_ranks import CASES, DATA, PATIENCE, WORLD, new_run, train_in_parallel

from cogd import Coupling, couple_named

# Checkpoints


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")  # on purpose
@pytest.mark.parametrize("flat", [False, True])
@bases_soon("sgd", "adam", "adagrad", without=("lbfgs",))  # PyTorch itself steps it, without a closure, to pack it
@all_rules
def test_a_distributed_checkpoint_resumes_bit_for_bit(base, rule, flat, tmp_path):
    options = StateDictOptions(flatten_optimizer_state_dict=flat)

    def packed(model, optimizer):
        states = get_optimizer_state_dict(model, optimizer, options=options)
        return {"model": get_model_state_dict(model), "optimizer": states}

    model, optimizer = build(base, rule)
    train(model, optimizer, DATA[:4])
    dcp.save(packed(model, optimizer), checkpoint_id=tmp_path, no_dist=True)
    train(model, optimizer, DATA[4:])

    resumed, resumed_optimizer = build(base, rule)
    loaded = packed(resumed, resumed_optimizer)
    dcp.load(loaded, checkpoint_id=tmp_path, no_dist=True)
    set_model_state_dict(resumed, loaded["model"])
    set_optimizer_state_dict(resumed, resumed_optimizer, loaded["optimizer"], options=options)
    train(resumed, resumed_optimizer, DATA[4:])
    assert identical(everything(resumed, resumed_optimizer), everything(model, optimizer))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("base", ["sgd", "adamw-fused"])
@all_rules
def test_distributed_state_dicts_restore_a_new_optimizer(base, rule, flat, frozen):
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    (model, optimizer), (new, new_optimizer) = build(base, rule), build(base, rule)
    for bias in (model[-1].bias, new[-1].bias):
        bias.requires_grad_(not frozen)
    train(model, optimizer, DATA[:4])
    states = copy.deepcopy(get_optimizer_state_dict(model, optimizer, options=options))
    new.load_state_dict(model.state_dict())
    set_optimizer_state_dict(new, new_optimizer, states, options=options)
    assert identical(everything(new, new_optimizer), everything(model, optimizer))


# Data parallelism


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Return what every rank's process saved."""
    folder = tmp_path_factory.mktemp("ranks")
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", loopback)  # gloo would otherwise ask the network for this machine's name
        context = multiprocessing.spawn(train_in_parallel, (folder,), nprocs=WORLD, join=False, daemon=True)
    try:  # a join returns as soon as one more process has ended
        assert any(context.join(PATIENCE.total_seconds()) for _ in range(WORLD)), "the ranks hang"
    finally:
        for process in context.processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize("case", CASES)
def test_data_parallel_ranks_agree_bit_for_bit_and_with_a_single_process(case, ranks):
    base, rule, _ = CASES[case]
    model, optimizer = new_run(base, rule)
    train(model, optimizer, DATA)
    if rule is not None:
        assert sum(entry.opened for entry in optimizer.last_stats) > 0
        assert optimizer.last_stats[0].correction > 0
    assert identical(ranks[0][case], ranks[1][case])
    # Only the order of the sums over the batch differs.
    torch.testing.assert_close(ranks[0][case], everything(model, optimizer), rtol=1e-9, atol=1e-12)


# Sharded parameters


@pytest.fixture
def mesh():
    """Return the device mesh of a process group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=PATIENCE)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("side", ["sparse", "partner"])
@pytest.mark.parametrize("placement", [Shard(0), Replicate()], ids=["sharded", "replicated"])
def test_a_dtensor_is_refused_with_the_remedy(side, placement, mesh):
    sides: dict[str, Any] = {"sparse": nn.Parameter(torch.ones(4, 2)), "partner": nn.Parameter(torch.ones(4, 3))}
    sides[side] = nn.Parameter(distribute_tensor(sides[side].detach(), mesh, [placement]))
    with pytest.raises(TypeError, match=rf"^{side} is a DTensor; .* does not support. Use DDP"):
        Coupling(**sides)


def test_a_fully_sharded_model_is_refused_with_the_remedy(mesh):
    model = new_model("descent")
    fully_shard(model, mesh=mesh)
    with pytest.raises(TypeError, match=r"DTensor; .* Use DDP"):
        couple_named(model, [("1.weight", "2.weight")], partner_dim=1)
