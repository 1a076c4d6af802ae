"""Everything that touches torch: hooks, names, tensors as pieces, random generators. The one file
that imports it.

Hooks: a global one before and after every optimizer's step, one on every module's forward until the
roots (the outermost modules that hold parameters of an optimizer) are found, and one on the forward
of each root. What they do is decided in _job.py.
"""

from __future__ import annotations

import datetime
import functools
import operator
import os
import random
import sys
import threading
import weakref
import zlib
from array import array
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_module
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torch.utils._python_dispatch import TorchDispatchMode

from . import _job, _lib, _signals
from ._extras import Extras
from ._fence import Fence
from ._fsdp1 import Part
from ._job import Job
from ._resume import Damaged
from ._state import Place

# Private names, for watching what an update writes to. A version that lacks one has updates wait
# for the whole copy.
try:
    from torch._C._dynamo.eval_frame import get_eval_frame_callback as compiling_callback
    from torch._C._dynamo.eval_frame import set_eval_frame
    from torch.utils._python_dispatch import (
        _get_current_dispatch_mode,
        _get_current_dispatch_mode_stack,
    )
except ImportError:
    compiling_callback = (
        set_eval_frame
    ) = _get_current_dispatch_mode = _get_current_dispatch_mode_stack = None

Tensor = torch.Tensor

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
EXCHANGE_TIMEOUT = datetime.timedelta(seconds=30)
# a rank may wait as long for the restore of its agents
RESUME_TIMEOUT = datetime.timedelta(minutes=15)
SAMPLE_ELEMENTS = 4096
LOCAL_RANKS = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_NTASKS_PER_NODE",
)
WRAPPER_KEEPS = (
    "the optimizer in it is captured: name in `extra` what else is to come back, a loss scaler say"
)
WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


# ---- the job's shape ----


def place() -> Place:
    """Rank, world and ranks on this node, of torch.distributed where it is initialised, else of the
    environment (torchrun)."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        rank, world = distributed.get_rank(), distributed.get_world_size()
    else:
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    told = [os.environ[name] for name in LOCAL_RANKS if os.environ.get(name, "").isdigit()]
    return Place(rank, world, min(world, int(told[0]) if told else world))


def has_store() -> bool:
    """The ranks have a store of torch.distributed in common."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def publish(key: str, value: bytes, here: Place) -> None:
    """Gives the other ranks what they may `gather` under the key, instead of what this rank gave
    before. Waits for nobody."""
    from torch.distributed.distributed_c10d import _get_default_store

    _get_default_store().set(f"cairn/{key}/{here.rank}", value.decode())


def gather(key: str, here: Place, timeout: datetime.timedelta = EXCHANGE_TIMEOUT) -> List[bytes]:
    """What each rank published under the key last, by rank, without a collective. Waits for each to
    have done so; RuntimeError on timeout."""
    from torch.distributed.distributed_c10d import _get_default_store

    store = _get_default_store()
    keys = [f"cairn/{key}/{rank}" for rank in range(here.world)]
    store.wait(keys, timeout)
    if store.has_extended_api():  # one question for all, where it knows how
        return [bytes(each) for each in store.multi_get(keys)]
    return [store.get(each) for each in keys]


def gather_if_there(key: str, here: Place, wait_s: float) -> Optional[List[bytes]]:
    """What `gather` gives where all ranks have published within so many seconds, which may be 0;
    else None."""
    from torch.distributed.distributed_c10d import _get_default_store

    keys = [f"cairn/{key}/{rank}" for rank in range(here.world)]
    try:
        if wait_s > 0:
            _get_default_store().wait(keys, datetime.timedelta(seconds=wait_s))
        return gather(key, here) if _get_default_store().check(keys) else None
    except RuntimeError:
        return None


def exchange(key: str, value: bytes, here: Place) -> List[bytes]:
    """Publishes, and gathers what the others did."""
    publish(key, value, here)
    return gather(key, here)


def meet(key: str, here: Place, timeout_s: float) -> None:
    """Says that this rank has come, and waits for the others; not without a store, nor longer than
    the timeout."""
    if not has_store():
        return
    from torch.distributed.distributed_c10d import _get_default_store

    try:
        store = _get_default_store()
        store.set(f"cairn/{key}/{here.rank}", "")
        if timeout_s > 0:
            store.wait(
                [f"cairn/{key}/{rank}" for rank in range(here.world)],
                datetime.timedelta(seconds=timeout_s),
            )
    # the time is over, or the rank that has the store left, which it does after all others have
    # come
    except RuntimeError:
        return


def checkpoint_module() -> Any:
    """torch.distributed.checkpoint, which is too slow to import for those who do not use it."""
    import torch.distributed.checkpoint

    return torch.distributed.checkpoint


# ---- tensors ----


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that lies here: of a DTensor its local tensor, else itself."""
    return getattr(tensor, "_local_tensor", tensor)


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "_local_tensor")


_version_of = operator.attrgetter("_version")


def versions(here: Sequence[Tensor]) -> List[int]:
    """The version counters of local tensors: they grow with every write that goes through torch and
    not through .data."""
    try:
        return list(map(_version_of, here))
    except RuntimeError:  # a tensor of inference mode has none
        return [0 if tensor.is_inference() else tensor._version for tensor in here]


def storages(here: Sequence[Tensor]) -> List[Any]:
    """Return the memory blocks of local tensors; they live as long as the returned object."""
    return [tensor.untyped_storage() for tensor in here]


def addresses(here: Sequence[Tensor]) -> List[int]:
    """Where local tensors begin, in the memory that `ordinal` names."""
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
    """Gradients are recorded, whatever mode the modules are in."""
    return torch.is_grad_enabled()


def set_streams(client: _lib.Client, devices: Iterable[int]) -> None:
    """Has the next snapshot and restore wait for what this thread has issued on its current stream
    of each of these devices."""
    for device in devices:
        client.set_stream(device, torch.cuda.current_stream(device).cuda_stream)


def is_recording_a_graph() -> bool:
    """What this thread issues on a device goes into a CUDA graph, and does not run now."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


# ---- modules ----


def strip(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def unwrap(module: Any) -> Any:
    """Without what only wraps: data parallelism, torch.compile."""
    while isinstance(
        module, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    ) or hasattr(module, "_orig_mod"):
        module = module._orig_mod if hasattr(module, "_orig_mod") else module.module
    return module


# Those of torch's communication hooks for DDP that give each rank the average of all: module and
# name.
REDUCING_HOOKS = (
    ("default_hooks", "allreduce_hook"),
    ("default_hooks", "fp16_compress_hook"),
    ("default_hooks", "bf16_compress_hook"),
    ("mixed_precision_hooks", "_reducer_allreduce_and_upcast_hook"),
)


def _reduces(hook: Any, state: Any) -> bool:
    """A communication hook is known to leave the same gradients on all ranks. By what it is, not
    what it is called."""
    if (
        isinstance(state, torch.distributed.ProcessGroup)
        and state.size() != torch.distributed.get_world_size()
    ):
        return False
    for module, name in REDUCING_HOOKS:
        # as it is where it is used
        there = sys.modules.get(f"torch.distributed.algorithms.ddp_comm_hooks.{module}")
        if hook is getattr(there, name, ""):
            return True
    return False


def _parallel(module: torch.nn.Module) -> Optional[torch.nn.parallel.DistributedDataParallel]:
    """The DistributedDataParallel that a root is, be it in torch.compile's wrapper."""
    inner = getattr(module, "_orig_mod", module)
    return inner if isinstance(inner, torch.nn.parallel.DistributedDataParallel) else None


def unknown_hooks(module: torch.nn.Module) -> List[str]:
    """The names of the communication hooks of a root under DDP of which nobody knows that they keep
    the ranks alike."""
    parallel = _parallel(module)
    hooks = [] if parallel is None else parallel._comm_hooks
    return [
        str(getattr(hook, "__qualname__", hook))
        for hook, state in hooks
        if not _reduces(hook, state)
    ]


def _leaves_nothing_out(module: torch.nn.parallel.DistributedDataParallel) -> bool:
    """It reduces all that it holds."""
    delayed = {id(parameter) for parameter in getattr(module, "_delay_all_reduce_params", ())}
    held = [
        *module.module.named_parameters(remove_duplicate=False),
        *module.module.named_buffers(remove_duplicate=False),
    ]
    return not any(
        name in module.parameters_to_ignore and id(tensor) not in delayed for name, tensor in held
    )


def replicates(module: torch.nn.Module) -> bool:
    """Its parameters are the same on all ranks of the world, and its buffers are sent from rank 0
    before each forward."""
    parallel = _parallel(module)
    return (
        parallel is not None
        and bool(parallel.broadcast_buffers)
        and parallel.process_group.size() == torch.distributed.get_world_size()
        and _leaves_nothing_out(parallel)
        and not unknown_hooks(module)
    )


def named_parameters(module: torch.nn.Module) -> Iterator[Tuple[str, Tensor]]:
    for name, parameter in unwrap(module).named_parameters():
        yield strip(name), parameter


def module_paths(root: torch.nn.Module) -> Dict[int, str]:
    """The paths of all modules by their ids, as they stand in the names of parameters."""
    return {
        id(module): strip(path + ".").rstrip(".") for path, module in unwrap(root).named_modules()
    }


def fsdp1_units(root: torch.nn.Module) -> Iterator[Any]:
    """The modules that FSDP1 has wrapped and that have parameters of their own."""
    # which takes long to import, and is there where it is used
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return
    for module in root.modules():
        if isinstance(module, fsdp.FullyShardedDataParallel) and module._handle is not None:
            yield module


def named_buffers(module: torch.nn.Module) -> Iterator[Tuple[str, Tensor]]:
    """Those that the module's own checkpoints hold."""
    inner = unwrap(module)
    kept = {
        f"{path}.{name}" if path else name
        for path, each in inner.named_modules()
        for name in each._buffers
        if name not in each._non_persistent_buffers_set
    }
    for name, buffer in inner.named_buffers():
        if name in kept:
            yield strip(name), buffer


# ---- optimizers ----


def grouped(optimizer: Optimizer) -> Iterator[Tuple[int, int, Dict[str, Any], Tensor]]:
    """(group number, number in the group, group, parameter) in the order of the update."""
    for number, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            yield number, index, group, parameter


def _is_zero(optimizer: Any) -> bool:
    """Whether it is a ZeroRedundancyOptimizer; does not import its module, which takes long."""
    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    return module is not None and isinstance(optimizer, module.ZeroRedundancyOptimizer)


def holder(optimizer: Any) -> Any:
    """The optimizer that has the state: of a ZeroRedundancyOptimizer the one in it, for the
    parameters of this rank alone."""
    return getattr(optimizer, "optim", optimizer) if _is_zero(optimizer) else optimizer


# which part of DeepSpeed steps it; "": none
_deepspeeds: "weakref.WeakKeyDictionary[Optimizer, str]" = weakref.WeakKeyDictionary()


def look_who_steps(optimizer: Optimizer) -> None:
    """In the first step of an optimizer: notes whether one of DeepSpeed's optimizers calls it.
    Nothing else tells them apart."""
    if "deepspeed" not in sys.modules or optimizer in _deepspeeds:
        return
    frame: Any = sys._getframe(1)
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith("deepspeed."):
        frame = frame.f_back
    caller = "" if frame is None else frame.f_globals["__name__"]
    # which steps what the script has given it
    _deepspeeds[optimizer] = "" if caller == "deepspeed.runtime.engine" else caller


def refusal(optimizer: Any, world: int) -> Optional[str]:
    """Why an optimizer cannot be covered; None where it can, as far as that is known before its
    state is looked at."""
    if isinstance(optimizer, torch.optim.LBFGS):
        return "LBFGS keeps the state of all its parameters as one"
    if _deepspeeds.get(optimizer):
        return (
            f"DeepSpeed ({_deepspeeds[optimizer]}) updates copies of the parameters part by part, "
            "with counters and scales of its own: its ZeRO and mixed-precision optimizers are not "
            "covered, save with its save_checkpoint"
        )
    if _is_zero(optimizer) and optimizer._overlap_with_ddp:
        return (
            "ZeroRedundancyOptimizer with overlap_with_ddp updates parameters during backward, "
            "where no hook sees it"
        )
    if _is_zero(optimizer) and optimizer.world_size != world:
        return (
            f"ZeroRedundancyOptimizer spreads its state over {optimizer.world_size} of the job's "
            f"{world} ranks"
        )
    return None


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def make_state(
    parameter: Tensor, group: Mapping[str, Any], listed: _lib.Listed, part: Optional[Part] = None
) -> Tensor:
    """A tensor of an optimizer's state as its first step would have made it: like the parameter, or
    a scalar beside it.

    Its values are what the memory held: zeros would be written only to be overwritten. Not so
    beside FSDP1's flat parameters, which have padding that no restore writes to.
    """
    dtype = FROM_DTYPE[listed.dtype]
    if part is not None and listed.shape == part.shape:
        return torch.zeros_like(
            parameter, dtype=dtype, memory_format=torch.preserve_format, requires_grad=False
        )
    if listed.shape == box(parameter)[0]:
        return torch.empty_like(
            parameter, dtype=dtype, memory_format=torch.preserve_format, requires_grad=False
        )
    on_device = bool(group.get("capturable") or group.get("fused")) or bool(listed.shape)
    return torch.empty(
        listed.shape, dtype=dtype, device=local(parameter).device if on_device else "cpu"
    )


def group_marks(optimizer: Optimizer) -> List[Dict[str, Any]]:
    """What shows that an update has changed hyperparameters of its groups; of none for torch's own
    optimizers, which do not."""
    if _is_torchs_own(type(optimizer)):
        return []
    return [
        {
            key: (id(value), versions([local(value)])) if isinstance(value, Tensor) else value
            for key, value in group.items()
            if key != "params" and isinstance(value, (Tensor, bool, int, float, str, type(None)))
        }
        for group in optimizer.param_groups
    ]


# ---- random generators and other plain state ----


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
    if "numpy" in state:
        import numpy

        keys, rest = state["numpy"]
        numpy.random.set_state(("MT19937", numpy.frombuffer(keys, dtype=numpy.uint32), *rest))


def pack(value: Any) -> Optional[Tuple[str, Any]]:
    """Tensors and numpy's values for _blob.encode."""
    if isinstance(value, Tensor):
        if uncovered(value) or is_sharded(value):
            return None
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return "tensor", [DTYPES[value.dtype], list(value.shape), read_bytes(flat)]
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
        return data.view(FROM_DTYPE[of[0]]).reshape(of[1])
    if tag in ("scalar", "array"):
        import numpy

        return (
            numpy.frombuffer(of[1], dtype=of[0])[0]
            if tag == "scalar"
            else numpy.frombuffer(of[2], dtype=of[0]).reshape(of[1]).copy()
        )
    raise ValueError(f"a blob holds something of the unknown kind {tag!r}")


# ---- what an update writes to ----

# .steps: the optimizers whose guarded step runs in this thread; .in_compiled: a hook runs that may
# return to what is compiled
_guarded = threading.local()


def _is_torchs_own(kind: type) -> bool:
    return f"{kind.__module__}.".startswith("torch.optim.")


def guard_step(optimizer: Optimizer) -> None:
    """Sees to it that a watch of this kind of optimizer's updates ends with the step, also with one
    that raises."""
    kind = type(optimizer)
    step = kind.step
    if not _is_torchs_own(kind) or hasattr(step, "_cairn_guards"):
        return

    @functools.wraps(step)
    def guarded(self: Optimizer, *arguments: Any, **options: Any) -> Any:
        steps = _guarded.__dict__.setdefault("steps", [])
        steps.append(self)
        try:
            return step(self, *arguments, **options)
        except BaseException as error:
            if error.__traceback__ is not None:
                # the script's own, without this frame
                error.__traceback__ = error.__traceback__.tb_next
            raise
        finally:
            steps.pop()
            unwatch()

    guarded._cairn_guards = True  # type: ignore[attr-defined]
    kind.step = guarded  # type: ignore[method-assign]


def writes_are_known(optimizer: Optimizer) -> bool:
    """Its step writes to its own tensors alone, and through torch's dispatcher, where a watch sees
    it.

    That is known of torch's own optimizers. Others may use kernels that nothing sees, compiled code
    calls its kernels itself, and nobody knows what a hook of the script does.
    """
    steps = getattr(_guarded, "steps", None)
    if (
        compiling_callback is None
        or not _is_torchs_own(type(optimizer))
        or not steps
        or steps[-1] is not optimizer
    ):
        return False
    hooks = [
        getattr(optimizer_module, f"_global_optimizer_{when}_hooks", None)
        for when in ("pre", "post")
    ]
    if (
        None in hooks
        or sum(map(len, hooks)) > 2
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
    ):
        return False
    # The first is true where this very function is being compiled, the second where what it returns
    # to may be.
    in_compiled = compiling_callback() is not None or getattr(_guarded, "in_compiled", False)
    return not torch.compiler.is_compiling() and not in_compiled


_written: Dict[Any, Optional[Tuple[Tuple[int, str], ...]]] = {}


def _writes_of(function: Any) -> Optional[Tuple[Tuple[int, str], ...]]:
    """(index, name) of the arguments that an operator writes to; None where it does not say."""
    try:
        return _written[function]
    except KeyError:
        schema = getattr(function, "_schema", None)
        found = (
            None
            if schema is None
            else tuple(
                (index, argument.name)
                for index, argument in enumerate(schema.arguments)
                if argument.alias_info is not None and argument.alias_info.is_write
            )
        )
        _written[function] = found
        return found


def _span(tensor: Tensor) -> Optional[Tuple[int, int]]:
    """The addresses [begin, end) of what lies here of a tensor; None where that is not one block of
    memory."""
    here = local(tensor)
    if type(here) not in (Tensor, torch.nn.Parameter) or here.layout is not torch.strided:
        return None
    begin = addresses((here,))[0]
    if here.is_contiguous():
        return begin, begin + here.nbytes
    if here.numel() == 0:
        return begin, begin
    elements = 1 + sum((size - 1) * stride for size, stride in zip(here.shape, here.stride()))
    return begin, begin + elements * here.element_size()


class _Watch(TorchDispatchMode):
    """Fences what an operator writes to, before it runs, while a snapshot is being captured."""

    fence: Optional[Fence] = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # it never runs in compiled code, and would pay for that in every operator

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.fence is not None:
            _before_write(self, self.fence, function, args, kwargs)
        return function(*args, **kwargs)


_watch = _Watch()


def watch(fence: Fence) -> None:
    """Until unwatch every operator that this thread runs waits for what it overwrites."""
    _watch.fence = fence
    _watch.__enter__()


def unwatch() -> None:
    """Ends it; where nothing is watched it does nothing."""
    if compiling_callback is not None and _watch in _get_current_dispatch_mode_stack():
        _watch.fence = None
        if _get_current_dispatch_mode() is _watch:
            _watch.__exit__(None, None, None)


# ---- hooks ----

_installed = False


def _quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that never stops training, and that torch.compile leaves alone: where it is called
    from code that is compiled piece by piece, nothing in it is."""

    def run(*arguments: Any) -> Any:
        job = _job.current()
        if job is None:
            return None
        try:
            return function(job, *arguments)
        except Damaged:
            raise
        except Exception as error:
            job.end(f"{type(error).__name__}: {error}")
            return None

    @functools.wraps(function)
    def hook(*arguments: Any) -> Any:
        compiles = None if compiling_callback is None else compiling_callback()
        if compiles is None:
            return run(*arguments)
        set_eval_frame(None)
        _guarded.in_compiled = True
        try:
            return run(*arguments)
        finally:
            _guarded.in_compiled = False
            set_eval_frame(compiles)

    hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    _never_compiled(hook)
    return hook


def _never_compiled(function: Any) -> None:
    """torch.compile does not take it for a function of the script's; what is compiled and calls it
    may have it inside. Without Dynamo, whose import takes as long as torch's own."""
    try:
        from torch._C._dynamo import eval_frame
    except ImportError:
        return  # a version without Dynamo
    if all(
        hasattr(eval_frame, name)
        for name in ("set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction")
    ):
        actions = eval_frame._FrameAction
        eval_frame.set_code_exec_strategy(
            function.__code__, eval_frame._FrameExecStrategy(actions.SKIP, actions.DEFAULT)
        )
    elif hasattr(eval_frame, "skip_code"):  # until 2.6
        eval_frame.skip_code(function.__code__)


@_quiet
def _before_update(job: Job, optimizer: Optimizer) -> None:
    job.before_update(optimizer)


def _fenced(closure: Callable[[], Any], optimizer: Optimizer) -> Callable[[], Any]:
    """The closure of an optimizer's step, with the fence after its first call: no optimizer writes
    before that."""
    calls = 0

    @functools.wraps(closure)
    def call() -> Any:
        nonlocal calls
        result = closure()
        calls += 1
        if calls == 1:
            _before_update(optimizer)
        return result

    return call


@_quiet
def _before_write(
    _job: Job,
    watch: _Watch,
    fence: Fence,
    function: Any,
    args: Tuple[Any, ...],
    kwargs: Dict[str, Any],
) -> None:
    written = _writes_of(function)
    if written == ():
        return
    positions: List[int] = []
    for index, name in written or ():
        value = args[index] if index < len(args) else kwargs.get(name)
        for each in (
            value if isinstance(value, (list, tuple)) else () if value is None else (value,)
        ):
            span = _span(each)
            if span is None:
                written = None
            else:
                positions += fence.overlapping(*span)
    if written is None:
        fence.close_all()
    elif positions:
        fence.close(positions)
    if not fence.watches():
        watch.fence = None


@_quiet
def _before_step(
    job: Job, optimizer: Optimizer, args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Any:
    look_who_steps(optimizer)
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not job.before_step(optimizer, callable(closure)):
        return None
    if "closure" in kwargs:
        return args, {**kwargs, "closure": _fenced(closure, optimizer)}
    return (args[0], _fenced(closure, optimizer), *args[2:]), kwargs


@_quiet
def _after_step(job: Job, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    job.after_step(optimizer)


# the script compiles with fullgraph=True, where a hook that leaves the graph is an error
_whole_graphs = False


def _is_exporting() -> bool:
    """Parameters are stand-ins then."""
    return bool(getattr(torch.compiler, "is_exporting", lambda: True)())


def _outside_whole_graphs(hook: Callable[..., Any]) -> Callable[[torch.nn.Module, Any], Any]:
    """A forward's hook that compiled code leaves itself for, but not where that is an error: there
    it is not called."""

    def call(module: torch.nn.Module, arguments: Any) -> Any:
        if torch.compiler.is_compiling() and (_whole_graphs or _is_exporting()):
            return None
        return hook(module, arguments)

    _never_compiled(call)
    return call


@_outside_whole_graphs
@_quiet
def _any_forward(job: Job, module: torch.nn.Module, _args: Any) -> None:
    job.saw_forward(module)


@_outside_whole_graphs
@_quiet
def _root_forward(job: Job, module: torch.nn.Module, _args: Any) -> None:
    job.before_forward(module)


@_quiet
def _compiled_forward(job: Job, module: torch.nn.Module) -> None:
    job.before_compiled_forward(module)


def _see_whole_graphs() -> None:
    """Learns whether the script compiles with fullgraph=True, and sees forwards of modules that are
    compiled in place so: their hooks are inside."""
    compiles, compiles_in_place = torch.compile, torch.nn.Module.compile

    @functools.wraps(compiles)
    def compile_(*arguments: Any, **options: Any) -> Any:
        global _whole_graphs
        _whole_graphs = _whole_graphs or bool(options.get("fullgraph"))
        return compiles(*arguments, **options)

    @functools.wraps(compiles_in_place)
    def compile_in_place(self: torch.nn.Module, *arguments: Any, **options: Any) -> None:
        compiles_in_place(self, *arguments, **options)
        compiled = self._compiled_call_impl

        def call(*inputs: Any, **named: Any) -> Any:
            if not torch.compiler.is_compiling():
                _compiled_forward(self)
            return compiled(*inputs, **named)

        _never_compiled(call)
        self._compiled_call_impl = call

    torch.compile = compile_
    torch.nn.Module.compile = compile_in_place  # type: ignore[method-assign]


def watch_forwards() -> Callable[[], None]:
    """Calls the job before every forward of any module, until the returned function is called."""
    return torch.nn.modules.module.register_module_forward_pre_hook(_any_forward).remove


def watch_root(module: torch.nn.Module) -> Callable[[], None]:
    """Calls the job before every forward of this module, and before its other hooks: parameters are
    still sharded then."""
    return module.register_forward_pre_hook(_root_forward, prepend=True).remove


def install() -> None:
    """Installs the hooks, once. They do nothing before an optimizer is made."""
    global _installed
    if _installed:
        return
    _installed = True
    initialise = Optimizer.__init__

    @functools.wraps(initialise)
    def made(self: Optimizer, *arguments: Any, **options: Any) -> None:
        initialise(self, *arguments, **options)
        _never_compiled(made)
        job = _job.current()
        if job is not None:
            job.saw_optimizer(self)

    Optimizer.__init__ = made  # type: ignore[method-assign]
    register_optimizer_step_pre_hook(_before_step)  # type: ignore[arg-type]
    register_optimizer_step_post_hook(_after_step)  # type: ignore[arg-type]
    os.register_at_fork(after_in_child=_job.forget)
    _see_whole_graphs()
    _signals.answer_signals()
    _job.start()
    _time_collectives_of_groups()
    _end_with_the_group()


def _time_collectives() -> None:
    try:
        from . import _timing

        _timing.install()
    except Exception as error:
        job = _job.current()
        if job is not None:
            job.say(f"collectives are not timed: {type(error).__name__}: {error}")


def _time_collectives_of_groups() -> None:
    """Times the collectives of jobs that make a process group, where CAIRN_TIMING=1 asks for it:
    nobody pays for what nobody reads."""
    if os.environ.get("CAIRN_TIMING") != "1" or not torch.distributed.is_available():
        return
    if torch.distributed.is_initialized():
        _time_collectives()
    initialise = torch.distributed.init_process_group

    @functools.wraps(initialise)
    def init_process_group(*arguments: Any, **options: Any) -> Any:
        result = initialise(*arguments, **options)
        _time_collectives()
        return result

    for name in (
        "torch.distributed",
        "torch.distributed.distributed_c10d",
        "torch.distributed.device_mesh",
    ):
        if getattr(sys.modules.get(name), "init_process_group", None) is initialise:
            sys.modules[name].init_process_group = init_process_group  # type: ignore[attr-defined]


@_quiet
def _before_the_group_ends(job: Job) -> None:
    job.before_the_end()


def _end_with_the_group() -> None:
    """Takes the last snapshot while the ranks can wait for each other: most scripts end their
    process group, then themselves."""
    if not torch.distributed.is_available():
        return
    destroy = torch.distributed.destroy_process_group

    @functools.wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        if group in (None, torch.distributed.group.WORLD):
            _before_the_group_ends()
        destroy(group)

    for name in ("torch.distributed", "torch.distributed.distributed_c10d"):
        if getattr(sys.modules.get(name), "destroy_process_group", None) is destroy:
            # type: ignore[attr-defined]
            sys.modules[name].destroy_process_group = destroy_process_group


STATELESS_WRAPPERS = ("accelerate", "lightning", "pytorch_lightning")  # by their packages


def _inner(optimizer: Any, kept: List[str]) -> Any:
    """What a wrapper (of Hugging Face's accelerate, say) wraps: its step is the one whose hooks
    run. kept: the kinds of wrappers that may keep something themselves."""
    while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        package = type(optimizer).__module__.partition(".")[0]
        if package == "deepspeed":
            _deepspeeds[optimizer.optimizer] = type(optimizer).__module__
        elif package not in STATELESS_WRAPPERS:
            kept.append(type(optimizer).__name__)
        optimizer = optimizer.optimizer
    return optimizer


def attach(
    model: Any, optimizer: Any, scheduler: Any, dataloader: Any, extra: Optional[Mapping[str, Any]]
) -> Job:
    """See cairn.attach."""
    models = dict(model) if isinstance(model, Mapping) else {"": model}
    kept: List[str] = []
    optimizers = [
        _inner(each, kept)
        for each in (optimizer if isinstance(optimizer, (list, tuple)) else [optimizer])
    ]
    for name, each in models.items():
        if not isinstance(each, torch.nn.Module):
            raise TypeError(
                f"cairn.attach: the model {name!r} is a {type(each).__name__}, not a "
                "torch.nn.Module"
            )
    for each in optimizers:
        if not isinstance(each, Optimizer):
            raise TypeError(
                f"cairn.attach: the optimizer is a {type(each).__name__}, not a "
                "torch.optim.Optimizer"
            )
    install()
    job = _job.start()
    job.attach(models, optimizers, Extras(scheduler, dataloader, extra))
    for name in kept:
        job.leave_out(
            _lib.OPAQUE, f"what the {name} around an optimizer keeps itself", WRAPPER_KEEPS
        )
    return job
