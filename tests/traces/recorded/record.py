#!/usr/bin/env python3
"""Records real jobs over gloo on this machine, with something done to them, for the detector's
tests (tests/cluster/test_recorded.py).

    record.py FOLDER [NAME...]

For each job: FOLDER/NAME.jsonl.xz, the trace as docs/DETECTION.md has it, and FOLDER/NAME.json,
what was done, what the detector must find, and what the machine did meanwhile. What it must find
follows from what was done, never from what the detector says.

The ranks run under `cairn run` with CAIRN_TIMING=1, each in a CPU cgroup (version 1) of its own, as
in a container: QUOTA_US in PERIOD_US, and SHARES beside other work on the machine; that takes root.
The records are read from the ranks' rings when all steps are made. If other work has slowed a rank
all the same, by the clock of the rank itself, the job is recorded again. It needs PyTorch, free
ports and /tmp.
"""

import contextlib
import json
import lzma
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Tuple

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

import harness  # noqa: E402
from rings import read_ring  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
CGROUPS = pathlib.Path("/sys/fs/cgroup/cpu")
PERIOD_US, QUOTA_US, SHARES = 20000, 8000, 1 << 18
STEPS, HANGS_S = 130, 12
RUN_STEPS, DISTURBED = 8, 1.1  # the median of a run of steps over that of all
TRIES = 3
OPERATIONS = {1: "all_reduce", 2: "broadcast", 4: "all_gather", 9: "barrier"}


@dataclass
class Job:
    """`action` is done to `ranks` from step `first` on until step `last` (0: to the end)."""

    world: int
    group: int  # ranks that meet in the middle of a step
    action: str = "none"
    ranks: Tuple[int, ...] = ()
    first: int = 0
    last: int = 0
    size: int = 0  # us of PERIOD_US (limit), or ms (stutter, pause, loader, checkpoint)


JOBS = {
    "healthy-4": Job(4, 1),
    "healthy-6": Job(6, 1),
    "healthy-8": Job(8, 1),
    "healthy-4x2": Job(8, 2),
    "healthy-3x2": Job(6, 2),
    "busy-4": Job(4, 1, "busy", (2,), 40, 90),
    "busy-5": Job(5, 1, "busy", (3,), 50),
    "busy-3x2": Job(6, 2, "busy", (3,), 35, 85),
    "limit-4": Job(4, 1, "limit", (1,), 45, 0, 1000),
    "limit-6": Job(6, 1, "limit", (0,), 40, 90, 1000),
    "limit-4x2": Job(8, 2, "limit", (6,), 50, 95, 1000),
    "stutter-5": Job(5, 1, "stutter", (4,), 40, 90, 10),
    "stutter-3x2": Job(6, 2, "stutter", (2,), 50, 0, 10),
    "hang-4": Job(4, 1, "hang", (3,), 60),
    "hang-4x2": Job(8, 2, "hang", (1,), 70),
    "pause-6": Job(6, 1, "pause", (2,), 50, 51, 2000),
    "loader-6": Job(6, 1, "loader", (4,), 40, 80, 12),
    "loader-4x2": Job(8, 2, "loader", (3,), 50, 0, 20),
    "checkpoint-6": Job(6, 1, "checkpoint-all", (), 30, 0, 400),
    "checkpoint-first-4x2": Job(8, 2, "checkpoint-first", (), 30, 0, 500),
}


def expected(job: Job, first: int, last: int) -> List[Dict[str, Any]]:
    """The verdicts of a detector that is right: what begins with step `first` and ends with `last`,
    both as records count them."""
    if job.action in ("none", "pause", "checkpoint-all", "checkpoint-first"):
        return []
    kind = "hang_compute" if job.action == "hang" else "slow_compute"
    return [{"kind": kind, "ranks": list(job.ranks), "since": first, "until": last or None}]


class Ranks:
    """The processes of a job, and the cgroups that they are in."""

    def __init__(self, cluster: harness.Cluster, job: Job) -> None:
        self.job = job
        self.cluster = cluster
        self.groups = [CGROUPS / f"cairn-record-{os.getpid()}-{rank}" for rank in range(job.world)]
        self.helpers: List[subprocess.Popen] = []
        for group in self.groups:
            group.mkdir()
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.shares").write_text(str(SHARES))
        more = {}
        if job.action == "loader":
            more["RECORD_LOADER"] = f"{job.ranks[0]}:{job.size}:{job.first}:{job.last or STEPS + 1}"
        if job.action.startswith("checkpoint"):
            more["RECORD_CHECKPOINT"] = f"{job.first}:{job.size}:{job.action.partition('-')[2]}"
        port = harness.free_ports(1)[0]
        self.processes = [
            harness.spawn(
                [harness.CAIRN, "run", "--agent", cluster.socket(0), "--", sys.executable, "-u"]
                + [str(HERE / "trainer.py")],
                cluster.path(f"rank{rank}.err"),
                stdout=open(self.out(rank), "w", encoding="utf-8"),
                prefix=[
                    *("sh", "-c", f'echo $$ > {self.groups[rank]}/cgroup.procs; exec "$@"', "sh"),
                    "env",
                    "CAIRN_TIMING=1",
                    f"PYTHONPATH={ROOT}/bindings/python",
                    "MASTER_ADDR=127.0.0.1",
                    f"MASTER_PORT={port}",
                    f"WORLD_SIZE={job.world}",
                    f"RANK={rank}",
                    f"RECORD_GROUP={job.group}",
                    f"RECORD_STEPS={STEPS}",
                    f"RECORD_FILE={cluster.path('checkpoint')}",
                    *(f"{name}={value}" for name, value in more.items()),
                ],
            )
            for rank in range(job.world)
        ]

    def out(self, rank: int) -> str:
        return self.cluster.path(f"rank{rank}.out")

    def said(self, rank: int, pattern: str) -> List[str]:
        return re.findall(pattern, harness.text_of(self.out(rank)), re.M)

    def step(self) -> int:
        return len(self.said(0, r"^step "))

    def wait(self, what: str, condition: Any) -> None:
        harness.wait_for(
            what,
            lambda: condition() or any(each.poll() is not None for each in self.processes),
            120,
        )
        for rank, each in enumerate(self.processes):
            if each.poll() is not None:
                raise SystemExit(harness.text_of(self.cluster.path(f"rank{rank}.err")))

    def confine(self) -> None:
        """Limits the ranks, once all of them have imported what they need."""
        self.wait("pids", lambda: all(self.said(r, r"^pid ") for r in range(self.job.world)))
        self.pids = [int(self.said(rank, r"^pid (\d+)")[0]) for rank in range(self.job.world)]
        for group in self.groups:
            (group / "cpu.cfs_quota_us").write_text(str(QUOTA_US))

    def computed_ms(self, rank: int) -> List[float]:
        """The medians of runs of steps, by the rank's own clock."""
        took = [float(each) for each in self.said(rank, r"^step \d+ (.*)$")]
        runs = [took[at : at + RUN_STEPS] for at in range(0, len(took), RUN_STEPS)]
        return [round(statistics.median(each), 1) for each in runs]

    def is_disturbed(self) -> bool:
        """Whether other work has slowed a rank for a run of steps."""
        runs = [
            self.computed_ms(rank) for rank in range(self.job.world) if rank not in self.job.ranks
        ]
        return any(max(each) > DISTURBED * statistics.median(each) for each in runs)

    def throttled_ms(self, rank: int) -> int:
        text = (self.groups[rank] / "cpu.stat").read_text()
        return int(re.findall(r"throttled_time (\d+)", text)[0]) // 1000000

    def end(self) -> None:
        for helper in self.helpers:
            helper.kill()
            helper.wait()
        for group in self.groups:
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        for each in self.processes:
            each.kill()
            each.wait()
        for group in self.groups:
            harness.wait_for("the cgroup is empty", lambda g=group: not (g / "tasks").read_text())
            group.rmdir()


def begin(ranks: Ranks) -> None:
    job = ranks.job
    for rank in job.ranks:
        group, pid = ranks.groups[rank], ranks.pids[rank]
        if job.action == "busy":
            for _ in range(2):
                helper = subprocess.Popen(["sh", "-c", "while :; do :; done"])
                (group / "cgroup.procs").write_text(str(helper.pid))
                ranks.helpers.append(helper)
        elif job.action == "limit":
            (group / "cpu.cfs_quota_us").write_text(str(job.size))
        elif job.action == "stutter":
            wait = f"sleep {job.size / 1000}"
            line = f"while :; do kill -STOP {pid}; {wait}; kill -CONT {pid}; {wait}; done"
            ranks.helpers.append(subprocess.Popen(["sh", "-c", line]))
        elif job.action in ("hang", "pause"):
            os.kill(pid, signal.SIGSTOP)


def finish(ranks: Ranks) -> None:
    for helper in ranks.helpers:
        helper.kill()
        helper.wait()
    ranks.helpers.clear()
    for rank in ranks.job.ranks:
        (ranks.groups[rank] / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
        os.kill(ranks.pids[rank], signal.SIGCONT)


def run(ranks: Ranks) -> List[int]:
    """Makes the steps, and does the task; the times of its begin and end in ns."""
    job, times = ranks.job, []
    ranks.confine()
    if job.action in ("busy", "limit", "stutter", "hang", "pause"):
        ranks.wait("its begin", lambda: ranks.step() >= job.first)
        times.append(time.monotonic_ns())
        begin(ranks)
        if job.action == "hang":
            time.sleep(HANGS_S)
            return times
        if job.action == "pause":
            time.sleep(job.size / 1000)
        elif job.last:
            ranks.wait("its end", lambda: ranks.step() >= job.last)
        if job.last:
            times.append(time.monotonic_ns())
            finish(ranks)
    ranks.wait("the last step", lambda: all(ranks.said(r, "^stays") for r in range(job.world)))
    return times


def trace_of(job: Job, records: List[List[Dict[str, int]]], now_ns: int) -> List[str]:
    """The lines of the trace. Clocks begin with 1 s."""
    members: Dict[int, set] = {}
    for rank, each in enumerate(records):
        for record in each:
            members.setdefault(record["comm"], set()).add(rank)
    names = {}
    for comm, ranks in sorted(members.items(), key=lambda item: sorted(item[1])):
        role = "tp" if job.group > 1 and max(ranks) - min(ranks) == job.group - 1 else "dp"
        names[comm] = f"{role}{sum(name.startswith(role) for name in names.values())}"
    zero = min(record["enter_ns"] for each in records for record in each) - 1_000_000_000
    comms = {names[comm]: sorted(ranks) for comm, ranks in members.items()}
    lines = [{"cairn_trace": 1, "world": job.world, "nodes": [0] * job.world, "comms": comms}]
    for rank, each in enumerate(records):
        for record in newest(each):
            line = {"rank": rank, "comm": names[record["comm"]], "seq": record["seq"]}
            line["op"] = OPERATIONS[record["op"]]
            line.update(bytes=record["bytes"], step=record["step"])
            line["start_ns"] = record["enter_ns"] - zero
            if record["end_ns"]:
                line["end_ns"] = record["end_ns"] - zero
            lines.append(line)
        lines.append({"rank": rank, "now_ns": now_ns - zero})
    return [json.dumps(line, separators=(",", ":")) for line in lines]


def newest(records: List[Dict[str, int]]) -> List[Dict[str, int]]:
    """The last record of each operation, in the order in which they were entered."""
    found: Dict[Tuple[int, int], Dict[str, int]] = {}
    for record in records:
        if record["op"] in OPERATIONS:
            found[record["comm"], record["seq"]] = record
    return sorted(found.values(), key=lambda record: record["enter_ns"])


def step_at(records: List[Dict[str, int]], time_ns: int) -> int:
    """The step that a rank was in at a time: that of the first operation it entered since then, or
    if there is none the one behind the last."""
    later = [record["step"] for record in records if record["enter_ns"] >= time_ns]
    return min(later) if later else max(record["step"] for record in records) + 1


def record_job(name: str, folder: pathlib.Path) -> bool:
    """False: other work disturbed it."""
    job = JOBS[name]
    load_before = os.getloadavg()[0]
    with harness.Cluster(nodes=1, parity=0, state="4MiB") as cluster:
        cluster.start()
        ranks = Ranks(cluster, job)
        try:
            times = run(ranks)
            now_ns = time.monotonic_ns()
            read = [read_ring(pid) for pid in ranks.pids]
            disturbed = ranks.is_disturbed()
            machine = {
                "processors": os.cpu_count(),
                "load": [round(load_before, 1), round(os.getloadavg()[0], 1)],
                "throttled_ms": [ranks.throttled_ms(rank) for rank in range(job.world)],
                f"computed_ms_in_{RUN_STEPS}_steps": [
                    ranks.computed_ms(rank) for rank in range(job.world)
                ],
            }
        finally:
            ranks.end()
    if disturbed:
        print(name, "was disturbed", json.dumps(machine), flush=True)
        return False
    records = [each for each, _lost in read]
    lost = sum(lost for _each, lost in read)
    if job.action == "loader":
        steps = [job.first - 1, job.last - 2 if job.last else 0]
    elif job.ranks:
        steps = [step_at(records[job.ranks[0]], each) for each in times] + [0]
    else:
        steps = [0, 0]
    lines = trace_of(job, records, now_ns)
    with lzma.open(folder / f"{name}.jsonl.xz", "wt", preset=9) as file:
        file.write("\n".join(lines) + "\n")
    label = {
        "what": job.action,
        "ranks": list(job.ranks),
        "size": job.size,
        "expected": expected(job, steps[0], steps[1]),
        "lost_records": lost,
        "machine": machine,
    }
    (folder / f"{name}.json").write_text(json.dumps(label) + "\n", encoding="utf-8")
    print(name, len(lines), json.dumps(label), flush=True)
    return True


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and the ranks are ended
    folder = pathlib.Path(sys.argv[1])
    missing = [
        name
        for name in sys.argv[2:] or JOBS
        if not any(record_job(name, folder) for _ in range(TRIES))
    ]
    if missing:
        raise SystemExit(f"{' '.join(missing)}: other work disturbs the ranks; try again later")


if __name__ == "__main__":
    main()
