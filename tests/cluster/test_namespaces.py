#!/usr/bin/env python3
"""Two nodes in network namespaces of their own, joined by a link that is cut and healed; off
loopback every agent needs the key."""
import os
import shutil
import subprocess
import unittest

from harness import CONFIG, DENIED, OK, PATIENCE, Built, Cluster, cairn, say, wait_for

NAMES = [f"cairn{os.getpid()}a", f"cairn{os.getpid()}b"]


def ip(*words):
    return subprocess.run(
        ["ip", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def why_not():
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip"):
        return "the ip command is not installed"
    made = ip("netns", "add", NAMES[0])
    if made.returncode:
        return f"no network namespace can be made: {made.stdout.strip()}"
    ip("netns", "del", NAMES[0])
    return None


class Namespaces(Built):
    def setUp(self):
        reason = why_not()
        if reason:
            self.skipTest(reason)
        self.addCleanup(lambda: [ip("netns", "del", name) for name in NAMES])
        for name in NAMES:
            self.assertEqual(ip("netns", "add", name).returncode, 0)
        made = ip(
            "link",
            "add",
            "link0",
            "netns",
            NAMES[0],
            "type",
            "veth",
            "peer",
            "name",
            "link0",
            "netns",
            NAMES[1],
        )
        if made.returncode:
            self.skipTest(f"no link between namespaces can be made: {made.stdout.strip()}")
        for i, name in enumerate(NAMES):
            for words in (
                ("addr", "add", f"10.77.0.{i + 1}/24", "dev", "link0"),
                ("link", "set", "dev", "link0", "up"),
                ("link", "set", "dev", "lo", "up"),
            ):
                self.assertEqual(ip("-n", name, *words).returncode, 0)

    def cluster(self, options):
        cluster = Cluster(
            2,
            1,
            options=options,
            addresses=["10.77.0.1:7431", "10.77.0.2:7431"],
            prefixes=[("ip", "netns", "exec", name) for name in NAMES],
        )
        self.addCleanup(cluster.close)
        return cluster

    def test_key_is_needed(self):
        cluster = self.cluster("")
        cluster.start(0, wait=False)
        code = cluster.agents[0].wait(timeout=30 * PATIENCE)
        say(f"without a key: exit {code}: {cluster.log(0).strip().splitlines()[-1]}")
        self.assertEqual(code, CONFIG)
        self.assertIn("key", cluster.log(0))
        key = cluster.path("key")
        with open(key, "wb") as file:
            file.write(os.urandom(32))
        os.chmod(key, 0o644)
        cluster = self.cluster(f"key_file: {key}")
        cluster.start(0, wait=False)
        self.assertEqual(cluster.agents[0].wait(timeout=30 * PATIENCE), DENIED, cluster.log(0))

    def test_cut_and_healed(self):
        cluster = self.cluster("key_file: /tmp/replaced")
        key = cluster.path("key")
        with open(key, "wb") as file:
            file.write(os.urandom(32))
        os.chmod(key, 0o600)
        for i in range(2):
            with open(cluster.path(f"node{i}.yaml"), "r+") as file:
                text = file.read().replace("/tmp/replaced", key)
                file.seek(0)
                file.truncate()
                file.write(text)
        cluster.start()
        trainers = cluster.train(step_us=40000)
        cluster.wait_committed((1, 3))
        self.assertEqual(ip("-n", NAMES[0], "link", "set", "dev", "link0", "down").returncode, 0)
        wait_for("both notice the cut", lambda: all("down" in cluster.log(i) for i in range(2)), 60)
        mark = trainers[0].step()
        before = cluster.committed()
        wait_for("training goes on without protection", lambda: trainers[0].step() > mark + 5)
        self.assertEqual(ip("-n", NAMES[0], "link", "set", "dev", "link0", "up").returncode, 0)
        after = cluster.wait_committed(max(before, cluster.committed()), 60)
        say(f"cut at generation {before}, healed: {after} is committed; training went on")
        self.assertTrue(all(trainer.process.poll() is None for trainer in trainers))
        cluster.stop_trainers()
        code, answer, error = cluster.restore(1)
        self.assertEqual(code, OK, f"{answer} {error}")
        self.assertEqual(cluster.check()[0], OK)
        self.assertEqual(cairn("verify", "--agent", cluster.socket(0))[0], OK)


if __name__ == "__main__":
    unittest.main(verbosity=2)
