"""Checkpoints for bench_convert.py, saved by the frameworks themselves: as a program, one rank of
the job that does it.

    bench_convert_states.py deepspeed STAGE LAYERS WIDTH FOLDER      with DeepSpeed's environment,
    one step trained in bf16
    bench_convert_states.py dcp       -     LAYERS WIDTH FOLDER      FSDP2 with AdamW in float32,
                                      one step trained
    bench_convert_states.py weights   -     LAYERS WIDTH FOLDER      sharded float32 weights alone:
                                      FOLDER/dcp and FOLDER/hf
    bench_convert_states.py many      -     TENSORS FILES FOLDER     one process: a distributed
                                      checkpoint of many small tensors

The ranks find each other by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import io
import os
import pathlib
import pickle
import sys
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed
import torch.distributed.checkpoint as dcp

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Block(torch.nn.Module):
    """The matrices of a transformer's layer: 12 × width² elements, and a little."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(hidden)).chunk(3, -1)
        hidden = hidden + self.out(q * k.sigmoid() + v)
        return hidden + self.down(torch.relu(self.up(hidden)))


class Net(torch.nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden.float().square().mean()


def save_deepspeed(stage: int, layers: int, width: int, folder: str) -> None:
    import deepspeed

    # or it is compiled first, for minutes
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": True},
    }
    torch.manual_seed(1)
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=stage == 3):
        model = Net(layers, width)
    engine, _, _, _ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), config=config
    )
    engine.backward(engine(torch.randn(4, width, dtype=torch.bfloat16)))
    engine.step()
    engine.save_checkpoint(folder)


def save_dcp(layers: int, width: int, folder: str) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    model, mesh = Net(layers, width), init_device_mesh("cpu", (WORLD,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(4, width)).backward()
    optimizer.step()
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments, "step": 1}, checkpoint_id=folder)


def save_weights(layers: int, width: int, folder: str) -> None:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.manual_seed(1)
    mesh = init_device_mesh("cpu", (WORLD,))
    whole = dict(Net(layers, width).named_parameters())
    weights = {
        name: distribute_tensor(tensor.detach(), mesh, [Shard(0)]) for name, tensor in whole.items()
    }
    dcp.save(weights, checkpoint_id=folder + "/dcp")
    dcp.save(
        weights, storage_writer=HuggingFaceStorageWriter(folder + "/hf", save_distributed=True)
    )


def make_many(tensors: int, files: int, folder: str) -> None:
    """As many ranks' files with small tensors, one chunk each. What PyTorch writes of one such
    tensor stands for all."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )

    place, blob = pathlib.Path(folder), io.BytesIO()
    place.mkdir()
    torch.save(torch.arange(64.0), blob)
    item, chunk = blob.getvalue(), ChunkStorageMetadata(torch.Size([0]), torch.Size([64]))
    state: dict[str, Any] = {}
    storage: dict[Any, Any] = {}
    for file in range(files):
        names = [f"layers.{number}.weight" for number in range(file, tensors, files)]
        (place / f"__{file}_0.distcp").write_bytes(item * len(names))
        for at, name in enumerate(names):
            state[name] = TensorStorageMetadata(TensorProperties(), torch.Size([64]), [chunk])
            storage[MetadataIndex(name, torch.Size([0]), 0)] = _StorageInfo(
                f"__{file}_0.distcp", at * len(item), len(item)
            )
    (place / ".metadata").write_bytes(pickle.dumps(Metadata(state, storage_data=storage)))


def main() -> None:
    kind, stage, first, second, folder = sys.argv[1:]
    torch.set_num_threads(1)
    if kind == "many":
        make_many(int(first), int(second), folder)
        return
    os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
    if kind == "deepspeed":
        save_deepspeed(int(stage), int(first), int(second), folder)
    else:
        torch.distributed.init_process_group("gloo")
        (save_dcp if kind == "dcp" else save_weights)(int(first), int(second), folder)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
