"""Checkpoints that DeepSpeed itself made, converted, and loaded by DeepSpeed itself: every
parameter, master weight and moment is compared bit for bit, and other state with what was
saved.

DeepSpeed has a virtual environment of its own beside that of the other programs, whose torch it
uses, so that what it installs (einops, hjson, msgpack, ninja, py-cpuinfo, and a newer setuptools)
changes nothing for them:

    python3 -m venv build/venv-deepspeed
    echo "$PWD/build/venv/lib/python3.11/site-packages" >
    build/venv-deepspeed/lib/python3.11/site-packages/shared.pth DS_BUILD_OPS=0 DS_ACCELERATOR=cpu
    build/venv-deepspeed/bin/pip install deepspeed==0.19.8

`make interop` does that: one minute, 49 MB; nothing is compiled. Where it is not there, everything
here is skipped.
"""

import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import forking
import pytest
import safetensors.torch
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
CAIRN = ROOT / "build" / "plain" / "cairn"
PYTHON = ROOT / "build" / "venv-deepspeed" / "bin" / "python"
TRAINER = ROOT / "tests" / "interop" / "deepspeed_trainer.py"
PIPELINE = ROOT / "tests" / "interop" / "deepspeed_pipeline.py"
TENSOR = ROOT / "tests" / "interop" / "deepspeed_tensor.py"

# torch.load of DeepSpeed's files imports its classes
sys.path += map(str, (ROOT / "build" / "venv-deepspeed" / "lib").glob("python3*/site-packages"))
sys.path.insert(0, str(ROOT / "tests" / "cluster"))
os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["OMP_NUM_THREADS"] = "1"

import harness  # noqa: E402

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "deepspeed_trainer",
        "deepspeed_pipeline",
        "deepspeed_tensor",
        "deepspeed_experts",
        "torch._dynamo",
        "torch._inductor.compile_fx",
        # the latter are imported by each rank otherwise
        "deepspeed.runtime.zero.muon.muon_optimizer",
    ]
)

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="DeepSpeed is not installed in build/venv-deepspeed (see this file)"
)


def run_ranks(ranks: int, program: pathlib.Path, *words: Any) -> None:
    """Runs a program of DeepSpeed in so many processes, forks of one that has imported it."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [pathlib.Path(folder, str(rank)) for rank in range(ranks)]
        port = harness.free_ports(1)[0]
        processes = [
            PROCESSES.Process(
                target=forking.run_rank,
                args=(program.stem, rank, ranks, port, str(output), *map(str, words)),
            )
            for rank, output in enumerate(outputs)
        ]
        for process in processes:
            process.start()
        try:  # until all have ended, or one has failed: the others would wait for it
            running = set(processes)
            while running and all(process.exitcode in (0, None) for process in processes):
                if not multiprocessing.connection.wait(
                    [process.sentinel for process in running], timeout=600
                ):
                    break
                running = {process for process in running if process.exitcode is None}
            ended = all(process.exitcode == 0 for process in processes)
        finally:
            for process in processes:
                process.kill()
                process.join()
        assert ended, "\n".join(
            output.read_text(errors="replace")[-4000:] for output in outputs if output.exists()
        )


def run_job(
    mode: str, ranks: int, folder: pathlib.Path, truth: pathlib.Path, **job: Any
) -> dict[str, Any]:
    """Runs a DeepSpeed job of `ranks` processes that saves into, or loads from, `folder`; gives
    what it then held."""
    run_ranks(
        ranks,
        TRAINER,
        mode,
        json.dumps({"dtype": "bf16", "steps": 3, **job, "dir": str(folder), "truth": str(truth)}),
    )
    return torch.load(truth, weights_only=False)


def cairn(*words: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(CAIRN), *map(str, words)], text=True, capture_output=True, timeout=300
    )


def convert(source: pathlib.Path, target: pathlib.Path, *words: Any) -> None:
    done = cairn("convert", source, target, *words)
    assert done.returncode == 0, done.stderr + done.stdout


def assert_same(
    left: dict[str, Any],
    right: dict[str, Any],
    what: tuple[str, ...] = ("module", "fp32", "exp_avg", "exp_avg_sq"),
) -> None:
    for kind in what:
        assert left[kind].keys() == right[kind].keys()
        for name, tensor in left[kind].items():
            assert tensor.dtype == right[kind][name].dtype, f"{kind} {name}"
            assert torch.equal(tensor, right[kind][name]), f"{kind} of {name} differs"
    for key in ("step", "lr", "optimizer_step"):
        assert left[key] == right[key]


def poison(folder: pathlib.Path) -> int:
    """Fills every padding of the flat buffers with NaN; gives how many elements that were."""
    (tag,) = [child for child in folder.iterdir() if child.is_dir()]
    ranks = sorted(
        tag.glob("*optim_states.pt"),
        key=lambda path: int(path.name.split("rank_")[1].split("_")[0]),
    )
    model = torch.load(sorted(tag.glob("*model_states.pt"))[0], weights_only=False)
    poisoned = 0
    for rank, path in enumerate(ranks):
        state = torch.load(path, weights_only=False)
        optimizer = state["optimizer_state_dict"]
        three = int(optimizer.get("zero_stage", 1)) == 3
        base = optimizer["optimizer_state_dict" if three else "base_optimizer_state"]["state"]
        for index, shapes in enumerate(model["param_shapes"]):
            buffers = [base[index]["exp_avg"], base[index]["exp_avg_sq"]] + (
                [optimizer["fp32_flat_groups"][index]] if three else []
            )
            for buffer in buffers:
                at = 0
                if three:
                    for shape in shapes.values():
                        part = -(-shape.numel() // len(ranks))
                        used = max(0, min(part, shape.numel() - rank * part))
                        buffer.data[at + used : at + part] = float("nan")
                        poisoned += part - used
                        at += part
                else:
                    used = max(
                        0,
                        min(
                            buffer.numel(),
                            sum(shape.numel() for shape in shapes.values()) - rank * buffer.numel(),
                        ),
                    )
                    buffer.data[used:] = float("nan")
                    poisoned += buffer.numel() - used
        torch.save(state, path)
    return poisoned


@pytest.mark.parametrize(
    "stage, dtype, ranks, ranks_after, config",
    [
        (1, "fp32", 1, 3, {}),
        (1, "bf16", 2, 1, {"data_types": {"grad_accum_dtype": "fp32"}}),
        (2, "bf16", 3, 2, {}),
        (3, "bf16", 2, 3, {"zero_optimization": {"stage": 3, "sub_group_size": 180}}),
        (3, "fp32", 3, 1, {}),
    ],
)
def test_own_files(
    tmp_path: pathlib.Path,
    stage: int,
    dtype: str,
    ranks: int,
    ranks_after: int,
    config: dict[str, Any],
) -> None:
    """Another number of ranks: DeepSpeed loads what was made, and it is what was trained; back
    again it is the same checkpoint."""
    saved = run_job(
        "save", ranks, tmp_path / "a", tmp_path / "a.pt", stage=stage, dtype=dtype, config=config
    )
    if ranks > 1:
        assert poison(tmp_path / "a") > 0
    convert(tmp_path / "a", tmp_path / "b", "--to", "deepspeed", "--dp", ranks_after)
    for path in (tmp_path / "b").glob("*/*optim_states.pt"):
        for tensor in tensors_of(torch.load(path, weights_only=False)):
            assert not tensor.isnan().any(), f"padding came through in {path.name}"
    loaded = run_job(
        "load",
        ranks_after,
        tmp_path / "b",
        tmp_path / "b.pt",
        stage=stage,
        dtype=dtype,
        config=config,
    )
    assert_same(saved, loaded)
    convert(tmp_path / "b", tmp_path / "c", "--to", "deepspeed", "--dp", ranks)
    same = cairn("diff", tmp_path / "a", tmp_path / "c", "--bits")
    assert same.returncode == 0, same.stdout + same.stderr
    for form in ("universal", "deepspeed-universal"):  # it makes no difference by which way
        convert(tmp_path / "a", tmp_path / form, "--to", form)
        convert(tmp_path / form, tmp_path / f"{form}-b", "--to", "deepspeed", "--dp", ranks_after)
        same = cairn("diff", tmp_path / "b", tmp_path / f"{form}-b", "--bits")
        assert same.returncode == 0, same.stdout + same.stderr


def test_buffers_of_unknown_size(tmp_path: pathlib.Path) -> None:
    """ZeRO 3 with other buffers than its configuration's sub_group_size makes: they are written for
    the number of ranks that they are of, refused for another, in any form, and
    DeepSpeed's universal form, which has none, is made for any."""
    config = {"zero_optimization": {"stage": 3, "sub_group_size": 180}}
    saved = run_job("save", 2, tmp_path / "a", tmp_path / "a.pt", stage=3, config=config)
    # as before it was carried
    convert(
        tmp_path / "a", tmp_path / "old", "--to", "universal", "--drop", "deepspeed/sub_group_size"
    )
    refused = cairn("convert", tmp_path / "old", tmp_path / "c", "--to", "deepspeed", "--dp", 3)
    assert (
        refused.returncode == 64
        and "sub_group_size" in refused.stderr
        and not (tmp_path / "c").exists()
    )
    for path in (tmp_path / "a").glob("*/*model_states.pt"):
        state = torch.load(path, weights_only=False)
        state["ds_config"]["zero_optimization"]["sub_group_size"] = 1_000_000_000
        torch.save(state, path)
    convert(tmp_path / "a", tmp_path / "dcp", "--to", "dcp", "--dp", 3)
    for source in ("a", "dcp"):
        refused = cairn(
            "convert", tmp_path / source, tmp_path / "c", "--to", "deepspeed", "--dp", 3
        )
        assert (
            refused.returncode == 64
            and "sub_group_size" in refused.stderr
            and not (tmp_path / "c").exists()
        )
        convert(tmp_path / source, tmp_path / f"{source}-again", "--to", "deepspeed", "--dp", 2)
        same = cairn("diff", tmp_path / "a", tmp_path / f"{source}-again", "--bits")
        assert same.returncode == 0, same.stdout + same.stderr
    convert(tmp_path / "dcp", tmp_path / "u", "--to", "deepspeed-universal")
    loaded = run_job(
        "load", 3, tmp_path / "u", tmp_path / "u.pt", stage=3, config=config, universal=True
    )
    assert_same(saved, loaded, ("fp32",))


def tensors_of(tree: Any) -> list[torch.Tensor]:
    if torch.is_tensor(tree):
        return [tree] if tree.is_floating_point() else []
    children = (
        tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else []
    )
    return [tensor for child in children for tensor in tensors_of(child)]


@pytest.mark.parametrize("stage, ranks, ranks_after", [(2, 2, 3), (3, 2, 1)])
def test_universal(tmp_path: pathlib.Path, stage: int, ranks: int, ranks_after: int) -> None:
    """The universal form is what DeepSpeed's own converter makes of the same checkpoint, and
    DeepSpeed loads it."""
    saved = run_job("save", ranks, tmp_path / "a", tmp_path / "a.pt", stage=stage)
    poison(tmp_path / "a")
    convert(tmp_path / "a", tmp_path / "u", "--to", "deepspeed-universal")
    (tag,) = [child for child in (tmp_path / "a").iterdir() if child.is_dir()]
    (tmp_path / "own").mkdir()
    own = subprocess.run(
        [
            str(PYTHON),
            "-m",
            "deepspeed.checkpoint.ds_to_universal",
            "--input_folder",
            str(tag),
            "--output_folder",
            str(tmp_path / "own" / "folder_universal"),
            "--num_extract_workers",
            "1",
            "--num_merge_workers",
            "1",
            "--inject_missing_state",
        ],
        env=dict(os.environ, DS_ACCELERATOR="cpu"),
        text=True,
        capture_output=True,
        timeout=600,
    )
    assert own.returncode == 0, own.stderr[-4000:]
    for path in (tmp_path / "own").glob("*/zero/*/*.pt"):
        mine = tmp_path / "u" / "global_step3_universal" / "zero" / path.parent.name / path.name
        if not mine.exists():  # copies of buffers and frozen parameters
            assert path.name == "fp32.pt" and path.parent.name in (
                "frozen",
                "running",
                "seen",
                "head.weight",
            )
            continue
        left, right = [torch.load(file, weights_only=False) for file in (path, mine)]
        left, right = [file["param"] if isinstance(file, dict) else file for file in (left, right)]
        assert left.dtype == right.dtype and torch.equal(left.flatten(), right.flatten()), path
    loaded = run_job(
        "load", ranks_after, tmp_path / "u", tmp_path / "u.pt", stage=stage, universal=True
    )
    # DeepSpeed itself does not load buffers and frozen parameters from this form
    for kind in ("fp32", "exp_avg", "exp_avg_sq"):
        assert_same(saved, loaded, (kind,))
    for words in ([tmp_path / "u", tmp_path / "back"], [tmp_path / "own", tmp_path / "back_own"]):
        convert(*words, "--to", "deepspeed", "--dp", ranks)
        report = cairn("diff", tmp_path / "a", words[1], "--bits").stdout
        assert all(
            line.startswith("deepspeed/optim_states.pickle") for line in report.splitlines()[:-1]
        ), report
    back = run_job("load", ranks, tmp_path / "back_own", tmp_path / "back.pt", stage=stage)
    assert_same(saved, back)


@pytest.mark.parametrize("stage", [2, 3])
def test_many_ranks(tmp_path: pathlib.Path, stage: int) -> None:
    """Ranks are numbers: those of three digits do not come between those of one. DeepSpeed's
    zero_to_fp32 says what the files hold."""
    saved = run_job("save", 1, tmp_path / "a", tmp_path / "a.pt", stage=stage)
    convert(tmp_path / "a", tmp_path / "b", "--to", "deepspeed", "--dp", 103)
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    weights = get_fp32_state_dict_from_zero_checkpoint(str(tmp_path / "b"))
    for name, tensor in saved["fp32"].items():
        assert torch.equal(tensor, weights[name]), name
    assert torch.equal(weights["frozen"].float(), saved["module"]["frozen"].float())
    convert(
        tmp_path / "b",
        tmp_path / "w.safetensors",
        "--to",
        "safetensors",
        "--dtype",
        "F32",
        "--drop",
        "fp32.*,exp_avg.*,exp_avg_sq.*,step.*,*deepspeed/*",
    )
    masters = safetensors.torch.load_file(tmp_path / "w.safetensors")  # what is tied is there once
    for name, tensor in masters.items():
        assert torch.equal(tensor, weights[name].to(tensor.dtype)), name
    assert masters.keys() >= saved["fp32"].keys() and all(
        masters[name].dtype == torch.float32 for name in saved["fp32"]
    )
    assert any(
        not torch.equal(masters[name], saved["module"][name].float()) for name in saved["fp32"]
    )
    convert(tmp_path / "b", tmp_path / "c", "--to", "deepspeed", "--dp", 2)
    same = cairn("diff", tmp_path / "a", tmp_path / "c", "--bits")
    assert same.returncode == 0, same.stdout + same.stderr


def test_round_robin(tmp_path: pathlib.Path) -> None:
    """With round_robin_gradients the order in the buffers is that of the number of ranks: it is
    read as it is, written for the same number, refused for another, in any form,
    and the universal form has none. DeepSpeed's own accessors and its own loader of that form take
    the buffers for ordered as without the option, so what is in it is held against the weights and
    the live buffers."""
    job = {"stage": 2, "options": {"round_robin_gradients": True}}
    saved = run_job("save", 2, tmp_path / "a", tmp_path / "a.pt", **job)
    convert(tmp_path / "a", tmp_path / "b", "--to", "deepspeed", "--dp", 2)
    assert_same(saved, run_job("load", 2, tmp_path / "b", tmp_path / "b.pt", **job))
    refused = cairn("convert", tmp_path / "a", tmp_path / "c", "--to", "deepspeed", "--dp", 3)
    assert (
        refused.returncode == 64
        and "round_robin_gradients" in refused.stderr
        and not (tmp_path / "c").exists()
    )
    for form in ("dcp", "deepspeed-universal"):  # which three others wrote
        convert(tmp_path / "a", tmp_path / form, "--to", form, "--dp", 3)
        refused = cairn("convert", tmp_path / form, tmp_path / "c", "--to", "deepspeed", "--dp", 3)
        assert (
            refused.returncode == 64
            and "round_robin_gradients" in refused.stderr
            and not (tmp_path / "c").exists()
        )
        convert(tmp_path / form, tmp_path / f"{form}-again", "--to", "deepspeed", "--dp", 2)
        same = cairn("diff", tmp_path / "a", tmp_path / f"{form}-again", "--bits")
        assert same.returncode == 0, same.stdout + same.stderr
    convert(tmp_path / "a", tmp_path / "u", "--to", "deepspeed-universal")
    for name, moment in saved["exp_avg"].items():
        folder = tmp_path / "u" / "global_step3_universal" / "zero" / name
        assert torch.equal(
            torch.load(folder / "fp32.pt")["param"].bfloat16(), saved["module"][name]
        ), name
        assert torch.equal(torch.load(folder / "exp_avg.pt")["param"], moment), name


def test_pipeline(tmp_path: pathlib.Path) -> None:
    """Two stages: every layer's tensors under the module's names, and for another number of ranks,
    also by way of a distributed checkpoint, what DeepSpeed loads and saves again is what was
    trained."""
    run_ranks(4, PIPELINE, "save", 0, tmp_path / "a")
    convert(tmp_path / "a", tmp_path / "a.pt", "--to", "torch")
    whole = torch.load(tmp_path / "a.pt", weights_only=False)
    (tag,) = [child for child in (tmp_path / "a").iterdir() if child.is_dir()]
    found = dict(whole["model"])
    for path in sorted(tag.glob("layer_*")):
        number = int(path.name.split("_")[1].split("-")[0])
        for key, tensor in torch.load(path).items():
            name = "tied_modules.embed.weight" if number == 0 else f"{number}.{key}"
            assert torch.equal(tensor, found.pop(name)), name
    assert not found
    convert(tmp_path / "a", tmp_path / "d", "--to", "dcp")
    convert(tmp_path / "d", tmp_path / "b", "--to", "deepspeed", "--dp", 1)
    convert(tmp_path / "a", tmp_path / "three", "--to", "deepspeed", "--dp", 3)
    run_ranks(2, PIPELINE, "load", 0, tmp_path / "b", tmp_path / "c")
    for other in ("three", "c"):
        report = cairn("diff", tmp_path / "a", tmp_path / other, "--bits").stdout
        # what counts samples and ranks
        assert all("deepspeed/" in line for line in report.splitlines()[:-1]), report
    convert(tmp_path / "c", tmp_path / "e", "--to", "deepspeed", "--dp", 2)
    for kind in ("*optim_states.pt", "layer_*"):
        for path in tag.glob(kind):
            files = (path, tmp_path / "e" / tag.name / path.name)
            left, right = [tensors_of(torch.load(file, weights_only=False)) for file in files]
            assert len(left) == len(right)
            for mine, theirs in zip(left, right):
                used = slice(None, theirs.numel()) if mine.dim() == 1 else slice(None)
                assert (
                    torch.equal(mine[used], theirs[used])
                    if mine.dim()
                    else torch.equal(mine, theirs)
                ), path.name
    refused = cairn("convert", tmp_path / "a", tmp_path / "u", "--to", "deepspeed-universal")
    assert refused.returncode == 64 and "pipeline" in refused.stderr


def merged(folder: pathlib.Path) -> dict[str, torch.Tensor]:
    """What DeepSpeed's own converter put together."""
    found = {}
    for path in (folder / "zero").glob("*/*.pt"):
        # a copy of a buffer
        if path.stem in ("fp32", "exp_avg", "exp_avg_sq") and path.parent.name != "seen":
            found[f"{path.stem}.{path.parent.name}"] = torch.load(path, weights_only=False)["param"]
    assert len(found) == 3 * 8
    return found


def held(folder: pathlib.Path, tensor_ranks: int) -> dict[str, torch.Tensor]:
    """What all ranks of a tensor-parallel job held, put together; what several had was equal."""
    cuts = {"up.weight": 0, "up.bias": 0, "lm_head.weight": 0, "down.weight": 1}
    ranks = [torch.load(folder / f"{rank}.pt") for rank in range(len(list(folder.iterdir())))]
    found: dict[str, torch.Tensor] = {}
    for name in ranks[0]:
        parts, along = [rank[name] for rank in ranks], cuts.get(name.split(".", 1)[1])
        for first in range(0, len(parts), tensor_ranks if along is not None else 1):
            whole = (
                parts[first]
                if along is None
                else torch.cat(parts[first : first + tensor_ranks], along)
            )
            assert torch.equal(found.setdefault(name, whole), whole), name
    return found


@pytest.mark.parametrize("stage, ranks", [(1, 2), (3, 4)])
def test_tensor(tmp_path: pathlib.Path, stage: int, ranks: int) -> None:
    """Two tensor-parallel ranks, of one or two data-parallel ranks each: what is read is what
    DeepSpeed's own converter makes of them, as are files made for four; DeepSpeed loads those for
    two; and files are made without, and again from safetensors."""
    run_ranks(ranks, TENSOR, "save", tmp_path / "a", stage, 2)
    (tag,) = [child for child in (tmp_path / "a").iterdir() if child.is_dir()]
    convert(tmp_path / "a", tmp_path / "four", "--to", "deepspeed", "--dp", 1, "--tp", 4)
    run_ranks(
        1,
        TENSOR,
        "merge",
        tag,
        tmp_path / "own",
        tmp_path / "four" / tag.name,
        tmp_path / "own_of_four",
    )
    convert(
        tmp_path / "a", tmp_path / "a.safetensors", "--to", "safetensors", "--drop", "*deepspeed/*"
    )
    found = safetensors.torch.load_file(tmp_path / "a.safetensors")
    for own in ("own", "own_of_four"):
        for name, tensor in merged(tmp_path / own).items():
            assert torch.equal(tensor, found[name].reshape(tensor.shape)), f"{name} of {own}"
    for name in ("up.weight", "down.weight", "lm_head.weight", "norm.bias"):
        assert torch.equal(found[name].bfloat16(), found[f"fp32.{name}"].bfloat16()), name
    convert(tmp_path / "four", tmp_path / "b", "--to", "deepspeed", "--dp", 2, "--tp", 2)
    if stage == 1:
        run_ranks(4, TENSOR, "load", tmp_path / "b", stage, 2)
        saved, loaded = held(tmp_path / "a.save", 2), held(tmp_path / "b.load", 2)
        assert saved.keys() == loaded.keys()
        for name, tensor in saved.items():
            assert torch.equal(tensor, loaded[name]), name
    convert(tmp_path / "b", tmp_path / "one", "--to", "deepspeed", "--dp", 3, "--tp", 1)
    for other in ("b", "four", "one"):
        same = cairn("diff", tmp_path / "a", tmp_path / other, "--bits")
        assert same.returncode == 0, same.stdout + same.stderr
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    names = [name[5:] for name in found if name.startswith("fp32.")]
    weights = get_fp32_state_dict_from_zero_checkpoint(str(tmp_path / "one"))
    for name in names:
        assert torch.equal(weights[name], found[f"fp32.{name}"]), name
    info = torch.load(next(tag.glob("*mp_rank_00_model_states.pt")), weights_only=False)[
        "universal_checkpoint_info"
    ]
    job = {"param_groups": [{"params": names, "lr": 0.01}], "buffers": ["seen"]}
    made = [
        "--to",
        "deepspeed",
        "--dp",
        2,
        "--tp",
        2,
        "--zero",
        stage,
        "--job",
        tmp_path / "job.json",
    ]
    (tmp_path / "job.json").write_text(json.dumps(job))
    refused = cairn("convert", tmp_path / "a.safetensors", tmp_path / "made", *made)
    assert (
        refused.returncode == 64 and "universal_checkpoint_info" in refused.stderr
    ), refused.stderr
    (tmp_path / "job.json").write_text(json.dumps({**job, "universal_checkpoint_info": info}))
    convert(tmp_path / "a.safetensors", tmp_path / "made", *made)
    same = cairn("diff", tmp_path / "a", tmp_path / "made", "--bits").stdout
    assert all(line.startswith("deepspeed/") for line in same.splitlines()[:-1]), same
    state = torch.load(
        next((tmp_path / "made").glob("*/*mp_rank_01_model_states.pt")), weights_only=False
    )
    assert state["universal_checkpoint_info"] == {
        key: value for key, value in info.items() if key != "affine_map"
    }
    assert state["mp_world_size"] == 2 and state["param_shapes"][0]["down.weight"] == (10, 8)
    refused = cairn("convert", tmp_path / "a", tmp_path / "c", "--to", "deepspeed", "--tp", 3)
    assert refused.returncode == 64 and "cannot be divided" in refused.stderr, refused.stderr
    path = tag / (
        "zero_pp_rank_0_mp_rank_01_model_states.pt" if stage == 3 else "mp_rank_01_model_states.pt"
    )
    for change, name, said in (
        ("affine_map", "down.weight", "cut otherwise"),
        ("fused", "up.weight", "several parameters in one"),
    ):
        state = torch.load(path, weights_only=False)
        own = state["universal_checkpoint_info"]
        if change == "fused":
            own["parameter_with_sub_params"] = [
                {"patterns": ["^up.weight$"], "shape": [2, -1], "partition_dim": 0}
            ]
        else:
            own["affine_map"]["params"]["^down\\.weight$"]["ranks"][1]["pieces"][0]["source"][
                0
            ] += 1
        kept = path.read_bytes()
        torch.save(state, path)
        refused = cairn("convert", tmp_path / "a", tmp_path / "c", "--to", "torch")
        path.write_bytes(kept)
        assert (
            refused.returncode == 65 and name in refused.stderr and said in refused.stderr
        ), refused.stderr


def test_broken(tmp_path: pathlib.Path) -> None:
    """Files that do not match are refused with file and reason; nothing is written."""
    run_job("save", 3, tmp_path / "a", tmp_path / "a.pt", stage=2)

    def attempt(name: str, change: Any, *said: str) -> None:
        folder = tmp_path / name
        shutil.copytree(tmp_path / "a", folder)
        change(folder / "global_step3")
        done = cairn("convert", folder, tmp_path / f"{name}_out", "--to", "deepspeed-universal")
        assert done.returncode in (65, 74), done.stdout + done.stderr
        for words in said:
            assert words in done.stderr, done.stderr
        assert not (tmp_path / f"{name}_out" / "latest_universal").exists()

    def edit(path: pathlib.Path, change: Any) -> None:
        state = torch.load(path, weights_only=False)
        change(state["optimizer_state_dict"] if "optimizer_state_dict" in state else state)
        torch.save(state, path)

    def rank(folder: pathlib.Path, number: int) -> pathlib.Path:
        return folder / f"bf16_zero_pp_rank_{number}_mp_rank_00_optim_states.pt"

    attempt("missing", lambda f: rank(f, 1).unlink(), "rank 1", "missing")
    attempt("last", lambda f: rank(f, 2).unlink(), "3 ranks", "2 optim_states files")
    attempt(
        "twice",
        lambda f: shutil.copy(rank(f, 0), f / "zero_pp_rank_0_mp_rank_00_optim_states.pt"),
        "both rank 0",
    )
    attempt("truncated", lambda f: os.truncate(rank(f, 1), 3000), "rank_1")
    attempt(
        "tensor",
        lambda f: shutil.copy(rank(f, 0), f / "bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt"),
        "mp_rank_01",
        "missing",
    )

    def other_step(state: dict[str, Any]) -> None:
        state["base_optimizer_state"]["state"][1]["step"] += 1

    def short(state: dict[str, Any]) -> None:
        state["base_optimizer_state"]["state"][0]["exp_avg"] = state["base_optimizer_state"][
            "state"
        ][0]["exp_avg"][:-7].clone()

    attempt("step", lambda f: edit(rank(f, 2), other_step), "rank 2", "another step of group 1")
    attempt("short", lambda f: edit(rank(f, 1), short), "exp_avg of group 0", "elements")
    attempt(
        "padding",
        lambda f: edit(rank(f, 2), lambda s: s["group_paddings"].__setitem__(0, 77)),
        "group_paddings of group 0",
    )
    attempt(
        "count",
        lambda f: edit(rank(f, 0), lambda s: s.__setitem__("partition_count", [4, 4])),
        "partition_count",
    )
    attempt(
        "shapes",
        lambda f: edit(f / "mp_rank_00_model_states.pt", lambda s: s["param_shapes"][0].popitem()),
        "param_shapes",
    )
    attempt("latest", lambda f: (f.parent / "latest").write_text("../../etc"), "latest")
