"""A run's journal as its owner writes it.

To append is one conditional Put at the next position: whoever writes it first wins. Records that
become ready while a Put is under way travel together in the next one. Where what was written since
the last snapshot outweighs it, another one travels in front of them: readers begin there, and
nothing before it is deleted, since a freed position would let a stalled owner back in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from holdfast.engine.journal.payloads import (
    INLINE_BYTES_MAX,
    check_fits,
    compressed,
    contents_of,
    spilled,
    unpacked,
)
from holdfast.engine.journal.reader import Loaded
from holdfast.engine.kernel.compaction import Tail, due
from holdfast.engine.kernel.kernel import PATIENCE_SECONDS, Dropped, Kernel, Outage
from holdfast.errors import (
    ConditionFailed,
    InvalidResult,
    StoreError,
)
from holdfast.model.event import Event, Extended, Fenced, Snapshot
from holdfast.model.execution import Execution, ends, folded, snapshot
from holdfast.records.changes import pointed
from holdfast.records.codec import compress, encode, plain_bytes, unpack_events
from holdfast.records.head import Head
from holdfast.records.journal import Content, content_of, followed, is_emptied, record

__all__ = ["Conflict", "Journal"]

T = TypeVar("T")

# What one Put carries at most; what is over it takes the next position.
GROUP_BYTES_MAX = 100 * 1024
# What is collected before it is folded: so many events, or so many bytes of them.
_UNFOLDED_MAX = 1_000
_UNFOLDED_BYTES_MAX = 256 * 1024
_EXTENDING = (Extended, Snapshot)
# A run that is not written down remembers its history up to here, then only where it stands.
_UNWRITTEN_BYTES_MAX = 512 * 1024


Apart = Callable[[Coroutine[Any, Any, None]], "asyncio.Future[None]"]


class Conflict(Exception):
    """Somebody else's record stands at the position."""


class _Entry(msgspec.Struct, eq=False):
    """Records of one caller, ready to be written; none, where it waits for those of others."""

    events: tuple[Event, ...]
    plain: bytes
    done: asyncio.Future[None] | None = None
    """What its caller waits for; None for the one that writes, and for what was held back."""
    refusal: BaseException | None = None
    pressing: bool = False
    """Whether others must not go by it before it is written."""

    def learn(self, error: BaseException | None) -> None:
        """Tell whoever waits for it what became of it."""
        self.refusal = error
        if self.done is None or self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class _Fold:
    """The fold of what stands, which is what a snapshot at the next position holds.

    An appending caller may be ahead of it, or behind. Few runs ever come to a snapshot; so events
    are only collected, until a caller asks for the fold, or there are many, or large ones.
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
        """Take in what stands by now; it has so many bytes before compression."""
        self._unfolded += events
        self._unfolded_bytes += plain_bytes
        for event in events:
            if isinstance(event, _EXTENDING):
                self._extended = self.execution.ttl > 0
        if len(self._unfolded) > _UNFOLDED_MAX or self._unfolded_bytes > _UNFOLDED_BYTES_MAX:
            _ = self.execution

    def lasting(self, head: Head) -> Head:
        """Return the row with as long a life as the journal has."""
        return head.lasting(self.execution) if self._extended else head


class Journal:
    """The journal of a run that this process holds."""

    def __init__(
        self,
        kernel: Kernel,
        head: Head,
        loaded: Loaded,
        *,
        alive: Callable[[], bool],
        apart: Apart | None = None,
        lost: Callable[[BaseException], None] | None = None,
        admit: Callable[[Sequence[Event], int], None] | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Go on with a journal that was read.

        ``apart`` begins a write that goes on whatever becomes of whoever asked for it. ``lost``
        hears why a write did not come about before those do who wait for it: they may go on at
        once. ``admit`` may refuse events with an `InvalidResult` before they are queued; it is told
        how many bytes they have once they are encoded.
        ``patience_seconds`` is how long a blob that cannot be written or read is tried again.
        """
        self._patience_seconds = patience_seconds
        self._kernel = kernel
        self._head = head
        self._alive = alive
        self._apart = apart or _apart
        self._lost = lost
        self._admit = admit
        self._held: list[_Entry] = []
        self._waiting: list[_Entry] = []
        self._writing = False
        self._heir: asyncio.Future[None] | None = None
        self._fold = _Fold(loaded.execution)
        self._tail = loaded.tail
        self._compacts = True
        self._unwritten = loaded.unwritten is not None
        self._unwritten_bytes = 0
        self._pressing = 0
        self.context = loaded.context
        self.undecided = False
        """Whether a write was given up before its fate was known."""

    def hold(self, events: Sequence[Event], *, pressing: bool = False) -> bool:
        """Keep records back, to travel with the next that must be durable, unless they are large.

        Return whether they are kept back. What is large may turn out to be too large, and then
        whoever asked for it must learn of it, and not somebody else later. Nobody may go by what is
        ``pressing`` before it is written: see `presses`.

        Raises:
            InvalidResult: they cannot be kept.
        """
        entry = self._entry(events)
        if len(entry.plain) > GROUP_BYTES_MAX and not self._unwritten:
            return False
        if pressing and not self._unwritten:
            entry.pressing = True
            self._pressing += 1
        self._hold(entry)
        return True

    async def append(self, events: Sequence[Event]) -> None:
        """Write records; when this returns they are durable, and so is all that was held before.

        Raises:
            InvalidResult: they cannot be kept; nothing was written.
            Conflict: somebody else's record stands there; nothing was written.
            Dropped: this process lost the run before it learned what became of the write.
            Outage: they could not be written in time, nor what was held before: all of it is lost.
        """
        entry = self._entry(events)
        if self._unwritten:
            self._hold(entry)
            return
        self._waiting += [*self._held, entry]
        self._held = []
        if self._writing:
            entry.done = asyncio.get_running_loop().create_future()
            await entry.done
            return
        self._writing = True
        await self._write_all(until=entry)
        if self._writing:
            # What came meanwhile is not to keep whoever was first from going on.
            self._heir = self._apart(self._write_all())
        if entry.refusal is not None:
            raise entry.refusal

    def _entry(self, events: Sequence[Event]) -> _Entry:
        # Encoded here, so that what cannot be kept is known before anything is queued.
        entry = _Entry(tuple(events), encode(events))
        if self._admit is not None:
            self._admit(events, len(entry.plain))
        return entry

    def _hold(self, entry: _Entry) -> None:
        if self._unwritten:
            if len(entry.plain) > INLINE_BYTES_MAX:
                # Now, and not when it is written down: whoever asked for it must learn of it.
                check_fits(self._kernel, compress(entry.plain))
            self._unwritten_bytes += len(entry.plain)
            if self._unwritten_bytes > _UNWRITTEN_BYTES_MAX:
                self._held = []  # the whole fold will be written in its stead
                return
        self._held.append(entry)

    async def write_down(self, head: Head, execution: Execution) -> None:
        """Write what was only in memory so far, before the row is: nobody knows of it yet.

        Raises:
            InvalidResult: it cannot be kept.
            Dropped: this process lost the run.
        """
        self._head, self._unwritten, self._compacts = head, False, False
        if self._unwritten_bytes > _UNWRITTEN_BYTES_MAX:
            now = self._kernel.clock.now_ms()
            whole = (snapshot(execution, now, size=0, blobs=False),)
            self._held = [_Entry(whole, encode(whole))]
        await self.flush()
        self._compacts = True

    @property
    def holds(self) -> bool:
        """Whether records are held back, or on their way."""
        return bool(self._held) or self._writing

    @property
    def holds_back(self) -> bool:
        """Whether records wait for others to travel with."""
        return bool(self._held)

    @property
    def presses(self) -> bool:
        """Whether there are records by which nobody may go yet."""
        return self._pressing > 0

    async def flush(self) -> None:
        """Return when all is written, what was held back as well."""
        if self.holds:
            await self.append(())

    def flushed(self) -> asyncio.Future[None]:
        """Begin to write what is held back; return what ends once all of it is written.

        Whoever waits for it may be cancelled: that does not cut the write short.
        """
        entry = _Entry((), b"", asyncio.get_running_loop().create_future())
        self._held.append(entry)
        self.begin_flush()
        assert entry.done is not None
        return entry.done

    def begin_flush(self) -> None:
        """Begin to write what is held back."""
        self._waiting += self._held
        self._held = []
        if self._waiting and not self._writing:
            self._writing = True
            self._heir = self._apart(self._write_all())

    async def _write_all(self, *, until: _Entry | None = None) -> None:
        """Write what waits, in groups: all of it, or until a certain entry stands."""
        group: list[_Entry] = []
        try:
            while self._waiting:
                group = self._next_group()
                await self._write(group, until)
                if until in group and self._waiting:
                    return
        except BaseException as error:
            if self._lost is not None:
                self._lost(error)
            # Whoever waits must learn of it: the position, and so the run, is lost to all of them.
            known = isinstance(error, Exception | Outage)
            shared = error if known else Conflict("the write was given up")
            for entry in (*group, *self._waiting):
                if entry is not until:
                    entry.learn(shared)
            self._waiting = []
            self._writing = False
            raise
        self._writing = False

    def _next_group(self) -> list[_Entry]:
        count, size = 0, 0
        while count < len(self._waiting):
            size += len(self._waiting[count].plain)
            if count and size > GROUP_BYTES_MAX:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    async def _write(self, group: list[_Entry], until: _Entry | None) -> None:
        full = [entry for entry in group if entry.events]
        events = [event for entry in full for event in entry.events]
        plain = full[0].plain if len(full) == 1 else encode(events)
        refusal: InvalidResult | None = None
        try:
            while events and not await self._put(events, plain):
                pass
        except InvalidResult as error:
            # Only one alone can be too large, and it is nobody else's fault.
            if any(entry.done is None and entry is not until for entry in group):
                raise  # nobody waits for it, and it must not be passed over
            refusal = error
        for entry in group:
            self._pressing -= entry.pressing
            entry.learn(refusal)

    async def _put(self, events: list[Event], plain: bytes) -> bool:
        """Write one record at the next position; return whether that was still free.

        Raises:
            Conflict: somebody else's record stands there.
        """
        position = self.context.position
        head = self._fold.lasting(self._head)
        taken_along, content = await self._content(head, events, plain)
        token = self._kernel.ids.new()
        put = record(head, position, content, token=token, whole=_stays_whole(events))
        self.undecided = True
        try:
            await self._kernel.settle(self._kernel.journals, put, alive=self._alive)
        except ConditionFailed as failed:
            self.undecided = False
            if content.blob is not None and self._kernel.blobs is not None:
                with suppress(StoreError):
                    await self._kernel.blobs.delete(content.blob.key)  # nobody names it
            if await self._goes_on_after(failed.item):
                return False
            raise Conflict(f"position {position} of run {self._head.key.id!r} is taken") from failed
        self.undecided = False
        self._stood([*taken_along, *events], content, len(plain))
        self._kernel.news.tell(self._head.key)
        if taken_along:
            await self._point(position)
        return True

    async def _content(
        self, head: Head, events: list[Event], plain: bytes
    ) -> tuple[list[Event], Content]:
        """Return the snapshot that goes in front of the events, if one is due, and the record."""
        # What stays whole when a run is freed must not hold its state; and only what opens a run
        # again may follow its end.
        wanted = self._compacts and due(self._tail, self._kernel.snapshot_floor_bytes)
        if wanted and not _stays_whole(events) and self._fold.execution.ending is None:
            made: list[Event] = [
                snapshot(
                    self._fold.execution,
                    self._kernel.clock.now_ms(),
                    size=self.context.size,
                    blobs=self.context.blobs,
                )
            ]
            try:
                return made, await self._kept(head, encode([*made, *events]))
            except InvalidResult:
                # No item holds it, and there is no bucket: a resume reads all there is instead.
                self._compacts = False
        return [], await self._kept(head, plain)

    async def _kept(self, head: Head, plain: bytes) -> Content:
        data = await compressed(self._kernel, plain)
        if len(data) <= self._kernel.spill_bytes:
            return Content(data)
        name = f"{self.context.position:08d}-{head.epoch}"
        return await self._patiently(lambda: spilled(self._kernel, head, data, name))

    async def _patiently(self, action: Callable[[], Awaitable[T]]) -> T:
        return await self._kernel.patiently(action, self._alive, seconds_max=self._patience_seconds)

    async def _goes_on_after(self, standing: Mapping[str, Any] | None) -> bool:
        """Take in what stands where we meant to write, if it only gives the run more time.

        What we are about to write follows from what we know nevertheless.
        """
        if standing is None or is_emptied(standing):
            return False
        content = content_of(standing)
        (data,) = await self._patiently(lambda: contents_of(self._kernel, [content]))
        events = await unpacked(self._kernel, data, unpack_events)
        if not all(isinstance(event, _EXTENDING) for event in events):
            return False
        self._stood(events, content, plain_bytes(data))
        return True

    def _stood(self, events: list[Event], content: Content, plain_bytes: int) -> None:
        """Take in the record that stands at the next position."""
        starts = isinstance(events[0], Snapshot)
        self._tail = Tail(content.size) if starts else self._tail.grown(content.size)
        self._fold.add(events, plain_bytes)
        self.context = followed(self.context, content)

    async def _point(self, position: int) -> None:
        """Tell readers to begin at a snapshot that stands.

        Raises:
            Dropped: the run is not ours any more.
        """
        head = self._head
        write = pointed(
            head, position, now_ms=self._kernel.clock.now_ms(), token=self._kernel.ids.new()
        )
        try:
            await self._kernel.settle(self._kernel.heads, write, alive=self._alive)
        except ConditionFailed as failed:
            standing = failed.item or {}
            ours = (standing.get("generation"), standing.get("epoch"))
            if ours != (head.generation, head.epoch):
                raise Dropped from None
            # Otherwise somebody pointed further on.


def _apart(write: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
    writing = asyncio.ensure_future(write)
    writing.add_done_callback(_heard)
    return writing


def _heard(writing: asyncio.Future[None]) -> None:
    if not writing.cancelled():
        writing.exception()  # everybody whom it concerns was told


def _stays_whole(events: Sequence[Event]) -> bool:
    return any(isinstance(event, Fenced) or ends(event) for event in events)
