"""The ranks of the job: which one this is, and what they tell each other through the store of
torch.distributed, without collectives."""

from __future__ import annotations

import datetime
import os
from typing import List, NamedTuple, Optional

import torch


class Place(NamedTuple):
    rank: int
    world: int
    local_ranks: int


EXCHANGE_TIMEOUT = datetime.timedelta(seconds=30)

# a rank may wait as long for the restore of its agents
RESUME_TIMEOUT = datetime.timedelta(minutes=15)

LOCAL_RANKS = (
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_NTASKS_PER_NODE",
)


def place() -> Place:
    """Rank, world and ranks on this node, of torch.distributed where it is initialised, else of the
    environment (torchrun)."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        rank, world = distributed.get_rank(), distributed.get_world_size()
    else:
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    told = [os.environ[name] for name in LOCAL_RANKS if os.environ.get(name, "").isdigit()]
    return Place(rank, world, min(world, int(told[0]) if told else world))


def has_store() -> bool:
    """The ranks have a store of torch.distributed in common."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def publish(key: str, value: bytes, here: Place) -> None:
    """Gives the other ranks what they may `gather` under the key, instead of what this rank gave
    before. Waits for nobody."""
    from torch.distributed.distributed_c10d import _get_default_store

    _get_default_store().set(f"cairn/{key}/{here.rank}", value.decode())


def gather(key: str, here: Place, timeout: datetime.timedelta = EXCHANGE_TIMEOUT) -> List[bytes]:
    """What each rank published under the key last, by rank, without a collective. Waits for each to
    have done so; RuntimeError on timeout."""
    from torch.distributed.distributed_c10d import _get_default_store

    store = _get_default_store()
    keys = [f"cairn/{key}/{rank}" for rank in range(here.world)]
    store.wait(keys, timeout)
    if store.has_extended_api():  # one question for all, where it knows how
        return [bytes(each) for each in store.multi_get(keys)]
    return [store.get(each) for each in keys]


def gather_if_there(key: str, here: Place, wait_s: float) -> Optional[List[bytes]]:
    """What `gather` gives where all ranks have published within so many seconds, which may be 0;
    else None."""
    from torch.distributed.distributed_c10d import _get_default_store

    keys = [f"cairn/{key}/{rank}" for rank in range(here.world)]
    try:
        if wait_s > 0:
            _get_default_store().wait(keys, datetime.timedelta(seconds=wait_s))
        return gather(key, here) if _get_default_store().check(keys) else None
    except RuntimeError:
        return None


def exchange(key: str, value: bytes, here: Place) -> List[bytes]:
    """Publishes, and gathers what the others did."""
    publish(key, value, here)
    return gather(key, here)


def meet(key: str, here: Place, timeout_s: float) -> None:
    """Says that this rank has come, and waits for the others; not without a store, nor longer than
    the timeout."""
    if not has_store():
        return
    from torch.distributed.distributed_c10d import _get_default_store

    try:
        store = _get_default_store()
        store.set(f"cairn/{key}/{here.rank}", "")
        if timeout_s > 0:
            store.wait(
                [f"cairn/{key}/{rank}" for rank in range(here.world)],
                datetime.timedelta(seconds=timeout_s),
            )
    # the time is over, or the rank that has the store left, which it does after all others have
    # come
    except RuntimeError:
        return
