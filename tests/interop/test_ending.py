"""How a trainer ends is what its agent takes it for: in good order with an exit status of 0 alone,
also in a child of multiprocessing, where the last snapshot is another one's, too."""
import re

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
