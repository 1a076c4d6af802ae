#!/usr/bin/env python3
"""What protecting a PyTorch job costs: Cairn beside torch.save and async_save, in one run on one machine, all into memory.

    bench_peers.py [--small] [--rounds N] [--json]

A transformer of 202 million parameters with AdamW on CPU, 2.4 GB of state (--small: 0.4 million, to see that it runs). Two
trainers take turns, so that they never compete: one under `cairn run` with an agent of its own (one node, no parity), the other
without Cairn, which trains with nothing, torch.save and async_save in turn. Files go to /dev/shm. Figures are medians.
Needs 20 GiB of free memory and a build (make). `make bench-peers` sees to everything.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import pathlib
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

import harness  # noqa: E402

WORKER = str(ROOT / "tests" / "interop" / "bench_worker.py")
BINDINGS = str(ROOT / "bindings" / "python")
RAM_DISK = "/dev/shm"
CAIRN = "cairn"
CONTROL = "cairn, nothing due"  # the same trainer without snapshots
MODES = ("async_save, thread", "async_save, process")
BEHIND = tuple(
    f"{mode}, staged behind" for mode in MODES
)  # with a stager of the script's own that copies during the step, see bench_worker.py
PEERS = ("torch.save", *MODES, *BEHIND)
CANDIDATES = ("nothing", *PEERS, CONTROL, CAIRN)
READERS = ("dcp.load", "torch.load")
STARTS = {"interpreter_s": "Cairn's hook in the interpreter", "import_s": "import", "attach_s": "attach"}
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("CAIRN_") and name != "PYTHONPATH"}
MIB = 1 << 20
NOISE = 0.05  # of a step


class Size(NamedTuple):
    layers: int
    width: int
    tokens: int
    free_bytes: int  # that must be available

    def words(self) -> List[str]:
        return [str(self.layers), str(self.width), str(self.tokens)]


FULL, SMALL = Size(16, 1024, 64, 19 << 30), Size(2, 128, 32, 1 << 30)


def first_to_die() -> None:
    """With the benchmark; and where memory runs out, rather than what else runs on the machine."""
    harness.die_with_parent()
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def tree_cpu_seconds(roots: List[int]) -> float:
    """CPU time so far of these processes and all that descend from them."""
    parents: Dict[int, Tuple[int, float]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(name)] = (
                int(fields[1]),
                sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"),
            )  # ended children included
    total, todo = 0.0, list(roots)
    while todo:
        pid = todo.pop()
        total += parents.get(pid, (0, 0.0))[1]
        todo += [child for child, (parent, _) in parents.items() if parent == pid]
    return total


def available_bytes() -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


class Bench:
    """The run: processes, and what they answered."""

    def __init__(self, size: Size, rounds: int, folder: str, cluster: harness.Cluster) -> None:
        self.size, self.rounds, self.folder, self.cluster = size, rounds, folder, cluster
        self.log = os.path.join(folder, "log")
        self.blocks: Dict[str, List[Dict[str, Any]]] = {name: [] for name in CANDIDATES}
        self.processes: List[subprocess.Popen] = []

    def under_cairn(self, *words: str) -> List[str]:
        return [harness.CAIRN, "run", "--agent", self.cluster.socket(0), *words, "--"]

    def start(self, command: List[str], env: Optional[Dict[str, str]] = None) -> subprocess.Popen:
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                command,
                env={**CLEAN, **(env or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=first_to_die,
            )
        self.processes.append(process)
        return process

    def ask(self, process: subprocess.Popen, line: str = "") -> Dict[str, Any]:
        if line:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        for said in process.stdout:
            if said.startswith("{"):
                return json.loads(said)
        sys.exit(f"bench_peers: a trainer ended: {process.args}\n{harness.text_of(self.log)[-3000:]}")

    def once(self, command: List[str], env: Optional[Dict[str, str]] = None) -> Dict[str, Any]:
        """The answer of a process that ends by itself, with the time until then."""
        begin = time.perf_counter()
        process = self.start(command, env)
        found = self.ask(process)
        process.stdin.close()
        process.wait()
        return {**found, "whole_s": time.perf_counter() - begin}

    # ---- saving ----

    def train(self) -> None:
        words = [sys.executable, "-u", WORKER, "train", *self.size.words(), self.folder]
        plain, protected = self.start(words), self.start(self.under_cairn() + words)
        self.machine = {which: self.ask(process) for which, process in (("plain", plain), ("cairn", protected))}
        if not self.machine["cairn"]["hooked"] or self.machine["plain"]["hooked"]:
            sys.exit("bench_peers: `cairn run` did not bring its hooks into the trainer, or something else did into the other")
        pids = {"plain": [self.machine["plain"]["pid"]], "cairn": [self.machine["cairn"]["pid"], self.cluster.agents[0].pid]}
        for number in range(-1, self.rounds):  # the first is for warming up
            for name in CANDIDATES:
                who = "cairn" if name in (CAIRN, CONTROL) else "plain"
                saves = 2 if name in PEERS else 3
                process = protected if who == "cairn" else plain
                self.ask(process, f"block {name} {saves if number >= 0 else 1}")  # it is ready
                before = tree_cpu_seconds(pids[who])
                found = self.ask(process)
                found.update(cpu_s=tree_cpu_seconds(pids[who]) - before, warm_up=number < 0)
                self.blocks[name].append(found)
                self.progress(
                    f"round {number + 1} of {self.rounds}: {name}: steps {' '.join(f'{each:.2f}' for each in found['steps'])} s, "
                    f"stood still {' '.join(f'{1000 * each:.1f}' for each in found['blocked'])} ms"
                )
        self.finished = {"plain": self.ask(plain, "finish"), "cairn": self.ask(protected, "finish")}
        step = self.finished["cairn"]["step"]
        harness.wait_for(f"step {step} is committed", lambda: self.cluster.committed()[1] >= step, 60)
        for process in (plain, protected):
            process.kill()
            process.wait()

    def timed(self, name: str) -> List[Dict[str, Any]]:
        return [each for each in self.blocks[name] if not each["warm_up"]]

    def blocked_s(self, name: str) -> float:
        return statistics.median(value for each in self.timed(name) for value in each["blocked"])

    def step_s(self, name: str) -> float:
        return statistics.median(statistics.fmean(each["steps"]) for each in self.timed(name))

    def unsaved(self, name: str) -> List[Dict[str, Any]]:
        """The steps of the same trainer in the same rounds without saving."""
        return self.timed(CONTROL if name == CAIRN else "nothing")

    def overhead_s(self, name: str) -> float:
        """Beyond the steps without saving."""
        return statistics.median(
            statistics.fmean(each["steps"]) - statistics.fmean(base["steps"])
            for each, base in zip(self.timed(name), self.unsaved(name))
        )

    def overhead_ratio(self, peer: str) -> Optional[float]:
        """None where the peer's is lost in the noise of the steps: then the ratio says nothing."""
        theirs = self.overhead_s(peer)
        return self.overhead_s(CAIRN) / theirs if theirs > NOISE * self.step_s("nothing") else None

    def saves_per_step(self, name: str) -> float:
        """Of which async_save as often as it can makes less than one."""
        return statistics.median(len(each["blocked"]) / len(each["steps"]) for each in self.timed(name))

    def cpu_s(self, name: str) -> float:
        """CPU time per save of all processes beyond that of the same number of steps without saving."""
        return statistics.median(
            (each["cpu_s"] - base["cpu_s"] / len(base["steps"]) * len(each["steps"])) / len(each["blocked"])
            for each, base in zip(self.timed(name), self.unsaved(name))
        )

    # ---- restoring ----

    def restore(self) -> None:
        self.restores: Dict[str, List[Dict[str, Any]]] = {name: [] for name in (CAIRN, *READERS)}
        launches = []
        for number in range(self.rounds):
            for kind in (CAIRN, *READERS):
                words = [sys.executable, "-u", WORKER, "restore", kind, *self.size.words(), self.folder]
                under = self.under_cairn("--resume") if kind == CAIRN else []
                env = {"PYTHONPATH": BINDINGS, **({} if number else {"BENCH_FINGERPRINT": "1"})}
                found = self.once(under + words, env)
                self.restores[kind].append(found)
                wanted = self.finished["cairn" if kind == CAIRN else "plain"]["fingerprint"]
                if number == 0 and found["fingerprint"] != wanted:
                    sys.exit(f"bench_peers: {kind} did not restore what was saved:\n{harness.text_of(self.log)[-3000:]}")
                self.progress(f"restore {number + 1} of {self.rounds}: {kind}: {found['restore_s']:.3f} s")
            begin = time.perf_counter()
            subprocess.run(self.under_cairn("--resume") + ["true"], env=CLEAN, stderr=subprocess.DEVNULL, check=True)
            with_cairn = time.perf_counter() - begin
            subprocess.run(["true"], check=True)
            launches.append(with_cairn - (time.perf_counter() - begin - with_cairn))
        self.launch_s = statistics.median(launches)  # `cairn run --resume` before the command

    def restore_s(self, kind: str) -> float:
        """Until the first step can run."""
        return statistics.median(each["restore_s"] for each in self.restores[kind]) + (self.launch_s if kind == CAIRN else 0)

    def restored_and_stepped_s(self, kind: str) -> float:
        """Until the first step has run, less what a later step takes: memory that is only touched then counts here."""
        return self.restore_s(kind) + statistics.median(each["steps"][0] - each["steps"][-1] for each in self.restores[kind])

    # ---- starting ----

    def installed_bindings(self) -> str:
        """The binding as pip leaves it, with its bytecode: what is run from the tree may be compiled anew by each process."""
        place = os.path.join(self.folder, "bindings")
        shutil.copytree(os.path.join(BINDINGS, "cairn"), os.path.join(place, "cairn"))
        compileall.compile_dir(place, quiet=1)
        return place

    def startup(self) -> None:
        starts = []
        hooked: Dict[bool, List[float]] = {True: [], False: []}
        bindings = self.installed_bindings()
        library = {"CAIRN_LIBRARY": str(ROOT / "lib" / "libcairn.so"), "CAIRN_AGENT": self.cluster.socket(0)}
        hooks = {**library, "PYTHONPATH": bindings + "/cairn/autoload"}
        for _ in range(5):
            starts.append(
                self.once(
                    [sys.executable, WORKER, "startup"],
                    {**library, "PYTHONPATH": bindings, "CAIRN_JOB": "cluster"},
                )
            )
        for _ in range(10):
            for with_hooks in (True, False):
                begin = time.perf_counter()
                subprocess.run([sys.executable, "-c", "pass"], env={**CLEAN, **(hooks if with_hooks else {})}, check=True)
                hooked[with_hooks].append(time.perf_counter() - begin)
        if not all(each["attached"] for each in starts):
            sys.exit(f"bench_peers: attach found no agent:\n{harness.text_of(self.log)[-3000:]}")
        self.starts = {name: statistics.median(each[name] for each in starts) for name in ("torch_s", "import_s", "attach_s")}
        self.starts["interpreter_s"] = max(0.0, statistics.median(hooked[True]) - statistics.median(hooked[False]))

    def progress(self, text: str) -> None:
        print(f"bench_peers: {text} (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    # ---- the outcome ----

    def outcome(self) -> Dict[str, Any]:
        savers = {
            name: {
                "blocked_s": self.blocked_s(name),
                "step_s": self.step_s(name),
                "unsaved_step_s": statistics.median(statistics.fmean(each["steps"]) for each in self.unsaved(name)),
                "overhead_s": self.overhead_s(name),
                "saves_per_step": self.saves_per_step(name),
                "cpu_s_per_save": self.cpu_s(name),
            }
            for name in (CAIRN, *PEERS)
        }
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        last = self.timed(CAIRN)[-1]
        copies = [each["copy_cpu_s"] / len(each["steps"]) for each in self.timed(CAIRN)]
        starting = {**self.starts, "added_s": sum(self.starts[name] for name in STARTS)}
        blocked = {name: min(of, key=self.blocked_s) for name, of in (("", ("torch.save", *MODES)), (", staged behind", BEHIND))}
        overhead = {name: min(of, key=self.overhead_s) for name, of in (("", MODES), (", staged behind", BEHIND))}
        reached = {
            **{
                f"blocked{name}": (self.blocked_s(CAIRN) / self.blocked_s(best), 0.1, f"of {best}")
                for name, best in blocked.items()
            },
            **{f"overhead{name}": (self.overhead_ratio(best), 1 / 3, f"of {best}") for name, best in overhead.items()},
            **{f"restore, {kind}": (self.restore_s(kind) / self.restore_s(CAIRN), 5.0, "times as fast") for kind in READERS},
            "memory": ((last["memory_bytes"] - self.blocks["nothing"][0]["memory_bytes"]) / MIB, 64.0, "MiB in the trainer"),
            "start": (starting["added_s"] * 1000, 50.0, "ms added"),
        }
        return {
            "machine": f"{os.cpu_count()} cores, {cpu_model()}, {memory_bytes / (1 << 30):.1f} GiB",
            "kernel": platform.release(),
            "torch": self.machine["plain"]["torch"],
            "threads": self.machine["plain"]["threads"],
            "parameters": self.machine["plain"]["parameters"],
            "load": os.getloadavg()[0],
            "rounds": self.rounds,
            "step_s": self.step_s("nothing"),
            "savers": savers,
            "copy_cpu_s": statistics.median(copies),
            "snapshots": last["stats"],
            "restore": {
                kind: {"until_s": self.restore_s(kind), "with_step_s": self.restored_and_stepped_s(kind)}
                for kind in (CAIRN, *READERS)
            },
            "launch_s": self.launch_s,
            "start": starting,
            "bounds": {
                name: {
                    "value": value,
                    "bound": bound,
                    "unit": unit,
                    "met": None if value is None else value >= bound if name.startswith("restore") else value <= bound,
                }
                for name, (value, bound, unit) in reached.items()
            },
        }


def cpu_model() -> str:
    with open("/proc/cpuinfo") as file:
        fields = dict((part.strip() for part in line.split(":", 1)) for line in file if ":" in line)
    return f"{fields.get('model name', '?')} (family {fields.get('cpu family', '?')}, model {fields.get('model', '?')})"


def table(*rows: Tuple[str, ...]) -> str:
    """The first row is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]) + "\n"


def show(found: Dict[str, Any]) -> None:
    """The outcome as tables, what is promised last."""
    stats, start = found["snapshots"], found["start"]
    print(f"{found['machine']}, Linux {found['kernel']}, load average {found['load']:.3g}")
    print(f"torch {found['torch']}, {found['threads']} threads")
    print(f"{found['parameters'] / 1e6:.1f} million parameters, AdamW; a step without saving {found['step_s']:.2f} s")
    print(f"Rounds: {found['rounds']}; figures are medians\n")
    savers = [
        (
            name,
            f"{each['blocked_s'] * 1000:.1f} ms",
            f"{each['step_s']:.2f} s",
            f"{each['unsaved_step_s']:.2f} s",
            f"{each['overhead_s']:+.2f} s",
            f"{each['saves_per_step']:.2f}",
            f"{each['cpu_s_per_save']:.2f} s",
        )
        for name, each in found["savers"].items()
    ]
    head = ("saver", "training stands still, per save", "step", "without saving", "beyond it", "saves per step", "CPU per save")
    print(table(head, *savers))
    print(f"The copy itself takes {found['copy_cpu_s']:.2f} CPU s per snapshot.")
    print(
        "Snapshots: "
        + ", ".join(f"{stats['snapshots_' + how]} {how}" for how in ("begun", "captured", "skipped", "failed"))
        + "\n"
    )
    restores = [(name, f"{each['until_s']:.3f} s", f"{each['with_step_s']:.3f} s") for name, each in found["restore"].items()]
    print(table(("restore into a new process", "until the first step can run", "and what that step takes longer"), *restores))
    print(f"(`cairn run --resume` before the command, {found['launch_s'] * 1000:.0f} ms, is counted as Cairn's.)")
    parts = [f"{what} {start[name] * 1000:.1f} ms" for name, what in STARTS.items()]
    print(f"Start: {', '.join(parts)}; torch's own import {start['torch_s']:.2f} s\n")
    for name, each in found["bounds"].items():
        sign = ">=" if name.startswith("restore") else "<="
        if each["value"] is None:
            print(f"{name}: not decided, as what {each['unit'][3:]} adds to a step is less than the steps differ")
            continue
        verdict = "met" if each["met"] else "MISSED"
        print(f"{name}: {each['value']:.3g} {each['unit']}, promised {sign} {each['bound']:.3g}: {verdict}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a model of 0.4 million parameters")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="the outcome as JSON instead of tables")
    options = parser.parse_args()
    size = SMALL if options.small else FULL
    if not os.path.exists(harness.CAIRN):
        sys.exit(f"bench_peers: {harness.CAIRN} is not built: run make")
    if available_bytes() < size.free_bytes:
        sys.exit(f"bench_peers: {available_bytes() >> 30} GiB of memory are free, {size.free_bytes >> 30} GiB needed, or --small")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # not without removing the files
    state_bytes = 12 * (12 * size.layers * size.width**2) * 21 // 20 + 16 * MIB
    folder = tempfile.mkdtemp(prefix="cairn-bench-", dir=RAM_DISK)
    try:
        with harness.Cluster(nodes=1, parity=0, state=f"{state_bytes // MIB}MiB") as cluster:
            bench = Bench(size, max(1, options.rounds), folder, cluster.start(wait=False))
            try:
                harness.wait_for(
                    "the agent serves", lambda: "agent: serves" in cluster.log(0) or cluster.ended(0), 300
                )  # 5 GB are made ready
                bench.train()
                bench.restore()
                bench.startup()
            finally:
                bench.close()
            found = bench.outcome()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
