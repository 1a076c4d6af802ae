"""More PyTorch jobs under `cairn run`, spread over ranks unevenly, and Hugging Face's Trainer:
killed, resumed, and compared bit for bit."""
import importlib.util
import re

import pytest

from test_torch import (  # noqa: F401
    RANDOM,
    ROOT,
    Run,
    built,
    cluster,
    finished,
    harness,
    newest,
    under,
    wait_for_the_end,
)

STEPS = 20


def killed_and_resumed(cluster, tmp_path, script, words, world, **start):  # noqa: F811
    """kill -9 at a random step of `script`, resume: losses and state are those of a run that was
    not killed."""
    path = str(ROOT / "tests" / "interop" / script)
    whole = Run(tmp_path, words, world, script=path)
    states = finished(whole)
    losses = [whole.steps(rank) for rank in range(world)]
    assert sorted(losses[0]) == list(range(STEPS))
    run = Run(tmp_path, words, world, under(cluster), script=path, hold_at=STEPS - 2, **start)
    run.kill_at(RANDOM.randrange(4, STEPS - 5), cluster)
    committed, seen = newest(cluster), max(run.steps())
    assert (
        "NOT protected" not in run.errors() and "nothing is snapshot" not in run.errors()
    ), run.errors()
    last = Run(tmp_path, words, world, under(cluster, "--resume"), script=path, **start)
    assert finished(last) == states, last.errors()
    first = min(last.steps())
    assert (
        committed <= first <= seen + 1 and f"the state after update {first}" in last.errors()
    ), last.errors()
    for rank in range(world):
        # it may have been killed before it printed the last of the updates that came back
        assert run.steps(rank).items() <= losses[rank].items(), f"rank {rank}: {run.errors()}"
        rest = {step: loss for step, loss in losses[rank].items() if step >= first}
        assert last.steps(rank) == rest, f"rank {rank}: {last.errors()}"
    wait_for_the_end(cluster, last, STEPS)


@pytest.mark.parametrize("kind, world", [("tp", 2), ("fsdp", 4), ("moe", 2), ("pp", 2)])
def test_spread(cluster, tmp_path, kind, world):  # noqa: F811
    killed_and_resumed(cluster, tmp_path, "more_trainer.py", [kind, STEPS], world)


@pytest.mark.parametrize("kind", ["drift", "local"])
def test_replicas_that_drift_apart(cluster, tmp_path, kind):  # noqa: F811
    killed_and_resumed(cluster, tmp_path, "more_trainer.py", [kind, STEPS], 2)


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("transformers", "accelerate")),
    reason="transformers and accelerate are not installed here",
)
def test_hugging_face(cluster, tmp_path):  # noqa: F811
    out = tmp_path / "runs"
    out.mkdir()
    killed_and_resumed(cluster, out, "hf_trainer.py", [tmp_path, STEPS], 1)


def test_grad_scaler(cluster, tmp_path):  # noqa: F811
    """Steps that a scaler skips do not update, and what comes back is from before or after them,
    never between."""
    whole = Run(tmp_path, ["scaler", STEPS])
    run = Run(
        tmp_path,
        ["scaler", STEPS],
        1,
        under(cluster),
        env={"TRAINER_PAUSE_S": "0.1"},
        hold_at=STEPS - 2,
    )
    run.kill_at(RANDOM.randrange(9, STEPS - 4), cluster)
    states = finished(whole)
    skipped = [int(step) for step in re.findall(r"^skipped (\d+)", whole.text(), re.M)]
    assert len(skipped) >= 4, whole.text()
    last = Run(tmp_path, ["scaler", STEPS], 1, under(cluster, "--resume"))
    assert finished(last) == states, last.errors()
    first = min(last.steps())
    assert (
        f"the state after update {first - sum(step < first for step in skipped)}" in last.errors()
    ), (first, skipped)
    assert {**run.steps(), **last.steps()} == whole.steps()


def test_other_number_of_zero_ranks(cluster, tmp_path):  # noqa: F811
    """Moments that ZeroRedundancyOptimizer spreads over the ranks go to those that want them in
    another number of ranks."""
    run = Run(tmp_path, ["zero", STEPS], 2, under(cluster), hold_at=STEPS - 2)
    run.kill_at(8, cluster)
    found = {}
    for world in (2, 3):
        resumed = Run(
            tmp_path,
            ["zero", 0, "--mischief", "moments"],
            world,
            under(cluster, "--resume"),
            distributed=True,
        )
        assert resumed.wait() == 0, resumed.errors()
        found[world] = sorted(
            line
            for rank in range(world)
            for line in re.findall(r"^moment (.*)$", resumed.text(rank), re.M)
        )
        assert f"the state after update {newest(cluster)}" in resumed.errors(), resumed.errors()
    assert len(found[2]) == len(set(found[2])) == 3 * 5 and found[3] == found[2]


def test_late_rank(cluster, tmp_path):  # noqa: F811
    """A rank that ends two seconds after the other is waited for: the last update is in the last
    snapshot."""
    run = Run(tmp_path, ["ddp", 8, "--mischief", "late"], 2, under(cluster))
    finished(run)
    harness.wait_for("the end is committed", lambda: newest(cluster) == 8, 10)
