"""The loop: plain SGD where nothing is coordinated, the rule where it is, and nothing lost when it is stopped."""

import contextlib
import json
import logging
import math
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from cogd import CoGD, couple_conv_norm
from cogd.models import build
from cogd.training import DivergedError, Recipe, evaluate_run, fit, read_recipe
from cogd.training.data import load_data
from cogd.training.data.digits import load_digits
from cogd.training.data.memory import Images
from cogd.training.fit import sgd
from cogd.training.run import RunFolder
from cogd.training.schedule import rate_factor
from cogd.training.state import seed_epoch

RECIPE = Recipe(epochs=3, batch_size=8, lr=0.1, weight_decay=1e-3, nesterov=True)


class Small(nn.Module):
    """A network with everything that has state: norms, and dropout, which draws."""

    def __init__(self, classes: int = 3):
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.dropout = nn.Dropout(0.3)
        self.fc = nn.Linear(6, classes)

    def forward(self, x):
        return self.fc(self.dropout(self.norm(self.conv(x)).relu().mean((2, 3))))


class Shuffled:
    """A user's own data: shuffled with torch's generator at each epoch."""

    def __init__(self, batches: int = 5, start: int = 1):
        generator = torch.Generator().manual_seed(start)
        self.inputs = torch.randn(8 * batches, 2, 4, 4, generator=generator)
        self.targets = torch.randint(3, (8 * batches,), generator=generator)

    def __len__(self):
        return len(self.targets) // 8

    def __iter__(self):
        return ((self.inputs[rows], self.targets[rows]) for rows in torch.randperm(len(self.targets)).split(8))


DATA = (Shuffled(), list(Shuffled(2)))


def small(seed=0):
    torch.manual_seed(seed)
    return Small()


def run(model=None, data=DATA, recipe=RECIPE, **options):
    model = model or small()
    return model, fit(model, data, recipe, progress=False, **options)


def equal(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def untimed(history):
    return [
        {key: value for key, value in entry.items() if key not in ("seconds", "images_per_second")} for entry in history
    ]


def test_without_a_rule_it_is_plain_sgd_bit_for_bit():
    """Against the loop that everybody writes."""
    fitted, result = run()
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True)
    losses: list[float] = []
    for epoch in range(3):
        model.train()
        seed_epoch(0, epoch)
        for inputs, targets in DATA[0]:
            optimizer.param_groups[0]["lr"] = 0.1 * rate_factor(RECIPE, len(losses), 5)
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert equal(fitted, model)
    assert [entry["train_loss"] for entry in result.history] == pytest.approx(
        [sum(losses[i : i + 5]) / 5 for i in (0, 5, 10)]
    )


@pytest.mark.parametrize(("rule", "order"), [("paper", 1), ("paper", 2), ("rollback", 1)])
def test_a_rule_projects_once_per_epoch_after_its_last_step(rule, order):
    recipe = read_recipe(RECIPE, rule=rule, order=order, active=0.6)
    fitted, result = run(recipe=recipe)
    model = small()
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True)
    optimizer = CoGD(base, couple_conv_norm(model, active=0.6), rule=rule, order=order, period=5)
    for epoch in range(3):
        model.train()
        seed_epoch(0, epoch)
        for i, (inputs, targets) in enumerate(DATA[0]):
            optimizer.param_groups[0]["lr"] = 0.1 * rate_factor(recipe, epoch * 5 + i, 5)
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert equal(fitted, model)
    [stats] = optimizer.last_stats
    assert result.history[-1]["cogd"]["couplings"] == {stats.name: [stats.opened, stats.coordinates, stats.correction]}
    assert result.history[-1]["cogd"]["opened"] == stats.opened > 0


def test_the_callers_random_numbers_are_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    model = small()
    torch.manual_seed(5)
    run(model)
    assert torch.equal(torch.rand(3), expected)


def test_seeds_differ_and_repeat():
    first, second, other = run()[0], run()[0], run(seed=1)[0]
    assert equal(first, second)
    assert not equal(first, other)


@pytest.mark.parametrize("stop_at", [1, 5, 7, 14])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("rule", ["none", "paper", "rollback"])
def test_stopped_and_resumed_equals_never_stopped(tmp_path, stop_at, number, rule):
    """Model, optimizer with CoGD's memory, order of the data and dropout: bit for bit, also within an epoch."""
    recipe = read_recipe(RECIPE, rule=rule, active=0.6)
    never_stopped, whole = run(recipe=recipe, folder=tmp_path / "whole")

    def stop(state):
        if state.step == stop_at:
            os.kill(os.getpid(), number)

    _, first = run(recipe=recipe, folder=tmp_path / "run", after_step=stop)
    resumed, second = run(small(seed=9), recipe=recipe, folder=tmp_path / "run")
    assert (first.status, second.status) == ("stopped", "complete")
    assert equal(never_stopped, resumed)
    assert untimed(second.history) == untimed(whole.history)
    parts = [last_checkpoint(tmp_path / name)["parts"]["optimizer"] for name in ("whole", "run")]
    assert_same(*parts)
    assert (tmp_path / "whole/model.safetensors").read_bytes() == (tmp_path / "run/model.safetensors").read_bytes()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def newest(folder):
    return max((folder / "checkpoints").glob("*.pt"))


def last_checkpoint(folder):
    return torch.load(newest(folder), weights_only=True)


def test_a_damaged_checkpoint_is_named_without_progress_too_and_changes_nothing(tmp_path, caplog):
    def stop(state):
        if state.step == 12:
            os.kill(os.getpid(), signal.SIGTERM)

    never_stopped, _ = run(folder=tmp_path / "whole")
    run(folder=tmp_path / "run", after_step=stop)
    damaged = newest(tmp_path / "run")
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        resumed, _ = run(small(seed=9), folder=tmp_path / "run")
    said = f"{damaged} cannot be used: its bytes do not have the checksum that they were written with"
    assert f"{said}. The checkpoint before it is used." in caplog.messages
    assert [entry["reason"] for entry in log_of(tmp_path / "run") if entry["event"] == "refused"] == [said]
    assert equal(never_stopped, resumed)


def log_of(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def assert_same(a, b):
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b


def test_augmented_digits_resume_too(tmp_path):
    recipe = read_recipe("digits", epochs=2, batch_size=256, cutout=3)
    digits = load_data("digits")

    def network(seed):
        torch.manual_seed(seed)
        return build("digits", 10)

    never_stopped, _ = run(network(0), digits, recipe, folder=tmp_path / "whole")
    run(
        network(0),
        digits,
        recipe,
        folder=tmp_path / "run",
        after_step=lambda state: os.kill(os.getpid(), signal.SIGTERM) if state.step == 3 else None,
    )
    resumed, _ = run(network(1), digits, recipe, folder=tmp_path / "run")
    assert equal(never_stopped, resumed)


def test_a_run_folder_tells_all(tmp_path):
    _, result = run(folder=tmp_path / "run", recipe=read_recipe(RECIPE, rule="rollback"))
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"config.json", "log.jsonl", "checkpoints", "model.safetensors", "result.json"}
    lines = log_of(tmp_path / "run")
    assert [line["event"] for line in lines] == ["begin", "epoch", "epoch", "epoch"]
    assert [line["epoch"] for line in lines] == [0, 1, 2, 3]
    assert lines[-1]["cogd"]["coordinates"] == 6
    assert json.loads((tmp_path / "run/result.json").read_text())["metrics"] == result.metrics
    assert {path.name for path in (tmp_path / "run/checkpoints").iterdir()} == {
        *("step-000000010.pt", "step-000000010.json"),
        *("step-000000015.pt", "step-000000015.json"),
    }


def test_a_complete_run_is_only_read(tmp_path, capsys):
    fitted, first = run(folder=tmp_path)
    log = (tmp_path / "log.jsonl").read_bytes()
    model = small(7)
    again = fit(model, DATA, RECIPE, folder=tmp_path)
    assert equal(fitted, model)
    assert again == first
    assert "complete" in capsys.readouterr().err
    assert (tmp_path / "log.jsonl").read_bytes() == log


def test_epochs_that_are_run_again_are_logged_once(tmp_path):
    """As after a kill between a log line and its checkpoint, with the line cut short."""

    def fail(state):
        if state.step == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(folder=tmp_path, after_step=fail)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"event": "epoch", "epoch": 3}\n{"event": "epo')
    run(folder=tmp_path)
    lines = log_of(tmp_path)
    assert [line["epoch"] for line in lines if line["event"] == "epoch"] == [1, 2, 3]


@pytest.mark.parametrize("garbage", [b"\0\0\0\0", b"\xff\xfe", b"3", b"{}", b'{"event": "epoch", "epoch": "two"}'])
def test_a_garbage_line_in_the_log_is_left_out_with_a_warning(tmp_path, caplog, garbage):
    def fail(state):
        if state.step == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(folder=tmp_path, after_step=fail)
    begin, *epochs = (tmp_path / "log.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "log.jsonl").write_bytes(begin + garbage + b"\n" + b"".join(epochs))
    with caplog.at_level(logging.WARNING):
        run(folder=tmp_path)
    assert [message for message in caplog.messages if f"line 2 of {tmp_path / 'log.jsonl'} is no entry" in message]
    assert [entry["event"] for entry in log_of(tmp_path)] == ["begin", "epoch", "epoch", "begin", "epoch"]


def test_a_full_disk_is_reported_with_the_path_of_the_log(tmp_path):
    folder = RunFolder(tmp_path / "run", {"seed": 0})
    (tmp_path / "run/log.jsonl").symlink_to("/dev/full")
    with contextlib.closing(folder), pytest.raises(OSError, match=r"cannot write .*run/log\.jsonl: No space left"):
        folder.log("epoch")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": read_recipe(RECIPE, lr=0.2)}, r"recipe\.lr is 0\.1 there and 0\.2 now"),
        ({"seed": 3}, "seed is 0 there and 3 now"),
        ({"model": Small(4)}, r"model\.parameters is"),
        ({"data": (Shuffled(4), DATA[1])}, "data is '5 batches, 2 of test' there and '4 batches, 2 of test' now"),
        ({"data": (DATA[0], list(Shuffled(3)))}, "data is '5 batches, 2 of test' there and '5 batches, 3 of test' now"),
        (
            {"data": (Shuffled(start=2), DATA[1])},
            r"first_batch is '\(8, 2, 4, 4\) float32, \(8,\) int64, \w+' there and",
        ),
    ],
)
def test_resuming_something_else_is_refused_with_the_difference(tmp_path, change, message):
    run(folder=tmp_path)
    with pytest.raises(ValueError, match=message):
        run(folder=tmp_path, **change)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (None, r"optimizer is \{'name': 'AdamW'.* there and None now"),
        (
            lambda model: torch.optim.AdamW(model.parameters(), 0.02),
            r"optimizer\.groups\.0\.lr is 0\.01 there and 0\.02 now",
        ),
        (lambda model: torch.optim.Adagrad(model.parameters()), r"optimizer\.name is 'AdamW' there and 'Adagrad' now"),
    ],
)
def test_resuming_with_another_optimizer_is_refused_with_the_difference(tmp_path, make, message):
    run(folder=tmp_path, optimizer=lambda model: torch.optim.AdamW(model.parameters(), 0.01))
    with pytest.raises(ValueError, match=message):
        run(folder=tmp_path, optimizer=make)
    again = run(folder=tmp_path, optimizer=lambda model: torch.optim.AdamW(model.parameters(), 0.01, foreach=False))
    assert again[1].status == "complete"


def test_resuming_is_refused_by_the_numbers_of_any_group_alone(tmp_path):
    """Not by what the optimizer's defaults hold besides, such as a function, whose place in memory differs."""

    def with_rate(rate):
        def make(model):
            groups = [{"params": model.conv.parameters()}, {"params": model.fc.parameters(), "lr": rate}]
            optimizer = torch.optim.AdamW(groups)
            optimizer.defaults["prepare"] = lambda gradient: gradient
            return optimizer

        return make

    first, again = (run(folder=tmp_path, optimizer=with_rate(torch.tensor(0.5)))[1] for _ in range(2))
    assert first == again
    with pytest.raises(ValueError, match=r"optimizer\.groups\.1\.lr is 0\.5 there and 0\.25 now"):
        run(folder=tmp_path, optimizer=with_rate(0.25))


def test_a_run_of_ones_own_model_is_not_measured_by_name(tmp_path):
    run(folder=tmp_path)
    with pytest.raises(ValueError, match=r"model or data of your own; load its model\.safetensors"):
        evaluate_run(tmp_path)


def test_a_folder_of_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match="holds files but no run"):
        run(folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_kill_while_the_config_was_written_leaves_a_folder_to_begin_in(tmp_path):
    (tmp_path / "config.json.tmp").write_text('{"model": ')
    assert run(folder=tmp_path)[1].status == "complete"
    assert not (tmp_path / "config.json.tmp").exists()


def test_what_is_refused_before_training_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match=r"does not take the data's inputs, shaped \(2, 1, 8, 8\)"):
        run(build("resnet18", 10), "digits", read_recipe("digits"), folder=tmp_path / "run")
    with pytest.raises(ValueError, match="one output per class"):
        run(Small(1), folder=tmp_path / "run")
    with pytest.raises(ValueError, match="'descent' is not defined"):
        run(recipe=read_recipe(RECIPE, rule="descent"), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_nan_loss_stops_with_step_rate_and_advice(tmp_path, bad):
    calls = 0

    def objective(model, inputs, targets):
        nonlocal calls
        calls += 1
        return cross_entropy(model(inputs), targets) * (bad if calls == 8 else 1.0)

    with pytest.raises(
        DivergedError, match=rf"loss is {bad} at step 8 \(epoch 2\).*rate is 0\.05.*Try a lower lr"
    ) as error:
        run(folder=tmp_path, objective=objective)
    assert "last good checkpoint is" in str(error.value)
    assert last_checkpoint(tmp_path)["position"] == {"epoch": 1, "batch": 0}
    calls = 8
    assert run(small(3), folder=tmp_path, objective=objective)[1].status == "complete"


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    def spoil(state):
        if state.step == 10:
            state.parts["model"].fc.bias.data.fill_(math.inf)

    with pytest.raises(DivergedError, match=r"a weight is not a finite number at step 10 \(epoch 2\)"):
        run(folder=tmp_path, after_step=spoil)
    assert last_checkpoint(tmp_path)["position"] == {"epoch": 1, "batch": 0}


@pytest.mark.parametrize("stop_at", [8, 10])
def test_a_run_stopped_where_it_diverged_saves_nothing(tmp_path, stop_at):
    """Within an epoch, and at its last batch, after which there is no step to look at."""

    def spoil_and_stop(state):
        if state.step == stop_at:
            state.parts["model"].fc.bias.data.fill_(math.nan)
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(DivergedError, match=f"a weight is not a finite number at step {stop_at}"):
        run(folder=tmp_path, after_step=spoil_and_stop)
    assert last_checkpoint(tmp_path)["position"] == {"epoch": 1, "batch": 0}
    assert run(small(3), folder=tmp_path)[1].status == "complete"


def test_own_loss_metrics_hooks_optimizer_and_companions(tmp_path):
    """What pruning needs: a second network trained inside the objective, checkpointed with the run."""

    def attempt(folder, stop_at=None):
        model = small()
        torch.manual_seed(3)
        critic = nn.Linear(3, 1)
        critic_optimizer = torch.optim.Adam(critic.parameters())

        def objective(model, inputs, targets):
            outputs = model(inputs)
            critic_optimizer.zero_grad()
            critic(outputs.detach()).square().mean().backward()
            critic_optimizer.step()
            return cross_entropy(outputs, targets) + critic(outputs).mean()

        def after_step(state):
            if state.step == stop_at:
                os.kill(os.getpid(), signal.SIGINT)

        result = fit(
            model,
            DATA,
            RECIPE,
            folder=folder,
            objective=objective,
            evaluate=lambda model, batches: {"mean": sum(float(model(inputs).mean()) for inputs, _ in batches)},
            optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
            companions={"critic": critic, "critic_optimizer": critic_optimizer},
            after_step=after_step,
            after_epoch=lambda state: {"zeros": state.epoch},
            progress=False,
        )
        return model, critic, result

    model, critic, whole = attempt(tmp_path / "whole")
    attempt(tmp_path / "run", stop_at=8)
    resumed, resumed_critic, result = attempt(tmp_path / "run")
    assert equal(model, resumed)
    assert equal(critic, resumed_critic)
    assert [entry["zeros"] for entry in result.history] == [1, 2, 3]
    assert result.history[0]["lr"] == 0.01 * rate_factor(RECIPE, 4, 5)
    assert untimed(result.history) == untimed(whole.history)


def test_numbers_of_other_kinds_come_out_plain_and_do_not_spoil_checkpoints(tmp_path):
    """A float64 of numpy's is a float to json, but nothing that torch.load(weights_only=True) reads."""
    folder = tmp_path / "run"
    options: dict[str, Any] = {
        "evaluate": lambda model, batches: {"mean": np.float64(0.25), "most": torch.tensor(2.5), "few": np.float32(1)},
        "after_epoch": lambda state: {"counts": {"norm": (np.int64(3), 6)}},
    }

    def stop(state):
        if state.step == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    _, whole = run(folder=tmp_path / "whole", **options)
    assert run(folder=folder, after_step=stop, **options)[1].status == "stopped"
    _, result = run(folder=folder, **options)
    assert [entry["epoch"] for entry in log_of(folder) if entry["event"] == "begin"] == [0, 1]
    assert result.metrics == {"mean": 0.25, "most": 2.5, "few": 1.0}
    assert [entry["counts"] for entry in result.history] == [{"norm": [3.0, 6]}] * 3
    assert untimed(result.history) == untimed(whole.history)
    assert all(type(value) is float for value in result.metrics.values())


def test_data_must_have_a_length_and_begin_anew():
    batches = list(DATA[0])
    with pytest.raises(TypeError, match=r"data must be a pair \(train, test\) .* got a list"):
        run(data=batches[:1])
    with pytest.raises(TypeError, match="must have a length"):
        run(data=(iter(batches), DATA[1]))
    with pytest.raises(ValueError, match="the training data has no batch"):
        run(data=([], DATA[1]))
    with pytest.raises(ValueError, match="test data yielded no batches"):
        run(data=(batches, []))

    class Liar(list):
        def __len__(self):
            return 6

    with pytest.raises(ValueError, match="yielded 5 batches, but its length is 6"):
        run(data=(Liar(batches), DATA[1]))


class Streamed:
    """Batches that nobody has before they come."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


@pytest.mark.parametrize("bad", [-1, 3])
@pytest.mark.parametrize(("place", "name"), [(0, "the training data"), (1, "the test data")])
def test_a_label_out_of_range_in_the_last_batch_is_named(tmp_path, bad, place, name):
    """Before training where all labels are at hand; else when its batch comes, instead of by a failing kernel."""
    data = [list(DATA[0]), list(DATA[1])]
    inputs, targets = data[place][-1]
    data[place][-1] = inputs, torch.cat([targets[:-1], torch.tensor([bad])])
    message = rf"labels must be from 0 to 2.*; batch {len(data[place])} of {name} has {bad}\."
    with pytest.raises(ValueError, match=message):
        run(data=tuple(data), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=message):
        run(data=tuple(map(Streamed, data)))
    if place:  # an evaluation of one's own may mean something else by it
        assert run(data=tuple(data), evaluate=lambda model, batches: {"none": 0.0})[1].status == "complete"


def replaced(which, change):
    data = [list(DATA[0]), list(DATA[1])]
    data[which] = [change(inputs, targets) for inputs, targets in data[which]]
    return tuple(data)


class Twice(Small):
    def forward(self, x):
        return (super().forward(x),) * 2


def first_loss(outputs, targets):
    return cross_entropy(outputs[0], targets)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"data": replaced(0, lambda x, y: {"x": x})}, TypeError, "pairs .* of tensors; its first batch is dict"),
        ({"data": replaced(0, lambda x, y: (x, y, y))}, TypeError, r"first batch is \['Tensor', 'Tensor', 'Tensor'\]"),
        ({"data": replaced(0, lambda x, y: (x, y.numpy()))}, TypeError, r"first batch is \['Tensor', 'ndarray'\]"),
        ({"data": replaced(0, lambda x, y: (x[0], y[0]))}, ValueError, "single examples in a DataLoader"),
        ({"data": replaced(0, lambda x, y: (x, y[1:]))}, ValueError, "as many targets as inputs"),
        ({"data": replaced(0, lambda x, y: (x, y.int()))}, ValueError, r"in int32: .* Give class numbers in int64"),
        ({"data": replaced(0, lambda x, y: (x, y[:, None]))}, ValueError, r"targets shaped \(2, 1\) in int64"),
        ({"data": replaced(0, lambda x, y: ((9 * x).byte(), y))}, ValueError, r"shaped \(2, 2, 4, 4\) in uint8"),
        ({"data": (DATA[0], None)}, TypeError, "test data must be batches .* got a NoneType"),
        ({"data": (DATA[0], iter(DATA[1]))}, TypeError, "had anew after each epoch"),
        ({"data": replaced(1, lambda x, y: (x, y[:, None].float()))}, ValueError, "accuracy needs class numbers"),
        ({"data": replaced(1, lambda x, y: (x, y[:, None]))}, ValueError, "accuracy needs class numbers"),
        ({"model": Twice()}, TypeError, "cross-entropy needs one tensor .* a tuple. Give a loss"),
        ({"model": Twice(), "loss": first_loss}, TypeError, "accuracy needs one tensor .* Give an evaluate"),
        ({"optimizer": torch.optim.AdamW}, TypeError, "must be a function .* got the class AdamW"),
        ({"optimizer": torch.optim.SGD(small().parameters(), 0.1)}, TypeError, "must be a function .* got an SGD"),
    ],
)
def test_what_does_not_fit_is_refused_before_an_epoch_is_trained_for_it(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        run(folder=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_an_evaluation_must_name_its_numbers():
    with pytest.raises(TypeError, match=r"evaluate must return named numbers.* got 0\.5"):
        run(evaluate=lambda model, batches: 0.5)


def test_a_stream_without_a_length_is_refused():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return zip(*DATA[1][0], strict=True)

    with pytest.raises(TypeError, match=r"must have a length, .* this DataLoader has none"):
        run(data=(torch.utils.data.DataLoader(Stream(), 8), DATA[1]))


def test_where_every_pixel_has_a_class_metrics_are_means_over_pixels():
    torch.manual_seed(0)
    data = [(torch.randn(4, 2, 3, 5), torch.randint(3, (4, 3, 5))) for _ in range(2)]
    model, result = run(nn.Conv2d(2, 3, 1), (data, data), read_recipe(RECIPE, epochs=1))
    with torch.no_grad():
        right = torch.stack([(model(inputs).argmax(1) == targets).double().mean() for inputs, targets in data])
        losses = torch.stack([cross_entropy(model(inputs), targets) for inputs, targets in data])
    assert result.metrics == pytest.approx({"test_loss": losses.mean().item(), "accuracy": right.mean().item()})


def test_images_of_the_test_may_be_larger_than_crops_to_train_on():
    torch.manual_seed(0)
    crops, whole = ([(torch.randn(2, 2, *size), torch.randint(3, (2, *size)))] for size in ((3, 5), (6, 10)))
    _, result = run(nn.Conv2d(2, 3, 1), (crops, whole), read_recipe(RECIPE, epochs=1))
    assert 0 <= result.metrics["accuracy"] <= 1


def test_an_optimizer_with_modes_of_its_own_is_refused():
    class Moded(torch.optim.SGD):
        def train(self):
            """Switch to where steps are taken."""

        def eval(self):
            """Switch to what is evaluated."""

    for wrapped in (lambda base: base, lambda base: CoGD(base, [])):
        with pytest.raises(
            ValueError, match=r"^Moded has modes for training and evaluation, .* give another optimizer"
        ):
            run(optimizer=lambda model, wrapped=wrapped: wrapped(Moded(model.parameters(), lr=0.1)))


def test_an_optimizer_of_ones_own_may_be_cogd():
    run(optimizer=lambda model: CoGD(torch.optim.SGD(model.parameters(), lr=0.1), []))


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"cannot make the run's folder .*file: File exists"):
        run(folder=tmp_path / "file")


def test_fused_sgd_takes_layers_that_the_first_batch_passes_by():
    """As the recipe's is on a GPU; from then on it is the SGD that is not fused."""
    found = []
    for fused in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 1))
        optimizer = sgd(model, RECIPE, fused)
        for number, inputs in enumerate(torch.randn(4, 5, 2, generator=torch.Generator().manual_seed(0))):
            (model(inputs) if number else model[2](model[0](inputs))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append(model.state_dict())
    torch.testing.assert_close(*found)


def test_probabilities_are_no_labels_out_of_range():
    soft = [(inputs, torch.full((8, 3), 1 / 3)) for inputs, _ in DATA[0]]
    assert run(data=(Streamed(soft), DATA[1]))[1].status == "complete"


def test_a_network_with_fewer_outputs_than_the_data_has_classes_is_refused():
    digits = load_digits()
    first = [int(label) < 5 for label in digits.train.labels]  # so that hardly a label is out of range
    few = Images(digits.train.pixels[first], digits.train.labels[first])
    with pytest.raises(ValueError, match="the model has 5 outputs, but digits has 10 classes"):
        run(build("digits", 5), replace(digits, train=few), read_recipe("digits"))


def test_choices_that_exclude_each_other():
    with pytest.raises(ValueError, match="loss or objective, not both"):
        run(loss=cross_entropy, objective=lambda model, inputs, targets: model(inputs).sum())
    with pytest.raises(ValueError, match="'mps'"):
        run(device="mps")
    with pytest.raises(ValueError, match="needs a GPU"):
        run(recipe=read_recipe(RECIPE, compile="tuned"), device="cpu")


def test_bfloat16_runs_and_is_part_of_the_config(tmp_path):
    _, result = run(recipe=read_recipe(RECIPE, precision="bfloat16"), folder=tmp_path)
    assert math.isfinite(result.metrics["test_loss"])
    with pytest.raises(ValueError, match="precision is 'bfloat16' there and 'float32' now"):
        run(folder=tmp_path, device="cpu")


def test_the_guides_example_runs_and_is_complete_the_second_time(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    guide = (Path(__file__).parents[2] / "docs/training.md").read_text()
    [example] = [block for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "fit(" in block]
    said = []
    for _ in range(2):
        exec(example, {})
        said.append(capsys.readouterr())
    first, second = said
    assert first.out.startswith("complete {'test_loss': ")
    assert second.out == first.out
    assert "runs/mine is complete; nothing to do" in second.err


def test_the_guides_recipe_is_one(tmp_path):
    guide = (Path(__file__).parents[2] / "docs/training.md").read_text()
    [recipe] = re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)
    (tmp_path / "mine.toml").write_text(recipe)
    assert read_recipe(tmp_path / "mine.toml").rule == "rollback"


def test_the_digits_are_learned():
    """A third of the recipe, far from chance."""
    torch.manual_seed(0)
    _, result = run(build("digits", 10), "digits", read_recipe("digits", epochs=4))
    assert result.metrics["accuracy"] > 0.8
