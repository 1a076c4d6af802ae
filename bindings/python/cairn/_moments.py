"""Moments that are restored while the script goes on: a first forward and backward read the
parameters alone.

Nobody sees them half-filled. Until they are complete a placeholder is in the `state` of their
optimizers, and its users wait. It then goes: no optimizer ever steps with it.
"""

from __future__ import annotations

import copy
import threading
from typing import Any, Callable, Dict, Iterable, Iterator, MutableMapping, Optional


class Awaited(MutableMapping[Any, Any]):
    """Stands for `real`, the state of an optimizer that is being filled. `finish` returns when it
    is complete, or raises."""

    def __init__(self, real: MutableMapping[Any, Any], finish: Callable[[], None]) -> None:
        self._real, self._finish = real, finish

    def complete(self) -> MutableMapping[Any, Any]:
        self._finish()
        return self._real

    def __getitem__(self, key: Any) -> Any:
        return self.complete()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.complete()[key] = value

    def __delitem__(self, key: Any) -> None:
        del self.complete()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.complete())

    def __len__(self) -> int:
        return len(self.complete())

    def __contains__(self, key: Any) -> bool:
        return key in self.complete()

    def get(self, key: Any, default: Any = None) -> Any:
        return self.complete().get(key, default)

    def __repr__(self) -> str:
        return repr(self.complete())

    def __deepcopy__(self, memo: Dict[int, Any]) -> Any:
        return copy.deepcopy(self.complete(), memo)

    def __copy__(self) -> Any:
        return copy.copy(self.complete())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.complete().__reduce_ex__(protocol)


class Filling:
    """Runs `fill` in a thread, and keeps what it fills, the states of these optimizers, from view
    until it has returned."""

    def __init__(self, fill: Callable[[], None], optimizers: Iterable[Any]) -> None:
        self._error: Optional[BaseException] = None
        self._hidden = []
        for optimizer in optimizers:
            awaited = Awaited(optimizer.state, self.finish)
            self._hidden.append((optimizer, awaited, optimizer.state))
            optimizer.state = awaited
        # Not a daemon: the interpreter must not take down tensors that are being written to.
        self._thread: Optional[threading.Thread] = threading.Thread(
            target=self._run, args=(fill,), name="cairn-restore"
        )
        try:
            self._thread.start()
        except RuntimeError:  # the system has none to give
            self._thread = None
            self._run(fill)

    def _run(self, fill: Callable[[], None]) -> None:
        try:
            fill()
        except BaseException as error:
            self._error = error

    def finish(self) -> None:
        """Waits, and shows the states again; raises what `fill` raised, each time."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        for optimizer, awaited, real in self._hidden:
            if optimizer.state is awaited:  # and was not replaced meanwhile
                optimizer.state = real
        self._hidden = []
