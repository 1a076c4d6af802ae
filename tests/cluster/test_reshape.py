#!/usr/bin/env python3
"""A relaunch in another shape: agents propose it, an operator approves it, and `cairn run
--relaunch` starts the job's command again with other words, without a lost step."""
import json
import re
import unittest

from harness import CAIRN, CONFIG, FAILED, GPT, LOST, OK, PATIENCE, PEER, USAGE
from harness import Built, cairn, run, spawn, text_of, undisturbed, wait_for
from shares_job import LAYER_MS, problem

NODES, SLOW_RANK, SLOW_BY, STEPS = 4, 3, 16, 400
MODEL = (
    "--layers 4 --d-model 16 --heads 2 --context 16 --micro-batch-size 2 --log-every 0 "
    f"--steps {STEPS}"
).split()
# the device of rank 3 is slow until the command starts again: then its node has left
SCRIPT = (
    'case $CAIRN_RELAUNCH in 0) slow="--emulate-slow '
    f'{SLOW_RANK}:{SLOW_BY}@20-{STEPS}";; esac; exec {GPT} "$@" $slow'
)
SHAPE = (
    "--rank {node_rank} --dp {dp} --pp {pp} --peers {peers} --stage-layers {stage_layers} "
    "--micro-batches {micro_batches}"
).split()


class Reshape(Built):
    def agents(self, with_problem=True, spares=()):
        """Spares come behind the NODES; the current plan has none of their devices."""
        cluster = self.cluster(
            nodes=NODES + len(spares),
            spares=spares,
            parity=1,
            options="plan_policy: approve\nverdict_policy: advise",
        )
        plan = problem(room=4)
        for node in spares:
            plan["devices"].append({**plan["devices"][0], "id": node, "node": node})
        cluster.write_problem(plan)
        if with_problem:
            cluster.plan_for(plan)
        return cluster.start()

    def launch(self, cluster, command, *words, nodes=NODES):
        launchers = []
        for node in range(nodes):
            launcher = spawn(
                [CAIRN, "run", "--relaunch", "2", *words, "--agent", cluster.socket(node)]
                + ["--", *command],
                cluster.path(f"run{node}"),
                prefix=("env", "CAIRN_TIMING=1"),
            )
            launchers.append(self.end_with_test(launcher))
        return launchers

    def said(self, cluster):
        return "\n".join(text_of(cluster.path(f"run{node}")) for node in range(cluster.nodes))

    def events(self, cluster, kind):
        lines = [json.loads(line) for line in text_of(cluster.path("events")).splitlines()]
        return [line for line in lines if line["event"] == kind]

    def replan(self, cluster, *words):
        return cairn("replan", *words, "--agent", cluster.socket(1))

    def story(self, cluster, number):
        return cairn("explain", "plan", str(number), "--agent", cluster.socket(2))[1]

    def test_a_slow_node_leaves_and_comes_back(self):
        cluster = self.agents()
        emulated = ["--emulate-layer-ms", str(LAYER_MS), "--events", cluster.path("events")]
        launchers = self.launch(cluster, ["sh", "-c", SCRIPT, "sh", *SHAPE, *MODEL, *emulated])
        wait_for(
            "a relaunch is proposed", lambda: (self.replan(cluster)[1] or {}).get("relaunch"), 180
        )
        answer = self.replan(cluster)[1]
        relaunch, number = answer["relaunch"], answer["relaunch"]["number"]
        self.assertEqual((relaunch["level"], relaunch["nodes"], relaunch["tp"]), (0, [0, 1, 2], 1))
        self.assertEqual(sorted(relaunch["micro_batches"]), [2, 3, 3])
        self.assertEqual(relaunch["layers"], [[4]] * 3)
        self.assertEqual([each["rank"] for each in relaunch["slow"]], [SLOW_RANK])
        self.assertLess(relaunch["step_ms"], relaunch["running_ms"])
        self.assertGreaterEqual(relaunch["price_ms"], 30e3)
        self.assertIn(answer["proposal"]["level"], (1, 2))  # it waits beside the relaunch
        code, shown, _ = run("replan", "--agent", cluster.socket(3))
        self.assertEqual(code, OK)
        self.assertRegex(shown, rf"relaunch   {number} waits for approval")
        self.assertRegex(shown, "to +the command on nodes 0, 1, 2, 1 device per stage")
        self.assertRegex(shown, "price +about [0-9.]+ s")
        code, answer, _ = self.replan(cluster, "--approve", str(number), "--dry-run")
        self.assertEqual((code, answer["dry_run"]), (OK, True))
        code, _, error = self.replan(cluster, "--approve", str(number + 7))
        self.assertEqual(code, USAGE, error)

        code, answer, error = self.replan(cluster, "--approve", str(number))
        self.assertEqual(code, OK, error)
        self.assertIn("3 x 1 stages of 1 device on nodes 0, 1, 2", answer["placement"])
        code, answer, _ = self.replan(cluster, "--approve", str(number))
        self.assertEqual(code, FAILED)
        self.assertIn(f"proposal {number}: approved", answer["error"])
        wait_for(
            "three nodes train",
            lambda: [each["world"] for each in self.events(cluster, "started")][NODES:] == [3] * 3,
            60,
        )
        self.assertIn("stands by", text_of(cluster.path(f"run{SLOW_RANK}")))
        wait_for(
            "it is measured", lambda: (self.story(cluster, number) or {}).get("fate") == "kept", 60
        )
        story = self.story(cluster, number)
        self.assertTrue(story["relaunch"])
        self.assertGreater(story["standstill_ms"], 0)
        self.assertLess(story["after_ms"], story["before_ms"] / 2)
        code, told, _ = run("explain", "plan", str(number), "--agent", cluster.socket(0))
        self.assertEqual(code, OK)
        for said in ("relaunch as 3 x 1 stages", "restored", "measured", "it was kept"):
            self.assertIn(said, told)

        code, answer, error = self.replan(cluster, "--back")
        self.assertEqual(code, OK, error)
        for launcher in launchers:
            self.assertEqual(launcher.wait(timeout=120 * PATIENCE), OK, self.said(cluster))
        worlds = [each["world"] for each in self.events(cluster, "started")]
        self.assertEqual(worlds, [4] * 4 + [3] * 3 + [4] * 4, self.said(cluster))
        # each start goes on from the step that it was ended after
        committed = re.findall(r"step (\d+) is committed", self.said(cluster))
        restored = {each["generation_step"] for each in self.events(cluster, "restored")}
        self.assertEqual(len(committed), 2, self.said(cluster))
        for step, generation in zip(sorted(map(int, committed)), sorted(restored)):
            self.assertGreaterEqual(generation, step)
        (done,) = [each for each in self.events(cluster, "done") if each["rank"] == 0]
        one = [*MODEL, "--dp", "1", "--pp", "1", "--micro-batches", "8"]
        self.assertEqual((done["loss_sha256"], done["state_sha256"]), undisturbed(one))
        print(
            f"{story['before_ms']:.0f} to {story['after_ms']:.0f} ms, stood still for "
            f"{story['standstill_ms'] / 1e3:.1f} s"
        )

    def test_a_spare_takes_the_place_of_a_slow_node(self):
        """The command has no word for it: the same shape, on other nodes."""
        cluster = self.agents(spares=(4,))
        shape = "--rank {node_rank} --dp 2 --pp 2 --peers {peers} --micro-batches 4,4".split()
        emulated = ["--emulate-layer-ms", str(LAYER_MS), "--events", cluster.path("events")]
        command = ["sh", "-c", SCRIPT, "sh", *shape, *MODEL, *emulated]
        launchers = self.launch(cluster, command, nodes=NODES + 1)
        wait_for(
            "a relaunch is proposed", lambda: (self.replan(cluster)[1] or {}).get("relaunch"), 180
        )
        relaunch = self.replan(cluster)[1]["relaunch"]
        self.assertEqual(relaunch["nodes"], [0, 1, 2, 4])
        self.assertEqual((relaunch["micro_batches"], relaunch["layers"]), ([4, 4], [[2, 2]] * 2))
        code, _, error = self.replan(cluster, "--approve", str(relaunch["number"]))
        self.assertEqual(code, OK, error)
        for node, launcher in enumerate(launchers):
            self.assertEqual(launcher.wait(timeout=120 * PATIENCE), OK, self.said(cluster))
        self.assertEqual([each["world"] for each in self.events(cluster, "started")], [4] * 8)
        self.assertIn("stands by", text_of(cluster.path(f"run{SLOW_RANK}")))
        self.assertEqual(
            len({each["generation_step"] for each in self.events(cluster, "restored")}), 1
        )
        (done,) = [each for each in self.events(cluster, "done") if each["rank"] == 0]
        one = [*MODEL, "--dp", "1", "--pp", "1", "--micro-batches", "8"]
        self.assertEqual((done["loss_sha256"], done["state_sha256"]), undisturbed(one))
        story = self.story(cluster, relaunch["number"])
        self.assertLess(story["after_ms"], story["before_ms"] / 2)

    def test_words_without_a_shape(self):
        cluster = self.agents(with_problem=False)
        code, _, error = run(
            *("run", "--relaunch", "1", "--agent", cluster.socket(0), "--", "true", "{pq}")
        )
        self.assertEqual(code, USAGE)
        self.assertRegex(error, r"\{pq\}: unknown placeholder; did you mean \{pp\}\?")
        for launcher in self.launch(cluster, ["true", "{pp}", "{megatron_layout}"]):
            self.assertEqual(launcher.wait(timeout=60 * PATIENCE), CONFIG, self.said(cluster))
        self.assertIn("set `problem`", self.said(cluster))
        code, answer, _ = self.replan(cluster)
        self.assertEqual((code, answer["relaunch"], answer["shape"]), (LOST, None, None))

    def test_words_of_the_current_plan(self):
        cluster = self.agents()
        words = ["{dp}", "{pp}", "{tp}", "{micro_batches}", "{stage_layers}", "{megatron_layout}"]
        told = cluster.path("told")
        script = f'echo "$* $CAIRN_PP $CAIRN_MICRO_BATCHES $CAIRN_MEGATRON_LAYOUT" >> {told}'
        for launcher in self.launch(cluster, ["sh", "-c", script, "sh", *words]):
            self.assertEqual(launcher.wait(timeout=60 * PATIENCE), OK, self.said(cluster))
        self.assertEqual(
            set(text_of(told).splitlines()), {"2 2 1 4,4 2,2 Et*2|t*2L 2 4,4 Et*2|t*2L"}
        )

    def test_the_batch_changes_only_if_it_may(self):
        cluster = self.agents()
        told = cluster.path("told")
        script = f'echo "$* $CAIRN_MICRO_BATCHES" >> {told}'
        command = ["sh", "-c", script, "sh", "{dp}", "{pp}"]  # 8 micro-batches, 4 layers
        three = {"nodes": 3}
        for launcher in self.launch(cluster, command, "--nodes", "3:3", "--wait", "2s", **three):
            self.assertEqual(launcher.wait(timeout=60 * PATIENCE), PEER, self.said(cluster))
        self.assertEqual(text_of(told), "")
        may = ["--nodes", "3:3", "--batch-may-change"]
        for launcher in self.launch(cluster, command, *may, **three):
            self.assertEqual(launcher.wait(timeout=60 * PATIENCE), OK, self.said(cluster))
        self.assertEqual(text_of(told).splitlines(), ["3 1 4,4,4"] * 3)
        self.assertRegex(self.said(cluster), "global batch changes: 12 micro-batches .* of 8")


if __name__ == "__main__":
    unittest.main()
