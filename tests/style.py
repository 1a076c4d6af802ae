#!/usr/bin/env python3
"""The gates of the style suite that are more than a command.

    tests/style.py columns          no line is longer than 100 columns
    tests/style.py format-c         clang-format-14 would change no C file
    tests/style.py format-python    black would change no Python file
    tests/style.py cppcheck         cppcheck finds nothing in any C file
    tests/style.py suppressions     every cppcheck-suppress gives its reason on the same line
    tests/style.py fuzzers          tests/README.md names every fuzzer, its parser and its seeds
    tests/style.py unused           the products use every function of the modules
    tests/style.py words            PLAIN_FOLDERS have none of the words that slow a reader down

Each prints one line per problem, `<file>:<line>: <what is wrong>; <what to do>`, and exits 1 when
there are any. cppcheck keeps its results in build/cppcheck: a second run only checks what has
changed.
"""
import fnmatch
import glob
import io
import os
import re
import shutil
import subprocess
import sys
import tokenize

import fuzzing
import layers

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
JOBS = str(os.cpu_count() or 2)
COLUMNS_MAX = 100
CLANG_FORMAT = "clang-format-14"
CPPCHECK = [
    "cppcheck",
    "-q",
    f"-j{JOBS}",
    "--cppcheck-build-dir=build/cppcheck",
    "--std=c11",
    "--error-exitcode=1",
    "--inline-suppr",
    "--enable=warning,portability",
    "-I.",
    "-Iinclude",
    "--suppress=missingIncludeSystem",
    "--template={file}:{line}: {message} [{id}]; fix it, or suppress it with its reason",
    "--template-location=",
]
# Functions of modules that only tests call, or patterns of them, each with the reason.
ONLY_TESTS = {
    "cairn_capture_stats_read": "tests count captures and stalls",
    "cairn_catalog_counter": "tests check which counter survives a crash",
    "cairn_config_markdown": "a test compares docs/CONFIG.md with the table of options",
    "cairn_file_setup": "tests replace system calls by failing ones",
    "cairn_keeper_list": "tests ask a keeper what it holds",
    "cairn_keeper_shutdown": "tests end the keepers that they started",
    "cairn_mem_put": "tests write to device memory, real or fake",
    "cairn_session_put_frame": "tests send frames that no client sends",
    "cairn_session_reader_feed": "tests and the fuzzer feed bytes without a socket",
    "cairn_transport_hub_*": "tests connect and disturb transports of the backend `loop`",
    "gpt_stage_probabilities": "a test checks that attention looks only backwards",
}
BUILD = "build/plain"
PRODUCTS = [
    f"{BUILD}/{name}" for name in ("cairn", "libcairn.so", "libnccl-profiler-cairn.so", "gpt")
]


def files(*suffixes):
    """Our files whose names end so: all but built and hidden folders."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [d for d in folders if d[0] != "." and (folder, d) != (ROOT, "build")]
        paths = (os.path.relpath(os.path.join(folder, name), ROOT) for name in names)
        found += [path for path in paths if path.endswith(suffixes)]
    return sorted(found)


def lines_of(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read().splitlines()


def run(command):
    """Runs a command; returns (exit status, its output)."""
    if not shutil.which(command[0]):
        return 127, f"{command[0]}: not installed; run `make test-deps`"
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout


def output_lines(command):
    """What a command that finds problems printed; nothing if it found none."""
    status, output = run(command)
    return output.splitlines() or [f"{command[0]}: exit status {status}"] if status else []


def columns():
    return [
        f"{path}:{number}: {len(line.expandtabs(4))} columns; break it at {COLUMNS_MAX}"
        for path in files(".c", ".h", ".py", ".sh", "Makefile")
        for number, line in enumerate(lines_of(path), 1)
        if len(line.expandtabs(4)) > COLUMNS_MAX
    ]


def format_c():
    problems = output_lines([CLANG_FORMAT, "--dry-run", "-Werror", *files(".c", ".h")])
    found = [line for line in problems if ": error: code should be clang-format" in line]
    places = sorted({":".join(line.split(":")[:2]) for line in found})
    return [f"{place}: not formatted; run `make format`" for place in places] or problems


def format_python():
    problems = output_lines(["black", "--check", "-q", "--diff", *files(".py")])
    places, path = [], ""
    for line in problems:
        if line.startswith("--- "):
            path = os.path.relpath(line[4:].split("\t")[0], ROOT)
        elif hunk := re.match(r"@@ -(\d+)", line):
            places.append(f"{path}:{hunk[1]}: not formatted; run `make format`")
    return places or problems


def cppcheck():
    folder = os.path.join(ROOT, "build", "cppcheck")
    whole = os.path.join(folder, "whole")
    if os.path.exists(whole):
        os.remove(whole)
    else:  # a run that was interrupted has left results without their suppressions
        shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder, exist_ok=True)
    lines = output_lines([*CPPCHECK, *files(".c")])
    with open(whole, "w", encoding="utf-8"):
        return lines


def suppressions():
    """A reason is text behind the identifiers: `// cppcheck-suppress memleak ; list keeps it`."""
    reason = re.compile(r"cppcheck-suppress(-\w+)?(\s+\w+|\s*\[[\w\s,]+\])\s*(;|//)\W*\w+\W+\w+")
    return [
        f"{path}:{number}: cppcheck-suppress without a reason; add `; <reason>` behind it"
        for path in files(".c", ".h")
        for number, line in enumerate(lines_of(path), 1)
        if "cppcheck-suppress" in line and not reason.search(line)
    ]


def fuzzers():
    """The table `parser -> fuzzer` and the fuzzers agree; each has seeds and a speed."""
    page, problems = "tests/README.md", []
    fuzz = os.path.join(ROOT, "tests", "fuzz")
    named = {}
    for number, line in enumerate(lines_of(page), 1):
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != 5 or not re.search(r"`fuzz_\w+`", cells[3]):
            continue
        for source in re.findall(r"`([\w/*]+\.c)`", cells[2]):
            if not glob.glob(os.path.join(ROOT, source)):
                problems.append(f"{page}:{number}: {source} does not exist; correct the path")
        for name in re.findall(r"`(fuzz_\w+)`", cells[3]):
            named.setdefault(name, number)
    exist = {name[:-2] for name in os.listdir(fuzz) if fnmatch.fnmatch(name, "fuzz_*.c")}
    for name in sorted(set(named) - exist):
        problems.append(f"{page}:{named[name]}: there is no tests/fuzz/{name}.c; correct the name")
    for name in sorted(exist):
        source = f"tests/fuzz/{name}.c:1"
        if name not in named:
            problems.append(f"{source}: {page} does not name it; add its parser to the table")
        if not os.path.isdir(os.path.join(fuzz, "corpus", name)):
            problems.append(f"{source}: it has no seeds; add some to tests/fuzz/corpus/{name}")
        if name not in fuzzing.PER_CPU_S:
            problems.append(f"{source}: it has no speed; add it to PER_CPU_S in tests/fuzzing.py")
    return problems


def unused():
    """Functions that the linker leaves out of all products. It drops each section that nothing
    refers to, and each member of an archive that nothing needs; so its list of dropped sections
    is not enough, and we compare what objects define with what the products contain. No call is
    missing there because it was inlined: -fPIC lets others replace each global function."""
    status, output = run(["make", "-s", f"-j{JOBS}", f"BUILD={BUILD}", *PRODUCTS])
    if status:
        return output.splitlines()
    used = {name for found in layers.symbols_of(PRODUCTS).values() for kind, name in found}
    problems, defined = [], set()

    def matches(name):
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in ONLY_TESTS)

    objects = {
        f"{BUILD}/{source[:-2]}.o": source
        for source in files(".c")
        if not source.startswith("tests/")
        and os.path.exists(os.path.join(ROOT, f"{BUILD}/{source[:-2]}.o"))
    }
    for compiled, found in layers.symbols_of(objects).items():
        source = objects[compiled]
        names = {name for kind, name in found if kind in "TW"}
        defined |= names
        for name in sorted(n for n in names - used if not matches(n)):
            number = next(
                (n for n, line in enumerate(lines_of(source), 1) if line.startswith(f"{name}(")), 1
            )
            problems.append(
                f"{source}:{number}: no product calls {name}; remove it, or move it to "
                "tests/support if tests need it"
            )
    for pattern in sorted(ONLY_TESTS):
        if not fnmatch.filter(defined - used, pattern):
            problems.append(f"tests/style.py: {pattern} is used or gone; remove it from ONLY_TESTS")
    return problems


# Folders whose prose is plain; add a folder once `tests/style.py words` finds nothing in it.
PLAIN_FOLDERS = [
    "agent",
    "base",
    "bindings",
    "client",
    "docs",
    "erasure",
    "examples",
    "include",
    "replan",
    "snapshot",
    "tests",
    "tools",
    "transport",
]
# Words and phrases that cost a second reading, and what to write instead.
WORDS = {
    r"(who|what|which|whom)ever": "name who or what it is",
    r"anew": '"again" or "new"',
    r"(is|are|was|were|be) said|says? so": '"log", "report", "print" or "complain"',
    r"(is|are) to be": '"must" or "will"',
    r"such that": '"so that"',
    r"(?<!all\s)(?<!part\s)(?<!rest\s)(?<!half\s)of it": '"its", or name it',
    r"that which|those before": "name it",
    r"of (which|whom)": '"whose", or two sentences',
    r"behind it": '"after"',
    r"(?<!all\s)(?<!new\s)(?<!old\s)ones": "repeat the noun",
    r"(?<!there\s)(is|are) no(?!\slonger|\smore)": '"is not a", or say what was expected',
}
# Words of a phrase may be in two lines of a comment.
WORDS_RE = {
    re.compile(rf"\b(?:{word})\b".replace(" ", r"\s+(?:\* )?"), re.IGNORECASE): to
    for word, to in WORDS.items()
}


def prose(path, text):
    """(offset, text) of all that a reader reads: a page, comments and strings of C, comments and
    docstrings of Python."""
    if path.endswith(".md"):
        return [(0, text)]
    if not path.endswith(".py"):
        parts = re.finditer(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/', text, re.DOTALL)
        return [(part.start(), part[0]) for part in parts]
    begins, parts, last = [0], [], tokenize.NEWLINE
    for line in text.split("\n"):
        begins.append(begins[-1] + len(line) + 1)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (
            token.type == tokenize.STRING
            and last in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        ):
            parts.append((begins[token.start[0] - 1] + token.start[1], token.string))
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            last = token.type
    return parts


def words():
    problems = []
    for path in files(".c", ".h", ".md", ".py"):
        if not any(path.startswith(folder + "/") for folder in PLAIN_FOLDERS):
            continue
        text = "\n".join(lines_of(path))
        for offset, part in prose(path, text):
            for pattern, instead in WORDS_RE.items():
                for found in pattern.finditer(part):
                    line = 1 + text.count("\n", 0, offset + found.start())
                    problems.append(f'{path}:{line}: "{found[0]}"; write {instead}')
    return sorted(problems)


GATES = {
    "columns": columns,
    "format-c": format_c,
    "format-python": format_python,
    "cppcheck": cppcheck,
    "suppressions": suppressions,
    "fuzzers": fuzzers,
    "unused": unused,
    "words": words,
}


def main(arguments):
    if len(arguments) != 1 or arguments[0] not in GATES:
        print(__doc__, file=sys.stderr)
        return 64
    problems = GATES[arguments[0]]()
    for line in problems:
        print(line)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
