#!/usr/bin/env python3
"""Checks that every file includes only what its room may use, and the order of the Python modules.

    tests/layers.py [MODULE …]         check the includes of C files (of these modules)
    tests/layers.py --calls BUILD      check the calls too, in the objects of a build folder
    tests/layers.py --report BUILD     print lines, circles and upward arrows per module

A room is a folder of C files outside tests/. ROOMS lists the rooms from the bottom up, each with
the rooms it may use besides itself and include/cairn. A room may only name rooms above it in the
list, so rooms cannot form a circle.
"""
import ast
import collections
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

ROOMS = {
    "base": "",
    "erasure": "base",
    "transport": "base",
    "snapshot": "base",
    "bindings/nccl": "base",
    "examples/gpt": "",
    # Detection: records of a trace, a summary per rank and step, verdicts, the live job, pictures.
    "replan/trace": "base",
    "replan/detect": "replan/trace base",
    "replan/live": "replan/detect replan/trace base",
    "replan/views": "replan/detect replan/trace base",
    # Planning: problem and cost, measurements, the bound, the search, sequences, advice.
    "replan/fleet": "base",
    "replan/profile": "replan/fleet replan/trace base",
    "replan/bound": "replan/fleet base",
    "replan/search": "replan/bound replan/fleet base",
    "replan/assign": "replan/fleet base",
    "replan/advise": "replan/search replan/fleet base",
    # The trainer's side, which assigns sequences as the planner does.
    "client": "replan/assign replan/fleet snapshot base",
    # The agent: the pure protocol, the process that runs it, services beside it, the whole.
    "agent/core/env": "erasure snapshot base",
    "agent/core/epoch": "agent/core/env erasure snapshot base",
    "agent/core/part": "agent/core/epoch agent/core/env erasure snapshot base",
    "agent/core/run": "agent/core/part agent/core/epoch agent/core/env erasure snapshot base",
    "agent/core/repair": "agent/core/part agent/core/epoch agent/core/env erasure snapshot base",
    "agent/core/restore": "agent/core/repair agent/core/part agent/core/epoch agent/core/env "
    "erasure snapshot base",
    "agent/core": "agent/core/restore agent/core/repair agent/core/run agent/core/part "
    "agent/core/epoch agent/core/env erasure snapshot base",
    "agent/history": "snapshot base",
    "agent/process": "agent/history agent/core agent/core/env client transport erasure snapshot "
    "base",
    "agent/service": "agent/process agent/history agent/core agent/core/env replan/live "
    "replan/detect replan/trace replan/advise replan/search replan/fleet client erasure snapshot "
    "base",
    "agent": "agent/service agent/process agent/history agent/core agent/core/env client transport "
    "erasure snapshot base",
    # Checkpoints: containers, the checkpoint, training state, the engine, a room per format.
    "tools/convert/pickle": "base",
    "tools/convert/zip": "base",
    "tools/convert/core": "snapshot base",
    "tools/convert/state": "tools/convert/core tools/convert/pickle snapshot base",
    "tools/convert/torch": "tools/convert/state tools/convert/core tools/convert/zip "
    "tools/convert/pickle snapshot base",
    "tools/convert/dcp": "tools/convert/torch tools/convert/state tools/convert/core "
    "tools/convert/zip tools/convert/pickle snapshot base",
    "tools/convert/safetensors": "tools/convert/state tools/convert/core tools/convert/pickle "
    "snapshot base",
    "tools/convert/universal": "tools/convert/safetensors tools/convert/core snapshot base",
    "tools/convert/deepspeed": "tools/convert/torch tools/convert/state tools/convert/core "
    "tools/convert/zip tools/convert/pickle snapshot base",
    "tools/convert/megatron": "tools/convert/torch tools/convert/state tools/convert/core "
    "tools/convert/zip tools/convert/pickle snapshot base",
    "tools/convert/megatron_dist": "tools/convert/megatron tools/convert/dcp tools/convert/torch "
    "tools/convert/state tools/convert/core tools/convert/zip tools/convert/pickle snapshot base",
    "tools/convert/maps": "tools/convert/state tools/convert/core tools/convert/pickle snapshot "
    "base",
    "tools/convert/engine": "tools/convert/maps tools/convert/core snapshot base",
    "tools/convert/compare": "tools/convert/engine tools/convert/state tools/convert/core "
    "tools/convert/pickle snapshot base",
}
# The table of formats; the command.
ROOMS["tools/convert"] = " ".join(ROOMS)
ROOMS["tools"] = " ".join(ROOMS)


def room_of(path):
    """The room of a source file: its folder, or the nearest folder above it that is a room."""
    folder = os.path.dirname(path)
    while folder and folder not in ROOMS:
        folder = os.path.dirname(folder)
    return folder


def allowed(room, other):
    return other == room or other in ROOMS[room].split()


def c_files():
    for module in sorted({room.split("/")[0] for room in ROOMS}):
        for folder, _, names in os.walk(os.path.join(ROOT, module)):
            for name in sorted(names):
                if name.endswith((".c", ".h")):
                    yield os.path.relpath(os.path.join(folder, name), ROOT)


def check_includes():
    """One line for each include that leaves its room in a direction that ROOMS does not list."""
    problems = []
    for path in c_files():
        room = room_of(path)
        if not room:
            problems.append(f"{path}: the folder is no room; add it to ROOMS in tests/layers.py")
            continue
        with open(os.path.join(ROOT, path)) as f:
            for number, line in enumerate(f, 1):
                m = re.match(r'#include "([^"]+)"', line)
                if not m or m[1].startswith("cairn/") or "/" not in m[1]:
                    continue
                other = room_of(m[1])
                if not other or not allowed(room, other):
                    problems.append(f"{path}:{number}: {room} must not include {m[1]}")
    return problems


def symbols_of(binaries):
    """[(kind, symbol)] of each object or program, as nm prints them: {path from the root: ...}."""
    found = {path: [] for path in binaries}
    command = ["nm", "-A", *binaries]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        path, _, symbol = line.partition(":")
        found[path].append(tuple(symbol.split()[-2:]))
    return found


def calls(build, module):
    """Which files of a module refer to symbols of others: {file: {file: [symbol]}}."""
    defined, wanted = {}, {}
    objects = {
        os.path.join(build, path[:-2] + ".o"): path
        for path in c_files()
        if path.endswith(".c") and path.split("/")[0] in module
    }
    built = [obj for obj in objects if os.path.exists(os.path.join(ROOT, obj))]
    for obj, symbols in symbols_of(built).items():
        path = objects[obj]
        wanted[path] = {symbol for kind, symbol in symbols if kind == "U"}
        defined.update((symbol, path) for kind, symbol in symbols if kind in "TDBRV")
    graph = {}
    for path, symbols in wanted.items():
        graph[path] = collections.defaultdict(list)
        for symbol in sorted(symbols):
            if defined.get(symbol, path) != path:
                graph[path][defined[symbol]].append(symbol)
    return graph


def check_calls(build):
    """One line for each pair of files whose call leaves its room against ROOMS. Everyone may call
    what libcairn.so exports, and libc, also where thread_start.c takes its place."""
    with open(os.path.join(ROOT, "client", "libcairn.map")) as f:
        public = set(re.findall(r"^\s+(cairn_\w+);", f.read(), re.M)) | {"pthread_create"}
    problems = []
    for path, others in sorted(calls(build, {room.split("/")[0] for room in ROOMS}).items()):
        for other, symbols in sorted(others.items()):
            inner = [symbol for symbol in symbols if symbol not in public]
            if inner and not allowed(room_of(path), room_of(other)):
                called = ", ".join(inner)
                problems.append(f"{path}: {room_of(path)} must not call {called} of {other}")
    return problems


def imports_of(path):
    """(line, module) of each import from the own package, also inside functions; those under
    `if TYPE_CHECKING` are left out."""
    with open(path) as f:
        nodes = [ast.parse(f.read())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            nodes += node.orelse
            continue
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            for name in [node.module] if node.module else [each.name for each in node.names]:
                yield node.lineno, name
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            if node.module.split(".")[0] == "cairn":
                yield node.lineno, "__init__"
        elif isinstance(node, ast.Import):
            if any(each.name.split(".")[0] == "cairn" for each in node.names):
                yield node.lineno, "__init__"
        nodes += ast.iter_child_nodes(node)


def check_python():
    """One line for each module of bindings/python that imports one at or above its own place in
    the README's table "Modules, from the bottom up"."""
    binding = os.path.join("bindings", "python")
    with open(os.path.join(ROOT, binding, "README.md")) as f:
        section = f.read().partition("## Modules, from the bottom up")[2].partition("\n## ")[0]
    order = re.findall(r"^\| `(\w+)\.py` \|", section, re.M)
    package = os.path.join(binding, "cairn")
    there = {n[:-3] for n in os.listdir(os.path.join(ROOT, package)) if n.endswith(".py")}
    problems = [
        f"{binding}/README.md: the table of modules must list {name}.py exactly once"
        for name in sorted(there)
        if order.count(name) != 1
    ] + [f"{binding}/README.md: {name}.py does not exist" for name in order if name not in there]
    if problems:
        return problems
    for place, name in enumerate(order):
        path = os.path.join(package, name + ".py")
        problems += [
            f"{path}:{line}: {name} must not import {other}, which README.md lists below it"
            for line, other in sorted(imports_of(os.path.join(ROOT, path)))
            if other not in order[:place]
        ]
    return problems


def circles(graph):
    """The strongly connected components of more than one node (Tarjan, SIAM J. Comput. 1972)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = []
            while not component or component[-1] != node:
                component.append(stack.pop())
            if len(component) > 1:
                found.append(sorted(component))

    sys.setrecursionlimit(10000)
    for node in graph:
        if node not in index:
            visit(node)
    return found


def report(build):
    """Print per module files, lines, calls between files and rooms, and circles of files."""
    for module in sorted({room.split("/")[0] for room in ROOMS}):
        graph = calls(build, {module})
        arrows = sum(len(others) for others in graph.values())
        upward = sum(
            not allowed(room_of(p), room_of(o)) for p, others in graph.items() for o in others
        )
        sizes = sorted((len(c) for c in circles(graph)), reverse=True)
        print(
            f"{module}: {len(graph)} files, {arrows} arrows, {upward} upward, "
            f"circles of {sizes or 'none'}"
        )
        lines = collections.Counter()
        for path in c_files():
            if path.split("/")[0] == module:
                with open(os.path.join(ROOT, path)) as f:
                    lines[room_of(path)] += sum(1 for _ in f)
        for room, count in sorted(lines.items()):
            print(f"    {room}: {count} lines")


def main(arguments):
    if arguments[:1] == ["--report"]:
        report(arguments[1])
        return 0
    modules = [each for each in arguments if not each.startswith("-") and "/" not in each]
    problems = check_includes() + check_python()
    if modules:
        problems = [line for line in problems if line.split("/")[0] in modules]
    if arguments[:1] == ["--calls"]:
        problems += check_calls(arguments[1])
    for line in problems:
        print(line)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
