"""The folder of one run: config.json, log.jsonl, checkpoints/, model.safetensors, result.json."""

import fcntl
import hashlib
import json
import logging
import platform
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import safetensors.torch
import torch
from torch import nn

from cogd.training.board import Board, writer_class
from cogd.training.checkpoint import Checkpoints
from cogd.training.files import write_atomically, write_json

logger = logging.getLogger(__name__)


class RunFolder:
    """Opens a new run or one to go on with; refuses a folder that belongs to another run."""

    def __init__(self, path: str | Path, config: dict[str, Any], tensorboard: bool = False):
        if tensorboard:
            writer_class()  # refused before there is a folder
        self.path, self._tensorboard = Path(path), tensorboard
        self._board: Board | None = None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(error.errno, f"cannot make the run's folder {self.path}: {error.strerror}") from error
        claim(self.path, config, "config.json", "run")
        self._lock = self._locked()
        identity = hashlib.sha256(json.dumps(_identity(config), sort_keys=True).encode()).hexdigest()[:16]
        self.checkpoints = Checkpoints(self.path / "checkpoints", identity)

    @property
    def result(self) -> dict[str, Any] | None:
        """What the run came to, once it is complete."""
        return read_result(self.path)

    def log(self, event: str, **fields: Any) -> None:
        """Append one line to log.jsonl."""
        path = self.path / "log.jsonl"
        line = json.dumps({"event": event, "time": round(time.time(), 3), **fields}) + "\n"
        try:
            with path.open("a") as file:
                file.write(line)
        except OSError as error:
            raise OSError(error.errno, f"cannot write {path}: {error.strerror}") from error

    def log_epoch(self, record: dict[str, Any]) -> None:
        """Append an epoch's record to the log, and to TensorBoard's events where they were asked for."""
        self.log("epoch", **record)
        if self._board is not None:
            self._board.epoch(record)

    def begin(self, epoch: int, device: torch.device) -> None:
        """Note that the run begins or goes on after an epoch, and with what."""
        self._forget_epochs_after(epoch)
        if self._tensorboard:
            self._board = Board(self.path / "tensorboard", first=epoch + 1)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
        versions = {package: version(package) for package in ("cogd", "torch")}
        threads = torch.get_num_threads()
        self.log("begin", epoch=epoch, device=str(device), hardware=name, threads=threads, **versions)

    def finish(self, model: nn.Module, result: dict[str, Any]) -> None:
        """Write the weights, and then the result, which makes the run complete."""
        self.checkpoints.wait()
        save_weights(model, self.path / "model.safetensors")
        write_json(self.path / "result.json", result)

    def close(self) -> None:
        """Finish writing and let another process have the folder."""
        try:
            self.checkpoints.close()
        finally:
            if self._board is not None:
                self._board.close()
            self._lock.close()

    def _locked(self) -> IO[str]:
        """Keep other processes out; the lock ends with this process, however it ends."""
        file = (self.path / "config.json").open("r+")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike flock's, not inherited by workers
        except OSError as error:
            file.close()
            raise ValueError(f"another process is training in {self.path}; wait for it or choose another.") from error
        return file

    def _forget_epochs_after(self, epoch: int) -> None:
        """Take epochs out of the log that are run again, a line that was never finished, and what is no entry."""
        path = self.path / "log.jsonl"
        if not path.exists():
            return
        kept = []
        *lines, _ = path.read_text(errors="replace").split("\n")
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                again = entry["event"] == "epoch" and entry["epoch"] > epoch
            except (ValueError, TypeError, KeyError):
                logger.warning("line %d of %s is no entry of a log and is left out: %.60r", number, path, line)
            else:
                kept += [] if again else [f"{line}\n"]
        write_atomically(path, "".join(kept).encode())


def claim(folder: Path, config: dict[str, Any], file: str, what: str) -> None:
    """Write what makes a folder's content this and no other, or refuse a folder that holds another."""
    path = folder / file
    if path.exists():
        if changes := differences(_identity(json.loads(path.read_text())), _identity(config)):
            raise ValueError(
                f"{folder} holds another {what}: {'; '.join(changes)}. Repeat that {what}'s settings to go on with "
                "it, or choose another folder."
            )
    elif any(entry.name != f"{file}.tmp" for entry in folder.iterdir()):  # of a process killed while it wrote that
        raise ValueError(f"{folder} holds files but no {what} (no {file}); choose a new or empty folder.")
    else:
        write_json(path, config)


def _identity(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config without the place that its data came from; the data's fingerprint stays."""
    return {key: value for key, value in config.items() if key != "source"}


@dataclass(frozen=True)
class LoadedRun:
    """A finished run's settings and weights."""

    config: dict[str, Any]
    weights: dict[str, torch.Tensor]


def load_run(path: str | Path) -> LoadedRun:
    """Read a run's config.json and model.safetensors."""
    path = Path(path)
    for name in ("config.json", "model.safetensors"):
        if not (path / name).is_file():
            raise FileNotFoundError(f"{path} holds no finished run: {name} is missing.")
    config = json.loads((path / "config.json").read_text())
    return LoadedRun(config, safetensors.torch.load_file(path / "model.safetensors"))


def read_result(folder: Path) -> dict[str, Any] | None:
    """Read what the run in a folder came to, once it is complete."""
    path = folder / "result.json"
    return json.loads(path.read_text()) if path.exists() else None


def save_weights(model: nn.Module, path: Path) -> None:
    """Write a model's state as safetensors, on the CPU and in the plain memory layout."""
    tensors = {
        name: value.detach().to("cpu", copy=True).contiguous(memory_format=torch.contiguous_format)
        for name, value in model.state_dict().items()
    }
    write_atomically(path, safetensors.torch.save(tensors))


def differences(earlier: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    """Return every setting that two configurations do not share, as "name: earlier there, now here".

    >>> differences({"seed": 0, "recipe": {"lr": 0.1}}, {"seed": 0, "recipe": {"lr": 0.2}})
    ['recipe.lr is 0.1 there and 0.2 now']
    """
    found = []
    for key in sorted({*earlier, *now}):
        old, new = earlier.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append(f"{prefix}{key} is {old!r} there and {new!r} now")
    return found
