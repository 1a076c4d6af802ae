"""Fuzzers that run beside other suites, on what these leave idle, each for so many seconds and at
least a quarter of them on the processor.

Nothing else may notice them. They have the policy SCHED_IDLE, their session has the lowest weight
(where the kernel shares the processor out by sessions, priorities mean nothing between two of
them), and they stand still where something is measured or short deadlines are kept: what is idle in
a virtual machine may be somebody else's time. Standing still does not count.
"""
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time

POLL_S = 0.5
CPU_SHARE_MIN = 0.25  # of its seconds, whatever else keeps the processors busy
# libFuzzer's own limit for one input is by the clock, and idle time may be long in coming. Here an
# input that takes longer than this after its fuzzer was told to stop counts as one that never ends.
HANG_CPU_S = 20
# A fuzzer ends by itself after so long, and one that has not a while later stands still in an
# input.
CLOCK_LIMIT_S = 7200
STUCK_S = 600
SHARED_MEMORY = "/dev/shm"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Fuzzer:
    """One fuzzer's process, and what became of it."""

    def __init__(self, name, program, arguments, seconds):
        self.name, self.seconds = name, seconds
        # The kernel ends it with whoever started it, however that ends.
        die_too = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        self.command = [
            *die_too,
            program,
            "-verbosity=0",
            "-timeout=0",
            f"-max_total_time={CLOCK_LIMIT_S}",
            # it is 77 by default, which says "skipped" everywhere else here
            "-error_exitcode=1",
            *arguments,
        ]
        self.process, self.folder, self.began_s, self.seen_s, self.ran_s = None, None, 0.0, 0.0, 0.0
        self.cpu_s, self.stop_cpu_s, self.told_to_stop, self.hung, self.paused = (
            0.0,
            0.0,
            False,
            False,
            False,
        )
        self.status, self.output = None, ""
        self._out = tempfile.TemporaryFile()

    def start(self, cwd):
        # Files of its inputs: libFuzzer leaves without giving programs a chance to remove them.
        self.folder = tempfile.mkdtemp(
            prefix="cairn-fuzz-", dir=SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
        )
        self.began_s = self.seen_s = time.monotonic()
        self.process = subprocess.Popen(
            self.command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "TMPDIR": self.folder},
        )
        give_way(self.process.pid)

    def poll(self):
        """True while it runs."""
        if self.process.poll() is None:
            self.cpu_s = cpu_seconds(self.process.pid)
            now_s = time.monotonic()
            self.ran_s, self.seen_s = (
                self.ran_s + (0 if self.paused else now_s - self.seen_s),
                now_s,
            )
            if (
                self.ran_s >= self.seconds
                and self.cpu_s >= CPU_SHARE_MIN * self.seconds
                and not self.told_to_stop
            ):
                self.told_to_stop, self.stop_cpu_s = True, self.cpu_s
                # libFuzzer ends when the input at hand is done
                self.process.send_signal(signal.SIGUSR1)
            endless = self.told_to_stop and self.cpu_s >= self.stop_cpu_s + HANG_CPU_S
            if (endless or now_s - self.began_s > CLOCK_LIMIT_S + STUCK_S) and not self.hung:
                self.hung = True
                # it keeps the input at hand, as after any crash
                self.process.send_signal(signal.SIGABRT)
            return True
        self._end(self.process.returncode)
        return False

    def pause(self, paused):
        if self.process and self.process.poll() is None and paused != self.paused:
            self.paused = paused
            self.process.send_signal(signal.SIGSTOP if paused else signal.SIGCONT)

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def fail(self, why):
        """It could not be started."""
        self.status, self.output = 1, f"fuzzing: {why}"
        self.kill()

    def _end(self, status):
        self._out.seek(0)
        self.output = self._out.read().decode("utf-8", "replace")
        self.status = status
        if self.hung:
            self.output += f"\nfuzzing: one input took more than {HANG_CPU_S} s of the processor, or stood still"
        elif status == 0 and not self.told_to_stop:
            self.output += f"\nfuzzing: ended by itself after {self.cpu_s:.0f} s"
            self.status = 1
        shutil.rmtree(self.folder, ignore_errors=True)


class Fuzzing:
    """All fuzzers, `jobs` at a time. `collect` waits for them; `paused` keeps them off the
    processor meanwhile."""

    def __init__(self, fuzzers, cwd, jobs):
        self.all, self.waiting, self.running, self.done = list(fuzzers), list(fuzzers), [], []
        self.cwd, self.jobs = cwd, jobs
        self.lock = threading.Lock()  # guards the lists and `pauses`
        self.pauses = 0
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self):
        while True:
            with self.lock:
                for fuzzer in list(self.running):
                    if not fuzzer.poll():
                        self.running.remove(fuzzer)
                        self.done.append(fuzzer)
                while self.waiting and len(self.running) < self.jobs and not self.pauses:
                    fuzzer = self.waiting.pop(0)
                    try:
                        fuzzer.start(self.cwd)
                        self.running.append(fuzzer)
                    except (OSError, subprocess.SubprocessError) as error:
                        fuzzer.fail(f"cannot be started: {error}")
                        self.done.append(fuzzer)
                if not self.running and not self.waiting:
                    return
            time.sleep(POLL_S)

    @contextlib.contextmanager
    def paused(self):
        self._pause(1)
        try:
            yield
        finally:
            self._pause(-1)

    def _pause(self, more):
        with self.lock:
            self.pauses += more
            for fuzzer in self.running:
                fuzzer.pause(self.pauses > 0)

    def ended_cpu_seconds(self):
        """What those that have ended had used of the processor; children_cpu_seconds counts them,
        too."""
        with self.lock:
            return sum(f.cpu_s for f in self.done)

    def collect(self, limit_s=None):
        """All fuzzers, by name, when they have ended, or after limit_s. One without a status never
        did, and has failed."""
        self.thread.join(limit_s)
        for fuzzer in self.all:
            if fuzzer.status is None:
                fuzzer.output += "\nfuzzing: it had not ended when the time for all tests was over"
        return sorted(self.all, key=lambda f: f.name)

    def kill(self):
        """For a run that is given up: nothing of it stays behind."""
        with self.lock:
            self.waiting = []
            for fuzzer in self.running:
                fuzzer.kill()


def give_way(pid):
    """Lets everything else go first. What the system does not allow is left as it is."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, 19)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/autogroup", "w") as weight:
            weight.write("19")


def cpu_seconds(pid):
    """What a process has used of the processor; 0 where it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def children_cpu_seconds():
    """What all ended processes below this one have used of the processor."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
