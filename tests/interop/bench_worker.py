"""The trainer that bench_peers.py measures: one model with AdamW, and what saves its state.

    bench_worker.py train LAYERS WIDTH TOKENS FOLDER AGENT   obeys the lines on standard input,
    answers each with a line of JSON;
                                                             AGENT: the process id of Cairn's agent,
                                                             0 without
    bench_worker.py restore KIND LAYERS WIDTH TOKENS FOLDER
    bench_worker.py startup                              what Cairn adds to the start of a trainer

With Cairn it runs under `cairn run --`, and the script does nothing for it. All times are seconds
of time.perf_counter.
"""

from __future__ import annotations

import sys
import time

STARTED = time.perf_counter()

import ctypes  # noqa: E402
import functools  # noqa: E402
import gc  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import shutil  # noqa: E402
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple  # noqa: E402

from bench_clocks import Clocks  # noqa: E402
import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

IMPORTED = time.perf_counter()
VOCABULARY = 256
# not timed, while memory that other savers' turns have cooled comes back: as many as an agent has
# slots
SETTLING_STEPS = 2

LEFT_OUT_MAX = 5  # groups of a block


class Episode(NamedTuple):
    steps: int
    saves: int
    blocked: List[float]  # seconds that training stood still, per save


class Model(nn.Module):
    """A causal transformer over bytes: 12 × layers × width² parameters, and a little."""

    def __init__(self, layers: int, width: int, tokens: int) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(tokens, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                max(1, width // 64),
                4 * width,
                dropout=0.0,
                activation=F.gelu,
                batch_first=True,
                norm_first=True,
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.register_buffer(
            "mask", nn.Transformer.generate_square_subsequent_mask(tokens), persistent=False
        )

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.embed(text) + self.position.weight
        for layer in self.layers:
            x = layer(x, src_mask=self.mask, is_causal=True)
        return self.head(x)


def build(layers: int, width: int, tokens: int) -> Tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = Model(layers, width, tokens)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)


def train_step(
    model: Model, optimizer: torch.optim.Optimizer, before_update: Callable[[], None] = lambda: None
) -> None:
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
                (
                    parameter,
                    optimizer.state[parameter]["exp_avg"],
                    optimizer.state[parameter]["exp_avg_sq"],
                )
            ):
                total += (3 * i + j + 1) * int(
                    each.detach().view(torch.int32).sum(dtype=torch.int64)
                )
    return total


def private_memory_bytes() -> int:
    """Resident memory of this process that is not shared: the arenas of an agent are not in it."""
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssFile"))


# ---- what saves ----


class Saver:
    """What the savers have in common. An episode is a number of steps of a training that saves as
    often as it can."""

    def __init__(
        self, folder: str, model: Model, optimizer: torch.optim.Optimizer, hooks: "Hooks"
    ) -> None:
        self.path, self.model, self.optimizer = os.path.join(folder, "checkpoint"), model, optimizer
        self.hooks = hooks

    def step(self, before_update: Callable[[], None] = lambda: None) -> None:
        train_step(self.model, self.optimizer, before_update)

    def settle(self) -> None:
        """Steps that are not timed, before the first group of a block."""
        for _ in range(SETTLING_STEPS):
            self.step()

    def episode(self) -> Episode:
        raise NotImplementedError

    def clean(self) -> None:
        """After an episode: what it left in memory and on the RAM disk goes."""
        if os.path.isdir(self.path):
            shutil.rmtree(self.path)
        elif os.path.exists(self.path):
            os.remove(self.path)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)

    def close(self) -> None:
        """After the last group of a block."""

    def state(self) -> Dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


class Nothing(Saver):
    def episode(self) -> Episode:
        self.step()
        return Episode(1, 1, [0.0])


class Cairn(Saver):
    """A snapshot in each step, for as many steps as an agent has slots. It begins in the forward,
    and the update waits for it."""

    def settle(self) -> None:
        self.hooks.pause(False)
        super().settle()
        self.hooks.pause(True)

    def episode(self) -> Episode:
        blocked: List[float] = []
        self.hooks.pause(False)
        for _ in range(SETTLING_STEPS):
            self.hooks.seconds = 0.0
            self.step()
            blocked.append(self.hooks.seconds)
        self.hooks.pause(True)
        return Episode(SETTLING_STEPS, SETTLING_STEPS, blocked)


class TorchSave(Saver):
    """A save after each step."""

    def episode(self) -> Episode:
        self.step()
        begin = time.perf_counter()
        torch.save(self.state(), self.path)
        return Episode(1, 1, [time.perf_counter() - begin])


class AsyncSave(Saver):
    """torch.distributed.checkpoint.async_save, from the instant it is called until the first step
    after which the save has ended: then as often as it can, the next one would be called. Training
    never waits for a file.

    Behind: its stager is kept, so that its memory is there already, and it copies in a thread
    behind forward and backward; the update waits for it. That is the most that async_save can do
    for tensors on the CPU.
    """

    def __init__(self, *given: Any, process: bool, behind: bool) -> None:
        super().__init__(*given)
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint import staging
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        self.save, self.kind = (
            checkpoint.async_save,
            AsyncCheckpointerType.PROCESS if process else AsyncCheckpointerType.THREAD,
        )
        self.writer = lambda: checkpoint.FileSystemWriter(self.path, sync_files=False)
        self.ends_process = process
        self.stager = (
            staging.DefaultStager(
                staging.StagingOptions(
                    use_pinned_memory=False,
                    use_shared_memory=process,
                    use_async_staging=True,
                    use_non_blocking_copy=False,
                )
            )
            if behind
            else None
        )
        # it is started here; it ends with the block, as it would keep its copy of everything until
        # the next save
        if process:
            self.save(
                {"it": torch.zeros(1)},
                storage_writer=self.writer(),
                async_checkpointer_type=self.kind,
            ).result()
        if self.stager:
            self.stager.stage(self.state()).result()

    def episode(self) -> Episode:
        begin = time.perf_counter()
        given = self.save(
            self.state(),
            storage_writer=self.writer(),
            async_checkpointer_type=self.kind,
            async_stager=self.stager,
        )
        blocked = [time.perf_counter() - begin]
        written = given.upload_completion if self.stager else given
        staged = given.staging_completion if self.stager else None

        def before_update() -> None:
            nonlocal staged
            if staged is not None:
                begin = time.perf_counter()
                staged.result()
                blocked[0] += time.perf_counter() - begin
                staged = None

        steps = 0
        while steps == 0 or not written.done():
            self.step(before_update)
            steps += 1
        written.result()
        return Episode(steps, 1, blocked)

    def close(self) -> None:
        if self.stager:
            self.stager.close()
        if self.ends_process:
            from torch.distributed.checkpoint import _async_process_executor as executor

            executor._CHECKPOINT_PROCESS = None


SAVERS: Dict[str, Callable[..., Saver]] = {
    "nothing": Nothing,
    "cairn": Cairn,
    "torch.save": TorchSave,
    "async_save, thread": functools.partial(AsyncSave, process=False, behind=False),
    "async_save, process": functools.partial(AsyncSave, process=True, behind=False),
    "async_save, thread, staged behind": functools.partial(AsyncSave, process=False, behind=True),
    "async_save, process, staged behind": functools.partial(AsyncSave, process=True, behind=True),
}


# ---- what Cairn does in this process ----


class Hooks:
    """The time that training spends in Cairn's hooks; they take no snapshot while they are paused,
    as at the beginning."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0
        job = sys.modules.get("cairn._job")
        self.job = sys.modules["cairn._current"].job if job else None
        for name in ("before_step", "after_step", "saw_forward", "before_forward") if job else ():
            setattr(job.Job, name, self._clocked(getattr(job.Job, name)))
        watch = sys.modules.get("cairn._watch")  # what an update waits for, operator by operator
        if watch is not None:
            watch._before_write = self._clocked(watch._before_write)
        self.pause(True)

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
        """Compares a step with a snapshot to one without in the same process and memory."""
        if not self.job:
            return
        if paused:
            self.job._begin = lambda: setattr(self.job, "_pending", False)
        else:
            vars(self.job).pop("_begin", None)

    def stats(self) -> Dict[str, int]:
        return dict(self.job.stats()) if self.job else {}


# ---- training ----


def train(layers: int, width: int, tokens: int, folder: str, agent_pid: int) -> None:
    """Blocks of groups: `block SAVER GROUPS`, then `finish`, after which the process waits to be
    killed."""
    hooks, clocks = Hooks(), Clocks(agent_pid)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous-{os.getpid()}", rank=0, world_size=1
    )
    model, optimizer = build(layers, width, tokens)
    answer(
        {
            "parameters": sum(each.numel() for each in model.parameters()),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "hooked": hooks.job is not None,
        }
    )
    for name, groups in blocks():
        if name:
            run_block(SAVERS[name](folder, model, optimizer, hooks), groups, hooks, clocks)
        else:
            answer(finish(model, optimizer, folder, hooks))


def blocks() -> Iterator[Tuple[str, int]]:
    """(saver, groups) of each block that is asked for; ("", 0) to finish."""
    for line in sys.stdin:
        command, _, rest = line.strip().partition(" ")
        name, _, groups = rest.rpartition(" ")
        if command == "block":
            yield name, int(groups)
        elif command == "finish":
            yield "", 0


def run_block(saver: Saver, groups: int, hooks: "Hooks", clocks: Clocks) -> None:
    saver.settle()
    found = groups_of(saver, groups, hooks, clocks)
    saver.close()
    saver.clean()
    answer({"groups": found, "stats": hooks.stats(), "memory_bytes": private_memory_bytes()})


def groups_of(saver: Saver, count: int, hooks: Hooks, clocks: Clocks) -> List[Dict[str, Any]]:
    """So many groups in which everything was saved that was to be."""
    found: List[Dict[str, Any]] = []
    for _ in range(count + LEFT_OUT_MAX):
        one = group(saver, hooks, clocks)
        found += [one] if one else []
        if len(found) == count:
            return found
    sys.exit(
        f"bench_worker: {LEFT_OUT_MAX + 1} groups of {count + LEFT_OUT_MAX} had snapshots that "
        "were not captured"
    )


def group(saver: Saver, hooks: Hooks, clocks: Clocks) -> Optional[Dict[str, Any]]:
    """A control step, an episode, a step while what it left is cleaned up and settles, a control
    step.

    None where a snapshot of the episode was skipped (the machine was too slow for the one before):
    it would cost nothing.
    """

    def control() -> Episode:
        hooks.seconds = 0.0
        saver.step()
        return Episode(1, 0, [hooks.seconds])

    clocks.look()
    begin = hooks.stats()
    before = timed(control, clocks)
    episode = timed(saver.episode, clocks)
    saver.clean()
    saver.step()
    after = timed(control, clocks)
    begun, captured = (
        hooks.stats().get(name, 0) - begin.get(name, 0)
        for name in ("snapshots_begun", "snapshots_captured")
    )
    wanted = episode["saves"] if isinstance(saver, Cairn) else 0
    if begun > wanted:
        sys.exit(
            f"bench_worker: {begun} snapshots were begun in a group of {type(saver).__name__} "
            f"instead of {wanted}"
        )
    return {"control": [before, after], "episode": episode} if captured == wanted else None


def timed(run: Callable[[], Episode], clocks: Clocks) -> Dict[str, Any]:
    cpu, begin = clocks.read(), time.perf_counter()
    steps, saves, blocked = run()
    wall_s = time.perf_counter() - begin
    return {
        "wall_s": wall_s,
        "cpu_s": {name: value - cpu[name] for name, value in clocks.read().items()},
        "steps": steps,
        "saves": saves,
        "blocked": blocked,
    }


def finish(
    model: Model, optimizer: torch.optim.Optimizer, folder: str, hooks: Hooks
) -> Dict[str, Any]:
    """Leaves the present state complete in all three ways, for the restores; its fingerprint."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict

    found = {
        "fingerprint": fingerprint(model, optimizer),
        "step": hooks.job.step if hooks.job else 0,
    }
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        os.path.join(folder, "torch.pt"),
    )
    parameters, moments = get_state_dict(model, optimizer)
    checkpoint.save(
        {"model": parameters, "optimizer": moments}, checkpoint_id=os.path.join(folder, "dcp")
    )
    del parameters, moments
    hooks.pause(False)
    if hooks.job:
        hooks.job._pending = True  # the round that has ended was left out
    train_step(model, optimizer)  # its forward begins the snapshot, its update confirms it
    return found


# ---- restoring ----


def restore(kind: str, layers: int, width: int, tokens: int, folder: str) -> None:
    """A new process until its first steps have run. KIND: cairn, torch.load, dcp.load, or nothing
    (to restore)."""
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
        checkpoint.load(
            {"model": parameters, "optimizer": moments}, checkpoint_id=os.path.join(folder, "dcp")
        )
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
    """Import and attach in a process that has imported torch and built a small job. Not under
    `cairn run`."""
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
    if words[:1] == ["train"] and len(words) == 6:
        train(int(words[1]), int(words[2]), int(words[3]), words[4], int(words[5]))
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
