"""The CPU time of a trainer and of all that works for it, by who spends it."""

from __future__ import annotations

import os
import time
from typing import Dict, List


class Clocks:
    """CPU seconds so far, by who spent them. The kernel counts nanoseconds; time that others take
    from a core is not in them."""

    def __init__(self, agent_pid: int) -> None:
        self._agent = [agent_pid, *descendants(agent_pid)] if agent_pid else []
        self.look()

    def look(self) -> None:
        """For the processes and threads of this trainer: before what is measured, since it takes
        milliseconds."""
        self._children = descendants(os.getpid())
        self._threads = {}
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/comm") as file:
                self._threads[task] = file.read().strip()

    def read(self) -> Dict[str, float]:
        """trainer: this whole process; copy and client: its threads that are Cairn's; children:
        processes that it started."""
        threads = {"cairn-capture": 0.0, "cairn-client": 0.0}
        for task, name in self._threads.items():
            if name in threads:
                with open(f"/proc/self/task/{task}/schedstat") as file:
                    threads[name] += int(file.read().split()[0]) / 1e9
        return {
            "trainer": time.process_time(),
            "copy": threads["cairn-capture"],
            "client": threads["cairn-client"],
            "children": sum(map(process_cpu_seconds, self._children)),
            "agent": sum(map(process_cpu_seconds, self._agent)),
        }


def process_cpu_seconds(pid: int) -> float:
    # the clock of a process, as clock_getcpuclockid(3) gives it
    return time.clock_gettime(~pid << 3 | 2)


def descendants(pid: int) -> List[int]:
    parents: Dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found: List[int] = []
    todo = [pid]
    while todo:
        parent = todo.pop()
        todo += [child for child, its in parents.items() if its == parent]
        found += [child for child, its in parents.items() if its == parent]
    return found
