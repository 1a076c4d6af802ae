"""Calls the script's `build` (cairn.elastic) and checks its result.

During training it runs in its own thread, so that a `build` that hangs does not stop training:
after the timeout the thread is abandoned and its result is dropped.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Tuple

import torch

from . import _modules, _tensors

Split = Tuple[Tuple[int, ...], ...]  # layers by replica and stage


class Placement(NamedTuple):
    """Tells the script's `build` what this rank must hold."""

    layers: range  # this stage's, numbered through the job
    stage: int
    stages: int
    replica: int
    replicas: int
    split: Split  # number of layers, by replica and stage
    group: Any  # process group of this replica's ranks, by stage; the same in all placements

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1


class Parts(NamedTuple):
    """What `build` returns. See cairn.elastic."""

    module: Any
    optimizer: Any
    schedule: Callable[[int], Any]
    scheduler: Any = None
    layers: Mapping[int, Any] = {}


class Old:
    """The present parts, for `build`; empty at the start."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def take(self, name: str) -> Any:
        """Returns the present module's submodule of this name ("layers.7"), to become a part of the
        next module unchanged; None if this rank does not have it."""
        try:
            return None if self._module is None else self._module.get_submodule(name)
        except AttributeError:
            return None


class Built(NamedTuple):
    parts: Optional[Parts] = None
    schedule: Any = None
    why: str = ""  # of the failure
    hangs: bool = False


def build_now(
    build: Callable[[Placement, Old], Parts], placement: Placement, old: Old, count: int
) -> Built:
    """Builds and checks. TypeError or ValueError for unusable parts; raises what `build` raises."""
    parts = build(placement, old)
    if not isinstance(parts, Parts):
        raise TypeError(f"build returned a {type(parts).__name__}, not cairn.Parts")
    module, optimizer = parts.module, parts.optimizer
    if not isinstance(module, torch.nn.Module) or _modules.unwrap(module) is not module:
        raise TypeError(
            f"build returned a {type(module).__name__} as module; it must be a torch.nn.Module "
            "that no DistributedDataParallel wraps: job.reduce_gradients() sums the gradients"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"build returned a {type(optimizer).__name__} as optimizer")
    if any(_tensors.is_sharded(each) for each in module.parameters()):
        raise TypeError("build returned a module with sharded parameters; they cannot move")
    held = {id(each) for each in module.parameters()}
    if not all(id(each) in held for group in optimizer.param_groups for each in group["params"]):
        raise ValueError("build returned an optimizer of parameters that are not in its module")
    schedule = parts.schedule(count)
    if getattr(schedule, "scale_grads", False):
        raise ValueError(
            "build returned a schedule that divides gradients by its own micro-batches; make it "
            "with scale_grads=False: job.reduce_gradients() divides by those of all replicas"
        )
    return Built(parts, schedule)


def build_within(timeout_s: float, *arguments: Any) -> Built:
    """build_now in another thread, for at most timeout_s. Never raises."""
    done: List[Built] = []
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def run() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            done.append(build_now(*arguments))
        except BaseException as error:
            done.append(Built(why=f"{type(error).__name__}: {error}"))

    thread = threading.Thread(target=run, name="cairn-build", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # the system has none to give
        return Built(why=str(error))
    thread.join(timeout_s)
    if done:
        return done[0]
    return Built(why=f"build has not returned within {timeout_s:g} s", hangs=True)
