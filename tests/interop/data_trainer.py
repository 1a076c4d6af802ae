"""The trainer of test_data.py: a small model whose loop prints which samples each update has read.

    data_trainer.py SOURCE STEPS [WORD...]

Prints `ids STEP EPOCH ID,ID,...` for each update of this rank, and `loss STEP HEX`. SOURCE is one
of SOURCES below. WORDs: attach (the script calls cairn.attach, and begins at job.epoch), workers
(two of them), batch=N (global, instead of BATCH), ahead (the loop takes the next batch before it
updates), evaluate (a pass without gradients over another loader after each epoch), beside (each
update reads another loader of the same dataset, too).
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset
from torch.utils.data import RandomSampler

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
WORDS = sys.argv[3:]
NUMBERS = {word.partition("=")[0]: int(word.partition("=")[2]) for word in WORDS if "=" in word}
SAMPLES, BATCH = NUMBERS.get("samples", 60), NUMBERS.get("batch", 12)


class Numbers(Dataset):
    """Sample i is i."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        return torch.tensor(i)


class Others(Numbers):
    """What is evaluated."""


class Stream(IterableDataset):
    """Each replica and worker has its part."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        return iter(range(RANK * workers + worker, SAMPLES, WORLD * workers))


class Pairs(BatchSampler):
    """A batch sampler that nobody knows: each replica has batches of different length."""

    def __init__(self, sampler, batch_size, drop_last):
        super().__init__(sampler, batch_size, drop_last)

    def __iter__(self):
        samples = list(self.sampler)
        for i in range(0, len(samples), 3):
            yield samples[i : i + 1 + i % 2]

    def __len__(self):
        return len(range(0, len(list(self.sampler)), 3))


class MegatronSampler:
    """Deals as Megatron-LM's MegatronPretrainingSampler, which Megatron-Core on PyPI lacks:
    consecutive samples, from consumed_samples on."""

    def __init__(self, consumed_samples=0):
        self.total_samples, self.consumed_samples = SAMPLES, consumed_samples
        self.micro_batch_size, self.data_parallel_rank = BATCH // WORLD, RANK
        self.micro_batch_times_data_parallel_size = BATCH

    def __len__(self):
        return self.total_samples

    def __iter__(self):
        for first in range(self.consumed_samples, self.total_samples - BATCH + 1, BATCH):
            begin = first + RANK * self.micro_batch_size
            yield list(range(begin, begin + self.micro_batch_size))


class MegatronRandomSampler(MegatronSampler):
    """Deals as Megatron-LM's MegatronPretrainingRandomSampler: every pass has an order, and
    each replica every n-th of its samples. It counts by itself what it has consumed."""

    def __init__(self):
        super().__init__()
        self.data_parallel_size, self.data_sharding = WORLD, "sharded" in WORDS
        self.last_batch_size = self.total_samples % BATCH

    def __iter__(self):
        size = self.total_samples - self.last_batch_size
        self.epoch, offset = divmod(self.consumed_samples, size)
        assert offset % BATCH == 0
        count = self.total_samples // self.micro_batch_size * self.micro_batch_size
        order = torch.randperm(count, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        mine = order[offset:][RANK::WORLD]
        for first in range(0, len(mine) - self.micro_batch_size + 1, self.micro_batch_size):
            self.consumed_samples += BATCH
            yield mine[first : first + self.micro_batch_size]


def source(name):
    """The loader."""
    options = {"num_workers": 2, "persistent_workers": "persistent" in WORDS}
    options = options if "workers" in WORDS else {}
    data, batch = Numbers(), BATCH // WORLD
    if name == "distributed":
        sampler = DistributedSampler(data, WORLD, RANK, shuffle=True, seed=3)
        return DataLoader(data, batch, sampler=sampler, **options)
    if name == "shard":
        from accelerate.data_loader import BatchSamplerShard

        sampler = RandomSampler(data, generator=torch.Generator().manual_seed(7))
        shard = BatchSamplerShard(BatchSampler(sampler, batch, False), WORLD, RANK)
        return DataLoader(data, batch_sampler=shard, **options)
    if name == "random":
        return DataLoader(data, batch, shuffle=True, **options)
    if name == "generator":
        made = torch.Generator().manual_seed(7)
        return DataLoader(data, batch, shuffle=True, generator=made, **options)
    if name == "pairs":
        sampler = DistributedSampler(data, WORLD, RANK, shuffle=True)
        return DataLoader(data, batch_sampler=Pairs(sampler, batch, False), **options)
    if name == "stream":
        return DataLoader(Stream(), batch, **options)
    if name == "megatron":
        return DataLoader(data, batch_sampler=MegatronSampler(), **options)
    if name == "megatron-random":
        return DataLoader(data, batch_sampler=MegatronRandomSampler(), **options)
    if name == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(Stream(), batch, **options)
    if name == "stateful-map":
        from torchdata.stateful_dataloader import StatefulDataLoader

        sampler = DistributedSampler(data, WORLD, RANK, shuffle=True, seed=3)
        return StatefulDataLoader(data, batch, sampler=sampler, **options)
    if name == "datasets":
        import datasets

        made = datasets.Dataset.from_dict({"id": list(range(SAMPLES))}).to_iterable_dataset(6)
        made = made.shuffle(seed=2, buffer_size=8) if "buffer" in WORDS else made
        return DataLoader(made.map(lambda each: {"id": each["id"]}), batch, **options)
    raise ValueError(name)


def take(iterator):
    batch = next(iterator, None)
    return batch["id"] if isinstance(batch, dict) else batch


def main():
    name, steps = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(11)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    if WORLD > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader, others = source(name), DataLoader(Others(), BATCH)
    step = epoch = 0
    if "attach" in WORDS:
        import cairn

        job = cairn.attach(model, optimizer, dataloader=loader)
        step, epoch = job.step, job.epoch
    while step < steps:
        for carrier in (loader.sampler, loader.dataset):
            if hasattr(carrier, "set_epoch"):
                carrier.set_epoch(epoch)
        iterator = iter(loader)
        batch = take(iterator)
        beside = iter(DataLoader(Numbers(), BATCH)) if "beside" in WORDS else None
        while batch is not None and step < steps:
            if str(step) == os.environ.get("TRAINER_HOLD_AT"):
                time.sleep(3600)
            if beside is not None:
                take(beside)
            loss = model(batch.float().reshape(-1, 1) / SAMPLES).square().mean()
            optimizer.zero_grad()
            loss.backward()
            now = batch
            if "ahead" in WORDS:
                batch = take(iterator)
            optimizer.step()
            print("ids", step, epoch, ",".join(map(str, now.reshape(-1).tolist())), flush=True)
            print("loss", step, loss.item().hex(), flush=True)
            time.sleep(float(os.environ.get("TRAINER_PAUSE_S", "0")))
            step += 1
            if "ahead" not in WORDS:
                batch = take(iterator)
        if "evaluate" in WORDS:
            for batch in others:
                with torch.no_grad():
                    model(batch.float().reshape(-1, 1))
        epoch += 1
    if dist.is_initialized():
        dist.destroy_process_group()


main()
