"""Moments of parameters that no optimizer has yet: a script that adds a group in mid-training adds
it again after resuming.

They wait here from cairn.attach to the first update. An optimizer added by then gets its
moments, and its group the hyperparameters that it had.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from . import _lib, _optimizers, _tensors
from ._entry import Entry
from ._known import Known
from ._naming import keys_of, moment_name, moments_of
from ._part import Part, Parts
from ._ranks import Place


class Late:
    """What a snapshot has of named parameters that are in none of these optimizers; its tensors are
    still to be filled.

    named: what an optimizer may hold. parts: the parts of parameters that these are, of those
    that are FSDP1's.
    """

    def __init__(
        self,
        named: Mapping[str, Any],
        known: Sequence[Known],
        listed: Mapping[str, _lib.Listed],
        place: Place,
        parts: Optional[Parts] = None,
    ) -> None:
        self.entries: List[Tuple[Entry, str]] = []  # with their names in the snapshot
        self._waiting: Dict[int, Tuple[str, Dict[str, Any]]] = {}
        self._kept: List[Tuple[Known, int, Mapping[str, Any]]] = []
        held = {
            id(parameter) for each in known for parameter in (*each.parameters(), *each.trained())
        }
        keys = keys_of(listed)
        group = known[0].holder().param_groups[0] if known else {}
        for name, parameter in named.items():
            if id(parameter) in held:
                continue
            state: Dict[str, Any] = {}
            for part in (parts or {}).get(id(parameter), [None]):
                part_name = name if part is None else part.parameter
                self._add(
                    part_name,
                    parameter,
                    part,
                    moments_of(listed, keys, part_name, place),
                    state,
                    group,
                )
            if state:
                self._waiting[id(parameter)] = name, state

    def _add(
        self,
        name: str,
        parameter: Any,
        part: Optional[Part],
        moments: Iterable[Tuple[str, str, _lib.Listed]],
        state: Dict[str, Any],
        group: Mapping[str, Any],
    ) -> None:
        if _tensors.uncovered(parameter if part is None else part.memory()) or (
            part is not None and part.is_empty
        ):
            return
        for key, named, each in moments:
            made = (
                state[key] if key in state else _optimizers.make_state(parameter, group, each, part)
            )
            of = None if part is None else part.of(made)
            # FSDP1 has no place for moments of other shapes, and snapshots with them are refused
            if part is None or of is not None:
                state[key] = made  # in which several parts may lie
                entry = Entry(
                    moment_name(key, name), _lib.OPTIMIZER, made, state, key, parameter, part=of
                )
                self.entries.append((entry, named))

    def names(self) -> List[str]:
        return sorted(name for name, _ in self._waiting.values())

    def keep(self, plains: Sequence[Mapping[str, Any]], known: Sequence[Known]) -> None:
        """The plain state of these optimizers in the snapshot, which was given to the groups that
        they have."""
        self._kept = [
            (each, len(each.optimizer().param_groups), plain) for each, plain in zip(known, plains)
        ]

    def give(self, known: Sequence[Known]) -> None:
        """An update begins: gives moments to the parameters that these optimizers have by now, and
        drops the rest. Optimizers may have come or gone since `keep`.
        """
        for each in known:
            holder = each.holder()
            given: Dict[int, str] = {}
            for _number, _index, _group, parameter in _optimizers.grouped(holder):
                name, state = self._waiting.get(id(parameter), ("", {}))
                if state and not holder.state.get(parameter):
                    holder.state[parameter] = state
                    given[id(parameter)] = name
                    del self._waiting[id(parameter)]
            for _, groups, plain in (kept for kept in self._kept if kept[0] is each):
                each.load_plain(plain, given, groups_from=groups)
