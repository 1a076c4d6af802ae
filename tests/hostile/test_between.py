#!/usr/bin/env python3
"""Somebody between two agents: changes bytes, and plays a recorded session again. Each test is an
attack; a changed frame is not accepted, and the job commits.

HOSTILE_SCALE multiplies the number of changes. HOSTILE_SEED tries others.
"""
import base64
import os
import struct
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster"))
from attacker import SCALE, dumped_memory, rng, send_all
from harness import OK, Built, Cluster, free_ports, say, wait_for, write_key
from proxy import Mangler, Proxy

NODES = 3
CHANGES = int(16 * SCALE)
KINDS = ("flip", "drop", "repeat", "reorder")
LOST = "transport: lost peer"
DROPPED = "transport: dropped a payload"


MASK = (1 << 64) - 1


def value(step, tensor, index):
    """An element of the state of tests/cluster/trainer.c."""
    z = (step * 0x9E3779B97F4A7C15 + tensor * 0xD1342543DE82EF95 + index) & MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def planted(steps):
    """Parts of the state that nodes 0 and 1 have after these steps."""
    return [
        struct.pack("<4Q", *(value(step, tensor, at + i) for i in range(4)))
        for step in steps
        for tensor in (0, 1)
        for at in range(16, 40000, 2048)
    ]


class Between(Built):
    protection = "authenticate"

    def setUp(self):
        """Nodes 0 and 1 reach each other through proxies alone."""
        ports = free_ports(NODES + 2)
        self.ports, between = ports[:NODES], ports[NODES:]
        self.cluster = Cluster(NODES, 1, addresses=[f"127.0.0.1:{port}" for port in self.ports])
        self.addCleanup(self.cluster.close)
        key = write_key(self.cluster.path("key"))
        for node in range(NODES):
            self.cluster.configure(node, key_file=key)
            self.cluster.configure(node, protection=self.protection)
        self.mangler = Mangler(rng(3))
        self.proxies = []
        for node, other in ((0, 1), (1, 0)):
            proxy = Proxy(between[node], self.ports[other], self.mangler)
            self.addCleanup(proxy.close)
            self.proxies.append(proxy)
            with open(self.cluster.path(f"node{node}.yaml"), "r+", encoding="utf-8") as file:
                text = file.read().replace(f':{self.ports[other]}"', f':{between[node]}"')
                file.seek(0)
                file.truncate()
                file.write(text)
        self.cluster.start()
        self.cluster.train(step_us=10000)
        self.cluster.wait_committed((1, 3))
        self.assertTrue(any(proxy.sessions for proxy in self.proxies), "nobody is in between")

    def noticed(self):
        """Sessions that ended, and payloads that were dropped."""
        return sum(
            self.cluster.log(i).count(LOST) + self.cluster.status(i).get("dropped_messages", 0)
            for i in range(NODES)
        )

    def test_changed_payload(self):
        """A bit of the state itself: those bytes are asked for again, and the session lives."""
        before = [self.cluster.log(i).count(LOST) for i in range(NODES)]
        dropped = self.noticed()
        for number in range(CHANGES // 4):
            seen = self.noticed()
            self.mangler.arm("payload")
            wait_for(f"change {number} is done", self.mangler.done.is_set)
            wait_for(f"change {number} is noticed", lambda seen=seen: self.noticed() > seen)
            self.cluster.wait_committed(self.cluster.committed(), 20)
        lost = [self.cluster.log(i).count(LOST) for i in range(NODES)]
        if self.protection == "encrypt":  # its blocks cannot change in an agent's memory
            self.assertGreater(sum(lost), sum(before))
        else:
            self.assertEqual(lost, before, "a session ended")
            self.assertGreaterEqual(self.noticed() - dropped, CHANGES // 4)
            self.assertTrue(any(DROPPED in self.cluster.log(i) for i in range(NODES)))

    def test_changed_bytes(self):
        for number in range(CHANGES):
            kind = KINDS[number % len(KINDS)]
            before = self.noticed()
            self.mangler.arm(kind)
            wait_for(f"{kind} {number} is done", self.mangler.done.is_set)
            wait_for(f"{kind} {number} is noticed", lambda before=before: self.noticed() > before)
            self.cluster.wait_committed(self.cluster.committed(), 20)
        self.assertFalse(any(self.cluster.ended(node) for node in range(NODES)))
        self.cluster.stop_trainers()
        newest = self.cluster.committed()
        code, answer, error = self.cluster.restore(0)
        self.assertEqual(code, OK, f"{answer} {error}")
        found = (answer["generation"]["epoch"], answer["generation"]["step"])
        self.assertGreaterEqual(found, newest)
        self.assertEqual(self.cluster.check()[:2], (OK, found), "changed bytes were accepted")

    def test_state_on_the_wire(self):
        """It can be read where it is not encrypted, and nowhere else. A core file of an agent does
        not have it, though the agent's memory does. The key is in none of these, in no log and in
        no status."""
        step = self.cluster.wait_committed(self.cluster.committed())[1]
        self.cluster.wait_committed((1, step + 3))
        wire = b"".join(
            bytes(way) for p in self.proxies for session in p.sessions for way in session
        )
        seen = sum(needle in wire for needle in planted(range(step, step + 3)))
        say(f"{self.protection}: {seen} parts of the state in {len(wire)} bytes")
        self.assertEqual(seen > 0, self.protection != "encrypt")
        self.assertFalse(self.protection == "encrypt" and b"CAIRNMAN" in wire, "a manifest")
        self.cluster.stop_trainers()
        newest = self.cluster.committed()[1]
        needles = planted((newest,))[:8]
        for agent in self.cluster.agents[:2]:
            held = [sum(map(memory.count, needles)) for memory in dumped_memory(agent.pid, True)]
            self.assertGreater(sum(held), 0, "the agent does not hold what is looked for")
            core = b"".join(dumped_memory(agent.pid))
            self.assertFalse(any(needle in core for needle in needles), "a core file has state")
            self.assertFalse(self.key_in(core), "a core file has the key")
        told = "".join(self.cluster.log(i) for i in range(NODES)) + str(self.cluster.status())
        self.assertFalse(self.key_in(wire), "the key is on the wire")
        self.assertFalse(self.key_in(told.encode()), "status shows the key")

    def key_in(self, where):
        """Whether the key is there, as it is or as text."""
        with open(self.cluster.path("key"), "rb") as file:
            key = file.read()
        self.assertEqual(len(key), 32)
        forms = key, key[:16], key.hex().encode(), base64.b64encode(key)[:40]
        return any(form in where for form in forms)

    def test_recorded_session(self):
        """Each whole session, from its first byte, to every agent, from either side."""
        lost = [self.cluster.log(i).count(LOST) for i in range(NODES)]
        ups = [self.cluster.log(i).count("transport: peer is up") for i in range(NODES)]
        recorded = [bytes(way) for p in self.proxies for session in p.sessions for way in session]
        self.assertGreater(max(map(len, recorded)), 100000)
        for record in recorded:
            for port in self.ports:
                send_all(port, record, 0.3)
        say(f"{len(recorded)} recordings of {sum(map(len, recorded))} bytes")
        self.cluster.wait_committed(self.cluster.committed(), 20)
        for node in range(NODES):
            log = self.cluster.log(node)
            self.assertEqual(log.count(LOST), lost[node])
            self.assertEqual(log.count("transport: peer is up"), ups[node])


class Clear(Between):
    """Where nothing is protected but the messages: the key is still nowhere."""

    protection = "none"
    test_changed_bytes = test_changed_payload = test_recorded_session = None


class Capture(Between):
    """The same attacks where the state is encrypted."""

    protection = "encrypt"


if __name__ == "__main__":
    unittest.main(verbosity=2)
