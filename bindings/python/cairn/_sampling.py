"""Which samples a DataLoader reads, and in which order: what is left of a pass, in any number of
replicas.

A pass is one iteration over a loader. Its order is the list of samples that one replica alone would
read. Each replica reads every n-th sample (DistributedSampler) or its part of each batch
(accelerate), so after the same number of batches on each of them a prefix of the order is consumed.

Invariants:
 1. A prefix of the order is the whole position. What follows it is dealt out to the replicas there
    are now, by the same rule. So each sample is read once, and with the same global batch step s
    trains on the same samples in any number of replicas.
 2. The order depends on what `start_of` has noted alone: the sampler's epoch and the generators.
 3. In the same replicas nothing is dealt out: the sampler is run again, and its first batches are
    dropped. That needs no knowledge of the sampler.
"""

from __future__ import annotations

import collections
import copy
import itertools
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    Sampler,
)

from . import _plain

SAMPLES = "samples"  # batches of a sampler whose order is known: divisible
BATCHES = "batches"  # batches of a sampler that is not looked into: same replicas only
CONSUMED = "consumed"  # Megatron's samplers, which begin behind a number of samples
STREAM = "stream"  # an iterable dataset: same replicas only


class Shape(NamedTuple):
    """How a loader divides its samples."""

    kind: str
    replicas: int
    replica: int
    batch: int  # samples in a batch of this replica; 0 where that varies
    what: str  # the class and length of the dataset, by which an unchanged script's is found again
    workers: int  # of a stream, whose order depends on them


def index_sampler(loader: Any) -> Any:
    """What gives the indices of each batch, or of each sample where there are no batches."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def _links(loader: Any) -> List[Any]:
    """The index sampler, and what it draws from, down to the sampler that makes the order."""
    links = [index_sampler(loader)]
    while isinstance(links[-1], BatchSampler):
        inner = getattr(links[-1], "batch_sampler", None)
        links.append(links[-1].sampler if inner is None else inner)
    return links


def _is_shard(link: Any) -> bool:
    """accelerate's BatchSamplerShard."""
    return (
        type(link).__name__ == "BatchSamplerShard"
        and type(link).__module__.partition(".")[0] == "accelerate"
    )


def _is_plain_batches(link: Any) -> bool:
    module = type(link).__module__.partition(".")[0]
    return type(link).__name__ == "BatchSampler" and module in ("torch", "torchdata")


def is_consumed(sampler: Any) -> bool:
    """One of Megatron's."""
    names = ("consumed_samples", "micro_batch_times_data_parallel_size", "data_parallel_rank")
    return all(hasattr(sampler, name) for name in names)


def consumed_by_batch(sampler: Any) -> int:
    """Samples that all replicas together consume with one batch of each."""
    count: int = sampler.micro_batch_times_data_parallel_size
    micro_batches = getattr(sampler, "_num_micro_batches", None)  # in each of its batches
    return count * (micro_batches or getattr(sampler, "num_micro_batches", 1))


def consumed_order(sampler: Any) -> Optional[List[int]]:
    """What the order of a sampler of Megatron's depends on, if it shuffles: the samples of a pass,
    and those of them that it draws."""
    if not hasattr(sampler, "data_sharding"):
        return None
    total, micro = int(sampler.total_samples), int(sampler.micro_batch_size)
    return [
        total - total % int(sampler.micro_batch_times_data_parallel_size),
        total - total % micro,
    ]


def shape_of(loader: Any) -> Shape:
    dataset = loader.dataset
    try:
        length = str(len(dataset))
    except (TypeError, NotImplementedError):
        length = "?"
    kind = type(dataset)
    what = f"{kind.__module__}.{kind.__qualname__}[{length}]"
    if isinstance(dataset, IterableDataset):
        return Shape(STREAM, 1, 0, loader.batch_size or 1, what, loader.num_workers)
    links = _links(loader)
    first, last = links[0], links[-1]
    if is_consumed(first):
        replicas = first.micro_batch_times_data_parallel_size // first.micro_batch_size
        return Shape(CONSUMED, replicas, first.data_parallel_rank, first.micro_batch_size, what, 0)
    shards = [link for link in links[:-1] if _is_shard(link)]
    batches = [link for link in links[:-1] if _is_plain_batches(link)]
    replicas, replica, batch = 1, 0, batches[0].batch_size if batches else 1
    if isinstance(last, DistributedSampler):
        replicas, replica = last.num_replicas, last.rank
    if shards:
        replicas, replica = shards[0].num_processes, shards[0].process_index
        batch = batch // replicas if shards[0].split_batches else batch
    known = len(shards) + len(batches) == len(links) - 1 and len(shards) <= 1 and len(batches) <= 1
    if loader.batch_sampler is not None and not batches:
        known = False
    if not known or (shards and isinstance(last, DistributedSampler) and last.num_replicas > 1):
        return Shape(BATCHES, 1, 0, 0, what, 0)
    return Shape(SAMPLES, replicas, replica, batch, what, 0)


# ---- what an order depends on ----


def _generators(loader: Any) -> List[Any]:
    """The script's own generators that a pass draws from, each once."""
    held = [loader.generator, *(getattr(link, "generator", None) for link in _links(loader))]
    found = [each for each in held if isinstance(each, torch.Generator)]
    return list({id(each): each for each in found}.values())


def epoch_of(loader: Any) -> Optional[int]:
    """The epoch that the script, or the loader itself, has set for the pass that begins."""
    for carrier in (_links(loader)[-1], loader.dataset):
        epoch = getattr(carrier, "epoch", None)
        if hasattr(carrier, "set_epoch") and isinstance(epoch, int):
            return epoch
    return None


def set_epoch(loader: Any, epoch: int) -> None:
    """Sets what epoch_of gives."""
    for carrier in (_links(loader)[-1], loader.dataset):
        if hasattr(carrier, "set_epoch") and isinstance(getattr(carrier, "epoch", None), int):
            carrier.set_epoch(epoch)
            return


def start_of(loader: Any, shape: Shape) -> Dict[str, Any]:
    """What the order of the pass that begins now depends on: plain data."""
    start: Dict[str, Any] = {
        "epoch": epoch_of(loader),
        "generators": [each.get_state() for each in _generators(loader)],
    }
    if shape.kind == CONSUMED:
        start["consumed"] = index_sampler(loader).consumed_samples
        start["order"] = consumed_order(index_sampler(loader))
        return start
    last = _links(loader)[-1]
    if isinstance(last, (DistributedSampler, SequentialSampler)):
        return start
    if type(last).__module__.startswith("torch.utils.data"):
        start["random"] = {"cpu": torch.get_rng_state()}
    else:  # another sampler may draw from any generator
        start["random"] = _plain.random_state()
    return start


class Again:
    """While it is open the generators and the epoch are those with which a pass began. The script's
    own generators stay where the pass leaves them; global generators go back. A pass that is new
    (start is None) has only its epoch set."""

    def __init__(
        self, loader: Any, start: Optional[Mapping[str, Any]], epoch: Optional[int]
    ) -> None:
        self._loader, self._epoch = loader, epoch
        self._is_new = start is None
        self._generators = (start or {}).get("generators", ())
        self._random = (start or {}).get("random")
        self._before: Dict[str, Any] = {}
        self._epoch_before: Optional[int] = None

    def open(self) -> None:
        for each, state in zip(_generators(self._loader), self._generators):
            each.set_state(state)
        self._generators = ()  # where it is opened again, they go on
        self._before = _plain.random_state()
        if self._random is not None:
            _plain.set_random_state({**self._before, **self._random})
        self._epoch_before = epoch_of(self._loader)
        if self._epoch is not None:
            set_epoch(self._loader, self._epoch)

    def close(self) -> None:
        if self._random is not None:
            self._random = _plain.random_state()
        # without a state of its own, too: what the loader draws for its workers is drawn already
        if not self._is_new:
            _plain.set_random_state(self._before)
        # a stream reads its epoch when its first sample is asked for, in workers, too
        if not isinstance(self._loader.dataset, IterableDataset):
            self.put_epoch_back()

    def put_epoch_back(self) -> None:
        """The pass has ended, or reads its epoch no more."""
        if self._epoch is not None and self._epoch_before is not None:
            set_epoch(self._loader, self._epoch_before)


# ---- what is left of a pass ----


def begun(indices: Iterator[Any]) -> Iterator[Any]:
    """The iterator, which has begun: most samplers draw from generators when first asked."""
    first = list(itertools.islice(indices, 1))
    return itertools.chain(first, indices)


def without(indices: Iterator[Any], count: int) -> Iterator[Any]:
    """Behind the first `count` of them."""
    next(itertools.islice(indices, count, count), None)
    return begun(indices)


def _order(sampler: Any, replicas: int, replica: int) -> List[Any]:
    """What one replica alone would read. ValueError where the sampler's replicas do not read every
    n-th sample."""
    if not isinstance(sampler, DistributedSampler):
        return list(sampler)
    alone = copy.copy(sampler)
    alone.num_replicas, alone.rank = 1, 0
    alone.num_samples = alone.total_size = len(sampler.dataset)  # type: ignore[arg-type]
    order = list(alone)
    own, expected = list(sampler), order[replica::replicas]
    shorter = min(len(own), len(expected))
    if own[:shorter] != expected[:shorter] or abs(len(own) - len(expected)) > 1:
        raise ValueError(f"the replicas of a {type(sampler).__name__} do not take turns")
    return order


class _Listed(Sampler):  # type: ignore[type-arg]
    """Samples that are known."""

    def __init__(self, samples: List[Any]) -> None:
        self._samples = samples

    def __iter__(self) -> Iterator[Any]:
        return iter(self._samples)

    def __len__(self) -> int:
        return len(self._samples)


def run_to_its_end(loader: Any, seeds: bool) -> None:
    """Draws from the generators what a whole pass draws. Seeds: also the seed for workers."""
    indices = iter(index_sampler(loader))
    if seeds:
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
    if loader.num_workers:  # whose iterator asks for one twice
        indices = iter(index_sampler(loader))
    collections.deque(indices, maxlen=0)


def divided(loader: Any, shape: Shape, prefix: int) -> List[Any]:
    """What the index sampler of this replica gives behind the first `prefix` samples of the order.
    Where the rest is not a multiple of the replicas, its first samples fill it up, or its last
    samples are left out, as torch's sampler does it. ValueError where the sampler cannot be
    divided."""
    links = _links(loader)
    last = links[-1]
    if isinstance(last, SequentialSampler):
        order: Any = range(len(last))
        rest: Any = range(min(prefix, len(last)), len(last))
    else:
        order = _order(last, shape.replicas, shape.replica)
        rest = order[prefix:]
    if isinstance(last, DistributedSampler):
        odd = len(rest) % shape.replicas
        if odd and last.drop_last:
            rest = rest[:-odd]
        elif odd:
            rest = rest + list(itertools.islice(itertools.cycle(order), shape.replicas - odd))
        rest = rest[shape.replica :: shape.replicas]
    inner: Any = _Listed(rest)
    for link in reversed(links[:-1]):
        inner, former = copy.copy(link), inner
        setattr(inner, "batch_sampler" if _is_shard(link) else "sampler", former)
    return list(inner)
