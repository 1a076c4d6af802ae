"""A real PyTorch job over gloo, four ranks: one that computes for longer, or that is stopped, is
named in `cairn status`, and no more when it is well."""
import json
import os
import re
import signal
import time

import pytest
from test_torch import ROOT, Run, built, harness, under  # noqa: F401: fixtures

SCRIPT = str(ROOT / "tests" / "interop" / "detection_trainer.py")
WORLD, SLOW, STOPPED = 4, 2, 1
RATE_MIN = 2.0


@pytest.fixture
def job(tmp_path):
    with harness.Cluster(
        nodes=1, parity=0, state="4MiB", options="snapshot_every_steps: 100"
    ) as cluster:
        cluster.start()
        run = Run(
            tmp_path, [], WORLD, wrapper=under(cluster), script=SCRIPT, env={"CAIRN_TIMING": "1"}
        )
        try:
            harness.wait_for(
                "the ranks' normal is known",
                lambda: seen(cluster).get("calibrated") or run.process.poll() is not None,
            )
            assert run.process.poll() is None, run.errors()
            yield cluster, run
        finally:
            run.kill()


def seen(cluster):
    _, answer, _ = harness.cairn("status", "--agent", cluster.socket(0))
    return (answer or {}).get("detection", {})


def is_open(cluster):
    """Open verdicts on ranks that hang or are slow by what the tests do to them. A machine with
    much to do makes ranks and transfers slower at random, which is reported as well."""
    return [
        each
        for each in seen(cluster).get("verdicts", [])
        if each["open"]
        and (
            each["kind"] in ("hang_compute", "hang_link", "crash")
            or each["kind"] == "slow_compute"
            and each["rate"] >= RATE_MIN
        )
    ]


def pid_of(run, rank):
    return int(re.search(r"^pid (\d+)$", run.text(rank), re.M).group(1))


def last_step(run):
    return max(map(int, re.findall(r"^step (\d+) \d+$", run.text(0), re.M)))


def paces(run, rank):
    """The steps from which on the rank was slow, as before, slow, …"""
    return list(map(int, re.findall(r"^pace (\d+)$", run.text(rank), re.M)))


def change_pace(run, rank):
    """Makes a rank slow, or as fast as before; the first step of that."""
    known = len(paces(run, rank))
    os.kill(pid_of(run, rank), signal.SIGUSR2)
    harness.wait_for(f"another pace of rank {rank}", lambda: len(paces(run, rank)) > known)
    return paces(run, rank)[-1]


def look(cluster, run):
    """Show the detector's view beside the true one, to find out why a test failed."""
    computed = [
        " ".join(re.findall(r"^step \d+ (\d+)$", run.text(rank), re.M)[-60:])
        for rank in range(WORLD)
    ]
    return "\n".join(
        [
            json.dumps(seen(cluster), indent=1),
            *[line for line in cluster.log(0).splitlines() if "detect: " in line][-40:],
            *[
                f"rank {rank} computed in its last steps, in ms: {each}"
                for rank, each in enumerate(computed)
            ],
        ]
    )


def shown_wait(cluster, run, what, condition):
    """harness.wait_for, with what was seen where that was in vain."""
    try:
        return harness.wait_for(what, condition)
    except AssertionError as error:
        raise AssertionError(f"{error}; seen:\n{look(cluster, run)}") from None


def test_slow(job):
    cluster, run = job
    assert seen(cluster)["ranks_seen"] == WORLD
    shown_wait(cluster, run, "no verdict is open", lambda: not is_open(cluster))
    begun = change_pace(run, SLOW)
    verdict = shown_wait(cluster, run, "a verdict", lambda: is_open(cluster))[0]
    print(
        f"\n    slow from step {begun} on: {verdict['what']}, known at step "
        f"{verdict['detected_step']}"
    )
    assert (verdict["kind"], verdict["ranks"]) == ("slow_compute", [SLOW]), look(cluster, run)
    assert verdict["detected_step"] >= begun, look(cluster, run)
    change_pace(run, SLOW)
    shown_wait(cluster, run, "no verdict is open any more", lambda: not is_open(cluster))


def test_stop(job):
    cluster, run = job
    stopped = pid_of(run, STOPPED)
    began = time.monotonic()
    os.kill(stopped, signal.SIGSTOP)
    try:
        verdict = harness.wait_for("a verdict", lambda: is_open(cluster))[0]
        took_s = time.monotonic() - began
    finally:
        os.kill(stopped, signal.SIGCONT)
    print(f"\n    stopped: {verdict['what']} after {took_s:.1f} s; {verdict['evidence']}")
    assert (verdict["kind"], verdict["ranks"]) == ("hang_compute", [STOPPED]), look(cluster, run)
    harness.wait_for("no verdict is open", lambda: not is_open(cluster))
    begun = last_step(run)
    harness.wait_for("training goes on", lambda: last_step(run) > begun + 5)


def test_stacks(job):
    """All ranks' Python stacks, also of one that hangs in C and holds the interpreter's lock."""
    cluster, run = job
    assert seen(cluster)["stacks"] == []
    os.kill(pid_of(run, STOPPED), signal.SIGHUP)
    stacks = shown_wait(
        cluster, run, "the stacks of a job that hangs", lambda: seen(cluster)["stacks"]
    )
    assert stacks[0]["ranks"] == [STOPPED], stacks
    assert "in stuck_in_c" in stacks[0]["lines"][1], stacks
    assert sorted(rank for each in stacks for rank in each["ranks"]) == list(range(WORLD))
    assert all("in main" in "\n".join(each["lines"]) for each in stacks), stacks
    assert sum(each["rank_count"] for each in stacks) == WORLD
    _, shown, _ = harness.run("status", "--agent", cluster.socket(0))
    pattern = rf"^stacks +rank {STOPPED}: stuck_in_c \(\S+:\d+\) < main "
    assert re.search(pattern, shown, re.M), shown
    number = is_open(cluster)[0]["verdict"]
    _, answer, _ = harness.cairn("explain", str(number), "--agent", cluster.socket(0))
    assert f"Python stack of rank {STOPPED}: stuck_in_c " in "\n".join(answer["story"])
    assert run.process.poll() is None, run.errors()
