# Generated from src/holdfast/app.py by checks/blocking.py; do not edit.
# To write it anew: python -m checks.blocking --write
"""The blocking `Holdfast`; the async one is `holdfast.app.Holdfast`."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Generator, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar, Unpack

from holdfast.app import Holdfast as AsyncHoldfast
from holdfast.clock import Clock, Ids
from holdfast.documents.search_opening import SearchChoice
from holdfast.engine.effects.argument_recorder import Redact
from holdfast.engine.effects.savings import Saved
from holdfast.engine.kernel.telemetry import Telemetry
from holdfast.engine.runs.argument_checks import takes_run_filter
from holdfast.engine.worker.options import WorkerKeywords, WorkerOptions
from holdfast.model.arguments import Recording
from holdfast.model.budget import Budget, BudgetLimits
from holdfast.model.durations import Duration, days
from holdfast.model.hooks import Hooks
from holdfast.model.invocation import Model
from holdfast.model.moments import Moment
from holdfast.model.payload_limits import PayloadLimits
from holdfast.model.policy import Durability
from holdfast.model.program import Program, ResultT
from holdfast.model.progress import BulkProgress, SweepProgress
from holdfast.model.quota import Quota
from holdfast.model.run import AmbiguousCall, OnBusy, RunPage, SessionQueueEntry
from holdfast.portal import Portal
from holdfast.records.run_filter import RunFilter
from holdfast.review.options import ReviewOptions
from holdfast.storage import Meter, Store
from holdfast.sync.api_keys import ApiKeys
from holdfast.sync.callbacks import Callbacks
from holdfast.sync.documents import Documents
from holdfast.sync.fleet import Fleet
from holdfast.sync.handle import RunHandle
from holdfast.sync.reviews import Reviews
from holdfast.sync.webhooks import Webhooks
from holdfast.sync.worker import Worker

__all__ = ["Holdfast"]

R = TypeVar("R")
T = TypeVar("T")
_TWO_DAYS = days(2)


class Holdfast:
    """Starts runs on a store, lists them, acts on many of them, and makes workers.

    Every call blocks. Several threads may share one instance. ``with Holdfast(url) as hf: …``
    closes it at the end. After a fork the child opens its own.
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
        record: Recording = "fitting",
        redact: Redact | None = None,
        hooks: Hooks | None = None,
        telemetry: Telemetry | None = None,
        public_url: str | None = None,
        reviews: ReviewOptions | None = None,
        search: SearchChoice = "default",
        clock: Clock | None = None,
        ids: Ids | None = None,
        store: Store | None = None,
    ) -> None:
        """Open the store at an address, or use an open ``store``.

        ``models`` are the models that nodes can ask with `Context.model`, by name; ``quotas`` limit
        how many requests, tokens or dollars all workers together spend on each of them. ``limits``
        bound the sizes of inputs, signals, states, answers and arguments, and the number of signals
        in an inbox; see `PayloadLimits`. ``user_key`` is the key under which users are hashed;
        without one, the store keeps a random key. ``tasks`` are the functions that programs invoke
        by name.

        ``record`` says which arguments of calls and prompts of models the history shows; see
        `Recording`. Before they are written, values under names such as ``password`` are replaced.
        Then ``redact`` gets them as plain values and returns what is written, None for nothing.
        ``hooks`` are called after a run paused, failed or ended in this process; see `Hooks`.
        ``telemetry`` gets the spans of runs, such as `holdfast.integrations.telemetry` has one.
        ``public_url`` is the address of the server with which `Context.callback` begins, by default
        that in ``HOLDFAST_PUBLIC_URL``. ``reviews`` says how reviewers are notified; see
        `ReviewOptions`. ``search`` finds segments of documents by their words; by default a store
        in a file has an index beside it (``runs.db.search``), and one in DynamoDB has none. `close`
        closes it.

        Raises:
            InvalidUrl: the address cannot be understood.
            StoreUnusable: the store cannot be used.
        """
        self._holdfast = AsyncHoldfast(
            url,
            tenant=tenant,
            user_key=user_key,
            models=models,
            quotas=quotas,
            tasks=tasks,
            limits=limits,
            record=record,
            redact=redact,
            hooks=hooks,
            telemetry=telemetry,
            public_url=public_url,
            reviews=reviews,
            search=search,
            clock=clock,
            ids=ids,
            store=store,
        )
        self._portal = Portal()

    @property
    def tenant(self) -> str:
        """The tenant of calls that name none."""
        return self._holdfast.tenant

    @property
    def clock(self) -> Clock:
        """The clock by which this instance measures leases, waits and expiries."""
        return self._holdfast.clock

    @property
    def meter(self) -> Meter:
        """Counts of the store operations so far, and what they cost."""
        return self._holdfast.meter

    @property
    def keys(self) -> ApiKeys:
        """The API keys, with which callers use a server on this store."""
        return ApiKeys(self._portal, self._holdfast.keys)

    @property
    def callbacks(self) -> Callbacks:
        """What other systems post to the addresses of `Context.callback`."""
        return Callbacks(self._portal, self._holdfast.callbacks)

    @property
    def webhooks(self) -> Webhooks:
        """The webhooks: events of runs that are posted to other systems."""
        return Webhooks(self._portal, self._holdfast.webhooks)

    @property
    def reviews(self) -> Reviews:
        """The reviews that runs asked for, which people decide."""
        return Reviews(self._portal, self._holdfast.reviews)

    @property
    def documents(self) -> Documents:
        """The documents: projects, what was added to them, and the workflows that process it."""
        return Documents(self._portal, self._holdfast.documents)

    @property
    def saved(self) -> Saved:
        """What this process saved by using answers that were known."""
        return self._holdfast.saved

    @property
    def fleet(self) -> Fleet:
        """What runs where, what makes no progress, and what it costs."""
        return Fleet(self._portal, self._holdfast.fleet)

    def start(
        self,
        graph: Program[T, R],
        input: T | None = None,
        *,
        id: str | None = None,
        tenant: str | None = None,
        user: str | None = None,
        labels: Mapping[str, str] | None = None,
        pool: str | None = None,
        session: str | None = None,
        on_busy: OnBusy | None = None,
        durability: Durability | None = None,
        start_at: Moment | None = None,
        expires: Duration | None = None,
        retention: Duration = 0,
        budget: Budget | BudgetLimits | None = None,
    ) -> RunHandle[R]:
        """Start a run. After the return it is stored, and no crash loses it.

        The id is the idempotency key: a start with the same id, input and user returns the same
        run. Only workers that serve its ``pool`` take the run; the pool is one of its labels.
        ``expires`` counts from the start; by default it is that of the graph, or 7 days. A wait or
        sleep in the graph's code that lasts as long is logged as a warning, once. ``retention`` is
        how long the rows are kept after the expiry, and at least two days.

        Runs of one user's ``session`` are carried out one after the other, in the order of their
        starts. ``on_busy`` says what happens while another run of the session goes on: this run
        waits (``queue``), is refused (``reject``), cancels those before it (``replace``), or its
        input answers the signal that the first one waits for (``promote``); the handle is then that
        of the first one.

        With ``durability="on_pause"`` this returns when the run pauses or has ended, and a run that
        never pauses writes nothing; see `Durability`. A run with a ``budget`` pauses before it
        would spend more, and is durable from the start.

        Raises:
            PayloadTooLarge: the input has more bytes than ``input_bytes_max``.
            InvalidInput: the input does not fit the graph's state.
            InvalidGraph: the graph cannot be run.
            InvalidName: an invalid id, tenant, user, pool, session or label.
            AlreadyExists: a run of this id exists with another input, session or user.
            SessionBusy: another run of the session goes on, and ``on_busy`` is ``reject``.
        """
        return RunHandle(
            self._portal,
            self._portal.call(
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
            ),
        )

    def run(
        self, id: str, *, tenant: str | None = None, graph: Program[Any, ResultT] | None = None
    ) -> RunHandle[ResultT]:
        """Return a handle on the run of this id, without I/O: the run need not exist.

        With the ``graph`` of the run, `RunHandle.result` returns its result in the graph's type.

        Raises:
            InvalidName: an invalid id or tenant.
            InvalidRequest: ``graph`` is no graph, for example its name.
        """
        self._portal.check()
        return RunHandle(self._portal, self._holdfast.run(id, tenant=tenant, graph=graph))

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
            self._holdfast.list, run_filter, tenant=tenant, limit=limit, cursor=cursor
        )

    def session_queue(
        self, session: str, *, user: str | None = None, tenant: str | None = None
    ) -> builtins.list[SessionQueueEntry]:
        """Return the runs of a session that have not ended, in the order of their starts.

        Raises:
            InvalidName: an invalid session, user or tenant.
        """
        return self._portal.call(self._holdfast.session_queue, session, user=user, tenant=tenant)

    def ambiguous(
        self, *, tenant: str | None = None, after: str | None = None
    ) -> Generator[AmbiguousCall, None, None]:
        """Yield the at-most-once calls that may have been made, until `RunHandle.resolve`.

        ``after`` is the cursor of a list that a server returned.
        """
        return self._portal.iterate(self._holdfast.ambiguous, tenant=tenant, after=after)

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

        A run that ends before its turn counts as refused. Pass ``everything=True`` to act on all
        runs. ``limit`` is the largest number of runs to act on. To continue an earlier call, pass
        the ``cursor`` of its last progress. ``dry_run`` only counts the runs.

        Raises:
            InvalidQuery: no filter, a status that cannot be cancelled, or a wrong limit or cursor.
            StoreUnavailable: the store did not answer; continue from the last cursor.
        """
        return self._portal.iterate(
            self._holdfast.cancel_all,
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

        ``keep_answers`` is that of `RunHandle.retry`.

        Raises:
            InvalidQuery: no filter, a status that cannot be retried, or a wrong limit or cursor.
            InvalidRequest: ``keep_answers`` is not a bool.
            StoreUnavailable: the store did not answer; continue from the last cursor.
        """
        return self._portal.iterate(
            self._holdfast.retry_all,
            run_filter,
            tenant=tenant,
            limit=limit,
            cursor=cursor,
            everything=everything,
            dry_run=dry_run,
            keep_answers=keep_answers,
        )

    def worker(
        self,
        graphs: Iterable[Program],
        *,
        options: WorkerOptions | None = None,
        **given: Unpack[WorkerKeywords],
    ) -> Worker:
        """Return a worker for these graphs: ``with hf.worker([graph]): …``

        `WorkerOptions` has the options: concurrency, pools, lease, drain and more.
        Pass them by name, or as ``options``.

        Raises:
            InvalidGraph: a graph cannot be run.
            InvalidRequest: an unknown or invalid option, or two graphs of one name and version.
            ResourceMissing: a graph declares a model or a quota that this instance does not have.
        """
        self._portal.check()
        return Worker(self._portal, self._holdfast.worker(graphs, options=options, **given))

    def close(self) -> None:
        """Stop the workers of this instance, and close the store.

        Ctrl-C during this call stops the workers at once.
        """
        self._portal.close(self._holdfast.close)

    def sweep_blobs(
        self, *, older_than: Duration = _TWO_DAYS, dry_run: bool = False
    ) -> Generator[SweepProgress, None, None]:
        """Delete the blobs of all tenants that no run uses; yield the progress after each page.

        A sweep leaves alone what is younger than ``older_than``, at least a day: its run may not be
        stored yet. ``dry_run`` only counts.

        Raises:
            InvalidRequest: ``older_than`` is less than a day.
            StoreUnavailable: the store did not answer; sweep again later.
            StoreUnusable: the store has no place for blobs, or cannot be used.
        """
        return self._portal.iterate(
            self._holdfast.sweep_blobs, older_than=older_than, dry_run=dry_run
        )

    def create(self) -> None:
        """Create the table and the bucket where they are missing; change none that exists."""
        self._portal.call(self._holdfast.create)

    def grow_shards(self, shards: int) -> None:
        """Raise the number of shards of each graph's due index, while everything runs.

        Runs stay in the shard in which they were started. Workers read the new shards within a
        quarter of their lease; clients write to them within a minute.

        Raises:
            InvalidRequest: too many shards, or fewer than there are.
        """
        self._portal.call(self._holdfast.grow_shards, shards)

    def __enter__(self) -> Holdfast:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
