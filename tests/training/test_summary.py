"""The table over seeds against scipy's own paired test."""

import json
import math

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from cogd.cli import app
from cogd.training.summary import paired_difference, summarize


def write_runs(folder, values):
    for seed, value in values.items():
        run = folder / f"seed-{seed}"
        run.mkdir(parents=True)
        (run / "config.json").write_text(json.dumps({"seed": seed}))
        (run / "result.json").write_text(json.dumps({"metrics": {"accuracy": value}}))


@pytest.fixture
def runs(tmp_path):
    generator = np.random.default_rng(0)
    sgd = {seed: float(value) for seed, value in enumerate(generator.normal(0.95, 0.01, 6))}
    paper = {seed: value + float(generator.normal(0.005, 0.01)) for seed, value in sgd.items() if seed != 2}
    write_runs(tmp_path / "sgd", sgd)
    write_runs(tmp_path / "paper", paper)
    return tmp_path, sgd, paper


def test_rows_are_scipys(runs):
    folder, sgd, paper = runs
    first, second = summarize([folder / "sgd", folder / "paper"])
    assert (first.values, second.values, first.difference) == (sgd, paper, None)
    assert first.mean == pytest.approx(np.mean(list(sgd.values())))
    assert first.deviation == pytest.approx(np.std(list(sgd.values()), ddof=1))
    theirs = stats.ttest_rel(list(paper.values()), [sgd[seed] for seed in paper])
    low, high = theirs.confidence_interval(0.95)
    difference = second.difference
    assert difference is not None
    assert difference.pairs == 5
    assert difference.p == pytest.approx(theirs.pvalue)
    assert (difference.mean - difference.half_width, difference.mean + difference.half_width) == pytest.approx(
        (low, high)
    )


def test_few_runs_claim_nothing():
    assert paired_difference({0: 1.0}, {0: 0.5}) is None
    assert paired_difference({0: 1.0, 1: 1.0}, {2: 0.5, 3: 0.5}) is None
    same = paired_difference({0: 1.0, 1: 0.5}, {0: 1.0, 1: 0.5})
    assert same is not None
    assert (same.mean, same.p) == (0.0, 1.0)


def test_one_run_has_no_deviation(tmp_path):
    write_runs(tmp_path, {4: 0.9})
    [row] = summarize([tmp_path / "seed-4"])
    assert row.mean == 0.9
    assert math.isnan(row.deviation)


def test_what_is_missing_is_named(runs):
    folder, _, _ = runs
    with pytest.raises(FileNotFoundError, match="holds no finished run"):
        summarize([folder / "nothing"])
    with pytest.raises(ValueError, match="has no metric 'loss'; it has accuracy"):
        summarize([folder / "sgd"], "loss")
    (folder / "sgd/again").mkdir(parents=True)
    for name in ("config.json", "result.json"):
        (folder / "sgd/again" / name).write_text((folder / "sgd/seed-1" / name).read_text())
    with pytest.raises(ValueError, match="two runs of seed 1"):
        summarize([folder / "sgd"])


def test_seeds_are_trained_compared_and_resumed(tmp_path):
    def cogd(*arguments):
        return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})

    quick = ("--seeds", "2", "--epochs", "1", "--batch-size", "256")
    assert cogd("train", "-o", str(tmp_path / "sgd"), *quick).exit_code == 0
    compared = cogd(
        *("train", "-o", str(tmp_path / "back"), "--rule", "rollback"), *quick, "--baseline", str(tmp_path / "sgd")
    )
    assert compared.exit_code == 0, compared.output
    assert {path.name for path in (tmp_path / "back").iterdir()} == {"seed-0", "seed-1"}
    assert "(n = 2)" in compared.stdout
    assert cogd("compare", str(tmp_path / "sgd"), str(tmp_path / "back")).stdout == compared.stdout
    again = cogd("train", "-o", str(tmp_path / "sgd"), *quick)
    assert again.stderr.count("complete; nothing to do") == 2
    refused = cogd("train", "--baseline", str(tmp_path / "sgd"))
    assert "--baseline and --at-once are for several seeds" in refused.stderr
