"""Learning masks on a GPU: steps replayed from a CUDA graph are the steps as they are written."""

from typing import Any

import pytest
import torch
from conformance import needs_cuda

from cogd.models import build
from cogd.pruning import Gates, prune
from cogd.pruning.fista import FistaSGD
from cogd.pruning.gal import Discriminator, Game
from cogd.training import read_recipe
from cogd.training.metrics import minimize

BATCHES = [
    (torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(i)).double(), torch.arange(8)) for i in range(6)
]


def pruned(compile: str, **options: Any):
    torch.manual_seed(0)
    shared: dict[str, Any] = {"precision": "float32", "compile": compile}
    recipes: dict[str, Any] = {
        "recipe": read_recipe("prune_digits", epochs=4, step_epochs=1, **shared),
        "finetune_recipe": read_recipe("finetune_digits", epochs=1, **shared),
    }
    return prune(build("digits", 10).double(), (BATCHES, BATCHES), device="cuda", progress=False, **recipes, **options)


@needs_cuda
@pytest.mark.filterwarnings("ignore:::torch")
@pytest.mark.parametrize("compile", ["graph", "compiled"])
@pytest.mark.parametrize("distill", ["gal", "kd", "none"])
@pytest.mark.parametrize("rule", [None, "paper", "rollback"])
def test_recorded_equals_as_written(rule, distill, compile, monkeypatch):
    """24 steps of learning and 6 of fine-tuning; 3 of each phase come before its recording, 4 project."""
    replays = []

    class Counted(torch.cuda.CUDAGraph):
        def replay(self):
            replays.append(1)
            super().replay()

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Counted)
    ours = pruned(compile, rule=rule, distill=distill)
    assert len(replays) == (24 - 3 - (4 if rule else 0)) + (6 - 3)
    expected = pruned("off", rule=rule, distill=distill)
    assert ours.keep == expected.keep
    for stage, metrics in expected.metrics.items():
        assert ours.metrics[stage] == pytest.approx(metrics, rel=1e-4)


@pytest.mark.parametrize("kind", ["gal", "labels"])
def test_a_step_of_learning_compiles_whole(kind):
    """Without a break in the graph, and to the same loss and gradients."""
    torch.manual_seed(0)
    teacher, student = build("digits", 10).eval(), build("digits", 10)
    gates = Gates(student, BATCHES[0][0].float(), generator=torch.Generator().manual_seed(0))
    discriminator = Discriminator(10)
    objective = Game(teacher, discriminator) if kind == "gal" else minimize(torch.nn.CrossEntropyLoss())

    def loss(model: Any, inputs: Any, targets: Any) -> Any:
        return objective(model, inputs, targets)

    inputs, targets = BATCHES[0]
    learning = [*student.parameters(), *gates.parameters(), *(discriminator.parameters() if kind == "gal" else ())]
    found = []
    for way in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        value = way(student.train(), inputs.float(), targets)
        found.append([value.detach(), *torch.autograd.grad(value, learning)])
    torch.testing.assert_close(found[1], found[0])


def test_the_optimizer_reads_its_rates_and_strength_from_tensors():
    """As a recorded step does: rates change between replays, the penalty is lifted."""
    ours: list[torch.Tensor] = []
    expected: list[torch.Tensor] = []
    for rate, results in ((torch.tensor, ours), (float, expected)):
        gate = torch.nn.Parameter(torch.tensor([1.0, -0.02, 0.5]))
        optimizer = FistaSGD([{"params": [gate], "penalty": 0.5}], lr=0.1)
        for step, lr in enumerate((0.1, 0.1, 0.05, 0.05)):
            optimizer.param_groups[0]["lr"] = rate(lr)
            gate.grad = gate.detach() * 0.3
            optimizer.step()
            if step == 2:
                optimizer.lift_penalty()
            results.append(gate.detach().clone())
    torch.testing.assert_close(ours, expected)
