"""What the cluster tests share: agents, trainers and commands as real processes on loopback.

Every wait polls and has a deadline. Children die with the test (PR_SET_PDEATHSIG); keepers, which
are nobody's children, are killed by Cluster.close, and linger only for a minute should even that
not come. CLUSTER_KEEP=1 keeps the directories.
"""
import atexit
import contextlib
import ctypes
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build/plain"))
CAIRN = os.path.join(BUILD, "cairn")
GPT = os.path.join(BUILD, "gpt")
TRAINER = os.path.join(BUILD, "tests", "cluster", "trainer")
FAULTS = os.path.join(BUILD, "libfaults.so")
STRANGER = os.path.join(BUILD, "stranger")
LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1

OK, FAILED, WARN, CRITICAL, LOST = range(5)
USAGE, INPUT, PEER, IO, AGAIN, DENIED, CONFIG = 64, 65, 69, 74, 75, 77, 78

TORN = 3  # of the trainer
# times what an idle machine takes at most: tests run on machines that have other things to do
PATIENCE = int(os.environ.get("PATIENCE", "5"))
PORT_FIRST, PORT_BLOCK, PORT_BLOCKS = 12000, 100, 190
_claims, _unused_ports = [], []

# The agents of this test are not in the user's list of agents, nor is anybody else's in theirs.
os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="cairn-run-")
atexit.register(shutil.rmtree, os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)


def build():
    """Builds what the tests run, where it is not there yet."""
    make = subprocess.run(
        ["make", "-s", "-j2", "BUILD=" + os.path.relpath(BUILD, ROOT), "all", "cluster-bins"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if make.returncode:
        sys.exit(f"the programs under test do not build:\n{make.stdout}")


def memories(pid, kind):
    """Paths of the process's memfds whose name holds `kind`, each once: a trainer's may be open
    twice."""
    found = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        try:
            if re.search(rf"memfd:cairn-.*{kind}", os.readlink(path)):
                found[os.stat(path).st_ino] = path
        except OSError:
            pass
    return sorted(found.values())


class Built(unittest.TestCase):
    """Tests of what make builds."""

    @classmethod
    def setUpClass(cls):
        build()

    def cluster(self, *arguments, **options):
        """A cluster that ends with the test."""
        cluster = Cluster(*arguments, **options)
        self.addCleanup(cluster.close)
        return cluster

    def check_restore(self, cluster, newest, asked=0, **options):
        """Has an agent restore: no older generation than `newest`, and its bytes are right. Returns
        it as (epoch, step), and the answer."""
        code, answer, error = cluster.restore(asked)
        self.assertEqual(code, OK, f"{answer} {error}")
        return self.check_restored(cluster, answer, newest, **options), answer

    def check_restored(self, cluster, answer, newest=(0, 0), **options):
        found = (answer["generation"]["epoch"], answer["generation"]["step"])
        self.assertGreaterEqual(found, newest, "a committed generation was lost")
        code, restored, text = cluster.check(**options)
        self.assertEqual((code, restored), (OK, found), text)
        return found

    def new_folder(self):
        """The path of a folder that ends with the test."""
        folder = tempfile.TemporaryDirectory(prefix="cairn-test-", ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        return folder.name

    def end_with_test(self, process):
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process


def write_key(path):
    """A new key of a job."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(os.urandom(32))
    return path


def say(text):
    print(f"    {text}", flush=True)


def wait_for(what, condition, seconds=30.0):
    """Polls until condition() gives something true, and returns it; for PATIENCE times as many
    seconds at most. It polls less often the longer it waits, and so leaves the machine to what it
    waits for."""
    seconds *= PATIENCE
    begun = time.monotonic()
    deadline = begun + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds} s still not: {what}")
        time.sleep(min(max(0.005, (time.monotonic() - begun) / 20), 0.1))


def claim_ports():
    """A block of ports below those of outgoing connections, which no other process that asks here
    has while this one lives: the name of a socket stands for the block."""
    for block in random.SystemRandom().sample(range(PORT_BLOCKS), PORT_BLOCKS):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0cairn-test-ports-{block}")
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        first = PORT_FIRST + block * PORT_BLOCK
        return list(range(first, first + PORT_BLOCK))
    raise AssertionError(f"other processes have all {PORT_BLOCKS} blocks of ports")


def free_ports(count):
    """Ports that nobody listens at and no other test gets."""
    ports = []
    while len(ports) < count:
        if not _unused_ports:
            _unused_ports.extend(claim_ports())
        port = _unused_ports.pop()
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                ports.append(port)
    return sorted(ports)


def die_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def spawn(command, log, stdout=None, prefix=()):
    with open(log, "ab") as err:
        return subprocess.Popen(
            [*prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=stdout if stdout else err,
            stderr=err,
            preexec_fn=die_with_parent,
        )


def text_of(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def cairn(*words, seconds=60 * PATIENCE, env=None):
    """Runs a verb with -o json; returns (exit code, JSON or None, stderr)."""
    code, out, err = run(*words, "-o", "json", seconds=seconds, env=env)
    try:
        return code, json.loads(out), err
    except ValueError:
        return code, None, err


def run(*words, seconds=60 * PATIENCE, env=None):
    """(exit code, stdout, stderr) of a verb, as a person calls it."""
    done = subprocess.run(
        [CAIRN, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=seconds,
        env={**os.environ, **(env or {})},
    )
    return done.returncode, done.stdout, done.stderr


def pipelines(stages, microbatches):
    """A plan: pipelines with these numbers of micro-batches, whose stages have so many layers, each
    on one device."""
    ends = list(itertools.accumulate(stages))
    return {
        "pipelines": [
            {
                "microbatches": count,
                "stages": [
                    {"devices": [p * len(stages) + s], "layers": [end - stages[s], end]}
                    for s, end in enumerate(ends)
                ],
            }
            for p, count in enumerate(microbatches)
        ]
    }


def problem(stages, microbatches, layer_ms, memory_bytes=1 << 30, layer_bytes=1 << 20):
    """A job of such pipelines as the planner sees it; each device is on its own node."""
    ranks = range(len(stages) * len(microbatches))
    return {
        "layers": sum(stages),
        "layer_ms": layer_ms,
        "microbatches": sum(microbatches),
        "tp_cost": {"1": 1},
        "layer_bytes": layer_bytes,
        "devices": [
            {"id": rank, "node": rank, "rate": 1, "memory_bytes": memory_bytes} for rank in ranks
        ],
        "link_gbps": {"intra": 100, "inter": 10},
        "current": pipelines(stages, microbatches),
    }


def undisturbed(shape):
    """The digests of losses and state of the same job of one rank, without agents and emulation.
    `shape` is the command line of examples/gpt for two replicas of two stages."""
    shape = [word.replace("4,4", "8") for word in shape]
    shape[shape.index("--dp") + 1] = shape[shape.index("--pp") + 1] = "1"
    return digests(shape)


def digests(shape):
    """The digests of losses and state of examples/gpt without agents."""
    talk = subprocess.run(
        [GPT, *shape],
        env={"PATH": "/usr/bin:/bin"},
        stderr=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60 * PATIENCE,
    ).stderr
    return re.search(r"loss_sha256 (\w+), state_sha256 (\w+)", talk).groups()


def codes(answer):
    return {check["code"] for check in answer["checks"]}


def pids_with(*arguments):
    """Processes whose command line holds all of these words."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        if words[0] != "" and all(argument in words for argument in arguments):
            found.append(int(name))
    return found


class Cluster:
    """Agents on loopback, one per node, in a temporary directory."""

    def __init__(
        self,
        nodes=6,
        parity=2,
        state="2MiB",
        options="",
        addresses=None,
        prefixes=None,
        dead_after_ms=1000,
        spares=(),
    ):
        self.dir = tempfile.mkdtemp(prefix="cairn-test-")
        self.nodes = nodes
        self.agents = [None] * nodes
        self.wiped = set()  # nodes that have lost the history of what their logs tell
        self.prefixes = prefixes or [()] * nodes
        self.programs = [CAIRN] * nodes
        self.trainers = []
        self.elements = 20000
        addresses = addresses or [f"127.0.0.1:{port}" for port in free_ports(nodes)]
        for i in range(nodes):
            with open(self.path(f"node{i}.yaml"), "w") as file:
                file.write(
                    f"job: cluster\nnode: {i}\nsocket: {self.socket(i)}\ndir: "
                    f"{self.state(i)}\nparity: {parity}\n"
                    f"state_bytes: {state}\nheartbeat_interval_ms: 100\ndead_after_ms: "
                    f"{dead_after_ms}\nkeeper_linger_s: 60\n"
                    # A test that takes long to bring a node back finds it lost, and not
                    # repaired by the others.
                    f"repair_after_ms: 600000\nlog_level: debug\n{options}\nnodes:\n"
                )
                for number, address in enumerate(addresses):
                    spare = ", spare: true" if number in spares else ""
                    file.write(f'  - {{address: "{address}"{spare}}}\n')

    def path(self, name):
        return os.path.join(self.dir, name)

    def socket(self, node):
        return self.path(f"node{node}.sock")

    def state(self, node):
        return self.path(f"state{node}")

    def log(self, node):
        return text_of(self.path(f"node{node}.log"))

    def configure(self, number, /, **options):
        """Sets options in a node's file; an option is a line."""
        with open(self.path(f"node{number}.yaml"), "r+") as file:
            text = file.read()
            for name, value in options.items():
                text = re.sub(rf"(?m)^{name}: .*\n", "", text)
                text = f"{name}: {value}\n{text}"
            file.seek(0)
            file.truncate()
            file.write(text)

    def write_problem(self, problem):
        """Writes a problem to a file; returns its path."""
        path = self.path("problem.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(problem, file)
        return path

    def plan_for(self, problem):
        """All agents plan for this problem."""
        path = self.write_problem(problem)
        for node in range(self.nodes):
            self.configure(node, problem=path)

    def status(self, node=0):
        """What `cairn status` answers; {} while there is no answer."""
        return cairn("status", "--agent", self.socket(node))[1] or {}

    def start(self, *nodes, wait=True):
        nodes = nodes or range(self.nodes)
        marks = {i: self.log(i).count("agent: serves") for i in nodes}
        for i in nodes:
            self.agents[i] = spawn(
                [self.programs[i], "agent", "--config", self.path(f"node{i}.yaml")],
                self.path(f"node{i}.log"),
                prefix=self.prefixes[i],
            )
        for i in nodes if wait else ():
            wait_for(
                f"agent {i} serves",
                lambda i=i: self.log(i).count("agent: serves") > marks[i] or self.ended(i),
                60,
            )
            assert not self.ended(
                i
            ), f"agent {i} ended with {self.agents[i].returncode}:\n{self.log(i)[-2000:]}"
        return self

    def ended(self, node):
        return self.agents[node].poll() is not None

    def kill_agent(self, node):
        self.agents[node].kill()
        self.agents[node].wait()

    def keeper(self, node):
        return pids_with("keeper", os.path.join(self.state(node), "keeper.sock"))

    def stop_agent(self, node):
        """In good order, as for an upgrade: its memory stays with the keeper."""
        self.agents[node].terminate()
        return self.agents[node].wait(timeout=30 * PATIENCE)

    def kill_keeper(self, node):
        for pid in self.keeper(node):
            with contextlib.suppress(ProcessLookupError):  # it ends by itself
                os.kill(pid, signal.SIGKILL)

    def kill_node(self, node):
        """The machine is gone: agent, keeper, trainers and state."""
        self.kill_agent(node)
        self.kill_keeper(node)
        wait_for(f"keeper {node} is gone", lambda: not self.keeper(node))
        for trainer in self.trainers:
            if trainer.agent == node:
                trainer.kill()
        shutil.rmtree(self.state(node), ignore_errors=True)
        self.wiped.add(node)

    def committed(self):
        """Newest (epoch, step) that any agent has seen committed."""
        newest = (0, 0)
        for i in range(self.nodes):
            for epoch, step in re.findall(r"save: committed epoch=(\d+) step=(\d+)", self.log(i)):
                newest = max(newest, (int(epoch), int(step)))
        return newest

    def rebuilt_blocks(self):
        """Blocks rebuilt by all repairs that no operator asked for."""
        return sum(
            int(blocks)
            for i in range(self.nodes)
            for blocks in re.findall(r"repair: ended result=.*? rebuilt_blocks=(\d+)", self.log(i))
        )

    def wait_repaired(self, *nodes):
        """Until these nodes, which came back without memory, have their parts again."""

        def repaired():
            status = self.status(nodes[0])
            return status.get("protection") and (
                status["protection"]["missing_parts"] == 0
                and not any(status["nodes"][node].get("blank", True) for node in nodes)
            )

        wait_for(f"nodes {nodes} are repaired", repaired)

    def wait_committed(self, after, seconds=30):
        return wait_for(
            f"a generation after {after} is committed",
            lambda: self.committed() > after and self.committed(),
            seconds,
        )

    def runs(self, node):
        """An agent's process is there, and not stopped."""
        if not self.agents[node] or self.ended(node):
            return False
        return (
            re.search(r"^State:\s+[Tt]", text_of(f"/proc/{self.agents[node].pid}/status"), re.M)
            is None
        )

    def wait_met(self, node):
        """Until an agent hears all others that run: one that is met late, as on a busy machine, is
        lost to a restore."""

        def met():
            _, answer, _ = cairn("status", "--agent", self.socket(node))
            return answer and answer.get("nodes_answering", 0) >= sum(
                map(self.runs, range(self.nodes))
            )

        wait_for(f"agent {node} hears all others", met)

    def restore(self, node=0, *words, seconds=60 * PATIENCE):
        """cairn restore; tries again while told to (another restore, or a repair, may be under
        way)."""
        self.wait_met(node)
        deadline = time.monotonic() + seconds
        while True:
            code, answer, error = cairn("restore", "--agent", self.socket(node), *words)
            if code not in (AGAIN, PEER) or time.monotonic() > deadline:
                return code, answer, error
            time.sleep(0.05)

    def train(self, world=None, resume=False, **options):
        """Starts one trainer per node."""
        world = world or self.nodes
        self.stop_trainers()
        barrier = self.path("barrier")
        if os.path.exists(barrier):
            os.remove(barrier)
        self.elements = options.setdefault("elements", 20000)
        self.trainers = [
            Trainer(self, rank, world, barrier, resume=resume, **options) for rank in range(world)
        ]
        return self.trainers

    def check(self, node=0, world=1, parts=None, seconds=60 * PATIENCE, restore_ms=8000, salt=0):
        """Restores everything into one process, which compares every byte: (exit code, (epoch,
        step))."""
        deadline = time.monotonic() + seconds
        while True:  # an agent that is behind says "try again", as any launcher would
            trainer = Trainer(
                self,
                0,
                world,
                self.path("barrier-check"),
                check=True,
                node=node,
                parts=parts or self.nodes,
                elements=self.elements,
                restore_ms=restore_ms,
                salt=salt,
            )
            code = trainer.process.wait(timeout=60 * PATIENCE)
            if code != AGAIN or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        found = re.findall(r"restored (\d+) (\d+)", trainer.out())
        return (
            code,
            (int(found[-1][0]), int(found[-1][1])) if found else None,
            trainer.out() + trainer.err(),
        )

    def stop_trainers(self):
        for trainer in self.trainers:
            trainer.kill()
        self.trainers = []

    def history(self, node):
        """What `cairn history` answers."""
        code, answer, error = cairn("history", "--agent", self.socket(node))
        assert code == OK, f"cairn history of node {node}: exit {code}: {answer} {error}"
        return answer

    def events(self, *kinds, node=0):
        """Events of the history in causal order, of these kinds or all, as an agent tells them."""
        events = self.history(node)["events"]
        return [each for each in events if not kinds or each["kind"] in kinds]

    def check_history(self):
        """At the end of every test: if an agent still answers, its history tells what the agents'
        logs tell, in order. A stopped process would only make it wait."""
        running = [i for i in range(self.nodes) if self.agents[i] and not self.ended(i)]
        if not running or self.programs != [CAIRN] * self.nodes:
            return
        if not all(map(self.runs, running)) or "agent: serves" not in self.log(running[0]):
            return
        answering = (node for node in running if self.status(node))
        first = next(answering, None)
        if first is None:
            return
        # Before the history: an epoch may begin meanwhile. An agent that was killed may not have
        # stored its last events.
        log = next((self.log(node) for node in running if node not in self.wiped), "")
        log = log.rpartition("agent: serves")[2]
        history = self.history(first)
        events = history["events"]
        last = {}  # of a node: the number and the epoch
        for event in events:
            node, number = map(int, event["id"].split("."))
            assert node == event["node"] and event["text"] and event["seen_by"], event
            assert event["wall_ns"] <= event.get("until_wall_ns", event["wall_ns"]), event
            assert (number, event["epoch"]) >= last.get(node, (0, 0)), f"{event} after {last[node]}"
            assert event["epoch"] >= last.get(node, (0, 0))[1], f"{event} after {last[node]}"
            last[node] = (number, event["epoch"])
        kinds = {event["kind"] for event in events}
        told = {event["node"] for event in events if event["kind"] == "start"}
        heard = {each["node"] for each in history["nodes"] if each["history"] == "whole"}
        assert first in told and told == heard, f"starts of {told}, histories of {heard}"
        epochs = [event["epoch"] for event in events if event["kind"] == "epoch"]
        assert epochs == sorted(set(epochs)), f"epochs, each once and in order: {epochs}"
        for line, told in (
            ("epoch: active epoch=", {"epoch"}),
            ("save: committed epoch=", {"commit"}),
            ("repair: ended result=", {"repair", "restore", "verify"}),
        ):
            assert kinds & told or line not in log, f"the history has none of {told}: {kinds}"

    def close(self):
        try:
            self.check_history()
        finally:
            self.end()

    def end(self):
        self.stop_trainers()
        for agent in self.agents:
            if agent:
                agent.kill()
                agent.wait()
        for i in range(self.nodes):
            self.kill_keeper(i)
        if os.environ.get("CLUSTER_KEEP"):
            say(f"kept: {self.dir}")
        else:
            shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            self.say_status()
        self.close()

    def say_status(self):
        """What an operator would see, from the first agent that answers."""
        for node, agent in enumerate(self.agents):
            if agent and agent.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    say(run("status", "--agent", self.socket(node), seconds=20)[1])
                    return


class Trainer:
    """A tests/cluster/trainer process."""

    count = 0

    def __init__(
        self,
        cluster,
        rank,
        world,
        barrier,
        resume=False,
        check=False,
        node=None,
        parts=None,
        elements=20000,
        step_us=2000,
        steps=None,
        restore_ms=60000,
        timing=False,
        waits=None,
        misplaced=None,
        salt=0,
        wait_us=None,
        launch=None,
        weights=None,
    ):
        Trainer.count += 1
        self.agent = rank if node is None else node
        self.rank = rank
        self.out_path = cluster.path(f"trainer-{Trainer.count}.out")
        self.err_path = cluster.path(f"trainer-{Trainer.count}.err")
        command = [
            TRAINER,
            "--rank",
            rank,
            "--world",
            world,
            "--parts",
            parts or world,
            "--agent",
            cluster.socket(self.agent),
            "--barrier",
            barrier,
            "--elements",
            elements,
            "--step-us",
            step_us,
            "--restore-ms",
            restore_ms,
        ]
        command += ["--steps", steps] if steps else []
        command += ["--resume"] if resume else []
        command += ["--check"] if check else []
        command += ["--timing"] if timing else []
        command += [f"--slow-{waits}"] if waits else []
        command += ["--misplaced"] if misplaced == rank else []
        command += ["--salt", salt] if salt else []
        command += ["--wait-us", wait_us] if wait_us else []
        command += ["--launch", launch] if launch else []
        command += [f"--{weights}"] if weights else []
        with open(self.out_path, "wb") as out:
            self.process = spawn([str(word) for word in command], self.err_path, stdout=out)

    def out(self):
        return text_of(self.out_path)

    def err(self):
        return text_of(self.err_path)

    def kill(self, number=signal.SIGKILL):
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)
            os.kill(self.process.pid, number)
        return self.process.wait(timeout=30 * PATIENCE)

    def step(self):
        """Newest step begun."""
        begun = re.findall(r"begun (\d+)", self.out())
        return int(begun[-1]) if begun else 0
