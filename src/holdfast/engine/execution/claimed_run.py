"""A run while a worker holds it: its row, its journal and its inbox, and who writes into them.

Nothing here decides what becomes of the run. It sees to it that nothing is written once the run is
not ours any more, that no write is cut short, and that what is known follows what stands.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.engine.execution.memory_use import RunMemory
from holdfast.engine.execution.owner import Owner
from holdfast.engine.execution.waits import Waits
from holdfast.engine.journal.in_memory import RunExists
from holdfast.engine.journal.reader import LoadedRun, read_inbox
from holdfast.engine.journal.signal_payloads import SignalPayloads
from holdfast.engine.journal.writer import JournalWriter, PositionTaken
from holdfast.engine.kernel.kernel import ClaimLost, Kernel, StoreOutage
from holdfast.engine.runs.starting import create_run, write_input
from holdfast.errors import ConditionFailed, InvalidInput, InvalidResult
from holdfast.model.event import CallFinished, Event, SignalTaken
from holdfast.model.execution import Execution
from holdfast.model.fold import folded
from holdfast.model.signals import Signal, is_caller_signal
from holdfast.model.wait import Wait
from holdfast.records import owner_writes
from holdfast.records.head import OPEN, Head, InboxSize, head_of
from holdfast.records.head import JournalExtent as JournalContext
from holdfast.storage import Update

__all__ = ["ClaimedRun", "JournalConflict"]

T = TypeVar("T")

_INBOX_SIZE_TRIES = 3
# What a node may act on: nothing is begun before it is durable.
_URGENT_EVENTS = (CallFinished, SignalTaken)


class JournalConflict(BaseException):
    """Somebody else wrote into the journal: what a node is about may no longer be wanted."""


class ClaimedRun:
    """One claimed run."""

    def __init__(self, kernel: Kernel, owner: Owner, head: Head, loaded: LoadedRun | None) -> None:
        """Take a run over; ``loaded`` is what is known of one that was only just made."""
        self.head = head
        self.execution = _initial_execution(head)
        self.inbox: list[Signal] = []
        self.waits = Waits()
        self.journal: JournalWriter | None = None
        """None where what we know of it may not be all there is: then it is read again."""
        self.kernel = kernel
        self.owner = owner
        # As it was when the run was claimed: a worker that takes a new name holds nothing of it.
        self.worker_id = owner.id
        self.in_node = False
        self.stopped = False
        """Whether nobody drives it any more."""
        self.released = False
        """Whether the row says that the run is not ours any more."""
        self.in_memory_start = None if loaded is None else loaded.in_memory
        """Who started it, where it began in memory."""
        self.in_memory = self.in_memory_start
        """The same as long as nothing of it is written."""
        self.outage: StoreOutage | None = None
        """Why what happened could not be written in time: then it is lost, and the run released."""
        self._writing: set[asyncio.Future[Any]] = set()
        # Events that are being written, and not folded yet.
        self._in_flight: dict[int, Sequence[Event]] = {}
        # What was taken of callers' signals since the row last said what waits in the inbox.
        self._taken_since_update = InboxSize()
        self._payloads = SignalPayloads(kernel, head.key)
        self._row_lock = asyncio.Lock()
        if loaded is not None:
            self.apply_loaded(loaded)

    def now_ms(self) -> int:
        """Return the time."""
        return self.kernel.clock.now_ms()

    async def sleep(self, seconds: float) -> None:
        """Wait without letting go of the run."""
        await self.kernel.clock.sleep(seconds)

    def alive(self) -> bool:
        """Return whether the run may be written into, as far as our lease tells."""
        return self.owner.id == self.worker_id and self.owner.alive()

    def is_lost(self) -> bool:
        """Return whether it is not ours any more, and will not be.

        One that is not alive may be so again: the renewal of its lease may have been carried out
        in time, and its answer come late, to a process that stood still.
        """
        return self.stopped or self.owner.id != self.worker_id

    def check_alive(self) -> None:
        """Check that it is still ours.

        Raises:
            Dropped: it is not.
            Outage: it is, but something that happened could not be written in time.
        """
        if not self.alive():
            raise ClaimLost
        if self.outage is not None:
            raise self.outage

    async def retry_store_errors(self, action: Callable[[], Awaitable[T]]) -> T:
        """Do something again until the store can be used, as long as the run is ours.

        Raises:
            Outage: the store could not be used for too long.
            Dropped: the run is no longer ours.
        """
        return await self.kernel.retry_store_errors(
            action, self.alive, seconds_max=self.owner.store_retry_seconds
        )

    def mark_stopped(self) -> None:
        """Hear that its driver has stopped."""
        self.stopped = True
        if not self.has_unresolved_write:
            # The journal knows us, and we know it: only the garbage collector would free them, and
            # all that the run holds with them, at some later time.
            self.journal = None

    def apply_loaded(self, loaded: LoadedRun) -> None:
        """Begin with what was read of it."""
        self.execution = loaded.execution
        self.memory = RunMemory(self.kernel.limits, loaded.plain_bytes)
        self.inbox = loaded.inbox
        self.waits.reset(self.execution, self.stored_waits())
        # An owner before us may have taken what the row still counts.
        counted, waits = self.head, self.inbox_size()
        self._taken_since_update = InboxSize(
            max(counted.inbox_items - waits.items, 0), max(counted.inbox_bytes - waits.bytes, 0)
        )
        self.pop_answered()
        self.journal = JournalWriter(
            self.kernel,
            self.head,
            loaded,
            alive=self.alive,
            spawn=self._start_write,
            on_failure=self._on_write_failed,
            admit=self._admit_events,
            store_retry_seconds=self.owner.store_retry_seconds,
        )

    # --- the journal ------------------------------------------------------------------------------

    @property
    def extent(self) -> JournalContext:
        """How far the journal reaches."""
        return self.head.extent if self.journal is None else self.journal.extent

    @property
    def has_unresolved_write(self) -> bool:
        """Whether a write is under way of which nobody knows yet what becomes of it."""
        return bool(self._writing) or (self.journal is not None and self.journal.outcome_unknown)

    async def write_events(self, events: Sequence[Event], *, durable: bool = True) -> None:
        """Write down what happened, and fold it.

        Raises:
            Conflict: somebody else wrote into the journal.
        """
        journal = self.journal
        if self.outage is not None:
            raise self.outage
        if journal is None:  # interrupted: somebody else wrote into it
            raise PositionTaken
        self._in_flight[id(events)] = events
        try:
            if durable or not journal.buffer(events):
                await journal.append(events)
        finally:
            self._in_flight.pop(id(events), None)  # the empty tuple is one for all
        self._fold(events)

    async def record(
        self, *events: Event, durable: bool, on_resolved: Callable[[], None] | None = None
    ) -> None:
        """Write down what happened inside a node, and fold it.

        What need not be durable is so after some milliseconds, or with what is written before.
        ``decided`` is called in the step that folds what was written durably, or when that failed,
        also where the node was cancelled meanwhile; but not where no write began.

        Raises:
            Dropped: the run is no longer ours, or the node is over.
            Overtaken: somebody else wrote into its journal.
            InvalidResult: it cannot be kept.
        """
        self.check_alive()
        if not self.in_node:
            raise ClaimLost  # the node is over, though something that it began goes on
        journal, pressing = self.journal, any(isinstance(event, _URGENT_EVENTS) for event in events)
        taken = [event for event in events if isinstance(event, SignalTaken)]
        for event in taken:
            self.waits.mark_taking(event.name, event.id)
        try:
            if not durable and journal is not None and journal.buffer(events, barrier=pressing):
                self._fold(events)
                if journal.has_barrier:
                    self.owner.flusher.schedule(self)
                return
            await self.shield_write(self._write_and_notify(events, on_resolved))
        except PositionTaken:
            raise JournalConflict from None
        except InvalidResult:
            for event in taken:
                self.waits.unmark_taking(event.name, event.id)
            raise

    async def _write_and_notify(
        self, events: Sequence[Event], on_resolved: Callable[[], None] | None
    ) -> None:
        try:
            await self.write_events(events)
        finally:
            if on_resolved is not None:
                on_resolved()

    def flush_buffered(self) -> None:
        """Begin to write what is still held back."""
        journal = self.journal
        # What is on its way already needs nobody to send it.
        if (
            not self.stopped
            and journal is not None
            and journal.has_barrier
            and journal.has_buffered
        ):
            journal.begin_flush()

    async def wait_durable(self) -> None:
        """Return when all that was recorded is durable.

        Raises:
            Dropped: the run is no longer ours.
            Overtaken: somebody else wrote into its journal.
        """
        self.check_alive()
        journal = self.journal
        if journal is None:
            raise JournalConflict
        if journal.has_barrier:
            try:
                await journal.flush()
            except PositionTaken:
                self.check_alive()
                raise JournalConflict from None
            self.check_alive()

    async def shield_write(self, write: Coroutine[Any, Any, T]) -> T:
        """Write in a task of its own.

        What cancels a node must not cut a write short, whose fate would then be unknown.
        """
        return await asyncio.shield(self._start_write(write))

    async def wait_for_writes(self) -> None:
        """Return when every write that was begun is decided."""
        if self._writing:
            await asyncio.wait(self._writing)

    def _start_write(self, write: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        writing = asyncio.ensure_future(write)
        self._writing.add(writing)
        writing.add_done_callback(self._on_write_done)
        return writing

    def _on_write_done(self, writing: asyncio.Future[Any]) -> None:
        self._writing.discard(writing)
        # No caller may be left to hear of it, where the node was cancelled.
        error = None if writing.cancelled() else writing.exception()
        if error is not None:
            self._on_write_failed(error)

    def _on_write_failed(self, error: BaseException) -> None:
        """Hear that a write did not come about."""
        if isinstance(error, PositionTaken | StoreOutage):
            self.journal = None
        if isinstance(error, StoreOutage):
            self.outage = error  # or the run would go on without what is lost

    def _fold(self, events: Sequence[Event]) -> None:
        before, self.execution = self.execution, folded(self.execution, events)
        if self.execution.spent != before.spent:
            self.waits.recheck_budget()

    def _admit_events(self, events: Sequence[Event], plain_bytes: int) -> None:
        """Check that the run does not hold more than it may.

        Raises:
            ResultTooLarge: it would.
        """
        if self.memory.leaves_room(plain_bytes):
            self.memory.bytes += plain_bytes
            return
        others = [each for each in self._in_flight.values() if each is not events]
        in_flight = itertools.chain.from_iterable(others)
        self.memory.admit(events, plain_bytes, before=self.execution, in_flight=in_flight)

    # --- the inbox --------------------------------------------------------------------------------

    async def read_inbox(self) -> None:
        """Read the inbox again."""
        self.inbox = await self.retry_store_errors(
            lambda: read_inbox(self.kernel, self.head, self.execution.taken)
        )
        self.waits.mark_changed()

    def inbox_size(self) -> InboxSize:
        """Return how much of what callers sent was not taken."""
        return _inbox_size(self.untaken_signals())

    def count_taken(self, signal: Signal) -> None:
        """Hear that a signal was taken."""
        taken = _inbox_size((signal,))
        self._taken_since_update = InboxSize(
            self._taken_since_update.items + taken.items,
            self._taken_since_update.bytes + taken.bytes,
        )

    async def update_inbox_size(self) -> None:
        """Say in the row what waits in the inbox, if much was taken since the run last paused.

        A run with many branches may not pause for days, and would seem to have a full inbox.

        Raises:
            Dropped: the run is no longer ours.
            Overtaken: somebody else wrote into its journal.
        """
        limits = self.kernel.limits
        if (
            2 * self._taken_since_update.items < limits.inbox_items_max
            and 2 * self._taken_since_update.bytes < limits.inbox_bytes_max
        ):
            return
        await self.shield_write(self._update_inbox_size())

    async def _update_inbox_size(self) -> None:
        async with self._row_lock:
            for _ in range(_INBOX_SIZE_TRIES):
                known, taken = self.execution.taken, self._taken_since_update
                # What is taken, but not durably, waits again if we crash.
                await self.wait_durable()
                signals = self.head.signals
                inbox = _inbox_size(one for one in self.inbox if (one.name, one.id) not in known)
                try:
                    await self.update_row(
                        owner_writes.inbox_count_write, signals=signals, inbox=inbox
                    )
                except ConditionFailed as failed:
                    await self.reload_after_conflict(failed)  # another signal came meanwhile
                else:
                    items, bytes = (
                        self._taken_since_update.items - taken.items,
                        self._taken_since_update.bytes - taken.bytes,
                    )
                    self._taken_since_update = InboxSize(items, bytes)
                    self._restore_signal_count(signals)
                    return

    async def load_payload(self, signal: Signal) -> Any:
        """Return what a signal carries that is about to be taken.

        Raises:
            JournalDamaged: it cannot be read.
        """
        return await self.retry_store_errors(
            lambda: self._payloads.read(signal, self.untaken_signals())
        )

    def untaken_signals(self) -> list[Signal]:
        """Return the signals in the inbox that were not taken, nor are about to be."""
        return self.waits.untaken(self.inbox, self.execution)

    def was_taken(self, name: str) -> bool:
        """Return whether a signal of that name was taken, or is about to be."""
        return self.waits.was_taken(name, self.execution)

    def pop_answered(self) -> list[str]:
        """Return the branches whose wait is over by now; they no longer wait."""
        return self.waits.pop_answered(self.inbox, self.execution, self.now_ms())

    def known_waits(self, branch: str) -> list[Wait]:
        """Return what a branch is known to wait for, as it began."""
        known = [*self.waits.last_waits(branch), *self.head.waits, *self.journaled_waits(branch)]
        return [wait for wait in known if wait.branch == branch]

    def journaled_waits(self, branch: str) -> tuple[Wait, ...]:
        """Return what a branch waits for, as far as the journal tells."""
        strand = self.execution.strand(branch)
        return () if strand is None else strand.waits

    def stored_waits(self) -> list[Wait]:
        """Return what the run waits for: what its row says, and what only its journal does."""
        journalled = [
            wait for _, strand in self.execution.runnable_strands() for wait in strand.waits
        ]
        return [*self.head.waits, *journalled]

    # --- the row ----------------------------------------------------------------------------------

    async def update_row(self, change: Callable[..., Update], **values: Any) -> None:
        """Change the row.

        Raises:
            ConditionFailed: it was not changed.
            Dropped: our lease ended before we knew.
        """
        head = self.head
        write = change(head, now_ms=self.now_ms(), token=self.kernel.ids.new(), **values)
        item = await self.kernel.resolve_write(
            self.kernel.heads,
            write,
            alive=self.alive,
            was_applied=lambda current: _was_applied(write, head, current),
        )
        self.head = msgspec.structs.replace(head_of(item), needs_fence=head.needs_fence)

    async def retry_row_update(self, change: Callable[..., Update], **values: Any) -> None:
        """Change the row, also where the run is extended, or to be cancelled, meanwhile.

        Raises:
            Dropped: something else is against it.
        """
        while True:
            before = self.head
            try:
                await self.update_row(change, **values)
                return
            except ConditionFailed as failed:
                # Not the inbox, too: its blobs may be what cannot be read, and the run is released.
                self._apply_row(failed.item)
                if _requests_in(self.head) == _requests_in(before):
                    raise ClaimLost from None  # what else is against it stays

    async def reload_after_conflict(self, failed: ConditionFailed) -> None:
        """Take in what the row says by now, if the run is still ours, and read the inbox."""
        self._apply_row(failed.item)
        await self.read_inbox()

    async def read_row(self) -> None:
        """Read the row again: what is new in the journal may be so there, too."""
        self._apply_row(
            await self.retry_store_errors(lambda: self.kernel.heads.get(self.head.key.head))
        )

    async def refresh_row(self) -> None:
        """Read the row again while a node runs: the run may have been given more time, or money.

        Raises:
            Dropped: the run is no longer ours.
        """
        if self.in_memory is not None:
            return
        signals = self.head.signals
        await self.read_row()
        self._restore_signal_count(signals)

    async def close_inbox_if_expired(self) -> bool:
        """Take no signal any more if the run is past its expiry; return whether it is.

        Whoever reads the inbox after this misses none.
        """
        while self.now_ms() >= self.head.expires_ms:
            if self.head.status not in OPEN:
                return True
            try:
                await self.update_row(owner_writes.close_write, status="closing")
            except ConditionFailed as failed:
                await self.reload_after_conflict(failed)  # it may have been extended
        return False

    async def mark_as_parent(self) -> Head:
        """Return the row once it says that the run has children."""
        async with self._row_lock:
            self.check_alive()
            if not self.head.children:
                await self.persist()
                signals = self.head.signals
                await self.retry_row_update(owner_writes.mark_parent_write)
                self._restore_signal_count(signals)
            return self.head

    def _restore_signal_count(self, signals: int) -> None:
        """The inbox was not read: what came since is still unseen, and a pause must say so."""
        self.head = msgspec.structs.replace(self.head, signals=signals)

    def _apply_row(self, item: Mapping[str, Any] | None) -> None:
        current = None if item is None else head_of(item)
        if (
            current is None
            or current.generation != self.head.generation
            or current.epoch != self.head.epoch
        ):
            raise ClaimLost
        self.head = msgspec.structs.replace(
            current,
            needs_fence=self.head.needs_fence,
            # When its waits began we may know better: the row hears of it at the next pause.
            waits=self.head.waits,
            # What was read may be older than what another branch wrote since.
            children=current.children or self.head.children,
        )

    # --- a run that began in memory ---------------------------------------------------------------

    async def persist_in_node(self) -> None:
        """Make it durable because a node wants something that others would see."""
        self.check_alive()
        async with self._row_lock:
            await self.shield_write(self.persist())

    async def persist(self) -> None:
        """Make a run durable that was only in memory so far: its journal first, then its row."""
        in_memory, journal = self.in_memory, self.journal
        if in_memory is None or journal is None:
            return
        try:
            head = await self.retry_store_errors(lambda: self._write_input(in_memory.packed_input))
            await journal.persist(head, self.execution)
            extent = msgspec.structs.replace(
                journal.extent,
                size=journal.extent.size + head.extent.size,
                blobs=journal.extent.blobs or head.extent.blobs,
            )
            head = msgspec.structs.replace(head, extent=extent)
            # Until it is known: done anew, it would be another generation's.
            self.head = await create_run(self.kernel, head, alive=self.alive)
        except (RunExists, InvalidInput, InvalidResult) as error:
            in_memory.mark_refused(error)
            raise ClaimLost from None
        self.in_memory = None

    async def _write_input(self, packed: bytes) -> Head:
        # Its generation is as old as what it names, so that nobody sweeps that away.
        head = msgspec.structs.replace(self.head, generation=self.kernel.ids.new())
        return await write_input(self.kernel, head, packed)

    def notify_starter(self) -> None:
        """Tell whoever started it in memory what became of it, if nobody did so before."""
        if self.in_memory_start is not None and self.in_memory is None:
            self.in_memory_start.mark_written()
        elif self.in_memory_start is not None:
            self.in_memory_start.mark_lost()


def _was_applied(write: Update, head: Head, current: dict[str, Any]) -> bool:
    """Return whether our write was carried out, though somebody changed the row since."""
    epoch = write.set.get("epoch", head.epoch)
    if current.get("generation") != head.generation or current.get("epoch") != epoch:
        return False
    if epoch == head.epoch:
        wanted = {name: value for name, value in write.set.items() if name != "updated_ms"}
        return wanted.items() <= current.items() and not set(write.remove) & current.keys()
    return current.get("torn", False) == head.needs_fence


def _requests_in(head: Head) -> tuple[int, int, str | None]:
    """Return what may be asked of a run, in its row, while a worker holds it."""
    return head.ttl, head.expires_ms, head.cancel


def _inbox_size(signals: Iterable[Signal]) -> InboxSize:
    """Return how much of these signals callers sent."""
    sizes = [signal.size for signal in signals if is_caller_signal(signal.name)]
    return InboxSize(len(sizes), sum(sizes))


def _initial_execution(head: Head) -> Execution:
    return Execution(
        seed=head.seed,
        state={},
        node=head.node,
        nodes_run=head.nodes_run,
        spent_ms=head.spent_ms,
    )
