#!/usr/bin/env python3
"""Files that somebody else placed: links out of a checkpoint, FIFOs and links where `cairn convert`
reads and writes. Each test is an attack."""
import json
import os
import struct
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster"))
from harness import CAIRN, INPUT, OK, Built

VALUES = struct.pack("<4f", 1.0, 2.0, 3.0, 4.0)


def safetensors(name, data=VALUES):
    header = json.dumps(
        {name: {"dtype": "F32", "shape": [len(data) // 4], "data_offsets": [0, len(data)]}}
    ).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


class Files(Built):
    def setUp(self):
        self.dir = self.new_folder()

    def at(self, *names):
        return os.path.join(self.dir, *names)

    def run_cairn(self, *words):
        """Exit status and stderr; a command that hangs fails the test."""
        ended = subprocess.run([CAIRN, *words], capture_output=True, text=True, timeout=60)
        return ended.returncode, ended.stderr

    def convert(self, source, target, *options):
        return self.run_cairn("convert", source, target, "--to", "universal", *options)

    def test_link_out_of_the_checkpoint(self):
        write(self.at("mine", "secret.safetensors"), safetensors("secret"))
        os.mkdir(self.at("got"))
        os.symlink(self.at("mine", "secret.safetensors"), self.at("got", "model.safetensors"))
        for verb in (["inspect"], ["fingerprint"], ["diff", self.at("got")]):
            status, said = self.run_cairn(*verb, self.at("got"))
            self.assertEqual(status, INPUT, said)
            self.assertIn("--follow-links", said)
        status, said = self.convert(self.at("got"), self.at("out"))
        self.assertEqual(status, INPUT, said)
        self.assertFalse(os.path.exists(self.at("out", "COMMIT")))
        status, said = self.convert(self.at("got"), self.at("out"), "--follow-links")
        self.assertEqual(status, OK, said)

    def test_folder_that_is_a_link(self):
        """The names of files come from an index; one goes through a link to a folder."""
        write(self.at("mine", "secret.safetensors"), safetensors("secret"))
        index = {"metadata": {}, "weight_map": {"secret": "sub/secret.safetensors"}}
        write(self.at("got", "model.safetensors.index.json"), json.dumps(index).encode())
        os.symlink(self.at("mine"), self.at("got", "sub"))
        status, said = self.convert(self.at("got"), self.at("out"))
        self.assertEqual(status, INPUT, said)

    def test_hugging_face_cache(self):
        """Links into blobs of the same model work; those into another model do not."""
        snapshot = self.at("hub", "models--org--name", "snapshots", "abc")
        write(self.at("hub", "models--org--name", "blobs", "1234"), safetensors("a"))
        write(self.at("hub", "models--other--name", "blobs", "5678"), safetensors("b"))
        os.makedirs(snapshot)
        os.symlink("../../blobs/1234", os.path.join(snapshot, "model.safetensors"))
        status, said = self.convert(snapshot, self.at("out"))
        self.assertEqual(status, OK, said)
        os.remove(os.path.join(snapshot, "model.safetensors"))
        os.symlink(
            "../../../models--other--name/blobs/5678", os.path.join(snapshot, "model.safetensors")
        )
        status, said = self.convert(snapshot, self.at("other"))
        self.assertEqual(status, INPUT, said)

    def test_named_by_the_user(self):
        """A path on the command line may be a link, to a file as well as to a folder."""
        write(self.at("store", "model.safetensors"), safetensors("a"))
        os.symlink(self.at("store"), self.at("folder"))
        os.symlink(self.at("store", "model.safetensors"), self.at("file.safetensors"))
        for name in ("folder", "file.safetensors"):
            status, said = self.run_cairn("inspect", self.at(name))
            self.assertEqual(status, OK, said)

    def test_fifo_and_device(self):
        """Neither hangs, nor is it read."""
        index = {"metadata": {}, "weight_map": {"a": "part.safetensors"}}
        write(self.at("got", "model.safetensors.index.json"), json.dumps(index).encode())
        os.mkfifo(self.at("got", "part.safetensors"))
        self.assertEqual(self.run_cairn("inspect", self.at("got"))[0], INPUT)
        os.remove(self.at("got", "part.safetensors"))
        os.symlink("/dev/zero", self.at("got", "part.safetensors"))
        for options in ([], ["--follow-links"]):
            self.assertEqual(self.run_cairn("inspect", self.at("got"), *options)[0], INPUT)

    def test_target_with_planted_names(self):
        """A journal that is a FIFO, and part files that are links: nothing outside is written to,
        and nothing hangs."""
        write(self.at("src", "model.safetensors"), safetensors("a"))
        write(self.at("victim"), b"mine")
        self.assertEqual(self.convert(self.at("src"), self.at("names"))[0], OK)
        os.makedirs(self.at("out"))
        os.mkfifo(self.at("out", ".cairn-journal"))
        self.assertNotEqual(self.convert(self.at("src"), self.at("out"))[0], OK)
        os.remove(self.at("out", ".cairn-journal"))
        write(self.at("out", ".cairn-journal"), b"")
        for name in os.listdir(self.at("names")):
            for planted in (name + ".cairn-part", name + ".new"):
                os.symlink(self.at("victim"), self.at("out", planted))
        self.assertNotEqual(self.convert(self.at("src"), self.at("out"))[0], OK)
        with open(self.at("victim"), "rb") as file:
            self.assertEqual(file.read(), b"mine")


if __name__ == "__main__":
    unittest.main(verbosity=2)
