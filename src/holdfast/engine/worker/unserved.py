"""The graphs whose runs need something that this worker's process does not have."""

from __future__ import annotations

from holdfast.clock import Clock
from holdfast.records.index_keys import IndexKey

__all__ = ["UnservedGraphs"]

# How long other workers have to claim a due run before this worker does. It must be longer than
# their polls. A run that no other worker claims is tried again here.
_DEFERRAL_MS = 10_000
# For how long the worker remembers after the last such run: longer than the longest backoff of one.
_MEMORY_MS = 600_000


class UnservedGraphs:
    """Remembers them for a while, so that other workers get the chance to claim their runs first.

    The worker does not leave them for ever: most nodes of such a graph may need nothing.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found_ms: dict[str, int] = {}

    def add(self, graph: str) -> None:
        """Remember a graph: a node of it asked for something that is not here."""
        self._found_ms[graph] = self._clock.now_ms()

    def __contains__(self, graph: str) -> bool:
        found_ms = self._found_ms.get(graph)
        return found_ms is not None and self._clock.now_ms() - found_ms < _MEMORY_MS

    def defers(self, place: IndexKey) -> bool:
        """Return whether the worker leaves a due run to other workers for now."""
        if not self._found_ms or place.due_queue().graph not in self:
            return False
        return self._clock.now_ms() - place.due_parts()[0] < _DEFERRAL_MS
