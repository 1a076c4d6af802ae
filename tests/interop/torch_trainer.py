"""The trainer of test_torch.py: small models whose every step is determined by its number and the
restored state.

    torch_trainer.py KIND STEPS [--plain] [--mischief WHAT]

Prints `step N LOSS` (the loss as a hexadecimal float) for each update, and at the end `state
SHA256` of all that trains on this rank. With --plain the script knows nothing of Cairn: its data
are the same in every step, so that a resumed run continues the reference.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import forking

forking.become_a_rank()
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
PAUSE_S = float(os.environ.get("TRAINER_PAUSE_S", "0"))  # in each step, as if the model were larger
# of kind scaler: overflows every few steps
SCALER = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=3)
SHARD = 0 if "tp" in sys.argv else RANK  # of the data: tensor parallel ranks see the same


class Model(nn.Module):
    """Dropout for the generators, batch normalisation for buffers, tied weights, a frozen layer,
    experts of uneven use."""

    def __init__(self, width=48, experts=0):
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.frozen = nn.Linear(width, width)
        self.frozen.requires_grad_(False)
        self.norm = nn.BatchNorm1d(width)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        self.inner = nn.Linear(width, width)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(width, 32, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.norm(self.embed(tokens) + self.frozen(self.embed(tokens)).sin())
        if self.experts:
            chosen = (tokens * tokens) % len(self.experts)
            x = torch.stack([self.experts[int(c)](row) for c, row in zip(chosen, x)])
        return self.head(self.drop(F.gelu(self.inner(x))))


def batch(step, size=16, micro=0):
    generator = torch.Generator().manual_seed(1000 * step + 10 * SHARD + micro)
    tokens = torch.randint(0, 32, (size,), generator=generator)
    return tokens, (tokens * 7 + 3) % 32


def build(kind):
    """(models, optimizers)"""
    torch.manual_seed(5)
    random.seed(5)
    if kind == "gan":
        first, second = Model(), nn.Sequential(nn.Linear(32, 40), nn.ReLU(), nn.Linear(40, 1))
        return [first, second], [
            torch.optim.Adam(first.parameters(), lr=2e-3),
            torch.optim.SGD(second.parameters(), lr=1e-2, momentum=0.9),
        ]
    model = Model(width=700 if kind == "large" else 48, experts=4 if kind == "moe" else 0)
    if kind in ("fsdp", "tp"):
        from torch.distributed.device_mesh import init_device_mesh

        model = nn.Sequential(
            nn.Embedding(32, 48), nn.Linear(48, 50), nn.GELU(), nn.LayerNorm(50), nn.Linear(50, 32)
        )
        mesh = init_device_mesh("cpu", (WORLD,))
        if kind == "fsdp":
            from torch.distributed.fsdp import fully_shard

            for layer in (model[1], model[4]):
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        else:
            from torch.distributed.tensor.parallel import (
                ColwiseParallel,
                RowwiseParallel,
                parallelize_module,
            )

            model = nn.Sequential(
                nn.Embedding(32, 48), nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 32)
            )
            parallelize_module(model, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})
    if kind in ("ddp", "zero"):
        model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=False)
    if kind == "compile":
        model = torch.compile(model, backend="eager")
    decayed = [p for p in model.parameters() if p.dim() > 1 and p.requires_grad]
    others = [p for p in model.parameters() if p.dim() <= 1 and p.requires_grad]
    if kind == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return [model], [ZeroRedundancyOptimizer(decayed + others, torch.optim.AdamW, lr=3e-3)]
    if kind == "lbfgs":
        return [model], [torch.optim.LBFGS(decayed + others, lr=0.1, max_iter=4)]
    return [model], [
        torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
            lr=3e-3,
        )
    ]


def update(kind, models, optimizers, step, mischief):
    """One update of everything; its loss."""
    if kind in ("closure", "lbfgs"):
        return update_by_closure(models, optimizers[0], step)
    for optimizer in optimizers:
        optimizer.zero_grad()
    if kind == "gan":
        tokens, wanted = batch(step)
        made = models[0](tokens)
        loss = F.cross_entropy(made, wanted) - 0.1 * models[1](made).mean()
        loss.backward()
        time.sleep(PAUSE_S)
        optimizers[0].step()
        optimizers[1].zero_grad()
        against = F.softplus(models[1](models[0](tokens).detach())).mean()
        against.backward()
        optimizers[1].step()
        return loss + against
    total = torch.zeros(())
    for micro in range(3 if kind == "accumulate" else 1):
        tokens, wanted = batch(step, micro=micro)
        loss = F.cross_entropy(models[0](tokens), wanted) * (1 + 0.1 * random.random())
        if mischief == "between" and step % 2:
            with torch.no_grad():
                models[0].inner.bias.add_(0.001)  # after the forward: the snapshot has begun
        (SCALER.scale(64 * loss) if kind == "scaler" else loss).backward()
        total += loss.detach()
    time.sleep(PAUSE_S)
    if kind == "scaler":
        SCALER.step(optimizers[0])
        SCALER.update()
    else:
        optimizers[0].step()
    return total


def update_by_closure(models, optimizer, step):
    """The same where forward and backward run inside the optimizer's step, as Lightning has it."""

    def closure():
        optimizer.zero_grad()
        tokens, wanted = batch(step)
        loss = F.cross_entropy(models[0](tokens), wanted)
        loss.backward()
        time.sleep(PAUSE_S)
        return loss

    return optimizer.step(closure)


def digest(models, optimizers, whole=False):
    """Of what lies on this rank, or of the whole tensors."""
    sha = hashlib.sha256()

    def add(tensor):
        if whole and hasattr(tensor, "full_tensor"):
            tensor = tensor.full_tensor()
        here = getattr(tensor, "_local_tensor", tensor).detach().contiguous()
        sha.update(here.reshape(-1).view(torch.uint8).numpy().tobytes() if here.numel() else b"")

    for model in models:
        for _, tensor in sorted(model.state_dict().items()):
            add(tensor)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            sha.update(repr(sorted((k, v) for k, v in group.items() if k != "params")).encode())
            for parameter in group["params"]:
                # ZeroRedundancyOptimizer holds another one with this rank's
                state = getattr(optimizer, "optim", optimizer).state
                for _, value in sorted(state.get(parameter, {}).items()):
                    if torch.is_tensor(value):
                        add(value)
    return sha.hexdigest()


def wait_to_go():
    """Until the test has seen what it needs."""
    while not os.path.exists(os.environ["TRAINER_GO"]):
        time.sleep(0.01)


def tell_late():
    """The store has what this rank tells the others only when they have waited for it."""
    from cairn import _ranks

    told, publish, gather = [], _ranks.publish, _ranks.gather_if_there

    def gather_late(*asked):
        time.sleep(2)
        while told:
            publish(*told.pop(0))
        return gather(*asked)

    _ranks.publish = lambda *what: told.append(what)
    _ranks.gather_if_there = gather_late


def hold_once_recent(done):
    """From the update TRAINER_RECENT_FROM on rank 0 stands still, and all others with it, once
    `cairn status` says that the update before the last is committed. A busy machine may leave a
    snapshot out: then after another step."""
    begin = os.environ.get("TRAINER_RECENT_FROM")
    if begin is None or done < int(begin) or RANK > 0:
        return
    words = [
        os.environ["CAIRN_COMMAND"],
        "status",
        "--agent",
        os.environ["CAIRN_AGENT"],
        "-o",
        "json",
    ]
    for _ in range(20):
        told = subprocess.run(words, stdout=subprocess.PIPE, check=False).stdout
        committed = (json.loads(told)["newest"] or {"step": 0})["step"]
        if committed >= done - 1:
            print(f"holds after {done}", flush=True)
            time.sleep(3600)
        time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("steps", type=int)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--mischief", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.mischief == "agentless" and RANK == 1:
        os.environ["CAIRN_AGENT"] = "/nonexistent/agent"
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
    models, optimizers = build(options.kind)
    if options.mischief == "wider":
        models[0].inner = nn.Linear(48, 48, bias=False)
        models[0].extra = nn.Linear(3, 4)
        optimizers = [torch.optim.AdamW(models[0].parameters(), lr=3e-3)]
    if options.mischief == "more":
        models[0].extra = nn.Linear(3, 4)
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.8) for optimizer in optimizers]
    counts = {"tokens": 0, "steps": 0}
    first = 0
    workers = None
    if not options.plain:
        import cairn

        job = cairn.attach(
            {f"m{i}": m for i, m in enumerate(models)} if len(models) > 1 else models[0],
            optimizers,
            scheduler=schedulers,
            extra={"counts": counts, "scaler": SCALER},
        )
        # which does not count steps that are skipped
        first = counts["steps"] if options.kind == "scaler" else job.step
    if options.mischief == "whole":
        print(f"whole {first} {digest(models, optimizers, whole=True)}", flush=True)
    if options.mischief == "moments":
        for name, parameter in models[0].named_parameters():
            for key, value in sorted(optimizers[0].optim.state.get(parameter, {}).items()):
                print(
                    f"moment {key}.{name} {hashlib.sha256(value.numpy().tobytes()).hexdigest()}",
                    flush=True,
                )
    if options.mischief == "evaluate" and RANK == 0:  # on this rank alone, hence not by way of DDP
        with torch.no_grad():
            models[0].module.eval()(batch(0)[0])
        models[0].train()
    for step in range(first, options.steps):
        if str(step) == os.environ.get("TRAINER_HOLD_AT"):
            if options.mischief == "pause":
                wait_to_go()
                print("pauses", flush=True)
                if RANK:
                    tell_late()
                print("paused", job.snapshot_now(), flush=True)
            if options.mischief == "pause-in-a-step":
                models[0](batch(step)[0])
                print("paused", job.snapshot_now(), job.snapshot_now(), flush=True)
            time.sleep(3600)  # until the test kills it, however late that looks
        hold_once_recent(step)
        if options.mischief == "raise" and step == 6:
            optimizers[0].register_step_pre_hook(lambda *_: 1 // 0)  # the update itself raises
        if options.mischief == "exec" and step == 6 and "AGAIN" not in os.environ:
            wait_to_go()
            os.environ["AGAIN"] = "1"
            os.execv(sys.executable, [sys.executable, "-u", *sys.argv])
        if options.mischief == "loader":
            if step % 8 == 0:  # workers are forked in the middle of the training
                workers = iter(
                    torch.utils.data.DataLoader(
                        range(64), num_workers=2, generator=torch.Generator()
                    )
                )
            next(workers)
        # of a job that resumes later, too
        if options.kind == "thaw" and step >= 6 and len(optimizers[0].param_groups) == 2:
            models[0].frozen.requires_grad_(True)
            optimizers[0].add_param_group(
                {"params": models[0].frozen.parameters(), "lr": 1e-3, "weight_decay": 0.2}
            )
        scale = SCALER.get_scale()
        loss = update(
            options.kind, models, optimizers, 0 if options.plain else step, options.mischief
        )
        if not options.plain:
            for scheduler in schedulers:
                scheduler.step()
            counts["tokens"] += 16
            counts["steps"] = step + 1
        if options.kind == "scaler" and SCALER.get_scale() < scale:
            print(f"skipped {step}", flush=True)
        if options.mischief == "fork":
            pid = os.fork()
            if pid == 0:  # a data loader's worker may even train something of its own
                update(options.kind, models, optimizers, step, "")
                os._exit(0)
            os.waitpid(pid, 0)
        if options.mischief == "lose" and step == 3:
            optimizers[0].state[models[0].inner.weight].pop("exp_avg_sq")
            sys.exit(0 if not first else 1)
        print(f"step {step} {loss.item().hex()}", flush=True)
        if (
            options.mischief == "crash"
            and step == 9
            and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        ):
            wait_to_go()
            os.kill(os.getpid(), signal.SIGKILL)
    print(
        f"state {digest(models, optimizers)} {counts['tokens'] if not options.plain else ''}",
        flush=True,
    )
    if options.mischief in ("between",) and not options.plain:
        print(f"refused {job.snapshots_refused} {job.stats()}", flush=True)
    if options.mischief == "late" and RANK == 1:
        time.sleep(2)
    if "RANK" in os.environ:
        torch.distributed.destroy_process_group()


main()
