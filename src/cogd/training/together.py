"""Several runs at once on one device: processes that take a share of the runs each, one run after the other.

One small network's kernels leave much of a GPU idle. In processes of their own the runs' chance, signals and failures
stay apart. What a run came to is in its folder, so that the same call again goes on where it was stopped or killed.
"""

import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cogd.training.fit import fit
from cogd.training.loop import Status
from cogd.training.mps import side_by_side
from cogd.training.placement import choose_device
from cogd.training.recipe import Recipe
from cogd.training.run import read_result
from cogd.training.runner import Result
from cogd.training.stop import StopRequest

SECONDS_BETWEEN_LOOKS = 1.0
FORESEEN = (ValueError, TypeError, OSError, ArithmeticError, RuntimeError)


@dataclass(frozen=True)
class Job:
    """One run as another process can begin it: `build` must be picklable, `source` name the data for `load_data`."""

    build: Callable[[], nn.Module]
    source: str
    recipe: Recipe
    seed: int
    folder: Path
    options: Mapping[str, Any] = field(default_factory=dict)  # of `fit`

    def take(self, device: str) -> Result:
        """Make the run or go on with it; the seed also decides the network's first weights."""
        model, how = seeded(self.build, self.seed), {"device": device, "progress": False, **self.options}
        return fit(model, self.source, self.recipe, seed=self.seed, folder=self.folder, **how)

    def result(self) -> Result:
        """Return what the run came to; it is "stopped" as long as it is not complete."""
        kept = read_result(self.folder)
        if kept is None:
            return Result("stopped", {}, [], self.folder)
        return Result("complete", kept["metrics"], kept["history"], self.folder)


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a network whose weights the seed decides; torch's random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def run_together(
    jobs: Sequence[Job],
    at_once: int,
    device: str = "auto",
    *,
    when_complete: Callable[[Job, Result], None] = lambda job, result: None,
    note: Callable[[str], None] = lambda message: None,
    seconds: float = math.inf,
) -> Status:
    """Take every job's run, so many at once, until all are complete.

    Ctrl-C, SIGTERM, or the end of the `seconds` stops and saves them. A run that fails leaves the others alone; that it
    failed is raised when they are done. `when_complete` is called once for each run that is complete.
    """
    if at_once < 1:
        raise ValueError(f"at_once, the number of runs at once, must be at least 1; got {at_once}.")
    left, began = list(jobs), time.monotonic()
    with side_by_side() if choose_device(device).type == "cuda" else nullcontext() as obstacle, StopRequest() as stop:
        if obstacle:
            note(f"the runs take turns on the GPU: {obstacle}.")
        processes = _start(jobs, at_once, device)
        try:
            told = False
            while alive := [process.sentinel for process in processes if process.is_alive()]:
                connection.wait(alive, SECONDS_BETWEEN_LOOKS)
                left = _told_of(left, when_complete)
                if not told and (stop.requested or time.monotonic() - began > seconds):
                    told = True
                    for process in processes:
                        process.terminate()
        finally:
            for process in processes:
                process.kill()
    left = _told_of(left, when_complete)
    if left and not told:
        failed = ", ".join(str(job.folder) for job in left)
        raise ChildProcessError(f"not complete: {failed}; why is said above. The same call again goes on with them.")
    return "stopped" if left else "complete"


def _told_of(jobs: list[Job], when_complete: Callable[[Job, Result], None]) -> list[Job]:
    """Call for those that are complete by now and return the others."""
    results = [(job, job.result()) for job in jobs]
    for job, result in results:
        if result.status == "complete":
            when_complete(job, result)
    return [job for job, result in results if result.status != "complete"]


def _start(jobs: Sequence[Job], at_once: int, device: str) -> list[Any]:
    """Start a process for each share of the jobs that are not complete; they share the CPU's threads."""
    context, left = get_context("spawn"), [job for job in jobs if job.result().status != "complete"]
    threads = max(1, torch.get_num_threads() // at_once)
    shares = [share for i in range(at_once) if (share := left[i::at_once])]
    processes = [context.Process(target=_take_in_turn, args=(share, device, threads)) for share in shares]
    for process in processes:
        process.start()
    return processes


def _take_in_turn(jobs: Sequence[Job], device: str, threads: int) -> None:
    """Take a share's runs in this process, until one is stopped."""
    os.setsid()  # a terminal's Ctrl-C goes to the parent, which passes it on once
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    for job in jobs:
        try:
            if job.take(device).status == "stopped":
                return
        except FORESEEN as error:
            print(f"{job.folder}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        except Exception:  # noqa: BLE001 - a fault; the share's other runs are still taken
            print(f"{job.folder}: {traceback.format_exc()}", file=sys.stderr, flush=True)


def _end_with_parent() -> None:
    """End this process at once where the parent was killed; the last checkpoint is what the run goes on from."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
