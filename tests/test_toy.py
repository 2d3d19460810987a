"""The baseline problem: F, its minima, paths, how they are judged, and the experiment at a tiny size."""

import json
import math
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cogd import toy

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENT = ROOT / "experiments" / "figure_beale.py"
OPTIMIZERS = list(toy.LEARNING_RATES)
COORDINATED = [("descent", 1, 1e-3), ("paper", 2, 0.1), ("descent", 3, 1.0), ("rollback", 1, 1e-3)]


@pytest.mark.parametrize(
    ("x1", "x2", "expected"),
    [
        (0.0, 0.0, 1.5**2 + 2.25**2 + 2.62**2),
        (2.0, 0.0, 0.5**2 + 0.25**2 + 0.62**2 + 2.0),
        (3.0, 0.5, 0.0 + 0.0 + 0.005**2 + 3.0 + 0.25),  # Beale's own minimum, but for the printed 2.62
        (-1.0, 2.0, 0.5**2 + 0.75**2 + 4.38**2 + 1.0 + 4.0),
    ],
)
def test_objective_by_hand(x1, x2, expected):
    assert float(toy.objective(*toy.positions([(x1, x2)])[0])) == pytest.approx(expected, abs=1e-12)


def test_the_papers_constants():
    """Rates 0.001, 0.005, 0.1, the gate open where |x1| < 1 and |x2| >= 0.5; momentum and start are ours."""
    assert toy.LEARNING_RATES == {"sgd": 0.001, "momentum": 0.005, "adam": 0.1}
    momentum = {name: toy.base_optimizer(name, [torch.zeros(1)], 0.1).defaults.get("momentum") for name in OPTIMIZERS}
    assert momentum == {"sgd": 0.0, "momentum": 0.9, "adam": None}
    below_1, below_half = math.nextafter(1.0, 0.0), math.nextafter(0.5, 0.0)
    starts = toy.positions([(below_1, 0.5), (-below_1, -0.5), (1.0, 0.5), (-1.0, 0.5), (below_1, below_half)])
    assert toy.gate_open(starts).tolist() == [True, True, False, False, False]
    assert toy.gate_open(toy.positions([toy.START])).item()
    assert toy.START == (0.5, 1.5)


def test_derivatives_equal_finite_differences():
    x, h = toy.positions([(0.7, -1.3), (-1.5, 1.4), (2.1, 0.2), (-0.3, 0.9)]), 1e-5
    gradients, hessians = toy.derivatives(x)
    for i, step in enumerate(toy.positions([(h, 0.0), (0.0, h)])):
        ahead, behind = x + step, x - step
        slope = (toy.objective(*ahead.T) - toy.objective(*behind.T)) / (2 * h)
        curvature = (toy.derivatives(ahead)[0] - toy.derivatives(behind)[0]) / (2 * h)
        torch.testing.assert_close(gradients[:, i], slope, rtol=1e-7, atol=1e-7)  # h^2 times third derivatives near 100
        torch.testing.assert_close(hessians[:, i], curvature, rtol=1e-6, atol=1e-6)


def test_minima_are_stationary_and_lowest_around():
    minima = toy.minima()
    gradients, hessians = toy.derivatives(minima)
    assert gradients.abs().max() < 1e-7  # positions are rounded at 1e-9, and curvatures are below 100
    assert (torch.linalg.eigvalsh(hessians) > 0).all()
    values = toy.objective(*minima.T)
    torch.testing.assert_close(values, torch.tensor([2.51, 4.81], dtype=torch.float64), rtol=0, atol=0.005)
    angles = torch.linspace(0, 6.28, 64, dtype=torch.float64)
    circle = 0.01 * torch.stack([angles.cos(), angles.sin()], -1)
    assert all(
        (toy.objective(*(minimum + circle).T) > value).all() for minimum, value in zip(minima, values, strict=True)
    )


def test_no_minimum_on_the_kink():
    """0 must lie in d Beale / d x1 + [-1, 1] for (0, x2) to be a minimum, and x2 must be stationary: 2 x2 = 0."""
    above, _ = toy.derivatives(toy.positions([(1e-12, 0.0)]))
    assert above[0, 0] - 1.0 == pytest.approx(-2 * (1.5 + 2.25 + 2.62))
    assert abs(above[0, 0] - 1.0) > 1.0


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("rule", "order", "scale"), COORDINATED)
def test_a_batch_equals_single_starts_exactly(name, rule, order, scale):
    starts = toy.start_grid(9, 3.0)
    together = toy.paths(starts, name, rule=rule, order=order, scale=scale, steps=60)
    for i in (0, 7, 30, 40, 57, 80):
        alone = toy.paths(starts[i : i + 1], name, rule=rule, order=order, scale=scale, steps=60)
        torch.testing.assert_close(alone[:, 0], together[:, i], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_without_a_rule_it_is_the_plain_optimizer(name):
    starts = toy.start_grid(5, 1.0)

    def build(x1, x2):
        return toy.base_optimizer(name, [x1, x2], toy.LEARNING_RATES[name])

    plain = toy.follow(starts, build)
    assert plain.isfinite().all()
    assert torch.equal(toy.paths(starts, name, rule=None), plain)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_starts_whose_gate_opens_differ(name):
    starts = toy.start_grid(15, 2.0)
    plain = toy.paths(starts, name, rule=None)
    coordinated = toy.paths(starts, name, rule="descent", scale=0.1)
    # the first step has no earlier values and the last position judges no gate any more
    opened = toy.gate_open(plain[1:-1]).any(0)
    differs = (coordinated.nan_to_num() != plain.nan_to_num()).any(-1).any(0)
    assert opened.any()
    assert not opened.all()
    assert not (differs & ~opened).any()


def test_first_correction_of_sgd_by_hand():
    """Two steps of descent: x1(2) = x1(1) - eta F_1 - scale eta F_2 (delta x2 / delta x1), gradients taken at x(1)."""
    start, rate = toy.positions([(0.5, 1.5)]), 1e-3
    path = toy.paths(start, "sgd", scale=0.7, steps=2)
    (g0, _), (g1, _) = toy.derivatives(path[0]), toy.derivatives(path[1])
    assert torch.equal(path[1], start - rate * g0)
    slope = (path[1] - path[0])[0, 1] / (path[1] - path[0])[0, 0]
    expected = path[1, 0, 0] - rate * g1[0, 0] - 0.7 * rate * g1[0, 1] * slope
    assert float(path[2, 0, 0]) == pytest.approx(float(expected), rel=1e-14)


def test_length_of_a_straight_line():
    line = torch.linspace(0, 1, 8, dtype=torch.float64)[:, None, None] * toy.positions([(3.0, -4.0)])
    torch.testing.assert_close(toy.path_lengths(line), torch.tensor([5.0], dtype=torch.float64))


def ends_at(*positions):
    """Paths of one step that end there."""
    end = toy.positions(positions)
    return torch.stack([torch.zeros_like(end), end])


def test_outcomes():
    best, other = toy.minima().tolist()
    nan, inf = float("nan"), float("inf")
    ends = [best, other, [best[0] + 0.09, best[1]], [best[0] + 0.11, best[1]], [nan, 0.0], [0.0, -inf], [10.5, 0.0]]
    assert toy.outcomes(ends_at(*ends)).tolist() == [0, 1, 0, 2, 3, 3, 3]
    there_and_back = torch.stack([toy.positions([best]), toy.positions([(0.0, 11.0)]), toy.positions([best])])
    assert toy.outcomes(there_and_back).tolist() == [3]
    assert toy.final_values(there_and_back).tolist() == toy.path_lengths(there_and_back).tolist() == [inf]


def test_comparison_counts_divergence_and_keeps_it_out_of_averages():
    nan = float("nan")
    plain = ends_at((2.0, 0.0), (2.0, 0.0), (2.0, 0.0), (nan, 0.0), (nan, 0.0))
    coordinated = ends_at((2.001, 0.0), (1.0, 0.0), (nan, 0.0), (2.0, 0.0), (nan, 0.0))
    assert toy.verdicts(coordinated, plain).tolist() == [0, -1, -1, 1, 0]
    c = toy.compare(coordinated, plain)
    assert (c.improved, c.unchanged, c.worsened, c.shorter, c.longer) == (0.2, 0.4, 0.4, 0.2, 0.0)
    assert c.length_ratio["0%"] == pytest.approx(0.5)
    assert all(
        torch.tensor(list(quantiles.values())).isfinite().all() for quantiles in (c.length_ratio, c.value_difference)
    )
    assert c.transitions == {"unfinished -> diverged": 1, "diverged -> unfinished": 1}
    assert c.outcomes["diverged"] == 0.4
    assert toy.compare(plain, plain).touched == 0.0
    assert toy.compare(coordinated[:, 4:], plain[:, 4:]).length_ratio == {}


def test_endings():
    reached, gone = toy.ending(ends_at((3.0, 4.0))), toy.ending(ends_at((0.0, 0.0), (float("nan"), 0.0)), start=1)
    assert (reached.x1, reached.x2, reached.length, reached.outcome) == (3.0, 4.0, 5.0, "unfinished")
    assert (gone.x1, gone.value, gone.length, gone.outcome) == (None, None, None, "diverged")


def test_sgd_diverges_from_far_starts_and_not_from_near_ones():
    paths = toy.paths(toy.positions([(4.5, 4.5), (1.0, 1.0)]), "sgd")
    assert toy.diverged(paths).tolist() == [True, False]
    assert torch.equal(paths[:, 1:], toy.paths(toy.positions([(1.0, 1.0)]), "sgd"))


def test_the_printed_constants_hardly_change_the_path():
    for coordinated, plain in toy.against_plain(toy.start_grid(21, 2.0)).values():
        comparison = toy.compare(coordinated, plain)
        assert comparison.unchanged > 0.97
        assert comparison.touched > 0.3


def test_unknown_optimizer():
    with pytest.raises(ValueError, match="optimizer must be one of 'sgd', 'momentum', 'adam'; got 'lion'"):
        toy.paths(toy.positions([(1.0, 1.0)]), "lion")  # type: ignore[arg-type]


def test_the_experiment_runs(tmp_path):
    subprocess.run([sys.executable, EXPERIMENT, "--quick", "--into", tmp_path], check=True, capture_output=True)
    results = json.loads((tmp_path / "experiments/results/beale.json").read_text(), parse_constant=pytest.fail)
    assert results["versions"]["torch"] == torch.__version__
    assert {row["kind"] for row in results["printed"]} == {"cogd", "rate", "x1 rate", "push"}
    figures = {file.name: file.stat().st_size for file in (tmp_path / "docs/figures").iterdir()}
    assert set(figures) == {"beale-paths.png", "beale-starts.png"}
    assert max(figures.values()) < 300_000
    assert "| Adam |" in (tmp_path / "docs/results/beale.md").read_text()


def test_the_page_holds_the_numbers_of_the_results_file():
    page = runpy.run_path(str(EXPERIMENT))["page"]
    results = json.loads((ROOT / "experiments/results/beale.json").read_text())
    assert page(results) == (ROOT / "docs/results/beale.md").read_text()
