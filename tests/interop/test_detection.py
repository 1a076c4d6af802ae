"""A real PyTorch job over gloo, four ranks: one that competing load slows down, or that is stopped, is named in `cairn status`,
and no more when it is well."""
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from test_torch import ROOT, Run, built, harness, under  # noqa: F401: fixtures

SCRIPT = str(ROOT / "tests" / "interop" / "detection_trainer.py")
WORLD, SLOW, STOPPED = 4, 2, 1
HOGS = 4  # processes that compete with the slow rank for its processor
STEPS_MAX = 10


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
    """Open verdicts on ranks. A machine with much to do pauses ranks and transfers at random, which may be said as well."""
    kinds = ("slow_compute", "slow_node", "hang_compute", "hang_link", "crash")
    return [each for each in seen(cluster).get("verdicts", []) if each["open"] and each["kind"] in kinds]


def pid_of(run, rank):
    return int(re.search(r"^pid (\d+)$", run.text(rank), re.M).group(1))


def last_step(run):
    return max(map(int, re.findall(r"^step (\d+)$", run.text(0), re.M)))


def compete(processor):
    """Processes that want all of one processor."""
    code = f"import os\nos.sched_setaffinity(0, {{{processor}}})\nwhile True: pass"
    return [subprocess.Popen([sys.executable, "-c", code], preexec_fn=harness.die_with_parent) for _ in range(HOGS)]


def pin(pid, processors):
    for task in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(task), processors)


def test_load(job):
    cluster, run = job
    processors = os.sched_getaffinity(0)
    if len(processors) < 2:
        pytest.skip("the other ranks need a processor of their own")
    assert seen(cluster)["ranks_seen"] == WORLD
    assert not is_open(cluster), seen(cluster)
    slow = pid_of(run, SLOW)
    begun = last_step(run)
    pin(slow, {min(processors)})
    hogs = compete(min(processors))
    try:
        verdict = harness.wait_for("a verdict", lambda: is_open(cluster), 30)[0]
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
        pin(slow, processors)
    print(f"\n    load from step {begun}: {verdict['what']}, known at step {verdict['detected_step']}")
    assert (verdict["kind"], verdict["ranks"]) == ("slow_compute", [SLOW]), verdict
    assert verdict["detected_step"] - begun <= STEPS_MAX + 2  # the load has to begin first
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
