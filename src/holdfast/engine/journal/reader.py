"""Reads a run's journal from its last snapshot on, and folds it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from holdfast.engine.journal.in_memory import InMemoryRun
from holdfast.engine.journal.payloads import load_payloads, unpack_payload
from holdfast.engine.kernel.compaction import JournalTail
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import BlobNotFound, JournalDamaged
from holdfast.model.event import Event, Fenced, Snapshot
from holdfast.model.execution import Execution
from holdfast.model.fold import folded, restored
from holdfast.model.signals import Signal
from holdfast.records.codec import plain_bytes, unpack_events, unpack_value
from holdfast.records.head import Head, JournalExtent
from holdfast.records.journal import (
    Content,
    accepted_ms_of,
    content_of,
    extent_after_record,
    extent_with_content,
    is_fence,
    payload_bytes,
    signal_name_and_id,
    stamp_of,
)
from holdfast.records.keys import (
    inbox_range,
    is_inbox,
    journal_position,
    journal_range,
    records_range,
)
from holdfast.storage import Between

__all__ = [
    "JournalPoint",
    "LoadedRun",
    "load_input",
    "load_journal",
    "load_journal_until",
    "load_run",
    "new_run",
    "read_inbox",
]

# How many bytes of packed records are in memory at a time, unless one record alone has more.
_BATCH_BYTES_MAX = 8 * 1024**2
# How many bytes are unpacked before other tasks get the event loop.
_BYTES_PER_YIELD = 1024**2


class JournalPoint(msgspec.Struct, frozen=True):
    """An event of a journal: the position of its record, and its index in the record."""

    position: int
    index: int


class LoadedRun(msgspec.Struct):
    """A run as its journal describes it."""

    execution: Execution
    extent: JournalExtent
    inbox: list[Signal]
    tail: JournalTail
    fence: int = 0
    """The highest epoch of all fences that were read."""
    in_memory: InMemoryRun | None = None
    """Set if nothing of the run is written yet."""
    plain_bytes: int = 0
    """How many bytes were read before compression: an upper bound of the run's size."""


def new_run(
    execution: Execution, extent: JournalExtent, input_bytes: int, *, plain_bytes: int
) -> LoadedRun:
    """Return a run that has only its input so far."""
    return LoadedRun(execution, extent, [], JournalTail(input_bytes), plain_bytes=plain_bytes)


async def load_run(kernel: Kernel, head: Head) -> LoadedRun:
    """Read a run's journal from its last snapshot on, and its inbox.

    It is one consistent Query, with one more page for each further MB. A fence before the snapshot
    is not read, and does not matter: the owner that wrote the pointer to the snapshot had the
    highest epoch then, so a fence with a higher epoch can only come after the snapshot.

    The signals in the inbox are not unpacked: see `SignalPayloads`.

    Raises:
        JournalDamaged: a record is missing or cannot be read.
    """
    where = journal_range(head.generation, head.snapshot)
    return await _load_range(kernel, head, where, first=head.snapshot)


async def load_journal(kernel: Kernel, head: Head) -> LoadedRun:
    """Read a run's journal from its last snapshot on, without its inbox.

    Raises:
        JournalDamaged: a record is missing or cannot be read.
    """
    where = records_range(head.generation, head.snapshot)
    return await _load_range(kernel, head, where, first=head.snapshot)


async def load_journal_until(kernel: Kernel, head: Head, until: JournalPoint) -> LoadedRun | None:
    """Read a run's journal up to and including an event; return None if there is no such event.

    It starts at the last snapshot if that is not later. Otherwise it starts at the input, or at the
    first snapshot that is still stored: an extended run loses its oldest records.

    Raises:
        JournalDamaged: a record is missing or cannot be read.
    """
    first = head.snapshot if head.snapshot <= until.position else 0
    where = records_range(head.generation, first, until.position)
    loaded = await _load_range(kernel, head, where, first=first, until=until)
    return loaded if loaded.extent.position == until.position + 1 else None


async def load_input(kernel: Kernel, head: Head) -> dict[str, Any]:
    """Return the input of a run, with the values of fields that the caller left out.

    Raises:
        JournalDamaged: it is missing or cannot be read.
    """
    where = records_range(head.generation, 0, 0)
    return (await _load_range(kernel, head, where, first=0)).execution.state


async def _load_range(
    kernel: Kernel, head: Head, where: Between, *, first: int, until: JournalPoint | None = None
) -> LoadedRun:
    loaded: LoadedRun | None = None
    if not first and head.input is not None:
        loaded = await _unpack_input(kernel, head, head.input)
    batch: list[dict[str, Any]] = []
    inbox: list[Signal] = []
    size, blobs = 0, head.extent.blobs
    async for item in kernel.journals.query_all(head.key.pk, where):
        if is_inbox(item["SK"]):
            # Records sort before the inbox, so all taken signals are known here.
            loaded, batch = await _apply_records(kernel, head, loaded, batch, first=first), []
            blobs = blobs or "blob" in item
            inbox += _untaken_signals(head, item, () if loaded is None else loaded.execution.taken)
            continue
        size += content_of(item).size
        if size > _BATCH_BYTES_MAX:
            loaded = await _apply_records(kernel, head, loaded, batch, first=first, until=until)
            batch = []
            size = content_of(item).size
        batch.append(item)
    loaded = await _apply_records(kernel, head, loaded, batch, first=first, until=until)
    if loaded is None:
        missing = f"record {first}" if first else "the input"
        raise JournalDamaged(f"{missing} of run {head.key.id!r} is missing")
    loaded.inbox = inbox
    loaded.extent = msgspec.structs.replace(loaded.extent, blobs=loaded.extent.blobs or blobs)
    return loaded


async def _apply_records(
    kernel: Kernel,
    head: Head,
    loaded: LoadedRun | None,
    items: Sequence[dict[str, Any]],
    *,
    first: int,
    until: JournalPoint | None = None,
) -> LoadedRun | None:
    """Return the run after some more records; their blobs are read concurrently."""
    if not items:
        return loaded
    try:
        contents = await load_payloads(kernel, [content_of(item) for item in items])
    except BlobNotFound as error:
        raise JournalDamaged(f"a blob of run {head.key.id!r} is missing: {error}") from error
    since = 0
    for item, data in zip(items, contents, strict=True):
        since += plain_bytes(data)
        if since > _BYTES_PER_YIELD:
            await kernel.clock.sleep(0)  # let other tasks run
            since = 0
        content, position = content_of(item), journal_position(item["SK"])
        if position == 0:
            loaded = await _unpack_input(kernel, head, data)
            loaded.extent = extent_with_content(loaded.extent, content)
        else:
            events = await unpack_payload(kernel, data, unpack_events)
            if until is not None and position == until.position:
                if until.index >= len(events):
                    return loaded
                events = events[: until.index + 1]
            expected = first if loaded is None else loaded.extent.position
            loaded = _with_record(head, loaded, position, content, events, expected=expected)
            loaded.plain_bytes += plain_bytes(data)
    return loaded


async def _unpack_input(kernel: Kernel, head: Head, data: bytes) -> LoadedRun:
    state = await unpack_payload(kernel, data, unpack_value)
    execution = Execution(seed=head.seed, state=state, node=head.first)
    return new_run(execution, JournalExtent(), len(data), plain_bytes=plain_bytes(data))


def _with_record(
    head: Head,
    loaded: LoadedRun | None,
    position: int,
    content: Content,
    events: list[Event],
    *,
    expected: int,
) -> LoadedRun:
    """Return the run after one more record; the first record read may be its snapshot."""
    first = events[0] if events else None
    # Records before the last snapshot may have expired. The next one that is left has a snapshot.
    resumes = isinstance(first, Snapshot) and expected <= position <= head.snapshot
    if not resumes and (position != expected or loaded is None):
        raise JournalDamaged(f"record {expected} of run {head.key.id!r} is missing")
    if isinstance(first, Snapshot):
        extent, read = JournalExtent(position, first.size, first.blobs), 0
        tail = JournalTail(content.size)
        execution = folded(restored(first), events[1:])
    else:
        assert loaded is not None
        extent, read = loaded.extent, loaded.plain_bytes
        tail, execution = loaded.tail.grown(content.size), folded(loaded.execution, events)
    fences = [event.epoch for event in events if isinstance(event, Fenced)]
    fence = max((0 if loaded is None else loaded.fence, *fences))
    return LoadedRun(
        execution, extent_after_record(extent, content), [], tail, fence, plain_bytes=read
    )


async def read_inbox(
    kernel: Kernel, head: Head, taken: Collection[tuple[str, str]]
) -> list[Signal]:
    """Read the signals in a run's inbox that were not taken, consistently."""
    items = kernel.inboxes.query_all(head.key.pk, inbox_range(head.generation))
    return [signal async for item in items for signal in _untaken_signals(head, item, taken)]


def _untaken_signals(
    head: Head, item: dict[str, Any], taken: Collection[tuple[str, str]]
) -> tuple[Signal, ...]:
    """Return the signal of an item, unless it was taken, or came after the run expired."""
    if is_fence(item):
        return ()
    name, id = signal_name_and_id(item)
    accepted_ms = accepted_ms_of(item)
    if accepted_ms >= head.expires_ms or (name, id) in taken:
        return ()
    body = content_of(item)
    return (Signal(name, id, accepted_ms, body, stamp_of(item), payload_bytes(item)),)
