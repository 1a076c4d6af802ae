"""Cairn for PyTorch: snapshots of a training job in memory, every step, restored bit for bit.

`cairn run -- python train.py` needs no calls. For exact resumption of schedulers,
data and the loop's own state a script calls `attach` once and starts its loop at `job.step`:

    job = cairn.attach(model, optimizer, scheduler=scheduler)
    for step in range(job.step, steps):
        ...

Scripts that use torch.distributed.checkpoint give it `cairn.dcp.Writer()` and `cairn.dcp.Reader()`,
and Megatron-Core's dist_checkpointing `cairn.megatron.SaveStrategy()` and `LoadStrategy()`.

Importing this package is cheap and does not import torch.
"""

from __future__ import annotations

TYPE_CHECKING = False  # see _hook.py
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping, Optional, Sequence, Union

    from . import dcp, megatron
    from ._current import Poisoned
    from ._build import Old, Parts, Placement
    from ._job import Job

__version__ = "0.1.0"
__all__ = ["Parts", "Poisoned", "attach", "dcp", "elastic", "megatron", "note_work", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Poisoned":
        from ._current import Poisoned

        return Poisoned
    if name == "Parts":
        from ._build import Parts

        return Parts
    if name not in ("dcp", "megatron"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return importlib.import_module(f".{name}", __name__)


def attach(
    model: Any,
    optimizer: Any,
    scheduler: Any = None,
    dataloader: Any = None,
    extra: Optional[Mapping[str, Any]] = None,
    microbatches: Optional[int] = None,
    rng: Optional[str] = None,
) -> "Job":
    """Protects a job, and resumes it under `cairn run --resume`; returns the job:
    `job.step` updates have been done.

    model: a module, or a mapping from names to modules. optimizer: one, or a sequence of them. Call
    it after the optimizers are built and the model is on its device, sharded and wrapped, and
    before the first step; again replaces what was attached before. scheduler, dataloader: objects
    with state_dict and load_state_dict, or sequences of them. extra: further such objects,
    `torch.Generator`s, or plain mutable mappings and lists, which are restored in place. Random
    generators (torch, numpy, random) are always included. Their state must be plain data
    (numbers, text, bytes, lists, mappings, tensors, numpy arrays): nothing is pickled, and other
    values are named in the log and left out.

    Generators and the data loader are captured as they are right after an update, the rest as it is
    when the next forward begins.

    A torch DataLoader has no state_dict: its position is captured. Its next pass goes on behind the
    last batch of the snapshot's update, and `job.epoch` passes have been completed. A loader
    that cannot be divided among another number of ranks begins at its start, and `cairn status`
    shows why.

    When resuming, all of it has its restored values on return, and `job.step` is the step of the
    snapshot; else it is 0 and nothing was touched. Moments on the CPU are still coming in then,
    after the first forward and backward: code that looks at `optimizer.state` waits for them, so
    does the first update. A model that does not fit the snapshot is logged, by name, and starts
    afresh. Without an agent it returns a job that protects nothing, and logs that. Raises TypeError
    for a wrong model or optimizer, and RuntimeError if the snapshot proves damaged after tensors
    were overwritten (for moments: at the first wait for them).

    microbatches: how many the job computes in a step, all ranks together. The script then asks
    `job.share()` at each step boundary which of them are its own:

        share = job.share()
        for i in share:
            with share.micro(i):
                (loss(batch(step, i)) * share.scale).backward()

    With several ranks the model must be a DistributedDataParallel or a model of fully_shard over
    all of them, and ValueError or TypeError is raised where it cannot be shared. A sharded model
    keeps whole parameters and gradients during a step. rng="counter": within `micro` torch's
    generators are seeded by the script's seed on rank 0, the step and i, so that dropout does not
    depend on which rank computes i.
    """
    from . import _torch

    return _torch.attach(model, optimizer, scheduler, dataloader, extra, microbatches, rng)


def elastic(
    build: "Callable[[Placement, Old], Parts]",
    layers: "Union[int, Sequence[Sequence[int]]]",
    stages: int,
    microbatches: int,
    dataloader: Any = None,
    extra: Optional[Mapping[str, Any]] = None,
    rng: Optional[str] = None,
    build_timeout_s: float = 10.0,
) -> "Job":
    """Protects a pipeline whose layers may move between its stages while it trains, and resumes it
    under `cairn run --resume`; returns the job. All ranks must call it, after init_process_group.
    Rank r is stage r % stages of replica r // stages.

    build(placement, old) makes this rank's stage, at the start and whenever layers move, and
    returns cairn.Parts:

        module      with the layers `placement.layers`; a layer has the same names in every
                    placement ("layers.7.weight")
        optimizer   of the module's parameters
        schedule    a function that makes the schedule of a given number of micro-batches, with
                    scale_grads=False
        scheduler   of learning rates, or None
        layers      the modules of the layers by number, for rng="counter"

    At the start it runs in this thread and its exceptions are passed on. Later it runs in another
    thread between two steps: it must not use collectives, make process groups, or change what
    trains. `placement.group` is the process group of this replica. `old.take("layers.7")` returns
    the present module of that name, or None. Cairn fills parameters, buffers, moments, settings and
    scheduler. If build raises on one rank or returns other names, all ranks go on as before. If it
    has not returned after build_timeout_s, nothing moves from then on.

    layers: how many the job has, divided evenly among the stages, or a list for each replica with
    the layers of its stages. microbatches: how many the job computes in a step, all replicas
    together. dataloader, extra: see attach. rng="counter": seeds torch's generators for each layer
    by the script's seed on rank 0, the step, the micro-batch and the layer, so that dropout does
    not depend on which rank computes it.

        for step in range(job.step, steps):
            share = job.share()                       # layers may move here
            job.schedule.step(inputs of the micro-batches in share)
            job.reduce_gradients()
            job.parts.optimizer.step()
            job.parts.optimizer.zero_grad()

    ValueError or TypeError for arguments and parts that cannot be used; RuntimeError without a
    process group.
    """
    from . import _torch

    return _torch.elastic(
        build, layers, stages, microbatches, dataloader, extra, rng, build_timeout_s
    )


def note_work(amount: float) -> None:
    """Tells how much this rank computes in the current step, in a unit common to all ranks
    (tokens, FLOPs): with `CAIRN_TIMING=1` a rank then counts as slow by its time per unit, not
    because of longer sequences. Several calls in one step add up. Any thread; does nothing if
    collectives are not timed. Raises ValueError for less than 1, and for 2**64 or more.
    """
    if not 1 <= amount < 2**64:
        raise ValueError(f"the amount of work is at least 1 and below 2**64, not {amount}")
    import sys

    timing = sys.modules.get(f"{__name__}._timing")
    if timing is not None:
        timing.note_work(int(amount))
