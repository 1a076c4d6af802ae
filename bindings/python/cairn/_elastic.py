"""Moves layers between the stages of a pipeline while training goes on (docs/REPLANNING.md,
"Layers in PyTorch").

A move happens inside job.share(), between two steps:

    enter   all ranks have voted for other layers; each takes the snapshot of the last update
    build   the script's function makes the next parts beside the present parts
    tell    each rank tells the others which tensors its next parts have, or why they failed
    fill    tensors come from the snapshot, schedulers and settings from the present parts
    vote    TAKEN: all ranks have filled, the present parts go. ABANDONED: the next parts go

Invariants:
 1. The present parts are neither freed nor changed before the second vote. Modules that
    `old.take` has returned are in both; the fill writes the same bytes to them.
 2. All ranks enter the same collectives, even if a rank fails. Every step that can fail lies
    between two collectives, and the next one carries its result.
 3. Every tensor is in exactly one stage of each replica, with one shape.
 4. Gradients are summed unit by unit (`layers.7` is one) over the ranks that hold the unit, in
    the order of the replicas. So a sum does not depend on where layers are.
 5. A move leaves the random generators as they were.
"""

from __future__ import annotations

import hashlib
import re
import time
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

import torch

from . import _blob, _lib, _modules, _plain, _share, _tensors, _timing
from ._build import Built, Old, Parts, Placement, Split, build_now, build_within
from ._known import Known
from ._layout import Holders, Layout
from ._naming import few
from ._share import Share, Sharing

if TYPE_CHECKING:
    from ._job import Job

FILL_TIMEOUT_MS = 5000
UNIT = re.compile(r"(.*?\.\d+)\.")
NOT_REDUCED = (
    "step {step} made its update without job.reduce_gradients(): the replicas differ from now on, "
    "and shares and layers stay as they are; call it before each optimizer's step"
)
STAYS = "shares and layers stay as they are from now on"


def _encoded(value: Any) -> bytes:
    """TypeError for what is not plain data."""
    return _blob.encode(value, _plain.pack)


def _tell(data: bytes) -> List[Any]:
    """Gives all ranks what each has encoded, in two collectives of the default group."""
    distributed, device = torch.distributed, _share.device_for_all()
    sizes = [
        torch.zeros(1, dtype=torch.int64, device=device) for _ in range(_share.ranks_here()[1])
    ]
    distributed.all_gather(sizes, torch.tensor([len(data)], device=device))
    most = max(int(each) for each in sizes)
    own = torch.frombuffer(bytearray(data.ljust(most, b"\0")), dtype=torch.uint8).to(device)
    found = [torch.empty_like(own) for _ in sizes]
    distributed.all_gather(found, own)
    return [
        _blob.decode(_tensors.read_bytes(each.cpu())[: int(size)], _plain.unpack)
        for each, size in zip(found, sizes)
    ]


def _tensors_of(module: Any) -> Dict[str, List[Any]]:
    """Type and shape of parameters and buffers, by name."""
    found = {}
    for kind, named in (("", _modules.named_parameters), ("buffer ", _modules.named_buffers)):
        for name, tensor in named(module):
            found[kind + name] = [str(tensor.dtype), list(tensor.shape)]
    return found


def _holders_of(told: Sequence[Dict[str, Any]]) -> Dict[str, Tuple[int, ...]]:
    """The ranks that have each tensor."""
    found: Dict[str, Tuple[int, ...]] = {}
    for rank, each in enumerate(told):
        for name in each["tensors"]:
            found[name] = (*found.get(name, ()), rank)
    return found


def _together(told: Sequence[Dict[str, Any]], stages: int) -> Tuple[Dict[str, Any], str]:
    """(the tensors of a replica, why the replicas or stages do not fit together)."""
    whole: List[Dict[str, Any]] = []
    for first in range(0, len(told), stages):
        whole.append({})
        for rank in range(first, first + stages):
            twice = sorted(whole[-1].keys() & told[rank]["tensors"].keys())
            if twice:
                return {}, f"rank {rank} has {few(twice)}, and so has an earlier stage"
            whole[-1].update(told[rank]["tensors"])
    for replica, each in enumerate(whole):
        why = _differs(each, whole[0], f"replica {replica}", "replica 0")
        if why:
            return {}, why
    return whole[0], ""


def _differs(found: Dict[str, Any], wanted: Dict[str, Any], who: str, than: str) -> str:
    lacks, has = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    other = sorted(name for name in wanted.keys() & found.keys() if wanted[name] != found[name])
    texts = []
    if lacks:
        texts.append(f"lacks {few(lacks)}")
    if has:
        texts.append(f"has {few(has)} more")
    if other:
        texts.append(f"has {few(other)} in another shape or type")
    return f"{who} {' and '.join(texts)} than {than}" if texts else ""


class _PipelineShare(Share):
    """The micro-batches of this replica, which a schedule computes."""

    def is_computed(self) -> bool:
        return bool(self.done)


class Elastic(Sharing):
    """The present placement of a pipeline and its parts; changes them when all ranks agree."""

    kind = _PipelineShare
    skips_alone = True

    def __init__(
        self,
        job: "Job",
        build: Callable[[Placement, Old], Parts],
        layers: Union[int, Sequence[Sequence[int]]],
        stages: int,
        count: int,
        is_seeding: bool,
        timeout_s: float,
    ) -> None:
        """Builds the first parts and gives all replicas the first one's values. ValueError or
        TypeError for bad arguments and parts; raises what `build` raises."""
        self._job, self._build, self._timeout_s = job, build, timeout_s
        rank, world = _share.ranks_here()
        if stages < 1 or world % stages:
            raise ValueError(
                f"cairn.elastic: stages is {stages}; it must divide the number of ranks ({world})"
            )
        self.stages, self.replicas = stages, world // stages
        self.split = self._checked(layers)
        self._stage = rank % stages
        shares = _share.even_shares(count, self.replicas, "replica")
        self._groups: Dict[Tuple[int, ...], Any] = {}  # of ranks that hold the same
        self._pipelines = self._made(
            [range(each * stages, (each + 1) * stages) for each in range(self.replicas)]
        )
        self.placement = self._placement(self.split, rank // stages)
        built = build_now(build, self.placement, Old(None), shares[rank // stages])
        assert built.parts is not None
        super().__init__([built.parts.module], shares, is_seeding, job.say)
        self.replica = rank // stages
        self.parts, self.schedule = built.parts, built.schedule
        told = _tell(_encoded({"tensors": _tensors_of(self.parts.module)}))
        self._tensors, why = _together(told, stages)
        if why:
            raise ValueError(f"cairn.elastic: {why}")
        self._positions = {name: i for i, name in enumerate(sorted(self._tensors))}
        self._holders = _holders_of(told)
        self._units = self._units_of(self.parts.module, self._holders)
        self._give_first_values()
        self._micro = 0  # forwards of this step
        self._begin_ns = 0
        self._unhooks = self._hook(self.parts)
        self.holders = Holders(self.replica, self.replicas, self.replica * stages)
        self._refused: Set[int] = set()  # votes for shares that a schedule cannot be made for
        self.moves = 0

    # ---- what there is ----

    def _checked(self, layers: Any) -> Split:
        if isinstance(layers, int):
            each = layers // self.stages
            extra = layers % self.stages
            row = [each + (stage < extra) for stage in range(self.stages)]
            layers = [row] * self.replicas
        split = tuple(tuple(map(int, row)) for row in layers)
        whole = {sum(row) for row in split}
        if (
            len(split) != self.replicas
            or len(whole) != 1
            or any(len(row) != self.stages or min(row) < 1 for row in split)
        ):
            raise ValueError(
                f"cairn.elastic: layers is {layers!r}; it must be a number of at least one per "
                f"stage, or for each of {self.replicas} replicas those of its {self.stages} stages"
            )
        return split

    def _placement(self, split: Split, replica: int) -> Placement:
        row = split[replica]
        first = sum(row[: self._stage])
        return Placement(
            range(first, first + row[self._stage]),
            self._stage,
            self.stages,
            replica,
            self.replicas,
            split,
            self._pipelines[replica],
        )

    def _parallels(self, models: Sequence[Any]) -> List[Any]:
        return []

    def scale(self) -> float:
        return 1.0  # reduce_gradients divides

    @staticmethod
    def _made(lists: Sequence[Sequence[int]]) -> List[Any]:
        """Groups of ranks; all ranks make all of them."""
        return [torch.distributed.new_group(list(ranks)) for ranks in lists]

    # ---- gradients ----

    def _units_of(
        self, module: Any, holders: Mapping[str, Tuple[int, ...]]
    ) -> List[Tuple[Tuple[int, ...], List[Tuple[str, Any]]]]:
        """(ranks that hold it, its named parameters) of each unit on this rank, sorted by name. All
        ranks make the missing groups together."""
        for ranks in sorted(set(holders.values()) - self._groups.keys()):
            if len(ranks) > 1:
                self._groups[ranks] = self._made([ranks])[0]
        units: Dict[Tuple[str, str, Tuple[int, ...]], List[Tuple[str, Any]]] = {}
        for name, parameter in sorted(_modules.named_parameters(module), key=lambda pair: pair[0]):
            if parameter.requires_grad:
                found = UNIT.match(name)
                key = (found[1] if found else name, str(parameter.dtype), holders[name])
                units.setdefault(key, []).append((name, parameter))
        return [(key[2], units[key]) for key in sorted(units)]

    def _drop_groups(self) -> None:
        """Ends the groups that the present parts do not use."""
        wanted = set(self._holders.values())
        for ranks in sorted(self._groups.keys() - wanted):
            group = self._groups.pop(ranks)
            if group != torch.distributed.GroupMember.NON_GROUP_MEMBER:
                torch.distributed.destroy_process_group(group)

    def _give_first_values(self) -> None:
        """The replicas begin as the first one does."""
        holders = self._holders
        named = dict(_modules.named_parameters(self.parts.module))
        named.update(
            ("buffer " + name, each) for name, each in _modules.named_buffers(self.parts.module)
        )
        for name, tensor in sorted(named.items()):
            if len(holders[name]) > 1:
                group = self._groups[holders[name]]
                torch.distributed.broadcast(tensor.detach(), holders[name][0], group=group)

    def reduce_gradients(self, max_norm: Optional[float], scaler: Any) -> Optional[Any]:
        """See Job.reduce_gradients."""
        if self._share is not None and not self._share.done:
            self._share.done = self._share.numbers()
        begun = []
        for ranks, named in self._units:
            grads = [
                torch.zeros_like(each) if each.grad is None else each.grad for _, each in named
            ]
            flat = torch.cat([each.reshape(-1) for each in grads])
            work = None
            if len(ranks) > 1:
                work = torch.distributed.all_reduce(flat, group=self._groups[ranks], async_op=True)
            begun.append((work, flat, named, grads))
        count = sum(self.shares)
        for work, flat, named, grads in begun:
            if work is not None:
                work.wait()
            flat.div_(count)
            pieces = flat.split([each.numel() for each in grads])
            for (_, parameter), grad, piece in zip(named, grads, pieces):
                grad.copy_(piece.view_as(grad))
                parameter.grad = grad
        if scaler is not None and scaler.is_enabled():
            self._unscale(scaler)
        return None if max_norm is None else self._clip(max_norm)

    def _unscale(self, scaler: Any) -> None:
        """All stages of a replica find an overflow that one of them finds. So they skip the same
        updates, and their scales stay equal wherever layers are; the replicas have equal
        gradients."""
        device = next(iter(self.parts.module.parameters())).device
        if scaler._scale is None:  # without a loss on this stage nothing has made it
            scaler.scale(torch.ones((), device=device))
        scaler.unscale_(self.parts.optimizer)
        found = list(scaler._found_inf_per_device(self.parts.optimizer).values())
        none = torch.zeros((), device=device)  # a frozen stage has no gradients
        most = torch.stack([none, *(each.to(device) for each in found)]).max().reshape(1)
        torch.distributed.all_reduce(
            most, op=torch.distributed.ReduceOp.MAX, group=self.placement.group
        )
        for each in found:
            each.copy_(most.view_as(each))

    def _clip(self, max_norm: float) -> Any:
        """Each element of `squares` comes from one stage, and the sum has a fixed order. So the
        norm does not depend on where layers are."""
        held = [pair for _, named in self._units for pair in named]
        device = next(iter(self.parts.module.parameters())).device
        squares = torch.zeros(len(self._positions), dtype=torch.float64, device=device)
        for name, parameter in held:
            norm = torch.linalg.vector_norm(parameter.grad, dtype=torch.float64)
            squares[self._positions[name]] = norm.square()
        torch.distributed.all_reduce(squares, group=self.placement.group)
        norm = squares.sum().sqrt()
        factor = (max_norm / (norm + 1e-6)).clamp(max=1)
        for _, parameter in held:
            parameter.grad.mul_(factor.to(parameter.grad.dtype))
        return norm

    # ---- forwards ----

    def _hook(self, parts: Parts) -> List[Callable[[], None]]:
        """Records how long forwards take. With rng="counter", seeds the generators."""
        layers = len(self.placement.layers)

        def begin(_module: Any, _inputs: Any) -> None:
            inferring = not getattr(self.schedule, "_stage_forward_initialized", True)
            if self.seed is not None and self._share is not None and not inferring:
                indices = self._share.numbers()
                index = indices[self._micro % len(indices)]
                self._micro += 1
                torch.manual_seed(_share.seed_of(self.seed, self._share.step, index))
            self._begin_ns = time.monotonic_ns()

        def end(_module: Any, _inputs: Any, _outputs: Any) -> None:
            if self.devices:
                _timing.note_work(layers)
            else:
                _timing.note_computed(layers, self._begin_ns, False)

        handles = [
            parts.module.register_forward_pre_hook(begin),
            parts.module.register_forward_hook(end),
        ]
        if self.seed is not None:
            for number, layer in parts.layers.items():
                handles += self._seeded(number, layer)
        return [each.remove for each in handles]

    def _seeded(self, number: int, layer: Any) -> List[Any]:
        """Makes a layer's masks depend on step, micro-batch and its number alone. It derives its
        seed from the generators' seed, which stands for step and micro-batch. Recomputation in
        backward restores that one first, so it gets the same masks."""
        states: List[Any] = []

        def before(_module: Any, _inputs: Any) -> None:
            cuda = [(each, torch.cuda.get_rng_state(each)) for each in self.devices]
            states.append((torch.get_rng_state(), cuda))
            text = b"%d layer %d" % (torch.initial_seed(), number)
            seed = int.from_bytes(hashlib.sha256(text).digest()[:8], "little", signed=True)
            torch.manual_seed(seed)

        def after(_module: Any, _inputs: Any, _outputs: Any) -> None:
            state, cuda = states.pop()
            torch.set_rng_state(state)
            for device, each in cuda:
                torch.cuda.set_rng_state(each, device)

        return [
            layer.register_forward_pre_hook(before),
            layer.register_forward_hook(after, always_call=True),
        ]

    # ---- votes ----

    def ask(self, client: Optional[_lib.Client], step: Optional[int]) -> Share:
        self._micro = 0
        return super().ask(client, step)

    def _not_computed(self, share: Share) -> str:
        return NOT_REDUCED.format(step=share.step)

    def assign(self, share: Share, *_arguments: Any) -> List[Any]:
        raise RuntimeError("share.assign: the stages of a pipeline cannot be given sequences yet")

    def _vote(self, client: Optional[_lib.Client]) -> int:
        """All ranks' votes, joined."""
        vote = 0
        if client is not None:
            vote = client.vote_layers(self.number, self.shares, self.split)
        is_ready = self.is_computed and not self._skipped and self._job.layout() is not None
        return _share.agree(vote if is_ready and vote not in self._refused else 0)

    def _take(self, client: Optional[_lib.Client], agreed: int) -> Tuple[int, _lib.Placed]:
        if client is None:
            return _lib.SAME, _lib.Placed(0, [], [])
        return client.take_placement(agreed, self.replicas, self.stages)

    def _decide(self, client: Optional[_lib.Client], step: int) -> None:
        agreed = self._vote(client)
        change, placed = self._take(client, agreed)
        if change == _lib.ENTER:
            assert client is not None
            self._move(client, step, placed)
        elif change == _lib.TAKEN and not self._take_shares(step, placed):
            self._refused.add(agreed)

    def _take_shares(self, step: int, placed: _lib.Placed) -> bool:
        """Changes the schedule alone, since layers stay. False if a rank cannot make it."""
        schedule, why = None, ""
        try:
            schedule = self.parts.schedule(placed.shares[self.replica])
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        reasons = [f"rank {rank}: {each}" for rank, each in enumerate(_tell(_encoded(why))) if each]
        if reasons:
            self._give_up(step, reasons[0])
            return False
        before, self.shares, self.number = self.shares, placed.shares, placed.number
        self.schedule = schedule
        self._say_change(step, before, self.split)
        return True

    def _say_change(self, step: int, shares: Sequence[int], split: Split) -> None:
        if self.rank == 0:
            now, then = _in_words(self.shares, self.split), _in_words(shares, split)
            self._say(f"from step {step} on: {now} instead of {then}")

    def _give_up(self, step: int, why: str, stops: bool = False) -> None:
        """All ranks call it with the same reason; the first one logs it. stops: nothing changes
        from now on."""
        if stops:
            self.is_computed = False
        if self.rank == 0:
            after = STAYS if stops else "training goes on as before"
            self._say(f"step {step}: placement unchanged: {why}; {after}")

    # ---- a move ----

    def _move(self, client: _lib.Client, step: int, placed: _lib.Placed) -> None:
        job, parts = self._job, self.parts
        split = tuple(map(tuple, placed.layers))
        placement = self._placement(split, self.replica)
        is_begun = job.snapshot_now()
        present = job.layout()
        random = _plain.random_state()
        built = build_within(
            self._timeout_s, self._build, placement, Old(parts.module), placed.shares[self.replica]
        )
        _plain.set_random_state(random)
        why = built.why or self._unlike(built.parts)
        if not why and not is_begun:
            why = "the snapshot before the move could not be begun"
        told = self._told(built, why, present)
        reasons = [f"rank {i}: {each['why']}" for i, each in enumerate(told) if each["why"]]
        if not reasons:
            whole, wrong = _together(told, self.stages)
            wrong = wrong or _differs(whole, self._tensors, "the next placement", "the present one")
            reasons = [f"build returned other names: {wrong}"] if wrong else []
        filled = None
        if not reasons:
            assert built.parts is not None and present is not None
            holders = _holders_of(told)
            units = self._units_of(built.parts.module, holders)
            filled = self._filled(client, built.parts, told, present)
        change, placed = self._take(client, self._vote(client))
        if change == _lib.TAKEN:
            assert filled is not None and built.parts is not None
            self._holders, self._units = holders, units
            self._adopt(step, placed, built, placement, filled)
        else:
            job.stay()
            if reasons:
                hangs = any(each["hangs"] for each in told)
                self._give_up(step, reasons[0], stops=hangs)
        self._drop_groups()

    def _unlike(self, parts: Optional[Parts]) -> str:
        """Why the next optimizer or scheduler cannot take over from the present one; "": it
        can."""
        assert parts is not None
        now = self.parts
        for what, one, other in (
            ("optimizer", parts.optimizer, now.optimizer),
            ("scheduler", parts.scheduler, now.scheduler),
        ):
            if type(one) is not type(other):
                return f"build returned a {type(one).__name__} as {what}"
        groups = [len(each.optimizer.param_groups) for each in (parts, now)]
        if groups[0] != groups[1]:
            return f"build returned an optimizer of {groups[0]} groups instead of {groups[1]}"
        return ""

    def _report(self, built: Built, why: str, present: Optional[Layout]) -> Dict[str, Any]:
        """What this rank tells the others."""
        report: Dict[str, Any] = {"why": why, "hangs": built.hangs, "tensors": {}}
        if why or present is None or built.parts is None:
            return {**report, "why": why or "nothing is registered"}
        known = self._job.models.alive[id(self.parts.optimizer)]
        report["tensors"] = _tensors_of(built.parts.module)
        report["listed"] = present.listed()
        report["state"] = known.plain(present)["state"]
        return report

    def _told(self, built: Built, why: str, present: Optional[Layout]) -> List[Dict[str, Any]]:
        """The reports of all ranks."""
        try:
            data = _encoded(self._report(built, why, present))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            data = _encoded(self._report(built._replace(parts=None), text, present))
        return _tell(data)

    def _filled(
        self, client: _lib.Client, parts: Parts, told: Sequence[Any], present: Layout
    ) -> Optional[Tuple[Known, Layout]]:
        """Fills and registers the next parts. None if that failed; the reason is logged."""
        job = self._job
        try:
            known = self._with_state(parts, told, present)
            if parts.scheduler is not None:
                parts.scheduler.load_state_dict(self.parts.scheduler.state_dict())
            layout = job.layout_of(known, parts.module)
            pieces = layout.capture_pieces()
            _tensors.set_streams(client, layout.devices)
            client.fill(job.step, pieces, FILL_TIMEOUT_MS)
            return known, layout
        except Exception as error:
            job.say(
                f"step {job.step}: placement unchanged: the state of the next parts could not be "
                f"fetched: {error}; training goes on as before",
                once=False,
            )
            return None

    def _with_state(self, parts: Parts, told: Sequence[Any], present: Layout) -> Known:
        """The next optimizer with the present settings and plain state, and with empty tensors
        for the rest of its state."""
        job, optimizer = self._job, parts.optimizer
        assert job.place is not None
        before = job.models.alive[id(self.parts.optimizer)]
        own = range(self.replica * self.stages, (self.replica + 1) * self.stages)
        listed = {
            name: _lib.Listed(dtype, kind, tuple(shape))
            for rank in own
            for name, (dtype, kind, shape) in told[rank]["listed"].items()
        }
        plain = before.plain(present)
        plain["state"] = {name: each for rank in own for name, each in told[rank]["state"].items()}
        known = Known(lambda: optimizer, 0)
        names = {id(each): name for name, each in _modules.named_parameters(parts.module)}
        for parameter in known.parameters():  # those that were taken
            state = before.holder().state.get(parameter)
            if state:
                optimizer.state[parameter] = dict(state)
        known.make_state(names, listed, job.place, unnamed_too=False)
        known.keep_state()
        known.load_plain(plain, names, groups_from=0)
        return known

    def _adopt(
        self,
        step: int,
        placed: _lib.Placed,
        built: Built,
        placement: Placement,
        filled: Tuple[Known, Layout],
    ) -> None:
        assert built.parts is not None
        known, layout = filled
        for entry in layout.entries:
            entry.unstage()
        for remove in self._unhooks:
            remove()
        shares, split = self.shares, self.split
        self.number, self.shares = placed.number, placed.shares
        self.split, self.placement = placement.split, placement
        self.parts, self.schedule = built.parts, built.schedule
        self._job.adopt(known, self.parts.module, layout, self.parts.scheduler)
        self._unhooks = self._hook(self.parts)
        self.moves += 1
        self._say_change(step, shares, split)


def _in_words(shares: Sequence[int], split: Split) -> str:
    layers = " | ".join(",".join(map(str, row)) for row in split)
    return f"micro-batches {' | '.join(map(str, shares))}, layers {layers}"
