"""The trainer of test_torch_share.py for streams that can only be read in order: ranks under
DistributedDataParallel over gloo, or one process, that deal a stream of numbers.

    deal_trainer.py KIND STEPS MICROBATCHES EPOCH

Prints `item STEP I ITEM` for each micro-batch. KIND: "iterator", of all numbers from 0 on, which
the script itself sets to where it resumes; "stateful", a loader of EPOCH numbers that has a state;
"bad", an iterator of EPOCH numbers and loaders that are refused.
"""
import itertools
import os
import sys

import cairn
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler


class Loader:
    """The numbers below `end`, again and again."""

    def __init__(self, end):
        self.next, self.end = 0, end

    def __iter__(self):
        self.next %= self.end
        while self.next < self.end:
            self.next += 1
            yield self.next - 1

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def refused(function):
    try:
        function()
    except (EOFError, ValueError) as error:
        print("refused", error, flush=True)


def main():
    kind, (steps, count, end) = sys.argv[1], map(int, sys.argv[2:])
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = torch.nn.Linear(4, 1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = Loader(end)
    stateful = {"dataloader": loader} if kind == "stateful" else {}
    job = cairn.attach(model, optimizer, microbatches=count, **stateful)
    stream = {
        "iterator": itertools.count(job.step * count),
        "stateful": loader,
        "bad": iter(range(end)),
    }[kind]
    for step in range(job.step, steps):
        share = job.share()
        try:
            own = share.deal(stream)
        except EOFError as error:
            print("refused", error, flush=True)
            break
        assert share.deal(stream) == own
        for i, item in own:
            print("item", step, i, item, flush=True)
            with share.micro(i):
                (model(torch.full((1, 4), item / 1000)).mean() * share.scale).backward()
        optimizer.step()
        optimizer.zero_grad()
    if kind == "bad":
        data = list(range(end))
        refused(lambda: share.deal(DataLoader(data, sampler=DistributedSampler(data))))
        refused(lambda: share.deal(DataLoader(data, shuffle=True)))
        refused(lambda: share.deal([]))
        same = torch.Generator().manual_seed(5)
        assert len(share.deal(DataLoader(data, shuffle=True, generator=same))) == len(share)
    if dist.is_initialized():
        dist.destroy_process_group()


main()
