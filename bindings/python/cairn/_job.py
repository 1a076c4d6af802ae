"""A protected job: when a snapshot begins, what is waited for, what makes it good, and how a job comes back.

One update of a job (of all its optimizers, once each) is a round. The life of its snapshot:

    after_step      the round ends: `step` grows, random generators and data loaders are staged
    before_forward  the next training forward: everything the script did after the update (schedulers, clamps) is in place. The
                    rest is staged, the snapshot begins, and is copied behind forward and backward
    before_update   the next update: compares the version counters with those at the beginning, and confirms the snapshot, or
                    refuses it where something was changed behind the optimizer's back. Where it is still being copied the update
                    waits for what it is about to write to (see _fence.py), and the rest of this follows when the copy is done

An optimizer that is given a closure runs forward and backward inside its step: the update begins when the closure has returned.
Where a round has no forward between two updates (models that are no modules) it begins in after_step from then on.
A forward without gradients (an evaluation) does not begin one: weights may be swapped for it.

A restore returns when a forward can run. Moments on the CPU come in behind it (_moments.py), and the first update waits for them.
Either all ranks of a job resume from a step or none does: in attach they tell each other beforehand whether they can; an unchanged
script's ranks look before the first update, since the first forward of one may wait for that of another.

All hooks run in the thread that trains. A forked child has no job.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import threading
import time
import weakref
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from . import _blob, _lib
from ._coverage import Coverage
from ._fence import Fence
from ._moments import Filling
from ._state import Entry, Extras, Known, Layout, Place, Problems, collect, devices_of, few, named, plain_names

RESTORE_TRIES = 3
LAST_GRANT_MS = 500  # that the end of a process waits for the agent,
LAST_MEETING_S = 5.0  # for the other ranks to have done the same,
LAST_LINGER_MS = 300  # and for the agents to commit it
NEVER_WITHOUT_ATTACH = "schedulers, data loaders and the script's own state", "the script does not call cairn.attach"
CHANGED_BEHIND = "something other than the optimizer changes it between two updates: snapshots of such steps are refused"
ONLY_ATTACHED = "it belongs to no module that was called: it is captured, but comes back only where the script calls cairn.attach"
STEP_IN_A_GRAPH = "the optimizer's step is recorded into a CUDA graph, and no hook sees when that is replayed"
COPY_LONGEST_S = 60.0  # a copy that takes longer is not left running behind further updates
WATCHED_BYTES_MIN = 1 << 20  # per parameter: with less to be captured it is quicker to wait than to look at each write
ORDERS_LEARNED_MAX = 4
NAMES_KEY = "names"
ABLE_KEY, START_KEY = "able", "start"  # the step that a rank can resume from, and does; 0 for none


class Damaged(RuntimeError):
    """A restore failed after tensors had been overwritten: to go on would be to train on garbage."""


class Job:
    """The job of this process. `step` is the number of updates done, counted through all resumptions."""

    def __init__(self, resume: bool) -> None:
        self.step = 0
        self._resume = resume  # something is still to be restored
        self._attached = False
        self._ended = False
        self._client: Optional[_lib.Client] = None
        self._place: Optional[Place] = None
        self._known: List[Known] = []
        self._alive: Dict[int, Known] = {}  # by the optimizer's id
        self._roots: Dict[str, Any] = {}  # prefix → module
        self._seen: "weakref.WeakSet[Any]" = weakref.WeakSet()  # modules that need no further look
        self._stop_watching: Optional[Callable[[], None]] = None
        self._root_handles: List[Callable[[], None]] = []
        self._extras = Extras(None, None, None)
        self._said: Set[str] = set()
        self._coverage = Coverage()
        self._last_line = ""  # of the library, where it said what is wrong
        # the round
        self._stepping: List[Any] = []
        self._in_closure = False  # the step of an optimizer has begun, its update has not
        self._stepped: Dict[int, None] = {}  # ids of the optimizers, in the order of their steps
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
        self._order: Dict[int, int] = {}  # id of a tensor → when it is updated, where that was seen to differ from the layout
        self._orders_learned = 0
        self._refused = False  # the layout is incomplete: no snapshots are taken
        self._staged_always: Set[str] = set()
        self._published: Optional[List[str]] = None  # the names of plain parameters that the other ranks have been told
        self._agreed: Tuple[Optional[List[str]], Dict[str, Tuple[str, int, int]]] = (None, {})
        # the restore
        self._listed: Optional[Dict[str, _lib.Listed]] = None
        self._listed_step = 0
        self._restored: Set[str] = set()
        self._tried: Tuple[int, int] = (-1, -1)
        self._filling: Optional[Filling] = None  # moments, behind the first forward and backward
        self._told_able = False  # the other ranks know whether this one can resume,
        self._told_start = False  # and from which step it goes on
        self._last_step = -1  # that was seen to its end
        self.snapshots_refused = 0  # begun, and found changed behind the optimizer's back

    # ---- messages ----

    def say(self, text: str, once: bool = True) -> None:
        """One line to standard error."""
        if once and text in self._said:
            return
        self._said.add(text)
        who = f"[rank {self._place.rank}]" if self._place and self._place.world > 1 else ""
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
        """Takes no snapshots while nothing changes, and says so."""
        self._refused = True
        self.say(f"no snapshots are taken: {why}")
        self._coverage.refuse(why)

    def end(self, why: str) -> None:
        """Stops protecting, and says so: training goes on. The session stays, so that `cairn status` shows it."""
        if self._ended:
            return
        self.say(f"this training is NOT protected from here on: {why}")
        self._stop()
        if self._client is None:
            return
        try:
            self._await_moments()
        finally:
            self._coverage.refuse(why)
            self._client.confirm(False)
            try:
                self._client.register([])  # nothing is read from its tensors any more
            except _lib.CairnError:
                pass  # a left-over of an older epoch, or too late: the library has said it

    def hand_over(self, to: str) -> None:
        """The script takes its snapshots with something else from here on: none are taken after updates."""
        if not self._ended and self._known:
            self.say(f"snapshots are taken by {to} from here on, and no more after each update")
        self._leave()

    def _stop(self) -> None:
        try:  # nobody is kept waiting
            self._all_can_resume(False)
            self._tell_start()
        except Exception:
            pass  # the store is gone, and the others with it
        self._ended = True
        self._pending = self._begun = False
        self._unwatch()

    def _leave(self) -> None:
        self._stop()
        try:
            self._await_moments()
        finally:
            self._coverage.serve(None)
            client, self._client = self._client, None
            if client is not None:
                client.confirm(False)
                client.close()

    # ---- what there is ----

    def saw_optimizer(self, optimizer: Any) -> None:
        """An optimizer was made, or steps for the first time."""
        if self._ended or self._attached or id(optimizer) in self._alive:
            return
        self._add_optimizer(optimizer)

    def _add_optimizer(self, optimizer: Any) -> None:
        from . import _torch

        number = id(optimizer)
        known = Known(weakref.ref(optimizer, lambda _: self._forget_optimizer(number)), len(self._known))
        self._known.append(known)
        self._alive[number] = known
        _torch.guard_step(optimizer)
        self._layout = None
        self._watch()

    def _forget_optimizer(self, number: int) -> None:
        """An optimizer is gone."""
        self._alive.pop(number, None)
        self._stepped.pop(number, None)
        if self._cycle is not None:
            self._cycle.discard(number)

    def _live(self) -> List[Known]:
        live = [known for known in self._known if known.optimizer() is not None]
        inside = {id(known.holder()) for known in live if known.holder() is not known.optimizer()}
        return [known for known in live if id(known.optimizer()) not in inside]

    def _watch(self) -> None:
        from . import _torch

        if self._stop_watching is None and not self._attached:  # what is attached is named already
            self._stop_watching = _torch.watch_forwards()

    def _unwatch(self) -> None:
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None

    def _say_refusals(self) -> None:
        """Before the first step: the optimizer of which no step is seen would never be said otherwise."""
        from . import _torch

        for known in self._live():
            why = _torch.refusal(known.optimizer(), _torch.place().world)
            if why:
                self.say(f"no snapshots are taken: {why}")

    def _wanted(self) -> Set[int]:
        """The ids of all parameters of the optimizers."""
        return {id(parameter) for known in self._live() for parameter in known.parameters()}

    def saw_forward(self, module: Any) -> None:
        """Some module's forward begins: is it a root?"""
        if self._ended or module in self._seen:
            return
        wanted = self._wanted()
        if wanted.isdisjoint(id(parameter) for parameter in module.parameters()):
            self._seen.update(module.modules())
            return
        self._add_root(module)
        self._say_refusals()
        if wanted <= {id(parameter) for root in self._roots.values() for parameter in root.parameters()}:
            self._unwatch()
        self.before_forward(module)

    def _add_root(self, module: Any, prefix: Optional[str] = None) -> None:
        from . import _torch

        inside = set(map(id, module.modules()))
        for name in [name for name, root in self._roots.items() if id(root) in inside]:
            del self._roots[name]  # it was called on its own before the module that holds it
        if prefix is None:
            prefix = "" if not self._roots else f"model{len(self._roots)}."
        self._roots[prefix] = module
        self._seen.update(module.modules())
        self._root_handles.append(_torch.watch_root(module))
        self._layout = None

    # ---- the round ----

    def before_step(self, optimizer: Any, has_closure: bool) -> bool:
        """The step of an optimizer begins. True: before_update is to be called when its closure has returned for the first time."""
        from . import _torch

        if self._ended:
            return False
        if _torch.is_recording_a_graph():
            self.end(STEP_IN_A_GRAPH)
            return False
        if any(each is optimizer for each in self._stepping):
            self._stepping = []  # its last step ended in an exception
        self._stepping.append(optimizer)
        if len(self._stepping) > 1:
            return False  # inside the step of an optimizer that wraps it
        self.saw_optimizer(optimizer)
        if id(optimizer) not in self._alive:
            name = f"the {type(optimizer).__name__} that takes steps"
            self.leave_out(_lib.OPTIMIZER, name, "it was not given to cairn.attach")
        if id(optimizer) in self._stepped:  # the first one is back: those since were all there are
            self._cycle = set(self._stepped)
            self._end_round()
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
        if self._resume:
            self._try_restore(final=True)
        self._await_moments()
        if not self._told_start:
            self._compare_starts()
        if self._pending:
            self._pending = False
            self._begins_at_once = True
            if self._extras.has_late():
                self.say(
                    "no forward comes between two updates: schedulers and extras are captured as they are right after an update"
                )
        self._fence_update(optimizer)

    def _fence_update(self, optimizer: Any) -> None:
        """Waits for what the optimizer overwrites, as far as that is known; else for everything."""
        from . import _torch

        if not self._begun:
            return
        fence, known = self._fence, self._alive.get(id(optimizer))
        if (
            fence is None
            or self._layout is None
            or known is None
            or fence.has_captured_all()
            or not _torch.writes_are_known(optimizer)
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
            _torch.watch(fence)

    def _finish(self, unknown: bool = False) -> None:
        """Waits for all of what is being captured, and tells whether it is good. Unknown: it may have been overwritten."""
        if not self._begun or self._client is None:
            return
        self._begun = False
        if unknown or self._layout is None or self._fence is None:
            self._client.confirm(False)
        if self._layout is None or self._fence is None:
            self._client.fence()
            return
        code, changed = self._fence.end()
        if code != _lib.OK:
            return
        self._client.confirm(not changed)
        self._learn_order(self._fence)
        if not changed:
            return
        self.snapshots_refused += 1
        movable = {entry.name for entry in changed if entry.kind == _lib.BUFFER}
        if movable:  # a large buffer that forward writes to: captured from a copy from now on
            self._staged_always |= movable
            self._layout = None
        behind = [entry for entry in changed if entry.kind != _lib.BUFFER]
        others = [entry.name for entry in behind]
        for entry in behind[: _lib.UNCOVERED_MAX]:
            self._coverage.add(entry.kind, entry.name, CHANGED_BEHIND)
        if others:
            self.say(
                "a snapshot was refused: between two updates something other than the optimizer changed "
                f"{few(others)} (said once; snapshots_refused counts them)"
            )

    def _learn_order(self, fence: Fence) -> None:
        """What was overwritten first is captured first from the next snapshot on."""
        order = fence.order() if self._orders_learned < ORDERS_LEARNED_MAX else []
        if order:
            self._orders_learned += 1
            self._order = {id(entry.tensor): turn for turn, entry in enumerate(order)}
            self._layout = None

    def after_step(self, optimizer: Any) -> None:
        if self._ended:
            return
        self._stepping = [each for each in self._stepping if each is not optimizer]
        if self._stepping:
            return
        if self._in_closure:  # it was never called
            self._in_closure = False
            self._finish(unknown=True)
        if self._begun and self._fence is not None and self._fence.has_captured_all():
            self._finish()
        known = self._alive.get(id(optimizer))
        if known is None:
            return
        grown = self._layout is None or self._layout.has_grown(known)
        if grown:
            known.note_missing()
        self._stepped[id(optimizer)] = None
        if self._cycle is not None:
            self._cycle.add(id(optimizer))
            complete = len(self._stepped) == len(self._cycle)
        else:
            complete = len(self._alive) == 1
        if not complete:
            return
        self._end_round()
        self._pending = True
        from . import _torch

        self._early = {"random": _torch.random_state(), "extras": self._extras.early(self)}
        if grown:
            self._publish_early()
        if self._begins_at_once:
            self._begin()

    def before_forward(self, module: Any) -> None:
        """The forward of a root begins."""
        if self._ended:
            return
        if self._resume:
            self._try_restore(final=False)
        from . import _torch

        if self._pending and (self._in_closure or not self._stepping) and _torch.is_training():
            if not _torch.is_recording_a_graph():  # then the next forward will do
                self._begin()

    # ---- capture ----

    def _begin(self) -> None:
        from . import _torch

        self._pending = False
        if not self._open():
            return
        assert self._client is not None
        if self._begun and self._is_being_copied():
            return
        self._finish()
        if self._layout is None or self._layout.outdated(self._live()):
            self._register()
        if self._layout is None or self._refused:
            return
        self._layout.prepare()
        if not self._write_blob(self._layout):
            return
        _torch.set_streams(self._client, self._layout.devices)
        assert self._fence is not None
        self._fence.begin(learns=self._orders_learned < ORDERS_LEARNED_MAX)
        self._begun = self._client.begin(self.step)
        self._begun_s = time.monotonic()

    def _is_being_copied(self) -> bool:
        """The snapshot before is, of what nothing has written to since: it goes on, and a new one is left out, not waited for."""
        return (
            self._fence is not None
            and self._layout is not None
            and not self._fence.has_captured_all()
            and time.monotonic() - self._begun_s < COPY_LONGEST_S
        )

    def _plain_state(self, layout: Layout) -> bytes:
        from . import _torch

        value = {
            "random": self._early["random"],
            "early": self._early["extras"],
            "late": self._extras.late(self),
            "optimizers": [known.plain(layout) for known in self._live()],
        }
        return _blob.encode(value, _torch.pack)

    def _write_blob(self, layout: Layout) -> bool:
        from . import _torch

        assert layout.blob is not None
        try:
            data = self._plain_state(layout)
        except TypeError as error:
            self.refuse(str(error))
            return False
        if len(data) + 8 > layout.blob.numel():
            layout.grow_blob(2 * (len(data) + 8))
            self._send(layout.capture_pieces())
        _torch.write_bytes(layout.blob, len(data).to_bytes(8, "little") + data)
        return True

    def _open(self) -> bool:
        """Finds the agent, once."""
        if self._client is not None:
            return True
        from . import _torch

        if not os.environ.get("CAIRN_AGENT"):
            self.end("CAIRN_AGENT names no agent; start the script with `cairn run --`")
            return False
        try:
            self._place = _torch.place()
            self._client = _lib.Client(*self._place, log=self._log)
        except (OSError, _lib.CairnError) as error:
            self.end(str(error))
            return False
        atexit.register(self._at_exit)
        self._coverage.serve(self._client)
        return True

    def _send(self, pieces: Sequence[_lib.Piece]) -> bool:
        """Registers; False, and said by the library, where the agent will not have it."""
        assert self._client is not None
        try:
            self._client.register(pieces)
        except _lib.CairnError as error:
            if error.code != _lib.NOMEM:
                self.say(f"the tensors were refused: {error}")
            return False
        return True

    def _register(self) -> None:
        """Looks at everything anew, and declares it where it is complete."""
        assert self._place is not None
        problems = Problems()
        in_turn = sorted(self._live(), key=lambda known: self._turns.get(id(known.optimizer()), len(self._turns)))
        layout = collect(self._roots, in_turn, self._place, problems, self._staged_always, order=self._order)
        self._refused = bool(problems.lines)
        self._layout = layout
        for note in problems.notes:
            self.say(note)
        if not self._attached:
            problems.uncovered += [_lib.Uncovered(_lib.PARAM, name, ONLY_ATTACHED) for name in problems.unnamed]
            problems.uncovered.append(_lib.Uncovered(_lib.OPAQUE, *NEVER_WITHOUT_ATTACH))
        self._coverage.found(problems.uncovered)
        if not layout.entries and not problems.lines:
            problems.lines.append("there is no optimizer with parameters")
        if problems.lines:
            self.refuse("; ".join(problems.lines[:4]))
            return
        self._coverage.refuse("")
        self._agree(layout)
        layout.grow_blob(1 << 16)
        if not self._send(layout.capture_pieces()):
            self.refuse(f"the agent did not take this rank's tensors: {self._last_line}")
            return
        assert self._client is not None
        self._fence = Fence(self._client, layout)
        if self._place.rank == 0 and self.stats()["attached"]:
            without = "" if self._attached else f"; not {NEVER_WITHOUT_ATTACH[0]}: {NEVER_WITHOUT_ATTACH[1]}"
            self.say(f"covers {layout.summary()}{without}")

    def _agree(self, layout: Layout) -> None:
        """Which plain tensors are the same on which ranks: those share the copying.

        Only DDP says so of plain tensors. That they are equal now does not mean that they stay so, and a snapshot half from one rank
        and half from another would be nobody's state: where nothing says so each rank keeps its own, under its rank's name.
        """
        from . import _torch

        assert self._place is not None
        here = self._place
        if here.world == 1:
            return
        if all(_torch.replicates(root) for root in self._roots.values()) and self._roots:
            layout.share(
                {name: (name, here.rank, here.world) for name in layout.plain_parameters()}, here, buffers_of_rank_0=True
            )
            return
        plain = sorted(layout.plain_parameters())
        if self._agreed[0] != plain:
            self._publish(plain, here)
            others = [json.loads(each) for each in _torch.gather(NAMES_KEY, here)]
            alone = {name for name in plain if sum(name in each for each in others) == 1}
            self._agreed = plain, {name: (name if name in alone else f"rank{here.rank}/{name}", 0, 1) for name in plain}
        layout.share(self._agreed[1], here, buffers_of_rank_0=False)

    def _publish_early(self) -> None:
        """Right after an update: where the ranks are the stages of a pipeline a rank's next forward begins only when the one before
        has sent something to it, which would then be waiting for these names."""
        from . import _torch

        here = _torch.place()
        if here.world > 1 and _torch.has_store() and not all(map(_torch.replicates, self._roots.values())):
            self._publish(plain_names(self._roots, self._live(), here.world), here)

    def _publish(self, plain: List[str], here: Place) -> None:
        """Where it has changed. All ranks publish before they gather: of two that have a name in common one at least sees it."""
        from . import _torch

        if self._published != plain:
            _torch.publish(NAMES_KEY, json.dumps(plain).encode(), here)
            self._published = plain

    # ---- restore ----

    def attach(self, models: Mapping[str, Any], optimizers: Iterable[Any], extras: Extras) -> None:
        """See cairn.attach."""
        self._unwatch()
        for remove in self._root_handles:
            remove()
        self._attached, self._extras, self._layout = True, extras, None
        self._roots, self._known, self._alive, self._root_handles = {}, [], {}, []
        for name, module in models.items():
            self._add_root(module, f"{name}." if name else "")
        for optimizer in optimizers:
            self._add_optimizer(optimizer)
        self._say_refusals()
        if not self._resume:
            self._open()
            self._all_can_resume(False)
        else:
            try:
                self._try_restore(final=True, asks=True)
            except Damaged:
                raise
            except Exception as error:
                self.end(f"{type(error).__name__}: {error}")
        if self._client is None or not self._client.stats()["attached"]:
            self.say(
                "no agent serves this process: job.step is 0, so the loop starts at the beginning, whatever was snapshot before"
            )

    def _list(self) -> bool:
        """Learns what there is to restore; False: nothing."""
        if self._listed is not None:
            return True
        if not self._open():
            return False
        assert self._client is not None
        for attempt in range(120):
            try:
                self._listed_step, self._listed = self._client.list()
                return True
            except _lib.CairnError as error:
                if error.code == _lib.AGAIN and attempt < 119:
                    threading.Event().wait(0.5)
                    continue
                why = "there is nothing to restore" if error.code == _lib.NOT_FOUND else f"nothing was restored: {error}"
                self.say(f"{why}: a fresh start")
                return False
        return False

    def _try_restore(self, final: bool, asks: bool = False) -> None:
        """Restores what is known by now and was not restored yet. Final: what differs is said, and nothing more is tried.
        Asks: only where all ranks can."""
        state = (len(self._roots), len(self._known))
        if not final and state == self._tried:
            return
        self._tried = state
        self._await_moments()
        todo: Optional[List[Tuple[Entry, str]]] = None
        layout = None
        if final:
            self._resume = False
        if self._list():
            layout, todo = self._look_for_what_fits(final)
        else:
            self._resume = False
        if asks and not self._all_can_resume(todo is not None):
            todo = None
        try:
            if todo and layout is not None:
                self._fill(layout, todo)
        except BaseException:
            self._forget_state()  # it was never filled
            raise
        if todo is None:
            self._forget_state()

    def _forget_state(self) -> None:
        for known in self._live():
            known.forget_state()

    def _look_for_what_fits(self, final: bool) -> Tuple[Layout, Optional[List[Tuple[Entry, str]]]]:
        """(layout, what of it is to be restored under which names); None, and said where it is final: the snapshot does not fit."""
        assert self._listed is not None and self._place is not None
        names, parts, _ = named(self._roots, self._place.world)
        for known in self._live():
            known.make_state(names, self._listed, unnamed_too=final, parts=parts)
        uncovered = Problems()
        layout = collect(self._roots, self._live(), self._place, uncovered, self._staged_always, unnamed_too=final)
        todo, differences = layout.match(self._listed, self._restored, self._place)
        problems = differences + uncovered.lines
        late = [entry.name for entry, _ in todo if entry.kind == _lib.PARAM] if final and not self._attached else []
        if late and not problems:
            self.say(
                f"nothing was restored: {few(late)} belong to no module whose forward was seen, or had no shape before it, and "
                "gradients were made from their fresh values: call cairn.attach before the first step to resume such a script"
            )
            return layout, None
        if problems:
            if final:
                unused = sorted(set(self._listed) - {entry.name for entry in layout.entries} - self._restored)
                lacking = [name for name in unused if self._listed[name].kind == _lib.PARAM]
                self._resume = False
                self.say(
                    f"the model differs from the snapshot of step {self._listed_step}, which stays as it is, and starts afresh: "
                    + "; ".join(problems[:6])
                    + (f"; the snapshot has, and the model has not: {few(lacking)}" if lacking else "")
                )
            return layout, None
        return layout, todo

    def _all_can_resume(self, able: bool) -> bool:
        """In attach, which all ranks call: whether each of them can restore the same step. Where one cannot, none does: the others
        would go on from elsewhere."""
        from . import _torch

        here = _torch.place()
        if self._told_able or here.world == 1 or not _torch.has_store():
            return able
        self._told_able = True
        _torch.publish(ABLE_KEY, str(self._listed_step if able else 0).encode(), here)
        if not able:
            return False
        try:
            steps = _torch.gather(ABLE_KEY, here)
        except RuntimeError:
            self.say(f"waits for the other ranks to know whether they can resume from step {self._listed_step}")
            try:
                steps = _torch.gather(ABLE_KEY, here, _torch.RESUME_TIMEOUT)
            except RuntimeError:
                return True  # the first update will tell
        unlike = [str(rank) for rank, step in enumerate(steps) if int(step) != self._listed_step]
        if unlike:
            self.say(
                f"nothing was restored: rank {few(unlike)} cannot resume from step {self._listed_step}, or was not asked to "
                "(--resume on every node), and what it has said tells why: all ranks make a fresh start"
            )
        return not unlike

    def _tell_start(self) -> Optional[Place]:
        """Tells the other ranks, once, from which step this one goes on; None where there is nobody to tell."""
        from . import _torch

        here = _torch.place()
        if self._told_start or here.world == 1 or not _torch.has_store():
            return None
        self._told_start = True
        _torch.publish(START_KEY, str(self._listed_step if self._restored else 0).encode(), here)
        return here

    def _compare_starts(self) -> None:
        """Before the first update, once: a rank that goes on beside one that began afresh would train on a mixture of both."""
        from . import _torch

        here = self._tell_start()
        self._told_start = True
        if here is None or not self._restored:
            return
        try:
            steps = _torch.gather(START_KEY, here)
        except RuntimeError:
            self.say(
                f"resumed from step {self._listed_step}, and not all other ranks have said from where they go on: look whether "
                "they run under `cairn run --resume` too"
            )
            return
        unlike = [f"{rank} (step {int(step)})" for rank, step in enumerate(steps) if int(step) != self._listed_step]
        if unlike:
            raise Damaged(
                f"cairn: rank {here.rank} has resumed from step {self._listed_step}, but not so rank {few(unlike)}: together they "
                "would train on a mixture. Start all ranks with --resume, and look at what those have said; or all without"
            )

    def _fill(self, layout: Layout, todo: List[Tuple[Entry, str]]) -> None:
        from . import _torch

        assert self._client is not None and self._listed is not None and self._place is not None
        first = not self._restored
        blob = layout.blob_to_restore(self._listed, self._place) if first else None
        later = {name for entry, name in todo if entry.kind == _lib.OPTIMIZER and entry.is_on_host()}
        pieces = {name: entry.piece(self._place, as_named=name, into_staged=False) for entry, name in todo}
        now = [piece for name, piece in pieces.items() if piece and name not in later] + ([blob[1]] if blob else [])
        self._send(now)
        _torch.set_streams(self._client, devices_of(now))  # which may still have to initialise what is filled
        self._client_restore()
        for entry, name in todo:
            if name not in later:
                entry.unstage()
        self._restored |= {name for _, name in todo}
        for known in self._known:
            known.keep_state()
        self._layout = None
        self.step = self._listed_step
        if blob:
            data = _torch.read_bytes(blob[0])
            names = named(self._roots, self._place.world)[0]
            value = _blob.decode(data[8 : 8 + int.from_bytes(data[:8], "little")], _torch.unpack)
            for known, plain in zip(self._live(), value["optimizers"]):
                known.load_plain(plain, names, with_groups=self._attached)
            self._extras.load({**value["early"], **value["late"]}, self)
            _torch.set_random_state(value["random"])
        moments = [piece for name, piece in pieces.items() if piece and name in later]
        if moments:
            optimizers = [known.holder() for known in self._live()]
            self._filling = Filling(lambda: self._fill_moments(moments), optimizers)
        if first and self._place.rank == 0:
            self.say(f"resumed: the state after update {self.step}")

    def _fill_moments(self, pieces: Sequence[_lib.Piece]) -> None:
        """In a thread of its own, while no other uses the client."""
        try:
            self._send(pieces)
            self._client_restore()
        except _lib.CairnError as error:
            raise self._damaged(error) from error

    def _await_moments(self) -> None:
        """Before anything that needs them, or the client."""
        if self._filling is not None:
            self._filling.finish()
            self._filling = None

    def _client_restore(self) -> None:
        assert self._client is not None
        for attempt in range(RESTORE_TRIES):
            try:
                restored = self._client.restore()
                break
            except _lib.CairnError as error:
                if error.code in (_lib.INVAL, _lib.NOT_FOUND):
                    raise
                if attempt == RESTORE_TRIES - 1:
                    raise self._damaged(error) from error
        if restored.step != self._listed_step:
            raise self._damaged(f"step {restored.step} came instead")

    def _damaged(self, why: Any) -> Damaged:
        return Damaged(
            f"cairn: the restore of step {self._listed_step} failed half-way ({why}): this process must not "
            "train on what it holds now. Start it again, with --resume to try again"
        )

    # ---- the end ----

    def has_begun(self) -> bool:
        """It has optimizers, or has talked to an agent."""
        return bool(self._known) or self._client is not None

    def stats(self) -> Dict[str, int]:
        """Counters since the start, see struct cairn_client_stats; all 0 without an agent."""
        return self._client.stats() if self._client else {}

    def _await_copy(self) -> None:
        """Gives the agent the time to take a snapshot that no step follows; a fence at once would give it up."""
        ended = ("snapshots_captured", "snapshots_skipped", "snapshots_failed")
        before = sum(self.stats()[name] for name in ended)
        for _ in range(LAST_GRANT_MS // 5):
            if not self._begun or sum(self.stats()[name] for name in ended) != before:
                return
            threading.Event().wait(0.005)

    def before_the_end(self) -> None:
        """Nothing more is expected to be trained: the last update is worth a snapshot too."""
        if self._ended or self._client is None or self._place is None or self._stepping or self._last_step == self.step:
            return
        self._last_step = self.step
        self._await_moments()
        if self._pending:
            self._finish()
            self._begin()
            self._await_copy()
        self._finish()
        if self._place.world > 1:  # a generation needs all ranks until its end
            self._meet_at_the_end(LAST_MEETING_S)
            threading.Event().wait(LAST_LINGER_MS / 1000)

    def _meet_at_the_end(self, timeout_s: float) -> None:
        from . import _torch

        if self._place is not None and self._place.world > 1:
            _torch.meet("end", self._place, timeout_s)

    def _at_exit(self) -> None:
        """The process ends in good order, or with an exception: then the other ranks are not kept waiting."""
        if self._client is None or _current is not self:  # a forked child that ends has another job
            return
        failed = hasattr(sys, "last_type") and sys.last_type is not None
        if self._ended:
            self._client.close(failed)
            self._client = None
            return
        try:
            self._await_moments()
            if not failed:
                self.before_the_end()
            else:
                self._meet_at_the_end(0)
            if not self._stepping:
                self._finish()
        except Exception as error:
            self.say(f"the last snapshot could not be ended: {type(error).__name__}: {error}")
        self._ended = True
        self._client.close(failed)
        self._client = None


_current: Optional[Job] = None


def start() -> Job:
    """The job of this process, made where there is none."""
    global _current
    if _current is None:
        # A worker that torchrun started again goes on from where its job was.
        resume = os.environ.get("CAIRN_RESUME") == "1" or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        _current = Job(resume)
    return _current


def answer_signals() -> None:
    """SIGUSR1 asks the agents for a snapshot at the next step that all can still make, unless the script has a use for it."""
    command = os.environ.get("CAIRN_COMMAND")
    pid = os.getpid()

    def ask(_number: int, _frame: Any) -> None:
        if os.getpid() != pid or not command:
            return
        try:
            # Not subprocess: that may copy this process's page tables, which takes long in a large one.
            asked = os.posix_spawn(
                command, [command, "snapshot"], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
            )
            threading.Thread(target=os.waitpid, args=(asked, 0), daemon=True).start()
        except OSError as error:
            print(f"cairn: no snapshot can be asked for: {command}: {error}", file=sys.stderr, flush=True)

    if command and threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, ask)


def current() -> Optional[Job]:
    return _current


def forget() -> None:
    """In a forked child: a job that has begun is the parent's; before that the child may be the one that trains."""
    global _current
    if _current is not None and _current.has_begun():
        _current = None
