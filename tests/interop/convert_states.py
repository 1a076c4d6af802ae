"""Real checkpoints for the converter's tests, and an exact comparison of what was loaded.

As a program it is one rank of a job that trains a small model and saves it with
torch.distributed.checkpoint:
    convert_states.py FOLDER STORE RANK WORLD KIND      KIND: nested, flat, bare
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

import warm_start

ROOT = pathlib.Path(__file__).resolve().parents[2]
CAIRN = ROOT / os.environ.get("BUILD", "build/plain") / "cairn"


class Model(torch.nn.Module):
    """Tied weights, running statistics, a frozen parameter, and rows that no number of ranks
    divides."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.up = torch.nn.Linear(6, 13)
        self.down = torch.nn.Linear(13, 1)
        self.head = torch.nn.Linear(6, 11, bias=False)
        self.down.bias.requires_grad = False
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.embed(tokens))
        return self.head(hidden).square().sum() + self.down(self.up(hidden)).square().sum()


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model((torch.arange(8) + step) % 11).backward()
        optimizer.step()


def odds() -> dict[str, Any]:
    """State beside model and optimizer: every dtype, scalars, empty tensors, views, objects."""
    wide = torch.arange(-15, 16, dtype=torch.float32).view(31, 1).expand(31, 2) * 1.5
    types = {
        str(dtype)[6:]: wide.to(dtype)
        for dtype in (
            torch.float64,
            torch.float16,
            torch.bfloat16,
            torch.float8_e4m3fn,
            torch.float8_e5m2,
            torch.int8,
            torch.int16,
            torch.int32,
            torch.int64,
            torch.bool,
        )
    }
    types["uint8"] = torch.arange(200, dtype=torch.uint8)
    types["uint16"] = torch.arange(5, dtype=torch.int32).to(torch.uint16)
    types["complex64"] = torch.complex(torch.arange(3.0), -torch.arange(3.0))
    return {
        "types": types,
        "rng": torch.get_rng_state(),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "turned": torch.arange(20.0).view(4, 5)[1:3].t(),
        "step": 3,
        "text": "übermütig",
        "large": 1 << 80,
        "schedule": {
            "last_epoch": 3,
            "rates": [0.1, 0.25],
            "pair": (1, torch.tensor([1.5, float("nan")])),
        },
    }


def save_rank(folder: str, store: str, rank: int, world: int, kind: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world
    )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(5)
    model = Model()
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for n, p in model.named_parameters() if "norm" not in n]},
            {"params": model.norm.parameters(), "weight_decay": 0.0},
        ],
        lr=1e-2,
    )
    train(model, optimizer)
    options = StateDictOptions(flatten_optimizer_state_dict=kind != "nested")
    weights, moments = get_state_dict(model, optimizer, options=options)
    state = (
        {**weights, "optimizer": moments}
        if kind == "bare"
        else {"model": weights, "optim": moments}
    )
    dcp.save(
        {**state, "odd": odds()} if kind != "nested" else {**state, **odds()}, checkpoint_id=folder
    )
    torch.distributed.destroy_process_group()


def make_dcp(folder: pathlib.Path, world: int, kind: str) -> pathlib.Path:
    """A checkpoint that `world` real ranks saved."""
    target = folder / f"{kind}{world}"
    words = (target, folder / f"{kind}{world}.store")
    ranks = [
        subprocess.Popen(warm_start.server().command(__file__, *words, rank, world, kind))
        for rank in range(world)
    ]
    assert [rank.wait(timeout=180) for rank in ranks] == [0] * world
    return target


def load_dcp(folder: pathlib.Path) -> dict[str, Any]:
    """All of a checkpoint in one process, by dcp.load into a state dict of other values."""
    reader = dcp.FileSystemReader(folder)
    metadata = reader.read_metadata()
    state = {
        name: torch.full(entry.size, 1, dtype=entry.properties.dtype)
        if hasattr(entry, "chunks")
        else "not loaded"
        for name, entry in metadata.state_dict_metadata.items()
    }
    dcp.load(state, storage_reader=reader)
    assert not any(isinstance(value, str) and value == "not loaded" for value in state.values())
    return dict(sorted(state.items()))


def nested_paths(folder: pathlib.Path) -> dict[str, tuple[Any, ...]]:
    """The keys that lead to each entry of a checkpoint."""
    return dict(sorted(dcp.FileSystemReader(folder).read_metadata().planner_data.items()))


def same(left: Any, right: Any, path: str = "") -> None:
    """Equal in type, order of keys and every bit."""
    assert type(left) is type(right), (path, type(left), type(right))
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype and left.shape == right.shape, path
        bits = [
            bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())
            for tensor in (left, right)
        ]
        assert bits[0] == bits[1], path
    elif isinstance(left, dict):
        assert list(left) == list(right), (path, list(left), list(right))
        for key in left:
            same(left[key], right[key], f"{path}/{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), path
        for i, (a, b) in enumerate(zip(left, right)):
            same(a, b, f"{path}/{i}")
    else:
        assert left == right, path


def cairn(*words: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs the command and checks its exit status."""
    done = subprocess.run([CAIRN, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done


if __name__ == "__main__":
    save_rank(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
