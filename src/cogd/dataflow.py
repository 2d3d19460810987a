"""Which modules of a model hand their output straight to which others."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn

PASSING = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def neighbours_in(
    model: nn.Module, layers: tuple[type[nn.Module], ...], example_inputs: Sequence | None
) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield (producer, consumer) among the model's `layers`; identities and dropout let values pass."""
    watched = layers + PASSING
    calls = (
        _symbolic_calls(model, watched) if example_inputs is None else _observed_calls(model, watched, example_inputs)
    )
    maker: dict[Any, nn.Module] = {}
    for module, source, result in calls:
        producer = maker.get(source)
        if isinstance(module, layers):
            maker[result] = module
            if producer is not None:
                yield producer, module
        elif isinstance(module, PASSING) and producer is not None:
            maker[result] = producer


class _Tracer(fx.Tracer):
    def __init__(self, watched: tuple[type[nn.Module], ...]):
        super().__init__()
        self.watched = watched

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, self.watched) or super().is_leaf_module(m, module_qualified_name)


def _symbolic_calls(model: nn.Module, watched: tuple[type[nn.Module], ...]) -> Iterable[tuple[nn.Module, Any, Any]]:
    """Return (module, input, output) of the calls in the model's forward, without running it on data."""
    try:
        graph = _Tracer(watched).trace(model)
    except (TypeError, ValueError, RuntimeError, AttributeError, LookupError, AssertionError) as error:
        raise ValueError(
            f"cannot follow the data flow of this {type(model).__name__} without running it ({error}). "
            "Give example_inputs=(...), a tuple that its forward accepts, or couple by name with couple_named."
        ) from error
    modules = dict(model.named_modules(remove_duplicate=False))
    nodes = [node for node in graph.nodes if node.op == "call_module" and node.all_input_nodes]
    return [(modules[node.target], node.all_input_nodes[0], node) for node in nodes]


@torch.no_grad()
def _observed_calls(
    model: nn.Module, watched: tuple[type[nn.Module], ...], example_inputs: Sequence
) -> Iterable[tuple[nn.Module, Any, Any]]:
    """Return (module, input, output) of the calls in one run in evaluation mode.

    A tensor is told by its id and version, so that one changed in place counts as another.
    """
    calls, alive = [], []

    def record(module, args, kwargs, output):
        source = (*args, *kwargs.values())[0]
        alive.append((source, output))  # a freed tensor's id could come back
        calls.append((module, (id(source), source._version), (id(output), output._version)))

    modes = {module: module.training for module in model.modules()}
    hooks = [module.register_forward_hook(record, with_kwargs=True) for module in modes if isinstance(module, watched)]
    try:
        model.eval()(*example_inputs)
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes.items():
            module.training = training
    return calls
