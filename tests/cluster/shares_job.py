"""A job of examples/gpt whose agents plan for it: two replicas of two stages. A rank becomes slow,
so that other shares of micro-batches are better."""

import json
import statistics

import harness
from harness import GPT, PATIENCE, Built, free_ports, spawn, text_of

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


def problem(room=2):
    """The job as the planner sees it; each rank's device has room for so many layers. With room for
    2, nothing but micro-batches can move."""
    return harness.problem([2, 2], HOME, LAYER_MS, memory_bytes=(2 * room + 1) << 19)


class SharesJob(Built):
    """The agents and ranks of such a job."""

    def agents(self, policy, room=2, **options):
        cluster = self.cluster(
            nodes=DP * PP,
            parity=1,
            options=f"plan_policy: {policy}\nverdict_policy: advise",
            **options,
        )
        cluster.plan_for(problem(room))
        return cluster.start()

    def train(self, cluster, steps, *words):
        """Starts the ranks; returns the processes."""
        peers = ",".join(f"127.0.0.1:{port}" for port in free_ports(DP * PP))
        ranks = []
        for rank in range(DP * PP):
            command = ["--rank", str(rank), "--peers", peers, "--steps", str(steps), *SHAPE, *words]
            command += ["--agent", cluster.socket(rank), "--job", "cluster"]
            command += ["--events", self.events(cluster)]
            log, timed = cluster.path(f"gpt{rank}.log"), ("env", "CAIRN_TIMING=1")
            ranks.append(self.end_with_test(spawn([GPT, *command], log, prefix=timed)))
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
