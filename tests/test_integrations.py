"""Trainers take CoGD as they take any optimizer, and resume it bit for bit."""

from pathlib import Path
from typing import Any, cast

import accelerate
import lightning
import pytest
import torch
from conformance import (
    BASES,
    CAPTURABLE,
    all_rules,
    bases_soon,
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
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from cogd import CoGD

DATA = batches(10)


# Accelerate


@bases_soon("sgd", "adam", without=("lbfgs", *CAPTURABLE))  # Accelerate's loop gives no closure
@all_rules
def test_accelerate_trains_and_resumes_bit_for_bit(base, rule, tmp_path):
    def prepared():
        accelerator = accelerate.Accelerator(cpu=True)
        model, optimizer = build(base, rule)
        return accelerator, *accelerator.prepare(model, optimizer, StepLR(optimizer, 2, 0.5))

    def accelerated(run, data):
        accelerator, model, optimizer, scheduler = run
        for batch in data:
            optimizer.zero_grad()
            accelerator.backward(loss_of(model, batch))
            optimizer.step()
            scheduler.step()

    model, optimizer = build(base, rule)
    train(model, optimizer, DATA, StepLR(optimizer, 2, 0.5))
    run = prepared()
    assert isinstance(run[2].optimizer, CoGD)
    accelerated(run, DATA[:4])
    run[0].save_state(tmp_path)
    accelerated(run, DATA[4:])
    assert identical(everything(*run[1:3]), everything(model, optimizer))
    resumed = prepared()
    resumed[0].load_state(tmp_path)
    accelerated(resumed, DATA[4:])
    assert identical(everything(*resumed[1:3]), everything(model, optimizer))


class ScheduleFree(torch.optim.SGD):
    """Plain descent that, as schedule-free optimizers do, steps in training mode alone."""

    training = False

    def train(self):
        self.training = True

    def eval(self):
        self.training = False

    def step(self, closure=None):
        assert self.training
        return super().step(closure)


def test_accelerate_switches_a_base_between_training_and_evaluation():
    """The Hugging Face Trainer does it through Accelerate."""
    accelerator, model = accelerate.Accelerator(cpu=True), new_model("descent")
    base = ScheduleFree(model.parameters(), lr=0.1)
    optimizer = wrap(base, couple(model), "descent", period=1)
    prepared = accelerator.prepare(optimizer)
    prepared.train()
    train(model, prepared, DATA[:2])
    assert optimizer.last_stats
    prepared.eval()
    assert not base.training


@pytest.mark.parametrize("switch", ["train", "eval"])
def test_a_base_without_modes_stays_as_it_is(switch):
    model, optimizer = build("momentum", "descent")
    train(model, optimizer, DATA[:4])
    before = everything(model, optimizer)
    getattr(optimizer, switch)()
    assert identical(everything(model, optimizer), before)


# Lightning


class Module(lightning.LightningModule):
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


def trainer(folder: Path, epochs: int) -> lightning.Trainer:
    """Return a trainer that writes and prints nothing of its own accord."""
    silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    quiet: dict[str, Any] = dict.fromkeys(silent, False)
    return lightning.Trainer(accelerator="cpu", max_epochs=epochs, default_root_dir=folder, **quiet)


# Lightning itself uses what PyTorch has deprecated.
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
@bases_soon("momentum", "lbfgs", without=CAPTURABLE)
@all_rules
def test_lightning_trains_and_resumes_bit_for_bit(base, rule, tmp_path):
    data: Any = DataLoader(cast(Any, DATA[:4]), batch_size=None)
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


@bases_soon("sgd", "adam", without=("lbfgs", *CAPTURABLE))  # for which the Trainer's test has a closure
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


# The Hugging Face Trainer


class Regressor(nn.Module):
    """The conformance model as the Trainer wants it: it returns its loss."""

    def __init__(self, rule: Any):
        super().__init__()
        self.model = new_model(rule)

    def forward(self, inputs, targets):
        return {"loss": nn.functional.mse_loss(self.model(inputs), targets)}


@bases_soon("sgd", "adam", without=("lbfgs",))  # the Trainer gives no closure
@all_rules
def test_the_hugging_face_trainer_trains_and_resumes_bit_for_bit(base, rule, tmp_path):
    def trained(checkpoint=None):
        regressor = Regressor(rule)
        optimizer = wrap(BASES[base](regressor.parameters()), couple(regressor.model), rule)
        trainer = Trainer(
            regressor,
            TrainingArguments(
                str(tmp_path),
                per_device_train_batch_size=1,  # an example is a batch
                train_sampling_strategy="sequential",
                remove_unused_columns=False,
                max_grad_norm=0.0,  # no clipping
                save_steps=4,
                use_cpu=True,
                dataloader_pin_memory=False,
                report_to="none",
                disable_tqdm=True,
                num_train_epochs=1,
            ),
            data_collator=lambda examples: examples[0],
            train_dataset=cast(Any, [dict(zip(("inputs", "targets"), batch, strict=True)) for batch in DATA[:8]]),
            optimizers=(optimizer, cast(Any, StepLR(optimizer, 2, 0.5))),
        )
        trainer.train(resume_from_checkpoint=checkpoint)
        return everything(regressor.model, optimizer)

    model, optimizer = build(base, rule)
    train(model, optimizer, DATA[:8], StepLR(optimizer, 2, 0.5))
    assert identical(trained(), everything(model, optimizer))
    assert identical(trained(str(tmp_path / "checkpoint-4")), everything(model, optimizer))
