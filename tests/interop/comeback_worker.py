"""The trainer of bench_comeback.py: the same model and steps, protected in one of three ways.

    comeback_worker.py cairn|dcp|torchft STEPS LOG FOLDER

    cairn    cairn.attach; a snapshot after each update
    dcp      torch.distributed.checkpoint into FOLDER after every 10th update
    torchft  torchft's Manager and DistributedDataParallel; this process is a replica group

Each rank appends to LOG one line per update: `RANK STEP SECONDS`. A step takes STEP_S.
"""

import os
import pathlib
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

EVERY = 10
STEP_S = 0.2
WIDTH, LAYERS = 512, 8  # 2.1 million parameters, 25 MB of state


def build():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    return torch.nn.Sequential(*layers)


class Cairn:
    def __init__(self, folder):
        import cairn

        dist.init_process_group("gloo")
        self.model = torch.nn.parallel.DistributedDataParallel(build())
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.step = cairn.attach(self.model, self.optimizer).step

    def saved(self):
        pass


class Dcp:
    def __init__(self, folder):
        dist.init_process_group("gloo")
        self.folder = pathlib.Path(folder)
        self.model = torch.nn.parallel.DistributedDataParallel(build())
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.step = max((int(each.name) for each in self.folder.glob("[0-9]*")), default=0)
        if self.step:
            from torch.distributed import checkpoint
            from torch.distributed.checkpoint.state_dict import set_state_dict

            state = self.state()
            checkpoint.load(state, checkpoint_id=self.folder / str(self.step))
            set_state_dict(
                self.model,
                self.optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )

    def state(self):
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def saved(self):
        if self.step % EVERY:
            return
        from torch.distributed import checkpoint

        new = self.folder / f"new{self.step}"
        checkpoint.save(self.state(), checkpoint_id=new)
        if dist.get_rank() == 0:
            new.rename(self.folder / str(self.step))
            shutil.rmtree(self.folder / str(self.step - EVERY), ignore_errors=True)
        dist.barrier()


class Torchft:
    def __init__(self, folder):
        import torchft

        self.store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
        model = build()
        self.manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(),
            load_state_dict=self.load,
            state_dict=self.state,
            min_replica_size=2,
            rank=0,
            world_size=1,
            store_addr="127.0.0.1",
            store_port=self.store.port,
            hostname="127.0.0.1",
            replica_id=f"node{os.environ['RANK']}-",
        )
        self.model = torchft.DistributedDataParallel(self.manager, model)
        self.plain = torch.optim.AdamW(model.parameters())
        self.optimizer = torchft.Optimizer(self.manager, self.plain)

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.plain.state_dict()}

    def load(self, state):
        self.model.load_state_dict(state["model"])
        self.plain.load_state_dict(state["optimizer"])

    @property
    def step(self):
        return self.manager.current_step()

    @step.setter
    def step(self, value):
        pass  # the manager counts the steps that all have committed

    def saved(self):
        pass


def main():
    kind, steps, path, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    job = {"cairn": Cairn, "dcp": Dcp, "torchft": Torchft}[kind](folder)
    rank = int(os.environ["RANK"])
    with open(path, "a", buffering=1) as log:
        while job.step < steps:
            begin, before = time.monotonic(), job.step
            job.optimizer.zero_grad()
            generator = torch.Generator().manual_seed(1000 * before + rank)
            inputs = torch.randn(8, WIDTH, generator=generator)
            F.mse_loss(job.model(inputs), inputs).backward()
            job.optimizer.step()
            if kind != "torchft":
                job.step = before + 1
            if job.step > before:
                log.write(f"{rank} {job.step} {time.time():.3f}\n")
            job.saved()
            time.sleep(max(0.0, STEP_S - (time.monotonic() - begin)))


main()
