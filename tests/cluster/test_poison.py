#!/usr/bin/env python3
"""One rank of several goes bad: no agent commits its steps, every status names it, and the job
comes back from the last good step. Trainers in C, on three nodes."""
import os
import re
import signal
import unittest

from harness import CRITICAL, OK, PATIENCE, Built, Cluster, cairn, codes, run, wait_for

NODES = 3
BAD = 1  # the rank that goes bad


class Poison(Built):
    def begin(self, weights, policy="keep_good"):
        """Trains until something is committed."""
        self.cluster = Cluster(NODES, 1, options=f"on_poison: {policy}")
        self.addCleanup(self.cluster.close)
        self.cluster.start()
        self.cluster.train(weights=weights)
        self.cluster.wait_committed((0, 0))

    def check_of(self, code, node=0):
        def found():
            checks = self.cluster.status(node).get("checks", [])
            return [each for each in checks if each["code"] == code]

        return wait_for(f"node {node} says {code}", found)[0]

    def go_bad(self, code="poisoned"):
        """What status says then."""
        os.kill(self.cluster.trainers[BAD].process.pid, signal.SIGHUP)
        said = self.check_of(code)
        events = self.cluster.events("poison")
        self.assertEqual({(each["node"], each["rank"]) for each in events}, {(BAD, BAD)}, events)
        self.assertIn(self.first_bad_step(said), [each["generation_step"] for each in events])
        return said

    def blockers(self, step):
        """Nodes for which generations from this step on were given up."""
        return {e["of_node"] for e in self.cluster.events("skip") if e["last_step"] >= step}

    def first_bad_step(self, said):
        step, rank = re.search(r"^steps? (\d+) .* rank (\d+)", said["what"]).groups()
        self.assertEqual(int(rank), BAD)
        return int(step)

    def resume(self):
        """What the rank that was bad restores."""
        self.cluster.stop_trainers()
        code, _, error = self.cluster.restore()
        self.assertEqual(code, OK, error)
        self.cluster.train(weights="weights", resume=True)
        out = self.cluster.trainers[BAD].out
        return wait_for("a restore", lambda: re.search(r"restored (\d+) (\d+)\n(.*)\n", out()))

    def test_nothing_bad_is_committed(self):
        self.begin("weights")
        said = self.go_bad()
        self.assertEqual(said["level"], "CRITICAL")
        self.assertIn("tensor weights ", said["what"])
        first = self.first_bad_step(said)
        good = self.cluster.committed()
        self.assertLess(good[1], first)
        wait_for("the history tells who blocked it", lambda: BAD in self.blockers(first))
        for node in range(NODES):  # also those whose trainers are well
            self.assertEqual(self.first_bad_step(self.check_of("poisoned", node)), first)
        self.assertEqual(run("status", "--agent", self.cluster.socket(0))[0], CRITICAL)
        self.cluster.stop_trainers()
        # the job's death changes nothing, nor do agents that start again
        for node in range(NODES):
            self.cluster.kill_agent(node)
        self.cluster.start()
        for node in range(NODES):
            self.assertEqual(self.first_bad_step(self.check_of("poisoned", node)), first)
        self.assertEqual(self.cluster.committed(), good)
        code, listed, _ = cairn("snapshots", "--agent", self.cluster.socket(0))
        states = [(each["state"], each["step"]) for each in listed["generations"]]
        self.assertEqual((code, states[0][0]), (OK, "poisoned"), states)
        self.assertIn(("committed", good[1]), states)

        epoch, step, state = self.resume().groups()
        self.assertEqual((int(epoch), int(step), state), (*good, "finite"))
        self.cluster.wait_committed((good[0] + 1, 0))
        self.assertNotIn("poisoned", codes(self.cluster.status()))
        self.go_bad()  # what was restored is known as finite, before and after the first commit

    def test_a_state_that_goes_bad_before_the_first_commit_of_a_resumed_job(self):
        """What was restored tells what is good."""
        self.begin("weights")
        self.go_bad()
        good = self.cluster.committed()
        step = int(self.resume().group(2))
        bad = self.cluster.trainers[BAD]
        os.kill(bad.process.pid, signal.SIGHUP)
        wait_for("fifty bad steps", lambda: bad.step() > step + 50)
        self.assertGreaterEqual(self.cluster.committed(), good)
        self.assertEqual(self.resume().group(3), "finite")

    def test_a_rejected_step(self):
        self.begin("rejects")
        said = self.go_bad()
        self.assertIn("loss spike", said["what"])
        self.assertLess(self.cluster.committed()[1], self.first_bad_step(said))

    def test_a_rank_that_is_asked_to_stop(self):
        """It alone: what becomes of the others is the launcher's business."""
        self.begin("weights", policy="stop")
        said = self.go_bad()
        bad = self.cluster.trainers[BAD]
        self.assertEqual(bad.process.wait(timeout=60 * PATIENCE), 1)
        self.assertIn("stopped", bad.out())
        self.assertLess(self.cluster.committed()[1], self.first_bad_step(said))
        for trainer in self.cluster.trainers:
            self.assertEqual("stopped" in trainer.out(), trainer is bad)

    def test_bad_steps_that_are_allowed(self):
        self.begin("weights", policy="allow")
        said = self.go_bad("poisoned-kept")
        self.assertEqual(said["level"], "WARN")
        self.cluster.wait_committed((0, self.first_bad_step(said)))
        self.assertEqual(self.resume().group(3), "not finite")


if __name__ == "__main__":
    unittest.main(verbosity=2)
