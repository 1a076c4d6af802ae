"""Which tensors of several ranks are the same: the ranks of a job exchange their names."""

from __future__ import annotations

import json
from typing import Dict, List, Optional, Tuple

from . import _modules, _ranks, _tensors
from ._layout import Layout
from ._models import Models
from ._ranks import Place
from ._state import plain_names

NAMES_KEY, ALIKE_KEY = "names", "alike"
COMPARED_MAX = 8  # parameters whose elements, and moments', are compared
OWN = b"own"  # told instead of what is compared: this rank shares nothing


class Names:
    def __init__(self, models: Models) -> None:
        self._models = models
        # the names of plain parameters that the other ranks have been told
        self._published: Optional[List[str]] = None
        self._agreed: Tuple[Optional[List[str]], Dict[str, Tuple[str, int, int]]] = (None, {})
        # what is shared was told to the other ranks, and it is not known yet whether they have the
        # same
        self._compares = False
        # what DDP should keep so. None: was never looked at; False: no rank shares it any more
        self._alike: Optional[bool] = None

    def agree(self, layout: Layout, here: Place, step: int) -> None:
        """Which plain tensors are the same on which ranks: those share the copying.

        Only DDP declares plain tensors, and is not believed where may_be_confirmed finds
        otherwise. That they are equal now does not mean that they stay so, and a snapshot half from
        one rank and half from another would be nobody's state: without a declaration each rank
        keeps its own, under its rank's name.
        """
        if here.world == 1:
            return
        if self._is_replicated():
            # What an optimizer has beside the modules is each rank's own.
            held = {
                id(each)
                for root in self._models.roots.values()
                for _, each in _modules.named_parameters(root)
            }
            shared = {
                name: (name, here.rank, here.world)
                if id(each) in held
                else (f"rank{here.rank}/{name}", 0, 1)
                for name, each in layout.plain_parameters().items()
            }
            layout.share(shared, here, buffers_of_rank_0=True)
            if self._alike is None and not self._compares and _ranks.has_store():
                alike = [
                    each
                    for _, each in sorted(layout.plain_parameters().items())
                    if id(each) in held and each.requires_grad
                ]
                some = alike[:: -(-len(alike) // COMPARED_MAX) or 1]
                # which differ even after an update whose learning rate was 0
                some += layout.states_of(some)
                # The first rank to see a difference asks for the names, and may be waited for by
                # those who have not looked yet.
                self._publish(sorted(layout.plain_parameters()), here)
                _ranks.publish(ALIKE_KEY, f"{step} {_tensors.sample_digest(some)}".encode(), here)
                self._compares = True
            return
        plain = sorted(layout.plain_parameters())
        if self._agreed[0] != plain:
            self._publish(plain, here)
            if self._alike is None:  # others may take this rank for one that shares with them
                _ranks.publish(ALIKE_KEY, OWN, here)
                self._alike, self._compares = False, False
            others = [json.loads(each) for each in _ranks.gather(NAMES_KEY, here)]
            alone = {name for name in plain if sum(name in each for each in others) == 1}
            self._agreed = plain, {
                name: (name if name in alone else f"rank{here.rank}/{name}", 0, 1) for name in plain
            }
        layout.share(self._agreed[1], here, buffers_of_rank_0=False)

    def _is_replicated(self) -> bool:
        roots = self._models.roots.values()
        return bool(roots) and self._alike is not False and all(map(_modules.replicates, roots))

    def may_be_confirmed(self, here: Place, wait_s: float = 0.0) -> bool:
        """Whether a snapshot that the ranks share is one state: before the first is confirmed each
        has told some of what it holds.

        False where they differ, and then once: from the next `agree` on each rank has its own.
        False, too, while not all have told, and nobody is waited for longer than that. Those who
        were not at the same step can not be compared.
        """
        if not self._compares:
            return True
        told = _ranks.gather_if_there(ALIKE_KEY, here, wait_s) if _ranks.has_store() else None
        if told is None:
            return not _ranks.has_store()
        self._compares = False
        by_step: Dict[bytes, bytes] = {}
        self._alike = OWN not in told and all(
            by_step.setdefault(*each.split()) == each.split()[1] for each in told
        )
        if not self._alike:
            self.publish_early()
        return self._alike

    def differ(self) -> bool:
        """What DDP should keep alike was seen to differ, or is not shared by all ranks."""
        return self._alike is False

    def publish_early(self) -> None:
        """Right after an update: where the ranks are the stages of a pipeline a rank's next forward
        begins only when the one before has sent something to it, which would then be waiting for
        these names."""
        here = _ranks.place()
        if here.world > 1 and _ranks.has_store() and not self._is_replicated():
            self._publish(plain_names(self._models.roots, self._models.live(), here.world), here)

    def _publish(self, plain: List[str], here: Place) -> None:
        """Where it has changed. All ranks publish before they gather: of two that have a name in
        common one at least sees it."""
        if self._published != plain:
            _ranks.publish(NAMES_KEY, json.dumps(plain).encode(), here)
            self._published = plain
