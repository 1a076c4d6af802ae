"""A universal checkpoint, read without Cairn: by the rules of the format in plain Python, and by
the safetensors package.

Needs the program tests/unit/snapshot/test_universal of a build (BUILD=folder, build/plain by
default), which writes the checkpoint.
"""

import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BUILD", "build/plain")
WRITER = BUILD / "tests/unit/snapshot/test_universal"

ELEMENT_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
    "C64": 8,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    if not WRITER.exists():
        pytest.skip(f"{WRITER} is not built")
    folder = tmp_path_factory.mktemp("universal")
    subprocess.run([WRITER, "--write", folder], check=True)
    return folder / "checkpoint"


def no_duplicates(pairs):
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), "duplicate keys"
    return dict(pairs)


def read_strictly(path):
    """The header as the format's own description demands it; gives (metadata, tensors, start of the
    data, file size)."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length <= 100_000_000 and 8 + length <= len(data)
    text = data[8 : 8 + length].decode("utf-8")
    assert text.startswith("{")
    header = json.loads(text, object_pairs_hook=no_duplicates)
    metadata = header.pop("__metadata__")
    assert all(isinstance(value, str) for value in metadata.values())
    end = 0
    for tensor in sorted(header.values(), key=lambda tensor: tensor["data_offsets"]):
        elements = 1
        for extent in tensor["shape"]:
            elements *= extent
        assert tensor["data_offsets"] == [end, end + elements * ELEMENT_BYTES[tensor["dtype"]]]
        end = tensor["data_offsets"][1]
    assert 8 + length + end == len(data), "the tensors do not cover the data"
    assert (8 + length) % 4096 == 0
    return metadata, header, 8 + length, data


def expected_bytes(index, file, begin, end):
    """What the writer put there: byte i of the data section of file f is (31 i + f) mod 256."""
    return bytes((31 * i + file) & 255 for i in range(begin, end))


def test_by_the_rules(checkpoint):
    index = json.loads((checkpoint / "index.json").read_text())
    assert (checkpoint / "COMMIT").exists()
    seen = 0
    for number, file in enumerate(index["files"]):
        metadata, tensors, start, data = read_strictly(checkpoint / file["name"])
        assert metadata["format"] == "pt"
        assert start == file["data_offset"] and len(data) == start + file["data_bytes"]
        assert data[start:] == expected_bytes(index, number, 0, file["data_bytes"])
        listed = [tensor for tensor in index["tensors"] if tensor["file"] == number]
        assert {tensor["name"] for tensor in listed} == set(tensors)
        for tensor in listed:
            found = tensors[tensor["name"]]
            assert found["dtype"] == tensor["dtype"] and found["shape"] == tensor["shape"]
            assert found["data_offsets"] == [tensor["offset"], tensor["offset"] + tensor["bytes"]]
        seen += len(listed)
    assert seen == len(index["tensors"]) == 14


def test_weight_map(checkpoint):
    weight_map = json.loads((checkpoint / "model.safetensors.index.json").read_text())
    index = json.loads((checkpoint / "index.json").read_text())
    names = [file["name"] for file in index["files"]]
    expected = {
        t["name"]: names[t["file"]] for t in index["tensors"] if t["kind"] in ("param", "buffer")
    }
    assert weight_map["weight_map"] == expected
    assert weight_map["metadata"]["total_size"] == sum(
        t["bytes"] for t in index["tensors"] if t["kind"] in ("param", "buffer")
    )


def test_safetensors_package(checkpoint):
    safetensors = pytest.importorskip(
        "safetensors", reason="the safetensors package is not installed"
    )
    index = json.loads((checkpoint / "index.json").read_text())
    for number, file in enumerate(index["files"]):
        listed = {t["name"]: t for t in index["tensors"] if t["file"] == number}
        found = dict(safetensors.deserialize((checkpoint / file["name"]).read_bytes()))
        assert set(found) == set(listed)
        for name, tensor in found.items():
            assert list(tensor["shape"]) == listed[name]["shape"]
            assert tensor["dtype"] == listed[name]["dtype"]
            begin = listed[name]["offset"]
            assert bytes(tensor["data"]) == expected_bytes(
                index, number, begin, begin + listed[name]["bytes"]
            )
