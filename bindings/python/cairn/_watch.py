"""The tensors that an update writes to: a dispatch mode that has each operator wait for the tensors
that it overwrites, until the optimizer's step ends."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_module
from torch.utils._python_dispatch import TorchDispatchMode

from . import _optimizers, _quiet, _tensors
from ._fence import Fence
from ._quiet import quiet

if TYPE_CHECKING:
    from ._job import Job


def guard_step(optimizer: Optimizer) -> None:
    """Sees to it that a watch of this kind of optimizer's updates ends with the step, also with one
    that raises."""
    kind = type(optimizer)
    step = kind.step
    if not _optimizers.is_torchs_own(kind) or hasattr(step, "_cairn_guards"):
        return

    @functools.wraps(step)
    def guarded(self: Optimizer, *arguments: Any, **options: Any) -> Any:
        steps = _quiet.guarded.__dict__.setdefault("steps", [])
        steps.append(self)
        try:
            return step(self, *arguments, **options)
        except BaseException as error:
            if error.__traceback__ is not None:
                # the script's own, without this frame
                error.__traceback__ = error.__traceback__.tb_next
            raise
        finally:
            steps.pop()
            unwatch()

    guarded._cairn_guards = True  # type: ignore[attr-defined]
    kind.step = guarded  # type: ignore[method-assign]


def writes_are_known(optimizer: Optimizer) -> bool:
    """Its step writes to its own tensors alone, and through torch's dispatcher, where a watch sees
    it.

    That is known of torch's own optimizers. Others may use kernels that nothing sees, compiled code
    calls its kernels itself, and nobody knows what a hook of the script does.
    """
    steps = getattr(_quiet.guarded, "steps", None)
    if (
        _quiet.compiling_callback is None
        or not _optimizers.is_torchs_own(type(optimizer))
        or not steps
        or steps[-1] is not optimizer
    ):
        return False
    hooks = [
        getattr(optimizer_module, f"_global_optimizer_{when}_hooks", None)
        for when in ("pre", "post")
    ]
    if (
        None in hooks
        or sum(map(len, hooks)) > 2
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
    ):
        return False
    # The first is true where this very function is being compiled, the second where what it returns
    # to may be.
    in_compiled = _quiet.compiling_callback() is not None or getattr(
        _quiet.guarded, "in_compiled", False
    )
    return not torch.compiler.is_compiling() and not in_compiled


_written: Dict[Any, Optional[Tuple[Tuple[int, str], ...]]] = {}


def _writes_of(function: Any) -> Optional[Tuple[Tuple[int, str], ...]]:
    """(index, name) of the arguments that an operator writes to; None where it does not say."""
    try:
        return _written[function]
    except KeyError:
        schema = getattr(function, "_schema", None)
        found = (
            None
            if schema is None
            else tuple(
                (index, argument.name)
                for index, argument in enumerate(schema.arguments)
                if argument.alias_info is not None and argument.alias_info.is_write
            )
        )
        _written[function] = found
        return found


def _span(tensor: Tensor) -> Optional[Tuple[int, int]]:
    """The addresses [begin, end) of what lies here of a tensor; None where that is not one block of
    memory."""
    here = _tensors.local(tensor)
    if type(here) not in (Tensor, torch.nn.Parameter) or here.layout is not torch.strided:
        return None
    begin = _tensors.addresses((here,))[0]
    if here.is_contiguous():
        return begin, begin + here.nbytes
    if here.numel() == 0:
        return begin, begin
    elements = 1 + sum((size - 1) * stride for size, stride in zip(here.shape, here.stride()))
    return begin, begin + elements * here.element_size()


class _Watch(TorchDispatchMode):
    """Fences what an operator writes to, before it runs, while a snapshot is being captured."""

    fence: Optional[Fence] = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # it never runs in compiled code, and would pay for that in every operator

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.fence is not None:
            _before_write(self, self.fence, function, args, kwargs)
        return function(*args, **kwargs)


_watch = _Watch()


def watch(fence: Fence) -> None:
    """Until unwatch every operator that this thread runs waits for what it overwrites."""
    _watch.fence = fence
    _watch.__enter__()


def unwatch() -> None:
    """Ends it; where nothing is watched it does nothing."""
    if (
        _quiet.compiling_callback is not None
        and _watch in _quiet._get_current_dispatch_mode_stack()
    ):
        _watch.fence = None
        if _quiet._get_current_dispatch_mode() is _watch:
            _watch.__exit__(None, None, None)


@quiet
def _before_write(
    _job: Job,
    watch: _Watch,
    fence: Fence,
    function: Any,
    args: Tuple[Any, ...],
    kwargs: Dict[str, Any],
) -> None:
    written = _writes_of(function)
    if written == ():
        return
    positions: List[int] = []
    for index, name in written or ():
        value = args[index] if index < len(args) else kwargs.get(name)
        for each in (
            value if isinstance(value, (list, tuple)) else () if value is None else (value,)
        ):
            span = _span(each)
            if span is None:
                written = None
            else:
                positions += fence.overlapping(*span)
    if written is None:
        fence.close_all()
    elif positions:
        fence.close(positions)
    if not fence.watches():
        watch.fence = None
