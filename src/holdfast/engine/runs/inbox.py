"""Extends the ttl of signals in an inbox to that of their run, and says if a fence kept one out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from holdfast.engine.journal.payloads import load_payloads, spill_if_large
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import ConditionFailed, OutcomeUnknown
from holdfast.records.head import Head
from holdfast.records.journal import (
    accepted_ms_of,
    content_of,
    extend_fence_ttl_write,
    extend_signal_ttl_write,
    is_fence,
    signal_name_and_id,
    ttl_of_signal,
)
from holdfast.records.keys import inbox_key, inbox_range

__all__ = ["SignalFenced", "extend_signal", "extend_signals"]


class SignalFenced(Exception):
    """A fence keeps a signal out of an inbox: its sender has not read what the fence is about."""


async def extend_signal(kernel: Kernel, head: Head, *, name: str, id: str) -> None:
    """Extend the ttl of a signal to that of its run.

    Raises:
        OutcomeUnknown: the signal is gone.
    """
    item = await kernel.inboxes.get(inbox_key(head.key, head.generation, name, id))
    if item is None or is_fence(item):
        raise OutcomeUnknown(f"the signal {id!r} expired before the run was told; send it again")
    await _extend_item(kernel, head, item)


async def extend_signals(kernel: Kernel, head: Head, taken: Collection[tuple[str, str]]) -> bool:
    """Extend the ttl of every signal that was not taken yet to that of its run.

    Return whether one of them came after the old expiry, and counts when the expiry is extended.
    """
    late = False
    async for item in kernel.inboxes.query_all(head.key.pk, inbox_range(head.generation)):
        if signal_name_and_id(item) not in taken:
            await _extend_item(kernel, head, item)
            late = late or (not is_fence(item) and accepted_ms_of(item) >= head.expires_ms)
    return late


async def _extend_item(kernel: Kernel, head: Head, item: Mapping[str, Any]) -> None:
    if ttl_of_signal(item) >= head.ttl:
        return
    if is_fence(item):
        with suppress(ConditionFailed):  # another process did it, or a signal is there now
            await kernel.resolve_write(kernel.inboxes, extend_fence_ttl_write(item, head.ttl))
        return
    content = content_of(item)
    if content.blob is not None:
        # A new blob: a bucket deletes blobs by their age.
        (data,) = await load_payloads(kernel, [content])
        content = await spill_if_large(kernel, head, data, f"signal-{kernel.ids.new()}")
    with suppress(ConditionFailed):  # another process did it
        await kernel.resolve_write(kernel.inboxes, extend_signal_ttl_write(item, head.ttl, content))
