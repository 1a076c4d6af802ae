#!/usr/bin/env python3
"""Writes the public headers as a later version might have them: every struct that begins with
struct_bytes has more fields at its end.

    larger.py SOURCE_FOLDER TARGET_FOLDER

A library and a caller that are compiled with them stand for newer versions (test_abi.c).
"""
import os
import re
import sys

GROWING = re.compile(r"(struct cairn_\w+ \{\n    uint32_t struct_bytes;.*?\n)(\};)", re.S)
ADDED = "    uint64_t added[3];\n"


def larger(text):
    """The text with the added fields, and how many structs have got them."""
    return GROWING.subn(lambda found: found[1] + ADDED + found[2], text)


def main():
    source, target = sys.argv[1:]
    os.makedirs(target, exist_ok=True)
    total = 0
    for name in sorted(os.listdir(source)):
        with open(os.path.join(source, name), encoding="utf-8") as file:
            text, count = larger(file.read())
        if name == "client.h":
            text = "#define CAIRN_TEST_LARGER 1\n" + text
        with open(os.path.join(target, name), "w", encoding="utf-8") as file:
            file.write(text)
        total += count
    if total == 0:
        sys.exit(
            f"{source}: no struct begins with struct_bytes; adapt {os.path.basename(__file__)}"
        )


if __name__ == "__main__":
    main()
