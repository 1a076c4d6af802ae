"""The trainer of test_detection.py: a small model under DistributedDataParallel over gloo, with a
device that computes for a while.

Prints `step N MS` after each update, with how long the step has computed, by the clock; ends when
it is told to. SIGUSR2 makes the rank compute SLOWER times as long in each step from the next one
on, and again as long as before: `pace N` is the step it begins with. The device is a clock, as a
GPU is to the processors: were it a processor, then a machine with other things to do would make all
ranks slower at random, by more than some are made slower here. SIGHUP makes the rank hang in C,
with the interpreter's lock held.
"""
import ctypes
import os
import signal
import time

import torch
import torch.distributed as dist

COMPUTE_S = 0.04  # of a step
SLOWER = 4


def stuck_in_c():
    """Waits in C without giving the interpreter's lock away, for ever."""
    library = ctypes.PyDLL(None)
    while True:
        library.pause()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    asked, stuck = [], []
    signal.signal(signal.SIGUSR2, lambda *_: asked.append(True))
    signal.signal(signal.SIGHUP, lambda *_: stuck.append(True))
    slow = False
    print("pid", os.getpid(), flush=True)
    for step in range(1, 1_000_000):
        if asked:
            asked.clear()
            slow = not slow
            print("pace", step, flush=True)
        begin_s = time.monotonic()
        time.sleep(COMPUTE_S * (SLOWER if slow else 1))
        computed_ms = (time.monotonic() - begin_s) * 1000
        model(torch.full((4, 64), rank + 1.0)).square().mean().backward()
        if stuck:  # maybe before it was seen that the gradients' operation has ended
            stuck_in_c()
        optimizer.step()
        optimizer.zero_grad()
        print("step", step, round(computed_ms), flush=True)


main()
