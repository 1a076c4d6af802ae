"""Checkpoints that DeepSpeed did not save, made into DeepSpeed's files, and loaded by DeepSpeed's own engine: every parameter, master
weight, moment and step is compared bit for bit with what was trained.

What is trained, in this process and without DeepSpeed, is the module of deepspeed_trainer.py: tied weights, a frozen parameter,
buffers, two groups of the optimizer, sizes that divide by nothing.
"""

import json
import pathlib
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict

import test_convert_deepspeed as deepspeed

STEPS = 4
pytestmark = deepspeed.pytestmark


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A trained module and its optimizer as files of torch.save, as a distributed checkpoint, as what --job takes; and the truth."""
    import deepspeed_trainer

    folder = tmp_path_factory.mktemp("trained")
    torch.manual_seed(11)
    net = deepspeed_trainer.Net()
    optimizer = torch.optim.AdamW(deepspeed_trainer.groups_of(net), lr=1e-2)
    for _ in range(STEPS):
        tokens = torch.randint(0, deepspeed_trainer.VOCABULARY, (6, 3))
        torch.nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    net.running.add_(torch.arange(7))
    net.seen.add_(5)
    names = {parameter: name for name, parameter in net.named_parameters()}
    groups = [{**group, "params": [names[parameter] for parameter in group["params"]]} for group in optimizer.param_groups]
    job = {"param_groups": groups, "frozen": ["frozen"], "buffers": ["running", "seen"], "shared": {"head.weight": "embed.weight"}}
    (folder / "job.json").write_text(json.dumps(job))
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state(),
                "lr_scheduler": {"last_batch_iteration": 8}}, folder / "a.pt")
    model, state = get_state_dict(net, optimizer)
    torch.distributed.checkpoint.save({"model": model, "optim": state}, checkpoint_id=folder / "dcp", no_dist=True)
    truth: dict[str, Any] = {"module": {name: tensor.detach().clone() for name, tensor in net.state_dict().items() if name != "head.weight"},
                             "fp32": {}, "exp_avg": {}, "exp_avg_sq": {}, "lr": [group["lr"] for group in groups],
                             "optimizer_step": [float(STEPS)]}
    for parameter, moments in optimizer.state.items():
        truth["fp32"][names[parameter]] = parameter.detach().clone()
        for key in ("exp_avg", "exp_avg_sq"):
            truth[key][names[parameter]] = moments[key].clone()
    return {"folder": folder, "truth": truth}


def assert_loaded(truth: dict[str, Any], loaded: dict[str, Any], dtype: torch.dtype) -> None:
    for kind in ("fp32", "exp_avg", "exp_avg_sq"):
        assert truth[kind].keys() == loaded[kind].keys()
        for name, tensor in truth[kind].items():
            assert torch.equal(tensor, loaded[kind][name]), f"{kind} of {name} differs"
    for name, tensor in loaded["module"].items():
        expected = truth["module"][name]
        assert torch.equal(expected.to(tensor.dtype) if expected.is_floating_point() else expected, tensor), name
        assert not tensor.is_floating_point() or name in ("running",) or tensor.dtype == dtype, name
    assert loaded["optimizer_step"] == truth["optimizer_step"]


BF16 = {"data_types": {"grad_accum_dtype": "fp32"}}


@pytest.mark.parametrize("source, zero, ranks, dtype, config", [
    ("torch", "1", 3, "fp32", {}), ("torch", "2", 2, "bf16", {}), ("torch", "3", 3, "bf16", {}), ("dcp", "bf16", 2, "bf16", BF16),
    ("universal", "3", 1, "fp32", {}), ("safetensors", "2", 3, "bf16", {})])
def test_loads(tmp_path: pathlib.Path, trained: dict[str, Any], source: str, zero: str, ranks: int, dtype: str,
               config: dict[str, Any]) -> None:
    """DeepSpeed loads what was made of each format, and then holds what was trained, its scheduler and its step as well."""
    folder = trained["folder"]
    path = {"torch": folder / "a.pt", "dcp": folder / "dcp"}.get(source, tmp_path / "a")
    if source in ("universal", "safetensors"):
        deepspeed.convert(folder / "dcp", path, "--to", source)
    words = ["--dtype", "BF16"] if dtype == "bf16" else []
    deepspeed.convert(path, tmp_path / "b", "--to", "deepspeed", "--zero", zero, "--dp", ranks, "--job", folder / "job.json", *words)
    stage = 1 if zero == "bf16" else int(zero)
    loaded = deepspeed.run_job("load", ranks, tmp_path / "b", tmp_path / "b.pt", stage=stage, dtype=dtype, config=config, client=False)
    assert_loaded(trained["truth"], loaded, torch.bfloat16 if dtype == "bf16" else torch.float32)
    assert loaded["step"] == STEPS
