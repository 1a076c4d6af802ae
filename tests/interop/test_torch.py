"""PyTorch jobs under `cairn run`: killed at random steps, resumed, and compared bit for bit with
the run that was not killed.

Real agents on loopback (tests/cluster/harness.py), CPU and gloo. A job's ranks are separate
processes, as torchrun makes them.
"""

import importlib.util
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import List

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

import harness  # noqa: E402
import warm_start  # noqa: E402

# the trainers import it: this process has no use for it
if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed here", allow_module_level=True)

SCRIPT = str(ROOT / "tests" / "interop" / "torch_trainer.py")
PYTHON = sys.executable
STEPS = 24
RANDOM = random.Random(os.environ.get("SEED") or None)
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith("CAIRN_") and name != "PYTHONPATH"
}


@pytest.fixture(scope="module", autouse=True)
def built():
    if not os.path.exists(harness.CAIRN):
        pytest.skip(f"{harness.CAIRN} is not built")
    yield
    for run in Run.started:  # by tests that failed before they could end them, too
        run.kill()
    Run.started.clear()


@pytest.fixture
def cluster():
    with harness.Cluster(nodes=1, parity=0, state="4MiB") as cluster:
        cluster.start()
        harness.wait_for("the first epoch", lambda: "epoch: active" in cluster.log(0))
        yield cluster


def lead_a_group():
    """Of the same session, or a trainer that starts warm could not join it."""
    os.setpgrp()
    harness.die_with_parent()


class Run:
    """A job of `world` ranks in a process group of its own; `wrapper` goes before the shell that
    starts them. `start`: "warm", which is quicker (warm_start.py), or "cold", a new process of
    `python`; so does each rank, or, where `forks`, the one whose forks they are (forking.py).
    Before the step `hold_at` all ranks stand still: a job that will be killed does not end before
    a test that looks late."""

    started: List["Run"] = []

    def __init__(
        self,
        folder,
        words,
        world=1,
        wrapper=(),
        env=None,
        distributed=False,
        script=SCRIPT,
        python=PYTHON,
        start="warm",
        forks=False,
        hold_at=None,
    ):
        self.world = world
        self.number = len(os.listdir(folder))
        self.out = [os.path.join(folder, f"run{self.number}-{rank}.out") for rank in range(world)]
        self.err = os.path.join(folder, f"run{self.number}.err")
        self.scratch = tempfile.mkdtemp(prefix="cairn-run-")  # what killed processes leave behind
        distributed = distributed or world > 1
        port = harness.free_ports(1)[0] if distributed else 0
        ranks = (
            f"MASTER_ADDR=127.0.0.1 MASTER_PORT={port} WORLD_SIZE={world} LOCAL_WORLD_SIZE={world}"
        )
        command = (
            warm_start.server(python).command(script, *words)
            if start == "warm"
            else [python, "-u", script, *map(str, words)]
        )
        line = " ".join(command)
        if not distributed:
            shell = f"exec {line} > {self.out[0]}"
        elif forks:
            shell = f"RANK_OUTPUTS={':'.join(self.out)} {ranks} exec {line}"
        else:
            shell = (
                "".join(
                    f"RANK={rank} LOCAL_RANK={rank} {ranks} {line} > {out} & "
                    for rank, out in enumerate(self.out)
                )
                + "wait"
            )
        with open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                [*wrapper, "sh", "-c", shell],
                env={
                    **CLEAN,
                    "PYTHONPATH": str(ROOT / "bindings" / "python"),
                    "TRAINER_PAUSE_S": "0.02",
                    "TMPDIR": self.scratch,
                    **({} if hold_at is None else {"TRAINER_HOLD_AT": str(hold_at)}),
                    **(env or {}),
                },
                preexec_fn=lead_a_group,
                stdin=subprocess.DEVNULL,
                stdout=err,
                stderr=err,
            )
        Run.started.append(self)

    def text(self, rank=0):
        return harness.text_of(self.out[rank])

    def errors(self):
        return harness.text_of(self.err)

    def steps(self, rank=0):
        """Loss by step."""
        return {
            int(step): loss
            for step, loss in re.findall(r"^step (\d+) (\S+)$", self.text(rank), re.M)
        }

    def state(self):
        return [re.findall(r"^state (.*)$", self.text(rank), re.M) for rank in range(self.world)]

    def wait(self, seconds=300):
        try:
            return self.process.wait(timeout=seconds)
        finally:
            self.kill()

    def kill(self, number=signal.SIGKILL):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass
        self.process.wait()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def kill_at(self, step, cluster, after=0):
        """kill -9 of everything a moment after a step has ended, and a snapshot later than of step
        `after` is committed."""
        harness.wait_for(
            f"step {step}", lambda: step in self.steps() or self.process.poll() is not None
        )
        harness.wait_for(
            "a snapshot", lambda: newest(cluster) > after or self.process.poll() is not None
        )
        assert self.process.poll() is None, self.errors()
        time.sleep(RANDOM.uniform(0, 0.03))
        self.kill()


def under(cluster, *words):
    return [harness.CAIRN, "run", "--agent", cluster.socket(0), *words, "--"]


def newest(cluster):
    return cluster.committed()[1]


def finished(run):
    assert run.wait() == 0, run.errors()
    states = run.state()
    assert all(len(each) == 1 for each in states), run.errors()
    return states


def wait_for_the_end(cluster, run, steps=STEPS):
    """Until the last step is committed; else tells why, as the ranks and the agent have it."""
    try:
        harness.wait_for("the end is committed", lambda: newest(cluster) == steps, 10)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{run.errors()}\n{cluster.log(0)[-6000:]}") from None


REFERENCES = {}


def start_reference(folder, kind, world=1):
    """Starts the run that is not killed, without Cairn, where there was none; reference() waits for
    it."""
    if (kind, world) not in REFERENCES:
        REFERENCES[kind, world] = Run(folder, [kind, STEPS], world)


def reference(folder, kind, world=1):
    """(states, losses by step) of each rank."""
    start_reference(folder, kind, world)
    run = REFERENCES[kind, world]
    if isinstance(run, Run):
        REFERENCES[kind, world] = finished(run), [run.steps(rank) for rank in range(world)]
    return REFERENCES[kind, world]


@pytest.mark.parametrize(
    "kind, world",
    [
        ("mlp", 1),
        ("gan", 1),
        ("accumulate", 1),
        ("closure", 1),
        ("moe", 1),
        ("ddp", 2),
        ("zero", 2),
        ("fsdp", 2),
        ("tp", 2),
    ],
)
def test_killed_and_resumed(cluster, tmp_path, kind, world):
    start_reference(tmp_path, kind, world)
    start = "cold" if kind in ("mlp", "ddp") else "warm"
    seen, committed = 0, 0
    for round_number, hold_at in enumerate((14, STEPS - 2) if kind == "mlp" else (STEPS - 2,)):
        wrapper = under(cluster, "--resume") if round_number else under(cluster)
        run = Run(
            tmp_path,
            [kind, STEPS],
            world,
            wrapper,
            start="warm" if round_number else start,
            hold_at=hold_at,
        )
        run.kill_at(RANDOM.randrange(seen + 3, hold_at - 1), cluster, committed)
        states, losses = reference(tmp_path, kind, world)
        for rank in range(world):
            for step, loss in run.steps(rank).items():
                assert loss == losses[rank][step], f"step {step} of rank {rank}: {run.errors()}"
        assert (
            "NOT protected" not in run.errors() and "no snapshots are taken" not in run.errors()
        ), run.errors()
        seen = max(run.steps())
        committed = newest(cluster)
    last = Run(tmp_path, [kind, STEPS], world, under(cluster, "--resume"), start=start)
    assert finished(last) == states, last.errors()
    first = min(last.steps())
    assert committed <= first <= seen + 1, last.errors()
    assert f"the state after update {first}" in last.errors()
    for rank in range(world):
        assert last.steps(rank) == {
            step: loss for step, loss in losses[rank].items() if step >= first
        }
    assert "not protected" not in last.errors(), last.errors()
    wait_for_the_end(cluster, last)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_one_update_left(cluster, tmp_path, kind):
    """A rank's first snapshot after a restore is its last: it waits for the others to register
    theirs. Until then they have registered what they restore, and both do not go together."""
    run = Run(tmp_path, [kind, STEPS], 2, under(cluster), hold_at=STEPS - 2)
    run.kill_at(RANDOM.randrange(3, STEPS - 3), cluster)
    # the agent may still commit what the ranks had captured: a restore ends that
    code, answer, talk = cluster.restore()
    assert code == harness.OK, talk
    left = answer["generation"]["step"] + 1
    last = Run(tmp_path, [kind, left], 2, under(cluster, "--resume"))
    finished(last)
    assert [*last.steps()] == [left - 1], last.errors()
    assert "not protected" not in last.errors(), last.errors()
    assert newest(cluster) == left, f"{last.errors()}\n{cluster.log(0)}"


@pytest.mark.parametrize("kind, world", [("mlp", 1), ("ddp", 2), ("fsdp", 2)])
def test_what_comes_back_is_recent(cluster, tmp_path, kind, world):
    """A kill loses the update under way and the one before it: what is committed by then is at most
    one update old, and that, not something older, is what comes back."""
    start_reference(tmp_path, kind, world)
    run = Run(
        tmp_path,
        [kind, STEPS],
        world,
        under(cluster),
        env={"TRAINER_RECENT_FROM": "8"},
        hold_at=STEPS - 1,
    )

    def held():
        return re.search(r"^holds after (\d+)$", run.text(), re.M)

    harness.wait_for("a recent snapshot", lambda: held() or run.process.poll() is not None, 120)
    run.kill()
    done = int(held().group(1)) if held() else 0
    assert done >= 8, run.errors()
    last = Run(tmp_path, [kind, STEPS], world, under(cluster, "--resume"))
    states, losses = reference(tmp_path, kind, world)
    assert finished(last) == states, last.errors()
    for rank in range(world):
        first = min(last.steps(rank))
        assert done - 1 <= first <= done, last.errors()
        assert last.steps(rank) == {
            step: loss for step, loss in losses[rank].items() if step >= first
        }


def test_group_added_in_mid_training(cluster, tmp_path):
    """A layer that the script thaws at step 6, and again at once where it resumes later: its
    moments come back with its group's learning rate, which the scheduler has changed since. A
    script that does not thaw it is told."""
    whole = Run(tmp_path, ["thaw", STEPS])
    run = Run(tmp_path, ["thaw", STEPS], 1, under(cluster), hold_at=STEPS - 2)
    run.kill_at(RANDOM.randrange(10, STEPS - 6), cluster, 10)
    assert (
        "NOT protected" not in run.errors() and "no snapshots are taken" not in run.errors()
    ), run.errors()
    states, losses, seen, committed = (
        finished(whole),
        whole.steps(),
        max(run.steps()),
        newest(cluster),
    )
    last = Run(tmp_path, ["thaw", STEPS], 1, under(cluster, "--resume"))
    assert finished(last) == states, last.errors()
    first = min(last.steps())
    assert committed <= first <= seen + 1, last.errors()
    assert last.steps() == {
        step: loss for step, loss in losses.items() if step >= first
    }, last.errors()
    wait_for_the_end(cluster, last)
    other = Run(tmp_path, ["mlp", STEPS + 1], 1, under(cluster, "--resume"))
    finished(other)
    assert (
        "has moments of frozen.bias, frozen.weight, which no optimizer has now" in other.errors()
    ), other.errors()


def test_other_number_of_ranks(cluster, tmp_path):
    """What two ranks of FSDP2 held comes back whole on one and on three."""
    run = Run(tmp_path, ["fsdp", STEPS], 2, under(cluster), hold_at=STEPS - 2)
    run.kill_at(8, cluster)
    committed, wholes = newest(cluster), []
    for world in (2, 1, 3):
        resumed = Run(
            tmp_path,
            ["fsdp", 0, "--mischief", "whole"],
            world,
            under(cluster, "--resume"),
            distributed=True,
        )
        assert resumed.wait() == 0, resumed.errors()
        wholes += [re.findall(r"^whole (.*)$", resumed.text(rank), re.M) for rank in range(world)]
    assert int(wholes[0][0].split()[0]) >= committed
    assert all(each == wholes[0] for each in wholes), wholes


def test_unchanged_script(cluster, tmp_path):
    """A script that knows nothing of Cairn, with a compiled model, continues where it was, its own
    count of steps aside."""
    whole = Run(tmp_path, ["compile", STEPS, "--plain"])
    run = Run(tmp_path, ["compile", STEPS, "--plain"], 1, under(cluster), hold_at=STEPS - 2)
    run.kill_at(9, cluster)
    committed = newest(cluster)
    finished(whole)
    resumed = Run(
        tmp_path, ["compile", STEPS, "--plain"], 1, under(cluster, "--resume"), start="cold"
    )
    finished(resumed)
    done = int(re.search(r"the state after update (\d+)", resumed.errors()).group(1))
    assert committed <= done <= max(run.steps()) + 1
    for step in range(STEPS - done):
        assert resumed.steps()[step] == whole.steps()[step + done], step


def test_evaluates_a_part_before_it_trains(cluster, tmp_path):
    """What trains is covered, not what was called first: the ranks of DDP share the copying, though
    one has called the module inside."""
    words = ["ddp", STEPS, "--plain", "--mischief", "evaluate"]
    whole = Run(tmp_path, words, 2)
    run = Run(tmp_path, words, 2, under(cluster), hold_at=STEPS - 2)
    run.kill_at(9, cluster)
    committed = newest(cluster)
    finished(whole)
    resumed = Run(tmp_path, words, 2, under(cluster, "--resume"))
    finished(resumed)
    done = int(re.search(r"the state after update (\d+)", resumed.errors()).group(1))
    assert committed <= done <= max(run.steps()) + 1
    for step in range(STEPS - done):
        assert resumed.steps()[step] == whole.steps()[step + done], step
    assert "each rank's own is captured" not in run.errors() + resumed.errors(), (
        run.errors() + resumed.errors()
    )


def torchrun(cluster, folder, ranks, *words):
    go = pathlib.Path(folder) / "go"
    started = subprocess.Popen(
        [
            *under(cluster),
            PYTHON,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(ranks),
            *words,
        ],
        env={
            **CLEAN,
            "PYTHONPATH": str(ROOT / "bindings" / "python"),
            "TRAINER_PAUSE_S": "0.02",
            "TMPDIR": str(folder),
            "TRAINER_GO": str(go),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=harness.die_with_parent,
    )
    try:
        harness.wait_for("a snapshot", lambda: newest(cluster) or started.poll() is not None, 60)
        go.touch()
        out, error = started.communicate(timeout=300)
    finally:
        started.kill()
    assert started.returncode == 0, error
    harness.wait_for("the end is committed", lambda: newest(cluster) == STEPS, 10)
    return out, error


def test_torchrun(cluster, tmp_path):
    """The command of the README: torchrun's workers get the hooks through the environment."""
    start_reference(tmp_path, "ddp", 2)
    out, _ = torchrun(cluster, tmp_path, 2, SCRIPT, "ddp", str(STEPS))
    states, _ = reference(tmp_path, "ddp", 2)
    # two workers write to one pipe: a line may begin behind another
    found = re.findall(r"state ([0-9a-f]{64} \d+)", out)
    assert sorted(found) == sorted(state for each in states for state in each)


def test_torchrun_restarts(cluster, tmp_path):
    """A worker dies, torchrun starts it again, and it goes on from memory with nobody asking for
    it. (One worker: several of a restarted group read each other's former addresses at times, with
    and without Cairn: PyTorch 2.13 does not empty its store.)"""
    start_reference(tmp_path, "mlp")
    out, error = torchrun(
        cluster,
        tmp_path,
        1,
        "--max-restarts",
        "1",
        SCRIPT,
        "mlp",
        str(STEPS),
        "--mischief",
        "crash",
    )
    states, _ = reference(tmp_path, "mlp")
    assert re.findall(r"^state (.*)$", out, re.M) == states[0]
    assert 1 <= int(re.search(r"the state after update (\d+)", error).group(1)) <= 10, error


def test_terminated(cluster, tmp_path):
    """SIGTERM ends the trainer at once, and the last complete step is there."""
    start_reference(tmp_path, "mlp")
    run = Run(tmp_path, ["mlp", STEPS], 1, under(cluster), start="cold", hold_at=STEPS - 2)
    harness.wait_for(
        "step 8 and a snapshot",
        lambda: (8 in run.steps() and newest(cluster)) or run.process.poll() is not None,
    )
    assert run.process.poll() is None, run.errors()
    run.kill(signal.SIGTERM)
    committed = newest(cluster)
    last = Run(tmp_path, ["mlp", STEPS], 1, under(cluster, "--resume"))
    assert finished(last) == reference(tmp_path, "mlp")[0]
    assert committed <= min(last.steps()) <= max(run.steps()) + 1


def test_snapshot_now(tmp_path):
    """SIGUSR1 to `cairn run` takes a snapshot at one of the next steps, however rarely they are
    due."""
    with harness.Cluster(
        nodes=1, parity=0, state="4MiB", options="snapshot_every_steps: 1000"
    ) as cluster:
        cluster.start()
        run = Run(tmp_path, ["mlp", 900], 1, under(cluster), start="cold")
        harness.wait_for("step 8", lambda: 8 in run.steps() or run.process.poll() is not None)
        assert newest(cluster) == 0
        os.kill(run.process.pid, signal.SIGUSR1)
        harness.wait_for("a snapshot", lambda: newest(cluster) or run.process.poll() is not None)
        run.kill()
        assert 8 < newest(cluster) < 900, (run.errors(), cluster.log(0)[-2000:])


@pytest.mark.parametrize("kind, world, updates", [("mlp", 1, 2), ("ddp", 2, 1)])
def test_before_a_pause(cluster, tmp_path, kind, world, updates):
    """The job stands still before a forward begins a snapshot. job.snapshot_now waits for an agent
    that does not answer yet, and at the first snapshot, on rank 0, for what the other rank tells
    late. What is taken is committed, and the job goes on there."""
    go = str(tmp_path / "go")
    words = [kind, STEPS, "--mischief", "pause"]
    run = Run(tmp_path, words, world, under(cluster), {"TRAINER_GO": go}, hold_at=updates)
    agent = cluster.agents[0].pid
    last = updates - 1
    harness.wait_for("a step", lambda: last in run.steps() or run.process.poll() is not None)
    os.kill(agent, signal.SIGSTOP)
    try:
        open(go, "w").close()
        harness.wait_for("a pause", lambda: "pauses" in run.text())
        time.sleep(0.5)
        assert "paused" not in run.text(), run.errors()
    finally:
        os.kill(agent, signal.SIGCONT)
    harness.wait_for("answers", lambda: all("paused" in run.text(r) for r in range(world)))
    assert all("paused True" in run.text(rank) for rank in range(world)), run.errors()
    harness.wait_for("a commit", lambda: newest(cluster) == updates)
    run.kill()
    resumed = Run(tmp_path, [kind, STEPS], world, under(cluster, "--resume"))
    assert finished(resumed) == reference(tmp_path, kind, world)[0]
    assert min(resumed.steps()) == updates, resumed.errors()


def test_a_pause_in_a_step(cluster, tmp_path):
    """A forward has begun the snapshot: job.snapshot_now waits for it, and says once that it is
    good."""
    words = ["mlp", STEPS, "--mischief", "pause-in-a-step"]
    run = Run(tmp_path, words, 1, under(cluster), hold_at=2)
    harness.wait_for("answers", lambda: "paused" in run.text() or run.process.poll() is not None)
    assert "paused True False" in run.text(), run.errors()
    harness.wait_for("a commit", lambda: newest(cluster) == 2)
    run.kill()


def test_a_pause_without_an_agent(cluster, tmp_path):
    """The agent does not answer at all: job.snapshot_now gives up, and says that it has taken
    nothing."""
    go = str(tmp_path / "go")
    words = ["mlp", STEPS, "--mischief", "pause"]
    run = Run(tmp_path, words, 1, under(cluster), {"TRAINER_GO": go}, hold_at=2)
    harness.wait_for("step 1", lambda: 1 in run.steps() or run.process.poll() is not None)
    os.kill(cluster.agents[0].pid, signal.SIGSTOP)
    try:
        open(go, "w").close()
        harness.wait_for("an answer", lambda: "paused" in run.text())
    finally:
        os.kill(cluster.agents[0].pid, signal.SIGCONT)
    run.kill()
    assert "paused False" in run.text(), run.errors()
    assert newest(cluster) < 2


def test_changed_behind_the_optimizer(cluster, tmp_path):
    run = Run(tmp_path, ["mlp", STEPS, "--mischief", "between"], 1, under(cluster))
    finished(run)
    assert "changed inner.bias" in run.errors()
    refused = int(re.search(r"^refused (\d+)", run.text(), re.M).group(1))
    assert refused > 0, run.text()
    committed = [
        int(step) for step in re.findall(r"committed epoch=\d+ step=(\d+)", cluster.log(0))
    ]
    assert committed and all(
        step % 2 == 0 for step in committed
    ), committed  # after update N the step N + 1 writes when it is odd


@pytest.mark.parametrize(
    "before, after, named",
    [
        ([], ["--mischief", "wider"], ["extra.weight is not in the snapshot", "inner.bias"]),
        (
            ["--mischief", "more"],
            [],
            [
                "it lacks parameters; the snapshot has, and the model has not: extra.bias, "
                "extra.weight"
            ],
        ),
    ],
)
def test_other_model(cluster, tmp_path, before, after, named):
    first = Run(tmp_path, ["mlp", 8, *before], 1, under(cluster))
    finished(first)
    other = Run(tmp_path, ["mlp", 8, *after], 1, under(cluster, "--resume"))
    finished(other)
    assert min(other.steps()) == 0
    said = other.errors()
    assert "the model differs from the snapshot of step 8" in said
    assert all(name in said for name in named), said
    assert newest(cluster) == 8  # what was there was not replaced by less


@pytest.mark.parametrize("how", ["fork", "loader"])
def test_forks(cluster, tmp_path, how):
    """Children, as data loaders make them, inherit the hooks and must not touch the snapshot."""
    states, _ = reference(tmp_path, "mlp")
    run = Run(tmp_path, ["mlp", STEPS, "--mischief", how], 1, under(cluster))
    assert finished(run) == states, run.errors()
    harness.wait_for("the end is committed", lambda: newest(cluster) == STEPS, 10)


def test_raises_in_the_update(cluster, tmp_path):
    """A script that raises in mid-step leaves the last whole step, and its own traceback and exit
    code."""
    states, _ = reference(tmp_path, "mlp")
    run = Run(tmp_path, ["mlp", STEPS, "--mischief", "raise"], 1, under(cluster))
    assert run.wait() == 1
    assert "Traceback" in run.errors() and "python/cairn/" not in run.errors()
    committed = newest(cluster)
    last = Run(tmp_path, ["mlp", STEPS], 1, under(cluster, "--resume"))
    assert finished(last) == states
    assert committed <= min(last.steps()) <= 6


def test_moments_missing(cluster, tmp_path):
    """Moments that vanish: refused, by name."""
    run = Run(tmp_path, ["mlp", STEPS, "--mischief", "lose"], 1, under(cluster))
    run.wait()
    assert (
        "updated inner.weight, but holds no moments of it, or only some" in run.errors()
    ), run.errors()
    assert newest(cluster) <= 3


@pytest.mark.parametrize("agent", ["none", "a file"])
def test_without_agent(tmp_path, agent):
    """No agent, or a socket that is none: said, and the training is the same."""
    states, _ = reference(tmp_path, "mlp")
    path = tmp_path / "socket"
    if agent == "a file":
        path.write_text("no socket")
    run = Run(
        tmp_path,
        ["mlp", STEPS],
        1,
        env={"CAIRN_AGENT": str(path)},
        start="cold" if agent == "none" else "warm",
    )
    assert finished(run) == states
    assert "no agent answers" in run.errors()


def test_no_optimizer(cluster, tmp_path):
    """A script without an optimizer is left alone."""
    code = "import torch; m = torch.nn.Linear(2, 2); m(torch.ones(1, 2)); print('ran')"
    done = subprocess.run(
        [*under(cluster), PYTHON, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        env=CLEAN,
    )
    assert (
        done.returncode == 0 and done.stdout == "ran\n" and "cairn:" not in done.stderr
    ), done.stderr
    assert "NOT protected" in done.stderr and "torch.optim" in done.stderr, done.stderr


def test_costs_nothing_without_torch(cluster, tmp_path):
    """A Python process that never imports torch loads neither the library nor torch, and another
    sitecustomize still runs."""
    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    code = (
        "import sys; "
        "print(sorted(m for m in sys.modules if m in ('torch', 'ctypes', 'cairn._lib')))"
    )
    done = subprocess.run(
        [*under(cluster), PYTHON, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        env={**CLEAN, "PYTHONPATH": str(tmp_path)},
    )
    assert done.stdout == "mine\n[]\n", done.stdout + done.stderr
