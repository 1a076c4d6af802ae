#!/usr/bin/env python3
"""A kill is invisible in the result: cairn demo with different faults prints the same losses and
the same state."""
import os
import signal
import subprocess
import tempfile
import time
import unittest

from harness import CAIRN, INPUT, LOST, OK, USAGE, build, cairn, say, text_of, wait_for

STEPS = "200"  # of a small model: some 4 s
LIMIT_S = 400  # of a demo; those that take longest need 50 s of an idle machine


def below(directory):
    """Processes that have a path below the directory in their command line."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if directory.encode() in file.read():
                        found.append(int(name))
            except OSError:
                pass
    return found


def end(process):
    """Of a demo that a failed test has left: it ends all that it has started."""
    if process.poll() is None:
        process.terminate()
        process.wait(timeout=120)


class Demo(unittest.TestCase):
    expected = None

    @classmethod
    def setUpClass(cls):
        build()

    def demo(self, *words, code=OK):
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="cairn-test-") as directory:
            got, answer, talk = cairn("demo", *words, seconds=LIMIT_S, env={"TMPDIR": directory})
            self.assertEqual(os.listdir(directory), [], "files were left behind")
            self.assertEqual(below(directory), [], "processes were left behind")
        self.assertEqual(got, code, talk)
        say(f"{' '.join(words)}: {time.monotonic() - begun:.1f} s")
        return answer, talk

    def compare(self, answer):
        """With a run without faults, one for all: a demo that is compared needs no reference of its
        own."""
        result = answer["loss_sha256"], answer["state_sha256"]
        self.assertTrue(all(result), answer)
        if Demo.expected is None:
            reference, _ = self.demo("--no-faults", "--quick", "--steps", STEPS, "--no-reference")
            Demo.expected = reference["loss_sha256"], reference["state_sha256"]
        self.assertEqual(result, Demo.expected)

    def quick(self, *words):
        """A small model."""
        return self.demo("--quick", "--steps", STEPS, *words)

    def test_no_faults(self):
        answer, _ = self.quick("--no-faults")
        self.compare(answer)
        self.assertEqual(answer["schema"], 1)
        self.assertEqual((answer["faults"], answer["restores"], answer["replans"]), ([], [], []))
        self.assertTrue(answer["bit_identical"])
        self.assertGreater(
            answer["generations_committed"], 1, "generations are committed while training goes on"
        )
        self.assertGreater(answer["overhead_ratio"], 0)
        self.assertLess(answer["loss_last"], answer["loss_first"] - 1, "the loss must fall")

    def check_rebuilt(self, answer, talk):
        """Nodes that come back repair themselves: a restore rebuilds the lost parts, or finds that
        all are in memory again."""
        found = talk.count("all 6 members' parts are in memory")
        self.assertLessEqual(
            sum(restore["rebuilt_bytes"] == 0 for restore in answer["restores"]), found, talk
        )

    def test_two_nodes_at_once(self):
        answer, talk = self.quick("--kill", "1,4@30")
        self.compare(answer)
        self.assertEqual(
            [(f["kind"], f["target"]) for f in answer["faults"]], [("node", 1), ("node", 4)]
        )
        (step,) = {fault["step"] for fault in answer["faults"]}
        self.assertGreaterEqual(step, 30)
        self.assertEqual(len(answer["restores"]), 1)
        restore = answer["restores"][0]
        self.check_rebuilt(answer, talk)
        self.assertTrue(restore["bit_identical"])
        self.assertGreater(restore["step"], 0)
        self.assertGreaterEqual(restore["step"] + restore["lost_steps"], step)
        self.assertIn("chosen as the newest", talk)

    def test_the_whole_model(self):
        answer, _ = self.demo()
        self.assertTrue(answer["bit_identical"])
        self.assertEqual(len(answer["restores"]), 1)
        self.assertEqual(answer["steps"], 60)

    def test_different_steps(self):
        """Both before the first commit, as a rule: the first waits for it, the second for the way
        back from the first."""
        answer, talk = self.quick("--kill", "1@1", "--kill", "3,5@2", "--no-reference")
        self.compare(answer)
        self.assertEqual([fault["target"] for fault in answer["faults"]], [1, 3, 5])
        self.assertEqual(len(answer["restores"]), 2)
        self.check_rebuilt(answer, talk)
        self.assertEqual(len({fault["step"] for fault in answer["faults"][1:]}), 1)
        for fault, restore in zip(answer["faults"], answer["restores"]):
            self.assertGreaterEqual(restore["step"] + restore["lost_steps"], fault["step"])
            self.assertRegex(talk, f"step {fault['step']}: killed nodes? {fault['target']}")

    def test_trainer_only(self):
        answer, talk = self.quick("--kill", "trainer:2@20", "--no-reference")
        self.compare(answer)
        self.assertEqual(
            [restore["rebuilt_bytes"] for restore in answer["restores"]],
            [0],
            f"{answer['restores']}\n{talk}",
        )

    def test_agent_only(self):
        with tempfile.TemporaryDirectory(prefix="cairn-test-") as directory:
            answer, talk = self.demo(
                "--quick",
                "--steps",
                "600",
                "--kill",
                "agent:2@20",
                "--no-reference",
                "--dir",
                os.path.join(directory, "demo"),
            )
            log = text_of(os.path.join(directory, "demo", "node2.log"))
        self.assertEqual(answer["restores"], [], "a dead agent costs nothing")
        self.assertIn("adopted the memory", talk)
        self.assertNotIn("have left", talk)
        again = log.rindex("agent: serves")
        self.assertIn("save: committed", log[again:], "generations go on being committed")

    def test_other_shapes(self):
        for nodes, parity in ((2, 1), (4, 2), (5, 1)):
            answer, _ = self.quick(
                "--nodes", str(nodes), "--parity", str(parity), "--kill", "1@40", "--no-reference"
            )
            self.compare(answer)  # training is the same for every division

    def test_too_many(self):
        answer, talk = self.demo(
            "--quick", "--steps", STEPS, "--kill", "0,1,2@30", "--no-reference", code=LOST
        )
        self.assertTrue(any("not restorable" in line for line in answer["considered"]), answer)
        self.assertIn("nothing can be restored", talk)

    def test_too_many_but_spilled(self):
        answer, _ = self.demo("--quick", "--steps", "600", "--spill", "2", "--kill", "0,1,2@30")
        self.assertTrue(answer["bit_identical"])
        self.assertEqual([restore["from"] for restore in answer["restores"]], ["files"])

    def test_bad_arguments(self):
        for words, code, text in (
            (("--kill", "9@30"), USAGE, "no node 9"),
            (("--kill", "1@99"), USAGE, "not within the run"),
            (("--kill", "1,x@9"), USAGE, "is not"),
            (("--kill", "gpu:1@9"), USAGE, "is not"),
            (("--nodes", "0"), USAGE, "from 1 to"),
            (("--parity", "6"), USAGE, "less than the nodes"),
            (("--steps", "x"), USAGE, "is needed"),
            (("--kill", "1@9", "--no-faults"), USAGE, "exclude"),
            (("--nods", "4"), USAGE, "--nodes"),
            (("--text", "/nowhere/text"), INPUT, "/nowhere/text"),
            (("--dir", "/proc"), USAGE, "/proc"),
        ):
            got, _, talk = cairn("demo", *words)
            self.assertEqual(got, code, (words, talk))
            self.assertIn(text, talk, words)
        for text in (b"", b"short"):
            with tempfile.NamedTemporaryFile() as file:
                file.write(text)
                file.flush()
                got, _, talk = cairn("demo", "--quick", "--text", file.name, "--no-faults")
                self.assertEqual(got, INPUT, talk)

    def test_interrupted(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with tempfile.TemporaryDirectory(prefix="cairn-test-") as directory:
                log = os.path.join(directory, "log")
                with open(log, "wb") as out:
                    process = subprocess.Popen(
                        [CAIRN, "demo", "--quick", "--steps", "100000", "--no-faults"],
                        stderr=out,
                        stdout=subprocess.DEVNULL,
                        env={**os.environ, "TMPDIR": directory},
                    )
                self.addCleanup(end, process)
                wait_for("training has begun", lambda: "training begins" in text_of(log))
                wait_for("trainers run", lambda: len(below(directory)) >= 18)
                process.send_signal(number)
                code = process.wait(timeout=120)
                self.assertEqual(code, -9 if number == signal.SIGKILL else 128 + number)
                # Sooner than keepers that nobody ended would have gone by themselves, after 60 s.
                wait_for("all processes have ended", lambda: below(directory) == [], 8)
                wait_for("the files are removed", lambda: os.listdir(directory) == ["log"])
                say(f"{number.name}: nothing is left")


if __name__ == "__main__":
    unittest.main(verbosity=2)
