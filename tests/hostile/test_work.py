#!/usr/bin/env python3
"""Small files that ask for much work. Each test is an attack; the bound is in processor seconds."""
import json
import os
import pickle
import resource
import struct
import subprocess
import sys
import unittest
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster"))
from harness import CAIRN, OK, USAGE, Built

OBJECTS = 250_000
STORAGE = b"ctorch\nFloatStorage\n"
CPU_S_MAX = 10  # a quarter of a million objects take some 4 s


class Work(Built):
    def setUp(self):
        self.dir = self.new_folder()

    def test_many_small_objects(self):
        """Each becomes an entry of its own; none may cost what the whole file costs."""
        path = os.path.join(self.dir, "many.pt")
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            tree = {"state": {f"k{i}": None for i in range(OBJECTS)}}
            archive.writestr("archive/data.pkl", pickle.dumps(tree, protocol=2))
            archive.writestr("archive/version", "3\n")
        self.inspect(path)

    def test_many_notes(self):
        """Each key of "__metadata__" is looked up among all earlier keys."""
        notes = {f"k{i}": "" for i in range(OBJECTS)}
        tensor = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
        header = json.dumps({"__metadata__": notes, "w": tensor}).encode()
        path = os.path.join(self.dir, "notes.safetensors")
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header + bytes(4))
        self.inspect(path)

    def test_expanded_tensor(self):
        """One stored element, seen 2**40 times: no verb reads or writes terabytes unasked."""
        path, out = os.path.join(self.dir, "expanded.pt"), os.path.join(self.dir, "out")
        shape = b"J" + struct.pack("<i", 1 << 20)
        # {"w": torch._utils._rebuild_tensor_v2(storage, 0, (2**20, 2**20), (0, 0), False, {})}
        program = b"\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n(("
        for text in (b"storage", None, b"0", b"cpu"):
            program += b"X" + struct.pack("<I", len(text)) + text if text else STORAGE
        program += b"K\x01tQK\x00" + shape + shape + b"\x86K\x00K\x00\x86\x89}tRs."
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("archive/data.pkl", program)
            archive.writestr("archive/data/0", bytes(4))
            archive.writestr("archive/version", "3\n")
        for words in (["convert", path, out, "--to", "safetensors"], ["fingerprint", path]):
            self.assertEqual(self.run_bounded(*words).returncode, USAGE, words)
        self.assertFalse(os.path.exists(out))
        self.assertEqual(self.run_bounded("diff", path, path).returncode, USAGE)
        allowed = ["convert", path, out, "--to", "safetensors", "--allow-expanded", "--dry-run"]
        self.assertEqual(self.run_bounded(*allowed).returncode, OK)

    def run_bounded(self, *words):
        return subprocess.run(
            [CAIRN, *words],
            stdout=subprocess.DEVNULL,
            timeout=600,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX)),
        )

    def inspect(self, path):
        ended = self.run_bounded("inspect", path)
        self.assertEqual(ended.returncode, OK)


if __name__ == "__main__":
    unittest.main(verbosity=2)
