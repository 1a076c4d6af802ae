"""Checkpoints that megatron-core's own models and distributed optimizer saved, converted to other
parallelisms, and loaded by megatron-core: every parameter, master weight and moment is compared
exactly, with all padding of the source poisoned with NaN.

megatron-core has a virtual environment of its own beside that of the other programs, whose torch it
uses:

    python3 -m venv build/venv-megatron
    echo "$PWD/build/venv/lib/python3.11/site-packages" >
    build/venv-megatron/lib/python3.11/site-packages/shared.pth build/venv-megatron/bin/pip install
    --no-deps megatron-core==0.16.1

`make interop` does that. Where it is not there, everything here is skipped. All jobs of a kind run
in one process (megatron_trainer.py).
"""

import io
import json
import os
import pathlib
import shutil
import subprocess
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
CAIRN = ROOT / os.environ.get("BUILD", "build/plain") / "cairn"
PYTHON = ROOT / "build" / "venv-megatron" / "bin" / "python"
TRAINER = ROOT / "tests" / "interop" / "megatron_trainer.py"

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(),
    reason="megatron-core is not installed in build/venv-megatron (see this file)",
)

Job = dict[str, Any]

# name: (the job that saves, the parallelisms that it is converted to; "dp" is only that of the
# loading job)
CASES: dict[str, tuple[Job, list[Job]]] = {
    "interleaved": (
        {"tp": 2, "pp": 2, "vpp": 2, "dp": 2, "groups": 1},
        [{"tp": 1}, {"tp": 4}, {"tp": 1, "pp": 4}],
    ),
    "experts": (
        {"tp": 2, "pp": 2, "ep": 2, "dp": 2, "experts": 4, "layers": 2},
        [{"tp": 1}, {"tp": 1, "pp": 2, "ep": 4, "dp": 4}],
    ),
    "experts_apart": (
        {"tp": 2, "ep": 2, "etp": 1, "experts": 4, "layers": 2, "glu": False},
        [{"tp": 4, "ep": 2, "etp": 2, "dp": 1}, {"tp": 1}],
    ),
    "experts_alone": ({"experts": 2, "layers": 2, "qk_norm": True}, [{"tp": 2, "ep": 2, "dp": 2}]),
    "tied": (
        {
            "pp": 2,
            "tied": True,
            "glu": False,
            "bias": True,
            "rms": False,
            "positions": "learned",
            "bucket_size": 700,
            "dp": 2,
        },
        [{"tp": 2}, {"tp": 2, "pp": 4}],
    ),
    "uneven": (
        {"pp": 3, "first_layers": 1, "last_layers": 1, "tied": True, "dtype": "fp32", "vocab": 40},
        [{"pp": 2}, {"tp": 4, "pp": 3}],
    ),
    "plain": (
        {
            "tp": 2,
            "pp": 2,
            "distributed_optimizer": False,
            "layers": 2,
            "bias": True,
            "rms": False,
            "tied": True,
        },
        [{"tp": 1}],
    ),
    "plain_fp32": (
        {"tp": 2, "distributed_optimizer": False, "layers": 2, "dtype": "fp32"},
        [{"tp": 1, "pp": 2}],
    ),
    "weights": ({"tp": 4, "pp": 2, "groups": 2, "no_optim": True}, [{"tp": 1}]),
}


LATEST = "latest_checkpointed_iteration.txt"


def run_jobs(folder: pathlib.Path, jobs: list[Job]) -> None:
    (folder / "jobs.json").write_text(json.dumps(jobs))
    done = subprocess.run(
        [str(PYTHON), "-W", "ignore", str(TRAINER), str(folder / "jobs.json")],
        text=True,
        capture_output=True,
        timeout=280,
        env=dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=""),
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


def cairn(*words: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(CAIRN), *map(str, words)], text=True, capture_output=True, timeout=300
    )


def convert(source: pathlib.Path, target: pathlib.Path, *words: Any) -> str:
    done = cairn("convert", source, target, *words)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout + done.stderr


def flags(parallelism: Job) -> list[Any]:
    return [
        word
        for key in ("tp", "pp", "vpp", "ep", "etp")
        for word in (f"--{key}", parallelism.get(key, 1))
        if key != "etp" or "etp" in parallelism
    ]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder: pathlib.Path = tmp_path_factory.mktemp("megatron")
    run_jobs(
        folder,
        [{"mode": "save", "dir": str(folder / name), **job} for name, (job, _) in CASES.items()],
    )
    return folder


def tensors_of(tree: Any) -> list[torch.Tensor]:
    if torch.is_tensor(tree):
        return [tree] if tree.is_floating_point() else []
    children = (
        tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else []
    )
    return [tensor for child in children for tensor in tensors_of(child)]


def canonical(text: str) -> list[str]:
    """Lines of a difference that are of tensors, and not of what is carried for each rank."""
    return [line for line in text.splitlines()[:-1] if "megatron/" not in line]


def test_other_parallelism(saved: pathlib.Path) -> None:
    """To every other parallelism and back; through another format too, and that is the same."""
    loads: list[Job] = []
    for name, (job, targets) in CASES.items():
        for number, target in enumerate(targets):
            made = saved / f"{name}_{number}"
            said = convert(saved / name, made, "--to", "megatron", *flags(target))
            assert "warning" not in said or job.get("dtype") != "bf16", said
            for path in made.glob("*/*/*.pt"):
                assert not any(
                    tensor.isnan().any()
                    for tensor in tensors_of(torch.load(path, weights_only=False))
                ), path
            shared = {
                key: value
                for key, value in job.items()
                if key not in ("tp", "pp", "vpp", "ep", "etp", "dp")
            }
            if target.get("pp", 1) != job.get("pp", 1):
                shared.update(first_layers=None, last_layers=None)
            loads.append({"mode": "load", "dir": str(made), **shared, **target})
            if "first_layers" in job and shared["first_layers"] is None:
                continue  # how layers were split unevenly is not known any more
            back = saved / f"{name}_{number}_back"
            convert(made, back, "--to", "megatron", *flags(job))
            assert canonical(cairn("diff", saved / name, back, "--bits").stdout) == []
            if (name, number) == ("interleaved", 0):
                loads.append({"mode": "load", "dir": str(back), **job, "dp": 1})
    for form in ("universal", "dcp"):  # the latter lacks the iteration itself
        neutral, through = saved / f"neutral_{form}", saved / f"through_{form}"
        convert(saved / "experts", neutral, "--to", form)
        convert(neutral, through, "--to", "megatron", *flags(CASES["experts"][1][1]))
        assert {p.relative_to(through) for p in through.glob("**/*")} == {
            p.relative_to(saved / "experts_1") for p in (saved / "experts_1").glob("**/*")
        }
        for path in sorted((saved / "experts_1").glob("*/*/*.pt")):
            other = through / path.relative_to(saved / "experts_1")
            for left, right in zip(
                tensors_of(torch.load(path, weights_only=False)),
                tensors_of(torch.load(other, weights_only=False)),
                strict=True,
            ):
                assert torch.equal(left, right), path
        assert (through / LATEST).read_text() == (saved / "experts_1" / LATEST).read_text()
    loads += in_order_of_the_table(saved)
    run_jobs(saved, loads)


def test_through_torch_save(saved: pathlib.Path) -> None:
    """A file of torch.save holds all of a job, and it comes back bit for bit: what PyTorch has no
    place for lies beside the model, also after PyTorch itself loaded the file and saved it again.
    """
    for name, (job, _) in CASES.items():
        file, again, back = (saved / f"{name}{end}" for end in (".pt", "_again.pt", "_from_torch"))
        convert(saved / name, file, "--to", "torch")
        state = torch.load(file, weights_only=True)
        assert (
            not any("/" in key for key in state["model"])
            and "megatron/common.pickle" in state["cairn"]
        )
        torch.save(state, again)
        convert(again, back, "--to", "megatron", *flags(job))
        done = cairn("diff", saved / name, back, "--bits")
        assert [
            line for line in done.stdout.splitlines()[:-1] if "param_groups" not in line
        ] == [], (name, done.stdout)
        # and its own form is found again in any other
        convert(again, saved / f"{name}_neutral", "--to", "universal")
        convert(saved / f"{name}_neutral", saved / f"{name}_twice.pt", "--to", "torch")
        assert cairn("diff", again, saved / f"{name}_twice.pt", "--bits").returncode == 0


def test_split_of_layers_is_read_strictly(saved: pathlib.Path) -> None:
    """How layers were split is carried as text; what is not a count of layers for each chunk is
    refused with its name."""
    convert(saved / "uneven", saved / "split.pt", "--to", "torch")
    state = torch.load(saved / "split.pt", weights_only=True)
    keys = state["cairn"]["megatron/keys"]
    assert keys.endswith(b"S 3 1 1 2 1\n")
    for wrong in (
        b"S 3 1 1 2 -4294967295",
        b"S 3 1 1 2",
        b"S 3 1 1 2 1 0",
        b"S 3 1 1 4294967298 1",
        b"S 3",
        b"S three 1 1 2 1",
    ):
        state["cairn"]["megatron/keys"] = keys.replace(b"S 3 1 1 2 1", wrong)
        torch.save(state, saved / "split_wrong.pt")
        done = cairn(
            "convert",
            saved / "split_wrong.pt",
            saved / "split_out",
            "--to",
            "megatron",
            *flags(CASES["uneven"][0]),
        )
        assert (
            done.returncode == 64
            and "megatron/keys is damaged" in done.stderr
            and "split_wrong.pt" in done.stderr
        ), (wrong, done.stderr)
        assert not (saved / "split_out").exists()


def in_order_of_the_table(saved: pathlib.Path) -> list[Job]:
    """Checkpoints that do not know in which order modules register, and one that has nothing but
    weights, must be loaded as well."""
    loads: list[Job] = []
    for name in ("interleaved", "experts", "experts_alone", "tied", "uneven"):
        convert(
            saved / name, saved / f"{name}_bare", "--to", "universal", "--drop", "megatron/keys"
        )
        if name == "uneven":  # how the layers were split is stated there
            assert (
                cairn(
                    "convert", saved / "uneven_bare", saved / "none", "--to", "megatron"
                ).returncode
                == 64
            )
            continue
        convert(
            saved / f"{name}_bare",
            saved / f"{name}_table",
            "--to",
            "megatron",
            *flags(CASES[name][0]),
        )
        loads.append({"mode": "load", "dir": str(saved / f"{name}_table"), **CASES[name][0]})
    convert(
        saved / "weights",
        saved / "bare.safetensors",
        "--to",
        "safetensors",
        "--drop",
        "megatron/*,rank*",
    )
    convert(saved / "bare.safetensors", saved / "named", "--to", "megatron", "--tp", 2, "--pp", 2)
    assert (saved / "named" / LATEST).read_text() in ("3", "release")
    if (saved / "named" / "release").exists():
        (saved / "named" / "release").rename(saved / "named" / "iter_0000003")
    # without args the vocabulary is padded to a multiple of 128 for each rank
    loads.append(
        {
            "mode": "load",
            "dir": str(saved / "named"),
            **CASES["weights"][0],
            "tp": 2,
            "pp": 2,
            "vocab_multiple": 128,
        }
    )
    return loads


def plain_as_distributed(saved: pathlib.Path) -> Job:
    """An optimizer that is not distributed becomes one where its settings are made again; else only
    its weights go to torch_dist."""
    refused = cairn("convert", saved / "plain", saved / "plain_dist", "--to", "megatron-dist")
    assert (
        refused.returncode == 64
        and "not the distributed one" in refused.stderr
        and not (saved / "plain_dist").exists()
    ), refused.stderr
    convert(
        saved / "plain",
        saved / "plain_dist",
        "--to",
        "megatron-dist",
        "--drop",
        "fp32.*,exp_avg*,step.*",
    )
    names = [
        tensor["name"]
        for tensor in json.loads(cairn("inspect", saved / "plain", "-o", "json").stdout)["tensors"]
        if tensor["kind"] == "param"
    ]
    group = {"params": names, "lr": 0.001, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
    (saved / "plain.json").write_text(json.dumps({"param_groups": [group]}))
    said = convert(
        saved / "plain",
        saved / "plain_again",
        "--to",
        "megatron",
        "--tp",
        1,
        "--pp",
        1,
        "--job",
        saved / "plain.json",
        "--drop",
        "megatron/*,rank*/megatron/*",
    )
    assert "opt_param_scheduler" in said, said
    return {
        "mode": "load",
        "dir": str(saved / "plain_again"),
        **CASES["plain"][0],
        "tp": 1,
        "pp": 1,
        "dp": 2,
        "distributed_optimizer": True,
        "vocab_multiple": 128,
    }


def test_other_frameworks(saved: pathlib.Path) -> None:
    """Moments that another framework saved are loaded by Megatron-Core's optimizer, exactly and at
    their step: with the groups that the source has, or that --job says; parameters that were
    trained in float32 are masters of those that are cast."""
    convert(
        saved / "interleaved",
        saved / "named.safetensors",
        "--to",
        "safetensors",
        "--drop",
        "megatron/*,rank*,fp32.*",
    )
    known = load_file(saved / "named.safetensors")
    model = {
        name: tensor.float() for name, tensor in known.items() if not name.startswith("exp_avg")
    }
    optim = {
        name: {
            "step": torch.tensor(3.0),
            **{key: known[f"{key}.{name}"] for key in ("exp_avg", "exp_avg_sq")},
        }
        for name in model
    }
    plain = [name for name in model if model[name].dim() == 1]
    alike = {"lr": 0.001, "betas": (0.9, 0.95), "eps": 1e-8}
    groups = [
        {"params": [name for name in model if name not in plain], **alike, "weight_decay": 0.1},
        {"params": plain, **alike, "weight_decay": 0.0},
    ]
    dcp.save(
        {"model": model, "optim": {"state": optim, "param_groups": groups}},
        checkpoint_id=saved / "fsdp",
        no_dist=True,
    )
    scheduler = {"lr_scheduler": {"max_lr": 0.001, "num_steps": 24}}
    (saved / "scheduler.json").write_text(json.dumps(scheduler))
    (saved / "job.json").write_text(json.dumps({"param_groups": groups, **scheduler}))
    job = {**CASES["interleaved"][0], "vocab_multiple": 128, "own_masters": True}
    target = {"tp": 2, "pp": 2, "vpp": 1, "dp": 2}
    words = ["--dtype", "BF16", "--job", saved / "scheduler.json"]
    convert(saved / "fsdp", saved / "from_fsdp", "--to", "megatron", *flags(target), *words)
    convert(
        saved / "fsdp",
        saved / "by_file",
        "--to",
        "universal",
        "--drop",
        "optimizer.param_groups.pickle",
    )
    said = convert(saved / "by_file", saved / "bare", "--to", "megatron", "--tp", 4)
    assert "does not say the groups of its optimizer" in said, said
    convert(
        saved / "by_file",
        saved / "from_file",
        "--to",
        "megatron",
        "--tp",
        4,
        "--job",
        saved / "job.json",
    )
    whole = {**job, "dtype": "fp32", "tp": 4, "pp": 1, "vpp": 1, "dp": 1}
    run_jobs(
        saved,
        [
            {"mode": "load", "dir": str(saved / "from_fsdp"), **job, **target},
            {"mode": "load", "dir": str(saved / "from_file"), **whole},
            plain_as_distributed(saved),
        ],
    )
    path = next((saved / "from_fsdp").glob("*/mp_rank_00_000/model_optim_rng.pt"))
    made = torch.load(path, weights_only=False)
    assert made["iteration"] == 3 and made["opt_param_scheduler"] == scheduler["lr_scheduler"]
    found = [
        tuple(group[key] for key in ("wd_mult", "weight_decay", "lr", "step"))
        for group in made["optimizer"]["optimizer"]["param_groups"]
    ]
    assert found == [(1.0, 0.1, 0.001, 3), (0.0, 0.0, 0.001, 3)]
    groups[1]["lr"] = 0.1
    groups[1]["params"].append(groups[0]["params"].pop())
    (saved / "job.json").write_text(json.dumps({"param_groups": groups, **scheduler}))
    refused = cairn(
        "convert",
        saved / "by_file",
        saved / "none",
        "--to",
        "megatron",
        "--job",
        saved / "job.json",
    )
    assert refused.returncode == 64 and "one group of matrices" in refused.stderr, refused.stderr


def test_random_states(saved: pathlib.Path) -> None:
    """Each rank that both have keeps its own RNG state; those of ranks that are gone come back with
    them."""
    few = saved / "few"
    convert(saved / "interleaved", few, "--to", "megatron", "--tp", 1, "--pp", 1, "--vpp", 1)
    convert(few, saved / "many", "--to", "megatron", "--tp", 2, "--pp", 2, "--vpp", 2)
    paths = sorted(
        path.relative_to(saved / "interleaved")
        for path in (saved / "interleaved").glob("*/*/model_optim_rng.pt")
    )
    assert len(paths) == 4
    for path in paths:
        left, right = (
            torch.load(folder / path, weights_only=False)
            for folder in (saved / "interleaved", saved / "many")
        )
        assert list(left) == list(right) or path == paths[0], path
        assert left["args"] == right["args"] and left["optimizer"] == right["optimizer"], path
        for key in ("torch_rng_state", "cuda_rng_state"):
            assert torch.equal(left["rng_state"][0][key], right["rng_state"][0][key]), path
        assert left["rng_state"][0]["random_rng_state"] == right["rng_state"][0]["random_rng_state"]


def test_unknown_groups(saved: pathlib.Path) -> None:
    """An optimizer that is not distributed, whose groups do not say which parameters are in them,
    is written as it is or not at all."""
    folder = saved / "unknown_groups"
    shutil.copytree(saved / "plain", folder)
    for path in folder.glob("*/*/model_optim_rng.pt"):
        state = torch.load(path, weights_only=False)
        for group in state["optimizer"]["optimizer"]["param_groups"]:
            del group["wd_mult"]
        torch.save(state, path)
    convert(folder, saved / "groups_same", "--to", "megatron")
    for path in folder.glob("*/*/model_optim_rng.pt"):
        left, right = (
            torch.load(file, weights_only=False)["optimizer"]
            for file in (path, saved / "groups_same" / path.relative_to(folder))
        )
        assert left["optimizer"]["param_groups"] == right["optimizer"]["param_groups"]
        for a, b in zip(tensors_of(left), tensors_of(right), strict=True):
            assert torch.equal(a.nan_to_num(), b.nan_to_num())
    refused = cairn("convert", folder, saved / "groups_one", "--to", "megatron", "--tp", 1)
    assert refused.returncode == 64 and "--drop" in refused.stderr, refused.stderr
    convert(
        folder,
        saved / "groups_one",
        "--to",
        "megatron",
        "--tp",
        1,
        "--drop",
        "megatron/optimizer*,rank*/megatron/optimizer*",
    )
    path = next((saved / "groups_one").glob("*/mp_rank_00_000/model_optim_rng.pt"))
    assert "optimizer" not in torch.load(path, weights_only=False)


def test_broken(saved: pathlib.Path) -> None:
    """Files that do not match are refused with file and reason; nothing is written."""

    def attempt(
        case: str,
        name: str,
        change: Any,
        *said: str,
        words: tuple[Any, ...] = (),
        status: tuple[int, ...] = (65, 74),
    ) -> None:
        folder = saved / f"broken_{name}"
        shutil.copytree(saved / case, folder)
        change(folder / "iter_0000003")
        done = cairn(
            "convert",
            folder,
            saved / f"broken_{name}_out",
            "--to",
            "megatron",
            *(words or ("--tp", 1, "--pp", 1, "--vpp", 1, "--ep", 1)),
        )
        assert done.returncode in status, (name, done.returncode, done.stdout + done.stderr)
        for text in said:
            assert text in done.stderr, (name, done.stderr)
        assert not (saved / f"broken_{name}_out" / "latest_checkpointed_iteration.txt").exists()

    def edit(path: pathlib.Path, change: Any) -> None:
        state = torch.load(path, weights_only=False)
        change(state)
        torch.save(state, path)

    def other_norm(state: Any) -> None:
        state["model0"]["decoder.layers.0.input_layernorm.weight"][3] += 1

    def short(state: Any) -> None:
        for key, flat in state[0][torch.bfloat16, torch.float32].items():
            if torch.is_tensor(flat):
                state[0][torch.bfloat16, torch.float32][key] = flat[:-1].clone()

    model, optim = "model_optim_rng.pt", "distrib_optim.pt"
    attempt(
        "interleaved",
        "missing",
        lambda f: (f / "mp_rank_01_001" / model).unlink(),
        "mp_rank_01_001",
        "missing",
    )
    attempt(
        "interleaved",
        "optim",
        lambda f: (f / "mp_rank_01_001" / optim).unlink(),
        "fp32.decoder.layers",
    )
    attempt(
        "interleaved",
        "truncated",
        lambda f: os.truncate(f / "mp_rank_00_001" / model, 5000),
        "mp_rank_00_001",
    )
    attempt(
        "interleaved",
        "mixed",
        lambda f: edit(f / "mp_rank_01_000" / model, lambda s: s.__setitem__("iteration", 4)),
        "iteration",
        "mp_rank_01_000",
    )
    attempt(
        "interleaved",
        "unequal",
        lambda f: edit(f / "mp_rank_01_000" / model, other_norm),
        "input_layernorm",
    )
    attempt(
        "interleaved",
        "short",
        lambda f: edit(f / "mp_rank_00_000" / optim, short),
        "elements",
        "mp_rank_00_000",
    )
    attempt(
        "interleaved",
        "stranger",
        lambda f: shutil.copytree(f / "mp_rank_00_000", f / "mp_rank_07_000"),
        "mp_rank_07_000",
    )
    attempt(
        "interleaved",
        "version",
        lambda f: edit(
            f / "mp_rank_00_000" / model, lambda s: s.__setitem__("checkpoint_version", 1.0)
        ),
        "checkpoint_version",
    )
    attempt(
        "interleaved",
        "latest",
        lambda f: (f.parent / "latest_checkpointed_iteration.txt").write_text("../x"),
        "latest_checkpointed",
    )
    attempt(
        "interleaved",
        "layers",
        lambda f: None,
        "4 layers cannot be split",
        words=("--pp", 3, "--vpp", 1),
        status=(64,),
    )
    attempt(
        "interleaved",
        "rows",
        lambda f: None,
        "cannot be split over --tp",
        words=("--tp", 5),
        status=(64,),
    )
    attempt(
        "experts",
        "experts",
        lambda f: None,
        "4 experts cannot be split",
        words=("--ep", 3, "--vpp", 1),
        status=(64,),
    )
    attempt(
        "interleaved",
        "unknown",
        lambda f: [
            edit(
                f / f"mp_rank_0{tp}_000" / model,
                lambda s: s["model0"].__setitem__("decoder.layers.0.odd.weight", torch.zeros(4)),
            )
            for tp in (0, 1)
        ],
        "elements",
    )


def test_unknown_tensor(saved: pathlib.Path) -> None:
    """A tensor of an unknown name is replicated where all tensor-parallel ranks have it equal; from
    one rank alone that is not known."""
    folder = saved / "unknown_weights"
    shutil.copytree(saved / "weights", folder)
    for path in folder.glob("*/mp_rank_*_000/model_optim_rng.pt"):
        state = torch.load(path, weights_only=False)
        state["model"]["decoder.layers.1.odd.weight"] = torch.arange(6.0)
        torch.save(state, path)
    convert(folder, saved / "unknown_two", "--to", "megatron", "--tp", 2, "--pp", 1)
    for rank in range(2):
        model = torch.load(
            saved / "unknown_two" / "iter_0000003" / f"mp_rank_0{rank}" / "model_optim_rng.pt",
            weights_only=False,
        )["model"]
        assert torch.equal(model["decoder.layers.1.odd.weight"], torch.arange(6.0))
    convert(folder, saved / "unknown_one", "--to", "megatron", "--tp", 1, "--pp", 1)
    refused = cairn(
        "convert", saved / "unknown_one", saved / "unknown_four", "--to", "megatron", "--tp", 4
    )
    assert (
        refused.returncode == 64 and "decoder.layers.1.odd.weight" in refused.stderr
    ), refused.stderr
    convert(
        saved / "unknown_one",
        saved / "unknown_dropped",
        "--to",
        "megatron",
        "--tp",
        4,
        "--drop",
        "*.odd.weight",
    )


def grouped_file(rank: int, ranks: int, experts: int) -> Job:
    """What a rank has whose modules are those of Transformer Engine: norms within linear layers,
    grouped experts, extra states."""
    local = experts // ranks
    model: Job = {"embedding.word_embeddings.weight": torch.arange(32.0).view(8, 4)}
    for layer in range(2):
        place = f"decoder.layers.{layer}."
        model[place + "self_attention.linear_proj.weight"] = torch.arange(16.0).view(4, 4) + layer
        model[place + "self_attention.linear_proj._extra_state"] = io.BytesIO(
            b"scales of layer %d" % layer
        )
        model[place + "self_attention.linear_qkv.layer_norm_weight"] = torch.arange(4.0) + layer
        model[place + "self_attention.linear_qkv.weight"] = torch.arange(48.0).view(12, 4) + layer
        model[place + "self_attention.linear_qkv._extra_state"] = torch.full(
            (9,), layer, dtype=torch.uint8
        )
        model[place + "mlp.router.weight"] = torch.arange(4.0 * experts).view(experts, 4) + layer
        model[place + "mlp.router.expert_bias"] = torch.arange(float(experts)) + layer
        for linear, shape in (("linear_fc1", (12, 4)), ("linear_fc2", (4, 6))):
            for expert in range(local):
                value = 100.0 * (rank * local + expert) + layer
                model[place + f"mlp.experts.{linear}.weight{expert}"] = torch.full(
                    shape, value
                ) + torch.arange(float(shape[1]))
            model[place + f"mlp.experts.{linear}._extra_state"] = None
    model["decoder.final_layernorm.weight"] = torch.arange(4.0)
    model["output_layer.weight"] = torch.arange(32.0).view(8, 4) + 7
    model["output_layer._extra_state"] = None
    return {"checkpoint_version": 3.0, "iteration": 5, "model": model}


def test_grouped_experts(tmp_path: pathlib.Path) -> None:
    """Names and extra states of Transformer Engine, without args: what one number in the names of
    folders means is found in the files."""

    def write(folder: pathlib.Path, ranks: int) -> None:
        for rank in range(ranks):
            path = (
                folder / "iter_0000005" / (f"mp_rank_00_{rank:03d}" if ranks > 1 else "mp_rank_00")
            )
            path.mkdir(parents=True)
            torch.save(grouped_file(rank, ranks, 4), path / "model_optim_rng.pt")
        (folder / "latest_checkpointed_iteration.txt").write_text("5")

    def plain(tree: Any) -> Any:
        return {
            key: value.getvalue() if isinstance(value, io.BytesIO) else value
            for key, value in tree["model"].items()
        }

    for ranks in (1, 2, 4):
        write(tmp_path / f"own{ranks}", ranks)
    for before, after in ((2, 1), (2, 4), (1, 2), (4, 1)):
        target = tmp_path / f"{before}to{after}"
        convert(tmp_path / f"own{before}", target, "--to", "megatron", "--ep", after)
        for path in sorted((tmp_path / f"own{after}").glob("*/*/*.pt")):
            right = plain(torch.load(path, weights_only=False))
            left = plain(
                torch.load(target / path.relative_to(tmp_path / f"own{after}"), weights_only=False)
            )
            left = {
                key: value[:8]
                if key.endswith(("word_embeddings.weight", "output_layer.weight"))
                else value
                for key, value in left.items()
            }
            assert list(left) == list(right)
            for key, value in right.items():
                assert (
                    torch.equal(left[key], value) if torch.is_tensor(value) else left[key] == value
                ), (path, key)
