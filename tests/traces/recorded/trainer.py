"""The trainer of recorded jobs (record.py): a small model under DistributedDataParallel over gloo.

The device is mostly a clock: a step computes SLICES times for SLEEP_S by the clock and then for
SPIN_S of processor time. So ranks can share processors and be much alike, while a program that
takes processor time from one of them, or stops it, makes it slow as it would a real one.

Environment: RECORD_GROUP is the number of ranks that meet in the middle of a step (tensor
parallelism; 1: none), RECORD_STEPS how many steps to make, RECORD_LOADER "RANK:MS:FROM:TO" whose
loader is slow in which steps, RECORD_CHECKPOINT "EVERY:MS:all" or "EVERY:MS:first" who saves how
often, RECORD_FILE where.
Prints `pid N`, then `step N MS` after each update, with how long it has computed by the clock, and
`stays`; it then waits for its end.
"""

import os
import time

import torch
import torch.distributed as dist

SLICES, SLEEP_S, SPIN_S = 6, 0.0095, 0.0005


def compute(slices: int) -> None:
    for _ in range(slices):
        time.sleep(SLEEP_S)
        until_s = time.thread_time() + SPIN_S
        while time.thread_time() < until_s:
            pass


def load(rank: int, step: int) -> None:
    words = os.environ.get("RECORD_LOADER", "-1:0:0:0").split(":")
    slow, wait_ms, first, last = map(int, words)
    if rank == slow and first <= step < last:
        time.sleep(wait_ms / 1000)


def save(rank: int, step: int, model: torch.nn.Module) -> None:
    every, wait_ms, who = os.environ.get("RECORD_CHECKPOINT", "0:0:all").split(":")
    if int(every) and step % int(every) == 0 and (who == "all" or rank == 0):
        torch.save(model.state_dict(), os.environ["RECORD_FILE"] + str(rank))
        time.sleep(int(wait_ms) / 1000)  # a store that is far away


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    tensor = int(os.environ["RECORD_GROUP"])
    rows = [list(range(first, first + tensor)) for first in range(0, world, tensor)]
    columns = [list(range(first, world, tensor)) for first in range(tensor)]
    mine = {}
    for name, groups in (("tp", rows), ("dp", columns)):
        for ranks in groups:
            group = dist.new_group(ranks) if 1 < len(ranks) else None
            if rank in ranks:
                mine[name] = group
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Linear(64, 64), process_group=mine["dp"]
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    print("pid", os.getpid(), flush=True)
    for step in range(1, int(os.environ["RECORD_STEPS"]) + 1):
        begin_s = time.monotonic()
        load(rank, step)
        compute(SLICES // 2)
        took_s = time.monotonic() - begin_s
        if mine["tp"] is not None:
            dist.all_reduce(torch.ones(4096), group=mine["tp"])
        begin_s = time.monotonic()
        compute(SLICES // 2)
        save(rank, step, model)
        took_s += time.monotonic() - begin_s
        model(torch.full((4, 64), rank + 1.0)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step", step, round(took_s * 1000, 1), flush=True)
    print("stays", flush=True)
    time.sleep(3600)


main()
