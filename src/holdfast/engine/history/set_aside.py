"""Lists the signals that a run has set aside, because they do not fit the type of the wait."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from holdfast.engine.history.events import read_head_with_journal
from holdfast.engine.journal.payloads import load_payloads, unpack_payload
from holdfast.engine.journal.reader import load_journal
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import BlobNotFound
from holdfast.model.run import SetAsideSignal
from holdfast.records.codec import unpack_value
from holdfast.records.head import Head
from holdfast.records.journal import content_of
from holdfast.records.keys import RunKey, inbox_key
from holdfast.records.times import utc_datetime

__all__ = ["list_set_aside"]


async def list_set_aside(kernel: Kernel, run: RunKey) -> list[SetAsideSignal]:
    """Return the signals that a run has set aside, the oldest first.

    Raises:
        RunNotFound: there is no such run, or its journal is no longer kept.
        JournalDamaged: a record is missing or cannot be read.
    """
    head = await read_head_with_journal(kernel, run)
    loaded = await load_journal(kernel, head)
    return [
        SetAsideSignal(
            name=event.name,
            id=event.id,
            payload=await _load_payload(kernel, head, event.name, event.id),
            reason=event.reason,
            node=event.node,
            at=utc_datetime(event.at_ms),
        )
        for event in loaded.execution.set_aside
    ]


async def _load_payload(kernel: Kernel, head: Head, name: str, id: str) -> Any:
    """Return the payload of a signal; None if it is no longer stored."""
    item = await kernel.inboxes.get(inbox_key(head.key, head.generation, name, id))
    if item is None:
        return None
    with suppress(BlobNotFound):
        (data,) = await load_payloads(kernel, [content_of(item)])
        return await unpack_payload(kernel, data, unpack_value)
    return None
