#!/usr/bin/env python3
"""Agents and keepers die, stop, run out of disk and memory: training goes on, and what was
committed is still there."""
import json
import os
import random
import re
import signal
import subprocess
import time
import unittest

from harness import (
    CRITICAL,
    GPT,
    IO,
    OK,
    PATIENCE,
    Cluster,
    build,
    cairn,
    free_ports,
    say,
    spawn,
    text_of,
    wait_for,
)

DP, PP = 2, 2
STEPS = 120
LONG_STEPS = 200  # so that agents can be killed and a disk filled meanwhile
# The default model's state, and little to compute: the agents are what is tested.
MODEL = ("--context", 32, "--micro-batch-size", 1)


def gpt_losses(events):
    """loss_sha256 of every rank that is done."""
    lines = [json.loads(line) for line in text_of(events).splitlines()]
    return [line["loss_sha256"] for line in lines if "loss_sha256" in line]


class Gpt:
    """A training job of DP x PP ranks, one per node of a cluster; without agents where cluster is
    None."""

    def __init__(self, cluster, folder, steps=STEPS):
        peers = ",".join(f"127.0.0.1:{port}" for port in free_ports(DP * PP))
        self.steps = steps
        self.events = os.path.join(folder, f"events-{time.monotonic_ns()}.jsonl")
        self.processes = []
        for rank in range(DP * PP):
            command = [
                GPT,
                "--rank",
                rank,
                "--dp",
                DP,
                "--pp",
                PP,
                "--peers",
                peers,
                "--steps",
                steps,
                "--events",
                self.events,
                *MODEL,
            ]
            if cluster:
                command += ["--agent", cluster.socket(rank), "--job", "cluster"]
            self.processes.append(
                spawn([str(word) for word in command], os.path.join(folder, f"gpt-{rank}.log"))
            )

    def running(self):
        return all(process.poll() is None for process in self.processes)

    def wait(self, seconds=60 * PATIENCE):
        return [process.wait(timeout=seconds) for process in self.processes]

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()


class Agents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        build()
        cls.losses = {}  # of a job without agents, by its steps

    def check_losses(self, job):
        """The job ends well, with the losses of a job that has no agents."""
        self.assertEqual(job.wait(), [0] * (DP * PP))
        if job.steps not in Agents.losses:
            with Cluster(4, 1) as folder:
                reference = Gpt(None, folder.dir, job.steps)
                self.assertEqual(reference.wait(), [0] * (DP * PP))
                Agents.losses[job.steps] = gpt_losses(reference.events)
        losses = Agents.losses[job.steps]
        self.assertEqual(len(set(losses)), 1)
        self.assertEqual(gpt_losses(job.events), losses)

    def test_agents_killed_at_random_instants(self):
        rng = random.Random(20)
        with Cluster(4, 1, state="16MiB") as cluster:
            cluster.start()
            job = Gpt(cluster, cluster.dir, LONG_STEPS)
            try:
                cluster.wait_committed((0, 1))
                kills = 0
                while kills < 20 and job.running():
                    node = rng.randrange(4)
                    cluster.kill_agent(node)
                    time.sleep(rng.random() * 0.05)
                    cluster.start(node)
                    self.assertIn("adopted from the keeper", cluster.log(node))
                    time.sleep(rng.random() * 0.1)
                    kills += 1
                say(f"{kills} agents killed; committed up to {cluster.committed()}")
                self.assertGreater(kills, 0, "the job was over too soon to show anything")
                self.check_losses(job)
                newest = cluster.committed()
                code, answer, error = cluster.restore()
                self.assertEqual(code, OK, error)
                restored = (answer["generation"]["epoch"], answer["generation"]["step"])
                self.assertGreaterEqual(restored, newest)
                # A later generation than the committed one is taken even if an agent was killed
                # before its part of it was complete: that part is rebuilt.
                self.assertLessEqual(answer["lost_members"], int(restored > newest))
            finally:
                job.stop()

    def test_a_stopped_agent_does_not_stop_training(self):
        with Cluster(4, 1, state="16MiB") as cluster:
            cluster.start()
            job = Gpt(cluster, cluster.dir)
            try:
                cluster.wait_committed((0, 1))
                os.kill(cluster.agents[2].pid, signal.SIGSTOP)
                self.check_losses(job)
                os.kill(cluster.agents[2].pid, signal.SIGCONT)
            finally:
                job.stop()

    def test_a_dead_keeper_is_replaced(self):
        with Cluster(3, 1) as cluster:
            cluster.start()
            cluster.train()
            cluster.wait_committed((0, 2))
            for pid in cluster.keeper(1):
                os.kill(pid, signal.SIGKILL)
            wait_for("a new keeper", lambda: "a new one holds the memory now" in cluster.log(1))
            before = cluster.wait_committed(cluster.committed())
            cluster.stop_trainers()
            cluster.kill_agent(1)
            cluster.start(1)
            self.assertIn("adopted from the keeper", cluster.log(1))
            code, answer, error = cluster.restore()
            self.assertEqual(code, OK, error)
            self.assertEqual((answer["lost_members"], answer["rebuilt_bytes"]), (0, 0))
            self.assertGreaterEqual(
                (answer["generation"]["epoch"], answer["generation"]["step"]), before
            )
            code, found, text = cluster.check()
            self.assertEqual(code, OK, text)

    def test_a_keeper_that_cannot_be_replaced_is_said(self):
        with Cluster(3, 1) as cluster:
            cluster.start()
            os.rename(cluster.state(0), cluster.state(0) + ".away")
            for pid in cluster.keeper(0):
                os.kill(pid, signal.SIGKILL)
            wait_for(
                "it is said", lambda: "is gone, and no new one holds the memory" in cluster.log(0)
            )
            cluster.train()
            cluster.wait_committed((0, 2))
            os.rename(cluster.state(0) + ".away", cluster.state(0))
            wait_for("a new keeper", lambda: "a new one holds the memory now" in cluster.log(0))

    def test_a_clean_stop_is_adopted(self):
        with Cluster(3, 1) as cluster:
            cluster.start()
            cluster.train()
            cluster.wait_committed((0, 2))
            cluster.stop_trainers()
            for agent in cluster.agents:
                agent.terminate()
            self.assertEqual(
                [agent.wait(timeout=30 * PATIENCE) for agent in cluster.agents], [0, 0, 0]
            )
            self.assertFalse(os.path.exists(cluster.socket(0)))
            newest = cluster.committed()
            cluster.start()
            code, answer, error = cluster.restore()
            self.assertEqual(code, OK, error)
            self.assertEqual((answer["lost_members"], answer["rebuilt_bytes"]), (0, 0))
            self.assertGreaterEqual(
                (answer["generation"]["epoch"], answer["generation"]["step"]), newest
            )

    def test_a_full_disk_stops_the_agent_alone(self):
        with Cluster(4, 1, state="16MiB") as cluster:
            os.mkdir(cluster.state(1))
            mount = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=4m", "none", cluster.state(1)],
                capture_output=True,
                text=True,
                check=False,
            )
            if mount.returncode:
                self.skipTest(f"no tmpfs can be mounted here: {mount.stderr.strip()}")
            job = None
            try:
                with open(os.path.join(cluster.state(1), "ballast"), "wb") as ballast:
                    # so that the catalog's log cannot reserve megabytes in advance
                    ballast.write(bytes(3600 << 10))
                cluster.start()
                job = Gpt(cluster, cluster.dir, LONG_STEPS)
                cluster.wait_committed((0, 1))
                with open(os.path.join(cluster.state(1), "filler"), "wb", buffering=0) as filler:
                    try:
                        while True:
                            filler.write(bytes(4096))
                    except OSError:
                        pass

                # a new epoch must be promised durably; the first may still fit what is there
                # already
                def claim():
                    cairn("restore", "--agent", cluster.socket(0))
                    return cluster.ended(1)

                wait_for("the agent stops", claim, 60)
                self.assertEqual(cluster.agents[1].returncode, IO, cluster.log(1)[-2000:])
                self.assertIn("fix the disk", cluster.log(1))
                self.check_losses(job)
            finally:
                if job:
                    job.stop()
                cluster.kill_agent(1)
                for pid in cluster.keeper(1):
                    os.kill(pid, signal.SIGKILL)
                subprocess.run(["umount", "-l", cluster.state(1)], check=False)

    def test_another_key_is_refused(self):
        with Cluster(2, 1) as cluster:
            for node in range(2):
                with open(
                    cluster.path(f"key{node}"),
                    "w",
                    opener=lambda path, flags: os.open(path, flags, 0o600),
                ) as key:
                    key.write(f"the key of node {node}: {'k' * 32}")
                with open(cluster.path(f"node{node}.yaml"), "a") as config:
                    config.write(f"key_file: {cluster.path(f'key{node}')}\n")
            cluster.start()
            wait_for(
                "one of them says so",
                lambda: "does not hold this job's key" in cluster.log(0) + cluster.log(1),
            )
            time.sleep(3)
            for node in range(2):
                said = [line for line in cluster.log(node).splitlines() if "job's key" in line]
                # once, and not at every attempt
                self.assertLessEqual(len(said), 1, "\n".join(said))
                self.assertNotIn("peer: up", cluster.log(node))
            code, answer, error = cairn("status", "--agent", cluster.socket(0))
            self.assertEqual(code, CRITICAL, f"{answer} {error}")

    def test_memory_stays_within_its_bound(self):
        with Cluster(4, 1, state="16MiB") as cluster:
            cluster.start()
            job = Gpt(cluster, cluster.dir)
            try:
                self.check_losses(job)
                bound = 2 * (1 + 1 / 3) * 16 + 128
                for node in range(4):
                    status = text_of(f"/proc/{cluster.agents[node].pid}/status")
                    found = {
                        key: int(value) / 1024
                        for key, value in re.findall(
                            r"(VmHWM|RssAnon|RssShmem|RssFile):\s+(\d+)", status
                        )
                    }
                    say(f"node {node}: {found} MiB, bound {bound:.0f}")
                    self.assertLess(found["VmHWM"], bound)
            finally:
                job.stop()

    def test_a_reload_applies_what_it_can(self):
        with Cluster(3, 1) as cluster:
            cluster.start()
            cluster.train()
            cluster.wait_committed((0, 0))

            def reload(text):
                count = cluster.log(1).count(text)
                os.kill(cluster.agents[1].pid, signal.SIGHUP)
                wait_for(f"it logs: {text}", lambda: cluster.log(1).count(text) > count)

            cluster.configure(1, log_level="warn", dead_after_ms=2000)
            reload("reload: log_level: debug is warn now")
            told = [(each["node"], each["why"]) for each in cluster.events("config")]
            self.assertIn((1, "log_level: debug is warn now"), told)
            self.assertIn((1, "dead_after_ms stays 1000 until a restart makes it 2000"), told)
            self.assertIn(
                "reload: dead_after_ms stays 1000; restart this agent to make it 2000",
                cluster.log(1),
            )
            cluster.configure(1, parity="many")
            reload("reload: nothing is changed: ")
            cluster.configure(1, parity=1, log_level="debug", dead_after_ms=1000)
            reload("reload: log_level: warn is debug now")
            reload("is what runs already")
            path = cluster.path("node1.yaml")
            with open(path) as file:
                text = file.read()
            port = re.findall(r"127.0.0.1:(\d+)", text)[0]
            with open(path, "w") as file:
                file.write(text.replace(f"127.0.0.1:{port}", f"localhost:{port}"))
            reload(f"reload: the address of node 0: 127.0.0.1:{port} is localhost:{port} now")
            newest = cluster.committed()
            cluster.wait_committed((newest[0], newest[1] + 3))  # the session is made again
            self.assertIsNone(cluster.agents[1].poll())


if __name__ == "__main__":
    unittest.main(verbosity=2)
