"""`cairn convert` against torch.distributed.checkpoint: what real ranks of FSDP2 saved is read, and
what is written dcp.load reads, every tensor and object equal.

Needs the command of a build (BUILD=folder, build/plain by default).
"""

from __future__ import annotations

import pathlib
import pickle
import re
import shutil
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed.checkpoint  # noqa: E402
from convert_states import cairn, load_dcp, make_dcp, nested_paths, same  # noqa: E402

KINDS = [(1, "nested"), (2, "nested"), (4, "nested"), (2, "flat"), (3, "bare")]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, str], pathlib.Path]:
    folder = tmp_path_factory.mktemp("dcp")

    def make(world: int, kind: str) -> pathlib.Path:
        target = folder / f"{kind}{world}"
        return target if target.exists() else make_dcp(folder, world, kind)

    return make


def files(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("world, kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 3])
def test_resharded(
    checkpoints: Callable[[int, str], pathlib.Path],
    tmp_path: pathlib.Path,
    world: int,
    kind: str,
    ranks: int,
) -> None:
    source = checkpoints(world, kind)
    cairn("convert", source, tmp_path / "out", "--to", "dcp", "--dp", ranks)
    same(load_dcp(source), load_dcp(tmp_path / "out"))
    assert nested_paths(source) == nested_paths(tmp_path / "out")
    assert len(list((tmp_path / "out").glob("*.distcp"))) == ranks
    cairn("diff", source, tmp_path / "out")


def test_many(tmp_path: pathlib.Path) -> None:
    """Enough tensors for several threads: each has its own elements, and of several damaged tensors
    the first in the file is named."""
    state = {f"layers.{i}.weight": torch.full((3, i % 4 + 1), float(i)) for i in range(1200)}
    torch.distributed.checkpoint.save(state, checkpoint_id=tmp_path / "many", no_dist=True)
    cairn("convert", tmp_path / "many", tmp_path / "out.pt", "--to", "torch")
    model = torch.load(tmp_path / "out.pt")["model"]
    assert model.keys() == state.keys() and all(
        torch.equal(model[name], state[name]) for name in state
    )
    (path,) = (tmp_path / "many").glob("*.distcp")
    whole = path.read_bytes()
    starts = [found.start() for found in re.finditer(rb"PK\x05\x06", whole)]  # an archive's end
    damaged = bytearray(whole)
    for at in (starts[700], starts[1100]):
        damaged[at] ^= 1
    path.write_bytes(damaged)
    said = cairn("inspect", tmp_path / "many", status=65).stderr
    index = pickle.loads((tmp_path / "many" / ".metadata").read_bytes()).storage_data
    (name,) = (
        key.fqn
        for key, info in index.items()
        if info.offset <= starts[700] < info.offset + info.length
    )
    assert f"({name})" in said, said


@pytest.mark.parametrize("world, kind", KINDS)
def test_through_universal(
    checkpoints: Callable[[int, str], pathlib.Path], tmp_path: pathlib.Path, world: int, kind: str
) -> None:
    """The way through another format ends at the same bytes as the direct one."""
    source = checkpoints(world, kind)
    cairn("convert", source, tmp_path / "direct", "--to", "dcp", "--dp", 2)
    cairn("convert", source, tmp_path / "universal", "--to", "universal")
    cairn("convert", tmp_path / "universal", tmp_path / "back", "--to", "dcp", "--dp", 2)
    same(load_dcp(source), load_dcp(tmp_path / "back"))
    cairn("convert", tmp_path / "direct", tmp_path / "again", "--to", "dcp", "--dp", 2)
    assert files(tmp_path / "direct") == files(tmp_path / "again")


def broken(source: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    shutil.copytree(source, target)
    return target


def test_missing_and_cut(
    checkpoints: Callable[[int, str], pathlib.Path], tmp_path: pathlib.Path
) -> None:
    source = checkpoints(2, "nested")
    missing = broken(source, tmp_path / "missing")
    (missing / "__1_0.distcp").unlink()
    said = cairn("convert", missing, tmp_path / "out", "--to", "dcp", status=65).stderr
    assert "__1_0.distcp: missing" in said
    cut = broken(source, tmp_path / "cut")
    whole = (cut / "__1_0.distcp").read_bytes()
    (cut / "__1_0.distcp").write_bytes(whole[:-700])
    assert "truncated" in cairn("convert", cut, tmp_path / "out", "--to", "dcp", status=65).stderr
    damaged = broken(source, tmp_path / "damaged")
    (damaged / ".metadata").write_bytes((source / ".metadata").read_bytes()[:-50])
    assert (
        ".metadata" in cairn("convert", damaged, tmp_path / "out", "--to", "dcp", status=65).stderr
    )
    assert not (tmp_path / "out").exists()


def change(folder: pathlib.Path, edit: Callable[[object], None]) -> pathlib.Path:
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    edit(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    return folder


def test_contradictions(
    checkpoints: Callable[[int, str], pathlib.Path], tmp_path: pathlib.Path
) -> None:
    """An impossible .metadata is refused with the tensor's name; nothing is written."""
    source = checkpoints(2, "nested")
    name = "model.up.weight"

    def drop_chunk(metadata: object) -> None:
        metadata.state_dict_metadata[name].chunks.pop()

    def overlap(metadata: object) -> None:
        entry = metadata.state_dict_metadata[name]
        entry.size = torch.Size([entry.size[0] + 1, entry.size[1]])

    def escape(metadata: object) -> None:
        for info in metadata.storage_data.values():
            info.relative_path = "../" + info.relative_path

    def forget(metadata: object) -> None:
        metadata.storage_data = {
            key: info for key, info in metadata.storage_data.items() if key.fqn != name
        }

    def swap(metadata: object) -> None:
        key = next(key for key in metadata.storage_data if key.fqn == name)
        other = next(key for key in metadata.storage_data if key.fqn == "model.up.bias")
        metadata.storage_data[key] = metadata.storage_data[other]

    def squeeze(metadata: object) -> None:
        for info in metadata.storage_data.values():
            info.transform_descriptors = ["zstd"]

    for edit, words in [
        (drop_chunk, "up.weight"),
        (overlap, "up.weight"),
        (escape, "outside the checkpoint"),
        (forget, name),
        (swap, name),
        (squeeze, "transformed"),
    ]:
        folder = change(broken(source, tmp_path / edit.__name__), edit)
        assert (
            words in cairn("convert", folder, tmp_path / "out", "--to", "dcp", status=65).stderr
        ), edit.__name__
        assert not (tmp_path / "out").exists()


def test_nothing_runs(
    checkpoints: Callable[[int, str], pathlib.Path], tmp_path: pathlib.Path
) -> None:
    """A .metadata that would run a command when it is unpickled: it never runs."""
    folder = broken(checkpoints(1, "nested"), tmp_path / "hostile")
    mark = tmp_path / "ran"

    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return pathlib.Path.touch, (mark,)

    metadata = pickle.loads((folder / ".metadata").read_bytes())
    metadata.planner_data["model.up.weight"] = Bomb()
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    cairn("convert", folder, tmp_path / "out", "--to", "dcp")
    (folder / ".metadata").write_bytes(pickle.dumps(Bomb()))
    cairn("inspect", folder, status=65)
    assert not mark.exists()
