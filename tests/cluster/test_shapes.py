#!/usr/bin/env python3
"""Another shape: a generation of dp 2 x pp 3 restores into dp 3 x pp 2 and into one process,
bit-identically, from memory."""
import json
import unittest

from harness import GPT, OK, Built, Cluster, free_ports, say, spawn, text_of, wait_for

MODEL = [
    "--d-model",
    "32",
    "--heads",
    "2",
    "--context",
    "32",
    "--micro-batch-size",
    "4",
    "--log-every",
    "0",
]
STEPS = 120


class Job:
    """A gpt job with its ranks on the first nodes."""

    count = 0

    def __init__(self, cluster, dp, pp, resume, agents=True):
        Job.count += 1
        self.events_path = cluster.path(f"gpt-{Job.count}.jsonl")
        peers = ",".join(f"127.0.0.1:{port}" for port in free_ports(dp * pp))
        self.ranks = []
        for rank in range(dp * pp):
            words = [
                GPT,
                "--rank",
                rank,
                "--dp",
                dp,
                "--pp",
                pp,
                "--peers",
                peers,
                "--events",
                self.events_path,
                "--job",
                "cluster",
                "--steps",
                STEPS,
                *MODEL,
            ]
            words += ["--agent", cluster.socket(rank)] if agents else []
            words += ["--resume"] if resume else []
            self.ranks.append(
                spawn([str(word) for word in words], cluster.path(f"gpt-{Job.count}-{rank}.log"))
            )

    def events(self, name):
        lines = [
            json.loads(line)
            for line in text_of(self.events_path).splitlines()
            if line.endswith("}")
        ]
        return [line for line in lines if line["event"] == name]

    def wait(self):
        for rank in self.ranks:
            wait_for("the job ends", lambda rank=rank: rank.poll() is not None)
        return [rank.returncode for rank in self.ranks]

    def result(self):
        done = next(event for event in self.events("done") if event["rank"] == 0)
        return done["loss_sha256"], done["state_sha256"]

    def kill(self):
        for rank in self.ranks:
            rank.kill()
            rank.wait()


class Shapes(Built):
    def test_other_divisions(self):
        with Cluster(1, 0) as folder:
            plain = Job(folder, 1, 1, False, agents=False)
            self.assertEqual(plain.wait(), [OK])
            expected = plain.result()
        for dp, pp in ((3, 2), (1, 1), (6, 1)):
            with Cluster(6, 2) as cluster:
                cluster.start()
                job = Job(cluster, 2, 3, False)
                wait_for("a third is trained", lambda: len(job.events("step")) > 6 * STEPS // 3)
                newest = cluster.wait_committed((0, 0))
                job.kill()
                code, answer, error = cluster.restore(5)
                self.assertEqual(code, OK, error)
                self.assertEqual(answer["rebuilt_bytes"], 0)
                self.assertEqual(answer["from"], "memory")
                self.assertGreaterEqual(answer["generation"]["step"], newest[1])
                other = Job(cluster, dp, pp, True)
                self.addCleanup(other.kill)
                self.assertEqual(
                    other.wait(), [OK] * dp * pp, text_of(cluster.path(f"gpt-{Job.count}-0.log"))
                )
                restored = other.events("restored")
                self.assertEqual(len(restored), dp * pp)
                self.assertTrue(all(event["file_bytes"] == 0 for event in restored))
                self.assertEqual(
                    {event["generation_step"] for event in restored}, {answer["generation"]["step"]}
                )
                self.assertEqual(other.result(), expected)
                local = sum(event["local_bytes"] for event in restored) / sum(
                    event["bytes"] for event in restored
                )
                say(
                    f"dp 2 x pp 3, step {answer['generation']['step']} -> dp {dp} x pp {pp}: the "
                    f"same bits; {local:.0%} were on the node"
                )


if __name__ == "__main__":
    unittest.main(verbosity=2)
