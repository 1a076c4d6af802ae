"""Asks the agent of this node over its Unix socket, as the commands of `cairn` do: an operator's
session of client/session.h, whose frames are little-endian. Works without libcairn."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from typing import Any, Dict, Tuple

SOCKET = "/run/cairn/agent.sock"  # the default of the agents' configuration
PROTOCOL, FRAMING, OPERATOR_ROLE = 5, 1, 2
HELLO, OPERATOR, WELCOME, REFUSED, REPLY = 1, 11, 64, 65, 73
HEADER = struct.Struct("<IHBB")  # payload bytes, type, framing, descriptors
PAYLOAD_BYTES_MAX = 1 << 20
ANSWER_BYTES_MAX = 64 << 20


class Unreachable(Exception):
    """No agent answers there; the text names the socket and the reason."""


class Agent:
    """A session with the agent at a socket, opened by the first question and again after it broke.
    One thread at a time."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.node = -1
        self._socket: socket.socket | None = None
        self._deadline = 0.0

    def ask(self, timeout_s: float, **request: Any) -> Tuple[int, Dict[str, Any]]:
        """(exit code, answer) of a request of agent/service/operator.c. Raises Unreachable."""
        self._deadline = time.monotonic() + timeout_s
        try:
            if self._socket is None:
                self._open()
            return self._ask(json.dumps(request).encode())
        except (OSError, ValueError, struct.error) as error:
            self.close()
            raise Unreachable(f"{self.path}: {error}") from error

    def is_open(self) -> bool:
        return self._socket is not None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _open(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(max(0.01, self._deadline - time.monotonic()))
        self._socket.connect(self.path)
        uid = struct.unpack(
            "3i", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        if os.geteuid() not in (0, uid[1]) and uid[1] != 0:
            raise ValueError(f"user {uid[1]} runs the agent, which must be yours or root's")
        no_job, no_ranks = struct.pack("<I", 0), struct.pack("<III", 0, 0, 0)
        self._send(
            HELLO,
            struct.pack("<II", PROTOCOL, OPERATOR_ROLE)
            + no_job
            + no_ranks
            + struct.pack("<QQ", os.getpid(), 0),
        )
        kind, payload = self._receive()
        if kind == REFUSED:
            raise ValueError(payload[12:].decode("utf-8", "replace"))
        if kind != WELCOME:
            raise ValueError("something that is no agent answers")
        self.node = struct.unpack_from("<IQI", payload)[2]

    def _ask(self, request: bytes) -> Tuple[int, Dict[str, Any]]:
        self._send(OPERATOR, request)
        text = b""
        while True:
            kind, payload = self._receive()
            if kind != REPLY:
                continue
            exit_code, is_final = struct.unpack_from("<iI", payload)
            text += payload[8:]
            if len(text) > ANSWER_BYTES_MAX:
                raise ValueError("the answer is too long")
            if is_final:
                answer = json.loads(text)
                if not isinstance(answer, dict):
                    raise ValueError("the answer is not an object")
                return exit_code, answer

    def _send(self, kind: int, payload: bytes) -> None:
        assert self._socket is not None
        self._socket.settimeout(max(0.01, self._deadline - time.monotonic()))
        self._socket.sendall(HEADER.pack(len(payload), kind, FRAMING, 0) + payload)

    def _receive(self) -> Tuple[int, bytes]:
        length, kind, framing, _ = HEADER.unpack(self._exactly(HEADER.size))
        if framing != FRAMING or length > PAYLOAD_BYTES_MAX:
            raise ValueError("the agent speaks another version of the session protocol")
        return kind, self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        assert self._socket is not None
        got = b""
        while len(got) < count:
            self._socket.settimeout(max(0.01, self._deadline - time.monotonic()))
            part = self._socket.recv(count - len(got))
            if not part:
                raise ValueError("the agent has ended the session")
            got += part
        return got
