"""Lists of a tenant's runs: read from several partitions side by side, and merged."""

from __future__ import annotations

import heapq
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from holdfast.engine.history.views import entry_of
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import InvalidName, InvalidQuery, ItemDamaged, JournalDamaged
from holdfast.model.run import RunEntry, RunPage
from holdfast.model.run_filter import RunFilter
from holdfast.records.head import TROUBLE
from holdfast.records.keys import list_partition, run_named
from holdfast.records.names import admit_name
from holdfast.storage import Between

__all__ = ["listed"]

# A page reads at most so many entries, however few of them fit the filter.
_ENTRIES_A_PAGE_MAX = 2_000
# So that a file full of them does not fill the memory. Such a page goes past the others as well.
_DAMAGED_A_PAGE_MAX = 1_000
_PART = 100
# When a run was started, and its id.
_CURSOR = re.compile(r"[0-9]{13}#(.+)", re.DOTALL)


async def listed(
    kernel: Kernel, tenant: str, asked: RunFilter, *, limit: int, cursor: str | None
) -> RunPage:
    """Return a tenant's runs, the newest first.

    They lie in several partitions, which are read side by side and merged. The cursor is the place
    of the last one that was looked at. One whose row cannot be read is named, and hides no other.

    Raises:
        InvalidQuery: not a cursor of such a list.
    """
    shards = (await kernel.settings()).list_shards
    lower, upper = f"{asked.since_ms:013d}", f"{asked.until_ms:013d}"
    if cursor is not None:
        upper = _checked_cursor(cursor)
        if upper < lower:  # of a list that went further back
            return RunPage([], None)
    where = Between(lower, upper)
    damaged: list[ItemDamaged] = []
    parts = [
        _newest_first(kernel, list_partition(kind, tenant, shard), where, cursor, damaged)
        for kind in _partition_kinds(asked)
        for shard in range(shards)
    ]
    found: list[RunEntry] = []
    looked_at = 0
    async for item in _merged(parts, key=lambda item: item["GSI2SK"]):
        looked_at += 1
        try:
            entry = entry_of(item)
        except JournalDamaged as error:
            damaged.append(kernel.note_damage(item, error))
        else:
            if asked.fits(entry):
                found.append(entry)
        if len(found) == limit or looked_at == _ENTRIES_A_PAGE_MAX:
            return RunPage(found, item["GSI2SK"], _ids(damaged))
    return RunPage(found, None, _ids(damaged))


def _partition_kinds(asked: RunFilter) -> tuple[str, ...]:
    """Return the kinds of partitions in which such runs can stand."""
    if asked.statuses is None:
        return ("RUNS", "TROUBLE")
    kinds = {"TROUBLE" if status in TROUBLE else "RUNS" for status in asked.statuses}
    return tuple(sorted(kinds))


def _ids(damaged: Sequence[ItemDamaged]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(run_named(error.key[0]) for error in damaged))


def _checked_cursor(cursor: str) -> str:
    found = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
    try:
        admit_name(None if found is None else found[1], "cursor")
    except InvalidName:
        told = f"not a cursor of a list of runs: {cursor!r:.80}"
        raise InvalidQuery(told, field="cursor") from None
    return cursor


async def _newest_first(
    kernel: Kernel,
    partition: str,
    where: Between,
    cursor: str | None,
    damaged: list[ItemDamaged],
) -> AsyncIterator[dict[str, Any]]:
    after: str | None = None
    while True:
        page = await kernel.lists.query(
            partition, where, index="GSI2", forward=False, limit=_PART, cursor=after
        )
        damaged += page.damaged[: max(_DAMAGED_A_PAGE_MAX - len(damaged), 0)]
        for item in page.items:
            if item["GSI2SK"] != cursor:  # a range takes in its ends
                yield item
        after = page.cursor
        if after is None:
            return


async def _merged(
    parts: Sequence[AsyncIterator[dict[str, Any]]], *, key: Callable[[dict[str, Any]], str]
) -> AsyncIterator[dict[str, Any]]:
    """Yield from several sorted streams the greatest first."""
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
    """Text that sorts the other way round."""

    __slots__ = ()

    def __lt__(self, other: str) -> bool:
        return str.__gt__(self, other)
