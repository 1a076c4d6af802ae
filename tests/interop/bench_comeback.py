#!/usr/bin/env python3
"""How long a job takes to come back after a node is lost, with nobody who restarts it: torchrun
with Cairn's rendezvous backend, torchrun with c10d's and torch.distributed.checkpoint, torchft.

    bench_comeback.py [--rounds N] [--json] [--only WORD]

Three nodes train a small model, a fourth stands by; each is a set of processes on loopback. All
processes of one node get SIGKILL in the middle of two checkpoints. Measured are the seconds until
the first update after that, and how many updates were lost. Steps take 0.2 s. So what is compared
is detection, agreement, start of the workers and the load of a small state. The checkpoints of
torch.distributed.checkpoint lie in /dev/shm, as the best that shared storage could be.

The peers get the better of what may happen: a killed process closes its connections, so that the
others' collectives fail at once, and the node that dies is not the one that has c10d's store. With
the node that has it torchrun does not come back, which is not run here. Cairn is measured with that
node, too. torchft goes on with the replicas that are left; its standby would be a new replica that
a scheduler starts.

torchft is installed into build/torchft; where it cannot be, its row is left out and the reason
given. Rounds (3) are in turns; figures are medians with the least and the largest. A peer whose job
does not come back within two minutes has failed the round; the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Sequence, Tuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

import harness  # noqa: E402

WORKER = str(ROOT / "tests" / "interop" / "comeback_worker.py")
TORCHFT = ROOT / "build" / "torchft"
NODES, TRAINING = 4, 3
STEPS = 100000
FAULT_STEP = 65  # five after a checkpoint of torch.distributed.checkpoint; workers are parked
BACK_S = 120
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1"]
ELASTIC = ["--nnodes", f"2:{TRAINING}", "--max-restarts", "9"]


def install_torchft() -> str:
    """'' or why not."""
    if (TORCHFT / "ready").exists():
        return ""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(TORCHFT)]
    commands = (
        [*pip, "opentelemetry-api", "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"],
        [*pip, "--no-deps", "torchft"],  # PyTorch is there
    )
    for command in commands:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            return (done.stdout.strip().splitlines() or ["pip failed"])[-1]
    (TORCHFT / "ready").touch()
    return ""


def descendants(pid: int) -> List[int]:
    found = [pid]
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            text = pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text()
            for child in text.split():
                found += descendants(int(child))
    except OSError:
        pass
    return found


def kill(process: subprocess.Popen) -> None:
    for pid in reversed(descendants(process.pid)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


class Job:
    """One job of the peer until it is closed."""

    def __init__(self) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="cairn-comeback-", dir="/dev/shm"))
        self.log = self.folder / "log"
        self.nodes: Dict[int, subprocess.Popen] = {}

    def start(self, node: int, command: List[str], **settings: str) -> None:
        env = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **settings}
        with open(self.folder / f"out{node}", "ab") as out:
            self.nodes[node] = subprocess.Popen(
                command,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                preexec_fn=harness.die_with_parent,
            )

    def script(self, kind: str) -> List[str]:
        return [WORKER, kind, str(STEPS), str(self.log), str(self.folder)]

    def updates(self) -> List[Tuple[int, float]]:
        lines = [line.split() for line in harness.text_of(str(self.log)).splitlines()]
        return [
            (int(step), float(at)) for _, step, at in (each for each in lines if len(each) == 3)
        ]

    def fail(self, node: int) -> None:
        kill(self.nodes[node])

    def node_of_rank(self, rank: int) -> int:
        return rank

    def measure(self, node: int) -> Dict[str, float]:
        harness.wait_for(
            f"step {FAULT_STEP}",
            lambda: max([0, *(s for s, _ in self.updates())]) >= FAULT_STEP,
            60,
        )
        at = time.time()
        self.fail(node)
        # a survivor may still end the update that the dead node took part in
        reached = max(step for step, when in self.updates() if when <= at + 0.1)
        after: List[Tuple[int, float]] = []

        def back() -> bool:
            after[:] = [each for each in self.updates() if each[1] > at + 0.1]
            return bool(after)

        harness.wait_for("the first step", back, BACK_S / harness.PATIENCE)
        first, when = min(after, key=lambda each: each[1])
        return {"seconds": when - at, "lost": reached + 1 - first}

    def close(self) -> None:
        for process in self.nodes.values():
            kill(process)
        shutil.rmtree(self.folder, ignore_errors=True)


class Cairn(Job):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = harness.Cluster(NODES, 1, state="64MiB", dead_after_ms=1000)
        for node in range(NODES):
            path = pathlib.Path(self.cluster.path(f"node{node}.yaml"))
            lines = path.read_text().splitlines()
            lines[-1] = lines[-1].replace("}", ", spare: true}")
            path.write_text("\n".join(lines) + "\n")
        self.cluster.start()
        for node in range(NODES):
            run = [harness.CAIRN, "run", "--agent", self.cluster.socket(node), "--"]
            self.start(
                node, [*run, *TORCHRUN, *ELASTIC, "--rdzv-backend", "cairn", *self.script("cairn")]
            )

    def fail(self, node: int) -> None:
        super().fail(node)
        self.cluster.kill_node(node)

    def close(self) -> None:
        super().close()
        self.cluster.close()


class Dcp(Job):
    def __init__(self) -> None:
        super().__init__()
        port = harness.free_ports(1)[0]
        for node in range(NODES):
            words = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
            words += ["--rdzv-conf", f"is_host={int(node == 0)}", "--rdzv-id", "bench"]
            # PyTorch 2.13 shares the store by default. Then a standby that takes part in a later
            # round waits for an address that nobody writes, and the job ends.
            share = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
            self.start(node, [*TORCHRUN, *ELASTIC, *words, *self.script("dcp")], **share)
            if node in (0, TRAINING - 1):  # the store first, the standby last
                time.sleep(6)


class Torchft(Job):
    """Trains as `script` says, or as the workers of this benchmark do."""

    def __init__(self, script: Sequence[str] = ()) -> None:
        super().__init__()
        port = harness.free_ports(1)[0]
        paths = {"PYTHONPATH": str(TORCHFT)}
        program = (
            "import time, torchft.coordination as c; "
            f"server = c.LighthouseServer(bind='127.0.0.1:{port}', min_replicas=2, "
            "join_timeout_ms=10000, quorum_tick_ms=100); time.sleep(1e6)"
        )
        self.start(NODES, [sys.executable, "-c", program], **paths)
        time.sleep(2)
        for node in range(TRAINING):
            settings = {**paths, "RANK": str(node), "WORLD_SIZE": "1"}
            settings["TORCHFT_LIGHTHOUSE"] = f"http://127.0.0.1:{port}"
            words = script or self.script("torchft")
            self.start(node, [sys.executable, *words], **settings)

    def end(self) -> None:
        for node in range(TRAINING):
            assert self.nodes[node].wait(BACK_S) == 0, harness.text_of(f"{self.folder}/out{node}")


def median(values: List[float]) -> Dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", help="rows whose names contain this")
    options = parser.parse_args()
    harness.build()
    missing = install_torchft()
    # which node fails: 0 has the store of c10d, and is Cairn's rank 0 and leader
    rows = {
        "Cairn, a node": (Cairn, 1),
        "Cairn, rank 0's node": (Cairn, 0),
        "torchrun c10d + DCP, a node": (Dcp, 1),
    }
    if missing:
        print(f"bench_comeback: no torchft: {missing}", file=sys.stderr)
    else:
        rows["torchft, a node"] = (Torchft, 1)
    rows = {name: row for name, row in rows.items() if options.only in name}
    found: Dict[str, List[Dict[str, float]]] = {name: [] for name in rows}
    for number in range(options.rounds):
        for name, (kind, node) in rows.items():
            job = kind()
            try:
                found[name].append(job.measure(node))
            except AssertionError as why:
                for path in sorted(job.folder.glob("out*")):
                    print(f"{path.name}:\n{path.read_text()[-1500:]}", file=sys.stderr)
                if kind is Cairn:
                    raise
                print(f"bench_comeback: {name}: {why}", file=sys.stderr, flush=True)
                continue
            finally:
                job.close()
            last = found[name][-1]
            print(
                f"bench_comeback: round {number + 1} of {options.rounds}: {name}: "
                f"{last['seconds']:.1f} s, {last['lost']:.0f} steps lost "
                f"(load {os.getloadavg()[0]:.1f})",
                file=sys.stderr,
                flush=True,
            )
    outcome: Dict[str, Any] = {
        name: {
            "seconds": median([each["seconds"] for each in of]),
            "lost": median([each["lost"] for each in of]),
            "failed": options.rounds - len(of),
        }
        for name, of in found.items()
        if of
    }
    if options.json:
        print(json.dumps(outcome))
        return
    print("| a node is killed | fault to first step | steps lost | rounds failed |")
    print("| --- | --- | --- | --- |")
    for name in found:
        if name not in outcome:
            print(f"| {name} | | | {options.rounds} |")
            continue
        seconds, lost, failed = (outcome[name][what] for what in ("seconds", "lost", "failed"))
        print(
            f"| {name} | {seconds['median']:.1f} s [{seconds['low']:.1f}, {seconds['high']:.1f}] "
            f"| {lost['median']:.0f} | {failed} |"
        )


if __name__ == "__main__":
    main()
