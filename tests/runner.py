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

Fuzzers run in the background of the suites that follow, each for a fixed number of executions;
FUZZ_SCALE multiplies it (fuzzing.py).

The end of the output shows the failures again, then the flaky programs. The last line is
`N passed, N failed`, with `, N skipped` if there are any; the exit status is 1 if anything failed.
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
import time

import fuzzing
from programs import ROOT, Result, begin_budget, budget_left_s, give_up, run, run_program

JOBS = os.cpu_count() or 2
# Longest first.
GATES = ["unused", "cppcheck", "layers", "headers", "format-python", "format-c"]
GATES += ["columns", "references", "suppressions"]
ORDER = ["style", "unit", "fault", "gpu", "fuzz", "asan", "tsan", "sim", "cluster", "interop"]
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
    "snapshot/test_spill",
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
# Of cluster, where each program starts several processes of its own with short deadlines.
CLUSTER_JOBS_MAX = 2
# Of interop, whose programs wait for each other's starts half of the time.
INTEROP_JOBS_MAX = 4
# Names without their suffix.
LONGEST_FIRST = [
    "test_demo",
    "test_agent",
    "test_convert_deepspeed",
    "test_torch",
    "test_fsdp1",
    "test_convert_megatron_dist",
    "test_convert_dcp",
    "test_dcp",
    "test_torch_bad_input",
    "test_torch_more",
    "test_convert_megatron",
    "test_detection",
    "test_convert_map",
    "test_torch_fence",
    "test_formats",
    "test_convert",
    "test_conversion",
    "test_capture",
    "test_device",
    "test_model",
    "test_process",
    "test_spill",
    "test_catalog",
    "test_transport",
    "test_job",
]
# Of interop: what imports the same for long, or starts the same server, runs in one process, under
# the name of the first.
TOGETHER = [
    ["test_convert_deepspeed", "test_convert_to_deepspeed", "test_convert_deepspeed_experts"],
    ["test_torch_bad_input", "test_coverage", "test_timing", "test_torch_device"],
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


def make(target, variables=(), limit_s=900):
    return run(
        ["make", "-s", f"-j{JOBS}", *variables, *([target] if isinstance(target, str) else target)],
        limit_s,
    )


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
    found = glob.glob(os.path.join(ROOT, "tests", suite, "**", "test_*.py"), recursive=True)
    return longest_first(p for p in found if chosen(os.path.relpath(p, f"{ROOT}/tests")))


def programs_of(suite):
    """All chosen programs of a suite."""
    plain = {"style": GATES, "sim": ["sim"]}.get(suite, [])
    return [*filter(chosen, plain), *c_programs(suite), *python_programs(suite)]


def run_binaries(suite, build, variables=(), env=None):
    """Builds and runs the C programs of a suite."""
    programs = [f"{build}/tests/{name}" for name in c_programs(suite)]
    status, output = make(programs, [*variables, f"BUILD={build}"]) if programs else (0, "")
    if status != 0:
        return [Result(f"{suite}: build", failed=1, output=output)]
    commands = {f"{suite}: {p[len(build) + 7:]}": [p] for p in programs}
    with concurrent.futures.ThreadPoolExecutor(JOBS + 1) as pool:  # many of them wait for the clock
        results = list(pool.map(lambda n: run_program(n, commands[n], env=env), commands))
    return again_alone(results, commands, env)


def suite_style():
    """Runs the gates side by side; the linker's and cppcheck's take most of the time."""

    def run_gate(gate):
        if gate in ("layers", "headers"):
            command = ["make", "-s", gate]
        elif gate == "references":
            command = [sys.executable, "tests/references.py"]
        else:
            command = [sys.executable, "tests/style.py", gate]
        return run_program(f"style: {gate}", command)

    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        return list(pool.map(run_gate, programs_of("style")))


def suite_unit():
    python = python_programs("unit")
    status, output = make("all") if python or not CHOSEN else (0, "")
    if status != 0:
        return [Result("unit: build", failed=1, output=output)]
    return run_binaries("unit", "build/plain") + [
        run_program(f"unit: {os.path.relpath(p, f'{ROOT}/tests/unit')}", [*PYTHON, p, "-v"])
        for p in python
    ]


def suite_fault():
    return run_binaries("fault", "build/plain")


def suite_gpu():
    return run_binaries("gpu", "build/plain")


def suite_asan():
    env = {"ASAN_OPTIONS": "abort_on_error=0:detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    return run_binaries("asan", "build/address-undefined", ["SAN=address,undefined"], env)


def suite_tsan():
    return run_binaries("tsan", "build/thread", ["SAN=thread"], {"TSAN_OPTIONS": "halt_on_error=1"})


FUZZING = None  # the fuzzers in the background


def suite_fuzz():
    """Builds the fuzzers and starts them in the background, each on its corpus; see
    collect_fuzzers."""
    global FUZZING
    clang = next((c for c in ("clang-14", "clang") if shutil.which(c)), None)
    if not clang:
        return [
            Result(
                "fuzz",
                skipped=1,
                reasons=["clang is not installed (apt-get install clang-14 libclang-rt-14-dev)"],
            )
        ]
    build = "build/fuzz"
    names = [os.path.basename(program) for program in c_programs("fuzz")]
    if unmeasured := [name for name in names if name not in fuzzing.PER_CPU_S]:
        output = f"{', '.join(unmeasured)}: no speed; add it to PER_CPU_S in tests/fuzzing.py"
        return [Result("fuzz: speeds", failed=1, output=output)]
    status, output = make(
        [f"{build}/tests/fuzz/{name}" for name in names],
        [f"CC={clang}", "SAN=fuzzer-no-link,address,undefined", f"BUILD={build}"],
    )
    if status != 0:
        return [Result("fuzz: build", failed=1, output=output)]
    fuzzers = []
    for name in names:
        corpus = os.path.join(ROOT, build, "corpus", name)
        os.makedirs(corpus, exist_ok=True)
        seeds = os.path.join(ROOT, "tests", "fuzz", "corpus", name)
        arguments = [
            f"-artifact_prefix={build}/{name}-",
            corpus,
            *([seeds] if os.path.isdir(seeds) else []),
        ]
        program = f"{build}/tests/fuzz/{name}"
        fuzzers.append(fuzzing.Fuzzer.of_program(name, program, arguments, FUZZ_SCALE))
    FUZZING = fuzzing.Fuzzing(fuzzers, ROOT, 2 * JOBS)
    return []


def collect_fuzzers():
    """Waits for the fuzzers; a crash leaves its input in build/fuzz."""
    fuzzers = FUZZING.collect(budget_left_s())
    for f in fuzzers:
        print(f"     {f.name}: {f.done} executions in {f.cpu_s:.0f} s of the processor", flush=True)
    return [
        Result(
            f"fuzz: {f.name}",
            passed=int(f.status == 0),
            failed=int(f.status != 0),
            output=f.output,
            seconds=f.cpu_s,
        )
        for f in fuzzers
    ]


def quiet():
    """Pauses the background while something is measured, has short deadlines, or is retried."""
    return FUZZING.paused() if FUZZING else contextlib.nullcontext()


def suite_sim():
    result = run_program("sim", ["make", "-s", "sim"])
    print(
        "\n".join(line for line in result.output.splitlines() if line.startswith("sim:")),
        flush=True,
    )
    return [result]


def suite_cluster():
    # or programs that run at the same time would both do so
    status, output = make(["all", "cluster-bins"])
    if status != 0:
        return [Result("cluster: build", failed=1, output=output)]
    commands = {
        f"cluster: {os.path.basename(p)}": [*PYTHON, p, "-v"] for p in python_programs("cluster")
    }
    with quiet(), concurrent.futures.ThreadPoolExecutor(min(JOBS, CLUSTER_JOBS_MAX)) as pool:
        results = list(pool.map(lambda n: run_program(n, commands[n]), commands))
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
        # where they cannot be had, their test says so
        run([python, "-m", "pip", "install", "-q", "transformers", "accelerate"], 600)
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


def interop_environment():
    """A virtual environment with the stock tools and PyTorch: (its python or None, why there is
    none of it or not all)."""
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


def together(programs):
    """Lists of programs: a group of TOGETHER in one list, in place of its first; others alone."""
    by_name = {os.path.basename(p).removesuffix(".py"): p for p in programs}
    groups = {name: group for group in TOGETHER for name in group}
    return [
        [by_name[each] for each in groups.get(name, [name])]
        for name in by_name
        if groups.get(name, [name])[0] == name
    ]


def suite_interop():
    """Stock tools read what we write, and PyTorch trains with us."""
    status, output = make(
        [
            "all",
            "build/plain/tests/unit/snapshot/test_universal",
            "build/plain/libcairn_gated.so",
            "build/plain/libfakecuda.so",
        ]
    )
    if status != 0:
        return [Result("interop: build", failed=1, output=output)]
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
    with concurrent.futures.ThreadPoolExecutor(min(JOBS + 1, INTEROP_JOBS_MAX)) as pool:
        results = list(
            pool.map(lambda n: run_program(n, commands[n]), [n for n in commands if n != alone])
        )
    with quiet():
        results += [run_program(n, commands[n]) for n in commands if n == alone]
    results = again_alone(results, commands)
    return results + [
        Result("interop", skipped=1, reasons=[reason]) for reason in (missing, no_oldest) if reason
    ]


def show(result):
    mark = "FAIL" if result.failed else "ok"
    print(
        f"{mark:4} {result.name}: {result.passed} passed, {result.failed} failed, "
        f"{result.skipped} skipped ({result.seconds:.1f} s)",
        flush=True,
    )
    for reason in result.reasons:
        print(f"     skipped: {reason}", flush=True)
    if result.failed:
        print(result.output[-6000:], flush=True)


def failure_of(result):
    """What a program said from its first failure on, as far as it is shown at the end: a report of
    leaks behind it is long."""
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
        elif word == "all" or word in ORDER or word == "environment":
            suites += ORDER if word == "all" else [word]
        else:
            raise ValueError(f"{word}: unknown suite; the suites are {', '.join(ORDER)}")
    return list(dict.fromkeys(suites or ORDER)), name


def run_suite(name, suite):
    """Runs a suite, shows what it says, and returns it; with its time on the processors, for who
    looks where the time goes."""
    begin, begin_cpu_s = time.monotonic(), cpu_seconds()
    print(f"== {name}", flush=True)
    results = suite()
    for result in results:
        show(result)
    print(
        f"== {name} took {time.monotonic() - begin:.0f} s, and {cpu_seconds() - begin_cpu_s:.0f} s "
        "of the processors",
        flush=True,
    )
    return results


def cpu_seconds():
    """What the suites have used of the processors, without the fuzzers."""
    return fuzzing.children_cpu_seconds() - (FUZZING.ended_cpu_seconds() if FUZZING else 0)


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
        for name in names:
            results += run_suite(name, globals()[f"suite_{name}"])
        if FUZZING:
            results += run_suite("fuzzers, until all have ended", collect_fuzzers)
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
