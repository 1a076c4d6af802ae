#!/usr/bin/env python3
"""loops/replicas.py with torchft: a lost replica is left out, with its samples of each step.

    RANK=0 WORLD_SIZE=1 TORCHFT_LIGHTHOUSE=http://… tests/interop/loops/replicas_torchft.py

Each process is a replica. They need a lighthouse, and three of them.
"""
import argparse
import os

import torch
import torch.distributed as dist
import torchft

REPLICAS, MICROBATCHES, ROWS, WIDTH = 3, 12, 4, 16


def batch(step, i):
    generator = torch.Generator().manual_seed(step * MICROBATCHES + i)
    return torch.randn(ROWS, WIDTH, generator=generator)


def main():
    parser = argparse.ArgumentParser(description="Train a model in replicas.")
    parser.add_argument("--steps", type=int, default=20, help="train up to this step")
    steps = parser.parse_args().steps

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    plain = torch.optim.AdamW(model.parameters(), lr=1e-2)
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)

    def state():
        return {"model": model.state_dict(), "optimizer": plain.state_dict()}

    def load(saved):
        model.load_state_dict(saved["model"])
        plain.load_state_dict(saved["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=REPLICAS,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
        replica_id=f"replica{os.environ['RANK']}-",
    )
    model = torchft.DistributedDataParallel(manager, model)
    optimizer = torchft.Optimizer(manager, plain)
    count = MICROBATCHES // REPLICAS
    share = range(int(os.environ["RANK"]) * count, (int(os.environ["RANK"]) + 1) * count)

    while (step := manager.current_step()) < steps:
        optimizer.zero_grad()
        for i in share:
            inputs = batch(step, i)
            loss = (model(inputs) - inputs.mean(1, keepdim=True).sin()).square().mean()
            (loss / count).backward()
            print(f"step {step} micro-batch {i} loss {loss.item():.6f}", flush=True)
        optimizer.step()
    manager.shutdown()


if __name__ == "__main__":
    main()
