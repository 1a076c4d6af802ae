"""The trainer that bench_attached.py measures: a transformer under DeepSpeed or Megatron-Core in
one rank, and what saves its state.

    attached_worker.py deepspeed|megatron LAYERS WIDTH TOKENS FOLDER AGENT

Obeys the lines on standard input as bench_worker.py does. The savers are `cairn` (the script does
nothing for it) and `async_save`, the framework's own:

    DeepSpeed      save_checkpoint with its decoupled engine: a process writes behind forward and
                   backward, and the engine's next update waits for it
    Megatron-Core  dist_checkpointing.save(async_sharded_save=True) and its AsyncCallsQueue: a
                   forked process writes, and each step asks whether it has ended
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import traceback
from typing import Any, Callable, Dict, List

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1")
# which DeepSpeed's launcher sets
os.environ.update(LOCAL_SIZE="1", LOCAL_WORLD_SIZE="1", CROSS_RANK="0", CROSS_SIZE="1")

import torch
import torch.utils._pytree

import bench_worker
from bench_clocks import Clocks
from bench_worker import Episode, Hooks, Saver, answer

MICRO_BATCHES = 1


class Framework:
    """A job of one framework: its step, and its own asynchronous save."""

    parameters: List[Any]

    def step(self) -> None:
        raise NotImplementedError

    def save(self, folder: str) -> float:
        """Begins one; the seconds for which training stood still."""
        raise NotImplementedError

    def is_saved(self) -> bool:
        """Asks whether it has ended, as the framework has each step do."""
        raise NotImplementedError

    def waited_s(self) -> float:
        """For which the steps since the save waited for it."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the processes that it has started."""


class DeepSpeed(Framework):
    def __init__(self, layers: int, width: int, tokens: int) -> None:
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # or it is compiled first
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
        model, _ = bench_worker.build(layers, width, tokens)
        self.tokens = tokens
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
            "bf16": {"enabled": True},
            "checkpoint": {
                "writer": {"type": "python", "decoupled": True, "data_parallel": "replica"}
            },
        }
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
        self.engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        self.parameters = list(model.parameters())
        self._waited_s = 0.0
        commit = self.engine._commit_decoupled_checkpoint

        def clocked() -> None:
            begin = time.perf_counter()
            commit()
            self._waited_s += time.perf_counter() - begin

        self.engine._commit_decoupled_checkpoint = clocked
        # On the CPU masters are not leaves, and DeepSpeed 0.19 cannot hand them to its process.
        writer, tree_map = self.engine.checkpoint_engine, torch.utils._pytree.tree_map
        save = writer.save
        writer.save = lambda state_dict, path: save(
            tree_map(lambda each: each.detach() if torch.is_tensor(each) else each, state_dict),
            path,
        )

    def step(self) -> None:
        text = torch.randint(0, bench_worker.VOCABULARY, (1, self.tokens + 1))
        found = self.engine(text[:, :-1]).flatten(0, 1)
        self.engine.backward(
            torch.nn.functional.cross_entropy(found.float(), text[:, 1:].flatten())
        )
        self.engine.step()

    def save(self, folder: str) -> float:
        self._waited_s, begin = 0.0, time.perf_counter()
        self.engine.save_checkpoint(folder)
        return time.perf_counter() - begin

    def is_saved(self) -> bool:
        return self.engine.checkpoint_engine.get_commit_info() is None

    def waited_s(self) -> float:
        return self._waited_s

    def close(self) -> None:
        self.engine.checkpoint_engine.cleanup()


class Megatron(Framework):
    def __init__(self, layers: int, width: int, tokens: int) -> None:
        import megatron_live_trainer as live
        from megatron.core import parallel_state
        from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue
        from megatron.core.pipeline_parallel import get_forward_backward_func

        live.HIDDEN, live.FFN, live.LENGTH = width, 4 * width, tokens
        live.worker.without_cuda()
        torch.distributed.init_process_group("gloo")
        parallel_state.initialize_model_parallel(1, 1, create_gloo_process_groups=True)
        live.track_on_the_cpu()
        job = {**live.DEFAULTS, "layers": layers, "dist": 1, "glu": 0}
        self.live, self.run, self.steps = live, get_forward_backward_func(), 0
        self.chunks, self.optimizer = live.build(job)
        self.parameters = [each for chunk in self.chunks for each in chunk.parameters()]
        self.queue, self._waited_s = AsyncCallsQueue(), 0.0

    def step(self) -> None:
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        self.run(
            forward_step_func=self.live.forward_step,
            data_iterator=iter(
                [self.live.batch(self.steps, each) for each in range(MICRO_BATCHES)]
            ),
            model=self.chunks[0],
            num_microbatches=MICRO_BATCHES,
            seq_length=self.live.LENGTH,
            micro_batch_size=2,
            forward_only=False,
        )
        self.optimizer.step()
        self.steps += 1

    def save(self, folder: str) -> float:
        from megatron.core import dist_checkpointing
        from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

        self._waited_s, begin = 0.0, time.perf_counter()
        os.makedirs(folder)
        options = {"distrib_optim_sharding_type": "dp_reshardable"}  # the fastest that it has
        model = self.live.bare(self.chunks[0]).sharded_state_dict(metadata=dict(options))
        state = {"model": model}
        state["optimizer"] = self.optimizer.sharded_state_dict(dict(state), metadata=dict(options))
        strategy = TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=2)
        request = dist_checkpointing.save(state, folder, strategy, async_sharded_save=True)
        self.queue.schedule_async_request(request)
        return time.perf_counter() - begin

    def is_saved(self) -> bool:
        begin = time.perf_counter()
        self.queue.maybe_finalize_async_calls(blocking=False)
        self._waited_s += time.perf_counter() - begin
        return self.queue.get_num_unfinalized_calls() == 0

    def waited_s(self) -> float:
        return self._waited_s


FRAMEWORKS: Dict[str, Callable[[int, int, int], Framework]] = {
    "deepspeed": DeepSpeed,
    "megatron": Megatron,
}


def saver_of(kind: Any, framework: Framework) -> Any:
    """A saver whose steps are the framework's."""

    def step(_self: Saver, before_update: Callable[[], None] = lambda: None) -> None:
        framework.step()

    return type(kind.__name__, (kind,), {"step": step, "framework": framework})


class AsyncSave(Saver):
    """The framework's own, from its call until the first step after which it has ended."""

    framework: Framework

    def episode(self) -> Episode:
        blocked = self.framework.save(self.path)
        steps, saved = 0, False
        while not saved:
            self.step()
            saved = self.framework.is_saved()
            steps += 1
        return Episode(steps, 1, [blocked + self.framework.waited_s()])


def main(words: List[str]) -> None:
    layers, width, tokens = map(int, words[1:4])
    folder, agent = words[4], int(words[5])
    os.environ.setdefault("MASTER_PORT", words[6])
    framework = FRAMEWORKS[words[0]](layers, width, tokens)
    hooks, clocks = Hooks(), Clocks(agent)
    savers: Dict[str, Any] = {"nothing": bench_worker.Nothing, "cairn": bench_worker.Cairn}
    savers["async_save"] = AsyncSave
    count = sum(each.numel() for each in framework.parameters)
    about: Dict[str, Any] = {"parameters": count, "tensors": len(framework.parameters)}
    about.update(torch=torch.__version__, threads=torch.get_num_threads())
    answer({**about, "hooked": hooks.job is not None})
    for name, groups in bench_worker.blocks():
        kind = saver_of(savers[name], framework)
        bench_worker.run_block(kind(folder, None, None, hooks), groups, hooks, clocks)
    framework.close()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BaseException:
        traceback.print_exc()
        for child in multiprocessing.active_children():  # which would be waited for
            child.kill()
        os._exit(1)
