"""Gets Cairn into torch: installs the hooks, once per process, and `attach`.

Hooks: a global one before and after every optimizer's step, one on every module's forward until the
roots (the outermost modules that hold parameters of an optimizer) are found, and one on the forward
of each root (_forwards.py). What they do is decided in _job.py.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from . import (
    _current,
    _deepspeed,
    _forwards,
    _job,
    _lib,
    _loaders,
    _megatron,
    _modules,
    _optimizers,
    _signals,
)
from ._extras import Extras
from ._job import Job
from ._quiet import never_compiled, quiet
from ._elastic import Elastic
from ._share import Sharing, even_shares, ranks_here
from ._zero import is_zero

WRAPPER_KEEPS = (
    "the optimizer in it is captured: name in `extra` what else is to come back, a loss scaler say"
)

_installed = False


@quiet
def _before_update(job: Job, optimizer: Optimizer) -> None:
    job.before_update(optimizer)


def _fenced(closure: Callable[[], Any], optimizer: Optimizer) -> Callable[[], Any]:
    """The closure of an optimizer's step, with the fence after its first call: no optimizer writes
    before that."""
    calls = 0

    @functools.wraps(closure)
    def call() -> Any:
        nonlocal calls
        result = closure()
        calls += 1
        if calls == 1:
            _before_update(optimizer)
        return result

    return call


@quiet
def _before_step(
    job: Job, optimizer: Optimizer, args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Any:
    _optimizers.look_who_steps(optimizer)
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if not job.before_step(optimizer, callable(closure)):
        return None
    if "closure" in kwargs:
        return args, {**kwargs, "closure": _fenced(closure, optimizer)}
    return (args[0], _fenced(closure, optimizer), *args[2:]), kwargs


@quiet
def _after_step(job: Job, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    job.after_step(optimizer)


def install() -> None:
    """Installs the hooks, once. They do nothing before an optimizer is made."""
    global _installed
    if _installed:
        return
    _installed = True
    initialise = Optimizer.__init__

    @functools.wraps(initialise)
    def made(self: Optimizer, *arguments: Any, **options: Any) -> None:
        initialise(self, *arguments, **options)
        never_compiled(made)
        _megatron.watch_wrappers()
        job = _current.job
        if job is not None:
            job.saw_optimizer(self)

    Optimizer.__init__ = made  # type: ignore[method-assign]
    register_optimizer_step_pre_hook(_before_step)  # type: ignore[arg-type]
    register_optimizer_step_post_hook(_after_step)  # type: ignore[arg-type]
    os.register_at_fork(after_in_child=_current.forget)
    _forwards.see_whole_graphs()
    _deepspeed.see_engines()
    _loaders.follow_loaders()
    _signals.answer_signals()
    _job.start()
    _time_collectives_of_groups()
    _end_with_the_group()


def _time_collectives() -> None:
    try:
        from . import _stacks, _timing

        _timing.install()
        _stacks.offer()
    except Exception as error:
        job = _current.job
        if job is not None:
            job.say(f"collectives are not timed: {type(error).__name__}: {error}")


def _time_collectives_of_groups() -> None:
    """Times the collectives of jobs that make a process group, where CAIRN_TIMING=1 asks for it:
    nobody pays for what nobody reads."""
    if os.environ.get("CAIRN_TIMING") != "1" or not torch.distributed.is_available():
        return
    if torch.distributed.is_initialized():
        _time_collectives()
    initialise = torch.distributed.init_process_group

    @functools.wraps(initialise)
    def init_process_group(*arguments: Any, **options: Any) -> Any:
        result = initialise(*arguments, **options)
        _time_collectives()
        return result

    for name in (
        "torch.distributed",
        "torch.distributed.distributed_c10d",
        "torch.distributed.device_mesh",
    ):
        if getattr(sys.modules.get(name), "init_process_group", None) is initialise:
            sys.modules[name].init_process_group = init_process_group  # type: ignore[attr-defined]


@quiet
def _before_the_group_ends(job: Job) -> None:
    job.before_the_end()


def _end_with_the_group() -> None:
    """Takes the last snapshot while the ranks can wait for each other: most scripts end their
    process group, then themselves."""
    if not torch.distributed.is_available():
        return
    destroy = torch.distributed.destroy_process_group

    @functools.wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        if group in (None, torch.distributed.group.WORLD):
            _before_the_group_ends()
        destroy(group)

    for name in ("torch.distributed", "torch.distributed.distributed_c10d"):
        if getattr(sys.modules.get(name), "destroy_process_group", None) is destroy:
            # type: ignore[attr-defined]
            sys.modules[name].destroy_process_group = destroy_process_group


STATELESS_WRAPPERS = ("accelerate", "lightning", "pytorch_lightning")  # by their packages


def _inner(optimizer: Any, kept: List[str]) -> Any:
    """What a wrapper (of Hugging Face's accelerate, say) wraps: its step is the one whose hooks
    run. kept: the kinds of wrappers that may keep something themselves."""
    while not is_zero(optimizer) and (
        isinstance(getattr(optimizer, "optimizer", None), Optimizer)
        or is_zero(getattr(optimizer, "optimizer", None))
    ):
        if type(optimizer).__module__.partition(".")[0] not in STATELESS_WRAPPERS:
            kept.append(type(optimizer).__name__)
        optimizer = optimizer.optimizer
    return _deepspeed.wrapper_of(optimizer)


def attach(
    model: Any,
    optimizer: Any,
    scheduler: Any,
    dataloader: Any,
    extra: Optional[Mapping[str, Any]],
    microbatches: Optional[int] = None,
    rng: Optional[str] = None,
) -> Job:
    """See cairn.attach."""
    if isinstance(model, (list, tuple)):  # the stages of a virtual pipeline
        model = {f"model{count}" if count else "": each for count, each in enumerate(model)}
    models = dict(model) if isinstance(model, Mapping) else {"": model}
    for each in models.values():
        if _modules.is_engine(each):
            _deepspeed.note_engine(each)
    kept: List[str] = []
    optimizers: List[Any] = []
    for each in optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]:
        wrapped = _megatron.inner(each)
        optimizers += [_inner(each, kept)] if wrapped is None else wrapped
    for name, each in models.items():
        if not isinstance(each, torch.nn.Module):
            raise TypeError(
                f"cairn.attach: the model {name!r} is a {type(each).__name__}, not a "
                "torch.nn.Module"
            )
    for each in optimizers:
        if not isinstance(each, Optimizer) and not is_zero(each):
            raise TypeError(
                f"cairn.attach: the optimizer is a {type(each).__name__}, not a "
                "torch.optim.Optimizer"
            )
    if rng not in (None, "counter"):
        raise ValueError(f'cairn.attach: rng is {rng!r}; it can be None or "counter"')
    install()
    job = _job.start()
    # before the restore, which sets the generators
    job.sharing = (
        None
        if microbatches is None
        else Sharing(
            list(models.values()),
            even_shares(microbatches, ranks_here()[1], "rank"),
            rng == "counter",
            job.say,
        )
    )
    job.attach(models, optimizers, Extras(scheduler, dataloader, extra))
    for name in kept:
        job.leave_out(
            _lib.OPAQUE, f"what the {name} around an optimizer keeps itself", WRAPPER_KEEPS
        )
    return job


def elastic(
    build: Any,
    layers: Any,
    stages: int,
    microbatches: int,
    dataloader: Any,
    extra: Optional[Mapping[str, Any]],
    rng: Optional[str],
    build_timeout_s: float,
) -> Job:
    """See cairn.elastic."""
    if rng not in (None, "counter"):
        raise ValueError(f'cairn.elastic: rng is {rng!r}; it can be None or "counter"')
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise RuntimeError("cairn.elastic: call torch.distributed.init_process_group before it")
    install()
    job = _job.start()
    job.elastic = job.sharing = placing = Elastic(
        job, build, layers, stages, microbatches, rng == "counter", build_timeout_s
    )
    job.holders = placing.holders
    parts = placing.parts
    extras = Extras(parts.scheduler, dataloader, extra)
    job.attach({"": parts.module}, [parts.optimizer], extras)
    return job
