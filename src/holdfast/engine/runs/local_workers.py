"""What a part of the engine may ask of the workers in its own process."""

from __future__ import annotations

from typing import Protocol

from holdfast.engine.journal.reader import Loaded
from holdfast.records.head import Head
from holdfast.records.keys import Place, RunKey

__all__ = ["NOBODY", "Hands", "Reserved"]


class Reserved(Protocol):
    """Room that a worker keeps for a run: it is to be taken, or given back."""

    owner: str

    def take(self, head: Head, loaded: Loaded | None = None) -> None:
        """Let the worker go on with the run; ``loaded`` is what is known of it."""
        ...

    def give_back(self, *, unsure: bool = False) -> None:
        """Let the worker have its room back; if unsure, the run may yet stand under its name."""
        ...


class Hands(Protocol):
    """The workers of this process. All that they do for others is a shortcut."""

    def reserve(self, run: RunKey, graph: str, pool: str | None) -> Reserved | None:
        """Keep room for a run with one of them, if any has room."""
        ...

    def recall(self, run: RunKey) -> Head | None:
        """Return a row as it once was, if we know it; whoever uses it compares it with what is."""
        ...

    def offer(self, place: Place) -> None:
        """Tell them that a run is due."""
        ...

    def interrupt(self, run: RunKey) -> None:
        """Tell whoever holds the run that somebody wrote into its journal."""
        ...

    def hear(self, run: RunKey) -> None:
        """Tell whoever holds the run that a signal came."""
        ...

    def holds(self, run: RunKey) -> bool:
        """Return whether one of them drives the run."""
        ...

    async def settled(self, run: RunKey) -> None:
        """Return when the row of a run that has ended here says so."""
        ...


class _Nobody:
    """A process without workers."""

    def reserve(self, run: RunKey, graph: str, pool: str | None) -> None:
        return None

    def recall(self, run: RunKey) -> None:
        return None

    def offer(self, place: Place) -> None: ...

    def interrupt(self, run: RunKey) -> None: ...

    def hear(self, run: RunKey) -> None: ...

    def holds(self, run: RunKey) -> bool:
        return False

    async def settled(self, run: RunKey) -> None: ...


NOBODY: Hands = _Nobody()
