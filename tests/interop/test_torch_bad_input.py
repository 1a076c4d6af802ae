"""What a PyTorch job can meet that cannot be protected: each is reported, with what to do, and the
training is the same."""
import re
import socket
import struct
import threading

import pytest

# noqa: F401: fixtures
from test_torch import (
    STEPS,
    Run,
    built,
    cluster,
    finished,
    harness,
    newest,
    reference,
    start_reference,
    under,
)


class OtherAgent:
    """Answers every connection at `path` with the same bytes, as an agent of another version does,
    or no agent at all."""

    def __init__(self, path, answer):
        self.socket, self.answer = socket.socket(socket.AF_UNIX), answer
        self.socket.bind(path)
        self.socket.listen()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection = self.socket.accept()[0]
            except OSError:  # closed
                return
            connection.recv(65536)
            connection.sendall(self.answer)


@pytest.mark.parametrize(
    "answer, said",
    [
        # the header's version
        (struct.pack("<IHBB", 0, 64, 99, 0), "another version"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "NOT protected"),
    ],
)
def test_agent_of_another_version(tmp_path, answer, said):
    states, _ = reference(tmp_path, "mlp")
    agent = OtherAgent(str(tmp_path / "socket"), answer)
    run = Run(tmp_path, ["mlp", STEPS], 1, env={"CAIRN_AGENT": str(tmp_path / "socket")})
    assert finished(run) == states
    assert said in run.errors() and "NOT protected" in run.errors(), run.errors()
    agent.socket.close()


def test_too_little_memory(cluster, tmp_path):  # noqa: F811
    """The log has the sum that the agent would need, and the model trains as ever."""
    run = Run(tmp_path, ["large", 6], 1, under(cluster))
    assert finished(run) == finished(Run(tmp_path, ["large", 6]))
    assert (
        re.search(r"\d+ MiB", run.errors()) and "no snapshots are taken" in run.errors()
    ), run.errors()
    assert newest(cluster) == 0


@pytest.mark.parametrize("resume", [False, True])
def test_exec(cluster, tmp_path, resume):  # noqa: F811
    """A trainer that replaces itself begins again at the first step. It is told so, and what is
    there stays until it has passed that step. Or it resumes where asked to."""
    states, _ = reference(tmp_path, "mlp")
    go = tmp_path / "go"
    run = Run(
        tmp_path,
        ["mlp", STEPS, "--mischief", "exec"],
        1,
        under(cluster, *(["--resume"] if resume else [])),
        env={"TRAINER_GO": str(go)},
    )
    harness.wait_for(
        "a snapshot is committed", lambda: newest(cluster) or run.process.poll() is not None
    )
    go.touch()
    assert finished(run) == states, run.errors()
    if resume:
        assert re.search(
            r"resumed: the state after update [1-6]$", run.errors(), re.M
        ), run.errors()
    else:
        assert "only later steps are protected; restore it" in run.errors(), run.errors()
        assert "resumed" not in run.errors(), run.errors()
    harness.wait_for("the end is committed", lambda: newest(cluster) == STEPS, 10)


def test_refused_optimizer(cluster, tmp_path):  # noqa: F811
    """One whose state cannot be told apart by parameters: the reason is logged, and it trains as
    ever."""
    whole = Run(tmp_path, ["lbfgs", 4])
    run = Run(tmp_path, ["lbfgs", 4], 1, under(cluster))
    assert finished(run) == finished(whole)
    assert (
        run.errors().count(
            "no snapshots are taken: LBFGS keeps the state of all its parameters as one"
        )
        == 1
    ), run.errors()
    assert newest(cluster) == 0


def test_each_rank_has_its_own(cluster, tmp_path):  # noqa: F811
    """Plain tensors that nothing declares equal come back in as many ranks, and in another number
    on none of them."""
    start_reference(tmp_path, "mlp", 2)
    run = Run(tmp_path, ["mlp", STEPS], 2, under(cluster), hold_at=STEPS - 2)
    run.kill_at(8, cluster)
    step = newest(cluster)
    for world in (3, 1):
        other = Run(tmp_path, ["mlp", 2], world, under(cluster, "--resume"), distributed=True)
        finished(other)
        assert all(min(other.steps(rank)) == 0 for rank in range(world))
        said = other.errors().count(
            "each of its 2 ranks has embed.weight, frozen.bias, frozen.weight, inner.bias and "
        )
        assert (
            said == world
            and f"this job has {world}: it can be resumed in 2 ranks only" in other.errors()
        ), other.errors()
        assert newest(cluster) == step
    last = Run(tmp_path, ["mlp", STEPS], 2, under(cluster, "--resume"))
    assert finished(last) == reference(tmp_path, "mlp", 2)[0], last.errors()
    assert min(last.steps()) == step


@pytest.mark.parametrize("words", [[], ["--plain"]])
def test_all_ranks_resume_or_none(cluster, tmp_path, words):  # noqa: F811
    """A rank whose agent is gone begins again, and no other may go on beside it from where the job
    was: with attach all begin again, and an unchanged script is stopped before its first update."""
    run = Run(tmp_path, ["ddp", STEPS, *words], 2, under(cluster), hold_at=STEPS - 2)
    run.kill_at(8, cluster)
    step = newest(cluster)
    other = Run(
        tmp_path, ["ddp", 4, *words, "--mischief", "agentless"], 2, under(cluster, "--resume")
    )
    if words:
        other.wait()
        assert (
            "rank 0 has resumed from step" in other.errors()
            and "but not so rank 1 (step 0)" in other.errors()
        ), other.errors()
        assert not other.steps(0) and len(other.steps(1)) <= 1, other.errors()
    else:
        finished(other)
        assert min(other.steps(0)) == min(other.steps(1)) == 0, other.errors()
        assert (
            f"nothing was restored: rank 1 cannot resume from step {step}" in other.errors()
        ), other.errors()
    assert newest(cluster) == step
