#!/usr/bin/env python3
"""A small model in replicas, with nothing that helps when one is slow or lost.

    torchrun --nproc-per-node 2 tests/interop/loops/replicas.py --steps 20
"""
import argparse

import torch
import torch.distributed as dist

MICROBATCHES, ROWS, WIDTH = 12, 4, 16


def batch(step, i):
    generator = torch.Generator().manual_seed(step * MICROBATCHES + i)
    return torch.randn(ROWS, WIDTH, generator=generator)


def main():
    parser = argparse.ArgumentParser(description="Train a model in replicas.")
    parser.add_argument("--steps", type=int, default=20, help="train up to this step")
    steps = parser.parse_args().steps

    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    count = MICROBATCHES // dist.get_world_size()
    share = range(dist.get_rank() * count, (dist.get_rank() + 1) * count)

    for step in range(steps):
        for i in share:
            inputs = batch(step, i)
            loss = (model(inputs) - inputs.mean(1, keepdim=True).sin()).square().mean()
            (loss / count).backward()
            print(f"step {step} micro-batch {i} loss {loss.item():.6f}", flush=True)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
