#!/usr/bin/env python3
"""What stops commits is named: a link that carries one direction only, an agent that beats
and completes nothing, a file server that hangs."""
import os
import subprocess
import sys
import time
import unittest

from harness import FAULTS, OK, PATIENCE, Built, Cluster, cairn, say, wait_for
from test_namespaces import ip, why_not

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "hostile"))
from test_memory import GRANT, Rank

NODES = 4


def blocker(status):
    return status.get("blocker") or {}


def wait_check(cluster):
    wait_for(
        "status warns of it",
        lambda: any(c["code"] == "commit-blocked" for c in cluster.status().get("checks", [])),
    )


class Faults:
    """Nodes that are started with libfaults.so, and the files that make their calls hang."""

    def __init__(self, test, nodes, directory):
        self.directory = directory
        self.nodes = nodes
        os.makedirs(directory, exist_ok=True)
        test.addCleanup(self.clear)

    def prefixes(self, count, **environment):
        words = ["env", f"LD_PRELOAD={FAULTS}", f"CAIRN_FAULTS={self.directory}"]
        words += [f"{name}={value}" for name, value in environment.items()]
        return [words if node in self.nodes else () for node in range(count)]

    def set(self, fault):
        with open(os.path.join(self.directory, fault), "w"):
            pass

    def clear(self):
        for name in os.listdir(self.directory):
            os.remove(os.path.join(self.directory, name))


class Stalls(Built):
    def wait_stalled(self, cluster):
        """Until nothing has been committed for a second."""

        def stalled():
            before = cluster.committed()
            time.sleep(1)
            return cluster.committed() == before

        wait_for("commits stop", stalled)

    def test_memory_that_comes_slowly(self):
        """A trainer is registered while its memory is made, so that its restore does not wait; its
        snapshots are granted once the memory is there."""
        cluster = self.cluster(1, 0)
        faults = Faults(self, [0], cluster.path("faults"))
        cluster.prefixes = faults.prefixes(1)
        cluster.start()
        faults.set("memory")
        rank = Rank(cluster.socket(0), 0, 1, 3, 0x41)
        self.addCleanup(rank.close)
        rank.register()
        self.assertEqual([os.fstat(fd).st_blocks for fd in rank.slots], [0] * len(rank.slots))
        for step in range(1, 400):
            rank.begin(step)
            answer = rank.answer(0.5)
            self.assertNotEqual(answer, GRANT, "a slot without memory was granted")
            if answer is None:
                break
        faults.clear()
        self.assertTrue(rank.capture())  # of the step that waited
        cluster.wait_committed((0, 0))
        code, answer, error = cairn("verify", "--agent", cluster.socket(0))
        self.assertEqual((code, answer["bad_blocks"]), (OK, 0), error)

    def test_wedged_agent(self):
        """Its workers hang, its loop runs: status names it, and a restore without it ends."""
        cluster = self.cluster(NODES, 1)
        faults = Faults(self, [2], cluster.path("faults"))
        cluster.prefixes = faults.prefixes(NODES)
        cluster.start()
        cluster.train(step_us=20000)
        cluster.wait_committed((1, 3))
        faults.set("workers")
        self.wait_stalled(cluster)
        self.assertFalse(cluster.ended(2))
        found = wait_for(
            "status names the agent",
            lambda: blocker(cluster.status()).get("node") == 2 and blocker(cluster.status()),
        )
        say(f"blocker: {found}")
        self.assertGreater(found["for_ms"], 0)
        wait_check(cluster)
        cluster.stop_trainers()
        newest = cluster.committed()
        begun = time.monotonic()
        code, answer, error = cairn("restore", "--agent", cluster.socket(0), seconds=60 * PATIENCE)
        took = time.monotonic() - begun
        say(f"restore without the wedged agent: exit {code} after {took:.1f} s: {answer}")
        self.assertEqual(code, OK, error)
        self.assertEqual(answer["lost_members"], 1)
        found = (answer["generation"]["epoch"], answer["generation"]["step"])
        self.assertGreaterEqual(found, newest)
        self.assertEqual(cluster.check()[:2], (OK, found))
        faults.clear()  # it goes on, and is taken in again
        cluster.train(step_us=20000, resume=True)
        cluster.wait_committed(found, 60)

    def test_signals_interrupt_all_calls(self):
        """All threads of all agents and keepers get signals all the time: every call that waits
        ends with EINTR again and again."""
        cluster = self.cluster(NODES, 1)
        faults = Faults(self, range(NODES), cluster.path("faults"))
        cluster.prefixes = faults.prefixes(NODES, CAIRN_FAULT_SIGNALS="1")
        cluster.start()
        self.lose_and_restore(cluster)

    def lose_and_restore(self, cluster, then=lambda: None):
        """Trains, commits more after `then`, loses a node and restores."""
        cluster.train(step_us=20000)
        before = cluster.wait_committed((1, 3))
        then()
        newest = cluster.wait_committed((before[0], before[1] + 3))
        cluster.kill_node(2)
        cluster.stop_trainers()
        cluster.start(2)
        code, answer, error = cluster.restore(0)
        self.assertEqual(code, OK, f"{answer} {error}")
        self.assertGreater(answer["rebuilt_bytes"], 0)
        found = (answer["generation"]["epoch"], answer["generation"]["step"])
        self.assertGreaterEqual(found, newest)
        self.assertEqual(cluster.check()[:2], (OK, found))

    def test_lost_wake_ups(self):
        """No agent hears from its workers what they have finished, as if each write to an eventfd
        failed: commits and a restore go on by the agents' own ticks."""
        cluster = self.cluster(NODES, 1)
        faults = Faults(self, range(NODES), cluster.path("faults"))
        cluster.prefixes = faults.prefixes(NODES)
        cluster.start()
        self.lose_and_restore(cluster, lambda: faults.set("wakes"))

    def test_spill_directory_hangs(self):
        """On one node, as a file server that is gone: commits go on, and restores come from
        memory."""
        cluster = self.cluster(3, 1)
        spill = cluster.path("spill")
        faults = Faults(self, [1], cluster.path("faults"))
        cluster.prefixes = faults.prefixes(3, CAIRN_FAULT_FILES=spill)
        for node in range(3):
            cluster.configure(node, spill_dir=spill, spill_every_generations=2)
        cluster.start()
        cluster.train(step_us=20000)
        cluster.wait_committed((1, 5))
        faults.set("files")
        mark = cluster.committed()
        for _ in range(5):
            mark = cluster.wait_committed((mark[0], mark[1] + 5), 30)
        say(f"with a spill directory that hangs: {mark} is committed")
        for _ in range(8):  # questions wait for no directory
            code, status, error = cairn("status", "--agent", cluster.socket(1))
            self.assertIsNotNone(status, f"{code} {error}")
        mark = cluster.wait_committed((mark[0], mark[1] + 5), 30)
        cluster.stop_trainers()
        newest = cluster.committed()
        cluster.kill_node(2)
        cluster.start(2)
        code, answer, error = cluster.restore(0)
        self.assertEqual(code, OK, f"{answer} {error}")
        found = (answer["generation"]["epoch"], answer["generation"]["step"])
        self.assertGreaterEqual(found, newest)
        self.assertEqual(cluster.check()[:2], (OK, found))


class OneWay(Built):
    """Four nodes on a bridge, each in a network namespace of its own."""

    def setUp(self):
        reason = why_not()
        if reason:
            self.skipTest(reason)
        self.bridge = f"cairn{os.getpid()}br"
        self.names = [f"cairn{os.getpid()}n{i}" for i in range(NODES)]
        self.addCleanup(lambda: [ip("netns", "del", name) for name in [*self.names, self.bridge]])
        for name in [self.bridge, *self.names]:
            self.assertEqual(ip("netns", "add", name).returncode, 0)
        made = ip("-n", self.bridge, "link", "add", "bridge0", "type", "bridge")
        if made.returncode:
            self.skipTest(f"no bridge can be made: {made.stdout.strip()}")
        ip("-n", self.bridge, "link", "set", "dev", "bridge0", "up")
        for i, name in enumerate(self.names):
            for words in (
                ("link", "add", "link0", "netns", name, "type", "veth", "peer", "name", f"port{i}")
                + ("netns", self.bridge),
                ("-n", self.bridge, "link", "set", "dev", f"port{i}", "master", "bridge0", "up"),
                ("-n", name, "addr", "add", f"10.78.0.{i + 1}/24", "dev", "link0"),
                ("-n", name, "link", "set", "dev", "link0", "up"),
                ("-n", name, "link", "set", "dev", "lo", "up"),
            ):
                done = ip(*words)
                self.assertEqual(done.returncode, 0, f"{words}: {done.stdout}")

    def cut(self, sender, receiver):
        """The sender's packets to the receiver go to nobody."""
        words = ("neigh", "replace", f"10.78.0.{receiver + 1}", "lladdr", "02:00:00:00:00:99")
        done = ip("-n", self.names[sender], *words, "nud", "permanent", "dev", "link0")
        self.assertEqual(done.returncode, 0, done.stdout)

    def heal(self, sender, receiver):
        words = ("neigh", "del", f"10.78.0.{receiver + 1}", "dev", "link0")
        done = ip("-n", self.names[sender], *words)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_one_direction_of_one_link(self):
        cluster = Cluster(
            NODES,
            1,
            addresses=[f"10.78.0.{i + 1}:7431" for i in range(NODES)],
            prefixes=[("ip", "netns", "exec", name) for name in self.names],
        )
        self.addCleanup(cluster.close)
        key = cluster.path("key")
        with open(key, "wb") as file:
            file.write(os.urandom(32))
        os.chmod(key, 0o600)
        for node in range(NODES):
            cluster.configure(node, key_file=key)
        cluster.start()
        trainers = cluster.train(step_us=20000)
        for sender, receiver in ((1, 2), (0, 3)):  # node 0 leads
            cluster.wait_committed(cluster.committed())
            self.cut(sender, receiver)
            begun = time.monotonic()

            def named():
                found = blocker(cluster.status())
                ends = {found.get("node"), found.get("for_node")} - {None}
                if len(ends) == 1:  # the leader hears nothing of that node
                    ends.add(found["leader"])
                return ends == {sender, receiver} and found

            found = wait_for(f"status names the link {sender} to {receiver}", named, 60)
            say(f"{time.monotonic() - begun:.1f} s after the cut: {found}")
            wait_check(cluster)
            stopped = cluster.committed()
            self.heal(sender, receiver)
            healed = cluster.wait_committed(stopped, 60)
            say(f"healed: {healed} is committed")
            wait_for("status names nobody", lambda: not blocker(cluster.status()))
        self.assertTrue(all(trainer.process.poll() is None for trainer in trainers))
        cluster.stop_trainers()
        code, answer, error = cluster.restore(1)
        self.assertEqual(code, OK, f"{answer} {error}")
        self.assertEqual(cluster.check()[0], OK)


if __name__ == "__main__":
    unittest.main(verbosity=2)
