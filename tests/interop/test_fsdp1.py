"""FSDP1 (FullyShardedDataParallel) under `cairn run`: its flat parameters under the names of the
parameters in them, killed and resumed bit for bit, and in another number of ranks."""
import random
import re
import sys

import pytest
from test_torch import ROOT, Run, built, cluster, newest, under  # noqa: F401: fixtures
from test_torch_more import STEPS, killed_and_resumed

sys.path.insert(0, str(ROOT / "bindings" / "python"))
torch = pytest.importorskip("torch", reason="torch is not installed here")
import torch.distributed as dist  # noqa: E402
from cairn import _coverage, _fsdp1, _known, _ranks, _state, _tensors  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

SCRIPT = str(ROOT / "tests" / "interop" / "fsdp1_trainer.py")


@pytest.mark.parametrize(
    "kind, world",
    [
        ("orig", 2),
        ("flat", 3),
        ("mixed", 2),
        ("adagrad", 2),
        ("grad_op", 2),
        ("no_shard", 2),
        ("hybrid", 4),
        ("thaw", 2),
        ("thaw_flat", 3),
    ],
)
def test_killed_and_resumed(cluster, tmp_path, kind, world):  # noqa: F811
    # of these FSDP1 is imported after the hooks are in
    start = {"start": "cold", "forks": True} if kind == "orig" else {}
    killed_and_resumed(cluster, tmp_path, "fsdp1_trainer.py", [kind, STEPS], world, **start)


def whole(cluster, tmp_path, kind, world):  # noqa: F811
    """(step, digest of everything without shards) that a resumed job of so many ranks finds, the
    same on all that know it."""
    run = Run(
        tmp_path,
        [kind, 0, "whole"],
        world,
        under(cluster, "--resume"),
        script=SCRIPT,
        distributed=True,
    )
    assert run.wait() == 0, run.errors()
    (found,) = re.findall(r"^whole (\d+) (\S+)$", run.text(), re.M)
    return int(found[0]), found[1], run.errors()


@pytest.mark.parametrize("first, others", [("orig", ("flat", "no_shard")), ("flat", ("orig",))])
def test_other_number_of_ranks(cluster, tmp_path, first, others):  # noqa: F811
    """What two ranks held comes back whole on one and on three, and to those who shard in another
    way."""
    run = Run(tmp_path, [first, STEPS], 2, under(cluster), script=SCRIPT, hold_at=STEPS - 2)
    run.kill_at(8, cluster)
    committed = newest(cluster)
    step, digest, said = whole(cluster, tmp_path, first, 2)
    assert step >= committed > 0, said
    for kind, world in [(first, 3), (first, 1), *((kind, 2) for kind in others)]:
        again, same, said = whole(cluster, tmp_path, kind, world)
        assert (again, same) == (step, digest), f"{kind} on {world}: {said}"


def a_model(chosen):
    """Layers of chance in units of chance, one of them in an order of memory of its own; the values
    are 1, 2, 3 and so on."""
    layers = [
        torch.nn.Conv2d(chosen.randint(1, 3), chosen.randint(1, 4), 3).to(
            memory_format=torch.channels_last
        )
    ]
    layers += [
        torch.nn.Linear(chosen.randint(1, 9), chosen.randint(1, 9))
        for _ in range(chosen.randint(1, 4))
    ]
    value = 1
    for layer in layers:
        for parameter in layer.parameters():
            with torch.no_grad():
                parameter.copy_(
                    torch.arange(value, value + parameter.numel()).reshape(parameter.shape)
                )
            value += parameter.numel()
    units = chosen.sample(range(len(layers)), chosen.randint(0, len(layers) - 1))
    return torch.nn.Sequential(*layers), units


@pytest.fixture
def ranks():
    """Makes this process one rank of many; what they send each other does not arrive."""

    def become(rank, world):
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)

    yield become
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("seed", range(24))
def test_every_element_once(ranks, seed):
    """The parts that the ranks hold tile each parameter, and lie where the parts say."""
    chosen = random.Random(seed)
    world, use_orig_params, sharded = chosen.randint(1, 7), seed % 2 == 0, seed % 6 > 1
    whole = {}
    for parameter_name, parameter in a_model(random.Random(seed))[0].named_parameters():
        whole[parameter_name] = parameter.detach().permute(_tensors.memory_order(parameter))
    found = {name: torch.zeros(each.numel()) for name, each in whole.items()}
    numbers = {name: set() for name in whole}
    for rank in range(world):
        ranks(rank, world)
        model, units = a_model(random.Random(seed))
        options = {
            "use_orig_params": use_orig_params,
            "device_id": torch.device("cpu"),
            "sharding_strategy": ShardingStrategy.FULL_SHARD
            if sharded
            else ShardingStrategy.NO_SHARD,
        }
        for unit in units:
            model[unit] = FullyShardedDataParallel(model[unit], **options)
        model = FullyShardedDataParallel(model, **options)
        optimizer = torch.optim.Adagrad(
            model.parameters(), initial_accumulator_value=float(rank + 1)
        )
        parts, problems = _fsdp1.parts_of(model, "", world)
        assert problems == [] and parts.keys() == {
            id(parameter) for parameter in model.parameters()
        }
        for parameter in model.parameters():
            for part in parts[id(parameter)]:
                count = part.end - part.begin
                assert part.shape == tuple(whole[part.name].shape)
                values = part.memory().detach().reshape(-1)[part.at : part.at + count]
                assert torch.equal(values, whole[part.name].reshape(-1)[part.begin : part.end])
                if not part.is_empty:
                    numbers[part.name].add(part.of(optimizer.state[parameter]["step"]).replica)
                found[part.name][part.begin : part.end] += 1 / part.replica[1]
                moment = part.of(optimizer.state[parameter]["sum"])
                here = moment.memory()
                kept = here.as_strided((here.numel(),), (1,))[moment.at : moment.at + count]
                assert moment.shape == part.shape and kept.numel() == count
        layout = _state.collect(
            {"": model},
            [_known.Known(lambda: optimizer, 0)],
            _ranks.Place(rank, world, 1),
            _coverage.Problems(),
            set(),
        )
        assert {entry.name for entry in layout.entries if entry.name in whole} == set(whole)
    for name in whole:
        assert torch.allclose(found[name], torch.ones(())), name
        assert (
            len(numbers[name]) == {count for _, count in numbers[name]}.pop()
        ), "each holder has a number of its own"


def test_what_is_refused(ranks):
    """Units that are spread over a part of the job, and state of another shape than the
    parameter's."""
    ranks(0, 4)
    half = dist.new_group([0, 1])
    model = FullyShardedDataParallel(
        torch.nn.Linear(4, 4),
        process_group=half,
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    problems = _coverage.Problems()
    _state.collect(
        {"": model}, [_known.Known(lambda: optimizer, 0)], _ranks.Place(0, 4, 4), problems, set()
    )
    assert problems.lines == [
        "weight and what FSDP1 keeps with it cannot be captured: its process groups are of 2 "
        "ranks, and the job of 4"
    ]
    model = FullyShardedDataParallel(
        torch.nn.Linear(4, 4), use_orig_params=True, device_id=torch.device("cpu")
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.state[model.weight] = {"row": torch.zeros(2, 2)}
    problems = _coverage.Problems()
    _state.collect(
        {"": model}, [_known.Known(lambda: optimizer, 0)], _ranks.Place(0, 4, 4), problems, set()
    )
    assert problems.lines == [
        "row.weight cannot be captured: FSDP1 holds [5] of its parameter, and it has the shape [2, "
        "2]"
    ]


@pytest.mark.parametrize("use_orig_params", [True, False])
def test_changes_are_found(ranks, use_orig_params):
    """Writes by the optimizer's way and by that of FSDP1, but nothing that a forward and a backward
    do."""
    ranks(0, 2)
    model = FullyShardedDataParallel(
        torch.nn.Linear(4, 4), use_orig_params=use_orig_params, device_id=torch.device("cpu")
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    known = [_known.Known(lambda: optimizer, 0)]
    layout = _state.collect({"": model}, known, _ranks.Place(0, 2, 2), _coverage.Problems(), set())
    layout.prepare()
    model(torch.ones(2, 4)).sum().backward()
    assert layout.changed() == [] and not layout.outdated(known)
    optimizer.step()
    assert {entry.name for entry in layout.changed()} >= {"weight", "momentum_buffer.weight"}
    layout.prepare()
    with torch.no_grad(), FullyShardedDataParallel.summon_full_params(model):
        (model.weight if use_orig_params else model.module.weight).add_(1)
    assert {entry.name for entry in layout.changed()} >= {"weight"}
