#!/usr/bin/env python3
"""Verdicts that no detector has given, from an agent that holds the job's key. The operator's
command may be a reboot: each test is an attack."""
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster"))
from harness import PATIENCE, STRANGER, Built, text_of, wait_for

NODES = 4
TAKEN = 3  # whose place the stranger has
FORGED = 7  # the number of its verdict


class Verdicts(Built):
    def verdict(self, cluster):
        """The forged one, as agent 0 has it, which analyses and would run the command."""
        for each in cluster.status().get("detection", {}).get("verdicts", []):
            if each["verdict"] == FORGED:
                return each
        return None

    def test_forged_verdict_runs_no_command(self):
        cluster = self.cluster(NODES, 1)
        command, runs = cluster.path("command"), cluster.path("runs")
        with open(os.open(command, os.O_WRONLY | os.O_CREAT, 0o755), "w") as file:
            file.write(f"#!/bin/sh\necho $CAIRN_RANKS >> {runs}\n")
        for node in range(NODES):
            cluster.configure(node, verdict_policy="enforce", enforce_command=f"[{command}]")
        cluster.start()
        wait_for("all agents have met", lambda: len(cluster.status().get("nodes", [])) == NODES)
        cluster.kill_agent(TAKEN)
        sent = subprocess.run(
            [STRANGER, cluster.path(f"node{TAKEN}.yaml"), "verdict"],
            stdin=subprocess.DEVNULL,
            timeout=60 * PATIENCE,
            check=False,
        )
        self.assertEqual(sent.returncode, 0)
        wait_for("the verdict has arrived", lambda: self.verdict(cluster))
        cluster.start(TAKEN)
        cluster.train(timing=True, step_us=5000, elements=2000)
        wait_for("the analysis does not confirm it", lambda: not self.verdict(cluster)["open"], 60)
        self.assertIsNone(self.verdict(cluster)["enforcement"])
        self.assertEqual(text_of(runs), "")


if __name__ == "__main__":
    unittest.main(verbosity=2)
