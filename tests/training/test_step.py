"""What a recorded step computes, as far as it needs no GPU."""

import torch

from cogd.models import build
from cogd.training import read_recipe
from cogd.training.metrics import cross_entropy_objective
from cogd.training.placement import choose_placement
from cogd.training.recorded import compiled


def test_runs_alike_share_what_is_compiled(monkeypatch):
    """Seeds in turn, and rules, wait for the compiler once."""
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    usual = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **_: usual(function, backend=backend, dynamic=False))
    compiled.cache_clear()
    placement = choose_placement("cpu", read_recipe("digits"))
    for seed in range(2):
        torch.manual_seed(seed)
        model, inputs, targets = build("digits", 10), torch.randn(4, 1, 8, 8), torch.arange(4)
        loss = compiled(cross_entropy_objective(0.1), placement, "digits")(model, inputs, targets)
        loss.backward()
        written = cross_entropy_objective(0.1)(model, inputs, targets)
        torch.testing.assert_close(loss, written)
    assert len(graphs) == 1
    compiled.cache_clear()
