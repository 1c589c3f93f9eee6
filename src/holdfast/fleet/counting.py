"""Counts the runs of all tenants by state, from the keys of the due index and of the lists."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from holdfast.errors import JournalDamaged
from holdfast.fleet.coverage import Coverage
from holdfast.fleet.queues import known_queues
from holdfast.fleet.reader import OWNED_MAX, FleetReader
from holdfast.fleet.unnotified import find_unnotified
from holdfast.fleet.verdict import RECHECK_MS_MAX, Patience, StallKind, verdict_on
from holdfast.model.fleet import FleetOverview, RunCount
from holdfast.records.head import Head
from holdfast.records.index_keys import DueQueue, IndexKey, due_after, list_partition
from holdfast.records.keys import RunKey
from holdfast.records.times import utc_datetime
from holdfast.storage import Page
from holdfast.storage.ranges import ALL, Range
from holdfast.storage.units import NO_UNITS

__all__ = ["count_fleet"]

_COUNT_MAX = 10_000
_TENANTS_MAX = 100
# Rows that are read to see why a run waits that is due soon, or for too long.
_ROWS_MAX = 500
_CONCURRENT_READS_MAX = 16
_PAGE = 1_000


class _Counts(msgspec.Struct):
    """The counts of one overview, while they grow."""

    coverage: Coverage
    patience: Patience
    runs: Counter[str]
    capped: set[str]
    tenants: set[str]
    suspects: list[RunKey]
    """Runs that a worker could not drive, perhaps: only their rows say so."""
    late: dict[StallKind, list[RunKey]]
    """Runs that are due for too long, unless they have ended and wait to be freed."""
    troubled: dict[str, set[str]]
    """The tenants of failed and of quarantined runs."""

    def add(self, name: str, number: int = 1) -> None:
        self.runs[name] += number
        if self.runs[name] >= _COUNT_MAX:
            self.runs[name] = _COUNT_MAX
            self.capped.add(name)

    def add_tenant(self, tenant: str) -> None:
        if len(self.tenants) < _TENANTS_MAX:
            self.tenants.add(tenant)
        elif tenant not in self.tenants:
            self.capped |= {"failed", "quarantined"}

    def add_late(self, kind: StallKind, run: RunKey) -> None:
        if len(self.late[kind]) < _ROWS_MAX:
            self.late[kind].append(run)
        else:
            self.add(kind)

    def add_suspect(self, run: RunKey) -> None:
        if len(self.suspects) < _ROWS_MAX:
            self.suspects.append(run)
        else:
            self.capped |= {"stuck", "unserved"}

    def count(self, name: str) -> RunCount:
        return RunCount(runs=self.runs[name], capped=name in self.capped)


async def count_fleet(reader: FleetReader, *, tenant: str, patience: Patience) -> FleetOverview:
    """Return how many runs of all tenants are in which state. Each count ends at 10,000.

    Raises:
        StoreError: the store cannot be read.
    """
    before = _units_so_far(reader)
    coverage = await reader.read_coverage()
    counts = _Counts(
        coverage=coverage,
        patience=patience,
        runs=Counter(),
        capped=set(),
        tenants={tenant},
        suspects=[],
        late={"stuck": [], "unserved": []},
        troubled={"failed": set(), "quarantined": set()},
    )
    shards = (await reader.kernel.get_settings()).shards
    queues = known_queues(await reader.read_graphs(cached=True), coverage, shards=shards)
    for start in range(0, len(queues), _CONCURRENT_READS_MAX):
        batch = queues[start : start + _CONCURRENT_READS_MAX]
        firsts = await asyncio.gather(*(_read_page(reader, queue, None) for queue in batch))
        for queue, first in zip(batch, firsts, strict=True):
            await _count_queue(reader, counts, queue, first)
    await _count_owned(reader, counts)
    await _count_late(reader, counts)
    await _count_suspects(reader, counts)
    await _count_troubled(reader, counts)
    await _count_unnotified(reader, counts)
    alive = len(coverage.live)
    return FleetOverview(
        ready=counts.count("ready"),
        running=counts.count("running"),
        waiting=counts.count("waiting"),
        failed=counts.count("failed"),
        quarantined=counts.count("quarantined"),
        stuck=counts.count("stuck"),
        unserved=counts.count("unserved"),
        workers_alive=alive,
        workers_dead=len(coverage.workers) - alive,
        read_units=_units_so_far(reader) - before,
        counted_at=utc_datetime(coverage.now_ms),
        failed_tenants=tuple(sorted(counts.troubled["failed"])),
        quarantined_tenants=tuple(sorted(counts.troubled["quarantined"])),
    )


async def _read_page(
    reader: FleetReader, queue: DueQueue, cursor: str | None, where: Range = ALL
) -> Page:
    return await reader.table.query(
        queue.partition, where, index="GSI1", limit=_PAGE, cursor=cursor
    )


async def _count_queue(reader: FleetReader, counts: _Counts, queue: DueQueue, page: Page) -> None:
    """Count the runs of one queue: those that are due come first, then those that are due later."""
    now = counts.coverage.now_ms
    is_served = bool(counts.coverage.serving(queue.graph, queue.pool))
    kind: StallKind = "stuck" if is_served else "unserved"
    late_ms = (
        counts.patience.stuck_after_ms(counts.coverage) if is_served else counts.patience.grace_ms
    )
    where: Range = ALL
    while True:
        due_ms = 0
        for entry in page.items:
            try:
                due_ms, run, _ = IndexKey(entry["GSI1PK"], entry["GSI1SK"]).due_parts()
            except ValueError as error:
                reader.kernel.note_damage(entry, error)
                continue
            counts.add("ready" if due_ms <= now else "waiting")
            counts.add_tenant(run.tenant)
            if now - due_ms > late_ms:
                counts.add_late(kind, run)
            elif is_served and due_ms <= now + RECHECK_MS_MAX:
                counts.add_suspect(run)
        cursor = page.cursor
        if cursor is None:
            return
        is_kind_counted = kind in _full(counts) or now - due_ms <= late_ms
        if due_ms <= now and "ready" in counts.capped and is_kind_counted:
            where, cursor, due_ms = due_after(now), None, now + 1  # past the rest of what is due
        if due_ms > now and "waiting" in counts.capped:
            return
        page = await _read_page(reader, queue, cursor, where)


async def _count_owned(reader: FleetReader, counts: _Counts) -> None:
    """Count the runs that workers own, and those of the dead that were not taken over in time."""
    coverage = counts.coverage
    rows = list(coverage.workers.values())
    for start in range(0, len(rows), _CONCURRENT_READS_MAX):
        batch = rows[start : start + _CONCURRENT_READS_MAX]
        owned = await asyncio.gather(*(reader.count_owned(row.id) for row in batch))
        for row, number in zip(batch, owned, strict=True):
            counts.add("running", number)
            if number == OWNED_MAX:
                counts.capped.add("running")
            late_ms = coverage.now_ms - row.deadline_ms
            if not coverage.live:
                if late_ms > counts.patience.grace_ms:
                    counts.add("unserved", number)
            elif late_ms > counts.patience.stuck_after_ms(coverage):
                counts.add("stuck", number)


async def _count_late(reader: FleetReader, counts: _Counts) -> None:
    """Read rows of runs that are due for too long: a worker may have claimed them by now."""
    for kind, runs in counts.late.items():
        heads = await reader.read_heads(runs)
        counts.add(kind, len(runs) - len(heads))  # those that cannot be read: no worker can either
        _count_verdicts(counts, heads)


async def _count_suspects(reader: FleetReader, counts: _Counts) -> None:
    """Read rows of runs that are due soon: a worker may have put them back."""
    _count_verdicts(counts, await reader.read_heads(counts.suspects))


def _count_verdicts(counts: _Counts, heads: Sequence[Head]) -> None:
    for head in heads:
        with suppress(JournalDamaged):
            verdict = verdict_on(head, counts.coverage, counts.patience)
            if verdict is not None and head.owner is None:
                counts.add(verdict.kind)


async def _count_troubled(reader: FleetReader, counts: _Counts) -> None:
    """Count failed and quarantined runs of the tenants that were seen."""
    shards = (await reader.kernel.get_settings()).list_shards
    partitions = [
        (tenant, list_partition("TROUBLE", tenant, shard))
        for tenant in sorted(counts.tenants)
        for shard in range(shards)
    ]
    for start in range(0, len(partitions), _CONCURRENT_READS_MAX):
        batch = partitions[start : start + _CONCURRENT_READS_MAX]
        await asyncio.gather(*(_count_list(reader, counts, *each) for each in batch))


async def _count_unnotified(reader: FleetReader, counts: _Counts) -> None:
    """Count runs that wait for a review of which no reviewer could be notified, as stuck."""
    found, rest = await find_unnotified(reader, tenant=None, limit=_ROWS_MAX, begin="")
    counts.add("stuck", len(found))
    if rest is not None:
        counts.capped.add("stuck")


async def _count_list(reader: FleetReader, counts: _Counts, tenant: str, partition: str) -> None:
    cursor: str | None = None
    while not {"failed", "quarantined"} <= _full(counts):
        page = await reader.table.query(partition, index="GSI2", limit=_PAGE, cursor=cursor)
        statuses: Sequence[object] = [entry.get("status") for entry in page.items]
        for status in ("failed", "quarantined"):
            if status in statuses:
                counts.add(status, statuses.count(status))
                counts.troubled[status].add(tenant)
        cursor = page.cursor
        if cursor is None:
            return


def _full(counts: _Counts) -> set[str]:
    return {name for name, number in counts.runs.items() if number >= _COUNT_MAX}


def _units_so_far(reader: FleetReader) -> float:
    return reader.kernel.store.meter.report().by_purpose().get("fleet", NO_UNITS).reads
