#!/usr/bin/env python3
"""A job under a real Slurm: slurmctld, and five nodes with slurmd in network namespaces of their
own, with the prolog and the epilog of examples/deploy."""
import contextlib
import glob
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

from harness import BUILD, CAIRN, PATIENCE, ROOT, TRAINER, Built, cairn, pids_with, say, text_of
from harness import wait_for
from test_namespaces import ip, why_not

DEPLOY = os.path.join(ROOT, "examples", "deploy")
NODES = 5
USER = "nobody"
STEPS = 300
CONTROL = f"cairn{os.getpid()}c"
NAMES = [f"cairn{os.getpid()}n{i}" for i in range(1, NODES + 1)]

SLURM_CONF = """\
ClusterName=cairn
SlurmctldHost=control(10.78.0.100)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/%n
SlurmctldPidFile={dir}/control.pid
SlurmdPidFile={dir}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
PrologFlags=Alloc
JobRequeue=1
RequeueExit=75
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
Prolog={dir}/prolog
Epilog={dir}/epilog
{nodes}
PartitionName=all Nodes=n[1-{count}] Default=YES MaxTime=INFINITE State=UP GraceTime=120
PartitionName=urgent Nodes=n[1-{count}] MaxTime=INFINITE State=UP PriorityTier=10
"""

# The folder of a real node is its own; here they share a file system.
SCRIPT = """\
#!/bin/sh
export CAIRN_ETC={dir}/etc CAIRN_RUN={dir}/run/$SLURMD_NODENAME CAIRN_SHARED={dir}/shared
export PATH={dir}/bin:$PATH
exec {deploy}/slurm-{which}.sh
"""

AGENT = """\
parity: 1
state_bytes: 4MiB
heartbeat_interval_ms: 100
dead_after_ms: 2000
repair_after_ms: 4000
keeper_linger_s: 240
"""

# With the lines on preemption of examples/deploy/README.md.
JOB = """\
#!/bin/bash
#SBATCH --nodes=4 --requeue --open-mode=append --output={dir}/user/job-%j.out
#SBATCH --signal=B:TERM@60
export PATH={dir}/bin:$PATH LD_LIBRARY_PATH={dir}/bin
export BARRIER={dir}/user/barrier-$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}
export CAIRN_AGENT={dir}/run/$SLURMD_NODENAME/job-$SLURM_JOB_ID/agent/agent.sock
cairn run --grace 45s --resume -- srun --label sh -c 'exec trainer --rank $SLURM_PROCID --world 4 \
    --parts 4 --resume --steps $(cat {dir}/user/steps) --step-us 40000 --restore-ms 60000 --timing \
    --barrier $BARRIER --agent {dir}/run/$SLURMD_NODENAME/job-$SLURM_JOB_ID/agent/agent.sock' &
pid=$!
trap 'kill -TERM $pid' TERM
wait $pid
wait $pid
code=$?
echo "the trainers ended with $code"
[ $code -eq 0 ] && srun sh -c 'touch {dir}/run/$SLURMD_NODENAME/job-$SLURM_JOB_ID/agent/over'
exit $code
"""


def kill_all(pids):
    """Kills processes. The end of one may end others before their turn."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def why_not_here():
    for name in ("slurmctld", "slurmd", "sbatch"):
        if not shutil.which(name):
            return f"{name} is not installed"
    return why_not()


class Slurm(Built):
    def setUp(self):
        reason = why_not_here()
        if reason:
            self.skipTest(reason)
        # The job's user must get there, and the runner's own folder is closed.
        self.dir = tempfile.mkdtemp(prefix="cairn-slurm-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.addCleanup(self.end_all)
        for name in (
            "state",
            "etc",
            "shared",
            "user",
            "bin",
            *(f"run/n{i}" for i in range(1, NODES + 1)),
        ):
            os.makedirs(os.path.join(self.dir, name))
        os.chmod(self.dir, 0o755)
        shutil.chown(os.path.join(self.dir, "user"), USER)
        for program in (CAIRN, TRAINER, *glob.glob(f"{BUILD}/libcairn.so*")):
            shutil.copy(program, os.path.join(self.dir, "bin"))
        self.join_nodes()
        self.write_files()
        self.slurm = [self.start(CONTROL, "control", "slurmctld")]
        for i, name in enumerate(NAMES, 1):
            self.slurm.append(self.start(name, f"n{i}", "slurmd", "-N", f"n{i}"))
        try:
            wait_for("all nodes are idle", lambda: self.idle() == NODES, 20)
        except AssertionError:
            for daemon, host in zip(self.slurm, ("control", *(f"n{i + 1}" for i in range(NODES)))):
                if daemon.poll() is not None:
                    text = text_of(os.path.join(self.dir, f"{host}.out")).strip()
                    self.assertNotIn("onfiguration", text)
                    self.skipTest(f"Slurm does not start here: {text.splitlines()[-1:]}")
            raise

    def join_nodes(self):
        """A namespace per node, and one with a bridge between them."""
        self.assertEqual(ip("netns", "add", CONTROL).returncode, 0)
        for words in (
            ("link", "add", "bridge0", "type", "bridge"),
            ("addr", "add", "10.78.0.100/24", "dev", "bridge0"),
            ("link", "set", "bridge0", "up"),
            ("link", "set", "lo", "up"),
        ):
            self.assertEqual(ip("-n", CONTROL, *words).returncode, 0)
        for i, name in enumerate(NAMES, 1):
            self.assertEqual(ip("netns", "add", name).returncode, 0)
            pair = ("link", "add", f"node{i}", "netns", CONTROL, "type", "veth")
            self.assertEqual(ip(*pair, "peer", "name", "eth0", "netns", name).returncode, 0)
            for place, words in (
                (CONTROL, ("set", f"node{i}", "master", "bridge0", "up")),
                (name, ("set", "eth0", "up")),
                (name, ("set", "lo", "up")),
            ):
                self.assertEqual(ip("-n", place, "link", *words).returncode, 0)
            self.assertEqual(
                ip("-n", name, "addr", "add", f"10.78.0.{i}/24", "dev", "eth0").returncode, 0
            )

    def write_files(self):
        hosts = [f"10.78.0.{i} n{i}" for i in range(1, NODES + 1)]
        hosts += ["127.0.0.1 localhost", "10.78.0.100 control"]
        nodes = [f"NodeName=n{i} NodeAddr=10.78.0.{i} CPUs=1" for i in range(1, NODES + 1)]
        for name, text in (
            ("hosts", "\n".join(hosts) + "\n"),
            ("slurm.conf", SLURM_CONF.format(dir=self.dir, nodes="\n".join(nodes), count=NODES)),
            ("job", JOB.format(dir=self.dir)),
            ("user/steps", str(STEPS)),
            ("etc/agent.yaml.in", AGENT),
            ("etc/site.key", os.urandom(16).hex()),
            *(
                (which, SCRIPT.format(dir=self.dir, deploy=DEPLOY, which=which))
                for which in ("prolog", "epilog")
            ),
        ):
            with open(os.path.join(self.dir, name), "w") as file:
                file.write(text)
        os.chmod(os.path.join(self.dir, "etc/site.key"), 0o600)
        for name in ("prolog", "epilog"):
            os.chmod(os.path.join(self.dir, name), 0o755)

    def start(self, namespace, host, *daemon):
        """A daemon on a host of its own name, which knows the others' addresses."""
        conf = os.path.join(self.dir, "slurm.conf")
        inside = f"mount --bind {self.dir}/hosts /etc/hosts && hostname {host} && exec "
        inside += " ".join((*daemon, "-D", "-f", conf))
        with open(os.path.join(self.dir, f"{host}.out"), "w") as out:
            return subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{namespace}", "unshare", "-u", "-m"]
                + ["sh", "-c", inside],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "SLURM_CONF": conf},
            )

    def command(self, *words, user="root"):
        done = subprocess.run(
            ["nsenter", f"--net=/run/netns/{CONTROL}", "unshare", "-m", "sh", "-c"]
            + [f'mount --bind {self.dir}/hosts /etc/hosts && exec "$@"', "sh"]
            + ["setpriv", f"--reuid={user}", "--clear-groups", *words],
            env={**os.environ, "SLURM_CONF": os.path.join(self.dir, "slurm.conf")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60 * PATIENCE,
        )
        return done.stdout

    def idle(self):
        found = re.search(r"(?m)^(\d+)$", self.command("sinfo", "-h", "-t", "idle", "-o", "%D"))
        return int(found[1]) if found else 0

    def kill_node(self, number):
        kill_all(self.pids(number))

    def end_all(self):
        for i in range(NODES):
            self.kill_node(i + 1)
        kill_all(int(pid) for pid in ip("netns", "pids", CONTROL).stdout.split())
        for daemon in getattr(self, "slurm", []):
            daemon.wait()
        for name in (*NAMES, CONTROL):
            ip("netns", "del", name)

    def submit(self, *words, user=USER):
        answer = self.command("sbatch", *(words or (f"{self.dir}/job",)), user=user)
        self.assertRegex(answer, r"job \d+")
        return int(re.search(r"job (\d+)", answer)[1])

    def out(self, job):
        return text_of(os.path.join(self.dir, f"user/job-{job}.out"))

    def resumed(self, job):
        """The step after which each rank went on."""
        return [int(step) for step in re.findall(r"(?m)^\d: restored \d+ (\d+)$", self.out(job))]

    def newest(self, job, node):
        socket = os.path.join(self.dir, f"run/n{node}/job-{job}/agent/agent.sock")
        status = cairn("status", "--agent", socket)[1] or {}
        return (status.get("newest") or {}).get("step") or 0

    def wait(self, job, what, condition, seconds=30):
        """Waits; if that is in vain it says what Slurm, the job and the agents wrote."""
        try:
            return wait_for(what, condition, seconds)
        except AssertionError:
            say(self.command("squeue") + self.command("sinfo"))
            say(re.sub(r"(?m)^\d: begun \d+\n", "", self.out(job)))
            for path in glob.glob(f"{self.dir}/*.out") + glob.glob(
                f"{self.dir}/run/*/job-{job}/agent.log"
            ):
                say(f"== {path}\n{text_of(path)[-3000:]}")
            raise

    def has_ended(self, job):
        return "JobState=COMPLETED" in self.command("scontrol", "show", "job", str(job))

    def wait_requeued(self, job):
        """Until the job waits, and goes on as soon as it can: Slurm would let it wait for two
        minutes, and runs no prolog for a job that begins in the second in which its epilog ended.
        """
        self.wait(
            job,
            "the job waits",
            lambda: "PENDING" in self.command("scontrol", "show", "job", str(job)),
            60,
        )
        self.command("scontrol", "update", f"job={job}", "starttime=now+3seconds")

    def option(self, text):
        """More options of the agents of jobs to come."""
        with open(f"{self.dir}/etc/agent.yaml.in", "a") as file:
            file.write(text)

    def test_preempted(self):
        """A job of higher priority takes the nodes. What the preempted job did is in files before
        it gives them up, and it goes on from there, though all memory is gone."""
        spill = f"{self.dir}/user/spill"
        self.option(f"spill_dir: {spill}\n")
        job = self.submit()
        self.wait(job, "a generation", lambda: self.newest(job, 1) > 20)
        committed = self.newest(job, 1)
        urgent = self.submit("-p", "urgent", f"-N{NODES}", "-o", "/dev/null", "--wrap", "sleep 2")
        said = self.wait(
            job,
            "it says what it keeps",
            lambda: re.search(r"preempted; step (\d+) is on shared storage", self.out(job)),
        )
        self.wait(job, "its code", lambda: "the trainers ended with 75" in self.out(job))
        kept = int(said[1])
        self.assertGreater(kept, committed, "a snapshot at the next step")
        for node in range(1, NODES + 1):
            self.wait(
                job,
                "its agent has ended",
                lambda node=node: not pids_with(f"{self.dir}/run/n{node}/job-{job}/agent.yaml"),
            )
            for pid in pids_with(
                "keeper", f"{self.dir}/run/n{node}/job-{job}/agent/state/keeper.sock"
            ):
                os.kill(pid, signal.SIGKILL)
        self.wait(job, "the urgent job has ended", lambda: self.has_ended(urgent), 60)
        self.wait(job, "its nodes are free", lambda: self.idle() == NODES, 60)
        self.wait_requeued(job)
        self.wait(job, "the trainers go on", lambda: len(self.resumed(job)) == 4, 60)
        say(f"preempted: step {kept} is kept, resumed after {set(self.resumed(job))}")
        self.assertEqual(set(self.resumed(job)), {kept})
        self.wait(job, "the job ends", lambda: "ended with 0" in self.out(job), 60)

    def test_slow_node_is_drained(self):
        """enforce_command runs the script of docs/DETECTION.md: the node gets no new work, and the
        job trains on. Root's job, as its agents have root's rights."""
        page = text_of(os.path.join(ROOT, "docs", "DETECTION.md"))
        script = re.search(r"```sh\n(#!/bin/sh -e\n# \S*/drain-nodes.*?)```", page, re.S)[1]
        with open(f"{self.dir}/drain-nodes", "w") as file:
            file.write(script)
        os.chmod(f"{self.dir}/drain-nodes", 0o755)
        with open(f"{self.dir}/user/steps", "w") as file:
            file.write("100000")
        self.option(
            "verdict_policy: enforce\nexchanges_per_day: 100\n"
            f"enforce_command: [{self.dir}/drain-nodes]\n"
        )
        job = self.submit(user="root")
        self.wait(job, "a generation", lambda: self.newest(job, 1) > 20)
        socket = f"{self.dir}/run/n1/job-{job}/agent/agent.sock"

        def detection():
            return (cairn("status", "--agent", socket)[1] or {}).get("detection") or {}

        self.wait(job, "the ranks' normal is known", lambda: detection().get("calibrated"), 60)
        (slow,) = [p for p in pids_with("--rank", "2", "--world") if p in self.pids(3)]
        os.kill(slow, signal.SIGUSR1)
        self.wait(
            job,
            "the node drains",
            lambda: re.search(r"Reason=cairn verdict \d+", self.node(3)),
            120,
        )
        self.assertRegex(self.node(3), r"State=\S*DRAIN")
        for other in (1, 2, 4, 5):
            self.assertNotIn("DRAIN", self.node(other))

        def results():
            found = [v for v in detection()["verdicts"] if v["ranks"] == [2] and v["enforcement"]]
            return {v["enforcement"]["result"] for v in found}

        # The node drains before the command that asked for it has ended.
        self.wait(job, "the command ends", lambda: "running" not in results(), 60)
        self.assertEqual(results(), {"succeeded"})
        newest = self.newest(job, 1)
        self.wait(job, "it trains on", lambda: self.newest(job, 1) > newest + 5)

    def node(self, number):
        return self.command("scontrol", "show", "node", f"n{number}")

    def pids(self, number):
        # It complains of processes that end meanwhile.
        found = ip("netns", "pids", NAMES[number - 1]).stdout
        return [int(pid) for pid in re.findall(r"(?m)^\d+$", found)]

    def test_node_is_lost(self):
        """Slurm requeues the job, on the nodes that are left and a new one; it goes on after the
        newest generation, from memory."""
        job = self.submit()
        self.wait(job, "a generation", lambda: self.newest(job, 1) > 20)
        committed = self.newest(job, 1)
        self.kill_node(3)
        self.command("scontrol", "update", "nodename=n3", "state=down", "reason=killed")
        self.wait(job, "the epilogs have run", lambda: self.idle() == NODES - 1)
        self.wait_requeued(job)
        self.wait(job, "the trainers go on", lambda: len(self.resumed(job)) == 4, 60)
        steps = set(self.resumed(job))
        say(f"killed after step {committed} was committed, resumed after {steps}")
        self.assertEqual(len(steps), 1)
        self.assertGreaterEqual(steps.pop(), committed)
        self.assertNotIn("torn", self.out(job))
        self.wait(job, "the job ends", lambda: "ended with 0" in self.out(job), 60)
        self.wait(
            job,
            "memory and folders are gone",
            lambda: not glob.glob(f"{self.dir}/run/n[1245]/job-{job}"),
            60,
        )
        for node in (1, 2, 4, 5):
            folder = f"{self.dir}/run/n{node}/job-{job}"
            self.assertEqual(pids_with("keeper", f"{folder}/agent/state/keeper.sock"), [])
        self.assertEqual(os.listdir(f"{self.dir}/shared"), [])


if __name__ == "__main__":
    unittest.main()
