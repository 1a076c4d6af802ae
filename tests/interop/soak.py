#!/usr/bin/env python3
"""Many steps with a snapshot each: no growth of memory, descriptors or threads, in the trainer and
in its agent.

    soak.py [--steps N]      1000 unless told

A small model with a scheduler under `cairn run`, with an agent of its own on loopback. Prints what
was measured, and ends with 1 where something grew or where snapshots were not captured. A build
(make) and torch are needed.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any, Dict, List, Tuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

import harness  # noqa: E402

SAMPLES = 40
# from one part of the run to the next: what allocators keep settles, a leak does not
GROWTH_BYTES_MAX = 2 << 20
PAUSE_S = 0.005  # in each step, so that the agent may commit meanwhile
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith("CAIRN_") and name != "PYTHONPATH"
}


def measure(pid: int) -> Dict[str, int]:
    """Private memory in bytes, descriptors and threads of a process."""
    with open(f"/proc/{pid}/status") as file:
        fields = dict(line.rstrip("\n").split(":", 1) for line in file)
    return {
        "memory": int(fields["RssAnon"].split()[0]) * 1024,
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(fields["Threads"]),
    }


def trainer(steps: int) -> None:
    """Trains, and prints a line of JSON per sample."""
    import torch
    import torch.nn as nn

    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(64, 256), nn.BatchNorm1d(256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(1, steps + 1):
        x = torch.randn(32, 64)
        loss = (model(x) - x).square().mean()
        loss.backward()
        time.sleep(PAUSE_S)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % (steps // SAMPLES) == 0:
            job = sys.modules["cairn._current"].job
            print(
                json.dumps({"step": step, "pid": os.getpid(), "stats": dict(job.stats())}),
                flush=True,
            )
            sys.stdin.readline()  # the parent measures while nothing runs


def grew(name: str, values: List[int], allowed: int) -> Tuple[str, bool]:
    """Compares the second and the last quarter of the run; the first is warming up."""
    quarter = len(values) // 4
    middle, end = statistics.median(values[quarter : 2 * quarter]), statistics.median(
        values[-quarter:]
    )
    unit, scale = (" in MiB", 1 << 20) if "memory" in name else ("", 1)
    shown = {"start": values[0], "second quarter": middle, "last quarter": end, "most": max(values)}
    line = f"{name}{unit}: " + ", ".join(
        f"{when} {value / scale:.6g}" for when, value in shown.items()
    )
    return line, end - middle > allowed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--trainer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps < SAMPLES:
        parser.error(f"--steps must be at least {SAMPLES}")
    if options.trainer:
        trainer(options.steps)
        return 0
    if not os.path.exists(harness.CAIRN):
        sys.exit(f"soak: {harness.CAIRN} is not built: run make")
    series: Dict[str, List[int]] = {}
    last: Dict[str, Any] = {}
    begin = time.monotonic()
    with harness.Cluster(nodes=1, parity=0, state="4MiB") as cluster:
        cluster.start()
        command = [
            harness.CAIRN,
            "run",
            "--agent",
            cluster.socket(0),
            "--",
            sys.executable,
            "-u",
            __file__,
            "--trainer",
            "--steps",
            str(options.steps),
        ]
        with open(cluster.path("trainer.err"), "wb") as err:
            process = subprocess.Popen(
                command,
                env=CLEAN,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                preexec_fn=harness.die_with_parent,
            )
        for line in process.stdout:
            last = json.loads(line)
            for who, pid in (("trainer", last["pid"]), ("agent", cluster.agents[0].pid)):
                for what, value in measure(pid).items():
                    series.setdefault(f"{who} {what}", []).append(value)
            process.stdin.write("\n")
            process.stdin.flush()
        code = process.wait()
        harness.wait_for(
            "the last step is committed",
            lambda: cluster.committed()[1] >= options.steps or code,
            30,
        )
        said = harness.text_of(cluster.path("trainer.err"))
    if code or not series:
        print(said, file=sys.stderr)
        return 1
    failed = False
    for name, values in series.items():
        line, growth = grew(name, values, GROWTH_BYTES_MAX if "memory" in name else 0)
        print(line + ("   GREW" if growth else ""))
        failed |= growth
    stats = last["stats"]
    ended = stats["snapshots_captured"] + stats["snapshots_skipped"]
    print(
        f"{last['step']} steps in {time.monotonic() - begin:.0f} s: "
        f"begun {stats['snapshots_begun']}, captured {stats['snapshots_captured']}, "
        f"skipped {stats['snapshots_skipped']}, failed {stats['snapshots_failed']}"
    )
    if (
        stats["snapshots_failed"]
        or ended < last["step"] - 2
        or stats["snapshots_captured"] < last["step"] // 10
    ):
        print("soak: too few snapshots were captured")
        failed = True
    print("soak: something grew, or was not captured" if failed else "soak: nothing grew")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
