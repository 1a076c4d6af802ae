#!/usr/bin/env python3
"""A rank that becomes slow, is stopped or is gone under a running job is named in `cairn status`,
and no more when it is well."""
import json
import os
import signal
import subprocess
import time
import unittest

from harness import (
    CAIRN,
    CRITICAL,
    OK,
    PATIENCE,
    USAGE,
    WARN,
    Built,
    problem,
    cairn,
    say,
    text_of,
    wait_for,
)

NODES = 4
STEP_US = 40000
HANGS = ("hang_compute", "hang_link", "crash")
# a rank that is made slow takes four times as long; what a busy machine adds to all steps makes
# that less
FAULT_RATE_MIN = 2.0
SHORT_S = 5
HANG_S = 8  # after so long a rank that stands still is reported to hang


class Detection(Built):
    def job(self, options="", planned=False):
        """A job of four ranks that trains, with what is normal for it learned."""
        cluster = self.cluster(nodes=NODES, parity=1, options=options)
        if planned:
            cluster.plan_for(problem([8], [8] * NODES, layer_ms=5))
        cluster.start()
        cluster.train(timing=True, step_us=STEP_US, elements=2000)
        wait_for("the ranks' normal is known", lambda: self.seen(cluster).get("calibrated"), 60)
        seen = self.seen(cluster)
        self.assertEqual((seen["world"], seen["ranks_seen"], seen["analyst"]), (NODES, NODES, 0))
        self.assertEqual(self.open(cluster), [])
        return cluster

    def status(self, cluster, node=0):
        return cairn("status", "--agent", cluster.socket(node))

    def shown(self, cluster, *words):
        """The status as text."""
        return subprocess.run(
            [CAIRN, "status", "--agent", cluster.socket(0), *words],
            stdout=subprocess.PIPE,
            text=True,
            timeout=30 * PATIENCE,
            check=False,
        ).stdout

    def seen(self, cluster, node=0):
        """The status' "detection"."""
        _, answer, _ = self.status(cluster, node)
        return (answer or {}).get("detection", {})

    def open(self, cluster, node=0):
        """Open verdicts on ranks that hang or are slow by what the tests do to them. A machine with
        much to do makes ranks and transfers slower, and pauses them at random, which is rightly
        said as well."""
        return [
            each
            for each in self.seen(cluster, node).get("verdicts", [])
            if each["open"]
            and (
                each["kind"] in HANGS
                or each["kind"] == "slow_compute"
                and each["rate"] >= FAULT_RATE_MIN
            )
        ]

    def advice(self, cluster, node=3):
        """What any node says about the plan."""
        _, answer, _ = self.status(cluster, node)
        return ((answer or {}).get("replan") or {}).get("advice")

    def well_again(self, cluster, node=0):
        wait_for("no verdict is open", lambda: not self.open(cluster, node), 30)

    def explained(self, cluster, number, *parts):
        code, answer, talk = cairn("explain", str(number), "--agent", cluster.socket(3))
        self.assertIn(code, (OK, WARN), talk)
        story = "\n".join(answer["story"])
        for part in parts:
            self.assertIn(part, story)

    def advised(self, cluster, number):
        """The slow rank's pipeline should get fewer micro-batches, which moves nothing."""
        advice = wait_for("advice about the plan", lambda: self.advice(cluster), 20)
        self.assertEqual(
            (advice["action"], advice["cost_ms"], advice["payback_steps"]),
            ("microbatches", 0, 0),
            advice,
        )
        self.assertLess(advice["step_ms"], 0.8 * advice["current_ms"])
        self.assertIn(
            "plan       advice: give slow pipelines fewer micro-batches: steps of ",
            self.shown(cluster),
        )
        self.assertIn(
            'cairn_replan_advised{job="cluster",action="microbatches"} 1\n',
            self.shown(cluster, "-o", "metrics"),
        )
        self.assertIn("replan: advice: give slow pipelines fewer micro-batches", cluster.log(0))
        self.assertIn("; enforce_command is not run for plans: do it yourself", cluster.log(0))
        self.explained(
            cluster,
            number,
            "give slow pipelines fewer micro-batches",
            "enforce_command is not run for plans: do it yourself.",
        )
        code, plan, talk = cairn("plan", "--problem", os.path.join(cluster.state(0), "replan.json"))
        self.assertEqual(code, OK, talk)
        # it has the rates that the advice is for
        self.assertAlmostEqual(plan["current_ms"] / advice["current_ms"], 1, 6)

    def command_file(self, then="echo drained"):
        """A command of the operator's, and the file that it adds a line to whenever it is run."""
        folder = self.new_folder()
        command, runs = os.path.join(folder, "drain"), os.path.join(folder, "runs")
        with open(command, "w") as file:
            file.write(
                '#!/bin/sh\nprintf "%s ranks %s nodes %s %s\\n" "$1 $CAIRN_VERDICT" '
                f'"$CAIRN_RANKS" "$CAIRN_NODES" "$(cat)" >>{runs}\n'
                f"{then}\n"
            )
        os.chmod(command, 0o700)
        return command, runs

    def enforced(self, cluster, verdict, runs):
        """The operator's command was run, once, and any node says how it ended. (On a busy machine
        other ranks may have their own.)"""
        number = verdict["verdict"]

        def ended():
            return [
                each
                for each in self.seen(cluster, 3).get("verdicts", [])
                if each["verdict"] == number
                and (each["enforcement"] or {}).get("result") == "succeeded"
            ]

        self.assertEqual(
            wait_for("another agent tells how it ended", ended)[0]["enforcement"]["node"], 0
        )
        with open(runs) as file:
            lines = [line for line in file if line.startswith(f"drain {number} ")]
        self.assertEqual(len(lines), 1, lines)
        ranks, given = lines[0].split(" ranks ", 1)[1].split(" {", 1)
        self.assertEqual(ranks, "2 nodes 2")
        self.assertEqual(
            [json.loads("{" + given)[key] for key in ("verdict", "kind", "ranks")],
            [number, "slow_compute", [2]],
        )
        self.assertIn(f"enforce: verdict={number} says: drained", cluster.log(0))
        self.assertRegex(
            self.shown(cluster, "-o", "metrics"),
            r'cairn_enforcements_total{job="cluster",result="succeeded"} [1-9]',
        )
        self.explained(
            cluster,
            number,
            "the operator's command was started for it: enforce_command succeeded on node 0.",
        )

    def test_slow_rank(self):
        command, runs = self.command_file()
        cluster = self.job(
            f"verdict_policy: enforce\nexchanges_per_day: 100000\nenforce_command: [{command}, "
            "drain]",
            planned=True,
        )
        rank = cluster.trainers[2]
        at_step = rank.step()
        rank.process.send_signal(signal.SIGUSR1)
        (verdict,) = wait_for(
            "a verdict, with all that wait",
            lambda: [each for each in self.open(cluster) if each["victim_count"] == NODES - 1],
            20,
        )
        self.assertEqual((verdict["kind"], verdict["ranks"]), ("slow_compute", [2]), verdict)
        say(
            f"slow from step {at_step}: since {verdict['since_step']}, known at "
            f"{verdict['detected_step']}, rate {verdict['rate']:.2f}"
        )
        self.assertGreaterEqual(verdict["detected_step"], at_step)
        self.assertIn("advice", verdict)

        def told():  # any agent knows it
            code, answer, _ = self.status(cluster, 3)
            return code == WARN and [
                each
                for each in answer["checks"]
                if each["code"] == "slow-rank" and "rank 2 " in each["what"]
            ]

        self.assertEqual(len(wait_for("another agent tells it", told)), 1)
        self.assertIn("rank 2 computes", self.shown(cluster))
        self.assertRegex(
            self.shown(cluster, "-o", "metrics"),
            r'cairn_verdicts_open{job="cluster",kind="slow_compute"} [1-4]\n',
        )
        self.assertIn(f"detect: verdict={verdict['verdict']} opened: rank 2", cluster.log(0))
        self.explained(
            cluster,
            verdict["verdict"],
            "rank 2 computes",
            "It lasts, and 3 ranks wait for it.",
            "Evidence (computation, waiting): ",
            "What to do: look for other load",
        )
        self.enforced(cluster, verdict, runs)
        self.advised(cluster, verdict["verdict"])
        rank.process.send_signal(signal.SIGUSR2)
        self.well_again(cluster)
        wait_for("the advice is withdrawn", lambda: not self.advice(cluster), 30)
        self.explained(
            cluster,
            verdict["verdict"],
            "rank 2 computes",
            "ago it was closed: it is over, with step ",
            "What to do: nothing any more.",
        )
        code, _, talk = cairn("explain", "99", "--agent", cluster.socket(0))
        self.assertEqual((code, "no verdict 99" in talk), (USAGE, True), talk)
        closed = self.seen(cluster)["verdicts"]
        self.assertIn(
            (verdict["verdict"], False), [(each["verdict"], each["open"]) for each in closed]
        )
        self.assertIn(f"detect: verdict={verdict['verdict']} closed", cluster.log(0))

        def told():
            events = cluster.events("verdict", node=3)
            return [e for e in events if e["subject"] == verdict["verdict"]]

        wait_for("the history has its end", lambda: told()[-1]["change"] == 3)
        opened = told()[0]
        self.assertEqual((opened["change"], opened["rate"] > 1), (1, True), opened)
        self.assertIn("rank 2 computes", opened["why"])

    def test_advice_is_kept(self):
        """The agent that gave it dies, and says it again when it is back, while the job stands."""
        cluster = self.job("verdict_policy: advise", planned=True)
        cluster.trainers[2].process.send_signal(signal.SIGUSR1)
        wait_for("advice about the plan", lambda: self.advice(cluster), 20)
        for trainer in cluster.trainers:
            os.kill(trainer.process.pid, signal.SIGSTOP)
        try:
            given = wait_for("it stands", lambda: self.advice(cluster))["given_wall_ns"]
            cluster.kill_agent(0)
            cluster.start(0)
            again = wait_for(
                "it is given again",
                lambda: self.seen(cluster).get("analyst") == 0 and self.advice(cluster, 0),
            )
            self.assertEqual(again["given_wall_ns"], given)
        finally:
            for trainer in cluster.trainers:
                os.kill(trainer.process.pid, signal.SIGCONT)

    def test_stopped_rank(self):
        cluster = self.job()
        stopped = cluster.trainers[1].process.pid
        began = time.monotonic()
        os.kill(stopped, signal.SIGSTOP)
        try:
            (verdict,) = wait_for(
                "a verdict of both kinds of evidence",
                lambda: [each for each in self.open(cluster) if len(each["evidence_kinds"]) > 1],
                20,
            )
            took = time.monotonic() - began
            say(
                f"stopped: {verdict['kind']} of rank {verdict['ranks']} after {took:.1f} s: "
                f"{verdict['evidence']}"
            )
            self.assertEqual((verdict["kind"], verdict["ranks"]), ("hang_compute", [1]), verdict)
            self.assertEqual(verdict["evidence_kinds"], ["progress", "process"])
            self.assertNotIn("advice", verdict)  # the policy is to observe
            self.explained(
                cluster,
                verdict["verdict"],
                "What to do: nothing is proposed, since the agents only observe",
            )
            self.assertEqual(self.status(cluster)[0], CRITICAL)
        finally:
            os.kill(stopped, signal.SIGCONT)
        self.well_again(cluster)
        begun = cluster.trainers[1].step()
        wait_for("training goes on", lambda: cluster.trainers[1].step() > begun + 5)

    def test_a_command_whose_agent_dies(self):
        """The next analyst has been told that it runs, reports that nobody knows how it ended, and
        does not run it again."""
        command, runs = self.command_file(then="echo $$ >$0.pid; exec sleep 1000")
        cluster = self.job(f"verdict_policy: enforce\nenforce_command: [{command}, drain]")
        stopped = cluster.trainers[2].process.pid
        os.kill(stopped, signal.SIGSTOP)

        def enforced(node, result):
            return [
                each
                for each in self.seen(cluster, node).get("verdicts", [])
                if each["ranks"] == [2] and (each["enforcement"] or {}).get("result") == result
            ]

        number = wait_for("another agent knows that it runs", lambda: enforced(3, "running"), 30)[
            0
        ]["verdict"]
        pid = int(wait_for("it runs", lambda: text_of(command + ".pid").strip()))
        cluster.kill_agent(0)
        try:
            wait_for("another agent analyses, and does not know", lambda: enforced(3, "unknown"))
            self.assertEqual(enforced(3, "unknown")[0]["verdict"], number)
            wait_for(
                "it has said it itself",
                lambda: self.seen(cluster, 1).get("analyst") == 1 and enforced(1, "unknown"),
            )
            self.explained(
                cluster,
                number,
                "unknown: the agent of node 0 ended before it reported the result; it is not run "
                "again",
            )
            cluster.start(0)
            wait_for("it has learned it", lambda: enforced(0, "unknown"))
            self.assertEqual(
                [line.split()[1] for line in text_of(runs).splitlines()].count(str(number)), 1
            )
        finally:
            os.kill(pid, signal.SIGKILL)
            os.kill(stopped, signal.SIGCONT)

    def test_short_pause(self):
        """Five seconds are not a hang, and leave no verdict."""
        cluster = self.job()
        for _ in range(5):
            known = {each["verdict"] for each in self.seen(cluster)["verdicts"]}
            began = time.monotonic()
            os.kill(cluster.trainers[3].process.pid, signal.SIGSTOP)
            try:
                time.sleep(SHORT_S)
            finally:
                os.kill(cluster.trainers[3].process.pid, signal.SIGCONT)
            begun = cluster.trainers[3].step()
            wait_for("training goes on", lambda: cluster.trainers[3].step() > begun)
            took = time.monotonic() - began
            wait_for("training goes on", lambda: cluster.trainers[3].step() > begun + 40)
            if took < HANG_S - 1:  # else the machine has made it a long pause
                new = [
                    each for each in self.seen(cluster)["verdicts"] if each["verdict"] not in known
                ]
                self.assertEqual([each["what"] for each in new if "hang" in each["kind"]], [])
                break
        else:
            self.skipTest(f"this machine makes more than {HANG_S} s of {SHORT_S} s each time")

    def test_gone_rank(self):
        """A rank that is killed is named as gone; trainers that start again end the verdict."""
        cluster = self.job()
        cluster.trainers[0].kill()
        (verdict,) = wait_for(
            "a verdict", lambda: [each for each in self.open(cluster) if each["kind"] in HANGS], 20
        )
        self.assertEqual((verdict["kind"], verdict["ranks"]), ("crash", [0]), verdict)
        cluster.train(timing=True, step_us=STEP_US, elements=2000, resume=True)
        self.well_again(cluster)
        (closed,) = [
            each for each in self.seen(cluster)["verdicts"] if each["verdict"] == verdict["verdict"]
        ]
        say(f"closed: {closed['closed_why']}")
        self.assertFalse(closed["open"])

    def test_analyst_dies(self):
        """The next agent goes on with the verdicts that the dead one has said, and ends them when
        the rank is well."""
        cluster = self.job()
        cluster.trainers[2].process.send_signal(signal.SIGUSR1)
        (verdict,) = wait_for(
            "a verdict",
            lambda: [each for each in self.open(cluster, 1) if each["ranks"] == [2]],
            20,
        )
        cluster.kill_agent(0)
        wait_for("another agent analyses", lambda: self.seen(cluster, 1).get("analyst") == 1, 20)
        self.assertIn(
            (verdict["verdict"], [2]),
            [(each["verdict"], each["ranks"]) for each in self.seen(cluster, 1)["verdicts"]],
        )
        cluster.trainers[2].process.send_signal(signal.SIGUSR2)
        self.well_again(cluster, 1)
        # it has the ledger from its catalog and from the others, and analyses again
        cluster.start(0)
        wait_for(
            "the first agent analyses again", lambda: self.seen(cluster).get("analyst") == 0, 20
        )
        wait_for("all ranks are seen", lambda: self.seen(cluster).get("ranks_seen") == NODES, 30)
        self.assertIn(
            verdict["verdict"], [each["verdict"] for each in self.seen(cluster)["verdicts"]]
        )


if __name__ == "__main__":
    unittest.main()
