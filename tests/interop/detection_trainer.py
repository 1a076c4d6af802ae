"""The trainer of test_detection.py: a small model under DistributedDataParallel over gloo. A step computes for a while, and waits.

Prints `step N` after each update; ends when it is told to.
"""
import os
import time

import torch
import torch.distributed as dist

COMPUTE_S, WAIT_S = 0.012, 0.012  # of a step: four ranks fit two processors


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    weights = torch.randn(96, 96)
    print("pid", os.getpid(), flush=True)
    for step in range(1, 1_000_000):
        begin = time.thread_time()
        while time.thread_time() - begin < COMPUTE_S:  # the processor's time: a rank that gets less of it takes longer
            weights @ weights
        time.sleep(WAIT_S)
        model(torch.full((4, 64), rank + 1.0)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step", step, flush=True)


main()
