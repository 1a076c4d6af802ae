#!/usr/bin/env python3
"""The node's socket: a process that claims another's rank, and a server of another user. Each test
is an attack."""
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster"))
from harness import BUILD, CAIRN, DENIED, PATIENCE, TRAINER, Built, wait_for

PROTOCOL, FRAMING, RINGS_REQUEST = 5, 1, 0x7FFFFFFF
HELLO, TIMING, WELCOME, REFUSED = 1, 13, 64, 65
VICTIM, THIEF = 12345, 23456  # users


def frame(kind, payload, fds=0):
    return struct.pack("<IHBB", len(payload), kind, FRAMING, fds) + payload


def hello(rank, world):
    job = b"cluster"
    return frame(
        HELLO,
        struct.pack("<III", PROTOCOL, 1, len(job))
        + job
        + struct.pack("<IIIQQ", rank, world, 1, os.getpid(), 0),
    )


def read_frame(connection):
    head = connection.recv(8, socket.MSG_WAITALL)
    if len(head) < 8:
        return None, b""
    size, kind, _, _ = struct.unpack("<IHBB", head)
    return kind, connection.recv(size, socket.MSG_WAITALL)


class Ranks(Built):
    def test_rings_of_a_rank_that_another_process_holds(self):
        """Forged timing has the rank called hanging, and the operator's command run on it."""
        cluster = self.cluster(1, 0)
        cluster.start()
        trainer = cluster.train(timing=True, step_us=5000, elements=2000)[0]
        wait_for("its timing is read", lambda: "timing: reads rank=0" in cluster.log(0))
        ring = os.memfd_create("cairn-timing", os.MFD_ALLOW_SEALING)
        self.addCleanup(os.close, ring)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10 * PATIENCE)
            connection.connect(cluster.socket(0))
            connection.sendall(hello(0, 1))
            self.assertEqual(read_frame(connection)[0], WELCOME)
            socket.send_fds(connection, [frame(TIMING, struct.pack("<I", 0), 1)], [ring])
            kind, payload = read_frame(connection)
            while kind not in (REFUSED, None):
                kind, payload = read_frame(connection)
        self.assertEqual(kind, REFUSED)
        self.assertEqual(struct.unpack("<I", payload[:4])[0], RINGS_REQUEST)
        for pid in (trainer.process.pid, os.getpid()):
            self.assertIn(f"process {pid} (", payload[12:].decode())
            self.assertIn(f"process {pid} (", cluster.log(0))
        self.assertNotIn("a ring of rank=0 is not read", cluster.log(0))
        seen = cluster.status()["detection"]["steps"]
        wait_for(
            "the rank's own timing is read on",
            lambda: cluster.status()["detection"]["steps"] > seen,
        )


@unittest.skipIf(os.geteuid() != 0, "needs root: processes of two users")
class Servers(Built):
    """Another user listens where the victim expects its agent."""

    def setUp(self):
        # not below TMPDIR, which may be root's alone
        self.dir = tempfile.mkdtemp(prefix="cairn-hostile-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir)
        os.chmod(self.dir, 0o755)
        for program in (CAIRN, TRAINER, os.path.join(BUILD, "libcairn.so.1")):
            shutil.copy(program, self.dir)
        self.path, self.barrier = (os.path.join(self.dir, name) for name in ("socket", "barrier"))
        with open(self.barrier, "wb") as file:
            file.write(bytes(4096))
        os.chmod(self.barrier, 0o666)
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        os.seteuid(THIEF)  # SO_PEERCRED tells who called listen
        try:
            listener.settimeout(20)
            os.seteuid(0)
            listener.bind(self.path)
            os.chmod(self.path, 0o666)
            os.seteuid(THIEF)
            listener.listen()
        finally:
            os.seteuid(0)
        self.listener = listener

    def run_as_victim(self, *words):
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                [str(word) for word in words],
                user=VICTIM,
                group=VICTIM,
                extra_groups=[],
                stdout=said,
                stderr=said,
                stdin=subprocess.DEVNULL,
                cwd=self.dir,
                env={"LD_LIBRARY_PATH": self.dir, "PATH": os.environ["PATH"]},
            )
            self.addCleanup(process.kill)
            connection, _ = self.listener.accept()
            connection.settimeout(60 * PATIENCE)
            heard = connection.recv(4096)
            connection.close()
            if heard:
                process.kill()
            status = process.wait(timeout=60 * PATIENCE)
            said.seek(0)
            return heard, status, said.read().decode()

    def test_commands(self):
        heard, status, said = self.run_as_victim(
            os.path.join(self.dir, "cairn"), "status", "--agent", self.path
        )
        self.assertEqual((heard, status), (b"", DENIED), said)

    def test_trainers(self):
        program = os.path.join(self.dir, "trainer")
        options = f"--rank 0 --world 1 --parts 1 --barrier {self.barrier} --elements 100"
        heard, status, said = self.run_as_victim(
            program, *options.split(), "--step-us", 100, "--restore-ms", 1000, "--agent", self.path
        )
        self.assertEqual(heard, b"", said)
        self.assertIn("belongs to another user", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
