"""The journal of a claimed run: events are written, then folded into the execution.

Nothing is written after the worker lost the run, and no write is cut short: what cancels a node
does not cancel the writes that the node began.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from holdfast.engine.execution.claim import Claim
from holdfast.engine.execution.memory_use import RunMemory
from holdfast.engine.execution.run_row import RunRow
from holdfast.engine.execution.waits import Waits
from holdfast.engine.journal.reader import LoadedRun
from holdfast.engine.journal.writer import JournalWriter, PositionTaken
from holdfast.engine.kernel.kernel import ClaimLost, StoreOutage
from holdfast.errors import InvalidResult
from holdfast.model.event import CallFinished, Event, SignalSetAside, SignalTaken
from holdfast.model.execution import Execution
from holdfast.model.fold import folded
from holdfast.records.head import Head, JournalExtent

__all__ = ["JournalConflict", "JournalSession"]

T = TypeVar("T")

# A node acts on these: no call begins before they are durable.
_URGENT_EVENTS = (CallFinished, SignalSetAside, SignalTaken)


class JournalConflict(BaseException):
    """Another process wrote into the journal, so what the node does may no longer be wanted."""


class JournalSession:
    """The journal of one claimed run, from the claim until the driver stops."""

    def __init__(self, claim: Claim, row: RunRow, waits: Waits) -> None:
        self.memory = RunMemory(claim.kernel.limits, 0)
        """How much the run holds in memory."""
        self._claim = claim
        self._row = row
        self._waits = waits
        self._execution = _initial_execution(row.head)
        self._writer: JournalWriter | None = None
        self._writing: set[asyncio.Future[Any]] = set()
        # Events that are being written and are not folded yet.
        self._in_flight: dict[int, Sequence[Event]] = {}

    @property
    def execution(self) -> Execution:
        """The fold of all events that were read or written."""
        return self._execution

    @property
    def writer(self) -> JournalWriter | None:
        """The writer; None where the journal must be read before the next write."""
        return self._writer

    @property
    def is_loaded(self) -> bool:
        """Whether the execution is all that the journal tells, as far as we know."""
        return self._writer is not None

    @property
    def extent(self) -> JournalExtent:
        """How far the journal reaches."""
        return self._row.head.extent if self._writer is None else self._writer.extent

    @property
    def has_unresolved_write(self) -> bool:
        """Whether the result of a write is not known yet."""
        return bool(self._writing) or (self._writer is not None and self._writer.outcome_unknown)

    @property
    def writes(self) -> frozenset[asyncio.Future[Any]]:
        """The writes in progress: they go on when the task that asked for them is cancelled."""
        return frozenset(self._writing)

    def load(self, loaded: LoadedRun) -> None:
        """Continue from what was read of the journal."""
        self._execution = loaded.execution
        self.memory = RunMemory(self._claim.kernel.limits, loaded.plain_bytes)
        self._writer = JournalWriter(
            self._claim.kernel,
            self._row.head,
            loaded,
            alive=self._claim.alive,
            spawn=self._start_write,
            on_failure=self._on_write_failed,
            admit=self._admit_events,
            store_retry_seconds=self._claim.owner.store_retry_seconds,
        )

    def invalidate(self) -> None:
        """Have the journal read again before the next write: it may hold more than we know.

        Writes that are under way go on. The execution stays as it was until `load`.
        """
        self._writer = None

    def close(self) -> None:
        """Free the writer when the driver has stopped.

        The writer and the session refer to each other. Without this only the garbage collector
        would free them, and the state of the run with them.
        """
        if not self.has_unresolved_write:
            self._writer = None

    async def write(self, events: Sequence[Event], *, durable: bool = True) -> None:
        """Write events and fold them.

        Raises:
            PositionTaken: another process wrote into the journal.
            StoreOutage: earlier events were lost in an outage.
        """
        writer = self._writer
        if self._claim.outage is not None:
            raise self._claim.outage
        if writer is None:  # invalidated: another process wrote into it
            raise PositionTaken
        self._in_flight[id(events)] = events
        try:
            if durable or not writer.buffer(events):
                await writer.append(events)
        finally:
            self._in_flight.pop(id(events), None)  # Python has only one empty tuple
        self._fold(events)

    async def record(
        self, *events: Event, durable: bool, on_resolved: Callable[[], None] | None = None
    ) -> None:
        """Write events of a running node and fold them.

        Events that need not be durable become so within milliseconds, or with the next write.
        ``on_resolved`` is called when a durable write was folded or has failed, also where the node
        was cancelled in between. It is not called where no write began.

        Raises:
            ClaimLost: this worker no longer owns the run, or the node has ended.
            JournalConflict: another process wrote into the journal.
            InvalidResult: the events cannot be stored.
        """
        self._claim.check_alive()
        if not self._claim.in_node:
            raise ClaimLost  # the node has ended, but a task that it began goes on
        writer, urgent = self._writer, any(isinstance(event, _URGENT_EVENTS) for event in events)
        taken = [event for event in events if isinstance(event, SignalTaken | SignalSetAside)]
        for event in taken:
            self._waits.mark_taking(event.name, event.id)
        try:
            if not durable and writer is not None and writer.buffer(events, barrier=urgent):
                self._fold(events)
                if writer.has_barrier:
                    self._claim.owner.flusher.schedule(self)
                return
            await self.shield_write(self._write_and_notify(events, on_resolved))
        except PositionTaken:
            raise JournalConflict from None
        except InvalidResult:
            for event in taken:
                self._waits.unmark_taking(event.name, event.id)
            raise

    async def _write_and_notify(
        self, events: Sequence[Event], on_resolved: Callable[[], None] | None
    ) -> None:
        try:
            await self.write(events)
        finally:
            if on_resolved is not None:
                on_resolved()

    def flush_buffered(self) -> None:
        """Begin to write the buffered events, if a call waits for them."""
        writer = self._writer
        # Events that are being written already need no flush.
        if (
            not self._claim.stopped
            and writer is not None
            and writer.has_barrier
            and writer.has_buffered
        ):
            writer.begin_flush()

    async def wait_durable(self) -> None:
        """Return when all urgent events are durable.

        Raises:
            ClaimLost: this worker no longer owns the run.
            JournalConflict: another process wrote into the journal.
        """
        self._claim.check_alive()
        writer = self._writer
        if writer is None:
            raise JournalConflict
        if writer.has_barrier:
            try:
                await writer.flush()
            except PositionTaken:
                self._claim.check_alive()
                raise JournalConflict from None
            self._claim.check_alive()

    async def shield_write(self, write: Coroutine[Any, Any, T]) -> T:
        """Write in a task of its own, which goes on where the caller is cancelled.

        If a cancelled node cut a write short, its result would stay unknown.
        """
        return await asyncio.shield(self._start_write(write))

    async def wait_for_writes(self) -> None:
        """Return when the result of every write that was begun is known."""
        if self._writing:
            await asyncio.wait(self._writing)

    def _start_write(self, write: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        writing = asyncio.ensure_future(write)
        self._writing.add(writing)
        writing.add_done_callback(self._on_write_done)
        return writing

    def _on_write_done(self, writing: asyncio.Future[Any]) -> None:
        self._writing.discard(writing)
        # Where the node was cancelled, no caller is left that could see the error.
        error = None if writing.cancelled() else writing.exception()
        if error is not None:
            self._on_write_failed(error)

    def _on_write_failed(self, error: BaseException) -> None:
        if isinstance(error, PositionTaken | StoreOutage):
            self.invalidate()
        if isinstance(error, StoreOutage):
            self._claim.mark_outage(error)

    def _fold(self, events: Sequence[Event]) -> None:
        before, self._execution = self._execution, folded(self._execution, events)
        if self._execution.spent != before.spent:
            self._waits.recheck_budget()

    def _admit_events(self, events: Sequence[Event], plain_bytes: int) -> None:
        """Check that the run does not outgrow the memory limit.

        Raises:
            ResultTooLarge: it would.
        """
        if self.memory.leaves_room(plain_bytes):
            self.memory.bytes += plain_bytes
            return
        others = [each for each in self._in_flight.values() if each is not events]
        in_flight = itertools.chain.from_iterable(others)
        self.memory.admit(events, plain_bytes, before=self._execution, in_flight=in_flight)


def _initial_execution(head: Head) -> Execution:
    return Execution(
        seed=head.seed,
        state={},
        node=head.node,
        nodes_run=head.nodes_run,
        spent_ms=head.spent_ms,
    )
