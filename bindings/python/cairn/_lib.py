"""libcairn through ctypes: the calls of include/cairn/client.h, with Python's values in and out.

The library is looked for at $CAIRN_LIBRARY, beside this package, in the folders of the source tree
and of an installation, and on the loader's path. Every call releases the interpreter's lock while
it runs.

The structures below mirror those of the headers. Those that begin with struct_bytes tell the
library their size, so that a newer or older one can serve them; their rules are in client.h.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import hashlib
import os
import struct
import sys
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type

OK, AGAIN, INVAL, NOMEM, NOT_FOUND, PEER, STALE, VERSION = 0, 1, 2, 3, 8, 9, 11, 13
PARAM, OPTIMIZER, BUFFER, OPAQUE = 1, 2, 3, 4
FENCE_ALL = 0xFFFFFFFF
SAME, TAKEN, ENTER, ABANDONED = range(4)  # enum cairn_placement_change
UNCOVERED_MAX = 32  # things that an agent is told of one by one
PEER_NONE = 0xFFFFFFFF
DIMS_MAX = 8
NAME_BYTES_MAX = 256
ERROR, WARN, INFO, DEBUG = 0, 1, 2, 3

# The element types of include/cairn/types.h by the names of safetensors.
DTYPES = {
    name: value
    for value, name in enumerate(
        (
            "BOOL",
            "U8",
            "I8",
            "F8_E5M2",
            "F8_E4M3",
            "I16",
            "U16",
            "F16",
            "BF16",
            "I32",
            "U32",
            "F32",
            "I64",
            "U64",
            "F64",
            "C64",
        ),
        1,
    )
}

LIBRARY = "libcairn.so.1"  # the soname: another first number has other calls

LogFunction = Callable[[int, str], None]


class CairnError(Exception):
    """A call of libcairn failed; `code` is its cairn_err."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Piece(NamedTuple):
    """The part of a tensor that this rank holds at `address`: a row-major box, or a range of its
    elements.

    Shapes, offsets and the range (flat_begin, flat_end) are in elements; without a range it is the
    whole box.
    """

    name: str
    dtype: int
    kind: int
    shape: Tuple[int, ...]
    offset: Tuple[int, ...]
    extent: Tuple[int, ...]
    address: int
    device: int = -1
    replica_index: int = 0
    replica_count: int = 1
    flat_begin: int = 0
    flat_end: int = 0


class Listed(NamedTuple):
    """A tensor of a generation."""

    dtype: int
    kind: int
    shape: Tuple[int, ...]


class Uncovered(NamedTuple):
    """Something that no snapshot of this rank holds; `kind` as of a Piece."""

    kind: int
    name: str
    reason: str


class Restored(NamedTuple):
    """What a restore did; sizes in bytes."""

    epoch: int
    step: int
    bytes: int
    local_bytes: int
    remote_bytes: int
    file_bytes: int


class Placed(NamedTuple):
    """A placement: its number, the micro-batches of each replica, and the layers of each stage of
    each."""

    number: int
    shares: List[int]
    layers: List[List[int]]


class _Sized(ctypes.Structure):
    """A structure whose first field is its size, as this module knows it."""

    _fields_ = [("struct_bytes", ctypes.c_uint32)]

    def __init__(self, **fields: object) -> None:
        super().__init__(struct_bytes=ctypes.sizeof(self), **fields)


def _sized_array(kind: Type[_Sized], count: int) -> "ctypes.Array[_Sized]":
    """kind[count], at least one; elements of a ctypes array do not run __init__."""
    array = (kind * max(count, 1))()
    for element in array:
        element.struct_bytes = ctypes.sizeof(kind)
    return array


class _Slice(_Sized):
    _fields_ = [
        ("reserved", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("dims", ctypes.c_uint32),
        ("device", ctypes.c_int32),
        ("shape", ctypes.c_uint64 * DIMS_MAX),
        ("offset", ctypes.c_uint64 * DIMS_MAX),
        ("extent", ctypes.c_uint64 * DIMS_MAX),
        ("flat_begin", ctypes.c_uint64),
        ("flat_end", ctypes.c_uint64),
        ("replica_index", ctypes.c_uint32),
        ("replica_count", ctypes.c_uint32),
        ("address", ctypes.c_void_p),
    ]


class _Generation(ctypes.Structure):
    _fields_ = [("epoch", ctypes.c_uint64), ("step", ctypes.c_uint64)]


class _Restored(_Sized):
    _fields_ = [
        ("reserved", ctypes.c_uint32),
        ("generation", _Generation),
        ("bytes", ctypes.c_uint64),
        ("local_bytes", ctypes.c_uint64),
        ("remote_bytes", ctypes.c_uint64),
        ("file_bytes", ctypes.c_uint64),
    ]


class _Uncovered(_Sized):
    _fields_ = [("kind", ctypes.c_int), ("name", ctypes.c_char_p), ("reason", ctypes.c_char_p)]


class _Stats(_Sized):
    _fields_ = [("attached", ctypes.c_uint32)] + [
        (name, ctypes.c_uint64)
        for name in (
            "snapshots_begun",
            "snapshots_captured",
            "snapshots_skipped",
            "snapshots_failed",
            "captured_bytes",
            "capture_ns",
            "fence_count",
            "fence_ns_total",
            "fence_ns_p50",
            "fence_ns_p99",
            "fence_ns_max",
            "epoch",
            "takes_offers",
        )
    ]


_TIMING_RECORD = struct.Struct("<6Q3I2H")  # struct cairn_timing_record

_LogFn = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
_ListFn = ctypes.CFUNCTYPE(
    None,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.POINTER(ctypes.c_uint64),
)


class _Options(_Sized):
    _fields_ = [
        ("reserved", ctypes.c_uint32),
        ("job", ctypes.c_char_p),
        ("rank", ctypes.c_uint32),
        ("world", ctypes.c_uint32),
        ("local_ranks", ctypes.c_uint32),
        ("fence_timeout_ms", ctypes.c_uint32),
        ("connect_timeout_ms", ctypes.c_uint32),
        ("restore_timeout_ms", ctypes.c_uint32),
        ("log", _LogFn),
        ("log_context", ctypes.c_void_p),
        ("agent_socket", ctypes.c_char_p),
        ("launch", ctypes.c_uint64),
        ("keeps_poisoned", ctypes.c_uint32),
        ("reserved_end", ctypes.c_uint32),
    ]


_Client = ctypes.c_void_p
_SIGNATURES = {
    "cairn_library_version": (ctypes.c_char_p, []),
    "cairn_err_text": (ctypes.c_char_p, [ctypes.c_int]),
    "cairn_client_open": (ctypes.c_int, [ctypes.POINTER(_Options), ctypes.POINTER(_Client)]),
    "cairn_client_close": (None, [_Client]),
    "cairn_client_abandon": (None, [_Client]),
    "cairn_client_close_at_exit": (None, [_Client]),
    "cairn_client_register": (ctypes.c_int, [_Client, ctypes.POINTER(_Slice), ctypes.c_uint32]),
    "cairn_client_restore": (ctypes.c_int, [_Client, ctypes.POINTER(_Restored)]),
    "cairn_client_list": (
        ctypes.c_int,
        [_Client, _ListFn, ctypes.c_void_p, ctypes.POINTER(_Generation)],
    ),
    "cairn_snapshot_begin_held": (ctypes.c_int, [_Client, ctypes.c_uint64]),
    "cairn_snapshot_begin_last": (ctypes.c_int, [_Client, ctypes.c_uint64]),
    "cairn_snapshot_await_commit": (ctypes.c_int, [_Client, ctypes.c_uint32]),
    "cairn_snapshot_confirm": (ctypes.c_int, [_Client, ctypes.c_bool]),
    "cairn_snapshot_reject": (ctypes.c_int, [_Client, ctypes.c_uint64, ctypes.c_char_p]),
    "cairn_client_stop_wanted": (ctypes.c_bool, [_Client]),
    "cairn_snapshot_fence": (ctypes.c_int, [_Client, ctypes.c_uint32]),
    "cairn_snapshot_captured": (ctypes.c_uint32, [_Client]),
    "cairn_client_set_stream": (ctypes.c_int, [_Client, ctypes.c_int32, ctypes.c_void_p]),
    "cairn_client_report_coverage": (
        ctypes.c_int,
        [_Client, ctypes.c_char_p, ctypes.POINTER(_Uncovered), ctypes.c_uint32],
    ),
    "cairn_client_stats_read": (ctypes.c_int, [_Client, ctypes.POINTER(_Stats)]),
    "cairn_placement_vote": (
        ctypes.c_uint64,
        [_Client, ctypes.c_uint64, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint32)],
    ),
    "cairn_placement_share": (
        ctypes.c_bool,
        [
            _Client,
            ctypes.c_uint64,
            ctypes.POINTER(ctypes.c_uint64),
            ctypes.c_uint32,
            ctypes.POINTER(ctypes.c_uint32),
        ],
    ),
    "cairn_placement_vote_layers": (
        ctypes.c_uint64,
        [
            _Client,
            ctypes.c_uint64,
            ctypes.c_uint32,
            ctypes.POINTER(ctypes.c_uint32),
            ctypes.c_uint32,
            ctypes.POINTER(ctypes.c_uint32),
        ],
    ),
    "cairn_placement_take": (
        ctypes.c_int,
        [
            _Client,
            ctypes.c_uint64,
            ctypes.POINTER(ctypes.c_uint64),
            ctypes.c_uint32,
            ctypes.POINTER(ctypes.c_uint32),
            ctypes.c_uint32,
            ctypes.POINTER(ctypes.c_uint32),
        ],
    ),
    "cairn_placement_fill": (
        ctypes.c_int,
        [
            _Client,
            ctypes.c_uint64,
            ctypes.POINTER(_Slice),
            ctypes.c_uint32,
            ctypes.c_uint32,
            ctypes.POINTER(_Restored),
        ],
    ),
    "cairn_sequences_assign": (
        ctypes.c_int,
        [
            ctypes.POINTER(ctypes.c_uint64),
            ctypes.c_uint32,
            ctypes.POINTER(ctypes.c_uint32),
            ctypes.c_uint32,
            ctypes.c_uint64,
            ctypes.POINTER(ctypes.c_double),
            ctypes.POINTER(ctypes.c_uint32),
            ctypes.POINTER(ctypes.c_uint32),
        ],
    ),
    "cairn_timing_open": (ctypes.c_int, [ctypes.c_uint32, ctypes.POINTER(ctypes.c_void_p)]),
    "cairn_timing_write": (ctypes.c_bool, [ctypes.c_void_p, ctypes.c_char_p]),
}

# What differs between two launches of a job and is the same for all ranks of one. Not the restart
# count of torchelastic, which differs between nodes: only the node of a failed worker counts. Not
# MASTER_ADDR: the node with that address may know itself by another name.
_LAUNCH_NAMES = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_RESTART_COUNT")


def launch_id() -> int:
    """A number for this launch of the job; 0 where nothing tells it from others."""
    values = [f"{name}={os.environ[name]}" for name in _LAUNCH_NAMES if name in os.environ]
    if not values:
        return 0
    digest = hashlib.sha256("\n".join(values).encode()).digest()
    return int.from_bytes(digest[:8], "little") or 1


_library: Optional[ctypes.CDLL] = None


def library_paths() -> List[str]:
    """Where the library is looked for, in order."""
    package = os.path.dirname(os.path.abspath(__file__))
    named = os.environ.get("CAIRN_LIBRARY")
    if named:
        return [named]
    places = (".", "../../../lib", "../../../build/plain", "../../..")
    found = [os.path.normpath(os.path.join(package, place, LIBRARY)) for place in places]
    return [path for path in found if os.path.exists(path)] + [LIBRARY]


def _load(path: str) -> ctypes.CDLL:
    """Loads one library. OSError if that fails or its version cannot serve this package."""
    loaded = ctypes.CDLL(path)
    for name, (result, arguments) in _SIGNATURES.items():
        try:
            function = getattr(loaded, name)
        except AttributeError:
            raise OSError(
                f"{path}: has no {name}, so it is older than this package; install the"
                f" {LIBRARY} that came with the package"
            ) from None
        function.restype, function.argtypes = result, arguments
    version = loaded.cairn_library_version().decode()
    if version.split(".")[0] != LIBRARY.rsplit(".", 1)[1]:
        raise OSError(f"{path}: is version {version}; this package needs {LIBRARY}")
    return loaded


def library() -> ctypes.CDLL:
    """The loaded library. OSError, with every place that was tried, if none can be loaded or none
    has a version that serves this package."""
    global _library
    if _library is not None:
        return _library
    reasons = []
    for path in library_paths():
        try:
            _library = _load(path)
            return _library
        except OSError as error:
            reasons.append(str(error))
    raise OSError(
        f"{LIBRARY}: cannot be loaded; set CAIRN_LIBRARY to its path: " + "; ".join(reasons)
    )


def ends_by_an_error() -> bool:
    """The process, or what a child of multiprocessing was made for, ends by an exception that the
    script has not caught, or is at an exception now. False proves nothing: of sys.exit in the main
    script an exit handler sees nothing (see Client.close_with_the_process)."""
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        return error.code not in (None, 0)
    if error is not None:
        return True
    # An interactive interpreter (a notebook) goes on after what it has printed.
    return getattr(sys, "last_type", None) is not None and not hasattr(sys, "ps1")


def at_exit(function: Callable[[], None]) -> None:
    """Calls it when the process ends, in a child of multiprocessing when what that was made for
    does: before its exception is caught, and where it was forked atexit is not called at all.
    """
    atexit.register(function)
    if _is_child_of_multiprocessing():
        from multiprocessing import util

        util.Finalize(None, function, exitpriority=0)


def _is_child_of_multiprocessing() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def error_text(code: int) -> str:
    """The text of a cairn_err."""
    return library().cairn_err_text(code).decode()


def _row(values: Sequence[int]) -> "ctypes.Array[ctypes.c_uint64]":
    return (ctypes.c_uint64 * DIMS_MAX)(*values)


def _slices(pieces: Sequence[Piece]) -> "ctypes.Array[_Sized]":
    slices = _sized_array(_Slice, len(pieces))
    for into, piece in zip(slices, pieces):
        into.name = piece.name.encode()
        into.dtype, into.kind, into.dims = piece.dtype, piece.kind, len(piece.shape)
        into.shape, into.offset, into.extent = (
            _row(piece.shape),
            _row(piece.offset),
            _row(piece.extent),
        )
        into.replica_index, into.replica_count = (piece.replica_index, piece.replica_count)
        into.flat_begin, into.flat_end = piece.flat_begin, piece.flat_end
        into.address, into.device = piece.address, piece.device
    return slices


def _restored(out: _Restored) -> Restored:
    return Restored(
        out.generation.epoch,
        out.generation.step,
        out.bytes,
        out.local_bytes,
        out.remote_bytes,
        out.file_bytes,
    )


class Client:
    """A session with the agent of this node. The memory of registered pieces must stay valid until
    the next register or close."""

    def __init__(
        self,
        rank: int,
        world: int,
        local_ranks: int,
        log: LogFunction,
        agent_socket: Optional[str] = None,
        keeps_poisoned: bool = False,
    ) -> None:
        """Opens it; CairnError where the agent refuses this trainer. `log` gets (level, line), from
        any thread. `keeps_poisoned`: values that are not finite any more are kept too.
        """
        self._library = library()

        def said(_context: Optional[int], level: int, line: bytes) -> None:
            log(level, line.decode("utf-8", "replace"))

        self._log = _LogFn(said)  # the library holds the pointer until close
        options = _Options(
            agent_socket=agent_socket.encode() if agent_socket else None,
            rank=rank,
            world=world,
            local_ranks=local_ranks,
            log=self._log,
            launch=launch_id(),
            keeps_poisoned=keeps_poisoned,
        )
        self._handle = _Client()
        self._check(
            self._library.cairn_client_open(ctypes.byref(options), ctypes.byref(self._handle))
        )

    @staticmethod
    def _check(code: int) -> None:
        if code != OK:
            raise CairnError(code, error_text(code))

    def register(self, pieces: Sequence[Piece]) -> None:
        """Registers this rank's tensors, in place of earlier tensors. CairnError; the log then
        names the tensor and the reason."""
        slices = _slices(pieces)
        self._check(self._library.cairn_client_register(self._handle, slices, len(pieces)))

    def begin(self, step: int, last: bool = False) -> bool:
        """Begins a held snapshot of the state after update `step`; False when none can be begun
        now. last: no step follows, so the agents take this one."""
        begin = (
            self._library.cairn_snapshot_begin_last
            if last
            else self._library.cairn_snapshot_begin_held
        )
        return begin(self._handle, step) == OK

    def fence(self, index: int = FENCE_ALL) -> int:
        """Waits until a registered piece, or everything, may be overwritten; the cairn_err of the
        snapshot."""
        return self._library.cairn_snapshot_fence(self._handle, index)

    def captured(self) -> int:
        """How many of the registered pieces may be overwritten now, from the first; FENCE_ALL: all.
        Does not wait."""
        return self._library.cairn_snapshot_captured(self._handle)

    def confirm(self, good: bool) -> bool:
        """Ends the held snapshot; False if there is none because it was not due or was dropped."""
        return self._library.cairn_snapshot_confirm(self._handle, good) == OK

    def reject(self, step: int, reason: str) -> bool:
        """Keeps the state after update `step` from becoming the newest good generation; False if
        that is too late."""
        text = reason.encode("utf-8", "replace")
        return self._library.cairn_snapshot_reject(self._handle, step, text) == OK

    def stop_wanted(self) -> bool:
        """The agent asks this trainer to stop: a step was poisoned, and `on_poison` is `stop`."""
        return self._library.cairn_client_stop_wanted(self._handle)

    def await_commit(self, timeout_ms: int) -> int:
        """Waits until the snapshot of the last step is committed; a cairn_err. The library says why
        it is not."""
        return self._library.cairn_snapshot_await_commit(self._handle, timeout_ms)

    def list(self) -> Tuple[int, Dict[str, Listed]]:
        """(step, tensors by name) of the generation that a restore would take. CairnError,
        NOT_FOUND where there is none."""
        found: Dict[str, Listed] = {}
        generation = _Generation()

        def each(
            _context: Optional[int],
            name: bytes,
            dtype: int,
            kind: int,
            dims: int,
            shape: "ctypes._Pointer[ctypes.c_uint64]",
        ) -> None:
            found[name.decode()] = Listed(dtype, kind, tuple(shape[i] for i in range(dims)))

        self._check(
            self._library.cairn_client_list(
                self._handle, _ListFn(each), None, ctypes.byref(generation)
            )
        )
        return generation.step, found

    def restore(self) -> Restored:
        """Fills what is registered. CairnError; INVAL and NOT_FOUND leave everything untouched."""
        out = _Restored()
        self._check(self._library.cairn_client_restore(self._handle, ctypes.byref(out)))
        return _restored(out)

    def set_stream(self, device: int, stream: int) -> None:
        """The CUDA stream (its address, 0: the default one) of a device, after whose work snapshots
        read and restores write."""
        self._library.cairn_client_set_stream(self._handle, device, stream)

    def report_coverage(self, refusal: str, items: Sequence[Uncovered]) -> None:
        """Reports to the agent what is not covered, in place of the earlier report; `refusal`: why
        no snapshots are taken, or "".

        The library cuts long texts and counts surplus items. Without an agent it keeps the report
        for the next one.
        """
        array = _sized_array(_Uncovered, len(items))
        for into, item in zip(array, items):
            into.kind = item.kind
            into.name, into.reason = item.name.encode("utf-8", "replace"), item.reason.encode(
                "utf-8", "replace"
            )
        why = refusal.encode("utf-8", "replace")
        self._check(
            self._library.cairn_client_report_coverage(self._handle, why, array, len(items))
        )

    def stats(self) -> Dict[str, int]:
        """The counters of struct cairn_client_stats, by name; all 0 in a forked child, where the
        library leaves them untouched."""
        out = _Stats()
        self._library.cairn_client_stats_read(self._handle, ctypes.byref(out))
        return {name: getattr(out, name) for name, *_ in _Stats._fields_}

    def vote(self, number: int, shares: Sequence[int]) -> int:
        """This rank's vote on the shares of the next step, 64 bits; `number` and `shares` are those
        that it computes by. 0 for more replicas than can be voted on."""
        return self._library.cairn_placement_vote(
            self._handle, number, len(shares), (ctypes.c_uint32 * len(shares))(*shares)
        )

    def take_shares(self, agreed: int, replicas: int) -> Optional[Tuple[int, List[int]]]:
        """(number, shares) of the next step if the ranks' joined votes change them, else None."""
        number, shares = ctypes.c_uint64(), (ctypes.c_uint32 * replicas)()
        changed = self._library.cairn_placement_share(
            self._handle, agreed, ctypes.byref(number), replicas, shares
        )
        return (number.value, list(shares)) if changed else None

    def vote_layers(
        self, number: int, shares: Sequence[int], layers: Sequence[Sequence[int]]
    ) -> int:
        """The same, of a trainer that can move layers: layers[replica][stage]."""
        replicas, stages = len(shares), len(layers[0])
        return self._library.cairn_placement_vote_layers(
            self._handle,
            number,
            replicas,
            (ctypes.c_uint32 * replicas)(*shares),
            stages,
            (ctypes.c_uint32 * (replicas * stages))(*(each for row in layers for each in row)),
        )

    def take_placement(self, agreed: int, replicas: int, stages: int) -> Tuple[int, Placed]:
        """(change, placement of the next step): what the ranks' joined votes decide. The placement
        means something where the change is TAKEN or ENTER."""
        number, shares = ctypes.c_uint64(), (ctypes.c_uint32 * replicas)()
        layers = (ctypes.c_uint32 * (replicas * stages))()
        change = self._library.cairn_placement_take(
            self._handle, agreed, ctypes.byref(number), replicas, shares, stages, layers
        )
        rows = [list(layers[r * stages : (r + 1) * stages]) for r in range(replicas)]
        return change, Placed(number.value, list(shares), rows)

    def fill(self, step: int, pieces: Sequence[Piece], timeout_ms: int) -> Restored:
        """Between ENTER and the next vote: waits for the commit of `step`, fills these pieces from
        it, and registers them. CairnError: they may be half filled."""
        out = _Restored()
        self._check(
            self._library.cairn_placement_fill(
                self._handle, step, _slices(pieces), len(pieces), timeout_ms, ctypes.byref(out)
            )
        )
        return _restored(out)

    def close(self) -> None:
        """Ends the session; waits for a running copy. Calling it again is allowed, any other call
        is not."""
        self._end(self._library.cairn_client_close)

    def close_with_the_process(self) -> None:
        """The same, at the end of the process: the agent is told that this rank leaves as it should
        where that is known to be so, or else when the exit status is known, in a child of
        multiprocessing that of what it was made for."""
        if ends_by_an_error():
            self._end(self._library.cairn_client_abandon)
        elif _is_child_of_multiprocessing():  # which may end by os._exit
            self._end(self._library.cairn_client_close)
        else:
            self._end(self._library.cairn_client_close_at_exit)

    def _end(self, how: Callable[[ctypes.c_void_p], None]) -> None:
        handle, self._handle = self._handle, _Client()
        if handle:
            how(handle)


def assign_sequences(
    tokens: "array.array[int]", shares: Sequence[int], cap_tokens: int, cost: Sequence[float]
) -> Tuple["array.array[int]", "array.array[int]"]:
    """(replica, micro-batch of that replica) by sequence; `tokens` are of type "Q". CairnError."""
    count = len(tokens)
    replica_of, microbatch_of = (array.array("I", bytes(4 * count)) for _ in range(2))
    code = library().cairn_sequences_assign(
        (ctypes.c_uint64 * count).from_buffer(tokens),
        count,
        (ctypes.c_uint32 * len(shares))(*shares),
        len(shares),
        min(cap_tokens, 2**64 - 1),
        (ctypes.c_double * 3)(*cost),
        (ctypes.c_uint32 * count).from_buffer(replica_of),
        (ctypes.c_uint32 * count).from_buffer(microbatch_of),
    )
    if code != OK:
        raise CairnError(code, error_text(code))
    return replica_of, microbatch_of


class TimingRing:
    """This process's ring of timing records (cairn/timing.h); it lives as long as the process."""

    def __init__(self, records: int) -> None:
        """Makes it, of a power of two of records. CairnError without memory or descriptors."""
        self._handle = ctypes.c_void_p()
        code = library().cairn_timing_open(records, ctypes.byref(self._handle))
        if code != OK:
            raise CairnError(code, error_text(code))
        self._write = library().cairn_timing_write

    def write(self, record: Tuple[int, ...], end_ns: int) -> None:
        """Appends (comm, seq, bytes, enter_ns, rank, peer, step, ranks, op); dropped and counted in
        a full ring. Any thread."""
        comm, seq, size_bytes, enter_ns, rank, peer, step, ranks, op = record
        self._write(
            self._handle,
            _TIMING_RECORD.pack(
                comm, seq, size_bytes, enter_ns, 0, end_ns, rank, peer, step, ranks, op
            ),
        )
