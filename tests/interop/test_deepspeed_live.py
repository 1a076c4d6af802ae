"""DeepSpeed jobs under `cairn run`: killed, and resumed in another number of ranks, where masters,
moments, counters and loss scale are bit for bit those of DeepSpeed's own universal checkpoint of
the same step, and so are the losses after that.

DeepSpeed is in a virtual environment of its own, see test_convert_deepspeed.py. Where it is not
there, everything here is skipped.
"""

import json
import os
import re
import subprocess

import pytest
from test_torch import ROOT, Run, built, cluster, harness, newest, under  # noqa: F401: fixtures

PYTHON = ROOT / "build" / "venv-deepspeed" / "bin" / "python"
TRAINER = ROOT / "tests" / "interop" / "deepspeed_live_trainer.py"
PIPELINE = ROOT / "tests" / "interop" / "deepspeed_live_pipeline.py"
PARTS = ROOT / "tests" / "interop" / "deepspeed_live_parts.py"
ONE_GROUP = {"groups": 1}  # DeepSpeed gives all groups of ZeRO 3 the hyperparameters of the first
SCALER = {"enabled": True, "initial_scale_power": 20, "loss_scale_window": 2, "hysteresis": 1}
SOME_STAY = {"stage3_param_persistence_threshold": 30}  # parameters that stay gathered
# Not compared with the universal form: from that all sub-groups of an optimizer of torch share one
# count of steps, which each of them increments.
SUB_GROUPS = {"sub_group_size": 100}
OFFLOADED = {"device": "cpu"}
JOBS = {
    "zero1": {"stage": 1, "dtype": "bf16"},
    "zero2": {
        "stage": 2,
        "dtype": "fp16",
        "micro": 2,
        "inf": 4,
        "config": {"gradient_accumulation_steps": 2, "fp16": SCALER},
    },
    "zero3": {"stage": 3, "dtype": "bf16", "options": SOME_STAY, **ONE_GROUP},
    "pipeline": {"accumulate": "fp32"},
}

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="DeepSpeed is not installed in build/venv-deepspeed"
)


def start(folder, job, world, wrapper=(), **options):
    parts = "experts" in job or "tensor" in job
    return Run(
        folder,
        ["'" + json.dumps(job) + "'"],
        world,
        wrapper,
        distributed=True,
        script=str(PARTS if parts else TRAINER if "stage" in job else PIPELINE),
        python=str(PYTHON),
        forks=True,
        **options,
    )


def wholes(run):
    """The digest of each part of the whole state, by the step before which it was told: what the
    first and the last rank have told, which are of different stages of a pipeline."""
    found = {}
    for rank in (0, run.world - 1):
        for step, part, digest in re.findall(r"^whole (\d+) (\S+) (\S+)$", run.text(rank), re.M):
            found.setdefault(int(step), {})[rank > 0, part] = digest
    return found


def ended(run):
    assert run.wait() == 0, run.errors()
    assert "NOT protected" not in run.errors() and "no snapshots are" not in run.errors()
    return run


def universal(folder, saved, step):
    """DeepSpeed's own universal checkpoint of what it has saved."""
    target = folder / "universal"
    done = subprocess.run(
        [
            str(PYTHON),
            "-m",
            "deepspeed.checkpoint.ds_to_universal",
            f"--input_folder={saved}/global_step{step}",
            f"--output_folder={target}/global_step{step}_universal",
            "--num_extract_workers=1",
            "--num_merge_workers=1",
            "--inject_missing_state",
        ],
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (target / "latest_universal").write_text(f"global_step{step}_universal")
    return str(target)


def without_buffers(whole):
    """As DeepSpeed loads none from its universal form."""
    return {part: digest for part, digest in whole.items() if "buffers" not in part}


@pytest.mark.parametrize("kind", JOBS)
def test_other_number_of_ranks(cluster, tmp_path, kind):  # noqa: F811
    """Four ranks, two, and four again."""
    job, runs, saved = JOBS[kind], tmp_path / "runs", tmp_path / "saved"
    runs.mkdir()
    first = start(
        runs, {**job, "steps": 20, "tell": 5, "save": str(saved)}, 4, under(cluster), hold_at=8
    )
    first.kill_at(7, cluster, 4)
    second = start(runs, {**job, "steps": 20, "tell": 5}, 2, under(cluster, "--resume"), hold_at=12)
    second.kill_at(11, cluster, 7)
    found = wholes(second)
    begun = min(found)
    # a skipped step updates nothing, and no new generation
    assert f"the state after update {begun - ('inf' in job)}" in second.errors(), second.errors()
    assert found[begun] == wholes(first)[begun], second.errors()
    own = start(runs, {**job, "steps": 12, "tell": 5, "load": universal(tmp_path, saved, begun)}, 2)
    assert own.wait() == 0, own.errors()
    for step in range(begun, 12):
        assert without_buffers(found[step]) == without_buffers(wholes(own)[step]), step
    assert second.steps() == own.steps(), second.errors()
    third = start(runs, {**job, "steps": 0, "tell": 5}, 4, under(cluster, "--resume"))
    ended(third)
    ((step, whole),) = wholes(third).items()
    assert step >= 8 and whole == found[step], third.errors()


@pytest.mark.parametrize(
    "stage, options",
    [
        (2, {"offload_optimizer": OFFLOADED}),
        (3, {"offload_optimizer": OFFLOADED, **SUB_GROUPS, "offload_param": {"device": "cpu"}}),
        (3, {"offload_optimizer": {**OFFLOADED, "ratio": 0.5}, "sub_group_size": 170}),
    ],
)
def test_offloaded(cluster, tmp_path, stage, options):  # noqa: F811
    """In the CPU's memory, by DeepSpeed's own optimizer for it. Where a part stays on the device,
    that is another part in another number of ranks. DeepSpeed's own checkpoint loses its moments,
    so the job is compared with itself."""
    job = {"stage": stage, "dtype": "bf16", "own_adam": True, "options": options, "tell": 4}
    first = start(tmp_path, {**job, "steps": 20}, 2, under(cluster), hold_at=7)
    first.kill_at(6, cluster, 3)
    again = ended(start(tmp_path, {**job, "steps": 7}, 3, under(cluster, "--resume")))
    found = wholes(again)
    assert found[min(found)] == wholes(first)[min(found)], again.errors()
    assert min(found) >= 4 and max(found) == 7
    if "ratio" not in options["offload_optimizer"]:
        return
    parts = {run.world: set(re.findall("^aside .*$", run.text(), re.M)) for run in (first, again)}
    some = "aside embed.weight up.weight"
    assert parts == {2: {some}, 3: {some + " conv.weight"}}
    # three ranks have the steps that they would have made
    third = ended(start(tmp_path, {**job, "steps": 9}, 2, under(cluster, "--resume")))
    found = wholes(third)
    assert found[min(found)] == wholes(again)[7], third.errors()


def held(run):
    """By step, the digest of each tensor that any rank has told; all that have it, the same."""
    found = {}
    for rank in range(run.world):
        for step, name, digest in re.findall(r"^holds (\d+) (\S+) (\S+)$", run.text(rank), re.M):
            assert found.setdefault(int(step), {}).setdefault(name, digest) == digest, name
    return found


PARTS_OF_RANKS = {
    "experts-zero2": ({"stage": 2, "dtype": "bf16", "experts": 2}, {"experts": 2}, {"experts": 4}),
    "experts-zero1": ({"stage": 1, "dtype": "fp32", "experts": 4}, {"experts": 1}),
    "tensor": ({"stage": 1, "tensor": 2}, {"tensor": 2}, {"tensor": 1}),
}


@pytest.mark.parametrize("kind", PARTS_OF_RANKS)
def test_parts_of_ranks(cluster, tmp_path, kind):  # noqa: F811
    """Experts spread over other ranks, and layers cut into other parts, on two ranks and on four.
    Everything has the bits that it had; in the same shape the job goes on with the same losses."""
    job, *others = PARTS_OF_RANKS[kind]
    first = start(tmp_path, {**job, "steps": 20, "tell": 3}, 4, under(cluster), hold_at=7)
    first.kill_at(6, cluster, 3)
    told = held(first)
    for other, world in zip(others, (2, 4)):
        again = {**job, **other, "steps": 0, "tell": 0}
        run = ended(start(tmp_path, again, world, under(cluster, "--resume")))
        ((step, tensors),) = held(run).items()
        assert step >= 3 and tensors == told[step], run.errors()
        assert len(tensors) > 20
    if kind == "experts-zero1":
        return
    run = ended(start(tmp_path, {**job, "steps": 7}, 4, under(cluster, "--resume")))
    losses = first.steps()
    assert run.steps() == {at: losses[at] for at in range(step, 7)} != {}, run.errors()


ONE = {"stage": 1}
THREE = {"stage": 3, "own_adam": True, "options": {"offload_optimizer": OFFLOADED}}


@pytest.mark.parametrize("before, after", [(ONE, THREE), (THREE, ONE)])
def test_other_stage(cluster, tmp_path, before, after):  # noqa: F811
    """What ZeRO 1 held comes back in ZeRO 3, offloaded to the CPU, and back. There DeepSpeed's own
    optimizer counts its steps in a number, and torch's in a tensor."""
    job = {"dtype": "bf16", "tell": 4, "running": False}
    first = start(tmp_path, {**job, **before, "steps": 20}, 2, under(cluster), hold_at=8)
    first.kill_at(7, cluster, 3)
    again = ended(start(tmp_path, {**job, **after, "steps": 8}, 3, under(cluster, "--resume")))
    found, told = wholes(again), wholes(first)
    assert found[min(found)] == told[min(found)], again.errors()
    # of an update that both have made, in other numbers of ranks
    for part in ("lr", "optimizer_step"):
        assert found[7][False, part] == told[7][False, part], part


def test_exported(cluster, tmp_path):  # noqa: F811
    """What `cairn restore --to` writes has the names that `cairn convert` gives a checkpoint of
    DeepSpeed, and its bits."""
    job, runs, saved = {"stage": 1, "dtype": "bf16", "tell": 5}, tmp_path / "runs", tmp_path / "s"
    runs.mkdir()
    ended(start(runs, {**job, "steps": 6, "save": str(saved)}, 2, under(cluster)))
    harness.wait_for("the end is committed", lambda: newest(cluster) == 6)
    cluster.restore(0, "--to", str(tmp_path / "out"))
    _, report, _ = harness.run("diff", tmp_path / "out", saved / "global_step6", "--bits")
    differ = re.findall(r"^(\S+): (.*)$", report, re.M)
    others = re.compile(r"cairn\.rank|rank1/|deepspeed/|head\.weight$")  # no tensors, own, tied
    assert all(others.match(name) and "only in" in what for name, what in differ), report
    assert int(re.search(r"(\d+) tensors were compared", report).group(1)) >= 45, report


def test_unchanged_script(cluster, tmp_path):  # noqa: F811
    """One that knows nothing of Cairn comes back in its first forward, with the engine's counters:
    the step under way becomes the one that was, and reads the samples that it read."""
    job = {"stage": 1, "dtype": "bf16", "attach": False, "tell": 4, "samples": 12}
    first = start(tmp_path, {**job, "steps": 20}, 2, under(cluster), hold_at=8)
    first.kill_at(7, cluster, 5)
    again = start(tmp_path, {**job, "steps": 8}, 2, under(cluster, "--resume"), start="cold")
    ended(again)
    begun = min(wholes(again))
    assert f"the state after update {begun - 1}" in again.errors(), again.errors()
    assert sorted(again.steps()) == [0, *range(begun, 8)]
    assert re.findall(r"^micro (\d+)$", again.text(), re.M) == ["8"]
    for rank in range(2):
        told = r"^sample (\d+) (\d+)$"
        before, after = (dict(re.findall(told, run.text(rank), re.M)) for run in (first, again))
        after = {(begun - 1 if step == "0" else int(step)): each for step, each in after.items()}
        assert after == {step: before[str(step)] for step in range(begun - 1, 8)}, again.errors()


def test_what_is_refused(cluster, tmp_path):  # noqa: F811
    """One line at the start, and training is what it is without Cairn."""
    job = {"stage": 0, "dtype": "fp16", "steps": 4, "tell": 9, "config": {"fp16": SCALER}}
    whole = start(tmp_path, job, 2, ("env",))
    assert whole.wait() == 0, whole.errors()
    run = start(tmp_path, job, 2, under(cluster))
    assert run.wait() == 0, run.errors()
    assert run.steps() == whole.steps() and sorted(run.steps()) == [0, 1, 2, 3]
    lines = [line for line in run.errors().splitlines() if "no snapshots are taken" in line]
    assert len(lines) == 2, lines  # one of each rank
    assert all("FP16_UnfusedOptimizer is not covered" in line for line in lines), lines
    assert newest(cluster) == 0


REFUSED = """
import importlib.util
import types
import deepspeed_live_trainer as trainer
import torch
from deepspeed.runtime.superoffload.superoffload_stage3 import SuperOffloadOptimizer_Stage3 as Super
from deepspeed.runtime.swap_tensor import partitioned_optimizer_swapper as swapper
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3 as Three
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer as One
from cairn import _zero

class Disk:
    "What DeepSpeed compiles; so small a state it keeps in memory."
    def __init__(self, **_):
        self.new_cpu_locked_tensor = lambda count, like: torch.empty(count, dtype=like.dtype)
        self.is_pinned = self.free_cpu_locked_tensor = lambda tensor: True

def engine(stage, **options):
    adam = {"optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}
    options.setdefault("offload_optimizer", {"device": "cpu"})
    job = {"mode": "save", "stage": stage, "dtype": "bf16", "options": options, "config": adam}
    trainer.use_own_adam(job)
    return trainer.deepspeed_trainer.engine_of(job).optimizer

def made(kind, **values):
    zero = object.__new__(kind)
    zero.__dict__.update(values)
    return zero

disk = types.SimpleNamespace(load=lambda: types.SimpleNamespace(aio_handle=Disk))
swapper.AsyncIOBuilder = lambda: disk
trainer.deepspeed_trainer.deepspeed.init_distributed("gloo")
flow = {"topk_ratio": 0.1, "select_strategy": "step", "select_interval": 4, "update_interval": 4}
ranks = types.SimpleNamespace(get_tensor_model_parallel_world_size=lambda: 2)
expert = torch.nn.Parameter(torch.ones(2))
expert.ds_zero_placement_family = "autoep_expert"
layer = importlib.util.find_spec("deepspeed.module_inject.auto_ep_layer").origin
assert 'param.ds_zero_placement_family = "autoep_expert"' in open(layer).read()
for zero in (
    engine(3, offload_optimizer={"device": "nvme", "nvme_path": "FOLDER"}),
    made(Three, params_in_nvme_and_cpu=True),
    engine(2, zenflow=flow),
    engine(3, zenflow=flow),
    made(Super),
    made(Three, fp16_groups=[[expert]]),
    made(Three, mpu=ranks, fp16_groups=[]),
    made(One, mpu=ranks, bit16_groups=[]),
):
    print("why", _zero._refusal(zero))
"""


def test_what_cannot_run_here_is_refused(tmp_path):
    """Engines of DeepSpeed where the CPU can make them. SuperOffload needs a GPU, other tensor
    parallelism than AutoTP a framework around DeepSpeed, AutoEP (0.19.8) older transformers."""
    folders = [str(ROOT / "bindings" / "python"), str(ROOT / "tests" / "interop")]
    done = subprocess.run(
        [str(PYTHON), "-c", REFUSED.replace("FOLDER", str(tmp_path))],
        env={
            **os.environ,
            "PYTHONPATH": ":".join(folders),
            **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(harness.free_ports(1)[0])},
        },
        text=True,
        capture_output=True,
        timeout=120,
    )
    whys = re.findall("^why (.*)$", done.stdout, re.M)
    wanted = ["NVMe", "NVMe", "ZenFlowZeroOptimizer", "with ZenFlow", "SuperOffload", "AutoEP"]
    wanted += ["tensor parallelism"] * 2
    assert len(whys) == len(wanted), done.stdout + done.stderr
    for want, why in zip(wanted, whys):
        assert want in why and "is not covered" in why, why
