"""What a rank holds of a parameter whose framework lays it out: FSDP1's flat parameters, Megatron's
shards. The name is the framework's own, and so is the place in the whole, so that a restore needs
neither the same number of ranks nor the same framework."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from . import _lib

Numbered = Tuple[int, int]  # index, count


class Held:
    """The memory of a part that always lies in one tensor, so that nobody has to ask again."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __call__(self) -> Any:
        return self._tensor


class Part(NamedTuple):
    """What this rank holds of a parameter, or of a tensor of the optimizer's state beside it.
    Ranges and places in elements."""

    name: str  # in the snapshot; "": the optimizer's state beside it is all that is captured
    shape: Tuple[int, ...]  # of the whole, in the order of its memory
    begin: int  # the range of the row-major box; where both are the same, nothing
    end: int
    memory: Callable[[], Any]  # the tensor in which it lies; Held: always the same
    at: int  # where it begins there
    held_shape: Tuple[int, ...]  # of what the optimizer holds: its state has the same
    held_at: int  # where the part begins in that
    replica: Numbered  # this rank among those that hold the same range
    holder: Numbered  # this rank among those that hold any of the parameter
    box: Optional[Tuple[Tuple[int, ...], Tuple[int, ...]]] = None  # offset, extent; None: the whole
    # The range of the box that this rank captures, where others capture the rest of what it holds.
    kept: Optional[Tuple[int, int]] = None
    kind: int = _lib.PARAM
    of_parameter: str = ""  # the parameter's name where `name` is another: of a master, say
    # the first dimension may be another in a snapshot, as it is padded: what both have comes back
    padded: bool = False

    @property
    def parameter(self) -> str:
        return self.of_parameter or self.name

    @property
    def is_empty(self) -> bool:
        return self.begin == self.end

    @property
    def captured(self) -> Tuple[int, int]:
        """The range of the box that this rank captures."""
        return (self.begin, self.end) if self.kept is None else self.kept

    def takes(self, shape: Tuple[int, ...]) -> bool:
        """Whether a snapshot's tensor of this shape contains this part."""
        if not self.padded or not shape:
            return shape == self.shape
        return len(shape) == len(self.shape) and shape[1:] == self.shape[1:]

    def cut_to(self, shape: Tuple[int, ...]) -> "Part":
        """What a whole of this shape, which it `takes`, holds: it may have other padding."""
        if shape == self.shape or not shape:
            return self
        offset, extent = self.box or ((0,) * len(self.shape), self.shape)
        rows = min(max(shape[0] - offset[0], 0), extent[0])
        last = rows * math.prod(extent[1:])
        begin = min(self.begin, last)
        box = (min(offset[0], shape[0] - rows), *offset[1:]), (rows, *extent[1:])
        return self._replace(shape=shape, begin=begin, end=min(self.end, last), box=box)

    def of(self, value: Any) -> Optional["Part"]:
        """The part of a tensor of the optimizer's state: of one number, which all holders have, or
        laid out like the parameter.

        None where its shape is neither.
        """
        if value.dim() == 0:
            return self._of_number(value)
        if tuple(value.shape) == self.held_shape:
            return self._replace(memory=Held(value), at=self.held_at, kind=_lib.OPTIMIZER)
        return None

    def _of_number(self, value: Any) -> "Part":
        """Where the framework says who captures what: who captures the first element, too."""
        begin, end = self.captured
        goes = begin == 0 < end and not any(self.box[0] if self.box else ())
        return self._replace(
            shape=(),
            begin=0,
            end=1,
            memory=Held(value),
            at=0,
            replica=self.holder,
            box=None,
            kept=None if self.kept is None else (0, int(goes)),
            kind=_lib.OPTIMIZER,
            padded=False,
        )


# by the id of what an optimizer holds: a parameter, or a flat one of several
Parts = Dict[int, List[Part]]
