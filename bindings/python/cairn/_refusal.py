"""Under `cairn run --relaunch`: a rank that cannot resume from the snapshot in the new shape
reports it and the job ends, instead of training from the beginning while others expect it back."""

from __future__ import annotations

import contextlib
import os

from ._current import Damaged

REASON_BYTES = 390  # tools/relaunch.c reads one line of 400


def refuse(why: str) -> None:
    """Raises Damaged if this start of the command is a relaunch, and leaves the reason for `cairn
    run` in the file CAIRN_REFUSAL. The first rank's reason stays."""
    path = os.environ.get("CAIRN_REFUSAL")
    if not path or os.environ.get("CAIRN_RELAUNCH", "0") == "0":
        return
    line = " ".join(why.split()).encode()[:REASON_BYTES]
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(line + b"\n")
    raise Damaged(f"cairn: this relaunch cannot resume: {why}")
