# Generated from src/holdfast/client/fleet.py by checks/blocking.py; do not edit.
# To write it anew: python -m checks.blocking --write
"""The blocking `RemoteFleet`; the async one is `holdfast.client.fleet.RemoteFleet`."""

from __future__ import annotations

from holdfast.client.fleet import RemoteFleet as AsyncRemoteFleet
from holdfast.engine.runs.argument_checks import takes_run_filter
from holdfast.model.durations import Duration
from holdfast.model.fleet import CostPage, FleetOverview, GraphEntry, StalledPage, WorkerEntry
from holdfast.portal import Portal
from holdfast.records.run_filter import RunFilter

__all__ = ["RemoteFleet"]


class RemoteFleet:
    """What runs where, what makes no progress, and what it costs: the reads of `Fleet`."""

    def __init__(self, portal: Portal, fleet: AsyncRemoteFleet) -> None:
        self._portal = portal
        self._fleet = fleet

    def graphs(self) -> list[GraphEntry]:
        """Return every graph and version that any worker or server has published, at most 1,000."""
        return self._portal.call(self._fleet.graphs)

    def workers(self) -> list[WorkerEntry]:
        """Return the live workers, and dead ones whose runs are not all taken over yet.

        The newest comes first. How much a worker holds and how far it lags is at most one
        heartbeat old, a quarter of its lease.

        Raises:
            Forbidden: the role is not admin, and the credentials are not for every tenant.
        """
        return self._portal.call(self._fleet.workers)

    def stuck(
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
            Forbidden: the credentials are not for every tenant, or for another one.
        """
        return self._portal.call(self._fleet.stuck, tenant=tenant, limit=limit, cursor=cursor)

    def unserved(
        self,
        *,
        tenant: str | None = None,
        grace: Duration = 30,
        limit: int = 100,
        cursor: str | None = None,
    ) -> StalledPage:
        """Return a page of runs that no live worker serves.

        Such a run is due for longer than ``grace``, at most a day, and no live worker has its
        graph, its version or its pool; or it waits for a model or a task that its workers lack.
        ``tenant="*"`` looks at all tenants, but of graphs and pools that no worker published only
        at the server's own.

        Raises:
            InvalidQuery: a limit that is not from 1 to 1,000, or a wrong cursor.
            InvalidName: an invalid tenant.
            InvalidRequest: ``grace`` is not a duration of at most a day.
            Forbidden: the credentials are not for every tenant, or for another one.
        """
        return self._portal.call(
            self._fleet.unserved, tenant=tenant, grace=grace, limit=limit, cursor=cursor
        )

    def overview(self) -> FleetOverview:
        """Return how many runs of all tenants are in which state. Each count ends at 10,000.

        The server reads the due index of all known graphs: ``read_units`` says what it cost.

        Raises:
            Forbidden: the credentials are not for every tenant.
        """
        return self._portal.call(self._fleet.overview)

    @takes_run_filter
    def cost(
        self,
        run_filter: RunFilter | None = None,
        *,
        by: str = "graph",
        tenant: str | None = None,
        cursor: str | None = None,
    ) -> CostPage:
        """Return what the runs of a filter cost, by graph, day (UTC), status or ``label:NAME``.

        A page adds up at most 1,000 runs, the newest first: read on with its cursor. With
        credentials for every tenant, it also says what the store cost the server's process, and
        what that process saved.

        Raises:
            InvalidQuery: not a RunFilter, an unknown grouping, or a wrong cursor.
            InvalidName: an invalid tenant.
        """
        return self._portal.call(self._fleet.cost, run_filter, by=by, tenant=tenant, cursor=cursor)
