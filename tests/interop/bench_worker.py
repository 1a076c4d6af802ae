"""The trainer that bench_peers.py measures: one model with AdamW, and whatever saves its state.

    bench_worker.py train LAYERS WIDTH TOKENS FOLDER     obeys the lines on standard input, answers each with a line of JSON
    bench_worker.py restore KIND LAYERS WIDTH TOKENS FOLDER
    bench_worker.py startup                              what Cairn adds to the start of a trainer

With Cairn it runs under `cairn run --`, and the script does nothing for it. All times are seconds of time.perf_counter.
"""

from __future__ import annotations

import sys
import time

STARTED = time.perf_counter()

import ctypes  # noqa: E402
import gc  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import shutil  # noqa: E402
from typing import Any, Callable, Dict, List, Optional, Tuple  # noqa: E402

import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

IMPORTED = time.perf_counter()
VOCABULARY = 256
SETTLING_STEPS = 2  # not timed, while memory that the other trainer's turn has cooled comes back: as many as an agent has slots


class Model(nn.Module):
    """A causal transformer over bytes: 12 × layers × width² parameters, and a little."""

    def __init__(self, layers: int, width: int, tokens: int) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(tokens, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, max(1, width // 64), 4 * width, dropout=0.0, activation=F.gelu, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(tokens), persistent=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.embed(text) + self.position.weight
        for layer in self.layers:
            x = layer(x, src_mask=self.mask, is_causal=True)
        return self.head(x)


def build(layers: int, width: int, tokens: int) -> Tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = Model(layers, width, tokens)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)


def train_step(model: Model, optimizer: torch.optim.Optimizer, before_update: Callable[[], None] = lambda: None) -> None:
    tokens = model.position.num_embeddings
    text = torch.randint(0, VOCABULARY, (1, tokens + 1))
    loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    before_update()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def fingerprint(model: Model, optimizer: torch.optim.Optimizer) -> int:
    """A sum over the bits of parameters and moments, each weighted by its place."""
    total = 0
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            for j, each in enumerate(
                (parameter, optimizer.state[parameter]["exp_avg"], optimizer.state[parameter]["exp_avg_sq"])
            ):
                total += (3 * i + j + 1) * int(each.detach().view(torch.int32).sum(dtype=torch.int64))
    return total


def private_memory_bytes() -> int:
    """Resident memory of this process that is not shared: the arenas of an agent are not in it."""
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssFile"))


# ---- what saves ----


class Nothing:
    """No saving, and what the savers have in common. `blocked` gets the time of each save that training stood still for."""

    def __init__(self, folder: str, model: Model, optimizer: torch.optim.Optimizer) -> None:
        self.path, self.model, self.optimizer = os.path.join(folder, "checkpoint"), model, optimizer
        self.blocked: List[float] = []
        self.ended = 0  # saves that are complete

    def before_update(self) -> None:
        """The state is about to be overwritten."""

    def after_step(self, more: bool) -> None:
        """The state may be saved; `more` where another save may begin."""
        self.ended += 1

    def close(self) -> None:
        if os.path.isdir(self.path):
            shutil.rmtree(self.path)
        elif os.path.exists(self.path):
            os.remove(self.path)

    def state(self) -> Dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


class TorchSave(Nothing):
    def after_step(self, more: bool) -> None:
        if more:
            begin = time.perf_counter()
            torch.save(self.state(), self.path)
            self.blocked.append(time.perf_counter() - begin)
            self.ended += 1


class AsyncSave(Nothing):
    """torch.distributed.checkpoint.async_save, a new one as soon as the one before has ended; training never waits for a file.

    Behind: its stager is kept, so that its memory is there already, and it copies in a thread behind forward and backward; the
    update waits for it. That is the most that async_save can do for tensors on the CPU.
    """

    def __init__(self, folder: str, model: Model, optimizer: torch.optim.Optimizer, process: bool, behind: bool) -> None:
        super().__init__(folder, model, optimizer)
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint import staging
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        self.save, self.kind = checkpoint.async_save, AsyncCheckpointerType.PROCESS if process else AsyncCheckpointerType.THREAD
        self.writer = lambda: checkpoint.FileSystemWriter(self.path, sync_files=False)
        self.ends_process = process
        self.stager = (
            staging.DefaultStager(
                staging.StagingOptions(
                    use_pinned_memory=False, use_shared_memory=process, use_async_staging=True, use_non_blocking_copy=False
                )
            )
            if behind
            else None
        )
        self.staged: Any = None
        self.written: Any = None
        if process:  # it is started here; it ends with the block, as it would keep its copy of everything until the next save
            self.save({"it": torch.zeros(1)}, storage_writer=self.writer(), async_checkpointer_type=self.kind).result()
        if self.stager:
            self.stager.stage(self.state()).result()

    def before_update(self) -> None:
        if self.staged is not None:
            begin = time.perf_counter()
            self.staged.result()
            self.blocked[-1] += time.perf_counter() - begin
            self.staged = None

    def after_step(self, more: bool) -> None:
        if self.written is not None and self.written.done():
            self.written.result()
            self.written = None
            self.ended += 1
        if more and self.written is None:
            begin = time.perf_counter()
            given = self.save(
                self.state(), storage_writer=self.writer(), async_checkpointer_type=self.kind, async_stager=self.stager
            )
            self.blocked.append(time.perf_counter() - begin)
            self.written = given.upload_completion if self.stager else given
            self.staged = given.staging_completion if self.stager else None

    def close(self) -> None:
        if self.written is not None:
            self.written.result()
        if self.stager:
            self.stager.close()
        if self.ends_process:
            from torch.distributed.checkpoint import _async_process_executor as executor

            executor._CHECKPOINT_PROCESS = None
        super().close()


SAVERS: Dict[str, Callable[..., Nothing]] = {
    "nothing": Nothing,
    "cairn": Nothing,
    "cairn, nothing due": Nothing,
    "torch.save": TorchSave,
    "async_save, thread": lambda *given: AsyncSave(*given, process=False, behind=False),
    "async_save, process": lambda *given: AsyncSave(*given, process=True, behind=False),
    "async_save, thread, staged behind": lambda *given: AsyncSave(*given, process=False, behind=True),
    "async_save, process, staged behind": lambda *given: AsyncSave(*given, process=True, behind=True),
}


# ---- what Cairn does in this process ----


class Hooks:
    """The time that training spends in Cairn's hooks, and the CPU time of its copying thread."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0
        job = sys.modules.get("cairn._job")
        self.job = job.current() if job else None
        for name in ("before_step", "after_step", "saw_forward", "before_forward") if job else ():
            setattr(job.Job, name, self._clocked(getattr(job.Job, name)))

    def _clocked(self, function: Callable[..., None]) -> Callable[..., None]:
        def clocked(*arguments: Any) -> None:
            self._depth += 1
            begin = time.perf_counter()
            try:
                function(*arguments)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.seconds += time.perf_counter() - begin

        return clocked

    def pause(self, paused: bool) -> None:
        """Hooks that take no snapshot: the same process, hence the same memory, is what a step with one is compared to."""
        if self.job:
            self.job._refused = paused

    def copy_cpu_seconds(self) -> float:
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/stat") as file:
                line = file.read()
            if "(cairn-capture)" in line:
                fields = line.rpartition(")")[2].split()
                return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def stats(self) -> Dict[str, int]:
        return dict(self.job.stats()) if self.job else {}


# ---- training ----


def train(layers: int, width: int, tokens: int, folder: str) -> None:
    """Blocks of steps: `block SAVER SAVES`, then `finish`, after which the process waits to be killed."""
    hooks = Hooks()
    if hooks.job is None:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
    model, optimizer = build(layers, width, tokens)
    answer(
        {
            "pid": os.getpid(),
            "parameters": sum(each.numel() for each in model.parameters()),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "hooked": hooks.job is not None,
        }
    )
    for line in sys.stdin:
        command, _, rest = line.strip().partition(" ")
        if command == "block":
            name, _, saves = rest.rpartition(" ")
            saver = SAVERS[name](folder, model, optimizer)
            hooks.pause(name == "cairn, nothing due")
            for _ in range(SETTLING_STEPS):
                train_step(model, optimizer)
            answer({"ready": True})
            found = block(saver, int(saves), hooks)
            # What a saver leaves behind, in cycles and in malloc, would stay for the next one: several GB.
            del saver
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            answer({**found, "memory_bytes": private_memory_bytes()})
        elif command == "finish":
            answer(finish(model, optimizer, folder, hooks))


def block(saver: Nothing, saves: int, hooks: Hooks) -> Dict[str, Any]:
    """Steps until so many saves are complete."""
    steps: List[float] = []
    hooked: List[float] = []
    copied = hooks.copy_cpu_seconds()
    while saver.ended < saves:
        begin, hooks.seconds = time.perf_counter(), 0.0
        train_step(saver.model, saver.optimizer, saver.before_update)
        saver.after_step(saver.ended + (getattr(saver, "written", None) is not None) < saves)
        steps.append(time.perf_counter() - begin)
        hooked.append(hooks.seconds)
    copied = hooks.copy_cpu_seconds() - copied
    saver.close()
    return {
        "steps": steps,
        "blocked": saver.blocked or hooked,
        "copy_cpu_s": copied,
        "stats": hooks.stats(),
    }


def finish(model: Model, optimizer: torch.optim.Optimizer, folder: str, hooks: Hooks) -> Dict[str, Any]:
    """Leaves one complete snapshot of the present state, for the restores; its fingerprint."""
    found = {"fingerprint": fingerprint(model, optimizer), "step": hooks.job.step if hooks.job else 0}
    if hooks.job:
        train_step(model, optimizer)  # its forward begins the snapshot, its update confirms it
    else:
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict import get_state_dict

        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, os.path.join(folder, "torch.pt"))
        parameters, moments = get_state_dict(model, optimizer)
        checkpoint.save({"model": parameters, "optimizer": moments}, checkpoint_id=os.path.join(folder, "dcp"))
    return found


# ---- restoring ----


def restore(kind: str, layers: int, width: int, tokens: int, folder: str) -> None:
    """A new process until its first step has run."""
    begin = time.perf_counter()
    model, optimizer = build(layers, width, tokens)
    built = time.perf_counter()
    if kind == "cairn":
        import cairn

        cairn.attach(model, optimizer)
    elif kind == "torch.load":
        found = torch.load(os.path.join(folder, "torch.pt"), mmap=True, weights_only=True)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
    elif kind == "dcp.load":
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        parameters, moments = get_state_dict(model, optimizer)
        checkpoint.load({"model": parameters, "optimizer": moments}, checkpoint_id=os.path.join(folder, "dcp"))
        set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=moments)
    restored = time.perf_counter()
    found_print = fingerprint(model, optimizer) if os.environ.get("BENCH_FINGERPRINT") else None
    steps = []
    for _ in range(3):
        start = time.perf_counter()
        train_step(model, optimizer)
        steps.append(time.perf_counter() - start)
    answer(
        {
            "import_s": IMPORTED - STARTED,
            "build_s": built - begin,
            "restore_s": restored - built,
            "steps": steps,
            "fingerprint": found_print,
        }
    )


# ---- starting ----


def startup() -> None:
    """Import and attach in a process that has imported torch and built a small job. Not under `cairn run`."""
    model, optimizer = build(1, 64, 16)
    begin = time.perf_counter()
    import cairn
    from cairn import _torch  # noqa: F401  # what attach would import

    imported = time.perf_counter()
    job = cairn.attach(model, optimizer)
    attached = time.perf_counter()
    answer(
        {
            "torch_s": IMPORTED - STARTED,
            "import_s": imported - begin,
            "attach_s": attached - imported,
            "attached": bool(job.stats().get("attached")),
        }
    )


def answer(value: Dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def main(words: List[str]) -> Optional[int]:
    if words[:1] == ["train"] and len(words) == 5:
        train(int(words[1]), int(words[2]), int(words[3]), words[4])
    elif words[:1] == ["restore"] and len(words) == 6:
        restore(words[1], int(words[2]), int(words[3]), int(words[4]), words[5])
    elif words == ["startup"]:
        startup()
    else:
        print(__doc__, file=sys.stderr)
        return 64
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
