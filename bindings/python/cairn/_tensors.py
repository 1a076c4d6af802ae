"""Tensors as pieces of memory: their place, their contents, and whether they can be captured."""

from __future__ import annotations

import functools
import operator
import zlib
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _lib

DTYPES: Dict[torch.dtype, int] = {
    getattr(torch, name): _lib.DTYPES[text]
    for name, text in (
        ("bool", "BOOL"),
        ("uint8", "U8"),
        ("int8", "I8"),
        ("float8_e5m2", "F8_E5M2"),
        ("float8_e4m3fn", "F8_E4M3"),
        ("int16", "I16"),
        ("uint16", "U16"),
        ("float16", "F16"),
        ("bfloat16", "BF16"),
        ("int32", "I32"),
        ("uint32", "U32"),
        ("float32", "F32"),
        ("int64", "I64"),
        ("uint64", "U64"),
        ("float64", "F64"),
        ("complex64", "C64"),
    )
    if hasattr(torch, name)
}

FROM_DTYPE = {value: dtype for dtype, value in DTYPES.items()}

SAMPLE_ELEMENTS = 4096


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that lies here: of a DTensor its local tensor, else itself."""
    return getattr(tensor, "_local_tensor", tensor)


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "_local_tensor")


_version_of = operator.attrgetter("_version")
# Where a script has a mode of its own (torch.set_default_device makes one), reading an attribute of
# a tensor calls it: microseconds, for each of thousands of tensors.
_without_modes = torch._C.DisableTorchFunction


def is_sharded_over(tensor: Tensor, world: int) -> bool:
    """It is divided among so many ranks, or among the ranks of each of several replicas, and in no
    other way."""
    mesh, placements = getattr(tensor, "device_mesh", None), getattr(tensor, "placements", ())
    if mesh is None or mesh.size() != world:
        return False
    kinds = [each.is_shard() for each in placements]
    return kinds == [True] or (kinds == [False, True] and placements[0].is_replicate())


def versions(here: Sequence[Tensor]) -> List[int]:
    """The version counters of local tensors: they grow with every write that goes through torch and
    not through .data."""
    try:
        with _without_modes():
            return list(map(_version_of, here))
    except RuntimeError:  # a tensor of inference mode has none
        return [0 if tensor.is_inference() else tensor._version for tensor in here]


def storages(here: Sequence[Tensor]) -> List[Any]:
    """Return the memory blocks of local tensors; they live as long as the returned object."""
    return [tensor.untyped_storage() for tensor in here]


def addresses(here: Sequence[Tensor]) -> List[int]:
    """Where local tensors begin, in the memory that `ordinal` names."""
    with _without_modes():
        return list(map(Tensor.data_ptr, here))


def ordinal(tensor: Tensor) -> int:
    """The CUDA device of a local tensor, as the driver counts them; -1 on the host."""
    return int(tensor.device.index) if tensor.is_cuda else -1


def memory_order(tensor: Tensor) -> Optional[Tuple[int, ...]]:
    """The order of dimensions in which the tensor is contiguous, outermost first; None where it has
    holes or overlaps."""
    if tensor.is_contiguous():
        return tuple(range(tensor.dim()))
    order = tuple(sorted(range(tensor.dim()), key=lambda i: (-tensor.stride()[i], i)))
    return order if tensor.permute(order).is_contiguous() else None


def uncovered(tensor: Tensor) -> Optional[str]:
    """Why a tensor cannot be captured in place; None where it can."""
    if torch.nn.parameter.is_lazy(tensor):
        return "it gets its shape in the first forward"
    here = local(tensor)
    if hasattr(type(here), "__tensor_flatten__"):
        return f"it is a {type(here).__name__}, whose values lie in other tensors"
    if here.is_meta:
        return "it is on the meta device"
    if here.device.type not in ("cpu", "cuda"):
        return f"it is on {here.device.type}"
    if here.is_cuda and torch.version.hip:
        return "it is on a ROCm device"
    if here.layout is not torch.strided:
        return f"its layout is {here.layout}"
    if here.dtype not in DTYPES:
        return f"its type is {here.dtype}"
    if here.dim() > _lib.DIMS_MAX:
        return f"it has {here.dim()} dimensions"
    if here.numel() and memory_order(here) is None:
        return "it is not contiguous"
    if is_sharded(tensor):
        if any(each.is_partial() for each in tensor.placements):  # type: ignore[attr-defined]
            return "it is a DTensor of partial sums"
        if memory_order(here) != tuple(range(here.dim())):
            return "it is a DTensor that is not row-major"
    return None


def box(tensor: Tensor) -> Tuple[Tuple[int, ...], Tuple[int, ...], Tuple[int, ...], int, int]:
    """(shape, offset, extent, replica index, replica count) of what lies here of a tensor; a plain
    one is its only replica."""
    if not is_sharded(tensor):
        order = memory_order(tensor) or tuple(range(tensor.dim()))
        shape = tuple(tensor.shape[i] for i in order)
        return shape, (0,) * len(shape), shape, 0, 1
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    extent, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    index, count = 0, 1
    for dim, placement in enumerate(placements):
        if placement.is_replicate():
            index, count = index * mesh.size(dim) + mesh.get_local_rank(dim), count * mesh.size(dim)
    here = tuple(local(tensor).shape)
    if here != tuple(extent):
        raise ValueError(
            f"the part that lies here has the shape {here} where its placement says {tuple(extent)}"
        )
    return tuple(tensor.shape), tuple(offset), here, index, count


def shape_in_memory(shape: Sequence[int], stride: Sequence[int]) -> Tuple[int, ...]:
    """Return a tensor's shape in memory order, as `box` gives it, from its shape and stride."""
    return box(torch.empty_strided(tuple(shape), tuple(stride), device="meta"))[0]


def mesh_replica(tensor: Tensor) -> Tuple[int, int]:
    """(index, count) of a plain tensor that belongs to a DTensor and is the same on every rank of
    its mesh."""
    mesh = tensor.device_mesh  # type: ignore[attr-defined]
    index = 0
    for dim in range(mesh.ndim):
        index = index * mesh.size(dim) + mesh.get_local_rank(dim)
    return index, mesh.size()


def staging_like(tensor: Tensor) -> Tensor:
    """Row-major memory of the same shape, type and device, with its values."""
    return local(tensor).detach().clone(memory_format=torch.contiguous_format)


def staging_of_narrower(tensor: Tensor, dtype: int) -> Optional[Tensor]:
    """Row-major memory of the same shape and device for values of a type that the tensor's own can
    hold; None for any other."""
    here, other = local(tensor), FROM_DTYPE[dtype]
    if not (here.is_floating_point() and torch.promote_types(here.dtype, other) == here.dtype):
        return None
    return torch.empty(here.shape, dtype=other, device=here.device)


def stage(source: Tensor, into: Tensor) -> None:
    with torch.no_grad():
        into.copy_(local(source).detach())


def clear(tensor: Tensor, at: int, count: int) -> None:
    """Sets elements of a contiguous tensor to zero."""
    with torch.no_grad():
        tensor.detach().view(-1)[at : at + count].zero_()


def sample_digest(tensors: Iterable[Tensor]) -> str:
    """A checksum of some elements of each tensor, spread over it."""
    found = 0
    for tensor in tensors:
        here = local(tensor).detach()
        # in the order of its memory, which has no holes
        flat = here.as_strided((here.numel(),), (1,))
        some = flat[:: max(1, flat.numel() // SAMPLE_ELEMENTS)].cpu().contiguous()
        found = zlib.crc32(read_bytes(some.view(torch.uint8)), found)
    return f"{found:08x}"


def byte_buffer(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.uint8)


def write_bytes(buffer: Tensor, data: bytes) -> None:
    buffer[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)


def read_bytes(buffer: Tensor) -> bytes:
    return bytes(buffer.numpy().tobytes() if _has_numpy() else buffer.tolist())


@functools.lru_cache(maxsize=1)
def _has_numpy() -> bool:
    try:
        torch.zeros(1).numpy()
    except RuntimeError:
        return False
    return True


def is_training() -> bool:
    """Gradients are recorded, in any mode of the modules."""
    return torch.is_grad_enabled()


def set_streams(client: _lib.Client, devices: Iterable[int]) -> None:
    """Has the next snapshot and restore wait for what this thread has issued on its current stream
    of each of these devices."""
    for device in devices:
        client.set_stream(device, torch.cuda.current_stream(device).cuda_stream)


def is_recording_a_graph() -> bool:
    """What this thread issues on a device goes into a CUDA graph, and does not run now."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
