"""Workers that torchrun starts warm: processes that have imported PyTorch wait to become the next
processes (_parked.py), so that a restart, or a standby, does not wait for imports.

A parked worker is a child of the launcher in a session of its own, as torchrun would have started
it: what torchrun does to its workers later works the same. It is taken only for a command and an
environment under which Python would have started the same way; all other workers start cold, and
so do all if a part of PyTorch that this file knows is not there.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
from typing import Any, Dict, IO, List, NamedTuple, Optional, Sequence

# What torchrun, or _rendezvous.py, sets again for each start of a worker, and no import reads.
PER_START = (
    "RANK LOCAL_RANK GROUP_RANK ROLE_RANK ROLE_NAME LOCAL_WORLD_SIZE WORLD_SIZE GROUP_WORLD_SIZE "
    "ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCH_NCCL_ASYNC_ERROR_HANDLING CAIRN_RESUME"
).split()


PROGRAM = (
    "import sys; sys.path.insert(1, sys.argv.pop(1)); import cairn._parked as parked; "
    "del sys.path[1]; parked.main()"
)


class Parked(NamedTuple):
    process: subprocess.Popen
    channel: socket.socket
    environment: Dict[str, str]  # that it started in, without what is set per start


def _lasting(environment: Dict[str, str]) -> Dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name not in PER_START and not name.startswith("TORCHELASTIC_")
    }


def _python_arguments(arguments: Sequence[str]) -> Optional[List[str]]:
    """Those of the script, itself included, where the command is Python as torchrun calls it."""
    if len(arguments) < 3 or arguments[0] != sys.executable or arguments[1] != "-u":
        return None
    if arguments[2] == "-m":
        return list(arguments[2:]) if len(arguments) > 3 else None
    return None if arguments[2].startswith("-") else list(arguments[2:])


class Warm:
    """The parked workers of this launcher. One thread, or the launcher's start of workers."""

    def __init__(self) -> None:
        self._parked: List[Parked] = []
        self._works = True
        self.started = 0  # Python workers since this was set to 0

    def install(self) -> bool:
        """Has torchrun's workers started from here. False: this PyTorch starts them otherwise."""
        try:
            from torch.distributed.elastic.multiprocessing.subprocess_handler import (
                subprocess_handler,
            )

            handler = subprocess_handler.SubprocessHandler
            original = handler._popen
        except (ImportError, AttributeError):
            return False

        def start(worker: Any, args: Sequence[str], env: Dict[str, str]) -> subprocess.Popen:
            self.started += _python_arguments(args) is not None
            taken = self.take(args, env, worker._stdout, worker._stderr)
            return taken or original(worker, args, env)

        handler._popen = start
        return True

    def keep(self, count: int) -> None:
        """Parks workers until there are so many. Does not wait for them. Once one has ended by
        itself no more are parked: what ended it may end others."""
        if any(each.process.poll() is not None for each in self._parked):
            self._works = False
            self.close()
        while self._works and len(self._parked) < count:
            self._parked.append(self._start())

    def _start(self) -> Parked:
        ours, theirs = socket.socketpair()
        environment = {**_lasting(dict(os.environ))}
        hidden = {name: value for name, value in environment.items() if name != "CAIRN_AGENT"}
        # cairn is found there also where it is not installed
        path = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", PROGRAM, path, str(theirs.fileno())],
            env=hidden,  # Cairn's hooks come in when it becomes a worker
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        return Parked(process, ours, environment)

    def take(
        self,
        arguments: Sequence[str],
        environment: Dict[str, str],
        stdout: Optional[IO[Any]],
        stderr: Optional[IO[Any]],
    ) -> Optional[subprocess.Popen]:
        """A parked worker that is ready and now becomes this one; None: there is none."""
        script = _python_arguments(arguments)
        if script is None:
            return None
        redirects = {1: stdout, 2: stderr}
        files = {number: file for number, file in redirects.items() if file is not None}
        request = json.dumps(
            {
                "arguments": script,
                "environment": environment,
                "folder": os.getcwd(),
                "redirects": list(files),
            }
        ).encode()
        while self._parked:
            parked = self._parked.pop(0)
            with parked.channel:
                if self._fits(parked, environment) and _send(parked.channel, request, files):
                    return parked.process
            _end(parked.process)
        return None

    def _fits(self, parked: Parked, environment: Dict[str, str]) -> bool:
        if parked.process.poll() is not None or parked.environment != _lasting(environment):
            return False
        parked.channel.setblocking(False)
        try:
            return parked.channel.recv(1) == b"."
        except OSError:  # it still imports: a cold start is as quick
            return False

    def close(self) -> None:
        for parked in self._parked:
            parked.channel.close()
            _end(parked.process)
        self._parked.clear()


def _send(channel: socket.socket, request: bytes, files: Dict[int, IO[Any]]) -> bool:
    channel.settimeout(5)
    try:
        head = struct.pack("<I", len(request))
        socket.send_fds(channel, [head], [file.fileno() for file in files.values()])
        channel.sendall(request)
    except OSError:
        return False
    return True


def _end(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()
