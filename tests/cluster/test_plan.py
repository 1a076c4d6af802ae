#!/usr/bin/env python3
"""The planner's verbs as a script uses them: files in, JSON out, exit codes; plans are checked by
the rules of docs/PLANNER.md, written again here."""
import json
import os
import random
import re
import unittest
from xml.etree import ElementTree

from harness import LOST, OK, USAGE, Built, pipelines, run

INPUT = 65
TP_COST = {"1": 8.0, "2": 4.0, "4": 2.0, "8": 1.0}


def problem(devices=64, seed=0, layer_bytes=1610612736, layers=80, microbatches=64):
    """Nodes of 8; one device in 15 is slow, one in 100 dead."""
    rng = random.Random(seed)

    def rate():
        chance = rng.random()
        return None if chance < 0.01 else round(rng.uniform(1.1, 5.5), 2) if chance < 0.07 else 1.0

    return {
        "layers": layers,
        "layer_ms": 10.0,
        "embed_layers": 0.0,
        "head_layers": 5.4,
        "microbatches": microbatches,
        "tp": 8,
        "tp_cost": TP_COST,
        "layer_bytes": layer_bytes,
        "activation_bytes": 201326592,
        "reserved_bytes": 4294967296,
        "devices": [
            {"id": i, "node": i // 8, "rate": rate(), "memory_bytes": 85899345920}
            for i in range(devices)
        ],
        "link_gbps": {"intra": 3600, "inter": 400},
        "current": None,
    }


class Planner(Built):
    def setUp(self):
        self.folder = self.new_folder()

    def file(self, name, what):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as out:
            out.write(what if isinstance(what, str) else json.dumps(what))
        return path

    def plan(self, what, *words):
        code, out, err = run(
            "plan", "--problem", self.file("problem.json", what), "-o", "json", *words
        )
        self.assertEqual(code, OK, err)
        return json.loads(out)

    def step_ms(self, what, plan):
        """By the rules, each of them asserted."""
        devices = {d["id"]: d for d in what["devices"]}
        used, given, step = set(), 0, 0.0
        for pipeline in plan["pipelines"]:
            m, stages, at, costs = pipeline["microbatches"], pipeline["stages"], 0, []
            given += m
            self.assertGreaterEqual(m, 1)
            for j, stage in enumerate(stages):
                group, (first, end) = [devices[i] for i in stage["devices"]], stage["layers"]
                self.assertEqual(first, at)
                self.assertGreater(end, first)
                at = end
                self.assertEqual(len({d["node"] for d in group}), 1)
                self.assertFalse(used & {d["id"] for d in group})
                used |= {d["id"] for d in group}
                self.assertTrue(all(d["rate"] is not None for d in group))
                layers, t = end - first, len(group)
                held = (
                    layers
                    * (what["layer_bytes"] + min(len(stages) - j, m) * what["activation_bytes"])
                ) / t + what["reserved_bytes"]
                self.assertLessEqual(held, min(d["memory_bytes"] for d in group))
                vocabulary = what["embed_layers"] * (j == 0) + what["head_layers"] * (
                    j == len(stages) - 1
                )
                costs.append(
                    (layers + vocabulary)
                    * what["layer_ms"]
                    * what["tp_cost"][str(t)]
                    * max(d["rate"] for d in group)
                )
            self.assertEqual(at, what["layers"])
            step = max(step, (m - 1) * max(costs) + sum(costs))
        self.assertEqual(given, what["microbatches"])
        self.assertEqual(sorted(plan["unused"]), sorted(set(devices) - used))
        return step

    def test_a_plan_is_one_by_all_rules(self):
        for seed, layer_bytes in ((0, 1610612736), (1, 6 << 30), (2, 14 << 30)):
            what = problem(seed=seed, layer_bytes=layer_bytes)
            plan = self.plan(what)
            self.assertEqual(plan["schema"], 1)
            self.assertAlmostEqual(
                plan["step_ms"], self.step_ms(what, plan), delta=1e-6 * plan["step_ms"]
            )
            self.assertLessEqual(plan["lower_bound_ms"], plan["step_ms"])
            self.assertAlmostEqual(
                plan["gap"], plan["step_ms"] / plan["lower_bound_ms"] - 1, places=9
            )
            self.assertLess(plan["gap"], 0.1)
            self.assertLessEqual(plan["healthy_ms"], plan["step_ms"])
            self.assertEqual(plan["moved_bytes"], 0)
            code, out, err = run(
                "simulate",
                "--problem",
                os.path.join(self.folder, "problem.json"),
                "--plan",
                self.file("plan.json", plan),
                "-o",
                "json",
            )
            self.assertEqual(code, OK, err)
            self.assertLessEqual(json.loads(out)["simulated_ms"], plan["step_ms"] * (1 + 1e-9))

    def test_the_same_problem_has_the_same_plan(self):
        what = problem(seed=5, layer_bytes=14 << 30)
        first, second = (self.plan(what, "--time-limit", "60000") for _ in range(2))
        self.assertFalse(first["cut_short"] or second["cut_short"])
        self.assertEqual(first["pipelines"], second["pipelines"])

    def test_what_runs_well_goes_on_and_a_move_has_its_price(self):
        what = problem(layer_bytes=14 << 30)
        for device in what["devices"]:
            device["rate"] = 1.0
        healthy = self.plan(what)
        what["current"] = healthy
        kept = self.plan(what)
        self.assertEqual(
            (kept["pipelines"], kept["moved_bytes"], kept["payback_steps"]),
            (healthy["pipelines"], 0, 0),
        )
        what["devices"][5]["rate"] = 2.6
        moved = self.plan(what)
        self.assertLess(moved["step_ms"], moved["current_ms"])
        self.assertGreater(moved["moved_bytes"], 0)
        self.assertGreater(moved["migrate_ms"], 0)
        self.assertGreaterEqual(moved["payback_steps"], 1)
        self.assertAlmostEqual(
            moved["step_ms"], self.step_ms(what, moved), delta=1e-6 * moved["step_ms"]
        )

    def test_the_picture_names_who_is_slow_left_out_and_dead(self):
        what = problem(16, layer_bytes=6 << 30)
        for device in what["devices"]:
            # 5: a layer would take longer than any step
            device["rate"] = {3: 1.2, 5: 5000.0, 9: None}.get(device["id"], 1.0)
        svg = os.path.join(self.folder, "plan.svg")
        code, out, err = run(
            "plan", "--problem", self.file("problem.json", what), "--explain", "--svg", svg
        )
        self.assertEqual(code, OK, err)
        self.assertRegex(out, r"(?m)^left out:.*\b5 \(rate 5e\+03\)")
        self.assertRegex(out, r"(?m)^dead: 9$")
        self.assertIn("to fill and drain", out)
        with open(svg, encoding="utf-8") as drawing:
            drawn = drawing.read()
        boxes = {
            int(e.text): e.get("fill")
            for e in ElementTree.fromstring(drawn)
            if e.tag.endswith("text") and (e.text or "").isdigit()
        }
        self.assertEqual((boxes[5], boxes[9]), ("black", "white"))

    def trace(self, name, compute_ms, steps=40, transfer_ns=lambda op: 100000, more_lines=()):
        """Two pipelines of four stages, rank = pipeline * 4 + stage; each rank computes so long for
        each of four micro-batches."""
        rng = random.Random(7)
        lines = [
            {
                "cairn_trace": 1,
                "world": 8,
                "nodes": [0] * 4 + [1] * 4,
                "comms": {
                    "pp0": [0, 1, 2, 3],
                    "pp1": [4, 5, 6, 7],
                    **{f"dp{i}": [i, i + 4] for i in range(4)},
                },
            }
        ]
        for rank in range(8):
            now, stage = rank * 1000000007, rank % 4
            pp, dp = f"pp{rank // 4}", f"dp{stage}"

            def operation(op, comm, step, **more):
                nonlocal now
                end = now + transfer_ns(op)
                lines.append(
                    {
                        "rank": rank,
                        "comm": comm,
                        "op": op,
                        "bytes": 1 << 20,
                        "step": step,
                        "start_ns": now,
                        "end_ns": end,
                        **more,
                    }
                )
                now = end

            for step in range(steps):
                for _ in range(4):
                    if stage > 0:
                        operation("recv", pp, step, peer=rank - 1)
                    now += int(compute_ms[rank] * 1e6 * rng.uniform(0.99, 1.01))
                    if stage < 3:
                        operation("send", pp, step, peer=rank + 1)
                operation("all_reduce", dp, step, seq=step)
        return self.file(name, "\n".join(map(json.dumps, [*lines, *more_lines])) + "\n")

    def test_a_trace_gives_times_and_rates(self):
        what = problem(8, layers=20, microbatches=8)
        what.update(
            {
                "layer_ms": 1.0,
                "head_layers": 0.0,
                "tp": 1,
                "tp_cost": {"1": 1.0},
                "current": pipelines([5] * 4, [4, 4]),
            }
        )
        for device in what["devices"]:
            device["rate"] = 1.0
        layers = [5.5, 5, 5, 7] * 2
        trace = self.trace(
            "trace.jsonl", [layers[r] * 3.0 * (1.8 if r == 5 else 1) for r in range(8)]
        )
        code, out, err = run(
            "profile", "--problem", self.file("problem.json", what), "--trace", trace
        )
        self.assertEqual(code, OK, err)
        measured = json.loads(out)
        self.assertAlmostEqual(measured["layer_ms"], 3.0, delta=0.06)
        self.assertAlmostEqual(measured["embed_layers"], 0.5, delta=0.2)
        self.assertAlmostEqual(measured["head_layers"], 2.0, delta=0.2)
        self.assertEqual([d["id"] for d in measured["devices"] if d["rate"] != 1.0], [5])
        self.assertAlmostEqual(measured["devices"][5]["rate"], 1.8, delta=0.05)
        plan = self.plan(measured)  # the answer is a problem
        self.assertLess(plan["step_ms"], plan["current_ms"])
        del what["current"]
        code, out, err = run(
            "profile", "--problem", self.file("problem.json", what), "--trace", trace
        )
        self.assertEqual((code, out), (INPUT, ""))
        self.assertIn('no "current"', err)

    def test_a_trace_gives_links_and_memory(self):
        layers = [3, 7, 5, 5]
        what = problem(8, layers=20, microbatches=8)
        what.update(
            {
                "layer_ms": 1.0,
                "head_layers": 0.0,
                "tp": 1,
                "tp_cost": {"1": 1.0},
                "current": pipelines(layers, [4, 4]),
            }
        )
        for device in what["devices"]:
            device.update({"rate": 1.0, "node": device["id"] // 4})
        times = [layers[r % 4] * 3.0 for r in range(8)]
        # the last to arrive waits least
        transfer_ns = {"send": 50000, "recv": 70000, "all_reduce": 200000}.__getitem__
        held = [
            {
                "rank": r,
                "memory_bytes": layers[r % 4] * (1 << 30)
                + min(4 - r % 4, 4) * layers[r % 4] * (300 << 20)
                + (2 << 30),
            }
            for r in range(8)
        ]
        trace = self.trace("trace.jsonl", times, transfer_ns=transfer_ns, more_lines=held)
        code, out, err = run(
            "profile", "--problem", self.file("problem.json", what), "--trace", trace
        )
        self.assertEqual(code, OK, err)
        measured = json.loads(out)
        self.assertAlmostEqual(measured["layer_ms"], 3.0, delta=0.06)
        self.assertAlmostEqual(measured["link_gbps"]["intra"], (8 << 20) / 50000, delta=0.1)
        # a ring of two: each gets what it gives
        self.assertAlmostEqual(measured["link_gbps"]["inter"], (8 << 20) / 200000, delta=0.1)
        for key, expected in (
            ("layer_bytes", 1 << 30),
            ("activation_bytes", 300 << 20),
            ("reserved_bytes", 2 << 30),
        ):
            self.assertAlmostEqual(measured[key] / expected, 1, delta=0.001)
        self.assertIn("by 128 transfers of all_reduce", err)
        self.assertRegex(err, "not determined: slow_links")
        plan = self.plan(measured)
        self.assertAlmostEqual(
            plan["step_ms"], self.step_ms(measured, plan), delta=1e-6 * plan["step_ms"]
        )
        code, out, err = run(
            "profile",
            "--problem",
            self.file("problem.json", what),
            "--trace",
            self.trace("bare.jsonl", times),
        )
        self.assertEqual(code, OK, err)
        self.assertIn("not measured: memory", err)
        self.assertEqual(json.loads(out)["layer_bytes"], what["layer_bytes"])
        with open(os.path.join(self.folder, "bare.jsonl"), encoding="utf-8") as bare:
            trace = self.file("unsized.jsonl", bare.read().replace('"bytes": 1048576, ', ""))
        for who in ("it is what the problem said", "the problem does not say it either"):
            code, out, err = run(
                "profile", "--problem", self.file("problem.json", what), "--trace", trace
            )
            self.assertEqual(code, OK, err)
            self.assertEqual(json.loads(out).get("link_gbps"), what.pop("link_gbps", None))
            self.assertEqual(len(re.findall(f"not determined: link_gbps.*: {who}", err)), 2, err)

    def test_memory_of_a_trace_that_cannot_be(self):
        what = problem(8)
        for lines, why in (
            ([{"rank": 8, "memory_bytes": 5}], "out of range"),
            ([{"rank": 0, "memory_bytes": -5}], "whole number"),
            ([{"rank": 0, "memory_bytes": 5}] * 2, "given before"),
        ):
            trace = self.trace("trace.jsonl", [1.0] * 8, steps=1, more_lines=lines)
            for words in (("profile", "--problem", self.file("problem.json", what)), ("detect",)):
                code, out, err = run(*words, "--trace", trace)
                self.assertEqual((code, out), (INPUT, ""))
                with open(trace, encoding="utf-8") as file:
                    self.assertIn(f"trace.jsonl:{len(file.readlines())}:", err)
                self.assertIn(why, err)
        code, _, err = run(
            "detect",
            "--trace",
            self.trace(
                "good.jsonl", [1.0] * 8, steps=1, more_lines=[{"rank": 7, "memory_bytes": 5}]
            ),
        )
        self.assertEqual(code, OK, err)

    def test_nothing_fits(self):
        for change, constraint in (
            ({"layer_bytes": 200 << 30}, "memory"),
            ({"devices": []}, "devices"),
            ({"tp_cost": {"16": 1.0}}, "groups"),
        ):
            code, out, err = run(
                "plan",
                "--problem",
                self.file("problem.json", {**problem(), **change}),
                "-o",
                "json",
            )
            self.assertEqual(code, LOST, err)
            infeasible = json.loads(out)["infeasible"]
            self.assertEqual(infeasible["constraint"], constraint)
            self.assertEqual(infeasible["short_by_bytes"] > 0, constraint == "memory")
            self.assertIn(infeasible["would_fit"], err)
        code, out, err = run(
            "plan",
            "--problem",
            self.file("problem.json", {**problem(), "layer_bytes": 1 << 50}),
            "-o",
            "json",
        )
        self.assertEqual(code, LOST, err)
        self.assertIsNone(json.loads(out)["infeasible"]["short_by_bytes"])
        self.assertIn("no memory that devices have would do", err)

    def test_bad_input(self):
        for text in (
            "",
            "{",
            "[]",
            json.dumps({**problem(8), "layers": 0}),
            json.dumps({**problem(8), "colour": 1}),
            json.dumps({**problem(8), "layer_ms": float("nan")}),
        ):
            for verb in ("plan", "assign"):
                code, out, err = run(verb, "--problem", self.file("bad.json", text))
                self.assertEqual((code, out), (INPUT, ""), text[:60])
                self.assertIn("; ", err)
        other = self.file(
            "plan.json",
            {"pipelines": [{"microbatches": 64, "stages": [{"devices": [99], "layers": [0, 80]}]}]},
        )
        code, out, err = run(
            "simulate", "--problem", self.file("problem.json", problem(8)), "--plan", other
        )
        self.assertEqual((code, out), (INPUT, ""))
        self.assertIn("no device 99", err)
        for words in (
            ("plan",),
            ("simulate", "--problem", "x"),
            ("assign",),
            ("plan", "--problem", "x", "--time-limit", "0"),
        ):
            self.assertEqual(run(*words)[0], USAGE, words)

    def test_sequences(self):
        what = {
            "sequences": [512, 131072, 4096] * 20,
            "cost": {"a": 5e-6, "b": 0.18, "c": 0.0},
            "pipelines": [
                {"time_scale": 1.0, "stages": 4, "max_tokens": 262144},
                {"time_scale": 2.0, "stages": 2, "max_tokens": 8192},
            ],
        }
        code, out, err = run("assign", "--problem", self.file("sequences.json", what), "-o", "json")
        self.assertEqual(code, OK, err)
        answer = json.loads(out)
        worst = 0.0
        for index, pipeline in enumerate(what["pipelines"]):
            own = [s for s, to in zip(what["sequences"], answer["assignment"]) if to == index]
            self.assertLessEqual(max(own, default=0), pipeline["max_tokens"])
            costs = [(5e-6 * s * s + 0.18 * s) * pipeline["time_scale"] for s in own]
            worst = max(worst, sum(costs) + (pipeline["stages"] - 1) * max(costs, default=0))
        self.assertAlmostEqual(answer["step_ms"], worst, delta=1e-6 * worst)
        self.assertLessEqual(answer["lower_bound_ms"], worst)
        what["sequences"].append(300000)
        code, out, err = run("assign", "--problem", self.file("sequences.json", what))
        self.assertEqual((code, out), (LOST, ""))
        self.assertIn("300000 tokens", err)
        what["microbatch_tokens"] = 300000  # more than any pipeline takes: no sequence is at fault
        code, out, err = run("assign", "--problem", self.file("sequences.json", what))
        self.assertEqual((code, out), (INPUT, ""))
        self.assertIn("microbatch_tokens is 300000", err)
        self.assertNotIn("a sequence has no place", err)


if __name__ == "__main__":
    unittest.main()
