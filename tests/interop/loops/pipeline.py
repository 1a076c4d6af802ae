#!/usr/bin/env python3
"""examples/pipeline.py without Cairn: layers stay, and what a lost rank has computed is lost.

    torchrun --nproc-per-node 4 tests/interop/loops/pipeline.py --steps 20
"""
import argparse

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

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


def main():
    parser = argparse.ArgumentParser(description="Train a model in pipelines.")
    parser.add_argument("--steps", type=int, default=20, help="train up to this step")
    steps = parser.parse_args().steps

    dist.init_process_group("gloo")
    replicas = dist.get_world_size() // STAGES
    replica, place = divmod(dist.get_rank(), STAGES)
    pipelines = [dist.new_group(range(r * STAGES, (r + 1) * STAGES)) for r in range(replicas)]
    holders = [dist.new_group(range(s, replicas * STAGES, STAGES)) for s in range(STAGES)]
    module = Stage(range(place * LAYERS // STAGES, (place + 1) * LAYERS // STAGES))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    stage = PipelineStage(module, place, STAGES, torch.device("cpu"), group=pipelines[replica])
    share = range(replica * MICROBATCHES // replicas, (replica + 1) * MICROBATCHES // replicas)
    schedule = Schedule1F1B(stage, len(share), loss_fn=loss_of, scale_grads=False)

    for step in range(steps):
        inputs, losses = torch.cat([batch(step, i) for i in share]), []
        if place < STAGES - 1:
            schedule.step(inputs)
        else:
            schedule.step(target=inputs.sin(), losses=losses)
        for parameter in module.parameters():
            dist.all_reduce(parameter.grad, group=holders[place])
            parameter.grad /= MICROBATCHES
        optimizer.step()
        optimizer.zero_grad()
        for i, loss in zip(share, losses):
            print(f"step {step} micro-batch {i} loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
