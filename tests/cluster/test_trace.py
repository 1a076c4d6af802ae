#!/usr/bin/env python3
"""The verbs on traces of timing, and on counts that others keep, as a script uses them: files in,
JSON out, exit codes."""
import json
import os
import random
import socket
import struct
import threading
import unittest
import zlib
from typing import Any, Dict, List, Tuple

from harness import OK, USAGE, Built, run

INPUT = 65
STAGES, PIPELINES, STEPS = 2, 4, 60
SLOW, SINCE, FACTOR = 5, 20, 1.6
MS = 1_000_000
Event = Dict[str, Any]


def header() -> str:
    world = STAGES * PIPELINES
    comms = {f"pp{i}": [2 * i, 2 * i + 1] for i in range(PIPELINES)}
    comms.update({f"dp{s}": [2 * i + s for i in range(PIPELINES)] for s in range(STAGES)})
    comms["all0"] = list(range(world))
    return json.dumps(
        {"cairn_trace": 1, "world": world, "nodes": [r // 2 for r in range(world)], "comms": comms}
    )


def trace(slow: bool = True, named: bool = True, seed: int = 1) -> str:
    """Stage 0 computes 20 ms and sends, stage 1 computes 20 ms; each stage's ranks meet, then all.
    Clocks are seconds apart."""
    rng = random.Random(seed)
    now = 0.0
    lines = [header()]
    ahead = [rng.randrange(1, 20) * 1000 * MS for _ in range(STAGES * PIPELINES)]

    def write(
        rank: int, comm: str, op: str, step: int, start: float, end: float, **more: int
    ) -> None:
        lines.append(
            json.dumps(
                {
                    "rank": rank,
                    "comm": comm,
                    "op": op,
                    "bytes": 1 << 20,
                    **({"step": step} if named else {}),
                    "start_ns": int(start * MS) + ahead[rank],
                    "end_ns": int(end * MS) + ahead[rank],
                    **more,
                }
            )
        )

    for step in range(STEPS):
        ready = []
        for i in range(PIPELINES):
            first, second = 2 * i, 2 * i + 1
            times = [
                20
                * rng.uniform(0.99, 1.01)
                * (FACTOR if slow and rank == SLOW and step >= SINCE else 1)
                for rank in (first, second)
            ]
            sent = now + times[0] + 1
            write(first, f"pp{i}", "send", step, now + times[0], sent, peer=second)
            write(second, f"pp{i}", "recv", step, now, sent, peer=first)
            ready += [sent, sent + times[1]]
        ends = [max(ready[s::2]) + 3 for s in range(STAGES)]
        for rank, start in enumerate(ready):
            write(rank, f"dp{rank % 2}", "all_reduce", step, start, ends[rank % 2], seq=step)
        for rank in range(STAGES * PIPELINES):
            write(rank, "all0", "all_reduce", step, ends[rank % 2], max(ends) + 1, seq=step)
        now = max(ends) + 1
    return "\n".join(lines) + "\n"


class Ras:
    """Speaks as NCCL's RAS port does, with the next of these answers to each question: the counts
    of AllReduce by rank."""

    def __init__(self, *statuses: Dict[int, int], formats: bool = True) -> None:
        self.statuses, self.formats = list(statuses), formats
        self.socket = socket.create_server(("localhost", 0))
        self.address = "localhost:%d" % self.socket.getsockname()[1]
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        for status in self.statuses:
            link, _ = self.socket.accept()
            with link, link.makefile("rw", encoding="utf-8", newline="\n") as file:
                for line in file:
                    word = line.split()[0]
                    if word == "VERBOSE":
                        file.write(self.report(status))
                        break
                    said = "OK" if self.formats else "ERROR: unknown command"
                    file.write(("SERVER PROTOCOL 2" if word == "CLIENT" else said) + "\n")
                    file.flush()

    def report(self, status: Dict[int, int]) -> str:
        ranks = [
            {"rank": rank, "collective_counts": {"AllReduce": count, "Broadcast": 1}}
            for rank, count in status.items()
        ]
        return json.dumps(
            {
                "nccl_version": "2.28.9",
                "communicators": [
                    {"hash": "0xfeed", "size": len(ranks), "ranks": ranks, "missing_ranks": []}
                ],
            }
        )

    def close(self) -> None:
        self.thread.join()
        self.socket.close()


class Detection(Built):
    def setUp(self) -> None:
        self.folder = self.new_folder()

    def file(self, text: str) -> str:
        path = os.path.join(self.folder, "job.jsonl")
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        return path

    def answer(self, *words: str) -> Dict[str, Any]:
        code, out, err = run(*words)
        self.assertEqual(code, OK, err)
        answer: Dict[str, Any] = json.loads(out)
        return answer

    def test_detect(self) -> None:
        answer = self.answer("detect", "--trace", self.file(trace()), "-o", "json")
        self.assertEqual([v["kind"] for v in answer["verdicts"]], ["slow_compute"])
        self.assertEqual(answer["verdicts"][0]["ranks"], [SLOW])
        self.assertLessEqual(abs(answer["verdicts"][0]["rate"] - FACTOR), 0.05)
        code, out, _ = run("detect", "--trace", self.file(trace(slow=False)))
        self.assertEqual(code, OK)
        self.assertIn("nothing is wrong", out)

    def ras(self, *statuses: Dict[int, int], formats: bool = True) -> Tuple[int, str, str]:
        server = Ras(*statuses, formats=formats)
        try:
            return run("detect", "--ras", server.address, "--seconds", "1", "-o", "json")
        finally:
            server.close()

    def test_counts_of_ras(self) -> None:
        hangs = {0: 41, 1: 41, 2: 40, 3: 41}
        code, out, err = self.ras(hangs, hangs)
        self.assertEqual(code, OK, err)
        answer = json.loads(out)
        self.assertTrue(answer["counts_only"])
        self.assertEqual(answer["ranks_seen"], 4)
        (verdict,) = answer["verdicts"]
        self.assertEqual(
            (verdict["kind"], verdict["ranks"], verdict["victims"]),
            ("hang_compute", [2], [0, 1, 3]),
        )
        self.assertIn("communicator 0xfeed", verdict["evidence"])
        code, out, _ = self.ras(hangs, {0: 42, 1: 41, 2: 41, 3: 41})
        self.assertEqual((code, json.loads(out)["verdicts"]), (OK, []))
        code, out, err = self.ras(hangs, formats=False)
        self.assertEqual((code, out), (69, ""))
        self.assertIn("older than 2.28.7", err)

    def test_counts_of_dumps(self) -> None:
        def dump(rank: int, enqueued: int, completed: int) -> None:
            with open(
                os.path.join(self.folder, f"dump_{rank}.json"), "w", encoding="utf-8"
            ) as file:
                json.dump(
                    {
                        "version": "2.10",
                        "entries": [],
                        "pg_status": {
                            "0": {
                                "last_enqueued_collective": str(enqueued),
                                "last_started_collective": str(enqueued),
                                "last_completed_collective": str(completed),
                            }
                        },
                    },
                    file,
                )

        for rank in range(4):
            dump(rank, 9 if rank != 3 else 8, 8)
        answer = self.answer("detect", "--flight-recorder", self.folder, "-o", "json")
        (verdict,) = answer["verdicts"]
        self.assertEqual(
            (verdict["kind"], verdict["ranks"], verdict["victims"]),
            ("hang_compute", [3], [0, 1, 2]),
        )
        self.assertEqual(answer["ranks_seen"], 4)
        with open(os.path.join(self.folder, "dump_2.json"), "w", encoding="utf-8") as file:
            file.write('{"pg_status": {"0": {"last_enqueued_collective": 9')
        code, out, err = run("detect", "--flight-recorder", self.folder)
        self.assertEqual((code, out), (INPUT, ""))
        self.assertIn("dump_2.json", err)

    def test_counts_that_are_not_there(self) -> None:
        with socket.create_server(("localhost", 0)) as server:
            port = server.getsockname()[1]  # nobody listens there once it is closed
        for words, expected in (
            (["--ras", f"localhost:{port}"], 69),
            (["--ras", "nowhere"], USAGE),
            (["--ras", "a:1", "--trace", "-"], USAGE),
            (["--ras", "a:1", "--seconds", "0"], USAGE),
            (["--trace", "-", "--seconds", "1"], USAGE),
            (["--flight-recorder", "/nonexistent"], INPUT),
            (["--flight-recorder", self.folder], INPUT),
        ):
            code, out, err = run("detect", *words)
            self.assertEqual((code, out), (expected, ""), (words, err))
            self.assertTrue(err.startswith("cairn detect: "), err)

    def test_explain(self) -> None:
        path = self.file(trace())
        for named in (True, False):
            answer = self.answer(
                "explain", "1", "--trace", self.file(trace(named=named)), "-o", "json"
            )
            self.assertEqual(answer["verdict"]["ranks"], [SLOW])
            # 20 steps of some 45 ms before it, known within 5 steps of 57 ms
            self.assertLessEqual(abs(answer["begin_seconds"] - 0.9), 0.2 if named else 0.4)
            self.assertGreater(answer["known_seconds"], answer["begin_seconds"])
            self.assertIsNone(answer["end_seconds"])
        answer = self.answer("explain", "--trace", self.file(trace()), "1", "-o", "json")
        self.assertLessEqual(
            abs(answer["lost_seconds"] - (STEPS - SINCE) * 20 * (FACTOR - 1) / 1e3), 0.05
        )
        code, out, _ = run("explain", "1", "--trace", path)
        self.assertEqual(code, OK)
        for part in (
            "rank 5 on node 2, stage 1 of pipeline 2",
            f"(step {SINCE}): it begins",
            "Evidence: ",
            "What to do: ",
        ):
            self.assertIn(part, out)

    def test_explain_what_is_not_there(self) -> None:
        path = self.file(trace(slow=False))
        for words in (["1"], [], ["0"], ["1x"], ["1", "2"], ["1", "--agent", "/nonexistent"]):
            code, out, err = run("explain", *words, "--trace", path)
            self.assertEqual((code, out), (USAGE, ""), words)
            self.assertTrue(err.startswith("cairn explain: "), err)

    def test_heatmap(self) -> None:
        picture = os.path.join(self.folder, "heat.png")
        answer = self.answer(
            "heatmap", "--trace", self.file(trace()), "--png", picture, "-o", "json"
        )
        self.assertEqual(
            (answer["stages"], answer["pipelines"], answer["pattern"]),
            (STAGES, PIPELINES, "one hot cell"),
        )
        self.assertIn("stage 1 of pipeline 2, rank 5 on node 2", answer["words"])
        hottest = max(
            (heat, s, p) for s, row in enumerate(answer["heat"]) for p, heat in enumerate(row)
        )
        self.assertEqual(hottest[1:], (1, 2))
        with open(picture, "rb") as file:
            data = file.read()
        self.assertEqual(data[:8], b"\x89PNG\r\n\x1a\n")
        at, seen = 8, {}
        while at < len(data):
            (size,) = struct.unpack(">I", data[at : at + 4])
            self.assertEqual(
                zlib.crc32(data[at + 4 : at + 8 + size]),
                struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0],
            )
            seen[data[at + 4 : at + 8]] = data[at + 8 : at + 8 + size]
            at += 12 + size
        width, height = struct.unpack(">II", seen[b"IHDR"][:8])
        self.assertEqual(len(zlib.decompress(seen[b"IDAT"])), height * (width + 1))
        self.assertEqual(width * STAGES, height * PIPELINES)
        code, out, _ = run("heatmap", "--trace", self.file(trace(slow=False)))
        self.assertEqual(code, OK)
        self.assertIn("An even field", out)
        code, out, err = run(
            "heatmap", "--trace", self.file(trace()), "--png", "/nonexistent/heat.png"
        )
        self.assertEqual(code, 74)
        self.assertIn("the picture could not be written", err)

    def timeline(self, *words: str) -> List[Event]:
        code, out, err = run("trace", *words)
        self.assertEqual(code, OK, err)
        events: List[Event] = json.loads(out)["traceEvents"]
        return events

    def test_trace(self) -> None:
        for named in (True, False):
            events = self.timeline("--trace", self.file(trace(named=named)), "--steps", "3")
            slices: Dict[int, List[Tuple[float, float]]] = {}
            for event in events:
                if event["ph"] == "X":
                    slices.setdefault(event["tid"], []).append(
                        (event["ts"], event["ts"] + event["dur"])
                    )
            # measured and ideal; no sends go on by themselves
            self.assertEqual(len(slices), 2 * STAGES * PIPELINES)
            for track in slices.values():  # a viewer takes slices of a track that follow each other
                track.sort()
                for before, after in zip(track, track[1:]):
                    self.assertLessEqual(before[1], after[0] + 0.002)
            flows = [e for e in events if e["ph"] in "stf"]
            for event in flows:  # an arrow's end lies in a slice
                self.assertTrue(any(a <= event["ts"] <= b for a, b in slices[event["tid"]]))
            self.assertEqual(len(flows), 3 * (2 * PIPELINES + 2 * PIPELINES + STAGES * PIPELINES))
            self.assertEqual(len({e["id"] for e in flows}), 3 * (PIPELINES + STAGES + 1))
            # what all ranks do together ends at one time, with any clocks
            ends = sorted(e["ts"] + e["dur"] for e in events if e.get("name") == "all_reduce all0")
            measured = ends[-STAGES * PIPELINES :]
            self.assertLess(measured[-1] - measured[0], 5)

    def test_trace_ideal(self) -> None:
        """Rank 5 makes each step 12 ms longer than it would be."""
        events = self.timeline("--trace", self.file(trace()), "--steps", "4")
        names = {
            e["tid"]: e["args"]["name"]
            for e in events
            if e["ph"] == "M" and e["name"] == "thread_name"
        }
        last = {
            ideal: max(
                e["ts"] + e["dur"]
                for e in events
                if e["ph"] == "X" and ("ideal" in names[e["tid"]]) == ideal
            )
            for ideal in (False, True)
        }
        self.assertLessEqual(abs(last[False] - last[True] - 4 * 12_000), 2_000)

    def test_bad_input(self) -> None:
        whole = trace()
        cases = {
            "": "empty",
            "{}\n": "header",
            whole + '{"rank": 99, "op": "send"}\n': f":{whole.count(chr(10)) + 1}:",
            whole[:-20]: "cut",
        }
        for verb in (["detect"], ["explain", "1"], ["heatmap"], ["trace"]):
            for text, part in cases.items():
                code, out, err = run(*verb, "--trace", self.file(text))
                self.assertEqual((code, out), (INPUT, ""), (verb, part))
                self.assertIn(part, err)
            code, out, err = run(*verb, "--trace", "/nonexistent")
            self.assertEqual((code, out), (INPUT, ""), verb)
        for steps in ("0", "65", "-1", "many"):
            code, _, _ = run("trace", "--trace", self.file(whole), "--steps", steps)
            self.assertEqual(code, USAGE)

    def test_nothing_but_a_header(self) -> None:
        path = self.file(header() + "\n")
        self.assertEqual(self.answer("detect", "--trace", path, "-o", "json")["verdicts"], [])
        self.assertEqual(
            self.answer("heatmap", "--trace", path, "-o", "json")["pattern"], "nothing to compare"
        )
        self.assertEqual([e for e in self.timeline("--trace", path) if e["ph"] == "X"], [])


if __name__ == "__main__":
    unittest.main()
