"""Ranks of one job that share one GPU, over NCCL: for tests/gpu/run.py, under torchrun.

    ranks.py allreduce --rounds N     prints `allreduce BYTES MEDIAN_US` for some sizes (rank 0)
    ranks.py train                    trains a small model under DDP until it is told to end

NCCL refuses two ranks of one host on one GPU. NCCL_HOSTID makes each rank a host of its own, so
that they talk over sockets on loopback.

`train` prints `pid PID RANK` at the beginning and `step N MS` after each update. SIGUSR2 makes the
rank compute SLOWER times as long in each step from the next one on, and again as long as before.
"""

import argparse
import os
import signal
import statistics
import time

os.environ["NCCL_HOSTID"] = f"rank{os.environ['RANK']}"
os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
os.environ.setdefault("NCCL_IB_DISABLE", "1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

SIZES = (4 << 10, 1 << 20, 16 << 20)
SLOWER = 3
COMPUTE_MS = 20  # of a step, on the device


def allreduce(rounds):
    for size in SIZES:
        tensor = torch.ones(size // 4, device="cuda")
        took_us = []
        for _ in range(rounds + 5):
            torch.cuda.synchronize()
            begin_s = time.perf_counter()
            dist.all_reduce(tensor)
            torch.cuda.synchronize()
            took_us.append((time.perf_counter() - begin_s) * 1e6)
        if dist.get_rank() == 0:
            print("allreduce", size, f"{statistics.median(took_us[5:]):.1f}", flush=True)


def train():
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))).cuda()
    )
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    a = torch.randn(1024, 1024, device="cuda") / 32
    dist.barrier()
    asked = []
    signal.signal(signal.SIGUSR2, lambda *_: asked.append(True))
    pace_s = COMPUTE_MS / 1000
    print("pid", os.getpid(), dist.get_rank(), flush=True)
    for step in range(1, 1_000_000):
        if asked:
            asked.clear()
            pace_s = COMPUTE_MS * (SLOWER if pace_s == COMPUTE_MS / 1000 else 1) / 1000
            print("pace", step, flush=True)
        begin_s = time.monotonic()
        loss = model(torch.ones(64, 512, device="cuda")).square().mean()
        while time.monotonic() - begin_s < pace_s:  # ranks share the device: by the clock
            torch.mm(a, a)
            torch.cuda.synchronize()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        print("step", step, f"{(time.monotonic() - begin_s) * 1000:.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("allreduce", "train"))
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    if arguments.what == "allreduce":
        allreduce(arguments.rounds)
    else:
        train()
    dist.destroy_process_group()


main()
