#!/usr/bin/env python3
"""A kill is invisible in the result: cairn demo with different faults prints the same losses and
the same state."""
import functools
import itertools
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

from harness import CAIRN, FAILED, GPT, INPUT, LOST, OK, USAGE, Built, cairn, say, text_of, wait_for

STEPS = 200  # of a small model: some 6 s
LONG_STEPS = 400  # where a generation must be in files before the end
QUICK_MODEL = ("--d-model", "32", "--heads", "2", "--context", "32", "--micro-batch-size", "4")
LIMIT_S = 400  # of a demo; those that take longest need 20 s of an idle machine


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


@functools.cache
def trained_alone(steps):
    """(loss_sha256, state_sha256) of the model of --quick, trained by one process that has no
    agent: training is the same for every division."""
    with tempfile.TemporaryDirectory(prefix="cairn-test-") as directory:
        events = os.path.join(directory, "events.jsonl")
        words = ("--steps", str(steps), "--log-every", "0", "--events", events)
        subprocess.run([GPT, *QUICK_MODEL, *words], timeout=LIMIT_S, check=True)
        done = json.loads(text_of(events).splitlines()[-1])
    return done["loss_sha256"], done["state_sha256"]


class Demo(Built):
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
        """With one process that trains alone: a demo that is compared needs no reference of its
        own."""
        result = answer["loss_sha256"], answer["state_sha256"]
        self.assertEqual(result, trained_alone(answer["steps"]))

    def quick(self, *words, steps=STEPS, code=OK):
        """A small model."""
        return self.demo("--quick", "--steps", str(steps), *words, code=code)

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
        """What is killed by default."""
        answer, talk = self.quick()
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
        answer, _ = self.demo("--steps", "16", "--kill", "1,4@6")
        self.assertTrue(answer["bit_identical"])
        self.assertEqual(len(answer["restores"]), 1)
        self.assertEqual(answer["steps"], 16)

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
            words = ("--no-reference", "--dir", os.path.join(directory, "demo"))
            answer, talk = self.quick("--kill", "agent:2@20", *words, steps=600)
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
        answer, talk = self.quick("--kill", "0,1,2@30", "--no-reference", code=LOST)
        self.assertTrue(any("not restorable" in line for line in answer["considered"]), answer)
        self.assertIn("nothing can be restored", talk)

    def test_too_many_but_spilled(self):
        words = ("--spill", "2", "--kill", "0,1,2@30", "--no-reference")
        answer, _ = self.quick(*words, steps=LONG_STEPS)
        self.compare(answer)
        self.assertEqual([restore["from"] for restore in answer["restores"]], ["files"])

    def test_a_slow_device(self):
        """Shares and layers follow the device, there and back, at the times that were planned."""
        words = ("--nodes", "4", "--slow", "2:2.7@25-95", "--steps", "170")
        answer, talk = self.demo(*words)
        self.assertTrue(answer["bit_identical"])
        slow = answer["slow"]
        self.assertTrue(slow["worth_while"] and slow["moved"] and slow["home"], talk)
        rows = answer["replans"]
        shares = [row for row in rows if row["action"] == "microbatches"]
        self.assertEqual(shares[0]["micro_batches"], slow["best_micro_batches"])
        self.assertEqual(shares[0]["from_step"], 25 + slow["moved_after_steps"])
        changes = [row for row in rows if "standstill_ms" in row]
        last = changes[-1]
        self.assertEqual(last["from_step"], 96 + slow["home_after_steps"])
        self.assertEqual((last["micro_batches"], last["layers"]), ([6, 6], [[4, 4], [4, 4]]))
        self.assertIn("fewer micro-batches", shares[0]["why"])
        self.assertIn("nothing is slow", last["why"])
        for row, later in itertools.zip_longest(rows, rows[1:]):
            self.assertGreaterEqual(row["predicted_ms"], row["bound_ms"])
            if later and row["from_step"] == later["from_step"]:
                self.assertIsNone(row["after_ms"])  # no step was made in between
                continue
            # devices sleep until they are through, so only noise of the machine is added
            self.assertGreater(row["after_ms"], row["predicted_ms"] * 0.98, row)
        (onset,) = [row for row in rows if row["action"] == "device slow"]
        self.assertEqual(onset["predicted_ms"], slow["slow_ms"])
        self.assertLess(shares[0]["after_ms"], onset["after_ms"] * 0.9)
        moved = [row for row in rows if row["action"] == "layers"]
        self.assertEqual(len(moved), 2, talk)
        self.assertLess(moved[0]["predicted_ms"], shares[0]["predicted_ms"])
        self.assertTrue(all(row["standstill_ms"] > 0 for row in moved))
        self.check_floor(moved)
        # no move before the loss has paid for it; and none that goes home for a loss
        self.assertTrue(shares[0]["due_step"] < moved[0]["due_step"] < moved[0]["from_step"], talk)
        late = moved[0]["from_step"] - moved[0]["due_step"] - 1
        self.assertEqual(slow["layers_late_steps"], late)
        self.assertIsNone(last["due_step"])
        layers = " | ".join(",".join(map(str, replica)) for replica in moved[0]["layers"])
        self.assertIn(f"layers {layers}", slow["story"])
        self.assertLess(slow["clairvoyant_ms"], slow["total_ms"])
        self.assertGreaterEqual(slow["clairvoyant_ms"], 99 * 224 + 70 * rows[0]["bound_ms"])

    def check_floor(self, moved):
        """Other nodes send the layers that a rank did not have, and little else."""
        for row in moved:
            self.assertGreater(row["floor_bytes"], 0)
            self.assertGreaterEqual(row["remote_bytes"], row["floor_bytes"])
            self.assertLessEqual(row["remote_bytes"], row["floor_bytes"] + (128 << 10))

    def test_a_trainer_dies_in_a_move(self):
        """The job restarts as it had begun, and moves the layers again."""
        words = ("--nodes", "4", "--slow", "2:2.7@25-150", "--steps", "170")
        answer, talk = self.demo(*words, "--kill", "trainer:3@vote")
        self.assertTrue(answer["bit_identical"])
        (fault,) = answer["faults"]
        self.assertEqual((fault["kind"], fault["target"]), ("trainer", 3))
        (restore,) = answer["restores"]
        self.assertEqual((restore["lost_steps"], restore["rebuilt_bytes"]), (0, 0))
        actions = [row["action"] for row in answer["replans"]]
        self.assertEqual(actions[:4], ["device slow", "microbatches", "restart", "layers"], talk)
        restart, moved = answer["replans"][2:4]
        self.assertEqual(restart["from_step"], restore["step"] + 1)
        self.assertEqual((restart["micro_batches"], restart["layers"]), ([6, 6], [[4, 4], [4, 4]]))
        self.check_floor([moved])

    def test_a_device_hardly_slower(self):
        """Where the planner has nothing better, that nothing changes is not a failure."""
        words = ("--nodes", "4", "--slow", "2:1.05@3-8", "--steps", "12", "--no-reference")
        answer, _ = self.demo(*words)
        self.assertFalse(answer["slow"]["worth_while"] or answer["slow"]["moved"])
        self.assertEqual(
            [row["action"] for row in answer["replans"]], ["device slow", "device well"]
        )

    def test_slow_for_too_few_steps(self):
        words = ("--nodes", "4", "--slow", "2:3@3-8", "--steps", "12", "--no-reference")
        answer, talk = self.demo(*words, code=FAILED)
        self.assertFalse(answer["slow"]["moved"])
        self.assertIsNone(answer["slow"]["layers_late_steps"])
        self.assertIsNone(answer["slow"]["story"])
        self.assertIn("give it more steps", talk)

    def test_bad_arguments(self):
        """A usage error names the option, or the two that exclude each other."""
        for words, named in (
            (("--kill", "9@30"), ("--kill", "9@30")),
            (("--kill", "1@60"), ("--kill", "1@60")),
            (("--kill", "1,x@9"), ("--kill", "1,x@9")),
            (("--kill", "gpu:1@9"), ("--kill", "gpu:1@9")),
            (("--nodes", "0"), ("--nodes",)),
            (("--parity", "6"), ("--parity",)),
            (("--steps", "x"), ("--steps",)),
            (("--kill", "1@9", "--no-faults"), ("--kill", "--no-faults")),
            (("--nods", "4"), ("--nods",)),
            (("--dir", "/proc"), ("/proc",)),
            (("--slow", "4:2@20"), ("--slow", "4:2@20", "RANK:FACTOR@FROM-TO")),
            (("--slow", "9:2@20-50"), ("--slow", "9:2@20-50")),
            (("--slow", "4:1@20-50"), ("--slow", "4:1@20-50")),
            (("--slow", "4:2@20-60"), ("--slow", "4:2@20-60", "--steps")),
            (("--slow", "4:2@50-20"), ("--slow", "4:2@50-20")),
            (("--slow", "1:2@20-50", "--nodes", "3"), ("--slow", "1:2@20-50")),
            (("--slow", "1:2@20-50", "--kill", "1@9"), ("--slow", "--kill")),
            (("--slow", "1:2@20-50", "--kill", "1@vote"), ("--slow", "--kill 1@vote")),
            (("--slow", "1:2@20-50", "--kill", "trainer:1@end"), ("--kill trainer:1@end",)),
            (("--kill", "trainer:1@vote"), ("--kill trainer:1@vote", "--slow")),
            (("--slow", "1:2@20-50", "--quick"), ("--slow", "--quick")),
        ):
            code, _, talk = cairn("demo", *words)
            self.assertEqual(code, USAGE, (words, talk))
            complaint = talk.partition("\n")[0]  # before the usage, which names all options
            for name in named:
                self.assertIn(name, complaint, words)
        code, _, talk = cairn("demo", "--text", "/nowhere/text")
        self.assertEqual(code, INPUT, talk)
        self.assertIn("/nowhere/text", talk)
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
