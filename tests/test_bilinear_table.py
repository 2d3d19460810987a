"""The experiment on bilinear problems: its controls are what they are called, and the script as people call it."""

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import bilinear_problems as problems
import pytest
import table_bilinear as table
import torch

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "experiments/table_bilinear.py"


def shortened(name, seeds, steps):
    task = problems.task(problems.PROBLEMS[name], seeds)
    return problems.Task(task.models, task.train, task.test, steps, task.rows)


def test_digits_that_judge_are_none_of_those_that_choose():
    choosing, judging = (problems.digits(seed)[0] for seed in (0, problems.HELD_OUT))
    assert len(choosing) + len(judging) == 1797
    assert not {tuple(image) for image in choosing.tolist()} & {tuple(image) for image in judging.tolist()}


@pytest.mark.parametrize("draw", ["sparse_coding", "completion"])
def test_the_exact_partner_is_stationary(draw):
    model, data, _ = getattr(problems, draw)(3)
    with torch.no_grad():
        model.A.copy_(problems.best_partner(model.x[None], tuple(values[None] for values in data))[0])
    model(*data)[0].backward()
    assert model.A.grad.abs().max() < 1e-3 * model.x.grad.abs().max()


@pytest.mark.parametrize("name", ["coding", "completion", "adaptation", "slimming"])
def test_what_runs_side_by_side_ends_where_it_ends_alone(name):
    trials = table.cogd_trials([0.01, 0.02], 2, problems.PROBLEMS[name].ways)
    builds = [table.builder("momentum", settings) for settings in trials]
    together = problems.follow(shortened(name, (0, 1), 4), builds, every=1)
    assert together.shape == (5, 2, 2)
    for i, j in product((0, 1), (0, 1)):
        alone = problems.follow(shortened(name, (j,), 4), [builds[i]], every=1)
        torch.testing.assert_close(together[:, i : i + 1, j : j + 1], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("exact", ["", "always"])
def test_a_run_is_the_plain_loop(exact):
    drawn: Any = problems.sparse_coding(0)
    model, data, _ = drawn
    rates = [0.01] if exact else [0.01, 0.03]
    build = table.builder("sgd", {"rates": rates, "exact": exact})
    found = problems.follow(shortened("coding", (0,), 3), [build], exact, 1)
    values = []
    for _ in range(4):
        if exact:
            best = problems.best_partner(model.x.detach()[None], tuple(of[None] for of in data))
            model.A.detach().copy_(best[0])
        F = model(*data)[0]
        values.append(F.detach())
        gradients = torch.autograd.grad(F, [model.x, model.A])
        for side, rate, gradient in zip([model.x, model.A], rates, gradients, strict=False):
            side.detach().sub_(rate * gradient)
    torch.testing.assert_close(found.flatten(), torch.stack(values))


def test_a_push_grows_what_its_gate_opens_for_at_its_periods():
    models: list[Any] = list(problems.task(problems.PROBLEMS["completion"], (0, 1)).models)
    start = [model.x.detach().clone() for model in models]
    settings = {"rates": [0.0, 0.0], "gate": "lower half", "project": "sparse", "swap": False}
    push = {"sign": "grow", "share": 0.5, "period": 2}
    optimizer = table.builder("sgd", {**settings, "push": push})(models)
    for step in (1, 2, 3):
        for model in models:
            model.x.grad, model.A.grad = torch.ones_like(model.x), torch.ones_like(model.A)
        optimizer.step()
        for model, x in zip(models, start, strict=True):
            norms = x.abs().sum(1)
            low = (norms < norms.quantile(0.5)).unsqueeze(1)
            torch.testing.assert_close(model.x.detach(), torch.where(low & (step > 1), 1.5 * x, x))
            model.x.detach().copy_(x if step == 3 else model.x)


def test_no_run_counts_as_worse_than_its_start():
    assert table.finals(torch.tensor([[2.0, 2.0, 2.0], [torch.inf, 3.0, 1.0]])).tolist() == [2.0, 2.0, 1.0]


def test_steps_are_counted_to_the_first_grade_at_the_goal():
    curves = torch.tensor([[4.0, 4.0], [3.0, 4.0], [2.0, 5.0]])
    assert table.summary(curves, torch.tensor([3.0, 1.0]), 5) == {"final": [2.0, 4.0], "steps": [5, None]}


def test_the_quick_table_is_whole_and_made_once(tmp_path):
    command = [sys.executable, str(SCRIPT), "--quick", "--into", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    file, page = tmp_path / "experiments/results/bilinear.json", tmp_path / "docs/results/bilinear.md"
    results, text = json.loads(file.read_text()), page.read_text()
    assert len(results["units"]) == 12
    assert results["commit"]
    for name, unit in results["units"].items():
        assert len(unit["methods"]) == (8 if name.startswith(("coding", "completion")) else 6)
        for method in unit["methods"].values():
            assert len(method["final"]) == len(method["steps"]) == 3
            assert method["chosen"] in [trial["settings"] for trial in method["trials"]]
    mean = sum(results["units"]["coding, sgd"]["methods"]["one rate"]["final"]) / 3
    assert f" | {mean:.2f} | " in next(
        line for line in text.splitlines() if line.startswith("| SGD | one rate | 16 | 3 |")
    )

    del results["units"]["completion, adam"]
    file.write_text(json.dumps(results))
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again.stdout.startswith("completion, adam:")
    assert len(again.stdout.splitlines()) == 1
    others = json.loads(file.read_text())["units"]
    assert all(others[name] == unit for name, unit in results["units"].items())

    file.write_text(json.dumps(results | {"config": {}}))
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "remove it to measure anew" in refused.stderr
