"""PyTorch's own checkpoint API on the memory of Cairn's agents instead of files.

    dcp.save(state, storage_writer=cairn.dcp.Writer())          # and async_save
    dcp.load(state, storage_reader=cairn.dcp.Reader())          # also in another number of ranks

A save is one generation of the job: what DCP's planner gives this rank to write becomes pieces of
the tensors of that name, an object other than a tensor an opaque blob as the planner made it, and
DCP's metadata the blob `cairn.dcp`, written by the coordinator. So a load reads any part of any
tensor, in any split over the save's ranks. When save returns, or async_save's future is done, the
generation is committed: it survives what the agents' parity survives.

How the ranks go together, without a collective beyond DCP's own:

    prepare_global_plan  the coordinator chooses the step of the generation
    write_data           every rank registers its pieces, and waits in torch.distributed's store
                         until all have: a rank that registers makes its agent drop a generation
                         that is open. Then all but the coordinator begin, and wait for their copy
    finish               the coordinator, which has DCP's metadata only now, begins, waits for its
                         copy, and then for the commit

The step is checkpoint_id where that is a number, else the seconds since 1970: larger than any
before it, also when the process that chose those has died without a commit. `checkpoint_id` of a
load, where given, must be the step of the snapshot that the agents hold.

One thing takes the snapshots of a process: a Writer or Reader ends those after each update (`cairn
run`, `cairn.attach`). Errors are raised, as RuntimeError, since the script asked; DCP carries them
to all ranks as a CheckpointException. As in DCP itself an object other than a tensor is a pickle,
which the planner of a load executes; tensors and metadata are not.
"""
from __future__ import annotations

import dataclasses
import io
import math
import os
import secrets
import threading
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
import torch.distributed.checkpoint as _checkpoint

from . import _blob, _current, _lib, _plain, _ranks, _tensors
from ._entry import devices_of
from ._naming import few, fitting
from ._ranks import Place

_storage, _planner, _metadata = _checkpoint.storage, _checkpoint.planner, _checkpoint.metadata

__all__ = ["Reader", "Writer"]

METADATA = "cairn.dcp"  # the tensor of a generation that holds DCP's metadata
NOT_GIVEN = _lib.Uncovered(
    _lib.OPAQUE, "what dcp.save is not given", "cairn.dcp captures the state that a script gives it"
)
LENGTH_BYTES = 8  # before the metadata, which seldom fill their tensor
# after which a snapshot that has not begun is asked whether it ever will
DUE_S = 1.0
CAPTURE_S = 600.0  # the longest wait for a slot and the copy
COMMIT_S = 600.0  # the longest wait from the copy to the commit


# ---- the session with the agent ----

_session: Optional[Tuple[_lib.Client, Place]] = None
_lock = threading.Lock()  # async_save uses a thread of its own for each save


def _say(level: int, line: str) -> None:
    job = _current.job
    if level <= _lib.WARN and job is not None:
        job.say(line, once=False)
    elif level <= _lib.WARN:
        os.write(2, f"cairn: {line}\n".encode())


def _close(with_the_process: bool = False) -> None:
    global _session
    session, _session = _session, None
    if session is not None and with_the_process:
        session[0].close_with_the_process()
    elif session is not None:
        session[0].close()


def _open() -> Tuple[_lib.Client, Place]:
    """The client of this process and its place, opened where there is none. RuntimeError without an
    agent."""
    global _session
    place = _ranks.place()
    if _session is not None and _session[1] != place:
        _close()
    if _session is None:
        socket = os.environ.get("CAIRN_AGENT")
        if not socket:
            raise RuntimeError(
                "cairn.dcp: CAIRN_AGENT names no agent: start the script with `cairn run --`"
            )
        try:
            # a script that saves by its own call gets back what it saved, as from a file
            client = _lib.Client(*place, log=_say, keeps_poisoned=True)
        except (OSError, _lib.CairnError) as error:
            raise RuntimeError(
                f"cairn.dcp: the agent at {socket} cannot be used: {error}"
            ) from error
        _session = client, place
        _lib.at_exit(lambda: _close(with_the_process=True))
    if not _session[0].stats()["attached"]:
        raise RuntimeError(
            f"cairn.dcp: no agent answers at {os.environ.get('CAIRN_AGENT')}: is it running? See "
            "`cairn status`"
        )
    return _session


def _take_over() -> None:
    """Ends the snapshots after each update: in the process that makes the Writer, which async_save
    may pickle into another."""
    job = _current.job
    if job is not None:
        job.hand_over("cairn.dcp")


def _register(client: _lib.Client, pieces: Sequence[_lib.Piece]) -> None:
    try:
        client.register(pieces)
    except _lib.CairnError as error:
        needed = sum(
            math.prod(piece.extent) * _tensors.FROM_DTYPE[piece.dtype].itemsize for piece in pieces
        )
        raise RuntimeError(
            f"cairn.dcp: the agent does not take this rank's {len(pieces)} tensors of "
            f"{needed / 1048576:.1f} MiB: {error}; the line before this one says why"
        ) from error
    _tensors.set_streams(client, devices_of(pieces))


def _report(client: _lib.Client, problem: str) -> None:
    """For `cairn status`: what the last save has not got; a problem is why it has nothing."""
    try:
        client.report_coverage(problem, [] if problem else [NOT_GIVEN])
    except _lib.CairnError:
        pass  # no memory, which nothing but the report needs


def _held(client: _lib.Client) -> Tuple[int, Dict[str, _lib.Listed]]:
    """(step, tensors) of the generation that the agents hold ready; step 0 where there is none."""
    deadline = time.monotonic() + COMMIT_S
    while True:
        try:
            return client.list()
        except _lib.CairnError as error:
            if error.code == _lib.NOT_FOUND:
                return 0, {}
            if error.code != _lib.AGAIN or time.monotonic() > deadline:
                raise RuntimeError(
                    f"cairn.dcp: the agent cannot say what it holds: {error}"
                ) from error
        time.sleep(0.2)  # a restore of the job is under way


def _step_of(checkpoint_id: Any) -> Optional[int]:
    """The step that a checkpoint_id names; None for none."""
    if checkpoint_id is None:
        return None
    if (
        isinstance(checkpoint_id, bool)
        or not str(checkpoint_id).isdecimal()
        or int(checkpoint_id) == 0
    ):
        raise ValueError(
            f"cairn.dcp: checkpoint_id is {checkpoint_id!r}, but a snapshot in memory is named by "
            "its step: give a number from 1 on, or nothing"
        )
    return int(checkpoint_id)


# ---- pieces ----


def _tensor_piece(
    name: str,
    memory: Any,
    shape: Sequence[int],
    offset: Sequence[int],
    kind: int = _lib.BUFFER,
    replica: Tuple[int, int] = (0, 1),
) -> _lib.Piece:
    return _lib.Piece(
        fitting(name),
        _tensors.DTYPES[memory.dtype],
        kind,
        tuple(shape),
        tuple(offset),
        tuple(memory.shape),
        _tensors.addresses([memory])[0],
        _tensors.ordinal(memory),
        *replica,
    )


def _bytes_piece(name: str, buffer: Any, replica: Tuple[int, int] = (0, 1)) -> _lib.Piece:
    return _tensor_piece(name, buffer, (buffer.numel(),), (0,), _lib.OPAQUE, replica)


def _of_bytes(data: bytes) -> Any:
    buffer = _tensors.byte_buffer(len(data))
    _tensors.write_bytes(buffer, data)
    return buffer


def _memory_of(item: Any, tensor: Any) -> Any:
    """What lies behind a planned write: row-major, on a device that can be copied from.
    RuntimeError, with the name, where it cannot."""
    memory = _tensors.local(tensor.detach())
    name = item.index.fqn
    if memory.layout is torch.strided and memory.device.type in ("cpu", "cuda", "meta"):
        memory = memory.contiguous()
    why = _tensors.uncovered(memory)
    if why is None and tuple(memory.shape) != tuple(item.tensor_data.chunk.sizes):
        why = (
            f"its shape is {list(memory.shape)} where the plan says "
            f"{list(item.tensor_data.chunk.sizes)}"
        )
    if why is not None:
        raise RuntimeError(f"cairn.dcp: {name} cannot be saved: {why}")
    return memory


# ---- DCP's metadata as plain data ----


def _encode_metadata(metadata: Any) -> bytes:
    tensors, others = {}, []
    for name, each in metadata.state_dict_metadata.items():
        if isinstance(each, _metadata.TensorStorageMetadata):
            tensors[name] = (
                _tensors.DTYPES[each.properties.dtype],
                bool(each.properties.requires_grad),
                tuple(each.size),
                [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in each.chunks],
            )
        else:
            others.append(name)
    try:
        return _blob.encode(
            {
                "tensors": tensors,
                "others": others,
                "planner": metadata.planner_data,
                "version": getattr(metadata, "version", None),
            },
            _plain.pack,
        )
    except TypeError as error:
        raise RuntimeError(f"cairn.dcp: the planner's data cannot be kept: {error}") from error


def _decode_metadata(data: bytes) -> Any:
    value = _blob.decode(data, _plain.unpack)
    known: Dict[str, Any] = {name: _metadata.BytesStorageMetadata() for name in value["others"]}
    for name, (dtype, requires_grad, size, chunks) in value["tensors"].items():
        properties = _metadata.TensorProperties(
            dtype=_tensors.FROM_DTYPE[dtype], requires_grad=requires_grad
        )
        known[name] = _metadata.TensorStorageMetadata(
            properties,
            torch.Size(size),
            [
                _metadata.ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
                for offsets, sizes in chunks
            ],
        )
    metadata = _metadata.Metadata(known, planner_data=value["planner"])
    if value["version"] is not None and hasattr(metadata, "version"):
        metadata.version = value["version"]
    return metadata


def _room_for_metadata(plans: Sequence[Any]) -> int:
    """Bytes that the metadata of these plans need at most: their tensor is registered before DCP
    gives them."""
    items = [item for plan in plans for item in plan.items]
    planned = [plan.planner_data for plan in plans]
    names = sum(len(item.index.fqn.encode()) for item in items)
    try:
        planner_bytes = len(_blob.encode(planned, _plain.pack))
    except TypeError:
        planner_bytes = 0  # said when the metadata are there
    return (
        LENGTH_BYTES
        + (1 << 16)
        + 2 * planner_bytes
        + 6 * names
        + len(items) * (256 + 64 * _lib.DIMS_MAX)
    )


# ---- saving ----


class Writer(_storage.StorageWriter):  # type: ignore[misc]
    """A StorageWriter: see the module. One may be used for many saves, and needs no closing.

    Raises RuntimeError without an agent, for a save over a part of the ranks, for a tensor that
    cannot be captured (its name and why), when the agents have too little memory (the sum), and
    when the snapshot was given up or not committed. The generation before it stays.
    """

    # A planner that caches its plans gives an empty one for each that has not changed; by rank, on
    # the coordinator.
    _plans: Dict[int, Any] = {}

    def __init__(self) -> None:
        super().__init__()
        _take_over()
        self._step: Optional[int] = None
        self._is_coordinator = False
        self._kept: List[Any] = []  # what is registered
        self._metadata_buffer: Any = None

    def reset(self, checkpoint_id: Any = None) -> None:
        self._step = _step_of(checkpoint_id)
        self._kept, self._metadata_buffer = [], None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        try:
            return _step_of(checkpoint_id) is not None
        except ValueError:
            return False

    def set_up_storage_writer(self, is_coordinator: bool, *_args: Any, **_options: Any) -> None:
        self._is_coordinator = is_coordinator
        with _lock:
            _open()

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: List[Any]) -> List[Any]:
        with _lock:
            client, place = _open()
            if len(plans) != place.world:
                raise RuntimeError(
                    f"cairn.dcp: {len(plans)} of {place.world} ranks save, but a snapshot is of "
                    "the whole job: give a process_group of all ranks or none, and neither "
                    "no_dist nor use_collectives=False"
                )
            newest, _ = _held(client)
        step = self._step if self._step is not None else max(newest + 1, int(time.time()))
        if step <= newest:
            raise RuntimeError(
                f"cairn.dcp: checkpoint_id {step} is not larger than {newest}, the step of the "
                "snapshot that the agents hold"
            )
        for rank, plan in enumerate(plans):
            if getattr(plan, "usable", True):
                self._plans[rank] = plan
        whole = [self._plans[rank] for rank in range(len(plans))]
        note = {
            "step": step,
            "save": secrets.token_hex(8),
            "metadata_bytes": _room_for_metadata(whole),
        }
        return [dataclasses.replace(plan, storage_data=note) for plan in whole]

    def write_data(self, plan: Any, planner: Any) -> Any:
        note: Mapping[str, Any] = plan.storage_data
        self._step = note["step"]
        results: List[Any] = []
        with _lock:
            client, place = _open()
            problem = ""
            try:
                _register(client, self._pieces(plan, planner, note["metadata_bytes"], results))
            except Exception as error:  # the others must be told
                problem = str(error) or type(error).__name__
            _report(client, problem)
            self._meet(note["save"], problem, place)
            if not self._is_coordinator:
                _capture(client, note["step"])
                self._kept = []
        done = torch.futures.Future()
        done.set_result(results)
        return done

    def _pieces(
        self, plan: Any, planner: Any, metadata_bytes: int, results: List[Any]
    ) -> List[_lib.Piece]:
        pieces: List[_lib.Piece] = []
        self._kept = []
        for item in plan.items:
            data = planner.resolve_data(item)
            if item.type == _planner.WriteItemType.BYTE_IO:
                memory = _of_bytes(data.getvalue())
                pieces.append(_bytes_piece(item.index.fqn, memory))
            else:
                memory = _memory_of(item, data)
                if memory.numel():
                    pieces.append(
                        _tensor_piece(
                            item.index.fqn,
                            memory,
                            item.tensor_data.size,
                            item.tensor_data.chunk.offsets,
                        )
                    )
            self._kept.append(memory)
            results.append(_storage.WriteResult(item.index, memory.nbytes, None))
        if self._is_coordinator:
            self._metadata_buffer = _tensors.byte_buffer(metadata_bytes)
            pieces.append(_bytes_piece(METADATA, self._metadata_buffer))
        return pieces

    @staticmethod
    def _meet(save: str, problem: str, place: Place) -> None:
        """Waits until all ranks have registered. RuntimeError where one could not."""
        said = (
            [problem]
            if place.world == 1
            else [each.decode() for each in _ranks.exchange(f"dcp/{save}", problem.encode(), place)]
        )
        if problem:
            raise RuntimeError(problem)
        failed = [str(rank) for rank, each in enumerate(said) if each]
        if failed:
            raise RuntimeError(f"cairn.dcp: nothing was saved, since rank {few(failed)} could not")

    def finish(self, metadata: Any, results: Any) -> None:
        data = _encode_metadata(metadata)
        room = self._metadata_buffer.numel() - LENGTH_BYTES
        if len(data) > room:
            raise RuntimeError(
                f"cairn.dcp: DCP's metadata have {len(data)} bytes where {room} were expected from "
                "the plans"
            )
        assert self._step is not None
        with _lock:
            client, _ = _open()
            _tensors.write_bytes(
                self._metadata_buffer, len(data).to_bytes(LENGTH_BYTES, "little") + data
            )
            _capture(client, self._step)
            self._kept = []
            _await_commit(client, self._step)


def _capture(client: _lib.Client, step: int) -> None:
    """Begins, and waits until everything registered is in the agent's memory. RuntimeError where
    the snapshot is given up."""
    ended = ("snapshots_captured", "snapshots_skipped", "snapshots_failed")

    def count() -> int:
        stats = client.stats()
        return sum(stats[name] for name in ended)

    before, began, confirmed = count(), time.monotonic(), False
    if not client.begin(step):
        raise RuntimeError(
            f"cairn.dcp: step {step} was not captured: the agent has gone away, a device cannot be "
            "read, or its stream is captured into a CUDA graph; see `cairn status` and the lines "
            "before this one"
        )
    while count() == before and time.monotonic() - began < CAPTURE_S:
        if not confirmed and time.monotonic() - began > DUE_S:
            confirmed = client.confirm(True)
            if not confirmed and count() == before:
                raise RuntimeError(
                    f"cairn.dcp: the agent takes no snapshot of step {step}: it is not a multiple "
                    "of snapshot_every_steps (`cairn run --every`). Give a checkpoint_id that is, "
                    "or set it to 1"
                )
        time.sleep(0.001)
    code = client.fence()
    if code != _lib.OK or not (confirmed or client.confirm(True)):
        raise RuntimeError(
            f"cairn.dcp: step {step} was not captured: the agent gave it up"
            + (f" ({_lib.error_text(code)})" if code != _lib.OK else "")
            + "; its log and `cairn status` say why"
        )


def _await_commit(client: _lib.Client, step: int) -> None:
    deadline, pause_s = time.monotonic() + COMMIT_S, 0.002
    while _held(client)[0] < step:
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"cairn.dcp: step {step} was captured, but not committed within {COMMIT_S:.0f} s: "
                "an agent or a trainer is missing, the network is slow, or two ranks saved the "
                "same part; `cairn status` says. The one before it is still there"
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.2)


# ---- loading ----


class Reader(_storage.StorageReader):  # type: ignore[misc]
    """A StorageReader of what a Writer's save left: the newest committed generation, or the one
    that `cairn restore` chose.

    Raises RuntimeError without an agent, where there is nothing to load, where the snapshot was not
    made by cairn.dcp, or of another step than checkpoint_id, and when it turned out to be damaged;
    then tensors may be half filled and must not be used.
    """

    def __init__(self) -> None:
        super().__init__()
        _take_over()
        self._wanted: Optional[int] = None
        self._step = 0
        self._listed: Dict[str, _lib.Listed] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        self._wanted = _step_of(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return bool(Writer.validate_checkpoint_id(checkpoint_id))

    def read_metadata(self) -> Any:
        with _lock:
            client, place = _open()
            self._step, self._listed = _held(client)
            if self._step == 0:
                raise RuntimeError("cairn.dcp: the agents hold no snapshot to load: a fresh start")
            if METADATA not in self._listed:
                raise RuntimeError(
                    f"cairn.dcp: the snapshot of step {self._step} was not made by "
                    "cairn.dcp.Writer; `cairn run --resume` restores it"
                )
            if self._wanted not in (None, self._step):
                raise RuntimeError(
                    f"cairn.dcp: checkpoint_id is {self._wanted}, but the agents hold the snapshot "
                    f"of step {self._step}; `cairn snapshots` lists what there is, `cairn restore` "
                    "chooses"
                )
            buffer = _tensors.byte_buffer(self._listed[METADATA].shape[0])
            self._fill(client, [_bytes_piece(METADATA, buffer, (place.rank, place.world))])
        data = _tensors.read_bytes(buffer)
        return _decode_metadata(
            data[LENGTH_BYTES : LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")]
        )

    def set_up_storage_reader(
        self, metadata: Any, is_coordinator: bool, *_args: Any, **_options: Any
    ) -> None:
        pass

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: List[Any]) -> List[Any]:
        return plans

    def read_data(self, plan: Any, planner: Any) -> Any:
        pieces: List[_lib.Piece] = []
        objects: List[Tuple[Any, Any]] = []
        tensors: List[Tuple[Any, Any, Any]] = []
        with _lock:
            client, place = _open()
            replica = place.rank, place.world  # says how little this registration would capture
            for item in plan.items:
                name = item.storage_index.fqn
                found = self._listed.get(fitting(name))
                empty = item.type != _planner.LoadItemType.BYTE_IO and not math.prod(item.lengths)
                if found is None and not empty:
                    raise RuntimeError(
                        f"cairn.dcp: {name} is not in the snapshot of step {self._step}"
                    )
                if item.type == _planner.LoadItemType.BYTE_IO:
                    buffer = _tensors.byte_buffer(found.shape[0])  # type: ignore[union-attr]
                    pieces.append(_bytes_piece(name, buffer, replica))
                    objects.append((item, buffer))
                    continue
                here = memory = _tensors.local(planner.resolve_tensor(item).detach())
                if found is not None and not empty:
                    memory = self._row_major(here, found)
                    start = item.storage_index.offset or (0,) * here.dim()
                    offset = [a + b for a, b in zip(start, item.storage_offsets)]
                    pieces.append(
                        _tensor_piece(name, memory, found.shape, offset, found.kind, replica)
                    )
                tensors.append((here, memory, item))
            if pieces:
                self._fill(client, pieces)
            _close()  # a process of async_save may be the next that speaks for this rank
        for here, memory, item in tensors:
            if memory is not here:
                with torch.no_grad():
                    here.copy_(memory)
            planner.commit_tensor(item, here)
        for item, buffer in objects:
            planner.load_bytes(item, io.BytesIO(_tensors.read_bytes(buffer)))
        done = torch.futures.Future()
        done.set_result(None)
        return done

    @staticmethod
    def _row_major(here: Any, found: _lib.Listed) -> Any:
        """The tensor itself where the snapshot's bytes can go straight into it, else memory to be
        copied from."""
        dtype = _tensors.FROM_DTYPE[found.dtype]
        if here.is_contiguous() and here.dtype == dtype and here.device.type in ("cpu", "cuda"):
            return here
        return torch.empty(here.shape, dtype=dtype)

    def _fill(self, client: _lib.Client, pieces: Sequence[_lib.Piece]) -> None:
        try:
            client.register(pieces)
        except _lib.CairnError as error:
            if error.code != _lib.NOMEM:  # memory to capture them is not needed
                raise RuntimeError(
                    f"cairn.dcp: the tensors were refused: {error}; the line before this one says "
                    "why"
                ) from error
        _tensors.set_streams(client, devices_of(pieces))
        try:
            restored = client.restore()
        except _lib.CairnError as error:
            half = (
                ""
                if error.code in (_lib.INVAL, _lib.NOT_FOUND)
                else ": the tensors may be half filled and must not be used"
            )
            raise RuntimeError(
                f"cairn.dcp: the load of step {self._step} failed: {error}{half}"
            ) from error
        if restored.step != self._step:
            raise RuntimeError(
                f"cairn.dcp: a snapshot of step {restored.step} replaced that of step {self._step} "
                "during the load: what was loaded is of both; load again"
            )
