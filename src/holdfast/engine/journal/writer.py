"""Writes the journal of a run that this process has claimed.

An append is one conditional Put at the next position: the first process to write a position wins.
Records that become ready while a Put is under way share the next Put. When the records since the
last snapshot outweigh it, a new snapshot goes in front of them, and readers begin there. Older
records are not deleted: a free position would let a stalled owner write again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.engine.journal.fitting import (
    RecordedEvents,
    merged,
    pack_with_arguments,
    recorded_events,
)
from holdfast.engine.journal.payloads import (
    INLINE_BYTES_MAX,
    check_fits,
    compress_payload,
    delete_orphaned_blob,
    load_payloads,
    spill_if_large,
    unpack_payload,
)
from holdfast.engine.journal.reader import LoadedRun
from holdfast.engine.kernel.compaction import JournalTail, needs_snapshot
from holdfast.engine.kernel.kernel import STORE_RETRY_SECONDS, ClaimLost, Kernel, StoreOutage
from holdfast.errors import ConditionFailed, InvalidResult
from holdfast.model.event import Event, Extended, Fenced, Snapshot, without_arguments
from holdfast.model.execution import Execution
from holdfast.model.fold import folded, is_terminal, snapshot
from holdfast.records.codec import compress, encode, plain_bytes, unpack_events
from holdfast.records.head import Head
from holdfast.records.journal import (
    Content,
    content_of,
    extent_after_record,
    is_emptied,
    record_overhead_bytes,
    record_write,
)
from holdfast.records.owner_writes import snapshot_pointer_write

__all__ = ["JournalWriter", "PositionTaken"]

T = TypeVar("T")

# How many bytes of records share one Put; the rest takes the next position.
GROUP_BYTES_MAX = 100 * 1024
# How many events, or bytes of events, are collected before they are folded.
_UNFOLDED_MAX = 1_000
_UNFOLDED_BYTES_MAX = 256 * 1024
_EXTENDING_EVENTS = (Extended, Snapshot)
# Up to this size an unwritten run remembers its history; beyond it, only its current state.
_IN_MEMORY_BYTES_MAX = 512 * 1024


Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Future[None]"]


class PositionTaken(Exception):
    """Another process has written the position of the journal."""


class _PendingAppend(msgspec.Struct, eq=False):
    """The records of one caller, ready to be written; empty if the caller only waits for others."""

    events: tuple[Event, ...]
    """Without the arguments of calls, and so is their ``plain`` form."""
    plain: bytes
    done: asyncio.Future[None] | None = None
    """What the caller awaits; None for the caller that writes itself, and for buffered records."""
    error: BaseException | None = None
    barrier: bool = False
    """Whether nothing may depend on the records before they are written."""
    recorded: RecordedEvents | None = None
    """The events with the arguments of their calls, if they have any."""

    def resolve(self, error: BaseException | None) -> None:
        """Tell the caller the outcome."""
        self.error = error
        if self.done is None or self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class _Fold:
    """The fold of all written records: the content of a snapshot at the next position.

    The fold of the caller may be ahead of it, or behind. Few runs ever need a snapshot, so events
    are only collected until a caller asks for the fold, or there are many or large ones.
    """

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._unfolded: list[Event] = []
        self._unfolded_bytes = 0
        self._extended = execution.ttl > 0

    @property
    def execution(self) -> Execution:
        if self._unfolded:
            self._execution = folded(self._execution, self._unfolded)
            self._unfolded, self._unfolded_bytes = [], 0
        return self._execution

    def add(self, events: Sequence[Event], plain_bytes: int) -> None:
        """Add written events, with their size before compression."""
        self._unfolded += events
        self._unfolded_bytes += plain_bytes
        for event in events:
            if isinstance(event, _EXTENDING_EVENTS):
                self._extended = self.execution.ttl > 0
        if len(self._unfolded) > _UNFOLDED_MAX or self._unfolded_bytes > _UNFOLDED_BYTES_MAX:
            _ = self.execution

    def with_journal_ttl(self, head: Head) -> Head:
        """Return the row with the ttl of the journal."""
        return head.with_journal_lifetime(self.execution) if self._extended else head


class JournalWriter:
    """Writes the journal of one run that this process has claimed."""

    def __init__(
        self,
        kernel: Kernel,
        head: Head,
        loaded: LoadedRun,
        *,
        alive: Callable[[], bool],
        spawn: Spawn | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
        admit: Callable[[Sequence[Event], int], None] | None = None,
        store_retry_seconds: float = STORE_RETRY_SECONDS,
    ) -> None:
        """Continue a journal that was read.

        ``spawn`` starts a write that goes on if its caller is cancelled. ``on_failure`` receives
        the error of a failed write before the callers that wait for it. ``admit`` may refuse
        events with an `InvalidResult` before they are queued; it receives their encoded size.
        ``store_retry_seconds`` is how long a blob that cannot be written or read is retried.
        """
        self._store_retry_seconds = store_retry_seconds
        self._kernel = kernel
        self._head = head
        self._alive = alive
        self._spawn = spawn or _spawn
        self._on_failure = on_failure
        self._admit = admit
        self._buffered: list[_PendingAppend] = []
        self._queued: list[_PendingAppend] = []
        self._writing = False
        self._background_write: asyncio.Future[None] | None = None
        self._fold = _Fold(loaded.execution)
        self._tail = loaded.tail
        self._may_snapshot = True
        self._in_memory = loaded.in_memory is not None
        self._in_memory_bytes = 0
        self._in_memory_arguments_bytes = 0
        self._barriers = 0
        self.extent = loaded.extent
        self.outcome_unknown = False
        """Whether a write is under way, or was given up before its outcome was known."""

    def buffer(self, events: Sequence[Event], *, barrier: bool = False) -> bool:
        """Buffer records until the next durable append, unless they are large.

        Return whether they are buffered. Large records are not: if they turn out to be too large,
        their own caller must get the error. With ``barrier`` nothing may depend on the records
        before they are written: see `has_barrier`.

        Raises:
            InvalidResult: they cannot be stored.
        """
        entry = self._encode_append(events)
        if len(entry.plain) > GROUP_BYTES_MAX and not self._in_memory:
            return False
        if barrier and not self._in_memory:
            entry.barrier = True
            self._barriers += 1
        self._buffer_entry(entry)
        return True

    async def append(self, events: Sequence[Event]) -> None:
        """Write records and all buffered ones; when this returns, they are durable.

        Without records it writes the buffered ones in the caller's task; see also `flush`.

        Raises:
            InvalidResult: they cannot be stored; nothing was written.
            PositionTaken: another process has written the position; nothing was written.
            ClaimLost: this process lost the run before the outcome of the write was known.
            StoreOutage: they could not be written in time; they and the buffered ones are lost.
        """
        entry = self._encode_append(events)
        if self._in_memory:
            self._buffer_entry(entry)
            return
        self._queued += [*self._buffered, entry]
        self._buffered = []
        if self._writing:
            entry.done = asyncio.get_running_loop().create_future()
            await entry.done
            return
        self._writing = True
        await self._write_all(target=entry)
        if self._writing:
            # Records that came meanwhile are written in the background: this caller goes on.
            self._background_write = self._spawn(self._write_all())
        if entry.error is not None:
            raise entry.error

    def _encode_append(self, events: Sequence[Event]) -> _PendingAppend:
        # Encoded here, so that a value that cannot be stored fails before anything is queued.
        recorded = recorded_events(events)
        kept = tuple(events if recorded is None else map(without_arguments, events))
        entry = _PendingAppend(kept, encode(kept), recorded=recorded)
        if self._admit is not None:
            self._admit(events, len(entry.plain))
        return entry

    def _buffer_entry(self, entry: _PendingAppend) -> None:
        if self._in_memory:
            if len(entry.plain) > INLINE_BYTES_MAX:
                # Checked now and not when it is written: the caller must get the error.
                check_fits(self._kernel, compress(entry.plain))
            self._in_memory_bytes += len(entry.plain)
            if entry.recorded is not None:
                self._in_memory_arguments_bytes += entry.recorded.bytes
                if self._in_memory_arguments_bytes > _IN_MEMORY_BYTES_MAX:
                    entry.recorded = None
            if self._in_memory_bytes > _IN_MEMORY_BYTES_MAX:
                self._buffered = []  # a snapshot will be written instead
                return
        self._buffered.append(entry)

    async def persist(self, head: Head, execution: Execution) -> None:
        """Write the records of a run that was only in memory so far, before its row is written.

        Raises:
            InvalidResult: they cannot be stored.
            ClaimLost: this process lost the run.
        """
        self._head, self._in_memory, self._may_snapshot = head, False, False
        if self._in_memory_bytes > _IN_MEMORY_BYTES_MAX:
            now = self._kernel.clock.now_ms()
            whole = (snapshot(execution, now, size=0, blobs=False),)
            self._buffered = [_PendingAppend(whole, encode(whole))]
        await self.append(())
        self._may_snapshot = True

    @property
    def has_unwritten(self) -> bool:
        """Whether records are buffered, or being written."""
        return bool(self._buffered) or self._writing

    @property
    def has_buffered(self) -> bool:
        """Whether records are buffered."""
        return bool(self._buffered)

    @property
    def has_barrier(self) -> bool:
        """Whether there are unwritten records that nothing may depend on yet."""
        return self._barriers > 0

    async def flush(self) -> None:
        """Write all buffered records; return when they and those under way are durable.

        If the caller is cancelled, the write goes on.

        Raises:
            PositionTaken: another process has written the position, or the write was given up.
            StoreOutage: the records could not be written in time, and are lost.
        """
        if self.has_unwritten and not self._in_memory:
            done = asyncio.get_running_loop().create_future()
            self._buffered.append(_PendingAppend((), b"", done))
            self.begin_flush()
            await done

    def begin_flush(self) -> None:
        """Begin to write the buffered records in the background."""
        self._queued += self._buffered
        self._buffered = []
        if self._queued and not self._writing:
            self._writing = True
            self._background_write = self._spawn(self._write_all())

    async def _write_all(self, *, target: _PendingAppend | None = None) -> None:
        """Write the queued records in groups: all of them, or until the target is written."""
        group: list[_PendingAppend] = []
        try:
            while self._queued:
                group = self._next_group()
                await self._write_group(group, target)
                if target in group and self._queued:
                    return
        except BaseException as error:
            if self._on_failure is not None:
                self._on_failure(error)
            # All waiting callers get the error: the run is lost to all of them.
            known = isinstance(error, Exception | StoreOutage)
            shared = error if known else PositionTaken("the write was given up")
            for entry in (*group, *self._queued):
                if entry is not target:
                    entry.resolve(shared)
            self._queued = []
            self._writing = False
            raise
        self._writing = False

    def _next_group(self) -> list[_PendingAppend]:
        count, size = 0, 0
        while count < len(self._queued):
            entry = self._queued[count]
            size += len(entry.plain) + (entry.recorded.full_bytes if entry.recorded else 0)
            if count and size > GROUP_BYTES_MAX:
                break
            count += 1
        group, self._queued = self._queued[:count], self._queued[count:]
        return group

    async def _write_group(
        self, group: list[_PendingAppend], target: _PendingAppend | None
    ) -> None:
        full = [entry for entry in group if entry.events]
        events = [event for entry in full for event in entry.events]
        plain = full[0].plain if len(full) == 1 else encode(events)
        recorded = merged([(entry.events, entry.recorded) for entry in full])
        error_to_report: InvalidResult | None = None
        try:
            while events and not await self._put_record(events, plain, recorded):
                pass
        except InvalidResult as error:
            # Only a group of one entry can be too large, so its own caller gets the error.
            if any(entry.done is None and entry is not target for entry in group):
                raise  # no caller waits for it, and it must not be skipped
            error_to_report = error
        for entry in group:
            self._barriers -= entry.barrier
            entry.resolve(error_to_report)

    async def _put_record(
        self, events: list[Event], plain: bytes, recorded: RecordedEvents | None
    ) -> bool:
        """Write one record at the next position; return False if an extension took it.

        Raises:
            PositionTaken: another process has written the position.
        """
        position = self.extent.position
        head = self._fold.with_journal_ttl(self._head)
        snapshot_events, content = await self._build_content(head, events, plain, recorded)
        token = self._kernel.ids.new()
        put = record_write(head, position, content, token=token, whole=_survives_removal(events))
        self.outcome_unknown = True
        try:
            await self._kernel.resolve_write(self._kernel.journals, put, alive=self._alive)
        except ConditionFailed as failed:
            self.outcome_unknown = False
            await delete_orphaned_blob(self._kernel.blobs, content)
            if await self._absorb_extension(failed.item):
                return False
            raise PositionTaken(
                f"position {position} of run {self._head.key.id!r} is taken"
            ) from failed
        self.outcome_unknown = False
        self._advance([*snapshot_events, *events], content, len(plain))
        self._kernel.notifier.notify(self._head.key)
        if snapshot_events:
            await self._point_to_snapshot(position)
        return True

    async def _build_content(
        self, head: Head, events: list[Event], plain: bytes, recorded: RecordedEvents | None
    ) -> tuple[list[Event], Content]:
        """Return the snapshot that goes in front of the events, if one is due, and the content."""
        # A record that survives the removal of the run must not contain its state; and after the
        # end of a run only the event that reopens it may follow.
        snapshot_due = self._may_snapshot and needs_snapshot(
            self._tail, self._kernel.snapshot_floor_bytes
        )
        if snapshot_due and not _survives_removal(events) and self._fold.execution.ending is None:
            snapshot_events: list[Event] = [
                snapshot(
                    self._fold.execution,
                    self._kernel.clock.now_ms(),
                    size=self.extent.size,
                    blobs=self.extent.blobs,
                )
            ]
            try:
                whole = encode([*snapshot_events, *events])
                behind = merged([(snapshot_events, None), (events, recorded)])
                return snapshot_events, await self._store_content(head, whole, behind)
            except InvalidResult:
                # No item can hold it, and there is no bucket: a resume reads the whole journal.
                self._may_snapshot = False
        return [], await self._store_content(head, plain, recorded)

    async def _store_content(
        self, head: Head, plain: bytes, recorded: RecordedEvents | None
    ) -> Content:
        if recorded is None:
            data = await compress_payload(self._kernel, plain)
        else:

            def overhead_bytes() -> int:
                whole = _survives_removal(recorded.events)
                return record_overhead_bytes(head, self.extent.position, whole=whole)

            data = await pack_with_arguments(self._kernel, plain, recorded, overhead_bytes)
        if len(data) <= self._kernel.spill_bytes:
            return Content(data)
        name = f"{self.extent.position:08d}-{head.epoch}"
        return await self._retry_store_errors(
            lambda: spill_if_large(self._kernel, head, data, name)
        )

    async def _retry_store_errors(self, action: Callable[[], Awaitable[T]]) -> T:
        return await self._kernel.retry_store_errors(
            action, self._alive, seconds_max=self._store_retry_seconds
        )

    async def _absorb_extension(self, current: Mapping[str, Any] | None) -> bool:
        """Apply the record that took our position, if it only extends the run; return whether.

        An extension changes nothing that our own record depends on.
        """
        if current is None or is_emptied(current):
            return False
        content = content_of(current)
        (data,) = await self._retry_store_errors(lambda: load_payloads(self._kernel, [content]))
        events = await unpack_payload(self._kernel, data, unpack_events)
        if not all(isinstance(event, _EXTENDING_EVENTS) for event in events):
            return False
        self._advance(events, content, plain_bytes(data))
        return True

    def _advance(self, events: list[Event], content: Content, plain_bytes: int) -> None:
        """Apply the record that was written at the next position."""
        starts = isinstance(events[0], Snapshot)
        self._tail = JournalTail(content.size) if starts else self._tail.grown(content.size)
        self._fold.add(events, plain_bytes)
        self.extent = extent_after_record(self.extent, content)

    async def _point_to_snapshot(self, position: int) -> None:
        """Let the row point to a written snapshot, so that readers begin there.

        Raises:
            ClaimLost: another process has claimed the run.
        """
        head = self._head
        write = snapshot_pointer_write(
            head, position, now_ms=self._kernel.clock.now_ms(), token=self._kernel.ids.new()
        )
        try:
            await self._kernel.resolve_write(self._kernel.heads, write, alive=self._alive)
        except ConditionFailed as failed:
            current = failed.item or {}
            ours = (current.get("generation"), current.get("epoch"))
            if ours != (head.generation, head.epoch):
                raise ClaimLost from None
            # Otherwise the row points to a later snapshot.


def _spawn(write: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
    task = asyncio.ensure_future(write)
    task.add_done_callback(_consume_error)
    return task


def _consume_error(task: asyncio.Future[None]) -> None:
    if not task.cancelled():
        task.exception()  # retrieved: all waiting callers got it


def _survives_removal(events: Sequence[Event]) -> bool:
    return any(isinstance(event, Fenced) or is_terminal(event) for event in events)
