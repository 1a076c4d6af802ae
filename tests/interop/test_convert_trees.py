"""`cairn convert` and `cairn diff` on state dicts with unusual names: every tensor keeps a name of
its own through files of torch.save and distributed checkpoints; a refusal gives its reason.

Needs the command of a build (BUILD=folder, build/plain by default).
"""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed.checkpoint  # noqa: E402
from convert_states import cairn, same  # noqa: E402


def there_and_back(state: dict[str, Any], folder: pathlib.Path) -> None:
    """Through the converter's own distributed checkpoint, and equal to PyTorch's own."""
    torch.save(state, folder / "in.pt")
    cairn("convert", folder / "in.pt", folder / "dcp", "--to", "dcp", "--dp", 2)
    cairn("convert", folder / "dcp", folder / "back.pt", "--to", "torch")
    same(state, torch.load(folder / "back.pt", weights_only=True))
    cairn("diff", folder / "in.pt", folder / "dcp", "--bits")
    cairn("diff", folder / "in.pt", folder / "back.pt", "--bits")


def numbers(first: int) -> torch.Tensor:
    return torch.arange(first, first + 5, dtype=torch.float32)


@pytest.mark.parametrize("order", ["model first", "model last"])
def test_name_in_model_and_beside(tmp_path: pathlib.Path, order: str) -> None:
    """A tensor of the model has the same last key as one beside the model."""
    model = {"model": {"step": numbers(0), "weight": numbers(10)}}
    state = (
        {**model, "step": numbers(20)} if order == "model first" else {"step": numbers(20), **model}
    )
    there_and_back(state, tmp_path)
    torch.distributed.checkpoint.save(state, checkpoint_id=tmp_path / "own", no_dist=True)
    cairn("diff", tmp_path / "in.pt", tmp_path / "own", "--bits")


def test_carried_key_and_beside(tmp_path: pathlib.Path) -> None:
    """The user's own dict is called like the converter's."""
    state = {"cairn": {"step": numbers(0)}, "model": {"weight": numbers(5)}, "step": numbers(10)}
    there_and_back(state, tmp_path)


@pytest.mark.parametrize(
    "state",
    [
        {"module.weight": numbers(0), "weight": numbers(10)},
        {
            "model": {"weight": numbers(0), "exp_avg.weight": numbers(10)},
            "optimizer": {
                "state": {0: {"exp_avg": numbers(20)}, 1: {"exp_avg": numbers(30)}},
                "param_groups": [{"lr": 0.1, "params": [0, 1]}],
            },
        },
    ],
    ids=["wrapper", "moment"],
)
def test_only_prefix_differs(tmp_path: pathlib.Path, state: dict[str, Any]) -> None:
    """The prefix of a wrapper, or of optimizer state, is all that tells two tensors apart."""
    torch.save(state, tmp_path / "in.pt")
    cairn("convert", tmp_path / "in.pt", tmp_path / "out.pt", "--to", "torch")
    same(state, torch.load(tmp_path / "out.pt", weights_only=True))
    cairn("diff", tmp_path / "in.pt", tmp_path / "out.pt", "--bits")


def test_complex_parameters(tmp_path: pathlib.Path) -> None:
    """State of complex parameters keeps their names through a distributed checkpoint."""
    torch.manual_seed(7)
    model = {
        "wave": torch.nn.Parameter(torch.randn(3, dtype=torch.complex64)),
        "bias": torch.nn.Parameter(torch.randn(2)),
    }
    optimizer = torch.optim.AdamW(model.values())
    (model["wave"].abs().sum() + model["bias"].sum()).backward()
    optimizer.step()
    there_and_back(
        {
            "model": {name: tensor.detach() for name, tensor in model.items()},
            "optimizer": optimizer.state_dict(),
        },
        tmp_path,
    )


@pytest.mark.parametrize("form", ["torch", "dcp"])
@pytest.mark.parametrize(
    "key, reason",
    [
        ("x" * 300, r"the name has 3\d\d bytes; at most 255 are supported; shorten its keys"),
        ("x" * 3000, "the name has more than 1023 bytes; at most 255 are supported"),
        ("a\nb", "the name has a control character; rename it"),
        ("a\udc80b", "a key is not UTF-8 or has a NUL byte; rename it"),
    ],
)
@pytest.mark.parametrize("value", [torch.ones(2), 3])
def test_refused_names(
    tmp_path: pathlib.Path, key: str, reason: str, value: object, form: str
) -> None:
    torch.save({"deep": [{key: value}], "w": torch.ones(1)}, tmp_path / "in.pt")
    words = ("convert", tmp_path / "in.pt", tmp_path / "out", "--to", form)
    said = cairn(*words, status=65).stderr
    assert f"{tmp_path}/in.pt: " in said and re.search(reason, said), said
    assert "deep.0" in said and "damaged" not in said and len(said) < 600, said
    assert not (tmp_path / "out").exists()


def test_refused_names_of_dcp(tmp_path: pathlib.Path) -> None:
    for number, (key, reason) in enumerate(
        [
            ("x" * 300, "the name has 300 bytes; at most 255 are supported"),
            ("a\nb", "the name has a control character; rename it"),
        ]
    ):
        folder = tmp_path / f"own{number}"
        torch.distributed.checkpoint.save({key: torch.ones(2)}, checkpoint_id=folder, no_dist=True)
        said = cairn("convert", folder, tmp_path / "out", "--to", "torch", status=65).stderr
        assert reason in said and "damaged" not in said, said


@pytest.mark.parametrize("levels", [150, 250])
def test_refused_depth(tmp_path: pathlib.Path, levels: int) -> None:
    state: Any = torch.ones(2)
    for _ in range(levels):
        state = {"k": state}
    torch.save(state, tmp_path / "in.pt")
    said = cairn("convert", tmp_path / "in.pt", tmp_path / "out", "--to", "dcp", status=65).stderr
    assert f"the name has {2 * levels - 1} bytes; at most 255 are supported" in said, said
