"""Checkpoints of DeepSpeed's MoE layers, whose experts are spread over ranks: every expert's
weights, masters and moments are compared bit for bit with what each rank held, and DeepSpeed's own
engine loads what is made for other ranks, and for another spread.
"""

import json
import pathlib
import shutil
from typing import Any, Callable

import pytest
import safetensors.torch
import torch

import test_convert_deepspeed as deepspeed

EXPERTS = deepspeed.ROOT / "tests" / "interop" / "deepspeed_experts.py"
KINDS = ("module", "fp32", "exp_avg", "exp_avg_sq")
FIRST = "global_step3/layer_0_expert_3_mp_rank_00_model_states.pt"
SECOND = "global_step3/layer_1_expert_7_mp_rank_00_model_states.pt"
pytestmark = deepspeed.pytestmark


def run(mode: str, ranks: int, folder: pathlib.Path, **job: Any) -> dict[str, torch.Tensor]:
    """Return the state of all ranks by canonical name; checks that duplicates are equal."""
    truth = folder.with_name(f"{folder.name}.{mode}")
    deepspeed.run_ranks(
        ranks, EXPERTS, mode, json.dumps({**job, "dir": str(folder), "truth": str(truth)})
    )
    held: dict[str, torch.Tensor] = {}
    for rank in range(ranks):
        found = torch.load(truth / f"{rank}.pt", weights_only=False)
        assert found["optimizer_step"] == [3.0]
        for kind in KINDS:
            for name, tensor in found[kind].items():
                key = name if kind == "module" else f"{kind}.{name}"
                assert torch.equal(held.setdefault(key, tensor), tensor), f"{key} of rank {rank}"
    return held


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype and torch.equal(tensor, right[name]), name


def assert_same_files(left: pathlib.Path, right: pathlib.Path, tag: str = "global_step3") -> None:
    def compare(a: Any, b: Any, where: str) -> None:
        if torch.is_tensor(a):
            assert a.dtype == b.dtype and torch.equal(a, b), where
        elif isinstance(a, dict):
            assert list(a) == list(b), where
            for key in a:
                compare(a[key], b[key], f"{where}/{key}")
        elif isinstance(a, (list, tuple)):
            assert len(a) == len(b), where
            for number, pair in enumerate(zip(a, b)):
                compare(*pair, f"{where}/{number}")
        elif hasattr(a, "__dict__") and not isinstance(a, int):
            compare(vars(a), vars(b), where)
        else:
            assert a == b, where

    names = sorted(path.name for path in left.glob(f"{tag}/*.pt"))
    assert names == sorted(path.name for path in right.glob(f"{tag}/*.pt"))
    for name in names:
        compare(
            *[torch.load(folder / tag / name, weights_only=False) for folder in (left, right)], name
        )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Four ranks, experts spread over two of them: ZeRO 2 in bf16."""
    folder = tmp_path_factory.mktemp("experts") / "a"
    return {"folder": folder, "held": run("save", 4, folder, stage=2, dtype="bf16", experts=2)}


def test_spread(tmp_path: pathlib.Path, saved: dict[str, Any]) -> None:
    """Each expert is what its ranks held, and DeepSpeed loads the same for fewer ranks, experts not
    spread; by way of another format, and by way of another spread, the files are those that
    DeepSpeed wrote."""
    deepspeed.convert(
        saved["folder"],
        tmp_path / "a.safetensors",
        "--to",
        "safetensors",
        "--drop",
        "*deepspeed/*,step.*",
    )
    assert_equal(saved["held"], safetensors.torch.load_file(tmp_path / "a.safetensors"))
    deepspeed.convert(saved["folder"], tmp_path / "t", "--to", "torch")
    model = torch.load(tmp_path / "t", weights_only=False)["model"]
    for name, tensor in model.items():
        assert torch.equal(tensor, saved["held"][name]), name
    deepspeed.convert(saved["folder"], tmp_path / "u", "--to", "universal")
    deepspeed.convert(tmp_path / "u", tmp_path / "b", "--to", "deepspeed", "--dp", 2, "--ep", 1)
    assert_equal(saved["held"], run("load", 2, tmp_path / "b", stage=2, dtype="bf16", experts=1))
    for source in ("u", "b"):
        deepspeed.convert(
            tmp_path / source,
            tmp_path / f"{source}_back",
            "--to",
            "deepspeed",
            "--dp",
            4,
            "--ep",
            2,
        )
        assert_same_files(saved["folder"], tmp_path / f"{source}_back")
    for ranks, spread in ((8, 4), (1, 1)):
        deepspeed.convert(
            tmp_path / "b",
            tmp_path / f"c{ranks}",
            "--to",
            "deepspeed",
            "--dp",
            ranks,
            "--ep",
            spread,
        )
        same = deepspeed.cairn("diff", saved["folder"], tmp_path / f"c{ranks}", "--bits")
        assert same.returncode == 0, same.stdout + same.stderr


def test_other_ranks(tmp_path: pathlib.Path) -> None:
    """BF16_Optimizer, with the ranks of the same experts next to each other: from one rank to four,
    experts spread over two."""
    config = {
        "data_types": {"grad_accum_dtype": "fp32"},
        "use_data_before_expert_parallelism": True,
    }
    job = {"stage": 1, "dtype": "bf16", "config": config}
    held = run("save", 1, tmp_path / "a", experts=1, **job)
    deepspeed.convert(tmp_path / "a", tmp_path / "b", "--to", "deepspeed", "--dp", 4, "--ep", 2)
    assert_equal(held, run("load", 4, tmp_path / "b", experts=2, **job))
    deepspeed.convert(tmp_path / "b", tmp_path / "c", "--to", "deepspeed", "--dp", 1, "--ep", 1)
    assert_same_files(tmp_path / "a", tmp_path / "c")


def test_pipeline(tmp_path: pathlib.Path) -> None:
    """Two stages with experts each, which are spread over two ranks: for ranks that have all
    experts, and back, the files are those that DeepSpeed wrote; it loads those that were made, and
    saves the same state again."""
    deepspeed.run_ranks(4, deepspeed.PIPELINE, "save", 2, tmp_path / "a")
    deepspeed.convert(
        tmp_path / "a", tmp_path / "a.safetensors", "--to", "safetensors", "--drop", "*deepspeed/*"
    )
    found = safetensors.torch.load_file(tmp_path / "a.safetensors")
    (tag,) = [child for child in (tmp_path / "a").iterdir() if child.is_dir()]
    files = sorted(tag.glob("layer_*"))
    assert len(files) == 2 * 4
    for path in files:
        for name, tensor in torch.load(path).items():
            assert torch.equal(tensor, found[name]), name
            assert (
                ".scale" in name
                or ".seen" in name
                or torch.equal(tensor, found[f"fp32.{name}"].bfloat16())
            ), name
    deepspeed.convert(tmp_path / "a", tmp_path / "u", "--to", "universal")
    deepspeed.convert(tmp_path / "u", tmp_path / "b", "--to", "deepspeed", "--dp", 1, "--ep", 1)
    deepspeed.convert(tmp_path / "b", tmp_path / "back", "--to", "deepspeed", "--dp", 2, "--ep", 2)
    assert_same_files(tmp_path / "a", tmp_path / "back", tag.name)
    deepspeed.run_ranks(2, deepspeed.PIPELINE, "load", 1, tmp_path / "b", tmp_path / "c")
    report = deepspeed.cairn("diff", tmp_path / "a", tmp_path / "c", "--bits").stdout
    # what counts samples and ranks
    assert all("deepspeed/" in line for line in report.splitlines()[:-1]), report
    refused = deepspeed.cairn(
        "convert", tmp_path / "a", tmp_path / "out", "--to", "deepspeed", "--dp", 3, "--ep", 2
    )
    assert refused.returncode == 64 and "a multiple of --ep" in refused.stderr


def test_refused(tmp_path: pathlib.Path, saved: dict[str, Any]) -> None:
    """What is missing, does not fit together, or cannot be loaded as it is asked for is refused by
    name, and nothing is written."""

    def attempt(code: int, said: str, change: Callable[[pathlib.Path], Any], *words: Any) -> None:
        shutil.rmtree(tmp_path / "broken", ignore_errors=True)
        shutil.copytree(saved["folder"], tmp_path / "broken")
        change(tmp_path / "broken")
        done = deepspeed.cairn(
            "convert", tmp_path / "broken", tmp_path / "out", "--to", *(words or ["torch"])
        )
        assert done.returncode == code and said in done.stderr, done.stderr
        assert not (tmp_path / "out").exists()

    def edit(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[pathlib.Path], None]:
        def apply(folder: pathlib.Path) -> None:
            state = torch.load(folder / "global_step3" / name, weights_only=False)
            change(state)
            torch.save(state, folder / "global_step3" / name)

        return apply

    model, optim = "mp_rank_00_model_states.pt", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    expert = "second.deepspeed_moe.experts.deepspeed_experts.7.up.weight"
    attempt(
        65,
        "expert 3 of layer 1 is missing",
        lambda f: (f / SECOND.replace("expert_7", "expert_3")).unlink(),
    )
    attempt(65, "num_experts", lambda f: (f / SECOND).unlink())
    attempt(65, "num_experts", edit(model, lambda s: s["num_experts"].__setitem__(0, 8)))
    attempt(65, "another number of layers", edit(model, lambda s: s["num_experts"].pop()))
    attempt(
        65,
        "partition_count",
        edit(optim, lambda s: s["optimizer_state_dict"].__setitem__("partition_count", [4] * 4)),
    )
    attempt(65, expert, edit(pathlib.Path(SECOND).name, lambda s: s.pop(expert)))
    attempt(
        65,
        "has experts and other parameters",
        edit(model, lambda s: s["param_shapes"][2].update(s["param_shapes"][1])),
    )
    attempt(
        65,
        "as many experts each",
        edit(
            model,
            lambda s: s["param_shapes"][2].pop(
                "first.deepspeed_moe.experts.deepspeed_experts.1.up.weight"
            )
            and [
                s["param_shapes"][g].pop(n)
                for g in (2, 3)
                for n in list(s["param_shapes"][g])
                if "experts.3." in n
            ],
        ),
    )
    attempt(
        65,
        "tied parameter of an expert",
        edit(model, lambda s: s["shared_params"].update({expert: "between.weight"})),
    )
    attempt(
        65,
        "frozen parameter of an expert",
        edit(
            model,
            lambda s: [
                s[key].update({expert: torch.ones(2)})
                for key in ("frozen_param_shapes", "frozen_param_fragments")
            ],
        ),
    )
    attempt(
        65,
        "without ZeRO",
        lambda f: (f / "global_step3" / "expp_rank_0_mp_rank_00_optim_states.pt").touch(),
    )
    attempt(
        65,
        "expert 0 of layer 0 is missing",
        lambda f: (f / FIRST).rename(f / FIRST.replace("rank_00", "rank_01")),
    )
    attempt(64, "a multiple of --ep", lambda f: None, "deepspeed", "--dp", 3, "--ep", 2)
    attempt(64, "spread evenly", lambda f: None, "deepspeed", "--dp", 8, "--ep", 8)
    attempt(64, "universal form", lambda f: None, "deepspeed-universal")
    attempt(
        65, "without dropping", lambda f: None, "deepspeed", "--zero", 2, "--drop", "*deepspeed/*"
    )
