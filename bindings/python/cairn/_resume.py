"""How a job resumes: what can be restored, whether it fits all ranks, and the restore itself.

It returns when a forward can run. Moments on the CPU follow (_moments.py), and the first
update waits for them. What an unchanged script's modules hold comes back when they are called
first, and an optimizer's update waits for all that it has; where a part cannot come back that
others have got, the process stops: nobody trains on a mixture. Either all ranks of a job resume
from a step or none does: in attach they tell each other beforehand whether they can; an unchanged
script's ranks look before the first update, since the first forward of one may wait for that of
another.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from . import _blob, _lib, _megatron, _modules, _plain, _ranks, _tensors
from ._coverage import Problems
from ._current import Damaged
from ._entry import Entry, devices_of
from ._known import Known
from ._late import Late
from ._layout import Layout, blob_piece
from ._moments import Filling
from ._naming import few, positional_of, ranks_of
from ._ranks import Place
from ._refusal import refuse
from ._state import collect, named

if TYPE_CHECKING:
    from ._job import Job

RESTORE_TRIES = 3
ABLE_KEY, START_KEY = (
    "able",
    "start",
)  # the step that a rank can resume from, and does; 0 for none


def _blob_to_restore(listed: Mapping[str, _lib.Listed], name: str) -> Tuple[Any, _lib.Piece]:
    buffer = _tensors.byte_buffer(listed[name].shape[0])
    return buffer, blob_piece(buffer, name)


def _value_of(buffer: Any) -> Dict[str, Any]:
    """What a rank's blob holds."""
    data = _tensors.read_bytes(buffer)
    value: Dict[str, Any] = _blob.decode(
        data[8 : 8 + int.from_bytes(data[:8], "little")], _plain.unpack
    )
    return value


class Resume:
    """The restore of one job; `wanted` while something is still to be restored."""

    def __init__(self, job: "Job", wanted: bool) -> None:
        self._job = job
        self.wanted = wanted
        self._listed: Optional[Dict[str, _lib.Listed]] = None
        self._listed_step = 0
        self._restored: Set[str] = set()
        # ids of the parameters that have come back, with all their state
        self._came: Set[int] = set()
        self._plains: List[Dict[str, Any]] = []  # the plain state of the optimizers in the snapshot
        self._tried: List[int] = []  # the ids of what was known when a restore was tried last
        self._filling: Optional[Filling] = None  # moments, behind the first forward and backward
        self._late: Optional[Late] = None
        self._random_is_back = False  # before the tensors
        self._told_able = False  # the other ranks know whether this one can resume,
        self.told_start = False  # and from which step it goes on

    def _list(self) -> bool:
        """Learns what there is to restore; False: nothing."""
        if self._listed is not None:
            return True
        if not self._job.open():
            return False
        assert self._job.client is not None
        for attempt in range(120):
            try:
                self._listed_step, self._listed = self._job.client.list()
                return True
            except _lib.CairnError as error:
                if error.code == _lib.AGAIN and attempt < 119:
                    threading.Event().wait(0.5)
                    continue
                why = (
                    "there is nothing to restore"
                    if error.code == _lib.NOT_FOUND
                    else f"nothing was restored: {error}"
                )
                self._job.say(f"{why}: a fresh start")
                return False
        return False

    def attempt(self, final: bool, asks: bool = False) -> None:
        """Restores what is known by now and not restored yet. Final: what differs is logged, and
        nothing more is tried. Asks: only where all ranks can."""
        known = [*map(id, self._job.models.roots.values()), *map(id, self._job.models.known)]
        if not final and known == self._tried:
            return
        self.await_moments()
        if not set(self._tried) <= set(known):
            self.forget()
        self._tried = known
        todo: Optional[List[Tuple[Entry, str]]] = None
        layout = None
        if final:
            self.wanted = False
        if not self._list():
            self.wanted = False
        elif not self._has_what_none_can_name(final):
            layout, todo = self._look_for_what_fits(final)
        if asks and not self.all_can(todo is not None):
            todo = None
        if todo is None:
            self._late = None
        try:
            if todo and layout is not None:
                self._fill(layout, todo)
        except BaseException:
            self._forget_state()  # it was never filled
            raise
        if todo is None:
            self._forget_state()

    def forget(self) -> None:
        """Names have changed: by cairn.attach, or because a module was called that holds an assumed
        root. Restored tensors are restored again, with all that is named now."""
        self._restored, self._came, self._plains, self._tried = set(), set(), [], []

    def before_update(self, known: Optional[Known]) -> None:
        """This optimizer is about to write. Those whose modules were not called yet have until
        their own first update, or the first snapshot."""
        held = {id(parameter) for parameter in known.parameters()} if known is not None else set()
        self.attempt(final=not held <= self._came or self._job.models.wanted() <= self._came)

    def _has_what_none_can_name(self, final: bool) -> bool:
        """An unchanged script cannot find parameters of no module again: nothing comes back, before
        anything has."""
        assert self._listed is not None and self._job.place is not None
        unnamed = [] if self._job.attached else positional_of(self._listed, self._job.place)
        if unnamed and final:
            self._begin_afresh(
                f"nothing was restored: the snapshot of step {self._listed_step} has parameters "
                f"that belong to no module, {few(unnamed)}, and only a script that calls "
                "cairn.attach before the first step gets them back: a fresh start"
            )
        return bool(unnamed)

    def _begin_afresh(self, why: str) -> None:
        """Says why this rank starts from its beginning. A relaunch ends instead (Damaged)."""
        self._job.say(why)
        refuse(why)

    def _forget_state(self) -> None:
        for known in self._job.models.live():
            known.forget_state()

    def _look_for_what_fits(self, final: bool) -> Tuple[Layout, Optional[List[Tuple[Entry, str]]]]:
        """(layout, what to restore under which names); None, and logged where it is
        final: the snapshot does not fit."""
        assert self._listed is not None and self._job.place is not None
        names, parts, _ = named(
            self._job.models.roots, self._job.models.live(), self._job.place.world
        )
        for known in self._job.models.live():
            known.make_state(names, self._listed, self._job.place, unnamed_too=final, parts=parts)
        uncovered = Problems()
        layout = collect(
            self._job.models.roots,
            self._job.models.live(),
            self._job.place,
            uncovered,
            self._job.staged_always,
            unnamed_too=final,
        )
        here = self._job.place
        if self._job.holders is not None:  # what differs between replicas has its first rank's name
            here = here._replace(rank=self._job.holders.first_rank)
        todo, differences = layout.match(self._listed, self._restored, here)
        problems = differences + uncovered.lines
        late = (
            [entry.name for entry, _ in todo if entry.kind == _lib.PARAM]
            if final and not self._job.attached
            else []
        )
        if final and self._restored and (late or problems):
            raise Damaged(
                f"cairn: only a part of step {self._listed_step} came back, as modules were "
                f"called: not {few(late or problems)}. To go on would be to train on a mixture: "
                "call cairn.attach before the first step, or start without --resume"
            )
        if late and not problems:
            self._begin_afresh(
                f"nothing was restored: {few(late)} belong to no module whose forward was seen, or "
                "had no shape before it, and gradients were made from their fresh values: call "
                "cairn.attach before the first step to resume such a script"
            )
            return layout, None
        lacking = layout.lacks(self._listed, self._restored, self._job.place)
        # of several ranks others may have them
        if final and lacking and self._job.attached and self._job.place.world == 1:
            problems = problems or ["it lacks parameters"]
        if problems:
            if final:
                self.wanted = False
                self._begin_afresh(
                    f"the model differs from the snapshot of step {self._listed_step}, which stays "
                    "as it is, and starts afresh: "
                    + "; ".join(problems[:6])
                    + (
                        f"; the snapshot has, and the model has not: {few(lacking)}"
                        if lacking
                        else ""
                    )
                )
            return layout, None
        if final:
            self._late = Late(
                self._named(names), self._job.models.live(), self._listed, self._job.place, parts
            )
            todo += self._late.entries if self._job.attached else []
        return layout, todo

    def _named(self, names: Dict[int, str]) -> Dict[str, Any]:
        """All parameters of the modules by their names; of FSDP1 what an optimizer may hold of
        them."""
        held = (
            parameter
            for root in self._job.models.roots.values()
            for _, parameter in _modules.named_parameters(root)
        )
        return {names[id(parameter)]: parameter for parameter in held}

    def give_late(self) -> None:
        """The first update begins: parameters that were added since the restore get what the
        snapshot has of them."""
        late, self._late = self._late, None
        if late is None:
            return
        if self._job.attached:
            late.give(self._job.models.live())
        if late.names():
            self._job.say(
                f"the snapshot has moments of {few(late.names())}, which no optimizer has now: "
                "they are left out. A script that adds parameters in mid-training is to call "
                "cairn.attach, and to add them again before the first update that follows"
            )

    def all_can(self, able: bool) -> bool:
        """In attach, which all ranks call: whether each of them can restore the same step. Where
        one cannot, none does: the others would go on from elsewhere."""
        here = _ranks.place()
        if self._told_able or here.world == 1 or not _ranks.has_store():
            return able
        self._told_able = True
        _ranks.publish(ABLE_KEY, str(self._listed_step if able else 0).encode(), here)
        if not able:
            return False
        try:
            steps = _ranks.gather(ABLE_KEY, here)
        except RuntimeError:
            self._job.say(
                "waits for the other ranks to know whether they can resume from step "
                f"{self._listed_step}"
            )
            try:
                steps = _ranks.gather(ABLE_KEY, here, _ranks.RESUME_TIMEOUT)
            except RuntimeError:
                return True  # the first update will tell
        unlike = [str(rank) for rank, step in enumerate(steps) if int(step) != self._listed_step]
        if unlike:
            self._begin_afresh(
                f"nothing was restored: rank {few(unlike)} cannot resume from step "
                f"{self._listed_step}, or was not asked to (--resume on every node), and what it "
                "has said tells why: all ranks make a fresh start"
            )
        return not unlike

    def tell_start(self) -> Optional[Place]:
        """Tells the other ranks, once, from which step this one resumes; None without other
        ranks."""
        here = _ranks.place()
        if self.told_start or here.world == 1 or not _ranks.has_store():
            return None
        self.told_start = True
        _ranks.publish(START_KEY, str(self._listed_step if self._restored else 0).encode(), here)
        return here

    def compare_starts(self) -> None:
        """Before the first update, once: a rank that goes on beside one that began afresh would
        train on a mixture of both."""
        here = self.tell_start()
        self.told_start = True
        if here is None or not self._restored:
            return
        try:
            steps = _ranks.gather(START_KEY, here)
        except RuntimeError:
            self._job.say(
                f"resumed from step {self._listed_step}, and not all other ranks have said from "
                "where they go on: look whether they run under `cairn run --resume` too"
            )
            return
        unlike = [
            f"{rank} (step {int(step)})"
            for rank, step in enumerate(steps)
            if int(step) != self._listed_step
        ]
        if unlike:
            raise Damaged(
                f"cairn: rank {here.rank} has resumed from step {self._listed_step}, but not so "
                f"rank {few(unlike)}: together they would train on a mixture. Start all ranks with "
                "--resume, and look at what those have said; or all without"
            )

    def _fill(self, layout: Layout, todo: List[Tuple[Entry, str]]) -> None:
        assert (
            self._job.client is not None
            and self._listed is not None
            and self._job.place is not None
        )
        first = not self._restored
        blobs = self._blobs(self._listed, self._job.place) if first else []
        # not masters, which a script may look at
        later = {
            name
            for entry, name in todo
            if entry.kind == _lib.OPTIMIZER and entry.owner is not None and entry.is_on_host()
        }
        here = self._job.place
        if self._job.holders is not None:
            here = here._replace(rank=self._job.holders.replica, world=self._job.holders.replicas)
        pieces = [
            (name, entry.piece(here, as_named=name, into_staged=False)) for entry, name in todo
        ]
        now = [piece for name, piece in pieces if piece and name not in later] + [
            piece for _, piece in blobs
        ]
        for entry, _ in todo:
            entry.clear_padding()
        self._job.send(now)
        # which may still have to initialise what is filled
        _tensors.set_streams(self._job.client, devices_of(now))
        self._restore()
        try:
            self._take(layout, todo, later, [_value_of(buffer) for buffer, _ in blobs])
        # a scheduler's load_state_dict, say: some of its tensors hold nothing yet
        except Exception as error:
            raise self._damaged(f"{type(error).__name__}: {error}") from error
        moments = [piece for name, piece in pieces if piece and name in later]
        if moments:
            optimizers = [each for known in self._job.models.live() for each in known.holders()]
            self._filling = Filling(lambda: self._fill_moments(moments), optimizers)
        if first and self._job.place.rank == 0:
            self._job.say(f"resumed: the state after update {self._job.step}")

    def _take(
        self,
        layout: Layout,
        todo: List[Tuple[Entry, str]],
        later: Set[str],
        values: List[Dict[str, Any]],
    ) -> None:
        """Store the restored tensors, their plain state and, from the blobs, the job's own
        state."""
        assert self._job.place is not None
        for entry, name in todo:
            if name not in later:
                entry.unstage()
        self._restored |= {name for _, name in todo}
        for known in self._job.models.known:
            known.keep_state()
        self._job.forget_layout()
        self._job.step = self._listed_step
        value = self._own(values, self._job.place)
        if values:
            self._plains = value["optimizers"]
        names = named(self._job.models.roots, self._job.models.live(), self._job.place.world)[0]
        for known, plain in self._plains_of(self._job.models.live()):
            if self._job.attached:
                known.load_plain(plain, known.all_names(names), groups_from=0)
                continue
            held = {id(parameter) for parameter in known.parameters()} - self._came
            new = {number: name for number, name in names.items() if number in held}
            if new:  # what has no name does not come back, nor do hyperparameters
                known.load_plain(plain, new, groups_from=len(plain["groups"]))
        self._came |= {id(entry.tensor) for entry, _ in todo if entry.is_held}
        if values:
            if self._late is not None:
                self._late.keep(self._plains, self._job.models.live())
            self._job.extras.load({**value["early"], **value["late"]}, self._job)
            early = [each["early"] for each in values]
            self._job.extras.load_cursors(early, self._is_same(), self._job)
            if not self._random_is_back:
                _plain.set_random_state(value["random"])

    @staticmethod
    def _blobs(listed: Mapping[str, _lib.Listed], place: Place) -> List[Tuple[Any, _lib.Piece]]:
        """(buffer, piece) of the plain state that this rank had; in another number of ranks of that
        of all ranks, in their order."""
        ranks = ranks_of(listed)[0]
        names = [f"cairn.rank{rank}" for rank in range(ranks)]
        if ranks == place.world:
            names = names[place.rank : place.rank + 1]
        return [_blob_to_restore(listed, name) for name in names if name in listed]

    @staticmethod
    def _own(values: List[Dict[str, Any]], place: Place) -> Dict[str, Any]:
        """This rank's, or where the job had fewer ranks that of one that is there."""
        return values[place.rank % len(values)] if values else {}

    def set_random_state(self, values: List[Dict[str, Any]]) -> None:
        """Puts the random generators back, before an unchanged script's first forward."""
        assert self._job.place is not None
        _plain.set_random_state(self._own(values, self._job.place)["random"])
        self._random_is_back = True

    def _is_same(self) -> bool:
        """The snapshot has as many ranks."""
        assert self._listed is not None and self._job.place is not None
        return ranks_of(self._listed)[0] == self._job.place.world

    def peek(self) -> Tuple[List[Dict[str, Any]], bool]:
        """(plain state of the snapshot, before anything is restored: of this rank, or in another
        number of ranks of each; whether they are as many). Empty where there is none; nothing else
        changes."""
        try:
            if not self._list():
                return [], True
            assert self._listed is not None and self._job.place is not None
            blobs = self._blobs(self._listed, self._job.place)
            self._job.send([piece for _, piece in blobs])
            self._restore()
        except (_lib.CairnError, Damaged) as error:
            self._job.say(f"the position in the data was not found: {error}")
            return [], True
        return [_value_of(buffer) for buffer, _ in blobs], self._is_same()

    def _plains_of(self, live: Sequence[Known]) -> List[Tuple[Known, Dict[str, Any]]]:
        """Each optimizer with the plain state that the snapshot has for it."""
        found = []
        for number, known in enumerate(live):
            plain = _megatron.settings_for(known.optimizer(), self._plains, number)
            if plain is None and number < len(self._plains):
                plain = self._plains[number]
            if plain is not None:
                found.append((known, plain))
        return found

    def _fill_moments(self, pieces: Sequence[_lib.Piece]) -> None:
        """In a thread of its own, while no other uses the client."""
        try:
            self._job.send(pieces)
            self._restore()
        except _lib.CairnError as error:
            raise self._damaged(error) from error

    def await_moments(self) -> None:
        """Before anything that needs them, or the client."""
        if self._filling is not None:
            self._filling.finish()
            self._filling = None

    def _restore(self) -> None:
        assert self._job.client is not None
        for attempt in range(RESTORE_TRIES):
            try:
                restored = self._job.client.restore()
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
            f"cairn: the restore of step {self._listed_step} failed half-way ({why}): this process "
            "must not train on what it holds now. Start it again, with --resume to try again"
        )
