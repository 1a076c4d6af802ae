"""`cairn convert` against the safetensors package and PyTorch: what one writes the other reads,
element by element.

Needs the command of a build (BUILD=folder, build/plain by default).
"""

import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import time

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
safetensors_torch = pytest.importorskip(
    "safetensors.torch", reason="the safetensors package is not installed"
)
import safetensors  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
CAIRN = ROOT / os.environ.get("BUILD", "build/plain") / "cairn"


def cairn(*words: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs the command and checks its exit status."""
    done = subprocess.run([CAIRN, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def tensors() -> dict[str, torch.Tensor]:
    """Every element type, scalars and tensors without elements; deterministic."""
    generator = torch.Generator().manual_seed(7)
    state = {f"layers.{i}.weight": torch.randn(257, 129, generator=generator) for i in range(6)}
    wide = torch.randn(31, 5, generator=generator)
    for dtype in (
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int8,
        torch.uint8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
    ):
        state[f"types.{str(dtype)[6:]}"] = (wide * 10).to(dtype)
    state["types.complex64"] = torch.randn(7, dtype=torch.complex64, generator=generator)
    state["scalar"] = torch.tensor(2.5)
    state["empty"] = torch.zeros(0, 3)
    return state


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype and tensor.shape == right[name].shape, name
        assert bytes(tensor.contiguous().flatten().view(torch.uint8).tolist()) == bytes(
            right[name].contiguous().flatten().view(torch.uint8).tolist()
        ), name


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "source.safetensors"
    safetensors_torch.save_file(
        tensors(), path, metadata={"format": "pt", "note": 'with "quotes" and \\'}
    )
    return path


def test_there_and_back(source, tmp_path):
    first = json.loads(
        cairn("convert", source, tmp_path / "universal", "--to", "universal", "-o", "json").stdout
    )
    assert first["equal"] is True and first["fingerprint_source"] == first["fingerprint_target"]
    back = tmp_path / "back.safetensors"
    cairn("convert", tmp_path / "universal", back, "--to", "safetensors")
    same(tensors(), safetensors_torch.load_file(back))
    cairn("diff", source, back, "--bits")
    prints = {
        cairn("fingerprint", path).stdout.split()[0]
        for path in (source, back, tmp_path / "universal")
    }
    assert prints == {first["fingerprint_source"]}


def notes_of(path):
    with safetensors.safe_open(path, "pt") as file:
        return {
            key: value for key, value in file.metadata().items() if not key.startswith("cairn_")
        }


def test_notes_and_names(source, tmp_path):
    """Notes in a header go along, through what has a place for them, and are reported as left out
    where there is none. One file is known by its first bytes, with any name."""
    notes = {
        "format": "mlx",
        "license": "some",
        "tags": json.dumps({'a"b': ["\n", "é"]}),
        "empty": "",
        "long": "x" * 9000,
        "k" * 900: "v",
    }
    safetensors_torch.save_file(tensors(), tmp_path / "in.safetensors", metadata=notes)
    cairn("convert", tmp_path / "in.safetensors", tmp_path / "weights", "--to", "safetensors")
    cairn("convert", tmp_path / "weights", f"{tmp_path / 'shards'}/", "--to", "safetensors")
    assert (
        notes_of(tmp_path / "weights")
        == notes
        == notes_of(tmp_path / "shards" / "model.safetensors")
    )
    for form in ("universal", "dcp", "torch"):
        (tmp_path / form).mkdir()
        said = cairn("convert", tmp_path / "weights", tmp_path / form / "c", "--to", form).stderr
        assert ("(__metadata__) are left out" in said) == (form == "torch"), said
        words = ("--drop", "torch/tree.pickle") if form == "torch" else ()
        cairn(
            "convert",
            tmp_path / form / "c",
            tmp_path / f"{form}.safetensors",
            "--to",
            "safetensors",
            *words,
        )
        assert notes_of(tmp_path / f"{form}.safetensors") == (
            {"format": "pt"} if form == "torch" else notes
        )
        same(tensors(), safetensors_torch.load_file(tmp_path / f"{form}.safetensors"))
    assert (
        "the other side has none"
        in cairn("diff", tmp_path / "weights", tmp_path / "torch" / "c").stderr
    )
    loaded = torch.load(tmp_path / "torch" / "c", weights_only=True)
    assert set(loaded) == set(tensors())
    safetensors_torch.save_file(tensors(), tmp_path / "weights.pt", metadata={"format": "pt"})
    assert (
        "warning"
        not in cairn(
            "convert", tmp_path / "weights.pt", tmp_path / "again", "--to", "universal"
        ).stderr
    )
    assert (
        cairn("fingerprint", source).stdout.split()[0]
        == cairn("fingerprint", tmp_path / "again").stdout.split()[0]
    )
    cairn(
        "convert",
        source,
        tmp_path / "plain.safetensors",
        "--to",
        "safetensors",
        "--drop",
        "safetensors/notes.json",
    )
    assert notes_of(tmp_path / "plain.safetensors") == {"format": "pt"}


def test_notes_of_several_files(tmp_path):
    """Each file of a folder has notes; where two differ the first one's counts, and that is logged,
    in words that cannot write on the terminal."""
    (tmp_path / "in").mkdir()
    for number, notes in enumerate([{"a": "1", "\x1b[31mb": "1"}, {"\x1b[31mb": "2", "c": "3"}]):
        safetensors_torch.save_file(
            {f"t{number}": torch.ones(3)}, tmp_path / "in" / f"{number}.safetensors", metadata=notes
        )
    said = cairn(
        "convert", tmp_path / "in", tmp_path / "out.safetensors", "--to", "safetensors"
    ).stderr
    assert "1.safetensors has another note ?[31mb" in said and "\x1b" not in said
    assert notes_of(tmp_path / "out.safetensors") == {
        "format": "pt",
        "a": "1",
        "\x1b[31mb": "1",
        "c": "3",
    }


def test_notes_cannot_write_on_the_terminal(tmp_path):
    """A note other than text, which the format demands, is left out."""
    data = b"\0" * 4
    header = (
        b'{"__metadata__":{"\\u001b[31mevil\\n\\rcairn: all fine":{"a":[1]}},'
        b'"t":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}'
    )
    (tmp_path / "in.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    said = cairn(
        "convert", tmp_path / "in.safetensors", tmp_path / "out", "--to", "universal"
    ).stderr
    assert "left out: ?[31mevil??cairn: all fine" in said and "\x1b" not in said


def test_names_cannot_write_on_the_terminal(tmp_path):
    torch.save({"a\x1b[31mb\n": torch.ones(2)}, tmp_path / "name.pt")
    torch.save({"optimizer": {"x\x1b]0;h\x07": 5}, "w": torch.ones(1)}, tmp_path / "key.pt")
    header = b'{"a\\u001b[31mb":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}'
    (tmp_path / "name.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + b"\0" * 4
    )
    for name in ("name.pt", "key.pt", "name.safetensors"):
        for verb in (("inspect",), ("fingerprint",)):
            said = cairn(*verb, tmp_path / name, status=65).stderr
            assert (
                said.count("\n") == 1
                and "\x1b" not in said
                and "\x07" not in said
                and "control character" in said
            ), said


def test_few_open_files(tmp_path):
    """More files than may be open, on both sides."""
    few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))  # noqa: E731
    (tmp_path / "many").mkdir()
    for number in range(200):
        safetensors_torch.save_file(
            {f"t{number}": torch.full((300,), float(number))},
            tmp_path / "many" / f"{number}.safetensors",
        )
    for form in ("universal", "dcp", "torch"):
        words = ("--dp", 150) if form == "dcp" else ()
        for source, target, to in (
            ("many", form, form),
            (form, f"{form}.safetensors", "safetensors"),
        ):
            done = subprocess.run(
                [
                    CAIRN,
                    "convert",
                    *map(
                        str,
                        (tmp_path / source, tmp_path / target, "--to", to, "--threads", 4, *words),
                    ),
                ],
                capture_output=True,
                text=True,
                preexec_fn=few,
            )
            assert done.returncode == 0, done.stderr
    for verb in (("diff", tmp_path / "dcp", tmp_path / "many"), ("fingerprint", tmp_path / "dcp")):
        done = subprocess.run(
            [CAIRN, *map(str, verb)], capture_output=True, text=True, preexec_fn=few
        )
        assert done.returncode == 0, done.stderr


def test_a_pipe_is_not_waited_for(tmp_path):
    (tmp_path / "in").mkdir()
    os.mkfifo(tmp_path / "in" / "model.safetensors")
    done = subprocess.run(
        [CAIRN, "inspect", tmp_path / "in"], capture_output=True, text=True, timeout=60
    )
    assert (
        done.returncode == 65 and "model.safetensors: not a regular file" in done.stderr
    ), done.stderr


def test_permissions_follow_the_umask(source, tmp_path):
    before = os.umask(0o027)
    try:
        cairn("convert", source, tmp_path / "universal", "--to", "universal")
        cairn("convert", source, tmp_path / "one.safetensors", "--to", "safetensors")
    finally:
        os.umask(before)
    files = [tmp_path / "one.safetensors", *(tmp_path / "universal").rglob("*")]
    assert len(files) > 2
    for path in (*files, tmp_path / "universal"):
        assert path.stat().st_mode & 0o777 == (0o750 if path.is_dir() else 0o640), path


def test_shards_with_an_index(source, tmp_path):
    from huggingface_hub import split_torch_state_dict_into_shards  # comes with accelerate

    state = {name: tensor for name, tensor in tensors().items() if tensor.numel() > 0}
    plan = split_torch_state_dict_into_shards(state, max_shard_size=300_000)
    folder = tmp_path / "sharded"
    folder.mkdir()
    for file, names in plan.filename_to_tensors.items():
        safetensors_torch.save_file({name: state[name] for name in names}, folder / file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": plan.metadata, "weight_map": plan.tensor_to_filename})
    )
    cairn("convert", folder, tmp_path / "one.safetensors", "--to", "safetensors")
    same(state, safetensors_torch.load_file(tmp_path / "one.safetensors"))


def test_casts_are_those_of_torch(source, tmp_path):
    values = torch.cat(
        [
            torch.tensor(
                [
                    0.0,
                    -0.0,
                    float("inf"),
                    float("-inf"),
                    float("nan"),
                    65504.0,
                    65519.9,
                    65520.0,
                    1e-8,
                    5.96e-8,
                    2.98e-8,
                    6.1e-5,
                    3.4e38,
                ]
            ),
            torch.randn(5000) * 10.0 ** torch.randint(-12, 12, (5000,)),
        ]
    )
    safetensors_torch.save_file({"weight": values}, tmp_path / "values.safetensors")
    for name, dtype in (("BF16", torch.bfloat16), ("F16", torch.float16), ("F64", torch.float64)):
        out = tmp_path / f"{name}.safetensors"
        cairn(
            "convert", tmp_path / "values.safetensors", out, "--to", "safetensors", "--dtype", name
        )
        found = safetensors_torch.load_file(out)["weight"]
        expected = values.to(dtype)
        assert found.dtype == dtype
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))


def test_a_difference_is_found(source, tmp_path):
    state = tensors()
    state["layers.3.weight"][200, 128] += 1
    del state["scalar"]
    safetensors_torch.save_file(state, tmp_path / "other.safetensors")
    found = json.loads(
        cairn("diff", source, tmp_path / "other.safetensors", "-o", "json", status=1).stdout
    )["differences"]
    assert [(d["name"], d["kind"]) for d in found] == [
        ("layers.3.weight", "elements"),
        ("scalar", "only_in_a"),
    ]
    assert found[0]["count"] == 1 and found[0]["first"] == [200, 128]


def test_a_flipped_bit_is_found(source, tmp_path):
    cairn("convert", source, tmp_path / "universal", "--to", "universal")
    data = next((tmp_path / "universal").glob("param-*.safetensors"))
    with data.open("r+b") as file:
        file.seek(data.stat().st_size - 1000)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    done = cairn(
        "convert",
        tmp_path / "universal",
        tmp_path / "out.safetensors",
        "--to",
        "safetensors",
        status=65,
    )
    assert data.name in done.stderr and "checksum" in done.stderr
    assert not (tmp_path / "out.safetensors").exists()


def test_float32_from_masters(tmp_path):
    """What training in bf16 rounded comes back whole from the optimizer's masters."""
    for name in "dense", "experts":
        source, rounded, back = (
            ROOT / "tests" / "fixtures" / "megatron" / name,
            tmp_path / f"{name}.bf16",
            tmp_path / name,
        )
        cairn("convert", source, rounded, "--to", "megatron", "--dtype", "BF16")
        cairn("diff", source, rounded, status=1)
        done = cairn("convert", rounded, back, "--to", "megatron", "--dtype", "F32", "-o", "json")
        assert json.loads(done.stdout)["from_masters"] > 0
        cairn("diff", source, back)


def test_a_killed_process_goes_on(tmp_path):
    state = {f"layers.{i}": torch.randn(1024, 1024) for i in range(64)}
    safetensors_torch.save_file(state, tmp_path / "source.safetensors")
    words = [
        CAIRN,
        "convert",
        tmp_path / "source.safetensors",
        tmp_path / "out",
        "--to",
        "universal",
    ]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    part = tmp_path / "out" / "param-00001-of-00001.safetensors.cairn-part"
    while process.poll() is None and not part.exists():
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "out" / "COMMIT").exists() or process.returncode == 0
    cairn(
        "diff",
        tmp_path / "source.safetensors",
        tmp_path / "out",
        status=65 if process.returncode else 0,
    )
    if process.returncode:
        cairn(*words[1:])
    cairn("diff", tmp_path / "source.safetensors", tmp_path / "out")


def test_memory_is_held(tmp_path):
    state = {f"layers.{i}": torch.randn(2048, 2048) for i in range(24)}  # 384 MiB
    safetensors_torch.save_file(state, tmp_path / "source.safetensors")
    for attempt in range(5):  # a machine that is busy may let us look too late
        peaks = peaks_of_a_conversion(tmp_path / "source.safetensors", tmp_path / f"out{attempt}")
        assert max(peaks, default=0) <= 64 << 20
        if max(peaks, default=0) > 16 << 20:
            return
        shutil.rmtree(tmp_path / f"out{attempt}")
    raise AssertionError(f"it was never seen at work: {peaks}")


def peaks_of_a_conversion(source, target):
    """The most memory that a conversion had used, each time somebody looked."""
    words = [CAIRN, "convert", source, target, "--to", "universal", "--memory-limit", "64MiB"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peaks = []
    # the kernel keeps the peak of the program; what getrusage says includes who started it
    while process.poll() is None:
        try:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            break
        if f"{CAIRN.name}\n" in status and "VmHWM" in status:
            peaks.append(int(status.split("VmHWM:")[1].split()[0]) * 1024)
        time.sleep(0.002)
    assert process.wait() == 0
    return peaks
