"""A run's journal as the engine reads and writes it.

To append is one conditional Put at the next position: whoever writes it first wins. Records that
become ready while a Put is under way travel together in the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.engine.kernel import Kernel
from holdfast.errors import (
    ConditionFailed,
    InvalidResult,
    JournalDamaged,
    StoreUnavailable,
    StoreUnusable,
)
from holdfast.model.event import Event, Fenced
from holdfast.model.execution import Execution, ends, folded
from holdfast.model.signals import Signal
from holdfast.records.codec import compress, encode, unpack_events, unpack_value
from holdfast.records.head import Context, Head
from holdfast.records.journal import Content, content_of, record
from holdfast.records.keys import (
    blob_prefix,
    inbox_range,
    is_inbox,
    journal_range,
    position_in,
)
from holdfast.storage import Table

__all__ = ["Conflict", "Journal", "Loaded", "contents_of", "load", "read_inbox", "spilled"]

# What one Put carries at most; what is over it takes the next position.
GROUP_BYTES_MAX = 100 * 1024
# Where there is no room for blobs, an item must do. The rest is for keys and attributes.
_INLINE_BYTES_MAX = 380 * 1024
# Up to here it takes less time to compress than to hand it to a thread.
_COMPRESSED_INLINE_BYTES_MAX = 256 * 1024
_BLOBS_AT_ONCE = 16


class Conflict(Exception):
    """Somebody else's record stands at the position."""


class Loaded(msgspec.Struct):
    """A run as its journal tells it."""

    execution: Execution
    context: Context
    inbox: list[Signal]
    events: list[Event]
    """All of them where they were asked for, otherwise none."""


async def load(kernel: Kernel, head: Head, *, keep_events: bool = False) -> Loaded:
    """Read a run's journal and inbox, consistently, in one Query (and a page for each MB more).

    Raises:
        JournalDamaged: a record is missing or cannot be read.
    """
    items = await _records(kernel.journals, head, 0)
    contents = await contents_of(kernel, [content_of(item) for item in items])
    context = Context()
    inbox: list[Signal] = []
    events: list[Event] = []
    execution: Execution | None = None
    if head.input is not None:
        execution = _begun(head, unpack_value(head.input))
    for item, data in zip(items, contents, strict=True):
        context = _grown(context, content_of(item))
        if is_inbox(item["SK"]):
            if _in_time(item, head):
                inbox.append(_signal(item, data))
            continue
        position = position_in(item["SK"])
        if position == 0:
            execution = _begun(head, unpack_value(data))
            continue
        if execution is None or position != context.position:
            raise JournalDamaged(f"record {context.position} of run {head.key.id!r} is missing")
        context = msgspec.structs.replace(context, position=position + 1)
        recorded = unpack_events(data)
        execution = folded(execution, recorded)
        if keep_events:
            events += recorded
    if execution is None:
        raise JournalDamaged(f"the input of run {head.key.id!r} is missing")
    return Loaded(execution, context, inbox, events)


async def read_inbox(kernel: Kernel, head: Head) -> list[Signal]:
    """Read what lies in a run's inbox, consistently."""
    items = [item async for item in kernel.inboxes.every(head.key.pk, inbox_range(head.generation))]
    contents = await contents_of(kernel, [content_of(item) for item in items])
    return [
        _signal(item, data)
        for item, data in zip(items, contents, strict=True)
        if _in_time(item, head)
    ]


async def spilled(kernel: Kernel, head: Head, data: bytes, name: str) -> Content:
    """Return packed bytes as an item can hold them: beside the table where they are large.

    Raises:
        InvalidResult: they are too large, and the store has no room beside the table.
    """
    if len(data) <= kernel.spill_bytes:
        return Content(data)
    blobs = kernel.blobs
    if blobs is not None:
        key = blob_prefix(head.kept, head.key, head.generation) + name
        return Content(None, await blobs.put(data, key=key))
    if len(data) > _INLINE_BYTES_MAX:
        raise InvalidResult(
            f"this has {len(data):,} bytes once it is compressed, and an item holds at most "
            f"{_INLINE_BYTES_MAX:,}; larger values need a bucket: add &bucket=NAME to the address"
        )
    return Content(data)


class _Entry(msgspec.Struct, eq=False):
    """Records of one caller, ready to be written."""

    events: tuple[Event, ...]
    plain: bytes
    done: asyncio.Future[None] | None = None


class Journal:
    """The journal of a run that this process holds."""

    def __init__(
        self, kernel: Kernel, head: Head, context: Context, *, alive: Callable[[], bool]
    ) -> None:
        self._kernel = kernel
        self._head = head
        self._alive = alive
        self._held: list[_Entry] = []
        self._waiting: list[_Entry] = []
        self._writing = False
        self.context = context
        self.undecided = False
        """Whether a write was given up before its fate was known."""

    def hold(self, events: Sequence[Event]) -> None:
        """Keep records back, to travel with the next that must be durable.

        Raises:
            InvalidResult: they cannot be kept.
        """
        self._held.append(_entry(events))

    async def append(self, events: Sequence[Event]) -> None:
        """Write records; when this returns they are durable, and so is all that was held before.

        Raises:
            InvalidResult: they cannot be kept; nothing was written.
            Conflict: somebody else's record stands there; nothing was written.
            Dropped: this process lost the run before it learned what became of the write.
        """
        entry = _entry(events)
        self._waiting += [*self._held, entry]
        self._held = []
        if self._writing:
            entry.done = asyncio.get_running_loop().create_future()
            await entry.done
            return
        await self._write_all()

    async def flush(self) -> None:
        """Write what was held back."""
        if self._held:
            await self.append(())

    async def _write_all(self) -> None:
        self._writing = True
        group: list[_Entry] = []
        try:
            while self._waiting:
                group = self._next_group()
                await self._write(group)
                for entry in group:
                    if entry.done is not None and not entry.done.done():
                        entry.done.set_result(None)
                group = []
        except BaseException as error:
            # Whoever waits must learn of it: the position, and so the run, is lost to all of them.
            shared = error if isinstance(error, Exception) else Conflict("the write was given up")
            for entry in (*group, *self._waiting):
                if entry.done is not None and not entry.done.done():
                    entry.done.set_exception(shared)
            self._waiting = []
            raise
        finally:
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

    async def _write(self, group: list[_Entry]) -> None:
        events = [event for entry in group for event in entry.events]
        if not events:
            return
        data = await _compressed(group[0].plain if len(group) == 1 else encode(events))
        position = self.context.position
        name = f"{position:08d}-{self._head.epoch}"
        content = await self._kernel.patiently(
            lambda: spilled(self._kernel, self._head, data, name), self._alive
        )
        token = self._kernel.ids.new()
        put = record(self._head, position, content, token=token, stays=_stays(events))
        self.undecided = True
        try:
            await self._kernel.settle(self._kernel.journals, put, alive=self._alive)
        except ConditionFailed as failed:
            self.undecided = False
            if content.blob is not None and self._kernel.blobs is not None:
                with suppress(StoreUnavailable, StoreUnusable):
                    await self._kernel.blobs.delete(content.blob.key)  # nobody names it
            raise Conflict(f"position {position} of run {self._head.key.id!r} is taken") from failed
        self.undecided = False
        self.context = msgspec.structs.replace(_grown(self.context, content), position=position + 1)
        self._kernel.news.tell(self._head.key)


async def _records(table: Table, head: Head, position: int) -> list[dict[str, Any]]:
    return [
        item async for item in table.every(head.key.pk, journal_range(head.generation, position))
    ]


async def contents_of(kernel: Kernel, contents: Sequence[Content]) -> list[bytes]:
    """Return the packed bytes of items, those in blobs read side by side."""
    if all(content.data is not None for content in contents):
        return [content.data or b"" for content in contents]
    room = asyncio.Semaphore(_BLOBS_AT_ONCE)
    blobs = kernel.store.blobs.purpose("journal")

    async def bytes_of(content: Content) -> bytes:
        if content.blob is None:
            return content.data or b""
        async with room:
            return await blobs.get(content.blob)

    return list(await asyncio.gather(*map(bytes_of, contents)))


async def _compressed(plain: bytes) -> bytes:
    if len(plain) <= _COMPRESSED_INLINE_BYTES_MAX:
        return compress(plain)
    return await asyncio.to_thread(compress, plain)


def _entry(events: Sequence[Event]) -> _Entry:
    # Encoded here, so that what cannot be kept is known before anything is queued.
    return _Entry(tuple(events), encode(events))


def _stays(events: Sequence[Event]) -> bool:
    return any(isinstance(event, Fenced) or ends(event) for event in events)


def _begun(head: Head, state: dict[str, Any]) -> Execution:
    return Execution(seed=head.generation, state=state, node=head.first)


def _grown(context: Context, content: Content) -> Context:
    return msgspec.structs.replace(
        context,
        size=context.size + content.size,
        blobs=context.blobs or content.blob is not None,
    )


def _in_time(item: dict[str, Any], head: Head) -> bool:
    """Return whether a signal was accepted before the run expired: nothing else ever counts."""
    return item["accepted_ms"] < head.expires_ms


def _signal(item: dict[str, Any], data: bytes) -> Signal:
    name, id = item["SK"].split("#", 3)[3].split("#")
    return Signal(name, id, item["accepted_ms"], unpack_value(data))
