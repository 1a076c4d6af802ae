#!/usr/bin/env python3
"""Any two of six nodes may be lost, and not three: every pair, and the report when it is too
much."""
import itertools
import os
import signal
import subprocess
import time
import unittest

from harness import AGAIN, CAIRN, LOST, OK, PATIENCE, TORN, Built, Cluster, cairn, say, wait_for


class Losses(Built):
    def test_every_pair(self):
        """Nodes that come back without memory are repaired without an operator. Every second
        restore begins before that, and every other one finds all parts in memory."""
        with Cluster(6, 2) as cluster:
            cluster.start()
            newest = (0, 0)
            for number, pair in enumerate(itertools.combinations(range(6), 2)):
                cluster.train(resume=newest > (0, 0))
                newest = cluster.wait_committed((newest[0], newest[1] + 3))
                for node in pair:
                    cluster.kill_node(node)
                cluster.stop_trainers()
                newest = max(newest, cluster.committed())
                mark = cluster.rebuilt_blocks()
                cluster.start(*pair)
                asked = (set(range(6)) - set(pair)).pop()
                if number % 2 == 0:
                    cluster.wait_repaired(*pair)
                code, answer, error = cluster.restore(asked)
                self.assertEqual(code, OK, f"{pair}: {answer} {error}")
                repaired = cluster.rebuilt_blocks() - mark
                if number % 2 == 0:
                    self.assertGreater(repaired, 0, f"{pair}: {answer}")
                    self.assertEqual(
                        (answer["rebuilt_bytes"], answer["lost_members"]),
                        (0, 0),
                        f"{pair}: what was repaired is rebuilt again: {answer}",
                    )
                self.assertGreater(answer["rebuilt_bytes"] + repaired, 0, f"{pair}: {answer}")
                generation = self.check_restored(cluster, answer, newest)
                code, answer, error = cairn("verify", "--agent", cluster.socket(pair[0]))
                self.assertEqual(code, OK, f"{pair}: {answer} {error}")
                say(
                    f"nodes {pair}: epoch {generation[0]} step {generation[1]} is back, every byte "
                    "right"
                )

    def test_three_are_too_many(self):
        with Cluster(6, 2) as cluster:
            cluster.start()
            cluster.train()
            cluster.wait_committed((1, 3))
            for node in (0, 2, 5):
                cluster.kill_node(node)
            cluster.stop_trainers()
            cluster.start(0, 2, 5)
            code, answer, error = cluster.restore(1)
            say(f"exit {code}: {answer}")
            self.assertEqual(code, LOST, error)
            self.assertTrue(any("not restorable" in line for line in answer["considered"]), answer)
            for node in (1, 2):
                code, found, text = cluster.check(node, seconds=1, restore_ms=2000)
                say(f"a trainer of node {node} gets: exit {code}, {text.strip().splitlines()[-1]}")
                self.assertIsNone(found, "something that is lost was restored")
                self.assertNotEqual(code, TORN, text)

    def test_three_and_spilled_files(self):
        with Cluster(6, 2) as cluster:
            spill = cluster.path("spill")
            for node in range(6):
                with open(cluster.path(f"node{node}.yaml"), "r+") as file:
                    text = file.read()
                    file.seek(0)
                    file.write(f"spill_dir: {spill}\nspill_every_generations: 3\n{text}")
            cluster.start()
            cluster.train(step_us=20000)
            cluster.wait_committed((1, 3))
            spilled = self.wait_spilled(cluster)
            for node in (1, 3, 4):
                cluster.kill_node(node)
            cluster.stop_trainers()
            cluster.start(1, 3, 4)
            code, answer, error = cluster.restore(0)
            self.assertEqual(code, OK, f"{answer} {error}")
            self.assertEqual(answer["from"], "files")
            self.assertGreaterEqual(answer["generation"]["step"], spilled)
            self.check_restored(cluster, answer)
            say(f"from files: {answer['considered'][-1].strip()}")
            cluster.train(resume=True)
            cluster.wait_committed(
                (answer["generation"]["epoch"] + 1, answer["generation"]["step"] + 1)
            )

    def test_fewer_nodes_than_before(self):
        """Two of two data shards became one of three: the parity of large parts does not fit twice,
        so once it is."""
        with Cluster(4, 2) as cluster:
            cluster.start()
            cluster.train(elements=110000)
            newest = cluster.wait_committed((1, 3))
            cluster.kill_node(3)
            cluster.stop_trainers()
            code, answer, error = cluster.restore(0)
            self.assertEqual(code, OK, f"{answer} {error}")
            self.assertTrue(
                any(
                    "with 3 nodes a group survives only 1 loss" in line
                    for line in answer["considered"]
                ),
                answer,
            )
            cluster.train(world=3, parts=4, resume=True, elements=110000)
            newest = cluster.wait_committed(
                (answer["generation"]["epoch"] + 1, answer["generation"]["step"] + 3)
            )
            say(f"three of four nodes go on: epoch {newest[0]} step {newest[1]} is committed")
            cluster.kill_node(1)
            cluster.stop_trainers()
            cluster.start(1)
            code, answer, error = cluster.restore(0)
            self.assertEqual(code, OK, f"{answer} {error}")
            self.assertGreaterEqual(
                (answer["generation"]["epoch"], answer["generation"]["step"]), newest
            )
            code, found, text = cluster.check(parts=4)
            self.assertEqual(code, OK, text)
            self.assertEqual(found, (answer["generation"]["epoch"], answer["generation"]["step"]))

    def wait_spilled(self, cluster):
        def newest():
            code, answer, _ = cairn("snapshots", "--agent", cluster.socket(0))
            steps = [
                g["step"]
                for g in (answer or {}).get("generations", [])
                if g.get("state") == "spilled"
            ]
            return max(steps, default=0) if code == OK else 0

        return wait_for("a generation is spilled", newest, 60)

    def meetings(self, cluster):
        """How often an agent's restore was refused because of another one."""
        return sum(
            cluster.log(node).count("another restore is under way; try again")
            for node in range(cluster.nodes)
        )

    def test_two_restores_at_once(self):
        """Both wait for an agent that stands still, and so meet: the one that is overtaken ends,
        because trainers may run with the other's epoch."""
        with Cluster(6, 2) as cluster:
            cluster.start()
            cluster.train()
            cluster.wait_committed((1, 3))
            for node in (1, 4):
                cluster.kill_node(node)
            cluster.stop_trainers()
            cluster.start(1, 4)
            ended = 0
            for _ in range(20):
                os.kill(cluster.agents[2].pid, signal.SIGSTOP)
                both = [
                    subprocess.Popen(
                        [CAIRN, "restore", "--agent", cluster.socket(node), "-o", "json"],
                        text=True,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                    )
                    for node in (0, 5)
                ]
                time.sleep(0.2)
                os.kill(cluster.agents[2].pid, signal.SIGCONT)
                said = [process.communicate(timeout=60 * PATIENCE) for process in both]
                codes = sorted(process.returncode for process in both)
                self.assertIn(codes, ([OK, AGAIN], [AGAIN, AGAIN], [OK, OK]))
                ended += sum("another restore has ended meanwhile" in text for text, _ in said)
                met = self.meetings(cluster) + ended
                say(f"two restores at once: exit codes {codes}, {met} met until now")
                if met >= 2:
                    break
            self.assertGreater(met, 0, "one restore never met another")
            code, answer, error = cluster.restore(2)
            self.assertEqual(code, OK, error)
            self.check_restored(cluster, answer)


if __name__ == "__main__":
    unittest.main(verbosity=2)
