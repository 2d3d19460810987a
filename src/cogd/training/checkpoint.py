"""Checkpoints that survive a kill at any moment: written atomically, checksummed, the last two kept.

`step-N.pt` holds the tensors, for torch.load(weights_only=True); `step-N.json`, written after it, makes it count and
says which bytes belong to which run.
"""

import hashlib
import io
import json
import pickle
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from cogd.training.files import write_atomically, write_json

KEPT = 2
UNREADABLE = (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, pickle.UnpicklingError)


class Checkpoints:
    """The checkpoints of one run; `run` tells its own from another run's.

    A background thread writes, so that training goes on meanwhile; what goes wrong there is raised by the next call.
    """

    def __init__(self, folder: Path, run: str):
        self.folder, self.run = folder, run
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def save(self, snapshot: dict[str, Any], step: int) -> None:
        """Begin to write a snapshot, which nobody may change any more."""
        self.wait()
        self._pending = self._writer.submit(self._write, snapshot, step)

    def wait(self) -> None:
        """Return when everything is on the disk."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Finish writing and end the thread."""
        try:
            self.wait()
        finally:
            self._writer.shutdown()

    def load_latest(self) -> tuple[dict[str, Any] | None, list[str]]:
        """Return the newest sound checkpoint, or None if there never was one; and what is wrong with newer ones.

        Those are set aside under names that end in ".refused".
        """
        refused: dict[Path, str] = {}
        for manifest in self._manifests():
            try:
                snapshot = self._read(manifest)
            except UNREADABLE as error:
                refused[manifest] = f"{manifest.with_suffix('.pt')} cannot be used: {error}"
            else:
                self._set_aside(refused)
                return snapshot, list(refused.values())
        if refused:
            raise ValueError(
                f"no checkpoint can be used: {'; '.join(refused.values())}. "
                f"Delete {self.folder} to begin the run again."
            )
        return None, []

    def latest(self) -> Path | None:
        """Return the file of the newest checkpoint."""
        return next((manifest.with_suffix(".pt") for manifest in self._manifests()), None)

    def _manifests(self) -> list[Path]:
        """Return the manifests, the newest first."""
        return sorted(self.folder.glob("step-*.json"), reverse=True)

    def _write(self, snapshot: dict[str, Any], step: int) -> None:
        buffer = io.BytesIO()
        torch.save(snapshot, buffer)
        content = buffer.getvalue()
        path = self.folder / f"step-{step:09d}.pt"
        write_atomically(path, content)
        digest = hashlib.sha256(content).hexdigest()
        write_json(path.with_suffix(".json"), {"run": self.run, "step": step, "bytes": len(content), "sha256": digest})
        self._drop_old()

    def _drop_old(self) -> None:
        for manifest in self._manifests()[KEPT:]:
            manifest.unlink()
        counted = {manifest.stem for manifest in self._manifests()}
        for path in self.folder.glob("step-*.pt"):
            if path.stem not in counted:
                path.unlink()

    def _set_aside(self, manifests: Iterable[Path]) -> None:
        for path in (path for manifest in manifests for path in (manifest, manifest.with_suffix(".pt"))):
            if path.exists():
                path.replace(path.with_name(f"{path.name}.refused"))

    def _read(self, manifest: Path) -> dict[str, Any]:
        expected = json.loads(manifest.read_text())
        if expected["run"] != self.run:
            raise ValueError("it belongs to another run")
        content = manifest.with_suffix(".pt").read_bytes()
        if len(content) != expected["bytes"]:
            raise ValueError(f"it has {len(content)} bytes instead of {expected['bytes']}")
        if hashlib.sha256(content).hexdigest() != expected["sha256"]:
            raise ValueError("its bytes do not have the checksum that they were written with")
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
