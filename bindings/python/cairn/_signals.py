"""SIGUSR1 to a trainer: a snapshot now."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any


def answer_signals() -> None:
    """SIGUSR1 asks the agents for a snapshot at the next step that all can still make, unless the
    script has a use for it."""
    command = os.environ.get("CAIRN_COMMAND")
    pid = os.getpid()

    def ask(_number: int, _frame: Any) -> None:
        if os.getpid() != pid or not command:
            return
        try:
            # Not subprocess: that may copy this process's page tables, which takes long in a large
            # one.
            asked = os.posix_spawn(
                command,
                [command, "snapshot"],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
            )
            threading.Thread(target=os.waitpid, args=(asked, 0), daemon=True).start()
        except OSError as error:
            print(
                f"cairn: no snapshot can be asked for: {command}: {error}",
                file=sys.stderr,
                flush=True,
            )

    if (
        command
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGUSR1, ask)
