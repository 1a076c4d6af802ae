"""The trainer of test_torch_more.py: models that are spread over ranks unevenly.

    more_trainer.py KIND STEPS

KIND: tp (tensor parallel), fsdp (FSDP2, made on the meta device; shards of different size, an empty
one), moe (experts, not as many on each rank), drift (moe whose gradients are not summed over the
ranks), local (DDP whose gradients are never reduced), pp (each rank a stage of a pipeline, of
another shape than the other).

Prints `step N LOSS` (the loss as a hexadecimal float) for each update, and at the end `state
SHA256` of all that trains on this rank.
"""
import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh

import cairn
import forking

forking.become_a_rank()
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PAUSE_S = float(os.environ.get("TRAINER_PAUSE_S", "0"))
EXPERTS_OF = (3, 1)  # by rank


class Residual(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, inner),
            nn.Linear(inner, width),
        )

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Experts(nn.Module):
    """The experts of this rank; the router, which all ranks have, sends each token to one of all.
    Tokens go to every rank, and results are summed."""

    def __init__(self, width):
        super().__init__()
        first = sum(EXPERTS_OF[:RANK])
        self.router = nn.Linear(width, sum(EXPERTS_OF))
        # All are drawn, so that the ranks' generators stay alike.
        whole = [nn.Linear(width, width) for _ in range(sum(EXPERTS_OF))]
        self.experts = nn.ModuleDict(
            {str(i): whole[i] for i in range(first, first + EXPERTS_OF[RANK])}
        )

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        chosen = weights.argmax(-1)
        out = torch.zeros_like(x)
        for name, expert in self.experts.items():
            mine = (chosen == int(name)).nonzero().flatten()
            out = out.index_add(0, mine, expert(x[mine]) * weights[mine, int(name), None])
        return x + SumOverRanks.apply(out)


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(_context, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(_context, gradient):
        return gradient


class Stage(nn.Module):
    """A forward begins only when the stage before has done its own. Both have layers of the same
    names and other shapes."""

    def __init__(self):
        super().__init__()
        first = [nn.Embedding(32, 24), Residual(24, 32)]
        self.layers = nn.Sequential(
            *(first if RANK == 0 else [nn.Linear(24, 24), Residual(24, 40), nn.Linear(24, 32)])
        )

    def forward(self, x):
        return self.layers(x)


def pipelined(stage, tokens, wanted):
    """Runs both stages forward and backward; returns the loss (the first stage has none)."""
    if RANK == 0:
        out = stage(tokens)
        dist.send(out.detach(), 1)
        gradient = torch.empty_like(out)
        dist.recv(gradient, 1)
        out.backward(gradient)
        return torch.zeros(())
    x = torch.empty(len(tokens), 24)
    dist.recv(x, 0)
    loss = F.cross_entropy(stage(x.requires_grad_()), wanted)
    loss.backward()
    dist.send(x.grad, 0)
    return loss


def build(kind):
    torch.manual_seed(7)
    if kind == "pp":
        return Stage()
    if kind == "local":
        return nn.parallel.DistributedDataParallel(
            nn.Sequential(nn.Embedding(32, 24), Residual(24, 32), nn.Linear(24, 32))
        )
    if kind in ("moe", "drift"):
        return nn.Sequential(nn.Embedding(32, 24), Experts(24), nn.Dropout(0.1), nn.Linear(24, 32))
    with torch.device("meta" if kind == "fsdp" else "cpu"):
        model = nn.Sequential(
            nn.Embedding(32, 24),
            Residual(24, 50 if kind == "fsdp" else 64),
            Residual(24, 32),
            nn.Linear(24, 3, bias=False),
            nn.Linear(3, 32),
        )
    mesh = init_device_mesh("cpu", (WORLD,))
    if kind == "tp":
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        styles = {"up": ColwiseParallel, "down": RowwiseParallel}
        parallelize_module(
            model, mesh, {f"{i}.{name}": style() for i in (1, 2) for name, style in styles.items()}
        )
    else:
        from torch.distributed.fsdp import fully_shard

        for layer in (model[1], model[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        # large models are never whole on one rank: their shards get memory, and then values
        model.to_empty(device="cpu")
        for parameter in model.parameters():
            parameter.to_local().detach().uniform_(-0.3, 0.3)
    return model


def batch(step, shard):
    tokens = torch.randint(
        0, 32, (16,), generator=torch.Generator().manual_seed(100 * step + shard)
    )
    return tokens, (tokens * 7 + 3) % 32


def digest(model, optimizer):
    sha = hashlib.sha256()
    tensors = [
        *model.parameters(),
        *(value for state in optimizer.state.values() for _, value in sorted(state.items())),
    ]
    for tensor in tensors:
        here = getattr(tensor, "_local_tensor", tensor).detach().contiguous().reshape(-1)
        sha.update(here.view(torch.uint8).numpy().tobytes() if here.numel() else b"")
    return sha.hexdigest()


def main():
    kind, steps = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = build(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    job = cairn.attach(model, optimizer, scheduler=scheduler)
    for step in range(job.step, steps):
        if str(step) == os.environ.get("TRAINER_HOLD_AT"):
            time.sleep(3600)  # until the test kills it, however late that looks
        tokens, wanted = batch(step, RANK if kind in ("fsdp", "local") else 0)
        optimizer.zero_grad()
        if kind == "pp":
            loss = pipelined(model, tokens, wanted)
        elif kind == "local":
            with model.no_sync():
                loss = F.cross_entropy(model(tokens), wanted)
                loss.backward()
        else:
            loss = F.cross_entropy(model(tokens), wanted)
            loss.backward()
        # and of "drift" the ranks' copies of what they share differ more with each step
        if kind == "moe":
            for name, parameter in model.named_parameters():
                if ".experts." not in name:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= WORLD
        time.sleep(PAUSE_S)
        optimizer.step()
        scheduler.step()
        print(f"step {step} {loss.item().hex()}", flush=True)
    print(f"state {digest(model, optimizer)}", flush=True)
    dist.destroy_process_group()


main()
