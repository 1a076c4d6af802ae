"""Objects that a script names beside its models and optimizers: reads and restores their state."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence

from . import _blob, _lib, _plain
from ._loaders import Cursor, can_follow


def _sequence_of(value: Any) -> List[Any]:
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


class Extras:
    """What a script names beside model and optimizer: objects with state_dict, generators, mappings
    and lists."""

    def __init__(self, scheduler: Any, dataloader: Any, extra: Optional[Mapping[str, Any]]) -> None:
        self._late: Dict[str, Any] = {
            f"scheduler{i}": each for i, each in enumerate(_sequence_of(scheduler))
        }
        self._early: Dict[str, Any] = {
            f"dataloader{i}": Cursor(f"dataloader{i}", each) if can_follow(each) else each
            for i, each in enumerate(_sequence_of(dataloader))
        }
        for name, each in (extra or {}).items():
            early = each.__class__.__name__ == "Generator" and hasattr(each, "get_state")
            (self._early if early else self._late)[f"extra.{name}"] = each

    def replace_schedulers(self, scheduler: Any) -> None:
        """By as many others."""
        for i, each in enumerate(_sequence_of(scheduler)):
            self._late[f"scheduler{i}"] = each

    def cursors(self) -> List[Cursor]:
        """Of torch's data loaders."""
        return [each for each in self._early.values() if isinstance(each, Cursor)]

    @staticmethod
    def _state_of(value: Any) -> Any:
        if isinstance(value, Cursor):
            return value.state()
        if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            return value.state_dict()
        if hasattr(value, "get_state") and hasattr(value, "set_state"):
            return value.get_state()
        return value if isinstance(value, (dict, list)) else None

    def _states(self, values: Dict[str, Any], job: Any) -> Dict[str, Any]:
        states: Dict[str, Any] = {}
        for name, value in list(values.items()):
            state = self._state_of(value)
            why = f"a {type(value).__name__} has no state_dict" if state is None else ""
            try:
                # Encoded here: a mapping may change before the blob is written.
                states[name] = _blob.encode(state, _plain.pack) if state is not None else b""
            except TypeError as error:
                why = str(error)
            if why:
                states.pop(name, None)
                del values[name]
                job.leave_out(_lib.OPAQUE, name, why)
        return states

    def has_late(self) -> bool:
        return bool(self._late)

    def early(self, job: Any) -> Dict[str, Any]:
        """The states of generators and data loaders, to be read right after an update."""
        return self._states(self._early, job) if self._early else {}

    def late(self, job: Any) -> Dict[str, Any]:
        """The states of all others, to be read before the next forward."""
        return self._states(self._late, job) if self._late else {}

    def load(self, states: Mapping[str, Any], job: Any) -> None:
        """Puts back what early and late gave."""
        values = {**self._early, **self._late}
        for name in sorted(set(states) ^ set(values)):
            job.say(
                f"{name} is in the {'snapshot' if name in states else 'script'} alone, and is not "
                "restored"
            )
        for name in set(states) & set(values):
            state, value = _blob.decode(states[name], _plain.unpack), values[name]
            if isinstance(value, Cursor):
                continue
            if hasattr(value, "load_state_dict"):
                value.load_state_dict(state)
            elif hasattr(value, "set_state"):
                value.set_state(state)
            elif isinstance(value, dict):
                value.clear()
                value.update(state)
            else:
                value[:] = state

    def load_cursors(self, by_rank: Sequence[Mapping[str, Any]], same: bool, job: Any) -> None:
        """Puts back the positions in torch's data loaders: what `early` gave on this rank, or if
        there were not the same ranks, on each of them."""
        for cursor in self.cursors():
            found = [states[cursor.name] for states in by_rank if cursor.name in states]
            why = cursor.load([_blob.decode(each, _plain.unpack) for each in found], same)
            if why:
                job.leave_out(_lib.OPAQUE, cursor.name, why)
