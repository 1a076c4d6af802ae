"""`cairn convert --map` against transformers and megatron-core: a model's weights under the other's
names compute the same logits in a real model of the other, come back byte for byte, and the
optimizer's state goes the same way.

Needs the command of a build (BUILD=folder, build/plain by default), transformers, and for the
logits build/venv-megatron.
"""

from __future__ import annotations

import copy
import json
import pathlib
import re
import shutil
import subprocess
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
safetensors_torch = pytest.importorskip(
    "safetensors.torch", reason="the safetensors package is not installed"
)
from convert_states import ROOT, cairn, same  # noqa: E402
import map_models  # noqa: E402

MEGATRON = ROOT / "build" / "venv-megatron" / "bin" / "python"
NUMBERS = {
    family: "heads=4" if family == "gpt2" else "heads=4,groups=2" for family in map_models.FAMILIES
}
EXPERTS = ["qwen3-moe", "mixtral"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """<family>/ as save_pretrained writes it, and <family>.logits."""
    folder = tmp_path_factory.mktemp("models")
    for family in map_models.FAMILIES:
        model = map_models.hugging_face(family)
        model.save_pretrained(folder / family)
        torch.save(map_models.logits(model), folder / f"{family}.logits")
    return folder


def tensors(folder: pathlib.Path) -> dict[str, torch.Tensor]:
    return safetensors_torch.load_file(folder / "model.safetensors")


def test_logits(models: pathlib.Path) -> None:
    """A real GPTModel takes exactly these tensors and computes what the Hugging Face model does."""
    if not MEGATRON.exists():
        pytest.skip("megatron-core is not installed in build/venv-megatron")
    for family in map_models.FAMILIES:
        cairn(
            "convert",
            models / family,
            models / f"{family}.pt",
            "--to",
            "torch",
            "--map",
            family,
            "--set",
            "norms=plain",
        )
    done = subprocess.run([MEGATRON, map_models.__file__, models], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    distances = json.loads(done.stdout.splitlines()[-1])
    assert distances.keys() == map_models.FAMILIES.keys()
    assert max(distances.values()) < 2e-6, distances


@pytest.mark.parametrize(
    ("family", "spelling"),
    [(family, "norms=fused") for family in map_models.FAMILIES]
    + [
        ("llama", "norms=plain"),
        ("gpt2", "norms=plain"),
        ("qwen3-moe", "norms=plain"),
        *((family, "expert_modules=grouped") for family in EXPERTS),
    ],
)
def test_back(models: pathlib.Path, tmp_path: pathlib.Path, family: str, spelling: str) -> None:
    there = json.loads(
        cairn(
            "convert",
            models / family,
            tmp_path / "there",
            "--to",
            "universal",
            "--map",
            family,
            "--set",
            spelling,
            "-o",
            "json",
        ).stdout
    )
    assert there["map"] == {"name": family, "from": "hf", "to": "megatron"}
    assert there["equal"] is True and there["mapped"] == len(tensors(models / family))
    cairn(
        "convert",
        tmp_path / "there",
        f"{tmp_path}/back/",
        "--to",
        "safetensors",
        "--map",
        family,
        "--set",
        NUMBERS[family],
    )
    same(tensors(models / family), tensors(tmp_path / "back"))
    cairn("diff", models / family, tmp_path / "back", "--bits")


@pytest.mark.parametrize("family", EXPERTS)
def test_grouped_files(models: pathlib.Path, tmp_path: pathlib.Path, family: str) -> None:
    """Files of ranks for grouped modules: what those for local experts hold, rank by rank, under
    the names and in the order in which Transformer Engine's grouped layers have their parameters.
    """
    sizes = ["--to", "megatron", "--tp", 2, "--ep", 2, "--map", family, "--set"]
    cairn(
        "convert",
        models / family,
        tmp_path / "local",
        *sizes,
        f"{NUMBERS[family]},expert_modules=local",
    )
    cairn(
        "convert",
        models / family,
        tmp_path / "grouped",
        *sizes,
        f"{NUMBERS[family]},expert_modules=grouped",
    )
    files = sorted((tmp_path / "local").glob("*/*/model_optim_rng.pt"))
    assert len(files) == 4
    seen = 0
    for path in files:
        left, right = (
            torch.load(tmp_path / form / path.relative_to(tmp_path / "local"), weights_only=False)[
                "model"
            ]
            for form in ("local", "grouped")
        )
        for name, tensor in right.items():
            found = re.fullmatch(r"(.*\.mlp\.experts\.)(linear_fc[12]\.weight)([0-9]+)", name)
            seen += bool(found)
            if tensor is not None:
                assert torch.equal(
                    tensor,
                    left[f"{found[1]}local_experts.{found[3]}.{found[2]}" if found else name],
                ), name
        numbered = [name for name in right if re.search(r"experts\.linear_fc[12]\.", name)]
        assert [name.rsplit("experts.", 1)[1] for name in numbered[:6]] == [
            "linear_fc1.weight0",
            "linear_fc1.weight1",
            "linear_fc1._extra_state",
            "linear_fc2.weight0",
            "linear_fc2.weight1",
            "linear_fc2._extra_state",
        ]
        assert not any("local_experts" in name for name in right)
        assert sum(tensor is not None for tensor in right.values()) == sum(
            tensor is not None for tensor in left.values()
        )
    assert seen > 0
    report = cairn("diff", tmp_path / "local", tmp_path / "grouped", status=1).stdout
    assert all(line.startswith("megatron/keys") for line in report.splitlines()[:-1]), report


def same_by_name(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    """Equal tensors, in any order."""
    same(dict(sorted(left.items())), dict(sorted(right.items())))


def trained(family: str) -> dict[str, Any]:
    """A model with its optimizer after three steps; experts as the model has them in memory:
    stacked."""
    model = map_models.hugging_face(family).train()
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        model(map_models.tokens()).logits.square().mean().backward()
        optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral"])
def test_optimizer(models: pathlib.Path, tmp_path: pathlib.Path, family: str) -> None:
    """Moments go where their parameters go: as if they were the parameters."""
    state = trained(family)
    torch.save(state, tmp_path / "in.pt")
    cairn(
        "convert",
        tmp_path / "in.pt",
        tmp_path / "there",
        "--to",
        "universal",
        "--map",
        family,
        "--set",
        NUMBERS[family],
    )
    cairn("convert", tmp_path / "there", tmp_path / "there.pt", "--to", "torch")
    there = torch.load(tmp_path / "there.pt", weights_only=True)
    names = [name for group in there["optimizer"]["param_groups"] for name in group["param_names"]]
    for key in "exp_avg", "exp_avg_sq":
        alone = {
            state["optimizer"]["param_groups"][0]["param_names"][number]: moments[key]
            for number, moments in state["optimizer"]["state"].items()
        }
        torch.save(alone, tmp_path / f"{key}.pt")
        cairn(
            "convert",
            tmp_path / f"{key}.pt",
            tmp_path / f"{key}.there.pt",
            "--to",
            "torch",
            "--map",
            family,
            "--set",
            NUMBERS[family],
        )
        mapped = torch.load(tmp_path / f"{key}.there.pt", weights_only=True)
        assert sorted(names) == sorted(mapped)
        same_by_name(
            mapped,
            {name: there["optimizer"]["state"][number][key] for number, name in enumerate(names)},
        )
    assert {float(moments["step"]) for moments in there["optimizer"]["state"].values()} == {3.0}
    spelling = ",experts=stacked" if family in EXPERTS else ""
    cairn(
        "convert",
        tmp_path / "there",
        tmp_path / "back.pt",
        "--to",
        "torch",
        "--map",
        family,
        "--set",
        NUMBERS[family] + spelling,
    )
    back = torch.load(tmp_path / "back.pt", weights_only=True)
    same_by_name(state["model"], back["model"])
    old, new = state["optimizer"], back["optimizer"]
    by_name = {
        name: new["state"][number]
        for number, name in zip(
            new["param_groups"][0]["params"], new["param_groups"][0]["param_names"], strict=True
        )
    }
    for number, name in enumerate(old["param_groups"][0]["param_names"]):
        same_by_name(old["state"][number], by_name[name])


def test_steps_of_parts_must_be_equal(tmp_path: pathlib.Path) -> None:
    state = trained("llama")
    group = state["optimizer"]["param_groups"][0]
    number = group["param_names"].index("model.layers.1.self_attn.k_proj.weight")
    state["optimizer"]["state"][number]["step"] = torch.tensor(2.0)
    torch.save(state, tmp_path / "in.pt")
    done = cairn(
        "convert",
        tmp_path / "in.pt",
        tmp_path / "out",
        "--to",
        "universal",
        "--map",
        "llama",
        "--set",
        NUMBERS["llama"],
        status=65,
    )
    for words in (
        "the map llama",
        "decoder.layers.1.self_attention.linear_qkv.weight",
        "whose step",
        "it is 3 in",
        "and 2 in",
        "in.pt at byte",
    ):
        assert words in done.stderr, done.stderr
    assert not (tmp_path / "out" / "COMMIT").exists()
    assert "--drop 'step.*'" in done.stderr
    cairn(
        "convert",
        tmp_path / "in.pt",
        tmp_path / "out",
        "--to",
        "universal",
        "--map",
        "llama",
        "--set",
        NUMBERS["llama"],
        "--drop",
        "step.*",
    )


def test_any_way_is_the_same(models: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Mapped at once, or out of shards of a distributed checkpoint."""
    at_once = json.loads(
        cairn(
            "convert",
            models / "qwen3-moe",
            tmp_path / "at_once.pt",
            "--to",
            "torch",
            "--map",
            "qwen3-moe",
            "-o",
            "json",
        ).stdout
    )
    cairn("convert", models / "qwen3-moe", tmp_path / "dcp", "--to", "dcp", "--dp", 5)
    sharded = json.loads(
        cairn(
            "convert",
            tmp_path / "dcp",
            tmp_path / "sharded.pt",
            "--to",
            "torch",
            "--map",
            "qwen3-moe",
            "--set",
            NUMBERS["qwen3-moe"],
            "-o",
            "json",
        ).stdout
    )
    assert at_once["fingerprint_target"] == sharded["fingerprint_target"]
    cairn("diff", tmp_path / "at_once.pt", tmp_path / "sharded.pt", "--bits")


def test_vocabulary(models: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Padded with zeros where that is asked for, and cut again."""
    cairn(
        "convert",
        models / "llama",
        tmp_path / "there.pt",
        "--to",
        "torch",
        "--map",
        "llama",
        "--set",
        "padded_vocab=128",
    )
    there = torch.load(tmp_path / "there.pt", weights_only=True)
    for name in "embedding.word_embeddings.weight", "output_layer.weight":
        assert there[name].shape == (128, 32) and not there[name][96:].any()
    there["embedding.word_embeddings.weight"][96:] = float("nan")
    torch.save(there, tmp_path / "poisoned.pt")
    done = cairn(
        "convert",
        tmp_path / "poisoned.pt",
        f"{tmp_path}/back/",
        "--to",
        "safetensors",
        "--map",
        "llama",
        "--set",
        NUMBERS["llama"] + ",vocab=96",
    )
    assert "left out as padding" in done.stderr
    same(tensors(models / "llama"), tensors(tmp_path / "back"))


def test_norm_before_experts(models: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Megatron-Core's local spec has the norm before experts in a distributed checkpoint as a part
    of linear_fc1, Transformer Engine as a module: both are read."""
    cairn("convert", models / "mixtral", tmp_path / "in.pt", "--to", "torch", "--map", "mixtral")
    state = torch.load(tmp_path / "in.pt", weights_only=True)
    renamed = {
        name.replace(".pre_mlp_layernorm.", ".mlp.linear_fc1.layer_norm_"): tensor
        for name, tensor in state.items()
    }
    assert set(renamed) != set(state)
    torch.save(renamed, tmp_path / "renamed.pt")
    cairn(
        "convert",
        tmp_path / "renamed.pt",
        f"{tmp_path}/back/",
        "--to",
        "safetensors",
        "--map",
        "mixtral",
        "--set",
        NUMBERS["mixtral"],
    )
    same(tensors(models / "mixtral"), tensors(tmp_path / "back"))


def test_tied(tmp_path: pathlib.Path) -> None:
    """Weights that share their storage do so under their new names."""
    torch.save(map_models.hugging_face("qwen2").state_dict(), tmp_path / "in.pt")
    cairn(
        "convert",
        tmp_path / "in.pt",
        tmp_path / "out.pt",
        "--to",
        "torch",
        "--map",
        "qwen2",
        "--set",
        NUMBERS["qwen2"],
    )
    out = torch.load(tmp_path / "out.pt", weights_only=True)
    assert (
        out["output_layer.weight"].data_ptr() == out["embedding.word_embeddings.weight"].data_ptr()
    )


def test_rotation(models: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Meta's order of the elements of a head, against the permutation of Hugging Face's own script
    for converting it."""
    cairn("convert", models / "llama", tmp_path / "meta.pt", "--to", "torch", "--map", "llama-meta")
    meta, state = torch.load(tmp_path / "meta.pt", weights_only=True), tensors(models / "llama")
    for theirs, ours, heads in (("wq", "q", 4), ("wk", "k", 2)):
        weight = meta[f"layers.1.attention.{theirs}.weight"]
        rows, columns = weight.shape
        permuted = (
            weight.view(heads, rows // heads // 2, 2, columns)
            .transpose(1, 2)
            .reshape(rows, columns)
        )
        same(state[f"model.layers.1.self_attn.{ours}_proj.weight"], permuted)
    cairn(
        "convert",
        tmp_path / "meta.pt",
        f"{tmp_path}/back/",
        "--to",
        "safetensors",
        "--map",
        "llama-meta",
        "--set",
        NUMBERS["llama"],
    )
    same(state, tensors(tmp_path / "back"))


def test_arguments_of_megatron(models: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The numbers are those of the checkpoint's own arguments."""
    import argparse

    for family, groups in (
        ("llama", {"num_query_groups": 2, "group_query_attention": True}),
        ("gpt2", {"num_query_groups": 1, "group_query_attention": False}),
    ):
        cairn(
            "convert", models / family, tmp_path / f"{family}.pt", "--to", "torch", "--map", family
        )
        arguments = argparse.Namespace(num_attention_heads=4, kv_channels=8, **groups)
        state = {
            "model": torch.load(tmp_path / f"{family}.pt", weights_only=True),
            "iteration": 7,
            "args": arguments,
        }
        torch.save(state, tmp_path / "megatron.pt")
        cairn(
            "convert",
            tmp_path / "megatron.pt",
            f"{tmp_path}/{family}/",
            "--to",
            "safetensors",
            "--map",
            family,
        )
        same(tensors(models / family), tensors(tmp_path / family))
        arguments.kv_channels = 4  # which the shapes contradict, though the heads would divide them
        torch.save(state, tmp_path / "megatron.pt")
        done = cairn(
            "convert",
            tmp_path / "megatron.pt",
            tmp_path / "no",
            "--to",
            "safetensors",
            "--map",
            family,
            status=64,
        )
        assert "linear_qkv" in done.stderr and "head_dim = 4" in done.stderr


def test_refusals(models: pathlib.Path, tmp_path: pathlib.Path) -> None:
    def refused(
        state: dict[str, torch.Tensor],
        status: int,
        *words: str,
        options: tuple[str, ...] = ("--set", NUMBERS["llama"]),
        map_: str | pathlib.Path = "llama",
    ) -> None:
        torch.save(state, tmp_path / "in.pt")
        done = cairn(
            "convert",
            tmp_path / "in.pt",
            tmp_path / "out.pt",
            "--to",
            "torch",
            "--map",
            map_,
            *options,
            status=status,
        )
        for word in words:
            assert word in done.stderr, done.stderr
        assert not (tmp_path / "out.pt").exists()

    whole = tensors(models / "llama")
    part = "model.layers.1.self_attn.k_proj.weight"
    refused(
        {**whole, "model.new": torch.zeros(2)}, 64, "1 tensor is unknown", "model.new", "--drop"
    )
    refused(
        {name: tensor for name, tensor in whole.items() if name != part}, 65, part, "is missing"
    )
    refused({**whole, part: whole[part].half()}, 64, part, "F16")
    refused(
        {**whole, part: whole[part][:15].clone()},
        64,
        part,
        "[15, 32]",
        "cannot be groups*head_dim",
        "groups = 2",
    )
    refused(whole, 64, "heads", "multiple", options=("--set", "heads=5,groups=2"))
    refused(whole, 64, "--set", "heads=N", "norms=fused", options=("--set", "depth=3"))
    refused(whole, 64, "--set groups=N", "beside a single file none is looked for", options=())
    refused({"weight": torch.zeros(2)}, 64, "the right map")
    # half the heads and half the groups fit all shapes, with heads of twice the rows: the plan says
    # what was assumed
    torch.save(whole, tmp_path / "in.pt")
    halved = (
        "convert",
        tmp_path / "in.pt",
        tmp_path / "out.pt",
        "--to",
        "torch",
        "--map",
        "llama",
        "--dry-run",
        "--set",
    )
    assert (
        "head_dim: is 16 by the shapes, given heads = 2, groups = 1"
        in cairn(*halved, "heads=2,groups=1").stderr
    )
    assert "by the shapes" not in cairn(*halved, "heads=4,groups=2,head_dim=8").stderr
    refused(whole, 65, "neither a file nor", "qwen3-moe", map_="lama")
    (tmp_path / "own.map").write_text("sides a b\nx [n, m]\n  = y [m, n*]\n")
    refused(whole, 65, "own.map, line 3, column 13", map_=tmp_path / "own.map", options=())


def test_own_map(models: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A preset with a rule more; the source is what is left."""
    state = copy.deepcopy(tensors(models / "llama"))
    state["model.layers.0.adapter"] = torch.randn(6, 5)
    folder = tmp_path / "in"
    shutil.copytree(models / "llama", folder)
    safetensors_torch.save_file(state, folder / "model.safetensors")
    own = tmp_path / "own.map"
    own.write_text(
        "include llama\n\nmodel.layers.{l}.adapter [in, out] = decoder.layers.{l}.adapter.weight "
        "[out, in]\n"
    )
    cairn("convert", folder, tmp_path / "out.pt", "--to", "torch", "--map", own)
    out = torch.load(tmp_path / "out.pt", weights_only=True)
    same(out["decoder.layers.0.adapter.weight"], state["model.layers.0.adapter"].t().contiguous())
    cairn(
        "convert",
        folder,
        tmp_path / "less.pt",
        "--to",
        "torch",
        "--map",
        "llama",
        "--drop",
        "*.adapter",
    )
    assert "decoder.layers.0.adapter.weight" not in torch.load(
        tmp_path / "less.pt", weights_only=True
    )
