"""One tensor of the job: its name, this rank's part, and where that lies."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Optional, Set, Tuple

from . import _lib, _tensors
from ._naming import fitting
from ._part import Part
from ._ranks import Place


class Entry:
    """One tensor of the job. `staged`: Cairn captures this copy instead, if there is one.

    `part` tells what is captured, and where it lies, for a tensor that its framework lays out and
    that may hold several.
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
        "found_shape",
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
        self.staged: Any = _tensors.staging_like(tensor) if staged else None
        if staged and part is not None:
            self.part = part._replace(memory=lambda: self.staged)
        self.replica = (0, 1)
        # by this rank; all ranks restore it
        self.captured = part is None or part.captured[0] < part.captured[1]
        # A parameter that no optimizer has: may be captured from a copy; and which is not frozen
        # of a model that trains, so that the script itself may update it (a copy in lower
        # precision, an average).
        self.stageable = self.aside = False
        # of the whole in the snapshot that it is restored from, where its padding is another
        self.found_shape: Optional[Tuple[int, ...]] = None

    def piece(
        self, place: Place, as_named: Optional[str] = None, into_staged: bool = True
    ) -> Optional[_lib.Piece]:
        """This rank's part; None where that is nothing. For a restore replicas only say
        how little is captured."""
        if self.part is not None:
            return self._piece_of_part(self.part, as_named or self.name, not into_staged)
        memory = self.staged if self.staged is not None else _tensors.local(self.tensor)
        shape, offset, extent, index, count = self._box()
        if 0 in extent:
            return None
        if not _tensors.is_sharded(self.tensor):
            index, count = self.replica if into_staged else (place.rank, place.world)
        return _lib.Piece(
            as_named or self.name,
            _tensors.DTYPES[memory.dtype],
            self.kind,
            shape,
            offset,
            extent,
            _tensors.addresses([memory])[0],
            _tensors.ordinal(memory),
            index,
            count,
        )

    @property
    def is_held(self) -> bool:
        """It is what an optimizer updates, or may: a parameter, or a copy of one."""
        return self.owner is None and self.kind in (_lib.PARAM, _lib.OPTIMIZER)

    def clear_padding(self) -> None:
        """Before a restore from a whole with other padding, which may not reach all of it."""
        if self.part is not None and self.found_shape is not None:
            _tensors.clear(self.part.memory(), self.part.at, self.part.end - self.part.begin)

    def is_on_host(self) -> bool:
        """Its memory is the CPU's, and is filled in place."""
        return self.staged is None and _tensors.ordinal(self.memory()) < 0

    def _piece_of_part(self, part: Part, name: str, restores: bool) -> Optional[_lib.Piece]:
        first = part.begin
        if restores and self.found_shape is not None:
            part = part.cut_to(self.found_shape)
        begin, end = (part.begin, part.end) if restores else part.captured
        if begin == end:
            return None
        memory = part.memory()
        offset, extent = part.box or ((0,) * len(part.shape), part.shape)
        return _lib.Piece(
            name,
            _tensors.DTYPES[memory.dtype],
            self.kind,
            part.shape,
            offset,
            extent,
            self._address_of(begin - part.begin + first),
            _tensors.ordinal(memory),
            *part.replica,
            begin,
            end,
        )

    def _address_of(self, element: int) -> int:
        """Where an element of the part's box lies."""
        assert self.part is not None
        memory = self.part.memory()
        at = self.part.at + element - self.part.begin
        return _tensors.addresses([memory])[0] + at * int(memory.element_size())

    def memory(self) -> Any:
        """The tensor here in whose memory it lies, if not in its own copy."""
        return _tensors.local(self.tensor) if self.part is None else self.part.memory()

    def address(self) -> int:
        """Where in that begins what this rank captures."""
        if self.part is not None:
            return self._address_of(self.part.captured[0])
        return _tensors.addresses([self.memory()])[0]

    def shape(self) -> Tuple[int, ...]:
        """Of the whole, in the order of its memory."""
        if self.part is not None:
            return self.part.shape
        return self._box()[0]

    def _box(self) -> Tuple[Tuple[int, ...], Tuple[int, ...], Tuple[int, ...], int, int]:
        return _tensors.box(
            self.tensor if self.staged is None or _tensors.is_sharded(self.tensor) else self.staged
        )

    def size_bytes(self) -> int:
        """Of what lies here, as far as this rank captures it."""
        memory = self.memory()
        if self.part is None:
            return int(memory.nbytes)
        begin, end = self.part.captured
        return (end - begin) * int(memory.element_size())

    def takes_narrower(self, found: _lib.Listed) -> bool:
        """A buffer can come back from a narrower type: FSDP1's mixed precision gives it that only
        at the first forward."""
        if self.kind == found.kind == _lib.BUFFER and not _tensors.is_sharded(self.tensor):
            narrower = _tensors.staging_of_narrower(self.tensor, found.dtype)
            self.staged = narrower if narrower is not None else self.staged
            return narrower is not None
        return False

    def unstage(self) -> None:
        """After a restore into the copy."""
        if self.staged is not None:
            _tensors.stage(self.staged, _tensors.local(self.tensor))


def devices_of(pieces: Iterable[_lib.Piece]) -> Set[int]:
    """The CUDA devices that pieces are on."""
    return {piece.device for piece in pieces if piece.device >= 0}
