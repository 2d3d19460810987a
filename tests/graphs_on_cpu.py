"""CUDA graphs played on the CPU, so that what a recording holds fast can be tested without a GPU.

As on a GPU, recording changes nothing, a replay computes the recorded operations anew on the tensors that they had, and
what Python does between them is not repeated. Asking for a number fails while recording, and is warned of in
synchronization's debug mode.
"""

import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ASKS = (torch.ops.aten._local_scalar_dense.default,)


class Graph:
    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.replays = 0

    @torch.no_grad()
    def replay(self) -> None:
        self.replays += 1
        for function, args, options, results in self.calls:
            for was, now in zip(tree_leaves(results), tree_leaves(function(*args, **options)), strict=True):
                if isinstance(was, Tensor) and now.data_ptr() != was.data_ptr():
                    was.copy_(now)


class Recorder(TorchDispatchMode):
    """Stands for torch.cuda.graph: notes operations, and on leaving undoes what they did to tensors from outside."""

    def __init__(self, graph: Graph, **_: Any):
        super().__init__()
        self.graph, self.made, self.found = graph, set[int](), dict[int, tuple[Tensor, Tensor]]()

    def __enter__(self):
        self.chance = torch.get_rng_state()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        with torch.no_grad():
            for tensor, before in self.found.values():
                tensor.copy_(before)
        torch.set_rng_state(self.chance)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in ASKS:
            raise RuntimeError("operation not permitted when stream is capturing")
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in self.made:
                self.found.setdefault(tensor.data_ptr(), (tensor, tensor.clone()))
        results = func(*args, **(kwargs or {}))
        outside = {tensor.untyped_storage().data_ptr() for tensor, _ in self.found.values()}
        made = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves(results) if isinstance(leaf, Tensor)}
        self.made |= made - outside
        self.graph.calls.append((func, args, kwargs or {}, results))
        return results


class Watcher(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in ASKS:
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        return func(*args, **(kwargs or {}))


class Stream:
    def __init__(self, *_: Any):
        pass

    def wait_stream(self, _: Any) -> None:
        pass


def play_graphs(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Let torch.cuda's graphs be played; return those that are made."""
    graphs: list[Graph] = []
    watchers: list[Watcher] = []

    def new_graph() -> Graph:
        graphs.append(Graph())
        return graphs[-1]

    def set_debug_mode(mode: int | str) -> None:
        if mode == "warn":
            watchers.append(Watcher())
            watchers[-1].__enter__()
        else:
            watchers.pop().__exit__(None, None, None)

    played = {"Stream": Stream, "current_stream": Stream, "stream": lambda _: nullcontext(), "graph": Recorder}
    played |= {"CUDAGraph": new_graph, "get_sync_debug_mode": lambda: 0, "set_sync_debug_mode": set_debug_mode}
    for name, stand_in in played.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return graphs
