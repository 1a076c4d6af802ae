"""Scripts that compile their model, in each of the ways there are: Cairn's hooks break no graph,
and what is covered comes back."""
import re

import pytest

# noqa: F401: fixtures
from test_torch import ROOT, Run, built, cluster, finished, harness, newest, under

SCRIPT = str(ROOT / "tests" / "interop" / "compiled_trainer.py")
STEPS = 14


def resumes(cluster, tmp_path, *words):  # noqa: F811
    whole = Run(tmp_path, [*words[:1], STEPS], script=SCRIPT)
    run = Run(
        tmp_path,
        [*words[:1], STEPS, *words[1:]],
        1,
        under(cluster),
        hold_at=STEPS - 2,
        script=SCRIPT,
    )
    run.kill_at(8, cluster)
    committed = newest(cluster)
    finished(whole)
    resumed = Run(
        tmp_path, [*words[:1], STEPS, *words[1:]], 1, under(cluster, "--resume"), script=SCRIPT
    )
    finished(resumed)
    found = re.search(r"the state after update (\d+)", resumed.errors())
    assert found, run.errors() + resumed.errors()
    done = int(found.group(1))
    assert committed <= done <= max(run.steps()) + 1
    for step in range(STEPS - done):
        assert resumed.steps()[step] == whole.steps()[step + done], step


@pytest.mark.parametrize("how", ["wrapped", "inplace", "function", "parts", "pair", "step"])
def test_killed_and_resumed(cluster, tmp_path, how):  # noqa: F811
    resumes(cluster, tmp_path, how)


def test_a_model_that_is_called_in_one_graph_alone(cluster, tmp_path):  # noqa: F811
    """No hook may see its forward: it trains on and is covered, with names by position; to come
    back the script has to attach it."""
    whole = Run(tmp_path, ["graph", STEPS], script=SCRIPT)
    run = Run(tmp_path, ["graph", STEPS], 1, under(cluster), script=SCRIPT)
    assert finished(run) == finished(whole), run.errors()
    assert "parameters belong to no module that was called" in run.errors(), run.errors()
    resumed = Run(tmp_path, ["graph", STEPS], 1, under(cluster, "--resume"), script=SCRIPT)
    assert finished(resumed) == whole.state(), resumed.errors()
    assert (
        "only a script that calls cairn.attach before the first step gets them back"
        in resumed.errors()
    )
    assert harness.cairn("restore", "--fresh", "--agent", cluster.socket(0))[0] == 0
    resumes(cluster, tmp_path, "graph", "--attach")
