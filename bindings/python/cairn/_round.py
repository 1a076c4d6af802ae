"""Which nodes train next: the decision of a job's launchers (torchrun). Each launcher asks its
agent who is alive, who holds a part of the state, and which notes the launchers left there.

Pure: no clock, no I/O. Every launcher decides from what it sees with `plan`:

    joins ── somebody else leads ──► Follow the round that the leader opens
          ── this one leads, and enough have joined ──► Form a round
          ── else ──► Wait, with the reason
          ── the job has ended ──► Over;  the launchers do not fit ──► Refuse

The leader is the joining launcher that trained in the newest round; of several, the one on the
lowest node, spares last. Two launchers may both lead while what they see differs. That does no
harm: a round begins only when all of its nodes have come to its leader's store, and each of them
comes to one store at a time. More than half of the job's agents must answer, so that only one side
of a network that is cut goes on; the agents ask the same for a restore.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

JOINS, TRAINS, CLOSED = "joins", "trains", "closed"
NOTE_BYTES_MAX = 511  # OPERATOR_NOTE_BYTES of the agent, without its NUL


class Note(NamedTuple):
    """A launcher's note to the others, through the agents."""

    run: str  # --rdzv-id
    nodes: str  # --nnodes, as MIN:MAX
    state: str
    term: int = 0  # of the newest round that it trained in; 0: none
    job: str = ""  # which start of the run that was
    rank: int = -1  # of the node, in that round
    host: str = ""  # that the others reach it at, as the next
    door: int = 0
    opens: Tuple[int, int, str] = (0, 0, "")  # of a leader: term, port of the store, token
    failed: bool = False  # CLOSED: not all workers ended well
    workers: int = 0  # that the launcher has started in the round

    def text(self) -> str:
        return json.dumps(self, separators=(",", ":"))


def note_of(text: Any) -> Optional[Note]:
    """None: nothing that a launcher of this version has written."""
    try:
        values = json.loads(text)
        note = Note(*values)
        opens = (int(note.opens[0]), int(note.opens[1]), str(note.opens[2]))
        texts = (note.run, note.nodes, note.state, note.job, note.host)
        numbers = (note.term, note.rank, note.door, note.workers)
    except (TypeError, ValueError, IndexError, KeyError):
        return None
    if not all(isinstance(each, str) for each in texts):
        return None
    if not all(isinstance(each, int) for each in numbers):
        return None
    return note._replace(opens=opens)


class Peer(NamedTuple):
    """A node, as the agent of this one shows it."""

    node: int
    alive: bool = True  # its agent is heard
    answered: bool = True  # its agent has told the rest
    removed: bool = False
    spare: bool = False  # by the configuration
    holds: bool = True  # a part of the state, or of an epoch without one
    attached: bool = False  # a launcher lives there
    note: Optional[Note] = None


def peers_of(answer: Dict[str, Any]) -> List[Peer]:
    """From the agent's answer to "launch"."""
    return [
        Peer(
            int(each["node"]),
            bool(each["alive"]),
            bool(each["answered"]),
            bool(each["removed"]),
            bool(each["spare"]),
            bool(each.get("holds")),
            bool(each.get("launcher")),
            note_of(each.get("note")),
        )
        for each in answer["nodes"]
    ]


class Wait(NamedTuple):
    why: str
    counts: bool = True  # against the time-out; not for a standby of a job that trains


class Follow(NamedTuple):
    leader: Peer


class Form(NamedTuple):
    term: int
    joining: List[Peer]


class Over(NamedTuple):
    node: int
    failed: bool


class Refuse(NamedTuple):
    why: str


Plan = Union[Wait, Follow, Form, Over, Refuse]


class Seat(NamedTuple):
    """A node's place in a round."""

    rank: int
    host: str
    door: int


def some(nodes: Sequence[int]) -> str:
    """Nodes for a message: at most eight of them."""
    shown = ", ".join(map(str, sorted(nodes)[:8]))
    return f"node{'s' if len(nodes) > 1 else ''} {shown}" + (" and others" if nodes[8:] else "")


def plan(
    me: int, own: Note, peers: Sequence[Peer], jobs_seen: Set[str], may_complete: bool
) -> Plan:
    """What launcher `me`, whose note is `own`, does now. jobs_seen: starts of the run that were
    seen running. may_complete: the first round still waits for more nodes than the least number,
    and prefers nodes that are not spares."""
    least, most = map(int, own.nodes.split(":"))
    ours = [
        (peer, peer.note)
        for peer in peers
        if peer.node != me and peer.answered and peer.note is not None and peer.note.run == own.run
    ]
    for peer, note in ours:
        if note.state == CLOSED and note.job and note.job in jobs_seen | {own.job}:
            return Over(peer.node, note.failed)
    joining = {peer.node: (peer, note) for peer, note in ours if peer.attached and _joins(note)}
    self_peer = next((peer for peer in peers if peer.node == me), Peer(me))
    joining[me] = (self_peer._replace(attached=True, note=own), own)
    leader = min(joining, key=lambda n: (-joining[n][1].term, joining[n][0].spare, n))
    if joining[leader][1].nodes != own.nodes:
        return Refuse(
            f"node {leader} was started with --nnodes {joining[leader][1].nodes}, this node with "
            f"{own.nodes}; start all nodes with the same --nnodes"
        )
    training = [peer.node for peer, note in ours if peer.attached and note.state == TRAINS]
    training_nodes = {note.nodes for peer, note in ours if peer.attached and note.state == TRAINS}
    if training and own.term == 0 and training_nodes != {own.nodes}:
        return Refuse(
            f"the job runs with --nnodes {min(training_nodes)}, this node was started with "
            f"{own.nodes}; start it with the job's"
        )
    if training and own.term == 0:
        return Wait("stands by while the job trains", counts=False)
    if leader != me:
        if joining[leader][1].opens[0]:
            return Follow(joining[leader][0])
        return Wait(f"waits for node {leader} to begin the next round")
    silent = [each.node for each in peers if each.alive and not each.answered and not each.removed]
    if silent:
        return Wait(f"waits for an answer of {some(silent)}, whose death is not certain yet")
    if training:
        return Wait(f"waits for {some(training)} to stop the workers of the round before")
    return _lead(me, own, peers, [peer for peer, _ in joining.values()], least, most, may_complete)


def _joins(note: Note) -> bool:
    return note.state == JOINS


def _lead(
    me: int,
    own: Note,
    peers: Sequence[Peer],
    joining: List[Peer],
    least: int,
    most: int,
    may_complete: bool,
) -> Plan:
    usable = [peer for peer in peers if not peer.removed]
    if len(usable) < least:
        return Refuse(
            f"the agents' configuration has {len(usable)} nodes, and --nnodes {own.nodes} wants at "
            f"least {least}; run `cairn agent` with one configuration on all nodes"
        )
    dead = [peer.node for peer in usable if not peer.answered]
    answered = sum(peer.answered for peer in peers)
    if 2 * answered <= len(peers):
        return Wait(
            f"waits for agents: {answered} of the job's {len(peers)} answer, and more than half "
            f"must; start the agent of {some(dead)}, or another machine's in its place (`cairn "
            "status` tells more)"
        )
    idle = [peer for peer in usable if peer.answered and peer not in joining and not peer.attached]
    if len(joining) < least:
        others = f"; no launcher runs on {some([peer.node for peer in idle])}" if idle else ""
        others += f"; the agent of {some(dead)} does not answer" if dead else ""
        others += _strangers(own, usable)
        return Wait(f"waits for launchers: {len(joining)} of at least {least} are here{others}")
    if own.term == 0 and may_complete and idle:
        if len(joining) < most:
            missing = some([peer.node for peer in idle])
            return Wait(f"waits a while for {missing}, before it begins with fewer than {most}")
        first = choose(me, joining, {}, most)
        regular = [peer.node for peer in idle if not peer.spare]
        if regular and any(peer.spare for peer in joining if peer.node in first):
            return Wait(f"waits a while for {some(regular)}, before spares take part")
    return Form(own.term + 1, joining)


def _strangers(own: Note, peers: Sequence[Peer]) -> str:
    for peer in peers:
        if peer.attached and peer.note is not None and peer.note.run != own.run:
            return f"; node {peer.node} has --rdzv-id {peer.note.run}, and this node {own.run}"
    return ""


def choose(
    leader: int, joining: Sequence[Peer], before: Dict[int, Seat], most: int
) -> Dict[int, Seat]:
    """The seats of a round, one of them the leader's. Nodes that trained before come first, and
    keep their ranks, since their agents hold those ranks' state; then nodes whose agents hold a
    part, such as a standby on which it was rebuilt; then nodes that are not spares."""

    def wish(peer: Peer) -> Tuple[bool, bool, bool, bool, int]:
        is_new = peer.node not in before
        return (peer.node != leader, is_new, not peer.holds, peer.spare, peer.node)

    chosen = sorted(joining, key=wish)[:most]
    free = set(range(len(chosen)))
    ranks: Dict[int, int] = {}
    for peer in chosen:
        rank = before[peer.node].rank if peer.node in before else -1
        if rank in free:
            ranks[peer.node] = rank
            free.discard(rank)
    for peer in sorted(chosen, key=lambda peer: peer.node):
        if peer.node not in ranks:
            ranks[peer.node] = min(free)
            free.discard(ranks[peer.node])
    return {
        peer.node: Seat(ranks[peer.node], peer.note.host, peer.note.door)
        for peer in chosen
        if peer.note is not None
    }


def newcomers(own: Note, peers: Sequence[Peer], seats: Dict[int, Seat]) -> List[int]:
    """Launchers that could take part in a round with free seats."""
    if len(seats) >= int(own.nodes.split(":")[1]):
        return []
    return [
        peer.node
        for peer in peers
        if peer.node not in seats and peer.attached and peer.note is not None
        if peer.note.run == own.run and peer.note.nodes == own.nodes and _joins(peer.note)
    ]
