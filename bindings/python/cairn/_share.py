"""Which micro-batches of a step each rank computes, and how that changes while training goes on.

The agents offer other shares, and the ranks decide (docs/REPLANNING.md): at each step boundary all
ranks vote in one all-reduce over the default group, and the shares change where all votes are
equal. An agent that is dead or late can only keep them as they are.

Invariants:
 1. All ranks enter the same all-reduces. Whether they vote at a boundary depends only on what an
    earlier all-reduce gave to all of them, and on how often they have asked after an update. The
    stages of a pipeline may skip updates alone: they ask after each step, and one that skipped
    votes for nothing.
 2. The shares of a step partition 0 … microbatches - 1, in the order of the ranks, and each rank
    has at least one micro-batch.
 3. A script that does not compute its share keeps it: this rank votes for nothing any more.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterator,
    List,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import torch

from . import _assign, _lib, _tensors, _timing
from ._assign import Micro
from ._deal import Dealer
from ._modules import parallel_of, sharded_of

# Once in so many steps the ranks tell each other whether their agents may offer anything.
REVIEW_STEPS = 128
INT64_END = 1 << 63
NO_DIGEST = bytes(8)
NEVER_ASKED = (
    "cairn.attach was given microbatches, but the script does not call job.share() in each step: "
    "the shares stay as they are"
)
ASKED_TWICE = (
    "job.share() was called again before an optimizer's step: it returned the same share, and the "
    "ranks did not vote; call it once per step"
)
NOT_COMPUTED = (
    "step {step} computed micro-batches {done} instead of {share}: the shares stay as they are "
    "from now on; compute each in `with share.micro(i):`"
)
DIFFERENT_LENGTHS = (
    "before step {step} the ranks gave share.assign different lengths, max_tokens or costs, or run "
    "different libcairn: sequences were computed twice or not at all; give all ranks the same, in "
    "the same order"
)
FEWER_SEQUENCES = (
    "step {step} has {count} sequences for {ranks} ranks: those without one compute a sequence of "
    "another rank, with scale 0"
)


class Share:
    """The micro-batches of one step that this rank computes: iterate over it, and compute each in
    `with share.micro(i):`.

    scale: what the mean loss of a micro-batch is multiplied with, so that the gradient is the mean
    over all micro-batches of the step. counts: how many each rank computes.
    """

    def __init__(self, sharing: "Sharing", step: int) -> None:
        self._sharing = sharing
        self.step = step
        self.counts: Tuple[int, ...] = tuple(sharing.shares)
        before = sum(self.counts[: sharing.replica])
        self._indices = range(before, before + self.counts[sharing.replica])
        self.scale = sharing.scale()
        self.done: List[int] = []
        self._micros: Optional[List[Micro]] = None  # of sequences
        self.dealt: Dict[int, List[Tuple[int, Any]]] = {}  # by id of the stream

    def __iter__(self) -> Iterator[Union[int, Micro]]:
        return iter(self._indices if self._micros is None else self._micros)

    def __len__(self) -> int:
        return len(self._indices if self._micros is None else self._micros)

    def __repr__(self) -> str:
        shares = " | ".join(map(str, self.counts))
        return f"<cairn share of step {self.step}: {in_words(self._indices)} of {shares}>"

    def numbers(self) -> List[int]:
        """Of its micro-batches."""
        return [each.number if isinstance(each, Micro) else each for each in self]

    def is_computed(self) -> bool:
        """Each micro-batch was, once."""
        return sorted(self.done) == sorted(self.numbers())

    def assign(
        self, lengths: Any, max_tokens: int, cost: Sequence[float] = _assign.LINEAR
    ) -> List[Micro]:
        """Shares sequences instead of numbered micro-batches: this rank's micro-batches, at least
        one, and each of at most max_tokens tokens. Each sequence is in one micro-batch of one rank.

        lengths: the tokens of each sequence of the step, integers (a sequence, an array or a
        tensor). All ranks must give the same lengths in the same order. The ranks do not talk: the
        result depends on the arguments and on this step's shares alone. A rank computes in
        proportion to its share of the job's micro-batches. cost: (a, b, c), a sequence of s tokens
        costs a s^2 + b s + c, in any unit. ValueError for lengths that cannot be assigned, which
        leaves the share as it was. RuntimeError where a micro-batch of the step is computed
        already.

        Each micro-batch's mean loss per token times its `scale` adds up to the mean over all tokens
        of the step; a sum of losses must be multiplied with ranks / all tokens instead. Assigned
        by LPT and MULTIFIT on machines of different speed (docs/REPLANNING.md).
        """
        if self.done:
            raise RuntimeError(
                f"share.assign: step {self.step} has computed micro-batches already; assign before "
                "the first one"
            )
        self._micros = self._sharing.assign(self, lengths, max_tokens, cost)
        return list(self._micros)

    def deal(self, loader: Any) -> List[Tuple[int, Any]]:
        """(i, micro-batch) of this rank, from a stream of micro-batches that is the same on all
        ranks. Each step reads as many as the job computes in a step, and keeps this rank's.

        An iterator is read on from where it is; any other iterable, such as a DataLoader, again
        from its start where it ends, also within a step. Called again in the same step it returns
        the same. EOFError where the stream ends for good: the rest of it is less than a step.
        ValueError for a loader that shuffles differently on each rank.
        """
        if id(loader) not in self.dealt:
            sharing = self._sharing
            self.dealt[id(loader)] = sharing.dealer.deal(
                loader, self._indices, sum(self.counts), sharing.is_alone
            )
        return self.dealt[id(loader)]

    @contextlib.contextmanager
    def micro(self, index: Union[int, Micro]) -> Iterator[None]:
        """Surrounds forward and backward of one micro-batch."""
        sharing = self._sharing
        number, work = (index.number, index.work) if isinstance(index, Micro) else (index, 1)
        self.done.append(number)
        position = len(self.done)
        is_last = position == len(self)
        with contextlib.ExitStack() as stack:
            for each in sharing.parallels:
                stack.enter_context(each.around(is_last))
            if sharing.seed is not None:
                stack.enter_context(torch.random.fork_rng(sharing.devices))
                torch.manual_seed(seed_of(sharing.seed, self.step, number))
            begin_ns = time.monotonic_ns()
            yield
            if sharing.devices:
                _timing.note_work(work)
            elif 1 < position < len(self) or not any(
                each.waits_inside for each in sharing.parallels
            ):
                _timing.note_computed(work, begin_ns, is_last)


def ranks_here() -> Tuple[int, int]:
    """(rank, number of ranks) of the default group; (0, 1) without one."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def even_shares(count: Any, replicas: int, per: str) -> List[int]:
    """The shares that a job begins with. ValueError for fewer than one per replica."""
    if isinstance(count, bool) or not isinstance(count, int) or count < replicas:
        raise ValueError(
            f"cairn: microbatches is {count!r}; it must be a number of at least one per {per} "
            f"({replicas})"
        )
    return [count // replicas + (each < count % replicas) for each in range(replicas)]


def devices_of(models: Sequence[Any]) -> List[torch.device]:
    """The CUDA devices of the models' parameters."""
    kinds = {parameter.device for each in models for parameter in each.parameters()}
    return [device for device in kinds if device.type == "cuda"]


class Sharing:
    """The shares of all replicas, and the votes on them. Here a rank is a replica."""

    kind = Share
    skips_alone = False  # a rank may skip an update that others make

    def __init__(
        self, models: Sequence[Any], shares: List[int], is_seeding: bool, say: Callable[[str], None]
    ) -> None:
        """TypeError for models that cannot be shared."""
        self.rank, world = ranks_here()
        self.replica, self.is_alone = self.rank, world == 1
        self.parallels = self._parallels(models)
        self.shares = shares
        self.devices = devices_of(models)
        self.seed = torch.initial_seed() % INT64_END if is_seeding else None
        self.dealer = Dealer()
        self._digest = NO_DIGEST  # of all assignments so far
        self._differed = self._was_short = False
        self._say = say
        self.number = 0  # of the offer that was taken last
        self._share: Optional[Share] = None
        self._updates = 0  # since the script asked last
        self._skipped = False  # the script asks without one, as where a gradient scaler skips it
        self._asked = 0  # after an update, and at the start
        self._is_voting = self.is_computed = True

    def _parallels(self, models: Sequence[Any]) -> List[Any]:
        """What withholds its collectives until a rank's last micro-batch."""
        world = ranks_here()[1]
        return [] if world == 1 else [_parallel(each, world) for each in models]

    def scale(self) -> float:
        """What the mean loss of a micro-batch is multiplied with."""
        return len(self.shares) / sum(self.shares)

    def saw_update(self) -> None:
        """An optimizer has made its step."""
        self._updates += 1
        if self._updates == 2 and self._share is None:
            self._say(NEVER_ASKED)

    def ask(self, client: Optional[_lib.Client], step: Optional[int]) -> Share:
        """The share of the next step. step: updates done; None: the job does not count them."""
        share = self._share
        self._skipped = share is not None and self._updates == 0
        if share is not None and self._skipped and not (self.skips_alone and share.is_computed()):
            if not share.is_computed():
                self._say(ASKED_TWICE)
            if share.done:
                self._share = self._again(share)
            return self._share
        if share is not None and not share.is_computed():
            if self.is_computed:
                self._say(self._not_computed(share))
            self.is_computed = False
        if step is None:
            step = share.step + 1 if share is not None else 0
        self._updates = 0
        if not self.is_alone:
            self._ask_all(client, step)
        again = share is not None and self._skipped
        self._share = self._again(share) if again else self.kind(self, step)
        return self._share

    def _again(self, share: Share) -> Share:
        """The same step, from the same streams."""
        again = self.kind(self, share.step)
        again.dealt = share.dealt
        return again

    def _not_computed(self, share: Share) -> str:
        done, wanted = in_words(share.done), in_words(share.numbers())
        return NOT_COMPUTED.format(step=share.step, done=done, share=wanted)

    def assign(
        self, share: Share, lengths: Any, max_tokens: int, cost: Sequence[float]
    ) -> List[Micro]:
        """This rank's micro-batches of sequences."""
        tokens = _assign.checked(lengths, max_tokens)
        micros, digest = _assign.assign(tokens, self.shares, self.rank, max_tokens, cost)
        self._digest = hashlib.blake2b(self._digest + digest, digest_size=8).digest()
        if len(tokens) < len(self.shares) and not self._was_short:
            self._was_short = True
            if self.rank == 0:
                counts = {"count": len(tokens), "ranks": len(self.shares)}
                self._say(FEWER_SEQUENCES.format(step=share.step, **counts))
        return micros

    def _ask_all(self, client: Optional[_lib.Client], step: int) -> None:
        if self._asked % REVIEW_STEPS == 0:
            self._review(client, step)
        self._asked += 1
        if self._asked == 2:  # ranks that differ mostly do so from the first step on
            self._compare(step)
        if self._is_voting:
            self._decide(client, step)

    def _decide(self, client: Optional[_lib.Client], step: int) -> None:
        vote = client.vote(self.number, self.shares) if client and self.is_computed else 0
        agreed = agree(vote)
        taken = client.take_shares(agreed, len(self.shares)) if client else None
        if taken is None:
            return
        before, (self.number, self.shares) = self.shares, taken
        if self.rank == 0:
            texts = [" | ".join(map(str, each)) for each in (self.shares, before)]
            self._say(f"from step {step} on: micro-batches {texts[0]} instead of {texts[1]}")

    def _compare(self, step: int, *values: int) -> List[int]:
        """The least of all ranks for each value; says where the ranks have assigned differently."""
        digest = int.from_bytes(self._digest, "little") - INT64_END
        *found, least, complement = _least(*values, digest, ~digest)
        if least != ~complement and not self._differed:
            self._differed = True
            self._say(DIFFERENT_LENGTHS.format(step=step))
        return found

    def _review(self, client: Optional[_lib.Client], step: int) -> None:
        """Agrees on whether votes can lead to anything; at the start, on the seed too."""
        may = client is not None and client.stats()["takes_offers"] != 0
        seed = (self.seed or 0) if self.rank == 0 else INT64_END - 1
        none, seed = self._compare(step, 0 if may else 1, seed)
        self._is_voting = none == 0
        if self.seed is not None:
            self.seed = seed


class _Replicated:
    """A DistributedDataParallel."""

    waits_inside = False  # its collectives come at the end of the last backward

    def __init__(self, parallel: Any) -> None:
        self._parallel = parallel

    def around(self, is_last: bool) -> ContextManager[Any]:
        """Surrounds forward and backward of a micro-batch: the last one reduces gradients."""
        return contextlib.nullcontext() if is_last else self._parallel.no_sync()


class _Sharded:
    """A module of FSDP2. Its ranks wait for each other where parameters are gathered and gradients
    reduced: that is in the first forward of a step and in the last backward, once each on every
    rank, however many micro-batches it computes. In between each rank keeps whole parameters and
    gradients.

    set_is_last_backward must stay True: else FSDP2 remembers the forwards of all micro-batches,
    and the last backward prefetches parameters again on ranks that had more than one.
    """

    waits_inside = True  # within the first and the last micro-batch of a step

    def __init__(self, module: Any) -> None:
        self._module = module
        module.set_reshard_after_forward(False)

    def around(self, is_last: bool) -> ContextManager[Any]:
        self._module.set_requires_gradient_sync(is_last)
        self._module.set_reshard_after_backward(is_last)
        return contextlib.nullcontext()


def _parallel(model: Any, world: int) -> Union[_Replicated, _Sharded]:
    if any(isinstance(each, torch.nn.SyncBatchNorm) for each in model.modules()):
        raise TypeError(
            "cairn.attach: microbatches cannot be used with SyncBatchNorm: in each micro-batch it "
            "waits for all ranks, which may compute different numbers of them"
        )
    parallel = parallel_of(model)
    if parallel is not None and parallel.process_group.size() == world:
        return _Replicated(parallel)
    sharded = sharded_of(model)
    trained = [each for each in model.parameters() if each.requires_grad]
    if sharded is not None and all(_tensors.is_sharded_over(each, world) for each in trained):
        return _Sharded(sharded)
    raise TypeError(
        f"cairn.attach: microbatches needs a DistributedDataParallel or a model of fully_shard, "
        f"over all {world} ranks and for all that is trained, and the model is a "
        f"{type(model).__name__}"
    )


def agree(vote: int) -> int:
    """All ranks' votes joined: theirs if they are equal, else 0."""
    vote -= INT64_END  # so that 64 bits without a sign fit
    least, complement = _least(vote, ~vote)  # gloo takes twice as long for four numbers
    return least + INT64_END if least == ~complement else 0


def device_for_all() -> str:
    """That the default group can reduce on."""
    return "cpu" if "cpu:" in torch.distributed.get_backend_config() else "cuda"


def _least(*values: int) -> List[int]:
    """The least of all ranks for each."""
    distributed = torch.distributed
    tensor = torch.tensor(values, dtype=torch.int64, device=device_for_all())
    distributed.all_reduce(tensor, op=distributed.ReduceOp.MIN)
    return tensor.tolist()


def seed_of(seed: int, step: int, index: int) -> int:
    """A seed for one micro-batch of one step."""
    digest = hashlib.sha256(b"%d %d %d" % (seed, step, index)).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def in_words(indices: Sequence[int]) -> str:
    """Micro-batches in words."""
    if len(indices) > 1 and list(indices) == list(range(indices[0], indices[-1] + 1)):
        return f"{indices[0]} to {indices[-1]}"
    return ", ".join(map(str, indices[:8])) + (", …" if len(indices) > 8 else "") or "none"
