"""Checkpoints survive what disks and kills do to them."""

import errno
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from cogd.training import files
from cogd.training.checkpoint import Checkpoints
from cogd.training.state import TrainingState


@pytest.fixture
def store(tmp_path):
    store = Checkpoints(tmp_path / "checkpoints", run="mine")
    yield store
    store.close()


def saved(store, *steps):
    for step in steps:
        store.save({"step": step, "weights": torch.full((100,), float(step))}, step)
    store.wait()


def names(store):
    return sorted(path.name for path in store.folder.iterdir())


def test_the_last_two_are_kept(store):
    assert store.load_latest() == (None, [])
    saved(store, 1, 2, 30)
    assert names(store) == [f"step-{step:09d}.{end}" for step in (2, 30) for end in ("json", "pt")]
    snapshot, refused = store.load_latest()
    assert (snapshot["step"], refused) == (30, [])
    assert torch.equal(snapshot["weights"], torch.full((100,), 30.0))


def truncate(path: Path):
    path.write_bytes(path.read_bytes()[:-10])


def flip_a_bit(path: Path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def claim_for_another_run(path: Path):
    manifest = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps({**manifest, "run": "theirs"}))


def cut_the_manifest(path: Path):
    truncate(path.with_suffix(".json"))


def make_the_manifest_another_files(path: Path):
    path.with_suffix(".json").write_text("[]")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "bytes instead of"),
        (flip_a_bit, "do not have the checksum"),
        (claim_for_another_run, "belongs to another run"),
        (Path.unlink, "No such file"),
        (cut_the_manifest, "Unterminated string"),
        (make_the_manifest_another_files, "list indices must be integers"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(store, damage, reason):
    saved(store, 1, 2)
    damage(store.folder / "step-000000002.pt")
    snapshot, [refused] = store.load_latest()
    assert snapshot["step"] == 1
    assert "step-000000002.pt cannot be used" in refused
    assert reason in refused
    assert store.load_latest()[1] == []
    truncate(store.folder / "step-000000001.pt")
    with pytest.raises(ValueError, match=r"no checkpoint can be used.*step-000000001.*Delete"):
        store.load_latest()


def test_code_in_a_checkpoint_is_not_run(store, tmp_path):
    """Even where its checksum is right."""

    class Payload:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "touched",))

    saved(store, 1)
    store.save({"payload": Payload()}, 2)
    store.wait()
    snapshot, [refused] = store.load_latest()
    assert snapshot["step"] == 1
    assert "cannot be used" in refused
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("crash_at", range(1, 7))
def test_a_crash_at_any_moment_leaves_a_sound_checkpoint(store, monkeypatch, crash_at):
    """At every fsync and rename of the third checkpoint: nothing else makes a file count."""
    saved(store, 1, 2)
    calls = 0

    def crashing(function):
        def call(*arguments):
            nonlocal calls
            calls += 1
            if calls == crash_at:
                raise KeyboardInterrupt
            return function(*arguments)

        return call

    monkeypatch.setattr(files.os, "fsync", crashing(files.os.fsync))
    monkeypatch.setattr(Path, "replace", crashing(Path.replace))
    with pytest.raises(KeyboardInterrupt):
        saved(store, 3)
    monkeypatch.undo()
    snapshot, refused = store.load_latest()
    assert snapshot["step"] == (3 if crash_at == 6 else 2)
    assert refused == []
    saved(store, 4, 5)
    assert [name for name in names(store) if name.endswith(".pt")] == ["step-000000004.pt", "step-000000005.pt"]


def test_a_full_disk_is_reported_and_the_last_checkpoint_stays(store, monkeypatch):
    saved(store, 1)

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    store.save({"step": 2}, 2)
    with pytest.raises(OSError, match=r"cannot write .*step-000000002\.pt: No space left"):
        store.wait()
    monkeypatch.undo()
    assert names(store) == ["step-000000001.json", "step-000000001.pt"]
    assert store.load_latest()[0]["step"] == 1


def test_restored_momentum_fits_the_parameters_layout():
    """A GPU's runs hold channels last; fused steps read memory as it lies."""

    def run(layout, steps):
        torch.manual_seed(0)
        model = nn.Conv2d(4, 8, 3).to(memory_format=layout)  # type: ignore[call-overload]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
        state = TrainingState({"model": model, "optimizer": optimizer}, torch.zeros(4))
        return state, lambda: [take_step(model, optimizer) for _ in range(steps)]

    def take_step(model, optimizer):
        model(torch.linspace(-1, 1, 2 * 4 * 5 * 5).view(2, 4, 5, 5)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    whole, train = run(torch.contiguous_format, 4)
    train()
    first, train = run(torch.channels_last, 2)
    train()
    second, train = run(torch.contiguous_format, 2)
    second.restore(first.snapshot())
    train()
    torch.testing.assert_close(second.parts["model"].state_dict(), whole.parts["model"].state_dict())
