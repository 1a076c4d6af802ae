"""The Python stacks of this process, for an agent that finds that the job hangs.

faulthandler writes them from a signal's handler, in C: it needs no lock of the interpreter, so a
rank that is stuck in C code is seen too. The handler writes into a memfd whose name tells the
signal: "cairn-stacks-NUMBER". The agent finds it among the process's descriptors, as it finds
nothing else of a process, sends the signal, and reads. Until then all of this costs nothing.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from typing import Optional

_descriptor: Optional[int] = None  # kept open, as faulthandler writes to it


def _free_signal() -> Optional[int]:
    """A real-time signal that nobody has a use for, from the end that libraries do not take."""
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        if signal.getsignal(number) is signal.SIG_DFL:
            return number
    return None


def offer() -> bool:
    """Lets agents ask for the stacks from now on. False where the system has no memfd, or all
    signals are taken; nothing has changed then."""
    global _descriptor
    number = _free_signal()
    if _descriptor is not None or number is None:
        return _descriptor is not None
    try:
        descriptor = os.memfd_create(f"cairn-stacks-{number}")
    except (AttributeError, OSError):
        return False
    try:
        faulthandler.register(number, file=descriptor, all_threads=True, chain=False)
    except (AttributeError, OSError, RuntimeError, ValueError):
        os.close(descriptor)
        return False
    _descriptor = descriptor
    return True
