"""How a trainer ends is what its agent takes it for: in good order with an exit status of 0 alone,
also in a child of multiprocessing, where the last snapshot is another one's, too. Its last step is
committed, or it says that it is not."""
import os
import re
import signal

import pytest
from test_torch import ROOT, Run, built, cluster, harness, newest, under  # noqa: F401: fixtures

SCRIPT = str(ROOT / "tests" / "interop" / "ending_trainer.py")


def ended(cluster, tmp_path, where, how):  # noqa: F811
    """(exit status is 0, the agent was told that the rank leaves, the run)"""
    run = Run(tmp_path, [where, how], 1, under(cluster), script=SCRIPT, start="cold")
    status = run.wait()

    def left():
        return re.findall(r"trainer left rank=0 pid=\d+ in_good_order=(\d)", cluster.log(0))

    harness.wait_for("the end of the session", left)
    assert len(left()) == 1, cluster.log(0)
    return status == 0, left() == ["1"], run


@pytest.mark.parametrize(
    "where, how, good",
    [
        ("main", "0", True),
        ("main", "1", False),
        ("main", "words", False),
        ("spawn", "return", True),
        ("spawn", "raise", False),
        ("fork", "return", True),
        ("fork", "1", False),
    ],
)
def test_the_agent_knows(cluster, tmp_path, where, how, good):  # noqa: F811
    succeeded, said, run = ended(cluster, tmp_path, where, how)
    assert succeeded == said == good, run.errors()
    if not good and where != "main":  # there nobody knows yet when the last snapshot is taken
        assert newest(cluster) < 3, run.errors()


def test_a_group_that_ends_with_an_exception(cluster, tmp_path):  # noqa: F811
    """A script that destroys its process group after an error gets no last snapshot."""
    succeeded, said, run = ended(cluster, tmp_path, "main", "group")
    assert not succeeded and not said and re.search(r"^last -1$", run.text(), re.M), (
        run.text() + run.errors()
    )


def last_step(cluster, tmp_path, how):  # noqa: F811
    """What the trainer prints when its agent is in trouble at its end."""
    agent = cluster.agents[0].pid
    run = Run(
        tmp_path,
        ["main", how],
        1,
        under(cluster),
        script=SCRIPT,
        start="cold",
        env={"AGENT_PID": str(agent)},
    )
    try:
        assert run.wait() == 0, run.errors()
    finally:
        if how == "silent":
            os.kill(agent, signal.SIGCONT)
    return run.errors()


def test_the_last_step_waits_for_a_late_agent(cluster, tmp_path):  # noqa: F811
    said = last_step(cluster, tmp_path, "late")
    assert newest(cluster) == 3 and "not protected" not in said, said + cluster.log(0)


@pytest.mark.parametrize("how", ["silent", "gone"])
def test_a_last_step_without_an_agent_is_reported(cluster, tmp_path, how):  # noqa: F811
    said = last_step(cluster, tmp_path, how)
    assert re.search(r"the last step=3 is not protected: \w", said), said


def test_an_agent_that_lost_its_memory_serves_the_next_trainer_at_once(
    cluster, tmp_path
):  # noqa: F811
    """Its attempts to find that memory have failed, ever more rarely, before the trainer came."""
    first = Run(tmp_path, ["main", "0"], 1, under(cluster), script=SCRIPT, start="cold")
    assert first.wait() == 0 and newest(cluster) == 3, first.errors()
    cluster.configure(0, heartbeat_interval_ms=400)
    cluster.kill_agent(0)
    cluster.kill_keeper(0)
    cluster.start(0)
    harness.wait_for(
        "four failed repairs", lambda: cluster.log(0).count("repair: ended result=") >= 4
    )
    run = Run(tmp_path, ["main", "0"], 1, under(cluster), script=SCRIPT, start="cold")
    assert run.wait() == 0, run.errors()
    assert cluster.committed() == (2, 3), run.errors() + cluster.log(0)
