#!/usr/bin/env python3
"""Claims that no agent makes, from one that holds the job's key: they are refused, and what is
committed comes back afterwards."""
import subprocess
import unittest

from harness import PATIENCE, STRANGER, Built, Cluster, say

NODES = 4
TAKEN = 3  # whose place the stranger has


class Claims(Built):
    def setUp(self):
        self.cluster = Cluster(NODES, 1)
        self.addCleanup(self.cluster.close)
        self.cluster.start()
        self.cluster.train(step_us=20000)
        self.cluster.wait_committed((1, 3))
        self.cluster.stop_trainers()
        self.newest = self.cluster.committed()
        self.cluster.kill_agent(TAKEN)

    def claim(self, claim):
        """Each agent's answer; an agent that answers nothing is not in it."""
        done = subprocess.run(
            [STRANGER, self.cluster.path(f"node{TAKEN}.yaml"), claim],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60 * PATIENCE,
        )
        answers = dict(line.split() for line in done.stdout.splitlines())
        say(f"{claim}: exit {done.returncode}, {answers}")
        return answers

    def fenced(self):
        return [node["node"] for node in self.cluster.status()["nodes"] if node.get("fenced")]

    def check_comes_back(self):
        cluster = self.cluster
        cluster.start(TAKEN)
        found, answer = self.check_restore(cluster, self.newest)
        cluster.train(resume=True, step_us=20000)
        cluster.wait_committed((found[0] + 1, 0), 60)

    def test_wrong_claims_are_refused(self):
        for claim in ("other", "nobody", "absurd", "old", "stale", "damaged"):
            answers = self.claim(claim)
            self.assertNotIn("CAIRN_OK", answers.values(), claim)
            self.assertEqual(self.fenced(), [], claim)
        self.assertFalse(any(self.cluster.ended(node) for node in range(NODES) if node != TAKEN))
        self.check_comes_back()

    def test_a_coordinator_that_vanishes(self):
        """A right claim is promised by all, and its coordinator is never heard again."""
        answers = self.claim("right")
        self.assertEqual(list(answers.values()), ["CAIRN_OK"] * (NODES - 1))
        self.check_comes_back()


if __name__ == "__main__":
    unittest.main(verbosity=2)
