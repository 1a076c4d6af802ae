"""The trainer of test_dcp.py: trains a few steps, saves or loads with torch.distributed.checkpoint
on Cairn, trains on.

    dcp_trainer.py KIND ACTION...      KIND: plain ddp fsdp

Actions, in order: `train N`, `save HOW` (sync, async, cached, process), `load`, `id N` (the
checkpoint_id of what follows; 0 for none), `nan` (puts one into a weight), `wider` (rebuild with
other shapes), `more` (ask for a tensor that was not saved), `strange` (a tensor that cannot be
captured), `sleep`, `rank N` (the next action on that rank alone). Prints `state SHA256` of the
whole state, gathered, after each action that changes or saves it, and `loss N LOSS` (hexadecimal)
for each step.
"""
import hashlib
import os
import sys
import time
import warnings

import torch
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import cairn
import forking

forking.become_a_rank()
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Job:
    def __init__(self, kind, seed, width=50):
        torch.manual_seed(seed)
        self.kind, self.step = kind, 0
        self.model = nn.Sequential(
            nn.Embedding(32, 48),
            nn.Linear(48, width),
            nn.GELU(),
            nn.LayerNorm(width),
            nn.Linear(width, 33),
        )
        if kind == "ddp":
            self.model = nn.parallel.DistributedDataParallel(self.model)
        if kind == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh("cpu", (WORLD,))
            for layer in (self.model[1], self.model[4]):
                fully_shard(layer, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.extra = {
            "ints": torch.arange(7) + seed,
            "odd": torch.arange(12.0).reshape(3, 4).t() * seed,
            "half": torch.full((), seed / 3, dtype=torch.bfloat16),
            "none": torch.empty(0, 5),
            "words": {"a": [seed, "ä"], "b": (1.5, None)},
        }

    def train(self, steps):
        for _ in range(steps):
            # the same on all ranks: so is the result, for any number
            tokens = torch.arange(24) * (self.step + 1) % 32
            loss = F.cross_entropy(self.model(tokens), (tokens * 7 + 3) % 32)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            print(f"loss {self.step} {loss.item().hex()}", flush=True)

    def state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "extra": self.extra, "step": self.step}

    def digest(self):
        sha = hashlib.sha256()

        def add(name, value):
            if isinstance(value, dict):
                for key in sorted(value, key=str):
                    add(f"{name}.{key}", value[key])
            elif isinstance(value, torch.Tensor):
                whole = value.full_tensor() if hasattr(value, "full_tensor") else value
                flat = whole.detach().contiguous().reshape(-1)
                sha.update(f"{name} {whole.dtype} {tuple(whole.shape)}".encode())
                sha.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
            else:
                sha.update(f"{name} {value!r}".encode())

        add("", self.state())
        return sha.hexdigest()


def save(state, how, checkpoint_id, group):
    if how == "sync":
        dcp.save(state, storage_writer=cairn.dcp.Writer(), checkpoint_id=checkpoint_id)
    elif how == "cached":
        planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(
            state, storage_writer=cairn.dcp.Writer(), checkpoint_id=checkpoint_id, planner=planner
        )
    else:
        kinds = {"async": "THREAD", "process": "PROCESS"}
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        return dcp.async_save(
            state,
            storage_writer=cairn.dcp.Writer(),
            checkpoint_id=checkpoint_id,
            process_group=group if how == "async" else None,
            async_checkpointer_type=getattr(AsyncCheckpointerType, kinds[how]),
        )
    return None


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kind, words = sys.argv[1], sys.argv[2:]
    if WORLD > 1:
        torch.distributed.init_process_group("gloo")
    elif kind == "fsdp":
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
    # An asynchronous save runs its collectives in a thread of its own, which must not meet those of
    # the training in one group.
    group = torch.distributed.new_group(backend="gloo") if WORLD > 1 else None
    job, checkpoint_id, pending = Job(kind, seed=5), None, None
    while words:
        word = words.pop(0)
        if word == "rank":
            if int(words.pop(0)) != RANK:
                words.pop(0)
            continue
        try:
            if word == "train":
                job.train(int(words.pop(0)))
            elif word == "id":
                checkpoint_id = int(words.pop(0)) or None
            elif word == "save":
                how = words.pop(0)
                print(f"state {job.digest()}", flush=True)
                pending = save(job.state(), how, checkpoint_id, group)
                print(f"{'saving' if pending else 'saved'} {job.step}", flush=True)
            elif word == "wait":
                pending.result()
                print(f"saved {job.step}", flush=True)
            elif word == "nan":
                with torch.no_grad():
                    next(job.model.parameters()).view(-1)[0] = float("nan")
            elif word == "fresh":
                job = Job(kind, seed=9)
            elif word == "wider":
                job = Job(kind, seed=9, width=54)
            elif word == "more":
                job.extra["unknown"] = torch.zeros(3)
            elif word == "strange":
                job.extra["strange"] = torch.zeros(3, dtype=torch.complex128)
            elif word == "load":
                job.train(1)  # an optimizer's state exists after a step only
                state = job.state()
                dcp.load(state, storage_reader=cairn.dcp.Reader(), checkpoint_id=checkpoint_id)
                set_state_dict(
                    job.model,
                    job.optimizer,
                    model_state_dict=state["model"],
                    optim_state_dict=state["optimizer"],
                )
                job.extra, job.step = state["extra"], state["step"]
                print(f"loaded {job.step}\nstate {job.digest()}", flush=True)
            elif word == "sleep":
                time.sleep(60)
            else:
                sys.exit(f"unknown action {word}")
        except (RuntimeError, ValueError, dcp.api.CheckpointException) as error:
            print(f"failed {word}", flush=True)
            print(f"error of {word}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":  # async_save's process imports this file
    main()
