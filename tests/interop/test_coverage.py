"""What of a PyTorch job is covered, and what not and why, is in `cairn status` while the job runs,
and said by `cairn run` where nothing ever attached."""
import re
import subprocess

import pytest

# noqa: F401: fixtures
from test_torch import CLEAN, PYTHON, ROOT, Run, built, cluster, harness, under

SCRIPT = str(ROOT / "tests" / "interop" / "coverage_trainer.py")


@pytest.fixture
def status(cluster, tmp_path):  # noqa: F811
    """Runs the trainer, and gives the status as soon as it is `wanted`, with the run."""
    runs = []

    def look(what, wanted):
        run = Run(tmp_path, [what, 600], 1, under(cluster), script=SCRIPT)
        runs.append(run)

        def answer():
            _, found, _ = harness.cairn("status", "--agent", cluster.socket(0))
            return found if found and wanted(found["coverage"]) else run.process.poll() is not None

        found = harness.wait_for(f"the status of {what}", answer, 60)
        assert found is not True, run.errors()
        return found, run

    yield look
    for run in runs:
        run.kill()


def checks(found):
    return {check["code"]: check for check in found["checks"]}


def things(found):
    return {(each["kind"], each["name"]): each["reason"] for each in found["coverage"]["uncovered"]}


def told(run, words):
    """The trainer tells its agent first, and then standard error."""
    harness.wait_for(f"{words!r} on standard error", lambda: words in run.errors())


def test_everything_is_covered(status, cluster):  # noqa: F811
    found, _ = status("whole", lambda coverage: coverage["tensors"]["optimizer"])
    coverage = found["coverage"]
    assert (coverage["ranks_known"], coverage["ranks_reporting"], coverage["ranks_refusing"]) == (
        1,
        1,
        0,
    )
    assert coverage["tensors"] == {"parameter": 4, "optimizer": 12, "buffer": 0, "opaque": 1}
    parameter_bytes = 4 * (8 * 8 + 3 * 8)
    assert coverage["bytes"]["parameter"] == parameter_bytes
    # two moments, and the step of each
    assert coverage["bytes"]["optimizer"] == 2 * parameter_bytes + 4 * 4
    assert (things(found), coverage["refusals"], coverage["left_out"]) == ({}, [], 0)
    assert (
        coverage["ranks"][0]["tensors"] == coverage["tensors"]
        and not coverage["ranks"][0]["refuses"]
    )
    assert not {"not-covered", "snapshots-refused"} & checks(found).keys()
    text = subprocess.run(
        [harness.CAIRN, "status", "--agent", cluster.socket(0)], stdout=subprocess.PIPE, text=True
    ).stdout
    assert (
        "covered    parameters 4 (" in text
        and "uncovered  nothing that the trainers know of" in text
    ), text


def test_without_attach(status):
    """An unchanged script: its schedulers are not covered, nor data that come from no loader, which
    is not a warning; a parameter of no module is one. The reasons have the lines that cover it."""
    found, run = status("plain-whole", lambda coverage: coverage["uncovered"])
    data, own = sorted(things(found).items(), reverse=True)
    assert data[0] == ("opaque", "the position in the data")
    assert "`job = cairn.attach(model, optimizer)`" in data[1] and "job.step" in data[1]
    assert own[0] == ("opaque", "schedulers and the script's own state")
    assert "cairn.attach(" in own[1]
    assert "not-covered" not in checks(found)
    told(run, "the script does not call cairn.attach")
    run.kill()
    found, _ = status(
        "plain-loose",
        lambda coverage: any(each["kind"] == "parameter" for each in coverage["uncovered"]),
    )
    assert (
        "comes back only where the script calls cairn.attach"
        in things(found)["parameter", "optimizer0.group0.4"]
    )
    assert checks(found)["not-covered"]["level"] == "WARN"


def test_a_buffer(status, cluster):  # noqa: F811
    """Its name would colour the operator's terminal."""
    found, run = status("buffer", lambda coverage: coverage["uncovered"])
    assert things(found) == {("buffer", "phase?[31m"): "its type is torch.complex128"}
    assert "not-covered" not in checks(found)
    text = subprocess.run(
        [harness.CAIRN, "status", "--agent", cluster.socket(0)], stdout=subprocess.PIPE, text=True
    ).stdout
    assert (
        "uncovered  buffer phase?[31m (rank 0): its type is torch.complex128" in text
        and "\x1b" not in text
    ), text
    run.kill()
    harness.wait_for(
        "it goes with its process",
        lambda: not harness.cairn("status", "--agent", cluster.socket(0))[1]["coverage"][
            "ranks_known"
        ],
    )


@pytest.mark.parametrize(
    "what, kind, name, reason",
    [
        ("extra", "opaque", "extra.callback", "a builtin_function_or_method has no state_dict"),
        ("other", "optimizer", "the SGD that takes steps", "it was not given to cairn.attach"),
        ("between", "parameter", "inner.bias", "something other than the optimizer changes it"),
    ],
)
def test_what_shows_itself_later(status, what, kind, name, reason):
    found, run = status(what, lambda coverage: coverage["uncovered"])
    assert reason in things(found)[kind, name]
    assert ("not-covered" in checks(found)) == (kind != "opaque")
    told(run, name)


@pytest.mark.parametrize(
    "what, reason",
    [
        ("lbfgs", "LBFGS keeps the state of all its parameters as one"),
        ("raise", "OSError: the disk of the universe is full"),
    ],
)
def test_no_snapshots_at_all(status, cluster, what, reason):  # noqa: F811
    """The session stays, so that the reason is there for as long as the job trains."""
    found, run = status(what, lambda coverage: coverage["ranks_refusing"])
    assert reason in found["coverage"]["refusals"][0]["reason"]
    assert found["health"] == "WARN", found["checks"]
    assert reason in checks(found)["snapshots-refused"]["what"]
    told(run, reason)
    assert run.process.poll() is None
    text = subprocess.run(
        [harness.CAIRN, "status", "--agent", cluster.socket(0)], stdout=subprocess.PIPE, text=True
    ).stdout
    assert (
        "uncovered  everything on rank 0, no snapshots are taken: " in text
        and text.count("\n") <= 24
    ), text


def test_dcp(status):
    """With DCP, Cairn knows only the state that the script saves; the rest is not covered."""
    found, _ = status("dcp", lambda coverage: coverage["ranks_reporting"])
    assert list(things(found)) == [("opaque", "what dcp.save is not given")], found["coverage"]
    assert found["coverage"]["ranks_refusing"] == 0


@pytest.mark.parametrize("environment", [{}, {"CAIRN_AGENT": "/nonexistent/agent"}])
def test_step_without_an_agent(tmp_path, environment):
    """job.step is 0 then, and that is logged once; the same where a resumption was asked for."""
    for resume in ({}, {"CAIRN_RESUME": "1"}):
        run = Run(tmp_path, ["whole", 0.5], env={**environment, **resume}, script=SCRIPT)
        assert run.wait() == 0, run.errors()
        assert "begins at 0" in run.text()
        assert (
            run.errors().count("job.step is 0, so the loop starts at the beginning") == 1
        ), run.errors()
        assert run.errors().count("Traceback") == 0


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_python_that_does_not_load_us(cluster, flag):  # noqa: F811
    """`cairn run` cannot get in: it reports that at the end, and the exit code is the command's."""
    site = next(path for path in __import__("sys").path if path.endswith("site-packages"))
    code = (
        f"import sys; sys.path.append({site!r}); import torch; m = torch.nn.Linear(2, 2)\n"
        "o = torch.optim.AdamW(m.parameters())\n"
        "for _ in range(3): m(torch.ones(1, 2)).sum().backward(); o.step()\nsys.exit(5)"
    )
    done = subprocess.run(
        [*under(cluster), PYTHON, flag, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        env=CLEAN,
    )
    assert done.returncode == 5, done.stderr
    assert (
        done.stderr.count("no process of the command has attached") == 1 and flag in done.stderr
    ), done.stderr


def test_who_attaches_is_not_told(cluster, tmp_path):  # noqa: F811
    run = Run(tmp_path, ["plain-whole", 1], 1, under(cluster), script=SCRIPT)
    assert run.wait() == 0, run.errors()
    assert int(re.search(r"^step (\d+)", run.text(), re.M).group(1)) > 0
    assert "has attached" not in run.errors(), run.errors()
