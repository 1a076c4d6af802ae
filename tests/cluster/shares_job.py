"""A job of examples/gpt whose agents plan for it: two replicas of two stages. A rank becomes slow,
so that other shares of micro-batches are better."""

import json
import statistics

from harness import GPT, PATIENCE, Built, Cluster, free_ports, spawn, text_of

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
    """The job as the planner sees it; each rank is a device on its own node, with room for so many
    layers. With room for 2, nothing but micro-batches can move."""
    stages = [{"devices": [0], "layers": [0, 2]}, {"devices": [1], "layers": [2, 4]}]
    others = [{"devices": [2], "layers": [0, 2]}, {"devices": [3], "layers": [2, 4]}]
    return {
        "layers": 4,
        "layer_ms": LAYER_MS,
        "microbatches": 8,
        "tp_cost": {"1": 1},
        "layer_bytes": 1 << 20,
        "devices": [
            {"id": rank, "node": rank, "rate": 1, "memory_bytes": (2 * room + 1) << 19}
            for rank in range(4)
        ],
        "link_gbps": {"intra": 100, "inter": 10},
        "current": {
            "pipelines": [
                {"microbatches": 4, "stages": stages},
                {"microbatches": 4, "stages": others},
            ]
        },
    }


class SharesJob(Built):
    """The agents and ranks of such a job."""

    def agents(self, policy, room=2, **options):
        cluster = Cluster(
            nodes=DP * PP,
            parity=1,
            options=f"plan_policy: {policy}\nverdict_policy: advise",
            **options,
        )
        self.addCleanup(cluster.close)
        with open(cluster.path("problem.json"), "w", encoding="utf-8") as file:
            json.dump(problem(room), file)
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
