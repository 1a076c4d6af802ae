#!/usr/bin/env python3
"""`cairn run`, and how verbs find the agent of a node."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from harness import (
    AGAIN,
    CAIRN,
    Cluster,
    OK,
    PATIENCE,
    PEER,
    TRAINER,
    USAGE,
    WARN,
    build,
    cairn,
    run,
    spawn,
    text_of,
    wait_for,
)


class Run(unittest.TestCase):
    """`cairn run`: the command's exit code, no matter what happens to the agent."""

    def setUp(self):
        self.cluster = Cluster(1, parity=0)  # for its directory
        self.addCleanup(self.cluster.close)
        self.runtime = self.cluster.path("runtime")
        os.mkdir(self.runtime, 0o700)
        self.addCleanup(self.end_embedded)
        self.env = {"XDG_RUNTIME_DIR": self.runtime}
        os.environ.pop("CAIRN_AGENT", None)
        os.environ.pop("CAIRN_JOB", None)

    def end_embedded(self):
        """The agents that `cairn run` started and their keepers, and what is on its way to become
        one: all have our environment."""
        mark = f"XDG_RUNTIME_DIR={self.runtime}".encode()
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        os.kill(int(name), signal.SIGKILL)
            except OSError:
                pass

    def embedded_count(self):
        """The agents that `cairn run` started and that have not ended."""
        count = 0
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            count += b"agent" in words and any(self.runtime.encode() in word for word in words)
        return count

    def test_starts_an_agent_that_stays(self):
        show = ("sh", "-c", "echo $CAIRN_AGENT $CAIRN_JOB $CAIRN_RESUME; exit 7")
        code, out, err = run("run", "--state", "1MiB", "--", *show, env=self.env)
        self.assertEqual(code, 7, err)
        self.assertIn("A lost node is not covered", err)
        path, job = out.split()
        self.assertEqual(job, "default")
        code, answer, _ = cairn("status", "--agent", path)
        self.assertEqual(code, WARN)
        # the same agent goes on
        code, out, err = run("run", "--resume", "--every", "3", "--", *show, env=self.env)
        self.assertEqual((code, out.split()), (7, [path, "default", "1"]), err)
        self.assertIn("nothing to resume from", err)
        self.assertNotIn("started an agent", err)
        self.assertIn("--every and --state are ignored", err)

    def test_what_it_started_is_ended_as_it_says(self):
        _, out, err = run(
            "run", "--state", "1MiB", "--", "sh", "-c", "echo $CAIRN_AGENT", env=self.env
        )
        said = re.search(r"`kill (\d+) (\d+)` ends it and frees its memory", err)
        self.assertIsNotNone(said, err)
        pids = [int(pid) for pid in said.groups()]
        for pid, what in zip(pids, ("agent", "keeper")):
            self.assertIn(what.encode(), text_of(f"/proc/{pid}/cmdline").encode().split(b"\0"))
            os.kill(pid, signal.SIGTERM)
        for pid in pids:
            wait_for(f"{pid} ends", lambda pid=pid: not text_of(f"/proc/{pid}/cmdline"))
        self.assertEqual(run("status", "--agent", out.strip())[0], PEER)
        # it was its own
        code, _, err = run(
            "run", "--state", "1MiB", "--agent", out.strip(), "--", "true", env=self.env
        )
        self.assertEqual(code, 0)
        self.assertIn("started an agent at", err)

    def test_a_dead_agent_of_a_cluster_is_not_replaced(self):
        cluster = Cluster(2, parity=1)
        self.addCleanup(cluster.close)
        cluster.start()
        agent = ("--agent", cluster.socket(0))
        # as one that is just starting, it does not answer yet
        cluster.agents[0].send_signal(signal.SIGSTOP)
        path = cluster.path("run.err")
        process = spawn([CAIRN, "run", *agent, "--", "true"], path)
        wait_for("it waits", lambda: "for the agent to answer" in text_of(path))
        cluster.agents[0].send_signal(signal.SIGCONT)
        self.assertEqual(process.wait(timeout=60 * PATIENCE), 0)
        self.assertNotIn("WITHOUT protection", text_of(path))
        cluster.kill_agent(0)
        for words in (("run", "--resume", *agent, "--dry-run"), ("run", "--resume", *agent)):
            code, out, err = run(*words, "--", "echo", "trained", env=self.env)
            said = out + err
            self.assertEqual(code, 0, said)
            self.assertIn("the agent of node 0 in a cluster of 2 has ended", said)
            self.assertIn(
                f"`cairn agent --config {os.path.realpath(cluster.path('node0.yaml'))}`", said
            )
        self.assertEqual(out, "trained\n")
        self.assertIn("WITHOUT protection", err)
        self.assertEqual(run("status", *agent)[0], PEER)
        # none was started
        self.assertEqual([file for _, _, files in os.walk(self.runtime) for file in files], [])

    def test_a_file_is_no_socket(self):
        path = self.cluster.path("file")
        with open(path, "w", encoding="utf-8") as file:
            file.write("mine")
        code, out, err = run("run", "--agent", path, "--", "echo", "trained", env=self.env)
        self.assertEqual((code, out, text_of(path)), (0, "trained\n", "mine"))
        self.assertIn(f"{path}: not a socket; ", err)

    def test_many_at_once_get_one_agent(self):
        begun = [
            subprocess.Popen(
                [CAIRN, "run", "--state", "1MiB", "--", "true"],
                env={**os.environ, **self.env},
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(4)
        ]
        for process in begun:
            _, err = process.communicate(timeout=60 * PATIENCE)
            self.assertEqual(process.returncode, 0, err)
        wait_for("one of them is left", lambda: self.embedded_count() == 1)

    def waiting_command(self, out, script):
        """Starts a shell that prints `ready`, and waits until it has."""
        agent = ("--agent", self.cluster.socket(0))
        process = spawn([CAIRN, "run", *agent, "--", "sh", "-c", script], out)
        wait_for("the command runs", lambda: "ready" in text_of(out))
        return process

    def test_signals(self):
        self.cluster.start()
        agent = ("--agent", self.cluster.socket(0))
        self.assertEqual(run("run", *agent, "--", "sh", "-c", "kill -9 $$")[0], 128 + 9)
        process = self.waiting_command(
            self.cluster.path("run.out"),
            "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done",
        )
        process.terminate()
        self.assertEqual(process.wait(timeout=60 * PATIENCE), 5)

    def test_a_snapshot_is_asked_for_by_signal(self):
        """Who has no use for SIGUSR1 would end by it: `cairn run` answers it itself, and hands it
        to others."""
        self.cluster.start()
        for number, (trap, code) in enumerate((("", 3), ("trap 'exit 6' USR1; ", 6))):
            out, go = self.cluster.path(f"usr1-{number}.out"), self.cluster.path(f"go{number}")
            process = self.waiting_command(
                out, f"{trap}echo ready; while ! test -e {go}; do sleep 0.05; done; exit 3"
            )
            process.send_signal(signal.SIGUSR1)
            if not trap:
                wait_for(
                    "the answer", lambda: "snapshot" in text_of(out) or process.poll() is not None
                )
                open(go, "w").close()
            self.assertEqual(process.wait(timeout=60 * PATIENCE), code, text_of(out))

    def test_who_ignores_the_ends_of_children_hears_of_the_commands(self):
        self.cluster.start()
        done = subprocess.run(
            [CAIRN, "run", "--agent", self.cluster.socket(0), "--", "sh", "-c", "exit 7"],
            check=False,
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        )
        self.assertEqual(done.returncode, 7)

    def test_who_never_attaches_is_told(self):
        """`cairn run` warns if its command does not attach, while it runs or when it has ended; the
        exit code stays."""
        self.cluster.start()
        agent = ("--agent", self.cluster.socket(0))
        code, out, err = run("run", *agent, "--", "sh", "-c", "echo trained; exit 3")
        self.assertEqual((code, out), (3, "trained\n"))
        self.assertEqual(err.count("no process of the command has attached"), 1, err)
        self.assertIn("-I, -E or -S", err)
        code, _, err = run("run", *agent, "--", "true", env={"CAIRN_PYTHON": "0"})
        self.assertEqual(code, 0)
        self.assertIn("CAIRN_PYTHON=0", err)
        path = self.cluster.path("run.err")
        process = spawn(
            [CAIRN, "run", *agent, "--", "sh", "-c", "echo ready; while :; do sleep 0.05; done"],
            path,
        )
        wait_for("the command runs", lambda: "ready" in text_of(path))
        process.send_signal(signal.SIGALRM)  # the time after which it looks
        wait_for(
            "it is said", lambda: "so far no process of the command has attached" in text_of(path)
        )
        process.terminate()
        self.assertEqual(process.wait(timeout=60 * PATIENCE), 128 + signal.SIGTERM)
        self.assertEqual(text_of(path).count("has attached"), 1)  # and not again

    def test_preempted_with_an_agent_of_its_own(self):
        """The machine goes down with its memory and the runtime directory; the home stays."""
        places = {
            **self.env,
            "XDG_STATE_HOME": self.cluster.path("home/state"),
            "CAIRN_JOB": "cluster",
        }
        os.mkdir(self.cluster.path("home"))
        command = ["env", *(f"{name}={value}" for name, value in places.items())]
        command += [CAIRN, "run", "--state", "2MiB", "--resume"]
        command += ["--grace", "20s", "--", TRAINER, "--rank", "0", "--world", "1", "--parts", "1"]
        command += ["--step-us", "2000", "--barrier"]

        def begin(number, *more):
            path = self.cluster.path(f"run{number}")
            return spawn([*command, self.cluster.path(f"board{number}"), *more], path), path

        first, said = begin(1)
        wait_for("steps are begun", lambda: "begun 500\n" in text_of(said))
        first.send_signal(signal.SIGTERM)
        self.assertEqual(first.wait(timeout=60 * PATIENCE), AGAIN, text_of(said))
        kept = re.search(r"preempted; step (\d+) is on the disks of its nodes", text_of(said))
        self.assertIsNotNone(kept, text_of(said))
        self.end_embedded()
        wait_for("the agent is gone", lambda: self.embedded_count() == 0)
        shutil.rmtree(self.runtime)
        os.mkdir(self.runtime, 0o700)

        second, said = begin(2, "--resume", "--steps", str(int(kept[1]) + 5))
        self.assertEqual(second.wait(timeout=60 * PATIENCE), OK, text_of(said))
        restored = re.search(r"(?m)^restored \d+ (\d+)$", text_of(said))
        self.assertEqual(restored and restored[1], kept[1], text_of(said))

    def test_who_attaches_is_not_told(self):
        self.cluster.start()
        trainer = [
            TRAINER,
            "--rank",
            "0",
            "--world",
            "1",
            "--parts",
            "1",
            "--agent",
            self.cluster.socket(0),
            "--barrier",
            self.cluster.path("barrier"),
            "--steps",
            "3",
        ]
        code, out, err = run("run", "--agent", self.cluster.socket(0), "--", *trainer)
        self.assertEqual(code, 0, err)
        self.assertIn("begun 3", out)
        self.assertNotIn("has attached", err)
        self.cluster.kill_agent(0)  # nor where nobody can tell
        self.cluster.start()
        path, go = self.cluster.path("late.err"), self.cluster.path("go")
        process = self.waiting_command(
            path, f"echo ready; while ! test -e {go}; do sleep 0.05; done"
        )
        self.cluster.kill_agent(0)
        open(go, "w").close()
        self.assertEqual(process.wait(timeout=60 * PATIENCE), 0)
        self.assertNotIn("has attached", text_of(path))

    def test_one_launch_one_job(self):
        """While all ranks are attached, another launch is refused by name on their nodes, and
        disturbs nobody. When a rank is gone, a launch may take its place. On a node without ranks,
        which may be one that joins, the command runs: it is told who runs the job, its trainer is
        refused, and nothing is called kept."""
        cluster = Cluster(3, parity=1)
        self.addCleanup(cluster.close)
        cluster.start()
        trainers = cluster.train(world=2, step_us=20000, launch=1)
        wait_for("the third node is no member", lambda: "active epoch=2" in cluster.log(0))
        cluster.wait_committed(cluster.committed())
        second = [
            subprocess.Popen(
                [CAIRN, "run", "--resume", "--agent", cluster.socket(node), "--", "echo", "ran"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for node in range(2)
        ]
        for process in second:
            out, err = process.communicate(timeout=60 * PATIENCE)
            self.assertEqual((process.returncode, out), (AGAIN, ""), err)
            self.assertIn('job "cluster" already runs', err)
            self.assertIn(f"rank 0 as process {trainers[0].process.pid} on node 0", err)
        words = ("run", "--agent", cluster.socket(2), "--", TRAINER, "--launch", "2")
        words += ("--agent", cluster.socket(2), "--rank", "0", "--world", "2", "--parts", "2")
        code, _, err = run(*words, "--barrier", cluster.path("second"))
        self.assertEqual(code, AGAIN, err)
        lines = [line for line in err.splitlines() if line.startswith("cairn run: ")]
        self.assertEqual(len(lines), 2, err)
        for line in lines:
            self.assertIn('job "cluster" already runs', line)
            self.assertIn(f"rank 0 as process {trainers[0].process.pid} on node 0", line)
        self.assertNotIn("go on with", err)
        cluster.wait_committed(cluster.committed())
        self.assertTrue(all(trainer.process.poll() is None for trainer in trainers))
        trainers[1].kill()
        wait_for("the rank is gone", lambda: cluster.status(0).get("trainers") == 1)
        code, out, err = run("run", "--agent", cluster.socket(1), "--", "echo", "trained")
        self.assertEqual((code, out), (OK, "trained\n"), err)

    def test_says_what_protects_and_what_was_kept(self):
        """Two lines: the second one ends with a command that goes on."""
        self.cluster.start()
        trainer = [TRAINER, "--rank", "0", "--world", "1", "--parts", "1", "--resume"]
        trainer += ["--agent", self.cluster.socket(0), "--steps", "200", "--step-us", "2000"]
        trainer += ["--barrier", self.cluster.path("a barrier's")]
        words = ("run", "--agent", self.cluster.socket(0))
        code, _, err = run(*words, "--", *trainer)
        self.assertEqual(code, OK, err)
        lines = [line for line in err.splitlines() if line.startswith("cairn run:")]
        self.assertEqual(len(lines), 2, err)
        self.assertIn('protects job "cluster": its snapshots, in this node\'s memory', lines[0])
        kept, command = re.match(
            r".* kept (epoch \d+ step \d+) .*; go on with: (.*)", lines[1]
        ).groups()
        path = f"{os.path.dirname(os.path.realpath(CAIRN))}:{os.environ['PATH']}"
        os.remove(self.cluster.path("a barrier's"))
        again = subprocess.run(
            ["sh", "-c", command + " --steps 400"],
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60 * PATIENCE,
        )
        self.assertEqual(again.returncode, OK, again.stderr)
        self.assertIn(f"resumes from {kept}", again.stderr)
        code, _, err = run(*words, "-v", "--", "false")
        self.assertEqual(code, 1)
        self.assertRegex(err, r"cairn run: WARN: ")

    def test_without_an_agent_the_command_runs(self):
        os.chmod(self.runtime, 0o700)
        os.mkdir(os.path.join(self.runtime, "cairn"), 0o700)
        os.chmod(os.path.join(self.runtime, "cairn"), 0o777)  # anybody could have put things there
        code, out, err = run("run", "--", "echo", "trained", env=self.env)
        self.assertEqual((code, out), (0, "trained\n"))
        self.assertIn("WITHOUT protection", err)

    def test_nccl_is_timed_where_that_is_asked_for(self):
        show = ("sh", "-c", "echo ${NCCL_PROFILER_PLUGIN-unset} ${CAIRN_NCCL_PROFILER_CHAIN-unset}")
        agent = ("--agent", os.path.join(self.runtime, "no-agent"))
        plugin = os.path.join(os.path.dirname(os.path.realpath(CAIRN)), "libnccl-profiler-cairn.so")
        for asked, expected in (
            ({}, ["unset", "unset"]),
            ({"NCCL_PROFILER_PLUGIN": "other"}, ["other", "unset"]),
            ({"CAIRN_TIMING": "1"}, [plugin, "libnccl-profiler.so"]),
            ({"CAIRN_TIMING": "1", "NCCL_PROFILER_PLUGIN": "other"}, [plugin, "other"]),
            ({"CAIRN_TIMING": "1", "NCCL_PROFILER_PLUGIN": "none"}, ["none", "unset"]),
        ):
            code, out, err = run("run", *agent, "--", *show, env={**self.env, **asked})
            self.assertEqual((code, out.split()), (0, expected), err)

    def test_a_command_that_is_not_there(self):
        self.cluster.start()
        code, _, err = run("run", "--agent", self.cluster.socket(0), "--", "/nonexistent/train")
        self.assertEqual(code, 127)
        self.assertIn("/nonexistent/train", err)
        self.assertNotIn("has attached", err)


class Finding(unittest.TestCase):
    """Which agent a verb talks to where nobody names one; and `run` and the others agree."""

    def setUp(self):
        for name in ("CAIRN_AGENT", "CAIRN_JOB"):
            os.environ.pop(name, None)
        if os.path.exists("/run/cairn/agent.sock"):
            self.skipTest("an agent serves the default socket of this machine")
        self.runtime = tempfile.mkdtemp(prefix="cairn-find-")
        self.addCleanup(shutil.rmtree, self.runtime)
        self.env = {"XDG_RUNTIME_DIR": self.runtime}
        self.list = os.path.join(self.runtime, "cairn", "agents")

    def start(self, nodes, job="cluster"):
        """Agents that are in this test's list."""
        cluster = Cluster(nodes, parity=0)
        self.addCleanup(cluster.close)
        cluster.prefixes = [("env", f"XDG_RUNTIME_DIR={self.runtime}")] * nodes
        for node in range(nodes):
            with open(cluster.path(f"node{node}.yaml"), "r+", encoding="utf-8") as file:
                text = file.read().replace("job: cluster", f"job: {job}")
                file.seek(0)
                file.write(text)
                file.truncate()
        return cluster.start()

    def status(self, *words, **variables):
        """(exit code, the job that answers, stderr)"""
        code, out, err = run("status", "-o", "json", *words, env={**self.env, **variables})
        return code, json.loads(out)["job"] if out else None, err

    def test_none(self):
        for verb in ("status", "snapshots", "snapshot", "restore", "verify"):
            code, out, err = run(verb, env=self.env)
            self.assertEqual((code, out), (PEER, ""), verb)
            self.assertRegex(err, f"^cairn {verb}: no agent runs on this node .*; start one with")
        self.assertEqual(run("explain", "1", env=self.env)[0], PEER)
        code, out, _ = run("run", "--dry-run", "--", "true", env=self.env)
        self.assertEqual(code, OK)
        self.assertIn("with a new agent", out)

    def test_one_is_used_by_all(self):
        cluster = self.start(1)
        for verb in ("status", "snapshots", "verify", "restore", "snapshot"):
            self.assertNotIn(run(verb, env=self.env)[0], (PEER, USAGE), verb)
        code, out, err = run("run", "--", "sh", "-c", "echo $CAIRN_AGENT $CAIRN_JOB", env=self.env)
        self.assertEqual((code, out), (OK, f"{cluster.socket(0)} cluster\n"), err)
        self.assertNotIn("started an agent", err)
        cluster.agents[0].terminate()  # an agent that ends leaves nothing behind
        cluster.agents[0].wait(timeout=60 * PATIENCE)
        self.assertEqual(os.listdir(self.list), [])
        self.assertEqual(self.status()[0], PEER)

    def test_of_several_one_must_be_named(self):
        first, second = self.start(2), self.start(1, "other")
        sockets = [first.socket(0), first.socket(1), second.socket(0)]
        for verb in (("status",), ("restore",), ("run", "--", "echo", "trained")):
            code, out, err = run(*verb, env=self.env)
            self.assertEqual((code, out), (USAGE, ""), verb)
            self.assertIn("3 agents run on this node; name one with --agent SOCKET", err)
            for line, place, path, agent in zip(
                err.splitlines()[1:],
                ("job cluster  node 0 of 2", "job cluster  node 1 of 2", "job other  node 0 of 1"),
                sockets,
                (*first.agents, *second.agents),
            ):
                self.assertEqual(line, f"  {place}  socket {path}  pid {agent.pid}")
        self.assertEqual(self.status("--agent", sockets[1])[1], "cluster")
        self.assertEqual(self.status(CAIRN_AGENT=sockets[2])[1], "other")
        self.assertEqual(self.status("--job", "other")[1], "other")
        self.assertEqual(self.status(CAIRN_JOB="other")[1], "other")
        self.assertEqual(self.status("--job", "other", CAIRN_JOB="cluster")[1], "other")
        self.assertEqual(self.status("--job", "cluster")[0], USAGE)  # two agents serve it
        self.assertEqual(self.status(CAIRN_JOB="third")[0], USAGE)
        # dead agents leave entries, which count no more
        for node in (0, 1):
            first.kill_agent(node)
        self.assertEqual(len(os.listdir(self.list)), 3)
        self.assertEqual(self.status()[1], "other")

    def test_the_named_one_and_no_other(self):
        cluster = self.start(1)
        missing = os.path.join(self.runtime, "missing.sock")
        for words, variables in (((), {"CAIRN_AGENT": missing}), (("--agent", missing), {})):
            code, _, err = self.status(*words, **variables)
            self.assertEqual(code, PEER)
            self.assertIn(f"{missing}: no agent answers", err)
        self.assertEqual(
            self.status("--agent", cluster.socket(0), CAIRN_AGENT=missing)[1], "cluster"
        )

    def test_an_agent_that_hangs_is_found(self):
        """It is not taken for dead, so that nobody starts another one beside it."""
        cluster = self.start(1)
        cluster.agents[0].send_signal(signal.SIGSTOP)
        code, _, err = self.status()
        cluster.agents[0].send_signal(signal.SIGCONT)
        self.assertEqual(code, PEER)
        self.assertIn(f"{cluster.socket(0)}: the agent did not answer within", err)

    def test_a_list_of_somebody_else_is_not_read(self):
        self.start(1)
        os.chmod(self.list, 0o777)
        self.assertEqual(self.status()[0], PEER)


if __name__ == "__main__":
    build()
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
