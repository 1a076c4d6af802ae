#!/usr/bin/env python3
"""Tests of tests/programs.py and of what tests/runner.py does with it: programs that hang, and a budget that is over."""
import contextlib
import glob
import io
import os
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))

import programs
import runner

# It hangs beside a child that leads a process group of its own.
HANGS = """
import subprocess, sys, time
def stand_still():
    time.sleep(600)
child = subprocess.Popen(["sleep", "601"], process_group=0)
print("child", child.pid, flush=True)
stand_still()
"""


class Programs(unittest.TestCase):
    def setUp(self):
        self.addCleanup(programs.begin_budget, None)
        folder = tempfile.TemporaryDirectory(prefix="cairn-test-")
        self.addCleanup(folder.cleanup)
        self.marker = os.path.join(folder.name, "marker")

    def hangs(self, code=HANGS):
        """What became of a program that hangs, for which the limit was long enough to come so far."""
        for limit_s in (0.5, 2, 8, 32):
            result = programs.run_program("some: program", [*runner.PYTHON, "-c", code], limit_s)
            if "child" in result.output.partition("runner:")[0]:
                return result
        self.fail(result.output)

    def test_a_hang_is_shown_and_ended(self):
        result = self.hangs()
        self.assertEqual((result.failed, result.passed, result.late), (1, 0, True))
        said, _, shown = result.output.partition("runner: took longer than")
        self.assertIn("in stand_still", said, "where the program stood")
        self.assertIn("sleep 601", shown, "what it waited beside")
        child = int(said.split()[1])
        self.assertNotIn("sleep", programs.text_of(f"/proc/{child}/cmdline"), "the child lives on")

    def test_a_hang_is_not_run_again(self):
        result = self.hangs()
        again = {result.name: ["sh", "-c", f"echo again >> {self.marker}"]}
        self.assertEqual(runner.again_alone([result], again), [result])
        self.assertFalse(os.path.exists(self.marker))
        failed = programs.Result(result.name, failed=1)
        with contextlib.redirect_stdout(io.StringIO()):
            steady, = runner.again_alone([failed], again)
        self.addCleanup(runner.UNSTEADY.remove, failed)
        self.assertEqual((steady.failed, os.path.exists(self.marker)), (0, True))

    def test_a_hang_is_shown_at_the_end(self):
        output = "E  early\n" + 9000 * "." + "\nrunner: in poll"
        shown = runner.failure_of(programs.Result("x", failed=1, output=output, late=True))
        self.assertTrue(shown.endswith("runner: in poll"))

    def test_nothing_begins_when_the_budget_is_over(self):
        programs.begin_budget(0)
        result = programs.run_program("some: program", ["sh", "-c", f"echo begun >> {self.marker}"])
        self.assertEqual((result.failed, result.late, os.path.exists(self.marker)), (1, True, False))
        self.assertIn("not begun: the time for all tests is over", result.output)

    def test_what_runs_ends_with_the_budget(self):
        programs.begin_budget(0.5)
        result = programs.run_program("some: program", ["sleep", "600"])
        self.assertEqual((result.failed, result.late), (1, True))
        self.assertIn("the time for all tests is over", result.output)

    def test_limits(self):
        self.assertEqual(programs.limit_of("cluster: test_demo.py"), programs.LIMITS_S["test_demo"])
        together = "interop: test_convert_dcp.py test_torch_file.py"
        self.assertEqual(programs.limit_of(together), programs.LIMITS_S["test_convert_dcp"])
        self.assertEqual(programs.limit_of("asan: fault/test_formats"), programs.LIMITS_S["test_formats"])
        self.assertEqual(programs.limit_of("unit: unit/base/test_wire"), programs.LIMIT_LEAST_S)
        there = {os.path.basename(path).split(".")[0] for path in glob.glob(f"{ROOT}/tests/**/test_*", recursive=True)}
        self.assertEqual(set(programs.LIMITS_S) - there, {"sim"}, "a name that no program has")


if __name__ == "__main__":
    unittest.main()
