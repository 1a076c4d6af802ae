"""Checkpoints that DeepSpeed did not save, made into DeepSpeed's files, and loaded by DeepSpeed's
own engine: every parameter, master weight, moment and step is compared bit for bit with what was
trained.

What is trained, in this process and without DeepSpeed, is the module of deepspeed_trainer.py: tied
weights, a frozen parameter, buffers, two groups of the optimizer, sizes that divide by nothing.
"""

import json
import pathlib
import shutil
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
    """A trained module and its optimizer as files of torch.save, as a distributed checkpoint, what
    --job takes; and the truth."""
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
    groups = [
        {**group, "params": [names[parameter] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    job = {
        "param_groups": groups,
        "frozen": ["frozen"],
        "buffers": ["running", "seen"],
        "shared": {"head.weight": "embed.weight"},
    }
    (folder / "job.json").write_text(json.dumps(job))
    torch.save(
        {
            "model": net.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "lr_scheduler": {"last_batch_iteration": 8},
        },
        folder / "a.pt",
    )
    model, state = get_state_dict(net, optimizer)
    torch.distributed.checkpoint.save(
        {"model": model, "optim": state}, checkpoint_id=folder / "dcp", no_dist=True
    )
    module = {
        name: tensor.detach().clone()
        for name, tensor in net.state_dict().items()
        if name != "head.weight"
    }
    truth: dict[str, Any] = {
        "module": module,
        "fp32": {},
        "exp_avg": {},
        "exp_avg_sq": {},
        "lr": [group["lr"] for group in groups],
        "optimizer_step": [float(STEPS)],
    }
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
        assert torch.equal(
            expected.to(tensor.dtype) if expected.is_floating_point() else expected, tensor
        ), name
        assert not tensor.is_floating_point() or name in ("running",) or tensor.dtype == dtype, name
    assert loaded["optimizer_step"] == truth["optimizer_step"]


BF16 = {"data_types": {"grad_accum_dtype": "fp32"}}


@pytest.mark.parametrize(
    "source, zero, ranks, dtype, config",
    [
        ("torch", "1", 2, "fp32", {}),
        ("safetensors", "2", 2, "bf16", {}),
        ("universal", "3", 3, "bf16", {}),
        ("dcp", "bf16", 1, "bf16", BF16),
    ],
)
def test_loads(
    tmp_path: pathlib.Path,
    trained: dict[str, Any],
    source: str,
    zero: str,
    ranks: int,
    dtype: str,
    config: dict[str, Any],
) -> None:
    """DeepSpeed loads what was made of each format, and then holds what was trained, its scheduler
    and its step as well."""
    folder = trained["folder"]
    path = {
        "torch": folder / "a.pt",
        "dcp": folder / "dcp",
        "universal": tmp_path / "a",
        "safetensors": tmp_path / "a.safetensors",
    }[source]
    if not path.exists():
        deepspeed.convert(folder / "dcp", path, "--to", source)
    words = ["--dtype", "BF16"] if dtype == "bf16" else []
    words += ["--zero", zero, "--dp", str(ranks), "--job", str(folder / "job.json")]
    deepspeed.convert(path, tmp_path / "b", "--to", "deepspeed", *words)
    stage = 1 if zero == "bf16" else int(zero)
    loaded = deepspeed.run_job(
        "load",
        ranks,
        tmp_path / "b",
        tmp_path / "b.pt",
        stage=stage,
        dtype=dtype,
        config=config,
        client=False,
    )
    assert_loaded(trained["truth"], loaded, torch.bfloat16 if dtype == "bf16" else torch.float32)
    assert loaded["step"] == STEPS


@pytest.mark.parametrize(
    "source, zero, ranks, dtype, config",
    [
        ("torch", "1", 2, "fp32", {}),
        ("dcp", "2", 1, "bf16", {}),
        ("dcp", "3", 2, "bf16", {}),
        ("dcp", "bf16", 2, "bf16", BF16),
    ],
)
def test_loads_universal(
    tmp_path: pathlib.Path,
    trained: dict[str, Any],
    source: str,
    zero: str,
    ranks: int,
    dtype: str,
    config: dict[str, Any],
) -> None:
    """The universal form is made of what DeepSpeed did not save as well, and at any number of ranks
    DeepSpeed then holds it."""
    path = trained["folder"] / {"torch": "a.pt", "dcp": "dcp"}[source]
    words = ["--dtype", "BF16"] if dtype == "bf16" else []
    deepspeed.convert(
        path,
        tmp_path / "b",
        "--to",
        "deepspeed-universal",
        "--zero",
        zero,
        "--job",
        trained["folder"] / "job.json",
        *words,
    )
    loaded = deepspeed.run_job(
        "load",
        ranks,
        tmp_path / "b",
        tmp_path / "b.pt",
        stage=1 if zero == "bf16" else int(zero),
        dtype=dtype,
        config=config,
        universal=True,
        client=False,
    )
    for kind in ("fp32", "exp_avg", "exp_avg_sq"):
        assert trained["truth"][kind].keys() == loaded[kind].keys()
        for name, tensor in trained["truth"][kind].items():
            assert torch.equal(tensor, loaded[kind][name]), f"{kind} of {name} differs"
            trained_as = loaded["module"][name]
            assert torch.equal(loaded["fp32"][name].to(trained_as.dtype), trained_as), name
    lr = trained["truth"]["lr"]  # with ZeRO 3 DeepSpeed gives all groups those of the first
    assert loaded["step"] == STEPS and loaded["lr"] == (lr[:1] * len(lr) if zero == "3" else lr)
    assert loaded["optimizer_step"] == trained["truth"]["optimizer_step"]


@pytest.mark.parametrize("zero", ["1", "2", "3", "bf16"])
def test_ways(tmp_path: pathlib.Path, trained: dict[str, Any], zero: str) -> None:
    """There and back everything is what it was, what is nothing to DeepSpeed as well; and by way of
    another format the files are the same."""
    folder = trained["folder"]
    made = ["--to", "deepspeed", "--zero", zero, "--dp", 3, "--job", folder / "job.json"]
    deepspeed.convert(folder / "dcp", tmp_path / "b", *made)
    deepspeed.convert(folder / "dcp", tmp_path / "c", "--to", "universal")
    deepspeed.convert(tmp_path / "c", tmp_path / "by_c", *made)
    files = sorted(
        path.relative_to(tmp_path / "b") for path in (tmp_path / "b").rglob("*") if path.is_file()
    )
    assert len(files) == (7 if zero == "3" else 5)
    for file in files:
        assert (tmp_path / "b" / file).read_bytes() == (tmp_path / "by_c" / file).read_bytes(), file
    deepspeed.convert(
        tmp_path / "b", tmp_path / "back", "--to", "dcp", "--dp", 1, "--drop", "deepspeed/*,fp32.*"
    )
    same = deepspeed.cairn("diff", folder / "dcp", tmp_path / "back", "--bits")
    assert same.returncode == 0, same.stdout + same.stderr
    deepspeed.convert(tmp_path / "b", tmp_path / "other_ranks", "--to", "deepspeed", "--dp", 2)
    same = deepspeed.cairn("diff", tmp_path / "b", tmp_path / "other_ranks", "--bits")
    assert same.returncode == 0, same.stdout + same.stderr
    deepspeed.convert(folder / "a.pt", tmp_path / "t", *made)
    deepspeed.convert(tmp_path / "t", tmp_path / "t_other_ranks", "--to", "deepspeed", "--dp", 2)
    same = deepspeed.cairn("diff", tmp_path / "t", tmp_path / "t_other_ranks", "--bits")
    assert same.returncode == 0, same.stdout + same.stderr
    (path, *_) = sorted((tmp_path / "t_other_ranks").glob("*/*model_states.pt"))
    state = torch.load(path, weights_only=False)
    kept = torch.load(folder / "a.pt", weights_only=False)
    assert torch.equal(state["cairn_carried"]["buffer"]["rng"], kept["rng"])
    assert state["lr_scheduler"] == kept["lr_scheduler"] and state["global_steps"] == STEPS


def test_plain_steps(tmp_path: pathlib.Path, trained: dict[str, Any]) -> None:
    """Steps that are plain numbers, of parameters or of groups, are the optimizer's, in any
    job counts; where they differ, no file can say them."""
    state = torch.load(trained["folder"] / "a.pt", weights_only=False)
    numbered, moments = state["optimizer"], state["optimizer"]["state"]
    (tmp_path / "job.json").write_text(
        json.dumps(
            {**json.loads((trained["folder"] / "job.json").read_text()), "global_steps": 100}
        )
    )

    def made() -> list[Any]:
        torch.save(state, tmp_path / "a.pt")
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        deepspeed.convert(
            tmp_path / "a.pt",
            tmp_path / "out",
            "--to",
            "deepspeed",
            "--zero",
            "1",
            "--dp",
            1,
            "--job",
            tmp_path / "job.json",
        )
        (path,) = (tmp_path / "out").glob("*/*optim_states.pt")
        base = torch.load(path, weights_only=False)["optimizer_state_dict"]["base_optimizer_state"][
            "state"
        ]
        return [entry["step"] for entry in base.values()]

    assert made() == [STEPS] * 2
    for entry in moments.values():
        entry["step"] = 7
    assert made() == [7] * 2
    state["second"] = {
        "state": {
            number: {"step": 5, "exp_avg": entry["exp_avg"] + 1}
            for number, entry in moments.items()
        }
    }
    # other optimizers, whose steps are not the first one's
    state["third"] = {"state": {0: {"step": 3}}}
    assert made() == [7] * 2
    del state["second"], state["third"]
    moments[0]["step"] = 8
    torch.save(state, tmp_path / "a.pt")
    refused = deepspeed.cairn(
        "convert",
        tmp_path / "a.pt",
        tmp_path / "no",
        "--to",
        "deepspeed",
        "--zero",
        "1",
        "--dp",
        1,
        "--job",
        tmp_path / "job.json",
    )
    assert (
        refused.returncode == 64
        and "one count" in refused.stderr
        and not (tmp_path / "no").exists()
    )
    for entry in moments.values():
        del entry["step"]
    assert made() == [100] * 2
    for group in numbered["param_groups"]:
        group["step"] = 9
    assert made() == [9] * 2
    state["state"] = {"step": 1000}  # the script's own, and no parameter's
    state["trainer"] = {"state": {"step": 2000, "loader": {"step": 3000}}}
    assert made() == [9] * 2


def test_rounded(tmp_path: pathlib.Path, trained: dict[str, Any]) -> None:
    """ZeRO 3 omits parameters equal to their rounded masters and refuses all others."""
    folder = trained["folder"]
    job = ["--dp", 2, "--job", folder / "job.json"]
    deepspeed.convert(
        folder / "dcp", tmp_path / "two", "--to", "deepspeed", "--zero", 2, "--dtype", "BF16", *job
    )
    again = ["--to", "deepspeed", "--drop", "deepspeed/*", "--zero", 3, *job]
    deepspeed.convert(tmp_path / "two", tmp_path / "three", *again)
    deepspeed.convert(
        tmp_path / "three",
        tmp_path / "back",
        "--to",
        "torch",
        "--dtype",
        "BF16",
        "--drop",
        "deepspeed/*,fp32.*",
    )
    weights = torch.load(tmp_path / "back", weights_only=False)["model"]
    for name, tensor in trained["truth"]["module"].items():
        assert torch.equal(
            weights[name], tensor.bfloat16() if tensor.is_floating_point() else tensor
        ), name
    # with masters beside them, parameters are cast and masters are not
    deepspeed.convert(
        tmp_path / "three",
        tmp_path / "both",
        "--to",
        "torch",
        "--dtype",
        "BF16",
        "--drop",
        "deepspeed/*",
    )
    both = torch.load(tmp_path / "both", weights_only=False)
    masters = [state["fp32"] for state in both["optimizer"]["state"].values()]
    for name, tensor in trained["truth"]["fp32"].items():
        assert torch.equal(both["model"][name], tensor.bfloat16()), name
        assert any(torch.equal(master, tensor) for master in masters), name
    path = tmp_path / "two" / f"global_step{STEPS}" / "mp_rank_00_model_states.pt"
    state = torch.load(path, weights_only=False)
    state["module"]["down.weight"][3, 5] += 1
    torch.save(state, path)
    refused = deepspeed.cairn("convert", tmp_path / "two", tmp_path / "off", *again)
    assert (
        refused.returncode == 64 and "down.weight: has other elements" in refused.stderr
    ), refused.stderr
    assert not (tmp_path / "off" / "latest").exists()


def test_refused(tmp_path: pathlib.Path, trained: dict[str, Any]) -> None:
    """The refusal names each missing option and each missing tensor."""
    folder = trained["folder"]
    job = json.loads((folder / "job.json").read_text())

    def attempt(code: int, said: str, *words: Any, source: str = "a.pt", **changes: Any) -> None:
        changed = {key: value for key, value in {**job, **changes}.items() if value is not None}
        (tmp_path / "job.json").write_text(json.dumps(changed))
        done = deepspeed.cairn(
            "convert", folder / source, tmp_path / "out", "--to", "deepspeed", *words
        )
        assert done.returncode == code and said in done.stderr, done.stderr
        assert not (tmp_path / "out").exists()

    said = ["--job", tmp_path / "job.json"]
    attempt(64, "--zero", *said)
    attempt(64, "--zero 4: expected", "--zero", 4, *said)
    attempt(64, "--job FILE", "--zero", 2)  # groups by number
    attempt(64, "frozen is not trained", "--zero", 3, *said, frozen=None)
    attempt(
        65,
        "has no step.frozen",
        "--zero",
        2,
        *said,
        source="dcp",
        param_groups=[{"params": ["up.weight", "frozen"], "lr": 1.0}],
    )
    attempt(
        65, "has no exp_avg.embed.weight", "--zero", 2, *said, "--drop", "exp_avg*", source="dcp"
    )
    attempt(65, "nowhere", "--zero", 2, *said, param_groups=[{"params": ["nowhere"], "lr": 1.0}])
    attempt(
        65,
        "duplicate up.bias",
        "--zero",
        2,
        *said,
        source="dcp",
        param_groups=[{"params": ["up.bias", "up.bias"], "lr": 1.0}],
    )
    attempt(64, "unknown lr of group 0", "--zero", 2, *said, param_groups=[{"params": ["up.bias"]}])
    attempt(65, "unknown key", "--zero", 2, *said, groups=[])
    (tmp_path / "job.json").write_text('{"frozen": [1, }')
    broken = deepspeed.cairn(
        "convert", folder / "dcp", tmp_path / "out", "--to", "deepspeed", "--zero", 2, *said
    )
    assert broken.returncode == 65 and "at byte 15" in broken.stderr, broken.stderr
