#!/usr/bin/env python3
"""Agents that stand still around a restore: nothing is rebuilt for one that comes back soon."""
import json
import os
import signal
import subprocess
import time
import unittest

from harness import CAIRN, OK, Cluster, build, say

DEAD_AFTER_S = 2


class Late(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        build()

    def setUp(self):
        self.cluster = Cluster(4, 1, dead_after_ms=DEAD_AFTER_S * 1000)
        self.addCleanup(self.cluster.close)
        self.cluster.start()
        self.cluster.train()
        self.newest = self.cluster.wait_committed((1, 3))

    def signal(self, node, number):
        os.kill(self.cluster.agents[node].pid, number)

    def restore_begun(self, node):
        return subprocess.Popen([CAIRN, "restore", "--agent", self.cluster.socket(node), "-o", "json"], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def check_restored(self, answer, at_least):
        found = (answer["generation"]["epoch"], answer["generation"]["step"])
        self.assertGreaterEqual(found, at_least, "a committed generation was lost")
        self.assertEqual(self.cluster.check()[:2], (OK, found))

    def test_a_stopped_agent_costs_no_rebuild(self):
        """A trainer dies, and a host holds up an agent for longer than makes it dead: another one, and the one that is asked."""
        cluster = self.cluster
        cluster.trainers[2].kill()
        cluster.stop_trainers()
        self.newest = max(self.newest, cluster.committed())
        for held_up in (1, 0):
            self.signal(held_up, signal.SIGSTOP)
            begun = time.monotonic()
            with self.restore_begun(0) as waits:
                while time.monotonic() < begun + 1.5 * DEAD_AFTER_S:
                    self.assertIsNone(waits.poll(), "it did not wait for an agent that was there a moment ago")
                    time.sleep(0.01)
                self.signal(held_up, signal.SIGCONT)
                out, error = waits.communicate(timeout=60)
            self.assertEqual(waits.returncode, OK, error)
            answer = json.loads(out)
            self.assertEqual((answer["rebuilt_bytes"], answer["lost_members"]), (0, 0), answer)
            self.check_restored(answer, self.newest)
            say(f"agent {held_up} stood still for {1.5 * DEAD_AFTER_S} s: nothing is rebuilt")


if __name__ == "__main__":
    unittest.main(verbosity=2)
