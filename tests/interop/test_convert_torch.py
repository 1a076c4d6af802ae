"""`cairn convert` against torch.save and torch.load(weights_only=True): state dicts, alone and with
an optimizer's, forth and back, every tensor and object equal.

Needs the command of a build (BUILD=folder, build/plain by default).
"""

from __future__ import annotations

import json
import pathlib
import zipfile
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed.checkpoint  # noqa: E402
import torch.distributed.checkpoint.format_utils  # noqa: E402
from convert_states import Model, cairn, load_dcp, make_dcp, odds, same, train  # noqa: E402


def full_state(tied: bool) -> dict[str, Any]:
    torch.manual_seed(3)
    model = Model(tied)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer)
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), **odds()}


@pytest.fixture(params=["weights", "full", "tied", "legacy"])
def saved(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / f"{request.param}.pt"
    state = full_state(request.param == "tied")
    if request.param == "weights":
        state = state["model"]
    # in which torch.load does not take dtypes without a storage class of their own
    if request.param == "legacy":
        state["types"] = {
            name: t
            for name, t in state["types"].items()
            if not name.startswith(("float8", "uint16"))
        }
    torch.save(state, path, _use_new_zipfile_serialization=request.param != "legacy")
    return path


def test_written_again(saved: pathlib.Path, tmp_path: pathlib.Path) -> None:
    cairn("convert", saved, tmp_path / "out.pt", "--to", "torch")
    same(torch.load(saved, weights_only=False), torch.load(tmp_path / "out.pt", weights_only=True))
    cairn("convert", tmp_path / "out.pt", tmp_path / "again.pt", "--to", "torch")
    assert (tmp_path / "out.pt").read_bytes() == (tmp_path / "again.pt").read_bytes()
    with zipfile.ZipFile(tmp_path / "out.pt") as archive:
        assert archive.testzip() is None, "a checksum is wrong"


@pytest.mark.parametrize("ranks", [1, 3])
def test_through_dcp(saved: pathlib.Path, tmp_path: pathlib.Path, ranks: int) -> None:
    cairn("convert", saved, tmp_path / "dcp", "--to", "dcp", "--dp", ranks)
    cairn("convert", tmp_path / "dcp", tmp_path / "out.pt", "--to", "torch")
    same(torch.load(saved, weights_only=False), torch.load(tmp_path / "out.pt", weights_only=True))
    loaded = load_dcp(tmp_path / "dcp")
    state = torch.load(saved, weights_only=False)
    for name, tensor in state.get("model", state).items():
        same(tensor, loaded[f"model.{name}" if "model" in state else name], name)


def test_optimizer_by_name(tmp_path: pathlib.Path) -> None:
    """On request, state by number becomes state by name, as get_state_dict has it."""
    state = full_state(False)
    torch.save(state, tmp_path / "in.pt")
    words = ("--to", "dcp", "--canonical-names")
    cairn("convert", tmp_path / "in.pt", tmp_path / "dcp", *words)
    loaded = load_dcp(tmp_path / "dcp")
    names = [name for name, _ in Model().named_parameters()]
    assert loaded["optim.param_groups.0.params"] == names
    for number, moments in state["optimizer"]["state"].items():
        for key, tensor in moments.items():
            same(tensor, loaded[f"optim.state.{names[number]}.{key}"], f"{number}.{key}")


def test_tied(tmp_path: pathlib.Path) -> None:
    torch.save(full_state(True)["model"], tmp_path / "in.pt")
    cairn("convert", tmp_path / "in.pt", tmp_path / "out.pt", "--to", "torch")
    state = torch.load(tmp_path / "out.pt")
    assert (
        state["head.weight"].untyped_storage().data_ptr()
        == state["embed.weight"].untyped_storage().data_ptr()
    )
    with zipfile.ZipFile(tmp_path / "in.pt") as before, zipfile.ZipFile(
        tmp_path / "out.pt"
    ) as after:
        assert before.read("in/data.pkl") == after.read("archive/data.pkl")


def test_from_dcp(tmp_path: pathlib.Path) -> None:
    """What FSDP2 saved becomes a file from which a plain model and optimizer go on."""
    source = make_dcp(tmp_path, 2, "nested")
    cairn("convert", source, tmp_path / "out.pt", "--to", "torch")
    state = torch.load(tmp_path / "out.pt", weights_only=True)
    model = Model()
    model.load_state_dict(state["model"])
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for n, p in model.named_parameters() if "norm" not in n]},
            {"params": model.norm.parameters(), "weight_decay": 0.0},
        ],
        lr=1e-2,
    )
    optimizer.load_state_dict(state["optimizer"])
    loaded = load_dcp(source)
    for name, parameter in model.named_parameters():
        same(loaded[f"model.{name}"], parameter.detach(), name)
        if parameter.requires_grad:
            for key in "exp_avg", "exp_avg_sq", "step":
                same(loaded[f"optim.state.{name}.{key}"], optimizer.state[parameter][key], name)
    train(model, optimizer, 1)


@pytest.mark.parametrize("key", ["optimizer", "optim", "optimizer_state_dict"])
def test_numbered(tmp_path: pathlib.Path, key: str) -> None:
    """State that keeps its numbers is below one key with its groups in a distributed checkpoint,
    and what becomes of that, and of what PyTorch itself saved so, is a file from which the
    optimizer has its state: of numbers that are text, PyTorch takes nothing."""

    def groups(model: Model) -> Any:
        return torch.optim.AdamW(
            [
                {
                    "params": [p for n, p in model.named_parameters() if "norm" in n],
                    "weight_decay": 0.0,
                },
                {"params": [p for n, p in model.named_parameters() if "norm" not in n]},
            ],
            lr=1e-2,
        )

    torch.manual_seed(3)
    model = Model()
    optimizer = groups(model)
    train(model, optimizer)
    state = {"model": model.state_dict(), key: optimizer.state_dict(), "epoch": 3}
    torch.save(state, tmp_path / "in.pt")
    cairn("convert", tmp_path / "in.pt", tmp_path / "dcp", "--to", "dcp")
    torch.distributed.checkpoint.save(state, checkpoint_id=tmp_path / "own", no_dist=True)
    assert sorted(load_dcp(tmp_path / "own")) == sorted(
        n for n in load_dcp(tmp_path / "dcp") if not n.startswith("cairn.")
    )
    cairn("convert", tmp_path / "dcp", tmp_path / "out.pt", "--to", "torch")
    same(state, torch.load(tmp_path / "out.pt", weights_only=True))
    cairn("convert", tmp_path / "own", tmp_path / "own.pt", "--to", "torch")
    found = torch.load(tmp_path / "own.pt", weights_only=True)["optimizer"]
    same(state[key], found)
    model = Model()
    optimizer = groups(model)
    optimizer.load_state_dict(found)
    for number, parameter in enumerate(
        p for group in optimizer.param_groups for p in group["params"]
    ):
        for name, tensor in state[key]["state"].get(number, {}).items():
            same(tensor, optimizer.state[parameter][name], f"{number}.{name}")


def by_name(value: Any) -> Any:
    """The same with the keys of dictionaries in one order: a distributed checkpoint has none."""
    if isinstance(value, list):
        return [by_name(each) for each in value]
    return (
        {key: by_name(value[key]) for key in sorted(value, key=str)}
        if isinstance(value, dict)
        else value
    )


def test_names_of_several_groups(tmp_path: pathlib.Path) -> None:
    """A distributed checkpoint whose optimizer has several groups, in another order than the model,
    comes back from a file of torch.save under its names; the file's own state loads into an
    optimizer as it is."""
    model = {"a.weight": torch.arange(6.0), "b.weight": torch.arange(6.0) + 10}
    state = {
        name: {"step": torch.tensor(3.0), "exp_avg": tensor + 0.5, "exp_avg_sq": tensor + 0.25}
        for name, tensor in model.items()
    }
    alike = {"betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0}
    groups = [
        {"lr": 0.1, **alike, "params": ["b.weight"]},
        {"lr": 0.2, **alike, "params": ["a.weight"]},
    ]
    torch.distributed.checkpoint.save(
        {"model": model, "optim": {"state": state, "param_groups": groups}},
        checkpoint_id=tmp_path / "in",
        no_dist=True,
    )
    cairn("convert", tmp_path / "in", tmp_path / "one.pt", "--to", "torch")
    saved = torch.load(tmp_path / "one.pt", weights_only=True)
    parameters = [torch.nn.Parameter(model["b.weight"]), torch.nn.Parameter(model["a.weight"])]
    optimizer = torch.optim.AdamW(
        [{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.3}]
    )
    optimizer.load_state_dict(saved["optimizer"])
    assert torch.equal(optimizer.state[parameters[0]]["exp_avg"], state["b.weight"]["exp_avg"])
    assert (
        "warning"
        not in cairn("convert", tmp_path / "one.pt", tmp_path / "back", "--to", "dcp").stderr
    )
    cairn("diff", tmp_path / "in", tmp_path / "back", "--bits")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_storages_are_never_lost(tmp_path: pathlib.Path) -> None:
    """A quantized tensor, or a storage by itself, is refused by its name, wherever it is: carried
    as an object it would lose its bytes."""
    odd = {
        "quantized": torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8),
        "storage": torch.ones(3).untyped_storage(),
        "channels": torch.quantize_per_channel(
            torch.ones(4, 2), torch.ones(4), torch.zeros(4), 0, torch.qint8
        ),
    }
    for name, value in odd.items():
        for place, state in enumerate(
            (
                {name: value, "v": torch.ones(2)},
                {"v": torch.ones(2), name: {"deep": ({1, 2}, [value])}},
            )
        ):
            torch.save(state, tmp_path / "in.pt")
            for form in ("torch", "dcp", "universal", "safetensors"):
                done = cairn(
                    "convert", tmp_path / "in.pt", tmp_path / "out", "--to", form, status=64
                )
                assert (
                    f"in.pt: {name}{'.deep' * place} is, or holds" in done.stderr
                    and not (tmp_path / "out").exists()
                ), done.stderr
    torch.distributed.checkpoint.save(
        {"v": torch.ones(2), "odd": [odd["storage"]]}, checkpoint_id=tmp_path / "dcp", no_dist=True
    )
    assert (
        "bare storage"
        in cairn("convert", tmp_path / "dcp", tmp_path / "out", "--to", "dcp", status=64).stderr
    )


def test_numbers_are_digits(tmp_path: pathlib.Path) -> None:
    """A key of the state that only looks like a number is not a parameter's."""
    weight = torch.arange(3.0)
    for key in (" 0", "+0", "-18446744073709551616", "00"):
        torch.save(
            {
                "model": {"weight": weight},
                "optimizer": {
                    "state": {key: {"exp_avg": weight + 1}},
                    "param_groups": [{"lr": 0.1, "params": [0]}],
                },
            },
            tmp_path / "in.pt",
        )
        names = {
            tensor["name"]
            for tensor in json.loads(cairn("inspect", tmp_path / "in.pt", "-o", "json").stdout)[
                "tensors"
            ]
        }
        assert f"exp_avg.{key}" in names and "exp_avg.weight" not in names, names


def test_numbered_plain(tmp_path: pathlib.Path) -> None:
    """State besides tensors in state by numbers, a step that is a plain number, stays beside the
    tensors; that of a second optimizer, and what only looks like it, does not get among them."""
    torch.manual_seed(4)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer)
    state = optimizer.state_dict()
    for entry in state["state"].values():
        entry["step"] = 7
    other = {
        "state": {
            number: {"step": 9, "exp_avg": entry["exp_avg"] + 1}
            for number, entry in state["state"].items()
        }
    }
    whole = {
        "model": model.state_dict(),
        "optimizer": state,
        "second": other,
        "trainer": {"state": {0: {"epoch": 3}}},
    }
    torch.distributed.checkpoint.save(whole, checkpoint_id=tmp_path / "own", no_dist=True)
    cairn("convert", tmp_path / "own", tmp_path / "own.pt", "--to", "torch")
    same(by_name(state), by_name(torch.load(tmp_path / "own.pt", weights_only=True)["optimizer"]))
    torch.save({**whole, "epoch": 3}, tmp_path / "in.pt")
    cairn(
        "convert",
        tmp_path / "in.pt",
        tmp_path / "less.pt",
        "--to",
        "torch",
        "--drop",
        "epoch.pickle",
    )
    same(by_name(state), by_name(torch.load(tmp_path / "less.pt", weights_only=True)["optimizer"]))
    (group,) = state["param_groups"]
    half = len(group["params"]) // 2  # two groups without names
    state["param_groups"] = [
        {**group, "params": group["params"][:half]},
        {**group, "params": group["params"][half:]},
    ]
    torch.save({"model": model.state_dict(), "optimizer": state}, tmp_path / "two.pt")
    cairn("convert", tmp_path / "two.pt", tmp_path / "two", "--to", "dcp")
    torch.distributed.checkpoint.format_utils.dcp_to_torch_save(
        tmp_path / "two", tmp_path / "flat.pt"
    )
    found = torch.load(tmp_path / "flat.pt", weights_only=False)["optimizer"]["state"]
    same(by_name({str(number): entry for number, entry in state["state"].items()}), by_name(found))


def test_groups_beside_state(tmp_path: pathlib.Path) -> None:
    """Groups stay with the state, also where a part is of parameters that the model does not
    have, and that state is dropped."""
    state = {
        "state": {name: {"exp_avg": torch.randn(3)} for name in ("a_other", "w")},
        "param_groups": [{"lr": 0.1, "params": ["a_other", "w"]}],
    }
    torch.distributed.checkpoint.save(
        {"model": {"w": torch.randn(3)}, "optimizer": state},
        checkpoint_id=tmp_path / "own",
        no_dist=True,
    )
    cairn("convert", tmp_path / "own", tmp_path / "universal", "--to", "universal")
    for source in ("own", "universal"):
        for number, flags in enumerate(([], ["--drop", "*a_other*"])):
            out = tmp_path / f"{source}-{number}"
            cairn("convert", tmp_path / source, out, "--to", "dcp", *flags)
            names = [name for name in load_dcp(out) if "param_groups" in name]
            assert names and all(name.startswith("optimizer.") for name in names)


def test_directory_as_file(tmp_path: pathlib.Path) -> None:
    """One file cannot be a directory, and that is reported before anything is written."""
    torch.save({"a": torch.ones(2)}, tmp_path / "in.pt")
    (tmp_path / "there").mkdir()
    for target in (f"{tmp_path}/new/", f"{tmp_path}/there"):
        assert (
            "is a directory"
            in cairn("convert", tmp_path / "in.pt", target, "--to", "torch", status=64).stderr
        )
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["in.pt", "there"]


def test_ambiguous_numbers(tmp_path: pathlib.Path) -> None:
    """Two groups without names: which parameter a number is cannot be told, so it is not."""
    model = Model()
    optimizer = torch.optim.AdamW(
        [{"params": model.up.parameters()}, {"params": model.embed.parameters()}], lr=1e-2
    )
    train(model, optimizer)
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "in.pt"
    )
    said = cairn("inspect", tmp_path / "in.pt")
    assert "uncertain" in said.stdout + said.stderr
    cairn("convert", tmp_path / "in.pt", tmp_path / "out.pt", "--to", "torch")
    same(torch.load(tmp_path / "in.pt"), torch.load(tmp_path / "out.pt"))


@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize("form", ["file", "dcp"])
def test_checksums(tmp_path: pathlib.Path, form: str, summed: bool) -> None:
    """One bit of a tensor: refused where PyTorch took checksums, and where it was told not to, that
    is reported."""
    state = {f"layers.{i}.weight": torch.randn(size) for i, size in enumerate((3, 5000, 1 << 20))}
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(summed)
    try:
        if form == "file":
            torch.save(state, tmp_path / "in")
        else:
            torch.distributed.checkpoint.save(state, checkpoint_id=tmp_path / "in", no_dist=True)
    finally:
        torch.serialization.set_crc32_options(before)
    cairn("convert", tmp_path / "in", tmp_path / "sound", "--to", "universal")
    path = tmp_path / "in" if form == "file" else next((tmp_path / "in").glob("*.distcp"))
    place = path.read_bytes().index(state["layers.2.weight"].numpy().tobytes())
    with path.open("r+b") as file:
        file.seek(place + 4000000)
        byte = file.read(1)[0]
        file.seek(place + 4000000)
        file.write(bytes([byte ^ 1]))
    said = [
        cairn(
            "convert",
            tmp_path / "in",
            tmp_path / "out",
            "--to",
            "universal",
            status=65 if summed else 0,
        ),
        cairn("diff", tmp_path / "sound", tmp_path / "in", status=65 if summed else 1),
        cairn("fingerprint", tmp_path / "in", status=65 if summed else 0),
    ]
    for done in said:
        if summed:
            for word in (
                path.name,
                f"byte {place} and {place + (4 << 20)}",
                "layers.2.weight",
                "take another copy",
            ):
                assert word in done.stderr, done.stderr
        else:
            assert (
                "warning: 3 tensors" in done.stderr and "saved without checksums" in done.stderr
            ), done.stderr
    assert (tmp_path / "out" / "COMMIT").exists() != summed


def test_damaged(saved: pathlib.Path, tmp_path: pathlib.Path) -> None:
    whole = saved.read_bytes()
    for length in 0, 3, 100, len(whole) // 2, len(whole) - 1:
        (tmp_path / "cut.pt").write_bytes(whole[:length])
        cairn("convert", tmp_path / "cut.pt", tmp_path / "out.pt", "--to", "torch", status=65)
        assert not (tmp_path / "out.pt").exists()
