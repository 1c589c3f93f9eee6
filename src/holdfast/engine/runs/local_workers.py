"""What a part of the engine may ask of the workers in its own process."""

from __future__ import annotations

from typing import Protocol

from holdfast.engine.journal.reader import LoadedRun
from holdfast.records.head import Head
from holdfast.records.index_keys import IndexKey
from holdfast.records.keys import RunKey

__all__ = ["NO_WORKERS", "LocalWorkers", "ReservedSlot"]


class ReservedSlot(Protocol):
    """Room that a worker keeps for a run: it is to be taken, or given back."""

    owner: str

    def start_run(self, head: Head, loaded: LoadedRun | None = None) -> None:
        """Let the worker go on with the run; ``loaded`` is what is known of it."""
        ...

    def release(self, *, maybe_claimed: bool = False) -> None:
        """Let the worker have its room back; if unsure, the run may yet stand under its name."""
        ...


class LocalWorkers(Protocol):
    """The workers of this process. All that they do for others is a shortcut."""

    def reserve(self, run: RunKey, graph: str, pool: str | None) -> ReservedSlot | None:
        """Keep room for a run with one of them, if any has room."""
        ...

    def take_cached_head(self, run: RunKey) -> Head | None:
        """Return a row as it once was, if we know it; whoever uses it compares it with what is."""
        ...

    def offer(self, place: IndexKey) -> None:
        """Tell them that a run is due."""
        ...

    def interrupt(self, run: RunKey) -> None:
        """Tell whoever holds the run that somebody wrote into its journal."""
        ...

    def on_signal(self, run: RunKey) -> None:
        """Tell whoever holds the run that a signal came."""
        ...

    def has_claimed(self, run: RunKey) -> bool:
        """Return whether one of them drives the run."""
        ...

    async def wait_for_exit(self, run: RunKey) -> None:
        """Return when the row of a run that has ended here says so."""
        ...


class _NoWorkers:
    """A process without workers."""

    def reserve(self, run: RunKey, graph: str, pool: str | None) -> None:
        return None

    def take_cached_head(self, run: RunKey) -> None:
        return None

    def offer(self, place: IndexKey) -> None: ...

    def interrupt(self, run: RunKey) -> None: ...

    def on_signal(self, run: RunKey) -> None: ...

    def has_claimed(self, run: RunKey) -> bool:
        return False

    async def wait_for_exit(self, run: RunKey) -> None: ...


NO_WORKERS: LocalWorkers = _NoWorkers()
