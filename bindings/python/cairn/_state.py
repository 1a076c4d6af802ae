"""What a job consists of: its tensors under their names, its optimizers, its plain state; and
whether that is all of it.

Names: a parameter has that of the root module's named_parameters (with the root's prefix where
there are several), a moment `<key>.<parameter>` as in `exp_avg.layer.weight` (a dot in the key is
%2E), what differs from rank to rank `rank<r>/<name>`, and the blob of plain state `cairn.rank<r>`.
"""

from __future__ import annotations

import hashlib
import math
import operator
import re
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from . import _lib
from ._fsdp1 import Part, Parts, parts_of

UNKNOWN_HOOK = (
    "as nothing says that this hook leaves the same gradients on all ranks, each rank's own "
    "parameters and moments are captured: they come back in the same number of ranks only"
)
POSITIONAL = re.compile(r"optimizer\d+\.group\d+\.\d+")
STAGED_BYTES_MAX = 1 << 20  # a larger buffer is captured in place while nothing writes to it


class Place(NamedTuple):
    rank: int
    world: int
    local_ranks: int


class Problems:
    """Why nothing may be snapshot (lines), and what is worth knowing (notes)."""

    def __init__(self) -> None:
        self.lines: List[str] = []
        self.notes: List[str] = []
        self.uncovered: List[_lib.Uncovered] = []  # of both, for the agent
        # parameters of no module: captured, but not found again without cairn.attach
        self.unnamed: List[str] = []

    def refuse(self, kind: int, name: str, why: str, line: str) -> None:
        self.lines.append(line)
        self.uncovered.append(_lib.Uncovered(kind, name, why))

    def note(self, kind: int, name: str, why: str, line: str) -> None:
        self.notes.append(line)
        self.uncovered.append(_lib.Uncovered(kind, name, why))


def few(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def fitting(name: str) -> str:
    """A name that the library takes: a longer one is cut, and stays unique by its hash."""
    data = name.encode()
    if len(data) < _lib.NAME_BYTES_MAX:
        return name
    return (
        data[: _lib.NAME_BYTES_MAX - 40].decode("utf-8", "ignore")
        + "#"
        + hashlib.sha256(data).hexdigest()[:24]
    )


class Entry:
    """One tensor of the job. `staged` is the copy that is captured in its stead, where there is
    one.

    Where `part` is given, it says what is captured, and where that lies: the tensor is FSDP1's, and
    may hold several.
    """

    __slots__ = (
        "name",
        "called",
        "kind",
        "tensor",
        "owner",
        "key",
        "parameter",
        "staged",
        "replica",
        "captured",
        "part",
        "alone",
        "aside",
        "stageable",
    )

    def __init__(
        self,
        name: str,
        kind: int,
        tensor: Any,
        owner: Optional[Dict[str, Any]] = None,
        key: str = "",
        parameter: Any = None,
        staged: bool = False,
        part: Optional[Part] = None,
        alone: bool = False,
    ) -> None:
        from . import _torch

        # alone: no other rank has it, though all have its parameter
        self.part, self.alone = part, alone
        self.name, self.kind, self.tensor, self.owner, self.key, self.parameter = (
            fitting(name),
            kind,
            tensor,
            owner,
            key,
            parameter,
        )
        self.called = self.name  # in the model: the name in a snapshot may get the rank's before it
        self.staged: Any = _torch.staging_like(tensor) if staged else None
        self.replica = (0, 1)
        self.captured = True  # by this rank; all ranks restore it
        # A parameter that no optimizer has: may be captured from a copy; and which is no frozen one
        # of a model that trains, so that the script itself may update it (a copy in lower
        # precision, an average).
        self.stageable = self.aside = False

    def piece(
        self, place: Place, as_named: Optional[str] = None, into_staged: bool = True
    ) -> Optional[_lib.Piece]:
        """What this rank holds of it; None where that is nothing. For a restore replicas only say
        how little is captured."""
        from . import _torch

        if self.part is not None:
            return self._piece_of_part(self.part, as_named or self.name)
        memory = self.staged if self.staged is not None else _torch.local(self.tensor)
        shape, offset, extent, index, count = self._box()
        if 0 in extent:
            return None
        if not _torch.is_sharded(self.tensor):
            index, count = self.replica if into_staged else (place.rank, place.world)
        return _lib.Piece(
            as_named or self.name,
            _torch.DTYPES[memory.dtype],
            self.kind,
            shape,
            offset,
            extent,
            _torch.addresses([memory])[0],
            _torch.ordinal(memory),
            index,
            count,
        )

    def is_on_host(self) -> bool:
        """Its memory is the CPU's, and is filled in place."""
        from . import _torch

        return self.staged is None and _torch.ordinal(self.memory()) < 0

    def _piece_of_part(self, part: Part, name: str) -> Optional[_lib.Piece]:
        from . import _torch

        if part.is_empty:
            return None
        memory = part.memory()
        return _lib.Piece(
            name,
            _torch.DTYPES[memory.dtype],
            self.kind,
            part.shape,
            (0,) * len(part.shape),
            part.shape,
            self.address(),
            _torch.ordinal(memory),
            *part.replica,
            part.begin,
            part.end,
        )

    def memory(self) -> Any:
        """The tensor here in whose memory it lies, if not in its own copy."""
        from . import _torch

        return _torch.local(self.tensor) if self.part is None else self.part.memory()

    def address(self) -> int:
        """Where in that it begins."""
        from . import _torch

        memory = self.memory()
        return _torch.addresses([memory])[0] + (
            0 if self.part is None else self.part.at * int(memory.element_size())
        )

    def shape(self) -> Tuple[int, ...]:
        """Of the whole, in the order of its memory."""
        if self.part is not None:
            return self.part.shape
        return self._box()[0]

    def _box(self) -> Tuple[Tuple[int, ...], Tuple[int, ...], Tuple[int, ...], int, int]:
        from . import _torch

        return _torch.box(
            self.tensor if self.staged is None or _torch.is_sharded(self.tensor) else self.staged
        )

    def size_bytes(self) -> int:
        """Of what lies here."""
        memory = self.memory()
        return (
            int(memory.nbytes)
            if self.part is None
            else (self.part.end - self.part.begin) * int(memory.element_size())
        )

    def takes_narrower(self, found: _lib.Listed) -> bool:
        """A buffer can come back from a narrower type: FSDP1's mixed precision gives it that only
        at the first forward."""
        from . import _torch

        if self.kind == found.kind == _lib.BUFFER and not _torch.is_sharded(self.tensor):
            narrower = _torch.staging_of_narrower(self.tensor, found.dtype)
            self.staged = narrower if narrower is not None else self.staged
            return narrower is not None
        return False

    def unstage(self) -> None:
        """After a restore into the copy."""
        from . import _torch

        if self.staged is not None:
            _torch.stage(self.staged, _torch.local(self.tensor))


class Known:
    """An optimizer of the job, and what of its state exists."""

    def __init__(self, optimizer: Callable[[], Any], number: int) -> None:
        self.optimizer, self.number = optimizer, number
        # parameters that were updated and have none, though others have
        self.without_moments: List[Any] = []
        self._made: List[Tuple[Dict[str, Any], str]] = []
        self._left_out: Dict[str, str] = {}  # keys of the groups that hold no plain data, and why
        self._marks: List[Dict[str, Any]] = []  # of the groups, before the update under way
        # keys of the groups that updates change: they are state, as schedule-free optimizers have
        # it
        self._own: Set[str] = set()

    def holder(self) -> Any:
        """The optimizer that has the state; not always for all parameters of this one."""
        from . import _torch

        return _torch.holder(self.optimizer())

    def leave_out_what_is_not_plain(self, problems: Problems) -> None:
        """Looks once at each hyperparameter whether it can be kept; says all that cannot."""
        from . import _blob, _torch

        for group in self.optimizer().param_groups:
            for key in group.keys() - {"params"} - self._left_out.keys():
                try:
                    _blob.encode(group[key], _torch.pack)
                except TypeError as error:
                    self._left_out[key] = str(error)
        for key, why in self._left_out.items():
            name = f"the hyperparameter {key} of optimizer {self.number}"
            problems.note(_lib.OPAQUE, name, why, f"{name} is not covered: {why}")

    def parameters(self) -> Iterable[Any]:
        optimizer = self.optimizer()
        return (
            [parameter for group in optimizer.param_groups for parameter in group["params"]]
            if optimizer is not None
            else []
        )

    def count(self) -> Tuple[int, int]:
        """Grows with parameters that are added and with state that appears."""
        groups, state = self.optimizer().param_groups, self.holder().state
        held = sum(bool(value) if isinstance(value, dict) else 1 for value in state.values())
        return (sum(len(group["params"]) for group in groups), held)

    def before_update(self) -> None:
        from . import _torch

        self._marks = _torch.group_marks(self.optimizer())

    def after_update(self) -> None:
        from . import _torch

        for before, after in zip(self._marks, _torch.group_marks(self.optimizer())):
            self._own |= {
                key for key, mark in after.items() if key not in before or before[key] != mark
            }

    def beside(self) -> Dict[Any, Any]:
        """What it keeps in its state under other keys than its parameters."""
        from . import _torch

        return {
            key: value for key, value in self.holder().state.items() if not _torch.is_tensor(key)
        }

    def note_missing(self) -> None:
        """Right after the update, while the gradients are there."""
        holder = self.holder()
        state = holder.state
        updated = [
            each
            for group in holder.param_groups
            for each in group["params"]
            if each.grad is not None
        ]
        lacking = [parameter for parameter in updated if not state.get(parameter)]
        # some optimizers have no state at all
        self.without_moments = lacking if len(lacking) < len(updated) else []

    def incomplete(self) -> List[Any]:
        """Parameters that were updated and have no moments, or have lost some that their like have.

        Their like: the parameters of as many dimensions in the same group, as some optimizers keep
        other moments of matrices than of vectors.
        """
        optimizer = self.holder()
        found = list(self.without_moments)
        for group in optimizer.param_groups:
            states = [(parameter, optimizer.state.get(parameter)) for parameter in group["params"]]
            # none: it may not even have a shape yet
            states = [(parameter, state) for parameter, state in states if state]
            counts: Dict[int, int] = {}
            for parameter, state in states:
                counts[parameter.dim()] = max(counts.get(parameter.dim(), 0), len(state))
            found += [
                parameter for parameter, state in states if len(state) < counts[parameter.dim()]
            ]
        return found

    def plain(self, layout: "Layout") -> Dict[str, Any]:
        """Hyperparameters of the groups, which of them are state, and the state that is no tensor,
        by parameter name."""
        optimizer = self.optimizer()
        groups = [
            {
                key: value
                for key, value in group.items()
                if key != "params" and key not in self._left_out
            }
            for group in optimizer.param_groups
        ]
        values = {
            name: {key: value for key, value in state.items() if key in keys}
            for name, state, keys in layout.plain_of(self.number)
        }
        own = sorted(self._own - self._left_out.keys())
        return {"groups": groups, "own": own, "state": values, "beside": self.beside()}

    def all_names(self, names: Mapping[int, str]) -> Dict[int, str]:
        """Those of its parameters, by their ids; by position of those that have no other."""
        from . import _torch

        places = _torch.grouped(self.holder())
        return {
            id(each): names.get(id(each)) or positional(self.number, number, index)
            for number, index, _, each in places
        }

    def load_plain(
        self, value: Mapping[str, Any], names: Mapping[int, str], groups_from: int
    ) -> None:
        """What `plain` gave: the state of these parameters, and the hyperparameters of all groups
        from that one on; of those before it what is state."""
        from . import _torch

        holder = self.holder()
        for _number, _index, _group, parameter in _torch.grouped(holder):
            found = value["state"].get(fitting(names.get(id(parameter), "")))
            if found:
                holder.state[parameter].update(found)
        holder.state.update(value.get("beside", {}))
        for number, (group, saved) in enumerate(
            zip(self.optimizer().param_groups, value["groups"])
        ):
            for key in saved if number >= groups_from else value.get("own", ()):
                each = saved[key]
                if hasattr(group.get(key), "copy_") and hasattr(each, "dtype"):
                    # a learning rate that is a tensor is shared with compiled code
                    group[key].copy_(each)
                else:
                    group[key] = each

    def make_state(
        self,
        names: Mapping[int, str],
        listed: Mapping[str, _lib.Listed],
        place: Place,
        unnamed_too: bool,
        parts: Optional[Parts] = None,
    ) -> None:
        """The tensors of the state that a first step would make, where the snapshot has them and
        they are not there. Not yet filled."""
        from . import _torch

        keys, of = keys_of(listed), self.all_names(names)
        optimizer = self.holder()
        for _number, _index, group, parameter in _torch.grouped(optimizer):
            if id(parameter) not in names and not unnamed_too:
                continue
            for part in (parts or {}).get(id(parameter), [None]):
                if part is not None and part.is_empty:
                    continue
                name = of[id(parameter)] if part is None else part.name
                for key, _, each in moments_of(listed, keys, name, place):
                    if optimizer.state.get(parameter, {}).get(key) is None and not _torch.uncovered(
                        parameter
                    ):
                        state = optimizer.state[parameter]
                        state[key] = _torch.make_state(parameter, group, each, part)
                        self._made.append((state, key))

    def forget_state(self) -> None:
        """Takes back what make_state made."""
        for state, key in self._made:
            state.pop(key, None)
        self._made = []

    def keep_state(self) -> None:
        self._made = []


def of_rank(name: str) -> Tuple[Optional[int], str]:
    """(the rank that alone has a tensor of a snapshot, None for all others; its name in the model,
    if that is not cut)"""
    rank, slash, rest = name.partition("/")
    return (
        (int(rank[4:]), rest)
        if slash and rank.startswith("rank") and rank[4:].isdigit()
        else (None, name)
    )


def moment_name(key: Any, parameter: str) -> str:
    """The name of what an optimizer keeps of a parameter under a key: up to its first dot it is the
    key, whatever that holds."""
    return f"{str(key).replace('%', '%25').replace('.', '%2E')}.{parameter}"


def keys_of(listed: Mapping[str, _lib.Listed]) -> List[str]:
    """Keys under which the optimizers keep state tensors, over all parameters of a snapshot."""
    first = (
        of_rank(name)[1].partition(".")[0]
        for name, each in listed.items()
        if each.kind == _lib.OPTIMIZER
    )
    return list(dict.fromkeys(key.replace("%2E", ".").replace("%25", "%") for key in first))


def moments_of(
    listed: Mapping[str, _lib.Listed], keys: Iterable[str], name: str, place: Place
) -> Iterator[Tuple[str, str, _lib.Listed]]:
    """(key, name in the snapshot, tensor) of a parameter's state: what this rank has of its own,
    where it does. What another rank has under that name may be of another shape. Names are put
    together, not taken apart: a long one is cut."""
    for key in keys:
        moment = fitting(moment_name(key, name))
        for each in (fitting(f"rank{place.rank}/{moment}"), moment):
            if each in listed and listed[each].kind == _lib.OPTIMIZER:
                yield key, each, listed[each]
                break


def positional(optimizer: int, group: int, index: int) -> str:
    """The name of a parameter that belongs to no module."""
    return f"optimizer{optimizer}.group{group}.{index}"


def positional_of(listed: Mapping[str, _lib.Listed], place: Place) -> List[str]:
    """The parameters of a snapshot that belong to no module, of those that this rank has."""
    names = (of_rank(name) for name, each in listed.items() if each.kind == _lib.PARAM)
    return sorted(
        name for rank, name in names if rank in (None, place.rank) and POSITIONAL.fullmatch(name)
    )


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
        # which of them are DTensors or parts: their memory may be another tensor each time
        self._moving: List[int] = []
        self._in_parts: List[int] = []
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
        """Sorts by the rank of the tensors' ids; what has none stays behind what it was behind."""
        ranks: Dict[int, int] = {}
        rank = -1
        for entry in self.entries:
            rank = ranks[id(entry)] = order.get(id(entry.tensor), rank)
        self.entries.sort(key=lambda entry: ranks[id(entry)])

    def seal(self, known: Iterable[Known]) -> None:
        """All entries are there: notes what they are known again by."""
        from . import _torch

        self._counts = {each.number: each.count() for each in known}
        self.in_place = [entry for entry in self.entries if entry.staged is None]
        self._staged = [entry for entry in self.entries if entry.staged is not None]
        owned = [entry for entry in self.entries if entry.owner is not None]
        self._owners, self._keys = [entry.owner for entry in owned], [entry.key for entry in owned]
        self._owned = [entry.tensor for entry in owned]
        self._memory = [entry.memory() for entry in self.in_place]
        self._in_parts = [i for i, entry in enumerate(self.in_place) if entry.part is not None]
        self._moving = [
            i
            for i, entry in enumerate(self.in_place)
            if entry.part is not None or _torch.is_sharded(entry.tensor)
        ]
        self._addresses = _torch.addresses(self._memory)
        self._storages = _torch.storages(self._memory)

    def _look(self) -> List[Any]:
        """The memory of the entries in place."""
        for i in self._moving:
            self._memory[i] = self.in_place[i].memory()
        return self._memory

    def _counters(
        self, memory: Sequence[Any], positions: Sequence[int], in_parts: Sequence[int]
    ) -> List[int]:
        """The version counters of entries in place, and which of them are parts: those can be
        written to through the shard, too."""
        from . import _torch

        counters = _torch.versions(memory)
        own = _torch.versions([self.in_place[positions[i]].tensor for i in in_parts])
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
        from . import _torch

        return (
            self.grown(known)
            or any(map(operator.is_not, map(dict.get, self._owners, self._keys), self._owned))
            or _torch.addresses(self._look()) != self._addresses
        )

    def prepare(self) -> None:
        """Just before a snapshot begins: fills the copies, and notes the state of what is captured
        in place."""
        from . import _torch

        for entry in self._staged:
            if entry.captured:
                _torch.stage(entry.tensor, entry.staged)
        self._versions = self._all_counters(self._look())

    def changed(self) -> List[Entry]:
        """What of that which this rank captures was written to, or moved, since prepare."""
        from . import _torch

        memory = self._look()
        if (
            self._all_counters(memory) == self._versions
            and _torch.addresses(memory) == self._addresses
        ):
            return []
        return self.changed_of(range(len(memory)))

    def changed_of(self, positions: Sequence[int]) -> List[Entry]:
        """The same, of some of the entries in place."""
        from . import _torch

        memory = [self.in_place[position].memory() for position in positions]
        in_parts = [
            i for i, position in enumerate(positions) if self.in_place[position].part is not None
        ]
        now = zip(positions, self._counters(memory, positions, in_parts), _torch.addresses(memory))
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
        from . import _torch

        self.blob = _torch.byte_buffer(size_bytes)

    def blob_piece(self, buffer: Any, name: str) -> _lib.Piece:
        size = (int(buffer.numel()),)
        return _lib.Piece(name, _lib.DTYPES["U8"], _lib.OPAQUE, size, (0,), size, buffer.data_ptr())

    def capture_pieces(self) -> List[_lib.Piece]:
        """What is registered: first the copies, which the next snapshot overwrites, then what is
        captured in place."""
        pieces = [self.blob_piece(self.blob, f"cairn.rank{self.place.rank}")]
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

    def blob_to_restore(
        self, listed: Mapping[str, _lib.Listed], place: Place
    ) -> Optional[Tuple[Any, _lib.Piece]]:
        """(buffer, piece) of this rank's blob, or where the job had fewer ranks of one that is
        there."""
        from . import _torch

        ranks = ranks_of(listed)[0]
        name = f"cairn.rank{place.rank % ranks}" if ranks else ""
        if name not in listed:
            return None
        buffer = _torch.byte_buffer(listed[name].shape[0])
        return buffer, self.blob_piece(buffer, name)

    def plain_parameters(self) -> Dict[str, Any]:
        """Those that are neither DTensors nor FSDP1's, by name."""
        from . import _torch

        return {
            entry.name: entry.tensor
            for entry in self.entries
            if entry.kind == _lib.PARAM
            and entry.part is None
            and not _torch.is_sharded(entry.tensor)
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
        from . import _torch

        by_parameter = {
            id(entry.tensor): agreed[entry.name]
            for entry in self.entries
            if entry.name in agreed and entry.kind == _lib.PARAM
        }
        for entry in self.entries:
            if entry.part is not None or _torch.is_sharded(entry.tensor):
                continue
            if entry.kind == _lib.BUFFER:
                entry.captured = place.rank == 0 or not buffers_of_rank_0
                if place.rank > 0:
                    entry.name = fitting(f"rank{place.rank}/{entry.name}")
            elif entry.parameter is not None and _torch.is_sharded(entry.parameter):
                entry.replica = _torch.mesh_replica(entry.parameter)
            else:
                name, index, count = by_parameter[
                    id(entry.tensor if entry.parameter is None else entry.parameter)
                ]
                entry.replica = (0, 1) if entry.alone else (index, count)
                if of_rank(name)[0] is not None:
                    entry.name = fitting(f"rank{of_rank(name)[0]}/{entry.name}")

    def match(
        self, listed: Mapping[str, _lib.Listed], done: Set[str], place: Place
    ) -> Tuple[List[Tuple[Entry, str]], List[str]]:
        """(entries with the names of the snapshot that they come from, what does not fit)."""
        from . import _torch

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
            if name in done:
                continue
            found = listed.get(name)
            shape = entry.shape()
            dtype = _torch.DTYPES[_torch.local(entry.memory()).dtype]
            if found is None:
                problems.append(f"{entry.name} is not in the snapshot")
            elif found.shape != shape:
                problems.append(
                    f"{entry.name} has the shape {list(shape)}, in the snapshot {list(found.shape)}"
                )
            elif (found.dtype, found.kind) != (dtype, entry.kind) and not entry.takes_narrower(
                found
            ):
                problems.append(f"{entry.name} has another type or kind in the snapshot")
            else:
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
            sum(entry.kind == kind for entry in self.entries)
            for kind in (_lib.PARAM, _lib.OPTIMIZER, _lib.BUFFER)
        ]
        size = sum(entry.size_bytes() for entry in self.entries)
        return (
            f"{kinds[0]} parameters, {kinds[1]} tensors of optimizer state and {kinds[2]} buffers "
            f"({size / 1048576:.1f} MiB on this rank), and random generators"
        )


def devices_of(pieces: Iterable[_lib.Piece]) -> Set[int]:
    """The CUDA devices that pieces are on."""
    return {piece.device for piece in pieces if piece.device >= 0}


def ranks_of(listed: Mapping[str, _lib.Listed]) -> Tuple[int, List[str]]:
    """Return (number of ranks of a snapshot, parameters of which several ranks have their own)."""
    ranks = sum(name.startswith("cairn.rank") for name in listed)
    params = (of_rank(name) for name, each in listed.items() if each.kind == _lib.PARAM)
    return ranks, sorted({name for rank, name in params if rank is not None})


def _add_parameter(
    layout: Layout,
    name: str,
    tensor: Any,
    part: Optional[Part],
    problems: Problems,
    staged: bool = False,
) -> Optional[Entry]:
    from . import _torch

    why = _torch.uncovered(tensor if part is None else part.memory())
    if why:
        problems.refuse(_lib.PARAM, name, why, f"parameter {name} cannot be captured: {why}")
        return None
    entry = Entry(name, _lib.PARAM, tensor, staged=staged, part=part)
    layout.entries.append(entry)
    return entry


def _add_what_no_optimizer_has(
    layout: Layout,
    prefix: str,
    root: Any,
    parts: Parts,
    added: Set[int],
    problems: Problems,
    staged_always: Set[str],
) -> None:
    """The other parameters of a root: frozen ones, and those that the script updates itself."""
    from . import _torch

    trains = any(id(parameter) in added for _, parameter in _torch.named_parameters(root))
    for name, parameter in _torch.named_parameters(root):
        if id(parameter) in added:
            continue
        added.add(id(parameter))
        for part in parts.get(id(parameter), [None]):
            full = prefix + name if part is None else part.name
            staged = part is None and fitting(full) in staged_always
            entry = _add_parameter(layout, full, parameter, part, problems, staged)
            if entry is not None and part is None:
                # in another order its copy had another shape
                entry.stageable = bool(_torch.local(parameter).is_contiguous())
                entry.aside = parameter.requires_grad or not trains


def _add_state(
    layout: Layout,
    known: Known,
    name: str,
    parameter: Any,
    part: Optional[Part],
    taken: Set[str],
    problems: Problems,
) -> None:
    from . import _blob, _torch

    state = known.holder().state.get(parameter) or {}
    alone = known.holder() is not known.optimizer()
    plain: Set[str] = set()
    for key, value in state.items():
        if not _torch.is_tensor(value):
            try:
                _blob.encode(value, _torch.pack)
                plain.add(key)
            except TypeError as error:
                moment = moment_name(key, name)
                problems.refuse(
                    _lib.OPTIMIZER, moment, str(error), f"{moment} cannot be captured: {error}"
                )
            continue
        if part is not None and part.is_empty:
            continue
        of = part.of(value) if part is not None else None
        why = (
            _torch.uncovered(value)
            if isinstance(key, str)
            else f"its key is no text but the {type(key).__name__} {key}"
        )
        if part is not None and of is None:
            why = (
                f"FSDP1 holds {list(part.held_shape)} of its parameter, and it has the shape "
                f"{list(value.shape)}"
            )
        moment = moment_name(key, name)
        if why:
            problems.refuse(_lib.OPTIMIZER, moment, why, f"{moment} cannot be captured: {why}")
        elif moment in taken:
            problems.refuse(
                _lib.OPTIMIZER, moment, "two optimizers have it", f"two optimizers have {moment}"
            )
        else:
            taken.add(moment)
            layout.entries.append(
                Entry(moment, _lib.OPTIMIZER, value, state, key, parameter, part=of, alone=alone)
            )
    if plain:
        layout.add_plain(known.number, name, state, plain)


def named(roots: Mapping[str, Any], world: int) -> Tuple[Dict[int, str], Parts, List[str]]:
    """(names by the ids of parameters, FSDP1's parts of them, why some have no name). A flat one
    has the name of its first."""
    from . import _torch

    names: Dict[int, str] = {}
    parts: Parts = {}
    problems: List[str] = []
    for prefix, root in roots.items():
        of_root, why = parts_of(root, prefix, world)
        parts.update(of_root)
        problems += why
        for name, parameter in _torch.named_parameters(root):
            names.setdefault(id(parameter), prefix + name)
    names.update((number, each[0].name) for number, each in parts.items())
    return names, parts, problems


def plain_names(roots: Mapping[str, Any], known: Sequence[Known], world: int) -> List[str]:
    """The names of Layout.plain_parameters, sorted, without a look at anything else."""
    from . import _torch

    names, parts, _ = named(roots, world)
    held = [parameter for root in roots.values() for _, parameter in _torch.named_parameters(root)]
    found = {
        names[id(parameter)]
        for parameter in held
        if id(parameter) not in parts and not _torch.is_sharded(parameter)
    }
    for each in known:
        for number, index, _group, parameter in _torch.grouped(each.optimizer()):
            if id(parameter) not in names and not _torch.is_sharded(parameter):
                found.add(positional(each.number, number, index))
    return sorted(map(fitting, found))


def collect(
    roots: Mapping[str, Any],
    known: Sequence[Known],
    place: Place,
    problems: Problems,
    staged_always: Set[str],
    unnamed_too: bool = True,
    order: Optional[Mapping[int, int]] = None,
) -> Layout:
    """Everything that the job holds: parameters and moments in the order of the updates, then what
    is left, then buffers.

    known: in the order in which they step. order: ranks of tensors by their id, where the order of
    updates is known better.
    """
    from . import _torch

    layout = Layout(place)
    names, parts, why_unnamed = named(roots, place.world)
    problems.lines += why_unnamed
    added: Set[int] = set()
    taken: Set[str] = set()
    unnamed = problems.unnamed
    for each in known:
        why = _torch.refusal(each.optimizer(), place.world)
        if why:
            problems.lines.append(why)
            continue
        for number, index, _group, parameter in _torch.grouped(each.optimizer()):
            name = names.get(id(parameter), "")
            if not name:
                if not unnamed_too:
                    continue
                name = positional(each.number, number, index)
                unnamed.append(name)
            for part in parts.get(id(parameter), [None]):
                part_name = name if part is None else part.name
                if id(parameter) in added or _add_parameter(
                    layout, part_name, parameter, part, problems
                ):
                    _add_state(layout, each, part_name, parameter, part, taken, problems)
            added.add(id(parameter))
        missing = [
            names.get(id(parameter), "a parameter without a name")
            for parameter in each.incomplete()
        ]
        if missing:
            why = "but holds no moments of it, or only some"
            problems.lines.append(f"the optimizer has updated {few(missing)}, {why}")
            whole = f"the optimizer has updated it, {why}"
            problems.uncovered += [_lib.Uncovered(_lib.OPTIMIZER, name, whole) for name in missing]
        each.leave_out_what_is_not_plain(problems)
    if unnamed:
        problems.notes.append(
            f"{len(unnamed)} parameters belong to no module that was called: they are named by "
            f"their position, {few(unnamed)}"
        )
    for prefix, root in roots.items():
        for hook in _torch.unknown_hooks(root):
            name = f"what DDP's communication hook {hook} keeps for itself"
            problems.note(
                _lib.OPAQUE, name, UNKNOWN_HOOK, f"{name} is not covered, and {UNKNOWN_HOOK}"
            )
        _add_what_no_optimizer_has(layout, prefix, root, parts, added, problems, staged_always)
        for name, buffer in _torch.named_buffers(root):
            full = prefix + name
            why = _torch.uncovered(buffer)
            if why and why != "it is not contiguous":
                problems.note(_lib.BUFFER, full, why, f"buffer {full} is not covered: {why}")
                continue
            staged = (
                bool(why)
                or _torch.local(buffer).nbytes <= STAGED_BYTES_MAX
                or fitting(full) in staged_always
            )
            layout.entries.append(Entry(full, _lib.BUFFER, buffer, staged=staged))
    layout.arrange(order or {})
    layout.seal(known)
    return layout
