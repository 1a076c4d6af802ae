#!/usr/bin/env python3
"""Left-overs and pauses: a trainer of an older epoch is refused, a stopped agent stops nobody and
comes back, a killed one is replaced."""
import os
import signal
import time
import unittest

from harness import OK, Built, Cluster, cairn, codes, say, wait_for


class Fencing(Built):
    def setUp(self):
        self.cluster = Cluster(4, 1)
        self.addCleanup(self.cluster.close)
        self.cluster.start()

    def test_stale_trainers_are_refused(self):
        cluster = self.cluster
        old = cluster.train()
        cluster.wait_committed((1, 3))
        # nobody died: the old trainers go on, of an older epoch now
        code, answer, error = cluster.restore(2)
        self.assertEqual(code, OK, error)
        restored = (answer["generation"]["epoch"], answer["generation"]["step"])
        mark = [trainer.step() for trainer in old]
        wait_for(
            "the old trainers train on",
            lambda: all(t.step() > m for t, m in zip(old, mark))
            or all("newer epoch" in t.err() or "stale" in t.err().lower() for t in old),
        )
        say(f"an old trainer heard: {old[0].err().strip().splitlines()[-1]}")
        self.assertTrue(
            all(trainer.process.poll() is None for trainer in old),
            "a left-over is refused, never killed",
        )
        self.assertEqual(
            cluster.committed()[0], restored[0], "a trainer of an older epoch made a generation"
        )
        cluster.kill_agent(1)
        cluster.start(1)
        wait_for(
            "the next agent knows its old trainer for what it is",
            lambda: "belongs to epoch" in old[1].err(),
        )
        code, found, text = cluster.check()
        self.assertEqual((code, found), (OK, restored), text)
        cluster.train(resume=True)
        newest = cluster.wait_committed((restored[0] + 1, 0))
        self.assertGreater(newest[1], restored[1])

    def test_stopped_agent(self):
        cluster = self.cluster
        trainers = cluster.train(step_us=40000)
        before = cluster.wait_committed((1, 3))
        os.kill(cluster.agents[1].pid, signal.SIGSTOP)
        steps = [trainer.step() for trainer in trainers]
        # what is shown is that it lasts: far longer than an agent takes to count as dead
        time.sleep(3)
        gained = [trainer.step() - step for trainer, step in zip(trainers, steps)]
        seen = wait_for(
            "the others count it as dead", lambda: cairn("status", "--agent", cluster.socket(0))[1]
        )
        say(
            f"3 s with a stopped agent: {max(t.step() for t in trainers)} steps; status: "
            f"{str(seen)[:160]}"
        )
        self.assertTrue(
            all(trainer.process.poll() is None for trainer in trainers), "training was ended"
        )
        self.assertTrue(all(trainer.err().count("torn") == 0 for trainer in trainers))
        os.kill(cluster.agents[1].pid, signal.SIGCONT)
        after = cluster.wait_committed(max(before, cluster.committed()), 60)
        say(f"steps gained while it stood: {gained}; it is back: generation {after} is committed")
        cluster.stop_trainers()
        code, answer, error = cluster.restore(3)
        self.assertEqual(code, OK, f"{answer} {error}")
        self.assertEqual(cluster.check()[0], OK)

    def test_killed_agent(self):
        cluster = self.cluster
        trainers = cluster.train(step_us=40000)
        before = cluster.wait_committed((1, 3))
        cluster.kill_agent(2)
        mark = trainers[0].step()
        wait_for(
            "training goes on without",
            lambda: trainers[2].step() >= 0
            and all(t.process.poll() is None for t in trainers)
            and trainers[0].step() > mark + 2,
        )
        cluster.start(2)
        self.assertIn("adopted from the keeper", cluster.log(2))
        after = cluster.wait_committed(max(before, cluster.committed()), 60)
        self.assertTrue(all(trainer.process.poll() is None for trainer in trainers))
        cluster.stop_trainers()
        code, answer, error = cluster.restore(2)
        self.assertEqual((code, answer["rebuilt_bytes"]), (OK, 0), f"{answer} {error}")
        self.assertGreaterEqual(
            (answer["generation"]["epoch"], answer["generation"]["step"]), after
        )
        self.assertEqual(cluster.check()[0], OK)

    def test_beginning_anew_replaces_nothing(self):
        """A job that starts again without restoring replaces nothing before it is beyond what the
        job holds, and its trainers are told."""
        cluster = self.cluster
        cluster.train(step_us=20000)
        cluster.wait_committed((1, 30))
        cluster.stop_trainers()
        status = cluster.status()
        kept = (status["newest"]["epoch"], status["newest"]["step"])
        self.assertGreaterEqual(kept, cluster.committed())
        again = cluster.train(step_us=50000)  # from step 1, without --resume
        wait_for(
            "the status warns", lambda: "not-restored" in codes({"checks": [], **cluster.status()})
        )
        while True:
            status, committed = cluster.status(), cluster.committed()
            if max(trainer.step() for trainer in again) > kept[1]:
                break
            self.assertEqual((status["newest"]["epoch"], status["newest"]["step"]), kept)
            self.assertLessEqual(committed, kept, "it replaced what the first job had")
        wait_for("its trainers are told", lambda: "restore --fresh" in again[0].err())
        newest = cluster.wait_committed(kept)
        self.assertGreater(newest[1], kept[1])
        cluster.stop_trainers()
        code, answer, error = cairn("restore", "--fresh", "--agent", cluster.socket(0))
        self.assertEqual(code, OK, f"{answer} {error}")
        cluster.train(step_us=20000)
        fresh = cluster.wait_committed((newest[0] + 1, 0))
        say(f"kept {kept} until {newest}; after --fresh: generation {fresh} is committed")

    def test_no_majority(self):
        cluster = self.cluster
        cluster.train()
        cluster.wait_committed((1, 3))
        cluster.stop_trainers()
        for node in (1, 2, 3):
            os.kill(cluster.agents[node].pid, signal.SIGSTOP)
        code, answer, error = cairn("restore", "--agent", cluster.socket(0))
        say(f"one of four agents: exit {code} {answer}")
        self.assertNotEqual(code, OK, "a minority must not decide")
        for node in (1, 2, 3):
            os.kill(cluster.agents[node].pid, signal.SIGCONT)
        code, answer, error = cluster.restore(0)
        self.assertEqual(code, OK, f"{answer} {error}")
        self.assertEqual(cluster.check()[0], OK)


if __name__ == "__main__":
    unittest.main(verbosity=2)
