"""Couple two factors by hand, and find out whether coordination helps: against as many learning rates.

    python examples/optimization.py      # half a minute on two cores; draws optimization.png

A sparse x and a matrix A explain vectors b of which entries are missing: the smallest problem of the paper's kind,
F(A, x) = 1/2 sum over observed entries (b - A x)^2 + penalty ||x||_1.
"""

import argparse
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from cogd import CoGD, Coupling

PENALTY, ROWS, FACTORS, COLUMNS = 0.1, 30, 8, 40
RATES = [0.002, 0.005, 0.01, 0.02, 0.05, 0.1]
RULES = [{"rule": "descent", "order": k, "scale": s} for k, s in product((1, 2, 3), (0.001, 0.01, 0.1))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("optimization.png"))
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that everything works")
    options = parser.parse_args()
    seeds, steps = (range(2), 5) if options.quick else (range(10), 300)

    def curves(rate: float, **settings: Any) -> Tensor:
        return torch.stack([solve(seed, steps, rate, **settings) for seed in seeds])

    plain = {rate: curves(rate, rule=None) for rate in RATES}
    rate = min(plain, key=lambda rate: float(plain[rate][:, -1].nan_to_num(torch.inf).mean()))
    coordinated = {f"order {s['order']}, scale {s['scale']:g}": curves(rate, **s) for s in RULES}
    found = {f"no rule, rate {r:g}": runs for r, runs in plain.items()} | coordinated
    print(f"F at the end, and less that of no rule at its best rate {rate:g}: mean, deviation, n = {len(seeds)}")
    for name, runs in found.items():
        ends, gaps = runs[:, -1], (runs - plain[rate])[:, -1]
        print(f"{name:22} {ends.mean():8.3f}  {gaps.mean():+8.3f} {gaps.std():7.3f}  {int((gaps < 0).sum())} lower")
    draw({name: (runs - plain[rate])[runs.isfinite().all(1)] for name, runs in coordinated.items()}, options.output)


def solve(seed: int, steps: int, rate: float, **settings: Any) -> Tensor:
    """Return F at every step from one start; what the seed draws is the same for all settings."""
    torch.manual_seed(seed)
    truth = torch.randn(FACTORS, COLUMNS) * (torch.rand(FACTORS, COLUMNS) < 0.2)
    b, observed = torch.randn(ROWS, FACTORS) @ truth, torch.rand(ROWS, COLUMNS) < 0.6
    A = torch.nn.Parameter(0.3 * torch.randn(ROWS, FACTORS))
    x = torch.nn.Parameter(0.3 * torch.randn(FACTORS, COLUMNS))
    coupling = Coupling(sparse=x, partner=A, sparse_dim=0, partner_dim=1, name="rows of x with columns of A")
    optimizer = CoGD(torch.optim.SGD([A, x], lr=rate), [coupling], period=5, **settings)
    values = []
    for _ in range(steps):
        optimizer.zero_grad()
        F = 0.5 * ((b - A @ x)[observed]).square().sum() + PENALTY * x.abs().sum()
        F.backward()
        optimizer.step()
        values.append(F.detach())
    return torch.stack(values)


def draw(gaps: dict[str, Tensor], output: Path) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), layout="constrained", sharey=True)
    for i, (name, runs) in enumerate(gaps.items()):
        order, scale = name.split(", ")
        axes[i // 3].plot(runs.T, f"C{i % 3}", linewidth=0.5, alpha=0.6)
        axes[i // 3].plot(runs.mean(0), f"C{i % 3}", linewidth=2, label=f"{scale}, {len(runs)} of them finite")
        axes[i // 3].set(title=order, xlabel="step", yscale="symlog", ylim=(-10, 100))
        axes[i // 3].legend(fontsize=8)
    axes[0].set_ylabel("F less that of no rule")
    figure.savefig(output, dpi=70)


if __name__ == "__main__":
    main()
