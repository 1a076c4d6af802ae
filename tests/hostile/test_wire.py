#!/usr/bin/env python3
"""A stranger on the agents' network: frames of another protocol, frames at random, connections that
say nothing, and handshakes without end. Each test is an attack by somebody without the job's key,
from the agents' own address, or from another one. The agents then ignore all from there but each
other; all the while the job has to commit.

HOSTILE_SCALE multiplies the amount: 334 makes a million mutated frames. HOSTILE_SEED tries others.
"""
import contextlib
import os
import re
import resource
import socket
import ssl
import struct
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster"))
from attacker import (
    FRAME_MAGIC,
    SCALE,
    Watch,
    connect,
    descriptors,
    frames,
    knock,
    mutated,
    process_time,
    request,
    rng,
    send_all,
)
from harness import PATIENCE, Built, Cluster, free_ports, say, wait_for, write_key

NODES = 3
MUTATED = int(3000 * SCALE)
CONNECTIONS = 10000
FLOOD_S = 2 * max(1, SCALE)
STRANGERS = ("127.0.0.66", "127.0.0.67")  # no agent has these addresses
IGNORED_S = 10  # transport/strangers.h


def hello():
    """The first flight of a TLS 1.3 client that knows no key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    out = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    return out.read()


class Wire(Built):
    def setUp(self):
        self.ports = free_ports(NODES)
        self.cluster = Cluster(NODES, 1, addresses=[f"127.0.0.1:{port}" for port in self.ports])
        self.addCleanup(self.cluster.close)
        key = write_key(self.cluster.path("key"))
        for node in range(NODES):
            self.cluster.configure(node, key_file=key)
        self.cluster.start()
        self.cluster.train(step_us=20000)
        self.cluster.wait_committed((1, 3))
        self.watch = Watch(self.cluster, self)

    def lost(self):
        """How often an agent has lost another."""
        return sum(
            len(re.findall("transport: lost peer", self.cluster.log(i))) for i in range(NODES)
        )

    def join_seconds(self, node):
        """Kills an agent, starts it again, and waits until it hears all others and all hear it."""
        self.cluster.kill_agent(node)
        begun = time.monotonic()
        self.cluster.start(node)
        wait_for(
            f"agent {node} has joined",
            lambda: all(
                self.cluster.status(i).get("nodes_answering") == NODES for i in range(NODES)
            ),
        )
        return time.monotonic() - begun

    def test_frames_of_another_protocol(self):
        """With libfabric's tcp provider most of these end the agent, and one makes it spin."""
        attacks = frames()
        for name, attack in attacks.items():
            with contextlib.suppress(OSError), connect(self.ports[0]) as peer:
                peer.sendall(request(self.ports[0] + 1 if name != "atomic" else self.ports[1]))
                peer.settimeout(0.2)
                with contextlib.suppress(OSError):
                    peer.recv(1000)
                for _ in range(3):
                    peer.sendall(attack)
                time.sleep(0.1)
            self.watch.alive(name)
            send_all(self.ports[0], attack, 0.05)  # without asking for a connection first
            self.watch.alive(name)
        self.watch.check("all frames")

    def test_session_is_not_taken(self):
        """The stranger connects in a peer's name and reads, drains, replays and claims."""
        lost = self.lost()
        taken = b""
        for victim, name in ((0, 1), (1, 0), (2, 0)):
            taken = send_all(self.ports[victim], request(self.ports[name]), 1.5)
            self.assertFalse(FRAME_MAGIC in taken, f"agent {victim} sent frames to a stranger")
            self.assertLess(len(taken), 4096, f"agent {victim} sent data to a stranger")
            for port in self.ports:
                send_all(port, request(self.ports[name]) + taken, 0.1)
                send_all(port, taken, 0.1)
        self.assertEqual(self.lost(), lost, "a session was ended by a stranger")
        self.assertFalse(any(node.get("fenced") for node in self.cluster.status()["nodes"]))
        self.watch.check("take-over")

    def count(self, node, name):
        """A number of a node's agent about itself."""
        return self.cluster.status(node)["nodes"][node].get(name, 0)

    def forgotten(self, addresses):
        """The addresses are heard again some time after their flood."""
        wait_for(
            "nobody is ignored",
            lambda: not any(self.count(i, "ignored_addresses") for i in range(NODES)),
            IGNORED_S + 5,
        )
        for source in addresses:
            before = self.count(0, "refused_connections")
            self.assertTrue(knock(self.ports[0], b"X", source))
            wait_for(
                f"{source} is refused, not ignored",
                lambda: self.count(0, "refused_connections") > before,
            )

    def test_mutated_frames(self):
        """Bytes at random, near to what the agent and libfabric may expect, from the agents' own
        address: it is ignored, and a node that joins is heard all the same."""
        spent = self.mutated_frames(lambda port, data: knock(port, data, "127.0.0.1"))
        self.assertLess(spent, 0.1e-3)
        self.assertGreater(self.count(0, "ignored_connections"), 0)
        self.assertLess(self.join_seconds(2), 3 * PATIENCE)

    def test_mutated_frames_of_a_stranger(self):
        """The same from another address, as fast as it can: it is ignored, and only there."""
        source = STRANGERS[0]
        spent = self.mutated_frames(lambda port, data: knock(port, data, source))
        self.assertLess(spent, 0.1e-3)
        self.assertGreater(self.count(0, "ignored_connections"), 0)
        self.assertGreater(self.count(0, "refused_connections"), 0)
        self.assertEqual(self.count(1, "ignored_connections"), 0)
        line = f"connections from {source} are ignored"
        self.assertEqual(self.cluster.log(0).count(line), 1, "one line per address")
        self.assertNotIn(line, self.cluster.log(1))
        say(f"{self.count(0, 'refused_connections')} of {MUTATED} frames were read")
        self.forgotten([source])

    def mutated_frames(self, send):
        """Sends them to agent 0. Returns the processor time that each has cost."""
        seeds = list(frames().values()) + [request(self.ports[0] + 1), hello()]
        seeds += [FRAME_MAGIC + bytes(60), hello()[:5] + b"\0" * 64, b"\x15\x03\x03\0\x02\x02\0"]
        seeds += [b"\x17\x03\x03\x40\0" + b"F" * 16384, b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096]
        draw = rng(17)
        pid = self.cluster.agents[0].pid
        begun, started = process_time(pid), time.monotonic()
        for number in range(MUTATED):
            attack = mutated(draw, seeds)
            if number % 2:
                attack = request(self.ports[0] + 1) + attack
            send(self.ports[0], attack)
            if number % 500 == 0:
                self.watch.alive(f"frame {number}")
        took = time.monotonic() - started
        spent = process_time(pid) - begun - self.watch.quiet_rate[0] * took
        say(
            f"{MUTATED} frames in {took:.1f} s, {1e6 * spent / MUTATED:.1f} us of processor each, "
            f"{100 * spent / took:.1f} % of a core"
        )
        self.watch.check("mutated frames")
        return spent / MUTATED

    def test_idle_connections(self):
        """Connections that say nothing, begin a handshake, or send a byte now and then. A node
        joins beside them, and their descriptors come back though the stranger holds on."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        pid, first = self.cluster.agents[0].pid, hello()
        held, rng_ = [], rng(5)
        with contextlib.ExitStack() as stack:
            for number in range(min(CONNECTIONS, hard - 1000)):
                peer = stack.enter_context(socket.socket())
                peer.setblocking(False)
                with contextlib.suppress(OSError):
                    peer.connect(("127.0.0.1", self.ports[0]))
                held.append(peer)
                if number % 3 == 1:
                    with contextlib.suppress(OSError):
                        peer.send(first[: rng_.randrange(1, len(first))])
                elif number % 3 == 2:
                    with contextlib.suppress(OSError):
                        peer.send(b"\x16")
            say(f"{len(held)} connections; the agent has {descriptors(pid)} descriptors")
            joined = self.join_seconds(2)
            say(f"a node joined in {joined:.1f} s")
            self.assertLess(joined, 3 * PATIENCE)
            for peer in held[2:3000:3]:
                with contextlib.suppress(OSError):
                    peer.send(b"\x03")
            self.watch.pids[2] = self.cluster.agents[2].pid
            self.watch.memory[2] += 64 << 20
            self.watch.check("idle connections")

    def test_handshakes_without_end(self):
        """Strangers begin handshakes at all agents as fast as the machine lets them; a node joins
        and the job commits meanwhile."""
        self.handshakes((None, None))

    def test_handshakes_of_strangers(self):
        """The same from addresses of their own: all agents ignore them, the one that joins too."""
        self.handshakes(STRANGERS)
        for node in range(NODES):
            self.assertGreater(self.count(node, "ignored_connections"), 0, f"agent {node}")
        for source in STRANGERS:
            self.assertIn(f"connections from {source} are ignored", self.cluster.log(0))
        self.forgotten(STRANGERS)

    def handshakes(self, sources):
        """A flood from these addresses."""
        seconds = FLOOD_S + 6
        alone = self.join_seconds(2)
        self.watch.pids[2] = self.cluster.agents[2].pid
        floods = [
            Flood(self.ports, self.cluster.path(f"flood{i}"), seconds, source)
            for i, source in enumerate(sources)
        ]
        begun, started = [process_time(pid) for pid in self.watch.pids], time.monotonic()
        time.sleep(1)
        joined = self.join_seconds(2)
        step = self.cluster.committed()
        self.cluster.wait_committed((step[0], step[1] + 2), 10)
        committed = time.monotonic() - started
        rate = sum(flood.collect() for flood in floods) / seconds
        took = time.monotonic() - started
        spent = [(process_time(pid) - at) / took for pid, at in zip(self.watch.pids[:2], begun)]
        more = max(now - quiet for now, quiet in zip(spent, self.watch.quiet_rate))
        say(
            f"{rate:.0f} handshakes a second at {NODES} agents; a node joined in {joined:.1f} s, "
            f"{alone:.1f} s before; {committed:.1f} s to commits; "
            f"{100 * more:.0f} % of a core more in an agent"
        )
        self.assertLess(joined, 3 * PATIENCE)
        self.assertLess(more, 0.5)
        self.watch.pids[2] = self.cluster.agents[2].pid
        self.watch.memory[2] += 64 << 20
        self.watch.check("handshakes")


class Flood:
    """A stranger in a process of its own: connects to each port in turn, says hello, and holds on
    to its newest connections. Neither waits for an answer. `source`: its address, None: the
    agents' own."""

    HELD = 600

    def __init__(self, ports, path, seconds, source):
        self.path, self.pid = path, os.fork()
        if self.pid:
            return
        count, end = 0, time.monotonic() + seconds
        first, reset = hello(), struct.pack("ii", 1, 0)
        held = [socket.socket() for _ in range(self.HELD)]
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                peer = socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                if source:
                    peer.bind((source, 0))
                peer.connect_ex(("127.0.0.1", ports[count % len(ports)]))
                held[count % self.HELD].close()
                held[count % self.HELD] = peer
                count += 1
                peer.send(first)
        with open(path, "w", encoding="ascii") as file:
            file.write(str(count))
        os._exit(0)

    def collect(self):
        """How many handshakes it has begun, when it has ended."""
        os.waitpid(self.pid, 0)
        with open(self.path, encoding="ascii") as file:
            return int(file.read())


class Fabric(Built):
    """Payloads travel over libfabric, whose own parser reads what a stranger sends. What it lets
    through is not believed: no frame counts there, and no write without a key of a TLS session."""

    def test_nothing_is_reached_over_the_fabric(self):
        ports = free_ports(NODES)
        with Cluster(NODES, 1, addresses=[f"127.0.0.1:{port}" for port in ports]) as cluster:
            key = write_key(cluster.path("key"))
            for node in range(NODES):
                cluster.configure(
                    node,
                    key_file=key,
                    provider="libfabric-tcp",
                    network_is_closed="true",
                    protection="authenticate",
                )
            cluster.start()
            cluster.train(step_us=20000)
            cluster.wait_committed((1, 3))
            watch = Watch(cluster, self)
            for agent in cluster.agents:
                fabric = [port for port in listening(agent.pid) if port not in ports]
                self.assertEqual(len(fabric), 1, "one port of the fabric beside the agent's own")
                for name in ("write", "read"):
                    taken = send_all(fabric[0], request(ports[0]) + frames()[name], 0.5)
                    self.assertNotIn(FRAME_MAGIC, taken)
                    self.assertLess(len(taken), 4096, "data was sent to a stranger")
                    watch.alive(name)
            for i in range(NODES):
                self.assertEqual(cluster.log(i).count("transport: lost peer"), 0)
            watch.check("frames at the fabric's port")
            cluster.kill_agent(1)
            cluster.start(1)
            wait_for(
                "agent 1 has joined", lambda: cluster.status(0).get("nodes_answering") == NODES
            )


def listening(pid):
    """The TCP ports that a process listens on."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    with open(f"/proc/{pid}/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return [
        int(row[1].split(":")[1], 16)
        for row in rows
        if row[3] == "0A" and f"socket:[{row[9]}]" in inodes
    ]


if __name__ == "__main__":
    unittest.main(verbosity=2)
