"""`Holdfast`: where the parts are put together, and the face of the product."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any

from msgspec import UNSET

from holdfast.clock import Clock, Ids, SystemClock, SystemIds
from holdfast.engine.client import bulk, sweep
from holdfast.engine.client.awaiting import RunOutcomes
from holdfast.engine.client.launching import RunLauncher
from holdfast.engine.client.process_workers import ProcessWorkers
from holdfast.engine.client.run_commands import RunControl
from holdfast.engine.client.shards import raise_shards
from holdfast.engine.effects.resources import Resources, check_resources
from holdfast.engine.effects.savings import Saved
from holdfast.engine.history import lists
from holdfast.engine.history.views import queue_entry_of
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs import ambiguity, session_queue, starting
from holdfast.engine.runs.argument_checks import (
    moment_ms,
    positive_ms,
    validated_age_ms,
    validated_budget,
    validated_bulk,
    validated_durability,
    validated_filter,
    validated_limit,
    validated_limits,
    validated_on_busy,
    validated_reason,
    validated_user,
)
from holdfast.engine.worker.options import WorkerOptions
from holdfast.engine.worker.worker import Worker
from holdfast.errors import InvalidRequest
from holdfast.handle import RunHandle
from holdfast.model.budget import Budget
from holdfast.model.durations import Duration, days, milliseconds_of
from holdfast.model.invocation import Model
from holdfast.model.names import validated_labels, validated_name, validated_tenant
from holdfast.model.payload_limits import PayloadLimits
from holdfast.model.policy import Durability
from holdfast.model.program import Program
from holdfast.model.progress import BulkProgress, SweepProgress
from holdfast.model.quota import Quota
from holdfast.model.run import (
    AmbiguousCall,
    HistoryEntry,
    HistoryPage,
    OnBusy,
    Run,
    RunEntry,
    RunPage,
    SessionQueueEntry,
    Status,
    TextPiece,
)
from holdfast.model.spending import Spending
from holdfast.records.head import OPEN, TROUBLED
from holdfast.records.keys import RunKey, SessionQueueKey
from holdfast.storage import Meter, Store
from holdfast.storage import open as open_store

__all__ = ["Holdfast", "RunHandle"]

_WEEK = days(7)
_TWO_DAYS = days(2)


class Holdfast:
    """Runs graphs on a store, and looks after the runs of others there.

    It belongs to one event loop. ``tenant`` is who is meant where a call names none.
    """

    def __init__(
        self,
        url: str,
        *,
        tenant: str = "default",
        user_key: bytes | None = None,
        models: Mapping[str, Model] | None = None,
        quotas: Mapping[str, Quota] | None = None,
        tasks: Mapping[str, Callable[..., Any]] | None = None,
        limits: PayloadLimits | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
        store: Store | None = None,
    ) -> None:
        """Open the store at an address, or take one that is open.

        ``models`` are those that nodes can ask with `Context.model`, by the names they ask for;
        ``quotas`` limit how many questions, tokens or dollars all workers together put to each.
        ``tasks`` are the functions that programs invoke by name.
        ``limits`` are how large inputs, signals, states, answers and arguments may be, and how many
        signals a run may have waiting; see `PayloadLimits`.
        ``user_key`` is the key of the hash under which users are kept; without one the store keeps
        one that was made at random.

        Raises:
            InvalidUrl: the address cannot be understood.
            StoreUnusable: the store cannot be used.
        """
        if user_key is not None and (not isinstance(user_key, bytes) or len(user_key) < 16):
            raise InvalidRequest("user_key is bytes, at least 16 of them", field="user_key")
        self._tenant = validated_tenant(tenant)
        check_resources(models, quotas, tasks)
        clock = clock or SystemClock()
        self._store = store or open_store(url, clock=clock)
        self._kernel = Kernel(
            self._store, clock, ids or SystemIds(clock), user_key, limits=validated_limits(limits)
        )
        self._resources = Resources(self._kernel, models, quotas, tasks)
        self._workers = ProcessWorkers()
        self._launching = RunLauncher(self._kernel, self._workers)
        self._awaiting = RunOutcomes(self._kernel, self._workers)
        self._steering = RunControl(self._kernel, self._workers, self._resources, self._awaiting)

    @property
    def meter(self) -> Meter:
        """What the store was asked so far, and what that costs."""
        return self._store.meter

    @property
    def saved(self) -> Saved:
        """What this process did not pay, since the answers were known."""
        return self._resources.savings.total

    # --- runs -------------------------------------------------------------------------------------

    async def start(
        self,
        graph: Program,
        input: Any = None,
        *,
        id: str | None = None,
        tenant: str | None = None,
        user: str | None = None,
        labels: Mapping[str, str] | None = None,
        pool: str | None = None,
        session: str | None = None,
        on_busy: OnBusy | None = None,
        durability: Durability | None = None,
        start_at: datetime | None = None,
        expires: Duration = _WEEK,
        retention: Duration = 0,
        budget: Budget | None = None,
    ) -> RunHandle:
        """Start a run; when this returns, nothing can lose it.

        The id is the idempotency key: the same id, input and user give the same run, however often
        this is called. Only workers that serve its ``pool`` take the run; it is one of its labels.
        ``expires`` counts from the start; ``retention`` is how long the rows are kept beyond that,
        two days at the least.

        Runs of one user's ``session`` go on one after the other, in the order of their starts.
        ``on_busy`` says what becomes of this one where another goes on: it waits (``queue``), is
        refused (``reject``), ends those before it (``replace``), or answers with its input what
        the one in front waits for (``promote``), whose handle is then returned.

        With ``durability="on_pause"`` this returns when the run pauses or has ended, and a run that
        never pauses writes nothing; see `Durability`. A run with a ``budget`` pauses before it
        would spend more, and is durable from the start.

        Raises:
            PayloadTooLarge: the input has more bytes than ``input_bytes_max``.
            InvalidInput: the input does not fit the graph's state.
            InvalidGraph: the graph cannot be run.
            InvalidName: the id, the tenant, the pool, the session or a label cannot be one.
            AlreadyExists: there is a run of this id, with another input, in another session or for
                another user.
            SessionBusy: another run of the session goes on, and ``on_busy`` is ``reject``.
        """
        if not isinstance(graph, Program):
            raise InvalidRequest(f"a graph is started, not {graph!r:.80}", field="graph")
        asked = starting.StartRequest(
            run=self._key(self._kernel.ids.new() if id is None else id, tenant),
            user=validated_user(user),
            labels=validated_labels(labels, pool=pool),
            starts_ms=None if start_at is None else moment_ms(start_at, "start_at"),
            expires_in_ms=positive_ms(expires, "expires"),
            retention_ms=milliseconds_of(retention, "retention"),
            session=None if session is None else validated_name(session, "session"),
            on_busy=validated_on_busy(on_busy, session),
            budget=validated_budget(budget),
            on_pause=validated_durability(durability, graph) == "on_pause",
        )
        graph.check()
        launched = await self._launching.start(graph, {} if input is None else input, asked)
        return RunHandle(self._steering, launched.run, launched.graph, launched.outcome)

    def run(self, id: str, *, tenant: str | None = None, graph: Program | None = None) -> RunHandle:
        """Return a handle on a run that is known by its id; nothing is read yet."""
        return RunHandle(self._steering, self._key(id, tenant), graph)

    async def get(self, id: str, *, tenant: str | None = None) -> Run:
        """Return a run's row: where it stands, why it is paused, what it has used.

        Raises:
            RunNotFound: there is no such run.
        """
        return await self._steering.get(self._key(id, tenant))

    async def list(
        self,
        *,
        tenant: str | None = None,
        status: Status | None = None,
        graph: str | None = None,
        labels: Mapping[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> RunPage:
        """Return a page of runs, the newest first. A new run may take a moment to appear.

        A page may hold fewer than ``limit`` and yet have a cursor, where few runs fit the filter.

        Raises:
            InvalidQuery: a wrong limit, status or cursor.
        """
        limit = validated_limit(limit)
        asked = validated_filter(
            status=status, graph=graph, labels=labels, since=since, until=until
        )
        return await lists.list_runs(
            self._kernel, self._tenant_or_default(tenant), asked, limit=limit, cursor=cursor
        )

    async def lane(
        self, session: str, *, user: str | None = None, tenant: str | None = None
    ) -> list[SessionQueueEntry]:
        """Return the runs of a session that have not ended, in their order.

        Raises:
            InvalidName: the session, the user or the tenant cannot be one.
        """
        of, tenant = validated_user(user), self._tenant_or_default(tenant)
        session = validated_name(session, "session")
        hash = None if of is None else await self._kernel.hash_user(of, tenant)
        key = SessionQueueKey(tenant, "-" if hash is None else hash.unbound, session)
        return [queue_entry_of(head) for head in await session_queue.list_queue(self._kernel, key)]

    async def children(self, id: str, *, tenant: str | None = None) -> list[RunEntry]:
        """Return the runs that a run started, the oldest first.

        Raises:
            RunNotFound: there is no such run.
        """
        return await self._steering.list_children(self._key(id, tenant))

    async def history(
        self, id: str, *, tenant: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> HistoryPage:
        """Return a page of what happened to a run, the oldest first.

        Raises:
            RunNotFound: there is no such run, or its journal is no longer kept.
            InvalidQuery: a wrong limit, or a cursor that is not one of this run.
        """
        return await self._steering.read_history(self._key(id, tenant), limit=limit, cursor=cursor)

    def events(
        self,
        id: str,
        *,
        tenant: str | None = None,
        after: str | None = None,
        follow: bool = True,
    ) -> AsyncGenerator[HistoryEntry, None]:
        """Yield what happened to a run, then what happens to it, until it has ended.

        Each entry has a cursor: whoever passes the last one as ``after``, here or in another
        process, misses nothing and sees nothing twice. After a retry, call it again so.
        ``follow=False`` yields what is there, and stops.

        Raises:
            RunNotFound: there is no such run, or its journal is no longer kept.
            InvalidQuery: a cursor that is not one of this run.
        """
        return self._steering.stream_events(self._key(id, tenant), after=after, follow=follow)

    def tokens(
        self,
        id: str,
        *,
        tenant: str | None = None,
        after: str | None = None,
        follow: bool = True,
    ) -> AsyncGenerator[TextPiece, None]:
        """Yield the text of a run's answers, then what comes of it, until the run has ended.

        Only calls with ``stream=True`` are followed so, for a day at the most. Each piece has a
        cursor: whoever passes the last one as ``after``, here or in another process, misses nothing
        and sees nothing twice. Where a call has to be made again, a piece with ``restarted`` says
        that what came of it before is void. ``follow=False`` yields what is there, and stops.

        Raises:
            RunNotFound: there is no such run, or what it kept is gone.
            InvalidQuery: a cursor that is not one of this run.
        """
        return self._steering.stream_text(self._key(id, tenant), after=after, follow=follow)

    async def signal(
        self,
        id: str,
        name: str,
        payload: Any = None,
        *,
        signal_id: str | None = None,
        tenant: str | None = None,
    ) -> None:
        """Send a run a signal; when this returns, it counts, exactly once.

        It may come before the run waits for it. Send it with the same ``signal_id`` again if you
        do not know what became of it.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: it has ended, or expired, and did not accept this signal before.
            RunClosing: it is past its expiry and carries out what it holds, perhaps this signal:
                send it again later with the same ``signal_id``.
            AlreadyExists: a signal of this id is there, with another payload.
            PayloadTooLarge: the payload has more bytes than ``signal_bytes_max``.
            InvalidInput: the payload cannot be kept.
            InboxFull: as many signals as there may be wait in its inbox: send it again later.
        """
        await self._steering.send_signal(self._key(id, tenant), name, payload, signal_id=signal_id)

    async def set_budget(self, id: str, budget: Budget, *, tenant: str | None = None) -> None:
        """Give a run another budget, in the place of what it had; if it waits for one, it goes on.

        So do the runs that it started and that share its budget. What was spent before counts.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: it has ended, or expired.
            BudgetShared: it shares the budget of the run that started it; or it has a slice of that
                budget, which can only be lowered.
        """
        await self._steering.set_budget(self._key(id, tenant), budget)

    async def spending(self, id: str, *, tenant: str | None = None) -> Spending:
        """Return what a run has spent, with all those that share its budget.

        What they were given and have not spent yet counts, of what the budget limits.

        Raises:
            RunNotFound: there is no such run.
        """
        return await self._steering.read_spending(self._key(id, tenant))

    def ambiguous(self, *, tenant: str | None = None) -> AsyncGenerator[AmbiguousCall, None]:
        """Yield the calls that may have been made, and wait for somebody to `resolve` them."""
        return ambiguity.list_ambiguous_calls(self._kernel, self._tenant_or_default(tenant))

    async def resolve(
        self,
        id: str,
        call: str,
        *,
        result: Any = UNSET,
        error: str | None = None,
        void: bool = False,
        tenant: str | None = None,
    ) -> None:
        """Say what became of a call that was made at most once; its run goes on then.

        It was carried out and came to ``result``; or it failed for good, with that ``error``; or,
        if ``void``, nothing happened and under its key nothing ever will, so that it may be made
        again under another one.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: it has ended, or expired.
            NotAmbiguous: the call does not wait for that, or no longer.
            AlreadyExists: somebody said something else before.
            InvalidInput: the result cannot be kept.
            InvalidRequest: nothing is said, or two things.
        """
        await self._steering.resolve_call(
            self._key(id, tenant), call, result=result, error=error, void=void
        )

    async def cancel(self, id: str, *, reason: str = "", tenant: str | None = None) -> None:
        """End a run. A node that is under way elsewhere ends at its next write.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: it has ended otherwise.
        """
        await self._steering.cancel(self._key(id, tenant), reason)

    async def extend(self, id: str, *, expires: Duration, tenant: str | None = None) -> None:
        """Let a run expire that long from now, and not before; its retention stays as it is.

        What happened before is not told by its history once the old expiry and two days are over.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: it has ended, or expired.
            ExpiryNotLater: it expires later than that as it is.
        """
        await self._steering.extend(self._key(id, tenant), expires)

    async def retry(
        self, id: str, *, from_node: str | None = None, tenant: str | None = None
    ) -> None:
        """Let a run go on that failed or is quarantined, at that node or where it stopped.

        Its state is as it was; the attempts count anew.

        Raises:
            RunNotFound: there is no such run.
            NotRetryable: it has not failed.
            RunEnded: it has expired.
        """
        await self._steering.retry(self._key(id, tenant), from_node=from_node)

    # --- many runs, and what they leave behind ----------------------------------------------------

    def cancel_all(
        self,
        *,
        tenant: str | None = None,
        status: Status | None = None,
        graph: str | None = None,
        labels: Mapping[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        reason: str = "",
        limit: int | None = None,
        cursor: str | None = None,
        everything: bool = False,
        dry_run: bool = False,
    ) -> AsyncGenerator[BulkProgress, None]:
        """End the runs that a list with this filter shows; yield how far it is after each page.

        What has ended by the time that its turn comes counts as refused. Without any filter it
        must be said that ``everything`` is meant. ``cursor`` goes on from an earlier progress.

        Raises:
            InvalidQuery: no filter, a status in which nothing can be cancelled, a wrong cursor.
            StoreUnavailable: the store did not answer for a while; go on from the last cursor.
        """
        asked = validated_bulk(
            among=OPEN | {"closing"}, everything=everything, limit=limit, status=status,
            graph=graph, labels=labels, since=since, until=until,
        )  # fmt: skip
        reason = validated_reason(reason)

        async def cancel(run: RunKey) -> None:
            await self.cancel(run.id, reason=reason, tenant=run.tenant)

        act, whose = None if dry_run else cancel, self._tenant_or_default(tenant)
        return bulk.act_on_runs(self._kernel, whose, asked, act, limit=limit, cursor=cursor)

    def retry_all(
        self,
        *,
        tenant: str | None = None,
        status: Status | None = None,
        graph: str | None = None,
        labels: Mapping[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        everything: bool = False,
        dry_run: bool = False,
    ) -> AsyncGenerator[BulkProgress, None]:
        """Let the runs go on that failed or are quarantined and fit a filter; see `cancel_all`.

        Raises:
            InvalidQuery: no filter, a status in which nothing can be retried, a wrong cursor.
            StoreUnavailable: the store did not answer for a while; go on from the last cursor.
        """
        asked = validated_bulk(
            among=TROUBLED, everything=everything, limit=limit, status=status,
            graph=graph, labels=labels, since=since, until=until,
        )  # fmt: skip

        async def retry(run: RunKey) -> None:
            await self.retry(run.id, tenant=run.tenant)

        act, whose = None if dry_run else retry, self._tenant_or_default(tenant)
        return bulk.act_on_runs(self._kernel, whose, asked, act, limit=limit, cursor=cursor)

    def sweep_blobs(
        self, *, older_than: Duration = _TWO_DAYS, dry_run: bool = False
    ) -> AsyncGenerator[SweepProgress, None]:
        """Delete the blobs that no run names, of all tenants; yield how far it is after each page.

        Only what was begun longer ago than ``older_than`` is touched, a day at the least: what is
        younger may still be on its way to being started.

        Raises:
            InvalidRequest: less than a day.
            StoreUnavailable: the store did not answer for a while; do it again later.
            StoreUnusable: the store has no room for blobs, or somebody has to mend it.
        """
        age_ms = validated_age_ms(older_than)
        return sweep.sweep_blobs(self._kernel, older_than_ms=age_ms, dry_run=dry_run)

    # --- workers ----------------------------------------------------------------------------------

    def worker(
        self, graphs: Iterable[Program], *, options: WorkerOptions | None = None, **given: Any
    ) -> Worker:
        """Return a worker for these graphs: ``async with hf.worker([graph]): …``

        What can be given is in `WorkerOptions`: concurrency, pools, lease_seconds, drain_seconds …

        Raises:
            InvalidGraph: a graph cannot be run.
            InvalidRequest: an option cannot be understood.
        """
        if options is not None and given:
            raise InvalidRequest("a worker is given its options in one way, not in two")
        if not isinstance(options, WorkerOptions | None):
            raise InvalidRequest(f"options are WorkerOptions, not {options!r:.80}", field="options")
        try:
            options = options or WorkerOptions(**given)
        except TypeError as error:
            raise InvalidRequest(f"a worker has no such option: {error}") from None
        worker = Worker(
            self._kernel,
            graphs,
            options,
            on_ended=self._awaiting.notify_ended,
            on_paused=self._workers.cache_head,
            local_workers=self._workers,
            resources=self._resources,
        )
        self._workers.add(worker)
        return worker

    async def create(self) -> None:
        """Make the table and the bucket where they are missing; change nothing that is there."""
        await self._store.create()

    async def grow_shards(self, shards: int) -> None:
        """Cut the due index of each graph into more shards, while everything runs.

        Runs stay in the shard in which they were started. Workers look into the new ones within a
        quarter of their lease, clients use them within a minute.

        Raises:
            InvalidRequest: too many, or fewer than there are: the count only grows.
        """
        await raise_shards(self._kernel, shards)

    async def close(self) -> None:
        """Stop the workers, and let go of the store."""
        await self._workers.stop()
        await self._resources.close()
        await self._store.close()

    async def __aenter__(self) -> Holdfast:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _key(self, id: str, tenant: str | None) -> RunKey:
        return RunKey(self._tenant_or_default(tenant), validated_name(id, "id"))

    def _tenant_or_default(self, tenant: str | None) -> str:
        return self._tenant if tenant is None else validated_tenant(tenant)
