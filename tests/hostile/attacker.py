"""What the attacks on the wire share: connections and frames of a stranger, and a watch over the
agents that are attacked. The stranger has no key, and the agents' own address if none is given.

libfabric's tcp provider (1.17) speaks in frames of its own: a request of 56 bytes opens a
connection, and each frame after it has a header of 16 bytes, or of 24 with a tag. Its messages
begin with the header of the layer above (rxm), 64 bytes. An agent that listens through that
provider parses all of these before it asks for a key.
"""
import contextlib
import os
import random
import re
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster"))
from harness import wait_for

SCALE = float(os.environ.get("HOSTILE_SCALE", "1"))
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
FRAME_MAGIC = b"CRN\xa7"  # of transport/frame.h

MESSAGE, TAGGED, READ, READ_ANSWER, WRITE = range(5)  # operations of the tcp provider
ACKNOWLEDGES = 2
(EAGER, SEGMENT, OFFER, READ_DONE, ATOMIC, ATOMIC_ANSWER, CREDIT, WRITE_DATA, WRITE_DONE) = range(9)


def connect(port, seconds=5):
    return socket.create_connection(("127.0.0.1", port), timeout=seconds)


def request(port):
    """Asks for a connection as the endpoint that listens on this port."""
    control = struct.pack("<BB", 3, 0) + struct.pack(">H", 24) + struct.pack("<IQQQ", 0, 0, 0, 1)
    return control + struct.pack("<BBBBHBBIIQ", 1, 2, 4, 3, port, 2, 0, 16384, 512, 0)


def frame(body, operation=MESSAGE, data=0, flags=0, extra=b""):
    size = 16 + len(extra) + len(body)
    head = struct.pack("<BBHBBBBQ", 3, operation, flags, data, 0, 16 + len(extra), 0, size)
    return head + extra + body


def packet(kind, body=b"", message=0, key=0, segment=0, size=None, operation=0, number=0):
    """A message of the layer above: its control header, its operation header, and its data."""
    size = len(body) if size is None else size
    control = struct.pack("<BBHIQQQ", 4, kind, len(body) & 0xFFFF, segment, 0, message, key)
    return control + struct.pack("<BBBBIQQQ", 3, 0, operation, 0, 0, size, 0, number) + body


def frames():
    """The frames that a peer without the key has no business to send, by name."""
    address = 0x4141414141414000
    remote = struct.pack("<QQQ", address, 4096, 1) + bytes(8)
    return {
        "ack": frame(b"", data=ACKNOWLEDGES),
        "rd_done": frame(packet(READ_DONE, message=0x123456)),
        "wr_data": frame(packet(WRITE_DATA, remote * 5, message=7)),
        "wr_done": frame(packet(WRITE_DONE, message=0xFFFFFF)),
        "atomic_resp": frame(packet(ATOMIC_ANSWER, struct.pack("<II", 0, 6000) + b"A" * 6000)),
        "seg": frame(packet(SEGMENT, b"B" * 4096, message=9, key=2, segment=3, size=1 << 40)),
        "eager_long": frame(packet(EAGER, b"C" * 6144, size=1 << 20)),
        "atomic": frame(packet(ATOMIC, remote, operation=6, number=1)),
        "offer": frame(packet(OFFER, remote + b"\x04" + bytes(7), size=1 << 30)),
        "credit": frame(packet(CREDIT, key=1 << 60)),
        "tagged": frame(b"D" * 64, operation=TAGGED, flags=1 << 7, extra=bytes(8)),
        "read": frame(b"", operation=READ, extra=struct.pack("<QQQ", address, 1 << 20, 1)),
        "write": frame(b"E" * 4096, operation=WRITE, extra=struct.pack("<QQQ", address, 4096, 1)),
        "length": struct.pack("<BBHBBBBQ", 3, 0, 0, 0, 0, 16, 0, (1 << 64) - 1),
    }


def mutated(rng, seeds):
    """One of the seeds with bits flipped, bytes removed or repeated, or its length changed."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data)) if data else 0
        kind = rng.randrange(5)
        if kind == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and data:
            data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            del data[at : at + rng.randint(1, 16)]
        elif kind == 3:
            data[at:at] = data[at : at + rng.randint(1, 16)]
        else:
            data[at : at + 8] = struct.pack("<Q", rng.getrandbits(64))
    return bytes(data)


def process_time(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def private_bytes(pid):
    """Memory of its own: the shared regions hold the state of the job."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        _, resident, shared = file.read().split()[:3]
    return (int(resident) - int(shared)) * PAGE


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def dumped_memory(pid, left_out=False):
    """What a core file of the process would hold, region by region; all that may be written is in
    it that the process has not left out. Or what it has left out."""
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as maps, open(
        f"/proc/{pid}/mem", "rb", buffering=0
    ) as memory:
        bounds = None
        for line in maps:
            head = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+)", line)
            if head:
                bounds = int(head[1], 16), int(head[2], 16), head[3]
            elif line.startswith("VmFlags:") and "w" in bounds[2]:
                if ("dd" in line.split()) != left_out:
                    continue
                try:
                    memory.seek(bounds[0])
                    yield memory.read(bounds[1] - bounds[0])
                except (OSError, ValueError):
                    continue


class Watch:
    """Over the agents of a cluster whose trainers run, from here to check()."""

    def __init__(self, cluster, test):
        self.cluster = cluster
        self.test = test
        self.pids = [agent.pid for agent in cluster.agents]
        self.descriptors = [descriptors(pid) for pid in self.pids]
        self.memory = [private_bytes(pid) for pid in self.pids]
        self.quiet_rate = self.rate(1.0)  # of the job alone

    def rate(self, seconds):
        """Processor seconds per second of each agent; it lasts as long as it says."""
        begun = [process_time(pid) for pid in self.pids]
        started = time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - started
        return [(process_time(pid) - at) / took for pid, at in zip(self.pids, begun)]

    def alive(self, what=""):
        for node, agent in enumerate(self.cluster.agents):
            self.test.assertIsNone(agent.poll(), f"{what}: agent {node} ended, {agent.returncode}")

    def check(self, what, memory_bytes=8 << 20, rate=0.25):
        """Nobody ended, nothing spins, nothing leaks, and the job commits."""
        self.alive(what)
        for node, (now, quiet) in enumerate(zip(self.rate(0.7), self.quiet_rate)):
            self.test.assertLess(now, quiet + rate, f"{what}: agent {node} is busy afterwards")
        wait_for(
            f"{what}: descriptors are back",
            lambda: all(
                descriptors(pid) <= before + 2 for pid, before in zip(self.pids, self.descriptors)
            ),
            5,
        )
        for node, (pid, before) in enumerate(zip(self.pids, self.memory)):
            grown = private_bytes(pid) - before
            self.test.assertLess(grown, memory_bytes, f"{what}: agent {node} has grown")
        self.cluster.wait_committed(self.cluster.committed(), 10)


def send_all(port, data, linger_s=0.0):
    """Sends, and reads what comes for a moment; an end by the other side is as good."""
    got = b""
    with contextlib.suppress(OSError), connect(port) as peer:
        peer.sendall(data)
        peer.settimeout(max(linger_s, 0.001))
        end = time.monotonic() + linger_s
        while time.monotonic() < end:
            more = peer.recv(65536)
            if not more:
                break
            got += more
    return got


def knock(port, data, source):
    """Sends from an address of one's own, without waiting for anything. True: it has gone out."""
    with socket.socket() as peer, contextlib.suppress(OSError):
        peer.setblocking(False)
        peer.bind((source, 0))
        peer.connect_ex(("127.0.0.1", port))
        return peer.send(data) > 0
    return False


def rng(seed):
    """The same attack in every run; HOSTILE_SEED tries another one."""
    return random.Random(int(os.environ.get("HOSTILE_SEED", str(seed))))
