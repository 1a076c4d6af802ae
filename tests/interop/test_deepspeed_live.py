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
from test_torch import ROOT, Run, built, cluster, newest, under  # noqa: F401: fixtures

PYTHON = ROOT / "build" / "venv-deepspeed" / "bin" / "python"
TRAINER = ROOT / "tests" / "interop" / "deepspeed_live_trainer.py"
ONE_GROUP = {"groups": 1}  # DeepSpeed gives all groups of ZeRO 3 the hyperparameters of the first
SCALER = {"enabled": True, "initial_scale_power": 20, "loss_scale_window": 2, "hysteresis": 1}
JOBS = {
    "zero1": {"stage": 1, "dtype": "bf16"},
    "zero2": {
        "stage": 2,
        "dtype": "fp16",
        "micro": 2,
        "inf": 4,
        "config": {"gradient_accumulation_steps": 2, "fp16": SCALER},
    },
    "zero3": {"stage": 3, "dtype": "bf16", **ONE_GROUP},
}

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="DeepSpeed is not installed in build/venv-deepspeed"
)


def start(folder, job, world, wrapper=(), hold_at=None, trainer=TRAINER):
    return Run(
        folder,
        ["'" + json.dumps(job) + "'"],
        world,
        wrapper,
        distributed=True,
        script=str(trainer),
        python=str(PYTHON),
        start="forked",
        hold_at=hold_at,
    )


def wholes(run):
    """The digest of each part of the whole state, by the step before which it was told."""
    found = {}
    for step, part, digest in re.findall(r"^whole (\d+) (\S+) (\S+)$", run.text(), re.M):
        found.setdefault(int(step), {})[part] = digest
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


def without(whole, *parts):
    return {part: digest for part, digest in whole.items() if part not in parts}


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
    # a skipped step is no update, and no new generation
    assert f"the state after update {begun - ('inf' in job)}" in second.errors(), second.errors()
    assert found[begun] == wholes(first)[begun], second.errors()
    own = start(runs, {**job, "steps": 12, "tell": 5, "load": universal(tmp_path, saved, begun)}, 2)
    assert own.wait() == 0, own.errors()
    # DeepSpeed does not load buffers from its universal form
    for step in range(begun, 12):
        assert without(found[step], "buffers") == without(wholes(own)[step], "buffers"), step
    assert second.steps() == own.steps(), second.errors()
    third = start(runs, {**job, "steps": 0, "tell": 5}, 4, under(cluster, "--resume"))
    ended(third)
    ((step, whole),) = wholes(third).items()
    assert step >= 8 and whole == found[step], third.errors()
