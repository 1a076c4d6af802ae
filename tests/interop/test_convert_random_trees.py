"""`cairn convert` between torch and dcp keeps the keys of any tree: 200 random state dicts are
loaded through their own structure, by PyTorch's loaders, and come back as they were.

Needs the command of a build (BUILD=folder, build/plain by default).
"""

from __future__ import annotations

import pathlib
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed.checkpoint as dcp  # noqa: E402
from convert_states import cairn, nested_paths, same  # noqa: E402
from torch.distributed.checkpoint._nested_dict import flatten_state_dict  # noqa: E402

TREES = 200
BATCH = 20
KEYS = ["model", "module", "opt", "optim", "optimizer", "cairn", "state", "step", "param_groups",
        "gen", "disc", "weight", "a.b", "module.w", "exp_avg", "0", 0, 1, 7, 12]  # fmt: skip
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.bool,
          torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int64,
          torch.float8_e4m3fn]  # fmt: skip
NAMES = ("cairn.dcp/names.pickle",)  # never in what dcp.load is asked for
CARRIED = ("cairn.torch/tree.pickle", "cairn.optimizer.param_groups.pickle")


class Trees:
    """Draws state dicts. Every tensor has other elements."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.made: list[torch.Tensor] = []

    def tensor(self, shared: bool = True) -> torch.Tensor:
        if shared and self.made and self.draw.random() < 0.1:
            return self.draw.choice(self.made)  # the same tensor once more
        shape = self.draw.choice([(), (0, 2), (1,), (3,), (2, 3), (5, 1, 2)])
        values = torch.tensor(
            [self.draw.randrange(256) for _ in range(torch.Size(shape).numel() * 16)],
            dtype=torch.uint8,
        )
        dtype = self.draw.choice(DTYPES)
        if dtype is torch.bool:
            values = values % 2
        bytes_each = dtype.itemsize * torch.Size(shape).numel()
        made = values[:bytes_each].clone().view(dtype).reshape(shape)
        if shared:
            self.made.append(made)
        return made

    def plain(self) -> Any:
        return self.draw.choice(
            [None, True, 3, -1, 0.5, "text", "ü", [1, 2], (1, "a"), [], {"n": [1]}]
        )

    def model(self) -> dict[str, Any]:
        return {
            f"{self.draw.choice(['0', 'layer', 'norm'])}.{name}": self.tensor()
            for name in ("weight", "bias")
        }

    def optimizer(self) -> dict[str, Any]:
        """Of 1 to 3 groups, as state_dict() has it."""
        counts = [self.draw.randrange(1, 3) for _ in range(self.draw.randrange(1, 4))]
        parameters = [torch.nn.Parameter(torch.randn(n + 1)) for n in range(sum(counts))]
        groups, at = [], 0
        for count in counts:
            groups.append({"params": parameters[at : at + count], "lr": self.draw.random()})
            at += count
        kind = self.draw.choice([torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
        optimizer = kind(groups, lr=0.1, weight_decay=0.01)
        sum((p * p).sum() for p in parameters[self.draw.randrange(2) :] or parameters).backward()
        optimizer.step()
        return optimizer.state_dict()

    def value(self, depth: int) -> Any:
        kind = self.draw.random()
        if kind < 0.35 or depth == 0:
            return self.tensor()
        if kind < 0.5:
            return self.plain()
        if kind < 0.6:
            return self.model()
        if kind < 0.7:
            return self.optimizer()
        if kind < 0.8:
            return [self.value(depth - 1) for _ in range(self.draw.randrange(1, 4))]
        if kind < 0.85:
            twice = self.tensor(shared=False)
            return (twice, 1, [self.tensor(shared=False), twice])
        return self.tree(depth - 1)

    def tree(self, depth: int) -> dict[Any, Any]:
        keys = self.draw.sample(KEYS, self.draw.randrange(1, 6))
        if 0 in keys and "0" in keys:
            keys.remove("0")  # one name for two: PyTorch refuses that
        return {key: self.value(depth) for key in keys}

    def state(self) -> dict[str, Any]:
        """What dcp.save takes: no two leaves have one name."""
        while True:
            self.made.clear()
            state = {str(key): value for key, value in self.tree(self.draw.randrange(1, 5)).items()}
            if self.draw.random() < 0.1:
                for _ in range(self.draw.randrange(10, 50)):
                    state = {"d": state, "t": self.tensor()}
            try:
                names = flatten_state_dict(state)[0]
            except ValueError:
                continue
            if names and max(map(len, names)) < 200:
                return state


def blank(value: Any) -> Any:
    """The structure of a state dict with other leaves. Keys are text: dcp.load puts what is not a
    tensor under the text of a number, beside the number."""
    if isinstance(value, torch.Tensor):
        return torch.full_like(value, 1) if value.dtype.itemsize > 1 else torch.ones_like(value)
    if isinstance(value, dict):
        return {str(key): blank(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [blank(inner) for inner in value]
    return "not loaded"


def aliases(value: Any, seen: dict[int, int], out: list[int]) -> list[int]:
    """For each tensor in order, the number of the first that is the same one."""
    if isinstance(value, torch.Tensor):
        out.append(seen.setdefault(id(value), len(seen)))
    elif isinstance(value, dict):
        for inner in value.values():
            aliases(inner, seen, out)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            aliases(inner, seen, out)
    return out


def check(state: dict[str, Any], folder: pathlib.Path) -> None:
    folder.mkdir()
    torch.save(state, folder / "in.pt")
    cairn("convert", folder / "in.pt", folder / "dcp", "--to", "dcp", "--dp", 2)
    paths = {n: p for n, p in nested_paths(folder / "dcp").items() if n not in CARRIED}
    flat, wanted = flatten_state_dict(state)
    assert paths == wanted
    loaded = blank(state)
    dcp.load(loaded, checkpoint_id=folder / "dcp")
    same(flat, flatten_state_dict(loaded)[0])
    cairn("diff", folder / "in.pt", folder / "dcp", "--bits")
    cairn("convert", folder / "dcp", folder / "back.pt", "--to", "torch")
    back = torch.load(folder / "back.pt", weights_only=True)
    same(state, back)
    assert aliases(state, {}, []) == aliases(back, {}, [])
    dcp.save(state, checkpoint_id=folder / "own", no_dist=True)
    cairn("convert", folder / "own", folder / "again", "--to", "dcp")
    assert nested_paths(folder / "again") == wanted | {
        name: path for name, path in nested_paths(folder / "again").items() if name in NAMES
    }
    loaded = blank(state)
    dcp.load(loaded, checkpoint_id=folder / "again")
    same(flat, flatten_state_dict(loaded)[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, TREES, BATCH))
def test_random_trees(tmp_path: pathlib.Path, first: int) -> None:
    torch.manual_seed(first)
    for seed in range(first, first + BATCH):
        try:
            check(Trees(seed).state(), tmp_path / str(seed))
        except Exception as error:
            raise AssertionError(f"tree of seed {seed}") from error


def numbered_optimizer() -> dict[str, Any]:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter])
    parameter.sum().backward()
    optimizer.step()
    return optimizer.state_dict()


def test_canonical_names(tmp_path: pathlib.Path) -> None:
    """A checkpoint with Cairn's names, which older versions always wrote, gives the tree back."""
    state = {"model": {"w": torch.ones(3)}, "optimizer": numbered_optimizer(), "step": 3}
    torch.save(state, tmp_path / "in.pt")
    cairn("convert", tmp_path / "in.pt", tmp_path / "dcp", "--to", "dcp", "--canonical-names")
    paths = nested_paths(tmp_path / "dcp")
    assert {"model.w", "optim.state.w.exp_avg"} <= paths.keys(), paths
    cairn("convert", tmp_path / "dcp", tmp_path / "back.pt", "--to", "torch")
    same(state, torch.load(tmp_path / "back.pt", weights_only=True))


def test_two_models(tmp_path: pathlib.Path) -> None:
    """Two models with an optimizer each, whose tensors have the same names."""
    names = ("gen", "disc")
    check(
        {
            name: {"model": Trees(n).model(), "optim": Trees(n + 2).optimizer()}
            for n, name in enumerate(names)
        },
        tmp_path / "two",
    )
