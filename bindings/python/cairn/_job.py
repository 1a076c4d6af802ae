"""A protected job: when a snapshot begins, what an update waits for, and what makes it good.

One update of a job (of all its optimizers, once each) is a round. The life of its snapshot:

    after_step      the round ends: `step` grows, random generators and data loaders are staged
    before_forward  the next training forward: everything the script did after the update
                    (schedulers, clamps) is in place. The rest is staged, the snapshot begins, and
                    is copied behind forward and backward
    before_update   the next update: compares the version counters with those at the beginning, and
                    confirms the snapshot, or refuses it if something was changed outside the
                    optimizer. If the copy still runs, the update waits for the tensors that it
                    will write to (see _fence.py), and the check follows when the copy is done

An optimizer that is given a closure runs forward and backward inside its step: the update begins
when the closure has returned. Where a round has no forward between two updates (models that are not
modules) it begins in after_step from then on. A forward without gradients (an evaluation) does not
begin one: weights may be swapped for it.

How a job comes back is in _resume.py.

All hooks run in the thread that trains. A forked child has no job.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from . import _blob, _current, _lib, _megatron, _plain, _ranks, _tensors, _watch
from ._coverage import Coverage, Problems
from ._current import Damaged, Poisoned
from ._extras import Extras
from ._fence import Fence
from ._known import Known
from ._layout import Holders, Layout
from ._loaders import NO_LOADER, Loaders
from ._models import Models
from ._names import Names
from ._naming import few
from ._ranks import Place
from ._resume import Resume
from ._share import Share, Sharing
from ._state import collect
from ._zero import is_zero

REGISTER_MEETING_S = 5.0  # that a stage of a pipeline waits for the others, once
LAST_GRANT_S = 5.0  # that the end of a process waits for the agent,
LAST_MEETING_S = 5.0  # for the other ranks to have done the same,
LAST_COMMIT_MS = 5000  # for the agents to commit it,
LAST_LINGER_MS = 300  # and for what was no last step to them
NEVER_WITHOUT_ATTACH = (
    "schedulers and the script's own state",
    "the script does not call cairn.attach; add `job = cairn.attach(model, optimizer, "
    "scheduler=scheduler)` and start the loop at `job.step`",
)
POSITION = "the position in the data"
CHANGED_BEHIND = (
    "something other than the optimizer changes it between two updates: snapshots of such steps "
    "are refused"
)
ONLY_ATTACHED = (
    "it belongs to no module that was called: it is captured, but comes back only where the "
    "script calls cairn.attach"
)
DIFFERENT_REPLICAS = (
    "the ranks' copies of what DistributedDataParallel keeps alike differ, or not all ranks know "
    "it as that (one has given cairn.attach the wrapped module, say): each rank's own is "
    "captured, and they come back in the same number of ranks only"
)
STEP_IN_A_GRAPH = (
    "the optimizer's step is recorded into a CUDA graph, and no hook sees when that is replayed"
)
COPY_LONGEST_S = 60.0  # a copy that takes longer is not left running behind further updates
# per parameter: with less to be captured it is quicker to wait than to look at each write
WATCHED_BYTES_MIN = 1 << 20
ORDERS_LEARNED_MAX = 4


class Job:
    """The job of this process. `step` is the number of updates done, counted through all
    resumptions."""

    def __init__(self, resume: bool) -> None:
        self.step = 0
        self._resume = Resume(self, resume)
        self.attached = False
        self._ended = False
        self.client: Optional[_lib.Client] = None
        self.place: Optional[Place] = None
        self.models = Models(self.forget_layout, self._forget_optimizer)
        self._names = Names(self.models)
        self.extras = Extras(None, None, None)
        self.loaders = Loaders(self)
        # of micro-batches, if the script has given their number
        self.sharing: Optional[Sharing] = None
        # of a pipeline whose stages are known: then the ranks need not exchange names
        self.holders: Optional[Holders] = None
        self.elastic: Any = None  # a pipeline whose layers can move
        self._said: Set[str] = set()
        self._coverage = Coverage()
        self._last_line = ""  # of the library, where it said what is wrong
        # the round
        self._stepping: List[Any] = []
        self._in_closure = False  # the step of an optimizer has begun, its update has not
        self._stepped: Dict[int, None] = {}  # ids of the optimizers, in the order of their steps
        # Optimizers of a round whose snapshot has not begun. A script's main() drops them when it
        # returns, but the last snapshot, which is taken later, needs their state.
        self._kept: Dict[int, Any] = {}
        self._cycle: Optional[Set[int]] = None
        self._turns: Dict[int, int] = {}  # of the last whole round: an optimizer's id → its turn
        self._begins_at_once = False
        self._early: Dict[str, Any] = {}
        self._pending = False  # a round has ended whose snapshot has not begun
        self._begun = False
        # what is registered
        self._layout: Optional[Layout] = None
        self._fence: Optional[Fence] = None
        self._begun_s = 0.0
        # id of a tensor → when it is updated, where that was seen to differ from the layout
        self._order: Dict[int, int] = {}
        self._orders_learned = 0
        self._refused = False  # the layout is incomplete: no snapshots are taken
        self.staged_always: Set[str] = set()
        self._last_step = -1  # that was seen to its end
        self._said_stop = False  # of this poisoned step
        self.snapshots_refused = 0  # begun, and found changed behind the optimizer's back

    @property
    def epoch(self) -> int:
        """How many passes over the first of attach's data loaders are completed."""
        return self.loaders.epoch

    # ---- messages ----

    def say(self, text: str, once: bool = True) -> None:
        """One line to standard error."""
        if once and text in self._said:
            return
        self._said.add(text)
        who = f"[rank {self.place.rank}]" if self.place and self.place.world > 1 else ""
        print(f"cairn{who}: {text}", file=sys.stderr, flush=True)

    def _log(self, level: int, line: str) -> None:
        if level <= _lib.WARN:
            self._last_line = line
        if level <= _lib.WARN or os.environ.get("CAIRN_LOG") in ("info", "debug"):
            self.say(line, once=False)

    def leave_out(self, kind: int, name: str, why: str) -> None:
        """Says that something is not covered, here and to the agent."""
        self.say(f"{name} is not covered: {why}")
        self._coverage.add(kind, name, why)

    def refuse(self, why: str) -> None:
        """Takes no snapshots while nothing changes, and logs that."""
        self._refused = True
        self.say(f"no snapshots are taken: {why}")
        self._coverage.refuse(why)

    def end(self, why: str) -> None:
        """Stops protecting, and logs that: training goes on. The session stays, so that `cairn
        status` shows it."""
        if self._ended:
            return
        self.say(f"this training is NOT protected from here on: {why}")
        self._stop()
        if self.client is None:
            return
        try:
            self._resume.await_moments()
        finally:
            self._coverage.refuse(why)
            self.client.confirm(False)
            try:
                self.client.register([])  # nothing is read from its tensors any more
            except _lib.CairnError:
                pass  # a left-over of an older epoch, or too late: the library has said it

    def hand_over(self, to: str) -> None:
        """The script takes its snapshots with something else from here on: none are taken after
        updates."""
        if not self._ended and self.models.known:
            self.say(f"snapshots are taken by {to} from here on, and no more after each update")
        self._leave()

    def _stop(self) -> None:
        try:  # nobody is kept waiting
            self._resume.all_can(False)
            self._resume.tell_start()
        except Exception:
            pass  # the store is gone, and the others with it
        self._ended = True
        self._pending = self._begun = False
        self._kept = {}
        self.models.unwatch()

    def _leave(self) -> None:
        self._stop()
        try:
            self._resume.await_moments()
        finally:
            self._coverage.serve(None)
            client, self.client = self.client, None
            if client is not None:
                client.confirm(False)
                client.close()

    # ---- what there is ----

    def saw_optimizer(self, optimizer: Any) -> None:
        """An optimizer was made, or steps for the first time."""
        if not self._ended and not self.attached and id(optimizer) not in self.models.alive:
            self.models.add_optimizer(optimizer)

    def saw_engine(self, engine: Any) -> None:
        """DeepSpeed has made an engine, and an optimizer of its own around another."""
        if is_zero(engine.optimizer):
            self.saw_optimizer(engine.optimizer)

    def _forget_optimizer(self, number: int) -> None:
        """An optimizer is gone."""
        self._stepped.pop(number, None)
        if self._cycle is not None:
            self._cycle.discard(number)

    def saw_forward(self, module: Any) -> None:
        """Some module's forward begins: is it a root?"""
        if not self._ended and self.models.saw_forward(module):
            self._say_refusals()
            self.before_forward(module)

    def before_compiled_forward(self, module: Any) -> None:
        """The forward of a module begins whose own hooks may lie in compiled code."""
        if self.models.is_watching():
            self.saw_forward(module)
        if any(module is root for root in self.models.roots.values()):
            self.before_forward(module)

    def _say_refusals(self) -> None:
        for why in self.models.refusals():
            self.say(f"no snapshots are taken: {why}")

    def forget_layout(self) -> None:
        """Something has changed: everything is looked at again before the next snapshot."""
        self._layout = None

    # ---- the round ----

    def before_step(self, optimizer: Any, has_closure: bool) -> bool:
        """The step of an optimizer begins. True: call before_update when its closure has
        returned for the first time."""
        if self._ended:
            return False
        if _tensors.is_recording_a_graph():
            self.end(STEP_IN_A_GRAPH)
            return False
        if any(each is optimizer for each in self._stepping):
            self._stepping = []  # its last step ended in an exception
        self._stepping.append(optimizer)
        if len(self._stepping) > 1:
            return False  # inside the step of an optimizer that wraps it
        self.saw_optimizer(optimizer)
        if id(optimizer) not in self.models.alive:
            name = f"the {type(optimizer).__name__} that takes steps"
            self.leave_out(_lib.OPTIMIZER, name, "it was not given to cairn.attach")
        if id(optimizer) in self._stepped:  # the first one is back: those since were all there are
            self._cycle = set(self._stepped)
            self._end_round()
            self._kept = {}
        if self._pending:  # no forward came since the last round
            self._kept = {}
        self._in_closure = has_closure
        if not has_closure:
            self.before_update(optimizer)
        return has_closure

    def _end_round(self) -> None:
        self._turns = {number: turn for turn, number in enumerate(self._stepped)}
        self._stepped = {}
        self.step += 1

    def before_update(self, optimizer: Any) -> None:
        """This optimizer is about to write to parameters."""
        self._in_closure = False
        if self._ended:
            return
        self._stop_if_asked()
        self.models.unwatch_if_complete()
        known = self.models.alive.get(id(optimizer))
        if self._resume.wanted:
            self._resume.before_update(known)
        self._resume.await_moments()
        self._resume.give_late()
        if not self._resume.told_start:
            self._resume.compare_starts()
        if self._pending:
            self._pending = False
            self._begins_at_once = True
            if self.extras.has_late():
                self.say(
                    "no forward comes between two updates: schedulers and extras are captured as "
                    "they are right after an update"
                )
        self._fence_update(optimizer)
        if known is not None:
            known.before_update()

    def _fence_update(self, optimizer: Any) -> None:
        """Waits for the tensors that the optimizer overwrites; for all if they are unknown."""
        if not self._begun:
            return
        fence, known = self._fence, self.models.alive.get(id(optimizer))
        if (
            fence is None
            or self._layout is None
            or known is None
            or fence.has_captured_all()
            or not _watch.writes_are_known(optimizer)
            or not fence.is_granted()
        ):
            self._finish()
            return
        parameters = known.parameters()
        if len(parameters) == 1:
            fence.close(fence.positions_of(parameters))
        elif fence.left_bytes() < WATCHED_BYTES_MIN * len(parameters):
            self._finish()
        else:
            _watch.watch(fence)

    def _finish(self, unknown: bool = False) -> bool:
        """Waits for the whole capture, and returns whether it is good. Unknown: it may have been
        overwritten."""
        if not self._begun or self.client is None:
            return False
        self._begun = False
        if unknown or self._layout is None or self._fence is None:
            self.client.confirm(False)
        if self._layout is None or self._fence is None:
            self.client.fence()
            return False
        code, changed = self._fence.end()
        if code != _lib.OK:
            return False
        good = not changed and self._is_one_state()
        self.client.confirm(good)
        self._learn_order(self._fence)
        if not changed:
            return good
        self.snapshots_refused += 1
        movable = {
            entry.called for entry in changed if entry.kind == _lib.BUFFER or entry.stageable
        }
        # a large buffer or an average that forward writes to: captured from a copy from now on
        if movable:
            self.staged_always |= movable
            self._layout = None
        behind = [entry for entry in changed if entry.called not in movable]
        others = [entry.name for entry in behind]
        for entry in behind[: _lib.UNCOVERED_MAX]:
            self._coverage.add(entry.kind, entry.name, CHANGED_BEHIND)
        if others:
            self.say(
                "a snapshot was refused: between two updates something other than the optimizer "
                f"changed {few(others)} (said once; snapshots_refused counts them)"
            )
        return False

    def _is_one_state(self, wait_s: float = 0.0) -> bool:
        """Of what the ranks have captured together."""
        if self.place is None or self._names.may_be_confirmed(self.place, wait_s):
            return True
        if self._names.differ():
            self.say(DIFFERENT_REPLICAS)
            self._layout = None
        return False

    def _learn_order(self, fence: Fence) -> None:
        """What was overwritten first is captured first from the next snapshot on."""
        order = fence.order() if self._orders_learned < ORDERS_LEARNED_MAX else []
        if order:
            self._orders_learned += 1
            self._order = {id(entry.tensor): turn for turn, entry in enumerate(order)}
            self._layout = None

    def reject(self, reason: str = "") -> bool:
        """Keeps the state after the newest update (`step`) from replacing a good one on any rank;
        `reason` is one line for `cairn status`. One rank's rejection is enough. Call it before the
        next update; False if it is too late, and without an agent."""
        if self._ended or self.client is None:
            return False
        return self.client.reject(self.step, reason)

    def _stop_if_asked(self) -> None:
        """Raises once per poisoned step."""
        wanted = self.client is not None and self.client.stop_wanted()
        raises = wanted and not self._said_stop
        self._said_stop = wanted
        if raises:
            raise Poisoned(
                "cairn: the state of this rank is poisoned, and on_poison is stop: `cairn status` "
                "names tensor, rank and step; `cairn run --resume` goes on from the last good step"
            )

    def share(self) -> Share:
        """The micro-batches of the next step that this rank computes. All ranks must ask at each
        step boundary: they agree in an all-reduce on the shares, which may have changed.
        """
        if self.sharing is None:
            raise RuntimeError(
                "job.share: the number of micro-batches is unknown; give it to cairn.attach "
                "(microbatches=64)"
            )
        return self.sharing.ask(self.client, None if self._ended else self.step)

    @property
    def parts(self) -> Any:
        """The result of the script's `build` for the present placement."""
        return self.elastic.parts

    @property
    def placement(self) -> Any:
        """Which layers this rank has, and where it stands in its pipeline."""
        return self.elastic.placement

    @property
    def schedule(self) -> Any:
        """The schedule of the present share."""
        return self.elastic.schedule

    def reduce_gradients(self, max_norm: Optional[float] = None, scaler: Any = None) -> Any:
        """Before the optimizer's step: replaces each gradient of this stage by the mean over all
        micro-batches of the step, of all replicas. All ranks must call it. A parameter without a
        gradient counts as if its gradient were 0. max_norm: also clips by the norm of the whole
        model's gradient, which is returned, a tensor in float64. scaler: the torch.amp.GradScaler
        that has scaled the loss; also unscales the gradients, and if they overflow in one stage,
        scaler.step skips the update in all of them."""
        return self.elastic.reduce_gradients(max_norm, scaler)

    def after_step(self, optimizer: Any) -> None:
        if self.sharing is not None:
            self.sharing.saw_update()
        if self._ended:
            return
        self._stepping = [each for each in self._stepping if each is not optimizer]
        if self._stepping:
            return
        if self._in_closure:  # it was never called
            self._in_closure = False
            self._finish(unknown=True)
        if self._begun and self._fence is not None:
            self._fence.close_aside()
            if self._fence.has_captured_all():
                self._finish()
        known = self.models.alive.get(id(optimizer))
        if known is None:
            return
        known.after_update()
        self._kept[id(optimizer)] = optimizer
        grown = self._layout is None or self._layout.has_grown(known)
        if grown:
            known.note_missing()
        self._stepped[id(optimizer)] = None
        if self._cycle is not None:
            self._cycle.add(id(optimizer))
            complete = len(self._stepped) == len(self._cycle)
        else:
            complete = len(self.models.alive) == 1
        if not complete:
            return
        self._end_round()
        self._pending = True
        data = self.loaders.settle()
        self._early = {
            "random": _plain.random_state(),
            "extras": self.extras.early(self),
            "data": data,
        }
        if grown and self.holders is None:
            self._names.publish_early()
            if _megatron.wrapper(optimizer) is not None or is_zero(optimizer):
                self._register_with_all()
        if self._begins_at_once:
            self._kept = {}
            self._begin()

    def skipped_step(self, optimizer: Any) -> None:
        """Instead of after_step: it has found an overflow, and updated nothing."""
        self._stepping = [each for each in self._stepping if each is not optimizer]

    def before_forward(self, module: Any) -> None:
        """The forward of a root begins."""
        if self._ended:
            return
        self.loaders.saw_forward(_tensors.is_training())
        if self._resume.wanted:
            self._resume.attempt(final=False)
        if self._pending and (self._in_closure or not self._stepping) and _tensors.is_training():
            if not _tensors.is_recording_a_graph():  # then the next forward will do
                self._kept = {}
                self._begin()

    # ---- capture ----

    def _begin(self, last: bool = False) -> None:
        self._pending = False
        if not self.open():
            return
        if self._resume.wanted:  # nothing that is still to come back is in a snapshot
            self._resume.attempt(final=True)
        assert self.client is not None
        if self._begun and self._is_being_copied():
            return
        self._finish()
        if self._layout is None or self._layout.outdated(self.models.live()):
            self._register()
        if self._layout is None or self._refused:
            return
        self._layout.prepare()
        if not self._write_blob(self._layout):
            return
        _tensors.set_streams(self.client, self._layout.devices)
        assert self._fence is not None
        self._fence.begin(learns=self._orders_learned < ORDERS_LEARNED_MAX)
        self._begun = self.client.begin(self.step, last)
        self._begun_s = time.monotonic()

    def _is_being_copied(self) -> bool:
        """The snapshot before is, of what nothing has written to since: it goes on, and a new one
        is left out, not waited for."""
        return (
            self._layout is not None
            and not self._is_captured()
            and time.monotonic() - self._begun_s < COPY_LONGEST_S
        )

    def _is_captured(self) -> bool:
        return self._fence is None or self._fence.has_captured_all()

    def _plain_state(self, layout: Layout) -> bytes:
        value = {
            "random": self._early["random"],
            "early": self._early["extras"],
            "late": self.extras.late(self),
            "data": self._early["data"],
            "optimizers": [known.plain(layout) for known in self.models.live()],
        }
        return _blob.encode(value, _plain.pack)

    def _write_blob(self, layout: Layout) -> bool:
        assert layout.blob is not None
        try:
            data = self._plain_state(layout)
        except TypeError as error:
            self.refuse(str(error))
            return False
        if len(data) + 8 > layout.blob.numel():
            layout.grow_blob(2 * (len(data) + 8))
            self.send(layout.capture_pieces())
        _tensors.write_bytes(layout.blob, len(data).to_bytes(8, "little") + data)
        return True

    def open(self) -> bool:
        """Finds the agent, once."""
        if self.client is not None:
            return True
        if not os.environ.get("CAIRN_AGENT"):
            self.end("CAIRN_AGENT names no agent; start the script with `cairn run --`")
            return False
        try:
            self.place = _ranks.place()
            self.client = _lib.Client(*self.place, log=self._log)
        except (OSError, _lib.CairnError) as error:
            self.end(str(error))
            return False
        _lib.at_exit(self._at_exit)
        self._coverage.serve(self.client)
        return True

    def send(self, pieces: Sequence[_lib.Piece]) -> bool:
        """Registers; False, and said by the library, where the agent will not have it."""
        assert self.client is not None
        try:
            self.client.register(pieces)
        except _lib.CairnError as error:
            if error.code == _lib.AGAIN:  # another launch has this rank: tried again meanwhile
                return True
            if error.code != _lib.NOMEM:
                self.say(f"the tensors were refused: {error}")
            return False
        return True

    def _register(self) -> None:
        """Looks at everything again, and declares it where it is complete."""
        assert self.place is not None
        problems = Problems()
        in_turn = sorted(
            self.models.live(),
            key=lambda known: self._turns.get(id(known.optimizer()), len(self._turns)),
        )
        layout = collect(
            self.models.roots, in_turn, self.place, problems, self.staged_always, order=self._order
        )
        self._refused = bool(problems.lines)
        self._layout = layout
        for note in problems.notes:
            self.say(note)
        if not self.attached:
            problems.uncovered += [
                _lib.Uncovered(_lib.PARAM, name, ONLY_ATTACHED) for name in problems.unnamed
            ]
            problems.uncovered.append(_lib.Uncovered(_lib.OPAQUE, *NEVER_WITHOUT_ATTACH))
            if not self.loaders.trains:
                problems.uncovered.append(_lib.Uncovered(_lib.OPAQUE, POSITION, NO_LOADER))
        self._coverage.found(problems.uncovered)
        if not layout.entries and not problems.lines:
            problems.lines.append("there is no optimizer with parameters")
        if problems.lines:
            self.refuse("; ".join(problems.lines[:4]))
            return
        self._coverage.refuse("")
        if self.holders is None:
            self._names.agree(layout, self.place, self.step)
        else:
            layout.share_stages(self.holders)
        layout.grow_blob(1 << 16)
        if not self.send(layout.capture_pieces()):
            self.refuse(f"the agent did not take this rank's tensors: {self._last_line}")
            return
        assert self.client is not None
        self._fence = Fence(self.client, layout)
        if self.place.rank == 0 and self.stats()["attached"]:
            without = (
                ""
                if self.attached
                else f"; not {NEVER_WITHOUT_ATTACH[0]}: {NEVER_WITHOUT_ATTACH[1]}"
            )
            self.say(f"covers {layout.summary()}{without}")

    def _register_with_all(self) -> None:
        """Right after an update, which all stages of a pipeline, and all ranks of ZeRO, end
        together: the first snapshot would else begin before the last of them has registered. First
        nobody has anything registered: the shapes of a restore may differ in their padding.
        """
        if self._resume.wanted or not self.open():
            return
        assert self.place is not None
        if self.place.world > 1 and not self._begun:
            self.send([])
            _ranks.meet(f"cleared{self.step}", self.place, REGISTER_MEETING_S)
            self._register()
            _ranks.meet(f"registered{self.step}", self.place, REGISTER_MEETING_S)

    # ---- another placement ----

    def layout_of(self, known: Known, module: Any) -> Layout:
        """The layout of another module and optimizer, to replace the present. RuntimeError if
        a part of it cannot be captured."""
        assert self.place is not None and self.holders is not None and self._layout is not None
        problems = Problems()
        layout = collect({"": module}, [known], self.place, problems, self.staged_always)
        if problems.lines:
            raise RuntimeError("; ".join(problems.lines[:4]))
        layout.share_stages(self.holders)
        layout.grow_blob(self._layout.blob.numel())
        return layout

    def layout(self) -> Optional[Layout]:
        """The registered layout; None before the first snapshot."""
        return self._layout

    def snapshot_now(self) -> bool:
        """Takes the snapshot of the newest update now, also between intervals: before a pause,
        since only a forward begins one. All ranks must call it. It waits for the copy, for at most
        5 s for the agent to begin it, and once for at most 5 s for the other ranks of DDP; the
        commit follows. False if this rank has captured nothing: it was captured before, or no agent
        answers."""
        if self._ended or self.client is None or self._stepping:
            return False
        return (self._pending or self._begun) and self._take_newest()

    def stay(self) -> None:
        """Registers the present placement again, after a move that was abandoned."""
        if self._layout is not None and not self._refused:
            self.send(self._layout.capture_pieces())

    def adopt(self, known: Known, module: Any, layout: Layout, scheduler: Any) -> None:
        """Switches to the next parts, which all ranks have filled and registered."""
        assert self.client is not None
        self.models.replace(module, known)
        self.extras.replace_schedulers(scheduler)
        self._stepped, self._cycle, self._turns, self._kept = {}, None, {}, {}
        self._order, self._orders_learned = {}, 0
        self._layout, self._fence = layout, Fence(self.client, layout)

    # ---- restore ----

    def may_peek(self) -> bool:
        """An unchanged script that resumes, and has something to train, makes its first pass."""
        wanted = self._resume.wanted and not self.attached and not self._ended
        return wanted and bool(self.models.known) and bool(os.environ.get("CAIRN_AGENT"))

    def peek(self) -> Tuple[List[Dict[str, Any]], bool]:
        """The positions in the data that an unchanged script's rank had, or where there were not as
        many ranks (False), those of each."""
        values, same = self._resume.peek()
        data = [value.get("data", {}) for value in values]
        # as an update left them, before the loop's next batch was drawn
        if any(data):
            self._resume.set_random_state(values)
        return data, same

    def attach(self, models: Mapping[str, Any], optimizers: Iterable[Any], extras: Extras) -> None:
        """See cairn.attach."""
        self.attached, self.extras = True, extras
        self.loaders.attach(extras.cursors())
        self.models.attach(models, optimizers)
        self._say_refusals()
        if not self._resume.wanted:
            self.open()
            self._resume.all_can(False)
        else:
            try:
                self._resume.forget()
                self._resume.attempt(final=True, asks=True)
            except Damaged:
                raise
            except Exception as error:
                self.end(f"{type(error).__name__}: {error}")
        if self.client is None or not self.client.stats()["attached"]:
            self.say(
                "no agent serves this process: job.step is 0, so the loop starts at the beginning, "
                "whatever was snapshot before"
            )

    # ---- the end ----

    def has_begun(self) -> bool:
        """It has optimizers, or has talked to an agent."""
        return bool(self.models.known) or self.client is not None

    def stats(self) -> Dict[str, int]:
        """Counters since the start, see struct cairn_client_stats; all 0 without an agent."""
        return self.client.stats() if self.client else {}

    def _take_newest(self) -> bool:
        """Waits for the snapshot of the newest update, and begins it if need be. Whether it is
        good."""
        self._resume.await_moments()
        if self._pending:
            self._finish()
            self._begin(last=True)
        # The agent gets the time for a snapshot that no step follows: a fence would give it up.
        until_s = time.monotonic() + LAST_GRANT_S
        while self._begun and not self._is_captured() and time.monotonic() < until_s:
            threading.Event().wait(0.005)
        self._is_one_state(LAST_MEETING_S)
        return self._finish()

    def before_the_end(self) -> None:
        """Nothing more is expected to be trained: the last update is worth a snapshot too. Not
        where an exception is at work, as in a `finally:` that ends the process group: what follows
        an update may be done by half."""
        if self._ended or self.client is None or self.place is None:
            return
        if _lib.ends_by_an_error():
            self._meet_at_the_end(0)  # the others are not kept waiting
            return
        if self._stepping or self._last_step == self.step:
            return
        self._last_step = self.step
        self._take_newest()
        self._meet_at_the_end(LAST_MEETING_S)  # a generation needs all ranks until its end
        if self.client.await_commit(LAST_COMMIT_MS) == _lib.NOT_FOUND and self.place.world > 1:
            threading.Event().wait(LAST_LINGER_MS / 1000)

    def _meet_at_the_end(self, timeout_s: float) -> None:
        if self.place is not None and self.place.world > 1:
            _ranks.meet("end", self.place, timeout_s)

    def _at_exit(self) -> None:
        """The process ends, well or not."""
        # a forked child has another job
        if self.client is None or _current.job is not self:
            return
        try:
            if not self._ended:
                self._resume.await_moments()
                self.before_the_end()
                if not self._stepping:
                    self._finish()
        except Exception as error:
            self.say(f"the last snapshot could not be ended: {type(error).__name__}: {error}")
        self._ended = True
        self._kept = {}
        client, self.client = self.client, None
        client.close_with_the_process()


def start() -> Job:
    """The job of this process, made where there is none."""
    if _current.job is None:
        # A worker that torchrun started again goes on from where its job was.
        resume = (
            os.environ.get("CAIRN_RESUME") == "1"
            or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        )
        _current.job = Job(resume)
    return _current.job
