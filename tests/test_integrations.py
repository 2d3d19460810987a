"""Trainers and distributed checkpoints take CoGD as they take any optimizer, and resume it bit for bit."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from conformance import (
    BASES,
    all_rules,
    batches,
    build,
    couple,
    everything,
    identical,
    loss_of,
    new_model,
    train,
    wrap,
)
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim.lr_scheduler import StepLR

from cogd import CoGD

DATA = batches(10)
# LBFGS keeps lists, Adagrad and Adafactor None or what a frozen parameter has none of: not for flat state dicts.
BASES_IN_MEMORY = [name for name in BASES if name.split("-")[0] not in ("lbfgs",) and "capturable" not in name]


# torch.distributed.checkpoint


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")  # on purpose
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("base", ["sgd", "adam", "adagrad"])
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


@pytest.mark.parametrize("base", BASES_IN_MEMORY)
@pytest.mark.parametrize("flat", [False, True])
@all_rules
def test_distributed_state_dicts_restore_a_new_optimizer(base, rule, flat):
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    model, optimizer = build(base, rule)
    [*model.parameters()][-1].requires_grad_(False)
    train(model, optimizer, DATA[:4])
    states = copy.deepcopy(get_optimizer_state_dict(model, optimizer, options=options))
    new, new_optimizer = build(base, rule)
    [*new.parameters()][-1].requires_grad_(False)
    new.load_state_dict(model.state_dict())
    set_optimizer_state_dict(new, new_optimizer, states, options=options)
    assert identical(everything(new, new_optimizer), everything(model, optimizer))


# Accelerate

accelerate = pytest.importorskip("accelerate")


@pytest.mark.parametrize("base", ["sgd", "adam"])
@all_rules
def test_accelerate_trains_and_resumes_bit_for_bit(base, rule, tmp_path):
    def prepared():
        accelerator = accelerate.Accelerator(cpu=True)
        model, optimizer = build(base, rule)
        return accelerator, *accelerator.prepare(model, optimizer, StepLR(optimizer, 2, 0.5))

    def accelerated(accelerator, model, optimizer, scheduler, data):
        for batch in data:
            optimizer.zero_grad()
            accelerator.backward(loss_of(model, batch))
            optimizer.step()
            scheduler.step()

    model, optimizer = build(base, rule)
    train(model, optimizer, DATA, StepLR(optimizer, 2, 0.5))
    run = prepared()
    assert isinstance(run[2].optimizer, CoGD)
    accelerated(*run, DATA[:4])
    run[0].save_state(tmp_path)
    accelerated(*run, DATA[4:])
    assert identical(everything(*run[1:3]), everything(model, optimizer))
    resumed = prepared()
    resumed[0].load_state(tmp_path)
    accelerated(*resumed, DATA[4:])
    assert identical(everything(*resumed[1:3]), everything(model, optimizer))


# Lightning

lightning = pytest.importorskip("lightning")


class Module(lightning.LightningModule):  # type: ignore[name-defined, misc]
    """The conformance model as a LightningModule, with automatic optimization."""

    def __init__(self, base: str, rule: Any):
        super().__init__()
        self.base, self.rule = base, rule
        self.model = new_model(rule)

    def training_step(self, batch, _):
        return loss_of(self.model, batch)

    def configure_optimizers(self):
        optimizer = wrap(BASES[self.base](self.model.parameters()), couple(self.model), self.rule)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": StepLR(optimizer, 2, 0.5), "interval": "step"},
        }


def trainer(folder: Path, epochs: int, **options: Any):
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(
        accelerator="cpu", max_epochs=epochs, default_root_dir=folder, enable_checkpointing=False, **quiet, **options
    )


@pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"
)  # in Lightning itself
@pytest.mark.parametrize("base", ["sgd", "adam", "lbfgs"])
@all_rules
def test_lightning_trains_and_resumes_bit_for_bit(base, rule, tmp_path):
    data = torch.utils.data.DataLoader(DATA[:4], batch_size=None)  # type: ignore[arg-type]
    model, optimizer = build(base, rule)
    train(model, optimizer, DATA[:4] * 2, StepLR(optimizer, 2, 0.5))

    whole = Module(base, rule)
    trainer(tmp_path, 2).fit(whole, data)
    assert identical(whole.model.state_dict(), model.state_dict())

    first, second = trainer(tmp_path, 1), trainer(tmp_path, 2)
    first.fit(Module(base, rule), data)
    first.save_checkpoint(tmp_path / "half.ckpt")
    resumed = Module(base, rule)
    second.fit(resumed, data, ckpt_path=tmp_path / "half.ckpt")
    assert identical(everything(resumed.model, second.optimizers[0]), everything(model, optimizer))


@pytest.mark.parametrize("base", ["sgd", "adam"])
@all_rules
def test_lightning_fabric_trains_and_resumes_bit_for_bit(base, rule, tmp_path):
    def set_up():
        fabric = lightning.Fabric(accelerator="cpu", devices=1)
        return fabric, *fabric.setup(*build(base, rule))

    def trained(fabric, model, optimizer, data):
        for batch in data:
            optimizer.zero_grad()
            fabric.backward(loss_of(model, batch))
            optimizer.step()

    model, optimizer = build(base, rule)
    train(model, optimizer, DATA)
    fabric, fabric_model, fabric_optimizer = set_up()
    trained(fabric, fabric_model, fabric_optimizer, DATA[:4])
    fabric.save(tmp_path / "half.ckpt", {"model": fabric_model, "optimizer": fabric_optimizer})
    fabric, fabric_model, fabric_optimizer = set_up()
    fabric.load(tmp_path / "half.ckpt", {"model": fabric_model, "optimizer": fabric_optimizer})
    trained(fabric, fabric_model, fabric_optimizer, DATA[4:])
    assert identical(everything(fabric_model, fabric_optimizer), everything(model, optimizer))
