#!/usr/bin/env python3
"""What agents log as JSON: every line of a cluster that loses things is one object, and it has all
that the text has."""
import json
import os
import re
import signal
import unittest

from harness import CAIRN, CONFIG, OK, Built, Cluster, run, text_of, wait_for

KEYS = ["time", "level", "source", "event", "message", "fields"]
# a line for people, as the agents print it by default
TEXT = re.compile(
    r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (error|warn |info |debug) (node \d+: )?"
)


class Logs(Built):
    def setUp(self):
        self.cluster = Cluster(3, parity=1, options="log_format: json")
        self.addCleanup(self.cluster.close)

    def take_apart(self, line):
        """One line, which must be as base/log_json.h states."""
        record = json.loads(line)
        self.assertEqual(
            [key for key in record if key != "source"],
            [key for key in KEYS if key != "source"],
            line,
        )
        self.assertRegex(record["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        self.assertIn(record["level"], ("error", "warn", "info", "debug"))
        self.assertRegex(record["event"], r"^[a-z_]+(\.[A-Za-z0-9_]+)?$", line)
        self.assertNotEqual(record["event"].split(".")[0], "log", line)
        self.assertTrue(record["message"].startswith(record["event"].split(".")[0] + ": "), line)
        self.assertTrue(record["message"].isprintable(), line)
        for name, value in record["fields"].items():
            self.assertIsInstance(value, (int, float, str), line)
            self.assertIn(str(value), record["message"], f"{name} of {line}")
        return record

    def test_every_line_is_an_object(self):
        cluster = self.cluster
        cluster.start()
        cluster.train()
        cluster.wait_committed(cluster.committed())
        # what a keeper that starts in its place says, and an agent that comes back
        cluster.kill_keeper(2)
        wait_for("another keeper", lambda: "keeper.had_died" in cluster.log(2))
        cluster.kill_agent(1)
        cluster.start(1)
        cluster.wait_met(1)
        cluster.kill_node(2)
        cluster.start(2)
        self.assertEqual(cluster.restore(0)[0], OK)
        cluster.train(resume=True)
        cluster.wait_committed(cluster.committed())
        newest = cluster.committed()
        for node in range(3):
            self.assertEqual(cluster.stop_agent(node), 0)

        records = [
            self.take_apart(line) for node in range(3) for line in cluster.log(node).splitlines()
        ]
        self.assertGreater(len(records), 50)
        found = {record["event"]: record for record in records}
        for event in ("agent.serves", "agent.stops", "peer.up", "peer.down", "epoch.active"):
            self.assertIn(event, found)
        committed = [
            (record["fields"]["epoch"], record["fields"]["step"])
            for record in records
            if record["event"] == "save.committed"
        ]
        self.assertIn(newest, committed)
        self.assertEqual(
            {record["source"] for record in records if "source" in record},
            {"node 0", "node 1", "node 2"},
        )

    def test_format_changes_while_it_runs(self):
        cluster = self.cluster
        cluster.start()
        wait_for("a session with node 2", lambda: '"peer: up node=2' in cluster.log(0))
        mark = len(cluster.log(0).splitlines())
        cluster.configure(0, log_format="text")
        os.kill(cluster.agents[0].pid, signal.SIGHUP)
        wait_for("the reload is logged", lambda: "reload: " in cluster.log(0))
        cluster.kill_node(2)
        wait_for("the loss is logged", lambda: "peer: down node=2" in cluster.log(0))
        lines = cluster.log(0).splitlines()
        for line in lines[:mark]:
            self.take_apart(line)
        self.assertRegex(lines[-1], TEXT)

    def test_refused_configuration(self):
        self.cluster.configure(0, verdict_policy="enforce", enforce_command='["/nowhere"]')
        path = self.cluster.path("node0.yaml")
        code, _, text = run("agent", "--config", path)
        self.assertEqual(code, CONFIG)
        self.assertEqual(self.take_apart(text)["level"], "error")
        # for people, who asked whether it is right, it stays text
        self.assertEqual(run("agent", "--config", path, "--check")[2][:12], "cairn agent:")


if __name__ == "__main__":
    unittest.main(verbosity=2)
