#!/usr/bin/env python3
"""A small model in replicas whose shares of the micro-batches can change while it trains.

    cairn run -- torchrun --nproc-per-node 2 examples/shares.py --steps 20

When a rank becomes slow, and the agents may act (docs/REPLANNING.md), it computes fewer. The
gradient is the mean over all micro-batches. tests/interop/loops/replicas.py is the same without
Cairn.
"""
import argparse

import cairn
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
    job = cairn.attach(model, optimizer, microbatches=MICROBATCHES)

    for step in range(job.step, steps):
        share = job.share()
        for i in share:
            with share.micro(i):
                inputs = batch(step, i)
                loss = (model(inputs) - inputs.mean(1, keepdim=True).sin()).square().mean()
                (loss * share.scale).backward()
            print(f"step {step} micro-batch {i} loss {loss.item():.6f}", flush=True)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
