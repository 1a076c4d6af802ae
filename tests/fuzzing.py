"""Fuzzers that run beside other suites on idle processors, each for a fixed number of executions.

A busy machine takes longer for them, but fails none. A fuzzer counts as hung if it has used far
more of the processor than its executions need, or none for a long time.

They must not disturb anything else. They have the policy SCHED_IDLE, and their session has the
lowest weight, because a kernel that shares the processor out by sessions ignores priorities between
two of them. They stop while something is measured or short deadlines are kept: on a virtual machine
idle time may be another machine's.
"""
import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

# Executions per second of the processor, measured from an empty corpus with these seeds. They only
# decide how many executions a run has.
PER_CPU_S = {
    "fuzz_assign": 140000,
    "fuzz_catalog": 30000,
    "fuzz_certificate": 1100,
    "fuzz_checkpoint": 620,
    "fuzz_config": 17000,
    "fuzz_dcp": 9800,
    "fuzz_deepspeed": 1400,
    "fuzz_deepspeed_tree": 380,
    "fuzz_fabric": 500,
    "fuzz_fetch": 40000,
    "fuzz_frame": 110000,
    "fuzz_history": 17000,
    "fuzz_journal": 10000,
    "fuzz_keeper": 26000,
    "fuzz_manifest": 110000,
    "fuzz_map": 15000,
    "fuzz_megatron": 230000,
    "fuzz_megatron_dist": 620,
    "fuzz_megatron_tree": 520,
    "fuzz_message": 1400,
    "fuzz_notes": 8400,
    "fuzz_opening": 2900,
    "fuzz_peer": 24000,
    "fuzz_pickle": 30000,
    "fuzz_problem": 82000,
    "fuzz_process": 41000,
    "fuzz_progress": 18000,
    "fuzz_recording": 80000,
    "fuzz_region": 940,
    "fuzz_report": 39000,
    "fuzz_ring": 8200,
    "fuzz_safetensors": 74000,
    "fuzz_sealed": 410,
    "fuzz_session": 120000,
    "fuzz_slot": 66000,
    "fuzz_spill": 4700,
    "fuzz_torch_file": 4500,
    "fuzz_trace": 1500,
    "fuzz_tree": 130000,
    "fuzz_universal": 52000,
    "fuzz_zip": 39000,
}
CPU_S = 5  # of each fuzzer, at these speeds
POLL_S = 0.5
# A fuzzer that uses so many times what it should is in an endless input, or far too slow.
HANG_FACTOR = 20
STUCK_S = 600  # without using the processor, while not paused
SHARED_MEMORY = "/dev/shm"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def executions_of(name, scale=1.0):
    """Executions of a fuzzer in one run; raises KeyError for a fuzzer without a speed."""
    return max(int(PER_CPU_S[name] * CPU_S * scale), 1)


class Fuzzer:
    """One fuzzer's process, and its result."""

    def __init__(self, name, command, executions, cpu_limit_s, stuck_s=STUCK_S):
        self.name, self.executions = name, executions
        self.cpu_limit_s, self.stuck_s = cpu_limit_s, stuck_s
        # The kernel ends it with its parent, however that ends.
        die_too = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        self.command = [*die_too, *command]
        self.process, self.folder = None, None
        self.cpu_s, self.seen_s, self.still_s = 0.0, 0.0, 0.0
        self.hung, self.paused = "", False
        self.status, self.output, self.done = None, "", 0
        self._out = tempfile.TemporaryFile()

    @classmethod
    def of_program(cls, name, program, arguments, scale):
        """A program of libFuzzer with its corpora and options."""
        executions = executions_of(name, scale)
        command = [
            program,
            "-verbosity=0",
            "-print_final_stats=1",
            f"-runs={executions}",
            "-timeout=0",  # libFuzzer's limit for one input is by the clock
            "-error_exitcode=1",  # the default, 77, means "skipped" in our suites
            *arguments,
        ]
        return cls(name, command, executions, HANG_FACTOR * CPU_S * max(scale, 1.0))

    def start(self, cwd):
        # Files of its inputs: libFuzzer leaves without giving programs a chance to remove them.
        self.folder = tempfile.mkdtemp(
            prefix="cairn-fuzz-", dir=SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
        )
        self.seen_s = time.monotonic()
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
        if self.process.poll() is not None:
            self._end(self.process.returncode)
            return False
        now_s, cpu_s = time.monotonic(), cpu_seconds(self.process.pid)
        moved = cpu_s > self.cpu_s or self.paused
        self.still_s = 0.0 if moved else self.still_s + now_s - self.seen_s
        self.cpu_s, self.seen_s = max(cpu_s, self.cpu_s), now_s
        if not self.hung:
            if self.cpu_s > self.cpu_limit_s:
                self.hung = f"not done after {self.cpu_s:.0f} s of the processor"
            elif self.still_s > self.stuck_s:
                self.hung = f"used no processor for {self.still_s:.0f} s"
            if self.hung:  # libFuzzer keeps the current input, as after any crash
                self.process.send_signal(signal.SIGABRT)
        return True

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
        self._out.close()
        counts = re.findall(r"^stat::number_of_executed_units:\s*(\d+)", self.output, re.M)
        self.status, self.done = status, int(counts[-1]) if counts else 0
        if self.hung:
            self.status = status or 1
            self.output += f"\nfuzzing: {self.hung}; its input is in build/fuzz"
        elif status == 0 and self.done < self.executions:
            self.status = 1
            self.output += f"\nfuzzing: ended after {self.done} of {self.executions} executions"
        shutil.rmtree(self.folder, ignore_errors=True)


class Fuzzing:
    """All fuzzers, `jobs` at a time. `collect` waits for them."""

    def __init__(self, fuzzers, cwd, jobs, paused=False):
        self.all, self.waiting, self.running, self.done = list(fuzzers), list(fuzzers), [], []
        self.cwd, self.jobs = cwd, jobs
        self.lock = threading.Lock()  # guards the lists and `paused`
        self.paused = paused
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self):
        while True:
            with self.lock:
                for fuzzer in list(self.running):
                    if not fuzzer.poll():
                        self.running.remove(fuzzer)
                        self.done.append(fuzzer)
                while self.waiting and len(self.running) < self.jobs and not self.paused:
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

    def pause(self, paused):
        """Keeps them off the processor, or lets them go on."""
        with self.lock:
            self.paused = paused
            for fuzzer in self.running:
                fuzzer.pause(paused)

    def collect(self, limit_s=None):
        """All fuzzers, by name, when they have ended, or after limit_s. One without a status never
        did, and has failed."""
        self.thread.join(limit_s)
        for fuzzer in self.all:
            if fuzzer.status is None:
                fuzzer.output += "\nfuzzing: it had not ended when the time for all tests was over"
        return sorted(self.all, key=lambda f: f.name)

    def kill(self):
        """For a run that is given up: nothing stays behind."""
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


def cpu_seconds(pid, with_children=False):
    """What a process has used of the processor, with the children that it waited for if asked; 0
    where it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11 : 15 if with_children else 13])) / TICKS_PER_S
