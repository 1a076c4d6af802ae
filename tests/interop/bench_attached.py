#!/usr/bin/env python3
"""What protecting a job of DeepSpeed or Megatron-Core costs: Cairn beside the framework's own
asynchronous save, in one run on one machine, all into memory.

    bench_attached.py [--framework deepspeed|megatron] [--small] [--rounds N] [--json]

A transformer of 76 million parameters in bf16 with fp32 masters and moments on the CPU, 1 GiB of
state in some thousand tensors, in one rank (--small: 0.4 million parameters, to see that it runs).
One trainer runs under `cairn run` with an agent of its own, and saves with Cairn and with the
framework in short turns, which are compared with steps without saving as in bench_peers.py.
"Standing still" is the time for which the training thread is in Cairn's hooks or waits for a copy.
Needs 12 GiB of free memory, a build (make), build/venv-deepspeed and build/venv-megatron.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from typing import Any, Dict

import bench_pairs
import bench_peers
from bench_peers import CAIRN, MIB, RAM_DISK, ROOT, Bench, Size, harness, interval, table

WORKER = str(ROOT / "tests" / "interop" / "attached_worker.py")
ASYNC = "async_save"
FRAMEWORKS = ("deepspeed", "megatron")
FULL, SMALL = Size(26, 512, 64, 12 << 30, 1), Size(2, 128, 32, 1 << 30, 1)
BYTES_PER_PARAMETER = 14  # bf16, and a master and two moments in fp32
STANDSTILL_S = 0.010


class Attached(Bench):
    def __init__(self, framework: str, *given: Any) -> None:
        super().__init__(*given)
        self.framework = framework
        self.groups = {CAIRN: [], ASYNC: []}

    def train(self) -> None:
        python = str(ROOT / "build" / f"venv-{self.framework}" / "bin" / "python")
        words = [python, "-u", WORKER, self.framework, *self.size.words(), self.folder]
        port = str(harness.free_ports(1)[0])
        trainer = self.start(self.under_cairn() + words + [str(self.cluster.agents[0].pid), port])
        self.machine = self.ask(trainer)
        if not self.machine["hooked"]:
            sys.exit("bench_attached: `cairn run` did not bring its hooks into the trainer")
        for name in (CAIRN, ASYNC):  # these are for warming up
            found = self.turn(trainer, name, 1)
        for self.round in range(1, self.rounds + 1):
            for _ in range(bench_peers.GROUPS):
                for name in (ASYNC, CAIRN):
                    found = self.turn(trainer, name, 1)
                    self.groups[name] += found["groups"]
        self.stats = found["stats"]
        trainer.stdin.close()  # it ends, and the processes that the framework has started
        trainer.wait()

    def outcome(self) -> Dict[str, Any]:
        blocked = self.blocked_s(CAIRN)
        return {
            **{name: self.machine[name] for name in ("torch", "threads", "parameters", "tensors")},
            "state_bytes": self.machine["parameters"] * BYTES_PER_PARAMETER,
            "load": os.getloadavg()[0],
            "unsaved": bench_pairs.control_scatter(
                [each for of in self.groups.values() for each in of]
            ),
            "savers": {name: self.saver(name) for name in (CAIRN, ASYNC)},
            "standstills_s": sorted(
                each for group in self.groups[CAIRN] for each in group["episode"]["blocked"]
            ),
            "hooks_s": self.always_s(CAIRN),
            "snapshots": self.stats,
            "bounds": {
                "standstill": {
                    "value": blocked * 1000,
                    "bound": STANDSTILL_S * 1000,
                    "unit": "ms",
                    "met": blocked <= STANDSTILL_S,
                },
                "overhead": self.overhead_bound((ASYNC,), 1 / 3),
            },
        }


def show(framework: str, found: Dict[str, Any]) -> None:
    unsaved = found["unsaved"]
    print(
        f"{framework}: {found['parameters'] / 1e6:.1f} million parameters in {found['tensors']} "
        f"tensors, {found['state_bytes'] / MIB:.0f} MiB of state; torch {found['torch']}, "
        f"{found['threads']} threads; a step without saving {unsaved['median_s']:.2f} s, two of "
        f"one group differ by {unsaved['apart_s']:.2f} s; load {found['load']:.1f}"
    )
    rows = [
        (
            name,
            f"{each['blocked_s'] * 1000:.1f} ms",
            interval(each["overhead_s"]),
            f"{each['saves_per_step']:.2f}",
            interval(each["overhead_s_per_save"]),
            f"{each['groups']}, {100 * each['overhead_s']['coverage']:.0f} %",
        )
        for name, each in found["savers"].items()
    ]
    head = ("saver", "training stands still, per save", "beyond a step", "saves per step")
    print(table((*head, "beyond it, per saved state", "groups, interval holds"), *rows))
    longest = [f"{each * 1000:.1f}" for each in found["standstills_s"]]
    print(f"Cairn's standstills: {' '.join(longest)} ms; its hooks without a snapshot ", end="")
    print(f"{found['hooks_s'] * 1000:.1f} ms")
    for name, each in found["bounds"].items():
        value = "?" if each["value"] is None else f"{each['value']:.3g}"
        if each.get("low") is not None:
            value += f" [{each['low']:.3g}, {each['high']:.3g}]"
        verdict = bench_peers.VERDICTS[each["met"]]
        print(f"{name}: {value} {each['unit']}, promised <= {each['bound']:.3g}: {verdict}")
    print()


def measured(framework: str, size: Size, rounds: int) -> Dict[str, Any]:
    parameters = 12 * size.layers * size.width**2 * 21 // 20
    state = f"{BYTES_PER_PARAMETER * parameters // MIB + 32}MiB"
    folder = tempfile.mkdtemp(prefix="cairn-bench-", dir=RAM_DISK)
    try:
        with harness.Cluster(nodes=1, parity=0, state=state) as cluster:
            bench = Attached(framework, size, rounds, folder, cluster.start())
            try:
                bench.train()
            finally:
                bench.close()
            return bench.outcome()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--framework", choices=FRAMEWORKS)
    parser.add_argument("--small", action="store_true", help="a model of 0.4 million parameters")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="the outcome as JSON instead of tables")
    options = parser.parse_args()
    size = SMALL if options.small else FULL
    if not os.path.exists(harness.CAIRN):
        sys.exit(f"bench_attached: {harness.CAIRN} is not built: run make")
    if bench_peers.available_bytes() < size.free_bytes:
        sys.exit(f"bench_attached: {size.free_bytes >> 30} GiB of free memory needed, or --small")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # not without removing the files
    found = {}
    for framework in [options.framework] if options.framework else FRAMEWORKS:
        found[framework] = measured(framework, size, max(1, options.rounds))
        if not options.json:
            show(framework, found[framework])
    if options.json:
        print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
