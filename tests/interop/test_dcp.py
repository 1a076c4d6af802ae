"""torch.distributed.checkpoint on the agents' memory: saved, killed, loaded in new processes and in
another number of ranks, bit for bit."""
import re
import signal

import pytest
from test_torch import ROOT, Run, built, cluster, harness, under  # noqa: F401: fixtures

SCRIPT = str(ROOT / "tests" / "interop" / "dcp_trainer.py")


class Dcp(Run):
    def __init__(self, folder, words, world=1, wrapper=(), env=None, **start):
        super().__init__(folder, words.split(), world, wrapper, env, script=SCRIPT, **start)

    def said(self, word, rank=0):
        return re.findall(rf"^{word} (.*)$", self.text(rank), re.M)

    def await_said(self, word, count=1):
        def enough():
            return all(len(self.said(word, rank)) >= count for rank in range(self.world))

        try:
            harness.wait_for(
                f"{count} times {word}", lambda: enough() or self.process.poll() is not None
            )
            assert enough(), self.errors() + self.text()
        except AssertionError:
            self.kill()
            raise

    def done(self):
        assert self.wait() == 0, self.errors()
        return self


def losses(run):
    return dict(line.split() for line in run.said("loss"))


@pytest.mark.parametrize(
    "kind, ranks, kind_after, ranks_after",
    [
        ("plain", 1, "plain", 1),
        ("ddp", 2, "ddp", 2),
        ("ddp", 2, "plain", 1),
        ("fsdp", 2, "fsdp", 2),
        ("fsdp", 2, "plain", 1),
        ("fsdp", 1, "fsdp", 2),
    ],
)
def test_saved_killed_loaded(cluster, tmp_path, kind, ranks, kind_after, ranks_after):  # noqa: F811
    """The state that was saved comes back, and training goes on as if nothing had been. All ranks
    see the same data: so does any number of them."""
    # of these one process imports all after the hooks are in
    cold = (kind, kind_after) == ("fsdp", "plain")
    start = {"start": "cold", "forks": True} if cold else {}
    first = Dcp(tmp_path, f"{kind} train 3 save sync train 2 sleep", ranks, under(cluster), **start)
    first.await_said("loss", 5)
    first.kill(signal.SIGKILL)
    second = Dcp(
        tmp_path, f"{kind_after} fresh load train 2", ranks_after, under(cluster), **start
    ).done()
    assert second.said("loaded") == ["3"], first.errors() + second.errors()
    for rank in range(ranks_after):
        assert second.said("state", rank) == first.said(
            "state"
        ), "what was loaded differs from what was saved"
    assert [losses(second)[step] for step in "45"] == [losses(first)[step] for step in "45"]
    assert "NOT protected" not in first.errors() + second.errors()


@pytest.mark.parametrize("how, kind, ranks", [("async", "fsdp", 2), ("process", "ddp", 2)])
def test_async(cluster, tmp_path, how, kind, ranks):  # noqa: F811
    """Training goes on while the state as it was at the call is saved."""
    first = Dcp(tmp_path, f"{kind} train 3 save {how} train 3 wait sleep", ranks, under(cluster))
    first.await_said("saved")
    assert first.said("saving") == ["3"]
    first.kill(signal.SIGKILL)
    second = Dcp(tmp_path, f"{kind} fresh load", ranks, under(cluster)).done()
    assert second.said("state") == first.said("state")


def test_many_saves(cluster, tmp_path):  # noqa: F811
    """Each replaces the one before, also of a planner that plans once; the step is that of
    checkpoint_id."""
    words = (
        "fsdp train 1 save cached train 1 save cached train 1 id 4000000000 save cached id 3 "
        "save sync train 1 sleep"
    )
    first = Dcp(tmp_path, words, 2, under(cluster))
    first.await_said("loss", 4)
    first.kill(signal.SIGKILL)
    assert first.said("saved") == ["1", "2", "3"] and first.said("failed") == [
        "save"
    ], first.errors()
    assert "checkpoint_id 3 is not larger than 4000000000" in first.errors()
    assert cluster.committed()[1] == 4000000000
    second = Dcp(tmp_path, "fsdp fresh id 17 load id 4000000000 load", 2, under(cluster)).done()
    assert (
        "checkpoint_id is 17, but the agents hold the snapshot of step 4000000000"
        in second.errors()
    )
    assert second.said("loaded") == ["3"] and second.said("state")[-1] == first.said("state")[2]


def test_what_is_not_finite(cluster, tmp_path):  # noqa: F811
    """A script that saves by its own call gets back what it saved, with any on_poison."""
    first = Dcp(tmp_path, "plain train 1 save sync nan train 1 save sync sleep", 1, under(cluster))
    first.await_said("saved", 2)
    first.kill(signal.SIGKILL)
    second = Dcp(tmp_path, "plain fresh load", 1, under(cluster)).done()
    assert second.said("loaded") == ["2"], second.errors()
    assert second.said("state")[-1] == first.said("state")[1]


def test_hooks_give_way(cluster, tmp_path):  # noqa: F811
    """The snapshots after each update end with the first save, with a line of log; the run --resume
    after it does not take DCP's for its own."""
    run = Dcp(tmp_path, "plain train 4 save sync train 3", 1, under(cluster)).done()
    assert "snapshots are taken by cairn.dcp from here on" in run.errors()
    kept = cluster.committed()
    assert kept[1] > 1000000000  # no step of a hook
    again = Dcp(tmp_path, "plain fresh train 1 load", 1, under(cluster, "--resume")).done()
    assert "differs from the snapshot" in again.errors() and again.said("loaded") == ["4"]
    assert again.said("state") == run.said("state")


def test_bad_input(cluster, tmp_path):  # noqa: F811
    """Each is an exception with a message on every rank, and leaves the snapshot that was there."""
    empty = Dcp(tmp_path, "plain load", 1, under(cluster)).done()
    assert "the agents hold no snapshot to load" in empty.errors()
    first = Dcp(
        tmp_path, "fsdp train 2 save sync rank 1 strange save sync", 2, under(cluster)
    ).done()
    assert first.said("saved", 1) == ["2"] and first.said("failed", 0) == first.said(
        "failed", 1
    ) == ["save"], first.errors()
    other = Dcp(tmp_path, "plain wider load fresh more load fresh load", 1, under(cluster)).done()
    assert (
        other.said("failed") == ["load", "load"]
        and other.said("state")[-1] == first.said("state")[0]
    ), other.errors()
    assert (
        "ize mismatch" in other.errors()
        and "Missing key in checkpoint state_dict: extra.unknown" in other.errors()
    )


def test_state_of_the_hooks(cluster, tmp_path):  # noqa: F811
    """What the hooks captured is not a DCP checkpoint, and that is logged."""
    Dcp(tmp_path, "plain train 4", 1, under(cluster)).done()
    run = Dcp(tmp_path, "plain load", 1, under(cluster)).done()
    assert "was not made by cairn.dcp.Writer; `cairn run --resume` restores it" in run.errors()


@pytest.mark.parametrize("state", ["64KiB"])
def test_too_little_memory(tmp_path, state):
    with harness.Cluster(nodes=1, parity=0, state=state) as small:
        run = Dcp(tmp_path, "plain train 1 save sync train 1", 1, under(small.start())).done()
    assert (
        "does not take this rank's" in run.errors()
        and run.said("failed") == ["save"]
        and len(run.said("loss")) == 2
    )


def test_not_due(tmp_path):
    with harness.Cluster(
        nodes=1, parity=0, state="4MiB", options="snapshot_every_steps: 10"
    ) as cluster_of_tens:
        run = Dcp(
            tmp_path,
            "plain train 1 id 7 save sync id 20 save sync",
            1,
            under(cluster_of_tens.start()),
        ).done()
    assert "the agent takes no snapshot of step 7" in run.errors()
    assert run.said("failed") == ["save"] and run.said("saved") == ["1"], run.errors()


@pytest.mark.parametrize("agent", ["none", "gone"])
def test_without_agent(tmp_path, agent):
    env = {} if agent == "none" else {"CAIRN_AGENT": str(tmp_path / "socket")}
    run = Dcp(tmp_path, "plain train 1 save sync load", 1, env=env).done()
    assert run.said("failed") == ["save", "load"]
    assert (
        "CAIRN_AGENT names no agent" if agent == "none" else "no agent answers at"
    ) in run.errors()
