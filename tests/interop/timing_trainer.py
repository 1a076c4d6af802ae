"""The trainer of test_timing.py: collectives of every kind on two ranks, then what they gave, then
a wait until it is killed.

Prints `result NAME VALUE` for each, `error TYPE TEXT` of one that must fail, `cost NS` of one small
all_reduce within a group of this rank alone, and `ready`.
"""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import cairn

RANK = int(os.environ["RANK"])


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    own = [dist.new_group([rank]) for rank in range(2)][RANK]
    t = torch.arange(6.0) + RANK

    def show(name, *values):
        print("result", name, *(each.tolist() for each in values), flush=True)

    cairn.note_work(1000 + RANK)
    dist.all_reduce(t)
    show("all_reduce", t)
    dist.broadcast(t, 1)
    show("broadcast", t)
    parts = [torch.empty(6), torch.empty(6)]
    work = dist.all_gather(parts, t + RANK, async_op=True)
    work.wait()
    show("all_gather", *parts)
    out = torch.empty(3)
    dist.reduce_scatter(out, [t[:3].clone(), t[3:].clone()])
    show("reduce_scatter", out)
    dist.all_to_all_single(parts[0], t * (RANK + 1))
    show("all_to_all", parts[0])
    if RANK == 0:
        dist.send(t[:2].clone(), 1)
    else:
        dist.recv(parts[1][:2], 0)
        show("recv", parts[1][:2])
    dist.barrier()
    with torch.inference_mode():
        show(
            "functional",
            functional.all_reduce(torch.ones(5, dtype=torch.bfloat16), "sum", dist.group.WORLD) + 0,
        )
    try:
        dist.all_reduce(torch.ones(2, dtype=torch.bool), op=dist.ReduceOp.AVG)
    except Exception as error:
        print("error", type(error).__name__, str(error).splitlines()[0], flush=True)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.ones(2, 8) * (RANK + 1)).square().sum().backward()
    optimizer.step()
    show("ddp", model.module.weight.sum())
    dist.all_reduce(t, group=own)
    dist.barrier()
    best = None
    for _ in range(20):
        begin = time.perf_counter_ns()
        for _ in range(50):
            dist.all_reduce(t, group=own)
        each = (time.perf_counter_ns() - begin) // 50
        best = each if best is None else min(best, each)
    print("cost", best, flush=True)
    print("ready", flush=True)
    if "stay" in sys.argv:
        time.sleep(60)
    dist.destroy_process_group()


main()
