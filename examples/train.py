#!/usr/bin/env python3
"""A small PyTorch trainer for `cairn run`: a regression that needs a few seconds on a CPU.

    cairn run -- python3 examples/train.py --steps 100
    cairn run --resume -- python3 examples/train.py --steps 200    # goes on after step 100

Without `cairn run` it trains unprotected. Two lines are Cairn's: `import cairn`, which `cairn run`
makes possible, and `cairn.attach`, which makes the loop go on at its own step.
"""
import argparse

import torch

try:
    import cairn
except ImportError:  # started without `cairn run`
    cairn = None


def main():
    parser = argparse.ArgumentParser(description="Train a small model.")
    parser.add_argument("--steps", type=int, default=100, help="train up to this step")
    steps = parser.parse_args().steps

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = cairn.attach(model, optimizer).step if cairn else 0

    for step in range(first, steps):
        batch = torch.randn(32, 64)
        loss = (model(batch) - batch.sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == first or (step + 1) % 20 == 0:
            print(f"step {step + 1} of {steps}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
