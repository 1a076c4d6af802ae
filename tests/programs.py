"""Runs one program of the tests: in a session of its own, for a limited time, with what it said and
counted.

All programs together may have a budget, too: what is still running when it is over ends then, and
what was not begun is not begun; both have failed. A program that hangs is shown with what its
processes were doing.
"""
import contextlib
import glob
import os
import re
import select
import signal
import subprocess
import tempfile
import threading
import time

import fuzzing

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Several times what each takes on two idle cores, and twice what it took on two busy cores; names
# without suffix, those that run together count as the first of them.
LIMITS_S = {
    "test_demo": 900,
    "test_agent": 1000,
    "test_convert_deepspeed": 800,
    "test_torch": 1300,
    "test_fsdp1": 1200,
    "test_data": 900,
    "test_torch_pipeline": 900,
    "test_convert_megatron_dist": 500,
    "test_megatron_live": 600,
    "test_deepspeed_live": 1200,
    "test_convert_dcp": 500,
    "test_torch_bad_input": 1000,
    "test_spill": 450,
    "test_quickstart": 450,
    "test_losses": 400,
    "test_detection": 400,
    "test_formats": 450,
    "test_measures": 450,
    "sim": 1800,
    "cppcheck": 900,
    "headers": 600,
    "layers": 900,
}
LIMIT_LEAST_S = 300  # of all others: a machine may be slow
BACKGROUND_LIMIT_S = 3600  # of programs that other programs delay and pause
SHOWN_PROCESSES_MAX = 24  # of a program that hangs
SHOWN_FRAMES_MAX = 5
DUMP_S = 10  # for a Python program to say where it is

_deadline_s = None  # of all programs, by time.monotonic()
_running = {}  # sessions of the programs that run, and the TMPDIR of each
_background = set()  # sessions of those that run in the background
_background_lock = threading.Lock()  # guards _background and _pauses
_pauses = 0


def begin_budget(seconds):
    """From now on all programs together have so many seconds; None: as many as they need."""
    global _deadline_s
    _deadline_s = None if seconds is None else time.monotonic() + seconds


def budget_left_s():
    """Seconds that are left for all programs; None where there is no budget."""
    return None if _deadline_s is None else max(_deadline_s - time.monotonic(), 0.0)


def limit_of(name):
    """Seconds that a program may take: name is `suite: what is run`, with paths and several
    programs allowed."""
    words = name.split(": ")[-1].split()
    return LIMITS_S.get(os.path.basename(words[0]).removesuffix(".py"), LIMIT_LEAST_S)


class Result:
    """What a program counted and said; `late`: it did not end in time, or was not begun, and is not
    run again. `seconds`: by the clock; `cpu_s`: of the processors."""

    def __init__(
        self, name, passed=0, failed=0, skipped=0, reasons=(), output="", seconds=0.0, late=False
    ):
        self.name, self.passed, self.failed, self.skipped = name, passed, failed, skipped
        self.reasons, self.output, self.seconds, self.late = list(reasons), output, seconds, late
        self.cpu_s = 0.0


def members_of(session, scratch):
    """Its processes that have not ended, and those that have left it, with the program's TMPDIR in
    their environment: keepers, and agents that `cairn run` starts, lead sessions of their own."""
    found, mark = [], b"TMPDIR=" + os.fsencode(scratch)
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                state, _parent, _group, of = file.read().rpartition(")")[2].split()[:4]
            if int(of) != session:
                with open(path.removesuffix("stat") + "environ", "rb") as file:
                    if mark not in file.read():
                        continue
        except OSError:  # it has ended, or is another user's
            continue
        if state not in "ZX":
            found.append(int(path.split("/")[2]))
    return found


def end_session(session, scratch):
    """Ends what a program left behind."""
    deadline = time.monotonic() + 10  # they may fork meanwhile, and take a while to end
    while left := members_of(session, scratch):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


def give_up():
    """Ends all programs that run, and begins no other: of a run that is interrupted nothing stays
    behind."""
    begin_budget(0)
    for session, scratch in list(_running.items()):
        end_session(session, scratch)


def text_of(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:  # it has ended, or only root may look
        return ""


def what_they_do(session, scratch):
    """A program's processes, one per line: what each is, and what it waits in in the kernel, as far
    as that may be seen."""
    lines = []
    for pid in sorted(members_of(session, scratch))[:SHOWN_PROCESSES_MAX]:
        words = text_of(f"/proc/{pid}/cmdline").replace("\0", " ").strip()[:160]
        state = re.search(r"^State:\s+(.*)", text_of(f"/proc/{pid}/status"), re.M)
        threads = text_of(f"/proc/{pid}/status").partition("Threads:\t")[2].partition("\n")[0]
        waits = text_of(f"/proc/{pid}/wchan").strip("0\n")
        frames = [
            frame.split("] ")[-1].split("+")[0]
            for frame in text_of(f"/proc/{pid}/stack").splitlines()[:SHOWN_FRAMES_MAX]
        ]
        where = " < ".join(frames) or waits or "?"
        lines.append(
            f"  {pid} {state.group(1) if state else 'gone'}, {threads} threads, in {where}: {words}"
        )
    return "\n".join(lines)


def let_say_where(process):
    """A Python program with faulthandler says on SIGABRT where all its threads are. Others would
    only leave a file."""
    if not os.path.basename(text_of(f"/proc/{process.pid}/cmdline").partition("\0")[0]).startswith(
        "python"
    ):
        return
    process.send_signal(signal.SIGABRT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=DUMP_S)


def signal_session(session, number):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session, number)


@contextlib.contextmanager
def background_paused():
    """Stops the programs in the background meanwhile."""
    global _pauses
    with _background_lock:
        _pauses += 1
        for session in _background:
            signal_session(session, signal.SIGSTOP)
    try:
        yield
    finally:
        with _background_lock:
            _pauses -= 1
            for session in _background if not _pauses else ():
                signal_session(session, signal.SIGCONT)


def move_to_background(session):
    """Lets all other programs go first, and stops it while the background is paused."""
    fuzzing.give_way(session)
    with _background_lock:
        _background.add(session)
        if _pauses:
            signal_session(session, signal.SIGSTOP)


def wait_measured(process, limit_s):
    """Waits until a process ends: (exit status, CPU seconds of its own and of the children that it
    waited for). Raises subprocess.TimeoutExpired."""
    descriptor = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(1000 * limit_s):
            raise subprocess.TimeoutExpired(process.args, limit_s)
    finally:
        os.close(descriptor)
    cpu_s = fuzzing.cpu_seconds(process.pid, with_children=True)  # a zombie still has its times
    return process.wait(), cpu_s


def run(command, limit_s, env=None):
    """run_measured without the CPU seconds."""
    return run_measured(command, limit_s, env)[:2]


def run_measured(command, limit_s, env=None, background=False):
    """Runs a command in its own session and with a TMPDIR of its own, which both go with it;
    returns (exit status or None when it took too long, output, with what it was doing then, CPU
    seconds)."""
    left_s = budget_left_s()
    why, hung = f"took longer than {limit_s:.0f} s", ""
    if left_s is not None and left_s < limit_s:
        limit_s, why = left_s, "the time for all tests is over"
    if limit_s <= 0:
        return None, f"runner: not begun: {why}", 0.0
    with tempfile.TemporaryDirectory(
        prefix="cairn-run-", ignore_cleanup_errors=True
    ) as scratch, tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": scratch, **(env or {})},
            start_new_session=True,
        )
        _running[process.pid] = scratch
        if background:
            move_to_background(process.pid)
        cpu_s = 0.0
        try:
            status, cpu_s = wait_measured(process, limit_s)
        except subprocess.TimeoutExpired:
            status, hung = (
                None,
                f"\nrunner: {why}; its processes were:\n{what_they_do(process.pid, scratch)}",
            )
            let_say_where(process)
        with _background_lock:
            _background.discard(process.pid)
        end_session(process.pid, scratch)
        process.wait()
        del _running[process.pid]
        out.seek(0)
        return status, out.read().decode("utf-8", "replace") + hung, cpu_s


def count(name, status, output, seconds):
    """Reads a program's own counts from what it printed. One that is made of tests and says nothing
    of them has not run them all."""
    cmocka = re.findall(r"^\[  PASSED  \] (\d+) test", output, re.M)
    pytest = re.search(r"^(?:\d+ \w+(?:, )?)+ in [\d.]+s", output, re.M)
    unittest = re.findall(r"^Ran (\d+) tests? in", output, re.M)
    if status == 77 and not cmocka:  # else so many have failed
        lines = output.strip().splitlines() or ["no reason given"]
        return Result(name, skipped=1, reasons=[lines[-1]], output=output, seconds=seconds)
    if cmocka:
        passed = sum(int(n) for n in cmocka)
        failed = sum(
            int(n) for n in re.findall(r"^\[  FAILED  \] .*?(\d+) test\(s\), listed", output, re.M)
        )
        skipped = sum(
            int(n) for n in re.findall(r"^\[  SKIPPED \] .*?(\d+) test\(s\), listed", output, re.M)
        )
        reasons = re.findall(r"^skip: (.*)", output, re.M)
    elif pytest:
        passed, failed, skipped = (
            sum(int(n) for n in re.findall(rf"(\d+) {w}", pytest.group(0)))
            for w in ("passed", "(?:failed|error)", "skipped")
        )
        reasons = re.findall(r"^SKIPPED .*?: (.*)$", output, re.M)
        status = 0 if status == 5 else status  # all were skipped
    elif unittest:
        said = re.findall(r"^(?:OK|FAILED|NO TESTS RAN) \((.*)\)$", output, re.M)
        counts = {
            what: int(n) for what, n in re.findall(r"(\w[\w ]*)=(\d+)", said[-1] if said else "")
        }
        failed = sum(counts.get(what, 0) for what in ("failures", "errors", "unexpected successes"))
        skipped = counts.get("skipped", 0)
        # a class is skipped or fails as a whole, and part by part
        passed = max(int(unittest[-1]) - failed - skipped, 0)
        reasons = re.findall(r"skipped ['\"](.*?)['\"]$", output, re.M)
        status = 0 if status == 5 and skipped else status
    else:
        if status == 0 and "test_" in name:
            status, output = (
                1,
                output + "\nrunner: it ended well, and did not say how many tests have passed",
            )
        passed, failed, skipped, reasons = int(status == 0), int(status != 0), 0, ()
    return Result(name, passed, failed or int(status != 0), skipped, reasons, output, seconds)


def run_program(name, command, limit_s=None, env=None, background=False):
    """Runs one program of a suite for limit_of(name) seconds at most, or the limit given, and
    counts what it said."""
    begin = time.monotonic()
    if limit_s is None:
        limit_s = BACKGROUND_LIMIT_S if background else limit_of(name)
    status, output, cpu_s = run_measured(command, limit_s, env, background)
    seconds = time.monotonic() - begin
    if status is None:
        result = Result(name, failed=1, output=output, seconds=seconds, late=True)
    else:
        result = count(name, status, output, seconds)
    result.cpu_s = cpu_s
    return result
