"""Plain data to bytes and back without executing anything: the opaque blobs of a snapshot.

A blob is u32 length of the JSON, the JSON, and the raw bytes that it refers to. In the JSON an
object is always a tag: {"$": "map", "of": [[key, value], ...]} and so on, so that every type comes
back as it was. Types of other libraries (tensors, arrays) are brought in by `pack`, which turns one
into (tag, plain value), and `unpack`, which turns it back.
"""

from __future__ import annotations

import collections
import json
import struct
from typing import Any, Callable, Dict, List, Optional, Tuple

Pack = Callable[[Any], Optional[Tuple[str, Any]]]
Unpack = Callable[[str, Any], Any]

_MAPPINGS: Dict[type, str] = {
    dict: "map",
    collections.OrderedDict: "ordered",
    collections.Counter: "counter",
}
_MAKERS: Dict[str, Callable[[Any], Any]] = {name: kind for kind, name in _MAPPINGS.items()}
# of a defaultdict
_FACTORIES: Dict[str, type] = {
    kind.__name__: kind for kind in (int, float, str, bool, list, dict, set)
}


def encode(value: Any, pack: Pack = lambda value: None) -> bytes:
    """The bytes of a value. TypeError, with the way to it, for what is not plain data."""
    raw: List[bytes] = []
    raw_bytes = 0

    def plain(item: Any, path: str) -> Any:
        nonlocal raw_bytes
        kind = type(item)
        if item is None or kind in (bool, int, str):
            return item
        if kind is float:
            return {"$": "float", "of": item.hex()}
        if kind in (bytes, bytearray):
            raw.append(bytes(item))
            raw_bytes += len(item)
            return {"$": kind.__name__, "of": [raw_bytes - len(item), len(item)]}
        if kind is list:
            return [plain(each, f"{path}[{i}]") for i, each in enumerate(item)]
        if kind in (tuple, set, frozenset, collections.deque):
            return {
                "$": kind.__name__,
                "of": [plain(each, f"{path}[{i}]") for i, each in enumerate(item)],
            }
        if isinstance(item, dict) and (kind in _MAPPINGS or kind is collections.defaultdict):
            pairs = [[plain(k, path), plain(v, f"{path}[{k!r}]")] for k, v in item.items()]
            factory = getattr(item, "default_factory", None)
            if factory in _FACTORIES.values():
                return {"$": "defaultdict", "of": [factory.__name__, pairs]}
            # of a function's defaultdict the mapping alone
            return {"$": _MAPPINGS.get(kind, "map"), "of": pairs}
        packed = pack(item)
        if packed is None:
            raise TypeError(
                f"{path} is of type {kind.__module__}.{kind.__qualname__}, which is not plain data"
            )
        return {"$": packed[0], "of": plain(packed[1], path)}

    text = json.dumps(plain(value, "it"), separators=(",", ":")).encode()
    return b"".join([struct.pack("<I", len(text)), text, *raw])


def decode(blob: bytes, unpack: Unpack = lambda tag, value: None) -> Any:
    """The value of what encode made. ValueError for bytes that it did not make."""
    if len(blob) < 4 or len(blob) < 4 + struct.unpack_from("<I", blob)[0]:
        raise ValueError("a blob is shorter than it says")
    start = 4 + struct.unpack_from("<I", blob)[0]

    def value_of(item: Any) -> Any:
        if isinstance(item, list):
            return [value_of(each) for each in item]
        if not isinstance(item, dict):
            return item
        tag, of = item["$"], item["of"]
        if tag == "float":
            return float.fromhex(of)
        if tag in ("bytes", "bytearray"):
            if not 0 <= of[0] <= of[0] + of[1] <= len(blob) - start:
                raise ValueError("a blob refers to bytes that it lacks")
            found = blob[start + of[0] : start + of[0] + of[1]]
            return found if tag == "bytes" else bytearray(found)
        if tag == "defaultdict":
            return collections.defaultdict(
                _FACTORIES[of[0]], {value_of(key): value_of(each) for key, each in of[1]}
            )
        if tag in _MAKERS:
            return _MAKERS[tag]({value_of(key): value_of(each) for key, each in of})
        values = value_of(of)
        makers: Dict[str, Callable[[Any], Any]] = {
            "tuple": tuple,
            "set": set,
            "frozenset": frozenset,
            "deque": collections.deque,
        }
        return makers[tag](values) if tag in makers else unpack(tag, values)

    try:
        return value_of(json.loads(blob[4:start].decode()))
    except (KeyError, TypeError, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"a blob is not in the form of one: {error}") from error
