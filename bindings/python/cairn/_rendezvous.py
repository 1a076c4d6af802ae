"""torchrun's rendezvous backend `cairn`: the launchers of a job meet through the agents.

Each launcher (torchrun) keeps a session with the agent of its node and leaves a note there
(_round.Note). The agents show all notes, who is alive, and who holds a part of the state, and
_round.plan decides what follows. In a round:

 1. The leader has the agents restore, where the job has trained before, so that everything is
    rebuilt before a worker starts.
 2. It opens a TCPStore on a port of its own, writes the seats there, and puts that in its note.
 3. Each node with a seat connects a line to the leader's door, then says in the store that it is
    here. When all are, the leader says go. The workers meet in this store, too: each round has a
    new one, so nothing is left of the workers before.
 4. While the workers run, a line that ends is a launcher that ended, at either side, and known at
    once. A node whose agent is silent is dead if its door does not answer either: a dead agent
    alone never restarts a job. Either way the next round begins, and the leader's lines
    tell all launchers.

A launcher's death, or its node's, costs no time-out but the agents' own (`dead_after_ms`).
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import secrets
import selectors
import socket
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, cast

import torch
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from . import _agent, _round, _warm

POLL_S = 0.2  # in which what the agents know is looked at again
GATHER_S = 60.0  # in which the nodes of a round come to its store
DOOR_S = 1.0  # in which a launcher's host answers if it lives
CONNECT_S = 10
AGENT_S = 10.0  # for an answer of the agent, which gives its peers one second
WORKING_AGENT_S = 3.0  # while workers run, which torchrun does not look after meanwhile
AGENT_STARTS_S = 10.0  # for an agent that is being started
PARK_AFTER_S = 5.0  # in which the workers have their own imports to do
STORE_S = 300  # what torchrun's own backends give their store
RESTORE_S = 3600.0
NOTHING_RESTORABLE, DENIED = 4, 77  # exit codes of the agent's answers


def handlers() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """The entry point of group `torchrun.handlers`."""
    return create


def create(params: RendezvousParameters) -> "CairnRendezvous":
    """A handler for torchrun. Raises RendezvousConnectionError if no agent answers, and ValueError
    for parameters that cannot be."""
    return CairnRendezvous(params)


def socket_of(params: RendezvousParameters) -> str:
    endpoint = params.endpoint or ""
    if endpoint and not endpoint.startswith("/"):
        raise ValueError(
            f"--rdzv-endpoint {endpoint}: the backend cairn takes the socket of this node's agent, "
            f"such as {_agent.SOCKET}; leave it out under `cairn run`"
        )
    return endpoint or os.environ.get("CAIRN_AGENT") or _agent.SOCKET


def _say(text: str) -> None:
    print(f"cairn: {text}", file=sys.stderr, flush=True)


def _host_of(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


class Door:
    """Listens for lines of other launchers. The kernel answers also while this process is busy or
    stopped, so a launcher without an answer, or with a refusal, knows that it or its host is dead.
    """

    def __init__(self) -> None:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._listener = socket.create_server(
            ("", 0), family=family, backlog=4096, dualstack_ipv6=both
        )
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._lines = selectors.DefaultSelector()  # with what each has said
        self.token = ""  # of the round, with which a line of a seat begins

    def ended(self) -> bool:
        """A line that belongs to the round has ended."""
        while True:
            try:
                line, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                break
            line.setblocking(False)
            self._lines.register(line, selectors.EVENT_READ, "")
        found = False
        for key, _ in self._lines.select(0):
            line, part = cast(socket.socket, key.fileobj), _read(cast(socket.socket, key.fileobj))
            if part:
                self._lines.modify(line, selectors.EVENT_READ, (key.data + part)[:64])
            elif part == "":
                found = found or (self.token != "" and key.data == self.token)
                self._lines.unregister(line)
                line.close()
        return found

    def close_lines(self) -> None:
        self.token = ""
        self.ended()  # takes those in the queue, too
        for key in list(self._lines.get_map().values()):
            self._lines.unregister(key.fileobj)
            cast(socket.socket, key.fileobj).close()

    def close(self) -> None:
        self.close_lines()
        self._lines.close()
        self._listener.close()


def _read(line: socket.socket) -> Optional[str]:
    """'' where the line has ended; None where nothing has come."""
    try:
        return line.recv(64).decode("ascii", "replace")
    except BlockingIOError:
        return None
    except OSError:
        return ""


class CairnRendezvous(RendezvousHandler):
    """One launcher's part. torchrun calls it from one thread."""

    def __init__(self, params: RendezvousParameters) -> None:
        self._path = socket_of(params)
        self._timeout_s = params.get_as_int("join_timeout", 600) or 600
        self._last_call_s = params.get_as_int("last_call_timeout", 30)
        self._agent = _agent.Agent(self._path)
        self._note = _round.Note(
            run=params.run_id, nodes=f"{params.min_nodes}:{params.max_nodes}", state=_round.JOINS
        )
        self._left = ""  # the note that the agent has
        answer = self._first_answer()
        self._me = int(answer["node"])
        self._check_job(str(answer.get("job", "")))
        self._nodes: List[Dict[str, Any]] = answer["nodes"]
        self._door = Door()
        address = str(self._nodes[self._me]["address"])
        self._note = self._note._replace(
            host=params.local_addr or _host_of(address), door=self._door.port
        )
        if len(self._note.text().encode()) > _round.NOTE_BYTES_MAX - 128:  # the rest comes later
            raise ValueError(f"--rdzv-id {params.run_id}: at most 200 characters fit")
        self._seats: Dict[int, _round.Seat] = {}  # of the newest round
        self._line: Optional[socket.socket] = None  # to the leader; None: this is the leader
        self._leader = -1
        self._store: Optional[TCPStore] = None
        self._runs = False  # in a round
        self._due = False  # the next one
        self._looked = 0.0
        self._jobs_seen: Set[str] = set()
        self._ignored: Set[str] = set()  # tokens of rounds that have no seat for this node
        self._said = ""
        self._closed = False
        self._warm = _warm.Warm()
        self._parks = bool(params.get_as_bool("warm", True)) and self._warm.install()
        self._began = 0.0  # the round
        self._expected_workers = 0  # of this node, if it took part

    # ---- what torchrun asks ----

    def get_backend(self) -> str:
        return "cairn"

    @property
    def use_agent_store(self) -> bool:
        """The workers meet in the round's store. Before PyTorch 2.13 they put the number of their
        restarts into its names, and that is another one on a standby: there rank 0's worker has a
        store of its own."""
        return _version() >= (2, 13)

    def get_run_id(self) -> str:
        return self._note.run

    def is_closed(self) -> bool:
        return self._closed

    def set_closed(self) -> None:
        self._closed = True
        with contextlib.suppress(_agent.Unreachable):
            self._leave(self._note._replace(state=_round.CLOSED))

    def num_nodes_waiting(self) -> int:
        """1 if the next round is due: a node is dead, a launcher has left or joins, a free seat can
        be taken."""
        if self._runs and not self._due:
            if self._warm.started and time.monotonic() - self._began > PARK_AFTER_S:
                self._park(self._warm.started)
            self._due = self._round_is_over()
        return int(self._due)

    def next_rendezvous(self) -> RendezvousInfo:
        self._end_round()
        if self._closed:
            raise RendezvousClosedError("the rendezvous is closed")
        self._said = ""
        begun = joined = time.monotonic()
        while True:
            plan = self._plan(time.monotonic() - joined < self._last_call_s)
            if isinstance(plan, _round.Refuse):
                raise RendezvousStateError(f"cairn: {plan.why}")
            if isinstance(plan, _round.Over):
                self._leave_job(plan)
            complete = False
            if isinstance(plan, _round.Form):
                complete = self._lead(plan)
            elif isinstance(plan, _round.Follow):
                complete = self._follow(plan.leader)
            elif plan.why != self._said:
                self._said = plan.why
                _say(f"node {self._me} {plan.why}")
            if complete:
                return self._complete()
            if isinstance(plan, _round.Wait) and not plan.counts:
                begun = time.monotonic()
                self._park(self._expected_workers)
            if time.monotonic() - begun > self._timeout_s:
                raise RendezvousTimeoutError(
                    f"cairn: no round of the job began within {self._timeout_s} s "
                    f"(--rdzv-conf join_timeout=SECONDS): node {self._me} {self._said}"
                )
            time.sleep(POLL_S)

    def shutdown(self) -> bool:
        """Ends this launcher's part. torchrun calls it when its workers have ended, not when a
        signal ends it: the job goes on without this node then."""
        failed = sys.exc_info()[0] not in (None, SystemExit)
        with contextlib.suppress(_agent.Unreachable):
            if self._note.term:
                self._leave(self._note._replace(state=_round.CLOSED, failed=failed))
        self._closed = True
        self._end_round()
        self._store = None
        self._door.close()
        self._warm.close()
        self._agent.close()
        return True

    def _park(self, workers: int) -> None:
        """Has as many workers wait for the next round as take part in this one."""
        if self._note.workers != workers:
            self._tell(workers=workers)
        if self._parks:
            self._warm.keep(workers)

    # ---- the agent ----

    def _first_answer(self) -> Dict[str, Any]:
        deadline = time.monotonic() + AGENT_STARTS_S
        while True:
            try:
                code, answer = self._agent.ask(AGENT_S, verb="launch", local=1)
            except _agent.Unreachable as error:
                if time.monotonic() < deadline:
                    time.sleep(POLL_S)
                    continue
                raise RendezvousConnectionError(
                    f"cairn: {error}; start the agent of this node (`cairn agent --config FILE`), "
                    "or name its socket: --rdzv-endpoint SOCKET"
                ) from error
            if code or "nodes" not in answer:
                raise RendezvousConnectionError(
                    f"cairn: {self._path}: {answer.get('error', 'no answer')}"
                )
            return answer

    def _check_job(self, job: str) -> None:
        wanted = os.environ.get("CAIRN_JOB")
        if wanted and wanted != job:
            raise RendezvousConnectionError(
                f'cairn: {self._path}: this agent serves job "{job}", and CAIRN_JOB asks for '
                f'"{wanted}"; name the socket of that job\'s agent, or unset CAIRN_JOB'
            )
        # for workers of a torchrun that does not run under `cairn run`, and call cairn.attach
        os.environ.setdefault("CAIRN_AGENT", self._path)
        os.environ.setdefault("CAIRN_JOB", job)

    def _leave(self, note: _round.Note) -> None:
        """Leaves this note, where the agent has another one. Raises Unreachable."""
        self._note = note
        text = note.text()
        if text == self._left and self._agent.is_open():
            return
        code, answer = self._agent.ask(WORKING_AGENT_S, verb="launch", local=1, note=text)
        if code == DENIED:
            raise _agent.Unreachable(f"{self._path}: {answer.get('error')}")
        self._left = text

    def _look(self, local: bool, timeout_s: float = AGENT_S) -> List[_round.Peer]:
        """The nodes; local: only who is alive, at once."""
        self._leave(self._note)
        question = {"local": 1} if local else {}
        code, answer = self._agent.ask(timeout_s, verb="launch", **question)
        if code:
            raise _agent.Unreachable(f"{self._path}: {answer.get('error')}")
        peers = _round.peers_of(answer)
        for peer in peers:
            if peer.note is not None and peer.attached and peer.note.run == self._note.run:
                self._jobs_seen |= {peer.note.job} - {""}
                if peer.note.state == _round.TRAINS:
                    self._expected_workers = peer.note.workers
        return peers

    def _plan(self, may_complete: bool) -> _round.Plan:
        try:
            peers = self._look(local=False)
        except _agent.Unreachable as error:
            return _round.Wait(f"waits for its agent: {error}")
        plan = _round.plan(self._me, self._note, peers, self._jobs_seen, may_complete)
        if isinstance(plan, _round.Follow):
            assert plan.leader.note is not None
            if plan.leader.note.opens[2] in self._ignored:
                return _round.Wait("stands by: the round has all its nodes", counts=False)
        return plan

    # ---- leading a round ----

    def _lead(self, plan: _round.Form) -> bool:
        resumes = self._note.term > 0
        if resumes and not self._restore():
            return False
        again = self._plan(may_complete=False)  # the agents may hold other parts now
        if not isinstance(again, _round.Form):
            return False
        most = int(self._note.nodes.split(":")[1])
        seats = _round.choose(self._me, again.joining, self._seats, most)
        bare = [peer.node for peer in again.joining if peer.node in seats and not peer.holds]
        if resumes and bare:
            _say(
                f"{_round.some(bare)} takes part although its agent holds no part of the state: "
                "its workers read all of it from others; `cairn status` tells why"
            )
        self._store = TCPStore(
            self._note.host,
            0,
            None,
            is_master=True,
            wait_for_workers=False,
            timeout=datetime.timedelta(seconds=STORE_S),
        )
        self._door.token = secrets.token_hex(8)
        job = self._note.job or secrets.token_hex(8)
        self._store.set("seats", json.dumps([again.term, job, resumes, seats]))
        self._leader, self._line = self._me, None
        self._tell(opens=(again.term, self._store.port, self._door.token))
        if not self._gathered([node for node in seats if node != self._me]):
            self._withdraw()
            return False
        self._take(again.term, job, resumes, seats)
        self._store.set("go", "")
        return True

    def _tell(self, **values: Any) -> None:
        self._note = self._note._replace(**values)
        with contextlib.suppress(_agent.Unreachable):
            self._leave(self._note)

    def _withdraw(self) -> None:
        self._door.close_lines()
        self._tell(opens=(0, 0, ""))
        self._store = None

    def _gathered(self, nodes: List[int]) -> bool:
        """All of them have come; False: one of them does not, since it ended or has left again."""
        assert self._store is not None
        keys = [f"here/{node}" for node in nodes]
        looked = begun = time.monotonic()
        while keys and not self._store.check(keys):
            if self._door.ended():
                return False
            if time.monotonic() - begun > GATHER_S:
                late = [node for node in nodes if not self._store.check([f"here/{node}"])]
                _say(
                    f"node {self._me} begins again: {_round.some(late)} did not come to its store "
                    f"at {self._note.host} port {self._store.port}, nor to its door at port "
                    f"{self._door.port}; look at that node's log"
                )
                return False
            if time.monotonic() - looked > 1:
                looked = time.monotonic()
                try:
                    peers = {peer.node: peer for peer in self._look(local=False)}
                except _agent.Unreachable:
                    return False
                if not all(peers[n].alive and _is_joining(peers[n]) for n in nodes):
                    return False
            time.sleep(0.02)
        return not self._door.ended()

    def _restore(self) -> bool:
        """Has the agents rebuild what is lost, as `cairn run --resume` does: asks, then acts.
        False, after saying why: not now."""
        deadline = time.monotonic() + RESTORE_S
        acts = False
        while time.monotonic() < deadline:
            try:
                code, answer = self._agent.ask(
                    deadline - time.monotonic(), verb="restore", dry_run=int(not acts)
                )
            except _agent.Unreachable as error:
                why = str(error)
                break
            if code == 0 and answer.get("ready"):
                return True
            considered = [*answer.get("considered", []), f"the restore ended with exit code {code}"]
            why = str(answer.get("error") or considered[0])
            if code == NOTHING_RESTORABLE:
                if not self._has_committed():
                    return True  # they ended before their first commit, or an operator gave it up
                why += "; start the missing agents, or begin with nothing: `cairn restore --fresh`"
            if code or acts:
                break
            acts = True
        why = f"waits for a restore: {why}"
        if why != self._said:
            self._said = why
            _say(f"node {self._me} {why}")
        return False

    def _has_committed(self) -> bool:
        """Some agent holds a part of what the job has committed: to begin again with nothing is an
        operator's decision."""
        try:
            _, answer = self._agent.ask(AGENT_S, verb="snapshots")
        except _agent.Unreachable:
            return True
        return any(each.get("state") == "committed" for each in answer.get("generations", []))

    # ---- following ----

    def _follow(self, leader: _round.Peer) -> bool:
        note = leader.note
        assert note is not None
        token = note.opens[2]
        try:
            line = socket.create_connection((note.host, note.door), timeout=CONNECT_S)
        except OSError as error:
            self._say_unreached(leader, error)
            return False
        self._line, self._leader = line, leader.node
        try:
            self._store = TCPStore(
                note.host,
                note.opens[1],
                None,
                is_master=False,
                timeout=datetime.timedelta(seconds=CONNECT_S),
            )
            term, job, resumes, seats = json.loads(self._store.get("seats"))
            found = {int(node): _round.Seat(*seat) for node, seat in seats.items()}
            if self._me not in found:
                self._ignored.add(token)
                self._end_round()
                return False
            line.sendall(token.encode())  # now its end means that this node leaves
            line.setblocking(False)
            self._store.set(f"here/{self._me}", "")
            if not self._await_go(leader.node):
                self._end_round()
                return False
            self._store.set_timeout(datetime.timedelta(seconds=STORE_S))
        # the line's, the store's, or what it holds
        except (OSError, RuntimeError, ValueError, TypeError) as error:
            self._say_unreached(leader, error)
            self._end_round()
            return False
        self._take(term, job, resumes, found)
        return True

    def _say_unreached(self, leader: _round.Peer, error: BaseException) -> None:
        host = leader.note.host if leader.note else ""
        why = f"cannot join the round of node {leader.node} at {host}: {error}"
        if why != self._said:
            self._said = why
            _say(f"node {self._me} {why}")

    def _await_go(self, leader: int) -> bool:
        assert self._store is not None and self._line is not None
        while True:
            try:
                self._store.wait(["go"], datetime.timedelta(seconds=1))
                return True
            except RuntimeError:  # not yet, or never
                if _read(self._line) == "":
                    return False
                with contextlib.suppress(_agent.Unreachable):
                    if not self._lives(leader, self._look(local=True)):
                        return False

    # ---- in a round ----

    def _take(self, term: int, job: str, resumes: bool, seats: Dict[int, _round.Seat]) -> None:
        self._seats = seats
        self._jobs_seen.add(job)
        rank = seats[self._me].rank
        self._tell(state=_round.TRAINS, term=term, job=job, rank=rank, opens=(0, 0, ""))
        if resumes:  # also on a standby, whose workers start for the first time
            os.environ["CAIRN_RESUME"] = "1"
        self._runs, self._due, self._looked = True, False, time.monotonic()
        self._began, self._warm.started = time.monotonic(), 0

    def _complete(self) -> RendezvousInfo:
        assert self._store is not None
        seat, world = self._seats[self._me], len(self._seats)
        if self.use_agent_store:
            host = self._note.host if self._line is None else self._seats_host()
            info = RendezvousStoreInfo(host, self._store.port)
        else:
            info = RendezvousStoreInfo.build(seat.rank, self._store, self._note.host)
        if seat.rank == 0:
            _say(f"round {self._note.term}: {world} nodes, {self._places()}")
        return RendezvousInfo(self._store, seat.rank, world, info)

    def _seats_host(self) -> str:
        assert self._store is not None
        return str(self._store.host)

    def _places(self) -> str:
        by_rank = sorted(self._seats.items(), key=lambda item: item[1].rank)
        return ", ".join(f"rank {seat.rank} on node {node}" for node, seat in by_rank)

    def _round_is_over(self) -> bool:
        if self._line is None and self._door.ended():
            _say("a launcher of the round has ended: the workers restart")
            return True
        if self._line is not None:
            self._door.ended()  # takes what asks whether this launcher lives
            if _read(self._line) == "":
                _say(f"node {self._leader} has ended the round: the workers restart")
                return True
        if time.monotonic() - self._looked < POLL_S:
            return False
        self._looked = time.monotonic()
        try:
            peers = self._look(self._line is not None, WORKING_AGENT_S)
        except _agent.Unreachable:  # a dead agent never restarts a job, nor one that hangs
            self._looked += WORKING_AGENT_S
            return False
        for node in self._seats:
            if not self._lives(node, peers):
                _say(f"node {node} is dead: the workers restart")
                return True
        found = _round.newcomers(self._note, peers, self._seats) if self._line is None else []
        if found:
            _say(f"{_round.some(found)} can take part: the workers restart")
        return bool(found)

    def _lives(self, node: int, peers: List[_round.Peer]) -> bool:
        """A node is dead if neither its agent nor its launcher's door answers."""
        if node == self._me or any(peer.node == node and peer.alive for peer in peers):
            return True
        seat = self._seats.get(node)
        if seat is None:
            return False
        try:
            socket.create_connection((seat.host, seat.door), timeout=DOOR_S).close()
            return True
        except OSError:
            return False

    def _end_round(self) -> None:
        """Tells those who follow, or the leader, and joins again."""
        self._runs = self._due = False
        self._door.close_lines()
        if self._line is not None:
            self._line.close()
            self._line = None
        if not self._closed:
            self._tell(state=_round.JOINS, opens=(0, 0, ""))

    def _leave_job(self, plan: _round.Over) -> None:
        self._closed = True
        if plan.failed:
            raise RendezvousClosedError(
                f"cairn: the job has ended: its workers failed on node {plan.node}, and were not "
                "to be started again (--max-restarts); its log tells why"
            )
        _say(f"node {self._me}: the job has ended, as node {plan.node} says")
        raise SystemExit(0)  # torchrun cannot take RendezvousGracefulExitError for an end


def _is_joining(peer: _round.Peer) -> bool:
    return peer.attached and peer.note is not None and peer.note.state == _round.JOINS


def _version() -> Tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
