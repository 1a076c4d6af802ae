#!/usr/bin/env python3
"""The job's key: it changes under load and no commit is lost; who holds another one is refused by
name; and no core file has it.

HOSTILE_SCALE multiplies the rotations: 50 makes a thousand.
"""
import os
import re
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster"))
from attacker import SCALE, dumped_memory
from harness import Built, Cluster, free_ports, say, wait_for

NODES = 3
ROTATIONS = int(20 * SCALE)
RESTART_EVERY = 5


class Keys(Built):
    def setUp(self):
        self.ports = free_ports(NODES)
        self.cluster = Cluster(NODES, 1, addresses=[f"127.0.0.1:{port}" for port in self.ports])
        self.addCleanup(self.cluster.close)
        self.key = os.urandom(32)
        for node in range(NODES):
            self.write(node, "key", self.key)
            self.cluster.configure(
                node,
                key_file=self.cluster.path(f"key{node}"),
                second_key_file=self.cluster.path(f"second{node}"),
            )

    def write(self, node, name, key):
        """Replaces a key file in one step, as every tool that copies secrets should."""
        path = self.cluster.path(f"{name}{node}")
        with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(key)
        os.replace(path + ".new", path)

    def set_keys(self, first, second=None):
        """On all nodes, one after the other, each told by a signal; waits until it has taken them
        over. With the agents' own log lines: it is what an operator has."""
        for node in range(NODES):
            marks = self.cluster.log(node).count("transport: key ")
            self.write(node, "key", first)
            if second:
                self.write(node, "second", second)
            else:
                os.remove(self.cluster.path(f"second{node}"))
            self.cluster.agents[node].send_signal(signal.SIGHUP)
            wait_for(
                f"agent {node} has the keys",
                lambda node=node, marks=marks: self.cluster.log(node).count("transport: key ")
                > marks,
            )

    def lost(self):
        return sum(self.cluster.log(i).count("transport: lost peer") for i in range(NODES))

    def test_rotation_under_load(self):
        cluster = self.cluster.start()
        cluster.train(step_us=5000)
        first = newest = cluster.wait_committed((1, 3))
        for rotation in range(ROTATIONS):
            lost, fresh = self.lost(), os.urandom(32)
            self.set_keys(self.key, fresh)
            self.set_keys(fresh, self.key)
            if rotation % RESTART_EVERY == 0:  # its sessions are new ones, under the new key
                cluster.kill_agent(2)
                cluster.start(2)
                wait_for(
                    "all hear all",
                    lambda: all(
                        cluster.status(i).get("nodes_answering") == NODES for i in range(NODES)
                    ),
                )
                lost = self.lost()
            self.set_keys(fresh)
            self.key = fresh
            self.assertEqual(self.lost(), lost, "a session did not outlive its key")
            if rotation % RESTART_EVERY == 0:
                newest = cluster.wait_committed(newest)
        newest = cluster.wait_committed(newest)
        say(f"{ROTATIONS} rotations while {newest[1] - first[1]} steps were trained and protected")
        self.assertFalse(any(cluster.ended(node) for node in range(NODES)))
        cluster.stop_trainers()
        self.check_restore(cluster, newest)

    def refused(self, reason):
        """Agent 2 is let in by nobody; a peer's log names the reason."""
        wait_for(reason, lambda: any(re.search(reason, self.cluster.log(i)) for i in (0, 1)))
        self.assertEqual(self.cluster.status(2).get("nodes_answering"), 1)
        self.assertEqual(self.cluster.status(0).get("nodes_answering"), NODES - 1)

    def test_wrong_key_is_named(self):
        self.write(2, "key", os.urandom(32))
        self.cluster.start()
        self.refused(r"refused .*node 2 .*key \([0-9a-f]{8}, ours is [0-9a-f]{8}\)")

    def test_wrong_job_is_named(self):
        self.cluster.configure(2, job="another")
        self.cluster.start()
        self.refused(r"belongs to another job \(theirs [0-9a-f]{16}, ours ")

    def test_wrong_level_is_named(self):
        self.cluster.configure(2, protection="encrypt")
        self.cluster.start()
        self.refused("node 2 has another protection")

    def test_wrong_identity_is_named(self):
        """Node 2 takes node 0 for node 1. Its calls are refused by name; where the others call it
        first, all prove their own names, and no wrong address is used."""
        with open(self.cluster.path("node2.yaml"), "r+", encoding="utf-8") as file:
            text = file.read()
            first, second = (f"127.0.0.1:{port}" for port in self.ports[:2])
            text = text.replace(first, "@").replace(second, first).replace("@", second)
            file.seek(0)
            file.write(text)
        self.cluster.start()
        wait_for(
            "the refusal, or sessions that the others began",
            lambda: any(
                "it calls itself node 2 and this node" in self.cluster.log(i) for i in (0, 1)
            )
            or self.cluster.status(2).get("nodes_answering") == NODES,
        )

    def test_old_key_is_dropped(self):
        """Who missed the rotation is refused once the old key is gone, and let in with the new."""
        cluster = self.cluster.start()
        fresh = os.urandom(32)
        cluster.stop_agent(2)
        for node in (0, 1):
            self.write(node, "key", fresh)
            cluster.agents[node].send_signal(signal.SIGHUP)
        cluster.start(2)
        self.refused(r"refused .*node 2 .*key \(")
        self.write(2, "key", fresh)
        cluster.agents[2].send_signal(signal.SIGHUP)
        wait_for("agent 2 is let in", lambda: cluster.status(0).get("nodes_answering") == NODES)

    def test_no_key_in_a_core_file(self):
        """Nor those that were in use before; and nothing in the log."""
        cluster = self.cluster.start()
        old = [self.key]
        for _ in range(3):
            fresh = os.urandom(32)
            self.set_keys(fresh, self.key)
            old.append(fresh)
            self.key = fresh
        for node in range(NODES):
            seen = False
            for region in dumped_memory(cluster.agents[node].pid):
                seen |= self.cluster.path(f"node{node}.yaml").encode() in region
                for number, key in enumerate(old):
                    self.assertFalse(key in region, f"agent {node} shows key {number}")
            self.assertTrue(seen, "not even the name of its configuration was found")
            for key in old:
                self.assertNotIn(key.hex(), cluster.log(node))


if __name__ == "__main__":
    unittest.main(verbosity=2)
