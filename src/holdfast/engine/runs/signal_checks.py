"""Checks a signal where it is sent: its name, its payload and the room in the inbox."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.kernel.known_graphs import KnownGraph
from holdfast.engine.runs.graph_items import read_graph
from holdfast.errors import InboxFull, SignalMisfit, UnknownSignal
from holdfast.graph.signal_types import SignalType
from holdfast.model.payload_limits import PayloadLimits
from holdfast.records.head import ROW_WAITS_MAX, Head

__all__ = ["find_misfit", "inbox_overflow", "may_set_aside"]

# How old the item of a graph may be that accepts a signal. Only a new item refuses one.
_AGE_SECONDS_MAX = 60.0
# The same for an item that does not exist yet, or does not have the signal.
_ABSENT_SECONDS_MAX = 5.0
_SCHEMA_CHARS_MAX = 200


async def find_misfit(
    kernel: Kernel, head: Head, name: str, payload: Any
) -> SignalMisfit | UnknownSignal | None:
    """Return the error if a run certainly does not take a signal; None if it may take it.

    Where nothing is known of the signal, it may.

    Raises:
        StoreError: the store cannot be read.
    """
    known = kernel.known_graphs.get(head.graph, head.version)
    needs_read = _needs_read(known, head, name, kernel.clock.monotonic())
    if not needs_read and _misfit(known, head, name, payload) is None:
        return None
    # Also before a refusal: a worker with newer code may have started since the last read.
    await read_graph(kernel, known)
    known.sought |= _unknown_digests(known, head, name)
    return _misfit(known, head, name, payload)


async def may_set_aside(kernel: Kernel, head: Head, name: str) -> bool:
    """Return whether runs of a graph may set signals of this name aside: it has a type.

    Raises:
        StoreError: the store cannot be read.
    """
    known = kernel.known_graphs.get(head.graph, head.version)
    age = kernel.clock.monotonic() - known.read_at
    if not known.types_of(name) and age > _ABSENT_SECONDS_MAX:
        await read_graph(kernel, known)
    return bool(known.types_of(name))


def inbox_overflow(limits: PayloadLimits, head: Head, size: int) -> InboxFull | None:
    """Return the error if a run's inbox has no room for a payload of this size, else None."""
    run, inbox = head.key.id, head.inbox
    items = inbox.items + 1
    if items > limits.inbox_items_max:
        limit = limits.inbox_items_max
        return InboxFull(
            f"{inbox.items:,} signals wait in the inbox of run {run!r}, and inbox_items_max "
            f"is {limit:,}; send this one again later",
            size=items,
            limit=limit,
        )
    total = inbox.bytes + size
    if total > limits.inbox_bytes_max:
        limit = limits.inbox_bytes_max
        return InboxFull(
            f"signals of {inbox.bytes:,} bytes wait in the inbox of run {run!r}, this one has "
            f"{size:,}, and inbox_bytes_max is {limit:,}; send it again later",
            size=total,
            limit=limit,
        )
    return None


def _needs_read(known: KnownGraph, head: Head, name: str, now: float) -> bool:
    if _unknown_digests(known, head, name) - known.sought:
        return True
    age_max = _AGE_SECONDS_MAX if known.stored.revision else _ABSENT_SECONDS_MAX
    return known.program is None and now - known.read_at > age_max


def _misfit(
    known: KnownGraph, head: Head, name: str, payload: Any
) -> SignalMisfit | UnknownSignal | None:
    names = known.names()
    if names is not None and name not in names:
        taken = f"the signals {', '.join(names)}" if names else "no signals"
        return UnknownSignal(f"run {head.key.id!r} takes {taken}; got {name!r}", field="name")
    types = _expected_types(known, head, name)
    if types is None:
        return None
    reasons: list[str] = []
    for each in types:
        reason = each.misfit(payload)
        if reason is None:
            return None
        reasons.append(f"{reason}{_schema_text(each)}")
    waits = name in (wait.signal for wait in head.waits) and head.is_paused
    doing = "waits for" if waits else "takes"
    return SignalMisfit(
        f"the payload does not fit the signal {name!r} that run {head.key.id!r} {doing}: "
        f"{'; or '.join(reasons)}",
        field="payload",
    )


def _awaited_digests(head: Head, name: str) -> set[str] | None:
    """Return the digests that the waits of a run for a signal have.

    None if the run does not wait for the signal, or if the row may lack some of its waits. An empty
    digest is that of a wait that takes any payload.
    """
    if not head.is_paused or len(head.waits) >= ROW_WAITS_MAX:
        return None
    digests = {
        "" if wait.payload_schema is msgspec.UNSET else wait.payload_schema
        for wait in head.waits
        if wait.signal == name
    }
    return digests or None


def _unknown_digests(known: KnownGraph, head: Head, name: str) -> set[str]:
    return (_awaited_digests(head, name) or set()) - {""} - known.types_of(name).keys()


def _expected_types(known: KnownGraph, head: Head, name: str) -> list[SignalType] | None:
    """Return the types of which a payload must fit one; None if it may be anything."""
    types, digests = known.types_of(name), _awaited_digests(head, name)
    if digests is None:
        return list(types.values()) or None
    if digests - types.keys():
        return None  # of a wait that takes anything, or of a type that is not known
    return [types[digest] for digest in sorted(digests)]


def _schema_text(signal_type: SignalType) -> str:
    """Return the schema for a message, if it is short."""
    text = msgspec.json.encode(signal_type.schema).decode()
    return f" (schema {text})" if len(text) <= _SCHEMA_CHARS_MAX else ""
