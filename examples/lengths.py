#!/usr/bin/env python3
"""A small PyTorch trainer whose sequences differ in length, shared among the ranks by tokens.

    cairn run -- torchrun --nproc-per-node 2 examples/lengths.py --steps 20

The sequences of a step are packed into micro-batches of at most 2,048 tokens. When a rank becomes
slow, and the agents may act (docs/REPLANNING.md), it gets fewer tokens. The gradient is the mean
over all tokens of the step, computed by any rank.
"""
import argparse
import random

import cairn
import torch
import torch.distributed as dist

SEQUENCES, MAX_TOKENS, WIDTH = 64, 2048, 32


def lengths_of(step):
    """The tokens of each sequence of the step, the same on every rank: a long tail."""
    draw = random.Random(step)
    return [min(MAX_TOKENS, max(1, int(draw.lognormvariate(5, 1)))) for _ in range(SEQUENCES)]


def sequence(step, i, length):
    generator = torch.Generator().manual_seed(step * SEQUENCES + i)
    return torch.randn(length, WIDTH, generator=generator)


def main():
    parser = argparse.ArgumentParser(description="Train on sequences of different length.")
    parser.add_argument("--steps", type=int, default=20, help="train up to this step")
    steps = parser.parse_args().steps

    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    job = cairn.attach(model, optimizer, microbatches=64 * dist.get_world_size())

    for step in range(job.step, steps):
        lengths = lengths_of(step)
        share = job.share()
        tokens = 0
        for micro in share.assign(lengths, max_tokens=MAX_TOKENS):
            with share.micro(micro):
                packed = torch.cat([sequence(step, i, lengths[i]) for i in micro.sequences])
                loss = (model(packed) - packed.mean(1, keepdim=True).sin()).square().mean()
                (loss * micro.scale).backward()
            tokens += micro.tokens
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 10 == 0:
            print(
                f"step {step + 1} of {steps}: rank {dist.get_rank()} computed {tokens} of "
                f"{sum(lengths)} tokens",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
