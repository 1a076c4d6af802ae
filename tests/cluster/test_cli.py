#!/usr/bin/env python3
"""The command's verbs against real agents: output, exit codes, and what bad input and bad luck come
to."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from harness import (
    AGAIN,
    CAIRN,
    CONFIG,
    CRITICAL,
    Cluster,
    DENIED,
    INPUT,
    IO,
    LOST,
    OK,
    PATIENCE,
    PEER,
    ROOT,
    TRAINER,
    USAGE,
    WARN,
    build,
    cairn,
    free_ports,
    spawn,
    text_of,
    wait_for,
)


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


def codes(answer):
    return {check["code"] for check in answer["checks"]}


class Usage(unittest.TestCase):
    VERBS = (
        "demo",
        "agent",
        "run",
        "snapshot",
        "status",
        "snapshots",
        "restore",
        "node",
        "verify",
        "doctor",
        "bench",
        "plan",
        "profile",
        "simulate",
        "assign",
        "detect",
        "explain",
        "heatmap",
        "trace",
        "inspect",
        "convert",
        "diff",
        "fingerprint",
    )

    def test_help_has_a_synopsis_and_two_examples(self):
        for verb in self.VERBS:
            code, out, err = run(verb, "--help")
            self.assertEqual((code, err), (OK, ""), verb)
            self.assertTrue(out.startswith(f"usage: cairn {verb} "), verb)
            examples = out.split("examples:\n")[1]
            self.assertGreaterEqual(examples.count("  cairn "), 2, verb)
            self.assertEqual([line for line in out.splitlines() if len(line) > 80], [], verb)
            self.assertEqual(run("help", verb), (OK, out, ""))

    def test_the_help_lists_each_verb_once(self):
        code, out, err = run("--help")
        self.assertEqual((code, err), (OK, ""))
        listed = re.findall(r"^  ([a-z]+) +([a-z]+) ", out.split("examples:\n")[0], re.M)
        self.assertEqual(
            sorted(verb for verb, _ in listed), sorted((*self.VERBS, "help", "version"))
        )
        self.assertEqual([line for line in out.splitlines() if len(line) > 80], [])
        for words in (("help",), ("-h",)):
            self.assertEqual(run(*words), (OK, out, ""))
        self.assertEqual(run(), (USAGE, "", out))
        for words, said in (
            (("help", "statu"), 'unknown verb "statu"; did you mean "status"?'),
            (("help", "keeper"), 'unknown verb "keeper"'),
            (("help", "run", "demo"), 'unexpected argument "demo"'),
        ):
            code, out, err = run(*words)
            self.assertEqual((code, out), (USAGE, ""), words)
            self.assertIn(said, err)

    def test_convert_lists_the_formats(self):
        out = run("convert", "--help")[1]
        formats = out.split("formats (r: can read, w: can write):\n")[1].split("\n\n")[0]
        self.assertEqual(
            sorted(re.findall(r"^  ([a-z-]+) +rw  \w", formats, re.M)),
            [
                "dcp",
                "deepspeed",
                "deepspeed-universal",
                "megatron",
                "megatron-dist",
                "safetensors",
                "torch",
                "universal",
            ],
        )

    def test_version(self):
        """Of the release that the binding names, with the protocols that a refusal of "another
        version" is about."""
        with open(os.path.join(ROOT, "bindings", "python", "pyproject.toml")) as project:
            release = re.search(r'^version = "(.*)"$', project.read(), re.M).group(1)
        code, out, err = run("--version")
        self.assertEqual((code, err), (OK, ""))
        self.assertRegex(
            out, rf"^cairn {re.escape(release)} \(protocols: session \d+, agents \d+\)\n$"
        )
        self.assertEqual(run("version"), (OK, out, ""))
        self.assertEqual(run("version", "more")[0], USAGE)

    def test_mistakes_end_with_64_and_the_nearest_name(self):
        for words, said in (
            (("statsu",), 'did you mean "status"?'),
            (("status", "--agnet", "x"), "did you mean --agent?"),
            (("status", "-o", "xml"), "-o takes table or json"),
            (("restore", "--generation", "30"), "EPOCH:STEP"),
            (("restore", "--timeout", "soon"), "--timeout"),
            (("snapshots", "extra"), 'unexpected argument "extra"'),
            (("run",), "which command?"),
            (("run", "--every", "0", "--", "true"), "--every"),
            (("agent",), "--config"),
            (("restore", "--to"), "needs a value"),
            (("bench", "protect", "--nodes", "4", "--parity", "4"), "at most half"),
            (
                ("bench", "capture", "--rounds", "0"),
                '--rounds takes a number from 1 to 31, not "0"',
            ),
            (("bench",), "which stage?"),
            (("run", "--state", "0", "--", "true"), "from 64KiB to 64TiB"),
            (("convert", "a", "b", "--to", "dcp", "--tp", "0"), "--tp takes a number from 1 to"),
            (("run", "-o", "json", "--", "true"), "unknown option -o"),
            (("trace", "-o", "table"), "json alone"),
            (("profile", "-o", "table"), "json alone"),
            (("agent", "-o", "json", "--sample"), "is for --check"),
            (("demo", "--kill", "1,1@9"), "node 1 is named twice"),
            (("demo", "--slow", "1:2@3"), "unknown option --slow"),
            (("snapshot", "--timeout", "9s"), "goes with --wait"),
            (("bench", "capture", "--nodes", "4"), "are for protect and restore"),
            (("bench", "erasure", "--keep"), "are for protect and restore"),
            (("bench", "plan", "--size", "64MiB"), "plan has no size"),
        ):
            code, out, err = run(*words)
            self.assertEqual((code, out), (USAGE, ""), words)
            self.assertIn(said, err)
        self.assertEqual(run()[0], USAGE)

    def test_every_verb_says_which_forms_its_output_has(self):
        for verb in self.VERBS:
            if verb != "run":  # its output is the command's
                self.assertIn("  -o, --output ", run(verb, "--help")[1], verb)

    def test_a_file_that_is_none_is_65_and_named(self):
        with tempfile.TemporaryDirectory() as folder:
            for bad, why in (
                (os.path.join(folder, "none"), "No such file or directory"),
                (folder, "Is a directory"),
            ):
                for words in (
                    ("detect", "--trace", bad),
                    ("explain", "1", "--trace", bad),
                    ("heatmap", "--trace", bad),
                    ("trace", "-o", "json", "--trace", bad),
                    ("plan", "--problem", bad),
                    ("assign", "--problem", bad),
                    ("simulate", "--problem", bad, "--plan", bad),
                    ("profile", "-o", "json", "--problem", bad, "--trace", bad),
                ):
                    code, out, err = run(*words)
                    self.assertEqual((code, out), (INPUT, ""), words)
                    self.assertIn(f"{bad}", err)
                    self.assertIn(why, err)
                    self.assertIn("what to do: name a file that can be read", err)

    def test_only_agents_load_libfabric(self):
        """Its load takes 0.2 s, which every start of every verb would pay for."""
        listed = subprocess.run(
            [CAIRN],
            env={**os.environ, "LD_TRACE_LOADED_OBJECTS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.assertIn("librocksdb", listed.stdout)
        self.assertNotIn("libfabric", listed.stdout)

    def test_a_crash_ends_the_agent_and_leaves_no_file(self):
        with tempfile.TemporaryDirectory() as folder, Cluster(
            nodes=1, parity=0, prefixes=[("env", "-C", folder)]
        ) as cluster:
            agent = cluster.start().agents[0]
            self.assertIn("libfabric", text_of(f"/proc/{agent.pid}/maps"))
            self.assertEqual(os.readlink(f"/proc/{agent.pid}/cwd"), folder)
            agent.send_signal(signal.SIGSEGV)
            self.assertEqual(agent.wait(timeout=60 * PATIENCE), -signal.SIGSEGV)
            self.assertEqual(os.listdir(folder), [])

    def test_no_agent_is_69_and_says_what_to_do(self):
        for verb in ("status", "snapshots", "snapshot", "restore", "verify", "explain"):
            code, out, err = run(
                verb, *(("1",) if verb == "explain" else ()), "--agent", "/nonexistent/agent.sock"
            )
            self.assertEqual((code, out), (PEER, ""), verb)
            self.assertIn(f"cairn {verb}: /nonexistent/agent.sock: no agent answers; ", err)
            self.assertIn("start it with `cairn agent", err)

    def test_a_full_disk_is_not_success(self):
        with open("/dev/full", "w") as full:
            code = subprocess.run(
                [CAIRN, "agent", "--sample"], stdout=full, stderr=subprocess.DEVNULL, check=False
            ).returncode
        self.assertEqual(code, IO)


class Start(unittest.TestCase):
    """An agent that cannot start says why, with the contract's exit code."""

    def start(self, cluster, node=0):
        return run("agent", "--config", cluster.path(f"node{node}.yaml"))

    def rewrite(self, cluster, change):
        path = cluster.path("node0.yaml")
        with open(path) as file:
            text = file.read()
        with open(path, "w") as file:
            file.write(change(text))

    def test_second_agent_on_the_same_node(self):
        with Cluster(1, parity=0) as cluster:
            cluster.start()
            code, _, err = self.start(cluster)
            self.assertEqual(code, AGAIN, err)

    def test_port_in_use(self):
        port = free_ports(1)[0]
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", port))
            taken.listen()
            with Cluster(1, parity=0, addresses=[f"127.0.0.1:{port}"]) as cluster:
                code, _, err = self.start(cluster)
                self.assertEqual(code, PEER, err)
                self.assertIn(str(port), err)
                self.assertIn("end what uses it", err)
                self.assertNotIn("disk", err)
                code, answer, _ = cairn("doctor", "--config", cluster.path("node0.yaml"))
                self.assertEqual(code, CRITICAL)
                self.assertIn(
                    "port", {f["code"] for f in answer["findings"] if f["level"] == "CRITICAL"}
                )

    def test_wrong_configurations(self):
        with Cluster(1, parity=0) as cluster:
            path = cluster.path("node0.yaml")
            self.assertEqual(run("agent", "--config", path, "--check")[0], OK)
            code, out, _ = run("agent", "--config", path, "--check", "-o", "json")
            self.assertEqual(
                (code, json.loads(out)["schema"], json.loads(out)["config"]), (OK, 1, path)
            )
            self.rewrite(cluster, lambda text: text + "sloots: 3\n")
            code, _, err = run("agent", "--config", path, "--check")
            self.assertEqual(code, CONFIG)
            self.assertIn("sloots", err)
            code, answer, _ = cairn("doctor", "--config", path)
            self.assertEqual((code, answer["findings"][0]["code"]), (CRITICAL, "config"))
            code, _, err = run("agent", "--config", cluster.path("none.yaml"))
            self.assertEqual(code, CONFIG)
            self.assertIn("none.yaml", err)

    def test_wrong_problems(self):
        with Cluster(1, parity=0) as cluster:
            path, problem = cluster.path("node0.yaml"), cluster.path("problem.json")
            self.rewrite(
                cluster, lambda text: text.replace("nodes:\n", f"problem: {problem}\nnodes:\n")
            )
            with open(path) as file:
                line = file.read().splitlines().index(f"problem: {problem}") + 1
                place = f"{path}:{line}: problem {problem}: "
            for text, why in (
                (None, "No such file"),
                ('{"layers": 4,\n "layer_ms": -1}', "line 2, "),
            ):
                if text:
                    with open(problem, "w") as file:
                        file.write(text)
                for words in ((), ("--check",)):
                    code, _, err = run("agent", "--config", path, *words)
                    self.assertEqual(code, CONFIG, err)
                    self.assertIn(place, err)
                    self.assertIn(why, err)
                self.found_by_doctor(path, "problem", why)

    def found_by_doctor(self, path, code, why, level="CRITICAL"):
        _, answer, err = cairn("doctor", "--config", path)
        (found,) = [each for each in answer["findings"] if each["code"] == code]
        self.assertEqual(found["level"], level, err)
        self.assertIn(why, found["what"])

    def test_wrong_commands(self):
        with Cluster(1, parity=0) as cluster:
            path, command = cluster.path("node0.yaml"), cluster.path("drain")
            self.rewrite(
                cluster,
                lambda text: text.replace(
                    "nodes:\n",
                    f"verdict_policy: enforce\nenforce_command: [{command}, -v]\nnodes:\n",
                ),
            )
            with open(path) as file:
                option = f"enforce_command: [{command}, -v]"
                line = file.read().splitlines().index(option) + 1
                place = f"{path}:{line}: enforce_command {command}: "
            for why in ("No such file", "may not execute it"):
                for words in ((), ("--check",)):
                    code, _, err = run("agent", "--config", path, *words)
                    self.assertEqual(code, CONFIG, err)
                    self.assertIn(place + ("the agent's user " if why[0] == "m" else "") + why, err)
                self.found_by_doctor(path, "command", why)
                with open(command, "w") as file:
                    file.write("#!/bin/sh\n")
            os.chmod(command, 0o700)
            self.assertEqual(run("agent", "--config", path, "--check")[0], OK)
            self.found_by_doctor(path, "command", "can be executed", "OK")
            self.rewrite(
                cluster,
                lambda text: text.replace("verdict_policy: enforce", "verdict_policy: advise"),
            )
            self.assertEqual(run("agent", "--config", path, "--check")[0], OK)
            self.found_by_doctor(path, "command", "is never run", "WARN")

    @unittest.skipIf(os.geteuid() == 0, "root reads everything")
    def test_unreadable_configuration(self):
        with Cluster(1, parity=0) as cluster:
            os.chmod(cluster.path("node0.yaml"), 0)
            self.assertEqual(self.start(cluster)[0], DENIED)

    def test_a_key_that_others_can_read(self):
        with Cluster(1, parity=0) as cluster:
            key = cluster.path("job.key")
            with open(key, "wb") as file:
                file.write(os.urandom(32))
            self.rewrite(cluster, lambda text: text + f"key_file: {key}\n")
            os.chmod(key, 0o644)
            code, _, err = self.start(cluster)
            self.assertEqual(code, DENIED, err)
            self.assertIn("job.key", err)
            self.assertEqual(cairn("doctor", "--config", cluster.path("node0.yaml"))[0], CRITICAL)
            os.chmod(key, 0o600)
            self.assertEqual(run("agent", "--config", cluster.path("node0.yaml"), "--check")[0], OK)

    def test_a_state_directory_that_is_none(self):
        with Cluster(1, parity=0) as cluster:
            file = cluster.path("file")
            open(file, "wb").close()
            self.rewrite(cluster, lambda text: re.sub(r"(?m)^dir: .*$", f"dir: {file}", text))
            code, _, err = self.start(cluster)
            self.assertEqual(code, CONFIG, err)
            self.assertIn("set `dir` to another path", err)

    def test_without_a_keeper_it_says_what_is_lost(self):
        with Cluster(1, parity=0) as cluster:
            self.rewrite(cluster, lambda text: text + "keeper: false\n")
            cluster.start()
            code, answer, _ = cairn("status", "--agent", cluster.socket(0))
            self.assertEqual(code, WARN)
            self.assertIn("memory-unkept", codes(answer))
            cluster.agents[0].send_signal(signal.SIGTERM)
            self.assertEqual(cluster.agents[0].wait(timeout=30 * PATIENCE), OK)
            self.assertIn("no keeper holds its memory", cluster.log(0))
            self.assertNotIn("stays with the keeper", cluster.log(0))

    def test_too_little_memory_prints_the_sum(self):
        with Cluster(1, parity=0, state="64TiB") as cluster:
            code, _, err = self.start(cluster)
            self.assertEqual(code, 1, err)
            self.assertIn("64.00 TiB state", err)
            self.assertIn("short", err)


class Job(unittest.TestCase):
    """Three nodes, one of which may be lost, with trainers."""

    def setUp(self):
        self.cluster = Cluster(3, parity=1).start()
        self.addCleanup(self.cluster.close)
        self.agent = ("--agent", self.cluster.socket(0))
        wait_for(
            "all nodes answer", lambda: cairn("status", *self.agent)[1]["nodes_answering"] == 3
        )

    def train(self, **options):
        self.cluster.train(**options)
        return self.cluster.wait_committed(self.cluster.committed())

    def stop_trainers(self):
        """Ends them; returns when every agent knows, and what they have not finished is settled
        among the agents."""
        self.cluster.stop_trainers()
        wait_for(
            "the agents know",
            lambda: all(
                self.cluster.log(i).count("trainer attached")
                == self.cluster.log(i).count("trainer left")
                for i in range(3)
            ),
        )

        def settled():
            """What was never committed may be half written yet. What was is never repaired here,
            unseen."""
            code, answer, _ = cairn("verify", *self.agent)
            self.assertEqual((answer or {}).get("bad_blocks", 0), 0, answer)
            return code == OK

        wait_for("all is settled", settled)

    def healthy(self):
        """The status as soon as nothing is wrong with it."""

        def look():
            code, answer, _ = cairn("status", *self.agent)
            return code == OK and answer

        return wait_for("a healthy job", look)

    def test_before_the_first_commit(self):
        def first_epoch():
            code, answer, _ = cairn("status", *self.agent)
            self.assertEqual((code, answer["health"], answer["newest"]), (WARN, "WARN", None))
            self.assertLessEqual(codes(answer), {"nothing-committed", "node-blank"})
            return codes(answer) == {"nothing-committed"}

        wait_for("all nodes are members", first_epoch)
        code, answer, err = cairn("restore", *self.agent)
        self.assertEqual((code, answer["result"]), (LOST, "CAIRN_LOST"))
        self.assertIn("nothing is restorable", err)
        self.assertEqual(cairn("verify", *self.agent)[0], LOST)
        self.assertEqual(cairn("snapshot", *self.agent)[0], AGAIN)
        self.assertEqual(cairn("snapshots", *self.agent)[1]["generations"], [])

    def test_a_healthy_job(self):
        self.train()
        answer = self.healthy()
        self.assertEqual(answer["schema"], 1)
        self.assertEqual(answer["protection"]["survives_nodes_per_group"], 1)
        self.assertEqual(answer["protection"]["missing_parts"], 0)
        self.assertTrue(answer["protection"]["survives_any_one_domain"])
        self.assertEqual((answer["trainers"], len(answer["nodes"])), (3, 3))
        coverage = answer["coverage"]  # of the other nodes too
        self.assertEqual(
            [coverage[f"ranks_{which}"] for which in ("known", "reporting", "refusing")], [3, 3, 0]
        )
        self.assertEqual(
            coverage["tensors"], {"parameter": 3, "optimizer": 3, "buffer": 0, "opaque": 3}
        )
        self.assertEqual(
            (coverage["uncovered"], sorted(rank["rank"] for rank in coverage["ranks"])),
            ([], [0, 1, 2]),
        )
        self.assertEqual(coverage["bytes"]["optimizer"], 8 * 5000)  # what all hold is captured once
        self.assertGreater(answer["newest"]["bytes"], 0)
        self.assertTrue(0 < answer["newest"]["age_ns"] < 600e9, answer["newest"])
        code, out, _ = run("status", *self.agent)
        self.assertEqual(code, OK)
        self.assertLessEqual(out.count("\n"), 24)
        self.assertNotIn("\033", out)
        self.assertIn("covered    parameters 3 (", out)
        self.assertIn("uncovered  nothing that the trainers know of", out)
        code, out, _ = run("status", "-o", "metrics", *self.agent)
        self.assertEqual(code, OK)
        self.assertIn('cairn_covered_bytes{job="cluster",kind="optimizer"} 40000\n', out)
        self.assertIn('cairn_ranks{job="cluster",state="reporting"} 3\n', out)
        self.assertEqual(run("status", "--job", "another", *self.agent)[0], PEER)
        listed = cairn("snapshots", *self.agent)[1]["generations"]
        self.assertTrue(any(g["state"] == "committed" for g in listed), listed)

    def test_a_snapshot_is_waited_for(self):
        self.train()
        self.healthy()
        code, foreseen, _ = cairn("snapshot", "--dry-run", *self.agent)
        self.assertEqual(code, OK)
        code, answer, _ = cairn("snapshot", "--wait", *self.agent)
        self.assertEqual(code, OK)
        self.assertGreaterEqual(answer["committed"]["step"], answer["step"])
        self.assertGreaterEqual(answer["step"], foreseen["step"])

    def test_an_export_stops_no_trainer(self):
        self.train()
        self.healthy()
        before = [trainer.step() for trainer in self.cluster.trainers]
        target = self.cluster.path("export")
        code, answer, err = cairn("restore", "--to", target, *self.agent)
        self.assertEqual(code, OK, err)
        self.assertEqual((answer["directory"], answer["rebuilt_bytes"]), (target, 0))
        self.assertTrue(os.path.exists(os.path.join(target, "COMMIT")))
        wait_for(
            "training goes on",
            lambda: all(t.step() > b + 5 for t, b in zip(self.cluster.trainers, before)),
        )
        self.assertEqual(cairn("status", *self.agent)[1]["epoch"], answer["epoch"])
        code, _, err = cairn("restore", "--to", target, *self.agent)  # it is not empty now
        self.assertNotEqual(code, OK)
        self.assertIn("export", err)

    def test_a_lost_node(self):
        self.train()
        self.healthy()
        self.stop_trainers()  # what a restore takes no longer changes
        self.cluster.kill_node(2)
        wait_for(
            "the loss is seen", lambda: "nodes-silent" in codes(cairn("status", *self.agent)[1])
        )
        code, foreseen, _ = cairn("restore", "--dry-run", *self.agent)
        self.assertEqual((code, foreseen["lost_members"], foreseen["dry_run"]), (OK, 1, True))
        name = f"{foreseen['generation']['epoch']}:{foreseen['generation']['step']}"
        code, answer, err = cairn("restore", "--generation", f"{name}1", *self.agent)
        self.assertEqual(code, LOST)
        self.assertIn("is not what a restore takes now", err)
        code, answer, err = self.cluster.restore(0, "--generation", name)
        self.assertEqual(code, OK, err)
        self.assertEqual(answer["generation"], foreseen["generation"])
        self.assertEqual((answer["from"], answer["lost_members"]), ("memory", 1))
        self.assertGreater(answer["rebuilt_bytes"], 0)
        self.assertIn("chosen as the newest", "\n".join(answer["considered"]))
        self.assertEqual(cairn("status", *self.agent)[1]["protection"]["missing_parts"], 0)

    def test_restores_at_the_same_time(self):
        self.train()
        self.healthy()
        self.cluster.stop_trainers()
        begun = [
            subprocess.Popen(
                [CAIRN, "restore", "-o", "json", "--agent", self.cluster.socket(i % 3)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for i in range(6)
        ]
        answers = [
            (process.communicate(timeout=60 * PATIENCE)[0], process.returncode) for process in begun
        ]
        self.assertTrue({code for _, code in answers} <= {OK, AGAIN}, answers)
        won = [json.loads(text) for text, code in answers if code == OK]
        self.assertTrue(won)
        self.assertEqual(
            len({answer["epoch"] for answer in won}), len(won), "two restores had one epoch"
        )
        code, answer, _ = cairn("status", *self.agent)
        self.assertEqual(answer["epoch"], max(one["epoch"] for one in won))

    def test_no_majority(self):
        self.train()
        self.healthy()
        self.cluster.stop_trainers()
        self.cluster.kill_node(1)
        self.cluster.kill_node(2)
        wait_for(
            "the losses are seen",
            lambda: {"no-majority", "not-restorable"} <= codes(cairn("status", *self.agent)[1]),
        )
        code, answer, _ = cairn("status", *self.agent)
        self.assertEqual((code, answer["nodes_answering"]), (CRITICAL, 1))
        code, answer, err = cairn("restore", *self.agent)
        self.assertEqual(code, AGAIN, f"one of three cannot tell what the others hold: {answer}")
        self.assertIn(": not restorable:", answer["considered"][0])
        self.assertIn("only 1 of the job's 3 agents answered", err)
        self.cluster.start(1, 2)
        code, answer, err = self.cluster.restore()
        self.assertEqual(code, LOST, answer)
        self.assertIn("has lost 2 of its 3 nodes", err)
        self.assertIn("no spilled generation is known", answer["considered"])

    def test_verify(self):
        self.train()
        self.healthy()
        self.stop_trainers()
        code, answer, _ = cairn("verify", *self.agent)
        self.assertEqual((code, answer["verdict"], answer["bad_blocks"]), (OK, "good", 0))
        self.assertGreater(answer["checked_bytes"], 0)
        code, foreseen, _ = cairn("verify", "--dry-run", *self.agent)
        self.assertEqual(
            (code, foreseen["dry_run"], foreseen["checked_bytes"]),
            (OK, True, answer["checked_bytes"]),
        )
        self.assertEqual(answer["catalog"]["result"], "CAIRN_OK")

    def flip(self, node, kind):
        """Changes a byte of each slot's data or parity in the memory held by a node's keeper."""
        flipped = 0
        for pid in self.cluster.keeper(node):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{fd}"
                if f"memfd:cairn-slot" in os.readlink(path) and kind in os.readlink(path):
                    with open(path, "r+b", buffering=0) as file:
                        byte = file.read(1)
                        file.seek(0)
                        file.write(bytes([byte[0] ^ 1]))
                        flipped += 1
        self.assertGreater(flipped, 0)

    def test_a_flipped_byte_in_memory_is_found_and_repaired(self):
        self.train()
        self.healthy()
        self.stop_trainers()
        for kind in ("-data", "-parity"):
            self.flip(1, kind)
            code, answer, _ = cairn("verify", *self.agent)
            self.assertEqual((code, answer["verdict"]), (WARN, "repaired"), (kind, answer))
            self.assertEqual(
                (answer["bad_blocks"], answer["repaired_blocks"], answer["still_bad_blocks"]),
                (1, 1, 0),
                answer,
            )
            code, answer, _ = cairn("verify", *self.agent)
            self.assertEqual(answer["bad_blocks"], 0, answer)
            # nothing can repair what the trainers left unfinished
            if any("was never committed" in line for line in answer["considered"]):
                self.assertIn(
                    (code, answer["other_bad_blocks"] > 0), ((OK, False), (WARN, True)), answer
                )
            else:
                self.assertEqual((code, answer["other_bad_blocks"]), (OK, 0), answer)

    def test_damage_beyond_the_parity_is_loss(self):
        self.train()
        self.healthy()
        self.stop_trainers()
        for node in range(3):
            self.flip(node, "-data")
            self.flip(node, "-parity")
        code, answer, _ = cairn("verify", *self.agent)
        self.assertEqual((code, answer["verdict"]), (CRITICAL, "loss"), answer)

    def test_an_agent_that_hangs(self):
        self.cluster.agents[0].send_signal(signal.SIGSTOP)
        try:
            code, _, err = run("restore", "--timeout", "1s", *self.agent)
        finally:
            self.cluster.agents[0].send_signal(signal.SIGCONT)
        self.assertEqual(code, PEER)
        self.assertIn("the agent did not answer within 1 s", err)

    def test_another_node_does_not_answer(self):
        self.cluster.agents[2].send_signal(signal.SIGSTOP)
        try:
            wait_for(
                "the others answer", lambda: cairn("status", *self.agent)[1]["nodes_answering"] == 2
            )
            self.assertIn("nodes-silent", codes(cairn("status", *self.agent)[1]))
        finally:
            self.cluster.agents[2].send_signal(signal.SIGCONT)


class Spill(unittest.TestCase):
    def test_a_flipped_byte_in_a_spilled_file_is_loss(self):
        folder = None
        with Cluster(2, parity=1) as cluster:
            folder = cluster.path("spill")
            os.mkdir(folder)
            for i in range(2):
                with open(cluster.path(f"node{i}.yaml"), "a") as file:
                    file.write(f"spill_dir: {folder}\nspill_every_generations: 2\n")
            cluster.start()
            agent = ("--agent", cluster.socket(0))
            cluster.train(step_us=20000)
            listed = wait_for(
                "a spilled generation",
                lambda: [
                    g
                    for g in cairn("snapshots", *agent)[1]["generations"]
                    if g["state"] == "spilled"
                ],
            )
            cluster.stop_trainers()
            self.assertEqual(listed[0]["where"], folder)
            found = []

            def settled():
                """Two looks of all agents at all that there is, with a second between them, find
                the same."""
                time.sleep(1)
                found.append((*cairn("verify", *agent)[:2], sorted(os.listdir(folder))))
                return (
                    len(found) > 1
                    and all(code == OK for code, _, _ in found[-2:])
                    and all(
                        answer["files"]["generation"] == found[-1][1]["files"]["generation"]
                        and names == found[-1][2]
                        for _, answer, names in found[-2:]
                    )
                )

            wait_for("the last spill ends", settled)
            answer = found[-1][1]
            self.assertTrue(answer["files"]["checked"], answer)
            self.assertIsNotNone(cairn("status", *agent)[1]["spilled"])
            generation = answer["files"]["generation"]
            sub = [d for d in os.listdir(folder) if d.endswith(f"-s{generation['step']}")][0]
            data = [f for f in os.listdir(os.path.join(folder, sub)) if f.endswith(".safetensors")][
                0
            ]
            with open(os.path.join(folder, sub, data), "r+b") as file:
                file.seek(-3, os.SEEK_END)
                byte = file.read(1)
                file.seek(-3, os.SEEK_END)
                file.write(bytes([byte[0] ^ 1]))
            code, answer, _ = cairn("verify", *agent)
            self.assertEqual(
                (code, answer["verdict"], answer["files"]["result"]),
                (CRITICAL, "loss", "CAIRN_CORRUPT"),
            )
            self.assertIn(data, answer["files"]["report"])


class Run(unittest.TestCase):
    """`cairn run`: the command's exit code whatever happens to the agent."""

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

    def test_signals(self):
        self.cluster.start()
        agent = ("--agent", self.cluster.socket(0))
        self.assertEqual(run("run", *agent, "--", "sh", "-c", "kill -9 $$")[0], 128 + 9)
        process = spawn(
            [
                CAIRN,
                "run",
                *agent,
                "--",
                "sh",
                "-c",
                "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done",
            ],
            self.cluster.path("run.out"),
        )
        wait_for("the command runs", lambda: "ready" in text_of(self.cluster.path("run.out")))
        process.terminate()
        self.assertEqual(process.wait(timeout=60 * PATIENCE), 5)

    def test_a_snapshot_is_asked_for_by_signal(self):
        """Who has no use for SIGUSR1 would end by it: `cairn run` answers it itself, and hands it
        to others."""
        self.cluster.start()
        for number, (trap, code) in enumerate((("", 3), ("trap 'exit 6' USR1; ", 6))):
            out, go = self.cluster.path(f"usr1-{number}.out"), self.cluster.path(f"go{number}")
            process = spawn(
                [
                    CAIRN,
                    "run",
                    "--agent",
                    self.cluster.socket(0),
                    "--",
                    "sh",
                    "-c",
                    f"{trap}echo ready; while ! test -e {go}; do sleep 0.05; done; exit 3",
                ],
                out,
            )
            wait_for("the command runs", lambda: "ready" in text_of(out))
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
        """Whoever wraps a command that does not attach hears of it: while it runs, or when it has
        ended; its exit code stays."""
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
        process = spawn(
            [
                CAIRN,
                "run",
                "--agent",
                self.cluster.socket(0),
                "--",
                "sh",
                "-c",
                f"echo ready; while ! test -e {go}; do sleep 0.05; done",
            ],
            path,
        )
        wait_for("the command runs", lambda: "ready" in text_of(path))
        self.cluster.kill_agent(0)
        open(go, "w").close()
        self.assertEqual(process.wait(timeout=60 * PATIENCE), 0)
        self.assertNotIn("has attached", text_of(path))

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
