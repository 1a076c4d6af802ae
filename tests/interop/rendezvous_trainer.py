"""The trainer of test_rendezvous.py: a small model under DDP, whose every step is determined by its
number, the rank, the number of ranks and the state before.

    rendezvous_trainer.py STEPS LOG

Each rank appends to LOG one line per update, `update RANK WORLD STEP LOSS STATE SECONDS`: the loss
as a hexadecimal float, a digest of the parameters after it, the clock. If there is a file
LOG.end, the job ends after the update whose number it has. A rank begins with a line
`begins RANK WORLD STEP MASTER_ADDR STATE SECONDS`.
"""

import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import cairn
import forking

forking.become_a_rank()
PAUSE_S = float(os.environ.get("TRAINER_PAUSE_S", "0.05"))


def digest(model):
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()[:16]


def main():
    steps, path = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    # buckets that are not rebuilt after the first step sum in the same order after a resumption
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-2)
    job = cairn.attach(parallel, optimizer)
    with open(path, "a", buffering=1) as log:
        master = os.environ["MASTER_ADDR"]
        log.write(f"begins {rank} {world} {job.step} {master} {digest(model)} {time.time():.3f}\n")
        for step in range(job.step, steps):
            if os.path.exists(path + ".end") and step >= int(open(path + ".end").read()):
                break
            generator = torch.Generator().manual_seed(1000 * step + rank)
            inputs = torch.randn(16, 32, generator=generator)
            loss = F.cross_entropy(parallel(inputs), torch.arange(16) % 8)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            log.write(
                f"update {rank} {world} {step + 1} {loss.item().hex()} {digest(model)} "
                f"{time.time():.3f}\n"
            )
            time.sleep(PAUSE_S)
    dist.destroy_process_group()


main()
