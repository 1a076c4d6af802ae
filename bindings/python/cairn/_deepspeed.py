"""Hooks into DeepSpeed: when an engine is made, and when one of its optimizers updates parameters.

The engine decides when that is: its `step` ends a micro-batch, and calls the optimizer where
gradients are complete. An optimizer that finds an overflow in them leaves everything as it was.
"""

from __future__ import annotations

import functools
import importlib.machinery
import sys
import weakref
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence

from ._quiet import never_compiled, quiet

if TYPE_CHECKING:
    from types import ModuleType

    from ._job import Job

ENGINE = "deepspeed.runtime.engine"

# by the ids of their optimizers
_engines: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()


def engine_of(zero: Any) -> Optional[Any]:
    """The engine that steps an optimizer; None where it was made before there were hooks."""
    engine = _engines.get(id(zero))
    return engine if engine is not None and engine.optimizer is zero else None


def wrapper_of(optimizer: Any) -> Any:
    """The one of DeepSpeed's optimizers that an optimizer is inside of, or itself."""
    for engine in list(_engines.values()):
        if getattr(engine.optimizer, "optimizer", None) is optimizer:
            return engine.optimizer
    return optimizer


def note_engine(engine: Any) -> None:
    """Has engine_of find it."""
    if getattr(engine, "optimizer", None) is not None:
        _engines[id(engine.optimizer)] = engine


@quiet
def _before_step(job: Job, zero: Any) -> None:
    job.before_step(zero, False)


@quiet
def _after_step(job: Job, zero: Any) -> None:
    if getattr(zero, "overflow", False):
        job.skipped_step(zero)
    else:
        job.after_step(zero)


@quiet
def _saw_engine(job: Job, engine: Any) -> None:
    job.saw_engine(engine)


def watch_steps(zero: Any) -> None:
    """Calls the job around the steps of this kind of optimizer."""
    kind = type(zero)
    step = kind.step
    if hasattr(step, "_cairn_watches"):
        return

    @functools.wraps(step)
    def watched(self: Any, *arguments: Any, **options: Any) -> Any:
        _before_step(self)
        result = step(self, *arguments, **options)
        _after_step(self)
        return result

    watched._cairn_watches = True  # type: ignore[attr-defined]
    never_compiled(watched)
    kind.step = watched


def _watch_engines(module: Any) -> None:
    kind = module.DeepSpeedEngine
    initialise = kind.__init__

    @functools.wraps(initialise)
    def made(self: Any, *arguments: Any, **options: Any) -> None:
        initialise(self, *arguments, **options)
        note_engine(self)
        _saw_engine(self)

    kind.__init__ = made


class _Finder:
    """Finds nothing itself: it adds a call after the import of DeepSpeed's engine."""

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Any:
        if name != ENGINE:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        loader = spec.loader if spec else None
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        execute: Callable[[ModuleType], None] = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _watch_engines(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def see_engines() -> None:
    """Tells the job of every engine that is made from now on."""
    if ENGINE in sys.modules:
        _watch_engines(sys.modules[ENGINE])
    else:
        sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
