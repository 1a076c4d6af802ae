"""The trainer of test_torch_share.py: a small model in float64 under DistributedDataParallel over
gloo, on an emulated device, whose ranks ask for their share of each step.

    share_trainer.py KIND STEPS MICRO_MS [SLOW_RANK FACTOR FROM TO]

Each micro-batch takes MICRO_MS of a clock, which is the device, and FACTOR times as long on the
slow rank from step FROM to step TO. Prints `sample STEP I LOSS` for each micro-batch and `step STEP
SHARES` after each update. At the end: `ask_us …`, how long each question took after a barrier,
`bare_us …`, the same for a bare all-reduce of two numbers, and `reductions N`, how many of the
former there were in the questions.
KIND: "asks" once in each step; "deals" a stream of all micro-batches; "twice"; "never"; "ignores"
its share, and computes half of all; "sharded" by FSDP2, with shares that change by OFFERED;
"scaled" by a gradient scaler, or "sharded-scaled", with the same offers, one overflow in step
OVERFLOW, and a line `scale STEP SCALE`; "refused" prints what `attach` raises for jobs that cannot
be shared.
"""
import sys
import time

import cairn
import torch
import torch.distributed as dist
from cairn import _lib
from torch.distributed.fsdp import fully_shard

MICROBATCHES, ROWS, WIDTH = 16, 4, 16
OFFERED = {3: [12, 4], 5: [1, 15], 7: [15, 1], 9: [8, 8]}  # by update
OVERFLOW = 4


def batch(step, i):
    generator = torch.Generator().manual_seed(step * MICROBATCHES + i)
    return torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=generator)


def offer_by_script():
    """The ranks are offered these shares in the agents' place, by the votes that they have cast."""
    votes = []

    def vote(_client, number, _shares):
        votes.append(number + 1)
        return number + 1

    def take(_client, agreed, _replicas):
        shares = OFFERED.get(len(votes) - 1)
        return (agreed, shares) if agreed and shares else None

    _lib.Client.vote, _lib.Client.take_shares = vote, take


def main():
    kind, steps, micro_ms = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    slow_rank, factor, first, last = map(float, sys.argv[4:] or [-1, 1, 0, 0])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.Tanh(),
        torch.nn.BatchNorm1d(WIDTH, track_running_stats=False),
        torch.nn.Dropout(0.25),
        torch.nn.Linear(WIDTH, 1),
    ).double()
    if kind.startswith("sharded"):
        for layer in model:
            if any(True for _ in layer.parameters()):
                fully_shard(layer)
        model = fully_shard(model)
    else:
        model = torch.nn.parallel.DistributedDataParallel(model)
    scales = kind.endswith("scaled")
    if kind == "sharded" or scales:
        offer_by_script()
    scaler = torch.amp.GradScaler("cpu", 2.0**12, growth_interval=4, enabled=scales)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    if kind == "refused":
        for options in (
            {"model": model.module, "microbatches": 4},
            {"model": model, "microbatches": world - 1},
            {"model": model, "microbatches": 4, "rng": "other"},
        ):
            try:
                cairn.attach(optimizer=optimizer, **options)
            except (TypeError, ValueError) as error:
                print("refused", error, flush=True)
        try:
            cairn.attach(model, optimizer).share()
        except RuntimeError as error:
            print("refused", error, flush=True)
        return
    torch.manual_seed(100 + rank)  # rank 0's counts
    job = cairn.attach(model, optimizer, microbatches=MICROBATCHES, rng="counter")
    taken_us = {"ask_us": [], "bare_us": []}
    reduce, reductions = dist.all_reduce, []

    def counted(*arguments, **options):
        reductions.append(True)
        return reduce(*arguments, **options)

    dist.all_reduce = counted

    def timed(name, function):
        dist.barrier()
        begin_ns = time.perf_counter_ns()
        result = function()
        taken_us[name].append(round((time.perf_counter_ns() - begin_ns) / 1000))
        return result

    def compute(step, i, scale, inputs=None):
        begin_s = time.monotonic()
        loss = model(batch(step, i) if inputs is None else inputs).square().mean()
        print("sample", step, i, loss.item().hex(), flush=True)
        slow = rank == slow_rank and first <= step <= last
        end_s = begin_s + micro_ms / 1000 * (factor if slow else 1)
        time.sleep(max(0, end_s - time.monotonic()))
        scaler.scale(loss * scale).backward()

    def overflow():
        """In one gradient. Of a sharded one only rank 0 has it."""
        grad = next(model.parameters()).grad
        local = grad.to_local() if kind.startswith("sharded") else grad
        if rank == 0 or local is grad:
            local[0, 0] = float("inf")

    stream = (batch(step, i) for step in range(steps) for i in range(MICROBATCHES))
    half = range(rank * MICROBATCHES // world, (rank + 1) * MICROBATCHES // world)
    for step in range(steps):
        if kind == "never":
            counts = ()
            for i in half:
                compute(step, i, world / MICROBATCHES)
        else:
            timed("bare_us", lambda: reduce(torch.tensor([rank, -rank]), dist.ReduceOp.MIN))
            share = timed("ask_us", job.share)
            if kind == "twice":
                assert list(job.share()) == list(share)
            counts = share.counts
            for i, inputs in share.deal(stream) if kind == "deals" else ():
                with share.micro(i):
                    compute(step, i, share.scale, inputs)
            for i in half if kind == "ignores" else () if kind == "deals" else share:
                if kind == "ignores":
                    compute(step, i, world / MICROBATCHES)
                    continue
                with share.micro(i):
                    compute(step, i, share.scale)
        if scales and step == OVERFLOW:
            overflow()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        print("step", step, *counts, flush=True)
        print("scale", step, scaler.get_scale(), flush=True)
    for name, values in taken_us.items():
        print(name, *values, flush=True)
    print("reductions", len(reductions), flush=True)
    dist.destroy_process_group()


main()
