"""Files of torch.save that the C reader reads and the C writer writes, against PyTorch itself:
names, shapes, strides and every byte.

Needs the programs torch/test_file and pickle/test_pickle of tests/unit/tools/convert, in the build
folder that BUILD names (build/plain by default).
"""
import importlib.util
import os
import pathlib
import pickle
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BUILD", "build/plain")
READER = BUILD / "tests/unit/tools/convert/torch/test_file"
PICKLES = BUILD / "tests/unit/tools/convert/pickle/test_pickle"


def load_maker() -> ModuleType:
    """The script that makes the fixtures knows how to say what is in a file."""
    spec = importlib.util.spec_from_file_location(
        "make_torch", ROOT / "tests/fixtures/make_torch.py"
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


maker = load_maker()


def run(*command: Any) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def programs() -> Iterator[None]:
    if not READER.exists() or not PICKLES.exists():
        subprocess.run(
            ["make", "-s", READER.relative_to(ROOT), PICKLES.relative_to(ROOT)],
            cwd=ROOT,
            check=True,
        )
    yield


def lines_of(value: Any) -> str:
    return "".join(maker.line_of(*item) + "\n" for item in maker.tensors_of(value))


def same(left: Any, right: Any) -> bool:
    """Bit for bit, NaN and all, and of the same types."""
    if torch.is_storage(left):  # torch.load makes a typed storage of an untyped one
        return torch.is_storage(right) and left.tolist() == right.tolist()
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        if left.is_conj() != right.is_conj():
            return False
        left, right = ((t.conj() if t.is_conj() else t).detach() for t in (left, right))
        return (left.dtype, left.shape, left.stride(), left.storage_offset()) == (
            right.dtype,
            right.shape,
            right.stride(),
            right.storage_offset(),
        ) and left.contiguous().reshape(-1).view(
            torch.uint8
        ).tolist() == right.contiguous().reshape(
            -1
        ).view(
            torch.uint8
        ).tolist()
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if hasattr(left, "__dict__") and not callable(left):
        return same(vars(left), vars(right))
    return bool(left == right)


def llama_like() -> dict[str, Any]:
    """A state of many parameters that were trained, in bfloat16 with float32 moments, and a few
    hundred scalars."""
    torch.manual_seed(3)
    layers = torch.nn.ModuleList(
        torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(12)
    ).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-3)
    out = torch.randn(2, 4, 16, dtype=torch.bfloat16)
    for layer in layers:
        out = layer(out)
    out.float().square().sum().backward()
    optimizer.step()
    return {
        "model": layers.state_dict(),
        "optimizer": optimizer.state_dict(),
        "extra": [{"i": i, "x": i / 7} for i in range(1500)],
    }


CASES = {
    "dtypes": maker.every_dtype,
    "training": maker.training_state,
    "views": maker.views,
    "llama": llama_like,
}


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_reader_and_writer_agree_with_pytorch(
    case: str, legacy: bool, tmp_path: pathlib.Path
) -> None:
    value = CASES[case]()
    torch.save(value, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    assert run(READER, "--list", tmp_path / "a.pt") == lines_of(value)
    run(READER, "--rewrite", tmp_path / "a.pt", tmp_path / "b.pt")
    again = torch.load(tmp_path / "b.pt", weights_only=False)
    # not what torch.load makes of a.pt: in the old form it cannot read its own untyped storages
    assert same(value, again)
    assert run(READER, "--list", tmp_path / "b.pt") == lines_of(again)
    mapped = torch.load(tmp_path / "b.pt", weights_only=False, mmap=True)
    assert same(value, mapped)


def test_shared_storages_stay_shared(tmp_path: pathlib.Path) -> None:
    torch.save(maker.views(), tmp_path / "a.pt")
    run(READER, "--rewrite", tmp_path / "a.pt", tmp_path / "b.pt")
    again = torch.load(tmp_path / "b.pt", weights_only=False)
    again["base"].zero_()
    for name in ("part", "turned", "same", "flat", "a.b"):
        assert again[name].count_nonzero() == 0, name
    assert again["same"] is again["base"]


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_whole_modules_are_carried(legacy: bool, tmp_path: pathlib.Path) -> None:
    """The old form has a persistent id for each class of a module."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    torch.save(model, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    listing = run(READER, "--list", tmp_path / "a.pt")
    assert [line.split("\t")[0] for line in listing.splitlines()] == [
        "_modules.0._parameters.weight",
        "_modules.0._parameters.bias",
        "_modules.1._parameters.weight",
        "_modules.1._parameters.bias",
    ]
    run(READER, "--rewrite", tmp_path / "a.pt", tmp_path / "b.pt")
    again = torch.load(tmp_path / "b.pt", weights_only=False)
    assert same(model.state_dict(), again.state_dict()) and str(again) == str(model)


def made_bytes(index: int, name: str, count: int) -> list[int]:
    return [byte % 2 if name == "bool" else (byte + index) % 256 for byte in range(count)]


@pytest.mark.parametrize("mmap", [False, True])
def test_what_c_builds_is_loaded_with_weights_only(mmap: bool, tmp_path: pathlib.Path) -> None:
    run(READER, "--make", tmp_path / "made.pt")
    made = torch.load(tmp_path / "made.pt", weights_only=True, mmap=mmap)
    assert list(made) == ["weights", "size", "dtype", "raw"]
    assert made["size"] == torch.Size([4, 5]) and isinstance(made["size"], torch.Size)
    assert made["dtype"] is torch.bfloat16 and made["raw"] == bytes([0, 1, 254, 255])
    assert len(made["weights"]) == 18 and type(made["weights"]).__name__ == "OrderedDict"
    for index, (name, tensor) in enumerate(made["weights"].items()):
        assert (
            tensor.dtype is getattr(torch, name)
            and tensor.shape == (2, 3)
            and tensor.is_contiguous()
        )
        assert isinstance(tensor, torch.nn.Parameter) == (index < 2) and tensor.requires_grad == (
            index == 1
        )
        data = tensor.detach().reshape(-1).view(torch.uint8).tolist()
        assert data == made_bytes(index, name, len(data)) and len(data) == 6 * tensor.element_size()


def test_calculated_offsets_are_the_offsets(tmp_path: pathlib.Path) -> None:
    """PyTorch can compute where storages lie from its own writer's layout; with its debug checks on
    it compares each."""
    run(READER, "--make", tmp_path / "made.pt")
    program = (
        "import sys, torch\n"
        "from torch.utils.serialization import config\n"
        "config.load.calculate_storage_offsets = True\n"
        "made = torch.load(sys.argv[1], weights_only=True, mmap=True)\n"
        "assert made['weights']['float64'].reshape(-1).view(torch.uint8)[1] == 2\n"
    )
    run("env", "TORCH_SERIALIZATION_DEBUG=1", sys.executable, "-c", program, tmp_path / "made.pt")


def test_storages_beyond_4_gib_are_loaded(tmp_path: pathlib.Path) -> None:
    """A sparse file; memory-mapped, so that only its ends are read."""
    run(READER, "--sparse", tmp_path / "large.pt", 5)
    large = torch.load(tmp_path / "large.pt", weights_only=True, mmap=True)
    assert (
        large["large"].shape == (5 << 28,) and large["large"][-1] == 1 and large["large"][-2] == 0
    )
    assert large["behind"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "case", [name for name in maker.pickle_cases() if name not in ("cycles", "objects")]
)
def test_pickles_mean_the_same(case: str, protocol: int, tmp_path: pathlib.Path) -> None:
    value = maker.pickle_cases()[case]
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(value, protocol))
    run(PICKLES, "--rewrite", tmp_path / "a.pkl", tmp_path / "b.pkl")
    again = pickle.loads((tmp_path / "b.pkl").read_bytes())
    assert same(value, again)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_objects_and_cycles_mean_the_same(protocol: int, tmp_path: pathlib.Path) -> None:
    for case in ("objects", "cycles"):
        (tmp_path / "a.pkl").write_bytes(pickle.dumps(maker.pickle_cases()[case], protocol))
        run(PICKLES, "--rewrite", tmp_path / "a.pkl", tmp_path / "b.pkl")
        again = pickle.loads((tmp_path / "b.pkl").read_bytes())
        if case == "cycles":
            assert (
                again[0][0][0] is again[0]
                and again[0][0] is again[1]
                and again[2][0][3] is again[2]
                and again[2][0] is again[3]
            )
        else:
            space, simple, path, error, numbers, highest = again
            assert (
                space.me is space
                and space.tuple[0] is space
                and simple.b == 2
                and str(path) == "/a/b"
            )
            assert (
                type(error) is ValueError
                and numbers.tolist() == [1, 2]
                and highest == pickle.HIGHEST_PROTOCOL
            )


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04", b"\x80\x02}.", b"\x80\x02\x82\x01.", b"x" * 1000]
)
def test_what_is_no_checkpoint_is_refused(content: bytes, tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.pt").write_bytes(content)
    done = subprocess.run([READER, "--list", tmp_path / "a.pt"], capture_output=True, text=True)
    assert done.returncode != 0 and "a.pt" in done.stdout + done.stderr
