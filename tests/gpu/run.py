"""make gpu: every path of Cairn that needs a CUDA device or NCCL, with its figures.

    run.py [--only PART]... [--python PATH] [--folder DIR]

Parts: capture (the engine on the device), copy (`cairn bench device`), resume (a job that is killed
and resumed is bit for bit the one that was not), cost (a GPT of 1.1 billion parameters alone, under
`cairn run` with a snapshot per step, with torch.save and with DCP's async_save), nccl (what the
profiler plugin adds to an all-reduce), slow (a slow rank of an NCCL job is named, and no longer
when it is well). --folder is where torch.save and DCP write; it takes 20 GB.

Each part prints its figures and then `PART: ok`, `PART: failed (why)` or `PART: skipped (why)`. The
exit code is 1 if a part failed, 77 if there is no device.
"""

import argparse
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "plain"
CAIRN = str(BUILD / "cairn")
HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77
STEPS, KILL_AT = 40, 12
COST_STEPS, COST_WARM = 24, 4  # steps, and those of them that are not counted
SAVE_STEPS = 6  # torch.save and DCP take seconds each
RANKS, SLOW = 3, 1
LIMIT_S = 120


class Failed(Exception):
    pass


class Agent:
    """The agent that `cairn run` starts for this node, in a folder of its own; ended with the
    block."""

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="cairn-gpu-")
        self.environment = dict(os.environ, XDG_RUNTIME_DIR=self.folder)
        return self

    def __exit__(self, *_):
        log = "".join(self.logs())
        for pid in re.findall(r"`kill ([\d ]+)`", log):
            for each in pid.split():
                try:
                    os.kill(int(each), signal.SIGTERM)
                except ProcessLookupError:
                    pass
        shutil.rmtree(self.folder, ignore_errors=True)

    def logs(self):
        return [path.read_text() for path in pathlib.Path(self.folder).glob("*.err")]

    def start(self, name, words, wrapper, **environment):
        """A process whose output goes to NAME.out and NAME.err."""
        path = pathlib.Path(self.folder)
        with open(path / f"{name}.out", "w") as out, open(path / f"{name}.err", "w") as err:
            return subprocess.Popen(
                [CAIRN, "run", *wrapper, "--", *words],
                env=dict(self.environment, **environment),
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def text(self, name, kind="out"):
        return (pathlib.Path(self.folder) / f"{name}.{kind}").read_text()

    def status(self):
        found = subprocess.run(
            [CAIRN, "status", "-o", "json"], env=self.environment, capture_output=True, text=True
        )
        return json.loads(found.stdout) if found.stdout else {}


def wait_for(what, condition, process=None):
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        found = condition()
        if found:
            return found
        if process and process.poll() is not None:
            raise Failed(f"the job ended before {what}")
        time.sleep(0.05)
    raise Failed(f"{what}: not within {LIMIT_S} s")


def output_of(words, **environment):
    done = subprocess.run(
        words, env=dict(os.environ, **environment), capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise Failed(f"{words[0]} ended with {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


def finish(process):
    try:
        code = process.wait(600)
    except subprocess.TimeoutExpired:
        kill(process)
        raise Failed("the job did not end within 600 s") from None
    if code:
        raise Failed(f"the job ended with {code}")


def kill(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def trainer(options, *words):
    return [options.python, str(HERE / "train.py"), *map(str, words)]


def ranks(options, count, *words):
    return [
        options.python,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(count),
        "--master-port",
        "29533",
        str(HERE / "ranks.py"),
        *map(str, words),
    ]


def one(pattern, text):
    found = re.findall(pattern, text, re.M)
    if not found:
        raise Failed(f"nothing like {pattern} in: {text[-800:]}")
    return found[-1]


# ---- the parts ----


def capture(_):
    done = subprocess.run([str(BUILD / "tests" / "gpu" / "test_capture")], capture_output=True)
    text = (done.stdout + done.stderr).decode()
    print("\n".join(re.findall(r"^bench=.*$", text, re.M)))
    if done.returncode:
        raise Failed(text[-800:])


def copy(_):
    print(output_of([CAIRN, "bench", "device"]), end="")


def resume(options):
    alone = output_of(trainer(options, "--steps", STEPS))
    with Agent() as agent:
        words = ["--state", "256MiB", "--every", "1"]
        first = agent.start("first", trainer(options, "--steps", 100000, "--attach"), words)
        try:
            wait_for(f"step {KILL_AT}", lambda: f"\nstep {KILL_AT} " in agent.text("first"), first)
        finally:
            kill(first)
        second = agent.start("second", trainer(options, "--steps", STEPS, "--attach"), ["--resume"])
        finish(second)
        began = int(one(r"^resumed (\d+)$", agent.text("second")))
        print(f"resume killed_after_step={KILL_AT} resumed_at_step={began}")
        if began < 1:
            raise Failed("nothing was resumed: " + agent.text("first", "err")[-800:])
        if one(r"^state (\w+)$", agent.text("second")) != one(r"^state (\w+)$", alone):
            raise Failed("the resumed job's state differs from the undisturbed one's")


def step_times(text):
    return [float(each) for each in re.findall(r"^step \d+ \S+ (\S+)$", text, re.M)]


def say_cost(how, times, warm, base_ms, more=""):
    counted = times[warm:]
    median, mean = statistics.median(counted), statistics.fmean(counted)
    print(
        f"cost how={how} steps={len(counted)} median_ms={median:.1f} mean_ms={mean:.1f} "
        f"mean_of_alone={mean / (base_ms or mean):.3f}{more}",
        flush=True,
    )
    return mean


def cost(options):
    words = ["--size", "1b", "--steps"]
    alone = step_times(output_of(trainer(options, *words, COST_STEPS)))
    base_ms = say_cost("alone", alone, COST_WARM, None)
    with Agent() as agent:
        process = agent.start(
            "cairn", trainer(options, *words, COST_STEPS), ["--state", "8GiB", "--every", "1"]
        )
        committed = set()
        while process.poll() is None:
            newest = agent.status().get("newest") or {}
            committed.add(newest.get("step") or 0)
            time.sleep(0.1)
        finish(process)
        kept = sum(step > COST_WARM for step in committed)
        say_cost(
            "cairn", step_times(agent.text("cairn")), COST_WARM, base_ms, f" generations={kept}"
        )
    for how in ("torch", "dcp"):
        folder = tempfile.mkdtemp(dir=options.folder)
        try:
            saving = ["--save", how, "--folder", folder]
            times = step_times(output_of(trainer(options, *words, SAVE_STEPS, *saving)))
            say_cost(how, times, 1, base_ms)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def nccl(options):
    plugin = str(BUILD / "libnccl-profiler-cairn.so")
    settings = {
        "without": {"NCCL_PROFILER_PLUGIN": "none"},
        "5_percent": {"NCCL_PROFILER_PLUGIN": plugin},
        "100_percent": {"NCCL_PROFILER_PLUGIN": plugin, "CAIRN_NCCL_KERNEL_PERCENT": "100"},
    }
    found = {}
    for _ in range(2):
        for name, environment in settings.items():
            text = output_of(ranks(options, 2, "allreduce", "--rounds", 150), **environment)
            for size, took in re.findall(r"^allreduce (\d+) (\S+)$", text, re.M):
                found.setdefault((int(size), name), []).append(float(took))
    for (size, name), took in found.items():
        print(f"nccl bytes={size} plugin={name} median_us={min(took):.1f}")


def slow(options):
    with Agent() as agent:
        job = agent.start(
            "job",
            ranks(options, RANKS, "train"),
            ["--state", "64MiB", "--every", "100"],
            CAIRN_TIMING="1",
        )

        def detection():
            return agent.status().get("detection", {})

        def is_open():
            return [
                each
                for each in detection().get("verdicts", [])
                if each["open"] and each["kind"] == "slow_compute"
            ]

        def change_pace():
            pid = int(one(rf"^pid (\d+) {SLOW}$", agent.text("job")))
            os.kill(pid, signal.SIGUSR2)

        try:
            wait_for("the ranks' normal", lambda: detection().get("calibrated"), job)
            change_pace()
            verdict = wait_for("a verdict", is_open, job)[0]
            print("slow", verdict["kind"], verdict["ranks"], f"rate={verdict['rate']:.2f}")
            if verdict["ranks"] != [SLOW]:
                raise Failed(f"rank {SLOW} is slow, and {verdict['ranks']} were named")
            change_pace()
            wait_for("the verdict's end", lambda: not is_open(), job)
        except Failed as error:
            raise Failed(
                f"{error}; detection: {json.dumps(detection())[:1500]}; job: "
                f"{agent.text('job', 'err')[-1500:]}"
            ) from None
        finally:
            kill(job)


PARTS = {part.__name__: part for part in (capture, copy, resume, cost, nccl, slow)}
NEED_TORCH = ("resume", "cost", "nccl", "slow")


def why_no_device():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return str(error)
    code = driver.cuInit(0)
    return f"cuInit says {code}" if code else None


def why_no_torch(options):
    done = subprocess.run(
        [options.python, "-c", "import torch; assert torch.cuda.is_available()"],
        capture_output=True,
        text=True,
    )
    return None if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    options = parser.parse_args()
    reason = why_no_device()
    if reason:
        print(f"gpu: skipped (no CUDA device: {reason})")
        return SKIPPED
    no_torch = why_no_torch(options)
    failed = False
    for name in options.only or PARTS:
        if no_torch and name in NEED_TORCH:
            print(f"{name}: skipped (PyTorch for CUDA: {no_torch}; name one by --python)")
            continue
        try:
            PARTS[name](options)
        except Failed as error:
            failed = True
            print(f"{name}: failed ({error})", flush=True)
        else:
            print(f"{name}: ok", flush=True)
    return 1 if failed else 0


sys.exit(main())
