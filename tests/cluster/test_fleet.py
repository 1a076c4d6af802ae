#!/usr/bin/env python3
"""Another machine in place of a dead node, and one node less, while the job goes on: one agent is
told, and nobody edits a file."""
import re
import shutil
import unittest

from harness import (
    CAIRN,
    CONFIG,
    DENIED,
    OK,
    PATIENCE,
    USAGE,
    Built,
    cairn,
    free_ports,
    say,
    spawn,
    text_of,
    wait_for,
)


class Fleet(Built):
    def node(self, cluster, asked, *words):
        return cairn("node", *words, "--agent", cluster.socket(asked))

    def addresses(self, cluster, asked):
        return [node["address"] for node in cluster.status(asked).get("nodes", [])]

    def wait_silent(self, cluster, asked, node):
        def silent():
            nodes = cluster.status(asked).get("nodes")
            return nodes and not nodes[node]["alive"]

        wait_for(f"node {node} is taken for dead", silent)

    def move(self, cluster, node):
        """The file of a machine that takes a node's place: its own address is another one. It has
        no state."""
        address = f"127.0.0.1:{free_ports(1)[0]}"
        with open(cluster.path(f"node{node}.yaml"), "r+") as file:
            head, nodes = file.read().split("nodes:\n")
            lines = nodes.splitlines(True)
            lines[node] = f'  - {{address: "{address}"}}\n'
            file.seek(0)
            file.truncate()
            file.write(head + "nodes:\n" + "".join(lines))
        return address

    def texts(self, cluster, nodes):
        found = []
        for node in nodes:
            with open(cluster.path(f"node{node}.yaml")) as file:
                found.append(file.read())
        return found

    def test_replaced(self):
        cluster = self.cluster(4, 1)
        cluster.start()
        cluster.train(step_us=20000)
        newest = cluster.wait_committed((1, 3))
        files = self.texts(cluster, (0, 1, 2))
        cluster.kill_node(3)
        cluster.stop_trainers()
        newest = max(newest, cluster.committed())
        self.wait_silent(cluster, 1, 3)
        address = self.move(cluster, 3)
        code, answer, error = self.node(cluster, 1, "replace", "3", address)
        self.assertEqual(code, OK, f"{answer} {error}")
        self.assertEqual((answer["node"], answer["address"]), (3, address))
        cluster.start(3)
        for asked in range(4):
            wait_for(
                f"node {asked} knows where node 3 is",
                lambda asked=asked: self.addresses(cluster, asked)[3:] == [address],
            )
        found, _ = self.check_restore(cluster, newest, node=3)
        cluster.train(resume=True, step_us=20000)
        newest = cluster.wait_committed((found[0] + 1, 0))
        say(f"node 3 is another machine at {address}: {newest} is committed")
        # agents that start again remember it
        for node in (0, 2):
            cluster.kill_agent(node)
            cluster.start(node)
        newest = cluster.wait_committed(max(newest, cluster.committed()), 60)
        self.assertEqual(self.addresses(cluster, 0)[3], address)
        self.assertEqual(self.texts(cluster, (0, 1, 2)), files, "a file was edited")

    def test_replaced_while_training(self):
        """The other trainers wait for nobody: protection begins again once the node is back."""
        cluster = self.cluster(4, 1)
        cluster.start()
        trainers = cluster.train(step_us=20000)
        cluster.wait_committed((1, 3))
        trainers[2].kill()
        cluster.kill_node(2)
        self.wait_silent(cluster, 0, 2)
        old = self.addresses(cluster, 0)[2]
        code, answer, error = self.node(cluster, 0, "replace", old, self.move(cluster, 2))
        self.assertEqual(code, OK, f"{answer} {error}")
        cluster.start(2)
        wait_for(
            "the new machine holds the part of the dead one",
            lambda: (cluster.status().get("protection") or {}).get("missing_parts") == 0,
            60,
        )
        self.assertTrue(
            all(t.process.poll() is None for t in trainers if t.rank != 2), "a trainer was ended"
        )

    def test_the_old_machine_comes_back(self):
        """It has its state, and an agent with its number; nobody hears it, and the machine in its
        place serves."""
        cluster = self.cluster(4, 1)
        cluster.start()
        cluster.train(step_us=20000)
        cluster.wait_committed((1, 3))
        cluster.stop_trainers()
        newest = cluster.committed()
        cluster.kill_agent(3)
        self.wait_silent(cluster, 0, 3)
        left = cluster.path("left.yaml")
        shutil.copy(cluster.path("node3.yaml"), left)
        cluster.configure(3, dir=cluster.path("state3-new"), socket=cluster.path("node3-new.sock"))
        code, answer, error = self.node(cluster, 0, "replace", "3", self.move(cluster, 3))
        self.assertEqual(code, OK, f"{answer} {error}")
        old = spawn([CAIRN, "agent", "--config", left], cluster.path("left.log"))
        self.addCleanup(lambda: (old.kill(), old.wait()))
        wait_for("the old agent is back", lambda: "adopted" in text_of(cluster.path("left.log")))
        cluster.start(3)
        cluster.socket = lambda node: cluster.path(
            "node3-new.sock" if node == 3 else f"node{node}.sock"
        )
        wait_for(
            "the new machine holds the part of the old one",
            lambda: (cluster.status(3).get("protection") or {}).get("missing_parts") == 0,
            60,
        )
        found, _ = self.check_restore(cluster, newest, 1, node=3)
        cluster.train(resume=True, step_us=20000)
        newest = cluster.wait_committed((found[0] + 1, 0))
        newest = cluster.wait_committed((newest[0], newest[1] + 5))
        say(f"with the old machine beside it: {newest} is committed")

    def test_removed(self):
        cluster = self.cluster(4, 1)
        cluster.start()
        cluster.train(step_us=20000)
        cluster.wait_committed((1, 3))
        cluster.kill_node(1)
        cluster.stop_trainers()
        newest = cluster.committed()
        self.wait_silent(cluster, 0, 1)
        code, answer, error = self.node(cluster, 2, "remove", "1")
        self.assertEqual(code, OK, f"{answer} {error}")
        self.assertTrue(answer["removed"])

        def known():
            status = cluster.status(0)
            return status.get("nodes", [{}] * 4)[1].get("removed") and status

        status = wait_for("another agent knows it", known)
        self.assertNotIn("nodes-silent", [check["code"] for check in status["checks"]])
        found, _ = self.check_restore(cluster, newest)
        code, answer, error = self.node(cluster, 2, "remove", "1")
        self.assertEqual(code, USAGE, f"{answer} {error}")
        cluster.start(1, wait=False)  # it is repaired, and knows nothing of that
        code = cluster.agents[1].wait(timeout=30 * PATIENCE)
        say(f"the removed agent: exit {code}: {cluster.log(1).strip().splitlines()[-1]}")
        self.assertEqual(code, CONFIG)

    def test_wrong_changes(self):
        cluster = self.cluster(3, 1)
        cluster.start()
        wait_for("all answer", lambda: cluster.status().get("nodes_answering") == 3)
        own, other = self.addresses(cluster, 0)[:2]
        for words, expected in (
            (("replace", "3", "127.0.0.1:1"), USAGE),
            (("replace", "-1", "127.0.0.1:1"), USAGE),
            (("replace", "1x", "127.0.0.1:1"), USAGE),
            (("replace", "nobody:7431", "127.0.0.1:1"), USAGE),
            (("replace", "1", "nonsense"), USAGE),
            (("replace", "1", "127.0.0.1:70000"), USAGE),
            (("replace", "1", "a" * 600 + ":1"), USAGE),
            (("replace", "1", own), USAGE),
            (("replace", "1", "10.0.0.1:7431"), USAGE),  # off loopback it needs a key
            (("replace", "0", "127.0.0.1:1"), USAGE),  # its own
            (("replace", "1", "127.0.0.1:1"), DENIED),  # it runs
            (("remove", "1"), DENIED),
            (("remove", other), DENIED),
            (("remove",), USAGE),
            (("replace", "1"), USAGE),
            (("remove", "1", "2"), USAGE),
            (("exchange", "1"), USAGE),
            ((), USAGE),
        ):
            code, answer, error = self.node(cluster, 0, *words)
            self.assertEqual(code, expected, f"{words}: {answer} {error}")
            self.assertTrue(error, words)
        self.assertEqual(self.addresses(cluster, 0)[1], other)
        self.assertFalse(any(cluster.ended(node) for node in range(3)))
        self.assertFalse(re.search("operator: (replace|remove)", cluster.log(0)))
        code, answer, error = self.node(cluster, 0, "--force", "--dry-run", "remove", "2")
        self.assertEqual((code, answer["dry_run"], answer["node"]), (OK, True, 2), error)
        self.assertFalse(any(node["removed"] for node in cluster.status(0)["nodes"]))
        # forced: the agent that runs learns it, and stops
        code, answer, error = self.node(cluster, 0, "--force", "remove", "2")
        self.assertEqual(code, OK, f"{answer} {error}")
        self.assertEqual(cluster.agents[2].wait(timeout=30 * PATIENCE), CONFIG)


if __name__ == "__main__":
    unittest.main(verbosity=2)
