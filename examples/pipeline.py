#!/usr/bin/env python3
"""A small model in pipelines of two stages whose layers can move while it trains.

    cairn run -- torchrun --nproc-per-node 4 examples/pipeline.py --steps 20

When a rank becomes slow, and the agents may act (docs/REPLANNING.md), its replica gets fewer
micro-batches, or its stage fewer layers. tests/interop/loops/pipeline.py is the same without Cairn.
"""
import argparse

import cairn
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

LAYERS, STAGES, MICROBATCHES, ROWS, WIDTH = 8, 2, 8, 4, 16


class Stage(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = torch.nn.ModuleDict()
        for number in layers:
            torch.manual_seed(number)
            self.layers[str(number)] = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs):
        for layer in self.layers.values():
            inputs = inputs + torch.tanh(layer(inputs))
        return inputs


def batch(step, i):
    generator = torch.Generator().manual_seed(step * MICROBATCHES + i)
    return torch.randn(ROWS, WIDTH, generator=generator)


def loss_of(output, target):
    return (output - target).square().mean()


def build(placement, old):
    """The modules of this rank by a placement: at the start, and whenever layers move."""
    module = Stage(placement.layers)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)

    def schedule(count):
        stage = PipelineStage(
            module, placement.stage, STAGES, torch.device("cpu"), group=placement.group
        )
        kind = Schedule1F1B if count >= STAGES else ScheduleGPipe
        return kind(stage, count, loss_fn=loss_of, scale_grads=False)

    return cairn.Parts(module, optimizer, schedule)


def main():
    parser = argparse.ArgumentParser(description="Train a model in pipelines.")
    parser.add_argument("--steps", type=int, default=20, help="train up to this step")
    steps = parser.parse_args().steps

    dist.init_process_group("gloo")
    job = cairn.elastic(build, layers=LAYERS, stages=STAGES, microbatches=MICROBATCHES)

    for step in range(job.step, steps):
        share = job.share()
        inputs, losses = torch.cat([batch(step, i) for i in share]), []
        if not job.placement.is_last:
            job.schedule.step(inputs)
        else:
            job.schedule.step(target=inputs.sin(), losses=losses)
        job.reduce_gradients()
        job.parts.optimizer.step()
        job.parts.optimizer.zero_grad()
        for i, loss in zip(share, losses):
            print(f"step {step} micro-batch {i} loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
