"""Where a number comes from: what every results file says beside its figures."""

import os
import platform
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any


def provenance(device: str = "cpu") -> dict[str, Any]:
    """Return the versions, the device, the commit and the command of a measurement made now.

    >>> sorted(provenance())
    ['command', 'commit', 'device', 'threads', 'versions']
    """
    import torch

    packages = {name: version(name) for name in ("cogd", "numpy", "torch")}
    return {
        "versions": {"python": platform.python_version(), **packages},
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "commit": _commit(),
        "command": command(),
    }


def command() -> str | None:
    """Return the command that runs this process's script, or None where there is no script.

    It does not say where this machine keeps things: paths are relative to the checkout, or the last name alone.
    """
    program, *arguments = sys.argv
    if program in ("", "-c"):
        return None
    return shlex.join(["python", *map(_without_place, [str(Path(program).resolve()), *arguments])])


def _without_place(word: str) -> str:
    """Return a word of a command with the absolute path in it shortened, as in --data=/mnt/photos or folder:/mnt/x.

    >>> _without_place("folder:/mnt/photos.zip"), _without_place("--lr=0.1")
    ('folder:photos.zip', '--lr=0.1')
    """
    checkout = Path(__file__).resolve().parents[2]

    def shortened(found: re.Match[str]) -> str:
        path = Path(found[0])
        return path.relative_to(checkout).as_posix() if path.is_relative_to(checkout) else path.name

    return re.sub(r"(?<![^=:])/.*", shortened, word)


def device_name(device: str) -> str:
    """Return what the GPU calls itself, or the processor and its cores."""
    import torch

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else processor()


def processor() -> str:
    """Return what the processor calls itself, and its cores."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(names) or 'unknown'} cores"


def _commit() -> str | None:
    """Return the commit of this package's own checkout, with "+changes" if its code differs.

    Outside of one, where the sources were sent without their history, it is what COGD_COMMIT says, or None.
    """
    package = Path(__file__).parent
    sent_with = os.environ.get("COGD_COMMIT")
    try:
        if Path(_git(package, "rev-parse", "--show-toplevel")) != package.parents[1]:
            return sent_with
        commit = _git(package, "rev-parse", "HEAD")
        return f"{commit}+changes" if _git(package, "status", "--porcelain", "--", ".") else commit
    except (FileNotFoundError, subprocess.CalledProcessError):
        return sent_with


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
