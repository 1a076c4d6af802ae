"""torchrun's backend `cairn`: a job that comes back by itself, on nodes that are network
namespaces; and what the launchers decide, from what their agents show."""

import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))
sys.path.insert(0, str(ROOT / "bindings" / "python"))

import harness  # noqa: E402
from cairn import _round, _warm  # noqa: E402
from cairn._round import Follow, Form, Note, Over, Peer, Refuse, Seat, Wait  # noqa: E402

TRAINER = str(ROOT / "tests" / "interop" / "rendezvous_trainer.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "cairn"]
TORCHRUN += ["--nproc-per-node", "1"]
STEPS = 100_000  # more than any job makes: end_after() sets the last
PAUSE_S = 0.1
FAULT_TO_STEP_S = 20
NODES, HUB = 4, f"cairn{os.getpid()}hub"
SPACES = [f"cairn{os.getpid()}n{node}" for node in range(NODES)]


# ---- nodes that are network namespaces ----


def ip(*words):
    return subprocess.run(
        ["ip", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def set_up_network():
    """One link per node, joined by a bridge. Returns why not."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        return "network namespaces need root and the ip command"
    for name in (HUB, *SPACES):
        made = ip("netns", "add", name)
        if made.returncode:
            return f"no network namespace can be made: {made.stdout.strip()}"
        ip("-n", name, "link", "set", "dev", "lo", "up")
    made = ip("-n", HUB, "link", "add", "bridge0", "type", "bridge")
    if made.returncode:
        return f"no bridge can be made: {made.stdout.strip()}"
    ip("-n", HUB, "link", "set", "dev", "bridge0", "up")
    for node, name in enumerate(SPACES):
        words = ("type", "veth", "peer", "name", f"port{node}", "netns", HUB)
        made = ip("link", "add", "link0", "netns", name, *words)
        if made.returncode:
            return f"no link between namespaces can be made: {made.stdout.strip()}"
        ip("-n", HUB, "link", "set", "dev", f"port{node}", "master", "bridge0", "up")
        ip("-n", name, "addr", "add", f"10.77.1.{node + 1}/24", "dev", "link0")
        ip("-n", name, "link", "set", "dev", "link0", "up")
    return None


def remove_network():
    for name in (HUB, *SPACES):
        ip("netns", "del", name)


def make_spare(cluster, number):
    """Makes the last node of the list a spare, in the file of this one."""
    path = pathlib.Path(cluster.path(f"node{number}.yaml"))
    lines = path.read_text().splitlines()
    lines[-1] = lines[-1].replace("}", ", spare: true}")
    path.write_text("\n".join(lines) + "\n")


class Job:
    """A launcher on each node, in a namespace of its own."""

    def __init__(self, folder):
        self.log = str(folder / "steps")
        self.folder = folder
        self.cluster = harness.Cluster(
            NODES,
            1,
            state="1MiB",
            options=f"key_file: {folder}/key",
            addresses=[f"10.77.1.{node + 1}:7431" for node in range(NODES)],
            prefixes=[("ip", "netns", "exec", name) for name in SPACES],
        )
        (folder / "key").write_bytes(os.urandom(32))
        (folder / "key").chmod(0o600)
        for node in range(NODES):
            make_spare(self.cluster, node)
        self.cluster.start()
        self.launchers = [self.launch(node) for node in range(NODES)]

    def launch(self, node, *words):
        command = [harness.CAIRN, "run", "--agent", self.cluster.socket(node), "--", *TORCHRUN]
        command += ["--nnodes", "2:3", "--max-restarts", "9", *words]
        settings = (f"TRAINER_PAUSE_S={PAUSE_S}", "GLOO_SOCKET_IFNAME=link0", "OMP_NUM_THREADS=1")
        return harness.spawn(
            [*command, TRAINER, str(STEPS), self.log],
            str(self.folder / f"out{node}"),
            prefix=("ip", "netns", "exec", SPACES[node], "env", *settings),
        )

    def said(self, node):
        return harness.text_of(str(self.folder / f"out{node}"))

    def all_said(self):
        """What the launchers and the agents have said last, to find out why a test failed."""
        return "\n".join(
            f"---- {who} {node}:\n" + "\n".join(text.splitlines()[-40:])
            for node in range(NODES)
            for who, text in (("launcher", self.said(node)), ("agent", self.cluster.log(node)))
        )

    def lines(self, kind="update"):
        """[rank, world, step, loss, state, seconds] of each update, or begin."""
        found = [line.split() for line in harness.text_of(self.log).splitlines()]
        return [each[1:] for each in found if each[0] == kind and len(each) == 7]

    def step(self, since=0.0):
        return max((int(each[2]) for each in self.lines() if float(each[5]) > since), default=0)

    def lose_power(self, node, is_cut):
        """Kills all processes of the node; is_cut: no packet tells anybody."""
        if is_cut:
            assert ip("-n", SPACES[node], "link", "set", "dev", "link0", "down").returncode == 0
        at = time.time()
        while pids := ip("netns", "pids", SPACES[node]).stdout.split():
            for pid in pids:
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.01)
        shutil.rmtree(self.cluster.state(node), ignore_errors=True)
        self.launchers[node].wait()
        self.cluster.agents[node].wait()
        return at

    def wait_for(self, what, condition, seconds=30):
        try:
            return harness.wait_for(what, condition, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; said:\n{self.all_said()}") from None

    def await_step(self, after_step, since, seconds=30):
        self.wait_for("training goes on", lambda: self.step(since) > after_step, seconds)
        return min(float(each[5]) for each in self.lines() if float(each[5]) > since)

    def close(self):
        for node, name in enumerate(SPACES):
            for pid in ip("netns", "pids", name).stdout.split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.cluster.close()


def end_after(log, step):
    """Tells the job its last step."""
    pathlib.Path(log + ".new").write_text(str(step))
    os.rename(log + ".new", log + ".end")


def reference(folder, steps):
    """{(rank, step): (loss, state)} of the job that nothing happens to."""
    log = str(folder / "reference")
    outputs = ":".join(str(folder / f"reference{rank}") for rank in range(3))
    settings = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "RANK_OUTPUTS": outputs}
    settings |= {"MASTER_PORT": str(harness.free_ports(1)[0]), "TRAINER_PAUSE_S": "0"}
    settings |= {"PYTHONPATH": str(ROOT / "bindings" / "python"), "CAIRN_AGENT": "/nowhere"}
    subprocess.run(
        [sys.executable, TRAINER, str(steps), log],
        env={**os.environ, **settings},
        stderr=subprocess.DEVNULL,
        check=True,
        timeout=60 * harness.PATIENCE,
    )
    lines = [line.split() for line in harness.text_of(log).splitlines()]
    return {
        (int(each[1]), int(each[3])): (each[4], each[5]) for each in lines if each[0] == "update"
    }


@pytest.fixture
def job(tmp_path):
    harness.build()
    reason = set_up_network()
    try:
        if reason:
            pytest.skip(reason)
        started = Job(tmp_path)
        try:
            yield started
        finally:
            started.close()
    finally:
        remove_network()


def test_a_standby_takes_over_and_two_nodes_go_on(job, tmp_path):
    """Rank 0's node loses power; then the standby that took over dies, and too few agents are left
    to restore until a machine is back, without a launcher."""
    job.wait_for("a commit", lambda: job.step() > 8 and job.cluster.committed() >= (1, 5), 60)
    before = job.step()
    fault = job.lose_power(0, is_cut=True)
    first = job.await_step(before + 5, fault, 60)
    harness.say(f"a node without power: {first - fault:.1f} s from the fault to the first step")
    crowd = max(1.0, os.getloadavg()[0] / os.cpu_count())  # others that share the machine
    assert first - fault <= FAULT_TO_STEP_S * crowd, "\n".join(map(job.said, (1, 2, 3)))
    assert re.search(r"round 2: 3 nodes, rank 0 on node 3, rank 1 on node 1", job.said(3))

    before = job.step()
    job.wait_for("that step is committed", lambda: job.cluster.committed()[1] >= before)
    fault = job.lose_power(3, is_cut=False)
    reached = job.step()
    job.wait_for("they say what they wait for", lambda: "2 of the job's 4" in job.said(1), 30)
    assert job.step(fault) <= reached + 1  # the update that was under way
    back = time.time()
    assert ip("-n", SPACES[0], "link", "set", "dev", "link0", "up").returncode == 0
    job.cluster.start(0)
    first = job.await_step(before, back, 60)
    harness.say(f"two nodes: {first - back:.1f} s from the machine's return to the first step")
    begins = [each for each in job.lines("begins") if float(each[5]) > back]
    assert sorted((rank, world) for rank, world, *_ in begins) == [("0", "2"), ("1", "2")]
    last = job.step() + 20
    end_after(job.log, last)
    for node in (1, 2):
        assert job.launchers[node].wait(60 * harness.PATIENCE) == 0, job.said(node)
    assert job.step() == last
    expected = reference(tmp_path, last)
    step, state = int(begins[0][2]), begins[0][4]
    assert step >= before and state == expected[1, step][1] == begins[1][4]
    for rank, world, step, loss, state, _ in job.lines():
        if world == "3":
            assert (loss, state) == expected[int(rank), int(step)], (rank, step)


def test_a_healthy_job_is_left_alone_and_ends_everywhere(tmp_path):
    """The first round takes a spare, since a regular node comes after the last call. An agent dies
    while its node trains on; then a worker dies, before the launcher beside the new agent has left
    its note there: so the round takes the standby, whose agent is not a member, and resumes. Then
    the job ends, also for the standby, which does not run under `cairn run`."""
    harness.build()
    cluster = harness.Cluster(3, 1, state="1MiB")
    for node in range(3):
        make_spare(cluster, node)
    log = str(tmp_path / "steps")
    outputs = [str(tmp_path / f"out{node}") for node in range(3)]

    def lines(kind):
        return [line.split() for line in harness.text_of(log).splitlines() if line.startswith(kind)]

    def said():
        return "".join(map(harness.text_of, outputs))

    def step():
        return max((int(each[3]) for each in lines("update")), default=0)

    def launch(node, *options):
        command = [*TORCHRUN, "--nnodes", "2:2", "--max-restarts", "9", *options]
        command += [TRAINER, str(STEPS), log]
        if "--rdzv-endpoint" not in options:
            command = [harness.CAIRN, "run", "--agent", cluster.socket(node), "--", *command]
        # what installing bindings/python gives, too
        path = f"PYTHONPATH={ROOT}/bindings/python:{ROOT}/bindings/python/cairn/autoload"
        settings = ("OMP_NUM_THREADS=1", "TRAINER_PAUSE_S=0.1", f"NODE={node}", path)
        return harness.spawn(command, outputs[node], prefix=("env", *settings))

    def nodes_with_parked():
        found = set()
        for pid in harness.pids_with(_warm.PROGRAM):
            words = harness.text_of(f"/proc/{pid}/environ").split("\0")
            found |= {int(each[5:]) for each in words if each.startswith("NODE=")}
        return found

    try:
        cluster.start()
        conf = ("--rdzv-conf", "last_call_timeout=1,warm=0", "--local-addr", "127.0.0.2")
        launchers = [launch(0, *conf)]
        harness.wait_for("the first one waits", lambda: "1 of at least 2" in said(), 60)
        time.sleep(1)
        launchers.append(launch(2))
        harness.wait_for("training", lambda: step() > 5 and cluster.committed() >= (1, 3), 60)
        assert "before spares" not in said()
        launchers.append(launch(1, "--rdzv-endpoint", cluster.socket(1)))
        harness.wait_for("one is parked", lambda: 2 in nodes_with_parked())
        cluster.kill_agent(2)
        harness.wait_for("the death is known", lambda: not cluster.status(0)["nodes"][2]["alive"])
        mark = step()
        harness.wait_for("training goes on", lambda: step() > mark + 15)
        assert 0 not in nodes_with_parked()
        assert [each[4] for each in lines("begins")] == ["127.0.0.2"] * 2
        late = [
            pid
            for pid in harness.pids_with("torch.distributed.run", log)
            if f"CAIRN_AGENT={cluster.socket(2)}" in harness.text_of(f"/proc/{pid}/environ")
        ]
        assert late
        for pid in late:
            os.kill(pid, signal.SIGSTOP)
        cluster.start(2)
        worker = next(pid for pid in harness.pids_with(TRAINER, log) if os.getsid(pid) == pid)
        os.kill(worker, signal.SIGKILL)
        harness.wait_for("they restart", lambda: len(lines("begins")) == 4)
        assert all(int(each[3]) > 0 for each in lines("begins")[2:]), said()
        assert "rank 1 on node 1" in said()
        for pid in late:
            os.kill(pid, signal.SIGCONT)
        last = step() + 50
        end_after(log, last)
        for launcher in launchers:
            assert launcher.wait(60 * harness.PATIENCE) == 0, said()
        assert step() == last and len(lines("begins")) == 4, said()
        assert "the job has ended" in said()
    finally:
        cluster.close()


# ---- workers that wait ----


def test_a_parked_worker_becomes_the_script(tmp_path, monkeypatch):
    """It has PyTorch before, and the rest is as torchrun would have started it."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "print('torch' in sys.modules, __name__, __file__, sys.argv, sys.path[0])\n"
        "print(*map(os.environ.get, ('RANK', 'CAIRN_AGENT')), os.getpid() == os.getsid(0))\n"
        "sys.exit(7)\n"
    )
    monkeypatch.setenv("CAIRN_AGENT", "/nowhere")
    monkeypatch.setenv("CAIRN_PRELOAD", "csv,no_such_module")
    warm = _warm.Warm()
    command = [sys.executable, "-u", str(script), "a", "b c"]
    environment = {**os.environ, "RANK": "3", "TORCHELASTIC_RESTART_COUNT": "2"}
    try:
        assert warm.take(command, environment, None, None) is None  # none is there
        for name in ("RANK", "LD_PRELOAD"):
            warm.keep(1)
            assert select.select([warm._parked[0].channel], [], [], 60 * harness.PATIENCE)[0]
            with open(tmp_path / name, "w") as out:
                taken = warm.take(command, {**environment, name: "3"}, out, None)
            if name == "LD_PRELOAD":
                assert taken is None  # Python would have started with another library
                continue
            assert taken.wait(60 * harness.PATIENCE) == 7
            assert (tmp_path / name).read_text().splitlines() == [
                f"True __main__ {script} {[str(script), 'a', 'b c']} {tmp_path}",
                "3 /nowhere True",
            ]
    finally:
        warm.close()


# ---- what is decided ----

NOTE = Note(run="a", nodes="2:3", state=_round.JOINS, host="h", door=1)
TRAINING = NOTE._replace(state=_round.TRAINS, term=4, job="j", rank=0)


def joins(node, term=0, **others):
    note = NOTE._replace(term=term, job="j" if term else "")
    return Peer(node, attached=True, note=note, **others)


def trains(node, **others):
    return Peer(node, attached=True, note=TRAINING._replace(rank=node), **others)


def dead(node):
    return Peer(node, alive=False, answered=False)


def plan(me, peers, jobs_seen=(), may_complete=False):
    own = next(peer.note for peer in peers if peer.node == me)
    return _round.plan(me, own, peers, set(jobs_seen), may_complete)


def test_notes_travel():
    note = NOTE._replace(term=3, job="ff", opens=(4, 5, "token"))
    assert _round.note_of(note.text()) == note
    for text in ("", "[]", "{}", "[1,2]", note.text()[:-1], None, note.text().replace("3", '"x"')):
        assert _round.note_of(text) is None
    longest = NOTE._replace(run="r" * 200, term=10**9, job="f" * 16, host="h" * 64, rank=16383)
    longest = longest._replace(opens=(10**9, 65535, "f" * 16), nodes="16384:16384")
    assert len(longest.text()) <= _round.NOTE_BYTES_MAX


def test_the_first_round_waits_for_the_least_number_and_for_spares():
    peers = [joins(0), Peer(1), Peer(2), Peer(3, spare=True)]
    assert "1 of at least 2" in plan(0, peers).why
    peers[1] = joins(1)
    assert isinstance(plan(0, peers, may_complete=True), Wait)
    assert isinstance(plan(0, peers), Form) and plan(0, peers).term == 1
    peers[3] = joins(3, spare=True)
    assert "before spares" in plan(0, peers, may_complete=True).why
    peers[2] = joins(2)
    formed = plan(0, peers, may_complete=True)
    assert set(_round.choose(0, formed.joining, {}, 3)) == {0, 1, 2}
    assert isinstance(plan(1, peers), Wait)  # for node 0, which leads


def test_a_spare_leads_only_spares():
    peers = [joins(0, spare=True), joins(1), joins(2)]
    assert isinstance(plan(1, peers), Form) and isinstance(plan(0, peers), Wait)


def test_survivors_keep_their_ranks_and_the_standby_takes_the_free_one():
    seats = {node: Seat(node, "h", 1) for node in range(3)}
    peers = [dead(0), joins(1, 4), joins(2, 4), joins(3)]
    formed = plan(1, peers)
    assert isinstance(formed, Form) and formed.term == 5
    after = _round.choose(1, formed.joining, seats, 3)
    assert {node: seat.rank for node, seat in after.items()} == {1: 1, 2: 2, 3: 0}


def test_returning_nodes_come_before_holders_and_those_before_others():
    seats = {node: Seat(node, "h", 1) for node in range(3)}
    joining = [joins(1, 4), joins(2, 4), joins(3), joins(0, holds=False)]
    assert set(_round.choose(1, joining, seats, 3)) == {0, 1, 2}
    assert set(_round.choose(1, [*joining[:3], joins(4, holds=False)], seats, 3)) == {1, 2, 3}
    assert {seat.rank for seat in _round.choose(1, joining[:2], seats, 3).values()} == {0, 1}


def test_a_standby_stands_by_while_the_job_trains():
    waits = plan(3, [trains(0), trains(1), trains(2), joins(3)])
    assert "stands by" in waits.why and not waits.counts
    assert _round.newcomers(TRAINING, [joins(3)], {0: Seat(0, "h", 1)}) == [3]
    full = {node: Seat(node, "h", 1) for node in range(3)}
    assert _round.newcomers(TRAINING, [joins(3)], full) == []


def test_nobody_goes_on_before_the_workers_of_the_round_have_stopped():
    assert "stop the workers" in plan(1, [dead(0), joins(1, 4), trains(2), joins(3)]).why
    assert "not certain" in plan(1, [Peer(0, answered=False), joins(1, 4), joins(2, 4)]).why


def test_half_of_the_agents_are_not_enough():
    peers = [dead(0), joins(1, 4), joins(2, 4), dead(3)]
    assert "2 of the job's 4" in plan(1, peers).why
    peers[0] = Peer(0)
    assert isinstance(plan(1, peers), Form)


def test_a_follower_follows():
    peers = [joins(0, 4), joins(1, 4)]
    opened = peers[0].note._replace(opens=(5, 7000, "t"))
    peers[0] = peers[0]._replace(note=opened)
    assert plan(1, peers) == Follow(peers[0])


def test_the_end_of_the_job_reaches_those_that_saw_it_run():
    closed = Peer(0, note=TRAINING._replace(state=_round.CLOSED, failed=True))
    assert plan(1, [closed, joins(1, 4)]) == Over(0, True)
    assert plan(1, [closed, joins(1)], jobs_seen=["j"]) == Over(0, True)
    assert isinstance(plan(1, [closed, joins(1)]), Wait)  # of a start before


@pytest.mark.parametrize("state", [_round.JOINS, _round.TRAINS])
def test_launchers_that_do_not_fit_are_refused(state):
    other = NOTE._replace(nodes="2:4", state=state)
    refused = plan(1, [Peer(0, attached=True, note=other), joins(1), Peer(2)])
    assert isinstance(refused, Refuse) and "2:4" in refused.why and "2:3" in refused.why
    assert isinstance(plan(0, [joins(0)]), Refuse)  # the agents know of one node
    stranger = Peer(0, attached=True, note=NOTE._replace(run="b"))
    assert "--rdzv-id b" in plan(1, [stranger, joins(1)]).why
