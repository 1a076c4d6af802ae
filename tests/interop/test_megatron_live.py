"""Megatron-Core under `cairn run`: killed, and resumed in another parallelism, where every rank has
bit for bit what Megatron-Core's own dist_checkpointing gives it for the same change, and goes on
with the same losses.

Needs build/venv-megatron, a virtual environment with megatron-core that shares this one's PyTorch.
"""

import re

import pytest
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


def trained(folder, cluster, job, begin, end):  # noqa: F811
    """Goes on from update `begin`, and is killed when the newest snapshot is that after update
    `end`, of which there is a checkpoint of Megatron-Core's, too."""
    saved = folder / "saved"
    saved.mkdir(exist_ok=True)
    run = Run(
        folder,
        [job, STEPS, saved],
        world_of(job),
        under(cluster, *(["--resume"] if begin else [])),
        distributed=True,
        script=SCRIPT,
        python=str(PYTHON),
        start="forked",
        hold_at=end + 1,
        env={"TRAINER_SAVE_AT": str(end)},
    )

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


@pytest.mark.parametrize(
    "jobs",
    [
        ["tp=2", "tp=1"],
        ["tp=2,pp=2,dist=1", "tp=1,pp=2,dist=1", "tp=2,dist=1", "dp=4,dist=1", "tp=2,pp=2,dist=1"],
    ],
    ids=["plain", "distributed"],
)
def test_another_parallelism(cluster, tmp_path, jobs):  # noqa: F811
    begin = 0
    for job in jobs:
        trained(tmp_path, cluster, job, begin, begin + 2)
        begin += 2
