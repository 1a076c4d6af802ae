"""Timing of collectives for every backend: a record when one is entered, and another when it has
ended, into the ring of cairn/timing.h.

A kernel of our own is put before the backends' kernels in the dispatcher's c10d operators, through
which torch.distributed's functions, the buckets of DDP, FSDP and the collectives of DTensor all go.
It notes the time, calls what would have been called, and hands on what that returned or raised. The
end is seen through the work's future where the tensors are on the CPU. On a device the host only
sees that the work was enqueued: there the first record is alone, and NCCL's profiler plugin sees
the rest. So it is of sends, receives and other works without a future.

What fails here ends the timing, is logged once, and never reaches the collective.
"""
from __future__ import annotations

import functools
import hashlib
import itertools
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch

from . import _current, _lib

RING_RECORDS = 1 << 14  # 1.1 MiB

(
    ALL_REDUCE,
    BROADCAST,
    REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    GATHER,
    SCATTER,
    BARRIER,
    SEND,
    RECV,
) = range(1, 12)
WORK, COMPUTE = 0x101, 0x102  # in place of an operation


class _Operator(NamedTuple):
    """How a c10d operator is read: the argument that holds what this rank gives, and of send and
    receive the peer."""

    operation: int
    tensors: str
    peer: str = ""


# By name in torch.ops.c10d. Those that a version of torch lacks are passed over.
_OPERATORS: Dict[str, _Operator] = {
    "allreduce_": _Operator(ALL_REDUCE, "tensors"),
    "allreduce_coalesced_": _Operator(ALL_REDUCE, "tensors"),
    "broadcast_": _Operator(BROADCAST, "tensors"),
    "reduce_": _Operator(REDUCE, "tensors"),
    "allgather_": _Operator(ALL_GATHER, "input_tensors"),
    "_allgather_base_": _Operator(ALL_GATHER, "input_tensor"),
    "allgather_coalesced_": _Operator(ALL_GATHER, "input_list"),
    "allgather_into_tensor_coalesced_": _Operator(ALL_GATHER, "inputs"),
    "reduce_scatter_": _Operator(REDUCE_SCATTER, "input_tensors"),
    "_reduce_scatter_base_": _Operator(REDUCE_SCATTER, "input_tensor"),
    "reduce_scatter_tensor_coalesced_": _Operator(REDUCE_SCATTER, "inputs"),
    "alltoall_": _Operator(ALL_TO_ALL, "input_tensors"),
    "alltoall_base_": _Operator(ALL_TO_ALL, "input"),
    "gather_": _Operator(GATHER, "input_tensors"),
    "scatter_": _Operator(SCATTER, "output_tensors"),
    "barrier": _Operator(BARRIER, "tensor"),
    "send": _Operator(SEND, "tensors", "dst"),
    "recv_": _Operator(RECV, "tensors", "src"),
    "recv_any_source_": _Operator(RECV, "tensors"),
}


class _Communicator:
    """A process group as the records name it. It holds no reference to the group, whose end its
    owner decides."""

    __slots__ = ("comm", "ranks", "numbers", "rank")

    def __init__(self, group: Any) -> None:
        self.ranks: List[int] = torch.distributed.get_process_group_ranks(group)
        name = f"{group.group_name}:{self.ranks}"
        self.comm = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        # next() is atomic: DDP's collectives come from the thread of backward
        self.numbers = itertools.count(1)
        self.rank = torch.distributed.get_rank()


class _Timing:
    """The ring of this process, and what the records need to know."""

    def __init__(self) -> None:
        self._ring = _lib.TimingRing(RING_RECORDS)
        self._library = torch.library.Library("c10d", "IMPL")  # the kernels live as long as it
        self._communicators: Dict[Tuple[str, int, int], Optional[_Communicator]] = {}
        self.entered_ns = 0  # when the newest collective was
        self._ended = False
        # before the backends; modes that only trace come earlier
        key = torch._C.DispatchKey.BackendSelect
        self._after = torch._C._dispatch_keyset_full_after(key)
        for name, operator in _OPERATORS.items():
            if hasattr(torch.ops.c10d, name):
                overload = getattr(torch.ops.c10d, name).default
                self._library.impl(
                    name, self._kernel(overload, operator), key.name, with_keyset=True
                )

    def _end(self, error: Exception) -> None:
        if not self._ended:
            self._ended = True
            job = _current.job
            if job is not None:
                job.say(f"collectives are not timed any more: {type(error).__name__}: {error}")

    def _kernel(self, overload: Any, operator: _Operator) -> Callable[..., Any]:
        names = [argument.name for argument in overload._schema.arguments]
        group_at = names.index("process_group")
        tensors_at = names.index(operator.tensors)
        peer_at = names.index(operator.peer) if operator.peer else -1
        redispatch, after = overload.redispatch, self._after

        def kernel(keyset: Any, *arguments: Any, **options: Any) -> Any:
            if self._ended:
                return redispatch(keyset & after, *arguments, **options)
            on_host, record = False, None
            try:
                enter_ns = time.monotonic_ns()
                size_bytes, on_host = _size(arguments[tensors_at])
                if operator.operation == BARRIER:
                    size_bytes = 0
                peer = arguments[peer_at] if peer_at >= 0 else None
                record = self._entered(
                    arguments[group_at], operator.operation, size_bytes, peer, enter_ns
                )
            except Exception as error:
                self._end(error)
            result = redispatch(keyset & after, *arguments, **options)
            if on_host and record is not None and operator.operation < SEND:
                self._watch(result, record)
            return result

        return kernel

    def _communicator(self, group: Any) -> Optional[_Communicator]:
        key = group.group_name, group.size(), group.rank()
        if key not in self._communicators:
            try:
                self._communicators[key] = _Communicator(group)
            # torch.distributed does not know its ranks: nobody could tell whose records these are
            except (KeyError, ValueError):
                self._communicators[key] = None
        return self._communicators[key]

    def forget(self) -> None:
        """Groups may have ended, and their names come again."""
        self._communicators = {}

    def _entered(
        self, boxed: Any, operation: int, size_bytes: int, peer: Optional[int], enter_ns: int
    ) -> Optional[Tuple[int, ...]]:
        self.entered_ns = enter_ns
        known = self._communicator(torch._C._distributed_c10d.ProcessGroup.unbox(boxed))
        if known is None:
            return None
        sequence = next(known.numbers) if operation < SEND else 0
        job = _current.job
        record = (
            known.comm,
            sequence,
            size_bytes,
            enter_ns,
            known.rank,
            _lib.PEER_NONE if peer is None else known.ranks[peer],
            job.step if job is not None else 0,
            min(len(known.ranks), 0xFFFF),
            operation,
        )
        self._ring.write(record, 0)
        return record

    def note(self, operation: int, amount: int, begin_ns: int, end_ns: int) -> None:
        job = _current.job
        step = job.step if job is not None else 0
        self._ring.write(
            (
                0,
                0,
                amount,
                begin_ns,
                torch.distributed.get_rank(),
                _lib.PEER_NONE,
                step,
                0,
                operation,
            ),
            end_ns,
        )

    def _watch(self, result: Any, record: Tuple[int, ...]) -> None:
        try:
            work = torch._C._distributed_c10d.Work.unbox(
                result[-1] if isinstance(result, (tuple, list)) else result
            )
            work.get_future().add_done_callback(functools.partial(self._done, record))
        except (RuntimeError, TypeError):
            pass  # no work, or one without a future, such as gloo's reduce_scatter

    def _done(self, record: Tuple[int, ...], _future: Any) -> None:
        self._ring.write(record, time.monotonic_ns())


def _size(value: Any) -> Tuple[int, bool]:
    """(bytes of the tensors in a tensor or nested list, whether they are on the CPU)."""
    if isinstance(value, torch.Tensor):
        return value.nbytes, value.device.type == "cpu"
    if len(value) == 1:
        return _size(value[0])
    sizes = [_size(each) for each in value]
    return sum(size for size, _ in sizes), all(on_host for _, on_host in sizes)


_timing: Optional[_Timing] = None


def note_work(amount: int) -> None:
    """Says how much this rank computes in the step under way."""
    if _timing is not None and torch.distributed.is_initialized():
        _timing.note(WORK, amount, time.monotonic_ns(), 0)


def note_computed(amount: int, begin_ns: int, waits_at_the_end: bool) -> None:
    """Says that this rank has computed on the CPU since begin_ns, and how much. If it then waited
    for others, it computed until it entered the newest collective."""
    if _timing is not None and torch.distributed.is_initialized():
        end_ns = time.monotonic_ns()
        if waits_at_the_end and _timing.entered_ns > begin_ns:
            end_ns = _timing.entered_ns
        _timing.note(COMPUTE, amount, begin_ns, end_ns)


def install() -> None:
    """Times the collectives of this process from here on; to be called whenever a default group has
    been made. Raises where this torch lacks what it takes."""
    global _timing
    if _timing is None:
        _timing = _Timing()
    _timing.forget()
