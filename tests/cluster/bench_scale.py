#!/usr/bin/env python3
"""How the cost of protection grows with the number of agents and with the state of a node.

    tests/cluster/bench_scale.py [--agents N,N…] [--sizes MIB,MIB…] [--rounds N] [--png FILE]

Three kinds of tables, in Markdown:
- data: `cairn bench protect`, all agents in one erasure group: CPU time per GiB of state, begin to
  commit, and the memory of the agent with the most, beside the formula.
- control: jobs of small state in groups of six. Messages and bytes between agents per commit,
  without the blocks of state and parity and beyond what idle agents send; CPU time per commit, with
  a generation every step (two a second) and every ten seconds.
- idle: the same agents without trainers: CPU time, messages and bytes per second.

Below each stands how its columns grow: the exponent a of n^a, by least squares over the logarithms.
In a group each member sends its seals to each other, so what is fitted over agents begins with a
full group. The exit status is 1 if the control bytes of a commit, or those of idle agents, grow
faster than n log n from there to the largest job. A case that does not fit into free memory is left
out, by name; one that fails makes the exit status 1. --png draws the columns over their axis
(Debian's gnuplot-nox).
"""
import argparse
import json
import math
import os
import re
import subprocess
import sys
import time

import harness

MIB, GIB = 1 << 20, 1 << 30
AGENTS, SIZES = "2,4,6,12,18,24", "64,128,256,512,1024,2048,4096"
GROUP = 6  # members of a full group
CONTROL_ELEMENTS = 20000  # about 200 KiB of state in a rank
STEP_US, STEPS_IN_10_S = 500000, 20
failed = []  # cases
COMMIT = re.compile(r"save: committed epoch=\d+ step=(\d+) ")
AGENT_MIB, RING_MIB = 96, 128  # of an agent beside its slots; the longest ring of a parity row


def parity_of(agents):
    return min(2, agents // 2)


def available_bytes():
    text = harness.text_of("/proc/meminfo")
    return int(re.search(r"MemAvailable:\s+(\d+) kB", text)[1]) * 1024


def needed_bytes(agents, size_mib):
    """Of trainers and of agents: two slots each, with the state and its parity."""
    parity = parity_of(agents)
    slots = 2 * (1 + parity / (agents - parity))
    rings = (parity - 1) * min(RING_MIB, size_mib / (agents - parity))
    return agents * (size_mib * (1 + slots) + rings + AGENT_MIB) * MIB


def measure_data(agents, size_mib, rounds):
    """A row; None, with a line of output, if it does not fit or fails."""
    if not fits(agents, size_mib):
        return None
    words = ["protect", "--nodes", agents, "--parity", parity_of(agents)]
    words += ["--size", f"{size_mib}MiB", "--rounds", rounds, "-o", "json"]
    command = [harness.CAIRN, "bench", *map(str, words)]
    ran = subprocess.run(command, check=False, stdout=subprocess.PIPE)
    if ran.returncode != 0:
        failed.append(f"{agents} agents of {size_mib} MiB")
        print(f"failed: {failed[-1]}: exit status {ran.returncode}", flush=True)
        return None
    answer = json.loads(ran.stdout)
    details = answer["details"]
    return {
        "agents": agents,
        "state of a node, MiB": size_mib,
        "CPU s/GiB": answer["cases"][0]["value"],
        "begin to commit, s": details["begin_to_commit_seconds"],
        "agent, MiB": details["agent_resident_bytes_max"] / MIB,
        "of the formula": details["agent_resident_over_allowed"],
    }


class Reading:
    """What all agents have sent and spent so far."""

    def __init__(self, cluster):
        nodes = cluster.status()["nodes"]
        self.at = time.monotonic()
        self.messages = sum(node["sent_messages"] for node in nodes)
        self.bytes = sum(node["sent_bytes"] - node["sent_block_bytes"] for node in nodes)
        self.cpu_s = sum(map(cpu_seconds, (agent.pid for agent in cluster.agents)))

    def since(self, before):
        """Per second, over all agents."""
        seconds = self.at - before.at
        return {
            name: (getattr(self, name) - getattr(before, name)) / seconds
            for name in ("messages", "bytes", "cpu_s")
        }


def cpu_seconds(pid):
    """By the scheduler's own count; idle agents spend less than a clock tick."""
    tasks = f"/proc/{pid}/task"
    return sum(
        int(harness.text_of(f"{tasks}/{task}/schedstat").split()[0]) / 1e9
        for task in os.listdir(tasks)
    )


def commits(cluster):
    """The steps that agents have committed."""
    return {step for node in range(cluster.nodes) for step in COMMIT.findall(cluster.log(node))}


def control_cluster(agents, every_steps):
    cluster = harness.Cluster(agents, parity_of(agents), state="1MiB", dead_after_ms=3000)
    for node in range(agents):
        cluster.configure(
            node,
            group_size=min(GROUP, agents),
            snapshot_every_steps=every_steps,
            heartbeat_interval_ms=500,
        )
    return cluster.start()


def measure_idle(cluster):
    """Per second, over all agents."""
    cluster.wait_met(0)
    before = Reading(cluster)
    time.sleep(10)  # the length of the measurement: nothing is waited for
    return Reading(cluster).since(before)


def measure_commits(cluster, count, idle):
    """What a commit costs beyond what idle agents spend, over so many commits."""

    def next_commits(known, wanted):
        harness.wait_for("commits", lambda: len(commits(cluster) - known) >= wanted, 60)
        return Reading(cluster), commits(cluster)

    before, known = next_commits(commits(cluster), 1)
    after, there = next_commits(known, count)
    rate, seconds, made = after.since(before), after.at - before.at, len(there - known)
    extra = {name: (rate[name] - idle[name]) * seconds / made for name in rate}
    return {
        "messages": extra["messages"],
        "control bytes": extra["bytes"],
        "CPU ms": 1e3 * extra["cpu_s"],
    }


def measure_control(agents):
    """(row of the table on commits, row of the table on idle agents)"""
    row, idle = {"agents": agents}, None
    for name, every_steps, count in (("each step", 1, 30), ("each 10 s", STEPS_IN_10_S, 3)):
        with control_cluster(agents, every_steps) as cluster:
            idle = idle or measure_idle(cluster)
            cluster.train(step_us=STEP_US, elements=CONTROL_ELEMENTS)
            for column, value in measure_commits(cluster, count, idle).items():
                row[f"{column}, {name}"] = value
    return row, {
        "agents": agents,
        "% of a core, one agent": 100 * idle["cpu_s"] / agents,
        "messages/s, all": idle["messages"],
        "bytes/s, all": idle["bytes"],
    }


def exponent(rows, axis, column):
    """a of column = c * axis^a; None where there is no growth to fit."""
    points = [(math.log(row[axis]), math.log(row[column])) for row in rows if row[column] > 0]
    if len({x for x, _ in points}) < 2 or len({y for _, y in points}) < 2:
        return None
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum(
        (x - mean_x) ** 2 for x, _ in points
    )


def show(title, rows, axis, fitted_from=0):
    if not rows:
        return
    columns = list(rows[0])
    print(f"\n**{title}**\n\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(f'{row[column]:.3g}' for column in columns)} |")
    fitted = [row for row in rows if row[axis] >= fitted_from]
    grown = {column: exponent(fitted, axis, column) for column in columns if column != axis}
    told = [f"{column} {a:.2f}" for column, a in grown.items() if a is not None]
    if told:
        print(f"\nExponent over {axis}: {'; '.join(told)}.", flush=True)


def draw(path, panels):
    """One panel for each (title, axis, rows, columns), both axes logarithmic."""
    script = [
        f"set terminal png size 1200,{420 * ((len(panels) + 1) // 2)}",
        f'set output "{path}"',
    ]
    script += [
        f"set multiplot layout {(len(panels) + 1) // 2},2",
        "set logscale xy",
        "set key left",
    ]
    for title, axis, rows, columns in panels:
        script += [f'set title "{title}"', f'set xlabel "{axis}"']
        plots = (f'"-" using 1:2 with linespoints title "{column}"' for column in columns)
        script += ["plot " + ", ".join(plots)]
        for column in columns:
            script += [f"{row[axis]} {row[column]}" for row in rows if row[column] > 0] + ["e"]
    subprocess.run(["gnuplot"], input="\n".join(script) + "\n", text=True, check=True)


def fits(agents, size_mib):
    needed, free = needed_bytes(agents, size_mib), available_bytes()
    if needed < 0.9 * free:
        return True
    print(
        f"left out: {agents} agents of {size_mib} MiB need {needed / GIB:.1f} GiB of memory, "
        f"{free / GIB:.1f} GiB are free",
        flush=True,
    )
    return False


def check_growth(rows, column):
    """Whether the column grows no faster than n log n from a full group to the largest job."""
    rows = [row for row in rows if row["agents"] >= GROUP]
    if len(rows) < 2:
        return True
    first, last = (row["agents"] for row in (rows[0], rows[-1]))
    allowed = last * math.log2(last) / (first * math.log2(first))
    grown = rows[-1][column] / rows[0][column]
    print(f"\n{column}: {grown:.1f} times from {first} to {last} agents; n log n: {allowed:.1f}")
    return grown <= allowed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--scale", action="store_true", help=argparse.SUPPRESS)  # of `make bench`
    parser.add_argument("--agents", default=AGENTS, help="numbers of agents, 2 to 24")
    parser.add_argument(
        "--sizes", default=SIZES, help="state of a node in MiB, with 2 and 6 agents"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of `cairn bench protect`")
    parser.add_argument("--png", help="draw the curves into this file")
    options = parser.parse_args()
    agents = sorted(int(word) for word in options.agents.split(","))
    sizes = sorted(int(word) for word in options.sizes.split(","))
    harness.build()

    control, idle = [], []
    for count in agents:
        row, idle_row = measure_control(count)
        control.append(row)
        idle.append(idle_row)
    show("Control: per commit, all agents", control, "agents", GROUP)
    show("Idle", idle, "agents", GROUP)

    by_agents = [measure_data(count, sizes[0], options.rounds) for count in agents]
    by_agents = [row for row in by_agents if row]
    show(f"Data: {sizes[0]} MiB a node", by_agents, "agents")
    panels = [
        ("CPU s/GiB, begin to commit", "agents", by_agents, ["CPU s/GiB", "begin to commit, s"]),
        (
            "per commit, all agents",
            "agents",
            control,
            ["messages, each step", "control bytes, each step", "CPU ms, each step"],
        ),
        ("idle, all agents", "agents", idle, ["messages/s, all", "bytes/s, all"]),
    ]
    for count in (2, 6):
        by_size = [measure_data(count, size, options.rounds) for size in sizes]
        by_size = [row for row in by_size if row]
        axis = "state of a node, MiB"
        show(f"Data: {count} agents", by_size, axis)
        panels.append(
            (f"{count} agents", axis, by_size, ["CPU s/GiB", "begin to commit, s", "agent, MiB"])
        )
    if options.png:
        draw(options.png, panels)
    grown = [
        check_growth(control, "control bytes, each step"),
        check_growth(control, "control bytes, each 10 s"),
        check_growth(idle, "bytes/s, all"),
    ]
    sys.exit(0 if all(grown) and not failed else 1)


if __name__ == "__main__":
    main()
