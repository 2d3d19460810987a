"""Prune a network of your own to half its multiply-accumulates, save it, and load it again.

python examples/pruning.py      # half a minute on two cores; draws pruning.png, writes runs/small
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn

from cogd.pruning import load_pruned, prune
from cogd.training import fit, read_recipe


def network() -> nn.Module:
    """Return a network that is not one of the library's: any module whose forward pass autograd can trace."""
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
        nn.Conv2d(24, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 48, 3, padding=1, bias=False), nn.BatchNorm2d(48), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("pruning.png"))
    parser.add_argument("--small", type=Path, default=Path("runs/small"), help="where the pruned network goes")
    parser.add_argument("--quick", action="store_true", help="a tiny run that only shows that everything works")
    options = parser.parse_args()
    epochs = 1 if options.quick else 8
    torch.manual_seed(0)

    # Train it. "digits" may be (train, test): two iterables of (inputs, targets) batches, such as DataLoaders.
    model = network()
    fit(model, "digits", read_recipe("digits", epochs=epochs), progress=False)

    # Masks are learned from what the network itself answers, then the weakest channels go, then it is fine-tuned.
    pruned = prune(model, "digits", target_macs=0.5, epochs=epochs, finetune_epochs=epochs, progress=False)
    report = pruned.report()
    accuracy = {stage: metrics["accuracy"] for stage, metrics in report["metrics"].items()}
    print(f"{report['macs']['share']:.1%} of the multiply-accumulates, {report['parameters']['share']:.1%} parameters")
    print(", ".join(f"{stage} {value:.1%}" for stage, value in accuracy.items()))

    # Two files, weights.safetensors and recipe.json; loading needs the function that makes the network before.
    pruned.save(options.small, overwrite=True)
    loaded, images = load_pruned(network, options.small), pruned.inputs[0].cpu()
    torch.testing.assert_close(loaded(images), pruned.model.cpu()(images))
    draw(report["channels"], options.output)


def draw(channels: dict[str, list[int]], output: Path) -> None:
    figure, axis = plt.subplots(figsize=(6, 2.2), layout="constrained")
    kept, whole = zip(*channels.values(), strict=True)
    axis.barh(list(channels), whole, color="0.85", label="removed")
    axis.barh(list(channels), kept, color="C0", label="kept")
    axis.set(xlabel="channels", ylabel="layer")
    axis.invert_yaxis()
    axis.legend()
    figure.savefig(output, dpi=80)


if __name__ == "__main__":
    main()
