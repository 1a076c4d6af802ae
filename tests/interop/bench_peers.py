#!/usr/bin/env python3
"""What protecting a PyTorch job costs: Cairn beside torch.save and async_save, in one run on one
machine, all into memory.

    bench_peers.py [--small] [--rounds N] [--json]

A transformer of 202 million parameters with AdamW on CPU, 2.4 GB of state (--small: 0.4 million, to
see that it runs). One trainer runs under `cairn run` with an agent of its own (one node, no parity)
and saves with Cairn, torch.save and async_save in short turns; each turn stands between two steps
of the same trainer without saving, and is compared with those (bench_pairs.py). What Cairn's hooks
take in such a step is added to what Cairn costs. Files go to /dev/shm. Figures are medians, with
intervals. A round takes four minutes where a step takes two seconds; three rounds give the
intervals their meaning. Needs 19 GiB of free memory and a build (make). `make bench-peers` sees to
everything.
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
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

import bench_pairs  # noqa: E402
import harness  # noqa: E402

WORKER = str(ROOT / "tests" / "interop" / "bench_worker.py")
BINDINGS = str(ROOT / "bindings" / "python")
RAM_DISK = "/dev/shm"
CAIRN = "cairn"
MODES = ("async_save, thread", "async_save, process")
BEHIND = tuple(
    f"{mode}, staged behind" for mode in MODES
)  # with a stager of the script's own that copies during the step, see bench_worker.py
PEERS = ("torch.save", *MODES, *BEHIND)
GROUPS = 2  # of each peer in a round; after each of these turns Cairn has one
CPU: Dict[str, Callable[[Dict[str, float]], float]] = {
    "all": lambda each: each["trainer"] + each["children"] + each["agent"],
    "Cairn's copy": lambda each: each["copy"],
    "the rest of Cairn": lambda each: each["client"] + each["agent"],
    "the saver's own process": lambda each: each["children"],
    "other threads of the trainer": lambda each: each["trainer"] - each["copy"] - each["client"],
}
READERS = ("dcp.load", "torch.load")
# a new process that restores nothing: what its first step takes, all others' takes too
NOTHING = "nothing"
STARTS = {
    "interpreter_s": "Cairn's hook in the interpreter",
    "import_s": "import",
    "attach_s": "attach",
}
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith("CAIRN_") and name != "PYTHONPATH"
}
MIB = 1 << 20
VERDICTS = {True: "met", False: "MISSED", None: "NOT DECIDED, the scatter is too large"}


class Size(NamedTuple):
    layers: int
    width: int
    tokens: int
    free_bytes: int  # that must be available
    starts: int  # the median is given
    restores: int = 2  # of each kind, per round

    def words(self) -> List[str]:
        return [str(self.layers), str(self.width), str(self.tokens)]


FULL, SMALL = Size(16, 1024, 64, 19 << 30, 5), Size(2, 128, 32, 1 << 30, 1, 1)


def first_to_die() -> None:
    """With the benchmark; and where memory runs out, rather than what else runs on the machine."""
    harness.die_with_parent()
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def available_bytes() -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


class Bench:
    """The run: processes, and what they answered."""

    def __init__(self, size: Size, rounds: int, folder: str, cluster: harness.Cluster) -> None:
        self.size, self.rounds, self.folder, self.cluster = size, rounds, folder, cluster
        self.log = os.path.join(folder, "log")
        self.groups: Dict[str, List[bench_pairs.Group]] = {name: [] for name in (CAIRN, *PEERS)}
        self.processes: List[subprocess.Popen] = []
        self.round = 0

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
        sys.exit(
            f"bench_peers: a trainer ended: {process.args}\n{harness.text_of(self.log)[-3000:]}"
        )

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
        self.memory_before = self.memory_without_cairn(words)
        trainer = self.start(self.under_cairn() + words + [str(self.cluster.agents[0].pid)])
        self.machine = self.ask(trainer)
        if not self.machine["hooked"]:
            sys.exit("bench_peers: `cairn run` did not bring its hooks into the trainer")
        self.memory_bytes = self.turn(trainer, CAIRN, 1)["memory_bytes"]
        for name in PEERS:  # these are for warming up
            self.turn(trainer, name, 1)
        for self.round in range(1, self.rounds + 1):
            for name in PEERS:
                self.groups[name] += self.turn(trainer, name, GROUPS)["groups"]
                found = self.turn(trainer, CAIRN, 1)
                self.groups[CAIRN] += found["groups"]
        self.stats = found["stats"]
        self.finished = self.ask(trainer, "finish")
        step = self.finished["step"]
        harness.wait_for(
            f"step {step} is committed", lambda: self.cluster.committed()[1] >= step, 60
        )
        trainer.kill()
        trainer.wait()

    def memory_without_cairn(self, words: List[str]) -> int:
        trainer = self.start(words + ["0"])
        if self.ask(trainer)["hooked"]:
            sys.exit(
                "bench_peers: something brings Cairn's hooks into a trainer that is not under "
                "`cairn run`"
            )
        found = self.turn(trainer, "nothing", 1)
        trainer.kill()
        trainer.wait()
        return found["memory_bytes"]

    def turn(self, trainer: subprocess.Popen, name: str, groups: int) -> Dict[str, Any]:
        found = self.ask(trainer, f"block {name} {groups}")
        for each in found["groups"]:
            episode, (before, after) = each["episode"], each["control"]
            self.progress(
                f"{f'round {self.round} of {self.rounds}' if self.round else 'warming up'}: "
                f"{name}: {episode['saves']} saves in {episode['steps']} steps of "
                f"{episode['wall_s'] / episode['steps']:.2f} s between steps of "
                f"{before['wall_s']:.2f} and {after['wall_s']:.2f} s, stood still "
                f"{' '.join(f'{1000 * one:.1f}' for one in episode['blocked'])} ms"
            )
        return found

    def blocked_s(self, name: str) -> float:
        return statistics.median(
            value for each in self.groups[name] for value in each["episode"]["blocked"]
        )

    def always_s(self, name: str) -> float:
        """What Cairn's hooks take in the steps that it is compared with."""
        if name != CAIRN:
            return 0.0
        return statistics.median(
            part["blocked"][0] for each in self.groups[CAIRN] for part in each["control"]
        )

    def per_step(self, name: str) -> bench_pairs.Estimate:
        return bench_pairs.per_step(self.groups[name], self.always_s(name))

    def saver(self, name: str) -> Dict[str, Any]:
        groups = self.groups[name]
        per_step, per_save = self.per_step(name), bench_pairs.per_save(groups, self.always_s(name))
        cpu_s = {what: bench_pairs.cpu_per_save(groups, pick) for what, pick in CPU.items()}
        return {
            "blocked_s": self.blocked_s(name),
            "groups": len(groups),
            "step_s": statistics.median(
                each["episode"]["wall_s"] / each["episode"]["steps"] for each in groups
            ),
            "unsaved": bench_pairs.control_scatter(groups),
            "overhead_s": per_step._asdict(),
            "overhead_s_per_save": per_save._asdict(),
            "resolved": per_step.is_resolved(),
            "saves_per_step": statistics.median(
                each["episode"]["saves"] / each["episode"]["steps"] for each in groups
            ),
            "cpu_s_per_save": {what: each._asdict() for what, each in cpu_s.items()},
        }

    def overhead_bound(self, of: Tuple[str, ...], bound: float) -> Dict[str, Any]:
        best = min(of, key=lambda name: self.per_step(name).median)
        found = bench_pairs.ratio(self.per_step(CAIRN), self.per_step(best))
        return {
            **found._asdict(),
            "bound": bound,
            "unit": f"of {best}",
            "met": found.is_at_most(bound),
        }

    # ---- restoring ----

    def restore(self) -> None:
        kinds = (NOTHING, CAIRN, *READERS)
        self.restores: Dict[str, List[Dict[str, Any]]] = {kind: [] for kind in kinds}
        for kind in (CAIRN, *READERS):  # not timed: what is compared has been read by then
            if (
                self.restored(kind, {"BENCH_FINGERPRINT": "1"})["fingerprint"]
                != self.finished["fingerprint"]
            ):
                sys.exit(
                    f"bench_peers: {kind} did not restore what was "
                    f"saved:\n{harness.text_of(self.log)[-3000:]}"
                )
        launches = []
        count = self.size.restores * self.rounds
        for number in range(count):
            for kind in kinds:
                found = self.restored(kind)
                self.restores[kind].append(found)
                took = (
                    f"{found['restore_s']:.3f} s, first step {found['steps'][0]:.2f} s, "
                    f"then {found['steps'][-1]:.2f} s"
                )
                self.progress(f"restore {number + 1} of {count}: {kind}: {took}")
            begin = time.perf_counter()
            subprocess.run(
                self.under_cairn("--resume") + ["true"],
                env=CLEAN,
                stderr=subprocess.DEVNULL,
                check=True,
            )
            with_cairn = time.perf_counter() - begin
            subprocess.run(["true"], check=True)
            launches.append(with_cairn - (time.perf_counter() - begin - with_cairn))
        self.launch_s = statistics.median(launches)  # `cairn run --resume` before the command

    def restored(self, kind: str, env: Optional[Dict[str, str]] = None) -> Dict[str, Any]:
        """What a new process says that restored so and made some steps."""
        under = self.under_cairn("--resume") if kind == CAIRN else []
        words = [sys.executable, "-u", WORKER, "restore", kind, *self.size.words(), self.folder]
        return self.once(under + words, {"PYTHONPATH": BINDINGS, **(env or {})})

    def restore_s(self, kind: str) -> float:
        """Until the call that restores has returned."""
        return statistics.median(each["restore_s"] for each in self.restores[kind]) + (
            self.launch_s if kind == CAIRN else 0
        )

    def restored_and_stepped_s(self, kind: str) -> float:
        """Until the first step has run, beyond a new process that restores nothing: what is read
        only then counts here, and what any new process does in its first step (the pages of
        gradients, of moments) does not."""
        pairs = zip(self.restores[kind], self.restores[NOTHING])
        beyond_s = [
            each["restore_s"] + each["steps"][0] - nothing["steps"][0] for each, nothing in pairs
        ]
        return statistics.median(beyond_s) + (self.launch_s if kind == CAIRN else 0)

    # ---- starting ----

    def installed_bindings(self) -> str:
        """The binding as pip leaves it, with its bytecode: what is run from the tree may be
        compiled again by each process."""
        place = os.path.join(self.folder, "bindings")
        shutil.copytree(os.path.join(BINDINGS, "cairn"), os.path.join(place, "cairn"))
        compileall.compile_dir(place, quiet=1)
        return place

    def startup(self) -> None:
        starts = []
        hooked: Dict[bool, List[float]] = {True: [], False: []}
        bindings = self.installed_bindings()
        library = {
            "CAIRN_LIBRARY": str(ROOT / "lib" / "libcairn.so"),
            "CAIRN_AGENT": self.cluster.socket(0),
        }
        hooks = {**library, "PYTHONPATH": bindings + "/cairn/autoload"}
        for _ in range(self.size.starts):
            starts.append(
                self.once(
                    [sys.executable, WORKER, "startup"],
                    {**library, "PYTHONPATH": bindings, "CAIRN_JOB": "cluster"},
                )
            )
        for _ in range(2 * self.size.starts):
            for with_hooks in (True, False):
                begin = time.perf_counter()
                subprocess.run(
                    [sys.executable, "-c", "pass"],
                    env={**CLEAN, **(hooks if with_hooks else {})},
                    check=True,
                )
                hooked[with_hooks].append(time.perf_counter() - begin)
        if not all(each["attached"] for each in starts):
            sys.exit(f"bench_peers: attach found no agent:\n{harness.text_of(self.log)[-3000:]}")
        self.starts = {
            name: statistics.median(each[name] for each in starts)
            for name in ("torch_s", "import_s", "attach_s")
        }
        self.starts["interpreter_s"] = max(
            0.0, statistics.median(hooked[True]) - statistics.median(hooked[False])
        )

    def progress(self, text: str) -> None:
        print(f"bench_peers: {text} (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    # ---- the outcome ----

    def outcome(self) -> Dict[str, Any]:
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        starting = {**self.starts, "added_s": sum(self.starts[name] for name in STARTS)}
        stepped_s = self.restored_and_stepped_s
        blocked = {
            name: min(of, key=self.blocked_s)
            for name, of in (("", ("torch.save", *MODES)), (", staged behind", BEHIND))
        }
        simple = {
            **{
                f"blocked{name}": (self.blocked_s(CAIRN) / self.blocked_s(best), 0.1, f"of {best}")
                for name, best in blocked.items()
            },
            **{
                f"restore, {kind}": (
                    self.restore_s(kind) / self.restore_s(CAIRN),
                    5.0,
                    "times as fast",
                )
                for kind in READERS
            },
            **{
                f"restore and first step, {kind}": (
                    stepped_s(kind) / stepped_s(CAIRN),
                    5.0,
                    "times as fast",
                )
                for kind in READERS
            },
            "memory": ((self.memory_bytes - self.memory_before) / MIB, 64.0, "MiB in the trainer"),
            "start": (starting["added_s"] * 1000, 50.0, "ms added"),
        }
        return {
            "machine": f"{os.cpu_count()} cores, {cpu_model()}, {memory_bytes / (1 << 30):.1f} GiB",
            "kernel": platform.release(),
            "torch": self.machine["torch"],
            "threads": self.machine["threads"],
            "parameters": self.machine["parameters"],
            "load": os.getloadavg()[0],
            "rounds": self.rounds,
            "unsaved": bench_pairs.control_scatter(
                [each for of in self.groups.values() for each in of]
            ),
            "savers": {name: self.saver(name) for name in (CAIRN, *PEERS)},
            "hooks_s": self.always_s(CAIRN),
            "snapshots": self.stats,
            "restore": {
                kind: {
                    "until_s": self.restore_s(kind),
                    "with_step_s": self.restored_and_stepped_s(kind),
                }
                for kind in (CAIRN, *READERS)
            },
            "first_step_s": statistics.median(each["steps"][0] for each in self.restores[NOTHING]),
            "launch_s": self.launch_s,
            "start": starting,
            "bounds": {
                "overhead": self.overhead_bound(MODES, 1 / 3),
                "overhead, staged behind": self.overhead_bound(BEHIND, 1 / 3),
                **{
                    name: {
                        "value": value,
                        "bound": bound,
                        "unit": unit,
                        "met": value >= bound if name.startswith("restore") else value <= bound,
                    }
                    for name, (value, bound, unit) in simple.items()
                },
            },
        }


def cpu_model() -> str:
    with open("/proc/cpuinfo") as file:
        fields = dict((part.strip() for part in line.split(":", 1)) for line in file if ":" in line)
    name, family, model = (fields.get(key, "?") for key in ("model name", "cpu family", "model"))
    return f"{name} (family {family}, model {model})"


def interval(found: Dict[str, float], digits: int = 2) -> str:
    return (
        f"{found['median']:+.{digits}f} s [{found['low']:+.{digits}f}, {found['high']:+.{digits}f}]"
    )


def table(*rows: Tuple[str, ...]) -> str:
    """The first row is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]) + "\n"


def show(found: Dict[str, Any]) -> None:
    """The outcome as tables, what is promised last."""
    stats, start = found["snapshots"], found["start"]
    print(f"{found['machine']}, Linux {found['kernel']}, load average {found['load']:.3g}")
    print(f"torch {found['torch']}, {found['threads']} threads")
    unsaved = found["unsaved"]
    print(
        f"{found['parameters'] / 1e6:.1f} million parameters, AdamW; a step without saving "
        f"{unsaved['median_s']:.2f} s"
    )
    print(f"Rounds: {found['rounds']}; figures are medians\n")
    savers = [
        (
            name,
            f"{each['blocked_s'] * 1000:.1f} ms",
            f"{each['step_s']:.2f} s",
            f"{each['unsaved']['median_s']:.2f} s",
            interval(each["overhead_s"]) + ("" if each["resolved"] else ", not resolved"),
            f"{each['saves_per_step']:.2f}",
            interval(each["overhead_s_per_save"]),
            f"{each['groups']}, {100 * each['overhead_s']['coverage']:.0f} %",
        )
        for name, each in found["savers"].items()
    ]
    head = (
        "saver",
        "training stands still, per save",
        "step",
        "without saving",
        "beyond it, per step",
        "saves per step",
    )
    print(table((*head, "beyond it, per saved state", "groups, interval holds"), *savers))
    cpu = [
        (name, *(interval(each["cpu_s_per_save"][what], 3) for what in CPU))
        for name, each in found["savers"].items()
    ]
    print(table(("CPU per saved state, beyond steps without saving", *CPU), *cpu))
    print(
        "In brackets: the interval that holds the median with the probability in the first table's "
        "last column."
    )
    print(
        f"Steps without saving: half of them between {unsaved['low_s']:.2f} and "
        f"{unsaved['high_s']:.2f} s; two of one group differ by {unsaved['apart_s']:.2f} s (median)"
    )
    print(
        f"In each of them Cairn's hooks take {found['hooks_s'] * 1000:.1f} ms, which Cairn's "
        "figures contain."
    )
    print(
        "Snapshots: "
        + ", ".join(
            f"{stats['snapshots_' + how]} {how}"
            for how in ("begun", "captured", "skipped", "failed")
        )
        + "\n"
    )
    restores = [
        (name, f"{each['until_s']:.3f} s", f"{each['with_step_s']:.3f} s")
        for name, each in found["restore"].items()
    ]
    beyond = (
        f"until the first step has run, beyond the {found['first_step_s']:.2f} s of one with "
        "nothing restored"
    )
    print(table(("restore into a new process", "until the call returns", beyond), *restores))
    print(
        f"(`cairn run --resume` before the command, {found['launch_s'] * 1000:.0f} ms, is counted "
        "as Cairn's.)"
    )
    parts = [f"{what} {start[name] * 1000:.1f} ms" for name, what in STARTS.items()]
    print(f"Start: {', '.join(parts)}; torch's own import {start['torch_s']:.2f} s\n")
    for name, each in found["bounds"].items():
        sign = ">=" if name.startswith("restore") else "<="
        verdict = VERDICTS[each["met"]]
        value = "?" if each["value"] is None else f"{each['value']:.3g}"
        if each.get("low") is not None:
            value += f" [{each['low']:.3g}, {each['high']:.3g}]"
        print(f"{name}: {value} {each['unit']}, promised {sign} {each['bound']:.3g}: {verdict}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a model of 0.4 million parameters")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="the outcome as JSON instead of tables")
    options = parser.parse_args()
    size = SMALL if options.small else FULL
    if not os.path.exists(harness.CAIRN):
        sys.exit(f"bench_peers: {harness.CAIRN} is not built: run make")
    if available_bytes() < size.free_bytes:
        sys.exit(
            f"bench_peers: {available_bytes() >> 30} GiB of memory are free, "
            f"{size.free_bytes >> 30} GiB needed, or --small"
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # not without removing the files
    state_bytes = 12 * (12 * size.layers * size.width**2) * 21 // 20 + 16 * MIB
    folder = tempfile.mkdtemp(prefix="cairn-bench-", dir=RAM_DISK)
    try:
        with harness.Cluster(nodes=1, parity=0, state=f"{state_bytes // MIB}MiB") as cluster:
            bench = Bench(size, max(1, options.rounds), folder, cluster.start(wait=False))
            try:
                harness.wait_for(
                    "the agent serves",
                    lambda: "agent: serves" in cluster.log(0) or cluster.ended(0),
                    300,
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
