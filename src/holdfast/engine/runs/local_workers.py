"""The workers of this process, as the parts of the engine see them that start or wake runs."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from holdfast.engine.journal.reader import LoadedRun
from holdfast.records.head import Head
from holdfast.records.index_keys import IndexKey
from holdfast.records.keys import RunKey

__all__ = ["NO_WORKERS", "LocalWorkers", "ReservedSlot", "SlotHandover", "reserve_slot"]


class ReservedSlot(Protocol):
    """A slot that a worker keeps for a run; use it through `reserve_slot`."""

    owner: str
    """The name of the worker, which the caller writes into the run's row."""

    def start_run(self, head: Head, loaded: LoadedRun | None = None) -> None:
        """Drive the run, whose row names the worker; ``loaded`` is what is known of the run."""
        ...

    def release(self, *, maybe_claimed: bool = False) -> None:
        """Give the slot back; ``maybe_claimed`` if the run's row may name the worker."""
        ...


class LocalWorkers(Protocol):
    """The workers of this process. Everything works without them too, only later."""

    def reserve(self, run: RunKey, graph: str, pool: str | None) -> ReservedSlot | None:
        """Reserve a slot for a run in one of the workers, if any has one free."""
        ...

    def take_cached_head(self, run: RunKey) -> Head | None:
        """Return the cached row. It may be stale: use it only in conditional writes."""
        ...

    def offer(self, place: IndexKey) -> None:
        """Let every worker try to claim a run that is due."""
        ...

    def interrupt(self, run: RunKey) -> None:
        """Tell the driver of a run that another process wrote into the run's journal."""
        ...

    def on_signal(self, run: RunKey) -> None:
        """Tell the driver of a run that a signal came."""
        ...

    def on_cancelled(self, head: Head) -> None:
        """Report that this process cancelled a run that no worker had claimed."""
        ...

    def has_claimed(self, run: RunKey) -> bool:
        """Return whether one of the workers drives the run."""
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

    def on_cancelled(self, head: Head) -> None: ...

    def has_claimed(self, run: RunKey) -> bool:
        return False

    async def wait_for_exit(self, run: RunKey) -> None: ...


NO_WORKERS: LocalWorkers = _NoWorkers()


class SlotHandover:
    """Hands a run that is being started or woken over to the workers of this process.

    The run goes to the worker that has a slot reserved for it. Without a slot, every worker of this
    process is told that the run is due.
    """

    def __init__(self, workers: LocalWorkers, slot: ReservedSlot | None) -> None:
        self._workers = workers
        self._slot = slot
        self.owner = None if slot is None else slot.owner
        """The worker that the caller writes into the run's row; None leaves the run due."""

    def start_run(self, head: Head, loaded: LoadedRun | None = None) -> None:
        """Let the worker with the slot drive the run; without a slot, offer the run if it is due.

        A run that waits, in a session queue or for its start time, gives the slot back.
        """
        if self._slot is not None and head.owner is not None:
            slot, self._slot = self._slot, None
            slot.start_run(head, loaded)
            return
        self.release()
        if head.reason is None and head.index_key is not None:
            self._workers.offer(head.index_key)

    def release(self, *, maybe_claimed: bool = False) -> None:
        """Give the slot back, unless the run has it; ``maybe_claimed`` as in `ReservedSlot`."""
        if self._slot is not None:
            slot, self._slot = self._slot, None
            slot.release(maybe_claimed=maybe_claimed)


@contextmanager
def reserve_slot(
    workers: LocalWorkers,
    run: RunKey,
    graph: str,
    pool: str | None,
    *,
    unwritten: tuple[type[BaseException], ...],
) -> Generator[SlotHandover, None, None]:
    """Reserve a slot for a run while the block writes the run's row, under the worker's name.

    A block that does not call `SlotHandover.start_run` gives the slot back. ``unwritten`` are the
    errors after which the row certainly does not name the worker; after any other error it may.
    """
    handover = SlotHandover(workers, workers.reserve(run, graph, pool))
    try:
        yield handover
    except BaseException as error:
        handover.release(maybe_claimed=not isinstance(error, unwritten))
        raise
    handover.release()
