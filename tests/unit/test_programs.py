#!/usr/bin/env python3
"""Tests of tests/programs.py, runner.py and fuzzing.py: programs that hang, a budget that is over,
counts, flaky programs, `-k`, and fuzzers that end early or never."""
import contextlib
import glob
import io
import os
import sys
import subprocess
import tempfile
import threading
import time
import unittest
import unittest.mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))

import fuzzing
import programs
import runner

# It hangs beside a child that leads a process group of its own, and one that leads a session, as a
# keeper does.
HANGS = """
import subprocess, sys, time
def stand_still():
    time.sleep(600)
children = [
    subprocess.Popen(["sleep", "601"], process_group=0),
    subprocess.Popen(["sleep", "602"], start_new_session=True),
]
print("children", *(child.pid for child in children), flush=True)
stand_still()
"""
CMOCKA = "[==========] Running 3 test(s).\n[  PASSED  ] %d test(s).\n"
# What a program is called, its exit status, what it says: passed, failed, skipped.
COUNTS = [
    ("unit: base/test_x", 0, CMOCKA % 3, (3, 0, 0)),
    (
        "unit: base/test_x",
        1,
        CMOCKA % 2 + "[  FAILED  ] all: 1 test(s), listed below:\n",
        (2, 1, 0),
    ),
    (
        "unit: base/test_x",
        0,
        CMOCKA % 2 + "[  SKIPPED ] all: 1 test(s), listed below:\n",
        (2, 0, 1),
    ),
    (
        "unit: base/test_x",
        77,
        CMOCKA % 0 + "[  FAILED  ] all: 77 test(s), listed below:\n",
        (0, 77, 0),
    ),
    ("unit: base/test_x", -11, CMOCKA % 3, (3, 1, 0)),
    # it ended in the middle
    ("unit: base/test_x", 0, "[==========] Running 3 test(s).\n", (0, 1, 0)),
    ("unit: base/test_x", 0, "", (0, 1, 0)),
    ("gpu: test_x", 77, "no device", (0, 0, 1)),
    ("style: layers", 0, "", (1, 0, 0)),
    ("cluster: test_x.py", 0, "agent: errors=7 skipped=9\nRan 4 tests in 1s\n\nOK\n", (4, 0, 0)),
    (
        "cluster: test_x.py",
        1,
        "Ran 4 tests in 1s\n\nFAILED (failures=1, errors=1, skipped=1)\n",
        (1, 2, 1),
    ),
    ("cluster: test_x.py", 0, "Ran 0 tests in 1s\n\nOK (skipped=1)\n", (0, 0, 1)),  # a whole class
    ("cluster: test_x.py", 5, "Ran 0 tests in 1s\n\nNO TESTS RAN (skipped=1)\n", (0, 0, 1)),
    ("cluster: test_x.py", 1, "Ran 0 tests in 1s\n\nFAILED (errors=1)\n", (0, 1, 0)),
    ("cluster: test_x.py", 0, "Ran 2 tests in 1s\n\nOK (expected failures=1)\n", (2, 0, 0)),
    ("cluster: test_x.py", 1, "Ran 2 tests in 1s\n\nFAILED (unexpected successes=1)\n", (1, 1, 0)),
    ("cluster: test_x.py", 0, "it left early", (0, 1, 0)),
    ("interop: test_x.py", 0, "3 passed, 1 skipped, 2 warnings in 1.2s\n", (3, 0, 1)),
    ("interop: test_x.py", 1, "1 failed, 3 passed, 1 error in 61.20s (0:01:01)\n", (3, 2, 0)),
    ("interop: test_x.py", 5, "1 skipped in 0.1s\n", (0, 0, 1)),
    ("interop: test_x.py", 5, "no tests ran in 0.01s\n", (0, 1, 0)),
    ("interop: test_x.py", 3, "3 passed in 1.2s\n", (3, 1, 0)),
]


class Programs(unittest.TestCase):
    def setUp(self):
        self.addCleanup(programs.begin_budget, None)
        folder = tempfile.TemporaryDirectory(prefix="cairn-test-")
        self.addCleanup(folder.cleanup)
        self.marker = os.path.join(folder.name, "marker")

    def hangs(self, code=HANGS):
        """Run a program that hangs, with longer limits until it has started its children."""
        for limit_s in (0.5, 2, 8, 32):
            result = programs.run_program("some: program", [*runner.PYTHON, "-c", code], limit_s)
            if "children" in result.output.partition("runner:")[0]:
                return result
        self.fail(result.output)

    def test_a_hang_is_shown_and_ended(self):
        result = self.hangs()
        self.assertEqual((result.failed, result.passed, result.late), (1, 0, True))
        said, _, shown = result.output.partition("runner: took longer than")
        self.assertIn("in stand_still", said, "where the program stood")
        self.assertIn("sleep 601", shown, "what it waited beside")
        self.assertIn("sleep 602", shown, "what has left its session")
        for child in said.split()[1:3]:
            self.assertNotIn(
                "sleep", programs.text_of(f"/proc/{int(child)}/cmdline"), "a child lives on"
            )

    def test_what_a_program_leaves_is_ended(self):
        leaves = (
            "import subprocess; "
            "print(subprocess.Popen(['sleep', '603'], start_new_session=True).pid)"
        )
        result = programs.run_program("some: program", [sys.executable, "-c", leaves])
        self.assertEqual(result.failed, 0, result.output)
        self.assertNotIn(
            "sleep", programs.text_of(f"/proc/{int(result.output)}/cmdline"), "it lives on"
        )

    def test_an_interrupted_run_leaves_nothing(self):
        results = []
        thread = threading.Thread(
            target=lambda: results.append(programs.run_program("some: program", ["sleep", "604"]))
        )
        thread.start()
        while not programs._running:
            time.sleep(0.01)
        programs.give_up()
        thread.join(60)
        self.assertEqual([result.failed for result in results], [1])
        self.assertIn("not begun", programs.run_program("some: program", ["true"]).output)

    def test_the_runner_passes_its_end_on(self):
        code = (
            "import runner; runner.give_up = lambda: print('given up', flush=True); "
            "runner.interrupted(15, None)"
        )
        ended = subprocess.run(
            [sys.executable, "-c", code],
            cwd=f"{ROOT}/tests",
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        self.assertEqual((ended.returncode, ended.stdout), (143, "given up\n"))

    def test_counts(self):
        for name, status, output, expected in COUNTS:
            result = programs.count(name, status, output, 0.0)
            self.assertEqual(
                (result.passed, result.failed, result.skipped), expected, (name, status, output)
            )

    def test_a_hang_is_not_run_again(self):
        result = self.hangs()
        again = {result.name: ["sh", "-c", f"echo again >> {self.marker}"]}
        self.assertEqual(runner.again_alone([result], again), [result])
        self.assertFalse(os.path.exists(self.marker))
        failed = programs.Result(result.name, failed=1)
        with contextlib.redirect_stdout(io.StringIO()):
            (steady,) = runner.again_alone([failed], again)
        self.addCleanup(runner.FLAKY.remove, failed)
        self.assertEqual((steady.failed, os.path.exists(self.marker)), (0, True))

    def test_a_hang_is_shown_at_the_end(self):
        output = "E  early\n" + 9000 * "." + "\nrunner: in poll"
        shown = runner.failure_of(programs.Result("x", failed=1, output=output, late=True))
        self.assertTrue(shown.endswith("runner: in poll"))

    def test_nothing_begins_when_the_budget_is_over(self):
        programs.begin_budget(0)
        result = programs.run_program("some: program", ["sh", "-c", f"echo begun >> {self.marker}"])
        self.assertEqual(
            (result.failed, result.late, os.path.exists(self.marker)), (1, True, False)
        )
        self.assertIn("not begun: the time for all tests is over", result.output)

    def test_what_runs_ends_with_the_budget(self):
        programs.begin_budget(0.5)
        result = programs.run_program("some: program", ["sleep", "600"])
        self.assertEqual((result.failed, result.late), (1, True))
        self.assertIn("the time for all tests is over", result.output)

    def test_the_background_pauses(self):
        """Both a program that ran before and a program that begins meanwhile."""
        results = []

        def begin():
            thread = threading.Thread(
                target=lambda: results.append(
                    programs.run_program("gate", ["sleep", "0.2"], background=True)
                )
            )
            thread.start()
            return thread

        def stopped():
            states = [programs.text_of(f"/proc/{pid}/status") for pid in programs._background]
            return sum("State:\tT" in state for state in states)

        with programs.background_paused(), programs.background_paused():
            threads = [begin()]
            while stopped() < 1:
                time.sleep(0.01)
        threads[0].join()
        threads = [begin()]
        while not programs._background:
            time.sleep(0.01)
        with programs.background_paused():
            threads.append(begin())
            while stopped() < len(programs._background) or len(threads) > len(programs._background):
                if not threads[0].is_alive():  # it ended before the pause
                    threads = threads[1:]
                time.sleep(0.01)
            (pid, *_) = programs._background
            self.assertEqual(os.sched_getscheduler(pid), os.SCHED_IDLE)
        for thread in threads:
            thread.join()
        self.assertEqual([(r.passed, r.failed) for r in results], [(1, 0)] * 3)

    def test_cpu_seconds_include_children(self):
        child = "import time\nwhile time.process_time() < 0.3: pass"
        code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
        result = programs.run_program("some: program", [sys.executable, "-c", code])
        self.assertGreaterEqual(result.cpu_s, 0.25, result.output)

    def test_the_table_is_above_the_last_line(self):
        table = list(runner.TABLE)
        self.addCleanup(setattr, runner, "TABLE", table)
        with contextlib.redirect_stdout(io.StringIO()):
            runner.run_suite("unit", lambda: [programs.Result("unit: a", passed=5)])
        lines, _ = runner.add_up([], [])
        self.assertEqual(lines[-2].split(), ["unit", "0", "0", "5"])

    def test_flaky_programs_are_listed_above_the_last_line(self):
        passed = programs.Result("unit: a", passed=5, skipped=1)
        first = programs.Result("cluster: test_b.py", failed=1, output="FAIL: test_c (b.B)\n")
        lines, status = runner.add_up([passed], [first] * (runner.FLAKY_MAX - 1))
        self.assertEqual(status, 0)
        flaky = "flaky: cluster: test_b.py (test_c)"
        self.assertEqual(
            lines, [flaky] * (runner.FLAKY_MAX - 1) + ["5 passed, 0 failed, 1 skipped"]
        )

    def test_too_many_flaky_programs_are_a_failure(self):
        passed = programs.Result("unit: a", passed=5)
        first = programs.Result(
            "unit: d", failed=1, output="[  FAILED  ] test_e\n[  FAILED  ] 13\n"
        )
        lines, status = runner.add_up([passed], [first] * runner.FLAKY_MAX)
        self.assertEqual(status, 1)
        self.assertIn("FAIL flaky: 3 programs passed only when run again", lines[0])
        self.assertEqual(lines[1:], ["flaky: unit: d (test_e)"] * 3 + ["5 passed, 1 failed"])

    def test_a_program_that_passes_when_run_again_is_flaky(self):
        code = (
            f"test -e {self.marker} || {{ touch {self.marker}; echo 'FAIL: test_f (x)'; exit 1; }}"
        )
        command = {"sim: x": ["sh", "-c", code]}
        first = programs.run_program("sim: x", command["sim: x"])
        self.assertEqual(first.failed, 1)
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            (second,) = runner.again_alone([first], command)
        self.addCleanup(runner.FLAKY.remove, first)
        self.assertEqual((second.passed, second.failed), (1, 0))
        self.assertIn("test_f", shown.getvalue())
        self.assertIn(first, runner.FLAKY)

    def test_k_chooses_programs_by_name(self):
        def run(*arguments):
            command = [sys.executable, "tests/runner.py", *arguments]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            return done.returncode, done.stdout.splitlines(), done.stderr

        status, lines, _ = run("-k", "suppressions")
        self.assertEqual((status, lines[0]), (0, "-k suppressions: 1 matched (1 of style)"))
        self.assertEqual(lines[-1], "1 passed, 0 failed")
        status, _, error = run("-k", "no_such_program", "style", "unit")
        self.assertEqual(status, 1)
        self.assertIn("no_such_program", error)
        for wrong in (["no_such_suite"], ["-k"], ["--verbose"]):
            self.assertEqual(run(*wrong)[0], 64, wrong)

    def test_limits(self):
        self.assertEqual(programs.limit_of("cluster: test_demo.py"), programs.LIMITS_S["test_demo"])
        together = "interop: test_convert_dcp.py test_torch_file.py"
        self.assertEqual(programs.limit_of(together), programs.LIMITS_S["test_convert_dcp"])
        self.assertEqual(
            programs.limit_of("asan: fault/test_formats"), programs.LIMITS_S["test_formats"]
        )
        self.assertEqual(programs.limit_of("unit: unit/base/test_wire"), programs.LIMIT_LEAST_S)
        there = {
            os.path.basename(path).split(".")[0]
            for path in glob.glob(f"{ROOT}/tests/**/test_*", recursive=True)
        }
        self.assertLessEqual(
            set(programs.LIMITS_S) - there,
            {"sim", *runner.GATES},
            "a limit of a program that does not exist",
        )


class Fuzzers(unittest.TestCase):
    def fuzzer(self, code, executions=100, cpu_limit_s=60, stuck_s=60):
        """What became of a fuzzer that runs a line of shell."""
        folder = tempfile.TemporaryDirectory(prefix="cairn-test-")
        self.addCleanup(folder.cleanup)
        with unittest.mock.patch.object(fuzzing, "POLL_S", 0.05):
            one = fuzzing.Fuzzer("fuzz_x", ["sh", "-c", code], executions, cpu_limit_s, stuck_s)
            (done,) = fuzzing.Fuzzing([one], folder.name, 1).collect(300)
        return done

    def test_all_executions_are_done(self):
        done = self.fuzzer("echo stat::number_of_executed_units: 100")
        self.assertEqual((done.status, done.done), (0, 100), done.output)

    def test_too_few_executions_fail(self):
        done = self.fuzzer("echo stat::number_of_executed_units: 99")
        self.assertEqual(done.status, 1)
        self.assertIn("after 99 of 100 executions", done.output)
        self.assertEqual(self.fuzzer("true").status, 1, "a fuzzer without a count")

    def test_a_crash_fails(self):
        self.assertEqual(self.fuzzer("echo stat::number_of_executed_units: 100; exit 1").status, 1)

    def test_an_endless_input_is_ended(self):
        done = self.fuzzer("while :; do :; done", cpu_limit_s=0.02)
        self.assertNotEqual(done.status, 0)
        self.assertIn("of the processor", done.output)

    def test_an_input_that_stands_still_is_ended(self):
        done = self.fuzzer("exec sleep 600", stuck_s=0.5)
        self.assertNotEqual(done.status, 0)
        self.assertIn("used no processor", done.output)

    def test_every_fuzzer_has_a_speed(self):
        names = {os.path.basename(p)[:-2] for p in glob.glob(f"{ROOT}/tests/fuzz/fuzz_*.c")}
        self.assertEqual(names, set(fuzzing.PER_CPU_S))
        self.assertEqual(
            fuzzing.executions_of("fuzz_zip", 2), 2 * fuzzing.executions_of("fuzz_zip")
        )


if __name__ == "__main__":
    unittest.main()
