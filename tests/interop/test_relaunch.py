"""`cairn run --relaunch` around torchrun, over gloo: one of two nodes is killed, and the other goes
on from memory; and a model that does not fit the new shape ends the job."""

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

import harness  # noqa: E402

TRAINER = str(ROOT / "tests" / "interop" / "rendezvous_trainer.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "{nodes}"]
TORCHRUN += ["--node-rank", "{node_rank}", "--master-addr", "{master_addr}"]
TORCHRUN += ["--master-port", "{master_port}", "--nproc-per-node", "1", "--max-restarts", "0"]
WIDENS = """
import os, sys, torch, cairn
wide = 8 * (1 + int(os.environ["CAIRN_RELAUNCH"]))
model = torch.nn.Linear(wide, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
job = cairn.attach(model, optimizer)
for step in range(job.step, 40):
    model(torch.ones(2, wide)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
sys.exit(5)
"""


@pytest.fixture
def cluster():
    harness.build()
    started = harness.Cluster(3, 1, state="1MiB")
    try:
        yield started.start()
    finally:
        started.close()


def launch(cluster, node, *command):
    return harness.spawn(
        [
            *(harness.CAIRN, "run", "--relaunch", "2", "--nodes", "1:2"),
            *("--agent", cluster.socket(node), "--", *command),
        ],
        cluster.path(f"run{node}"),
        prefix=("env", "OMP_NUM_THREADS=1", "TRAINER_PAUSE_S=0.05"),
    )


def test_torchrun_goes_on_with_fewer_nodes(cluster):
    log = cluster.path("steps")

    def lines(kind):
        return [line.split() for line in harness.text_of(log).splitlines() if line.startswith(kind)]

    def said():
        return "".join(harness.text_of(cluster.path(f"run{node}")) for node in (0, 1))

    launchers = [launch(cluster, node, *TORCHRUN, TRAINER, "100000", log) for node in (0, 1)]
    try:
        harness.wait_for("steps are committed", lambda: cluster.committed()[1] >= 8, 30)
        for pid in harness.pids_with(TRAINER, log):
            if f"CAIRN_AGENT={cluster.socket(1)}" in harness.text_of(f"/proc/{pid}/environ"):
                os.kill(pid, 9)
        launchers[1].kill()
        cluster.kill_node(1)
        harness.wait_for("one node goes on", lambda: len(lines("begins")) == 3, 30)
        harness.wait_for("it trains", lambda: [each for each in lines("update") if each[2] == "1"])
        last = max(int(each[3]) for each in lines("update")) + 5
        pathlib.Path(log + ".new").write_text(str(last))
        pathlib.Path(log + ".new").rename(log + ".end")
        assert launchers[0].wait(60 * harness.PATIENCE) == 0, said()
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.wait()
    _, rank, world, step, _, state, _ = lines("begins")[2]
    assert (rank, world) == ("0", "1") and int(step) >= 8
    before = {each[3]: each[5] for each in lines("update") if each[1:3] == ["0", "2"]}
    assert state == before[step], said()  # bit for bit
    done = [int(each[3]) for each in lines("update") if each[2] == "1"]
    assert done == list(range(int(step) + 1, last + 1))


def test_a_model_that_does_not_fit_ends_the_job(cluster, tmp_path):
    script = tmp_path / "widens.py"
    script.write_text(WIDENS)
    launchers = [launch(cluster, 0, sys.executable, str(script))]
    launchers.append(launch(cluster, 1, "sh", "-c", "exec sleep 1000"))
    try:
        code = launchers[0].wait(60 * harness.PATIENCE)
        assert launchers[1].wait(60 * harness.PATIENCE) == code
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.wait()
    said = harness.text_of(cluster.path("run0"))
    assert code == 1 and "cannot be restored on 2 nodes: the model differs" in said, said
    assert "round 3" not in said
    assert cluster.status(0)["newest"]["step"] >= 39
