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
from holdfast.records.head import OPEN, TROUBLED
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
# How many rows of open runs are read at a time.
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
    shards = (await kernel.get_settings()).list_shards
    lower, upper = f"{run_filter.since_ms:013d}", f"{run_filter.until_ms:013d}"
    if cursor is not None:
        upper = _checked_cursor(cursor)
        if upper < lower:  # the cursor of a list that went further back
            return RunPage([], None)
    where = Between(lower, upper)
    damaged: list[ItemDamaged] = []
    parts = [
        _query_newest_first(kernel, list_partition(kind, tenant, shard), where, cursor, damaged)
        for kind in _partition_kinds(run_filter)
        for shard in range(shards)
    ]
    found: list[RunEntry] = []
    # Entries of the index whose rows are not read yet: never more than the page has room for.
    candidates: list[RunEntry] = []
    seen_count = 0

    async def check_candidates() -> None:
        shown = await _read_open_rows(kernel, candidates, damaged)
        found.extend(entry for entry in shown if run_filter.matches(entry))
        candidates.clear()

    async for item in _merge_newest_first(parts, key=lambda item: item["GSI2SK"]):
        seen_count += 1
        try:
            entry = run_entry_of(item)
        except JournalDamaged as error:
            damaged.append(kernel.note_damage(item, error))
        else:
            if run_filter.may_match(entry):
                candidates.append(entry)
        is_last = seen_count == _PAGE_ENTRIES_MAX
        if is_last or len(candidates) == min(limit - len(found), _ROWS_MAX):
            await check_candidates()
        if is_last or len(found) == limit:
            return RunPage(found, item["GSI2SK"], _run_ids(damaged))
    await check_candidates()
    return RunPage(found, None, _run_ids(damaged))


async def _read_open_rows(
    kernel: Kernel, entries: Sequence[RunEntry], damaged: list[ItemDamaged]
) -> list[RunEntry]:
    """Return the entries with what the rows of the open runs say about their status."""
    keys = [RunKey(entry.tenant, entry.id).head for entry in entries if entry.status in OPEN]
    try:
        items = await kernel.lists.get_many(keys)
    except ItemDamaged:  # one of them: the others can be read
        items = [await _read_row(kernel, key, damaged) for key in keys]
    rows, now = dict(zip(keys, items, strict=True)), kernel.clock.now_ms()
    shown: list[RunEntry] = []
    for entry in entries:
        item = rows.get(RunKey(entry.tenant, entry.id).head)
        if item is not None:
            try:
                entry = shown_entry(entry, item, now_ms=now)
            except JournalDamaged as error:
                damaged.append(kernel.note_damage(item, error))
                continue
        shown.append(entry)
    return shown


async def _read_row(kernel: Kernel, key: Key, damaged: list[ItemDamaged]) -> Item | None:
    try:
        return await kernel.lists.get(key)
    except ItemDamaged as error:
        damaged.append(error)
        return None


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
