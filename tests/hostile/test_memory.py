#!/usr/bin/env python3
"""The memory that agent and trainers share: a trainer that tries to write, with what it was given,
to what is not its own. Each test but the last is an attack; that one sees when pages move."""
import os
import select
import socket
import struct
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster"))
from harness import OK, PATIENCE, Built, Cluster, build, cairn, wait_for

PROTOCOL, FRAMING, BLOCK = 5, 1, 65536
HELLO, REGISTER, BEGIN, PIECE, DONE, RESTORE = 1, 2, 3, 4, 5, 7
WELCOME, REGISTERED, GRANT, SKIP, RESTORE_INFO = 64, 66, 67, 68, 71
U8, PARAM = 2, 1


def crc_table():
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0xC96C5795D7870F42 if byte & 1 else 0)
        yield byte


TABLE = list(crc_table())


def crc64(data):
    """CRC-64 (ECMA-182, reflected), as base/crc.h has it."""
    crc = 0xFFFFFFFFFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFFFFFFFFFF


def text(words):
    return struct.pack("<I", len(words)) + words


class Rank:
    """A trainer of one tensor of whole blocks, which speaks the session's protocol itself."""

    def __init__(self, path, rank, world, blocks, fill):
        self.rank, self.world, self.blocks = rank, world, blocks
        self.block = bytes([fill]) * BLOCK
        self.crc = crc64(self.block)
        self.slots, self.window, self.offset = [], [], 0
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.settimeout(60 * PATIENCE)
        self.connection.connect(path)
        self.send(
            HELLO,
            struct.pack("<II", PROTOCOL, 1)
            + text(b"cluster")
            + struct.pack("<IIIQQ", rank, world, world, os.getpid(), 0),
        )
        self.expect(WELCOME)

    def send(self, kind, payload):
        self.connection.sendall(struct.pack("<IHBB", len(payload), kind, FRAMING, 0) + payload)

    def receive(self):
        head, fds, _, _ = socket.recv_fds(self.connection, 8, 16, socket.MSG_WAITALL)
        if len(head) < 8:
            raise ConnectionError("the agent has closed")
        size, kind, _, _ = struct.unpack("<IHBB", head)
        payload = b""
        while len(payload) < size:
            payload += self.connection.recv(size - len(payload))
        return kind, payload, fds

    def expect(self, *kinds):
        while True:
            kind, payload, fds = self.receive()
            if kind in kinds:
                return kind, payload, fds

    def register(self):
        size = self.blocks * BLOCK
        tensor = (
            text(b"tensor of rank %d" % self.rank)
            + struct.pack("<III", U8, PARAM, 1)
            + struct.pack("<QQQ", size, 0, size)
            + struct.pack("<QQIIi", 0, 0, 0, 1, -1)
        )
        self.send(REGISTER, struct.pack("<IIQ", 1, 1, 7) + tensor)
        _, payload, self.slots = self.expect(REGISTERED)
        _, self.offset, region, count = struct.unpack("<IQQI", payload)
        assert region == size and count == len(self.slots)

    def answer(self, seconds):
        """GRANT or SKIP, if one of them comes in time; else None."""
        while select.select([self.connection], [], [], seconds)[0]:
            kind = self.receive()[0]
            if kind in (GRANT, SKIP):
                return kind
        return None

    def begin(self, step):
        self.send(BEGIN, struct.pack("<QI", step, 0))

    def capture(self):
        """Takes the answer to BEGIN, and copies if it is a grant."""
        kind, payload, _ = self.expect(GRANT, SKIP)
        if kind == SKIP:
            return False
        _, epoch, step, run, slot = struct.unpack("<QQQQI", payload)
        generation = struct.pack("<QQQ", epoch, step, run)
        for block in range(self.blocks):
            os.pwrite(self.slots[slot], self.block, self.offset + block * BLOCK)
        crcs = struct.pack("<Q", self.crc) * self.blocks
        self.send(PIECE, generation + struct.pack("<QI", 0, self.blocks) + crcs)
        self.send(DONE, generation)
        return True

    def restore_info(self):
        """Asks what can be restored, and keeps the window."""
        self.send(RESTORE, struct.pack("<I", 5))
        _, _, fds = self.expect(RESTORE_INFO)
        self.window = fds

    def descriptors(self):
        """All that the agent has handed out."""
        return self.slots + self.window

    def close(self):
        for fd in self.descriptors():
            os.close(fd)
        self.slots, self.window = [], []
        self.connection.close()


def reopened(fd):
    """The same file by its name, writable in any mode; None: not possible."""
    try:
        os.fchmod(fd, 0o777)
        return os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    except OSError:
        return None


class Memory(Built):
    def setUp(self):
        self.cluster = Cluster(1, 0)
        self.addCleanup(self.cluster.close)
        self.cluster.start()
        self.step = 0
        self.ranks = []
        self.gone = 0  # trainers that have left
        self.addCleanup(lambda: [rank.close() for rank in self.ranks])

    def leave(self):
        for rank in self.ranks:
            rank.close()
        self.gone += len(self.ranks)
        self.ranks = []
        wait_for(
            "the agent has seen them leave",
            lambda: self.cluster.log(0).count("trainer left") == self.gone,
        )

    def join(self, *blocks, first_fill=0x41):
        """One trainer per number of blocks; the last is the victim, the others are thieves."""
        self.leave()
        path = self.cluster.socket(0)
        for rank, count in enumerate(blocks):
            fill = first_fill + rank
            self.ranks.append(Rank(path, rank, len(blocks), count, fill))
        for rank in self.ranks:
            rank.register()

    def commit(self, count=1):
        """Captures until so many further generations are committed."""
        for _ in range(count):
            before = self.cluster.committed()
            for _ in range(200):
                self.step += 1
                for rank in self.ranks:
                    rank.begin(self.step)
                taken = [rank.capture() for rank in self.ranks]
                if all(taken):
                    break
                threading.Event().wait(0.02)
            self.cluster.wait_committed(before)

    def bad_blocks(self):
        code, answer, error = cairn("verify", "--agent", self.cluster.socket(0))
        self.assertIn("bad_blocks", answer, f"{code} {answer} {error}")
        return answer["bad_blocks"] + answer["other_bad_blocks"]

    def overwrite(self, thief, everywhere=False):
        """Writes wherever its descriptors reach: to its own region only if `everywhere`."""
        own = range(thief.offset // BLOCK, thief.offset // BLOCK + thief.blocks)
        for fd in thief.slots:
            ways = [fd, reopened(fd)]
            for way in [way for way in ways if way is not None]:
                for block in range(64):
                    if everywhere or block not in own:
                        try:
                            os.pwrite(way, b"stolen" * 100, block * BLOCK)
                        except OSError:
                            pass  # refused: sealed, or no longer there
            if ways[1] is not None:
                os.close(ways[1])

    def test_another_ranks_region(self):
        self.join(3, 2)
        self.commit(3)  # every slot was used
        self.assertEqual(self.bad_blocks(), 0)
        thief = self.ranks[0]
        self.overwrite(thief)
        self.assertEqual(self.bad_blocks(), 0, "a trainer has changed another's region")

    def test_a_committed_slot_by_another_arrangement(self):
        """The trainers come back in another arrangement: the thief's region now lies where the
        committed generation has the victim's, and the thief writes to all of its own."""
        self.join(2, 3)
        self.commit(3)
        self.join(4, 1)
        thief = self.ranks[0]
        self.overwrite(thief, everywhere=True)
        self.assertEqual(self.bad_blocks(), 0, "a trainer has changed a committed generation")
        self.commit(3)  # with those descriptors, in every slot
        self.assertEqual(self.bad_blocks(), 0)
        self.overwrite(thief)
        self.assertEqual(self.bad_blocks(), 0, "a trainer has changed another's region")

    def test_swapped_ranks(self):
        """The same regions, but of other ranks: the thief gets the place, not the bytes."""
        self.join(3, 2)
        self.commit(3)
        self.leave()
        path = self.cluster.socket(0)
        self.ranks = [Rank(path, rank, 2, 2 + rank, 0x51 + rank) for rank in range(2)]
        for rank in reversed(self.ranks):
            rank.register()
        thief = self.ranks[0]
        self.assertEqual(thief.offset, 3 * BLOCK)
        self.overwrite(thief, everywhere=True)
        self.assertEqual(self.bad_blocks(), 0, "a trainer has changed a committed generation")
        self.commit(3)
        self.assertEqual(self.bad_blocks(), 0)

    def test_reading(self):
        """Nothing of the victim can be read through what the thief was given."""
        self.join(2, 2, first_fill=0x61)
        self.commit(3)
        thief, victim = self.ranks
        thief.restore_info()
        for fd in thief.descriptors():
            data = os.pread(fd, 64 * BLOCK, 0)
            self.assertFalse(victim.block[:512] in data, "a trainer reads another's state")

    def test_the_owner_goes_on(self):
        """What the attacks spare: the same ranks come back in another order, each to its place,
        with its committed state in its own file; so do they after the agent has died."""
        self.join(2, 2, 1)
        self.commit(3)
        places = [rank.offset for rank in self.ranks]
        for kill in (False, True):
            self.leave()
            if kill:
                self.cluster.kill_agent(0)
                self.cluster.start(0)
                self.gone = 0
            path = self.cluster.socket(0)
            self.ranks = [Rank(path, rank, 3, 2 - rank // 2, 0x41 + rank) for rank in range(3)]
            for rank in (self.ranks[2], self.ranks[0], self.ranks[1]):
                rank.register()
            self.assertEqual([rank.offset for rank in self.ranks], places)
            for rank in self.ranks:
                held = [os.pread(fd, BLOCK, rank.offset) for fd in rank.slots]
                self.assertTrue(rank.block in held, "its committed state is elsewhere")
            self.commit(3)
        code, answer, error = cairn("verify", "--agent", self.cluster.socket(0))
        self.assertEqual((code, answer["verdict"]), (OK, "good"), error)

    def test_no_page_moves_while_the_job_stands_still(self):
        """A rank registers other tensors, as in a move: the kernel's work on pages waits for its
        next step, which needs them."""
        self.join(24)
        self.commit(3)
        (rank,) = self.ranks
        old, rank.blocks = rank.slots, 16
        held = [os.fstat(fd).st_blocks for fd in old]
        self.assertNotIn(0, held)  # every slot was used
        rank.register()
        held += [0] * len(rank.slots)

        def pages():
            return [os.fstat(fd).st_blocks for fd in old + rank.slots]

        for _ in range(20):
            self.assertEqual(pages(), held)
            threading.Event().wait(0.05)
        self.commit()
        self.assertGreater(max(pages()[len(old) :]), 0)
        for fd in old:
            os.close(fd)


if __name__ == "__main__":
    build()
    unittest.main(verbosity=2)
