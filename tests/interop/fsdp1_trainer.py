"""The trainer of test_fsdp1.py: a small model in FSDP1's flat parameters, each step determined by
its number and the state.

    fsdp1_trainer.py KIND STEPS [whole]

KIND: orig (use_orig_params), flat (without), mixed (bfloat16 while it computes), adagrad (state
that is there from the start), thaw (a part of a unit is
frozen, and joins the optimizer at step 3 or at once where that is over), thaw_flat (the same of a
whole unit, without use_orig_params), and FSDP1's strategies grad_op, no_shard and hybrid (half of
the ranks hold what the other half does).

Prints `step N LOSS` (the loss as a hexadecimal float) for each update and at the end `state SHA256`
of all that trains on this rank. With `whole` it prints first `whole STEP SHA256` of the parameters
and the optimizer's state as they are without any shards.
"""
import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import cairn
import forking

forking.become_a_rank()
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PAUSE_S = float(os.environ.get("TRAINER_PAUSE_S", "0"))
STRATEGIES = {
    "grad_op": ShardingStrategy.SHARD_GRAD_OP,
    "no_shard": ShardingStrategy.NO_SHARD,
    "hybrid": ShardingStrategy.HYBRID_SHARD,
}


class Block(nn.Module):
    """Matrices, vectors, a tensor of three dimensions, dropout for the generators, and a buffer."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.inner, self.drop = (
            nn.BatchNorm1d(width),
            nn.Linear(width, 2 * width + 1),
            nn.Dropout(0.1),
        )
        self.mix = nn.Conv1d(1, 3, 5, padding=2)
        self.outer = nn.Linear(2 * width + 1, width, bias=False)

    def forward(self, x):
        mixed = self.mix(self.norm(x).unsqueeze(1)).mean(1)
        return x + self.outer(self.drop(F.gelu(self.inner(mixed))))


class Model(nn.Module):
    def __init__(self, width=21):
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.small = nn.Parameter(torch.ones(1))  # of one rank alone
        self.register_buffer("scale", torch.full((3,), 0.7))
        self.head = nn.Linear(width, 32, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens)) * self.small * self.scale[1])


def build(kind):
    torch.manual_seed(11)
    model = Model()
    if kind == "thaw_flat":
        model.blocks[1].requires_grad_(False)
    elif kind not in ("orig", "flat"):  # flat parameters are trained as a whole
        model.blocks[1].norm.requires_grad_(False)
    mesh = (
        init_device_mesh("cpu", (2, WORLD // 2), mesh_dim_names=("replicas", "shards"))
        if kind == "hybrid"
        else None
    )
    precision = (
        MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16) if kind == "mixed" else None
    )
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        use_orig_params="flat" not in kind,
        device_mesh=mesh,
        sharding_strategy=STRATEGIES.get(kind),
        mixed_precision=precision,
        device_id=torch.device("cpu"),
    )


def batch(step):
    tokens = torch.randint(0, 32, (16,), generator=torch.Generator().manual_seed(100 * step + RANK))
    return tokens, (tokens * 7 + 3) % 32


def without_padding(tensor, parameter):
    here = tensor.detach()
    padding = getattr(parameter, "_shard_numel_padded", 0)
    return here[: here.numel() - padding] if padding and here.dim() else here


def add(sha, tensor):
    tensor = tensor.detach().contiguous().reshape(-1)
    sha.update(tensor.view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")


def digest(model, optimizer):
    sha = hashlib.sha256()
    for parameter in model.parameters():
        add(sha, without_padding(parameter, parameter))
        for _, value in sorted(optimizer.state.get(parameter, {}).items()):
            add(sha, without_padding(value, parameter))
    for buffer in model.buffers():
        add(sha, buffer)
    return sha.hexdigest()


def digest_of_whole(model, optimizer):
    tensors, state = get_state_dict(
        model, optimizer, options=StateDictOptions(full_state_dict=True)
    )
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        if "running_" not in name:  # which are each rank's own
            add(sha, tensor)
    for name, of in sorted(state["state"].items()):
        for key, value in sorted(of.items()):
            sha.update(f"{name} {key}".encode())
            add(sha, value)
    return sha.hexdigest()


def thaw(model, optimizer):
    """Frozen parameters join the optimizer, as they did before the job was killed."""
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    if frozen:
        for parameter in frozen:
            parameter.requires_grad_(True)
        optimizer.add_param_group({"params": frozen, "lr": 1e-3, "weight_decay": 0.2})


def main():
    kind, steps = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = build(kind)
    if kind == "adagrad":
        optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-2)
    else:
        optimizer = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad or "thaw" not in kind], lr=4e-3
        )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    job = cairn.attach(model, optimizer, scheduler=scheduler)
    if "whole" in sys.argv:
        print(f"whole {job.step} {digest_of_whole(model, optimizer)}", flush=True)
    for step in range(job.step, steps):
        if str(step) == os.environ.get("TRAINER_HOLD_AT"):
            time.sleep(3600)  # until the test kills it, however late that looks
        if "thaw" in kind and step >= 3:
            thaw(model, optimizer)
        optimizer.zero_grad()
        for micro in range(2):
            tokens, wanted = batch(2 * step + micro)
            loss = F.cross_entropy(model(tokens), wanted)
            loss.backward()
        time.sleep(PAUSE_S)
        optimizer.step()
        scheduler.step()
        print(f"step {step} {loss.item().hex()}", flush=True)
    print(f"state {digest(model, optimizer)}", flush=True)
    print(f"refused {job.snapshots_refused}", flush=True)
    dist.destroy_process_group()


main()
