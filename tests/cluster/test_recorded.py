#!/usr/bin/env python3
"""`cairn detect` on recordings of real jobs over gloo (tests/traces/recorded): what was done to a
rank is found, with its begin and its end, and nothing else. Healthy jobs, a pause and checkpoints
give no verdict."""

import json
import lzma
import pathlib
import subprocess
import unittest
from typing import Any, Dict, List, Optional

from harness import CAIRN, OK, build

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "traces" / "recorded"
# Steps. The recorder slows a rank in the middle of a step; the detector ends the verdict when it
# is sure.
SINCE_EARLY, SINCE_LATE, UNTIL_EARLY, UNTIL_LATE = 1, 3, 3, 3
RECORDINGS = 20
Verdict = Dict[str, Any]


def setUpModule() -> None:
    build()


def detect(trace: bytes) -> List[Verdict]:
    done = subprocess.run(
        [CAIRN, "detect", "--trace", "-", "-o", "json"],
        input=trace,
        capture_output=True,
        check=False,
    )
    assert done.returncode == OK, done.stderr.decode()
    verdicts: List[Verdict] = json.loads(done.stdout)["verdicts"]
    return verdicts


def is_near(found: Optional[int], true: Optional[int], early: int, late: int) -> bool:
    if found is None or true is None:
        return found is true
    return true - early <= found <= true + late


def is_right(found: Verdict, true: Dict[str, Any]) -> bool:
    return (
        (found["kind"], found["ranks"]) == (true["kind"], true["ranks"])
        and is_near(found["since_step"], true["since"], SINCE_EARLY, SINCE_LATE)
        and is_near(found["until_step"], true["until"], UNTIL_EARLY, UNTIL_LATE)
    )


class Recorded(unittest.TestCase):
    def test_verdicts_are_right(self) -> None:
        names = sorted(path.stem for path in FOLDER.glob("*.json"))
        self.assertEqual(len(names), RECORDINGS)
        silent = 0
        for name in names:
            label = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
            with lzma.open(FOLDER / f"{name}.jsonl.xz") as file:
                verdicts = detect(file.read())
            with self.subTest(name):
                shown = [
                    {key: each[key] for key in ("kind", "ranks", "since_step", "until_step")}
                    for each in verdicts
                ]
                self.assertEqual(len(verdicts), len(label["expected"]), shown)
                for found, true in zip(verdicts, label["expected"]):
                    self.assertTrue(is_right(found, true), (shown, true))
            silent += not label["expected"]
        self.assertGreaterEqual(silent, 6)


if __name__ == "__main__":
    unittest.main()
