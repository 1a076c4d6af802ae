"""A worker in reserve, started by _warm.py.

It imports what CAIRN_PRELOAD names (`module,module`) beside torch and torch._dynamo, which torch
itself imports when the first optimizer is made. Then it reads from a socket, whose descriptor it
was given, what to become: arguments, environment, folder and standard outputs. What is left to do
is what Python does at its start with such an environment, so Cairn's hooks come in only then. It
runs the script as __main__, in its own process and session, as if torchrun had just started it. If
the socket ends first, so does the process.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import socket
import struct
import sys
import types
from typing import Any, Dict, Optional

PRELOADED = ("torch", "torch._dynamo")


def _preload() -> None:
    for name in (*PRELOADED, *os.environ.get("CAIRN_PRELOAD", "").split(",")):
        if not name:
            continue
        try:
            importlib.import_module(name)
        except Exception as error:  # the script will import it, and report it if it must
            print(f"cairn: CAIRN_PRELOAD: {name}: {error!r}", file=sys.stderr, flush=True)


def _receive(channel: socket.socket) -> Optional[Dict[str, Any]]:
    """The request, with its descriptors in place; None: nobody needs this worker any more."""
    head, descriptors, _, _ = socket.recv_fds(channel, 4, 2)
    if len(head) < 4:
        return None
    (length,) = struct.unpack("<I", head)
    text = b""
    while len(text) < length:
        part = channel.recv(length - len(text))
        if not part:
            return None
        text += part
    request: Dict[str, Any] = json.loads(text)
    for number, descriptor in zip(request["redirects"], descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    return request


def _enter(request: Dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sitecustomize = getattr(sys.modules.get("sitecustomize"), "__file__", None) or ""
    autoload = os.path.join(os.path.dirname(os.path.realpath(__file__)), "autoload")
    if os.path.dirname(os.path.realpath(sitecustomize)) == autoload:  # under `cairn run`
        from . import _hook

        _hook.install()


def _run(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        sys.argv = [arguments[1], *arguments[2:]]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    script = arguments[0]
    sys.argv = arguments
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    with open(script, "rb") as source:
        code = compile(source.read(), script, "exec")
    main = types.ModuleType("__main__")
    vars(main).update(__file__=script, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    exec(code, vars(main))


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    _preload()
    try:
        channel.sendall(b".")  # ready
        request = _receive(channel)
    except OSError:  # the launcher has ended
        request = None
    channel.close()
    if request is not None:
        _enter(request)
        _run(request["arguments"])
