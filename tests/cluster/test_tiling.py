#!/usr/bin/env python3
"""Ranks whose tensors do not fit together: nothing of theirs is committed, it is logged with names,
and what was committed stays."""
import signal
import unittest

from harness import OK, Built, Cluster, cairn, say, wait_for


class Tiling(Built):
    def setUp(self):
        self.cluster = Cluster(4, 1)
        self.addCleanup(self.cluster.close)
        self.cluster.start()

    def refusals(self):
        """What `cairn status` says of refused snapshots: (its check, ranks that it is about,
        reasons)."""
        _, answer, error = cairn("status", "--agent", self.cluster.socket(3))
        self.assertIsNotNone(answer, error)
        checks = [
            check["what"] for check in answer["checks"] if check["code"] == "snapshots-refused"
        ]
        coverage = answer["coverage"]
        return (
            (checks or [""])[0],
            coverage["ranks_refusing"],
            [item["reason"] for item in coverage["refusals"]],
        )

    def restored(self, node):
        """Ends the trainers and restores: what every byte is compared with."""
        self.cluster.stop_trainers()
        code, answer, error = self.cluster.restore(node)
        self.assertEqual(code, OK, f"{answer} {error}")
        found = (answer["generation"]["epoch"], answer["generation"]["step"])
        self.assertEqual(self.cluster.check()[:2], (OK, found))
        return found

    def refused(self):
        """Trainers, one with its part registered as the first rank's."""
        trainers = self.cluster.train(resume=True, misplaced=2)
        wait_for("all ranks are said to be refused", lambda: self.refusals()[1] == 4)
        return trainers

    def test_a_misplaced_part_is_never_committed(self):
        cluster = self.cluster
        cluster.train()
        cluster.wait_committed((1, 3))
        good = self.restored(0)
        newest = cluster.committed()
        trainers = self.refused()
        text, _, reasons = self.refusals()
        say(text)
        self.assertEqual(len(reasons), 1, reasons)
        for said in (text, reasons[0]):
            self.assertIn("divided: pieces in ranks 0 and 2 both hold [0:", said)
        self.assertIn("divided: no piece holds [", reasons[0])
        for trainer in trainers:
            wait_for(
                f"rank {trainer.rank} is told", lambda rank=trainer: "both hold [0:" in rank.err()
            )
        begun = trainers[0].step()
        wait_for("the trainers go on", lambda: trainers[0].step() > begun + 50)
        self.assertEqual(
            [trainer.process.poll() for trainer in trainers], [None] * 4, "a trainer was stopped"
        )
        self.assertEqual(
            cluster.committed(), newest, "parts that do not fit together were committed"
        )
        self.assertEqual(self.restored(3), good, "the good generation is not there any more")
        self.refused()[2].process.send_signal(signal.SIGHUP)
        newest = cluster.wait_committed(newest)
        say(f"registered rightly: step {newest[1]} is committed")
        wait_for("nothing is refused any more", lambda: self.refusals() == ("", 0, []))
        cluster.stop_trainers()
        newest = max(newest, cluster.committed())
        self.assertGreaterEqual(self.restored(1), newest)


if __name__ == "__main__":
    unittest.main(verbosity=2)
