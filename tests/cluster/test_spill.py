#!/usr/bin/env python3
"""Spilled generations and exports: every byte is read back from the files without our code, and
compared with what the trainers' state is known to have been. Killed agents, a full disk, a
directory that is not shared, an earlier run's files."""
import array
import json
import os
import random
import re
import struct
import subprocess
import sys
import time
import unittest

from harness import (
    FAULTS,
    INPUT,
    LOST,
    OK,
    PATIENCE,
    USAGE,
    Built,
    Cluster,
    cairn,
    run,
    say,
    wait_for,
)

MASK = (1 << 64) - 1
PARTS = 3
ELEMENTS = 20000
SHARED = 5000


def values(step, tensor, count):
    """What trainer.c's value() gives for elements 0 … count - 1."""
    base = (step * 0x9E3779B97F4A7C15 + tensor * 0xD1342543DE82EF95) & MASK
    out = array.array("Q")
    for index in range(count):
        z = (base + index) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        out.append(z ^ (z >> 31))
    return out.tobytes()


def read_safetensors(path):
    """{name: bytes} by the public format alone."""
    with open(path, "rb") as file:
        blob = file.read()
    (header_bytes,) = struct.unpack_from("<Q", blob)
    header = json.loads(blob[8 : 8 + header_bytes])
    data = memoryview(blob)[8 + header_bytes :]
    header.pop("__metadata__", None)
    ends = sorted(tuple(entry["data_offsets"]) for entry in header.values())
    assert ends[0][0] == 0 and ends[-1][1] == len(data), f"{path}: the tensors do not fill the file"
    assert all(a[1] == b[0] for a, b in zip(ends, ends[1:])), f"{path}: a gap between two tensors"
    return {
        name: bytes(data[entry["data_offsets"][0] : entry["data_offsets"][1]])
        for name, entry in header.items()
    }


def check_files(directory, step, elements=ELEMENTS):
    """Every tensor is there once, whole, and of this step."""
    found = {}
    for name in sorted(os.listdir(directory)):
        assert not name.endswith(".part") and not name.endswith(
            ".new"
        ), f"{directory}/{name} was left"
        if name.endswith(".safetensors"):
            for tensor, data in read_safetensors(os.path.join(directory, name)).items():
                assert tensor not in found, f"{tensor} is in two files"
                found[tensor] = (name, data)
    total = sum(elements + elements // 4 * (part % 3) for part in range(PARTS))
    expected = {
        "divided": values(step, 0, total),
        "shared": values(step, 1, SHARED),
        "progress": struct.pack("<Q", step) + values(step, 2, 1),
    }
    assert set(found) == set(expected), f"{directory} holds {sorted(found)}"
    for tensor, data in expected.items():
        assert found[tensor][1] == data, f"{directory}: {tensor} is not that of step {step}"
    with open(os.path.join(directory, "model.safetensors.index.json")) as file:
        weight_map = json.load(file)["weight_map"]
    for tensor, name in weight_map.items():
        assert found[tensor][0] == name, f"{tensor} is not in {name}"


def spilled(directory):
    """{(epoch as in the name, step): committed} of a spill directory."""
    out = {}
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
        match = re.fullmatch(r"e(\d+)-s(\d+)", name)
        if match:
            out[int(match[1]), int(match[2])] = os.path.exists(
                os.path.join(directory, name, "COMMIT")
            )
    return out


def whole(directory):
    return sorted(generation for generation, committed in spilled(directory).items() if committed)


def name_of(directory, generation):
    return os.path.join(directory, "e%d-s%d" % generation)


class Spill(Built):
    def setUp(self):
        self.spill = self.new_folder()

    def cluster(self, every=2, keep=2, state="2MiB", slots=3, prefixes=None):
        return Cluster(
            PARTS,
            1,
            state=state,
            prefixes=prefixes,
            options=f"spill_dir: {self.spill}\nspill_every_generations: {every}\n"
            f"spill_keep: {keep}\nslots: {slots}\n",
        )

    def wait_spilled(self, after=(0, 0), step=0, seconds=30):
        def newest():
            found = (whole(self.spill) or [(0, 0)])[-1]
            return found > after and found[1] >= step and found

        return wait_for(
            f"a generation after {after} from step {step} on is spilled", newest, seconds
        )

    def wait_epoch(self, cluster):
        """All agents are in the same, newest epoch: from then on trainers may restore from any of
        them."""

        def epochs():
            return {
                (re.findall(r"epoch: active epoch=(\d+)", cluster.log(node)) or ["0"])[-1]
                for node in range(PARTS)
            }

        wait_for("all agents are in one epoch", lambda: len(epochs()) == 1)

    def wait_quiet(self, cluster):
        """No spill runs any more (the trainers are gone): nothing changes while all agents that run
        answer several times."""

        def size():
            return sum(
                log.count("spill: committed")
                + log.count("spill: given up")
                + log.count("save: committed")
                for log in map(cluster.log, range(PARTS))
            ), tuple(sorted(spilled(self.spill).items()))

        asked = next(node for node in range(PARTS) if cluster.runs(node))
        last, since, answers = size(), time.monotonic(), 0
        # One that is not ended may never be.
        while answers < 3 or time.monotonic() - since < (
            0.7 if all(spilled(self.spill).values()) else 5
        ):
            cluster.wait_met(asked)
            answers += 1
            time.sleep(0.05)
            if size() != last:
                last, since, answers = size(), time.monotonic(), 0

    def test_files_are_the_state(self):
        with self.cluster() as cluster:
            cluster.start()
            trainers = cluster.train(step_us=20000)
            wait_for("three are spilled", lambda: cluster.log(0).count("spill: committed") >= 3)
            for trainer in trainers:
                trainer.process.terminate()
            for trainer in trainers:
                self.assertEqual(trainer.process.wait(timeout=60 * PATIENCE), OK, trainer.err())
            self.wait_quiet(cluster)
            generations = whole(self.spill)
            self.assertEqual(len(generations), 2, "spill_keep is 2")
            self.assertEqual(spilled(self.spill), {generation: True for generation in generations})
            for generation in generations:
                check_files(name_of(self.spill, generation), generation[1])
            lines = re.findall(r"spill: committed epoch=\d+ step=(\d+) dir=(\S+)", cluster.log(0))
            self.assertEqual(
                lines[-1], (str(generations[-1][1]), name_of(self.spill, generations[-1]))
            )
            for node in (1, 2):
                self.assertNotIn("spill: committed", cluster.log(node))
            code, answer, error = cairn("verify", "--agent", cluster.socket(1))
            self.assertEqual(code, OK, f"{answer} {error}")
            say(f"{len(lines)} spilled, steps {generations} read back: every byte right")

    def test_only_the_files_are_left(self):
        with self.cluster() as cluster:
            cluster.start()
            cluster.train(step_us=20000)
            self.wait_spilled(step=4)
            for node in range(PARTS):
                cluster.kill_node(node)
            cluster.stop_trainers()
            last = whole(self.spill)[-1]
            cluster.start()
            code, answer, error = cluster.restore(1)
            self.assertEqual(code, OK, f"{answer} {error}")
            self.assertEqual((answer["from"], answer["generation"]["step"]), ("files", last[1]))
            self.wait_epoch(cluster)
            code, found, text = cluster.check()
            self.assertEqual((code, found[1]), (OK, last[1]), text)
            target = cluster.path("from-files")
            code, answer, error = cluster.restore(2, "--to", target)
            self.assertEqual(code, OK, f"{answer} {error}")
            check_files(target, last[1])
            self.wait_epoch(cluster)
            cluster.train(resume=True, step_us=20000)
            newer = self.wait_spilled(last)
            self.assertGreater(newer[0], last[0], "a restore begins a new epoch")
            cluster.stop_trainers()
            self.wait_quiet(cluster)
            for generation in whole(self.spill):
                check_files(name_of(self.spill, generation), generation[1])
            say(
                f"all nodes lost: step {last[1]} is back from the files, and step {newer[1]} was "
                "spilled after it"
            )

    def listed(self, cluster, state):
        answer = cairn("snapshots", "--agent", cluster.socket(0))[1]
        return [
            (entry["epoch"], entry["step"])
            for entry in answer["generations"]
            if entry["state"] == state
        ]

    def test_any_listed_generation_can_be_restored(self):
        with self.cluster(keep="last=1,hourly=2,daily=1000") as cluster:
            cluster.start()
            cluster.train(step_us=20000)
            hour = 3600 * 10**9
            for back in range(3):  # as if an hour lay between the spills
                newest = self.wait_spilled(step=4 * back)
                commit = os.path.join(name_of(self.spill, newest), "COMMIT")
                then = os.stat(commit).st_mtime_ns - (3 - back) * hour
                os.utime(commit, ns=(then, then))
            self.wait_spilled(newest)
            cluster.stop_trainers()
            self.wait_quiet(cluster)
            names = {f"{epoch >> 16}:{step}": (epoch, step) for epoch, step in whole(self.spill)}
            listed = [f"{epoch}:{step}" for epoch, step in self.listed(cluster, "spilled")]
            self.assertEqual(sorted(listed), sorted(names))
            self.assertGreaterEqual(len(listed), 2, "one of each of two hours")
            (memory,) = self.listed(cluster, "committed")
            oldest = listed[-1]
            step = names[oldest][1]

            # The dry run changes nothing, and tells what is lost.
            code, answer, error = cluster.restore(0, "--generation", oldest, "--dry-run")
            self.assertEqual(code, OK, f"{answer} {error}")
            self.assertEqual((answer["from"], answer["generation"]["step"]), ("files", step))
            self.assertGreaterEqual(answer["lost_steps"], memory[1] - step)
            given_up = {(item["epoch"], item["step"], item["where"]) for item in answer["given_up"]}
            self.assertIn((*memory, "memory"), given_up)
            for name in listed[:-1]:
                self.assertIn((*map(int, name.split(":")), "files"), given_up)
            self.assertEqual(self.listed(cluster, "committed"), [memory])

            # Without a restore, every one can be written to files elsewhere.
            for name in listed:
                target = cluster.path(f"export-{name}")
                code, answer, error = cluster.restore(1, "--generation", name, "--to", target)
                self.assertEqual(code, OK, f"{answer} {error}")
                check_files(target, names[name][1])
            self.assertEqual(self.listed(cluster, "committed"), [memory])

            # What is not listed, or damaged, is refused by name, and nothing changes.
            code, answer, _ = cluster.restore(2, "--generation", "1:999999")
            self.assertEqual((code, answer["result"]), (LOST, "CAIRN_LOST"))
            commit = os.path.join(name_of(self.spill, names[oldest]), "COMMIT")
            with open(commit, "rb") as file:
                good, times = file.read(), os.stat(commit)
            with open(commit, "wb") as file:  # of the same form, and another checksum
                file.write(re.sub(rb"crc64=\w", b"crc64=z", good))
            code, answer, _ = cluster.restore(2, "--generation", oldest)
            self.assertEqual((code, answer["result"]), (LOST, "CAIRN_LOST"))
            with open(commit, "wb") as file:
                file.write(good)
            os.utime(commit, ns=(times.st_atime_ns, times.st_mtime_ns))
            self.assertEqual(self.listed(cluster, "committed"), [memory])

            code, answer, error = cluster.restore(1, "--generation", oldest)
            self.assertEqual(code, OK, f"{answer} {error}")
            self.assertEqual((answer["from"], answer["generation"]["step"]), ("files", step))
            self.wait_epoch(cluster)
            self.assertGreater(answer["epoch"], memory[0], "a new epoch")
            code, found, text = cluster.check()
            self.assertEqual((code, found[1]), (OK, step), text)

            # The decision stands: a launcher does not go back to the newest.
            code, _, error = run(*("run", "--agent", cluster.socket(2), "--resume", "--", "true"))
            self.assertEqual(code, OK, error)
            self.assertIn(f"step {step},", error)
            code, answer, error = cluster.restore(1, "--dry-run")
            self.assertEqual(answer["decided"]["step"], step, error)
            self.assertEqual(answer["generation"]["step"], memory[1], "by name it can be taken")

            # Training goes on from there, and the rule keeps what it should.
            cluster.train(resume=True, step_us=20000)
            newer = self.wait_spilled(whole(self.spill)[-1])
            self.assertGreater(newer[0], names[oldest][0])
            cluster.wait_committed(memory)
            cluster.stop_trainers()
            self.wait_quiet(cluster)
            check_files(name_of(self.spill, newer), newer[1])
            say(f"{len(listed)} listed, and each could be taken; back from {memory[1]} to {step}")

    def test_a_disk_that_hangs_does_not_stop_commits(self):
        """One node's spill directory hangs, as a dead file server does: with two slots a spill
        takes the one that the next generation needs, so it is given up."""
        faults = self.new_folder()
        prefix = (
            "env",
            f"LD_PRELOAD={FAULTS}",
            f"CAIRN_FAULTS={faults}",
            f"CAIRN_FAULT_FILES={self.spill}",
        )
        with self.cluster(every=1, slots=2, prefixes=[(), (), prefix]) as cluster:
            cluster.start()
            cluster.train(step_us=20000)
            self.wait_spilled(step=4)
            with open(os.path.join(faults, "files"), "w"):
                pass

            def stuck():
                checks = cluster.status(0).get("checks", [])
                return [check for check in checks if check["code"] == "spill-stuck"]

            found = wait_for("the status names the disk", stuck, 60)
            self.assertIn("node 2", found[0]["what"])
            for _ in range(3):
                cluster.wait_committed(cluster.committed(), 15)
            os.unlink(os.path.join(faults, "files"))  # else the agent cannot end
            cluster.stop_trainers()
            say(f"commits go on: {found[0]['what']}")

    def test_export_while_it_trains(self):
        with self.cluster(every=0) as cluster:
            cluster.start()
            cluster.train(step_us=20000)
            cluster.wait_committed((0, 3))
            steps = []
            for attempt in range(3):
                target = cluster.path(f"export{attempt}")
                if attempt == 1:
                    os.mkdir(target)  # an empty one is as good as none
                code, answer, error = cluster.restore(attempt, "--to", target)
                self.assertEqual(code, OK, f"{answer} {error}")
                steps.append(answer["generation"]["step"])
                check_files(target, steps[-1])
            before = sorted(
                (name, os.stat(os.path.join(target, name)).st_mtime_ns)
                for name in os.listdir(target)
            )
            code, answer, error = cairn("restore", "--agent", cluster.socket(0), "--to", target)
            self.assertIn(code, (1, USAGE, INPUT), f"{answer} {error}")
            self.assertIn("not empty", error + json.dumps(answer))
            after = sorted(
                (name, os.stat(os.path.join(target, name)).st_mtime_ns)
                for name in os.listdir(target)
            )
            self.assertEqual(before, after)
            self.assertFalse(spilled(self.spill))
            say(
                f"steps {steps} exported while training went on; a directory that is not empty was "
                "left alone"
            )

    def test_killed_in_mid_spill(self):
        seed = int(os.environ.get("SEED", random.SystemRandom().randrange(1 << 32)))
        chance = random.Random(seed)
        checked, unfinished = set(), 0
        elements = 120000
        with self.cluster(every=1, keep=3, state="8MiB") as cluster:
            cluster.start()
            cluster.train(step_us=20000, elements=elements)
            for attempt in range(8):
                known = set(spilled(self.spill))
                wait_for("a spill begins", lambda known=known: set(spilled(self.spill)) - known, 60)
                time.sleep(chance.random() * 0.03)
                node = chance.randrange(PARTS)
                cluster.kill_node(node)
                now = spilled(self.spill)
                unfinished += sum(not committed for committed in now.values())
                cluster.stop_trainers()
                self.wait_quiet(cluster)
                for generation in set(whole(self.spill)) - checked:
                    check_files(name_of(self.spill, generation), generation[1], elements)
                    checked.add(generation)
                asked = (node + 1) % PARTS
                met = cluster.log(asked).count(f"peer: up node={node} ")
                cluster.start(node)
                # A restore that does not see the new agent yet goes on without it, and its rank
                # with it.
                wait_for(
                    "the others have met the new agent",
                    lambda: cluster.log(asked).count(f"peer: up node={node} ") > met,
                )
                code, answer, error = cluster.restore(asked)
                self.assertEqual(code, OK, f"seed {seed}: {answer} {error}")
                self.wait_epoch(cluster)
                cluster.train(resume=True, step_us=20000, elements=elements)
            self.wait_spilled((whole(self.spill) or [(0, 0)])[-1], seconds=60)
            cluster.stop_trainers()
            self.wait_quiet(cluster)
            for generation in set(whole(self.spill)) - checked:
                check_files(name_of(self.spill, generation), generation[1], elements)
                checked.add(generation)
            for generation, committed in spilled(self.spill).items():
                self.assertTrue(
                    committed or generation > whole(self.spill)[-1],
                    f"seed {seed}: {generation} was left",
                )
            say(
                f"8 kills (seed {seed}), {unfinished} of them met a spill that was unfinished; "
                f"{len(checked)} committed, all right"
            )

    def test_full_disk(self):
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", self.spill],
            stderr=subprocess.PIPE,
            text=True,
        )
        if mounted.returncode:
            self.skipTest(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", self.spill])
        with self.cluster() as cluster:
            cluster.start()
            cluster.train(step_us=20000)
            wait_for("the full disk is met", lambda: "spill: given up" in cluster.log(0), 30)
            begun = time.monotonic()
            start = cluster.committed()
            newest = cluster.wait_committed((start[0], start[1] + 30), 60)
            said = re.findall(r"spill: given up.*", cluster.log(0))
            # it is tried again every 60 s
            self.assertLessEqual(len(said), 1 + (time.monotonic() - begun + 30) // 60, said)
            self.assertIn("no space is left", said[0])
            checks = {check["code"]: check for check in cluster.status(0)["checks"]}
            self.assertEqual(checks["spill-failed"]["level"], "WARN")
            for word in ("no space is left", self.spill, "errno 28"):
                self.assertIn(word, checks["spill-failed"]["what"])
            found = self.found(("doctor", "--config", cluster.path("node1.yaml")), "spill")
            self.assertIn("errno 28", found["what"])
            wait_for("what was written is removed", lambda: all(spilled(self.spill).values()), 20)
            for generation in whole(self.spill):  # one that fitted
                check_files(name_of(self.spill, generation), generation[1])
            cluster.stop_trainers()
            code, answer, error = cluster.restore(2)
            self.assertEqual(code, OK, f"{answer} {error}")
            self.wait_epoch(cluster)
            code, found, text = cluster.check()
            self.assertEqual(code, OK, text)
            self.assertGreaterEqual(found, newest)
            say(f"said {len(said)} time(s) in {newest[1] - start[1]} generations: {said[0]}")

    def test_a_failing_spill_is_a_warning(self):
        """Status and doctor name the path and the errno until a spill succeeds again."""
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", self.spill],
            stderr=subprocess.PIPE,
            text=True,
        )
        if mounted.returncode:
            self.skipTest(f"a disk cannot be mounted here: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", self.spill])

        def remounted(mode):  # busy while a spill writes
            return not subprocess.run(
                ["mount", "-o", f"remount,{mode}", self.spill], stderr=subprocess.DEVNULL
            ).returncode

        def warnings(cluster, node):
            checks = cluster.status(node).get("checks", [])
            return [check for check in checks if check["code"] == "spill-failed"]

        with self.cluster() as cluster:
            cluster.start()
            cluster.train(step_us=20000)
            self.wait_spilled()
            self.assertEqual(warnings(cluster, 0), [])
            doctor = ("doctor", "--config", cluster.path("node0.yaml"))
            self.assertEqual(self.found(doctor, "spill_dir")["level"], "OK")
            self.assertIsNone(self.found(doctor, "spill"))
            wait_for("the disk is read-only", lambda: remounted("ro"))
            last = whole(self.spill)[-1]
            (failed,) = wait_for("the status warns", lambda: warnings(cluster, 1), 60)
            self.assertEqual(failed["level"], "WARN")
            self.assertRegex(failed["what"], rf"node 0: .*{self.spill}.* \(errno 30: Read-only")
            self.assertEqual(cluster.status(1)["health"], "WARN")
            for code, said in (("spill_dir", "errno 30"), ("spill", "errno 30: Read-only")):
                found = self.found(doctor, code)
                self.assertEqual(found["level"], "WARN")
                self.assertIn(self.spill, found["what"])
                self.assertIn(said, found["what"])
            event = cluster.events("spill", node=1)[-1]
            self.assertEqual((event["node"], event["generation_step"] > last[1]), (0, True), event)
            self.assertRegex(event["why"], rf"{self.spill}.* \(errno 30: Read-only")
            cluster.wait_committed(cluster.committed())
            wait_for("the disk can be written", lambda: remounted("rw"))
            self.assertEqual(self.found(doctor, "spill_dir")["level"], "OK")
            self.assertEqual(self.found(doctor, "spill")["level"], "WARN")
            self.wait_spilled(last, seconds=90)  # it is tried again after 60 s
            wait_for("the warning ends", lambda: not warnings(cluster, 0))
            self.assertIsNone(self.found(doctor, "spill"))

    def found(self, doctor, code):
        """What `cairn doctor` finds under this code; None: nothing."""
        _, answer, error = cairn(*doctor)
        self.assertIsNotNone(answer, error)
        return next((each for each in answer["findings"] if each["code"] == code), None)

    def test_directory_is_not_shared(self):
        with self.cluster() as cluster:
            own = cluster.path("own-spill")
            path = cluster.path("node2.yaml")
            with open(path) as file:
                text = file.read()
            with open(path, "w") as file:
                file.write(text.replace(f"spill_dir: {self.spill}", f"spill_dir: {own}"))
            cluster.start()
            cluster.train(step_us=20000)
            wait_for(
                "it is said",
                lambda: "must be one directory that all nodes share" in cluster.log(0),
                30,
            )
            self.assertIn("is not there on node 2", cluster.log(0))
            cluster.wait_committed(cluster.committed())
            self.assertFalse(whole(self.spill) + whole(own))

    def test_files_of_others_are_left_alone(self):
        with self.cluster(every=1) as cluster:
            cluster.start()
            cluster.train(step_us=20000)
            self.wait_spilled(step=12)
            cluster.stop_trainers()
            self.wait_quiet(cluster)
            old = whole(self.spill)
        with self.cluster(every=1) as cluster:  # begun again, not restored
            cluster.start()
            cluster.train(step_us=20000)
            newer = self.wait_spilled(old[-1])
            self.assertGreater(newer[0], old[-1][0], "the files' epoch is not used again")
            cluster.stop_trainers()
            self.wait_quiet(cluster)
            old = whole(self.spill)
        with open(os.path.join(self.spill, "cairn-job"), "w") as file:
            file.write("another")
        with self.cluster(every=1) as cluster:
            cluster.start()
            cluster.train(step_us=20000)
            wait_for("it is said", lambda: 'of job "another"' in cluster.log(0), 30)
            cluster.stop_trainers()
            self.assertEqual(whole(self.spill), old)
            for generation in old:
                check_files(name_of(self.spill, generation), generation[1])


if __name__ == "__main__":
    random.seed()
    unittest.main(verbosity=2, argv=sys.argv)
