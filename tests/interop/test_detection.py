"""A real PyTorch job over gloo, four ranks: one that is held up again and again, or that is stopped, is named in `cairn status`,
and no more when it is well."""
import contextlib
import os
import re
import signal
import threading
import time

import pytest
from test_torch import ROOT, Run, built, harness, under  # noqa: F401: fixtures

SCRIPT = str(ROOT / "tests" / "interop" / "detection_trainer.py")
WORLD, SLOW, STOPPED = 4, 2, 1
HELD_S, FREE_S = 0.06, 0.02  # by turns, of a rank that is slow: a step of it takes about three times as long
STEPS_MAX = 10
RATE_MIN = 1.4


@pytest.fixture
def job(tmp_path):
    with harness.Cluster(nodes=1, parity=0, state="4MiB", options="snapshot_every_steps: 100") as cluster:
        cluster.start()
        run = Run(tmp_path, [], WORLD, wrapper=under(cluster), script=SCRIPT, env={"CAIRN_TIMING": "1"})
        try:
            harness.wait_for("the ranks' normal is known",
                             lambda: seen(cluster).get("calibrated") or run.process.poll() is not None, 120)
            assert run.process.poll() is None, run.errors()
            yield cluster, run
        finally:
            run.kill()


def seen(cluster):
    _, answer, _ = harness.cairn("status", "--agent", cluster.socket(0))
    return (answer or {}).get("detection", {})


def is_open(cluster):
    """Open verdicts on ranks that hang or are slow by what the tests do to them. A machine with much to do makes ranks and
    transfers slower at random, which is said as well."""
    return [each for each in seen(cluster).get("verdicts", []) if each["open"] and
            (each["kind"] in ("hang_compute", "hang_link", "crash") or each["kind"] == "slow_compute" and each["rate"] >= RATE_MIN)]


def pid_of(run, rank):
    return int(re.search(r"^pid (\d+)$", run.text(rank), re.M).group(1))


def last_step(run):
    return max(map(int, re.findall(r"^step (\d+)$", run.text(0), re.M)))


@contextlib.contextmanager
def held_up(pid):
    """Stops a process for a moment, again and again. Competing load would do as much, but on a machine that has other things to
    do nobody knows how much, and of whom."""
    ended = threading.Event()

    def hold():
        while not ended.wait(FREE_S):
            os.kill(pid, signal.SIGSTOP)
            ended.wait(HELD_S)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_slow(job):
    cluster, run = job
    assert seen(cluster)["ranks_seen"] == WORLD
    assert not is_open(cluster), seen(cluster)
    begun = last_step(run)
    with held_up(pid_of(run, SLOW)):
        verdict = harness.wait_for("a verdict", lambda: is_open(cluster), 30)[0]
    print(f"\n    held up from step {begun}: {verdict['what']}, known at step {verdict['detected_step']}")
    assert (verdict["kind"], verdict["ranks"]) == ("slow_compute", [SLOW]), verdict
    assert verdict["detected_step"] - begun <= STEPS_MAX + 2  # rank 0 says its steps a little late
    harness.wait_for("no verdict is open", lambda: not is_open(cluster), 30)


def test_stop(job):
    cluster, run = job
    stopped = pid_of(run, STOPPED)
    began = time.monotonic()
    os.kill(stopped, signal.SIGSTOP)
    try:
        verdict = harness.wait_for("a verdict", lambda: is_open(cluster), 20)[0]
        took_s = time.monotonic() - began
    finally:
        os.kill(stopped, signal.SIGCONT)
    print(f"\n    stopped: {verdict['what']} after {took_s:.1f} s; {verdict['evidence']}")
    assert (verdict["kind"], verdict["ranks"]) == ("hang_compute", [STOPPED]), verdict
    assert took_s < 10
    harness.wait_for("no verdict is open", lambda: not is_open(cluster), 30)
    begun = last_step(run)
    harness.wait_for("training goes on", lambda: last_step(run) > begun + 5)
