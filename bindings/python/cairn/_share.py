"""Which micro-batches of a step each rank computes, and how that changes while training goes on.

The agents offer other shares, and the ranks decide (docs/REPLANNING.md): at each step boundary all
ranks vote in one all-reduce over the default group, and the shares change where all votes are
equal. An agent that is dead or late can only keep them as they are.

Invariants:
 1. All ranks enter the same all-reduces. Whether they vote at a boundary depends only on what an
    earlier all-reduce gave to all of them, and on how often they have asked after an update.
 2. The shares of a step partition 0 … microbatches - 1, in the order of the ranks, and each rank
    has at least one micro-batch.
 3. A script that does not compute its share keeps it: this rank votes for nothing any more.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

import torch

from . import _lib, _timing
from ._modules import parallel_of

# Once in so many steps the ranks tell each other whether their agents may offer anything.
REVIEW_STEPS = 128
INT64_END = 1 << 63
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
        before = sum(self.counts[: sharing.rank])
        self._indices = range(before, before + self.counts[sharing.rank])
        self.scale = len(self.counts) / sum(self.counts)
        self.done: List[int] = []

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)

    def __repr__(self) -> str:
        shares = " | ".join(map(str, self.counts))
        return f"<cairn share of step {self.step}: {in_words(self._indices)} of {shares}>"

    def is_computed(self) -> bool:
        """Each micro-batch was, once."""
        return sorted(self.done) == list(self._indices)

    @contextlib.contextmanager
    def micro(self, index: int) -> Iterator[None]:
        """Surrounds forward and backward of one micro-batch."""
        sharing = self._sharing
        self.done.append(index)
        is_last = len(self.done) == len(self)
        with contextlib.ExitStack() as stack:
            if not is_last:
                for each in sharing.parallels:
                    stack.enter_context(each.no_sync())
            if sharing.seed is not None:
                stack.enter_context(torch.random.fork_rng(sharing.devices))
                torch.manual_seed(seed_of(sharing.seed, self.step, index))
            begin_ns = time.monotonic_ns()
            yield
            if sharing.devices:
                _timing.note_work(1)
            else:
                _timing.note_computed(1, begin_ns, is_last)


class Sharing:
    """The shares of all ranks, and the votes on them."""

    def __init__(
        self, models: Sequence[Any], count: int, is_seeding: bool, say: Callable[[str], None]
    ) -> None:
        """ValueError and TypeError for what cannot be shared."""
        distributed = torch.distributed
        is_alone = not (distributed.is_available() and distributed.is_initialized())
        self.rank = 0 if is_alone else distributed.get_rank()
        world = 1 if is_alone else distributed.get_world_size()
        if isinstance(count, bool) or not isinstance(count, int) or count < world:
            raise ValueError(
                f"cairn.attach: microbatches is {count!r}; it must be a number of at least one "
                f"per rank ({world})"
            )
        self.parallels = [] if world == 1 else [_parallel(each, world) for each in models]
        self.shares = [count // world + (rank < count % world) for rank in range(world)]
        kinds = {parameter.device for each in models for parameter in each.parameters()}
        self.devices = [device for device in kinds if device.type == "cuda"]
        self.seed = torch.initial_seed() % INT64_END if is_seeding else None
        self._say = say
        self._number = 0  # of the offer that was taken last
        self._share: Optional[Share] = None
        self._updates = 0  # since the script asked last
        self._asked = 0  # after an update, and at the start
        self._is_voting = self._is_computed = True

    def saw_update(self) -> None:
        """An optimizer has made its step."""
        self._updates += 1
        if self._updates == 2 and self._share is None:
            self._say(NEVER_ASKED)

    def ask(self, client: Optional[_lib.Client], step: Optional[int]) -> Share:
        """The share of the next step. step: updates done; None: the job does not count them."""
        share = self._share
        if share is not None and self._updates == 0:
            if not share.is_computed():
                self._say(ASKED_TWICE)
            if share.done:
                self._share = share = Share(self, share.step)
            return share
        if share is not None and not share.is_computed():
            if self._is_computed:
                done, wanted = in_words(share.done), in_words(list(share))
                self._say(NOT_COMPUTED.format(step=share.step, done=done, share=wanted))
            self._is_computed = False
        if step is None:
            step = share.step + 1 if share is not None else 0
        self._updates = 0
        if len(self.shares) > 1:
            self._decide(client, step)
        self._share = Share(self, step)
        return self._share

    def _decide(self, client: Optional[_lib.Client], step: int) -> None:
        if self._asked % REVIEW_STEPS == 0:
            self._review(client)
        self._asked += 1
        if not self._is_voting:
            return
        vote = client.vote(self._number, self.shares) if client and self._is_computed else 0
        vote -= INT64_END  # so that 64 bits without a sign fit
        least, complement = _least(vote, ~vote)
        agreed = least + INT64_END if least == ~complement else 0
        taken = client.take_shares(agreed, len(self.shares)) if client else None
        if taken is None:
            return
        before, (self._number, self.shares) = self.shares, taken
        if self.rank == 0:
            texts = [" | ".join(map(str, each)) for each in (self.shares, before)]
            self._say(f"from step {step} on: micro-batches {texts[0]} instead of {texts[1]}")

    def _review(self, client: Optional[_lib.Client]) -> None:
        """Agrees on whether votes can lead to anything; at the start, on the seed too."""
        may = client is not None and client.stats()["takes_offers"] != 0
        none, seed = _least(0 if may else 1, (self.seed or 0) if self.rank == 0 else INT64_END - 1)
        self._is_voting = none == 0
        if self.seed is not None:
            self.seed = seed


def _parallel(model: Any, world: int) -> Any:
    parallel = parallel_of(model)
    if parallel is None or parallel.process_group.size() != world:
        raise TypeError(
            f"cairn.attach: microbatches needs a DistributedDataParallel over all {world} ranks, "
            f"and the model is a {type(model).__name__}"
        )
    if any(isinstance(each, torch.nn.SyncBatchNorm) for each in model.modules()):
        raise TypeError(
            "cairn.attach: microbatches cannot be used with SyncBatchNorm: in each micro-batch it "
            "waits for all ranks, which may compute different numbers of them"
        )
    return parallel


def _least(*values: int) -> List[int]:
    """The least of all ranks for each."""
    distributed = torch.distributed
    device = "cpu" if "cpu:" in distributed.get_backend_config() else "cuda"
    tensor = torch.tensor(values, dtype=torch.int64, device=device)
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
