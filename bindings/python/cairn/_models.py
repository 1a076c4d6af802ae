"""The modules and optimizers of a job: named by a script, or seen in its forwards and steps."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Set

from . import _deepspeed, _forwards, _modules, _ranks, _tensors, _watch
from ._known import Known
from ._zero import Zero, is_zero


class Models:
    """`changed` is called when something was added; `forgotten`, with its id, when an optimizer is
    gone."""

    def __init__(self, changed: Callable[[], None], forgotten: Callable[[int], None]) -> None:
        self._changed, self._forgotten = changed, forgotten
        self.known: List[Known] = []
        self.alive: Dict[int, Known] = {}  # by the optimizer's id
        self.roots: Dict[str, Any] = {}  # prefix → module
        self._seen: "weakref.WeakSet[Any]" = weakref.WeakSet()  # modules that need no further look
        self._stop_watching: Optional[Callable[[], None]] = None
        self._handles: List[Callable[[], None]] = []
        self._attached = False

    def attach(self, models: Mapping[str, Any], optimizers: Iterable[Any]) -> None:
        """These, instead of all others."""
        self.unwatch()
        for remove in self._handles:
            remove()
        self._attached = True
        self.roots, self.known, self.alive, self._handles = {}, [], {}, []
        self._changed()
        for name, module in models.items():
            self.add_root(module, f"{name}." if name else "")
        for optimizer in optimizers:
            self.add_optimizer(optimizer)

    def replace(self, module: Any, known: Known) -> None:
        """Replaces all roots and optimizers by these; the optimizer's number is 0."""
        self.attach({"": module}, [])
        optimizer = known.optimizer()
        number = id(optimizer)
        known.optimizer = weakref.ref(optimizer, lambda _: self._forget_optimizer(number))
        self.alive[number] = known
        self.known.append(known)
        _watch.guard_step(optimizer)

    def add_optimizer(self, optimizer: Any) -> None:
        number = id(optimizer)
        reference = weakref.ref(optimizer, lambda _: self._forget_optimizer(number))
        if is_zero(optimizer):
            self._add_zero(optimizer, reference)
        else:
            self.alive[number] = Known(reference, len(self.known))
            self.known.append(self.alive[number])
            _watch.guard_step(optimizer)
        # What was called before may hold parameters of this one.
        self._seen = weakref.WeakSet(
            module for root in self.roots.values() for module in root.modules()
        )
        self._changed()
        self._watch()

    def _add_zero(self, zero: Any, reference: Callable[[], Any]) -> None:
        """One of DeepSpeed's: instead of the inner optimizer that it steps."""
        inner = self.alive.pop(id(zero.optimizer), None)
        number = len(self.known) if inner is None else inner.number
        known = Zero(reference, number, lambda: _deepspeed.engine_of(reference()))
        for holder in known.holders():
            self.alive.pop(id(holder), None)
        self.known[number : number + 1] = [known]
        self.alive[id(zero)] = known
        _deepspeed.watch_steps(zero)

    def _forget_optimizer(self, number: int) -> None:
        """An optimizer is gone."""
        self.alive.pop(number, None)
        self._forgotten(number)

    def live(self) -> List[Known]:
        live = [known for known in self.known if known.optimizer() is not None]
        inside = {
            id(holder)
            for known in live
            for holder in known.holders()
            if holder is not known.optimizer()
        }
        return [known for known in live if id(known.optimizer()) not in inside]

    def _watch(self) -> None:
        if self._stop_watching is None and not self._attached:  # what is attached is named already
            self._stop_watching = _forwards.watch_forwards()

    def is_watching(self) -> bool:
        return self._stop_watching is not None

    def unwatch(self) -> None:
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None

    def refusals(self) -> List[str]:
        """Why optimizers cannot be covered; logged before the first step, for of one whose
        steps are not seen it never would be."""
        world = _ranks.place().world
        return [why for why in (known.refusal(world) for known in self.live()) if why]

    def wanted(self) -> Set[int]:
        """The ids of all parameters of the optimizers."""
        return {id(parameter) for known in self.live() for parameter in known.trained()}

    def saw_forward(self, module: Any) -> bool:
        """Some module's forward begins. True: it is a root, and was not known.

        Nothing is watched any more once a root that holds all that is trained is called in
        training. In an evaluation it may be a part of the whole: a script evaluates its encoder, or
        the module inside DDP, before it trains.
        """
        module = _modules.in_engine(module)
        known = module in self._seen
        if not known:
            if self.wanted().isdisjoint(id(parameter) for parameter in module.parameters()):
                self._seen.update(module.modules())
                return False
            self.add_root(module)
        if (
            _tensors.is_training()
            and module.training
            and any(module is root for root in self.roots.values())
        ):
            self.unwatch_if_complete()
        return not known

    def unwatch_if_complete(self) -> None:
        if self._stop_watching is None:
            return
        if self.wanted() <= {
            id(parameter) for root in self.roots.values() for parameter in root.parameters()
        }:
            self.unwatch()

    def add_root(self, module: Any, prefix: Optional[str] = None) -> None:
        module = _modules.in_engine(module)
        inside = set(map(id, module.modules()))
        for name in [name for name, root in self.roots.items() if id(root) in inside]:
            del self.roots[name]  # it was called on its own before the module that holds it
        if prefix is None:
            prefix = next(
                each
                for each in ("", *(f"model{count}." for count in range(1, len(self.roots) + 1)))
                if each not in self.roots
            )
        self.roots[prefix] = module
        self._seen.update(module.modules())
        self._handles.append(_forwards.watch_root(module))
        self._changed()
