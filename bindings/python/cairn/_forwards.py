"""Hooks before the forwards of modules, also of those that torch.compile has in a graph."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable

import torch

from ._quiet import never_compiled, quiet

if TYPE_CHECKING:
    from ._job import Job

# the script compiles with fullgraph=True, where a hook that leaves the graph is an error
_whole_graphs = False


def _is_exporting() -> bool:
    """Parameters are stand-ins then."""
    return bool(getattr(torch.compiler, "is_exporting", lambda: True)())


def _outside_whole_graphs(hook: Callable[..., Any]) -> Callable[[torch.nn.Module, Any], Any]:
    """A forward's hook that compiled code leaves itself for, but not where that is an error: there
    it is not called."""

    def call(module: torch.nn.Module, arguments: Any) -> Any:
        if torch.compiler.is_compiling() and (_whole_graphs or _is_exporting()):
            return None
        return hook(module, arguments)

    never_compiled(call)
    return call


@_outside_whole_graphs
@quiet
def _any_forward(job: Job, module: torch.nn.Module, _args: Any) -> None:
    job.saw_forward(module)


@_outside_whole_graphs
@quiet
def _root_forward(job: Job, module: torch.nn.Module, _args: Any) -> None:
    job.before_forward(module)


@quiet
def _compiled_forward(job: Job, module: torch.nn.Module) -> None:
    job.before_compiled_forward(module)


def see_whole_graphs() -> None:
    """Learns whether the script compiles with fullgraph=True, and sees forwards of modules that are
    compiled in place so: their hooks are inside."""
    compiles, compiles_in_place = torch.compile, torch.nn.Module.compile

    @functools.wraps(compiles)
    def compile_(*arguments: Any, **options: Any) -> Any:
        global _whole_graphs
        _whole_graphs = _whole_graphs or bool(options.get("fullgraph"))
        return compiles(*arguments, **options)

    @functools.wraps(compiles_in_place)
    def compile_in_place(self: torch.nn.Module, *arguments: Any, **options: Any) -> None:
        compiles_in_place(self, *arguments, **options)
        compiled = self._compiled_call_impl

        def call(*inputs: Any, **named: Any) -> Any:
            if not torch.compiler.is_compiling():
                _compiled_forward(self)
            return compiled(*inputs, **named)

        never_compiled(call)
        self._compiled_call_impl = call

    torch.compile = compile_
    torch.nn.Module.compile = compile_in_place  # type: ignore[method-assign]


def watch_forwards() -> Callable[[], None]:
    """Calls the job before every forward of any module, until the returned function is called."""
    return torch.nn.modules.module.register_module_forward_pre_hook(_any_forward).remove


def watch_root(module: torch.nn.Module) -> Callable[[], None]:
    """Calls the job before every forward of this module, and before its other hooks: parameters are
    still sharded then."""
    return module.register_forward_pre_hook(_root_forward, prepend=True).remove
