"""Megatron-Core under `cairn run`: killed, and resumed in another parallelism, where every rank has
bit for bit what Megatron-Core's own dist_checkpointing gives it for the same change, and goes on
with the same losses.

Needs build/venv-megatron, a virtual environment with megatron-core that shares this one's PyTorch.
"""

import json
import re

import pytest
from convert_states import cairn
from test_torch import ROOT, Run, built, cluster, harness, newest, under  # noqa: F401: fixtures

PYTHON = ROOT / "build" / "venv-megatron" / "bin" / "python"
if not PYTHON.exists():
    pytest.skip("build/venv-megatron with megatron-core is not there", allow_module_level=True)

SCRIPT = str(ROOT / "tests" / "interop" / "megatron_live_trainer.py")
STEPS = 40  # more than any of these jobs makes


def world_of(job):
    words = dict(word.split("=") for word in job.split(","))
    return int(words.get("tp", 1)) * int(words.get("pp", 1)) * int(words.get("dp", 1))


def said(run, rank, word):
    return re.findall(rf"^{word} (\d+) (\S+)$", run.text(rank), re.M)


def start(folder, job, steps, saved, wrapper=(), **options):
    """Starts the trainer; `saved`: the folder of Megatron-Core's checkpoints."""
    return Run(
        folder,
        [job, steps, saved],
        world_of(job),
        wrapper,
        distributed=True,
        script=SCRIPT,
        python=str(PYTHON),
        **{"forks": True, **options},
    )


def trained(folder, cluster, job, begin, end, more=None):  # noqa: F811
    """Goes on from update `begin`, and is killed when the newest snapshot is that after update
    `end`, which Megatron-Core saves, too."""
    saved = folder / "saved"
    saved.mkdir(exist_ok=True)
    wrapper = under(cluster, *(["--resume"] if begin else []))
    options = {"hold_at": end + 1, "env": {"TRAINER_SAVE_AT": str(end), **(more or {})}}
    run = start(folder, job, STEPS, saved, wrapper, **options)

    def is_there():
        """The snapshot, and what is printed after it."""
        told = [
            max([int(step) for step, _ in said(run, rank, "step")], default=end)
            for rank in range(run.world)
        ]
        return newest(cluster) == end and set(told) == {end} and len(run.steps()) > 0

    harness.wait_for(
        f"the snapshot of update {end}", lambda: is_there() or run.process.poll() is not None, 120
    )
    assert run.process.poll() is None, run.errors()
    run.kill()
    assert "not covered" not in run.errors(), run.errors()
    losses = set()
    for rank in range(run.world):
        losses |= {int(step) for step, _ in said(run, rank, "step")}
        if begin:
            assert said(run, rank, "loaded") == said(run, rank, "resumed") != [], run.errors()
            assert said(run, rank, "loaded")[0][0] == str(begin)
            assert said(run, rank, "expected") == said(run, rank, "step"), run.errors()
    assert losses == set(range(begin, end + 1))


def whole_and_resumed(folder, cluster, before, after):  # noqa: F811
    """(a run of the job `before` that is not killed, one that goes on as `after` from update 2)"""
    nothing = folder / "nothing"
    nothing.mkdir()
    trained(folder, cluster, before, 0, 2)
    whole = start(folder, before, 5, nothing)
    run = start(folder, after, 5, nothing, under(cluster, "--resume"))
    assert run.wait() == 0 and whole.wait() == 0, run.errors() + whole.errors()
    return whole, run


@pytest.mark.parametrize(
    "jobs",
    [
        ["tp=2", "tp=1"],
        ["tp=2,pp=2,dist=1", "tp=1,pp=2,dist=1", "tp=2,dist=1", "dp=4,dist=1", "tp=2,pp=2,dist=1"],
        # experts in one optimizer and in two; the embedding on both ends, and its padding
        ["dp=2,pp=2,ep=2,experts=4,dist=1", "dp=4,ep=4,experts=4,dist=1"],
        ["pp=2,vpp=2,tied=1,padded=92,half=0", "tp=2,tied=1,padded=128,half=0"],
    ],
    ids=["plain", "distributed", "experts", "virtual"],
)
def test_another_parallelism(cluster, tmp_path, jobs):  # noqa: F811
    begin = 0
    for job in jobs:
        trained(tmp_path, cluster, job, begin, begin + 2)
        begin += 2


def test_exported(cluster, tmp_path):  # noqa: F811
    """A snapshot's files become Megatron-Core's, and its loader gets from them what it gets from
    its own, in another parallelism."""
    trained(tmp_path, cluster, "tp=2,pp=2,dist=1", 0, 2)
    exported = tmp_path / "exported"
    cairn("restore", "--agent", cluster.socket(0), "--to", exported)
    tensors = json.loads((exported / "index.json").read_text())["tensors"]
    run = start(tmp_path, "dist=1", 1, tmp_path / "saved")
    assert run.wait() == 0, run.errors()
    groups = json.loads(re.findall("^groups (.*)$", run.text(), re.M)[0])
    groups = [{**group, "params": []} for group in groups]
    assert [group["wd_mult"] for group in groups] == [1.0, 0.0]
    for each in tensors:
        if each["kind"] == "param":
            groups[len(each["shape"]) == 1]["params"].append(each["name"])
    scheduler = {"max_lr": 0.02, "num_steps": 2}
    (tmp_path / "job.json").write_text(
        json.dumps({"param_groups": groups, "lr_scheduler": scheduler})
    )
    converted = tmp_path / "converted"
    converted.mkdir()
    options = ["--to", "megatron-dist", "--job", tmp_path / "job.json"]
    cairn("convert", exported, converted / "2", *options)
    job = "dp=2,dist=1"
    runs = [
        start(tmp_path, job, 4, folder, env={"TRAINER_LISTS": "1"})
        for folder in (tmp_path / "saved", converted)
    ]
    assert all(run.wait() == 0 for run in runs), [run.errors() for run in runs]
    for rank in range(2):
        one, other = (re.findall(r"^(?:has|expected) .*$", run.text(rank), re.M) for run in runs)
        assert one == other != [], runs[1].errors()


def test_unchanged_script(cluster, tmp_path):  # noqa: F811
    """A script that does not know of Cairn finds the same state in its first forward."""
    unchanged, nothing = {"TRAINER_UNCHANGED": "1"}, tmp_path / "nothing"
    nothing.mkdir()
    trained(tmp_path, cluster, "tp=2,dist=1", 0, 2, unchanged)
    job = "dp=2,dist=1"
    own = start(tmp_path, job, 3, tmp_path / "saved")
    cold = {"start": "cold", "forks": False}
    run = start(tmp_path, job, 1, nothing, under(cluster, "--resume"), env=unchanged, **cold)
    assert run.wait() == 0 and own.wait() == 0, run.errors() + own.errors()
    for rank in range(2):
        ((_, wanted),) = said(own, rank, "loaded")
        assert said(run, rank, "found") == [("0", wanted)], run.errors()


def test_what_is_refused(cluster, tmp_path):  # noqa: F811
    """Of an optimizer that is unknown, and of experts whose checkpoints hold copies, it is logged
    that nothing is captured; it trains as ever."""
    saved = tmp_path / "saved"
    saved.mkdir()
    experts = "dist=1,layers=1,experts=2,legacy=1"
    jobs = [("dist=1", "dist=1,odd=1", "OddOptimizer"), (experts, experts, "copies it for its")]
    for bare, job, why in jobs:
        own = start(tmp_path, bare, 3, saved)
        run = start(tmp_path, job, 3, saved, under(cluster))
        assert run.wait() == 0 and own.wait() == 0, run.errors() + own.errors()
        assert run.steps() == own.steps() and len(run.steps()) == 3, own.errors()
        lines = [line for line in run.errors().splitlines() if line.startswith("cairn")]
        assert len([line for line in lines if why in line]) == 1, run.errors()
        assert newest(cluster) == 0


def test_strategies(cluster, tmp_path):  # noqa: F811
    """Megatron-Core's own calls save to the agents' memory and load from it, in another
    parallelism, by one argument."""
    saved, own = tmp_path / "saved", {"TRAINER_STRATEGY": "1"}
    saved.mkdir()
    job = "tp=2,dist=1"
    run = start(tmp_path, job, 3, saved, under(cluster), env={**own, "TRAINER_SAVE_AT": "2"})
    assert run.wait() == 0 and newest(cluster) == 2, run.errors()
    run = start(tmp_path, "dp=2,dist=1", 2, saved, under(cluster), env=own)
    assert run.wait() == 0, run.errors()
    for rank in range(run.world):
        assert said(run, rank, "loaded") == said(run, rank, "resumed") != [], run.errors()


def test_experts_of_one_rank(cluster, tmp_path):  # noqa: F811
    """Where all experts are in the dense optimizer Megatron-Core does not load what was saved from
    two; Cairn does, and the job goes on."""
    before, after = "dp=2,ep=2,experts=4,dist=1", "dp=2,experts=4,dist=1"
    whole, run = whole_and_resumed(tmp_path, cluster, before, after)
    for rank in range(2):
        losses = [each.steps(rank) for each in (whole, run)]
        assert sorted(losses[1]) == [2, 3, 4] and losses[0][2] == losses[1][2], run.errors()
        for step in (3, 4):  # gradients are summed in another order
            one, other = (float.fromhex(each[step]) for each in losses)
            assert abs(one - other) < 0.01, run.errors()


@pytest.mark.parametrize("kind", ["half=0", "overlap=1"])
def test_buckets(cluster, tmp_path, kind):  # noqa: F811
    """The distributed optimizer's ranges in several buckets, with masters and without: it goes on
    with other buckets as if nothing had happened. (Megatron-Core 0.16.1 saves such masters
    wrongly.)"""
    before, after = (f"dp=2,dist=1,{kind},clip=0,bucket={bucket}" for bucket in (2000, 5000))
    whole, run = whole_and_resumed(tmp_path, cluster, before, after)
    for rank in range(2):
        losses = whole.steps(rank)
        assert run.steps(rank) == {step: losses[step] for step in (2, 3, 4)}, run.errors()
