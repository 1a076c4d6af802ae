"""The parts of the PyTorch binding that need no agent: plain state as bytes, the forms of tensors,
names, what is refused."""

import collections
import copy
import math
import os
import pathlib
import pickle
import random
import re
import shutil
import subprocess
import sys
import threading
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed here")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bindings" / "python"))

from cairn import (  # noqa: E402
    _blob,
    _coverage,
    _current,
    _entry,
    _known,
    _late,
    _layout,
    _lib,
    _megatron,
    _models,
    _modules,
    _moments,
    _names,
    _naming,
    _optimizers,
    _part,
    _plain,
    _quiet,
    _ranks,
    _state,
    _tensors,
)

HERE = _ranks.Place(0, 1, 1)


def modules_in_the_readme(package):
    """(name, imports torch) of each module that the binding's README lists, in its order."""
    _, _, section = (package.parent / "README.md").read_text().partition("\n### Modules")
    table, _, _ = section.partition("\n## ")
    return re.findall(r"^\| `(\w+\.py)` \| (•?)", table, re.M)


def test_torch_is_imported_where_the_readme_says():
    """So that what does not need it can be imported where it is not, or not yet."""
    package = pathlib.Path(_lib.__file__).parent
    table = modules_in_the_readme(package)
    importing = {
        path.name
        for path in package.glob("*.py")
        if re.search(r"^\s*(import torch|from torch)", path.read_text(), re.M)
    }
    assert importing == {name for name, dot in table if dot}
    assert {name for name, _ in table} == {path.name for path in package.glob("*.py")}


def test_works_without_torch():
    """What `cairn run` loads into every Python process, and the modules below the first that needs
    torch."""
    package = pathlib.Path(_lib.__file__).parent
    table = modules_in_the_readme(package)
    first = next(i for i, (_, dot) in enumerate(table) if dot)
    names = [name.removesuffix(".py") for name, _ in table[:first]] + ["_hook"]
    assert "_lib" in names
    code = "import sys; sys.modules['torch'] = None; import cairn; " + "; ".join(
        f"import cairn.{name}" for name in names
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=package.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_pip_installs_it_from_the_tree(tmp_path):
    """Without a compiler and without a network; all files of the package are there, and import from
    where they are."""
    source = pathlib.Path(_lib.__file__).parents[1]
    shutil.copytree(
        source,
        tmp_path / "source",
        ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"),
    )
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--target",
        "installed",
    ]
    done = subprocess.run(
        [*pip, "./source"],
        cwd=tmp_path,
        env={**os.environ, "CC": "false"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr

    def files(root):
        return sorted(str(path.relative_to(root)) for path in (root / "cairn").rglob("*.py"))

    assert files(tmp_path / "installed") == files(source)
    code = "import cairn, cairn.autoload, sys; print(cairn.__file__, 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "installed",
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    assert done.stdout.split() == [
        str(tmp_path / "installed" / "cairn" / "__init__.py"),
        "False",
    ], done.stderr


def again(value):
    return _blob.decode(_blob.encode(value, _plain.pack), _plain.unpack)


def test_plain_state_comes_back():
    value = {
        "a": [1, 2.5, None, True, "ü", b"\0\1", (1, (2,)), {3, 4}],
        7: {"nested": {}},
        "deque": collections.deque([1]),
        "e": b"",
    }
    assert again(value) == value
    # a scheduler relies on its missing keys
    assert type(again(collections.Counter({3: 2}))) is collections.Counter
    counts = again({"seen": collections.defaultdict(int, {"a": 2}), "raw": bytearray(b"12")})
    assert (
        counts == {"seen": {"a": 2}, "raw": bytearray(b"12")} and type(counts["raw"]) is bytearray
    )
    counts["seen"]["b"] += 1  # a script relies on that
    assert type(again(collections.defaultdict(lambda: 0, {1: 2}))) is dict
    assert (
        again(-0.0).hex() == (-0.0).hex()
        and math.isnan(again(math.nan))
        and again(math.inf) == math.inf
        and again(0.1) == 0.1
    )
    for tensor in (
        torch.randn(3, 4, dtype=torch.bfloat16),
        torch.tensor(3),
        torch.empty(0, 2),
        torch.randn(2, 3).t(),
    ):
        assert torch.equal(again(tensor), tensor) and again(tensor).dtype == tensor.dtype


def test_no_code_in_plain_state():
    with pytest.raises(TypeError, match=r"it\['f'\]\[0\] is of type builtins.function"):
        _blob.encode({"f": [lambda: 0]})
    blob = bytearray(_blob.encode({"a": [b"12345", 1.5, (1, 2)], "b": {"c": 1}}))
    for at in range(len(blob)):
        for bit in (1, 0x10, 0x80):
            damaged = bytearray(blob)
            damaged[at] ^= bit
            try:
                _blob.decode(bytes(damaged))
            except ValueError:
                pass
        with pytest.raises(ValueError):
            _blob.decode(bytes(blob[: at // 2]))


def test_random_generators():
    state = again(_plain.random_state())
    wanted = torch.rand(3), random.random()
    _plain.set_random_state(state)
    assert torch.equal(torch.rand(3), wanted[0]) and random.random() == wanted[1]


@pytest.mark.parametrize(
    "devices, here, wanted",
    [(2, 1, {0: 10, 1: 11}), (2, 0, {0: 11, 1: 10}), (4, 3, {0: 10, 3: 11}), (1, 0, {0: 11})],
)
def test_random_generators_of_other_devices(monkeypatch, devices, here, wanted):
    """The device that a rank computes on takes over the generator of the one before: it was the
    second of two."""
    came = {}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "get_rng_state_all", lambda: [torch.tensor([10]), torch.tensor([11])]
    )
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, device: came.update({device: int(state)})
    )
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    state = again(_plain.random_state())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: here)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    _plain.set_random_state(state)
    assert came == wanted


def test_forms_of_tensors():
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert _tensors.uncovered(image) is None and _tensors.box(image)[0] == (2, 4, 5, 3)
    made = _optimizers.make_state(
        image, {}, _lib.Listed(_lib.DTYPES["F32"], _lib.OPTIMIZER, (2, 4, 5, 3))
    )
    assert made.shape == image.shape and made.stride() == image.stride()
    assert (
        _optimizers.make_state(image, {}, _lib.Listed(_lib.DTYPES["F32"], _lib.OPTIMIZER, ())).shape
        == ()
    )
    assert _tensors.uncovered(torch.randn(4, 6)[:, ::2]) == "it is not contiguous"
    assert _tensors.uncovered(torch.randn(4).expand(3, 4)) == "it is not contiguous"
    assert _tensors.uncovered(torch.empty(2, device="meta")) == "it is on the meta device"
    assert (
        _tensors.uncovered(torch.zeros(2, dtype=torch.complex128)) == "its type is torch.complex128"
    )
    assert (
        _tensors.uncovered(torch.nn.LazyLinear(2).weight)
        == "it gets its shape in the first forward"
    )
    assert _tensors.uncovered(torch.eye(2).to_sparse()) == "its layout is torch.sparse_coo"


def layout_of(model, optimizer):
    problems = _coverage.Problems()
    known = [_known.Known(lambda: optimizer, 0)]
    known[0].note_missing()
    return _state.collect({"": model}, known, HERE, problems, set()), problems


def trained(optimizer_class=torch.optim.AdamW, **options):
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2)
    )
    optimizer = optimizer_class(model.parameters(), **options)
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_everything_once():
    model, optimizer = trained()
    layout, problems = layout_of(model, optimizer)
    names = [entry.name for entry in layout.entries]
    assert len(names) == len(set(names)) and problems.lines == []
    assert {
        "0.weight",
        "exp_avg.0.weight",
        "exp_avg_sq.2.bias",
        "step.1.weight",
        "1.running_mean",
        "1.num_batches_tracked",
    } <= set(names)
    assert names[:4] == ["0.weight", "step.0.weight", "exp_avg.0.weight", "exp_avg_sq.0.weight"]
    assert sum(entry.kind == _lib.PARAM for entry in layout.entries) == 6


@pytest.mark.parametrize(
    "optimizer, options",
    [
        (torch.optim.SGD, {"lr": 0.1}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.Adagrad, {}),
        (torch.optim.NAdam, {}),
        (torch.optim.Adafactor, {}),
        (torch.optim.RMSprop, {"centered": True}),
        (torch.optim.Adam, {"amsgrad": True}),
    ],
)
def test_optimizers_are_covered(optimizer, options):
    """And a restore makes the same state from the names alone."""
    model, trained_optimizer = trained(optimizer, **options)
    layout, problems = layout_of(model, trained_optimizer)
    assert problems.lines == []
    listed = {
        e.name: _lib.Listed(_tensors.DTYPES[e.tensor.dtype], e.kind, _tensors.box(e.tensor)[0])
        for e in layout.entries
    }
    fresh = optimizer(model.parameters(), **options)
    known = _known.Known(lambda: fresh, 0)
    known.make_state(
        {id(p): name for name, p in model.named_parameters()}, listed, HERE, unnamed_too=False
    )
    for parameter in model.parameters():
        before, after = trained_optimizer.state.get(parameter, {}), fresh.state.get(parameter, {})
        tensors = {key: value for key, value in before.items() if torch.is_tensor(value)}
        assert tensors.keys() == {key for key, value in after.items() if torch.is_tensor(value)}
        assert all(
            (after[k].shape, after[k].dtype, after[k].device) == (v.shape, v.dtype, v.device)
            for k, v in tensors.items()
        )


def test_names_are_known_before_the_rest():
    """What the ranks tell each other of early is what they go by later."""
    model, _ = trained()
    model[2].weight = torch.nn.Parameter(torch.randn(2, 5))
    loose, frozen = torch.nn.Parameter(torch.randn(3)), torch.nn.Linear(2, 2).requires_grad_(False)
    model.append(frozen)
    optimizer = torch.optim.AdamW([*(p for p in model.parameters() if p.requires_grad), loose])
    layout, problems = layout_of(model, optimizer)
    names = _state.plain_names({"": model}, [_known.Known(lambda: optimizer, 0)], 1)
    assert problems.lines == [] and names == sorted(layout.plain_parameters())
    assert "3.weight" in names and "optimizer0.group0.6" in names


def test_what_is_incomplete_is_named():
    model, optimizer = trained()
    del optimizer.state[model[2].bias]
    assert layout_of(model, optimizer)[1].lines == [
        "the optimizer has updated 2.bias, but holds no moments of it, or only some"
    ]
    model, optimizer = trained()
    for parameter in model.parameters():
        optimizer.state[parameter]["history"] = [torch.zeros(2)]
    assert layout_of(model, optimizer)[1].lines == []  # plain data may hold tensors
    optimizer.state[model[0].weight]["history"] = print
    assert "history.0.weight cannot be captured" in layout_of(model, optimizer)[1].lines[0]
    model.register_parameter("lazy", torch.nn.Parameter(torch.empty(3, device="meta")))
    assert any(
        "parameter lazy cannot be captured: it is on the meta device" in line
        for line in layout_of(model, optimizer)[1].lines
    )


def test_unused_and_frozen_parameters():
    model = torch.nn.ModuleDict(
        {
            "used": torch.nn.Linear(2, 2),
            "unused": torch.nn.Linear(2, 2),
            "frozen": torch.nn.Linear(2, 2),
        }
    )
    model["frozen"].requires_grad_(False)
    optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
    model["used"](torch.ones(1, 2)).sum().backward()
    optimizer.step()
    layout, problems = layout_of(model, optimizer)
    assert problems.lines == [] and "frozen.weight" in [entry.name for entry in layout.entries]
    model["unused"](torch.ones(1, 2)).sum().backward()
    optimizer.step()
    # its first moments: everything is looked at again
    assert layout.grown([_known.Known(lambda: optimizer, 0)])


def test_what_differs_is_named():
    model, optimizer = trained()
    layout, _ = layout_of(model, optimizer)
    listed = {
        e.name: _lib.Listed(_tensors.DTYPES[e.tensor.dtype], e.kind, _tensors.box(e.tensor)[0])
        for e in layout.entries
    }
    listed["cairn.rank0"] = _lib.Listed(_lib.DTYPES["U8"], _lib.OPAQUE, (8,))
    todo, problems = layout.match(listed, set(), HERE)
    assert problems == [] and len(todo) == len(layout.entries)
    listed["0.weight"] = listed["0.weight"]._replace(shape=(4, 5))
    listed["2.weight"] = listed["2.weight"]._replace(dtype=_lib.DTYPES["F64"])
    del listed["exp_avg.2.bias"]
    assert layout.match(listed, set(), HERE)[1] == [
        "0.weight has the shape [5, 4], in the snapshot [4, 5]",
        "2.weight has another type or kind in the snapshot",
        "exp_avg.2.bias is not in the snapshot",
    ]


def test_a_module_that_was_called_before_it_had_an_optimizer():
    """It is a root from its next forward on, and its parameters have their names."""
    models = _models.Models(lambda: None, lambda _: None)
    try:
        first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        one = torch.optim.SGD(first.parameters(), lr=0.1)
        models.add_optimizer(one)
        assert (
            not models.saw_forward(second)
            and models.saw_forward(first)
            and not models.saw_forward(first)
        )
        two = torch.optim.SGD(second.parameters(), lr=0.1)
        models.add_optimizer(two)
        assert (
            not models.saw_forward(first)
            and models.saw_forward(second)
            and not models.saw_forward(second)
        )
        assert list(models.roots) == ["", "model1."]
        # the first one lies in it: its name is free again, the second's is not
        models.add_root(torch.nn.Sequential(first))
        assert set(models.roots) == {"", "model1."} and models.roots["model1."] is second
        models.add_root(torch.nn.Linear(1, 1))
        assert set(models.roots) == {"", "model1.", "model2."}
    finally:
        models.unwatch()


@pytest.mark.parametrize("trained", ["all", "the encoder"])
def test_a_part_that_is_evaluated_before_the_whole_trains(trained):
    """Modules are watched until one that holds all that is trained is called in training, so that
    the root is what trains."""
    models = _models.Models(lambda: None, lambda _: None)
    try:
        whole = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        optimizer = torch.optim.SGD((whole if trained == "all" else whole[0]).parameters(), lr=0.1)
        models.add_optimizer(optimizer)
        with torch.no_grad():
            assert models.saw_forward(whole[0]) and list(models.roots.values()) == [whole[0]]
            assert (
                models.saw_forward(whole)
                and models.roots == {"": whole}
                and models._stop_watching is not None
            )
        assert not models.saw_forward(whole) and models._stop_watching is None
    finally:
        models.unwatch()


@pytest.mark.parametrize("names", [(), ("set_code_exec_strategy",), ("skip_code",)])
def test_versions_whose_compiler_has_other_names(monkeypatch, names):
    """A hook is a hook all the same: at worst it is compiled."""
    skipped = []
    monkeypatch.setattr(
        torch._C._dynamo,
        "eval_frame",
        types.SimpleNamespace(**{name: skipped.append for name in names}),
    )
    hook = _quiet.quiet(lambda job: None)
    assert callable(hook) and len(skipped) == ("skip_code" in names)


def test_what_ddp_does_not_keep_alike():
    """Ranks share the copying of what DDP keeps alike on all, and of nothing else: half of one
    rank's and half of another's is nobody's."""
    from torch.distributed.algorithms.ddp_comm_hooks import (
        debugging_hooks,
        default_hooks,
        powerSGD_hook,
    )

    def module():
        layers = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5))
        layers.register_buffer("own", torch.zeros(1))
        return layers

    def allreduce_hook(_state, bucket):  # as local SGD may have it, under any name
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    def wrapped(*ignored, hook=None, state=None):
        layers = module()
        torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            layers, list(ignored)
        )
        parallel = torch.nn.parallel.DistributedDataParallel(layers)
        if hook is not None:
            parallel.register_comm_hook(state, hook)
        return parallel

    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        assert _modules.replicates(wrapped()) and not _modules.replicates(module())
        assert _modules.replicates(wrapped("no.such.name")) and _modules._reduces(
            default_hooks.bf16_compress_hook, None
        )
        for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):
            assert _modules.replicates(wrapped(hook=hook)) and _modules.replicates(
                wrapped(hook=hook, state=torch.distributed.group.WORLD)
            )
        layers = module()
        late = [("0.weight", layers[0].weight)]  # reduced, but at the end
        sinks = {"delay_all_reduce_named_params": late, "param_to_hook_all_reduce": layers[0].bias}
        assert _modules.replicates(torch.nn.parallel.DistributedDataParallel(layers, **sinks))
        for other in (wrapped("0.weight"), wrapped("own")):
            assert not _modules.replicates(other)
        power = powerSGD_hook.PowerSGDState(None), powerSGD_hook.powerSGD_hook
        wrapper = default_hooks.fp16_compress_wrapper(allreduce_hook)
        for state, hook in (
            (None, debugging_hooks.noop_hook),
            (None, allreduce_hook),
            (None, wrapper),
            power,
        ):
            parallel = wrapped(hook=hook, state=state)
            assert not _modules.replicates(parallel)
            problems = layout_of(parallel, torch.optim.SGD(parallel.parameters()))[1]
            (note,) = problems.notes
            assert (
                f"communication hook {hook.__qualname__} keeps for itself is not covered" in note
                and problems.lines == []
            )
        model, beside = wrapped(), torch.nn.Parameter(torch.randn(40))
        optimizer = torch.optim.AdamW([*model.parameters(), beside])
        for parameter in (*model.parameters(), beside):
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        layout, place = layout_of(model, optimizer)[0], _ranks.Place(1, 2, 2)
        models = _models.Models(lambda: None, lambda _: None)
        models.roots = {"": model}
        _names.Names(models).agree(layout, place, 1)
        own = {entry.name: entry.replica for entry in layout.entries if entry.kind != _lib.BUFFER}
        assert own["0.weight"] == own["exp_avg.0.weight"] == (1, 2)
        assert (
            own["rank1/optimizer0.group0.4"] == own["rank1/exp_avg.optimizer0.group0.4"] == (0, 1)
        )
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    "change, moment, steps, alike",
    [
        (0.0, 0.0, (3, 3), True),
        (1.0, 0.0, (3, 3), False),
        (0.0, 1.0, (3, 3), False),
        (1.0, 1.0, (3, 4), True),
    ],
)
def test_replicas_are_compared_before_they_are_confirmed(change, moment, steps, alike):
    """What two ranks share may be confirmed once both have told a part, and it is the same;
    else each has its own from then on."""
    ranks, places = [], [_ranks.Place(rank, 2, 2) for rank in range(2)]
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        torch.manual_seed(3)
        layers = torch.nn.Sequential(
            torch.nn.Linear(3, 2), torch.nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
        )
        for rank in range(2):
            model = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(layers))
            with torch.no_grad():
                model.module[1].weight[2, 1, 2, 2] += change * rank
            optimizer = torch.optim.SGD(model.parameters())
            # all that differs after an update whose learning rate was 0
            for each in model.parameters():
                optimizer.state[each] = {"momentum_buffer": torch.full_like(each, moment * rank)}
            models = _models.Models(lambda: None, lambda _: None)
            models.roots = {"": model}
            names = _names.Names(models)
            assert names.may_be_confirmed(places[rank])  # nothing is shared yet
            layout = layout_of(model, optimizer)[0]
            names.agree(layout, places[rank], steps[rank])
            assert {entry.replica for entry in layout.entries} == {(rank, 2)}
            if rank == 0:
                assert not names.may_be_confirmed(places[0]) and not names.may_be_confirmed(
                    places[0], 0.01
                )
            ranks.append((names, model, optimizer))
        # the first waits for nothing of the other, which has not looked yet
        for rank, (names, model, optimizer) in enumerate(ranks):
            assert names.may_be_confirmed(places[rank]) == alike
            layout = layout_of(model, optimizer)[0]
            names.agree(layout, places[rank], 5)
            assert {entry.replica for entry in layout.entries} == {(rank, 2) if alike else (0, 1)}
            assert all(entry.name.startswith(f"rank{rank}/") != alike for entry in layout.entries)
            assert names.may_be_confirmed(places[rank]) and names.differ() != alike
    finally:
        torch.distributed.destroy_process_group()


def test_a_rank_that_shares_nothing_tells_so():
    """A rank that took the module inside DDP for the root, as it evaluated that first, has its own:
    so have all others then."""
    places = [_ranks.Place(rank, 2, 2) for rank in range(2)]
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
        optimizer = torch.optim.SGD(model.parameters())

        def agreed(names, rank, step):
            layout = layout_of(model, optimizer)[0]
            names.agree(layout, places[rank], step)
            return {entry.name for entry in layout.entries}

        ranks = []
        for root in (model.module, model):
            models = _models.Models(lambda: None, lambda _: None)
            models.roots = {"": root}
            ranks.append(_names.Names(models))
        shared = agreed(ranks[1], 1, 1)
        assert shared == {"weight", "bias"} and not ranks[1].may_be_confirmed(places[1])
        assert agreed(ranks[0], 0, 1) == {f"rank0/{name}" for name in shared} and ranks[
            0
        ].may_be_confirmed(places[0])
        assert not ranks[1].may_be_confirmed(places[1]) and ranks[1].differ()
        assert agreed(ranks[1], 1, 2) == {f"rank1/{name}" for name in shared} and ranks[
            1
        ].may_be_confirmed(places[1])
        ranks[0]._models.roots = {"": model}
        assert agreed(ranks[0], 0, 3) == {f"rank0/{name}" for name in shared}
    finally:
        torch.distributed.destroy_process_group()


def test_long_names_stay_different():
    names = {_naming.fitting("ü" * 200 + str(i)) for i in range(10)}
    assert len(names) == 10 and all(len(name.encode()) < _lib.NAME_BYTES_MAX for name in names)


def test_plain_state_of_what_has_no_name_comes_back():
    """Of a parameter of no module, which is named by its position."""
    layer, beside = torch.nn.Linear(2, 2), torch.nn.Parameter(torch.randn(3))
    optimizer = torch.optim.SGD([{"params": layer.parameters()}, {"params": [beside]}], lr=0.1)
    for count, parameter in enumerate((layer.weight, layer.bias, beside)):
        optimizer.state[parameter]["count"] = count + 5  # as some keep their step
    layout, _ = layout_of(layer, optimizer)
    value = again(_known.Known(lambda: optimizer, 0).plain(layout))
    fresh = torch.optim.SGD([{"params": layer.parameters()}, {"params": [beside]}], lr=0.1)
    known = _known.Known(lambda: fresh, 0)
    known.load_plain(
        value, known.all_names({id(layer.weight): "weight", id(layer.bias): "bias"}), groups_from=0
    )
    assert [
        fresh.state[parameter]["count"] for parameter in (layer.weight, layer.bias, beside)
    ] == [5, 6, 7]


def test_moments_of_long_names_are_found():
    """Tensors whose name is cut, be it only a moment's."""
    for length in (200, 250, 300):
        layer, name = torch.nn.Linear(4, 5, bias=False), "w" * length
        model = torch.nn.Module()
        model.register_parameter(name, layer.weight)
        optimizer = torch.optim.AdamW([layer.weight])
        layer(torch.randn(3, 4)).sum().backward()
        optimizer.step()
        layout, _ = layout_of(model, optimizer)
        listed = {
            e.name: _lib.Listed(_tensors.DTYPES[e.tensor.dtype], e.kind, _tensors.box(e.tensor)[0])
            for e in layout.entries
        }
        assert len(listed) == 4
        fresh = torch.optim.AdamW([layer.weight])
        _known.Known(lambda: fresh, 0).make_state(
            {id(layer.weight): name}, listed, HERE, unnamed_too=False
        )
        assert set(fresh.state[layer.weight]) == {"step", "exp_avg", "exp_avg_sq"}
        layout, _ = layout_of(model, fresh)
        todo, problems = layout.match(listed, set(), HERE)
        assert {name for _, name in todo} == set(listed) and problems == []


def test_moments_of_another_ranks_shape():
    """Ranks that have something else each under one name, as stages of a pipeline do, get their own
    moments back."""
    listed = {
        f"cairn.rank{rank}": _lib.Listed(_lib.DTYPES["U8"], _lib.OPAQUE, (8,)) for rank in range(2)
    }
    for rank, shape in enumerate(((3, 4), (5, 4))):
        listed[f"rank{rank}/weight"] = _lib.Listed(_lib.DTYPES["F32"], _lib.PARAM, shape)
        for key, of in (("step", ()), ("exp_avg", shape), ("exp_avg_sq", shape)):
            listed[f"rank{rank}/{key}.weight"] = _lib.Listed(_lib.DTYPES["F32"], _lib.OPTIMIZER, of)
    for rank, rows in enumerate((3, 5)):
        place = _ranks.Place(rank, 2, 2)
        model = torch.nn.Linear(4, rows, bias=False)
        optimizer = torch.optim.AdamW(model.parameters())
        known = _known.Known(lambda: optimizer, 0)
        late = _late.Late({"weight": model.weight}, [], listed, place)
        assert {(entry.shape(), name) for entry, name in late.entries} == {
            (listed[name].shape, name)
            for name in listed
            if name.startswith(f"rank{rank}/") and "." in name
        }
        known.make_state({id(model.weight): "weight"}, listed, place, unnamed_too=False)
        layout = _state.collect({"": model}, [known], place, _coverage.Problems(), set())
        todo, problems = layout.match(listed, set(), place)
        assert (
            problems == []
            and len(todo) == 4
            and all(name.startswith(f"rank{rank}/") for _, name in todo)
        )


def test_keys_with_dots():
    """What is kept under "a.b" of a parameter w is not what is kept under "a" of b.w, and both come
    back."""

    def made():
        model = torch.nn.ModuleDict({"b": torch.nn.PReLU(2)})
        model.register_parameter("weight", torch.nn.Parameter(torch.ones(2, 2)))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    model, optimizer = made()
    optimizer.state[model.weight] = {
        "a.b": torch.full((2, 2), 1.0),
        "a%2Eb": torch.full((2, 2), 2.0),
    }
    optimizer.state[model["b"].weight] = {"a": torch.full((2,), 3.0)}
    layout, problems = layout_of(model, optimizer)
    assert problems.lines == [] and len({entry.name for entry in layout.entries}) == 5
    listed = {
        e.name: _lib.Listed(_tensors.DTYPES[e.tensor.dtype], e.kind, _tensors.box(e.tensor)[0])
        for e in layout.entries
    }
    for rank in ("", "rank0/"):
        model, fresh = made()
        of_rank = {rank + name: each for name, each in listed.items()}
        _known.Known(lambda: fresh, 0).make_state(
            {id(p): n for n, p in model.named_parameters()}, of_rank, HERE, unnamed_too=False
        )
        assert set(fresh.state[model.weight]) == {"a.b", "a%2Eb"} and set(
            fresh.state[model["b"].weight]
        ) == {"a"}
        assert {
            name for _, name in layout_of(model, fresh)[0].match(of_rank, set(), HERE)[0]
        } == set(of_rank)


def test_keys_that_are_no_text():
    """They would come back as text, which the optimizer does not look for."""
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter])
    optimizer.state[parameter] = {0: torch.ones(2), 1: 5}
    problems = _coverage.Problems()
    _state.collect({}, [_known.Known(lambda: optimizer, 0)], HERE, problems, set())
    assert problems.lines == [
        "0.optimizer0.group0.0 cannot be captured: its key is no text but the int 0"
    ]


def test_late_moments_go_to_the_optimizer_that_had_them():
    """Not to the one that has its place in the order meanwhile, since one that came before it is
    gone or was not there yet."""
    layer = torch.nn.Linear(2, 2)
    first, second = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1), torch.optim.SGD(
        [layer.weight], lr=0.2
    )
    known = [_known.Known(lambda: first, 0), _known.Known(lambda: second, 1)]
    listed = {"momentum_buffer.bias": _lib.Listed(_lib.DTYPES["F32"], _lib.OPTIMIZER, (2,))}
    late = _late.Late({"weight": layer.weight, "bias": layer.bias}, known, listed, HERE)
    plain = [
        {"groups": [{"lr": 1.0}] * 2, "state": {}},
        {"groups": [{"lr": 2.0}, {"lr": 3.0}], "state": {"bias": {"count": 7}}},
    ]
    late.keep(plain, known)
    second.add_param_group({"params": [layer.bias]})
    late.give(known[1:])
    assert (
        second.state[layer.bias]["count"] == 7
        and "momentum_buffer" in second.state[layer.bias]
        and late.names() == []
    )
    assert [group["lr"] for group in second.param_groups] == [0.2, 3.0] and first.param_groups[0][
        "lr"
    ] == 0.1


def test_what_a_model_lacks_is_named_as_in_the_model():
    """Of what each rank has of its own, a rank lacks neither what is here without its rank's name
    nor what is another rank's."""
    model, optimizer = trained()
    layout, _ = layout_of(model, optimizer)
    of = _lib.Listed(_lib.DTYPES["F32"], _lib.PARAM, (2,))
    own = {
        f"rank{rank}/{entry.name}": of
        for rank in range(2)
        for entry in layout.entries
        if entry.kind == _lib.PARAM
    }
    place = _ranks.Place(1, 2, 2)
    assert layout.lacks(own, set(), place) == []
    more = {**own, "rank0/its": of, "rank1/mine": of, "shared": of, "done": of, "0.weight": of}
    assert layout.lacks(more, {"done"}, place) == ["mine", "shared"]


def test_changes_are_found():
    model, optimizer = trained()
    layout, _ = layout_of(model, optimizer)
    layout.prepare()
    assert layout.changed() == [] and not layout.outdated([_known.Known(lambda: optimizer, 0)])
    with torch.no_grad():
        model[0].weight.clamp_(-1, 1)
        model[1].running_mean.add_(1)  # captured from a copy: it may
    assert [entry.name for entry in layout.changed()] == ["0.weight"]
    layout.prepare()
    model[2].bias.data = torch.zeros(2)
    assert [entry.name for entry in layout.changed()] == ["2.bias"]
    optimizer.load_state_dict(optimizer.state_dict())  # its tensors are new ones
    assert layout.outdated([_known.Known(lambda: optimizer, 0)])


def test_looks_past_the_modes_of_a_script():
    """A mode, as torch.set_default_device makes one, would run for each attribute of each tensor
    while training stands still."""
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, _types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    model, optimizer = trained()
    layout, _ = layout_of(model, optimizer)
    known = [_known.Known(lambda: optimizer, 0)]
    staged = len([entry for entry in layout.entries if entry.staged is not None])
    with Mode():
        assert not layout.outdated(known)
        layout.prepare()
        in_prepare = len(seen)
        assert layout.changed() == []
    assert len(seen) == in_prepare <= 4 * staged < len(layout.entries), seen


def test_a_flat_tensor_is_asked_for_once():
    """However many parts lie in it; and where it becomes another, all of them are seen to move."""
    flats, asked = [torch.zeros(6)], []

    def flat():
        asked.append(1)
        return flats[-1]

    layout = _layout.Layout(_ranks.Place(0, 1, 1))
    for at in range(0, 6, 2):
        part = _part.Part(f"{at}", (2,), 0, 2, flat, at, (6,), at, (0, 1), (0, 1))
        layout.entries.append(_entry.Entry(part.name, _lib.PARAM, flats[0], part=part))
    layout.seal([])
    layout.prepare()
    asked.clear()
    assert layout.changed() == [] and len(asked) == 1
    flats.append(torch.zeros(6))
    assert [entry.name for entry in layout.changed()] == ["0", "2", "4"]
    assert layout.outdated([])


class Outer:
    """In place of one of Megatron-Core's optimizers."""

    def __init__(self, optimizer, **config):
        self.optimizer, self.config = optimizer, types.SimpleNamespace(**config)
        self.ddp_config = types.SimpleNamespace(use_megatron_fsdp=config.get("fsdp", False))


@pytest.mark.parametrize(
    "name, config, why",
    [
        ("DistributedOptimizer", {"use_precision_aware_optimizer": True}, "precision_aware"),
        ("DistributedOptimizer", {"fsdp": True}, "Megatron-FSDP"),
        ("LayerWiseDistributedOptimizer", {}, "LayerWiseDistributedOptimizer"),
        ("FP32Optimizer", {"kind": "HybridDeviceOptimizer"}, "optimizer_cpu_offload"),
        ("FP32Optimizer", {}, None),
    ],
)
def test_optimizers_of_megatron_that_are_refused(name, config, why):
    _, optimizer = trained()
    if "kind" in config:
        optimizer.__class__ = type(config["kind"], (type(optimizer),), {})
    outer = type(name, (Outer,), {})(optimizer, **config)
    _megatron.note(outer)
    found = _optimizers.refusal(optimizer, 1)
    assert found is None if why is None else why in found, found


def test_zero_redundancy_that_is_refused():
    """It updates during backward, or is on some of the ranks."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    for overlaps, world, why in ((True, 2, "overlap_with_ddp"), (False, 2, "2 of the job's 4")):
        optimizer = object.__new__(ZeroRedundancyOptimizer)
        optimizer.__dict__.update(_overlap_with_ddp=overlaps, world_size=world)
        assert why in _optimizers.refusal(optimizer, 4)


def test_what_is_not_covered_is_listed():
    """Everything that is refused or noted has its kind, name and reason for the agent, each time
    that it is looked at."""
    model, optimizer = trained()
    del optimizer.state[model[2].bias]
    model.register_buffer("phase", torch.zeros(2, dtype=torch.complex128))
    model.register_parameter("lazy", torch.nn.Parameter(torch.empty(3, device="meta")))
    optimizer.param_groups[0]["callback"] = print
    problems, known = _coverage.Problems(), [_known.Known(lambda: optimizer, 0)]
    known[0].note_missing()
    for _ in range(2):
        problems = _coverage.Problems()
        _state.collect({"": model}, known, HERE, problems, set())
    found = {(each.kind, each.name): each.reason for each in problems.uncovered}
    assert found.pop((_lib.OPAQUE, "the hyperparameter callback of optimizer 0")).endswith(
        "plain data"
    )
    assert found == {
        (
            _lib.OPTIMIZER,
            "2.bias",
        ): "the optimizer has updated it, but holds no moments of it, or only some",
        (_lib.PARAM, "lazy"): "it is on the meta device",
        (_lib.BUFFER, "phase"): "its type is torch.complex128",
    }


@pytest.mark.parametrize(
    "what, failed",
    [
        (None, False),
        (SystemExit(), False),
        (SystemExit(0), False),
        (SystemExit(3), True),
        (SystemExit("no"), True),
        (KeyboardInterrupt(), True),
        (ValueError(), True),
    ],
)
def test_how_a_process_ends(monkeypatch, what, failed):
    """By an exception, be it seen while it is at work, as in a child of multiprocessing, or after
    it was printed."""
    monkeypatch.setattr(sys, "last_type", None, raising=False)

    def ends():
        if what is None:
            return _lib.ends_by_an_error()
        try:
            raise what
        except BaseException:
            return _lib.ends_by_an_error()

    assert ends() == failed
    monkeypatch.setattr(sys, "last_type", ValueError)
    assert _lib.ends_by_an_error()
    # a notebook goes on after an exception that it has shown
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert ends() == failed


def test_the_agent_learns_how_a_process_ends(monkeypatch):
    """With any taker of snapshots: how the client is closed is left to what is known at the end."""
    from cairn import _job, dcp

    closed = []

    class Client:
        def close_with_the_process(self):
            closed.append(self)

        def confirm(self, good):
            pass

    monkeypatch.setattr(dcp, "_session", (Client(), HERE))
    dcp._close(with_the_process=True)
    job = _job.Job(False)
    monkeypatch.setattr(_current, "job", job)
    job.client, job.place = Client(), HERE
    job._at_exit()
    job._at_exit()  # in a child of multiprocessing both its end and the process' call it
    assert len(closed) == 2 and job.client is None


class Deaf:
    """A client that keeps what it is told, or has no memory for it."""

    def __init__(self):
        self.told, self.fails = [], False

    def report_coverage(self, refusal, items):
        if self.fails:
            raise _lib.CairnError(_lib.NOMEM, "out of memory")
        self.told.append((refusal, [item.name for item in items]))


def test_coverage_is_told_when_it_changes():
    coverage, client = _coverage.Coverage(), Deaf()
    coverage.add(_lib.OPAQUE, "early", "x")  # nobody is there yet
    coverage.serve(client)
    assert client.told == [("", ["early"])]
    for _ in range(3):
        coverage.add(_lib.OPAQUE, "early", "x")
        coverage.refuse("no")
    assert client.told[1:] == [("no", ["early"])]
    coverage.found([_lib.Uncovered(_lib.BUFFER, "mask", "meta")])
    coverage.found([])
    coverage.refuse("")
    assert client.told[2:] == [("no", ["mask", "early"]), ("no", ["early"]), ("", ["early"])]
    client.fails = True
    coverage.refuse("never stops training")
    coverage.serve(None)
    coverage.refuse("and nobody is told")
    assert len(client.told) == 5


@pytest.mark.parametrize(
    "use",
    [
        lambda optimizer, p: optimizer.state[p]["exp_avg"],
        lambda optimizer, p: optimizer.state.get(p)["exp_avg"],
        lambda optimizer, p: dict(optimizer.state.items())[p]["exp_avg"],
        lambda optimizer, p: [p in optimizer.state, len(optimizer.state), optimizer.state[p]][2][
            "exp_avg"
        ],
        lambda optimizer, p: optimizer.state_dict()["state"][0]["exp_avg"],
        lambda optimizer, p: list(copy.deepcopy(optimizer.state).values())[0]["exp_avg"],
        lambda optimizer, p: list(copy.copy(optimizer.state).values())[0]["exp_avg"],
        lambda optimizer, p: list(pickle.loads(pickle.dumps(optimizer.state)).values())[0][
            "exp_avg"
        ],
        lambda optimizer, p: next(iter(copy.deepcopy(optimizer).state.values()))["exp_avg"],
    ],
)
def test_nobody_sees_half_filled_moments(use):
    model = torch.nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    state = optimizer.state
    state[model.weight] = {"step": torch.tensor(1.0), "exp_avg": torch.zeros(2, 2)}
    begun, may_end = threading.Event(), threading.Event()

    def fill():
        begun.set()
        assert may_end.wait(30)
        state[model.weight]["exp_avg"].fill_(7)

    filling = _moments.Filling(fill, [optimizer])
    assert begun.wait(30) and optimizer.state is not state
    optimizer.zero_grad()  # looks at no state, and does not wait
    threading.Timer(0.1, may_end.set).start()
    assert use(optimizer, model.weight).eq(7).all()
    assert optimizer.state is state and type(state) is collections.defaultdict
    filling.finish()  # again


def test_what_goes_wrong_behind_the_first_forward_is_raised():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())

    def fill():
        raise _current.Damaged("half-way")

    filling = _moments.Filling(fill, [optimizer])
    for _ in range(2):
        with pytest.raises(_current.Damaged, match="half-way"):
            optimizer.state_dict()
        with pytest.raises(_current.Damaged, match="half-way"):
            filling.finish()


def test_moments_come_without_a_thread_to_spare(monkeypatch):
    def start(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    optimizer = torch.optim.AdamW(torch.nn.Linear(2, 2).parameters())
    state, filled = optimizer.state, []
    _moments.Filling(lambda: filled.append(True), [optimizer]).finish()
    assert filled == [True] and optimizer.state is state


def test_a_state_that_the_script_replaces_stays():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    filling = _moments.Filling(lambda: None, [optimizer])
    optimizer.state = collections.defaultdict(dict)
    replaced = optimizer.state
    filling.finish()
    assert optimizer.state is replaced
