"""State that no snapshot holds, or why none are taken: kept here, and reported to the agent for its
status.

A new look at everything replaces its earlier findings; findings while the script runs stay.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

from . import _lib


class Problems:
    """Why nothing may be snapshot (lines), and what is worth knowing (notes)."""

    def __init__(self) -> None:
        self.lines: List[str] = []
        self.notes: List[str] = []
        self.uncovered: List[_lib.Uncovered] = []  # of both, for the agent
        # parameters of no module: captured, but not found again without cairn.attach
        self.unnamed: List[str] = []

    def refuse(self, kind: int, name: str, why: str, line: str) -> None:
        self.lines.append(line)
        self.uncovered.append(_lib.Uncovered(kind, name, why))

    def note(self, kind: int, name: str, why: str, line: str) -> None:
        self.notes.append(line)
        self.uncovered.append(_lib.Uncovered(kind, name, why))


class Coverage:
    """The report of this rank."""

    def __init__(self) -> None:
        self._refusal = ""
        self._found: List[_lib.Uncovered] = []
        self._lasting: Dict[Tuple[int, str], _lib.Uncovered] = {}
        self._client: Optional[_lib.Client] = None

    def serve(self, client: Optional[_lib.Client]) -> None:
        """From now on reports to this client's agent; None: to nobody."""
        self._client = client
        self._tell()

    def refuse(self, reason: str) -> None:
        """Why no snapshots are taken; "": they are."""
        if reason != self._refusal:
            self._refusal = reason
            self._tell()

    def found(self, items: Sequence[_lib.Uncovered]) -> None:
        """Replaces the findings of the earlier look at everything."""
        self._found = list(items)
        self._tell()

    def add(self, kind: int, name: str, reason: str) -> None:
        """Something that stays uncovered."""
        item = _lib.Uncovered(kind, name, reason)
        if self._lasting.get((kind, name)) != item:
            self._lasting[kind, name] = item
            self._tell()

    def _tell(self) -> None:
        """The library sends it only if it has changed, and to each agent that connects later."""
        if self._client is None:
            return
        try:
            self._client.report_coverage(self._refusal, [*self._found, *self._lasting.values()])
        except _lib.CairnError:
            pass  # no memory: standard error has it all
