#!/usr/bin/env python3
"""Parts on a local disk of each node: written when a job is preempted or left alone, and found by
agents that start cold. No two nodes share a directory."""
import os
import re
import shutil
import signal
import sys
import unittest

from harness import (
    AGAIN,
    CAIRN,
    OK,
    PATIENCE,
    TRAINER,
    Built,
    Cluster,
    say,
    spawn,
    text_of,
    wait_for,
)

PARTS = 3


class Local(Built):
    def setUp(self):
        self.cluster = Cluster(PARTS, 1, options="local_after_ms: 0")
        self.addCleanup(self.cluster.close)
        for node in range(PARTS):
            self.cluster.configure(node, local_dir=self.directory(node))
        self.cluster.start()

    def directory(self, node):
        return self.cluster.path(f"local{node}")

    def steps(self):
        """The newest step on each node's disk."""
        nodes = self.cluster.status(0).get("nodes", [])
        return [(node.get("local") or {"step": 0})["step"] for node in nodes]

    def cut_power(self):
        """All machines stop; their disks stay."""
        for node in range(PARTS):
            self.cluster.kill_agent(node)
        for node in range(PARTS):
            self.cluster.kill_keeper(node)
            wait_for("the keeper is gone", lambda node=node: not self.cluster.keeper(node))
        self.cluster.stop_trainers()

    def wait_ready(self, step):
        """The agents bring the generation back by themselves."""

        def newest():
            status = self.cluster.status(0)
            return (status.get("newest") or {}).get("step") == step and not any(
                node.get("blank", True) for node in status["nodes"]
            )

        wait_for(f"step {step} is back", newest, 60)

    def preempt(self):
        """Rank 0 runs under `cairn run --grace`, the others beside it; SIGTERM."""
        cluster = self.cluster
        trainers = cluster.train(step_us=20000)
        trainers[0].kill()
        path = cluster.path("run.err")
        words = f"--rank 0 --world {PARTS} --parts {PARTS} --elements 20000 --step-us 20000"
        run = spawn(
            [CAIRN, "run", "--grace", "20s", "--agent", cluster.socket(0), "--", TRAINER]
            + words.split()
            + ["--agent", cluster.socket(0), "--barrier", cluster.path("barrier")],
            path,
        )
        cluster.wait_committed((0, 3))
        before = cluster.committed()[1]
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(timeout=60 * PATIENCE), AGAIN, text_of(path))
        said = re.search(r"preempted; step (\d+) is on the disks of its nodes", text_of(path))
        self.assertIsNotNone(said, text_of(path))
        self.assertGreater(int(said[1]), before, "a snapshot at the next step")
        self.assertIn("go on with: cairn run", text_of(path))
        return int(said[1])

    def test_a_preempted_job_goes_on_from_local_disks(self):
        cluster = self.cluster
        step = self.preempt()
        steps = self.steps()
        self.assertEqual(len(set(steps)), 1, "the same one everywhere")
        self.assertGreaterEqual(steps[0], step)
        self.cut_power()
        cluster.start()
        self.wait_ready(steps[0])
        code, found, text = cluster.check()
        self.assertEqual((code, found[1]), (OK, steps[0]), text)

        # One node that starts cold has an old part on its disk. It does not take the job back.
        cluster.train(resume=True, step_us=20000)
        newer = cluster.wait_committed(cluster.committed())
        cluster.stop_trainers()
        cluster.kill_agent(1)
        cluster.kill_keeper(1)
        wait_for("the keeper is gone", lambda: not cluster.keeper(1))
        cluster.start(1)
        cluster.wait_repaired(1)
        code, found, text = cluster.check(node=1)
        self.assertEqual(code, OK, text)
        self.assertGreaterEqual(found[1], newer[1])

        # The repair began an epoch: what it began with goes to the disks. The job goes on, and a
        # disk that is lost with its machine is made good by the others'.
        wait_for("the disks have it", lambda: min(self.steps()) >= newer[1], 60)
        steps = self.steps()
        for node in range(PARTS):
            cluster.configure(node, local_after_ms=300)
        self.cut_power()
        cluster.start()
        self.wait_ready(steps[0])
        cluster.train(resume=True, step_us=20000)
        newer = cluster.wait_committed(cluster.committed())
        self.assertGreater(newer[1], steps[0])
        cluster.stop_trainers()
        wait_for("the agents write by themselves", lambda: min(self.steps()) >= newer[1], 60)
        steps = self.steps()
        self.assertEqual(len(set(steps)), 1)
        self.cut_power()
        shutil.rmtree(self.directory(2))
        shutil.rmtree(cluster.state(2))
        cluster.start()
        self.wait_ready(steps[0])
        code, found, text = cluster.check(node=2)
        self.assertEqual((code, found[1]), (OK, steps[0]), text)
        say(f"preempted, four cold starts, one disk lost: step {steps[0]} is back, bit for bit")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
