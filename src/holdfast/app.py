"""`Holdfast`: where the parts are put together, and the face of the product."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from types import TracebackType
from typing import Any

from msgspec import UNSET

from holdfast.clock import Clock, Ids, SystemClock, SystemIds
from holdfast.engine import (
    ambiguity,
    bulk,
    children,
    events,
    extension,
    funding,
    lanes,
    lists,
    runs,
    sharding,
    starting,
    sweep,
    tokens,
)
from holdfast.engine.arguments import (
    admitted_age,
    admitted_budget,
    admitted_bulk,
    admitted_durability,
    admitted_filter,
    admitted_limit,
    admitted_node,
    admitted_on_busy,
    admitted_reason,
    admitted_resolution,
    admitted_user,
    moment_ms,
    positive_ms,
)
from holdfast.engine.crew import Crew
from holdfast.engine.endings import Outcome, result_of
from holdfast.engine.kernel import Kernel
from holdfast.engine.ledger import load
from holdfast.engine.means import Means, check_means
from holdfast.engine.options import WorkerOptions
from holdfast.engine.savings import Saved
from holdfast.engine.unwritten import Stood, Unwritten
from holdfast.engine.views import lane_entry_of, run_of
from holdfast.engine.worker import Room, Worker
from holdfast.errors import (
    AlreadyExists,
    InvalidRequest,
    Refused,
    RunNotFound,
)
from holdfast.graph import Graph
from holdfast.model.budget import Budget
from holdfast.model.durations import Duration, days, milliseconds_of
from holdfast.model.execution import Execution
from holdfast.model.invocation import Model
from holdfast.model.policy import Durability
from holdfast.model.progress import BulkProgress, SweepProgress
from holdfast.model.quota import Quota
from holdfast.model.run import (
    AmbiguousCall,
    HistoryEntry,
    HistoryPage,
    LaneEntry,
    OnBusy,
    Run,
    RunEntry,
    RunPage,
    Status,
    TextPiece,
)
from holdfast.model.spending import NOTHING, Spending
from holdfast.records.head import ENDED, OPEN, TROUBLE, Head
from holdfast.records.keys import LaneKey, Place, RunKey
from holdfast.records.names import admit_labels, admit_name, admit_tenant
from holdfast.storage import Meter, Store
from holdfast.storage import open as open_store

__all__ = ["Holdfast", "RunHandle"]

_WEEK = days(7)
_TWO_DAYS = days(2)
# Somebody who waits for a run of another process asks at first often, then less so.
_ASK_FIRST_SECONDS = 0.05
_ASK_MOST_SECONDS = 1.0


class RunHandle:
    """A run that was started, or is known by its id."""

    def __init__(
        self,
        holdfast: Holdfast,
        key: RunKey,
        graph: Graph | None,
        outcome: Outcome | None = None,
    ) -> None:
        self._outcome = outcome  # of a run that nobody wrote down
        self._holdfast = holdfast
        self._key = key
        self._graph = graph

    @property
    def id(self) -> str:
        """The run's id."""
        return self._key.id

    @property
    def tenant(self) -> str:
        """Whose run it is."""
        return self._key.tenant

    async def result(self, *, timeout: Duration | None = None) -> Any:  # noqa: ASYNC109
        """Wait until the run has ended, and return its state.

        Raises:
            RunFailed, RunCancelled, RunExpired, RunQuarantined: it ended otherwise.
            RunNotFound: there is no such run any more.
            TimeoutError: it has not ended in time; it goes on nevertheless.
        """
        limit = None if timeout is None else milliseconds_of(timeout, "timeout") / 1000
        if self._outcome is not None:
            return result_of(self.id, self._outcome, self._graph)
        ending = await self._holdfast._ending_within(self._key, limit)  # pyright: ignore[reportPrivateUsage]
        return result_of(self.id, ending, self._graph)

    async def get(self) -> Run:
        """Return the run's row; see `Holdfast.get`."""
        return await self._holdfast.get(self.id, tenant=self.tenant)

    async def history(self, *, limit: int = 100, cursor: str | None = None) -> HistoryPage:
        """Return a page of what happened to the run; see `Holdfast.history`."""
        return await self._holdfast.history(self.id, tenant=self.tenant, limit=limit, cursor=cursor)

    def events(
        self, *, after: str | None = None, follow: bool = True
    ) -> AsyncGenerator[HistoryEntry, None]:
        """Yield what happens to the run until it has ended; see `Holdfast.events`."""
        return self._holdfast.events(self.id, tenant=self.tenant, after=after, follow=follow)

    def tokens(
        self, *, after: str | None = None, follow: bool = True
    ) -> AsyncGenerator[TextPiece, None]:
        """Yield the text of the run's answers as it comes; see `Holdfast.tokens`."""
        return self._holdfast.tokens(self.id, tenant=self.tenant, after=after, follow=follow)

    async def signal(self, name: str, payload: Any = None, *, signal_id: str | None = None) -> None:
        """Send the run a signal; see `Holdfast.signal`."""
        await self._holdfast.signal(self.id, name, payload, signal_id=signal_id, tenant=self.tenant)

    async def extend(self, expires: Duration) -> None:
        """Let the run expire later; see `Holdfast.extend`."""
        await self._holdfast.extend(self.id, expires=expires, tenant=self.tenant)

    async def set_budget(self, budget: Budget) -> None:
        """Give the run another budget; see `Holdfast.set_budget`."""
        await self._holdfast.set_budget(self.id, budget, tenant=self.tenant)

    async def cancel(self, reason: str = "") -> None:
        """End the run; see `Holdfast.cancel`."""
        await self._holdfast.cancel(self.id, reason=reason, tenant=self.tenant)

    async def retry(self, *, from_node: str | None = None) -> None:
        """Let the run go on that failed; see `Holdfast.retry`."""
        await self._holdfast.retry(self.id, from_node=from_node, tenant=self.tenant)

    def __repr__(self) -> str:
        return f"<run {self.id!r} of tenant {self.tenant!r}>"


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
        clock: Clock | None = None,
        ids: Ids | None = None,
        store: Store | None = None,
    ) -> None:
        """Open the store at an address, or take one that is open.

        ``models`` are those that nodes can ask with `Context.model`, by the names they ask for;
        ``quotas`` limit how many questions, tokens or dollars all workers together put to each.
        ``user_key`` is the key of the hash under which users are kept; without one the store keeps
        one that was made at random.

        Raises:
            InvalidUrl: the address cannot be understood.
            StoreUnusable: the store cannot be used.
        """
        if user_key is not None and (not isinstance(user_key, bytes) or len(user_key) < 16):
            raise InvalidRequest("user_key is bytes, at least 16 of them", field="user_key")
        self._tenant = admit_tenant(tenant)
        check_means(models, quotas)
        clock = clock or SystemClock()
        self._store = store or open_store(url, clock=clock)
        self._kernel = Kernel(self._store, clock, ids or SystemIds(clock), user_key)
        self._means = Means(self._kernel, models, quotas)
        self._crew = Crew()
        # Runs that are just being started, and stand nowhere but in memory.
        self._unwritten: dict[RunKey, Unwritten] = {}
        self._awaited: dict[RunKey, set[asyncio.Future[Outcome]]] = {}

    @property
    def meter(self) -> Meter:
        """What the store was asked so far, and what that costs."""
        return self._store.meter

    @property
    def saved(self) -> Saved:
        """What this process did not pay, since the answers were known."""
        return self._means.savings.sum

    # --- runs -------------------------------------------------------------------------------------

    async def start(
        self,
        graph: Graph,
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

        The id is the idempotency key: the same id and input give the same run, however often this
        is called. Only workers that serve its ``pool`` take the run; it is one of its labels.
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
            InvalidInput: the input does not fit the graph's state.
            InvalidGraph: the graph cannot be run.
            InvalidName: the id, the tenant, the pool, the session or a label cannot be one.
            AlreadyExists: there is a run of this id, with another input or in another session.
            SessionBusy: another run of the session goes on, and ``on_busy`` is ``reject``.
        """
        if not isinstance(graph, Graph):
            raise InvalidRequest(f"a graph is started, not {graph!r:.80}", field="graph")
        asked = starting.Start(
            run=self._key(self._kernel.ids.new() if id is None else id, tenant),
            user=admitted_user(user),
            labels=admit_labels(labels, pool=pool),
            starts_ms=None if start_at is None else moment_ms(start_at, "start_at"),
            expires_in_ms=positive_ms(expires, "expires"),
            retention_ms=milliseconds_of(retention, "retention"),
            session=None if session is None else admit_name(session, "session"),
            on_busy=admitted_on_busy(on_busy, session),
            budget=admitted_budget(budget),
        )
        graph.check()
        in_memory = admitted_durability(durability, graph) == "on_pause" and budget is None
        if asked.run in self._unwritten:
            return await self._joined(asked.run, graph, {} if input is None else input)
        room = self._crew.reserve(asked.run, graph.name, asked.pool)
        if in_memory and room is not None and session is None and start_at is None:
            return await self._start_in_memory(graph, input, asked, room)
        try:
            started = await starting.start(
                self._kernel,
                self._crew,
                graph,
                {} if input is None else input,
                asked,
                owner=None if room is None else room.owner,
            )
        except BaseException as error:
            if room is not None:
                room.give_back(unsure=not isinstance(error, InvalidRequest | Refused))
            raise
        self._hand_on(started, room)
        if started.head.into is None:
            return RunHandle(self, asked.run, graph)
        taken_by = RunKey(asked.run.tenant, started.head.into)
        return RunHandle(self, taken_by, graph if await self._is_of(taken_by, graph) else None)

    async def _start_in_memory(
        self, graph: Graph, input: Any, asked: starting.Start, room: Room
    ) -> RunHandle:
        try:
            started = await starting.begin_unwritten(
                self._kernel, graph, {} if input is None else input, asked, owner=room.owner
            )
        except BaseException:
            room.give_back()
            raise
        unwritten = None if started.loaded is None else started.loaded.unwritten
        if unwritten is None:
            room.give_back()
            return RunHandle(self, asked.run, graph)
        if asked.run in self._unwritten:  # somebody else was faster
            room.give_back()
            return await self._joined(asked.run, graph, {} if input is None else input)
        # Until it is known, though whoever started it may not wait for that.
        self._unwritten[asked.run] = unwritten
        unwritten.when_known(lambda: self._unwritten.pop(asked.run))
        room.take(started.head, started.loaded)
        return await self._acknowledged(asked.run, graph, unwritten)

    async def _joined(self, key: RunKey, graph: Graph, input: Any) -> RunHandle:
        """Return a run that somebody else in this process is just starting."""
        unwritten = self._unwritten[key]
        if starting.prepare(graph, input, "", None).hash != unwritten.hash:
            raise AlreadyExists(f"a run {key.id!r} is just being started, with another input")
        return await self._acknowledged(key, graph, unwritten)

    async def _acknowledged(self, key: RunKey, graph: Graph, unwritten: Unwritten) -> RunHandle:
        try:
            outcome = await unwritten.known()
        except Stood as stood:
            starting.same_run(stood.item, unwritten.hash, key)
            outcome = None
        return RunHandle(self, key, graph, outcome)

    def run(self, id: str, *, tenant: str | None = None, graph: Graph | None = None) -> RunHandle:
        """Return a handle on a run that is known by its id; nothing is read yet."""
        return RunHandle(self, self._key(id, tenant), graph)

    async def get(self, id: str, *, tenant: str | None = None) -> Run:
        """Return a run's row: where it stands, why it is paused, what it has used.

        Raises:
            RunNotFound: there is no such run.
        """
        return run_of(await runs.read(self._kernel, await self._settled(id, tenant)))

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
        limit = admitted_limit(limit)
        asked = admitted_filter(status=status, graph=graph, labels=labels, since=since, until=until)
        return await lists.listed(
            self._kernel, self._admitted_tenant(tenant), asked, limit=limit, cursor=cursor
        )

    async def lane(
        self, session: str, *, user: str | None = None, tenant: str | None = None
    ) -> list[LaneEntry]:
        """Return the runs of a session that have not ended, in their order.

        Raises:
            InvalidName: the session, the user or the tenant cannot be one.
        """
        of = admitted_user(user)
        key = LaneKey(
            self._admitted_tenant(tenant),
            "-" if of is None else await self._kernel.hashed_user(of),
            admit_name(session, "session"),
        )
        return [lane_entry_of(head) for head in await lanes.listed(self._kernel, key)]

    async def children(self, id: str, *, tenant: str | None = None) -> list[RunEntry]:
        """Return the runs that a run started, the oldest first.

        Raises:
            RunNotFound: there is no such run.
        """
        return await children.listed(self._kernel, await self._settled(id, tenant))

    async def history(
        self, id: str, *, tenant: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> HistoryPage:
        """Return a page of what happened to a run, the oldest first.

        Raises:
            RunNotFound: there is no such run, or its journal is no longer kept.
            InvalidQuery: a wrong limit, or a cursor that is not one of this run.
        """
        limit, after = admitted_limit(limit), events.cursor_of(cursor, field="cursor")
        run = await self._settled(id, tenant)
        return await events.history(self._kernel, run, after=after, limit=limit)

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
        run, cursor = self._key(id, tenant), events.cursor_of(after, field="after")
        return events.followed(self._kernel, run, after=cursor, follow=follow)

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
        run, cursor = self._key(id, tenant), tokens.cursor_of(after, field="after")
        return tokens.followed(self._kernel, run, after=cursor, follow=follow)

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
            RunEnded: it has ended, or expired.
            AlreadyExists: a signal of this id is there, with another payload.
            InvalidInput: the payload cannot be kept.
        """
        await runs.send(
            self._kernel,
            self._crew,
            await self._settled(id, tenant),
            name=admit_name(name, "a signal's name"),
            id=admit_name(self._kernel.ids.new() if signal_id is None else signal_id, "signal_id"),
            payload=payload,
        )

    async def set_budget(self, id: str, budget: Budget, *, tenant: str | None = None) -> None:
        """Give a run another budget, in the place of what it had; if it waits for one, it goes on.

        So do the runs that it started and that share its budget. What was spent before counts.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: it has ended, or expired.
            BudgetShared: it shares the budget of the run that started it.
        """
        limits = admitted_budget(budget)
        if limits is None:
            raise InvalidRequest("a budget is needed", field="budget")
        key = await self._settled(id, tenant)
        self._crew.recall(key)  # what we remember of it is about to change
        head = await funding.fund(self._kernel, self._crew, key, limits)
        await self._means.accounts.fund(self._crew, head)

    async def spending(self, id: str, *, tenant: str | None = None) -> Spending:
        """Return what a run has spent, with all those that share its budget.

        What they were given and have not spent yet counts, of what the budget limits.

        Raises:
            RunNotFound: there is no such run.
        """
        head = await runs.read(self._kernel, await self._settled(id, tenant))
        given = None if head.budget is None else await self._means.accounts.granted(head)
        given = given or NOTHING
        return Spending(max(head.tokens, given.tokens), max(head.nanodollars, given.nanodollars))

    def ambiguous(self, *, tenant: str | None = None) -> AsyncGenerator[AmbiguousCall, None]:
        """Yield the calls that may have been made, and wait for somebody to `resolve` them."""
        return ambiguity.listed(self._kernel, self._admitted_tenant(tenant))

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
        resolution = admitted_resolution(result=result, error=error, void=void)
        key, name = await self._settled(id, tenant), admit_name(call, "call")
        await ambiguity.resolve(self._kernel, self._crew, key, name, resolution)

    async def cancel(self, id: str, *, reason: str = "", tenant: str | None = None) -> None:
        """End a run. A node that is under way elsewhere ends at its next write.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: it has ended otherwise.
        """
        reason = admitted_reason(reason)
        key = await self._settled(id, tenant)
        self._crew.recall(key)  # what we remember of it is about to change
        head = await runs.cancel(self._kernel, key, reason=reason, hands=self._crew)
        if head.owner is None and head.place is not None and head.status not in ENDED:
            self._crew.offer(head.place)  # a worker has to see to those that end with it
        self._crew.interrupt(key)
        self._kernel.news.tell(key)
        if head.status in ENDED:
            self._resolve(key, Outcome("cancelled", {}, head.failure))

    async def extend(self, id: str, *, expires: Duration, tenant: str | None = None) -> None:
        """Let a run expire that long from now, and not before; its retention stays as it is.

        What happened before is not told by its history once the old expiry and two days are over.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: it has ended, or expired.
            ExpiryNotLater: it expires later than that as it is.
        """
        span_ms = positive_ms(expires, "expires")
        key = await self._settled(id, tenant)
        self._crew.recall(key)  # what we remember of it is about to change
        await extension.extend(self._kernel, key, expires_ms=self._kernel.clock.now_ms() + span_ms)

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
        node = None if from_node is None else admitted_node(from_node)
        key = await self._settled(id, tenant)
        place = await runs.retry(self._kernel, key, from_node=node)
        self._offer(place)

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
        asked = admitted_bulk(
            among=OPEN | {"closing"}, everything=everything, limit=limit, status=status,
            graph=graph, labels=labels, since=since, until=until,
        )  # fmt: skip
        reason = admitted_reason(reason)

        async def cancel(run: RunKey) -> None:
            await self.cancel(run.id, reason=reason, tenant=run.tenant)

        return bulk.acted(
            self._kernel,
            self._admitted_tenant(tenant),
            asked,
            None if dry_run else cancel,
            limit=limit,
            cursor=cursor,
        )

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
        asked = admitted_bulk(
            among=TROUBLE, everything=everything, limit=limit, status=status,
            graph=graph, labels=labels, since=since, until=until,
        )  # fmt: skip

        async def retry(run: RunKey) -> None:
            await self.retry(run.id, tenant=run.tenant)

        return bulk.acted(
            self._kernel,
            self._admitted_tenant(tenant),
            asked,
            None if dry_run else retry,
            limit=limit,
            cursor=cursor,
        )

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
        age_ms = admitted_age(older_than)
        return sweep.swept(self._kernel, older_than_ms=age_ms, dry_run=dry_run)

    # --- workers ----------------------------------------------------------------------------------

    def worker(
        self, graphs: Iterable[Graph], *, options: WorkerOptions | None = None, **given: Any
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
            ended=self._ended,
            paused=self._crew.remember,
            hands=self._crew,
            means=self._means,
        )
        self._crew.join(worker)
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
        await sharding.grow(self._kernel, shards)

    async def close(self) -> None:
        """Stop the workers, and let go of the store."""
        await self._crew.stop()
        await self._means.close()
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

    # --- between runs and workers of this process -------------------------------------------------

    def _hand_on(self, started: starting.Started, room: Room | None) -> None:
        head, loaded = started.head, started.loaded
        if room is not None and loaded is not None and head.owner is not None:
            room.take(head, loaded)
            return
        if room is not None:
            room.give_back()
        if loaded is not None and head.reason is None:
            self._offer(head.place)

    async def _is_of(self, key: RunKey, graph: Graph) -> bool:
        with suppress(RunNotFound):  # a pointer may outlive the run to which it points
            return (await runs.read(self._kernel, key)).graph == graph.name
        return False

    def _offer(self, place: Place | None) -> None:
        if place is not None:
            self._crew.offer(place)

    def _ended(self, head: Head, execution: Execution, status: Status) -> None:
        # A quarantined run's own last failure is not why it is quarantined.
        failure = head.failure if status == "quarantined" else execution.failure
        self._resolve(head.key, Outcome(status, execution.state, failure))

    def _resolve(self, key: RunKey, ending: Outcome) -> None:
        for future in self._awaited.pop(key, ()):
            if not future.done():
                future.set_result(ending)

    async def _ending_within(self, key: RunKey, seconds: float | None) -> Outcome:
        timeout = asyncio.timeout(seconds)
        try:
            async with timeout:
                return await self._ending(key)
        except TimeoutError:
            if not timeout.expired():
                raise
        # It may have ended before there was time to look, where little or none was given.
        ending = None if self._crew.holds(key) else await self._asked(key, wait=False)
        if ending is None:
            raise TimeoutError(f"run {key.id!r} has not ended within {seconds:g} seconds")
        return ending

    async def _ending(self, key: RunKey) -> Outcome:
        """Wait for a run to end: told by our own workers, or by asking now and then."""
        await self._crew.settled(key)
        pause = _ASK_FIRST_SECONDS
        while True:
            # Listening before asking: an ending that comes in between is heard.
            with self._listening(key) as told:
                ending = None if self._crew.holds(key) else await self._asked(key)
                if ending is not None:
                    return ending
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        return await told
            pause = min(pause * 2, _ASK_MOST_SECONDS)

    @contextmanager
    def _listening(self, key: RunKey) -> Generator[asyncio.Future[Outcome], None, None]:
        """Yield what one of our own workers tells of how a run ended."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        waiting = self._awaited.setdefault(key, set())
        waiting.add(future)
        try:
            yield future
        finally:
            waiting.discard(future)
            if not waiting and self._awaited.get(key) is waiting:
                del self._awaited[key]

    async def _asked(self, key: RunKey, *, wait: bool = True) -> Outcome | None:
        head = await runs.read(self._kernel, key)
        if head.status not in ENDED:
            return None
        if head.into is not None:
            into = RunKey(key.tenant, head.into)
            return await (self._ending(into) if wait else self._asked(into, wait=False))
        if head.status not in ("finished", "failed"):
            return Outcome(head.status, {}, head.failure)
        events.check_kept(head)
        execution = (await load(self._kernel, head)).execution
        return Outcome(head.status, execution.state, execution.failure)

    async def _settled(self, id: str, tenant: str | None) -> RunKey:
        """Return the key of a run whose row, if it has just ended here, says so."""
        key = self._key(id, tenant)
        await self._crew.settled(key)
        return key

    def _key(self, id: str, tenant: str | None) -> RunKey:
        return RunKey(self._admitted_tenant(tenant), admit_name(id, "id"))

    def _admitted_tenant(self, tenant: str | None) -> str:
        return self._tenant if tenant is None else admit_tenant(tenant)
