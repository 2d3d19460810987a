"""The rule's memory beside the base optimizer's, in the layout that checkpoints and trainers know."""

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any

from torch import Tensor

PREFIX = "cogd_"


class JointState(MutableMapping):
    """Both states of each parameter as one live mapping; what is written goes to its owner.

    As in any optimizer a parameter without state has empty entries; reading them, here, leaves the base's state alone.
    Without the memory of one parameter the rule starts afresh.
    """

    def __init__(
        self,
        base: MutableMapping[Tensor, dict[str, Any]],
        held: dict[Tensor, Tensor],
        memory_of: Callable[[Tensor], dict[str, Any]],
        forget: Callable[[], None],
    ):
        self.base, self.held, self.memory_of, self.forget = base, held, memory_of, forget

    def __contains__(self, parameter: object) -> bool:
        return parameter in self.base or parameter in self.held

    def __getitem__(self, parameter: Tensor) -> "Entries":
        return Entries(self, parameter)

    def get(self, parameter: Tensor, default: Any = None) -> Any:
        if parameter not in self:
            return default
        return self[parameter]

    def __setitem__(self, parameter: Tensor, entries: MutableMapping[str, Any]) -> None:
        entries = dict(entries)  # which may be this parameter's own
        if parameter in self.base:
            self.base[parameter] = {}
        self[parameter].update(entries)

    def __delitem__(self, parameter: Tensor) -> None:
        if parameter not in self:
            raise KeyError(parameter)
        self.base.pop(parameter, None)
        if parameter in self.held:
            self.forget()

    def __iter__(self) -> Iterator[Tensor]:
        return iter(dict.fromkeys((*self.base, *self.held)))

    def __len__(self) -> int:
        return len(dict.fromkeys((*self.base, *self.held)))


class Entries(MutableMapping):
    """The entries of one parameter; of the rule's own, its tensor can be replaced, its counts cannot."""

    def __init__(self, state: JointState, parameter: Tensor):
        self._state, self._parameter = state, parameter

    def _all(self) -> dict[str, Any]:
        return {**self._state.base.get(self._parameter, {}), **self._state.memory_of(self._parameter)}

    def __getitem__(self, name: str) -> Any:
        return self._all()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if not name.startswith(PREFIX):
            self._state.base.setdefault(self._parameter, {})[name] = value
        elif isinstance(value, Tensor):
            self._state.held[self._parameter] = value

    def __delitem__(self, name: str) -> None:
        del self._state.base.get(self._parameter, {})[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


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
