"""The rule's memory beside the base optimizer's, in the layout that checkpoints and trainers know."""

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from types import MappingProxyType
from typing import Any

from torch import Tensor

PREFIX = "cogd_"


class JointState(MutableMapping):
    """Both states of each parameter as one live mapping; what is written goes to its owner.

    As in any optimizer a parameter without state has empty entries, but reading them, here, leaves the base's alone.
    Without the memory of one parameter the rule starts afresh.
    """

    def __init__(
        self,
        base: MutableMapping,
        held: dict[Tensor, Tensor],
        memory_of: Callable[[Tensor], dict[str, Any]],
        forget: Callable[[], None],
    ):
        self._base, self._held, self._memory_of, self._forget = base, held, memory_of, forget

    def __contains__(self, parameter: object) -> bool:
        return parameter in self._base or parameter in self._held

    def __getitem__(self, parameter: Tensor) -> MutableMapping[str, Any]:
        entries = self._base[parameter] if parameter in self._base else MappingProxyType({})
        return ChainMap(entries, self._memory_of(parameter))  # type: ignore[arg-type]  # a proxy refuses to be written

    def get(self, parameter: Tensor, default: Any = None) -> Any:
        if parameter not in self:
            return default
        return self[parameter]

    def __setitem__(self, parameter: Tensor, entries: MutableMapping[str, Any]) -> None:
        mine, rest = _parted(entries)
        if rest or parameter in self._base:
            self._base[parameter] = rest
        for value in mine.values():
            if isinstance(value, Tensor):
                self._held[parameter] = value

    def __delitem__(self, parameter: Tensor) -> None:
        if parameter not in self:
            raise KeyError(parameter)
        self._base.pop(parameter, None)
        if parameter in self._held:
            self._forget()

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
