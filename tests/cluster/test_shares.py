#!/usr/bin/env python3
"""A rank that becomes slow gets fewer micro-batches while training goes on, and its own again when
it is well; an agent that dies meanwhile changes nothing; and the result is the same, bit by bit."""
import unittest

from harness import undisturbed, wait_for
from shares_job import DP, HOME, PP, SHAPE, SHARED, SHARED_MS, SLOW, SLOW_FROM, SLOW_MS, SLOW_TO
from shares_job import STEPS, SharesJob


class Shares(SharesJob):
    def test_shares_move_and_go_back(self):
        cluster = self.agents("enforce")
        ranks = self.train(cluster, STEPS, *SLOW)
        wait_for("the shares move", lambda: self.changes(cluster), 40)
        moved = self.said(cluster, "shares", 0)[0]["step"]
        self.assertGreater(moved, SLOW_FROM)
        self.assertEqual(self.changes(cluster)[0], SHARED)
        wait_for("all ranks have told", lambda: self.offer(cluster)["ranks_taken"] == DP * PP, 10)
        offer = self.offer(cluster)
        self.assertEqual((offer["number"], offer["micro_batches"]), (1, SHARED))
        self.assertEqual((offer["changes_today"], offer["changes_per_day"]), (1, 4))
        # without an agent a rank votes for what it runs, so nothing can change; training goes on
        cluster.kill_agent(3)
        at = self.step(cluster)
        wait_for("training goes on", lambda: self.step(cluster) > at + 10, 30)
        cluster.start(3)
        wait_for("the shares go back", lambda: self.changes(cluster)[-1] == HOME, 60)
        # the next analyst knows how many changes of the day's budget are used
        cluster.kill_agent(0)
        cluster.start(0)
        self.assertEqual(self.offer(cluster)["changes_today"], 1)
        digests = self.ends(cluster, ranks)
        for rank in range(1, DP * PP):
            self.assertEqual(self.changes(cluster, rank), self.changes(cluster), rank)
        self.assertEqual(digests, undisturbed([*SHAPE, "--steps", str(STEPS)]))
        back = self.said(cluster, "shares", 0)[-1]["step"]
        self.assertGreater(back, SLOW_TO)
        # a busy machine adds to all steps
        slow_ms = self.median_ms(cluster, SLOW_FROM, moved)
        shared_ms = self.median_ms(cluster, moved + 2, SLOW_TO)
        print(f"slow {slow_ms:.0f} ms ({SLOW_MS}), shared {shared_ms:.0f} ms ({SHARED_MS})")
        self.assertLess(shared_ms, slow_ms * 0.9)

    def test_advice_alone_changes_nothing(self):
        cluster = self.agents("advise")
        ranks = self.train(cluster, 100, *SLOW)
        wait_for("advice", lambda: "replan: advice: " in cluster.log(0), 40)
        digests = self.ends(cluster, ranks)
        self.assertEqual(self.changes(cluster), [])
        self.assertIsNone(self.offer(cluster))
        self.assertEqual(digests, undisturbed([*SHAPE, "--steps", str(100)]))


if __name__ == "__main__":
    unittest.main()
