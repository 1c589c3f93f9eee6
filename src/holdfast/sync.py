"""The blocking face: ``from holdfast.sync import Holdfast``, for programs without an event loop.

Each call is handed to an event loop in a thread of its own, where `holdfast.app` does the work, and
blocks until that has answered. Several threads may share one `Holdfast`. Called from inside a
running event loop it works too, but that loop stands still meanwhile: use the asynchronous face
there. A test holds the names and parameters of both faces together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any

from msgspec import UNSET

from holdfast import app
from holdfast.clock import Clock, Ids
from holdfast.engine.effects.savings import Saved
from holdfast.engine.worker import worker as engine
from holdfast.engine.worker.options import WorkerOptions
from holdfast.model.budget import Budget
from holdfast.model.durations import Duration, days
from holdfast.model.invocation import Model
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
from holdfast.portal import Portal
from holdfast.storage import Meter, Store

__all__ = ["Holdfast", "RunHandle", "Worker"]

_WEEK = days(7)
_TWO_DAYS = days(2)


class RunHandle:
    """A run that was started, or is known by its id."""

    def __init__(self, portal: Portal, handle: app.RunHandle) -> None:
        self._portal = portal
        self._handle = handle

    @property
    def id(self) -> str:
        """The run's id."""
        return self._handle.id

    @property
    def tenant(self) -> str:
        """Whose run it is."""
        return self._handle.tenant

    def result(self, *, timeout: Duration | None = None) -> Any:
        """Block until the run has ended, and return its state; see `holdfast.RunHandle.result`.

        Raises:
            RunFailed, RunCancelled, RunExpired, RunQuarantined: it ended otherwise.
            RunNotFound: there is no such run any more.
            TimeoutError: it has not ended in time; it goes on nevertheless.
        """
        return self._portal.call(self._handle.result, timeout=timeout)

    def get(self) -> Run:
        """Return the run's row; see `holdfast.Holdfast.get`."""
        return self._portal.call(self._handle.get)

    def history(self, *, limit: int = 100, cursor: str | None = None) -> HistoryPage:
        """Return a page of what happened to the run; see `holdfast.Holdfast.history`."""
        return self._portal.call(self._handle.history, limit=limit, cursor=cursor)

    def events(
        self, *, after: str | None = None, follow: bool = True
    ) -> Generator[HistoryEntry, None, None]:
        """Yield what happens to the run until it has ended; see `holdfast.Holdfast.events`."""
        return self._portal.iterate(self._handle.events, after=after, follow=follow)

    def tokens(
        self, *, after: str | None = None, follow: bool = True
    ) -> Generator[TextPiece, None, None]:
        """Yield the text of the run's answers as it comes; see `holdfast.Holdfast.tokens`."""
        return self._portal.iterate(self._handle.tokens, after=after, follow=follow)

    def signal(self, name: str, payload: Any = None, *, signal_id: str | None = None) -> None:
        """Send the run a signal; see `holdfast.Holdfast.signal`."""
        self._portal.call(self._handle.signal, name, payload, signal_id=signal_id)

    def extend(self, expires: Duration) -> None:
        """Let the run expire later; see `holdfast.Holdfast.extend`."""
        self._portal.call(self._handle.extend, expires)

    def set_budget(self, budget: Budget) -> None:
        """Give the run another budget; see `holdfast.Holdfast.set_budget`."""
        self._portal.call(self._handle.set_budget, budget)

    def cancel(self, reason: str = "") -> None:
        """End the run; see `holdfast.Holdfast.cancel`."""
        self._portal.call(self._handle.cancel, reason)

    def retry(self, *, from_node: str | None = None) -> None:
        """Let the run go on that failed; see `holdfast.Holdfast.retry`."""
        self._portal.call(self._handle.retry, from_node=from_node)

    def __repr__(self) -> str:
        return repr(self._handle)


class Worker:
    """Runs programs in the background until it is told to leave: ``with hf.worker([graph]): …``"""

    def __init__(self, portal: Portal, worker: engine.Worker) -> None:
        self._portal = portal
        self._worker = worker

    @property
    def id(self) -> str:
        """The name under which it is registered; empty before it has started."""
        return self._worker.id

    @property
    def counts(self) -> Counter[str]:
        """What it did so far: runs claimed, ended (by status), lost, taken over from the dead."""
        return self._worker.counts.copy()

    @property
    def running(self) -> int:
        """How many runs it holds, or is about to."""
        return self._worker.running

    def start(self) -> None:
        """Register, and begin to claim.

        Raises:
            StoreUnavailable, StoreUnusable: the store cannot be used.
        """
        self._portal.call(self._worker.start)

    def stop(self, *, drain_seconds: float | None = None) -> None:
        """Leave: let nodes run on for a while, release every run, and forget the lease.

        Interrupted by Ctrl-C it leaves at once.
        """
        if self._portal.is_closed:
            return  # closing stops the workers, and a fork does not take them along
        self._portal.call(self._worker.stop, drain_seconds=drain_seconds)

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


class Holdfast:
    """Runs graphs on a store, and looks after the runs of others there; every call blocks.

    ``with Holdfast(url) as hf: …`` closes it at the end. After a fork the child opens its own.
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
        """Open the store at an address, or take one that is open; see `holdfast.Holdfast`.

        Raises:
            InvalidUrl: the address cannot be understood.
            StoreUnusable: the store cannot be used.
        """
        self._holdfast = app.Holdfast(
            url,
            tenant=tenant,
            user_key=user_key,
            models=models,
            quotas=quotas,
            tasks=tasks,
            limits=limits,
            clock=clock,
            ids=ids,
            store=store,
        )
        self._portal = Portal()

    @property
    def meter(self) -> Meter:
        """What the store was asked so far, and what that costs."""
        return self._holdfast.meter

    @property
    def saved(self) -> Saved:
        """What this process did not pay, since the answers were known."""
        return self._holdfast.saved

    # --- runs -------------------------------------------------------------------------------------

    def start(
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
        """Start a run; when this returns, nothing can lose it. See `holdfast.Holdfast.start`.

        Raises:
            InvalidInput: the input does not fit the graph's state.
            InvalidGraph: the graph cannot be run.
            InvalidName: the id, the tenant, the pool, the session or a label cannot be one.
            AlreadyExists: there is a run of this id, with another input, in another session or for
                another user.
            SessionBusy: another run of the session goes on, and ``on_busy`` is ``reject``.
        """
        handle = self._portal.call(
            self._holdfast.start,
            graph,
            input,
            id=id,
            tenant=tenant,
            user=user,
            labels=labels,
            pool=pool,
            session=session,
            on_busy=on_busy,
            durability=durability,
            start_at=start_at,
            expires=expires,
            retention=retention,
            budget=budget,
        )
        return RunHandle(self._portal, handle)

    def run(self, id: str, *, tenant: str | None = None, graph: Program | None = None) -> RunHandle:
        """Return a handle on a run that is known by its id; nothing is read yet."""
        self._portal.check()
        return RunHandle(self._portal, self._holdfast.run(id, tenant=tenant, graph=graph))

    def get(self, id: str, *, tenant: str | None = None) -> Run:
        """Return a run's row: where it stands, why it is paused, what it has used.

        Raises:
            RunNotFound: there is no such run.
        """
        return self._portal.call(self._holdfast.get, id, tenant=tenant)

    def list(
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
        """Return a page of runs, the newest first; see `holdfast.Holdfast.list`.

        Raises:
            InvalidQuery: a wrong limit, status or cursor.
        """
        return self._portal.call(
            self._holdfast.list,
            tenant=tenant,
            status=status,
            graph=graph,
            labels=labels,
            since=since,
            until=until,
            limit=limit,
            cursor=cursor,
        )

    def lane(
        self, session: str, *, user: str | None = None, tenant: str | None = None
    ) -> list[SessionQueueEntry]:
        """Return the runs of a session that have not ended, in their order.

        Raises:
            InvalidName: the session, the user or the tenant cannot be one.
        """
        return self._portal.call(self._holdfast.lane, session, user=user, tenant=tenant)

    def children(self, id: str, *, tenant: str | None = None) -> list[RunEntry]:
        """Return the runs that a run started, the oldest first.

        Raises:
            RunNotFound: there is no such run.
        """
        return self._portal.call(self._holdfast.children, id, tenant=tenant)

    def history(
        self, id: str, *, tenant: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> HistoryPage:
        """Return a page of what happened to a run, the oldest first.

        Raises:
            RunNotFound: there is no such run, or its journal is no longer kept.
            InvalidQuery: a wrong limit, or a cursor that is not one of this run.
        """
        return self._portal.call(
            self._holdfast.history, id, tenant=tenant, limit=limit, cursor=cursor
        )

    def events(
        self,
        id: str,
        *,
        tenant: str | None = None,
        after: str | None = None,
        follow: bool = True,
    ) -> Generator[HistoryEntry, None, None]:
        """Yield what happened to a run, then what happens to it, until it has ended.

        It blocks between two; see `holdfast.Holdfast.events`.

        Raises:
            RunNotFound: there is no such run, or its journal is no longer kept.
            InvalidQuery: a cursor that is not one of this run.
        """
        return self._portal.iterate(
            self._holdfast.events, id, tenant=tenant, after=after, follow=follow
        )

    def tokens(
        self,
        id: str,
        *,
        tenant: str | None = None,
        after: str | None = None,
        follow: bool = True,
    ) -> Generator[TextPiece, None, None]:
        """Yield the text of a run's answers, then what comes of it, until the run has ended.

        It blocks between two; see `holdfast.Holdfast.tokens`.

        Raises:
            RunNotFound: there is no such run, or what it kept is gone.
            InvalidQuery: a cursor that is not one of this run.
        """
        return self._portal.iterate(
            self._holdfast.tokens, id, tenant=tenant, after=after, follow=follow
        )

    def signal(
        self,
        id: str,
        name: str,
        payload: Any = None,
        *,
        signal_id: str | None = None,
        tenant: str | None = None,
    ) -> None:
        """Send a run a signal; when this returns, it counts, exactly once.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: it has ended, or expired, and did not accept this signal before.
            RunClosing: it is past its expiry and carries out what it holds, perhaps this signal:
                send it again later with the same ``signal_id``.
            AlreadyExists: a signal of this id is there, with another payload.
            InvalidInput: the payload cannot be kept.
        """
        self._portal.call(
            self._holdfast.signal, id, name, payload, signal_id=signal_id, tenant=tenant
        )

    def set_budget(self, id: str, budget: Budget, *, tenant: str | None = None) -> None:
        """Give a run another budget, in the place of what it had; if it waits for one, it goes on.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: it has ended, or expired.
            BudgetShared: it shares the budget of the run that started it; or it has a slice of that
                budget, which can only be lowered.
        """
        self._portal.call(self._holdfast.set_budget, id, budget, tenant=tenant)

    def spending(self, id: str, *, tenant: str | None = None) -> Spending:
        """Return what a run has spent, with all those that share its budget.

        Raises:
            RunNotFound: there is no such run.
        """
        return self._portal.call(self._holdfast.spending, id, tenant=tenant)

    def ambiguous(self, *, tenant: str | None = None) -> Generator[AmbiguousCall, None, None]:
        """Yield the calls that may have been made, and wait for somebody to `resolve` them."""
        return self._portal.iterate(self._holdfast.ambiguous, tenant=tenant)

    def resolve(
        self,
        id: str,
        call: str,
        *,
        result: Any = UNSET,
        error: str | None = None,
        void: bool = False,
        tenant: str | None = None,
    ) -> None:
        """Say what became of a call that was made at most once; see `holdfast.Holdfast.resolve`.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: it has ended, or expired.
            NotAmbiguous: the call does not wait for that, or no longer.
            AlreadyExists: somebody said something else before.
            InvalidInput: the result cannot be kept.
        """
        self._portal.call(
            self._holdfast.resolve,
            id,
            call,
            result=result,
            error=error,
            void=void,
            tenant=tenant,
        )

    def cancel(self, id: str, *, reason: str = "", tenant: str | None = None) -> None:
        """End a run. A node that is under way elsewhere ends at its next write.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: it has ended otherwise.
        """
        self._portal.call(self._holdfast.cancel, id, reason=reason, tenant=tenant)

    def extend(self, id: str, *, expires: Duration, tenant: str | None = None) -> None:
        """Let a run expire that long from now, and not before; see `holdfast.Holdfast.extend`.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: it has ended, or expired.
            ExpiryNotLater: it expires later than that as it is.
        """
        self._portal.call(self._holdfast.extend, id, expires=expires, tenant=tenant)

    def retry(self, id: str, *, from_node: str | None = None, tenant: str | None = None) -> None:
        """Let a run go on that failed or is quarantined, at that node or where it stopped.

        Raises:
            RunNotFound: there is no such run.
            NotRetryable: it has not failed.
            RunEnded: it has expired.
        """
        self._portal.call(self._holdfast.retry, id, from_node=from_node, tenant=tenant)

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
    ) -> Generator[BulkProgress, None, None]:
        """End the runs that a list with this filter shows; see `holdfast.Holdfast.cancel_all`.

        Raises:
            InvalidQuery: no filter, a status in which nothing can be cancelled, a wrong cursor.
            StoreUnavailable: the store did not answer for a while; go on from the last cursor.
        """
        return self._portal.iterate(
            self._holdfast.cancel_all,
            tenant=tenant,
            status=status,
            graph=graph,
            labels=labels,
            since=since,
            until=until,
            reason=reason,
            limit=limit,
            cursor=cursor,
            everything=everything,
            dry_run=dry_run,
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
    ) -> Generator[BulkProgress, None, None]:
        """Let the runs go on that failed and fit a filter; see `holdfast.Holdfast.retry_all`.

        Raises:
            InvalidQuery: no filter, a status in which nothing can be retried, a wrong cursor.
            StoreUnavailable: the store did not answer for a while; go on from the last cursor.
        """
        return self._portal.iterate(
            self._holdfast.retry_all,
            tenant=tenant,
            status=status,
            graph=graph,
            labels=labels,
            since=since,
            until=until,
            limit=limit,
            cursor=cursor,
            everything=everything,
            dry_run=dry_run,
        )

    def sweep_blobs(
        self, *, older_than: Duration = _TWO_DAYS, dry_run: bool = False
    ) -> Generator[SweepProgress, None, None]:
        """Delete the blobs that no run names; see `holdfast.Holdfast.sweep_blobs`.

        Raises:
            InvalidRequest: less than a day.
            StoreUnavailable: the store did not answer for a while; do it again later.
            StoreUnusable: the store has no room for blobs, or somebody has to mend it.
        """
        return self._portal.iterate(
            self._holdfast.sweep_blobs, older_than=older_than, dry_run=dry_run
        )

    # --- workers ----------------------------------------------------------------------------------

    def worker(
        self, graphs: Iterable[Program], *, options: WorkerOptions | None = None, **given: Any
    ) -> Worker:
        """Return a worker for these graphs: ``with hf.worker([graph]): …``

        Raises:
            InvalidGraph: a graph cannot be run.
            InvalidRequest: an option cannot be understood.
        """
        self._portal.check()
        return Worker(self._portal, self._holdfast.worker(graphs, options=options, **given))

    def create(self) -> None:
        """Make the table and the bucket where they are missing; change nothing that is there."""
        self._portal.call(self._holdfast.create)

    def grow_shards(self, shards: int) -> None:
        """Cut the due index into more shards; see `holdfast.Holdfast.grow_shards`.

        Raises:
            InvalidRequest: too many, or fewer than there are: the count only grows.
        """
        self._portal.call(self._holdfast.grow_shards, shards)

    def close(self) -> None:
        """Stop the workers, and let go of the store; interrupted by Ctrl-C it leaves at once."""
        self._portal.close(self._holdfast.close)

    def __enter__(self) -> Holdfast:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
