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
OFFLOADED = {"offload_optimizer": {"device": "cpu"}}
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
    [(2, OFFLOADED), (3, {**OFFLOADED, **SUB_GROUPS, "offload_param": {"device": "cpu"}})],
)
def test_offloaded(cluster, tmp_path, stage, options):  # noqa: F811
    """In the CPU's memory, and with an optimizer that counts its steps in a number."""
    job = {
        "stage": stage,
        "dtype": "bf16",
        "counting": True,
        "options": options,
        "config": {"zero_force_ds_cpu_optimizer": False},
        "tell": 4,
    }
    first = start(tmp_path, {**job, "steps": 20}, 2, under(cluster), hold_at=7)
    first.kill_at(6, cluster, 3)
    again = ended(start(tmp_path, {**job, "steps": 7}, 3, under(cluster, "--resume")))
    found = wholes(again)
    assert found[min(found)] == wholes(first)[min(found)], again.errors()
    assert min(found) >= 4 and max(found) == 7


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


def test_other_stage(cluster, tmp_path):  # noqa: F811
    """What ZeRO 1 held comes back in ZeRO 3."""
    job = {"dtype": "bf16", "tell": 4, "running": False}
    first = start(tmp_path, {**job, "stage": 1, "steps": 20}, 2, under(cluster), hold_at=7)
    first.kill_at(6, cluster, 3)
    again = start(tmp_path, {**job, "stage": 3, "steps": 0}, 3, under(cluster, "--resume"))
    ended(again)
    assert len(wholes(again)) == 1, again.errors()
    ((step, whole),) = wholes(again).items()
    assert whole == wholes(first)[step], again.errors()


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


def test_what_cannot_run_here_is_refused():
    """State on NVMe needs libaio, state offloaded in part DeepSpeed's compiled Adam; other tensor
    parallelism than AutoTP a framework around DeepSpeed."""
    code = """
import types
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3 as Three
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer as One
from cairn import _zero
def made(kind, **values):
    zero = object.__new__(kind)
    zero.__dict__.update(values)
    return zero
ranks = types.SimpleNamespace(get_tensor_model_parallel_world_size=lambda: 2)
for zero in (
    made(Three, swap_optimizer=True),
    made(Three, params_in_nvme_and_cpu=True),
    made(Three, offload_optimizer=True, partial_offload=0.5),
    made(Three, mpu=ranks, fp16_groups=[]),
    made(One, mpu=ranks, bit16_groups=[]),
):
    print("why", _zero._refusal(zero))
"""
    done = subprocess.run(
        [str(PYTHON), "-c", code],
        env={
            **os.environ,
            "DS_ACCELERATOR": "cpu",
            "PYTHONPATH": str(ROOT / "bindings" / "python"),
        },
        text=True,
        capture_output=True,
        timeout=120,
    )
    whys = re.findall("^why (.*)$", done.stdout, re.M)
    wanted = ("NVMe", "NVMe", "`ratio`", "tensor parallelism", "tensor parallelism")
    assert [want in why for want, why in zip(wanted, whys)] == [True] * 5, done.stdout + done.stderr
