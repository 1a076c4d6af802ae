"""Starts a trainer in a fork of a server (warm_start.py) and stands for it: it ends as the trainer
does, and the trainer with it.

    warm_client.py SERVER SCRIPT WORD...      SERVER: the name of its socket

Run with `python -I -S`, so that no hook comes in here: the environment is the trainer's.
"""

import json
import os
import signal
import socket
import sys


def answer(connection: socket.socket) -> bytes:
    return connection.recv(64) or sys.exit(
        "warm_client: the server has ended, and the trainer with it"
    )


def main() -> int:
    server, script, *words = sys.argv[1:]
    request = {
        "script": script,
        "words": words,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "group": os.getpgrp(),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect("\0" + server)
        # The trainer may ask to be told to end before this process knows whom to tell.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        pid = int(answer(connection))
        signal.signal(signal.SIGTERM, lambda number, _frame: os.kill(pid, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        status = int(answer(connection))
    if status < 0:
        if signal.getsignal(-status) is not signal.SIG_DFL:  # SIGKILL's cannot be set
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


sys.exit(main())
