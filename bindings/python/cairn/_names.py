"""Which tensors of several ranks are one and the same: what the ranks of a job tell each other of their names."""

from __future__ import annotations

import json
from typing import Dict, List, Optional, Tuple

from ._models import Models
from ._state import Layout, Place, plain_names

NAMES_KEY = "names"


class Names:
    def __init__(self, models: Models) -> None:
        self._models = models
        self._published: Optional[List[str]] = None  # the names of plain parameters that the other ranks have been told
        self._agreed: Tuple[Optional[List[str]], Dict[str, Tuple[str, int, int]]] = (None, {})

    def agree(self, layout: Layout, here: Place) -> None:
        """Which plain tensors are the same on which ranks: those share the copying.

        Only DDP says so of plain tensors. That they are equal now does not mean that they stay so, and a snapshot half from one rank
        and half from another would be nobody's state: where nothing says so each rank keeps its own, under its rank's name.
        """
        from . import _torch

        if here.world == 1:
            return
        if all(_torch.replicates(root) for root in self._models.roots.values()) and self._models.roots:
            # What an optimizer has beside the modules is each rank's own.
            held = {id(each) for root in self._models.roots.values() for _, each in _torch.named_parameters(root)}
            shared = {
                name: (name, here.rank, here.world) if id(each) in held else (f"rank{here.rank}/{name}", 0, 1)
                for name, each in layout.plain_parameters().items()
            }
            layout.share(shared, here, buffers_of_rank_0=True)
            return
        plain = sorted(layout.plain_parameters())
        if self._agreed[0] != plain:
            self._publish(plain, here)
            others = [json.loads(each) for each in _torch.gather(NAMES_KEY, here)]
            alone = {name for name in plain if sum(name in each for each in others) == 1}
            self._agreed = plain, {name: (name if name in alone else f"rank{here.rank}/{name}", 0, 1) for name in plain}
        layout.share(self._agreed[1], here, buffers_of_rank_0=False)

    def publish_early(self) -> None:
        """Right after an update: where the ranks are the stages of a pipeline a rank's next forward begins only when the one before
        has sent something to it, which would then be waiting for these names."""
        from . import _torch

        here = _torch.place()
        if here.world > 1 and _torch.has_store() and not all(map(_torch.replicates, self._models.roots.values())):
            self._publish(plain_names(self._models.roots, self._models.live(), here.world), here)

    def _publish(self, plain: List[str], here: Place) -> None:
        """Where it has changed. All ranks publish before they gather: of two that have a name in common one at least sees it."""
        from . import _torch

        if self._published != plain:
            _torch.publish(NAMES_KEY, json.dumps(plain).encode(), here)
            self._published = plain
