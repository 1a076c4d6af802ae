#!/usr/bin/env python3
"""Generates labelled traces, runs `cairn detect` over each as a user would, and prints what was
found.

    bench.py [--generator first|second] [--build DIR] [--traces N] [--seed N] [--case NAME]
    [--quiet-steps N] [--spikes F] [--drift F] [--log FILE] [--json] [--verbose]
    bench.py --scale 1024,4096,16384 [--steps N] [--seed N]
        what the command costs on jobs of so many ranks, piped into it

Each row is a case of tests/traces/generate.c, or with --generator second one of
tests/traces/second/generate.c. "found" says that a verdict of the right kind was given for the
fault, "right" that it names the right rank, node, link or ranks, "rate" that its rate is within
10 % of the truth, "closed" that it ended if and only if the fault did, "delay" the steps from the
onset to the detected step (median and 99th percentile). A verdict that no fault explains is false;
a victim that is named as a cause is one of those; "per_1e5" counts them per 100,000 steps of a
rank. Behind found, right and within_20 (steps of delay at most, of all faults) stands the Wilson
interval of 95 %. A trace that the command refuses counts as one in which nothing was found.

A slow NIC whose node is crossed by the very channels that cross another node is a row of its own,
`nic_anywhere`: no record depends on which of them it is, and right is there who names its links and
no node. Jobs whose transfers are much longer now and then have rows of their own, `.. spiky`. Quiet
jobs run for --quiet-steps steps in all, and a tenth of that each where transfers are spiky
(`quiet_spikes`) and where the lengths of pipelines wander unreported (`quiet_kept`). --spikes gives
all jobs a share of such transfers; 0: none. The exit status is 0 at any figures.

The whole takes hours on a small machine. With --log each trace's result is a line of that file as
soon as it is known, and the same command begun again (with the same --seed) goes on behind what is
there; the table is of all lines of the file.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Set, Tuple

CASES = [
    "slow",
    "slow_2pct",
    "slow_slight",
    "node",
    "link",
    "nic",
    "nic_rings",
    "hang_rank",
    "hang_link",
    "crash",
    "pause",
    "several",
    "long_stage",
    "last_stage",
    "lengths",
    "collector",
]
SECOND_CASES = [
    "slow",
    "slow_slight",
    "node",
    "link",
    "nic",
    "several",
    "hang_rank",
    "hang_link",
    "crash",
    "long_stage",
    "last_stage",
    "lengths",
    "collector",
    "quiet",
    # hard cases
    "nameless",
    "throttle",
    "overlapped",
    "overlapped_nic",
    "restart",
    "replaced",
    "losses",
    "clock_steps",
    "checkpoints",
    "hot_expert",
    "correlated",
    "drifting",
    "heavy_tails",
]
QUIET_CASES: Dict[str, List[str]] = {
    "quiet": [],
    "quiet_spikes": ["--spikes", "0.15"],
    "quiet_kept": ["--kept", "0.9"],
}
QUIET_STEPS_OF_ONE = 1000
STEPS_APART = 10  # by which a verdict may miss the steps of its fault
STEPS_IN_TIME = 20  # from the onset: promised for 95 % of devices at 1.1 times
Fault = Dict[str, Any]
Verdict = Dict[str, Any]


@dataclass
class Row:
    """Sums over traces, or one trace's part of them: then the row of a table adds it."""

    traces: int = 0
    faults: int = 0
    found: int = 0
    right: int = 0
    rate: int = 0
    rated: int = 0
    named_all: int = 0
    false: int = 0
    traces_false: int = 0
    steps: int = 0
    rank_steps: int = 0
    closed: int = 0
    refused: int = 0
    delays: List[int] = field(default_factory=list)

    def add(self, other: "Row") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class Log:
    """What is known of each trace: (case, seed) -> (row of the table, its figures, seconds of
    `cairn detect`)."""

    def __init__(self, path: Optional[str]) -> None:
        self.known: Dict[Tuple[str, int], Tuple[str, Row, float]] = {}
        lines: List[str] = []
        if path and os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                # a run that was ended may have left half a line
                lines = file.read().split("\n")[:-1]
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in lines)
        for line in lines:
            each = json.loads(line)
            self.known[each["case"], each["seed"]] = (
                each["row"],
                Row(**each["figures"]),
                each["seconds"],
            )
        self.file = open(path, "a", encoding="utf-8") if path else None

    def add(self, case: str, seed: int, row: str, figures: Row, seconds: float) -> None:
        self.known[case, seed] = row, figures, seconds
        if self.file:
            print(
                json.dumps(
                    {
                        "case": case,
                        "seed": seed,
                        "row": row,
                        "seconds": round(seconds, 3),
                        "figures": vars(figures),
                    }
                ),
                file=self.file,
                flush=True,
            )

    def rows(self) -> Dict[str, Row]:
        rows: Dict[str, Row] = {}
        for name, figures, _ in self.known.values():
            rows.setdefault(name, Row()).add(figures)
        return rows


def pair_of(fault: Fault) -> Tuple[int, int]:
    return fault["rank"], fault["peer"]


def links_of(verdict: Verdict) -> List[Tuple[int, int]]:
    return [(a, b) for a, b in verdict["links"]]


def is_found(verdict: Verdict, fault: Fault) -> bool:
    """The right kind; of a node, each of its ranks alone counts as found (not as right)."""
    if verdict["kind"] == "slow_compute" and fault["kind"] == "slow_node":
        return True
    return verdict["kind"] == fault["kind"] and (verdict["pattern"] or "") == fault["pattern"]


def is_right(verdict: Verdict, fault: Fault, labels: Dict[str, Any]) -> bool:
    """The right rank, node, link or ranks, and no other."""
    kind = fault["kind"]
    if verdict["kind"] != kind or (verdict["pattern"] or "") != fault["pattern"]:
        return False
    if kind in ("slow_compute", "hang_compute", "crash"):
        return verdict["ranks"] == [fault["rank"]]
    if fault["nic"] and not labels["placeable"]:
        per_node = labels["ranks_per_node"]
        return not verdict["nodes"] and fault["node"] in {
            rank // per_node for link in verdict["links"] for rank in link
        }
    if kind == "slow_node" or fault["nic"]:
        return verdict["nodes"] == [fault["node"]]
    a, b = pair_of(fault)
    # all that were in the operation, among them the two between which it stopped
    if kind == "hang_link":
        return {(a, b), (b, a)} & set(links_of(verdict)) != set()
    if kind == "slow_link":
        return (
            not verdict["nodes"]
            and set(links_of(verdict)) <= {(a, b), (b, a)}
            and bool(verdict["links"])
        )
    if fault["pattern"] in ("long_stage", "last_stage"):
        per_stage = labels["world"] // labels["pp"]
        return len(verdict["ranks"]) == per_stage
    return True


def is_placeable(header: Dict[str, Any], node: int) -> bool:
    """Whether a node's channels to others are not just those of another node, so that its NIC can
    be told from that one's."""
    nodes = header.get("nodes")
    crossing: Dict[int, Set[Tuple[str, int, int]]] = {}
    for name, ranks in header["comms"].items() if nodes else []:
        if name.startswith("pp"):
            channels = [((name, a, b), {nodes[a], nodes[b]}) for a, b in zip(ranks, ranks[1:])]
        else:
            channels = [((name, 0, 0), {nodes[rank] for rank in ranks})]
        for channel, touched in channels:
            for each in touched if len(touched) > 1 else ():
                crossing.setdefault(each, set()).add(channel)
    return node in crossing and all(
        crossing[each] != crossing[node] for each in crossing if each != node
    )


def judge(row: Row, labels: Dict[str, Any], answer: Dict[str, Any]) -> bool:
    """Adds one trace to a row; true where everything was right."""
    left = list(answer["verdicts"])
    row.traces += 1
    row.steps += answer["steps"]
    row.rank_steps += answer["steps"] * labels["world"]
    right_here = 0
    for fault in labels["faults"]:
        row.faults += 1
        mine = [v for v in left if overlaps(v, fault) and is_right(v, fault, labels)] or [
            v for v in left if overlaps(v, fault) and is_found(v, fault) and touches(v, fault)
        ]
        if not mine:
            continue
        verdict = mine[0]
        row.found += 1
        exact = is_right(verdict, fault, labels)
        row.right += exact
        right_here += exact
        left = [
            v
            for v in left
            if v is not verdict and not (overlaps(v, fault) and is_right(v, fault, labels))
        ]
        if verdict["kind"].startswith("slow"):
            row.rated += 1
            row.rate += abs(verdict["rate"] / fault["rate"] - 1) <= 0.1
            row.closed += (verdict["until_step"] is None) == (fault["until_step"] < 0)
        row.delays.append(verdict["detected_step"] - fault["since_step"])
    left = [v for v in left if v["kind"] not in labels.get("tolerated", [])]
    row.named_all += right_here == len(labels["faults"])
    row.false += len(left)
    row.traces_false += bool(left)
    return right_here == len(labels["faults"]) and not left


def overlaps(verdict: Verdict, fault: Fault) -> bool:
    """The verdict's steps are some of the fault's, or nearly: one rank may be slow twice."""
    begin, end = fault["since_step"], fault["until_step"]
    until = verdict["until_step"]
    return (end < 0 or verdict["since_step"] <= end + STEPS_APART) and (
        until is None or until + STEPS_APART >= begin
    )


def touches(verdict: Verdict, fault: Fault) -> bool:
    """A verdict of the right kind that has something to do with the fault."""
    if fault["kind"] == "structural" or fault["nic"]:
        return True
    if fault["kind"] == "slow_node":
        return bool(verdict["ranks"])
    return fault["rank"] in verdict["ranks"]


def detect(cairn: str, trace: str) -> Dict[str, Any]:
    done = subprocess.run(
        [cairn, "detect", "--trace", trace, "-o", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 65:
        return {"verdicts": [], "steps": 0, "refused": done.stderr.strip()}
    if done.returncode != 0:
        raise SystemExit(
            f"bench: cairn detect failed with {done.returncode}: {done.stderr.strip()}"
        )
    answer: Dict[str, Any] = json.loads(done.stdout)
    return answer


def row_of(case: str, labels: Dict[str, Any]) -> str:
    row = case if labels["placeable"] else "nic_anywhere"
    return f"{row} spiky" if labels["spikes"] > 0 and case not in QUIET_CASES else row


def run_one(
    build: str, directory: str, name: str, seed: int, log: Log, more: List[str], verbose: bool
) -> None:
    """One trace of the first generator."""
    if (name, seed) in log.known:
        return
    real = (
        "slow" if name == "slow_2pct" else name.partition("_")[0] if name in QUIET_CASES else name
    )
    more = [*more, *QUIET_CASES.get(name, [])]
    if name == "slow_2pct":
        more = [*more, "--noise", "0.02"]
    run_generated(
        f"{build}/tests/traces/generate", build, directory, (name, real), seed, log, more, verbose
    )


def run_second(
    build: str, directory: str, name: str, seed: int, log: Log, more: List[str], verbose: bool
) -> None:
    """One trace of the second generator."""
    if (name, seed) not in log.known:
        run_generated(
            f"{build}/tests/traces/second/generate",
            build,
            directory,
            (name, name),
            seed,
            log,
            more,
            verbose,
        )


def run_generated(
    program: str,
    build: str,
    directory: str,
    names: Tuple[str, str],
    seed: int,
    log: Log,
    more: List[str],
    verbose: bool,
) -> None:
    """Generates, detects, judges and logs; names are the case's and what the program calls it."""
    name, real = names
    trace, labels_path = os.path.join(directory, "trace.jsonl"), os.path.join(
        directory, "labels.json"
    )
    subprocess.run(
        [
            program,
            "--seed",
            str(seed),
            "--case",
            real,
            "--trace",
            trace,
            "--labels",
            labels_path,
            *more,
        ],
        check=True,
    )
    with open(labels_path, encoding="utf-8") as file:
        labels = json.load(file)
    with open(trace, encoding="utf-8") as file:
        header = json.loads(file.readline())
    labels["placeable"] = all(
        is_placeable(header, fault["node"]) for fault in labels["faults"] if fault["nic"]
    )
    begin = time.monotonic()
    answer = detect(f"{build}/cairn", trace)
    seconds = time.monotonic() - begin
    figures = Row()
    good = judge(figures, labels, answer)
    figures.refused += "refused" in answer
    second = program.endswith("second/generate")
    log.add(name, seed, name if second else row_of(name, labels), figures, seconds)
    if not good and verbose:
        print(answer.get("refused", ""))
        shape = {k: v for k, v in labels.items() if k != "faults"}
        print(f"-- {name} seed {seed}: {shape}\n   faults {labels['faults']}", flush=True)
        for verdict in answer["verdicts"][:6]:
            shown = {k: v for k, v in verdict.items() if k not in ("victims", "evidence")}
            print(f"   said {shown}\n        {verdict['evidence']}", flush=True)


def percent(part: int, whole: int) -> Optional[float]:
    return round(100 * part / whole, 2) if whole else None


def wilson(part: int, whole: int) -> str:
    """Interval of 95 % of a share, in percent (Wilson, 1927)."""
    if not whole:
        return "-"
    z = 1.96
    share, squared = part / whole, z * z / whole
    middle = (share + squared / 2) / (1 + squared)
    half = z / (1 + squared) * math.sqrt(share * (1 - share) / whole + squared / 4 / whole)
    return f"{100 * max(0, middle - half):.1f}-{100 * min(1, middle + half):.1f}"


def quantile(values: List[int], share: float) -> Optional[int]:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def summary(row: Row) -> Dict[str, Any]:
    in_time = sum(delay <= STEPS_IN_TIME for delay in row.delays)
    return {
        "traces": row.traces,
        "steps": row.steps,
        "faults": row.faults,
        "found_%": percent(row.found, row.faults),
        "found_95": wilson(row.found, row.faults),
        "right_%": percent(row.right, row.faults),
        "right_95": wilson(row.right, row.faults),
        "rate_%": percent(row.rate, row.rated),
        "closed_%": percent(row.closed, row.rated),
        "all_right_%": percent(row.named_all, row.traces),
        "false_verdicts": row.false,
        "traces_with_false": row.traces_false,
        "per_1e5": round(1e5 * row.false / row.rank_steps, 2) if row.rank_steps else None,
        "refused": row.refused,
        "delay_p50": quantile(row.delays, 0.5),
        "delay_p99": quantile(row.delays, 0.99),
        "within_20_%": percent(in_time, row.faults),
        "within_20_95": wilson(in_time, row.faults),
    }


def show(value: Any) -> str:
    return "-" if value is None else str(value)


def thread_seconds(pid: int) -> Dict[str, float]:
    """CPU time of each thread of a process that has not been waited for; without those that have
    ended."""
    seconds: Dict[str, float] = {}
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="utf-8") as file:
                seconds[thread] = int(file.read().split()[0]) / 1e9
    except (OSError, IndexError):
        pass
    return seconds


def scale(build: str, ranks: int, steps: int, seed: int) -> Dict[str, Any]:
    """One job with a slow device, generated into the command's stdin: the clock shows the time of
    the slower of the two.

    What the command alone would take is at least what the busier of its two threads takes, and
    little more on two free cores.
    """
    begin = time.monotonic()
    generate = [
        f"{build}/tests/traces/generate",
        "--seed",
        str(seed),
        "--case",
        "slow",
        "--ranks",
        str(ranks),
        "--steps",
        str(steps),
        "--trace",
        "/dev/stdout",
        "--labels",
        "/dev/null",
    ]
    detecting = [f"{build}/cairn", "detect", "--trace", "-", "-o", "json"]
    threads: Dict[str, float] = {}
    with subprocess.Popen(
        generate, stdout=subprocess.PIPE
    ) as generator, tempfile.TemporaryFile() as out, subprocess.Popen(
        detecting, stdin=generator.stdout, stdout=out
    ) as command:
        done = 0
        while not done:
            threads.update(thread_seconds(command.pid))
            time.sleep(0.05)
            done, status, used = os.wait4(command.pid, os.WNOHANG)
        command.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        answer = json.load(out)
    cpu = used.ru_utime + used.ru_stime
    return {
        "ranks": ranks,
        "steps": answer["steps"],
        "operations": answer["records"],
        "cpu_s": round(cpu, 1),
        "busier_thread_s": round(max(threads.values(), default=0), 1),
        "us_per_operation": round(1e6 * cpu / max(answer["records"], 1), 2),
        "peak_mib": round(used.ru_maxrss / 1024, 1),
        "seconds": round(time.monotonic() - begin, 1),
        "verdicts": len(answer["verdicts"]),
    }


def report(log: Log, seed: int, as_json: bool) -> None:
    results = {name: summary(row) for name, row in log.rows().items()}
    seconds = sum(each[2] for each in log.known.values())
    if as_json:
        print(
            json.dumps(
                {"seed": seed, "detect_seconds": round(seconds, 1), "cases": results}, indent=1
            )
        )
        return
    keys = list(next(iter(results.values())))
    print(f"seed {seed}; cairn detect ran for {seconds:.0f} s")
    print("".join(["case".ljust(19), *(k.rjust(max(9, len(k) + 2)) for k in keys)]))
    for name, result in results.items():
        print("".join([name.ljust(19), *(show(result[k]).rjust(max(9, len(k) + 2)) for k in keys)]))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", help="numbers of ranks, with commas")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--build", default="build/plain")
    parser.add_argument("--generator", choices=("first", "second"), default="first")
    parser.add_argument("--drift", help="of each rank's speed, second generator")
    parser.add_argument("--traces", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--case")
    parser.add_argument("--quiet-steps", type=int, default=1_000_000)
    parser.add_argument("--ranks", default="0")
    parser.add_argument(
        "--spikes", help="share of the transfers that take up to three times as long"
    )
    parser.add_argument("--log", help="file of results, to go on from")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    if options.scale:
        for ranks in options.scale.split(","):
            figures = scale(options.build, int(ranks), options.steps, options.seed)
            print(" ".join(f"{key}={value}" for key, value in figures.items()), flush=True)
        return 0
    log = Log(options.log)
    if options.generator == "second":
        more = ["--drift", options.drift] if options.drift else []
        cases = options.case.split(",") if options.case else SECOND_CASES
        with tempfile.TemporaryDirectory() as directory:
            for i in range(options.traces):
                name = cases[i % len(cases)]
                seed = options.seed + i
                run_second(options.build, directory, name, seed, log, more, options.verbose)
        report(log, options.seed, options.json)
        return 0
    cases = (
        [options.case]
        if options.case and options.case not in QUIET_CASES
        else []
        if options.case
        else CASES
    )
    spikes = ["--spikes", options.spikes] if options.spikes else []
    with tempfile.TemporaryDirectory() as directory:
        for i in range(options.traces if cases else 0):
            name = cases[i % len(cases)]
            run_one(
                options.build,
                directory,
                name,
                options.seed + i,
                log,
                ["--ranks", options.ranks, *spikes],
                options.verbose,
            )
        for name in (
            [options.case] if options.case in QUIET_CASES else [] if options.case else QUIET_CASES
        ):
            steps = (
                options.quiet_steps
                if name in (options.case, "quiet")
                else options.quiet_steps // 10
            )
            for quiet in range((steps + QUIET_STEPS_OF_ONE - 1) // QUIET_STEPS_OF_ONE):
                ranks = "16" if quiet % 8 else "64"
                run_one(
                    options.build,
                    directory,
                    name,
                    options.seed + 10_000_000 + quiet,
                    log,
                    ["--steps", str(QUIET_STEPS_OF_ONE), "--ranks", ranks, *spikes],
                    options.verbose,
                )
    report(log, options.seed, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
