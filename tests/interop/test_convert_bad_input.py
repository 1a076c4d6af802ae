"""Bad checkpoints of every format given to `cairn convert`: refused with exit 65 and words that say
where, nothing that looks complete, and what was mended converts into the same place.

Needs the command of a build (BUILD=folder, build/plain by default); PyTorch only to take
`.metadata` apart.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import os
import pathlib
import pickle
import re
import shutil
import struct
import subprocess
import zipfile

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

ROOT = pathlib.Path(__file__).resolve().parents[2]
CAIRN = ROOT / os.environ.get("BUILD", "build/plain") / "cairn"
FIXTURES = ROOT / "tests" / "fixtures"
REFUSED = 65
# files whose archives have checksums; safetensors have none, but for those of `universal`
SUMMED = (".pt", ".distcp")
FLIPS = 4  # of each file
# Where records of an archive have their checksums. Without, the damage is in what the archive
# holds.
CHECKSUM_AT = {b"PK\x03\x04": 14, b"PK\x01\x02": 16, b"PK\x07\x08": 4}
# What each checkpoint is made from, and what it is converted to.
SOURCES = {
    "universal": ("dcp/mesh", "universal"),
    "state.safetensors": ("dcp/mesh", "safetensors"),
    "state.pt": ("dcp/mesh", "torch"),
    "deepspeed-universal": ("deepspeed/zero2", "deepspeed-universal"),
}
FIXED = {
    "zero2": "deepspeed/zero2",
    "zero3": "deepspeed/zero3",
    "pipe": "deepspeed/pipe",
    "dense": "megatron/dense",
    "experts": "megatron/experts",
    "stacked": "megatron_dist/stacked",
    "flat": "megatron_dist/flat",
    "mesh": "dcp/mesh",
}
Damage = collections.abc.Callable[[pathlib.Path], None]


def cairn(*words: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [CAIRN, *map(str, words)], capture_output=True, text=True, errors="replace", timeout=300
    )
    assert done.returncode >= 0, f"killed by signal {-done.returncode}: {done.stderr}"
    return done


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A sound checkpoint of each kind."""
    folder = tmp_path_factory.mktemp("sound")
    for name, fixture in FIXED.items():
        shutil.copytree(FIXTURES / fixture, folder / name)
    for name, (fixture, form) in SOURCES.items():
        done = cairn("convert", FIXTURES / fixture, folder / name, "--to", form)
        assert done.returncode == 0, done.stderr
    return folder


# ---- damage ----


def truncate(name: str, keep: float = 0.5) -> Damage:
    def damage(folder: pathlib.Path) -> None:
        path = folder / name
        os.truncate(path, int(path.stat().st_size * keep))

    return damage


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def rename(name: str, to: str) -> Damage:
    return lambda folder: (folder / name).rename(folder / to)


def write(name: str, text: bytes) -> Damage:
    def damage(folder: pathlib.Path) -> None:
        (folder / name).write_bytes(text)

    return damage


def edit(name: str, old: bytes, new: bytes, count: int = 1) -> Damage:
    """Other bytes of the same length, and no checksums."""

    def damage(folder: pathlib.Path) -> None:
        data = (folder / name).read_bytes()
        assert len(old) == len(new) and old in data, f"{name} does not have {old!r}"
        changed = bytearray(data.replace(old, new, count))
        for signature, offset in CHECKSUM_AT.items():
            for found in re.finditer(re.escape(signature), bytes(changed)):
                changed[found.start() + offset : found.start() + offset + 4] = bytes(4)
        (folder / name).write_bytes(changed)

    return damage


def metadata(change: collections.abc.Callable[[object], None]) -> Damage:
    """What .metadata says, changed."""

    def damage(folder: pathlib.Path) -> None:
        path = folder / ".metadata"
        said = pickle.loads(path.read_bytes())
        change(said)
        path.write_bytes(pickle.dumps(said, protocol=4))

    return damage


def without_a_chunk(said) -> None:
    entry = said.state_dict_metadata["model.rows"]
    entry.chunks.pop()


def with_a_chunk_twice(said) -> None:
    entry = said.state_dict_metadata["model.rows"]
    index = next(
        i for i in said.storage_data if i.fqn == "model.rows" and i.offset != torch.Size([0, 0])
    )
    entry.chunks[1] = dataclasses.replace(entry.chunks[1], offsets=torch.Size([1, 0]))
    said.storage_data[
        dataclasses.replace(index, offset=torch.Size([1, 0]))
    ] = said.storage_data.pop(index)


def with_another_ranks_item(said) -> None:
    first, second = [index for index in said.storage_data if index.fqn == "model.rows"][:2]
    said.storage_data[first] = said.storage_data[second]


def header(name: str, change: collections.abc.Callable[[dict], None]) -> Damage:
    """What the header of a safetensors file says, changed; the file stays as long as it is."""

    def damage(folder: pathlib.Path) -> None:
        path = folder / name
        data = path.read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        said = json.loads(data[8 : 8 + length])
        change(said)
        text = json.dumps(said, separators=(",", ":")).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])

    return damage


def shifted(said: dict) -> None:
    begin, end = said["rows"]["data_offsets"]
    said["rows"]["data_offsets"] = [begin - 4, end - 4]


def archive(name: str, how: int, size: int) -> Damage:
    """An archive with one entry that is `size` zeros, packed small."""

    def damage(folder: pathlib.Path) -> None:
        with zipfile.ZipFile(folder / name, "w", how) as made:
            made.writestr("archive/data.pkl", bytes(size))
            made.writestr("archive/version", b"3\n")

    return damage


def change_replica(folder: pathlib.Path) -> None:
    """One bit of the last holder's part of a tensor that each rank has whole."""
    tensors = json.loads(cairn("inspect", folder, "-o", "json").stdout)["tensors"]
    part = next(t for t in tensors if t["name"].endswith("layers.0.input_layernorm.weight"))[
        "slices"
    ][-1]
    path = folder / part["file"]
    data = bytearray(path.read_bytes())
    data[part["offset_bytes"]] ^= 1
    path.write_bytes(data)


OPTIM2 = "global_step2/bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt"
MODEL3 = "global_step2/zero_pp_rank_{}_mp_rank_00_model_states.pt"
UNIVERSAL = "global_step2_universal/zero/embed.weight/{}.pt"
MEGATRON = "iter_0000003/mp_rank_{:02}_{:03}/{}"
# (checkpoint, damage): what is done to it, and what the refusal says.
CASES: dict[tuple[str, str], tuple[Damage, list[str]]] = {
    ("universal", "truncated index"): (truncate("index.json"), ["index.json"]),
    ("universal", "truncated data"): (
        truncate("param-00001-of-00001.safetensors"),
        ["param-00001-of-00001.safetensors"],
    ),
    ("universal", "missing file"): (
        remove("param-00001-of-00001.safetensors"),
        ["param-00001-of-00001.safetensors"],
    ),
    ("universal", "path trick"): (
        edit(
            "index.json", b"param-00001-of-00001.safetensors", b"../../00001-of-00001.safetensors"
        ),
        ["index.json"],
    ),
    ("state.safetensors", "truncated"): (truncate("", 0.9), ["truncated"]),
    ("state.safetensors", "overlap"): (header("", shifted), ["overlap", "rows"]),
    ("state.pt", "truncated"): (truncate(""), []),
    ("state.pt", "zip bomb"): (archive("", zipfile.ZIP_DEFLATED, 1 << 24), ["data.pkl"]),
    ("state.pt", "no pickle"): (archive("", zipfile.ZIP_STORED, 1 << 10), ["byte 0"]),
    ("mesh", "a size without end"): (
        write(".metadata", b"\x80\x04\x8e" + struct.pack("<Q", 1 << 63) + b"."),
        [".metadata", "byte 2"],
    ),
    ("mesh", "a stack without end"): (
        write(".metadata", b"\x80\x04" + b"]" * (1 << 20)),
        [".metadata"],
    ),
    ("mesh", "a memo that doubles"): (
        write(".metadata", b"\x80\x04]" + b"2l." * (1 << 16)),
        [".metadata"],
    ),
    ("mesh", "truncated metadata"): (truncate(".metadata"), [".metadata"]),
    ("mesh", "truncated items"): (truncate("__1_0.distcp"), ["__1_0.distcp"]),
    ("mesh", "missing rank"): (remove("__2_0.distcp"), ["__2_0.distcp"]),
    ("mesh", "items of another rank"): (rename("__3_0.distcp", "__1_0.distcp"), ["__1_0.distcp"]),
    ("mesh", "path trick"): (
        edit(".metadata", b"__2_0.distcp", b"../../passwd"),
        ["outside the checkpoint"],
    ),
    ("mesh", "missing elements"): (metadata(without_a_chunk), ["rows"]),
    ("mesh", "overlap"): (metadata(with_a_chunk_twice), ["rows"]),
    ("mesh", "item twice"): (
        metadata(with_another_ranks_item),
        [".metadata", "model.rows", "overlap"],
    ),
    ("zero2", "truncated"): (truncate(OPTIM2.format(1)), [OPTIM2.format(1)]),
    ("zero2", "missing rank"): (
        remove(OPTIM2.format(0)),
        ["rank 0's optim_states file is missing"],
    ),
    ("zero2", "path trick"): (write("latest", b"../../etc"), ["latest"]),
    ("zero2", "unequal ranks"): (
        edit(OPTIM2.format(1), b"partition_countqm]qn(K\x02", b"partition_countqm]qn(K\x03"),
        [OPTIM2.format(1)],
    ),
    ("zero3", "truncated"): (truncate(MODEL3.format(2)), [MODEL3.format(2)]),
    ("zero3", "missing rank"): (
        remove(MODEL3.format(1)),
        ["rank 1's model_states file is missing"],
    ),
    ("zero3", "zip bomb"): (
        archive(MODEL3.format(1), zipfile.ZIP_DEFLATED, 1 << 24),
        [MODEL3.format(1), "data.pkl"],
    ),
    ("pipe", "missing layer"): (
        remove("global_step2/layer_02-model_states.pt"),
        ["2.up.weight", "layer_"],
    ),
    ("deepspeed-universal", "truncated"): (
        truncate(UNIVERSAL.format("fp32")),
        [UNIVERSAL.format("fp32")],
    ),
    ("deepspeed-universal", "missing file"): (
        remove(UNIVERSAL.format("exp_avg")),
        ["embed.weight", "exp_avg"],
    ),
    ("deepspeed-universal", "path trick"): (
        write("latest_universal", b"/etc"),
        ["latest_universal"],
    ),
    ("dense", "truncated"): (
        truncate(MEGATRON.format(1, 0, "distrib_optim.pt")),
        [MEGATRON.format(1, 0, "distrib_optim.pt")],
    ),
    ("dense", "missing rank"): (
        remove(MEGATRON.format(1, 1, "model_optim_rng.pt")),
        [MEGATRON.format(1, 1, "model_optim_rng.pt")],
    ),
    ("dense", "mixed iterations"): (
        edit(MEGATRON.format(1, 0, "model_optim_rng.pt"), b"iterationq&K\x03", b"iterationq&K\x04"),
        [MEGATRON.format(1, 0, "model_optim_rng.pt"), "iteration"],
    ),
    ("dense", "unequal replicas"): (
        change_replica,
        [MEGATRON.format(1, 0, "model_optim_rng.pt"), "layernorm.weight"],
    ),
    ("dense", "path trick"): (
        write("latest_checkpointed_iteration.txt", b"../../etc"),
        ["latest_checkpointed_iteration.txt"],
    ),
    ("experts", "missing rank"): (
        remove(MEGATRON.format(1, 1, "distrib_optim.pt")),
        ["is not whole", "fp32.embedding.word_embeddings.weight", "missing ranks"],
    ),
    ("stacked", "truncated metadata"): (truncate(".metadata"), [".metadata"]),
    ("stacked", "truncated items"): (truncate("__0_0.distcp"), ["__0_0.distcp"]),
    ("stacked", "missing rank"): (remove("__1_0.distcp"), ["__1_0.distcp"]),
    ("stacked", "missing common.pt"): (remove("common.pt"), ["common.pt"]),
    ("stacked", "truncated common.pt"): (truncate("common.pt"), ["common.pt"]),
    ("stacked", "path trick"): (
        edit(".metadata", b"__1_0.distcp", b"../../passwd"),
        ["outside the checkpoint"],
    ),
    ("flat", "missing rank"): (remove("__1_0.distcp"), ["__1_0.distcp"]),
    ("flat", "truncated items"): (truncate("__1_0.distcp"), ["__1_0.distcp"]),
}


def copy(sound: pathlib.Path, to: pathlib.Path) -> None:
    if sound.is_dir():
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(sound, to)
    else:
        shutil.copy(sound, to)


def target_form(name: str) -> str:
    return "universal" if name != "universal" else "dcp"


@pytest.mark.parametrize("name,damage", list(CASES), ids=lambda word: word.replace(" ", "_"))
def test_is_refused_and_goes_on_when_mended(
    name: str, damage: str, checkpoints: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    source, target = tmp_path / name, tmp_path / "target"
    copy(checkpoints / name, source)
    change, words = CASES[name, damage]
    change(source)
    done = cairn("convert", source, target, "--to", target_form(name))
    assert done.returncode == REFUSED, done.stdout + done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert cairn("inspect", target).returncode == REFUSED
    copy(checkpoints / name, source)
    done = cairn("convert", source, target, "--to", target_form(name))
    assert done.returncode == 0, done.stderr
    assert cairn("diff", source, target).returncode == 0


def first_elements(
    folder: pathlib.Path, tensors: list[dict]
) -> list[tuple[str, pathlib.Path, int]]:
    """Of each file with checksums: the tensor that lies first in it, and where; of what is not
    looked at while planning."""
    first: dict[pathlib.Path, tuple[int, str]] = {}
    for tensor in tensors:
        for part in (
            tensor["slices"]
            if tensor["kind"] != "opaque" and not tensor["name"].startswith("step.")
            else ()
        ):
            # some are in memory
            path = folder / (part["file"] or "") if folder.is_dir() else folder
            if path.is_file() and (path.suffix in SUMMED or folder.name == "universal"):
                first[path] = min(
                    first.get(path, (1 << 62, "")), (part["offset_bytes"], tensor["name"])
                )
    return [(name, path, at) for path, (at, name) in sorted(first.items())]


@pytest.mark.parametrize(
    "name", [name for name in [*FIXED, *SOURCES] if name != "state.safetensors"]
)
def test_damaged_elements(name: str, checkpoints: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """One bit of a tensor: refused by all that read data, with file, place and tensor; `inspect`
    reads none."""
    sound, source, target = checkpoints / name, tmp_path / name, tmp_path / "target"
    copy(sound, source)
    tensors = json.loads(cairn("inspect", source, "-o", "json").stdout)["tensors"]
    found = first_elements(source, tensors)
    assert found
    for tensor, path, at in found:
        data = path.read_bytes()
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        shutil.rmtree(target, ignore_errors=True)  # where what was begun with another source stands
        for words in (
            ["convert", source, target, "--to", target_form(name)],
            ["diff", sound, source],
            ["fingerprint", source],
        ):
            done = cairn(*words)
            assert done.returncode == REFUSED, (words, path, at, done.stderr)
            assert path.name in done.stderr and tensor in done.stderr, done.stderr
            assert re.search(rf"byte {at} and|differ", done.stderr), done.stderr
        assert cairn("inspect", target).returncode == REFUSED
        assert cairn("inspect", source).returncode == 0
        path.write_bytes(data)


@pytest.mark.parametrize("name", ["mesh", "flat"])
def test_flipped_metadata(name: str, checkpoints: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """`.metadata` has no checksum: a flipped bit is refused, or what it changed is a name, a kind,
    or a tensor that is gone or new, each reported. Never are other elements taken for a
    tensor's: names of files are where they might be."""
    source = tmp_path / name
    copy(checkpoints / name, source)
    path = source / ".metadata"
    data = path.read_bytes()
    files = [found.start() + 2 for found in re.finditer(rb"__\d+_\d+\.distcp", data)]

    def read() -> dict[str, dict] | None:
        done = cairn("fingerprint", source, "-o", "json")
        assert done.returncode in (0, REFUSED) and (
            done.returncode == 0 or done.stderr.strip()
        ), done.stderr
        return (
            {tensor["name"]: tensor for tensor in json.loads(done.stdout)["tensors"]}
            if done.returncode == 0
            else None
        )

    sound = read()
    assert sound and files
    same = 0
    for at, bit in [(at, bit) for at in files for bit in range(2)] + [
        (at, at % 7) for at in range(40, len(data), len(data) // 60)
    ]:
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
        found = read() or {}
        for tensor in sound.keys() & found.keys():
            if not tensor.endswith(".pickle"):
                assert sound[tensor]["fingerprint"] == found[tensor]["fingerprint"], (
                    tensor,
                    at,
                    bit,
                )
                same += 1
    assert same > 0


@pytest.mark.parametrize("name", [*FIXED, *SOURCES])
def test_flipped_bits(name: str, checkpoints: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Each input is refused or accepted; an accepted one is harmless if it has checksums."""
    sound, source, target = checkpoints / name, tmp_path / name, tmp_path / "target"
    copy(sound, source)
    words = ["convert", source, target, "--to", target_form(name), "-o", "json"]
    expected = json.loads(cairn(*words).stdout)["fingerprint_source"]
    for path in (
        sorted(p for p in source.rglob("*") if p.is_file()) if source.is_dir() else [source]
    ):
        data = path.read_bytes()
        summed = name == "universal" or path.suffix in SUMMED
        for at in range(len(data) // (2 * FLIPS), len(data), max(1, len(data) // FLIPS)):
            path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
            shutil.rmtree(target)
            target.mkdir()
            done = cairn(*words)
            assert done.returncode in (0, 64, REFUSED), (path.name, at, done.stderr)
            if done.returncode:
                assert done.stderr.strip(), (path.name, at)
                assert cairn("inspect", target).returncode == REFUSED, (path.name, at)
            elif summed:
                assert json.loads(done.stdout)["fingerprint_source"] == expected, (
                    path.name,
                    at,
                    done.stderr,
                )
        path.write_bytes(data)
