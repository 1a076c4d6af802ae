"""The oldest PyTorch that the binding promises to work with: killed, resumed, and compared bit for
bit with the run that was not.

The version that all other files run with is the newest that is installed. This one starts the same
trainer with the Python of build/venv-oldest, which tests/runner.py makes, or of
CAIRN_OLDEST_PYTHON.
"""

import os
import subprocess

import pytest

from test_torch import CLEAN, ROOT, Run, built, cluster, finished, newest, under  # noqa: E402, F401

OLDEST = "2.6"
STEPS = 14
PYTHON = os.environ.get(
    "CAIRN_OLDEST_PYTHON", str(ROOT / "build" / "venv-oldest" / "bin" / "python")
)


@pytest.fixture(scope="module", autouse=True)
def version():
    if not os.path.exists(PYTHON):
        pytest.skip(
            f"no PyTorch {OLDEST} for the CPU in build/venv-oldest (tests/runner.py interop says "
            "why)"
        )
    asked = subprocess.run(
        [PYTHON, "-c", "import torch; print(torch.__version__)"],
        stdout=subprocess.PIPE,
        text=True,
        env=CLEAN,
    )
    assert asked.stdout.startswith(OLDEST + "."), f"{PYTHON} has PyTorch {asked.stdout}"


# FSDP2 of 2.6 does not run on the CPU by itself
@pytest.mark.parametrize("kind, world", [("mlp", 1), ("ddp", 2)])
def test_killed_and_resumed(cluster, tmp_path, kind, world):  # noqa: F811
    whole = Run(tmp_path, [kind, STEPS], world, python=PYTHON, start="cold")
    run = Run(
        tmp_path,
        [kind, STEPS],
        world,
        under(cluster),
        python=PYTHON,
        start="cold",
        hold_at=STEPS - 2,
    )
    run.kill_at(6, cluster)
    committed = newest(cluster)
    states, losses = finished(whole), [whole.steps(rank) for rank in range(world)]
    assert (
        "NOT protected" not in run.errors() and "no snapshots are taken" not in run.errors()
    ), run.errors()
    last = Run(
        tmp_path, [kind, STEPS], world, under(cluster, "--resume"), python=PYTHON, start="cold"
    )
    assert finished(last) == states, last.errors()
    first = min(last.steps())
    assert committed <= first <= max(run.steps()) + 1, last.errors()
    for rank in range(world):
        assert last.steps(rank) == {
            step: loss for step, loss in losses[rank].items() if step >= first
        }
