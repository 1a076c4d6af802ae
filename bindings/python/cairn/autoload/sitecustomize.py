"""What Python runs at its start under `cairn run`: the sitecustomize that it would have run
otherwise, then the hook of Cairn.

This folder is on PYTHONPATH, so it hides another sitecustomize: that one is found and run in its
own name.
"""

import importlib.machinery
import os
import sys


def _run_hidden(own: str) -> None:
    places = [place for place in sys.path if os.path.realpath(place or ".") != own]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", places)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec  # here, as it takes longer than all the rest

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _install(own: str) -> None:
    above = os.path.dirname(os.path.dirname(own))
    sys.path.insert(0, above)
    try:
        from cairn import _hook
    finally:
        sys.path.remove(above)
    _hook.install()


_own = os.path.dirname(os.path.realpath(__file__))
try:
    _install(_own)
except Exception as _error:  # a trainer starts all the same
    print(
        f"cairn: this process is NOT protected: {type(_error).__name__}: {_error}", file=sys.stderr
    )
_run_hidden(_own)
