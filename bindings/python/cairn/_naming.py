"""Names of tensors in a snapshot.

A parameter has that of the root module's named_parameters (with the root's prefix where there are
several), a moment `<key>.<parameter>` as in `exp_avg.layer.weight` (a dot in the key is %2E), what
differs from rank to rank `rank<r>/<name>`, and the blob of plain state `cairn.rank<r>`.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from . import _lib
from ._ranks import Place

POSITIONAL = re.compile(r"optimizer\d+\.group\d+\.\d+")


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
    key, with anything inside."""
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


def ranks_of(listed: Mapping[str, _lib.Listed]) -> Tuple[int, List[str]]:
    """Return (number of ranks of a snapshot, parameters that several ranks have their own of)."""
    ranks = sum(name.startswith("cairn.rank") for name in listed)
    params = (of_rank(name) for name, each in listed.items() if each.kind == _lib.PARAM)
    return ranks, sorted({name for rank, name in params if rank is not None})
