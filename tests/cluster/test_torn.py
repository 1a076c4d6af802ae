#!/usr/bin/env python3
"""Torn is impossible: kills at random instants of a snapshot, and what is restored is one committed
step, whole.

KILLS=200 sets their number (30 by default), SEED=N repeats the choice of instants and victims.
"""
import os
import random
import time
import unittest

from harness import OK, Built, Cluster, say

KILLS = int(os.environ.get("KILLS", "30"))
SEED = int(os.environ.get("SEED", str(random.SystemRandom().randrange(1 << 32))))


class Torn(Built):
    def test_random_kills(self):
        dice = random.Random(SEED)
        say(f"{KILLS} kills, SEED={SEED}")
        kinds = {"trainer": 0, "agent": 0, "both": 0, "node": 0}
        with Cluster(4, 1, state="3MiB") as cluster:
            cluster.start()
            newest = (0, 0)
            for number in range(KILLS):
                cluster.train(resume=newest > (0, 0), elements=60000, step_us=1000)
                newest = cluster.wait_committed((newest[0], newest[1] + 1), 60)
                # the instant: somewhere in a step, a capture or a commit
                time.sleep(dice.random() * 0.05)
                victim = dice.randrange(4)
                kind = dice.choice(["trainer", "trainer", "agent", "both", "node"])
                kinds[kind] += 1
                if kind == "node":
                    cluster.kill_node(victim)
                if kind in ("agent", "both"):
                    cluster.kill_agent(victim)
                if kind in ("trainer", "both"):
                    cluster.trainers[victim].kill()
                trainers = cluster.trainers
                cluster.stop_trainers()
                begun = max(trainer.step() for trainer in trainers)
                if kind != "trainer":
                    cluster.start(victim)
                newest = max(newest, cluster.committed())
                code, answer, error = cluster.restore((victim + 1) % 4)
                where = f"kill {number} ({kind} {victim}, SEED={SEED})"
                self.assertEqual(code, OK, f"{where}: {answer} {error}")
                generation = (answer["generation"]["epoch"], answer["generation"]["step"])
                self.assertGreaterEqual(
                    generation, newest, f"{where}: a committed generation was lost"
                )
                self.assertLessEqual(generation[1], begun + 1, f"{where}: a step that nobody made")
                code, found, text = cluster.check(dice.randrange(4))
                self.assertEqual(code, OK, f"{where}: {text}")
                self.assertEqual(found, generation, where)
                newest = generation
        say(f"none torn, none lost: {kinds}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
