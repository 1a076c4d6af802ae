"""The trainer of test_torch_lengths.py: a small model in float64 under DistributedDataParallel over
gloo, on an emulated device, that trains on sequences of different length.

    lengths_trainer.py KIND STEPS SEQUENCES US_PER_TOKEN [SLOW_RANK FACTOR FROM TO [SETTLED]]

Each micro-batch takes US_PER_TOKEN of a clock, which is the device, for each of its tokens, and
FACTOR times as long on the slow rank from step FROM to step TO. With SETTLED, it ends once it has
made so many steps by shares that differ from the first step's. Prints `sample STEP I LOSS` for
each sequence, with its own loss, and after each update `step STEP DEVICE_MS WALL_MS SHARES`. At the
end: `state HEX …`, the parameters, and `assign_us …`, what each assignment took of this thread.
KIND: "assigns"; "single", one process computes each sequence by itself, without Cairn; "differs",
rank 1 has two lengths exchanged; "bad", first asks for what cannot be assigned.
"""
import random
import sys
import time

import torch
import torch.distributed as dist

WIDTH, MICROBATCHES, MAX_TOKENS, LONGEST = 8, 128, 1024, 1024


def lengths_of(step, count):
    """A long tail: the median is 90 tokens, the longest of a step is near 1,000."""
    draw = random.Random(1000 + step)
    return [min(LONGEST, max(1, int(draw.lognormvariate(4.5, 1)))) for _ in range(count)]


def sequence(step, i, length):
    generator = torch.Generator().manual_seed(step * 100000 + i)
    return torch.randn(length, WIDTH, dtype=torch.float64, generator=generator)


def made(rank):
    torch.set_num_threads(1)
    torch.manual_seed(7)
    layers = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1)
    return torch.nn.Sequential(*layers).double()


def report(model):
    values = [x for each in model.parameters() for x in each.detach().flatten().tolist()]
    print("state", *[x.hex() for x in values], flush=True)


def losses(model, step, indices, lengths):
    """The loss of each token of a packed micro-batch."""
    packed = torch.cat([sequence(step, i, lengths[i]) for i in indices])
    each = model(packed).square().flatten()
    for i, own in zip(indices, each.split([lengths[i] for i in indices])):
        print("sample", step, i, own.mean().item().hex(), flush=True)
    return each


def single(steps, count):
    model = made(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(steps):
        lengths = lengths_of(step, count)
        for i, length in enumerate(lengths):
            (losses(model, step, [i], lengths).sum() / sum(lengths)).backward()
        optimizer.step()
        optimizer.zero_grad()
    report(model)


def refused(share, arguments):
    try:
        share.assign(*arguments)
    except (ValueError, RuntimeError) as error:
        print("refused", error, flush=True)


def main():
    kind, steps, count, us_per_token = sys.argv[1], *map(int, sys.argv[2:4]), float(sys.argv[4])
    slow_rank, factor, first, last = map(float, sys.argv[5:9] or [-1, 1, 0, 0])
    settled = int(sys.argv[9]) if len(sys.argv) > 9 else 0
    if kind == "single":
        single(steps, count)
        return
    import cairn

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = torch.nn.parallel.DistributedDataParallel(made(rank))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    job = cairn.attach(model, optimizer, microbatches=MICROBATCHES)
    assign_us, counts = [], []
    for step in range(steps):
        begin_ns, device_ms = time.monotonic_ns(), 0.0
        lengths = lengths_of(step, count)
        share = job.share()
        if kind == "bad" and step == 1:
            for bad in ([], [5, 0], [5, -3], [5, 2.5], [5, MAX_TOKENS + 1]):
                refused(share, (bad, MAX_TOKENS))
            refused(share, (lengths, 0))
            refused(share, (lengths, MAX_TOKENS, (0, 0, 0)))
        if kind == "differs" and rank == 1 and step == 2:
            lengths = lengths[::-1]
        begin_us = time.thread_time_ns() // 1000
        micros = share.assign(torch.tensor(lengths), MAX_TOKENS)
        assign_us.append(time.thread_time_ns() // 1000 - begin_us)
        for micro in micros:
            tokens = sum(lengths[i] for i in micro.sequences)
            assert tokens <= MAX_TOKENS
            begin_s = time.monotonic()
            with share.micro(micro):
                if micro.tokens:
                    loss = losses(model, step, micro.sequences, lengths).mean()
                else:
                    loss = model(sequence(step, micro.sequences[0], tokens)).mean()
                slow = rank == slow_rank and first <= step <= last
                micro_ms = tokens * us_per_token / 1000 * (factor if slow else 1)
                device_ms += micro_ms
                time.sleep(max(0, begin_s + micro_ms / 1000 - time.monotonic()))
                (loss * micro.scale).backward()
        if kind == "bad" and step == 1:
            refused(share, (lengths, MAX_TOKENS))
        optimizer.step()
        optimizer.zero_grad()
        wall_ms = (time.monotonic_ns() - begin_ns) / 1e6
        print("step", step, device_ms, wall_ms, *share.counts, flush=True)
        counts.append(tuple(share.counts))
        if settled and counts[-1] != counts[0] and len(set(counts[-settled:])) == 1:
            break
    report(model)
    print("assign_us", *assign_us, flush=True)
    dist.destroy_process_group()


main()
