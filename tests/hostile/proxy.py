"""Somebody between two agents, who sees every byte and may change it."""
import contextlib
import socket
import threading


class Proxy:
    """Listens on `port` and connects what comes to `target`. `change(bytes) -> bytes` is called
    with what goes either way; what it returns goes on. `sessions` has a pair of byte strings for
    each connection: what the caller has sent, and what it got."""

    def __init__(self, port, target, change=None):
        self.target = target
        self.change = change
        self.sessions = []
        self.lock = threading.Lock()
        self.sockets = []
        self.listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                caller, _ = self.listener.accept()
            except OSError:
                return
            try:
                callee = socket.create_connection(("127.0.0.1", self.target), timeout=5)
            except OSError:
                caller.close()
                continue
            callee.settimeout(None)
            session = [bytearray(), bytearray()]
            self.sessions.append(session)
            self.sockets += [caller, callee]
            for way, (source, sink) in enumerate(((caller, callee), (callee, caller))):
                threading.Thread(
                    target=self.pump, args=(source, sink, session[way]), daemon=True
                ).start()

    def pump(self, source, sink, record):
        with contextlib.suppress(OSError):
            while True:
                data = source.recv(65536)
                if not data:
                    break
                record += data
                with self.lock:
                    data = self.change(data) if self.change else data
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.listener.close()
        for end in self.sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def in_blocks(data):
    """Whether there is a block in the middle, and no record or header of a payload near it."""
    middle = len(data) // 2
    return (
        len(data) == 65536
        and b"\x17\x03\x03" not in data[middle - 20000 : middle + 5]
        and b"\xb0\x01\0\0" not in data[middle - 32 : middle + 5]
    )


class Mangler:
    """Changes bytes once after it is armed."""

    def __init__(self, draw):
        self.draw = draw
        self.kind = None
        self.kept = b""
        self.done = threading.Event()

    def arm(self, kind):
        self.done.clear()
        self.kind = kind

    def __call__(self, data):
        if self.kept:  # reordered: the newer bytes go first
            data, self.kept = data + self.kept, b""
            self.done.set()
            return data
        if self.kind == "payload" and not in_blocks(data):
            return data
        kind, self.kind = self.kind, None
        if kind is None:
            return data
        if kind == "payload":
            self.done.set()
            middle = len(data) // 2
            return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        at = self.draw.randrange(len(data))
        length = self.draw.randint(1, 64)
        if kind == "reorder" and len(data) > 1:
            self.kept = data[max(at, 1) :]
            return data[: max(at, 1)]
        self.done.set()
        if kind == "flip":
            return data[:at] + bytes([data[at] ^ 1 << self.draw.randrange(8)]) + data[at + 1 :]
        if kind == "drop":
            return data[:at] + data[at + length :]
        return data[: at + length] + data[at:]  # repeat
