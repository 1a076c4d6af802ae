"""`cairn convert` against Megatron-Core's dist_checkpointing: what its real ranks saved is read,
with any encoding of the optimizer, and what is written it loads at other parallelisms, every tensor
of every rank equal.

Needs the command of a build (BUILD=folder, build/plain by default) and build/venv-megatron, a
virtual environment with megatron-core that shares this one's PyTorch. One process there makes and
loads all checkpoints (megatron_dist_worker.py).
"""

from __future__ import annotations

import json
import pathlib
import pickle
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.filesystem import _StorageInfo  # noqa: E402
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from convert_states import ROOT, cairn, same  # noqa: E402

PYTHON = ROOT / "build" / "venv-megatron" / "bin" / "python"
if not PYTHON.exists():
    pytest.skip("build/venv-megatron with megatron-core is not there", allow_module_level=True)

DENSE = {"tp": 2, "pp": 2, "ep": 1, "dp": 1, "kind": "dense", "padded": 104, "bucket": 2000}
MIXED = {"tp": 1, "pp": 2, "ep": 2, "dp": 2, "kind": "moe tied", "bucket": 4000}
# Of a buffer with several buckets Megatron-Core 0.16.1 itself saves wrong masters as
# fully_reshardable: its other encodings are right.
HALF = {"tp": 2, "pp": 1, "ep": 1, "dp": 1, "kind": "half", "padded": 104, "bucket": 2000}
APART = {"tp": 1, "pp": 1, "ep": 1, "dp": 2, "kind": "moe"}
PLAIN = {"tp": 2, "pp": 1, "ep": 1, "dp": 1, "kind": "plain"}


class Worker:
    """The process of Megatron-Core."""

    def __init__(self, log: pathlib.Path) -> None:
        self.log = log
        self.process = subprocess.Popen(
            [PYTHON, pathlib.Path(__file__).parent / "megatron_dist_worker.py"],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
        )

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"error": self.log.read_text()[-3000:]}
        assert "error" not in answer, answer["error"]
        return answer


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    started = Worker(tmp_path_factory.mktemp("worker") / "log")
    yield started
    started.process.stdin.close()
    started.process.wait(timeout=300)


@pytest.fixture(scope="module")
def checkpoints(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("megatron")
    both = {"": "fully_reshardable", "_buckets": "dp_reshardable", "_ranks": "torch"}
    for name, job in (("dense", DENSE), ("mixed", MIXED)):
        worker.ask(
            op="save",
            job=job,
            out={str(folder / f"{name}{end}"): encoding for end, encoding in both.items()},
        )
    worker.ask(
        op="save",
        job=HALF,
        out={str(folder / "half_buckets"): "dp_reshardable", str(folder / "half_ranks"): "torch"},
    )
    worker.ask(
        op="save",
        job=APART,
        out={str(folder / "apart"): "fully_reshardable"},
        options={"singleton_local_shards": True},
    )
    worker.ask(
        op="save",
        job=PLAIN,
        out={str(folder / "plain"): "none"},
        options={"non_homogeneous_layers": True},
    )
    return folder


def entries(folder: pathlib.Path) -> dict[str, Any]:
    """Each key of .metadata with its shape."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    return {
        key: tuple(getattr(entry, "size", ()))
        for key, entry in metadata.state_dict_metadata.items()
    }


LOADS = [
    ("dense", {"tp": 4, "pp": 1, "ep": 1, "dp": 1, "kind": "dense", "padded": 128}),
    ("mixed", {"tp": 1, "pp": 1, "ep": 4, "dp": 4, "kind": "moe tied"}),
    ("apart", {"tp": 1, "pp": 2, "ep": 1, "dp": 1, "kind": "moe"}),
]


@pytest.mark.parametrize("name, job", LOADS)
def test_loaded_elsewhere(
    worker: Worker,
    checkpoints: pathlib.Path,
    tmp_path: pathlib.Path,
    name: str,
    job: dict[str, Any],
) -> None:
    cairn(
        "convert",
        checkpoints / name,
        tmp_path / "out",
        "--to",
        "megatron-dist",
        "--tp",
        1,
        "--pp",
        1,
        "--dp",
        2,
    )
    answer = worker.ask(
        op="same", job=job, one=str(checkpoints / name), other=str(tmp_path / "out")
    )
    assert answer["tensors"] > 100 and answer["differences"] == []


@pytest.mark.parametrize("name", ["dense", "mixed"])
def test_buckets(
    worker: Worker, checkpoints: pathlib.Path, tmp_path: pathlib.Path, name: str
) -> None:
    """The optimizer's buckets, whose parameters nobody names, are the same state as its tensors by
    parameter."""
    said = cairn("inspect", checkpoints / f"{name}_buckets").stdout
    assert "exp_avg_sq.decoder.layers.3." in said
    cairn("convert", checkpoints / f"{name}_buckets", tmp_path / "out", "--to", "megatron-dist")
    job = (
        {"tp": 2, "pp": 1, "ep": 1, "dp": 1, "kind": "dense", "padded": 104}
        if name == "dense"
        else {**MIXED, "pp": 1}
    )
    answer = worker.ask(
        op="same", job=job, one=str(checkpoints / name), other=str(tmp_path / "out")
    )
    assert answer["differences"] == []
    common = [
        torch.load(folder / "common.pt", weights_only=False)
        for folder in (checkpoints / name, tmp_path / "out")
    ]
    same(common[0]["optimizer"], common[1]["optimizer"])
    assert common[1]["content_metadata"]["distrib_optim_sharding_type"] == "fully_reshardable"


@pytest.mark.parametrize("name", ["dense", "mixed", "apart", "plain"])
def test_forms(checkpoints: pathlib.Path, tmp_path: pathlib.Path, name: str) -> None:
    """Stacked stays stacked and apart stays apart, and the way through another format ends at the
    same bytes."""
    source = checkpoints / name
    cairn(
        "convert",
        source,
        tmp_path / "direct",
        "--to",
        "megatron-dist",
        "--tp",
        1,
        "--pp",
        1,
        "--dp",
        2,
    )
    shapes = entries(source)
    for key, shape in entries(tmp_path / "direct").items():
        vocabulary = "word_embeddings" in key or "output_layer.weight" in key
        assert shape == ((100, *shapes[key][1:]) if vocabulary else shapes[key])
    assert set(shapes) == set(entries(tmp_path / "direct"))
    for other in ("universal", "dcp"):
        cairn("convert", source, tmp_path / other, "--to", other)
        cairn(
            "convert",
            tmp_path / other,
            tmp_path / f"from_{other}",
            "--to",
            "megatron-dist",
            "--tp",
            1,
            "--pp",
            1,
            "--dp",
            2,
        )
        for path in (tmp_path / "direct").iterdir():
            assert (
                path.read_bytes() == (tmp_path / f"from_{other}" / path.name).read_bytes()
            ), path.name
    cairn("diff", source, tmp_path / "direct")


def test_logical(checkpoints: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Against a slow reference: gates before ups, a tensor per layer and expert, no row that is
    padding."""
    for name in ("dense", "mixed"):
        metadata = dcp.FileSystemReader(checkpoints / name).read_metadata()
        state = {
            key: torch.zeros(entry.size, dtype=entry.properties.dtype)
            for key, entry in metadata.state_dict_metadata.items()
            if hasattr(entry, "chunks")
        }
        dcp.load(state, storage_reader=dcp.FileSystemReader(checkpoints / name))
        reference: dict[str, Any] = {}
        for key, tensor in state.items():
            kind, _, rest = (
                key.removeprefix("optimizer.state.").partition(".")
                if key.startswith("optimizer.")
                else ("", "", key)
            )
            prefix = {"": "", "param": "fp32."}.get(kind, f"{kind}.")
            if "word_embeddings" in key or "output_layer" in key:
                tensor = tensor[:100]
            layers = (
                list(enumerate(tensor)) if rest.startswith("decoder.layers.") else [(None, tensor)]
            )
            for layer, part in layers:
                named = prefix + (
                    rest if layer is None else rest.replace("layers.", f"layers.{layer}.", 1)
                )
                if "experts.experts." in named:
                    for expert, each in enumerate(part):
                        reference[
                            named.replace("experts.experts.", f"experts.local_experts.{expert}.")
                        ] = each
                else:
                    reference[named] = part
        cairn(
            "convert", checkpoints / name, tmp_path / f"{name}.safetensors", "--to", "safetensors"
        )
        loaded = load_file(tmp_path / f"{name}.safetensors")
        assert [
            key
            for key in reference
            if key not in loaded or not same_tensor(reference[key], loaded[key])
        ] == []


def test_ranks(worker: Worker, checkpoints: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Between Megatron-LM's own files and distributed checkpoints, with the optimizer: models and
    optimizers that loaded them with Megatron-Core's own loaders hold the same, settings included.
    """

    def made(name: str, end: str, to: str, job: dict[str, Any]) -> str:
        target = tmp_path / f"{name}{end}_{to}_{job['tp']}_{job['ep']}"
        cairn(
            "convert",
            checkpoints / f"{name}{end}",
            target,
            "--to",
            to,
            "--tp",
            job["tp"],
            "--pp",
            job["pp"],
            "--ep",
            job["ep"],
        )
        return str(target)

    four = {"tp": 4, "pp": 1, "ep": 1, "dp": 1, "kind": "dense", "padded": 112, "bucket": 2000}
    one = {"tp": 1, "pp": 2, "ep": 1, "dp": 1, "kind": "moe tied", "bucket": 4000}
    for job, left, right in [
        (four, str(checkpoints / "dense"), made("dense", "_ranks", "megatron-dist", four)),
        (HALF, str(checkpoints / "half_ranks"), made("half", "_buckets", "megatron", HALF)),
        (MIXED, str(checkpoints / "mixed_ranks"), made("mixed", "", "megatron", MIXED)),
        (one, made("mixed", "_ranks", "megatron", one), made("mixed", "", "megatron-dist", one)),
    ]:
        answer = worker.ask(op="alike", job=job, one=left, other=right)
        assert answer["tensors"] > 100 and answer["differences"] == []
    cairn(
        "convert",
        tmp_path / "dense_ranks_megatron-dist_4_1",
        tmp_path / "back",
        "--to",
        "megatron",
        "--tp",
        2,
        "--pp",
        2,
    )
    said = cairn(
        "diff", checkpoints / "dense_ranks", tmp_path / "back", "--bits", status=1
    ).stdout.splitlines()[:-1]
    assert [line for line in said if "megatron/" not in line] == []
    for path in (checkpoints / "dense_ranks").glob("*/*/model_optim_rng.pt"):
        ours = torch.load(
            tmp_path / "back" / path.relative_to(checkpoints / "dense_ranks"), weights_only=False
        )
        theirs = torch.load(path, weights_only=False)
        assert {key: ours[key] for key in theirs if key not in ("args", "model", "rng_state")} == {
            key: value for key, value in theirs.items() if key not in ("args", "model", "rng_state")
        }
        assert {**vars(ours["args"]), "rank": 0} == {**vars(theirs["args"]), "rank": 0}
        same(ours["rng_state"], theirs["rng_state"])


def test_other_frameworks(
    worker: Worker, checkpoints: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Moments that did not come from Megatron are loaded by its distributed optimizer, with the
    groups that --job says."""
    listed = json.loads(cairn("inspect", checkpoints / "dense", "-o", "json").stdout)["tensors"]
    opaque = ",".join(tensor["name"] for tensor in listed if tensor["kind"] == "opaque")
    cairn(
        "convert", checkpoints / "dense", tmp_path / "other", "--to", "universal", "--drop", opaque
    )
    common = torch.load(checkpoints / "dense" / "common.pt", weights_only=False)
    vectors = {tensor["name"] for tensor in listed if len(tensor["shape"]) <= 1}
    names = [tensor["name"] for tensor in listed if tensor["kind"] == "param"]
    groups = [
        {
            **group,
            "params": [name for name in names if (name in vectors) == (group["wd_mult"] == 0)],
        }
        for group in common["optimizer"]["optimizer"]["param_groups"]
    ]
    (tmp_path / "job.json").write_text(
        json.dumps(
            {
                "param_groups": groups,
                "lr_scheduler": common["opt_param_scheduler"],
                "global_steps": 7,
            }
        )
    )
    cairn(
        "convert",
        tmp_path / "other",
        tmp_path / "out",
        "--to",
        "megatron-dist",
        "--job",
        tmp_path / "job.json",
    )
    job = {**DENSE, "tp": 1, "pp": 1}
    answer = worker.ask(
        op="alike", job=job, one=str(checkpoints / "dense"), other=str(tmp_path / "out")
    )
    assert answer["differences"] == [] and answer["tensors"] > 100


def test_common_state(checkpoints: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Where Megatron-Core 0.19 keeps what common.pt had: an object among the others."""
    folder = broken(checkpoints / "mixed", tmp_path / "newer")
    common = torch.load(folder / "common.pt", weights_only=False)
    (folder / "common.pt").unlink()
    torch.save([common], folder / "__9_0.distcp")
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    key = "common_state/shard_0_1"
    metadata.state_dict_metadata[key] = BytesStorageMetadata()
    metadata.storage_data[MetadataIndex(key)] = _StorageInfo(
        "__9_0.distcp", 0, (folder / "__9_0.distcp").stat().st_size
    )
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    cairn("convert", folder, tmp_path / "out", "--to", "megatron-dist")
    cairn("diff", checkpoints / "mixed", folder)
    cairn("diff", folder, tmp_path / "out")
    (folder / "__9_0.distcp").unlink()
    assert "__9_0.distcp" in cairn("inspect", folder, status=65).stderr


def same_tensor(one: Any, other: Any) -> bool:
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and torch.equal(
            one.contiguous().flatten().view(torch.uint8),
            other.contiguous().flatten().view(torch.uint8),
        )
    )


def broken(source: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    shutil.copytree(source, target)
    return target


def test_bad_input(checkpoints: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Missing, truncated and mixed files are refused by name; nothing is written."""
    source = checkpoints / "dense"

    def remove(name: str) -> Callable[[pathlib.Path], None]:
        return lambda folder: (folder / name).unlink()

    def cut(name: str) -> Callable[[pathlib.Path], None]:
        return lambda folder: (folder / name).write_bytes((source / name).read_bytes()[:-400])

    def mix(folder: pathlib.Path) -> None:
        shutil.copy(checkpoints / "apart" / ".metadata", folder / ".metadata")

    def listed(folder: pathlib.Path) -> None:
        torch.save([1, 2], folder / "common.pt")

    def reshape(folder: pathlib.Path) -> None:
        metadata = pickle.loads((folder / ".metadata").read_bytes())
        metadata.state_dict_metadata["decoder.final_layernorm.weight"].chunks[0].sizes = torch.Size(
            [31]
        )
        (folder / ".metadata").write_bytes(pickle.dumps(metadata))

    for i, (edit, words) in enumerate(
        [
            (remove("__1_0.distcp"), "__1_0.distcp: missing"),
            (remove("common.pt"), "common.pt is missing"),
            (cut("common.pt"), "common.pt"),
            (cut("__0_0.distcp"), "truncated"),
            (cut(".metadata"), ".metadata"),
            (mix, "distcp"),
            (listed, "holds no dict"),
            (reshape, "final_layernorm"),
        ]
    ):
        folder = broken(source, tmp_path / f"broken{i}")
        edit(folder)
        assert (
            words
            in cairn("convert", folder, tmp_path / "out", "--to", "megatron-dist", status=65).stderr
        )
        assert not (tmp_path / "out").exists()


def test_buckets_that_do_not_fit(checkpoints: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Arguments other than those of the job that saved: refused, since the order of parameters
    would be wrong."""
    folder = broken(checkpoints / "dense_buckets", tmp_path / "wrong")
    common = torch.load(folder / "common.pt", weights_only=False)
    common["args"].pipeline_model_parallel_size = 1
    torch.save(common, folder / "common.pt")
    said = cairn("convert", folder, tmp_path / "out", "--to", "megatron-dist", status=64).stderr
    assert "fully-reshardable" in said
