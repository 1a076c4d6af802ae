#!/usr/bin/env python3
"""A rank that becomes slow gets fewer micro-batches while training goes on, and its own again when
it is well; an agent that dies meanwhile changes nothing; and the result is the same, bit by bit."""
import json
import statistics
import unittest

from harness import GPT, PATIENCE, Cluster, build, free_ports, spawn, text_of, undisturbed, wait_for

DP, PP, LAYER_MS = 2, 2, 8
SLOW_RANK, SLOW_FROM, SLOW_TO, STEPS = 2, 40, 130, 240
# by the formula of docs/PLANNER.md; [6, 2] is best for a rank that is 2 to 3.5 times slow, so that
# what a busy machine adds does not matter
SLOW_BY, SLOW_MS, SHARED_MS = 2.7, 189, 112
HOME, SHARED = [4, 4], [6, 2]
SHAPE = (
    f"--dp {DP} --pp {PP} --layers 4 --d-model 16 --heads 2 --context 16 --micro-batch-size 2 "
    f"--micro-batches 4,4 --log-every 0"
).split()
SLOW = (
    f"--emulate-layer-ms {LAYER_MS} " f"--emulate-slow {SLOW_RANK}:{SLOW_BY}@{SLOW_FROM}-{SLOW_TO}"
).split()


def problem():
    """The job as the planner sees it; each rank is a device on its own node."""
    stages = [{"devices": [0], "layers": [0, 2]}, {"devices": [1], "layers": [2, 4]}]
    others = [{"devices": [2], "layers": [0, 2]}, {"devices": [3], "layers": [2, 4]}]
    return {
        "layers": 4,
        "layer_ms": LAYER_MS,
        "microbatches": 8,
        "tp_cost": {"1": 1},
        "layer_bytes": 1 << 20,
        # two layers fit: nothing but micro-batches can move
        "devices": [
            {"id": rank, "node": rank, "rate": 1, "memory_bytes": 5 << 19} for rank in range(4)
        ],
        "link_gbps": {"intra": 100, "inter": 10},
        "current": {
            "pipelines": [
                {"microbatches": 4, "stages": stages},
                {"microbatches": 4, "stages": others},
            ]
        },
    }


class Shares(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        build()

    def agents(self, policy):
        cluster = Cluster(
            nodes=DP * PP, parity=1, options=f"plan_policy: {policy}\nverdict_policy: advise"
        )
        self.addCleanup(cluster.close)
        with open(cluster.path("problem.json"), "w", encoding="utf-8") as file:
            json.dump(problem(), file)
        for node in range(DP * PP):
            cluster.configure(node, problem=cluster.path("problem.json"))
        return cluster.start()

    def train(self, cluster, steps, *words):
        """Starts the ranks; returns the processes."""
        peers = ",".join(f"127.0.0.1:{port}" for port in free_ports(DP * PP))
        ranks = []
        for rank in range(DP * PP):
            command = ["--rank", str(rank), "--peers", peers, "--steps", str(steps), *SHAPE, *words]
            command += [
                "--agent",
                cluster.socket(rank),
                "--job",
                "cluster",
                "--events",
                self.events(cluster),
            ]
            ranks.append(
                spawn(
                    [GPT, *command],
                    cluster.path(f"gpt{rank}.log"),
                    prefix=("env", "CAIRN_TIMING=1"),
                )
            )
            self.addCleanup(ranks[-1].wait)
            self.addCleanup(ranks[-1].kill)
        return ranks

    def events(self, cluster):
        return cluster.path("events")

    def said(self, cluster, event, rank):
        """The events of one kind of a rank."""
        lines = [json.loads(line) for line in text_of(self.events(cluster)).splitlines() if line]
        return [each for each in lines if each["event"] == event and each["rank"] == rank]

    def step(self, cluster):
        steps = self.said(cluster, "step", 0)
        return steps[-1]["step"] if steps else 0

    def offer(self, cluster):
        """What any agent says of the shares."""
        return cluster.status(1)["replan"]["offer"]

    def changes(self, cluster, rank=0):
        return [each["micro_batches"] for each in self.said(cluster, "shares", rank)]

    def ends(self, cluster, ranks):
        """All ranks end well; returns the digests of losses and state."""
        for rank, process in enumerate(ranks):
            self.assertEqual(
                process.wait(timeout=60 * PATIENCE), 0, text_of(cluster.path(f"gpt{rank}.log"))
            )
        done = self.said(cluster, "done", 0)[0]
        return done["loss_sha256"], done["state_sha256"]

    def median_ms(self, cluster, first, last):
        return statistics.median(
            each["step_ns"] / 1e6
            for each in self.said(cluster, "step", 0)
            if first <= each["step"] <= last
        )

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
