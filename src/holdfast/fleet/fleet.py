"""`Fleet`: lists graphs and workers, finds runs without progress, counts runs, adds up cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from holdfast.engine.effects.savings import Saved
from holdfast.engine.history import lists
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.argument_checks import (
    check_program,
    takes_run_filter,
    validated_filter,
    validated_limit,
)
from holdfast.engine.runs.graph_items import publish_program
from holdfast.fleet.costs import cost_groups, grouping, purpose_costs
from holdfast.fleet.counting import count_fleet
from holdfast.fleet.coverage import Coverage
from holdfast.fleet.diagnosis import StoreFacts
from holdfast.fleet.reader import FleetReader, PublishedGraph
from holdfast.fleet.stalls import find_stalled, find_stalled_of_tenant
from holdfast.fleet.store_probe import probe_store
from holdfast.fleet.verdict import Patience, StallKind
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.fleet import CostPage, FleetOverview, GraphEntry, StalledPage, WorkerEntry
from holdfast.model.names import validated_tenant
from holdfast.model.program import Program
from holdfast.records.keys import SETTINGS
from holdfast.records.run_filter import RunFilter
from holdfast.records.times import utc_datetime
from holdfast.records.worker import WorkerRow

__all__ = ["ALL_TENANTS", "Fleet"]

ALL_TENANTS = "*"
"""Stands for every tenant in `Fleet.stuck` and `Fleet.unserved`."""
_GRACE = 30
_COST_RUNS_MAX = 1_000
_CONCURRENT_READS_MAX = 16


class Fleet:
    """What runs where, what makes no progress, and what it costs. `Holdfast.fleet` is one."""

    def __init__(self, kernel: Kernel, tenant: str, saved: Callable[[], Saved]) -> None:
        self._kernel = kernel
        self._tenant = tenant
        self._saved = saved
        self._reader = FleetReader(kernel)

    async def graphs(self) -> list[GraphEntry]:
        """Return every graph and version that any worker or server has published, at most 1,000.

        Raises:
            StoreError: the store cannot be read.
        """
        return [_graph_entry(graph) for graph in await self._reader.read_graphs()]

    async def publish(self, graphs: Iterable[Program]) -> None:
        """Store what other processes should know of graphs, as a worker does when it starts.

        A server without a worker does this. An error of the store is logged.

        Raises:
            InvalidRequest: one of them is not a graph.
        """
        programs = list(graphs)
        for program in programs:
            check_program(program)
        for program in programs:
            await publish_program(self._kernel, program)

    async def workers(self) -> list[WorkerEntry]:
        """Return the live workers, and dead ones whose runs are not all taken over yet.

        The newest comes first. How much a worker holds and how far it lags is at most one
        heartbeat old, a quarter of its lease.

        Raises:
            StoreError: the store cannot be read.
        """
        coverage = await self._reader.read_coverage()
        rows = sorted(coverage.workers.values(), key=lambda row: (-row.since_ms, row.id))
        entries: list[WorkerEntry] = []
        for start in range(0, len(rows), _CONCURRENT_READS_MAX):
            batch = rows[start : start + _CONCURRENT_READS_MAX]
            owned = await asyncio.gather(*(self._reader.count_owned(row.id) for row in batch))
            entries += [
                _worker_entry(row, number, coverage)
                for row, number in zip(batch, owned, strict=True)
            ]
        return entries

    async def stuck(
        self, *, tenant: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> StalledPage:
        """Return a page of runs that a live worker should have claimed by now.

        Such a run is due for longer than a lease, a poll and 30 seconds, or its owner died that
        long ago, or workers failed to resume it repeatedly. Also runs that wait for a review, if no
        reviewer could be notified of it. ``tenant="*"`` looks at all tenants. A page may have fewer
        than ``limit`` runs and a cursor: it looks at no more than 2,000 runs.

        Raises:
            InvalidQuery: a limit that is not from 1 to 1,000, or a wrong cursor.
            InvalidName: an invalid tenant.
            StoreError: the store cannot be read.
        """
        return await self._find("stuck", tenant, _GRACE, limit, cursor)

    async def unserved(
        self,
        *,
        tenant: str | None = None,
        grace: Duration = _GRACE,
        limit: int = 100,
        cursor: str | None = None,
    ) -> StalledPage:
        """Return a page of runs that no live worker serves.

        Such a run is due for longer than ``grace``, and no live worker has its graph, its version
        or its pool; or it waits for a model or a task that its workers lack. ``tenant="*"`` looks
        at all tenants, but of graphs and pools that no worker published only at the instance's own.

        Raises:
            InvalidQuery: a limit that is not from 1 to 1,000, or a wrong cursor.
            InvalidName: an invalid tenant.
            InvalidRequest: ``grace`` is not a duration.
            StoreError: the store cannot be read.
        """
        return await self._find("unserved", tenant, grace, limit, cursor)

    async def overview(self) -> FleetOverview:
        """Return how many runs of all tenants are in which state. Each count ends at 10,000.

        It reads the due index of all known graphs: ``read_units`` says what it cost.

        Raises:
            StoreError: the store cannot be read.
        """
        return await count_fleet(self._reader, tenant=self._tenant, patience=self._patience(_GRACE))

    @takes_run_filter
    async def cost(
        self,
        run_filter: RunFilter | None = None,
        *,
        by: str = "graph",
        tenant: str | None = None,
        cursor: str | None = None,
    ) -> CostPage:
        """Return what the runs of a filter cost, by graph, day (UTC), status or ``label:NAME``.

        A page adds up at most 1,000 runs, the newest first: read on with its cursor. It also says
        what the store cost this process, and what this process saved.

        Raises:
            InvalidQuery: not a RunFilter, an unknown grouping, or a wrong cursor.
            InvalidName: an invalid tenant.
            StoreError: the store cannot be read.
        """
        key_of = grouping(by)
        page = await lists.list_runs(
            self._kernel,
            self._tenant if tenant is None else validated_tenant(tenant),
            validated_filter(run_filter),
            limit=_COST_RUNS_MAX,
            cursor=cursor,
        )
        saved = self._saved()
        return CostPage(
            groups=cost_groups(page.runs, key_of),
            cursor=page.cursor,
            store=purpose_costs(self._kernel.store.meter.report()),
            saved_calls=saved.calls,
            saved_usd=saved.usd,
            damaged=page.damaged,
        )

    async def ping(self) -> None:
        """Read one small item, to see that the store answers.

        Raises:
            StoreError: it does not.
        """
        await self._reader.table.get(SETTINGS, eventual=True)

    async def probe_store(self) -> StoreFacts:
        """Read, write and delete an item and a blob; return what happened."""
        return await probe_store(self._kernel)

    async def _find(
        self, kind: StallKind, tenant: str | None, grace: Duration, limit: int, cursor: str | None
    ) -> StalledPage:
        find = find_stalled if tenant == ALL_TENANTS else find_stalled_of_tenant
        named = None if tenant == ALL_TENANTS else tenant
        return await find(
            self._reader,
            kind,
            tenant=self._tenant if named is None else validated_tenant(named),
            patience=self._patience(grace),
            limit=validated_limit(limit),
            cursor=cursor,
        )

    def _patience(self, grace: Duration) -> Patience:
        poll_ms = round(self._kernel.store.poll_seconds * 1000)
        return Patience(grace_ms=milliseconds_of(grace, "grace"), poll_ms=poll_ms)


def _graph_entry(graph: PublishedGraph) -> GraphEntry:
    facts = graph.facts
    return GraphEntry(
        name=graph.name,
        version=graph.version,
        drawing=facts.drawing,
        input_schema=facts.input_schema,
        signals=facts.declared,
        signal_schemas={
            name: tuple(schemas.values()) for name, schemas in sorted(facts.schemas.items())
        },
        pools=facts.pools,
        published_at=utc_datetime(facts.published_ms) if facts.published_ms else None,
    )


def _worker_entry(row: WorkerRow, owned: int, coverage: Coverage) -> WorkerEntry:
    return WorkerEntry(
        id=row.id,
        alive=coverage.is_alive(row),
        since_at=utc_datetime(row.since_ms),
        lease_until_at=utc_datetime(row.deadline_ms),
        lease_seconds=row.lease_ms / 1000,
        host=row.host,
        pid=row.pid,
        release=row.release,
        concurrency=row.concurrency,
        running=row.running,
        lag_seconds=None if row.lag_ms is None else row.lag_ms / 1000,
        graphs=row.offer.graphs,
        pools=row.offer.pools,
        complete=row.offer.complete,
        owned=owned,
    )
