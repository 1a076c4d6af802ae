#!/usr/bin/env python3
"""The Debian package: built by `make deb`, installed by dpkg into an empty root, put over /usr in a
namespace of its own. The installed command, library and headers protect a small job there, and
nothing of the host changes."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import harness
from harness import OK, PATIENCE, ROOT, Cluster, build, wait_for

NEEDED = ("dpkg", "dpkg-deb", "dpkg-shlibdeps", "nsenter", "pkg-config", "gcc")


def missing():
    for name in NEEDED:
        if not shutil.which(name):
            return f"{name} is not installed"
    return None if os.geteuid() == 0 else "needs root, for a mount namespace and dpkg"


def output(*words, **options):
    done = subprocess.run(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120 * PATIENCE,
        **options,
    )
    assert done.returncode == 0, f"{words}: {done.stdout}"
    return done.stdout


@unittest.skipIf(missing(), missing())
class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        build()
        made = ["make", "-s", "BUILD=" + os.path.relpath(harness.BUILD, ROOT), "deb"]
        output(*made, cwd=ROOT)
        cls.dir = tempfile.mkdtemp(prefix="cairn-test-")
        cls.addClassCleanup(shutil.rmtree, cls.dir, ignore_errors=True)
        folder = os.path.join(ROOT, "build", "deb")
        cls.package = max(
            (os.path.join(folder, name) for name in os.listdir(folder)), key=os.path.getmtime
        )
        cls.root = os.path.join(cls.dir, "root")
        admin = os.path.join(cls.root, "var/lib/dpkg")
        for name in ("info", "updates", "triggers"):
            os.makedirs(os.path.join(admin, name))
        # dpkg finds the dependencies among this machine's packages, or refuses.
        shutil.copy("/var/lib/dpkg/status", admin)

    def dpkg(self, *words):
        return output("dpkg", f"--root={self.root}", "--no-triggers", *words)

    def listed(self):
        """The files that are in the root, without dpkg's own."""
        return sorted(
            os.path.relpath(os.path.join(folder, name), self.root)
            for folder, _, names in os.walk(self.root)
            for name in names
            if "/var/lib/dpkg" not in folder
        )

    def test_installed(self):
        self.assertEqual(
            set(
                output("dpkg-deb", "--ctrl-tarfile", self.package, encoding="latin-1").split("\0")[
                    :1
                ]
            ),
            {"./"},
        )
        control = output("dpkg-deb", "--info", self.package)
        # No script runs as root when it is installed or removed.
        self.assertIsNone(re.search(r"\b(preinst|postinst|prerm|postrm|config)\b", control))
        for library in ("libc6", "libisal2", "libssl3", "librocksdb", "libyaml-0-2"):
            self.assertIn(library, re.search(r"Depends: (.*)", control)[1])
        owners = set(re.findall(r"(?m)^\S+ (\S+)", output("dpkg-deb", "--contents", self.package)))
        self.assertEqual(owners, {"root/root"})

        self.dpkg("-i", self.package)
        try:
            self.assertEqual(self.dpkg("--verify", "cairn"), "")
            files = self.listed()
            for path in (
                "usr/bin/cairn",
                "usr/include/cairn/client.h",
                "usr/lib/libcairn.so",
                "usr/lib/pkgconfig/cairn.pc",
                "usr/lib/systemd/system/cairn-agent.service",
                "usr/share/bash-completion/completions/cairn",
                "usr/share/doc/cairn/examples/agent.yaml",
                "usr/lib/cairn/kubernetes/start.sh",
                "usr/share/man/man1/cairn-status.1.gz",
                "usr/share/zsh/vendor-completions/_cairn",
            ):
                self.assertIn(path, files)
            unit = os.path.join(self.root, "usr/lib/systemd/system/cairn-agent.service")
            with open(unit) as file:
                self.assertIn("ExecStart=/usr/bin/cairn agent", file.read())
            # nothing is enabled, and no configuration is there that nobody wrote
            self.assertEqual([name for name in files if not name.startswith("usr/")], [])
            self.protect()
        finally:
            self.dpkg("-P", "cairn")
        self.assertEqual(self.listed(), [])

    def inside(self, name, *command):
        """A program that runs the command where the package lies over /usr."""
        path = os.path.join(self.dir, name)
        with open(path, "w") as file:
            place = f"/proc/{self.holder.pid}/ns/mnt"
            file.write(f'#!/bin/sh\nexec nsenter --mount={place} -- {" ".join(command)} "$@"\n')
        os.chmod(path, 0o755)
        return path

    def protect(self):
        """Three installed agents and trainers; a node is lost, and its part is rebuilt."""
        mount = f"mount -t overlay -o lowerdir={self.root}/usr:/usr overlay /usr"
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", f"{mount} && echo ready && exec sleep infinity"],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=harness.die_with_parent,
        )
        try:
            self.assertEqual(self.holder.stdout.readline(), "ready\n")
            compiler = self.inside("compiler", "sh", "-c", "'exec gcc \"$@\"'", "gcc")
            flags = output(
                self.inside("flags", "pkg-config"), "--cflags", "--libs", "cairn"
            ).split()
            program = os.path.join(self.dir, "trainer.bin")
            source = os.path.join(ROOT, "tests/cluster/trainer.c")
            output(compiler, "-D_GNU_SOURCE", "-o", program, source, *flags, cwd="/")
            harness.TRAINER = self.inside("trainer", program)
            harness.CAIRN = self.inside("cairn", "/usr/bin/cairn")
            self.assertNotEqual(
                subprocess.run([program], stderr=subprocess.DEVNULL).returncode,
                harness.USAGE,
                "the library is the installed one",
            )
            self.assertEqual(subprocess.run([harness.TRAINER]).returncode, harness.USAGE)
            self.job()
        finally:
            self.holder.kill()
            self.holder.wait()
            self.holder.stdout.close()

    def job(self):
        cluster = Cluster(3, parity=1)
        try:
            cluster.programs = ["/usr/bin/cairn"] * 3
            cluster.prefixes = [["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", "--"]] * 3
            cluster.start()
            cluster.train()
            cluster.wait_committed(cluster.committed())
            cluster.kill_node(1)
            cluster.stop_trainers()
            newest = cluster.committed()
            cluster.start(1)
            self.assertEqual(cluster.restore(1)[0], OK)
            code, found, text = cluster.check(node=1)
            self.assertEqual(code, OK, text)
            self.assertGreaterEqual(found[1], newest[1])
        finally:
            cluster.close()


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
