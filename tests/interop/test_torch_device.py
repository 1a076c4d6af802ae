"""Tensors on CUDA devices through the whole product, with the fake driver: see device_trainer.py.

Killed and resumed, a job is bit for bit the one that was not killed. That takes a capture that
waits for the kernels of each device's side stream, updates that wait for the capture, and a restore
that waits for the kernels that initialise its targets.
"""

import re

import pytest

# noqa: E402, F401
from test_torch import ROOT, Run, built, cluster, finished, harness, newest, under

TRAINER = str(ROOT / "tests" / "interop" / "device_trainer.py")
STEPS = 16


@pytest.fixture(scope="module", autouse=True)
def built():
    if not (ROOT / "build" / "plain" / "libfakecuda.so").exists():
        pytest.skip("build/plain/libfakecuda.so is not built")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(state, losses) of the job that nothing protects and nobody kills."""
    run = Run(tmp_path_factory.mktemp("whole"), [STEPS, "--plain"], script=TRAINER)
    return finished(run), run.steps()


def test_killed_and_resumed(cluster, whole, tmp_path):  # noqa: F811
    run = Run(tmp_path, [STEPS], 1, under(cluster), script=TRAINER, hold_at=STEPS - 2)
    run.kill_at(7, cluster)
    committed = newest(cluster)
    state, losses = whole
    assert run.steps() == {step: losses[step] for step in run.steps()}, run.errors()
    assert (
        "NOT protected" not in run.errors() and "no snapshots are taken" not in run.errors()
    ), run.errors()
    last = Run(tmp_path, [STEPS], 1, under(cluster, "--resume"), script=TRAINER)
    assert finished(last) == state, last.errors()
    assert committed <= min(last.steps()) <= max(run.steps()) + 1, last.errors()
    assert last.steps() == {
        step: loss for step, loss in losses.items() if step >= min(last.steps())
    }
    misuses, pageable, copies = map(
        int, re.search(r"^misuses (\d+) pageable (\d+) async (\d+)", last.text(), re.M).groups()
    )
    assert misuses == 0 and copies > 100, last.text()
    harness.wait_for("the end is committed", lambda: newest(cluster) == STEPS, 10)


def test_the_stream_is_what_orders(cluster, whole, tmp_path):  # noqa: F811
    """That the test above can fail: told of the default streams, the library captures what was
    there before the update."""
    run = Run(
        tmp_path, [STEPS, "--wrong-stream"], 1, under(cluster), script=TRAINER, hold_at=STEPS - 2
    )
    run.kill_at(7, cluster)
    last = Run(tmp_path, [STEPS], 1, under(cluster, "--resume"), script=TRAINER)
    assert finished(last) != whole[0]
    assert "resumed: the state after update" in last.errors()


def test_step_recorded_into_a_graph(cluster, whole, tmp_path):  # noqa: F811
    """Status reports an optimizer step captured into a CUDA graph; training is unchanged."""
    run = Run(tmp_path, [STEPS, "--record", 6], 1, under(cluster), script=TRAINER)
    assert finished(run) == whole[0], run.errors()
    assert run.errors().count("recorded into a CUDA graph") == 1, run.errors()
    assert newest(cluster) <= 6
