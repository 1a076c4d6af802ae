"""Moments of parameters that no optimizer has yet: a script that adds a group in mid-training does so again when it has resumed.

They wait here from cairn.attach to the first update. Whoever has been added by then gets its moments, and its group the
hyperparameters that it had.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

from . import _lib
from ._state import Entry, Known, Place, keys_of, moments_of


class Late:
    """What a snapshot has of named parameters that are in none of these optimizers; its tensors are still to be filled."""

    def __init__(
        self, named: Mapping[str, Any], known: Sequence[Known], listed: Mapping[str, _lib.Listed], place: Place
    ) -> None:
        from . import _torch

        self.entries: List[Tuple[Entry, str]] = []  # with their names in the snapshot
        self._waiting: Dict[int, Tuple[str, Dict[str, Any]]] = {}
        self._plains: Sequence[Mapping[str, Any]] = ()
        self._groups: List[int] = []
        held = {id(parameter) for each in known for parameter in each.parameters()}
        keys = keys_of(listed)
        group = known[0].holder().param_groups[0] if known else {}
        for name, parameter in named.items():
            if id(parameter) in held or _torch.uncovered(parameter):
                continue
            state: Dict[str, Any] = {}
            for key, of, each in moments_of(listed, keys, name, place):
                state[key] = _torch.make_state(parameter, group, each)
                self.entries.append((Entry(f"{key}.{name}", _lib.OPTIMIZER, state[key], state, key, parameter), of))
            if state:
                self._waiting[id(parameter)] = name, state

    def names(self) -> List[str]:
        return sorted(name for name, _ in self._waiting.values())

    def keep(self, plains: Sequence[Mapping[str, Any]], known: Sequence[Known]) -> None:
        """The plain state of the optimizers in the snapshot, which was given to the groups that they have."""
        self._groups = [len(each.optimizer().param_groups) for each in known][: len(plains)]
        self._plains = plains

    def give(self, known: Sequence[Known]) -> None:
        """An update begins: to the parameters that optimizers have by now. What is left waits for nobody any more."""
        from . import _torch

        for position, each in enumerate(known):
            holder = each.holder()
            given: Dict[int, str] = {}
            for _number, _index, _group, parameter in _torch.grouped(holder):
                name, state = self._waiting.get(id(parameter), ("", {}))
                if state and not holder.state.get(parameter):
                    holder.state[parameter] = state
                    given[id(parameter)] = name
                    del self._waiting[id(parameter)]
            if position < len(self._groups):
                each.load_plain(self._plains[position], given, groups_from=self._groups[position])
