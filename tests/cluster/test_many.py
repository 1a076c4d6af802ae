#!/usr/bin/env python3
"""64 agents on one machine: an agent costs little while nothing happens, steps of a second are
committed one by one, and two lost nodes come back.

What is counted depends little on what else the machine does: how often the agents wake up, their
processor time in the quietest of several windows, and generations in a row."""
import os
import re
import time
import unittest

from harness import OK, Built, Cluster, say, text_of, wait_for

NODES = 64
STEP_US = 1000000
WINDOW_S = 5
# The aim is 0.2 % of a core, which a quiet machine shows; a wake-up costs twice as much where other
# programs use the caches. An agent wakes up for 2 log2(n) heartbeats a second and a few timers.
# Heartbeats from all agents would be 130 wake-ups a second.
IDLE_CORE_MAX = 0.004
WAKE_UPS_MAX = 40
IN_A_ROW = 10
# An agent has sessions with its group, its 2 log2(n) heartbeat partners and its neighbours in the
# tree. A coordinator, and an agent that is asked for the status, has one with everybody until ten
# times dead_after have passed.
CONNECTIONS_MAX = 40


def cpu_s(pid):
    """Processor time of a process since its start, by the scheduler's own clock."""
    total_ns = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        total_ns += int((text_of(f"/proc/{pid}/task/{task}/schedstat") or "0").split()[0])
    return total_ns / 1e9


def wake_ups(pid):
    """How often a process has slept since its start."""
    return int(
        re.search(r"^voluntary_ctxt_switches:\s+(\d+)", text_of(f"/proc/{pid}/status"), re.M)[1]
    )


def connections(pid):
    """Established TCP connections of a process."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            match = re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            continue
        if match:
            inodes.add(match[1])
    found = 0
    for line in text_of("/proc/net/tcp").splitlines()[1:]:
        fields = line.split()
        found += fields[3] == "01" and fields[9] in inodes
    return found


def longest_row(steps):
    """How many consecutive steps there are at most."""
    longest = length = 0
    for step in sorted(steps):
        length = length + 1 if step - 1 in steps else 1
        longest = max(longest, length)
    return longest


class Many(Built):
    def committed_steps(self, cluster):
        """Steps of the newest epoch that the leader has seen committed."""
        found = re.findall(r"save: committed epoch=(\d+) step=(\d+)", cluster.log(0))
        newest = max((int(epoch) for epoch, _ in found), default=0)
        return {int(step) for epoch, step in found if int(epoch) == newest}

    def wait_idle(self, pids):
        """Until the agents have used little in a window; other programs disturb some windows."""
        shown = []

        def window():
            before = [(cpu_s(pid), wake_ups(pid)) for pid in pids]
            begun = time.monotonic()
            time.sleep(WINDOW_S)  # what they use over a time is what is measured
            took = (time.monotonic() - begun) * len(pids)
            after = [(cpu_s(pid), wake_ups(pid)) for pid in pids]
            core, woken = (sum(b[i] - a[i] for a, b in zip(before, after)) / took for i in (0, 1))
            shown.append(f"{100 * core:.2f} % of a core and {woken:.0f} wake-ups a second")
            return core <= IDLE_CORE_MAX and woken <= WAKE_UPS_MAX

        wait_for("idle agents use little", window, 60)
        say(f"an idle agent, in windows of {WINDOW_S} s: {'; '.join(shown)}")

    def wait_connections(self, pids):
        """Until all have few, also those that coordinated or were asked."""
        most = max(connections(pid) for pid in pids)
        wait_for(
            "agents leave sessions that nobody uses",
            lambda: max(connections(pid) for pid in pids) < CONNECTIONS_MAX,
            60,
        )
        links = sorted(connections(pid) for pid in pids)
        quarters = [links[len(links) * quarter // 4] for quarter in (1, 2, 3)]
        say(f"connections: first up to {most}, then {links[0]} to {links[-1]}, quarters {quarters}")

    def test_64_agents(self):
        with Cluster(NODES, 2, state="64KiB", dead_after_ms=3000) as cluster:
            for node in range(NODES):
                cluster.configure(node, heartbeat_interval_ms=500, log_level="info")
            cluster.configure(0, log_level="debug")
            cluster.start()
            wait_for("all answer", lambda: cluster.status().get("nodes_answering") == NODES, 60)
            pids = [agent.pid for agent in cluster.agents]
            self.wait_idle(pids)
            cluster.train(elements=100, step_us=STEP_US, wait_us=50000)
            wait_for(
                f"{IN_A_ROW} steps in a row are committed",
                lambda: longest_row(self.committed_steps(cluster)) >= IN_A_ROW,
                60,
            )
            say(f"committed: steps {sorted(self.committed_steps(cluster))}")
            self.wait_connections(pids)
            cluster.stop_trainers()
            newest = cluster.committed()
            for node in (5, 40):
                cluster.kill_node(node)
            cluster.start(5, 40)
            code, answer, error = cluster.restore(0)
            self.assertEqual(code, OK, f"{answer} {error}")
            found = (answer["generation"]["epoch"], answer["generation"]["step"])
            self.assertGreaterEqual(found, newest)


if __name__ == "__main__":
    unittest.main(verbosity=2)
