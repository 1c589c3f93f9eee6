"""Finds runs that make no progress: stuck ones, and those that no worker serves.

For all tenants it reads the due index of the known graphs, and the lists of dead workers. For one
tenant it reads the tenant's own list, which also has runs of graphs that no process published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from holdfast.engine.history import lists
from holdfast.errors import InvalidQuery, JournalDamaged
from holdfast.fleet.coverage import Coverage
from holdfast.fleet.queues import (
    Position,
    known_queues,
    parsed_position,
    walk_due,
    walk_owned,
)
from holdfast.fleet.reader import FleetReader
from holdfast.fleet.unnotified import find_unnotified
from holdfast.fleet.verdict import (
    RECHECK_MS_MAX,
    Patience,
    StallKind,
    stalled_run,
    verdict_on,
)
from holdfast.model.fleet import StalledPage, StalledRun
from holdfast.model.names import POOL_LABEL
from holdfast.model.run import RunEntry
from holdfast.records.head import Head
from holdfast.records.index_keys import DueQueue, list_index_key
from holdfast.records.keys import HEAD, RunKey
from holdfast.records.run_filter import RunFilter

__all__ = ["find_stalled", "find_stalled_of_tenant"]

PositionT = TypeVar("PositionT")

# How many entries of indexes a page reads at most.
_ENTRIES_MAX = 2_000
# How many rows it reads at a time.
_BATCH = 100
_OPEN = RunFilter(status=("ready", "running", "waiting"))
# Why a paused run may make no progress; the others wait as they should.
_SUSPECT_REASONS = frozenset({"unserved", "newer_version", "resume_failed"})
# Sorts after all partitions of the index.
_OWN_LIST = "~LIST"
_REVIEWS = "~REVIEWS"


class _Search(msgspec.Struct):
    """One search: what it looks for, and what it has found."""

    kind: StallKind
    patience: Patience
    coverage: Coverage
    limit: int
    found: list[StalledRun]
    seen: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the page is full, or has read as much as a page may."""
        return len(self.found) >= self.limit or self.seen >= _ENTRIES_MAX


async def find_stalled(
    reader: FleetReader,
    kind: StallKind,
    *,
    tenant: str,
    patience: Patience,
    limit: int,
    cursor: str | None,
) -> StalledPage:
    """Return a page of the stalled runs of all tenants.

    Of graphs and pools that no process published it finds only runs of ``tenant``.

    Raises:
        InvalidQuery: the cursor is not one of this list.
    """
    after = parsed_position(cursor)
    search = await _begin(reader, kind, patience, limit)
    if kind == "stuck" and after.partition == _REVIEWS:
        return await _search_reviews(reader, search, None, after.sk)
    if not after.partition.startswith(_OWN_LIST):
        position = await _search_queues(reader, search, after)
        if position is None and kind == "stuck":
            position = await _search_dead(reader, search, after)
        if position is not None:
            return StalledPage(runs=search.found, cursor=position.cursor)
        after = Position(_OWN_LIST, "")
        if kind == "stuck":
            return await _search_reviews(reader, search, None, "")
        if search.is_over:
            return StalledPage(runs=search.found, cursor=after.cursor)
    searched = {(queue.graph, queue.pool) for queue in await _known_queues(reader, search)}
    rest = await _search_list(
        reader,
        search,
        tenant,
        after.sk or None,
        is_wanted=lambda entry: (entry.graph, entry.labels.get(POOL_LABEL)) not in searched,
    )
    return StalledPage(
        runs=search.found, cursor=None if rest is None else Position(_OWN_LIST, rest).cursor
    )


async def find_stalled_of_tenant(
    reader: FleetReader,
    kind: StallKind,
    *,
    tenant: str,
    patience: Patience,
    limit: int,
    cursor: str | None,
) -> StalledPage:
    """Return a page of the stalled runs of one tenant, the newest run first.

    Raises:
        InvalidQuery: the cursor is not one of this list.
    """
    search = await _begin(reader, kind, patience, limit)
    with suppress(InvalidQuery):  # mostly it is the cursor of a list of runs
        after = parsed_position(cursor)
        if kind == "stuck" and after.partition == _REVIEWS:
            return await _search_reviews(reader, search, tenant, after.sk)
    rest = await _search_list(reader, search, tenant, cursor, is_wanted=lambda entry: True)
    if rest is None and kind == "stuck":
        return await _search_reviews(reader, search, tenant, "")
    return StalledPage(runs=search.found, cursor=rest)


async def _search_reviews(
    reader: FleetReader, search: _Search, tenant: str | None, begin: str
) -> StalledPage:
    """Fill a page with runs that wait for a review of which no reviewer could be notified."""
    room = search.limit - len(search.found)
    found, rest = await find_unnotified(reader, tenant=tenant, limit=room, begin=begin)
    cursor = None if rest is None else Position(_REVIEWS, rest).cursor
    return StalledPage(runs=[*search.found, *found], cursor=cursor)


async def _begin(reader: FleetReader, kind: StallKind, patience: Patience, limit: int) -> _Search:
    coverage = await reader.read_coverage()
    return _Search(kind, patience, coverage, limit, [])


async def _search_queues(reader: FleetReader, search: _Search, after: Position) -> Position | None:
    """Look at runs in the due index; return where the page ended, or None at the end of all."""
    queues = await _known_queues(reader, search)
    # A run that a worker could not drive is due again later, and is not overdue until then.
    until_ms = search.coverage.now_ms + RECHECK_MS_MAX
    async for page in walk_due(reader, queues, until_ms=until_ms, after=after):
        ended = await _judge(reader, search, [(position, run) for position, run, _ in page])
        if ended is not None:
            return ended
    return None


async def _known_queues(reader: FleetReader, search: _Search) -> list[DueQueue]:
    shards = (await reader.kernel.get_settings()).shards
    return known_queues(await reader.read_graphs(cached=True), search.coverage, shards=shards)


async def _search_dead(reader: FleetReader, search: _Search, after: Position) -> Position | None:
    """Look at runs of dead workers; return where the page ended, or None at the end of all."""
    coverage = search.coverage
    dead = [row.id for row in coverage.workers.values() if not coverage.is_alive(row)]
    async for page in walk_owned(reader, dead, after=after):
        ended = await _judge(reader, search, page)
        if ended is not None:
            return ended
    return None


async def _search_list(
    reader: FleetReader,
    search: _Search,
    tenant: str,
    cursor: str | None,
    *,
    is_wanted: Callable[[RunEntry], bool],
) -> str | None:
    """Look at the runs in a tenant's list; return the cursor of the rest."""
    while True:
        page = await lists.list_runs(reader.kernel, tenant, _OPEN, limit=_BATCH, cursor=cursor)
        runs = [
            (_list_position(entry), RunKey(entry.tenant, entry.id))
            for entry in page.runs
            if is_wanted(entry) and _is_suspect(entry)
        ]
        full_at = await _judge(reader, search, runs)
        if full_at is not None:
            return full_at
        search.seen += max(len(page.runs) - len(runs), 1)
        cursor = page.cursor
        if cursor is None or search.is_over:
            return cursor


async def _judge(
    reader: FleetReader, search: _Search, entries: Sequence[tuple[PositionT, RunKey]]
) -> PositionT | None:
    """Judge runs one after the other; return the position at which the search is over."""
    for start in range(0, len(entries), _BATCH):
        batch = entries[start : start + _BATCH]
        heads = await reader.read_heads([run for _, run in batch])
        search.coverage = await reader.with_owners(search.coverage, heads)
        found = {head.key: head for head in heads}
        for position, run in batch:
            search.seen += 1
            if run in found:
                await _judge_one(reader, search, found[run])
            if search.is_over:
                return position
    return None


async def _judge_one(reader: FleetReader, search: _Search, head: Head) -> None:
    coverage = search.coverage
    try:
        verdict = verdict_on(head, coverage, search.patience)
        if verdict is not None and head.owner is not None and head.owner not in coverage.workers:
            # Perhaps its worker left after it released the run, and the row was read before that.
            current = await reader.read_current_head(head.key)
            head = head if current is None else current
            verdict = verdict_on(head, coverage, search.patience)
    except JournalDamaged as error:
        reader.kernel.note_damage({"PK": head.key.pk, "SK": HEAD}, error)
        return
    if verdict is not None and verdict.kind == search.kind:
        search.found.append(stalled_run(head, verdict, now_ms=coverage.now_ms))


def _list_position(entry: RunEntry) -> str:
    """Return the position of a run in its list, which is the cursor of what follows it."""
    created_ms = round(entry.created_at.timestamp() * 1000)
    run = RunKey(entry.tenant, entry.id)
    return list_index_key(run, created_ms, 1, trouble=False)[1]


def _is_suspect(entry: RunEntry) -> bool:
    return entry.status != "waiting" or entry.reason in _SUSPECT_REASONS
