#!/usr/bin/env python3
"""Builds and runs the test suites and adds up their results.

    tests/runner.py [SUITE …] [-k NAME]

Suites: style unit fault gpu fuzz asan tsan sim cluster interop; without one, or with `all`, all of
them. `-k NAME` runs only the programs whose name contains NAME (`-k test_wire`, `-k fuzz_zip`,
`-k cppcheck`) and builds only what they need; the exit status is 1 if there are none.

A suite is a list of programs. A cmocka program counts its own tests, a Python program those of
unittest or pytest, any other counts as one: exit 0 passed, 77 skipped (its last line is the
reason), else failed. A program that runs longer than its limit has failed, and its processes are
listed (programs.py). `all` has TEST_MINUTES (80); what has not ended by then has failed.

A program that fails is run once more, alone: real processes have short deadlines, and machines
that run tests are often busy. If it passes then it counts as passed, but is flaky: the end of the
output lists it, and the first output is shown. FLAKY_MAX (3) flaky programs are one failure, which
the last line counts. Some failures get no second try: those of the suites style, sim and fuzz, a
program that took too long, and every report of a sanitizer.

Programs that only compute run in the background when there are several suites: the gates of style,
the builds with sanitizers, the simulator, and the fuzzers once built. They take the time of the
processors that the other suites leave (SCHED_IDLE), and stop while something is measured (MEASURES)
and while a program is run again. Each suite waits for its own build only.
Fuzzers have a fixed number of executions; FUZZ_SCALE multiplies it (fuzzing.py).

The end of the output shows the failures again, then the flaky programs, then a table of the suites:
seconds by the clock, CPU seconds, tests. The last line is `N passed, N failed`, with `, N skipped`
if there are any; the exit status is 1 if anything failed.
The runner uses only the standard library.
"""
import concurrent.futures
import contextlib
import functools
import glob
import os
import re
import shutil
import signal
import sys
import threading
import time

import fuzzing
from programs import (
    ROOT,
    Result,
    background_paused,
    begin_budget,
    budget_left_s,
    give_up,
    run,
    run_measured,
    run_program,
)

JOBS = os.cpu_count() or 2
# Longest first.
GATES = ["cppcheck", "format-python", "headers", "references", "format-c", "layers", "unused"]
GATES += ["words", "columns", "suppressions", "fuzzers"]
# The suites that mostly run in the background come behind those that leave time for them.
ORDER = ["unit", "fault", "gpu", "asan", "tsan", "style", "interop", "cluster", "sim", "fuzz"]
# Programs in C, as patterns below tests/.
C_PROGRAMS = {
    "unit": ["unit/**/test_*"],
    "fault": ["fault/test_*"],
    "gpu": ["gpu/test_*"],
    "fuzz": ["fuzz/fuzz_*"],
    "asan": ["unit/**/test_*", "fault/test_*"],
    "tsan": ["unit/**/test_*"],
}
# Programs with threads, run under ThreadSanitizer.
THREADED = [
    "base/test_loop",
    "base/test_worker",
    "base/test_ring",
    "snapshot/test_capture",
    "snapshot/test_capture_ends",
    "snapshot/test_spill",
    "transport/test_sealer",
    "client/test_client",
    "client/test_trouble",
    "client/test_device",
    "client/test_fence",
    "client/test_restore",
    "service/test_timing",
    "service/test_enforcing",
    "nccl/test_plugin",
    "engine/test_conversion",
]
# Of cluster, whose programs wait three quarters of the time, but start several processes with short
# deadlines.
CLUSTER_JOBS_MAX = 3
# Of cluster, what compares times of steps or counts seconds: the background stops meanwhile. The
# others wait for states.
MEASURES = [
    "test_demo",
    "test_replan",
    "test_moves",
    "test_stalls",
    "test_detection",
    "test_certificates",
    "test_wire",
    "test_shares",
    "test_many",
]
# Of interop, whose programs wait for each other's starts half of the time.
INTEROP_JOBS_MAX = 4
# By the clock, of those that take more than 15 s. Names without their suffix.
LONGEST_FIRST = [
    "test_demo",
    "test_torch_pipeline",
    "test_replan",
    "test_fsdp1",
    "test_torch",
    "test_data",
    "test_reshape",
    "test_moves",
    "test_spill",
    "test_convert_deepspeed",
    "test_slurm",
    "test_torch_bad_input",
    "test_certificates",
    "test_transport",
    "test_ending",
    "test_detection",
    "test_convert_dcp",
    "test_agent",
    "test_stalls",
    "test_megatron_live",
    "test_rendezvous",
    "test_deepspeed_live",
    "test_breaking",
    "test_between",
    "test_many",
    "test_convert_random_trees",
    "test_convert_megatron",
    "test_quickstart",
    "test_shares",
    "test_search",
    "test_wire",
    "test_convert_megatron_dist",
    "test_capture",
    "test_conversion",
    "test_convert",
    "test_cli_run",
    "test_late",
    "test_torch_compiled",
    "test_device",
    "test_trust",
    "test_losses",
    "test_process",
    "test_relaunch",
    "test_cli_job",
    "test_formats",
    "test_trouble",
    "test_cli",
    "test_timing",
    "test_keys",
    "test_fleet",
    "test_plan",
    "test_convert_map",
    "test_corruption",
    "test_job",
    "test_kubernetes",
    "test_fencing",
]
# Of interop: what imports the same for long, or starts the same server, runs in one process, under
# the name of the first.
TOGETHER = [
    ["test_convert_deepspeed", "test_convert_to_deepspeed", "test_convert_deepspeed_experts"],
    ["test_torch_bad_input", "test_coverage", "test_timing", "test_torch_device"],
    ["test_torch", "test_torch_odd", "test_poison"],
    ["test_fsdp1", "test_torch_more", "test_dcp"],
    ["test_data", "test_torch_lengths"],
    ["test_torch_pipeline", "test_torch_share"],
    [
        "test_convert_dcp",
        "test_convert_torch",
        "test_convert_bad_input",
        "test_torch_file",
        "test_safetensors",
    ],
]
# With which a program that hangs can be made to say where.
PYTHON = [sys.executable, "-u", "-X", "faulthandler"]
FUZZ_SCALE = float(os.environ.get("FUZZ_SCALE", "1"))  # multiplies the executions of each fuzzer
TEST_MINUTES = int(os.environ.get("TEST_MINUTES", "80"))  # for all suites together
FLAKY_MAX = 3  # so many flaky programs fail the run

FLAKY = []  # what flaky programs did the first time
# Lines of the end of the output. A suite in the background has its waiting time only.
TABLE = [f"{'suite':12} {'wall s':>8} {'CPU s':>8} {'tests':>8}"]
CHOSEN = ""  # the NAME of -k
SANITIZER_REPORT = re.compile(r"(?:ERROR|WARNING): (?!Leak)\w+Sanitizer: |: runtime error: ")
LEAK_REPORT = "ERROR: LeakSanitizer: "
SHOWN_AT_END_MAX = 1500  # characters of what each failed program said last


def chosen(name):
    """Whether -k chose a program, by its name without the suite."""
    return CHOSEN in name


def is_reported(output):
    """Whether a sanitizer found a defect. A test that fails frees nothing, so what leaks then says
    nothing."""
    return bool(SANITIZER_REPORT.search(output)) or (
        LEAK_REPORT in output and not re.search(r"^\[  (?:FAILED|ERROR)", output, re.M)
    )


def again_alone(results, commands, env=None):
    """Runs what failed once more, one after the other, but for what took too long or a sanitizer
    reported; commands maps names to command lines."""
    steady = []
    for result in results:
        if (
            result.failed
            and not result.late
            and result.name in commands
            and not is_reported(result.output)
        ):
            with quiet():
                second = run_program(result.name, commands[result.name], env=env)
            if not second.failed:
                FLAKY.append(result)
                print(f"flaky {result.name}: passed when run again; its first output:", flush=True)
                print(result.output[-3000:], flush=True)
            else:
                second.output = result.output + "\n---- and again, alone ----\n" + second.output
            result = second
        steady.append(result)
    return steady


def make_command(targets, variables=()):
    return ["make", "-s", f"-j{JOBS}", *variables, *targets]


def make(targets, suite):
    """Builds targets of the plain build; its CPU seconds are the suite's."""
    status, output, cpu_s = run_measured(make_command(targets), 900)
    BUILD_CPU_S[suite] = BUILD_CPU_S.get(suite, 0.0) + cpu_s
    return status, output


def longest_first(programs):
    """So that none of them begins when all others have ended."""

    def place(program):
        name = os.path.basename(program).removesuffix(".py")
        return LONGEST_FIRST.index(name) if name in LONGEST_FIRST else len(LONGEST_FIRST)

    return sorted(sorted(programs), key=place)


def c_programs(suite):
    """The chosen programs of a suite in C: paths below tests/ without suffix, longest first."""
    sources = {
        os.path.relpath(source, os.path.join(ROOT, "tests"))[:-2]
        for pattern in C_PROGRAMS.get(suite, ())
        for source in glob.glob(os.path.join(ROOT, "tests", pattern + ".c"), recursive=True)
    }
    only = THREADED if suite == "tsan" else [""]
    return longest_first(n for n in sources if chosen(n) and any(n.endswith(o) for o in only))


def python_programs(suite):
    """The chosen programs of a suite in Python: paths, longest first."""
    folders = [suite, "hostile"] if suite == "cluster" else [suite]
    found = [
        path
        for folder in folders
        for path in glob.glob(
            os.path.join(ROOT, "tests", folder, "**", "test_*.py"), recursive=True
        )
    ]
    return longest_first(p for p in found if chosen(os.path.relpath(p, f"{ROOT}/tests")))


def programs_of(suite):
    """All chosen programs of a suite."""
    plain = {"style": GATES, "sim": ["sim", "placements", "explore", "bugs"]}.get(suite, [])
    return [*filter(chosen, plain), *c_programs(suite), *python_programs(suite)]


# Builds of C suites: (folder, variables of make).
PLAIN = "build/plain"
BUILDS = {
    "unit": (PLAIN, []),
    "fault": (PLAIN, []),
    "gpu": (PLAIN, []),
    "asan": ("build/address-undefined", ["SAN=address,undefined"]),
    "tsan": ("build/thread", ["SAN=thread"]),
    "fuzz": ("build/fuzz", ["SAN=fuzzer-no-link,address,undefined"]),
}
# Of a build in the foreground, which all suites with a plain build share.
PLAIN_TARGETS = {
    "style": ["all", "layers-objects"],
    "unit": ["all"],
    # All three here: two programs that build the explorer at the same time disturb each other.
    "sim": [f"{PLAIN}/sim/sim", f"{PLAIN}/sim/placements", f"{PLAIN}/explore/explore"],
    "cluster": ["all", "cluster-bins"],
    "interop": [
        "all",
        f"{PLAIN}/tests/unit/snapshot/test_universal",
        f"{PLAIN}/libcairn_gated.so",
        f"{PLAIN}/libfakecuda.so",
    ],
}


def binaries(suite):
    return [f"{BUILDS[suite][0]}/tests/{name}" for name in c_programs(suite)]


def plain_targets(suite):
    """What a suite needs of the plain build."""
    found = binaries(suite) if BUILDS.get(suite, ("",))[0] == PLAIN else []
    if suite == "style":
        return PLAIN_TARGETS[suite] if chosen("layers") or chosen("unused") else []
    if suite == "unit":
        return found + (PLAIN_TARGETS[suite] if python_programs(suite) or not CHOSEN else [])
    return found + (PLAIN_TARGETS.get(suite, []) if programs_of(suite) else [])


class Background:
    """Work that only computes: two programs at a time, in the order of its begin. Keys are
    (suite, what); `result` waits for one. `aside`: the programs let all others go first."""

    def __init__(self, aside):
        self.aside, self.works = aside, {}
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        self.fuzzers = None  # what begin_fuzzers will have returned

    def begin(self, key, command):
        name = ": ".join(filter(None, key))
        self.works[key] = self.pool.submit(run_program, name, command, background=self.aside)

    def result(self, key):
        return self.works[key].result()


def clang():
    return next((c for c in ("clang-14", "clang") if shutil.which(c)), None)


def begin_background(names):
    """Begins what the suites compute, and the builds that they wait for, in the order of need."""
    global BACKGROUND
    BACKGROUND = Background(aside=len(names) > 1)
    for suite in ("asan", "tsan", "style", "sim", "fuzz"):
        if suite not in names:
            continue
        if suite == "style":
            for gate in programs_of("style"):
                BACKGROUND.begin(("style", gate), gate_command(gate))
        elif suite == "sim":
            explore = ["make", "-s", "explore"]
            commands = {
                "sim": ["make", "-s", "sim"],
                "placements": ["make", "-s", "placements"],
                "explore": [*explore, "SECONDS=30", "STATES=100000", "LEAST=100000"],
                "bugs": [*explore, "BUGS=1", "SECONDS=240"],
            }
            for name in programs_of("sim"):
                BACKGROUND.begin(("sim", name), commands[name])
        elif binaries(suite) and (suite != "fuzz" or clang()):
            build, variables = BUILDS[suite]
            compiler = [f"CC={clang()}"] if suite == "fuzz" else []
            BACKGROUND.begin(
                (suite, "build"),
                make_command(binaries(suite), [*variables, *compiler, f"BUILD={build}"]),
            )
    if "fuzz" in names and ("fuzz", "build") in BACKGROUND.works:
        BACKGROUND.fuzzers = concurrent.futures.ThreadPoolExecutor(1).submit(begin_fuzzers)


def build_failure(suite):
    """Waits for a suite's build in the background: its result if it failed, or None."""
    if (suite, "build") not in BACKGROUND.works:
        return None
    result = BACKGROUND.result((suite, "build"))
    BUILD_CPU_S[suite] = result.cpu_s
    return result if result.failed else None


def run_binaries(suite, env=None):
    """Runs the C programs of a suite, which are built."""
    if failure := build_failure(suite):
        return [failure]
    skip = len(BUILDS[suite][0]) + 7
    commands = {f"{suite}: {p[skip:]}": [p] for p in binaries(suite)}
    with concurrent.futures.ThreadPoolExecutor(JOBS + 1) as pool:  # many of them wait for the clock
        results = list(pool.map(lambda n: run_program(n, commands[n], env=env), commands))
    return again_alone(results, commands, env)


def gate_command(gate):
    if gate in ("layers", "headers"):
        return ["make", "-s", f"-j{JOBS}", gate]
    if gate == "references":
        return [sys.executable, "tests/references.py"]
    return [sys.executable, "tests/style.py", gate]


def suite_style():
    return [BACKGROUND.result(("style", gate)) for gate in programs_of("style")]


def suite_unit():
    return run_binaries("unit") + [
        run_program(f"unit: {os.path.relpath(p, f'{ROOT}/tests/unit')}", [*PYTHON, p, "-v"])
        for p in python_programs("unit")
    ]


def suite_fault():
    return run_binaries("fault")


def suite_gpu():
    return run_binaries("gpu")


def suite_asan():
    env = {"ASAN_OPTIONS": "abort_on_error=0:detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    return run_binaries("asan", env)


def suite_tsan():
    return run_binaries("tsan", {"TSAN_OPTIONS": "halt_on_error=1"})


BACKGROUND = None  # what computes meanwhile
BUILD_CPU_S = {}  # CPU seconds of the build of each suite
FUZZING = None  # the fuzzers in the background


def begin_fuzzers():
    """Starts the fuzzers, each on its corpus, when they are built; returns the failures to do so.
    They share the processors with the simulator, whose last half minute is one process."""
    global FUZZING
    names = [os.path.basename(program) for program in binaries("fuzz")]
    if unmeasured := [name for name in names if name not in fuzzing.PER_CPU_S]:
        output = f"{', '.join(unmeasured)}: no speed; add it to PER_CPU_S in tests/fuzzing.py"
        return [Result("fuzz: speeds", failed=1, output=output)]
    if failure := build_failure("fuzz"):
        return [failure]
    build = BUILDS["fuzz"][0]
    fuzzers = []
    for program in binaries("fuzz"):
        name = os.path.basename(program)
        corpus = os.path.join(ROOT, build, "corpus", name)
        os.makedirs(corpus, exist_ok=True)
        seeds = os.path.join(ROOT, "tests", "fuzz", "corpus", name)
        arguments = [
            f"-artifact_prefix={build}/{name}-",
            corpus,
            *([seeds] if os.path.isdir(seeds) else []),
        ]
        fuzzers.append(fuzzing.Fuzzer.of_program(name, program, arguments, FUZZ_SCALE))
    with FUZZING_LOCK:
        FUZZING = fuzzing.Fuzzing(fuzzers, ROOT, JOBS, paused=QUIET > 0)
    return []


def suite_fuzz():
    """Waits for the fuzzers; a crash leaves its input in build/fuzz."""
    if not clang():
        reason = "clang is not installed (apt-get install clang-14 libclang-rt-14-dev)"
        return [Result("fuzz", skipped=1, reasons=[reason])]
    results = BACKGROUND.fuzzers.result()
    for f in [] if results else FUZZING.collect(budget_left_s()):
        print(f"     {f.name}: {f.done} executions in {f.cpu_s:.0f} s of the processor", flush=True)
        failed = f.status != 0
        results.append(Result(f"fuzz: {f.name}", int(not failed), int(failed), output=f.output))
        results[-1].seconds = results[-1].cpu_s = f.cpu_s
    return results


QUIET = 0  # reasons for which the background pauses
FUZZING_LOCK = threading.Lock()  # guards FUZZING and QUIET


@contextlib.contextmanager
def quiet():
    """Pauses the background while something is measured, has short deadlines, or is retried."""
    global QUIET
    with FUZZING_LOCK:
        QUIET += 1
        if FUZZING and QUIET == 1:
            FUZZING.pause(True)
    try:
        with background_paused():
            yield
    finally:
        with FUZZING_LOCK:
            QUIET -= 1
            if FUZZING and QUIET == 0:
                FUZZING.pause(False)


def suite_sim():
    results = [BACKGROUND.result(("sim", name)) for name in programs_of("sim")]
    for line in "\n".join(result.output for result in results).splitlines():
        if line.startswith(("sim:", "explore:")):
            print(line, flush=True)
    return results


def suite_cluster():
    commands = {
        f"cluster: {os.path.basename(p)}": [*PYTHON, p, "-v"] for p in python_programs("cluster")
    }
    measure = [n for n in commands if n.removeprefix("cluster: ").removesuffix(".py") in MEASURES]
    wait = [n for n in commands if n not in measure]
    with concurrent.futures.ThreadPoolExecutor(min(JOBS + 1, CLUSTER_JOBS_MAX)) as pool:
        results = list(pool.map(lambda n: run_program(n, commands[n]), wait))
        with quiet():
            results += pool.map(lambda n: run_program(n, commands[n]), measure)
    return again_alone(results, commands)


def install_torch(python, venv):
    """Installs PyTorch for the CPU, once; the reason where there is none. The wheels with CUDA
    would be several GB for nothing."""
    marker = os.path.join(venv, "torch")
    if not os.path.exists(marker):
        pinned = [python, "-m", "pip", "install", "-q", "torch==2.13.0+cpu", "setuptools"]
        status, output = run(pinned, 600)
        if status != 0:
            status, output = run(
                [
                    *pinned[:-2],
                    "torch>=2.6",
                    "setuptools",
                    "--index-url",
                    "https://download.pytorch.org/whl/cpu",
                ],
                900,
            )
        if status == 0:
            status, output = run([python, "-c", "import torch"], 120)
        if status != 0:
            return "no PyTorch for the CPU: " + (output.strip().splitlines() or ["?"])[-1]
        open(marker, "w").close()
        # where they cannot be had, their test reports it
        run([python, "-m", "pip", "install", "-q", "transformers", "accelerate"], 600)
        run([python, "-m", "pip", "install", "-q", "torchdata", "datasets"], 600)
    return None


def install_beside(torch_venv, name, what, packages, env=None):
    """A virtual environment `build/venv-name` with some packages that shares the other's torch,
    once; the reason where there is none."""
    venv = os.path.join(ROOT, "build", f"venv-{name}")
    marker = os.path.join(venv, "ready")
    if os.path.exists(marker):
        return None
    status, output = run([sys.executable, "-m", "venv", venv], 120)
    if status == 0:
        for installed in glob.glob(os.path.join(venv, "lib", "python3*", "site-packages")):
            shared = os.path.join(
                torch_venv, "lib", os.path.basename(os.path.dirname(installed)), "site-packages"
            )
            with open(os.path.join(installed, "shared.pth"), "w") as path:
                path.write(shared + "\n")
        status, output = run(
            [os.path.join(venv, "bin", "python"), "-m", "pip", "install", "-q", *packages], 600, env
        )
    if status != 0:
        shutil.rmtree(venv, ignore_errors=True)
        return f"no {what}: " + (output.strip().splitlines() or ["?"])[-1]
    open(marker, "w").close()
    return None


def install_deepspeed(torch_venv):
    nothing_compiled = {"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
    return install_beside(
        torch_venv, "deepspeed", "DeepSpeed", ["deepspeed==0.19.8"], nothing_compiled
    )


def install_megatron(torch_venv):
    return install_beside(
        torch_venv, "megatron", "megatron-core", ["--no-deps", "megatron-core==0.16.1"]
    )


def install_oldest_torch():
    """A virtual environment with the oldest PyTorch that the binding promises, for the CPU, once;
    the reason where there is none.

    The wheel of the ordinary index is for CUDA: with its libraries 5 GB, more than one short test
    is worth.
    """
    venv = os.path.join(ROOT, "build", "venv-oldest")
    if os.path.exists(os.path.join(venv, "ready")):
        return None
    status, output = run([sys.executable, "-m", "venv", venv], 120)
    install = [
        os.path.join(venv, "bin", "python"),
        "-m",
        "pip",
        "install",
        "-q",
        "--retries",
        "0",
        "--timeout",
        "20",
    ]
    for index in ([], ["--index-url", "https://download.pytorch.org/whl/cpu"]):
        if status == 0 and not os.path.exists(os.path.join(venv, "ready")):
            failed, output = run([*install, "torch==2.6.0+cpu", "numpy<3", *index], 300)
            if failed == 0:
                open(os.path.join(venv, "ready"), "w").close()
    if os.path.exists(os.path.join(venv, "ready")):
        return None
    shutil.rmtree(venv, ignore_errors=True)
    lines = [line for line in output.strip().splitlines() if "ERROR" in line]
    return (
        "no PyTorch 2.6 for the CPU (CAIRN_OLDEST_PYTHON names a Python that has it): "
        + (lines or ["?"])[0]
    )


APPS = [
    *("torch", "torchvision", "numpy", "safetensors", "pytest", "setuptools", "transformers"),
    *("accelerate", "lightning", "peft", "schedulefree", "bitsandbytes", "timm", "torchao"),
    *("torchdata", "datasets"),
]


def interop_environment():
    """A virtual environment with the stock tools and PyTorch: (its python or None, why there is
    none or a part)."""
    venv = os.path.join(ROOT, "build", "venv")
    python = os.path.join(venv, "bin", "python")
    if not os.path.exists(os.path.join(venv, "ready")):
        status, output = run([sys.executable, "-m", "venv", venv], 120)
        if status == 0:
            status, output = run(
                [python, "-m", "pip", "install", "-q", "numpy", "safetensors", "pytest"], 600
            )
        if status != 0:
            return (
                None,
                "no virtual environment with numpy and safetensors: "
                + (output.strip().splitlines() or ["?"])[-1],
            )
        open(os.path.join(venv, "ready"), "w").close()
    missing = install_torch(python, venv)
    return python, missing or install_deepspeed(venv) or install_megatron(venv)


@functools.cache
def interop_environments():
    """Makes both environments of interop in the background; the downloads take minutes."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    return pool.submit(lambda: (interop_environment(), install_oldest_torch()))


def suite_environment():
    """Only makes the environment of interop, for `make bench-peers` and `make bench-convert`."""
    python, missing = interop_environment()
    return [Result("environment", failed=1, output=missing)] if missing else []


def install_apps():
    """A virtual environment with what tests/interop/apps.py runs, once; the reason where there is
    none. It has a torch of its own, since torchvision wants that of its own build."""
    venv = os.path.join(ROOT, "build", "venv-apps")
    marker = os.path.join(venv, "ready")
    if os.path.exists(marker):
        return None
    install = [os.path.join(venv, "bin", "python"), "-m", "pip", "install", "-q"]
    cpu = ["--index-url", "https://download.pytorch.org/whl/cpu", "--retries", "0"]
    status, output = run([sys.executable, "-m", "venv", venv], 120)
    if status == 0:
        run([*install, "torch", "torchvision", *cpu], 900)  # else those for CUDA, which do, too
        status, output = run([*install, *APPS], 1800)
    if status != 0:
        shutil.rmtree(venv, ignore_errors=True)
        return "no build/venv-apps: " + (output.strip().splitlines() or ["?"])[-1]
    # One for CUDA beside a torch for the CPU cannot be imported, and neither can what looks for it.
    if run([install[0], "-c", "import torchvision"], 120)[0] != 0:
        run([install[0], "-m", "pip", "uninstall", "-q", "-y", "torchvision"], 120)
    open(marker, "w").close()
    return None


def suite_apps():
    """Only makes the environment of `make interop-apps`."""
    missing = install_apps()
    return [Result("apps", failed=1, output=missing)] if missing else []


def together(programs):
    """Lists of programs: a group of TOGETHER in one list, in place of its first; others alone."""
    by_name = {os.path.basename(p).removesuffix(".py"): p for p in programs}
    present = [[name for name in group if name in by_name] for group in TOGETHER]
    groups = {name: group for group in present for name in group}
    return [
        [by_name[each] for each in groups.get(name, [name])]
        for name in by_name
        if groups.get(name, [name])[0] == name
    ]


def suite_interop():
    """Stock tools read what we write, and PyTorch trains with us."""
    (python, missing), no_oldest = interop_environments().result()
    # else it is the time that was missing, and its programs have failed
    if not python and budget_left_s() != 0:
        return [Result("interop", skipped=1, reasons=[missing])]
    pytest = [python or sys.executable, "-m", "pytest", "-q", "-rs", "--durations=5"]
    commands = {
        f"interop: {' '.join(map(os.path.basename, group))}": [*pytest, *group]
        for group in together(python_programs("interop"))
    }
    alone = "interop: test_measures.py"  # it measures
    # or each of a thousand trainers compiles the bindings again
    env = {"PYTHONDONTWRITEBYTECODE": ""}
    with concurrent.futures.ThreadPoolExecutor(min(JOBS + 1, INTEROP_JOBS_MAX)) as pool:
        results = list(
            pool.map(
                lambda n: run_program(n, commands[n], env=env), [n for n in commands if n != alone]
            )
        )
    with quiet():
        results += [run_program(n, commands[n], env=env) for n in commands if n == alone]
    results = again_alone(results, commands, env)
    return results + [
        Result("interop", skipped=1, reasons=[reason]) for reason in (missing, no_oldest) if reason
    ]


def show(result):
    mark = "FAIL" if result.failed else "ok"
    print(
        f"{mark:4} {result.name}: {result.passed} passed, {result.failed} failed, "
        f"{result.skipped} skipped ({result.seconds:.1f} s, {result.cpu_s:.1f} s CPU)",
        flush=True,
    )
    for reason in result.reasons:
        print(f"     skipped: {reason}", flush=True)
    if result.failed:
        print(result.output[-6000:], flush=True)


def failure_of(result):
    """What a program said from its first failure on, as far as it is shown at the end: a report of
    following leaks is long."""
    output = result.output
    if result.late:  # what it did last, and where that hung
        return output[-2 * SHOWN_AT_END_MAX :]
    begin = re.search(
        r"^\[  ERROR   \]|^\[   LINE   \]|^E  |Sanitizer: |^FAIL|runtime error", output, re.M
    )
    return (
        output[max(begin.start() - 200, 0) :][:SHOWN_AT_END_MAX]
        if begin
        else output[-SHOWN_AT_END_MAX:]
    )


def failed_tests(output):
    """Names of the tests that failed in a program, as far as it printed them."""
    return sorted(
        set(
            re.findall(r"^\[  FAILED  \] ([A-Za-z_]\w*)$", output, re.M)  # cmocka
            + re.findall(r"^(?:FAIL|ERROR): (\w+)", output, re.M)  # unittest
            + re.findall(r"^(?:FAILED|ERROR) \S+::(\w+)", output, re.M)  # pytest
        )
    )


def add_up(results, flaky):
    """What the end of the output is: (its lines, the exit status)."""
    lines = [
        f"FAIL {result.name}, which said at last:\n{failure_of(result)}"
        for result in results
        if result.failed
    ]
    passed, failed, skipped = (
        sum(getattr(r, k) for r in results) for k in ("passed", "failed", "skipped")
    )
    if len(flaky) >= FLAKY_MAX:
        failed += 1
        lines.append(f"FAIL flaky: {len(flaky)} programs passed only when run again; find out why")
    for result in flaky:
        names = failed_tests(result.output)
        lines.append(f"flaky: {result.name}" + (f" ({', '.join(names)})" if names else ""))
    lines += TABLE if len(TABLE) > 1 else []
    lines.append(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return lines, 1 if failed else 0


def parse(arguments):
    """Returns (suites, NAME of -k or ""); raises ValueError with what is wrong."""
    suites, name, rest = [], "", list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "-k":
            if not rest or not rest[0]:
                raise ValueError("-k: the name is missing; give a part of a program's name")
            name = rest.pop(0)
        elif word == "all" or word in ORDER or word in ("environment", "apps"):
            suites += ORDER if word == "all" else [word]
        else:
            raise ValueError(f"{word}: unknown suite; the suites are {', '.join(ORDER)}")
    return list(dict.fromkeys(suites or ORDER)), name


def run_suite(name, suite):
    """Runs a suite, shows what it says, and adds it to the table; returns its results."""
    begin = time.monotonic()
    print(f"== {name}", flush=True)
    results = suite()
    for result in results:
        show(result)
    wall_s = time.monotonic() - begin
    cpu_s = BUILD_CPU_S.get(name, 0.0) + sum(result.cpu_s for result in results)
    tests = sum(result.passed + result.failed for result in results)
    TABLE.append(f"{name:12} {wall_s:8.0f} {cpu_s:8.0f} {tests:8}")
    print(f"== {name} took {wall_s:.0f} s wall, {cpu_s:.0f} s CPU", flush=True)
    return results


def build_plain(names):
    """Builds what the suites need without sanitizers: in one go, as two builds would disturb each
    other."""
    targets = list(dict.fromkeys(target for name in names for target in plain_targets(name)))
    status, output = make(targets, "build") if targets else (0, "")
    return [Result("plain: build", failed=1, output=output)] if status != 0 else []


def interrupted(number, _frame):
    """Programs have sessions of their own: what ends the runner does not reach them by itself."""
    give_up()
    sys.exit(128 + number)


def main(arguments):
    global CHOSEN
    if set(arguments) & {"-h", "--help"}:
        print(__doc__)
        return 0
    try:
        names, CHOSEN = parse(arguments)
    except ValueError as error:
        print(f"runner: {error}", file=sys.stderr)
        return 64
    if names == ORDER:
        begin_budget(60 * TEST_MINUTES)
    if CHOSEN:
        counts = {name: len(programs_of(name)) for name in names}
        names = [name for name in names if counts[name]]
        found = ", ".join(f"{counts[name]} of {name}" for name in names)
        print(f"-k {CHOSEN}: {sum(counts.values())} matched ({found or 'none'})", flush=True)
        if not names:
            print(f"runner: -k {CHOSEN}: no program has this in its name", file=sys.stderr)
            return 1
    if "interop" in names:
        interop_environments()
    results = []
    try:
        results = run_suite("build", lambda: build_plain(names))
        if not results:
            begin_background(names)
            for name in names:
                results += run_suite(name, globals()[f"suite_{name}"])
    finally:
        if FUZZING:
            FUZZING.kill()
    lines, status = add_up(results, FLAKY)
    print("\n".join(lines), flush=True)
    return status


if __name__ == "__main__":
    for ending in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(ending) != signal.SIG_IGN:  # as under nohup
            signal.signal(ending, interrupted)
    sys.exit(main(sys.argv[1:]))
