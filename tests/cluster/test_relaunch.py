#!/usr/bin/env python3
"""`cairn run --relaunch`: a command that knows nothing of Cairn's agents comes back on the nodes
that are left, with other words, from memory."""
import concurrent.futures
import json
import os
import sys
import re
import signal
import time
import unittest

from harness import (
    AGAIN,
    CAIRN,
    CONFIG,
    GPT,
    LOST,
    OK,
    PATIENCE,
    PEER,
    USAGE,
    Built,
    build,
    digests,
    run,
    spawn,
    text_of,
    wait_for,
)

STEPS = 160
MODEL = (
    "--layers 2 --d-model 16 --heads 2 --context 16 --micro-batch-size 2 --log-every 0 "
    f"--steps {STEPS} --emulate-layer-ms 8"
).split()


class Relaunch(Built):
    def agents(self, nodes=3, **options):
        return self.cluster(nodes, parity=min(1, nodes - 1), **options).start()

    def launch(self, cluster, node, command, *words, budget=3, prefix=()):
        launcher = spawn(
            [
                *(CAIRN, "run", "--relaunch", str(budget), *words),
                *("--agent", cluster.socket(node), "--", *command),
            ],
            cluster.path(f"run{node}"),
            prefix=prefix,
        )
        return self.end_with_test(launcher)

    def said(self, cluster, *nodes):
        nodes = nodes or range(cluster.nodes)
        return "\n".join(text_of(cluster.path(f"run{node}")) for node in nodes)

    def train(self, cluster, *more, nodes=None, options=(), **launch):
        """Starts gpt on each node as that many replicas."""
        command = [GPT, "--rank", "{node_rank}", "--dp", "{nodes}", "--peers", "{peers}", *MODEL]
        command += ["--events", cluster.path("events"), *more]
        return [
            self.launch(cluster, node, command, *options, **launch)
            for node in (range(cluster.nodes) if nodes is None else nodes)
        ]

    def events(self, cluster, kind):
        lines = [json.loads(line) for line in text_of(cluster.path("events")).splitlines()]
        return [line for line in lines if line["event"] == kind]

    def lose(self, cluster, launchers, node):
        """The machine is gone: its agent, keeper, launcher, command and memory, at once."""
        launchers[node].kill()
        cluster.kill_node(node)
        launchers[node].wait()

    def reference(self, *more):
        return digests([*MODEL[:-2], *more])

    def check_result(self, cluster, *more):
        (done,) = [each for each in self.events(cluster, "done") if each["rank"] == 0]
        self.assertEqual((done["loss_sha256"], done["state_sha256"]), self.reference(*more))

    def script(self, cluster, *lines):
        """A command of a few lines of shell, which logs each start, and what it logged."""
        path, log = cluster.path("script"), cluster.path("starts")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(["echo $CAIRN_NODES $* $(date +%s%N) >> " + log, *lines]) + "\n")
        words = ["{nodes}", "{node_rank}", "{relaunch}", "{master_addr}", "{master_port}"]
        return ["sh", path, *words, "{peers}"], lambda: [
            line.split() for line in text_of(log).splitlines()
        ]

    # ---- lost nodes ----

    def test_two_nodes_of_three_go_on_and_the_third_comes_back(self):
        """With the result of a job that nothing happened to, bit for bit. The budget is one: what
        an operator asks for is not counted."""
        cluster = self.agents()
        code, _, err = run("replan", "--relaunch", "--agent", cluster.socket(2))
        self.assertEqual(code, LOST, err)
        launchers = self.train(cluster, budget=1)
        wait_for("steps are committed", lambda: cluster.committed()[1] >= 5)
        self.lose(cluster, launchers, 1)
        wait_for("two nodes go on", lambda: len(self.events(cluster, "restored")) == 2)
        self.assertGreaterEqual(self.events(cluster, "restored")[0]["generation_step"], 5)
        cluster.start(1)
        (launchers[1],) = self.train(cluster, nodes=(1,), budget=1)
        wait_for("it stands by", lambda: "stands by" in self.said(cluster, 1))
        for words, said in ((["--dry-run"], "would relaunch"), ([], "relaunches")):
            code, out, err = run("replan", "--relaunch", "--agent", cluster.socket(1), *words)
            self.assertEqual(code, OK, err)
            self.assertIn(f"{said} the command of 2 nodes after a snapshot; 1 more", out)
        for launcher in launchers:
            code = launcher.wait(timeout=60 * PATIENCE)
            self.assertEqual(code, OK, self.said(cluster))
        worlds = [each["world"] for each in self.events(cluster, "started")]
        self.assertEqual(worlds, [3] * 3 + [2] * 2 + [3] * 3, self.said(cluster))
        committed = re.search(r"step (\d+) is committed", self.said(cluster))
        restored = self.events(cluster, "restored")[-1]
        self.assertGreaterEqual(restored["generation_step"], int(committed[1]))
        self.check_result(cluster)
        self.assertIn("--relaunch 1 --agent", self.said(cluster, 0))  # how to go on

    def test_a_command_that_hears_of_nothing_is_ended_everywhere(self):
        """It ignores SIGTERM, and what it has started lives on: that is killed, too."""
        cluster = self.agents()
        pids = cluster.path("pids")
        command, starts = self.script(
            cluster,
            "[ $3 = 0 ] || exit 0",
            "trap '' TERM",
            f"sleep 1000 & echo $2 $! >> {pids}",
            "wait",
        )
        launchers = [
            self.launch(cluster, node, command, "--grace", "1s") for node in range(cluster.nodes)
        ]
        wait_for("three nodes run it", lambda: len(text_of(pids).splitlines()) == 3)
        self.lose(cluster, launchers, 0)
        for node in (1, 2):
            code = launchers[node].wait(timeout=60 * PATIENCE)
            self.assertEqual(code, OK, self.said(cluster))
        first, second = starts()[:3], starts()[3:]
        self.assertEqual(
            sorted(each[1:4] for each in first), [["3", str(i), "0"] for i in range(3)]
        )
        self.assertEqual(
            sorted(each[1:4] for each in second), [["2", str(i), "1"] for i in range(2)]
        )
        for nodes, given, _, _, host, port, peers, _ in second:
            self.assertEqual((nodes, host), (given, "127.0.0.1"))
            self.assertEqual(peers.split(",")[0], f"{host}:{port}")
            self.assertEqual(len(set(peers.split(","))), 2)
        for rank, pid in map(str.split, text_of(pids).splitlines()):
            if rank == "0":
                os.kill(int(pid), signal.SIGKILL)  # its launcher could not
            else:
                self.assertEqual(text_of(f"/proc/{pid}/cmdline"), "")
        self.assertIn("it is killed", self.said(cluster, 1, 2))

    def test_a_spare_takes_the_place_of_a_lost_node(self):
        cluster = self.agents(nodes=4, spares=(3,))
        launchers = self.train(cluster, "--steps", "40")
        wait_for("steps are committed", lambda: cluster.committed()[1] >= 5)
        self.assertIn("stands by", self.said(cluster, 3))
        self.lose(cluster, launchers, 0)
        for node in (1, 2, 3):
            code = launchers[node].wait(timeout=60 * PATIENCE)
            self.assertEqual(code, OK, self.said(cluster))
        worlds = [each["world"] for each in self.events(cluster, "started")]
        self.assertEqual(worlds, [3] * 6, self.said(cluster))
        self.assertIn("round 2: 3 nodes, this is rank 0", self.said(cluster, 3))
        self.check_result(cluster, "--steps", "40")

    def test_a_dead_agent_alone_ends_nothing(self):
        cluster = self.agents()
        end = cluster.path("end")
        command, starts = self.script(cluster, f"while [ ! -e {end} ]; do sleep 0.05; done")
        launchers = [self.launch(cluster, node, command) for node in range(cluster.nodes)]
        wait_for("all nodes run it", lambda: len(starts()) == 3)
        cluster.kill_agent(1)
        wait_for("the death is known", lambda: not cluster.status(0)["nodes"][1]["alive"])
        time.sleep(1.5)  # some looks
        open(end, "w").close()
        for launcher in launchers:
            self.assertEqual(launcher.wait(timeout=60 * PATIENCE), OK, self.said(cluster))
        self.assertEqual(len(starts()), 3, self.said(cluster))

    def test_a_success_beside_a_dead_agent_ends_nothing(self):
        """Nobody can ask its agent how the command ended; the other nodes' commands run on."""
        cluster = self.agents()
        end = cluster.path("end")
        command, starts = self.script(cluster, f"while [ ! -e {end}$2 ]; do sleep 0.05; done")
        launchers = [self.launch(cluster, node, command) for node in range(cluster.nodes)]
        wait_for("all nodes run it", lambda: len(starts()) == 3)
        cluster.kill_agent(1)
        wait_for("the death is known", lambda: not cluster.status(0)["nodes"][1]["alive"])
        open(end + "1", "w").close()
        self.assertEqual(launchers[1].wait(timeout=60 * PATIENCE), OK, self.said(cluster))
        time.sleep(1.5)  # some looks
        for rank in "02":
            open(end + rank, "w").close()
        for node in (0, 2):
            code = launchers[node].wait(timeout=60 * PATIENCE)
            self.assertEqual(code, OK, self.said(cluster))
        self.assertEqual(len(starts()), 3, self.said(cluster))

    def test_without_a_placeholder_it_waits_for_as_many_nodes(self):
        cluster = self.agents()
        log = cluster.path("starts")
        command = ["sh", "-c", f"echo started >> {log}; exec sleep 1000"]
        launchers = [
            self.launch(cluster, node, command, "--wait", "2s") for node in range(cluster.nodes)
        ]
        wait_for("all nodes run it", lambda: text_of(log).count("started") == 3)
        self.lose(cluster, launchers, 2)
        for node in (0, 1):
            code = launchers[node].wait(timeout=60 * PATIENCE)
            self.assertEqual(code, PEER, self.said(cluster))
        self.assertIn("2 of at least 3 are here; the agent of node 2", self.said(cluster, 0))
        self.assertEqual(text_of(log).count("started"), 3)

    # ---- when it does not start again ----

    def test_a_command_that_fails_at_once(self):
        cluster = self.agents(nodes=1)
        command, starts = self.script(cluster, "exit 3")
        launcher = self.launch(cluster, 0, command, budget=2)
        self.assertEqual(launcher.wait(timeout=60 * PATIENCE), 3, self.said(cluster))
        self.assertEqual([each[3] for each in starts()], ["0", "1", "2"])
        times = [int(each[-1]) / 1e9 for each in starts()]
        self.assertGreaterEqual(times[1] - times[0], 1)
        self.assertGreaterEqual(times[2] - times[1], 2)
        self.assertIn("2 of 2 relaunches are used", self.said(cluster))
        launcher = self.launch(cluster, 0, ["sh", "-c", "exec no-such-program"], budget=2)
        self.assertEqual(launcher.wait(timeout=60 * PATIENCE), 127, self.said(cluster))
        self.assertIn("which another start does not cure", self.said(cluster))

    def test_nothing_starts_again_after_a_success(self):
        cluster = self.agents(nodes=2)
        gone = cluster.path("gone")
        command, starts = self.script(
            cluster, f"[ $2 = 0 ] && exit 0; while [ ! -e {gone} ]; do sleep 0.05; done; exit 5"
        )
        launchers = [self.launch(cluster, node, command) for node in range(2)]
        self.assertEqual(launchers[0].wait(timeout=60 * PATIENCE), OK, self.said(cluster))
        open(gone, "w").close()
        self.assertEqual(launchers[1].wait(timeout=60 * PATIENCE), 5, self.said(cluster))
        self.assertEqual(len(starts()), 2)
        self.assertIn("with success on node 0", self.said(cluster, 1))

    def test_a_state_that_does_not_fit_the_shape_ends_the_job(self):
        """A model of as many layers as nodes cannot be restored on fewer."""
        cluster = self.agents()
        launchers = self.train(cluster, "--layers", "{nodes}")
        wait_for("steps are committed", lambda: cluster.committed()[1] >= 5)
        before = cluster.committed()
        self.lose(cluster, launchers, 1)
        for node in (0, 2):
            code = launchers[node].wait(timeout=60 * PATIENCE)
            self.assertIn(code, (CONFIG, 65, 1), self.said(cluster))
        self.assertEqual(len(self.events(cluster, "started")), 5)
        self.assertIn("cannot be used in this shape", self.said(cluster))
        status = cluster.status(0)
        self.assertGreaterEqual((status["newest"]["epoch"], status["newest"]["step"]), before)

    def test_a_launcher_that_is_to_end_starts_nothing(self):
        cluster = self.agents(nodes=1)
        command, starts = self.script(cluster, "exec sleep 1000")
        launcher = self.launch(cluster, 0, command)
        wait_for("it runs", starts)
        launcher.terminate()
        self.assertEqual(launcher.wait(timeout=60 * PATIENCE), 128 + signal.SIGTERM)
        self.assertEqual(len(starts()), 1)

    # ---- bad input ----

    def test_two_launches_in_one_job(self):
        cluster = self.agents()
        command, starts = self.script(cluster, "exec sleep 1000")
        first = [self.launch(cluster, node, command) for node in (0, 1)]
        wait_for("they wait for node 2", lambda: "on node 2" in self.said(cluster, 0))
        code, _, err = run("run", "--relaunch", "3", "--agent", cluster.socket(0), "--", *command)
        self.assertEqual(code, AGAIN, err)
        self.assertIn("another launcher takes part on this node", err)
        other = self.launch(cluster, 2, command, budget=4)
        self.assertEqual(other.wait(timeout=60 * PATIENCE), CONFIG, self.said(cluster))
        self.assertIn(
            "--relaunch 3 --nodes 1:0, this node with --relaunch 4", self.said(cluster, 2)
        )
        self.assertEqual((starts(), first[0].poll(), first[1].poll()), ([], None, None))

    def test_words_and_options(self):
        cluster = self.cluster(1, parity=0)
        agent = ("--agent", cluster.socket(0))
        for words, said in (
            (["--relaunch", "0", "--", "true"], "--relaunch 0"),
            (["--relaunch", "x", "--", "true"], "--relaunch x"),
            (["--relaunch", "1001", "--", "true"], "--relaunch 1001"),
            (["--relaunch", "2"], "which command"),
            (["--nodes", "2", "--", "true"], "--nodes needs --relaunch"),
            (["--wait", "2s", "--", "true"], "--wait needs --relaunch"),
            (["--relaunch", "2", "--nodes", "3:2", "--", "true"], "--nodes 3:2"),
            (["--relaunch", "2", "--nodes", "0", "--", "true"], "--nodes 0"),
            (["--relaunch", "2", "--nodes", "2:x", "--", "true"], "--nodes 2:x"),
            (["--relaunch", "2", "--wait", "soon", "--", "true"], "--wait soon"),
            (
                ["--relaunch", "2", "--", "a", "--n={nods}"],
                "{nods}: unknown placeholder; did you mean {nodes}?",
            ),
            (["--relaunch", "2", "--", "a", "{x}"], "write {{x}} for the word itself"),
            (
                ["--relaunch", "2", "--", "torchrun", "--rdzv-backend", "cairn"],
                "--rdzv-backend cairn",
            ),
            (["--relaunch", "2", "--", "torchrun", "--rdzv_backend=cairn"], "--rdzv-backend cairn"),
        ):
            code, _, err = run("run", *agent, *words)
            self.assertEqual(code, USAGE, (words, err))
            self.assertIn(said, err)
        code, out, _ = run("run", "--relaunch", "2", "--dry-run", *agent, "--", "a", "{nodes}")
        self.assertEqual(code, OK)
        # a command without --relaunch keeps its braces; one with it needs an agent
        cluster.start()
        self.assertEqual(run("run", *agent, "--", "echo", "{nods}")[1], "{nods}\n")
        self.assertEqual(run("run", "--relaunch", "1", *agent, "--", "echo", "{nodes}")[1], "1\n")
        cluster.kill_agent(0)
        code, out, err = run("run", "--relaunch", "1", *agent, "--", "echo", "ran")
        self.assertEqual((code, out), (PEER, ""), err)


class AtOnce(unittest.TestSuite):
    """Runs its tests three at a time: each has agents of its own, and waits most of the time. What
    a thread has started dies with it, so each test ends in the thread in which it began."""

    def run(self, result, debug=False):
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            for done in [pool.submit(test.run, result) for test in self]:
                done.result()
        return result


def load_tests(loader, tests, _):
    return AtOnce(loader.loadTestsFromTestCase(Relaunch))


if __name__ == "__main__":
    build()
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
