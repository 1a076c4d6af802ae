"""Random generators, and tensors and numpy's values as plain data for _blob.py."""

from __future__ import annotations

import random
import sys
from array import array
from typing import Any, Dict, Mapping, Optional, Tuple

import torch
from torch import Tensor

from . import _megatron, _tensors


def random_state() -> Dict[str, Any]:
    """The states of all generators that this process has used: torch's, Python's, numpy's where it
    is loaded."""
    kind, words, gauss = random.getstate()
    state: Dict[str, Any] = {
        "cpu": torch.get_rng_state(),
        "python": (kind, array("Q", words).tobytes(), gauss),
    }
    if torch.cuda.is_initialized():
        # they are kept on the host: nothing waits for a device
        state["cuda"] = torch.cuda.get_rng_state_all()
        state["cuda_device"] = torch.cuda.current_device()
    tracked = _megatron.random_states()
    if tracked is not None:
        state["megatron"] = tracked
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        name, keys, *rest = numpy.random.get_state()
        if name == "MT19937":
            state["numpy"] = (keys.tobytes(), [int(rest[0]), int(rest[1]), float(rest[2])])
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    kind, words, gauss = state["python"]
    random.setstate((kind, tuple(array("Q", words)), gauss))
    if "cuda" in state and torch.cuda.is_available():
        states, here, there = list(state["cuda"]), torch.cuda.current_device(), state["cuda_device"]
        # this rank computes on another device now: that goes on with the generator of the one
        # before
        if here != there:
            states += [None] * (here + 1 - len(states))
            states[here], states[there] = states[there], states[here]
        for device, each in enumerate(states[: torch.cuda.device_count()]):
            if each is not None:
                torch.cuda.set_rng_state(each, device)
    if "megatron" in state:
        _megatron.set_random_states(state["megatron"])
    if "numpy" in state:
        import numpy

        keys, rest = state["numpy"]
        numpy.random.set_state(("MT19937", numpy.frombuffer(keys, dtype=numpy.uint32), *rest))


def pack(value: Any) -> Optional[Tuple[str, Any]]:
    """Tensors and numpy's values for _blob.encode."""
    if isinstance(value, Tensor):
        if _tensors.uncovered(value) or _tensors.is_sharded(value):
            return None
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return "tensor", [
            _tensors.DTYPES[value.dtype],
            list(value.shape),
            _tensors.read_bytes(flat),
        ]
    if isinstance(value, torch.Size):
        return "tuple", list(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in "biuf":
        return "scalar", [value.dtype.str, value.tobytes()]
    if numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biuf":
        return "array", [value.dtype.str, list(value.shape), value.tobytes()]
    return None


def unpack(tag: str, of: Any) -> Any:
    if tag == "tensor":
        data = (
            torch.frombuffer(bytearray(of[2]), dtype=torch.uint8)
            if of[2]
            else torch.empty(0, dtype=torch.uint8)
        )
        return data.view(_tensors.FROM_DTYPE[of[0]]).reshape(of[1])
    if tag in ("scalar", "array"):
        import numpy

        return (
            numpy.frombuffer(of[1], dtype=of[0])[0]
            if tag == "scalar"
            else numpy.frombuffer(of[2], dtype=of[0]).reshape(of[1]).copy()
        )
    raise ValueError(f"a blob holds something of the unknown kind {tag!r}")
