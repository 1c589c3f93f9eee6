"""`Client`: starts runs on a server, lists them, and acts on many of them."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import httpx
import msgspec

from holdfast.client.arguments import (
    budget_body,
    filter_body,
    filter_query,
    input_of,
    seconds_of_duration,
    time_text,
)
from holdfast.client.bulk_jobs import RemoteBulkJobs
from holdfast.client.connection import ServerConnection, Token
from holdfast.client.documents import RemoteDocuments
from holdfast.client.fleet import RemoteFleet
from holdfast.client.keys import RemoteKeys
from holdfast.client.quotas import RemoteQuotaLevels
from holdfast.client.reading import member_of, page_of, read
from holdfast.client.reviews import RemoteReviews
from holdfast.client.run import RemoteRun
from holdfast.client.webhooks import RemoteWebhooks
from holdfast.clock import Clock, Ids, SystemClock, SystemIds
from holdfast.engine.runs.argument_checks import (
    check_program,
    takes_run_filter,
    validated_bulk_limit,
    validated_keep_answers,
    validated_limit,
    validated_reason,
    validated_user,
)
from holdfast.errors import HoldfastError, InvalidQuery, InvalidRequest
from holdfast.errors.registry import error_class
from holdfast.model.budget import Budget, BudgetLimits
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.json_form import JsonForm
from holdfast.model.moments import Moment
from holdfast.model.names import validated_labels, validated_name, validated_tenant
from holdfast.model.program import Program, ResultT
from holdfast.model.progress import BulkProgress
from holdfast.model.run import AmbiguousCall, OnBusy, RunPage, SessionQueueEntry
from holdfast.model.service import BulkJob
from holdfast.records.run_filter import RunFilter

__all__ = ["Client"]

T = TypeVar("T")
R = TypeVar("R")
F = TypeVar("F", bound=JsonForm)

_POLL_SECONDS = 0.25


class Client:
    """Starts runs on a server, lists them, and acts on many of them: the verbs of `Holdfast`.

    `run` and `start` return a `RemoteRun`, which has the operations on one run. An instance belongs
    to one event loop. ``async with Client(url) as client: …`` closes it at the end.
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
        self._connection = ServerConnection(
            url,
            token=_credentials(key, token),
            tenant=tenant,
            seconds=milliseconds_of(timeout, "timeout") / 1000,
            clock=clock or SystemClock(),
            ids=ids or SystemIds(),
            transport=transport,
        )

    @property
    def tenant(self) -> str | None:
        """The tenant of calls that name none; None for the tenant of the credentials."""
        return self._connection.tenant

    @property
    def documents(self) -> RemoteDocuments:
        """The documents: projects, how documents come in, and what becomes of them."""
        return RemoteDocuments(self._connection)

    @property
    def fleet(self) -> RemoteFleet:
        """What runs where, what makes no progress, and what it costs."""
        return RemoteFleet(self._connection)

    @property
    def keys(self) -> RemoteKeys:
        """The API keys, with which callers use the server."""
        return RemoteKeys(self._connection)

    @property
    def reviews(self) -> RemoteReviews:
        """The reviews: what runs ask people, and what people decide."""
        return RemoteReviews(self._connection)

    @property
    def webhooks(self) -> RemoteWebhooks:
        """The webhooks: events of runs that the server posts to other systems."""
        return RemoteWebhooks(self._connection)

    @property
    def bulk_jobs(self) -> RemoteBulkJobs:
        """The bulk actions that servers carry out."""
        return RemoteBulkJobs(self._connection)

    @property
    def quota_levels(self) -> RemoteQuotaLevels:
        """How much of the quotas of the server is used."""
        return RemoteQuotaLevels(self._connection)

    # --- runs -------------------------------------------------------------------------------------

    async def start(
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
        if not isinstance(graph, str):
            check_program(graph)
        body = {
            "graph": graph if isinstance(graph, str) else graph.name,
            "input": input_of(graph, input),
            "id": self._connection.ids.new() if id is None else validated_name(id, "id"),
            "user": validated_user(user),
            "labels": validated_labels(labels, pool=pool) or None,
            "session": session,
            "on_busy": on_busy,
            "start_at": time_text(start_at, "start_at"),
            "expires": seconds_of_duration(expires, "expires"),
            "retention": seconds_of_duration(retention, "retention") or None,
            "budget": budget_body(budget),
        }
        shown = await self._connection.call("start", body=body, tenant=tenant)
        known = None if isinstance(graph, str) else graph
        return RemoteRun(self._connection, member_of(shown, "id"), tenant, known)

    def run(
        self, id: str, *, tenant: str | None = None, graph: Program[Any, ResultT] | None = None
    ) -> RemoteRun[ResultT]:
        """Return a handle on the run of this id, without I/O: the run need not exist.

        With the ``graph`` of the run, `RemoteRun.result` returns its result in the graph's type.

        Raises:
            InvalidName: an invalid id or tenant.
            InvalidRequest: ``graph`` is no graph, for example its name.
        """
        if graph is not None:
            check_program(graph)
        tenant = None if tenant is None else validated_tenant(tenant)
        return RemoteRun(self._connection, validated_name(id, "id"), tenant, graph)

    @takes_run_filter
    async def list(
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
        query = {**filter_query(run_filter), "limit": validated_limit(limit), "cursor": cursor}
        return read(RunPage, await self._connection.call("list", query=query, tenant=tenant))

    async def session_queue(
        self, session: str, *, user: str | None = None, tenant: str | None = None
    ) -> builtins.list[SessionQueueEntry]:
        """Return the runs of a session that have not ended, in the order of their starts.

        Raises:
            InvalidName: an invalid session, user or tenant.
        """
        return [
            each
            async for each in self._all_of(
                SessionQueueEntry,
                "session_queue",
                "runs",
                tenant=tenant,
                query={"user": validated_user(user)},
                names={"session": validated_name(session, "session")},
            )
        ]

    def ambiguous(self, *, tenant: str | None = None) -> AsyncGenerator[AmbiguousCall, None]:
        """Yield the at-most-once calls that may have been made, until `RemoteRun.resolve`."""
        return self._all_of(AmbiguousCall, "ambiguous", "calls", tenant=tenant)

    # --- many runs --------------------------------------------------------------------------------

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
    ) -> AsyncGenerator[BulkProgress, None]:
        """Cancel the runs that `list` shows with this filter; yield the progress after each page.

        A server carries the job out to its end, also if this client is closed. A run that ends
        before its turn counts as refused. Pass ``everything=True`` to act on all runs. ``limit`` is
        the largest number of runs to act on. ``dry_run`` only counts the runs. A ``cursor`` of an
        earlier call is refused: its job has gone on without the client.

        Raises:
            InvalidQuery: no filter, a status that cannot be cancelled, or a wrong limit or cursor.
            ServerUnavailable: the server did not answer in time; the job may have begun.
        """
        return self._act_on_all(
            {
                "action": "cancel",
                "filter": filter_body(run_filter),
                "reason": validated_reason(reason),
                "limit": validated_bulk_limit(limit),
                "everything": everything,
                "dry_run": dry_run,
            },
            cursor=cursor,
            tenant=tenant,
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
    ) -> AsyncGenerator[BulkProgress, None]:
        """Retry the failed and quarantined runs that meet a filter; see `cancel_all`.

        ``keep_answers`` is that of `RemoteRun.retry`.

        Raises:
            InvalidQuery: no filter, a status that cannot be retried, or a wrong limit or cursor.
            InvalidRequest: ``keep_answers`` is not a bool.
            ServerUnavailable: the server did not answer in time; the job may have begun.
        """
        return self._act_on_all(
            {
                "action": "retry",
                "filter": filter_body(run_filter),
                "keep_answers": validated_keep_answers(keep_answers, from_node=None),
                "limit": validated_bulk_limit(limit),
                "everything": everything,
                "dry_run": dry_run,
            },
            cursor=cursor,
            tenant=tenant,
        )

    async def close(self) -> None:
        """Close the connections to the server."""
        await self._connection.close()

    def __enter__(self) -> NoReturn:
        raise InvalidRequest(
            "write `async with Client(…) as client` in a coroutine; in code without coroutines use "
            "`with holdfast.client.sync.Client(…) as client`"
        )

    def __exit__(self, *error: object) -> None: ...

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<client of {self._connection!r}>"

    async def _all_of(
        self,
        kind: type[F],
        verb: str,
        member: str,
        *,
        tenant: str | None,
        query: Mapping[str, Any] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[F, None]:
        cursor: str | None = None
        while True:
            shown = await self._connection.call(
                verb, query={**(query or {}), "cursor": cursor}, tenant=tenant, names=names
            )
            items, cursor = page_of(kind, shown, member)
            for each in items:
                yield each
            if cursor is None:
                return

    async def _act_on_all(
        self, body: Mapping[str, Any], *, cursor: str | None, tenant: str | None
    ) -> AsyncGenerator[BulkProgress, None]:
        """Start a job, and yield its progress as it changes, until its end."""
        if cursor is not None:
            raise InvalidQuery(
                "cursor must be None: a server carries a bulk action out to its end; start another "
                "one with the same filter",
                field="cursor",
            )
        shown = await self._connection.call("bulk_add", body=body, tenant=tenant)
        job = read(BulkJob, shown)
        told: BulkProgress | None = None
        while True:
            # The job goes on by itself, so callers have no use for its cursor.
            progress = msgspec.structs.replace(job.progress, cursor=None)
            is_over = job.status not in ("pending", "running")
            if progress != told and (is_over or progress.seen):
                told = progress
                yield progress
            if job.status == "failed":
                raise _job_error(job)
            if is_over:
                return
            await self._connection.clock.sleep(_POLL_SECONDS)
            job = await self.bulk_jobs.get(job.id, tenant=tenant)


def _job_error(job: BulkJob) -> HoldfastError:
    """Return the error that ended a job."""
    told = str(job.error)
    code = told.rpartition("[")[2].removesuffix("]")
    return (error_class(code) or HoldfastError)(f"the bulk action failed: {told}")


def _credentials(key: str | None, token: Token | None) -> Token | None:
    if key is not None and token is not None:
        raise InvalidRequest("pass a key or a token, not both", field="token")
    if callable(token):
        return token
    given = token if key is None else key
    field = "token" if key is None else "key"
    if given is None:
        return None
    # Not quoted: it is a secret.
    if not isinstance(given, str) or not given.isascii() or not given.isprintable() or not given:
        raise InvalidRequest(f"{field} must be printable text in ASCII", field=field)
    return given
