#!/usr/bin/env python3
"""Trust kept fresh: a scrub finds and repairs what is damaged in memory and on disk while the job
runs, a drill proves that the loss of nodes is survivable, and a doctor looks at the peers."""
import os
import re
import time
import unittest

from harness import OK, PATIENCE, Cluster, build, codes, say, wait_for

BLOCK = 65536
PERIOD_S = 1
DATA = r"slot.-region\d"  # of the only rank of a node


def memories(pid, kind):
    """Paths of the process's memfds whose name holds `kind`."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            if re.search(rf"memfd:cairn-.*{kind}", os.readlink(f"/proc/{pid}/fd/{fd}")):
                found.append(f"/proc/{pid}/fd/{fd}")
        except OSError:
            pass
    return sorted(found)


def flip(path, positions):
    fd = os.open(path, os.O_RDWR)
    try:
        for at in positions:
            byte = os.pread(fd, 1, at)
            os.pwrite(fd, bytes([byte[0] ^ 0x10]), at)
    finally:
        os.close(fd)


class Trust(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        build()

    def begin(self, nodes=3, parity=1, options=""):
        """A job that has committed; its trainers are gone, so that its memory stays."""
        self.cluster = Cluster(nodes, parity, options=options)
        self.addCleanup(self.cluster.close)
        self.cluster.start()
        self.cluster.train(step_us=20000)
        self.cluster.wait_committed((1, 3))

    def scrub(self, node):
        """What the node's scrub has counted."""
        return self.cluster.status(node)["nodes"][node]["scrub"]

    def flip_memory(self, node, kind, every=False):
        """One byte of the first block, or of every block, in both slots: one of them holds the
        ready generation."""
        paths = memories(self.cluster.agents[node].pid, kind)
        self.assertEqual(len(paths), 2, paths)
        for path in paths:
            size = os.stat(path).st_size
            flip(path, range(100, size, BLOCK) if every else [100])

    def check(self):
        code, found, text = self.cluster.check()
        self.assertEqual(code, OK, text)
        self.assertIsNotNone(found, text)

    def test_scrub_repairs_memory(self):
        self.begin(options=f"scrub_interval_ms: {PERIOD_S * 1000}")
        self.cluster.stop_trainers()
        wait_for("a full pass", lambda: self.scrub(1)["passes"] > 0)
        self.assertEqual(self.scrub(1)["found"], 0, "nothing is damaged")
        for count, kind in enumerate((DATA, "parity"), 1):
            begun = time.monotonic()
            self.flip_memory(1, kind)
            wait_for("it is found", lambda count=count: self.scrub(1)["found"] >= count)
            took = time.monotonic() - begun
            say(f"{kind}: found after {took:.2f} s of a period of {PERIOD_S} s")
            self.assertLess(took, (PERIOD_S + 1) * PATIENCE)
            wait_for("it is repaired", lambda count=count: self.scrub(1)["repaired"] >= count)
        self.assertEqual(self.scrub(1)["unrepairable"], 0)
        self.assertNotIn("scrub-unrepairable", codes(self.cluster.status()))
        self.check()

        # More than the parity covers.
        for node in (0, 2):
            self.flip_memory(node, DATA, every=True)
        wait_for(
            "the status is critical",
            lambda: "scrub-unrepairable" in codes(self.cluster.status()),
            60,
        )
        self.assertEqual(self.cluster.status()["health"], "CRITICAL")
        self.assertGreater(self.scrub(0)["unrepairable"], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
