#!/usr/bin/env python3
"""Trust kept fresh: a scrub finds and repairs what is damaged in memory and on disk while the job
runs, a drill proves that the loss of nodes is survivable, and a doctor looks at the peers."""
import os
import re
import time
import unittest

from harness import LOST, OK, PATIENCE, USAGE, Built, Cluster, cairn, codes, memories, say, wait_for

BLOCK = 65536
PERIOD_S = 0.5
DATA = r"slot.-region\d"  # of the only rank of a node


def flip(path, positions):
    fd = os.open(path, os.O_RDWR)
    try:
        for at in positions:
            byte = os.pread(fd, 1, at)
            os.pwrite(fd, bytes([byte[0] ^ 0x10]), at)
    finally:
        os.close(fd)


class Trust(Built):
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
        ready generation. A slot may keep the file of an arrangement before, too."""
        paths = memories(self.cluster.agents[node].pid, kind)
        self.assertGreaterEqual(len(paths), 2, paths)
        for path in paths:
            size = os.stat(path).st_size
            flip(path, range(100, size, BLOCK) if every else [100])

    def check_period(self, begun, kind):
        took = time.monotonic() - begun
        say(f"{kind}: found after {took:.2f} s of a period of {PERIOD_S} s")
        self.assertLess(took, (PERIOD_S + 1) * PATIENCE)

    def check(self):
        code, found, text = self.cluster.check()
        self.assertEqual(code, OK, text)
        self.assertIsNotNone(found, text)

    def test_scrub_repairs_memory(self):
        self.begin(options=f"scrub_interval_ms: {int(PERIOD_S * 1000)}")
        self.cluster.stop_trainers()
        wait_for("a full pass", lambda: self.scrub(1)["passes"] > 0)
        self.assertEqual(self.scrub(1)["found"], 0, "nothing is damaged")
        for count, kind in enumerate((DATA, "parity"), 1):
            begun = time.monotonic()
            self.flip_memory(1, kind)
            wait_for("it is found", lambda count=count: self.scrub(1)["found"] >= count)
            self.check_period(begun, kind)
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
        status = self.cluster.status()
        self.assertEqual(status["health"], "CRITICAL")
        self.assertGreater(max(node["scrub"]["unrepairable"] for node in status["nodes"]), 0)

    def flip_file(self, step, at):
        """One byte of node 1's file of that step; the path."""
        folder = self.cluster.path("local1")
        names = [name for name in os.listdir(folder) if name.endswith(f"-s{step}.part")]
        self.assertEqual(len(names), 1, os.listdir(folder))
        flip(os.path.join(folder, names[0]), [at])
        return os.path.join(folder, names[0])

    def local_step(self, node=1):
        return (self.cluster.status(0)["nodes"][node].get("local") or {"step": 0})["step"]

    def test_scrub_replaces_damaged_files(self):
        self.cluster = cluster = Cluster(
            2, 1, options=f"scrub_interval_ms: {int(PERIOD_S * 1000)}\nlocal_after_ms: 200"
        )
        self.addCleanup(cluster.close)
        for node in range(2):
            cluster.configure(node, local_dir=cluster.path(f"local{node}"))
        cluster.start()
        cluster.train(step_us=20000)
        cluster.wait_committed((1, 2))
        cluster.stop_trainers()
        wait_for("it is on the disk", lambda: self.local_step() >= cluster.committed()[1])

        # Memory holds a newer one: that goes to the disks, and the damaged file is given up.
        step = self.local_step()
        cluster.train(resume=True, step_us=20000)
        cluster.wait_committed(cluster.committed())
        path = self.flip_file(step, 100000)
        wait_for("it is given up", lambda: not os.path.exists(path))
        self.assertEqual(self.scrub(1)["found"], 1)
        wait_for("all nodes have written", lambda: self.local_step(0) > step)
        cluster.stop_trainers()
        wait_for("it is on the disk", lambda: self.local_step() >= cluster.committed()[1])

        # Memory holds it: its file is written again, also if its head is damaged.
        step = self.local_step()
        for count, at in enumerate((100000, 20), 2):
            begun = time.monotonic()
            path = self.flip_file(step, at)
            with open(path, "rb") as file:
                damaged = file.read()
            wait_for("it is found", lambda count=count: self.scrub(1)["found"] >= count)
            self.check_period(begun, "file")
            wait_for("it is replaced", lambda at=at: self.differs(path, damaged) == [at])
        self.assertEqual(self.scrub(1)["unrepairable"], 0)

    def differs(self, path, damaged):
        """Where the file's bytes are others than those."""
        with open(path, "rb") as file:
            bytes_now = file.read()
        self.assertEqual(len(bytes_now), len(damaged))
        return [i for i, (a, b) in enumerate(zip(bytes_now, damaged)) if a != b]

    def spilled(self):
        """Directories of whole generations in spill_dir, oldest first."""
        names = [n for n in os.listdir(self.spill) if re.fullmatch(r"e\d+-s\d+", n)]
        whole = [n for n in names if os.path.exists(os.path.join(self.spill, n, "COMMIT"))]
        return sorted(whole, key=lambda n: [int(x) for x in re.findall(r"\d+", n)])

    def counted(self, name):
        """By the scrubs of all nodes."""
        return sum(node["scrub"][name] for node in self.cluster.status(0)["nodes"])

    def listed(self):
        """Steps that `cairn snapshots` lists as spilled."""
        _, answer, error = cairn("snapshots", "--agent", self.cluster.socket(0))
        self.assertIsNotNone(answer, error)
        return {entry["step"] for entry in answer["generations"] if entry["state"] == "spilled"}

    def damage(self, name, start="param-", at=-5):
        """Flips a byte of a file, by default of its last block; its path and its bytes before."""
        folder = os.path.join(self.spill, name)
        path = os.path.join(folder, min(n for n in os.listdir(folder) if n.startswith(start)))
        with open(path, "rb") as file:
            before = file.read()
        flip(path, [at % len(before)])
        return path, before

    def test_scrub_of_spilled_generations(self):
        self.spill = self.new_folder()
        self.cluster = cluster = Cluster(
            3,
            1,
            options=f"scrub_interval_ms: {int(PERIOD_S * 1000)}\nspill_dir: {self.spill}\n"
            "spill_every_generations: 1\nspill_keep: 3\nslots: 3",
        )
        self.addCleanup(cluster.close)
        cluster.start()

        def newest_is_spilled():
            return self.spilled() and self.spilled()[-1].endswith(f"-s{cluster.committed()[1]}")

        while not newest_is_spilled() or len(self.spilled()) < 3:
            cluster.train(resume=bool(self.spilled()), step_us=100000)
            wait_for("three are spilled", lambda: len(self.spilled()) >= 3)
            wait_for("the newest is spilled", newest_is_spilled)
            cluster.stop_trainers()
            wait_for(
                "no spill is under way",
                lambda: not [
                    n
                    for n in os.listdir(self.spill)
                    if n.startswith("e") and n not in self.spilled()
                ],
            )
        oldest, older, newest = self.spilled()

        # Memory holds it: the file is written again, by one agent.
        # So is one with a damaged header or index.
        for count, (start, at) in enumerate((("param-", -5), ("param-", 20), ("index", 100)), 1):
            path, before = self.damage(newest, start, at)
            wait_for("it is repaired", lambda count=count: self.counted("repaired") >= count)
            with open(path, "rb") as file:
                self.assertEqual(file.read(), before)
            self.assertEqual((self.counted("found"), self.counted("repaired")), (count, count))
        logs = "".join(cluster.log(node) for node in range(3))
        self.assertEqual(logs.count("scrub: damaged spill"), 3, "one agent reads a generation")

        # Memory holds a newer one: it is marked as bad, and not listed any more.
        step = int(older.split("-s")[1])
        self.assertIn(step, self.listed())
        path, _ = self.damage(older)
        wait_for("it is marked", lambda: os.path.exists(os.path.join(self.spill, older + ".bad")))
        wait_for("a status tells it", lambda: "spill-failed" in codes(cluster.status(1)))
        self.assertEqual(self.spilled(), [oldest, newest])
        self.assertNotIn(step, self.listed())
        logs = "".join(cluster.log(node) for node in range(3))
        self.assertRegex(logs, rf"(?m) warn .* epoch=1 step={step} path={self.spill}/{older}\.bad")
        code, _, error = cairn(
            "restore", "--generation", f"1:{step}", "--dry-run", "--agent", cluster.socket(0)
        )
        self.assertNotEqual(code, OK, error)
        _, answer, _ = cairn("history", "--agent", cluster.socket(0))
        events = [e for e in answer["events"] if e["kind"] == "spill"]
        self.assertEqual([e["generation_step"] for e in events], [step], events)

        # Nothing holds it any more: the one before is taken.
        for node in range(3):
            cluster.kill_node(node)
        self.damage(newest)
        cluster.start()
        wait_for("it is marked", lambda: os.path.exists(os.path.join(self.spill, newest + ".bad")))
        code, answer, error = cluster.restore(0)
        self.assertEqual(code, OK, error)
        self.assertEqual(answer["from"], "files")
        self.assertEqual(answer["generation"]["step"], int(oldest.split("-s")[1]))
        self.check()

    def drill(self, nodes, agent=0):
        code, answer, error = cairn("drill", "--node", nodes, "--agent", self.cluster.socket(agent))
        say(f"drill {nodes}: exit {code}, {(answer or {}).get('reason', error)}")
        return code, answer or {}

    def test_drill(self):
        self.begin(nodes=5, parity=2, options="scrub_interval_ms: 0")
        cluster = self.cluster
        before, step = cluster.committed(), cluster.trainers[0].step()
        for nodes, agent in (("3", 0), ("2,3", 3)):  # also asked of a node that would be lost
            code, answer = self.drill(nodes, agent)
            self.assertEqual((code, answer.get("survivable")), (OK, True))
            self.assertGreater(answer["decoded_bytes"], 0)
            self.assertEqual(answer["damaged_blocks"], 0)
        code, answer = self.drill("2,3,4")
        self.assertEqual((code, answer.get("survivable")), (LOST, False))
        self.assertEqual(self.drill("5")[0], USAGE)

        # Training goes on, and nothing has changed.
        cluster.wait_committed(before)
        wait_for("more steps", lambda: cluster.trainers[0].step() > step)
        self.assertEqual([t.process.poll() for t in cluster.trainers], [None] * 5)
        self.assertEqual(cluster.committed()[0], before[0], "the epoch")

        # A survivor is damaged: its blocks are left out, and then too few are left.
        cluster.stop_trainers()
        for kind in (DATA, "parity"):
            self.flip_memory(1, kind, every=True)
        code, answer = self.drill("3")
        self.assertEqual((code, answer.get("survivable")), (OK, True))
        self.assertGreater(answer["damaged_blocks"], 0)
        code, answer = self.drill("2,3")
        self.assertEqual((code, answer.get("survivable")), (LOST, False))
        self.assertEqual(self.drill("1,3")[0], OK, "the loss of what is damaged costs nothing")
        code, answer, error = cairn("verify", "--agent", cluster.socket(0))
        self.assertGreater(answer["repaired_blocks"], 0, "a drill repairs nothing")
        self.assertEqual(self.drill("2,3")[0], OK)
        self.check()

        # One node is gone already.
        cluster.kill_node(2)
        wait_for("it is silent", lambda: cluster.status().get("nodes_answering") == 4)
        code, answer = self.drill("3,4")
        self.assertEqual((code, answer.get("survivable")), (LOST, False))

    def doctor(self):
        """What the doctor says of the peers, by code."""
        _, answer, error = cairn("doctor", "--config", self.cluster.path("node0.yaml"))
        self.assertIsNotNone(answer, error)
        found = {}
        for finding in answer["findings"]:
            if finding["code"].startswith("peer"):
                say(f"{finding['level']} {finding['code']}: {finding['what']}")
                found.setdefault(finding["code"], []).append(finding)
        return found

    def test_doctor_looks_at_peers(self):
        self.cluster = cluster = Cluster(3, 1)
        self.addCleanup(cluster.close)
        cluster.configure(1, dead_after_ms=1234)
        cluster.start()
        cluster.train(step_us=20000)
        before = cluster.wait_committed((1, 2))
        found = self.doctor()
        self.assertEqual(set(found), {"peers", "peer-options"})
        self.assertRegex(found["peers"][0]["what"], r"2 of 2 .*B/s")
        self.assertEqual([f["level"] for f in found["peer-options"]], ["WARN"])
        for word in ("node 1", "dead_after_ms", "1234", "1000"):
            self.assertIn(word, found["peer-options"][0]["what"])
        cluster.wait_committed(before)
        self.assertEqual(cluster.committed()[0], before[0], "the job goes on undisturbed")

        cluster.kill_node(2)
        found = self.doctor()
        self.assertEqual([f["level"] for f in found["peer"]], ["CRITICAL"])
        self.assertIn("node 2", found["peer"][0]["what"])
        self.assertRegex(found["peers"][0]["what"], r"1 of 2 ")


if __name__ == "__main__":
    unittest.main(verbosity=2)
