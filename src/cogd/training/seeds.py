"""The same run with several seeds, one folder each, one after the other."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cogd.training.data import Data
from cogd.training.fit import fit
from cogd.training.recipe import Recipe
from cogd.training.runner import Result


def fit_seeds(
    build: Callable[[], nn.Module],
    data: Data,
    recipe: Recipe,
    seeds: Iterable[int],
    folder: str | Path,
    **options: Any,
) -> list[Result]:
    """Train a fresh network for every seed, which also draws its weights, in `folder`/seed-N; stop when one is stopped.

    `options` are those of `fit`. What is complete is not run again, so that the same call resumes the whole.
    """
    results: list[Result] = []
    for seed in seeds:
        results.append(
            fit(seeded(build, seed), data, recipe, seed=seed, folder=Path(folder) / f"seed-{seed}", **options)
        )
        if results[-1].status == "stopped":
            break
    return results


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a network whose weights the seed decides; torch's random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()
