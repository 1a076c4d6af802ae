#!/usr/bin/env python3
"""The history that the agents keep tells what happened: a node dies, is repaired and restored, in
causal order, on every agent and after restarts. The report's parts add up to the wall time."""
import os
import shutil
import signal
import time
import unittest

from harness import OK, USAGE, Built, Cluster, cairn, run, say, wait_for

PARTS = 4
STEP_US = 20000
PARTS_OF_TIME = (
    "productive_seconds",
    "redone_seconds",
    "snapshot_wait_seconds",
    "straggler_wait_seconds",
    "down_seconds",
)


class History(Built):
    def history(self, cluster, node, *words):
        code, answer, error = cairn("history", "--agent", cluster.socket(node), *words)
        self.assertEqual(code, OK, f"{answer} {error}")
        return answer["events"]

    def find(self, events, kind, after=-1, **fields):
        """The place of the first such event behind another one."""
        for at, event in enumerate(events):
            if at > after and event["kind"] == kind:
                if all(event.get(key) == value for key, value in fields.items()):
                    return at
        lines = "\n".join(f"{event['id']} {event['kind']} {event['text']}" for event in events)
        self.fail(f"no {kind} {fields} behind {after}:\n{lines}")

    def check_story(self, events, restored):
        """Death, return, repair, restore and training again, in this order."""
        first = self.find(events, "commit", generation_epoch=1)
        death = self.find(events, "death", first, of_node=3)
        start = self.find(events, "start", death, node=3)
        back = self.find(events, "return", start, of_node=3)
        repair = self.find(events, "repair", death, ok=True, count=1)
        self.assertIn("(node 3)", events[repair]["why"], "the reasons name the lost node")
        asked = self.find(events, "operator", repair, why="cairn restore")
        self.assertEqual(events[asked]["user"], os.getuid())
        restore = self.find(events, "restore", asked, ok=True, generation_step=restored)
        begun = self.find(events, "epoch", asked, generation_step=restored, change=1)
        resume = self.find(events, "resume", max(restore, begun), generation_step=restored)
        commit = self.find(events, "commit", resume)
        self.assertGreater(events[commit]["generation_step"], restored)
        self.assertGreater(len(events[death]["seen_by"]), 1, "seen by several, told once")
        deaths = [e for e in events if e["kind"] == "death" and e["of_node"] == 3]
        self.assertEqual(len(deaths), 1, deaths)
        self.assertLess(start, back)

    def running_report(self, cluster):
        code, report, error = cairn("report", "--agent", cluster.socket(2))
        self.assertEqual(code, OK, error)
        return report["snapshots"] > 0 and report

    def check_report(self, cluster, began, killed, resumed, redone):
        code, report, error = cairn("report", "--agent", cluster.socket(1))
        self.assertEqual(code, OK, error)
        say(str(report))
        wall = report["wall_seconds"]
        self.assertAlmostEqual(sum(report[part] for part in PARTS_OF_TIME), wall, delta=wall / 100)
        self.assertLessEqual(wall, time.time() - began)
        # until the trainers died, and from then on until they trained again
        self.assertGreaterEqual(wall, killed - began - 5)
        self.assertGreater(report["productive_seconds"], 0.5)
        self.assertLessEqual(report["down_seconds"], wall - report["productive_seconds"])
        self.assertGreater(report["down_seconds"], 0.5 * (resumed - killed))
        self.assertEqual(report["faults"], 2, "one by the kill, one at the end")
        self.assertEqual(report["lives"], 2)
        self.assertLessEqual(abs(report["redone_steps"] - redone), 2)
        self.assertEqual(report["configured_every_steps"], 1)
        self.assertGreaterEqual(report["best_every_steps"], 1)

    def test_a_node_dies_and_comes_back(self):
        with Cluster(PARTS, 1) as cluster:
            cluster.start()
            began = time.time()
            cluster.train(step_us=STEP_US)
            cluster.wait_committed((1, 20))
            cluster.kill_node(3)
            killed = time.time()
            trainers = cluster.trainers
            cluster.stop_trainers()
            reached = max(trainer.step() for trainer in trainers)
            wait_for(
                "the death is in the history",
                lambda: any(e["kind"] == "death" for e in self.history(cluster, 0)),
            )
            cluster.start(3)
            cluster.wait_repaired(3)
            code, answer, error = cluster.restore(0)
            self.assertEqual(code, OK, error)
            restored = answer["generation"]["step"]
            self.assertLessEqual(restored, reached)
            redone = reached - restored
            cluster.train(resume=True, step_us=STEP_US)
            resumed_at = cluster.wait_committed((answer["epoch"], restored + 1))
            resumed = time.time()
            self.assertGreater(resumed_at[1], restored)
            running = wait_for(
                "the trainers tell what snapshots cost", lambda: self.running_report(cluster)
            )
            self.assertEqual((running["running"], running["faults"]), (True, 1), running)
            cluster.stop_trainers()
            for node in range(PARTS):
                self.check_story(self.history(cluster, node), restored)
            self.check_report(cluster, began, killed, resumed, redone)

            # What an agent has seen survives its own end, in good order and not.
            cluster.stop_agent(1)
            os.kill(cluster.agents[2].pid, signal.SIGKILL)
            cluster.agents[2].wait()
            cluster.start(1, 2)
            cluster.wait_met(2)
            events = self.history(cluster, 2)
            self.check_story(events, restored)
            stop = self.find(events, "stop", node=1)
            self.find(events, "start", stop, node=1)
            self.check_report(cluster, began, killed, resumed, redone)

            repair = next(e for e in events if e["kind"] == "repair" and e.get("count"))
            code, text, error = run("explain", repair["id"], "--agent", cluster.socket(2))
            self.assertEqual(code, OK, error)
            self.assertIn("node 3 is silent", text, "a repair is explained by the death")
            code, text, error = run("explain", "9.99999", "--agent", cluster.socket(2))
            self.assertEqual(code, USAGE, text)
            recent = self.history(cluster, 0, "--since", "1s")
            self.assertLess(len(recent), len(events))


if __name__ == "__main__":
    unittest.main()
