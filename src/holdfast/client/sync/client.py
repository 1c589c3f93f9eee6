# Generated from src/holdfast/client/client.py by checks/blocking.py; do not edit.
# To write it anew: python -m checks.blocking --write
"""The blocking `Client`; the async one is `holdfast.client.client.Client`."""

from __future__ import annotations

import builtins
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any, TypeVar

import httpx

from holdfast.client.client import Client as AsyncClient
from holdfast.client.connection import Token
from holdfast.client.sync.bulk_jobs import RemoteBulkJobs
from holdfast.client.sync.documents import RemoteDocuments
from holdfast.client.sync.fleet import RemoteFleet
from holdfast.client.sync.keys import RemoteKeys
from holdfast.client.sync.quotas import RemoteQuotaLevels
from holdfast.client.sync.reviews import RemoteReviews
from holdfast.client.sync.run import RemoteRun
from holdfast.client.sync.webhooks import RemoteWebhooks
from holdfast.clock import Clock, Ids
from holdfast.engine.runs.argument_checks import takes_run_filter
from holdfast.model.budget import Budget, BudgetLimits
from holdfast.model.durations import Duration
from holdfast.model.moments import Moment
from holdfast.model.program import Program, ResultT
from holdfast.model.progress import BulkProgress
from holdfast.model.run import AmbiguousCall, OnBusy, RunPage, SessionQueueEntry
from holdfast.portal import Portal
from holdfast.records.run_filter import RunFilter

__all__ = ["Client"]

R = TypeVar("R")
T = TypeVar("T")


class Client:
    """Starts runs on a server, lists them, and acts on many of them: the verbs of `Holdfast`.

    Every call blocks. Several threads may share one instance. ``with Client(url) as client: …``
    closes it at the end. After a fork the child makes its own.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        token: Token | None = None,
        tenant: str | None = None,
        timeout: Duration = 30,
        clock: Clock | None = None,
        ids: Ids | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Make a client of the server at an address. Nothing is sent before the first call.

        ``key`` is an API key; ``token`` is a token of an identity provider, or a function that
        returns one that has not expired. ``tenant`` is the tenant of calls that name none; without
        it, it is the one that the credentials belong to. ``timeout`` bounds a call with all its
        repetitions, and the time for which a stream tries to connect again. ``transport`` replaces
        the network, as ``httpx.ASGITransport(app)`` does in tests.

        Raises:
            InvalidRequest: the address is not one of a server, both a key and a token are given, or
                one of them is not text in ASCII.
        """
        self._client = AsyncClient(
            url,
            key=key,
            token=token,
            tenant=tenant,
            timeout=timeout,
            clock=clock,
            ids=ids,
            transport=transport,
        )
        self._portal = Portal()

    @property
    def tenant(self) -> str | None:
        """The tenant of calls that name none; None for the tenant of the credentials."""
        return self._client.tenant

    @property
    def documents(self) -> RemoteDocuments:
        """The documents: projects, how documents come in, and what becomes of them."""
        return RemoteDocuments(self._portal, self._client.documents)

    @property
    def fleet(self) -> RemoteFleet:
        """What runs where, what makes no progress, and what it costs."""
        return RemoteFleet(self._portal, self._client.fleet)

    @property
    def keys(self) -> RemoteKeys:
        """The API keys, with which callers use the server."""
        return RemoteKeys(self._portal, self._client.keys)

    @property
    def reviews(self) -> RemoteReviews:
        """The reviews: what runs ask people, and what people decide."""
        return RemoteReviews(self._portal, self._client.reviews)

    @property
    def webhooks(self) -> RemoteWebhooks:
        """The webhooks: events of runs that the server posts to other systems."""
        return RemoteWebhooks(self._portal, self._client.webhooks)

    @property
    def bulk_jobs(self) -> RemoteBulkJobs:
        """The bulk actions that servers carry out."""
        return RemoteBulkJobs(self._portal, self._client.bulk_jobs)

    @property
    def quota_levels(self) -> RemoteQuotaLevels:
        """How much of the quotas of the server is used."""
        return RemoteQuotaLevels(self._portal, self._client.quota_levels)

    def start(
        self,
        graph: Program[T, R] | str,
        input: T | None = None,
        *,
        id: str | None = None,
        tenant: str | None = None,
        user: str | None = None,
        labels: Mapping[str, str] | None = None,
        pool: str | None = None,
        session: str | None = None,
        on_busy: OnBusy | None = None,
        start_at: Moment | None = None,
        expires: Duration | None = None,
        retention: Duration = 0,
        budget: Budget | BudgetLimits | None = None,
    ) -> RemoteRun[R]:
        """Start a run. After the return it is stored, and no crash loses it.

        ``graph`` is a graph, which checks the input here and gives the result its type, or the name
        of one that the server has. The id is the idempotency key: a start with the same id, input
        and user returns the same run. Without an id, the client makes one, so that a start whose
        response was lost is sent again and starts one run. The other arguments are those of
        `Holdfast.start`; every run is durable from its start.

        Raises:
            PayloadTooLarge: the input has more bytes than the server takes.
            InvalidInput: the input does not fit the graph's state.
            UnknownGraph: the server has no graph of this name.
            InvalidName: an invalid id, tenant, user, pool, session or label.
            AlreadyExists: a run of this id exists with another input, session or user.
            SessionBusy: another run of the session goes on, and ``on_busy`` is ``reject``.
            ServerUnavailable: the server did not answer in time.
        """
        return RemoteRun(
            self._portal,
            self._portal.call(
                self._client.start,
                graph,
                input,
                id=id,
                tenant=tenant,
                user=user,
                labels=labels,
                pool=pool,
                session=session,
                on_busy=on_busy,
                start_at=start_at,
                expires=expires,
                retention=retention,
                budget=budget,
            ),
        )

    def run(
        self, id: str, *, tenant: str | None = None, graph: Program[Any, ResultT] | None = None
    ) -> RemoteRun[ResultT]:
        """Return a handle on the run of this id, without I/O: the run need not exist.

        With the ``graph`` of the run, `RemoteRun.result` returns its result in the graph's type.

        Raises:
            InvalidName: an invalid id or tenant.
            InvalidRequest: ``graph`` is no graph, for example its name.
        """
        self._portal.check()
        return RemoteRun(self._portal, self._client.run(id, tenant=tenant, graph=graph))

    @takes_run_filter
    def list(
        self,
        run_filter: RunFilter | None = None,
        *,
        tenant: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> RunPage:
        """Return a page of the tenant's runs, the newest first, or of those that meet a filter.

        A new run may appear a moment later. A page may have fewer than ``limit`` runs and a cursor:
        it looks at no more than 2,000 runs.

        Raises:
            InvalidQuery: not a RunFilter, a limit that is not from 1 to 1,000, or a wrong cursor.
        """
        return self._portal.call(
            self._client.list, run_filter, tenant=tenant, limit=limit, cursor=cursor
        )

    def session_queue(
        self, session: str, *, user: str | None = None, tenant: str | None = None
    ) -> builtins.list[SessionQueueEntry]:
        """Return the runs of a session that have not ended, in the order of their starts.

        Raises:
            InvalidName: an invalid session, user or tenant.
        """
        return self._portal.call(self._client.session_queue, session, user=user, tenant=tenant)

    def ambiguous(self, *, tenant: str | None = None) -> Generator[AmbiguousCall, None, None]:
        """Yield the at-most-once calls that may have been made, until `RemoteRun.resolve`."""
        return self._portal.iterate(self._client.ambiguous, tenant=tenant)

    @takes_run_filter
    def cancel_all(
        self,
        run_filter: RunFilter | None = None,
        *,
        tenant: str | None = None,
        reason: str = "",
        limit: int | None = None,
        cursor: str | None = None,
        everything: bool = False,
        dry_run: bool = False,
    ) -> Generator[BulkProgress, None, None]:
        """Cancel the runs that `list` shows with this filter; yield the progress after each page.

        A server carries the job out to its end, also if this client is closed. A run that ends
        before its turn counts as refused. Pass ``everything=True`` to act on all runs. ``limit`` is
        the largest number of runs to act on. ``dry_run`` only counts the runs. A ``cursor`` of an
        earlier call is refused: its job has gone on without the client.

        Raises:
            InvalidQuery: no filter, a status that cannot be cancelled, or a wrong limit or cursor.
            ServerUnavailable: the server did not answer in time; the job may have begun.
        """
        return self._portal.iterate(
            self._client.cancel_all,
            run_filter,
            tenant=tenant,
            reason=reason,
            limit=limit,
            cursor=cursor,
            everything=everything,
            dry_run=dry_run,
        )

    @takes_run_filter
    def retry_all(
        self,
        run_filter: RunFilter | None = None,
        *,
        tenant: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        everything: bool = False,
        dry_run: bool = False,
        keep_answers: bool = False,
    ) -> Generator[BulkProgress, None, None]:
        """Retry the failed and quarantined runs that meet a filter; see `cancel_all`.

        ``keep_answers`` is that of `RemoteRun.retry`.

        Raises:
            InvalidQuery: no filter, a status that cannot be retried, or a wrong limit or cursor.
            InvalidRequest: ``keep_answers`` is not a bool.
            ServerUnavailable: the server did not answer in time; the job may have begun.
        """
        return self._portal.iterate(
            self._client.retry_all,
            run_filter,
            tenant=tenant,
            limit=limit,
            cursor=cursor,
            everything=everything,
            dry_run=dry_run,
            keep_answers=keep_answers,
        )

    def close(self) -> None:
        """Close the connections to the server."""
        self._portal.close(self._client.close)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._client)
