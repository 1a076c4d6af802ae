#!/usr/bin/env python3
"""Compares the agents of two builds: CPU time to protect and to restore, time to commit, commits
of a fast job, and a repair.

    tests/cluster/bench_releases.py OLD NEW [--rounds N] [--no-stages]

OLD and NEW are build folders (build/plain of two checkouts), both with `make all cluster-bins`. Do
not copy or rebuild them meanwhile: the trainer finds libcairn.so by its path. The
builds take turns, so that other load on the machine meets both. Prints the median of each figure
and its lowest and highest value; a figure without "more" is better when it is lower. CPU times
depend less on other load than wall times do.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import time
from datetime import datetime

import harness

LINE = re.compile(r"^(\S+Z) .*node \d+: (.*)$", re.M)
COMMIT = re.compile(r"save: committed epoch=\d+ step=(\d+) bytes=\d+ protect_ns=(\d+)")
ELEMENTS, STATE = 400000, "16MiB"  # about 3 MiB of state in a rank
STAGES = {
    "protect": ("begin_to_commit_seconds", "s, begin to commit, 128 MiB a node"),
    "restore": ("request_to_answer_seconds", "s, request to answer, 2 of 6 nodes lost"),
}


def use(build):
    """Lets the harness start the programs of this build."""
    harness.CAIRN = os.path.join(build, "cairn")
    harness.TRAINER = os.path.join(build, "tests", "cluster", "trainer")


def measure_stage(build, stage):
    """`cairn bench STAGE`: CPU time per GiB, and the wall time."""
    detail, name = STAGES[stage]
    text = subprocess.run(
        [os.path.join(build, "cairn"), "bench", stage, "--rounds", "3", "-o", "json"],
        check=True,
        stdout=subprocess.PIPE,
    ).stdout
    answer = json.loads(text)
    return {
        f"{stage}: CPU s/GiB": answer["cases"][0]["value"],
        f"{stage}: CPU time / floor": answer["cases"][0]["ratio"],
        f"{stage}: {name}": answer["details"][detail],
    }


def cpu_seconds(cluster):
    """CPU time of all agents so far."""
    ticks = 0
    for agent in cluster.agents:
        fields = harness.text_of(f"/proc/{agent.pid}/stat").rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def commits(cluster):
    """{step: the longest time of an agent from grant to commit, in ms}"""
    found = {}
    for node in range(cluster.nodes):
        for step, protect_ns in COMMIT.findall(cluster.log(node)):
            found[int(step)] = max(found.get(int(step), 0), int(protect_ns) / 1e6)
    return found


def measure_commits(per_second, seconds):
    """A job of six ranks with this many steps a second."""
    with harness.Cluster(6, 2, state=STATE) as cluster:
        cluster.start()
        trainers = cluster.train(step_us=1000000 // per_second, elements=ELEMENTS)
        cluster.wait_committed((1, 0))
        cpu, first = cpu_seconds(cluster), trainers[0].step()
        time.sleep(seconds)
        cpu, last = cpu_seconds(cluster) - cpu, trainers[0].step()
        times = [ms for step, ms in commits(cluster).items() if first <= step < last]
    name = f"{per_second} step{'s' if per_second > 1 else ''}/s"
    return {
        f"{name}: ms from grant to commit": statistics.median(times),
        f"{name}: % of steps committed (more)": 100 * len(times) / (last - first),
        f"{name}: CPU ms of all agents per commit": 1e3 * cpu / len(times),
    }


def entered(cluster, node, since):
    """When this node's agent entered the epochs after `since`."""
    times = [
        datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp()
        for at, text in LINE.findall(cluster.log(node))
        if text.startswith("epoch: active")
    ]
    return [at for at in times if at > since]


def measure_repair():
    """A node dies for good: until the others are in the epoch in which a survivor has its part."""
    with harness.Cluster(6, 2, state=STATE) as cluster:
        for node in range(6):
            cluster.configure(node, repair_after_ms=1000)
        cluster.start()
        cluster.train(elements=ELEMENTS)
        cluster.wait_committed((1, 3))
        died = time.time()
        cluster.kill_node(1)
        others = [node for node in range(6) if node != 1]
        harness.wait_for("the repair ends", lambda: all(entered(cluster, n, died) for n in others))
        ended = max(entered(cluster, node, died)[0] for node in others)
    return {"repair: s from a death to the new epoch, 2 of them patience": ended - died}


def measure(build, stages):
    use(build)
    found = {}
    for stage in STAGES if stages else ():
        found.update(measure_stage(build, stage))
    found.update(measure_commits(1, 8))
    found.update(measure_commits(20, 5))
    found.update(measure_repair())
    return found


def show(values):
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:8.3g} [{low:.3g}, {high:.3g}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("old", type=os.path.abspath)
    parser.add_argument("new", type=os.path.abspath)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-stages", action="store_true", help="without `cairn bench`")
    options = parser.parse_args()
    builds = {"old": options.old, "new": options.new}
    rounds = {name: [] for name in builds}
    for number in range(options.rounds):
        order = list(builds) if number % 2 == 0 else list(reversed(builds))
        for name in order:
            rounds[name].append(measure(builds[name], not options.no_stages))
            print(f"round {number + 1} {name}: {json.dumps(rounds[name][-1])}", flush=True)
    print(f"\n{'':62} {'old':28} {'new':28}")
    for figure in rounds["new"][0]:
        columns = [show([one[figure] for one in rounds[name]]) for name in builds]
        print(f"{figure:62} {columns[0]:28} {columns[1]}")


if __name__ == "__main__":
    main()
