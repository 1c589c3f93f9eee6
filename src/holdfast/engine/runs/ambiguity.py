"""Lists ambiguous calls, which may or may not have been made, and resolves them for a person."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.rows import read_row
from holdfast.engine.runs.signalling import send_signal
from holdfast.errors import (
    InvalidQuery,
    ItemDamaged,
    JournalDamaged,
    NotAmbiguous,
    PayloadTooLarge,
)
from holdfast.model.run import AmbiguousCall
from holdfast.model.wait import ResolutionWait
from holdfast.records.ambiguous_call import ambiguous_call_of
from holdfast.records.head import OPEN, ROW_WAITS_MAX, Head, head_of, is_past_ttl
from holdfast.records.index_keys import call_index_key, calls_partition
from holdfast.records.keys import RunKey, call_key
from holdfast.storage import All, From, Key
from holdfast.storage.item import Item

__all__ = ["checked_cursor", "cursor_of", "list_ambiguous_calls", "resolve_call"]

_RESOLUTION = "resolution"
# When the call became ambiguous, its run and its id.
_CURSOR_PATTERN = re.compile(r"[0-9]{13}#[^#\x00-\x1f]{1,128}#[^#\x00-\x1f]{1,256}")
_BATCH_ITEMS = 100


async def list_ambiguous_calls(
    kernel: Kernel, tenant: str, *, after: str | None = None
) -> AsyncGenerator[AmbiguousCall, None]:
    """Yield a tenant's ambiguous calls that wait for a person, oldest first.

    With the `cursor_of` a call as ``after``, only those that follow it. A call is left out if its
    entry or the row of its run is damaged.
    """
    batch: list[AmbiguousCall] = []
    where = All() if after is None else From(after)
    async for item in kernel.lists.query_all(calls_partition(tenant), where, index="GSI2"):
        if item["GSI2SK"] == after:
            continue
        try:
            batch.append(ambiguous_call_of(item))
        except JournalDamaged as error:
            kernel.note_damage(item, error)
        if len(batch) == _BATCH_ITEMS:
            for call in await _select_waiting(kernel, batch):
                yield call
            batch = []
    for call in await _select_waiting(kernel, batch):
        yield call


def cursor_of(call: AmbiguousCall) -> str:
    """Return the cursor after which the calls that follow this one are listed."""
    return call_index_key(round(call.since.timestamp() * 1000), call.run, call.call)


def checked_cursor(cursor: object) -> str | None:
    """Return the cursor of a list of ambiguous calls.

    Raises:
        InvalidQuery: it is not one.
    """
    if cursor is None or (isinstance(cursor, str) and _CURSOR_PATTERN.fullmatch(cursor)):
        return cursor
    raise InvalidQuery(f"not a cursor of a list of calls: {cursor!r:.80}", field="after")


async def _select_waiting(kernel: Kernel, calls: list[AmbiguousCall]) -> list[AmbiguousCall]:
    """Return the calls that their runs still wait for: an entry may outlive its wait."""
    keys = list(dict.fromkeys(RunKey(call.tenant, call.run).head for call in calls))
    rows = await _load_rows(kernel, keys)
    heads = {key: _parse_row(kernel, item) for key, item in rows.items()}
    return [
        call
        for call in calls
        if (head := heads[RunKey(call.tenant, call.run).head]) is not None
        and _is_awaiting(head, call.call)
    ]


async def _load_rows(kernel: Kernel, keys: Sequence[Key]) -> dict[Key, Item | None]:
    try:
        return dict(zip(keys, await kernel.heads.get_many(keys), strict=True))
    except ItemDamaged:
        if len(keys) == 1:
            return {keys[0]: None}
    # A damaged row fails the whole request, so each is read by itself.
    return {key: row for each in keys for key, row in (await _load_rows(kernel, [each])).items()}


def _parse_row(kernel: Kernel, item: Item | None) -> Head | None:
    """Return the row; None if it is gone or damaged. Damage is recorded."""
    if item is None:
        return None
    try:
        return None if is_past_ttl(item, kernel.clock.now_ms()) else head_of(item)
    except JournalDamaged as error:
        kernel.note_damage(item, error)
        return None


def _is_awaiting(head: Head, call: str) -> bool:
    """Return whether a run waits for the resolution of a call."""
    if head.status not in OPEN:
        return False
    if head.owner is not None:  # another branch is running, and the row lists no waits
        return True
    kind = ResolutionWait(call)
    # The row lists only the first of many waits.
    return len(head.waits) >= ROW_WAITS_MAX or any(wait.kind == kind for wait in head.waits)


async def resolve_call(
    kernel: Kernel, workers: LocalWorkers, run: RunKey, call: str, resolution: Mapping[str, Any]
) -> None:
    """Tell a run what became of an ambiguous call.

    Raises:
        RunNotFound: there is no such run.
        RunEnded: the run has ended.
        NotAmbiguous: the call does not wait for a resolution.
        AlreadyExists: the call was resolved before, in another way.
        PayloadTooLarge: the result has more bytes than the limit allows.
        InvalidInput: the result cannot be stored.
    """
    head = await read_row(kernel, run)
    if await kernel.lists.get(call_key(run, head.generation, call)) is None:
        raise NotAmbiguous(f"no call {call!r} of run {run.id!r} waits for a resolution")
    name = ResolutionWait(call).signal
    try:
        await send_signal(
            kernel,
            workers,
            run,
            name=name,
            id=_RESOLUTION,
            payload=dict(resolution),
            bytes_max=kernel.limits.answer_bytes_max,
        )
    except PayloadTooLarge as error:
        raise PayloadTooLarge(
            f"{error}; PayloadLimits.answer_bytes_max sets the limit",
            field=error.field,
            size=error.size,
            limit=error.limit,
        ) from None
