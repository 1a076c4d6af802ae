"""A poisoned generation never replaces a good one: gradients that become NaN, infinities that were
there from the start, steps that the script rejects, and each value of on_poison."""
import os
import re
import signal

import pytest
from test_torch import ROOT, Run, built, cluster, harness, newest, under  # noqa: F401: fixtures

SCRIPT = str(ROOT / "tests" / "interop" / "poison_trainer.py")
GOOD = 5  # the last step before the state goes bad


def started(tmp_path, cluster, how, hold_at=None, resume=False, steps=14):  # noqa: F811
    words = ["--resume"] if resume else []
    return Run(tmp_path, [how, steps], 1, under(cluster, *words), script=SCRIPT, hold_at=hold_at)


def reached(run, step):
    harness.wait_for(
        f"step {step}",
        lambda: re.search(rf"^step {step} ", run.text(), re.M) or run.process.poll() is not None,
    )
    assert run.process.poll() is None, run.errors()


def check(cluster, code):  # noqa: F811
    """The check of this code that `cairn status` shows; None where it shows none."""
    found = [each for each in cluster.status()["checks"] if each["code"] == code]
    return found[0] if found else None


def poisoned(cluster, code="poisoned"):  # noqa: F811
    return harness.wait_for(f"status says {code}", lambda: check(cluster, code))


def restored_from(run):
    return int(re.search(r"^from (\d+)$", run.text(), re.M).group(1))


def all_finite(run):
    return "bad" not in run.text()


@pytest.mark.parametrize("dtype", ["", "_bf16"])
def test_nan_gradients(cluster, tmp_path, dtype):  # noqa: F811
    """The job is killed when its state has been NaN for some steps, and resumes from the last good
    one, as often as it likes."""
    run = started(tmp_path, cluster, "nan" + dtype, hold_at=12)
    reached(run, 11)
    said = poisoned(cluster)
    assert said["level"] == "CRITICAL", said
    step, tensor = re.search(r"^steps? (\d+) .*rank 0, whose tensor (\S+)", said["what"]).groups()
    assert int(step) > GOOD
    if int(step) == GOOD + 1:  # seen at once: only what got the gradients is bad
        assert tensor == "2.weight", said
    code, _, _ = harness.run("status", "--agent", cluster.socket(0))
    assert code == harness.CRITICAL
    good = newest(cluster)
    assert 1 <= good <= GOOD
    run.kill()
    assert poisoned(cluster) and newest(cluster) == good  # the job's death changes nothing

    for _ in range(2):  # it goes bad again, and comes back finite again
        run = started(tmp_path, cluster, "nan" + dtype, hold_at=12, resume=True)
        reached(run, 11)
        assert good <= restored_from(run) <= GOOD, run.text() + run.errors()
        assert newest(cluster) <= GOOD
        poisoned(cluster)
        run.kill()

    run = started(tmp_path, cluster, "good" + dtype, resume=True)
    assert run.wait() == 0 and restored_from(run) <= GOOD and all_finite(run), run.errors()
    assert newest(cluster) == 14 and check(cluster, "poisoned") is None


def test_rejected_steps(cluster, tmp_path):  # noqa: F811
    """The script's word is enough: the state itself is finite."""
    run = started(tmp_path, cluster, "reject", hold_at=12)
    reached(run, 11)
    said = poisoned(cluster)
    assert "loss spike" in said["what"] and "rank 0" in said["what"], said
    good = newest(cluster)
    assert good <= GOOD and all_finite(run)
    listed = harness.cairn("snapshots", "--agent", cluster.socket(0))[1]["generations"]
    assert listed[0]["state"] == "poisoned" and "loss spike" in listed[0]["why"], listed
    assert [each["step"] for each in listed if each["state"] == "committed"][0] == good, listed
    run.kill()
    run = started(tmp_path, cluster, "good", resume=True)
    assert run.wait() == 0 and restored_from(run) <= GOOD, run.errors()
    assert newest(cluster) == 14 and check(cluster, "poisoned") is None


@pytest.fixture
def with_policy(request):
    options = f"on_poison: {request.param}"
    with harness.Cluster(nodes=1, parity=0, state="4MiB", options=options) as cluster:  # noqa: F811
        yield cluster.start()


@pytest.mark.parametrize("with_policy", ["allow"], indirect=True)
def test_allow_commits_and_warns(with_policy, tmp_path):
    run = started(tmp_path, with_policy, "nan", hold_at=12)
    reached(run, 11)
    harness.wait_for("a commit of a bad step", lambda: newest(with_policy) > GOOD)
    said = poisoned(with_policy, "poisoned-kept")
    assert said["level"] == "WARN" and re.search(r"tensor \d\.(weight|bias)", said["what"]), said
    run.kill()
    run = started(tmp_path, with_policy, "nan", hold_at=14, resume=True)
    reached(run, 13)
    assert restored_from(run) > GOOD  # as the operator wants it
    run.kill()


@pytest.mark.parametrize("with_policy", ["allow"], indirect=True)
def test_a_rejected_step_is_not_kept_by_allow(with_policy, tmp_path):
    run = started(tmp_path, with_policy, "reject", hold_at=12)
    reached(run, 11)
    assert poisoned(with_policy) and newest(with_policy) <= GOOD
    run.kill()


@pytest.mark.parametrize("with_policy", ["stop"], indirect=True)
def test_stop_ends_the_bad_job_alone(with_policy, tmp_path):
    run = started(tmp_path, with_policy, "nan", steps=1_000_000)  # it trains until it is stopped
    assert run.wait() != 0 and "stopped" in run.text(), run.errors()
    assert newest(with_policy) <= GOOD and poisoned(with_policy)
    run = started(tmp_path, with_policy, "good", resume=True)  # the mask has infinities, as ever
    assert run.wait() == 0 and "stopped" not in run.text(), run.errors()
    assert restored_from(run) <= GOOD and newest(with_policy) == 14


def test_policy_is_reloaded(cluster, tmp_path):  # noqa: F811
    """An operator who wants the state as it is need not restart anything."""
    run = started(tmp_path, cluster, "nan", hold_at=12)
    reached(run, 11)
    poisoned(cluster)
    assert newest(cluster) <= GOOD
    cluster.configure(0, on_poison="allow")
    os.kill(cluster.agents[0].pid, signal.SIGHUP)
    harness.wait_for("the reload", lambda: "reload: on_poison" in cluster.log(0))
    run.kill()
    run = started(tmp_path, cluster, "nan", resume=True)
    assert run.wait() == 0, run.errors()
    assert newest(cluster) == 14 and poisoned(cluster, "poisoned-kept")


def test_one_bad_step_is_left_out(cluster, tmp_path):  # noqa: F811
    """The state is good again: snapshots go on, and nothing is wrong any more."""
    run = started(tmp_path, cluster, "reject_once")
    assert run.wait() == 0, run.errors()
    assert newest(cluster) == 14 and check(cluster, "poisoned") is None
    assert "step=6 rank=0 kept=no" in cluster.log(0)
