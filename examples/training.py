"""Wrap the optimizer of a training loop of your own, and compare two rules with none over seeds.

python examples/training.py      # half a minute on two cores; draws training.png
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cogd import CoGD, couple_conv_norm
from cogd.optimizer import Rule

BATCH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("training.png"))
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that everything works")
    options = parser.parse_args()
    seeds, epochs = (range(2), 2) if options.quick else (range(5), 12)
    rules: tuple[Rule, ...] = (None, "paper", "rollback")
    curves = {rule: torch.tensor([train(seed, epochs, rule) for seed in seeds]) for rule in rules}
    for rule in rules[1:]:
        gaps = (curves[rule] - curves[None])[:, -1]
        print(f"{rule} less SGD alone: {gaps.mean():+.2%}, deviation {gaps.std():.2%}, n = {len(gaps)}")
    draw(curves, options.output)


def train(seed: int, epochs: int, rule: Rule) -> list[float]:
    """Return the test accuracy after every epoch of a usual loop; one line of it is about CoGD."""
    torch.manual_seed(seed)
    digits = load_digits()
    inputs, targets = torch.tensor(digits.images[:, None] / 16).float(), torch.tensor(digits.target)
    test, rest = slice(0, 400), slice(400, None)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    steps = len(inputs[rest]) // BATCH
    base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = CoGD(base, couple_conv_norm(model, active=0.7), rule=rule, period=steps)  # rule=None: SGD, bit for bit
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    accuracies = []
    for _ in range(epochs):
        for batch in torch.randperm(len(inputs[rest])).split(BATCH)[:steps]:
            optimizer.zero_grad()
            cross_entropy(model(inputs[rest][batch]), targets[rest][batch]).backward()
            optimizer.step()
        scheduler.step()
        accuracies.append(accuracy(model, inputs[test], targets[test]))
    for stats in optimizer.last_stats if seed == 0 else ():
        print(
            f"{rule}, {stats.name}: {stats.opened} of {stats.coordinates} gates open, moved by {stats.correction:.2g}"
        )
    return accuracies


@torch.no_grad()
def accuracy(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    correct = (model.eval()(inputs).argmax(1) == targets).float().mean()
    model.train()
    return float(correct)


def draw(curves: dict[Rule, Tensor], output: Path) -> None:
    figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
    for rule, runs in curves.items():
        epochs, mean, deviation = range(1, runs.shape[1] + 1), runs.mean(0), runs.std(0)
        axis.plot(epochs, mean, label=f"SGD with {rule}" if rule else "SGD alone")
        axis.fill_between(epochs, mean - deviation, mean + deviation, alpha=0.2)
    axis.set(xlabel="epoch", ylabel="accuracy", title="mean and deviation over seeds")
    axis.legend()
    figure.savefig(output, dpi=80)


if __name__ == "__main__":
    main()
