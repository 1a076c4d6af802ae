#!/usr/bin/env python3
"""What converting checkpoints costs: Cairn beside the frameworks' own tools, on the same
checkpoints, in one run on one machine.

    bench_convert.py [--small] [--rounds N] [--folder FOLDER] [--only WORD] [--json]

Checkpoints of more than 1 GiB (--small: a few MB, to see that it runs) that DeepSpeed and PyTorch
saved, in a temporary directory. The programs take turns; times are medians of whole processes,
Cairn's with the fingerprints of both sides and syncing, which the others do without. Memory is the
largest sum over a program's processes (Pss), and written is what they wrote, more than once where
there are temporary files. Needs 12 GiB of disk and a build (make). `make bench-convert` sees to
everything.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, NamedTuple, Optional

ROOT = pathlib.Path(__file__).resolve().parents[2]
CAIRN = ROOT / os.environ.get("BUILD", "build/plain") / "cairn"
STATES = ROOT / "tests" / "interop" / "bench_convert_states.py"
DEEPSPEED = ROOT / "build" / "venv-deepspeed" / "bin" / "python"
RANKS = 2
MIB = 1 << 20
LIMIT_BYTES = 256 * MIB  # of the runs that show that the limit holds
POLL_S = 0.02
SLOW_POLL_S = 0.1  # of programs of many mappings, whose memory takes long to add up


class Size(NamedTuple):
    deepspeed: tuple[int, int]  # layers, width
    dcp: tuple[int, int]
    weights: tuple[int, int]
    tensors: int
    files: int
    bench_bytes: str


FULL = Size((8, 1024), (8, 1024), (24, 1024), 100_000, 1024, "1GiB")
SMALL = Size((2, 64), (2, 64), (2, 64), 1000, 16, "32MiB")


class Run(NamedTuple):
    seconds: float
    peak_bytes: int
    written_bytes: int
    text: str


def children_of(root: int) -> list[int]:
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    parents[int(entry)] = int(file.read().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found, open_ = [], [root]
    while open_:
        parent = open_.pop()
        found.append(parent)
        open_ += [pid for pid, above in parents.items() if above == parent]
    return found


def memory_bytes(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += sum(
                    int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:")
                )
        except (OSError, ValueError):
            continue
    return total


def written_so_far() -> int:
    """By this process and all of its children that have ended."""
    with open("/proc/self/io") as file:
        return int(next(line.split()[1] for line in file if line.startswith("wchar")))


def measure(words: list[Any], **env: str) -> Run:
    before, own = written_so_far(), 0
    poll_s = POLL_S if str(words[0]) == str(CAIRN) else SLOW_POLL_S
    with tempfile.TemporaryFile() as said:
        begin = time.perf_counter()
        command = [str(word) for word in words]
        process = subprocess.Popen(
            command, stdout=said, stderr=subprocess.STDOUT, env={**os.environ, **env}
        )
        peak = 0
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            peak = max(peak, memory_bytes(children_of(process.pid)))
            time.sleep(poll_s)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read().decode("utf-8", "replace")
        own += len(text)
    if process.returncode != 0:
        sys.exit(f"bench_convert: {' '.join(map(str, words))} failed:\n{text[-4000:]}")
    if poll_s == POLL_S:  # one process, whose exact peak the kernel knows
        peak = max(peak, usage.ru_maxrss * 1024)
    return Run(seconds, peak, written_so_far() - before - own, text)


def remove(path: pathlib.Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()


def bytes_below(path: pathlib.Path) -> int:
    return sum(
        file.stat().st_size
        for file in ([path] if path.is_file() else path.rglob("*"))
        if file.is_file()
    )


def make_state(python: Any, *words: Any, ranks: int = RANKS) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    processes = []
    for rank in range(ranks):
        env = dict(
            os.environ,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(ranks),
            LOCAL_SIZE=str(ranks),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
            OMP_NUM_THREADS="1",
            DS_ACCELERATOR="cpu",
        )
        processes.append(
            subprocess.Popen(
                [str(python), str(STATES), *map(str, words)],
                env=env,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )
    outputs = [process.communicate()[0] for process in processes]
    for process, output in zip(processes, outputs):
        if process.returncode != 0:
            sys.exit(f"bench_convert: {' '.join(map(str, words))} failed:\n{output[-4000:]}")


class Case(NamedTuple):
    """One checkpoint and two programs that make the same from it."""

    name: str
    source: pathlib.Path
    peer: str
    peer_words: Callable[[pathlib.Path], list[Any]]  # of the target
    cairn_words: list[Any]  # after source and target
    target: str  # name of the target
    faster: float  # promised
    leaner: Optional[float]  # the peer's memory through Cairn's, promised; None: only the limit is
    no_temporary: bool


class Bench:
    def __init__(self, size: Size, rounds: int, folder: pathlib.Path, only: str) -> None:
        self.size, self.rounds, self.folder, self.only = size, rounds, folder, only
        self.rows: list[dict[str, Any]] = []
        self.singles: list[dict[str, Any]] = []
        self.stages: list[dict[str, Any]] = []

    def progress(self, text: str) -> None:
        print(f"bench_convert: {text} (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)

    def wanted(self, name: str) -> bool:
        return not self.only or self.only in name

    # ---- the cases ----

    def cases_of_deepspeed(self, stage: int) -> list[Case]:
        source = self.folder / f"zero{stage}"
        names = [f"ZeRO-{stage} to deepspeed-universal", f"ZeRO-{stage} to fp32 weights"]
        if not any(map(self.wanted, names)):
            return []
        self.progress(f"DeepSpeed saves with ZeRO-{stage}")
        make_state(DEEPSPEED, "deepspeed", stage, *self.size.deepspeed, source)
        tag = source / "global_step1"
        universal = [
            DEEPSPEED,
            "-m",
            "deepspeed.checkpoint.ds_to_universal",
            "--inject_missing_state",
            "--input_folder",
            tag,
            "--output_folder",
        ]
        fp32 = [DEEPSPEED, source / "zero_to_fp32.py", "--safe_serialization", source]
        weights = ["--to", "safetensors", "--drop", "layers.*,exp_avg.*,exp_avg_sq.*,step.*"]
        return [
            Case(
                names[0],
                source,
                "ds_to_universal.py",
                lambda target: [*universal, target / "universal"],
                ["--to", "deepspeed-universal"],
                "out",
                10.0,
                4.0,
                True,
            ),
            Case(
                names[1],
                source,
                "zero_to_fp32.py",
                lambda target: [*fp32, target],
                weights,
                "out",
                5.0,
                None,
                False,
            ),
        ]

    def cases_of_dcp(self) -> list[Case]:
        names = ["dcp to torch", "dcp weights to safetensors"]
        cases = []
        if self.wanted(names[0]):
            self.progress("PyTorch saves a distributed checkpoint")
            source = self.folder / "dcp"
            make_state(sys.executable, "dcp", "-", *self.size.dcp, source)
            words = [
                sys.executable,
                "-m",
                "torch.distributed.checkpoint.format_utils",
                "dcp_to_torch",
                source,
            ]
            cases.append(
                Case(
                    names[0],
                    source,
                    "format_utils dcp_to_torch",
                    lambda target: [*words, target],
                    ["--to", "torch"],
                    "out.pt",
                    3.0,
                    None,
                    False,
                )
            )
        if self.wanted(names[1]):
            self.progress("PyTorch saves sharded weights")
            source = self.folder / "weights"
            make_state(sys.executable, "weights", "-", *self.size.weights, source)
            cases.append(
                Case(
                    names[1],
                    source / "dcp",
                    "consolidate_safetensors_files, 2 threads, 2 files",
                    lambda target: [sys.executable, "-c", CONSOLIDATE, source / "hf", target],
                    ["--to", "safetensors"],
                    "out",
                    3.0,
                    None,
                    False,
                )
            )
        return cases

    def run_case(self, case: Case) -> None:
        if not self.wanted(case.name):
            return
        found: dict[str, list[Run]] = {"peer": [], "cairn": [], "limited": []}
        target = self.folder / case.target
        sizes = {}
        convert = [CAIRN, "convert", case.source, target, *case.cairn_words]
        for number in range(self.rounds):
            for who in found:
                remove(target)
                if who == "peer":
                    if not target.suffix:
                        target.mkdir()
                    words = case.peer_words(target)
                else:
                    words = convert + (["--memory-limit", LIMIT_BYTES] if who == "limited" else [])
                os.sync()  # what others wrote is not waited for in this one's time
                found[who].append(measure(words, DS_ACCELERATOR="cpu"))
                sizes[who] = bytes_below(target)
                self.progress(
                    f"{case.name}: round {number + 1} of {self.rounds}: {who}: "
                    f"{found[who][-1].seconds:.2f} s"
                )
        remove(target)
        row: dict[str, Any] = {
            "name": case.name,
            "program": case.peer,
            "source_bytes": bytes_below(case.source),
        }
        for who, runs in found.items():
            row[who] = {
                "seconds": statistics.median(run.seconds for run in runs),
                "peak_bytes": max(run.peak_bytes for run in runs),
                "written_bytes": statistics.median(run.written_bytes for run in runs),
                "target_bytes": sizes[who],
            }
        row["faster"] = statistics.median(
            peer.seconds / cairn.seconds for peer, cairn in zip(found["peer"], found["cairn"])
        )
        row["leaner"] = row["peer"]["peak_bytes"] / row["cairn"]["peak_bytes"]
        row["checks"] = {"faster": (row["faster"], case.faster, row["faster"] >= case.faster)}
        if case.leaner:
            row["checks"]["leaner"] = (row["leaner"], case.leaner, row["leaner"] >= case.leaner)
        if case.no_temporary:
            extra = row["cairn"]["written_bytes"] - row["cairn"]["target_bytes"]
            row["checks"]["temporary MiB"] = (extra / MIB, 1.0, extra <= MIB)
        limited = row["limited"]["peak_bytes"]
        row["checks"]["limit"] = (limited / MIB, LIMIT_BYTES / MIB, limited <= LIMIT_BYTES)
        self.rows.append(row)

    # ---- what has no peer ----

    def run_inspect(self) -> None:
        if not self.wanted("inspect"):
            return
        source = self.folder / "many"
        self.progress(f"a checkpoint of {self.size.tensors} tensors in {self.size.files} files")
        make_state(sys.executable, "many", "-", self.size.tensors, self.size.files, source, ranks=1)
        for words in ([], ["-o", "json"]):
            runs = [measure([CAIRN, "inspect", source, *words]) for _ in range(self.rounds)]
            seconds, peak = statistics.median(run.seconds for run in runs), max(
                run.peak_bytes for run in runs
            )
            name = (
                " ".join(["inspect", *words])
                + f", {self.size.tensors} tensors in {self.size.files} files"
            )
            self.singles.append(
                {
                    "name": name,
                    "seconds": seconds,
                    "peak_bytes": peak,
                    "met": seconds <= 2 and peak <= 256 * MIB,
                }
            )
        remove(source)

    def run_stage(self) -> None:
        if not self.wanted("stage"):
            return
        words = [
            CAIRN,
            "bench",
            "convert",
            "--rounds",
            max(3, self.rounds),
            "--size",
            self.size.bench_bytes,
            "-o",
            "json",
        ]
        found = json.loads(measure(words, TMPDIR=str(self.folder)).text)
        self.stages = found["cases"]

    def run(self) -> None:
        for stage in (2, 3):
            for case in self.cases_of_deepspeed(stage):
                self.run_case(case)
            remove(self.folder / f"zero{stage}")
        for case in self.cases_of_dcp():
            self.run_case(case)
        remove(self.folder / "dcp")
        remove(self.folder / "weights")
        self.run_inspect()
        self.run_stage()

    def outcome(self) -> dict[str, Any]:
        starts = {
            "torch": [sys.executable, "-c", "import torch.distributed.checkpoint"],
            "deepspeed": [DEEPSPEED, "-c", "import deepspeed"],
        }
        return {
            "machine": machine(),
            "kernel": platform.release(),
            "file_system": str(self.folder.parent),
            "rounds": self.rounds,
            "load": os.getloadavg()[0],
            "cases": self.rows,
            "singles": self.singles,
            "stages": self.stages,
            "import_s": {
                name: measure(words, DS_ACCELERATOR="cpu").seconds for name, words in starts.items()
            },
        }


CONSOLIDATE = """
import glob, json, os, struct, sys
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
source, target = sys.argv[1:]
names = set()
for path in glob.glob(source + "/*.safetensors"):
    with open(path, "rb") as file:
        names.update(json.loads(file.read(struct.unpack("<Q", file.read(8))[0])))
os.makedirs(target, exist_ok=True)
names.discard("__metadata__")
file_of = {name: 1 + at % 2 for at, name in enumerate(sorted(names))}
consolidate_safetensors_files(source, target, file_of, num_threads=2)
"""


def machine() -> str:
    with open("/proc/cpuinfo") as file:
        fields = dict((part.strip() for part in line.split(":", 1)) for line in file if ":" in line)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{os.cpu_count()} cores, {fields.get('model name', '?')}, {memory / (1 << 30):.1f} GiB"


def table(*rows: tuple[str, ...]) -> str:
    """The first row is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]) + "\n"


def show(found: dict[str, Any]) -> None:
    """The outcome as tables, what is promised beside it."""
    print(
        f"{found['machine']}, Linux {found['kernel']}, load average {found['load']:.3g}; rounds: "
        f"{found['rounds']}"
    )
    print(
        "Importing alone takes "
        + ", ".join(f"{name} {each:.1f} s" for name, each in found["import_s"].items())
        + "\n"
    )
    rows: list[tuple[str, ...]] = [
        (
            "conversion",
            "against",
            "bytes",
            "time",
            "peak memory",
            "written",
            "faster",
            "leaner",
            "under 256 MiB",
        )
    ]
    for each in found["cases"]:
        sides = [each["peer"], each["cairn"]]
        verdicts = {
            name: f"{value:.1f}, promised {bound:g}: {'met' if met else 'MISSED'}"
            for name, (value, bound, met) in each["checks"].items()
        }
        limited, held = each["limited"], "met" if each["checks"]["limit"][2] else "MISSED"
        written = " / ".join(f"{side['written_bytes'] / MIB:.0f}" for side in sides)
        rows.append(
            (
                each["name"],
                each["program"],
                f"{each['source_bytes'] / MIB:.0f} MiB",
                " / ".join(f"{side['seconds']:.2f} s" for side in sides),
                " / ".join(f"{side['peak_bytes'] / MIB:.0f} MiB" for side in sides),
                f"{written} of {each['cairn']['target_bytes'] / MIB:.0f} MiB",
                verdicts["faster"],
                verdicts.get("leaner", f"{each['leaner']:.1f}"),
                f"{limited['seconds']:.2f} s, {limited['peak_bytes'] / MIB:.0f} MiB: {held}",
            )
        )
    if found["cases"]:
        print("Theirs / Cairn's:\n" + table(*rows))
    for each in found["singles"]:
        print(
            f"{each['name']}: {each['seconds']:.2f} s, {each['peak_bytes'] / MIB:.0f} MiB, "
            f"promised 2 s and 256 MiB: {'met' if each['met'] else 'MISSED'}"
        )
    for each in found["stages"]:
        print(
            f"{each['case']}: {each['value']:.3g} of {each['floor']:.3g} {each['unit']} "
            f"({each['command']}), ratio {each['ratio']:.2f}, promised {each['bound']:g}: "
            f"{'met' if each['ratio'] >= each['bound'] else 'MISSED'}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="checkpoints of a few MB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--folder",
        default=None,
        help="where the checkpoints go (default: the directory for temporary files)",
    )
    parser.add_argument(
        "--only", default="", metavar="WORD", help="of the cases only those whose name has the word"
    )
    parser.add_argument("--json", action="store_true", help="the outcome as JSON instead of tables")
    options = parser.parse_args()
    if not CAIRN.exists():
        sys.exit(f"bench_convert: {CAIRN} is not built: run make")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="cairn-bench-", dir=options.folder))
    try:
        bench = Bench(
            SMALL if options.small else FULL, max(1, options.rounds), folder, options.only
        )
        bench.run()
        found = bench.outcome()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
