"""A run as its journal tells it: read from the last snapshot on, and folded."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.engine.compaction import Tail
from holdfast.engine.contents import contents_of
from holdfast.engine.kernel import Kernel
from holdfast.engine.unwritten import Unwritten
from holdfast.errors import BlobNotFound, JournalDamaged
from holdfast.model.event import Event, Fenced, Snapshot
from holdfast.model.execution import Execution, folded, restored
from holdfast.model.signals import Signal
from holdfast.records.codec import unpack_events, unpack_value
from holdfast.records.head import Context, Head
from holdfast.records.journal import Content, content_of, followed, grown, signal_in, stamp_of
from holdfast.records.keys import inbox_range, is_inbox, journal_range, position_in
from holdfast.storage import Table

__all__ = ["Loaded", "begun", "load", "read_inbox"]


class Loaded(msgspec.Struct):
    """A run as its journal tells it."""

    execution: Execution
    context: Context
    inbox: list[Signal]
    tail: Tail
    fence: int = 0
    """The highest epoch of the fences that were read."""
    unwritten: Unwritten | None = None
    """Where nothing of it is written down yet."""


def begun(execution: Execution, context: Context, input_bytes: int) -> Loaded:
    """Return a run of which nothing stands yet but its input."""
    return Loaded(execution, context, [], Tail(input_bytes))


async def load(kernel: Kernel, head: Head) -> Loaded:
    """Read a run's journal from its last snapshot on, and its inbox.

    It is one consistent Query, and a page for each MB more. A fence before the snapshot is not
    read, and need not be: whoever holds a row with this pointer saw it when its epoch was the
    highest that there was, so a fence of a higher one can only have been written after it.

    Raises:
        JournalDamaged: a record is missing or cannot be read.
    """
    items = await _records(kernel.journals, head, head.snapshot)
    try:
        contents = await contents_of(kernel, [content_of(item) for item in items])
    except BlobNotFound as error:
        raise JournalDamaged(f"what run {head.key.id!r} keeps is not whole: {error}") from error
    loaded: Loaded | None = None
    if not head.snapshot and head.input is not None:
        loaded = _from_input(head, head.input)
    inbox: list[Signal] = []
    blobs = head.context.blobs
    for item, data in zip(items, contents, strict=True):
        content = content_of(item)
        blobs = blobs or content.blob is not None
        if is_inbox(item["SK"]):
            if _in_time(item, head):
                inbox.append(_signal(item, data))
        elif position_in(item["SK"]) == 0:
            loaded = _from_input(head, data)
            loaded.context = grown(loaded.context, content)
        else:
            loaded = _after(head, loaded, position_in(item["SK"]), content, unpack_events(data))
    if loaded is None:
        missing = f"record {head.snapshot}" if head.snapshot else "the input"
        raise JournalDamaged(f"{missing} of run {head.key.id!r} is missing")
    loaded.inbox = inbox
    loaded.context = msgspec.structs.replace(loaded.context, blobs=loaded.context.blobs or blobs)
    return loaded


def _from_input(head: Head, data: bytes) -> Loaded:
    execution = Execution(seed=head.seed, state=unpack_value(data), node=head.first)
    return begun(execution, Context(), len(data))


def _after(
    head: Head, loaded: Loaded | None, position: int, content: Content, events: list[Event]
) -> Loaded:
    """Return a run as it is after one more record; the first one read may be its snapshot."""
    expected = head.snapshot if loaded is None else loaded.context.position
    first = events[0] if events else None
    if position != expected or (loaded is None and not isinstance(first, Snapshot)):
        raise JournalDamaged(f"record {expected} of run {head.key.id!r} is missing")
    if isinstance(first, Snapshot):
        context = Context(position, first.size, first.blobs)
        tail = Tail(content.size)
        execution = folded(restored(first), events[1:])
    else:
        assert loaded is not None
        context = loaded.context
        tail, execution = loaded.tail.grown(content.size), folded(loaded.execution, events)
    fences = [event.epoch for event in events if isinstance(event, Fenced)]
    fence = max((0 if loaded is None else loaded.fence, *fences))
    return Loaded(execution, followed(context, content), [], tail, fence)


async def read_inbox(kernel: Kernel, head: Head) -> list[Signal]:
    """Read what lies in a run's inbox, consistently."""
    items = [item async for item in kernel.inboxes.every(head.key.pk, inbox_range(head.generation))]
    contents = await contents_of(kernel, [content_of(item) for item in items])
    return [
        _signal(item, data)
        for item, data in zip(items, contents, strict=True)
        if _in_time(item, head)
    ]


async def _records(table: Table, head: Head, position: int) -> list[dict[str, Any]]:
    return [
        item async for item in table.every(head.key.pk, journal_range(head.generation, position))
    ]


def _in_time(item: dict[str, Any], head: Head) -> bool:
    """Return whether a signal was accepted before the run expired: nothing else ever counts."""
    return item["accepted_ms"] < head.expires_ms


def _signal(item: dict[str, Any], data: bytes) -> Signal:
    name, id = signal_in(item)
    return Signal(name, id, item["accepted_ms"], unpack_value(data), stamp_of(item))
