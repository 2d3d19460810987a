"""The rule's memory beside the base optimizer's, in the layout that checkpoints and trainers know."""

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any

from torch import Tensor

PREFIX = "cogd_"


class JointState(MutableMapping):
    """Both states of each parameter as one live mapping; what is written goes to its owner."""

    def __init__(self, base: MutableMapping, held: dict[Tensor, Tensor], memory_of: Callable[[Tensor], dict[str, Any]]):
        self._base, self._held, self._memory_of = base, held, memory_of

    def __getitem__(self, parameter: Tensor) -> MutableMapping[str, Any]:
        return ChainMap(self._base[parameter], self._memory_of(parameter))

    def __setitem__(self, parameter: Tensor, entries: MutableMapping[str, Any]) -> None:
        mine, self._base[parameter] = _parted(entries)
        for value in mine.values():
            if isinstance(value, Tensor):
                self._held[parameter] = value

    def __delitem__(self, parameter: Tensor) -> None:
        del self._base[parameter]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(dict.fromkeys((*self._base, *self._held)))

    def __len__(self) -> int:
        return len(dict.fromkeys((*self._base, *self._held)))


def split_memory(state: dict[Any, dict[str, Any]]) -> tuple[dict[Any, dict[str, Any]], dict[Any, dict[str, Any]]]:
    """Return (the rule's, the base's) parts of a state_dict's "state"."""
    parted = {position: _parted(entries) for position, entries in state.items()}
    mine = {position: own for position, (own, _) in parted.items() if own}
    return mine, {position: rest for position, (_, rest) in parted.items() if rest}


def check_memory(memory: dict[Tensor, dict[str, Any]], remembered: Iterable[Tensor], key: str) -> None:
    """Refuse a checkpoint whose memory belongs to another rule or other couplings."""
    if not memory:
        return
    expected = {id(p): p for p in remembered}
    fits = {id(p) for p in memory} == set(expected)
    if not fits or any(key not in e or e[key].shape != p.shape for p, e in memory.items()):
        raise ValueError(
            "the checkpoint holds the memory of another rule or of other couplings than this optimizer's. Build it "
            "with the saved run's rule and couplings, or drop the entries named cogd_* to start the rule afresh."
        )


def _parted(entries: MutableMapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    mine = {key: value for key, value in entries.items() if key.startswith(PREFIX)}
    return mine, {key: value for key, value in entries.items() if key not in mine}
