"""When tensors of a running snapshot may be overwritten: each is fenced before its first write, and
a write waits for no other.

A tensor is *closed* when it has been seen unchanged since the snapshot began and its bytes are
captured. Writes to it after that do not matter to the snapshot. A writer to a tensor that is
not closed has bypassed the fence: its version counter shows it at the end, and the snapshot is
refused. So an unfenced writer costs a snapshot, and never makes a torn one.

Positions count the tensors that are captured in place, in the order in which they are captured.
"""

from __future__ import annotations

import bisect
from itertools import accumulate
from typing import Any, Dict, Iterable, List, Sequence, Tuple

from . import _lib
from ._entry import Entry
from ._layout import Layout


class Fence:
    """The fence of one layout, registered with the client; call `begin` before each snapshot."""

    def __init__(self, client: _lib.Client, layout: Layout) -> None:
        self._client = client
        self._layout = layout
        self._entries = layout.in_place
        self._slices = layout.slices
        self._left = list(accumulate([0, *reversed(layout.slice_bytes)]))[::-1]
        # By address: (begin, end, position), the begins alone, and the largest end up to each.
        self._spans = sorted(
            (address, address + size, i) for i, (address, size) in enumerate(layout.spans()) if size
        )
        self._begins = [begin for begin, _, _ in self._spans]
        self._furthest = list(accumulate((end for _, end, _ in self._spans), max))
        apart = all(end <= begin for end, begin in zip(self._furthest, self._begins[1:]))
        self._whole = (
            {(begin, end): (position,) for begin, end, position in self._spans} if apart else {}
        )
        blocks: Dict[int, List[int]] = {}
        for position, storage in enumerate(layout.storages()):
            blocks.setdefault(storage, []).append(position)
        # A write to one view of a block moves the version of all: they are closed together.
        self._together = {
            position: block for block in blocks.values() if len(block) > 1 for position in block
        }
        self._aside = [position for position, entry in enumerate(self._entries) if entry.aside]
        self._by_parameter: Dict[int, List[int]] = {}
        for position in range(len(self._entries)):
            self._by_parameter.setdefault(self._parameter_of(position), []).append(position)
        self.begin()

    def begin(self, learns: bool = False) -> None:
        """A snapshot begins: nothing is closed. learns: an order of writes that is not that of the
        capture is of interest."""
        self._learns = learns
        self._closed = bytearray(len(self._entries))
        self._changed: List[Entry] = []
        self._updated: Dict[int, None] = {}  # positions, in the order of the first writes
        self._captured = 0

    def watches(self) -> bool:
        """Writes must still be fenced, or their order seen. What is captured by now is
        closed with that."""
        if not self.has_captured_all():
            return True
        self.close_all()
        return self._learns and bool(self.order())

    def has_captured_all(self) -> bool:
        """The copy needs nothing any more, whether it is good or was given up."""
        self._captured = self._client.captured()
        return self._captured == _lib.FENCE_ALL

    def left_bytes(self) -> int:
        """What is still to be captured, as has_captured_all saw it last."""
        return self._left[min(self._captured, len(self._left) - 1)]

    def is_granted(self) -> bool:
        """The copy runs. One that was not granted memory by now is given up, here."""
        return self._client.fence(0) == _lib.OK

    def positions_of(self, parameters: Iterable[Any]) -> List[int]:
        """Those of the parameters, and of the moments that belong to them."""
        return [
            position
            for parameter in parameters
            for position in self._by_parameter.get(id(parameter), ())
        ]

    def overlapping(self, begin: int, end: int) -> Sequence[int]:
        """The tensors that have bytes in the addresses [begin, end)."""
        whole = self._whole.get((begin, end))
        if whole is not None:
            return whole
        found = []
        at = bisect.bisect_left(self._begins, end)
        while at > 0 and self._furthest[at - 1] > begin:
            at -= 1
            if self._spans[at][1] > begin:
                found.append(self._spans[at][2])
        return found

    def close(self, positions: Sequence[int]) -> None:
        """Before these are overwritten: waits until they are captured."""
        for position in positions:
            self._updated.setdefault(position)
        self._close(positions)

    def close_aside(self) -> None:
        """An update ends: closes what the script may write to afterwards, also by `.data`, which no
        version counter shows."""
        self._close(self._aside)

    def close_all(self) -> None:
        """Before anything may be overwritten."""
        self._close(range(len(self._entries)))

    def _close(self, positions: Iterable[int]) -> None:
        if self._together:
            positions = {
                each for position in positions for each in self._together.get(position, (position,))
            }
        opened = [position for position in positions if not self._closed[position]]
        self._changed += self._layout.changed_of(opened)
        for position in opened:
            self._closed[position] = 1
        self._await([self._slices[position] for position in opened])

    def _await(self, slices: Iterable[int]) -> None:
        # From the last: when that is captured so are the others, unless this rank captures nothing
        # further.
        for number in sorted(slices, reverse=True):
            if number < self._captured:
                return
            self._client.fence(number)
            self._captured = self._client.captured()

    def end(self) -> Tuple[int, List[Entry]]:
        """Waits for all that is left. (cairn_err of the snapshot, what was changed before it was
        captured)."""
        code = self._client.fence()
        if code != _lib.OK:
            return code, []
        if not any(self._closed):
            return code, self._layout.changed()
        opened = [position for position, closed in enumerate(self._closed) if not closed]
        return code, self._changed + self._layout.changed_of(opened)

    def order(self) -> List[Entry]:
        """What was closed one by one, in that order; empty where the capture goes from parameter to
        parameter in the same."""
        entries = [self._entries[position] for position in self._updated]
        turns = zip(list(self._updated), list(self._updated)[1:])
        return (
            entries
            if any(b < a and self._parameter_of(a) != self._parameter_of(b) for a, b in turns)
            else []
        )

    def _parameter_of(self, position: int) -> int:
        entry = self._entries[position]
        return id(entry.tensor if entry.parameter is None else entry.parameter)
