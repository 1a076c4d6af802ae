"""Loads the binding when, and only when, torch is imported: a process without it pays for one look
at each top-level import.

Called by autoload/sitecustomize.py, which `cairn run` puts on PYTHONPATH.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys

# every Python process of the job runs this: typing, which torch imports anyway, is half of its cost
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Optional, Sequence


def _torch_is_there() -> None:
    try:
        from . import _torch

        _torch.install()
    except Exception as error:  # protection is never worth a training run
        print(
            f"cairn: this process is NOT protected: {type(error).__name__}: {error}",
            file=sys.stderr,
            flush=True,
        )


class _Finder:
    """Finds nothing itself: it adds a call after the import of torch."""

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        loader = spec.loader if spec else None
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _torch_is_there()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Acts where an agent is named; CAIRN_PYTHON=0 turns it off."""
    if not os.environ.get("CAIRN_AGENT") or os.environ.get("CAIRN_PYTHON") == "0":
        return
    if "torch" in sys.modules:
        _torch_is_there()
    else:
        sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
