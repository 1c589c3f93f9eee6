"""Lists a tenant's runs: reads several partitions of the index, and merges them."""

from __future__ import annotations

import heapq
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from holdfast.engine.history.views import run_entry_of, shown_entry
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import InvalidName, InvalidQuery, ItemDamaged, JournalDamaged
from holdfast.model.names import validated_name
from holdfast.model.run import RunEntry, RunPage
from holdfast.records.head import TROUBLED
from holdfast.records.index_keys import list_partition
from holdfast.records.keys import RunKey, run_id_of
from holdfast.records.run_filter import RunFilter
from holdfast.storage import Between, Key
from holdfast.storage.item import Item

__all__ = ["list_runs"]

# A page reads at most this many entries, even if few of them match the filter.
_PAGE_ENTRIES_MAX = 2_000
# Limits the memory for a file full of damaged rows; the rest of them is skipped.
_PAGE_DAMAGED_MAX = 1_000
_QUERY_ITEMS_MAX = 100
# How many rows are read at a time.
_ROWS_MAX = 100
# The start time of a run, and its id.
_CURSOR_PATTERN = re.compile(r"[0-9]{13}#(.+)", re.DOTALL)


async def list_runs(
    kernel: Kernel, tenant: str, run_filter: RunFilter, *, limit: int, cursor: str | None
) -> RunPage:
    """Return a page of a tenant's runs, newest first.

    The cursor is the position of the last entry that was read. Runs with damaged entries are
    named apart.

    Raises:
        InvalidQuery: the cursor is not one of a list of runs.
    """
    lower, upper = f"{run_filter.since_ms:013d}", f"{run_filter.until_ms:013d}"
    if cursor is not None:
        upper = _checked_cursor(cursor)
        if upper < lower:  # the cursor of a list that went further back
            return RunPage([], None)
    shards = (await kernel.get_settings()).list_shards
    where = Between(lower, upper)
    damaged: list[ItemDamaged] = []
    parts = [
        _query_newest_first(kernel, list_partition(kind, tenant, shard), where, cursor, damaged)
        for kind in _partition_kinds(run_filter)
        for shard in range(shards)
    ]
    found: list[RunEntry] = []
    # Entries of the index whose rows are not read yet, with their positions.
    candidates: list[tuple[str, RunEntry]] = []
    seen_count = 0

    async def check_candidates() -> str | None:
        """Move candidates that match into the page; return the position at which it is full."""
        rows = await _read_rows(kernel, [entry for _, entry in candidates])
        for (position, _), row in zip(candidates, rows, strict=True):
            if isinstance(row, ItemDamaged):
                damaged.append(row)
            elif run_filter.matches(row):
                found.append(row)
                if len(found) == limit:
                    return position
        candidates.clear()
        return None

    async for item in _merge_newest_first(parts, key=lambda item: item["GSI2SK"]):
        seen_count += 1
        try:
            entry = run_entry_of(item)
        except JournalDamaged as error:
            damaged.append(kernel.note_damage(item, error))
        else:
            if run_filter.may_match(entry):
                candidates.append((item["GSI2SK"], entry))
        is_last = seen_count == _PAGE_ENTRIES_MAX
        # Few candidates may match a condition on rows: then as many are read at a time as may be.
        room = _ROWS_MAX if run_filter.needs_rows else min(limit - len(found), _ROWS_MAX)
        if is_last or len(candidates) == room:
            full_at = await check_candidates()
            if is_last or full_at is not None:
                return RunPage(found, full_at or item["GSI2SK"], _run_ids(damaged))
    return RunPage(found, await check_candidates(), _run_ids(damaged))


async def _read_rows(kernel: Kernel, entries: Sequence[RunEntry]) -> list[RunEntry | ItemDamaged]:
    """Return the entries with what the rows of their runs tell.

    An entry without a row stays as the index has it: the row may be too new for this read.
    """
    keys = [RunKey(entry.tenant, entry.id).head for entry in entries]
    items: Sequence[Item | ItemDamaged | None]
    try:
        items = await kernel.lists.get_many(keys, eventual=True)
    except ItemDamaged:  # one of them: the others can be read
        items = [await _read_row(kernel, key) for key in keys]
    now = kernel.clock.now_ms()
    shown: list[RunEntry | ItemDamaged] = []
    for entry, item in zip(entries, items, strict=True):
        if item is None or isinstance(item, ItemDamaged):
            shown.append(entry if item is None else item)
            continue
        try:
            shown.append(shown_entry(entry, item, now_ms=now))
        except JournalDamaged as error:
            shown.append(kernel.note_damage(item, error))
    return shown


async def _read_row(kernel: Kernel, key: Key) -> Item | ItemDamaged | None:
    try:
        return await kernel.lists.get(key)
    except ItemDamaged as error:
        return error


def _partition_kinds(run_filter: RunFilter) -> tuple[str, ...]:
    """Return the kinds of partitions that can contain matching runs."""
    if run_filter.statuses is None:
        return ("RUNS", "TROUBLE")
    kinds = {"TROUBLE" if status in TROUBLED else "RUNS" for status in run_filter.statuses}
    return tuple(sorted(kinds))


def _run_ids(damaged: Sequence[ItemDamaged]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(run_id_of(error.key[0]) for error in damaged))


def _checked_cursor(cursor: str) -> str:
    found = _CURSOR_PATTERN.fullmatch(cursor) if isinstance(cursor, str) else None
    try:
        validated_name(None if found is None else found[1], "cursor")
    except InvalidName:
        message = f"not a cursor of a list of runs: {cursor!r:.80}"
        raise InvalidQuery(message, field="cursor") from None
    return cursor


async def _query_newest_first(
    kernel: Kernel,
    partition: str,
    where: Between,
    cursor: str | None,
    damaged: list[ItemDamaged],
) -> AsyncIterator[dict[str, Any]]:
    after: str | None = None
    while True:
        page = await kernel.lists.query(
            partition, where, index="GSI2", forward=False, limit=_QUERY_ITEMS_MAX, cursor=after
        )
        damaged += page.damaged[: max(_PAGE_DAMAGED_MAX - len(damaged), 0)]
        for item in page.items:
            if item["GSI2SK"] != cursor:  # the range includes the cursor itself
                yield item
        after = page.cursor
        if after is None:
            return


async def _merge_newest_first(
    parts: Sequence[AsyncIterator[dict[str, Any]]], *, key: Callable[[dict[str, Any]], str]
) -> AsyncIterator[dict[str, Any]]:
    """Merge several streams that are sorted in descending order."""
    heap: list[tuple[_Descending, int, dict[str, Any]]] = []
    for number, part in enumerate(parts):
        async for item in part:
            heap.append((_Descending(key(item)), number, item))
            break
    heapq.heapify(heap)
    while heap:
        _, number, item = heap[0]
        yield item
        async for following in parts[number]:
            heapq.heapreplace(heap, (_Descending(key(following)), number, following))
            break
        else:
            heapq.heappop(heap)


class _Descending(str):
    """A text that sorts in descending order."""

    __slots__ = ()

    def __lt__(self, other: str) -> bool:
        return str.__gt__(self, other)
