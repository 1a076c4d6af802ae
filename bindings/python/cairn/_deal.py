"""Deals a stream of micro-batches that can only be read in order: every rank reads all of it, and
keeps its own.

Invariants:
 1. A step takes exactly as many micro-batches from the stream as the job computes in a step, on
    every rank, also on one with a small share. So the position in the stream depends on the step
    alone: it stays exact where shares change, and after a restore into another number of ranks.
 2. All of a step's micro-batches are read before any is computed: where the stream ends, it ends
    for all ranks at the same place, and none computes a part of a step.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Tuple

from torch.utils.data import DistributedSampler, RandomSampler


class Dealer:
    """The streams that a job reads."""

    def __init__(self) -> None:
        self._streams: Dict[int, Tuple[Any, Iterator[Any]]] = {}

    def deal(self, loader: Any, own: range, count: int, is_alone: bool) -> List[Tuple[int, Any]]:
        """(index, micro-batch) of this rank's share `own` of the next `count`. An iterator is read
        on; any other iterable again from its start where it ends. EOFError where that is not
        possible. ValueError for a loader that would give each rank another stream."""
        known = self._streams.get(id(loader))
        if known is None:
            if not is_alone:
                _refuse_own_streams(loader)
            known = self._streams[id(loader)] = (loader, iter(loader))
        stream = known[1]
        kept: List[Tuple[int, Any]] = []
        read, starts = 0, 0
        while read < count:
            try:
                item = next(stream)
            except StopIteration:
                starts += 1  # a loader that was restored at its end gives nothing once
                if stream is loader or starts > 2:
                    raise EOFError(
                        f"share.deal: the stream has ended after {read} of the {count} "
                        "micro-batches of a step; end the loop there, or give a loader that can "
                        "be read again from its start"
                    ) from None
                stream = iter(loader)
                self._streams[id(loader)] = (loader, stream)
                continue
            starts = 0
            if read in own:
                kept.append((read, item))
            read += 1
        return kept


def _refuse_own_streams(loader: Any) -> None:
    sampler = getattr(loader, "sampler", None)
    if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
        raise ValueError(
            "share.deal: the loader's DistributedSampler gives each rank other samples; leave it "
            "out: all ranks must read the same stream"
        )
    if isinstance(sampler, RandomSampler) and sampler.generator is None:
        raise ValueError(
            "share.deal: the loader shuffles by torch's global generator, which differs between "
            "ranks; give the DataLoader a generator with the same seed on all ranks"
        )
