"""A job's position in its data: follows torch's DataLoaders while the script iterates over them,
and restores their position.

A batch is consumed when the loop has taken it before the last training forward of an update. What
workers have prefetched, and what a loop takes in advance between forward and update, is not. So the
position belongs to a step, like the state after it.

A cursor keeps the position in one loader: in those that cairn.attach was given, or in an unchanged
script in those whose batches go into training forwards. The latter are known again by the class and
the length of their dataset. What a position is, and how it is divided among other replicas, is in
_sampling.py.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence

import torch
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from . import _lib, _plain, _sampling
from ._quiet import quiet
from ._sampling import Shape

if TYPE_CHECKING:
    from ._job import Job

State = Dict[str, Any]

TWO_LINES = (
    "`job = cairn.attach(model, optimizer, dataloader=loader)`, then `for epoch in "
    "range(job.epoch, epochs):`"
)
NO_LOADER = (
    "no DataLoader gives the batches; add `job = cairn.attach(model, optimizer)` and `for step in "
    "range(job.step, steps):`, or put the position into attach's extra={}"
)
NOT_GIVEN = (
    "cairn.attach was not given this loader; add dataloader=loader and `for epoch in "
    "range(job.epoch, epochs):`, or choose batches by job.step"
)
ALIKE = f"two loaders with such a dataset are read at once; add {TWO_LINES}"
OTHER_BATCH = (
    "keep ranks * batch size * accumulation steps to keep it; each sample is read once all the same"
)
ORDER_DIFFERS = (
    "Megatron's sampler shuffles in another order with this micro-batch; choose one that leaves as "
    "many samples of a pass over, and keep micro-batch * replicas"
)

# samplers whose epoch the script sets
_with_epochs: "weakref.WeakSet[Any]" = weakref.WeakSet()


def inner(loader: Any) -> Any:
    """The DataLoader inside of what wraps one (accelerate, DeepSpeed's RepeatingLoader)."""
    while True:
        held = getattr(loader, "base_dataloader", None) or (
            getattr(loader, "loader", None) if type(loader).__name__ == "RepeatingLoader" else None
        )
        if held is None:
            return loader
        loader = held


def can_follow(loader: Any) -> bool:
    """Iterating over it is iterating over a DataLoader."""
    held = inner(loader)
    return isinstance(held, DataLoader) or type(held).__name__ == "DeepSpeedDataLoader"


class Pass:
    """One iteration over a loader."""

    def __init__(self, loader: Any) -> None:
        self.loader = weakref.ref(loader)
        self.shape: Shape = _sampling.shape_of(loader)
        self.start = _sampling.start_of(loader, self.shape)
        self.advances = _sets_epochs(loader)
        self.skipped = 0  # batches of this replica that an earlier process has consumed,
        self.base = 0  # or samples of all replicas, where it had others
        self.rest: Optional[List[Any]] = None  # what comes then
        self.total: Optional[int] = None  # batches that come, where it is known
        self.taken = 0  # batches that the loop has taken;
        self.through: Optional[int] = None  # what came out of a loader that is around this one
        self.seen = 0  # before the last training forward
        self.looked = 0  # before the last forward of any kind
        self.ended = False
        self.counted = False  # a training forward has used its batches
        self.to_drop = 0  # batches of a stream to be read and dropped first
        self.again: Optional[_sampling.Again] = None  # while the pass is made to go on
        # it is one of workers that persist: its iterator was there, and drew no seed for workers
        self.persists = False
        self.random: Optional[Dict[str, Any]] = None  # to go back to, where it is made all the same
        self.stream: Any = None  # a state that the iterator is to load
        self.consumed: Optional[int] = None  # what a sampler of Megatron's had, if it begins later

    def drawn(self) -> int:
        return self.taken if self.through is None else self.through

    def is_finished(self) -> bool:
        over = self.ended or (self.total is not None and self.drawn() >= self.total)
        return over and self.seen >= self.drawn()

    def samples(self) -> Optional[int]:
        """Of all replicas, in this pass; Megatron's count on through all passes."""
        loader = self.loader()
        if self.shape.kind == _sampling.CONSUMED:
            sampler = None if loader is None else _sampling.index_sampler(loader)
            by_batch = 0 if sampler is None else _sampling.consumed_by_batch(sampler)
            return int(self.start["consumed"]) + self.seen * by_batch
        if self.shape.kind != _sampling.SAMPLES:
            return None
        count = self.skipped + self.seen
        return self.base + count * self.shape.batch * self.shape.replicas


class Cursor:
    """The position in one loader, through all passes. What it has loaded is taken by the next
    pass."""

    def __init__(self, name: str, loader: Any = None) -> None:
        self.name = name
        self._loader = loader  # or what makes one for each pass; None in an unchanged script
        self._passes = 0  # completed before this one
        self.now: Optional[Pass] = None
        self._pending: Optional[State] = None
        self._resumed: Optional[State] = None  # that `now` took
        self._shift = 0  # of the epochs, where the script counts them from its own start
        self._samples: Optional[int] = None  # at the last update
        self._by_update: Optional[int] = None

    def is_of(self, loader: Any) -> bool:
        held = inner(self._loader)
        sampler = getattr(held, "data_sampler", None)  # DeepSpeed's makes a loader for each pass
        return held is loader or (
            sampler is not None and (loader.sampler is sampler or loader.batch_sampler is sampler)
        )

    def is_pending(self) -> bool:
        return self._pending is not None

    @property
    def epoch(self) -> int:
        """Passes that are completed."""
        if self._pending is not None:
            return int(self._pending["passes"]) + bool(self._pending["finished"])
        return self._passes + (self.now is not None and self.now.is_finished())

    def state(self) -> State:
        """Plain data; empty before the first pass."""
        if self._pending is not None:
            return self._pending
        now = self.now
        if now is None:
            return {}
        loader = now.loader()
        return {
            **now.shape._asdict(),
            "passes": self._passes,
            "finished": now.is_finished(),
            "start": now.start,
            "advances": now.advances,
            "persists": now.persists,
            "batches": now.skipped + now.seen,
            "base": now.base,
            "samples": now.samples(),
            "by_update": self._by_update,
            # a state that is ahead of the loop is none
            "stream": _stream_state(loader) if loader is not None and now.seen == now.taken else {},
        }

    def updated(self, job: "Job") -> None:
        """An update is done: how many samples went into it?"""
        if self.now is None:
            return
        samples, before = self.now.samples(), self._samples
        self._samples = samples
        if samples is None or before is None or samples <= before:
            return
        last, self._by_update = self._by_update, samples - before
        if last is not None and last != self._by_update and not self.now.is_finished():
            job.leave_out(
                _lib.OPAQUE,
                "the global batch",
                f"{last} samples per update before, {self._by_update} now; {OTHER_BATCH}",
            )

    def load(self, states: Sequence[State], same: bool) -> str:
        """Takes the position from what this rank had in the snapshot, or if there were not the same
        ranks, from what each had; returns why it cannot."""
        if not states:
            return ""
        own = states[0]
        if not same and any(_common(each) != _common(own) for each in states):
            return (
                f"the snapshot's {len(states)} ranks read streams of their own, which cannot be "
                "divided among another number; have all read one stream with share.deal"
            )
        self._pending = {**own, "moved": not same} if own else None
        if own and own["stream"].get("loader") and same and self._loader is not None:
            inner(self._loader).load_state_dict(own["stream"]["loader"])
            self._pending["stream"] = {"loaded": True}  # type: ignore[index]
        return ""

    def begin(self, now: Pass) -> None:
        """A pass over the loader begins."""
        before = self.now
        if before is not None and (before.seen or before.ended):
            self._passes += 1
            self._resumed = None
        elif self._resumed is not None:  # the script only looked at its first batch
            self._pending, self._resumed = self._resumed, None
        self.now = now
        self._samples = None

    def go_on(self, now: Pass, loader: Any) -> str:
        """Has a pass that has just begun go on where the snapshot was; returns why it cannot."""
        epoch = _sampling.epoch_of(loader)
        why = ""
        if self._pending is not None:
            state, self._pending = self._pending, None
            self._resumed = state
            self._passes = int(state["passes"]) + bool(state["finished"])
            then = state["start"]["epoch"]
            if epoch is not None and then is not None:
                self._shift = then + bool(state["finished"] and state["advances"]) - epoch
            self._by_update = state["by_update"]
            now.persists = state["persists"]
            why = _apply(state, now, loader)
            if not why and not state["finished"]:
                self._samples = now.samples()
        if self._shift and now.again is None and epoch is not None:
            now.again = _sampling.Again(loader, None, epoch + self._shift)
        return why


def _common(state: State) -> State:
    """What is the same on all ranks that read one order."""
    return {key: _comparable(value) for key, value in state.items() if key != "replica"}


def _comparable(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _comparable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_comparable(each) for each in value]
    return value


def _apply(state: State, now: Pass, loader: Any) -> str:
    """Has the pass begin at a state; returns why it cannot."""
    shape = now.shape
    same = (state["replicas"], state["replica"]) == (shape.replicas, shape.replica)
    if (state["kind"], state["what"]) != (shape.kind, shape.what):
        return f"the snapshot's loader reads {state['what']} by {state['kind']}"
    if shape.kind == _sampling.CONSUMED:
        sampler = _sampling.index_sampler(loader)
        if getattr(sampler, "data_sharding", False) and not same:
            return "Megatron's data_sharding shuffles within each replica; switch it off to change"
        order = _sampling.consumed_order(sampler)
        if order != state["start"].get("order", order):
            return ORDER_DIFFERS
        now.consumed = sampler.consumed_samples
        sampler.consumed_samples = now.start["consumed"] = state["samples"]
        if not state["finished"]:  # the seed for workers is drawn already
            now.again = _sampling.Again(loader, {}, None)
        return ""
    if state["finished"]:
        if shape.kind != _sampling.STREAM:
            again = _sampling.Again(loader, state["start"], state["start"]["epoch"])
            again.open()
            _sampling.run_to_its_end(loader, seeds=not state["persists"])
            again.close()
            now.start = _sampling.start_of(loader, shape)
        now.persists = bool(getattr(loader, "persistent_workers", False))
        return ""
    if shape.kind == _sampling.STREAM and state["workers"] != shape.workers:
        return f"the stream was read by {state['workers']} workers, and is now by {shape.workers}"
    now.start = state["start"]
    now.again = _sampling.Again(loader, now.start, now.start["epoch"])
    if shape.kind == _sampling.STREAM:
        now.skipped = state["batches"]
        now.to_drop = 0 if _load_stream(loader, now, state["stream"]) else now.skipped
    elif same and state["base"] == 0 and state["batch"] == shape.batch:
        now.skipped = state["batches"]
    elif shape.kind == _sampling.SAMPLES:
        now.again.open()
        try:
            now.rest = _sampling.divided(loader, shape, state["samples"])
            now.base, now.total = state["samples"], len(now.rest)
        except ValueError as error:
            return f"{error}; give a torch DistributedSampler"
        finally:
            now.again.close()
    else:
        return "its sampler is of a kind that only goes on with the same ranks and batch size"
    return ""


def _sets_epochs(loader: Any) -> bool:
    sampler = getattr(_sampling.index_sampler(loader), "sampler", loader.sampler)
    try:
        return sampler in _with_epochs
    except TypeError:  # which has no hash
        return False


# ---- streams ----


def _has_buffer(dataset: Any) -> bool:
    """Of Hugging Face's datasets: one that shuffles samples, and that their state lacks."""
    examples = getattr(dataset, "_ex_iterable", None)
    while examples is not None:
        if "Buffer" in type(examples).__name__:
            return True
        examples = getattr(examples, "ex_iterable", None)
    return False


def _stream_state(loader: Any) -> State:
    dataset = loader.dataset
    if not isinstance(dataset, torch.utils.data.IterableDataset):
        return {}
    if hasattr(loader, "state_dict"):
        return {"loader": loader.state_dict()}
    if loader.num_workers or _has_buffer(dataset) or not hasattr(dataset, "load_state_dict"):
        return {}
    return {"dataset": dataset.state_dict()} if hasattr(dataset, "state_dict") else {}


def _load_stream(loader: Any, now: Pass, state: State) -> bool:
    """False: there is none, and what was consumed is read again."""
    if "dataset" in state:
        loader.dataset.load_state_dict(state["dataset"])
    elif "loader" in state and not loader.num_workers:
        now.stream = state["loader"]
    elif "loaded" not in state:
        return False
    return True


# ---- the loaders of a job ----


class Loaders:
    """All cursors of a job."""

    def __init__(self, job: "Job") -> None:
        self._job = job
        self._attached: Optional[List[Cursor]] = None  # None: by an unchanged script
        self._found: Dict[str, Cursor] = {}  # by the dataset, of an unchanged script
        self._alike: Dict[str, bool] = {}
        self._passes: List[Pass] = []  # that may be in use
        self._marked = False  # since the last update
        self._peeked = False
        self.trains = False  # batches of a loader went into training forwards

    def attach(self, cursors: Sequence[Cursor]) -> None:
        """These, instead of those that were found."""
        self._attached = list(cursors)
        for cursor in self._attached:
            for each in self._passes:
                loader = each.loader()
                if loader is not None and cursor.is_of(loader) and not each.ended:
                    cursor.now = each

    @property
    def epoch(self) -> int:
        """Passes over the first loader that are completed."""
        cursors = self._found.values() if self._attached is None else self._attached
        return next((cursor.epoch for cursor in cursors), 0)

    def _cursor_of(self, loader: Any, what: str) -> Optional[Cursor]:
        if self._attached is None:
            return self._found.get(what)
        found = (cursor for cursor in self._attached if cursor.is_of(loader))
        return None if loader is None else next(found, None)

    def begin(self, loader: Any) -> Pass:
        """A pass over a loader begins: its iterator is being made."""
        trains = torch.is_grad_enabled()
        if trains and self._attached is None and not self._peeked and self._job.may_peek():
            self._peeked = True
            self._take(*self._job.peek())
        now = Pass(loader)
        self._passes = [each for each in self._passes if not each.is_finished()][-7:] + [now]
        if not trains:  # an evaluation
            return now
        cursor = self._cursor_of(loader, now.shape.what)
        if cursor is None:
            return now
        # in an unchanged script a training forward tells which passes count
        if self._attached is not None or cursor.is_pending():
            cursor.begin(now)
        why = cursor.go_on(now, loader)
        if why:
            now.again, now.rest, now.base, now.skipped, now.to_drop = None, None, 0, 0, 0
            self._job.leave_out(_lib.OPAQUE, f"the position in {now.shape.what}", why)
        elif now.skipped or now.base:
            done = f"{now.base} samples" if now.base else f"{now.skipped} batches"
            self._job.say(f"data: the pass over {now.shape.what} goes on behind {done}")
        return now

    def _take(self, by_rank: Sequence[Mapping[str, State]], same: bool) -> None:
        for what in by_rank[0] if by_rank else ():
            cursor = Cursor(what)
            why = cursor.load([each.get(what, {}) for each in by_rank], same)
            if why:
                self._job.leave_out(_lib.OPAQUE, f"the position in {what}", why)
            else:
                self._found[what] = cursor

    def passed(self, loader: Any, count: int) -> None:
        """A loader around this one has given so many batches of its pass, and taken more."""
        for each in self._passes[::-1]:
            if each.loader() is loader:
                each.through = count
                return

    def saw_forward(self, trains: bool) -> None:
        """A forward of the model begins: what the loop has taken by now goes into it."""
        self._marked = self._marked or trains
        for each in self._passes:
            drawn = each.drawn()
            if trains and drawn > each.looked:
                self._attribute(each)
            each.looked = drawn
            if trains:
                each.seen = drawn

    def _attribute(self, now: Pass) -> None:
        """A training forward uses batches of this pass."""
        self.trains = True
        loader, what = now.loader(), now.shape.what
        cursor = self._cursor_of(loader, what)
        if cursor is not None and cursor.now is now:
            return
        if self._attached is not None:
            if loader is not None and cursor is None and not self._alike.get(what):
                self._alike[what] = True
                self._job.leave_out(_lib.OPAQUE, f"the position in {what}", NOT_GIVEN)
            return
        if cursor is None:
            cursor = self._found[what] = Cursor(what)
        elif self._is_beside(now, cursor.now) and not self._alike.get(what):
            self._alike[what] = True
            self._job.leave_out(_lib.OPAQUE, f"the position in {what}", ALIKE)
        now.counted = True
        cursor.begin(now)

    def _is_beside(self, now: Pass, before: Optional[Pass]) -> bool:
        """The pass before is one over another loader, and not finished. Of a loader that the script
        has dropped its iterator is left: such a pass goes on after another one."""
        if before is None or before.is_finished() or before not in self._passes:
            return False
        other = before.loader()
        return now.counted or (other is not None and other is not now.loader())

    def settle(self) -> Dict[str, State]:
        """An update is done. The positions of an unchanged script."""
        if not self._marked:
            self.saw_forward(True)
        self._marked = False
        for cursor in self._found.values() if self._attached is None else self._attached:
            cursor.updated(self._job)
        if self._attached is not None:
            return {}
        return {
            what: cursor.state()
            for what, cursor in self._found.items()
            if not self._alike.get(what)
        }


# ---- hooks ----


@quiet
def _begin(job: "Job", iterator: Any, loader: Any, is_new: bool) -> None:
    now = iterator._cairn_pass = job.loaders.begin(loader)
    now.persists = now.persists or not is_new
    if is_new and now.persists:
        now.random = _plain.random_state()
    elif now.again is not None:
        now.again.open()


@quiet
def _seeded(_job: "Job", iterator: Any) -> None:
    """The iterator has drawn the seed for its workers, and no sample yet."""
    now = iterator.__dict__.get("_cairn_pass")
    if now is not None and now.random is not None:
        _plain.set_random_state(now.random)
        now.random = None
        if now.again is not None:
            now.again.open()


@quiet
def _made(_job: "Job", iterator: Any) -> None:
    now = iterator.__dict__.get("_cairn_pass")
    if now is None:
        return
    if now.rest is not None:
        iterator._sampler_iter = iter(now.rest)
        now.rest = None
    elif now.consumed is not None:
        sampler, begins_at = iterator._index_sampler, iterator._index_sampler.consumed_samples
        iterator._sampler_iter = _sampling.begun(iterator._sampler_iter)
        if sampler.consumed_samples == begins_at:  # it counts by itself, or is as it was
            sampler.consumed_samples = now.consumed
    elif now.shape.kind != _sampling.STREAM:
        if now.again is not None:
            iterator._sampler_iter = _sampling.without(iterator._sampler_iter, now.skipped)
        if now.shape.kind != _sampling.CONSUMED:
            try:
                now.total = len(iterator._index_sampler) - now.skipped
            except TypeError:
                pass  # a sampler without a length
    if now.again is not None:
        now.again.close()


@quiet
def _took(_job: "Job", now: Pass) -> None:
    now.taken += 1


@quiet
def _passed(job: "Job", loader: Any, count: int) -> None:
    job.loaders.passed(loader, count)


@quiet
def _ended(_job: "Job", now: Pass) -> None:
    now.ended = True
    if now.again is not None and now.shape.kind == _sampling.STREAM:
        now.again.put_epoch_back()


def _follow_those_that_look_ahead() -> None:
    """accelerate's loaders take a batch more than they have given."""
    module = sys.modules.get("accelerate.data_loader")
    for name in ("DataLoaderShard", "DataLoaderDispatcher"):
        kind = getattr(module, name, None)
        iterate = getattr(kind, "__iter__", None)
        if iterate is None or hasattr(iterate, "_cairn_follows"):
            continue

        def follow(self: Any, iterate: Any = iterate) -> Iterator[Any]:
            for count, batch in enumerate(iterate(self), 1):
                _passed(inner(self), count)
                yield batch

        follow._cairn_follows = True  # type: ignore[attr-defined]
        kind.__iter__ = follow  # type: ignore[union-attr]


def follow_loaders() -> None:
    """Reports every new iterator over a DataLoader, and its batches, to the job."""
    initialise, reset = _BaseDataLoaderIter.__init__, _BaseDataLoaderIter._reset
    take, set_epoch = _BaseDataLoaderIter.__next__, DistributedSampler.set_epoch

    @functools.wraps(initialise)
    def made(self: Any, loader: Any, *arguments: Any, **options: Any) -> None:
        _begin(self, loader, True)
        initialise(self, loader, *arguments, **options)
        if not loader.num_workers:  # else it is reset yet
            _seeded(self)
            _made(self)

    @functools.wraps(reset)
    def begins(self: Any, loader: Any, first_iter: bool = False) -> None:
        if first_iter:
            _seeded(self)
        else:
            _begin(self, loader, False)
        reset(self, loader, first_iter)
        _made(self)

    @functools.wraps(take)
    def taken(self: Any) -> Any:
        now = self.__dict__.get("_cairn_pass")
        if now is None:
            return take(self)
        if now.stream is not None:
            state, now.stream = now.stream, None
            self.load_state_dict(state)
        if now.to_drop:
            drop, now.to_drop = now.to_drop, 0
            now.again.open()
            try:
                for _ in range(drop):
                    take(self)
            finally:
                now.again.close()
        try:
            batch = take(self)
        except StopIteration:
            _ended(now)
            raise
        _took(now)
        return batch

    @functools.wraps(set_epoch)
    def sets_epoch(self: Any, epoch: int) -> None:
        set_epoch(self, epoch)
        _with_epochs.add(self)

    construct = DataLoader.__init__

    @functools.wraps(construct)
    def constructed(self: Any, *arguments: Any, **options: Any) -> None:
        _follow_those_that_look_ahead()
        construct(self, *arguments, **options)

    DataLoader.__init__ = constructed  # type: ignore[method-assign]
    _BaseDataLoaderIter.__init__ = made  # type: ignore[method-assign]
    _BaseDataLoaderIter._reset = begins  # type: ignore[method-assign]
    _BaseDataLoaderIter.__next__ = taken  # type: ignore[method-assign]
    DistributedSampler.set_epoch = sets_epoch  # type: ignore[method-assign]
