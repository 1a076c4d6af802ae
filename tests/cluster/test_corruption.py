#!/usr/bin/env python3
"""Corruption is found: a flipped byte in an arena, a parity, a record or the catalog is reported,
and repaired where enough is left."""
import os
import random
import re
import signal
import unittest

from harness import CRITICAL, OK, PATIENCE, WARN, Built, Cluster, cairn, memories, say, wait_for

SEED = int(os.environ.get("SEED", str(random.SystemRandom().randrange(1 << 32))))
BLOCK = 65536
DATA = r"slot.-region\d"  # of the only rank of a node


def flip(path, at, count=1, stride=1):
    fd = os.open(path, os.O_RDWR)
    try:
        for i in range(count):
            byte = os.pread(fd, 1, at + i * stride)
            os.pwrite(fd, bytes([byte[0] ^ 0x10]), at + i * stride)
    finally:
        os.close(fd)


class Corruption(Built):
    def setUp(self):
        self.dice = random.Random(SEED)
        say(f"SEED={SEED}")
        self.cluster = Cluster(6, 2)
        self.addCleanup(self.cluster.close)
        self.cluster.start()
        self.cluster.train(step_us=20000)
        self.cluster.wait_committed((1, 3))
        self.cluster.stop_trainers()
        self.settle()

    def settle(self):
        """Until verify has nothing to do: the trainers were killed in the middle of something."""
        wait_for("all is right", lambda: self.verify()[0] == OK)

    def verify(self, node=0):
        code, answer, error = cairn("verify", "--agent", self.cluster.socket(node))
        self.assertIsNotNone(answer, error)
        return code, answer

    def check(self):
        code, answer, error = self.cluster.restore(4)
        self.assertEqual(code, OK, f"{answer} {error}")
        code, found, text = self.cluster.check(self.dice.randrange(6))
        self.assertEqual(code, OK, text)
        self.assertIsNotNone(found, text)

    def flip_everywhere(self, kind, nodes):
        """One byte of the first block of each such memory of these nodes: in every slot the newest
        generation is in."""
        for node in nodes:
            paths = memories(self.cluster.agents[node].pid, kind)
            self.assertEqual(len(paths), 2, paths)
            for path in paths:
                flip(path, self.dice.randrange(BLOCK))

    def test_data(self):
        self.flip_everywhere(DATA, [3])
        code, answer = self.verify()
        say(f"data: exit {code}, {answer}")
        self.assertEqual(code, WARN)
        self.assertGreater(answer["bad_blocks"], 0)
        self.assertEqual(answer["bad_blocks"], answer["repaired_blocks"])
        self.assertEqual(self.verify(5)[0], OK)
        self.check()

    def test_parity(self):
        self.flip_everywhere("parity", [1, 2])
        code, answer = self.verify(2)
        say(f"parity: exit {code}, {answer}")
        self.assertEqual(code, WARN)
        self.assertGreater(answer["bad_blocks"], 0)
        self.assertEqual(self.verify()[0], OK)
        self.check()

    def test_restore_repairs(self):
        self.flip_everywhere(DATA, [0, 5])
        self.check()
        self.assertEqual(self.verify()[0], OK)

    def test_trainer_never_reads_damage(self):
        self.flip_everywhere(DATA, range(6))
        code, found, text = self.cluster.check()
        say(f"a trainer that restores at once: exit {code} {found}")
        self.assertNotEqual(code, 3, f"wrong bytes were restored: {text}")

    def test_too_much(self):
        for node in range(4):  # three of its chunks are lost wherever a stripe has its parity
            for path in memories(self.cluster.agents[node].pid, DATA):
                flip(path, 100, count=os.stat(path).st_size // BLOCK, stride=BLOCK)  # every block
        code, answer = self.verify(1)
        say(f"four nodes: exit {code}, {answer}")
        self.assertEqual(code, CRITICAL)
        code, found, text = self.cluster.check(3, seconds=1, restore_ms=5000)
        self.assertIsNone(found, "what is lost was restored")
        self.assertNotEqual(code, 3, f"wrong bytes were restored: {text}")

    def test_record(self):
        paths = memories(self.cluster.agents[2].pid, "record")
        self.assertEqual(len(paths), 1, paths)
        flip(paths[0], 40, count=os.stat(paths[0]).st_size // 512, stride=512)
        self.assertEqual(self.cluster.rebuilt_blocks(), 0)
        self.cluster.kill_agent(2)
        self.cluster.start(2)
        say([line for line in self.cluster.log(2).splitlines() if "damaged" in line])
        self.assertIn("damaged", self.cluster.log(2))
        self.cluster.wait_repaired(2)
        self.assertGreater(self.cluster.rebuilt_blocks(), 0)
        code, answer, error = self.cluster.restore(3)
        self.assertEqual(code, OK, f"{answer} {error}")
        self.assertEqual(answer["lost_members"], 0)
        self.check()

    def test_record_of_a_running_agent(self):
        path = memories(self.cluster.agents[2].pid, "record")[0]
        flip(path, 40, count=os.stat(path).st_size // 512, stride=512)
        code, answer = self.verify()
        say(f"record: exit {code}, {answer}")
        self.assertEqual((code, answer["bad_blocks"]), (WARN, 0))
        self.assertGreater(answer["mended_records"], 0)
        self.assertIn("damaged record", self.cluster.log(2))
        code, answer = self.verify(4)
        self.assertEqual((code, answer["mended_records"]), (OK, 0))
        self.cluster.kill_agent(2)
        self.cluster.start(2)
        self.assertNotIn("counts as lost", self.cluster.log(2))
        code, answer, error = self.cluster.restore(3)
        self.assertEqual(code, OK, f"{answer} {error}")
        self.assertEqual(
            (answer["lost_members"], answer["rebuilt_bytes"]),
            (0, 0),
            "the next agent reads what was mended",
        )
        self.check()

    def test_catalog(self):
        cluster, refused = self.cluster, 0
        folder = os.path.join(cluster.state(1), "catalog")
        cluster.agents[1].send_signal(signal.SIGTERM)
        cluster.agents[1].wait(timeout=30 * PATIENCE)
        names = ["SIDE"] + [
            "db/" + name
            for name in sorted(os.listdir(os.path.join(folder, "db")))
            if re.match(r"\d+\.(log|sst)$|MANIFEST|CURRENT", name)
        ]
        for name in names:
            path = os.path.join(folder, name)
            size = os.stat(path).st_size
            if size < 8:
                continue
            at = size // 2
            # two slots of 512 bytes, written in turn: the newer one counts, and both are hit here
            if name == "SIDE":
                at = 16
                flip(path, at + 512)
            flip(path, at)
            cluster.start(1, wait=False)
            code = wait_for(
                f"the agent refuses a flipped byte of {name}", lambda: cluster.agents[1].poll(), 20
            )
            last = [line for line in cluster.log(1).splitlines() if " error " in line][-1]
            say(f"{name}: exit {code}: {last[:160]}")
            self.assertNotEqual(code, OK)
            self.assertIn("catalog", cluster.log(1).lower())
            flip(path, at)
            if name == "SIDE":
                flip(path, at + 512)
            refused += 1
        self.assertGreater(refused, 0, names)
        cluster.start(1)  # with the byte as it was, it opens again
        self.check()


if __name__ == "__main__":
    unittest.main(verbosity=2)
