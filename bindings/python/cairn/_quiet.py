"""Hooks that never stop training, and that torch.compile leaves alone.

Every function of the binding that torch calls while a script trains is wrapped by `quiet`.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable

from . import _current


# Private names, for watching what an update writes to. A version that lacks one has updates wait
# for the whole copy.
try:
    from torch._C._dynamo.eval_frame import get_eval_frame_callback as compiling_callback
    from torch._C._dynamo.eval_frame import set_eval_frame
    from torch.utils._python_dispatch import (
        _get_current_dispatch_mode,
        _get_current_dispatch_mode_stack,
    )
except ImportError:
    compiling_callback = (
        set_eval_frame
    ) = _get_current_dispatch_mode = _get_current_dispatch_mode_stack = None

# .steps: the optimizers whose guarded step runs in this thread; .in_compiled: a hook runs that may
# return to what is compiled
guarded = threading.local()


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that never stops training, and that torch.compile leaves alone: where it is called
    from code that is compiled piece by piece, nothing in it is."""

    def run(*arguments: Any) -> Any:
        job = _current.job
        if job is None:
            return None
        try:
            return function(job, *arguments)
        except (_current.Damaged, _current.Poisoned):
            raise
        except Exception as error:
            job.end(f"{type(error).__name__}: {error}")
            return None

    @functools.wraps(function)
    def hook(*arguments: Any) -> Any:
        compiles = None if compiling_callback is None else compiling_callback()
        if compiles is None:
            return run(*arguments)
        set_eval_frame(None)
        guarded.in_compiled = True
        try:
            return run(*arguments)
        finally:
            guarded.in_compiled = False
            set_eval_frame(compiles)

    hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    never_compiled(hook)
    return hook


def never_compiled(function: Any) -> None:
    """torch.compile does not take it for a function of the script's; what is compiled and calls it
    may have it inside. Without Dynamo, whose import takes as long as torch's own."""
    try:
        from torch._C._dynamo import eval_frame
    except ImportError:
        return  # a version without Dynamo
    if all(
        hasattr(eval_frame, name)
        for name in ("set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction")
    ):
        actions = eval_frame._FrameAction
        eval_frame.set_code_exec_strategy(
            function.__code__, eval_frame._FrameExecStrategy(actions.SKIP, actions.DEFAULT)
        )
    elif hasattr(eval_frame, "skip_code"):  # until 2.6
        eval_frame.skip_code(function.__code__)
