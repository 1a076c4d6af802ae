#!/usr/bin/env python3
"""What a slow rank costs, by what is done about it, in one run.

    bench_migrate.py [--rounds N] [--json] [--without ROW …]

Two pipelines of two stages train 8 layers on the CPU over gloo, each rank with an emulated device.
From step 12 on the device of one rank takes four times as long per layer.

    nothing   training goes on as it is
    cairn     the agents move shares of micro-batches, then layers, while training goes on
    shares    … shares alone: no device has room for another layer
    relaunch  … nothing while it trains, as for a job that does not ask: they propose to start its
              command again in another shape, which is approved at once
    oracle    a job that had Cairn's last shape from its start
    dcp       the job ends at a step boundary, saved by torch.distributed.checkpoint in /dev/shm,
              and starts with the layers that Cairn found and equal shares
    torchft   three replicas of another model, and the slow one's process is killed: what
              bench_comeback.py measures. No step is slow then, and its samples are lost

The peers get the better of what may happen: the restart from DCP is planned, so it loses no step,
and its shape costs nothing to find. A row's standstill is the longest time of a rank without
training; that of shares is what asking took longer than usual in the step in which they changed.
Steps are compared by the median of the last fifteen. Rounds (1) are in turns. Deviation
is the largest relative one of any sample's loss, in float64, from a job without emulation and
agents. The lines that a loop needs more are counted from loops in the tree (lines_added.py).
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import shutil
import statistics
import sys
import tempfile
from typing import Any, Dict, List

import bench_comeback
import lines_added
import test_torch_pipeline as pipeline
from test_torch import harness

SLOW = [pipeline.SLOW_RANK, pipeline.SLOW_BY]
FROM, AFTER, STEPS = pipeline.SLOW_FROM, 30, 20
OFTEN = 10**6
WITHOUT = ["nothing", "shares", "relaunch", "dcp", "torchft"]
Found = Dict[str, float]
losses: Dict[str, Any] = {}  # of the rows of a round, by step and sample


def ended(run: Any) -> Any:
    try:
        return pipeline.ended(run)
    finally:
        run.kill()


def repeated(*runs: Any) -> int:
    """Steps that a rank computed again."""
    made = [each for run in runs for each in re.findall(r"^took (\d+) ", run.text(0), re.M)]
    return len(made) - len(set(made))


def times(run: Any, word: str, rank: int = 0) -> List[float]:
    return [float(each) for each in re.findall(rf"^{word} \d+ (.*)$", run.text(rank), re.M)]


def last_steps(run: Any) -> float:
    """In milliseconds; without the first steps of a shape, which set it up."""
    return statistics.median(times(run, "took")[-STEPS + 5 :])


def common(first: int) -> Dict[str, Any]:
    return {"layer_ms": pipeline.LAYER_MS, "slow": [*SLOW, first, OFTEN], "dtype": "float64"}


def nothing(folder: pathlib.Path, _shape: Any) -> Found:
    return {"step_ms": last_steps(ended(pipeline.train(folder, None, steps=STEPS, **common(0))))}


def cairn(folder: pathlib.Path, shape: List[Any]) -> Found:
    with pipeline.agents() as cluster:
        run = pipeline.train(folder, cluster, timing=True, steps=1000, after=AFTER, **common(FROM))
        ended(run)
    shape[:] = json.loads(re.findall(r"^step \d+ (.*)$", run.text(0), re.M)[-1])
    stood = [each for rank in range(pipeline.WORLD) for each in times(run, "stood", rank)]
    samples = losses["cairn"] = pipeline.samples(run)  # AssertionError: one was computed twice
    steps = len(times(run, "took"))
    return {
        "step_ms": last_steps(run),
        "standstill_s": max(stood) / 1000,
        "steps_lost": repeated(run),
        "samples_lost": 8 * steps - len(samples),
    }


def shares(folder: pathlib.Path, _shape: Any) -> Found:
    with pipeline.agents(room=pipeline.LAYERS // 2) as cluster:
        words = {"steps": 1000, "after_shares": AFTER, **common(FROM)}
        run = ended(pipeline.train(folder, cluster, timing=True, **words))
    placed = [json.loads(each) for each in re.findall(r"^step \d+ (.*)$", run.text(0), re.M)]
    changes = [at for at, each in enumerate(placed) if at and each != placed[at - 1]]
    assert changes and all(each[1] == pipeline.HOME for each in placed), placed[-1]
    stood = [
        asked[at] - statistics.median(asked)
        for asked in (times(run, "asked", rank) for rank in range(pipeline.WORLD))
        for at in changes
    ]
    samples = losses["shares"] = pipeline.samples(run)
    return {
        "step_ms": last_steps(run),
        "standstill_s": max(stood) / 1000,
        "steps_lost": repeated(run),
        "samples_lost": 8 * len(placed) - len(samples),
    }


class Start:
    """What the ranks printed since a start of the job."""

    def __init__(self, folder: pathlib.Path, number: int) -> None:
        self.out = [folder / f"start{number}-{rank}.out" for rank in range(pipeline.WORLD)]

    def text(self, rank: int) -> str:
        return self.out[rank].read_text(encoding="utf-8")


def relaunch(folder: pathlib.Path, _shape: Any) -> Found:
    with pipeline.agents(policy="approve") as cluster:
        agent = ["--agent", cluster.socket(0)]
        words = {"steps": 10**6, "starts": str(folder), "again": STEPS, **common(FROM)}
        run = pipeline.train(
            folder,
            cluster,
            ["--relaunch", "1"],
            ["{pp}", "{stage_layers}"],
            timing=True,
            start="cold",
            **words,
        )
        try:
            harness.wait_for(
                "a relaunch is proposed",
                lambda: (harness.cairn("replan", *agent)[1] or {}).get("relaunch"),
                300,
            )
            proposed = harness.cairn("replan", *agent)[1]["relaunch"]
            code, _, error = harness.cairn("replan", "--approve", str(proposed["number"]), *agent)
            assert code == 0, error
        except BaseException:
            run.kill()
            raise
        ended(run)
    print(f"bench_migrate: relaunched with layers {proposed['layers']}", file=sys.stderr)
    return restarted("relaunch", Start(folder, 0), Start(folder, 1))


def oracle(folder: pathlib.Path, shape: List[Any]) -> Found:
    with pipeline.agents() as cluster:
        run = pipeline.train(
            folder, cluster, steps=STEPS, layers=shape[1], moves={3: shape}, **common(0)
        )
        ended(run)
    assert json.loads(re.findall(r"^step \d+ (.*)$", run.text(0), re.M)[-1]) == shape
    return {"step_ms": last_steps(run)}


def restarted(name: str, before: Any, after: Any) -> Found:
    """Of a job that was started again in another shape."""
    at = [
        (times(before, "ended", rank)[-1], times(after, "ended", rank)[0])
        for rank in range(pipeline.WORLD)
    ]
    step_ms = last_steps(after)
    computed = losses[name] = {**pipeline.samples(before), **pipeline.samples(after)}
    steps = 1 + max(int(step) for step, _ in computed)
    return {
        "step_ms": step_ms,
        "standstill_s": max(first - last for last, first in at) - step_ms / 1000,
        "steps_lost": repeated(before, after),
        "samples_lost": 8 * steps - len(computed),
    }


def dcp(folder: pathlib.Path, shape: List[Any]) -> Found:
    saved = tempfile.mkdtemp(prefix="cairn-migrate-", dir="/dev/shm")
    try:
        words = {"dcp": saved, "start": "cold", **common(0)}
        before = ended(pipeline.train(folder, None, steps=6, **words))
        after = ended(pipeline.train(folder, None, steps=6 + STEPS, layers=shape[1], **words))
    finally:
        shutil.rmtree(saved, ignore_errors=True)
    return restarted("dcp", before, after)


def torchft(_folder: pathlib.Path, _shape: Any) -> Found:
    job = bench_comeback.Torchft()
    try:
        measured = job.measure(1)
    finally:
        job.close()
    _, loop = lines_added.PAIRS["torchft"]
    job = bench_comeback.Torchft([str(loop), "--steps", "5"])
    try:
        job.end()  # the loop whose lines are counted
    finally:
        job.close()
    return {"standstill_s": measured["seconds"], "steps_lost": measured["lost"]}


def deviations(folder: pathlib.Path) -> Found:
    """By row, of all of its samples."""
    steps = 1 + int(max(step for row in losses.values() for step, _ in row))
    wanted = pipeline.samples(ended(pipeline.train(folder, None, steps=steps, dtype="float64")))
    return {
        name: max(
            abs(float.fromhex(loss) / float.fromhex(wanted[key]) - 1) for key, loss in row.items()
        )
        for name, row in losses.items()
    }


def measure(rounds: int, without: List[str]) -> Dict[str, List[Found]]:
    rows = {"nothing": nothing, "cairn": cairn, "shares": shares, "relaunch": relaunch}
    rows.update({"oracle": oracle, "dcp": dcp, "torchft": torchft})
    rows = {name: row for name, row in rows.items() if name not in without}
    why = bench_comeback.install_torchft() if "torchft" in rows else ""
    if why:
        print(f"bench_migrate: no torchft: {why}", file=sys.stderr)
        del rows["torchft"]
    found: Dict[str, List[Found]] = {name: [] for name in rows}
    for number in range(rounds):
        shape: List[Any] = []
        losses.clear()
        for name, row in rows.items():
            folder = pathlib.Path(tempfile.mkdtemp(prefix="cairn-migrate-"))
            try:
                found[name].append(row(folder, shape))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            print(f"bench_migrate: round {number + 1}: {name}: {found[name][-1]}", file=sys.stderr)
        folder = pathlib.Path(tempfile.mkdtemp(prefix="cairn-migrate-"))
        try:
            for name, value in deviations(folder).items():
                found[name][-1]["deviation"] = value
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(f"bench_migrate: round {number + 1}: Cairn's last shape is {shape}", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--without", action="append", default=[], choices=WITHOUT)
    options = parser.parse_args()
    bench_comeback.harness.build()
    found = {
        name: {key: statistics.median(each[key] for each in rows) for key in rows[0]}
        for name, rows in measure(options.rounds, options.without).items()
    }
    for name, lines in lines_added.count().items():
        if name not in options.without:
            found.setdefault(name, {})["lines_added"] = lines
    if options.json:
        print(json.dumps(found))
        return
    head = "| | step | of the oracle's speed | standstill | steps lost |"
    head += " samples lost | deviation | lines added |"
    print(f"{head}\n{'| --- ' * 8}|")
    for name, row in found.items():
        cells = [
            f"{row['step_ms']:.0f} ms" if "step_ms" in row else "",
            f"{found['oracle']['step_ms'] / row['step_ms']:.2f}" if "step_ms" in row else "",
            f"{row['standstill_s']:.2f} s" if "standstill_s" in row else "",
            f"{row['steps_lost']:.0f}" if "steps_lost" in row else "",
            f"{row['samples_lost']:.0f}" if "samples_lost" in row else "",
            f"{row['deviation']:.1e}" if "deviation" in row else "",
            f"{row['lines_added']}" if "lines_added" in row else "",
        ]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
