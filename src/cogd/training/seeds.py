"""The same run with several seeds, one folder each: one after the other, or several at once."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from cogd.training.data import Data
from cogd.training.fit import fit
from cogd.training.recipe import Recipe
from cogd.training.runner import Result
from cogd.training.together import Job, run_together, seeded


def fit_seeds(
    build: Callable[[], nn.Module],
    data: Data,
    recipe: Recipe,
    seeds: Iterable[int],
    folder: str | Path,
    *,
    at_once: int = 1,
    **options: Any,
) -> list[Result]:
    """Train a fresh network for every seed, which also draws its weights, in `folder`/seed-N; stop when one is stopped.

    `options` are those of `fit`. What is complete is not run again, so that the same call resumes the whole. With
    `at_once`, so many runs share the device, each in a process of its own: `build` and `options` must be picklable, and
    the data must be what its `source` names.

    >>> from tempfile import TemporaryDirectory
    >>> from cogd.models import build
    >>> from cogd.training import read_recipe
    >>> from cogd.training.data import load_data
    >>> digits, recipe = load_data("digits"), read_recipe("digits", epochs=1)
    >>> with TemporaryDirectory() as folder:
    ...     runs = fit_seeds(lambda: build("digits", 10), digits, recipe, [0, 1], folder, progress=False)
    >>> [run.folder.name for run in runs]
    ['seed-0', 'seed-1']
    """
    if (Path(folder) / "config.json").exists():
        raise ValueError(f"{folder} holds a single run; choose another folder for runs of several seeds.")
    if at_once > 1:
        return _fit_together(build, data, recipe, seeds, Path(folder), at_once, options)
    results: list[Result] = []
    for seed in seeds:
        results.append(
            fit(seeded(build, seed), data, recipe, seed=seed, folder=Path(folder) / f"seed-{seed}", **options)
        )
        if results[-1].status == "stopped":
            break
    return results


def _fit_together(
    build, data: Data, recipe, seeds, folder: Path, at_once: int, options: dict[str, Any]
) -> list[Result]:
    own = {name: value for name, value in options.items() if name not in ("device", "progress")}
    jobs = [Job(build, data.source, recipe, seed, folder / f"seed-{seed}", own) for seed in seeds]
    console = Console(stderr=True, quiet=not options.get("progress", True))
    complete: list[Path] = []

    def told(message: str) -> None:
        console.print(message, highlight=False, markup=False, soft_wrap=True)

    def when_complete(job: Job, result: Result) -> None:
        complete.append(job.folder)
        metrics = "  ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
        told(f"{job.folder} is complete ({len(complete)} of {len(jobs)}): {metrics}")

    told(f"{len(jobs)} runs, {at_once} at once; {jobs[0].folder / 'log.jsonl'} tells how the first goes.")
    run_together(jobs, at_once, options.get("device", "auto"), when_complete=when_complete, note=told)
    return [job.result() for job in jobs]
