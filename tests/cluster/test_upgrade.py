#!/usr/bin/env python3
"""A job that trains while its agents are upgraded one by one, and agents whose versions have
nothing in common."""
import os
import re
import unittest

from harness import BUILD, CAIRN, Built, Cluster, say, wait_for

NEWER = os.path.join(BUILD, "newer", "cairn")
FOREIGN = os.path.join(BUILD, "foreign", "cairn")
NODES = 4


class Upgrade(Built):
    def setUp(self):
        self.cluster = Cluster(NODES, 1)
        self.addCleanup(self.cluster.close)

    def adopted(self, node):
        return self.cluster.log(node).count("memory: adopted from the keeper")

    def replace(self, node, program):
        """The node's agent ends in good order, and that of another version adopts its memory."""
        before = self.adopted(node)
        self.cluster.stop_agent(node)
        self.cluster.programs[node] = program
        self.cluster.start(node)
        self.assertEqual(self.adopted(node), before + 1, "its memory was lost")

    def test_one_by_one(self):
        cluster = self.cluster
        cluster.start()
        trainers = cluster.train(step_us=20000)
        cluster.wait_committed((1, 3))
        for node in range(NODES):
            before = cluster.committed()
            self.replace(node, NEWER)
            after = cluster.wait_committed(max(before, cluster.committed()), 60)
            say(f"node {node} is upgraded: {after} is committed")
            if node == 1:  # half of them: a node is lost now
                self.lose(3)
                trainers = cluster.trainers
        self.assertTrue(all(trainer.process.poll() is None for trainer in trainers))
        cluster.stop_trainers()
        self.check_restore(cluster, cluster.committed())
        cluster.train(resume=True, step_us=20000)
        newest = cluster.wait_committed(cluster.committed())
        for node in reversed(range(NODES)):  # and back
            self.replace(node, CAIRN)
            newest = cluster.wait_committed(max(newest, cluster.committed()), 60)
        say(f"all are back at the old version: {newest} is committed")

    def lose(self, node):
        cluster = self.cluster
        cluster.stop_trainers()
        newest = cluster.committed()
        cluster.kill_node(node)
        cluster.start(node)
        found, _ = self.check_restore(cluster, newest)
        cluster.train(resume=True, step_us=20000)
        cluster.wait_committed((found[0] + 1, 0), 60)

    def test_nothing_in_common(self):
        """Both sides name both versions, and nobody ends; the right version is taken in."""
        cluster = self.cluster
        cluster.programs[3] = FOREIGN
        cluster.start()
        for node in (0, 3):
            line = wait_for(f"node {node} says it", lambda node=node: self.refusal(node))
            say(f"node {node}: {line}")
            numbers = map(int, re.findall(r"\d+", line.split("version", 1)[1]))
            oldest, newest, own_oldest, own_newest = numbers
            self.assertTrue(newest < own_oldest or own_newest < oldest, line)
        self.assertFalse(any(cluster.ended(node) for node in range(NODES)))
        wait_for(
            "status says it",
            lambda: any(
                check["code"] == "versions-differ" for check in cluster.status().get("checks", [])
            ),
        )
        cluster.stop_agent(3)
        cluster.programs[3] = CAIRN
        cluster.start(3)
        cluster.train(step_us=20000)
        say(f"the same version again: {cluster.wait_committed((0, 0), 60)} is committed")

    def refusal(self, node):
        lines = [
            line
            for line in self.cluster.log(node).splitlines()
            if " error " in line and "version" in line
        ]
        return lines[0] if lines else None


if __name__ == "__main__":
    unittest.main(verbosity=2)
