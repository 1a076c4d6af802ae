#!/usr/bin/env python3
"""Names in files, on the command line and from agents that try to steer the terminal. Each test is
an attack; the checks are over all bytes that a verb prints, into a pipe and to a terminal."""
import json
import os
import pty
import socket
import struct
import subprocess
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster"))
from harness import CAIRN, Built

STEERING = [chr(c) for c in (*range(0x20), *range(0x7F, 0xA0)) if chr(c) not in "\n\t"]
STEERING += list("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
OWN = ("\x1b[K", "\x1b[0m", "\x1b[1m", "\x1b[1;31m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\r")
EVIL = "w\x1b[2J\x1b]0;owned\x07\x7f\u009b31m\u202egnp\u2066\u061c\u200f"
TURNED = "w\u202egnp\u2066\u061c\u200f"  # a name that safetensors files may have


def safetensors(name):
    header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + b"\0\0\x80\x3f"


class Output(Built):
    def setUp(self):
        self.dir = self.new_folder()

    def at(self, *names):
        return os.path.join(self.dir, *names)

    def on_terminal(self, command):
        """What a command prints to a terminal; the terminal itself turns \\n into \\r\\n."""
        main, end = pty.openpty()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=end, stderr=end, env={"TERM": "xterm"}
        )
        os.close(end)
        printed = b""
        while True:
            try:
                got = os.read(main, 65536)
            except OSError:
                break
            if not got:
                break
            printed += got
        os.close(main)
        process.wait(timeout=60)
        text = printed.decode()
        for sequence in ("\r\n", *OWN):
            text = text.replace(sequence, "\n" if sequence == "\r\n" else "")
        return text

    def check(self, *words):
        """Runs a verb twice; returns what it printed into a pipe."""
        command = [CAIRN, *words]
        ended = subprocess.run(command, capture_output=True, timeout=60)
        printed = (ended.stdout + ended.stderr).decode()
        for text in (printed, self.on_terminal(command)):
            found = sorted({hex(ord(c)) for c in text if c in STEERING})
            self.assertEqual(found, [], f"{words}: {text!r}")
        return printed

    def write(self, name, data):
        with open(self.at(name), "wb") as file:
            file.write(data)
        return self.at(name)

    def test_tensor_names(self):
        self.check("inspect", self.write("refused.safetensors", safetensors(EVIL)))
        one = self.write("one.safetensors", safetensors(TURNED))
        two = self.write("two.safetensors", safetensors(TURNED + "2"))
        self.assertIn("gnp", self.check("inspect", one))
        self.check("fingerprint", one)
        answer = subprocess.run([CAIRN, "inspect", one, "-o", "json"], capture_output=True)
        self.assertIn(TURNED, [tensor["name"] for tensor in json.loads(answer.stdout)["tensors"]])
        self.check("diff", one, two)
        self.check("diff", one, two, "-o", "json")
        self.check("convert", one, self.at("out"), "--to", "universal")
        self.check("convert", one, self.at("out.pt"), "--to", "torch", "--dry-run")

    def test_file_names(self):
        for name in (EVIL.encode(), b"raw\x9b\xff\xe2\x80"):
            path = os.path.join(self.dir.encode(), name)
            for verb in ("inspect", "fingerprint", "trace", "profile", "plan", "simulate"):
                self.check(verb, path)
            os.mkdir(path)
            for file in (b"model.safetensors", name + b".safetensors"):
                with open(os.path.join(path, file), "wb") as out:
                    out.write(b"\x10\0\0\0\0\0\0\0{" + name[:4] + b"}          ")
            for verb in ("inspect", "fingerprint"):
                self.check(verb, path)
        self.check(EVIL)
        self.check("inspect", "--" + EVIL)
        self.check("status", "--agent", EVIL)

    def test_job_names(self):
        for line in (f"job: {json.dumps(EVIL)}", f'job: "{EVIL}"', f"{EVIL}: 1"):
            config = self.write("cairn.yaml", line.encode() + b"\n")
            self.check("agent", "--config", config, "--check")
            self.check("doctor", "--config", config)

    def test_agents_answers(self):
        """Something else serves the socket, and answers with text of its own."""
        path = self.at("sock")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(listener.close)
        listener.bind(path)
        listener.listen(8)

        def serve():
            while True:
                try:
                    peer, _ = listener.accept()
                    peer.settimeout(2)
                    with peer:
                        peer.recv(65536)
                        peer.send(EVIL.encode() * 3)
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        self.check("status", "--agent", path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
