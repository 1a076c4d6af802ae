#!/usr/bin/env python3
"""The trace of a running job: taken through any agent, equal to the saved file for every verb that
reads traces, and honest about what is missing."""
import json
import os
import signal
import subprocess
import unittest

from harness import (
    AGAIN,
    CAIRN,
    INPUT,
    OK,
    PATIENCE,
    PEER,
    USAGE,
    WARN,
    Built,
    cairn,
    problem,
    run,
    wait_for,
)

NODES, SLOW = 3, 2
STEP_US = 20000
STEPS = 30


class LiveTrace(Built):
    def setUp(self):
        self.folder = self.new_folder()

    def trace(self, cluster, *words, node=0):
        """(exit code, header, lines, stderr) of `cairn trace --agent`."""
        code, text, talk = run("trace", "--agent", cluster.socket(node), *words)
        lines = [json.loads(line) for line in text.splitlines()]
        return code, lines[0] if lines else None, lines[1:], talk

    def test_a_job_and_its_file_agree(self):
        cluster = self.cluster(nodes=NODES, parity=1)
        cluster.start()
        code, _, _, talk = self.trace(cluster)
        self.assertEqual((code, "CAIRN_TIMING=1" in talk), (AGAIN, True), talk)
        cluster.train(timing=True, step_us=STEP_US, elements=2000)
        wait_for("it trains, and takes signals", lambda: cluster.trainers[SLOW].step() > 0)
        cluster.trainers[SLOW].process.send_signal(signal.SIGUSR1)
        begun = cluster.trainers[SLOW].step()
        wait_for("steps", lambda: cluster.trainers[SLOW].step() > begun + STEPS + 2)
        for trainer in cluster.trainers:
            os.kill(trainer.process.pid, signal.SIGSTOP)
        try:
            self.stopped(cluster)
        finally:
            for trainer in cluster.trainers:
                os.kill(trainer.process.pid, signal.SIGCONT)

    def stopped(self, cluster):
        """Nothing moves any more once the agents have read all rings."""
        path = os.path.join(self.folder, "t.jsonl")
        agent = ("--agent", cluster.socket(2), "--steps", str(STEPS))

        words = ("--problem", cluster.write_problem(problem([6], [8] * NODES, layer_ms=5)))
        verbs = {"heatmap": (), "detect": (), "profile": words, "plan": words}

        def agree():
            with open(path, "w", encoding="utf-8") as file:
                code = subprocess.call(
                    [CAIRN, "trace", "--agent", cluster.socket(1), "--steps", str(STEPS)],
                    stdout=file,
                    timeout=60 * PATIENCE,
                )
            self.assertEqual(code, OK)
            answers = {}
            for verb, more in verbs.items():
                code, live, talk = cairn(verb, *more, *agent)
                saved_code, saved, _ = cairn(verb, *more, "--trace", path)
                for answer in (live or {}, saved or {}):
                    answer.pop("plan_ms", None)  # how long the planner took
                if (code, live) != (saved_code, saved):
                    return None
                answers[verb] = (code, live, talk)
            return answers

        answers = wait_for("the verbs say the same of the job and of its file", agree)
        code, live, talk = answers["heatmap"]
        self.assertEqual(code, OK, talk)
        compute = live["compute_ms"][0]
        self.assertGreater(compute[SLOW], 2 * max(compute[:SLOW]), live)
        self.assertEqual(live["pattern"], "one hot cell", live)
        _, header, lines, _ = self.trace(cluster, "--steps", str(STEPS))
        self.assertEqual((header["world"], header["nodes"]), (NODES, list(range(NODES))))
        (name,) = header["comms"]
        self.assertEqual(header["comms"][name], list(range(NODES)))
        operations = [each for each in lines if "op" in each]
        steps = sorted({each["step"] for each in operations})
        self.assertEqual(len(steps), STEPS)
        self.assertEqual(steps[-1] - steps[0], STEPS - 1)
        for rank in range(NODES):  # one barrier a step, as the trainer times it
            ended = [each for each in operations if each["rank"] == rank and "end_ns" in each]
            self.assertIn(len(ended), (STEPS - 1, STEPS))
            self.assertEqual({each["op"] for each in ended}, {"barrier"})
            self.assertEqual([each["seq"] for each in ended], [each["step"] for each in ended])
        self.assertEqual(sorted(e["rank"] for e in lines if "now_ns" in e), list(range(NODES)))

        self.assertEqual(answers["detect"][0], OK)
        for verb in ("profile", "plan"):
            code, live, talk = answers[verb]
            if code == INPUT:  # a busy machine makes ranks too different for any fit
                self.assertIn("no times were found", talk)
                continue
            self.assertEqual(code, OK, talk)
            if verb == "profile":
                rates = {each["id"]: each["rate"] for each in live["devices"]}
                self.assertGreater(rates[SLOW], 2, live)
        self.assertEqual(run("trace", "--trace", path, "--steps", "2")[0], OK)
        for words in (("--steps", "0"), ("--steps", "1001"), ("--trace", path)):
            self.assertEqual(self.trace(cluster, *words)[0], USAGE, words)

        cluster.kill_agent(0)

        def dead():
            nodes = cluster.status(1).get("nodes")
            return nodes and not nodes[0]["alive"]

        wait_for("the others know that it is dead", dead)
        code, header, lines, talk = self.trace(cluster, node=1)
        self.assertEqual((code, {each["rank"] for each in lines}), (WARN, {1, 2}), talk)
        self.assertIn("1 of 3 ranks are not in the trace", talk)
        self.assertEqual(self.trace(cluster)[0], PEER)

    def test_an_agent_that_does_not_answer(self):
        """As one does whose version knows no traces: it lives, and is named after some seconds."""
        cluster = self.cluster(nodes=2, parity=1, dead_after_ms=60000)
        cluster.start()
        cluster.wait_met(0)
        os.kill(cluster.agents[1].pid, signal.SIGSTOP)
        code, _, _, talk = self.trace(cluster)
        self.assertEqual(code, AGAIN, talk)
        self.assertRegex(talk, r"1 of 2 agents \(node 1\) did not answer: .* older")


if __name__ == "__main__":
    unittest.main()
