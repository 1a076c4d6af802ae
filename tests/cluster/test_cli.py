#!/usr/bin/env python3
"""The command's usage, and how an agent starts: output, exit codes, and what bad input and bad luck
come to."""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

from harness import (
    AGAIN,
    CAIRN,
    CONFIG,
    CRITICAL,
    Cluster,
    DENIED,
    FAULTS,
    INPUT,
    IO,
    OK,
    PATIENCE,
    PEER,
    ROOT,
    USAGE,
    WARN,
    build,
    cairn,
    codes,
    free_ports,
    run,
    text_of,
    wait_for,
    write_key,
)


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
        "history",
        "report",
        "verify",
        "drill",
        "doctor",
        "bench",
        "plan",
        "replan",
        "profile",
        "simulate",
        "assign",
        "detect",
        "explain",
        "heatmap",
        "trace",
        "inspect",
        "metrics",
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
        formats = out.split("formats, each for reading and writing:\n")[1].split("\n\n")[0]
        self.assertEqual(
            sorted(re.findall(r"^  ([a-z-]+) +\w", formats, re.M)),
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
            (("status", "-o", "xml"), "-o xml"),
            (("restore", "--generation", "30"), "EPOCH:STEP"),
            (("restore", "--timeout", "soon"), "--timeout"),
            (("snapshots", "extra"), 'unexpected argument "extra"'),
            (("run",), "which command?"),
            (("run", "--every", "0", "--", "true"), "--every"),
            (("agent",), "--config"),
            (("restore", "--to"), "needs a value"),
            (("bench", "protect", "--nodes", "4", "--parity", "4"), "at most half"),
            (("bench", "capture", "--rounds", "0"), "--rounds 0"),
            (("bench",), "which stage?"),
            (("run", "--state", "0", "--", "true"), "from 64KiB to 64TiB"),
            (("convert", "a", "b", "--to", "dcp", "--tp", "0"), "--tp 0"),
            (("run", "-o", "json", "--", "true"), "unknown option -o"),
            (("trace", "-o", "table"), "expected json"),
            (("profile", "-o", "table"), "expected json"),
            (("agent", "-o", "json", "--sample"), "is for --check"),
            (("demo", "--kill", "1,1@9"), "node 1 is named twice"),
            (("demo", "--speed", "2"), "unknown option --speed"),
            (("demo", "--slow", "1:2@3"), "RANK:FACTOR@FROM-TO"),
            (("snapshot", "--timeout", "9s"), "goes with --wait"),
            (("bench", "capture", "--nodes", "4"), "are for protect and restore"),
            (("bench", "erasure", "--keep"), "are for protect and restore"),
            (("bench", "plan", "--size", "64MiB"), "plan has no size"),
        ):
            code, out, err = run(*words)
            self.assertEqual((code, out), (USAGE, ""), words)
            self.assertIn(said, err)
        self.assertEqual(run()[0], USAGE)

    def test_a_move_is_measured(self):
        """Small and once: what moved has come from the other agent, and was right."""
        code, answer, err = cairn("bench", "migrate", "--size", "4MiB", "--rounds", "1")
        self.assertEqual(code, OK, err)
        self.assertEqual((answer["stage"], answer["bytes"]), ("migrate", 4 << 20))
        self.assertGreaterEqual(answer["details"]["fetched_bytes"], 4 << 20)
        self.assertGreater(answer["ratio"], 1)

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
                    self.assertIn("; name a file", err)

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
            key = write_key(cluster.path("key"))
            cluster.configure(0, provider="libfabric-tcp", network_is_closed="true", key_file=key)
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
                place = f"{path}:{line}: problem: {problem}: "
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
                place = f"{path}:{line}: enforce_command: {command}: "
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

    def test_an_unknown_copy_kernel_costs_no_start(self):
        """The file may come from a machine with another processor."""
        with Cluster(1, parity=0) as cluster:
            path = cluster.path("node0.yaml")
            self.found_by_doctor(path, "copy", "copies state", "OK")
            cluster.configure(0, copy_kernel="abacus")
            cluster.start()
            self.assertIn("copy: this processor has no kernel abacus", cluster.log(0))
            self.assertRegex(cluster.log(0), r"copy: kernel=\w+ chosen_by=measuring")
            self.found_by_doctor(path, "copy", "this processor has no copy_kernel abacus", "WARN")
            self.assertEqual(cluster.stop_agent(0), OK)
            cluster.configure(0, copy_kernel="portable")
            cluster.start()
            self.assertIn("copy: kernel=portable chosen_by=configuration", cluster.log(0))
            self.assertEqual(cluster.log(0).count("has no kernel"), 1)
            self.found_by_doctor(path, "copy", "portable copies state", "OK")

    def test_too_few_threads_are_no_crash(self):
        """RocksDB ends a process that cannot start a thread: the agent must not come to that."""
        with Cluster(1, parity=0) as cluster:
            for limit in range(1, 20):
                cluster.prefixes[0] = (
                    "env",
                    f"LD_PRELOAD={FAULTS}",
                    f"CAIRN_FAULT_THREADS={limit}",
                )
                served = cluster.log(0).count("agent: serves")
                cluster.start(wait=False)
                wait_for(
                    "the agent serves or ends",
                    lambda: cluster.log(0).count("agent: serves") > served or cluster.ended(0),
                )
                if not cluster.ended(0):
                    break
                self.assertEqual(cluster.agents[0].returncode, AGAIN, cluster.log(0)[-2000:])
                self.assertRegex(cluster.log(0), "cannot start (a )?thread")
            self.assertGreater(limit, 4)
            self.assertEqual(cluster.status()["node"], 0)
            self.assertEqual(cluster.stop_agent(0), OK)

    def test_a_thread_that_does_not_start_at_once_is_no_crash(self):
        with Cluster(1, parity=0) as cluster:
            for number in range(1, 13):  # an agent that serves has fewer
                cluster.prefixes[0] = (
                    "env",
                    f"LD_PRELOAD={FAULTS}",
                    f"CAIRN_FAULT_THREAD={number}",
                )
                cluster.start()
                self.assertEqual(cluster.stop_agent(0), OK)

    def test_too_little_memory_prints_the_sum(self):
        with Cluster(1, parity=0, state="64TiB") as cluster:
            code, _, err = self.start(cluster)
            self.assertEqual(code, 1, err)
            self.assertIn("64.00 TiB state", err)
            self.assertIn("short", err)


if __name__ == "__main__":
    build()
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
