"""One tensor of the job: its name, what this rank holds of it, and where that lies."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Optional, Set, Tuple

from . import _lib, _tensors
from ._fsdp1 import Part
from ._naming import fitting
from ._ranks import Place


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
        if self.part is not None:
            return self._piece_of_part(self.part, as_named or self.name)
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

    def is_on_host(self) -> bool:
        """Its memory is the CPU's, and is filled in place."""
        return self.staged is None and _tensors.ordinal(self.memory()) < 0

    def _piece_of_part(self, part: Part, name: str) -> Optional[_lib.Piece]:
        if part.is_empty:
            return None
        memory = part.memory()
        return _lib.Piece(
            name,
            _tensors.DTYPES[memory.dtype],
            self.kind,
            part.shape,
            (0,) * len(part.shape),
            part.shape,
            self.address(),
            _tensors.ordinal(memory),
            *part.replica,
            part.begin,
            part.end,
        )

    def memory(self) -> Any:
        """The tensor here in whose memory it lies, if not in its own copy."""
        return _tensors.local(self.tensor) if self.part is None else self.part.memory()

    def address(self) -> int:
        """Where in that it begins."""
        memory = self.memory()
        return _tensors.addresses([memory])[0] + (
            0 if self.part is None else self.part.at * int(memory.element_size())
        )

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
