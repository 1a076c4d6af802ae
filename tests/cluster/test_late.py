#!/usr/bin/env python3
"""Agents that stand still around a restore, or are missing at the first start: nothing is rebuilt
for one that comes back soon, and one that comes too late is taken in."""
import json
import os
import signal
import subprocess
import time
import unittest

from harness import (
    CAIRN,
    CRITICAL,
    LOST,
    OK,
    PATIENCE,
    Built,
    Cluster,
    Trainer,
    cairn,
    say,
    wait_for,
)

# A restore waits three times as long for a silent agent: those of a busy machine, too, answer
# within what is left of that.
STOPPED_DEAD_AFTER_S = 4
STOPPED_S = 1.25 * STOPPED_DEAD_AFTER_S
LATE_DEAD_AFTER_S = 2


class Late(Built):
    def begin(self, dead_after_s):
        """Four agents and trainers, with a generation that is committed."""
        self.cluster = Cluster(4, 1, dead_after_ms=dead_after_s * 1000)
        self.addCleanup(self.cluster.close)
        self.cluster.start()
        self.cluster.train()
        self.newest = self.cluster.wait_committed((1, 3))
        return self.cluster

    def signal(self, node, number):
        os.kill(self.cluster.agents[node].pid, number)

    def restore_begun(self, node):
        return subprocess.Popen(
            [CAIRN, "restore", "--agent", self.cluster.socket(node), "-o", "json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def status(self):
        """Exit code, names of the checks, and the epoch that each node is in."""
        code, answer, error = cairn("status", "--agent", self.cluster.socket(0))
        self.assertIsNotNone(answer, error)
        return (
            code,
            [check["code"] for check in answer["checks"]],
            [node.get("epoch") for node in answer["nodes"]],
        )

    def is_critical(self, check):
        code, checks, _ = self.status()
        return code == CRITICAL and check in checks

    def wait_epochs(self, epochs):
        """Each node is in its epoch, as soon as it answers and is."""
        wait_for(f"the nodes are in epochs {epochs}", lambda: self.status()[2] == epochs)

    def one_epoch(self, what):
        """The epoch that all four nodes are in, as soon as they answer and are."""

        def epochs():
            found = set(self.status()[2])
            return len(found) == 1 and found.pop()

        return wait_for(what, epochs)

    def test_a_job_on_fewer_nodes_is_protected(self):
        """Trainers on two of four nodes, which is the whole job: the other two capture nothing."""
        self.cluster = Cluster(4, 1)
        self.addCleanup(self.cluster.close)
        self.cluster.start()
        self.cluster.train(world=2)
        newest = self.cluster.wait_committed((1, 3))
        self.cluster.kill_node(1)
        self.cluster.stop_trainers()
        newest = max(newest, self.cluster.committed())
        _, answer = self.check_restore(self.cluster, newest, parts=2)
        self.assertEqual(answer["lost_members"], 1, answer)

    def test_an_agent_outside_the_epoch_knows_what_is_committed(self):
        """Trainers on two of four nodes, which is the whole job. When they are gone, one of them
        starts on a third node: it need not wait until that is a member."""
        self.cluster = Cluster(4, 1)
        self.addCleanup(self.cluster.close)
        self.cluster.start()
        self.cluster.train(world=2)
        self.cluster.wait_committed((1, 3))
        self.cluster.stop_trainers()
        newest = self.cluster.committed()
        code, restored, text = self.cluster.check(node=3, world=2, parts=2)
        self.assertEqual(code, OK, text)
        self.assertIsNotNone(restored, text)
        self.assertTrue(newest <= restored <= self.cluster.committed(), (newest, restored))
        self.wait_epochs([newest[0]] * 4)

    def test_a_stopped_agent_costs_no_rebuild(self):
        """A trainer dies, and a host holds up an agent for longer than makes it dead: another one,
        and the one that is asked."""
        cluster = self.begin(STOPPED_DEAD_AFTER_S)
        cluster.trainers[2].kill()
        cluster.stop_trainers()
        self.newest = max(self.newest, cluster.committed())
        for held_up in (1, 0):
            self.signal(held_up, signal.SIGSTOP)
            begun = time.monotonic()
            with self.restore_begun(0) as waits:
                while time.monotonic() < begun + STOPPED_S:
                    self.assertIsNone(
                        waits.poll(), "it did not wait for an agent that was there a moment ago"
                    )
                    time.sleep(0.01)
                self.signal(held_up, signal.SIGCONT)
                out, error = waits.communicate(timeout=60 * PATIENCE)
            self.assertEqual(waits.returncode, OK, error)
            answer = json.loads(out)
            self.assertEqual((answer["rebuilt_bytes"], answer["lost_members"]), (0, 0), answer)
            self.check_restored(self.cluster, answer, self.newest)
            say(f"agent {held_up} stood still for {STOPPED_S} s: nothing is rebuilt")

    def test_a_late_agent_becomes_a_member(self):
        """It misses a restore, trainers start on its node too: they are protected without an
        operator, and go on."""
        cluster = self.begin(LATE_DEAD_AFTER_S)
        cluster.stop_trainers()
        self.newest = max(self.newest, cluster.committed())
        self.signal(3, signal.SIGSTOP)
        begun = time.monotonic()
        code, answer, error = cluster.restore(0)
        self.assertEqual(code, OK, f"{answer} {error}")
        self.assertEqual(answer["lost_members"], 1, "its part is rebuilt in the end")
        say(f"a restore without a silent agent: {time.monotonic() - begun:.1f} s")
        self.check_restored(self.cluster, answer, self.newest)
        self.signal(3, signal.SIGCONT)
        restored = self.one_epoch("it has heard of the epoch")
        barrier = cluster.path("barrier-late")
        # taken in when all ranks are attached, and not before
        cluster.trainers = [Trainer(cluster, 3, 4, barrier, resume=True)]
        wait_for("its trainer is seen to be outside", lambda: self.is_critical("not-a-member"))
        trainers = cluster.trainers + [
            Trainer(cluster, rank, 4, barrier, resume=True) for rank in range(3)
        ]
        cluster.trainers = trainers
        begun = time.monotonic()
        newest = cluster.wait_committed((restored, 1 << 32), 60)
        say(
            f"taken in after {time.monotonic() - begun:.1f} s: epoch {newest[0]} step {newest[1]} "
            "is committed"
        )
        self.assertEqual(
            [trainer.process.poll() for trainer in trainers], [None] * 4, "a trainer was stopped"
        )
        wait_for("the status is no longer critical", lambda: self.status()[0] != CRITICAL)
        self.assertNotIn("not-a-member", self.status()[1])
        joined = self.one_epoch("all are in the new epoch")
        silences = cluster.log(0).count("peer: down node=3")
        self.signal(3, signal.SIGSTOP)  # it comes and goes: no epoch for that
        wait_for(
            "it is taken for dead", lambda: cluster.log(0).count("peer: down node=3") > silences
        )
        self.signal(3, signal.SIGCONT)
        newest = cluster.wait_committed(cluster.committed(), 60)
        self.assertEqual(self.one_epoch("it is heard again"), joined)
        cluster.kill_node(1)  # its share of the parity is good
        cluster.stop_trainers()
        newest = max(newest, cluster.committed())
        rebuilt = cluster.rebuilt_blocks()
        cluster.start(1)
        cluster.wait_repaired(1)
        self.assertGreater(cluster.rebuilt_blocks(), rebuilt)
        code, answer, error = cluster.restore(3)
        self.assertEqual(code, OK, f"{answer} {error}")
        self.assertEqual(answer["lost_members"], 0)
        self.check_restored(self.cluster, answer, newest)

    def test_a_node_is_missing_at_the_first_start(self):
        """The missing node may hold the state, so only an operator begins the job without it."""
        cluster = self.cluster = Cluster(4, 1)
        self.addCleanup(cluster.close)
        cluster.start(0, 1, 2)
        cluster.wait_met(0)
        refused = "a newer generation may be with agents that are silent; only an operator's"
        wait_for(
            "three tries at a first epoch are refused", lambda: cluster.log(0).count(refused) >= 3
        )
        self.assertIn("no answer from agents 3", cluster.log(0))
        # a restore asks for a generation, which none of the agents holds: it forms no epoch either
        self.assertEqual(cluster.restore(0)[0], LOST)
        self.wait_epochs([0, 0, 0, None])
        checks = self.status()[1]
        self.assertLessEqual({"node-blank", "nodes-silent", "nothing-committed"}, set(checks))
        cluster.train(world=3, parts=4)
        wait_for("trainers run unprotected", lambda: min(t.step() for t in cluster.trainers) > 20)
        self.assertEqual(cluster.committed(), (0, 0))
        cluster.stop_trainers()
        code, answer, error = cluster.restore(0, "--fresh")
        self.assertEqual((code, answer["result"]), (OK, "CAIRN_OK"), error)
        self.wait_epochs([answer["epoch"]] * 3 + [None])
        self.assertGreater(answer["epoch"], 0)
        self.assertNotIn("node-blank", self.status()[1])
        cluster.train(world=3, parts=4)
        newest = cluster.wait_committed((0, 0))
        self.assertEqual(newest[0], answer["epoch"])
        cluster.stop_trainers()
        newest = max(newest, cluster.committed())
        cluster.start(3)
        self.assertEqual(self.one_epoch("the fourth has heard of the epoch"), answer["epoch"])
        self.assertIn("node-blank", self.status()[1])
        code, answer, error = cluster.restore(0)  # as each start of a job does
        self.assertEqual((code, answer["lost_members"]), (OK, 0), error)
        self.check_restored(self.cluster, answer, newest)
        trainers = cluster.train(resume=True, parts=4)
        joined = cluster.wait_committed((newest[0], 1 << 32), 60)
        restored = "restored {epoch} {step}\n".format(**answer["generation"])
        for trainer in trainers:
            self.assertTrue(trainer.out().startswith(restored), trainer.out())
        self.assertEqual(self.one_epoch("all are in the new epoch"), joined[0])
        wait_for("no node is blank", lambda: "node-blank" not in self.status()[1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
