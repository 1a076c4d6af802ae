#!/usr/bin/env python3
"""The verbs against the agents of a running job: status, snapshots, restores, verification."""
import json
import os
import signal
import re
import subprocess
import sys
import time
import unittest

from harness import (
    AGAIN,
    CAIRN,
    CRITICAL,
    Cluster,
    LOST,
    OK,
    PATIENCE,
    PEER,
    WARN,
    build,
    cairn,
    codes,
    run,
    wait_for,
)


class Job(unittest.TestCase):
    """Three nodes, with trainers; one may be lost."""

    def setUp(self):
        self.cluster = Cluster(3, parity=1).start()
        self.addCleanup(self.cluster.close)
        self.agent = ("--agent", self.cluster.socket(0))
        wait_for(
            "all nodes answer", lambda: cairn("status", *self.agent)[1]["nodes_answering"] == 3
        )

    def train(self, **options):
        self.cluster.train(**options)
        return self.cluster.wait_committed(self.cluster.committed())

    def stop_trainers(self):
        """Ends them; returns when every agent knows, and what they have not finished is settled
        among the agents."""
        self.cluster.stop_trainers()
        wait_for(
            "the agents know",
            lambda: all(
                self.cluster.log(i).count("trainer attached")
                == self.cluster.log(i).count("trainer left")
                for i in range(3)
            ),
        )

        def settled():
            """What was never committed may be half written yet. What was is never repaired here,
            unseen."""
            code, answer, _ = cairn("verify", *self.agent)
            self.assertEqual((answer or {}).get("bad_blocks", 0), 0, answer)
            return code == OK

        wait_for("all is settled", settled)

    def healthy(self):
        """The status as soon as nothing is wrong with it."""

        def look():
            code, answer, _ = cairn("status", *self.agent)
            return code == OK and answer

        return wait_for("a healthy job", look)

    def test_before_the_first_commit(self):
        def first_epoch():
            code, answer, _ = cairn("status", *self.agent)
            self.assertEqual((code, answer["health"], answer["newest"]), (WARN, "WARN", None))
            # while the epoch is made, which is a restore of nothing, status says that one runs
            self.assertLessEqual(
                codes(answer), {"nothing-committed", "node-blank", "restore-running"}
            )
            return codes(answer) == {"nothing-committed"}

        wait_for("all nodes are members", first_epoch)
        code, answer, err = cairn("restore", *self.agent)
        self.assertEqual((code, answer["result"]), (LOST, "CAIRN_LOST"))
        self.assertIn("nothing is restorable", err)
        self.assertEqual(cairn("verify", *self.agent)[0], LOST)
        self.assertEqual(cairn("snapshot", *self.agent)[0], AGAIN)
        self.assertEqual(cairn("snapshots", *self.agent)[1]["generations"], [])

    def test_a_healthy_job(self):
        self.train()
        answer = self.healthy()
        self.assertEqual(answer["schema"], 1)
        self.assertEqual(answer["protection"]["survives_nodes_per_group"], 1)
        self.assertEqual(answer["protection"]["missing_parts"], 0)
        self.assertTrue(answer["protection"]["survives_any_one_domain"])
        self.assertEqual((answer["trainers"], len(answer["nodes"])), (3, 3))
        coverage = answer["coverage"]  # of the other nodes too
        self.assertEqual(
            [coverage[f"ranks_{which}"] for which in ("known", "reporting", "refusing")], [3, 3, 0]
        )
        self.assertEqual(
            coverage["tensors"], {"parameter": 3, "optimizer": 3, "buffer": 0, "opaque": 3}
        )
        self.assertEqual(
            (coverage["uncovered"], sorted(rank["rank"] for rank in coverage["ranks"])),
            ([], [0, 1, 2]),
        )
        self.assertEqual(coverage["bytes"]["optimizer"], 8 * 5000)  # what all hold is captured once
        self.assertGreater(answer["newest"]["bytes"], 0)
        self.assertTrue(0 < answer["newest"]["age_ns"] < 600e9, answer["newest"])
        code, out, _ = run("status", *self.agent)
        self.assertEqual(code, OK)
        self.assertLessEqual(out.count("\n"), 24)
        self.assertNotIn("\033", out)
        self.assertIn("covered    parameters 3 (", out)
        self.assertIn("uncovered  nothing that the trainers know of", out)
        code, out, _ = run("status", "-o", "metrics", *self.agent)
        self.assertEqual(code, OK)
        self.assertIn('cairn_covered_bytes{job="cluster",kind="optimizer"} 40000\n', out)
        self.assertIn('cairn_ranks{job="cluster",state="reporting"} 3\n', out)
        self.assertEqual(run("status", "--job", "another", *self.agent)[0], PEER)
        listed = cairn("snapshots", *self.agent)[1]["generations"]
        self.assertTrue(any(g["state"] == "committed" for g in listed), listed)
        named = {"CAIRN_AGENT": self.agent[-1]}  # what shells complete
        words = run("manual", "words", "E:S", env=named)[1].split()
        self.assertTrue(words and all(re.fullmatch(r"\d+:\d+", word) for word in words), words)
        self.assertIn("cluster", run("manual", "words", "JOB")[1].split())
        self.assertIn(self.agent[-1], run("manual", "words", "SOCKET")[1].split())

    def test_a_snapshot_is_waited_for(self):
        self.train()
        self.healthy()
        code, foreseen, _ = cairn("snapshot", "--dry-run", *self.agent)
        self.assertEqual(code, OK)
        code, answer, _ = cairn("snapshot", "--wait", *self.agent)
        self.assertEqual(code, OK)
        self.assertGreaterEqual(answer["committed"]["step"], answer["step"])
        self.assertGreaterEqual(answer["step"], foreseen["step"])

    def test_an_export_stops_no_trainer(self):
        self.train()
        self.healthy()
        before = [trainer.step() for trainer in self.cluster.trainers]
        target = self.cluster.path("export")
        code, answer, err = cairn("restore", "--to", target, *self.agent)
        self.assertEqual(code, OK, err)
        self.assertEqual((answer["directory"], answer["rebuilt_bytes"]), (target, 0))
        self.assertTrue(os.path.exists(os.path.join(target, "COMMIT")))
        wait_for(
            "training goes on",
            lambda: all(t.step() > b + 5 for t, b in zip(self.cluster.trainers, before)),
        )
        self.assertEqual(cairn("status", *self.agent)[1]["epoch"], answer["epoch"])
        code, _, err = cairn("restore", "--to", target, *self.agent)  # it is not empty now
        self.assertNotEqual(code, OK)
        self.assertIn("export", err)

    def test_a_lost_node(self):
        self.train()
        self.healthy()
        self.stop_trainers()  # what a restore takes no longer changes
        self.cluster.kill_node(2)
        wait_for(
            "the loss is seen", lambda: "nodes-silent" in codes(cairn("status", *self.agent)[1])
        )
        code, foreseen, _ = cairn("restore", "--dry-run", *self.agent)
        self.assertEqual((code, foreseen["lost_members"], foreseen["dry_run"]), (OK, 1, True))
        name = f"{foreseen['generation']['epoch']}:{foreseen['generation']['step']}"
        code, answer, err = cairn("restore", "--generation", f"{name}1", *self.agent)
        self.assertEqual((code, answer["result"], answer["generation"]), (LOST, "CAIRN_LOST", None))
        self.assertIn(f"step {foreseen['generation']['step']}1", err)
        code, answer, err = self.cluster.restore(0, "--generation", name)
        self.assertEqual(code, OK, err)
        self.assertEqual(answer["generation"], foreseen["generation"])
        self.assertEqual((answer["from"], answer["lost_members"]), ("memory", 1))
        self.assertGreater(answer["rebuilt_bytes"], 0)
        self.assertIn("chosen as the newest", "\n".join(foreseen["considered"]))
        self.assertIn("chosen as the wanted one", "\n".join(answer["considered"]))
        self.assertEqual(cairn("status", *self.agent)[1]["protection"]["missing_parts"], 0)

    def test_restores_at_the_same_time(self):
        self.train()
        self.healthy()
        self.cluster.stop_trainers()
        begun = [
            subprocess.Popen(
                [CAIRN, "restore", "-o", "json", "--agent", self.cluster.socket(i % 3)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for i in range(6)
        ]
        answers = [
            (process.communicate(timeout=60 * PATIENCE)[0], process.returncode) for process in begun
        ]
        self.assertTrue({code for _, code in answers} <= {OK, AGAIN}, answers)
        won = [json.loads(text) for text, code in answers if code == OK]
        self.assertTrue(won)
        self.assertEqual(
            len({answer["epoch"] for answer in won}), len(won), "two restores had one epoch"
        )
        code, answer, _ = cairn("status", *self.agent)
        self.assertEqual(answer["epoch"], max(one["epoch"] for one in won))

    def test_no_majority(self):
        self.train()
        self.healthy()
        self.cluster.stop_trainers()
        self.cluster.kill_node(1)
        self.cluster.kill_node(2)
        wait_for(
            "the losses are seen",
            lambda: {"no-majority", "not-restorable"} <= codes(cairn("status", *self.agent)[1]),
        )
        code, answer, _ = cairn("status", *self.agent)
        self.assertEqual((code, answer["nodes_answering"]), (CRITICAL, 1))
        code, answer, err = cairn("restore", *self.agent)
        self.assertEqual(code, AGAIN, f"one of three cannot tell what the others hold: {answer}")
        self.assertIn(": not restorable:", answer["considered"][0])
        self.assertIn("only 1 of the job's 3 agents answered", err)
        self.cluster.start(1, 2)
        code, answer, err = self.cluster.restore()
        self.assertEqual(code, LOST, answer)
        self.assertIn("has lost 2 of its 3 nodes", err)
        self.assertIn("no spilled generation is known", answer["considered"])

    def test_verify(self):
        self.train()
        self.healthy()
        self.stop_trainers()
        code, answer, _ = cairn("verify", *self.agent)
        self.assertEqual((code, answer["verdict"], answer["bad_blocks"]), (OK, "good", 0))
        self.assertGreater(answer["checked_bytes"], 0)
        code, foreseen, _ = cairn("verify", "--dry-run", *self.agent)
        self.assertEqual(
            (code, foreseen["dry_run"], foreseen["checked_bytes"]),
            (OK, True, answer["checked_bytes"]),
        )
        self.assertEqual(answer["catalog"]["result"], "CAIRN_OK")

    def flip(self, node, kind):
        """Changes a byte of each slot's data or parity in the memory held by a node's keeper."""
        flipped = 0
        for pid in self.cluster.keeper(node):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{fd}"
                if f"memfd:cairn-slot" in os.readlink(path) and kind in os.readlink(path):
                    with open(path, "r+b", buffering=0) as file:
                        byte = file.read(1)
                        file.seek(0)
                        file.write(bytes([byte[0] ^ 1]))
                        flipped += 1
        self.assertGreater(flipped, 0)

    def test_a_flipped_byte_in_memory_is_found_and_repaired(self):
        self.train()
        self.healthy()
        self.stop_trainers()
        for kind in ("-region", "-parity"):
            self.flip(1, kind)
            code, answer, _ = cairn("verify", *self.agent)
            self.assertEqual((code, answer["verdict"]), (WARN, "repaired"), (kind, answer))
            self.assertEqual(
                (answer["bad_blocks"], answer["repaired_blocks"], answer["still_bad_blocks"]),
                (1, 1, 0),
                answer,
            )
            code, answer, _ = cairn("verify", *self.agent)
            self.assertEqual(answer["bad_blocks"], 0, answer)
            # nothing can repair what the trainers left unfinished
            if any("was never committed" in line for line in answer["considered"]):
                self.assertIn(
                    (code, answer["other_bad_blocks"] > 0), ((OK, False), (WARN, True)), answer
                )
            else:
                self.assertEqual((code, answer["other_bad_blocks"]), (OK, 0), answer)

    def test_damage_beyond_the_parity_is_loss(self):
        self.train()
        self.healthy()
        self.stop_trainers()
        for node in range(3):
            self.flip(node, "-region")
            self.flip(node, "-parity")
        code, answer, _ = cairn("verify", *self.agent)
        self.assertEqual((code, answer["verdict"]), (CRITICAL, "loss"), answer)

    def test_an_agent_that_hangs(self):
        self.cluster.agents[0].send_signal(signal.SIGSTOP)
        try:
            code, _, err = run("restore", "--timeout", "1s", *self.agent)
        finally:
            self.cluster.agents[0].send_signal(signal.SIGCONT)
        self.assertEqual(code, PEER)
        self.assertIn("the agent did not answer within 1 s", err)

    def test_another_node_does_not_answer(self):
        self.cluster.agents[2].send_signal(signal.SIGSTOP)
        try:
            wait_for(
                "the others answer", lambda: cairn("status", *self.agent)[1]["nodes_answering"] == 2
            )
            self.assertIn("nodes-silent", codes(cairn("status", *self.agent)[1]))
        finally:
            self.cluster.agents[2].send_signal(signal.SIGCONT)


class Spill(unittest.TestCase):
    def test_a_flipped_byte_in_a_spilled_file_is_loss(self):
        folder = None
        with Cluster(2, parity=1) as cluster:
            folder = cluster.path("spill")
            os.mkdir(folder)
            for i in range(2):
                with open(cluster.path(f"node{i}.yaml"), "a") as file:
                    file.write(f"spill_dir: {folder}\nspill_every_generations: 2\n")
            cluster.start()
            agent = ("--agent", cluster.socket(0))
            cluster.train(step_us=20000)
            listed = wait_for(
                "a spilled generation",
                lambda: [
                    g
                    for g in cairn("snapshots", *agent)[1]["generations"]
                    if g["state"] == "spilled"
                ],
            )
            cluster.stop_trainers()
            self.assertEqual(listed[0]["where"], folder)
            found = []

            def settled():
                """Two looks of all agents at all that there is, with a second between them, find
                the same."""
                time.sleep(1)
                found.append((*cairn("verify", *agent)[:2], sorted(os.listdir(folder))))
                return (
                    len(found) > 1
                    and all(code == OK for code, _, _ in found[-2:])
                    and all(
                        answer["files"]["generation"] == found[-1][1]["files"]["generation"]
                        and names == found[-1][2]
                        for _, answer, names in found[-2:]
                    )
                )

            wait_for("the last spill ends", settled)
            answer = found[-1][1]
            self.assertTrue(answer["files"]["checked"], answer)
            self.assertIsNotNone(cairn("status", *agent)[1]["spilled"])
            generation = answer["files"]["generation"]
            sub = [d for d in os.listdir(folder) if d.endswith(f"-s{generation['step']}")][0]
            data = [f for f in os.listdir(os.path.join(folder, sub)) if f.endswith(".safetensors")][
                0
            ]
            with open(os.path.join(folder, sub, data), "r+b") as file:
                file.seek(-3, os.SEEK_END)
                byte = file.read(1)
                file.seek(-3, os.SEEK_END)
                file.write(bytes([byte[0] ^ 1]))
            code, answer, _ = cairn("verify", *agent)
            self.assertEqual(
                (code, answer["verdict"], answer["files"]["result"]),
                (CRITICAL, "loss", "CAIRN_CORRUPT"),
            )
            self.assertIn(data, answer["files"]["report"])


if __name__ == "__main__":
    build()
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
