"""A run from where its folder says it is to its end: resume, save, log, finish."""

import logging
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from cogd.training.loop import DivergedError, Plan, Status, train
from cogd.training.progress import LiveProgress
from cogd.training.run import RunFolder
from cogd.training.state import Stateful, TrainingState
from cogd.training.stop import StopRequest

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """What a run came to: "complete" or "stopped", the last epoch's metrics, one record per epoch, its folder.

    `stop_requested` says that a stop was asked for, though perhaps too late to stop anything.

    >>> Result("complete", {"accuracy": 0.98}, history=[]).metrics["accuracy"]
    0.98
    """

    status: Status
    metrics: dict[str, float]
    history: list[dict[str, Any]]
    folder: Path | None = None
    stop_requested: bool = False


def run_plan(plan: Plan, run: RunFolder | None, companions: Mapping[str, Stateful], progress: bool) -> Result:
    """Take the run from where its folder says it is to its end, or until it is stopped."""
    parts: dict[str, Stateful] = {"model": plan.model, "optimizer": plan.optimizer, **companions}
    state = TrainingState(parts, torch.zeros(len(plan.train), device=plan.placement.device))
    listen = run is not None
    with (
        nullcontext() if run is None else closing(run),
        LiveProgress(plan.task, plan.recipe.epochs, len(plan.train), progress) as reporter,
        StopRequest(listen) as stop,
    ):
        if run is None:
            status = train(plan, state, None, stop, reporter, save=lambda state: None)
        elif (done := run.result) is not None:
            plan.model.load_state_dict(safetensors.torch.load_file(run.path / "model.safetensors"))
            reporter.note(f"{run.path} is complete; nothing to do.")
            return Result("complete", done["metrics"], done["history"], run.path)
        else:
            status = _run_in_folder(plan, run, state, stop, reporter)
    return Result(status, _last_metrics(state.history), state.history, run.path if run else None, stop.requested)


def _run_in_folder(
    plan: Plan, run: RunFolder, state: TrainingState, stop: StopRequest, reporter: LiveProgress
) -> Status:
    random, refused = _resume(run, state, reporter)
    run.begin(state.epoch, plan.placement.device)
    for reason in refused:
        run.log("refused", reason=reason)

    def save(state: TrainingState) -> None:
        if state.batch == 0:
            run.log_epoch(state.history[-1])
        run.checkpoints.save(state.snapshot(), state.step)

    try:
        status = train(plan, state, random, stop, reporter, save)
    except DivergedError as error:
        run.checkpoints.wait()
        run.log("diverged", message=str(error))
        kept = run.checkpoints.latest()
        raise DivergedError(f"{error}" + (f" The last good checkpoint is {kept}." if kept else "")) from None
    if status == "complete":
        run.finish(plan.model, {"metrics": _last_metrics(state.history), "history": state.history})
    else:
        run.checkpoints.wait()
        run.log("stopped", step=state.step)
        reporter.note(f"stopped after step {state.step} and saved; the same command again goes on from there.")
    return status


def _resume(run: RunFolder, state: TrainingState, reporter: LiveProgress) -> tuple[dict[str, Tensor] | None, list[str]]:
    """Restore the newest sound checkpoint; return the random state to go on with within an epoch, and what was refused.

    That is said even where there is no progress to see.
    """
    snapshot, refused = run.checkpoints.load_latest()
    for reason in refused:
        logger.warning("%s. The checkpoint before it is used.", reason)
    if snapshot is None:
        return None, refused
    state.restore(snapshot)
    reporter.note(f"going on in {run.path} after step {state.step} (epoch {state.epoch}).")
    return (snapshot["random"] if state.batch else None), refused


def _last_metrics(history: list[dict[str, Any]]) -> dict[str, float]:
    return dict(history[-1]["metrics"]) if history else {}
