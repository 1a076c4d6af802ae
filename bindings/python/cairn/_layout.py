"""All tensors of the job, in the order in which they are captured, and whether they still are what
they were."""

from __future__ import annotations

import math
import operator
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from . import _lib, _tensors
from ._entry import Entry, devices_of
from ._known import Known
from ._naming import few, fitting, of_rank, ranks_of
from ._part import Held
from ._ranks import Place


class Holders(NamedTuple):
    """This rank's replica in a job of pipelines. Each parameter has one holder per replica; each
    replica has its own buffers."""

    replica: int
    replicas: int
    first_rank: int  # of this replica


def blob_piece(buffer: Any, name: str) -> _lib.Piece:
    """Of plain state as bytes."""
    size = (int(buffer.numel()),)
    return _lib.Piece(name, _lib.DTYPES["U8"], _lib.OPAQUE, size, (0,), size, buffer.data_ptr())


class Layout:
    """All entries of a job, in the order in which they are captured, and the blob of plain state.

    A job may have thousands of entries, and is looked at twice in every step: that is done list by
    list.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.entries: List[Entry] = []
        self.blob: Any = None
        self._plain: List[Tuple[int, str, Dict[str, Any], Set[str]]] = []
        self._counts: Dict[int, Tuple[int, int]] = {}
        self.in_place: List[Entry] = []
        # of each entry in place its index among the registered pieces, -1 for none
        self.slices: List[int] = []
        self.slice_bytes: List[int] = []  # of each registered piece
        self.devices: Set[int] = set()  # that registered pieces are on
        self._staged: List[Entry] = []
        self._owners: List[Any] = []  # the optimizers' mappings that hold the tensors of state,
        self._keys: List[str] = []  # under these keys,
        self._owned: List[Any] = []  # and what they held
        self._memory: List[Any] = []  # in which the entries in place lie
        # what gives the memory of DTensors and parts, which may be another tensor each time, and
        # where that is in _memory
        self._moving: List[Tuple[Callable[[], Any], List[int]]] = []
        self._in_parts: List[int] = []  # that can be written to through another tensor, too
        self._written_through: Set[int] = set()  # the same
        # held: a script may replace a parameter's memory (`.data`) while it is being copied
        self._storages: List[Any] = []
        self._addresses: List[int] = []
        self._versions: List[int] = []

    def add_plain(self, optimizer: int, name: str, state: Dict[str, Any], keys: Set[str]) -> None:
        self._plain.append((optimizer, fitting(name), state, keys))

    def plain_of(self, optimizer: int) -> Iterable[Tuple[str, Dict[str, Any], Set[str]]]:
        return (
            (name, state, keys) for number, name, state, keys in self._plain if number == optimizer
        )

    def arrange(self, order: Mapping[int, int]) -> None:
        """Sorts by the rank of the tensors' ids; an entry without one stays behind its
        predecessor."""
        ranks: Dict[int, int] = {}
        rank = -1
        for entry in self.entries:
            rank = ranks[id(entry)] = order.get(id(entry.tensor), rank)
        self.entries.sort(key=lambda entry: ranks[id(entry)])

    def seal(self, known: Iterable[Known]) -> None:
        """All entries are there: notes what they are known again by."""
        self._counts = {each.number: each.count() for each in known}
        self.in_place = [entry for entry in self.entries if entry.staged is None]
        self._staged = [entry for entry in self.entries if entry.staged is not None]
        owned = [entry for entry in self.entries if entry.owner is not None]
        self._owners, self._keys = [entry.owner for entry in owned], [entry.key for entry in owned]
        self._owned = [entry.tensor for entry in owned]
        self._memory = [entry.memory() for entry in self.in_place]
        self._in_parts = [
            i
            for i, (entry, memory) in enumerate(zip(self.in_place, self._memory))
            if entry.part is not None and entry.tensor is not memory
        ]
        self._written_through = set(self._in_parts)
        moving: Dict[Any, Tuple[Callable[[], Any], List[int]]] = {}
        for i, entry in enumerate(self.in_place):
            if entry.part is not None and not isinstance(entry.part.memory, Held):
                # the pieces of a flat tensor share what gives it
                moving.setdefault(id(entry.part.memory), (entry.part.memory, []))[1].append(i)
            elif entry.part is None and _tensors.is_sharded(entry.tensor):
                moving[id(entry)] = (entry.memory, [i])
        self._moving = list(moving.values())
        self._addresses = _tensors.addresses(self._memory)
        self._storages = _tensors.storages(self._memory)

    def _look(self) -> List[Any]:
        """The memory of the entries in place."""
        for look, positions in self._moving:
            memory = look()
            if memory is not self._memory[positions[0]]:
                for i in positions:
                    self._memory[i] = memory
        return self._memory

    def _counters(
        self, memory: Sequence[Any], positions: Sequence[int], in_parts: Sequence[int]
    ) -> List[int]:
        """The version counters of entries in place, and of the other tensor through which some
        parts (in_parts) can be written to."""
        counters = _tensors.versions(memory)
        own = _tensors.versions([self.in_place[positions[i]].tensor for i in in_parts])
        for i, version in zip(in_parts, own):
            counters[i] += version
        return counters

    def _all_counters(self, memory: Sequence[Any]) -> List[int]:
        return self._counters(memory, range(len(self.in_place)), self._in_parts)

    def has_grown(self, known: Known) -> bool:
        """Parameters or state of one optimizer were added or taken away since it was made."""
        return self._counts.get(known.number) != known.count()

    def grown(self, known: Iterable[Known]) -> bool:
        """Parameters or state were added or taken away since it was made."""
        return {each.number: each.count() for each in known} != self._counts

    def outdated(self, known: Iterable[Known]) -> bool:
        """It has grown, or tensors were replaced or moved since it was made."""
        return (
            self.grown(known)
            or any(map(operator.is_not, map(dict.get, self._owners, self._keys), self._owned))
            or _tensors.addresses(self._look()) != self._addresses
        )

    def prepare(self) -> None:
        """Just before a snapshot begins, and right after `seal` or `outdated`: fills the copies,
        and notes the state of what is captured in place."""
        for entry in self._staged:
            if entry.captured:
                _tensors.stage(entry.tensor, entry.staged)
        self._versions = self._all_counters(self._memory)

    def changed(self) -> List[Entry]:
        """What of this rank's captured state was written to, or moved, since prepare."""
        memory = self._look()
        if (
            self._all_counters(memory) == self._versions
            and _tensors.addresses(memory) == self._addresses
        ):
            return []
        return self.changed_of(range(len(memory)))

    def changed_of(self, positions: Sequence[int]) -> List[Entry]:
        """The same, of some of the entries in place."""
        memory = [self.in_place[position].memory() for position in positions]
        in_parts = [i for i, position in enumerate(positions) if position in self._written_through]
        now = zip(
            positions, self._counters(memory, positions, in_parts), _tensors.addresses(memory)
        )
        moved = (
            self.in_place[i]
            for i, version, at in now
            if version != self._versions[i] or at != self._addresses[i]
        )
        return [entry for entry in moved if entry.captured]

    def storages(self) -> List[int]:
        """Where the block of memory begins that each entry in place is a part of: views of one
        block have one version counter."""
        return [storage.data_ptr() for storage in self._storages]

    def spans(self) -> List[Tuple[int, int]]:
        """(address, bytes) of each entry in place."""
        return [(entry.address(), entry.size_bytes()) for entry in self.in_place]

    def grow_blob(self, size_bytes: int) -> None:
        self.blob = _tensors.byte_buffer(size_bytes)

    def capture_pieces(self) -> List[_lib.Piece]:
        """The entries to register: first the copies, which the next snapshot overwrites, then
        tensors captured in place."""
        pieces = [blob_piece(self.blob, f"cairn.rank{self.place.rank}")]
        pieces += [
            each
            for each in (entry.piece(self.place) for entry in self._staged if entry.captured)
            if each
        ]
        # small: as if elements were bytes
        self.slice_bytes = [math.prod(piece.extent) for piece in pieces]
        self.slices = []
        for entry in self.in_place:
            piece = entry.piece(self.place) if entry.captured else None
            self.slices.append(len(pieces) if piece else -1)
            if piece:
                pieces.append(piece)
                self.slice_bytes.append(entry.size_bytes() // piece.replica_count)
        self.devices = devices_of(pieces)
        return pieces

    def plain_parameters(self) -> Dict[str, Any]:
        """Those that are neither DTensors nor parts, by name."""
        return {
            entry.name: entry.tensor
            for entry in self.entries
            if entry.kind == _lib.PARAM
            and entry.part is None
            and not _tensors.is_sharded(entry.tensor)
        }

    def states_of(self, parameters: Iterable[Any]) -> List[Any]:
        """What optimizers keep of these, where each rank that has them keeps it, by name."""
        of = set(map(id, parameters))
        found = (
            each
            for each in self.entries
            if each.kind == _lib.OPTIMIZER and id(each.parameter) in of and not each.alone
        )
        return [entry.tensor for entry in sorted(found, key=lambda entry: entry.called)]

    def share(
        self, agreed: Mapping[str, Tuple[str, int, int]], place: Place, buffers_of_rank_0: bool
    ) -> None:
        """Takes over which plain tensors are replicas of each other: name → (name in the snapshot,
        number, count)."""
        by_parameter = {
            id(entry.tensor): agreed[entry.name]
            for entry in self.entries
            if entry.name in agreed and entry.kind == _lib.PARAM
        }
        for entry in self.entries:
            if entry.part is not None or _tensors.is_sharded(entry.tensor):
                continue
            if entry.kind == _lib.BUFFER:
                entry.captured = place.rank == 0 or not buffers_of_rank_0
                if place.rank > 0:
                    entry.name = fitting(f"rank{place.rank}/{entry.name}")
            elif entry.parameter is not None and _tensors.is_sharded(entry.parameter):
                entry.replica = _tensors.mesh_replica(entry.parameter)
            else:
                name, index, count = by_parameter[
                    id(entry.tensor if entry.parameter is None else entry.parameter)
                ]
                entry.replica = (0, 1) if entry.alone else (index, count)
                if of_rank(name)[0] is not None:
                    entry.name = fitting(f"rank{of_rank(name)[0]}/{entry.name}")

    def listed(self) -> Dict[str, Tuple[int, int, Tuple[int, ...]]]:
        """(dtype, kind, shape) by name in the snapshot."""
        return {
            entry.name: (
                _tensors.DTYPES[_tensors.local(entry.memory()).dtype],
                entry.kind,
                entry.shape(),
            )
            for entry in self.entries
        }

    def share_stages(self, holders: Holders) -> None:
        """The same for pipelines: replica r holds copy r of its parameters."""
        names = {
            name: (name, holders.replica, holders.replicas) for name in self.plain_parameters()
        }
        place = self.place._replace(rank=holders.first_rank)
        self.share(names, place, buffers_of_rank_0=False)

    def match(
        self, listed: Mapping[str, _lib.Listed], done: Set[str], place: Place
    ) -> Tuple[List[Tuple[Entry, str]], List[str]]:
        """(entries with the names of the snapshot that they come from, what does not fit)."""
        todo: List[Tuple[Entry, str]] = []
        problems: List[str] = []
        ranks, own_of_each = ranks_of(listed)
        # every rank of this job sees it, so that none of them resumes alone
        if own_of_each and ranks != place.world:
            problems.append(
                f"each of its {ranks} ranks has {few(own_of_each)} of its own, and this job has "
                f"{place.world}: it can be resumed in {ranks} ranks only"
            )
        for entry in self.entries:
            own = fitting(f"rank{place.rank}/{entry.name}")
            name = own if own in listed else entry.name
            if entry.kind == _lib.BUFFER and name not in listed:
                # one of a stage of a pipeline, say: another rank's
                name = next(
                    (
                        each
                        for each in (
                            fitting(f"rank{rank}/{entry.name}") for rank in range(1, ranks)
                        )
                        if each in listed
                    ),
                    name,
                )
            if name in done:
                continue
            found = listed.get(name)
            shape = entry.shape()
            dtype = _tensors.DTYPES[_tensors.local(entry.memory()).dtype]
            if found is None:
                problems.append(f"{entry.name} is not in the snapshot")
            elif not (
                found.shape == shape if entry.part is None else entry.part.takes(found.shape)
            ):
                problems.append(
                    f"{entry.name} has the shape {list(shape)}, in the snapshot {list(found.shape)}"
                )
            elif (found.dtype, found.kind) != (dtype, entry.kind) and not entry.takes_narrower(
                found
            ):
                problems.append(f"{entry.name} has another type or kind in the snapshot")
            else:
                entry.found_shape = None if found.shape == shape else found.shape
                todo.append((entry, name))
        return todo, problems

    def lacks(self, listed: Mapping[str, _lib.Listed], done: Set[str], place: Place) -> List[str]:
        """Parameters that the snapshot has for this rank, of its own or of all, and that are not
        here: by their names in the model."""
        here = {
            each
            for entry in self.entries
            for each in (entry.name, fitting(f"rank{place.rank}/{entry.name}"))
        }
        unused = (
            of_rank(name) for name in set(listed) - here - done if listed[name].kind == _lib.PARAM
        )
        return sorted({name for rank, name in unused if rank in (None, place.rank)})

    def summary(self) -> str:
        kinds = [
            len({entry.name for entry in self.entries if entry.kind == kind})
            for kind in (_lib.PARAM, _lib.OPTIMIZER, _lib.BUFFER)
        ]
        size = sum(entry.size_bytes() for entry in self.entries)
        return (
            f"{kinds[0]} parameters, {kinds[1]} tensors of optimizer state and {kinds[2]} buffers "
            f"({size / 1048576:.1f} MiB on this rank), and random generators"
        )
