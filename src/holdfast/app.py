"""`Holdfast`: opens a store, starts runs, lists them, and makes workers."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, NoReturn, TypeVar, Unpack

from holdfast.clock import Clock, Ids, SystemClock, SystemIds
from holdfast.documents.search_opening import SearchChoice, chosen_search
from holdfast.engine.client import bulk
from holdfast.engine.client.awaiting import RunOutcomes
from holdfast.engine.client.launching import RunLauncher
from holdfast.engine.client.process_workers import ProcessWorkers
from holdfast.engine.client.wait_warnings import warn_about_waits
from holdfast.engine.effects.argument_recorder import ArgumentRecorder, Redact
from holdfast.engine.effects.budget_warnings import warn_if_no_call_fits
from holdfast.engine.effects.resources import Resources, check_resources
from holdfast.engine.history import lists
from holdfast.engine.history.views import queue_entry_of
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.kernel.telemetry import Telemetry
from holdfast.engine.runs import ambiguity, session_queue, starting
from holdfast.engine.runs.argument_checks import (
    check_program,
    positive_ms,
    takes_run_filter,
    validated_budget,
    validated_bulk_filter,
    validated_bulk_limit,
    validated_durability,
    validated_filter,
    validated_keep_answers,
    validated_limit,
    validated_limits,
    validated_on_busy,
    validated_reason,
    validated_user,
    validated_user_key,
)
from holdfast.engine.worker.hook_calls import HookCalls
from holdfast.engine.worker.options import WorkerKeywords, WorkerOptions, worker_options
from holdfast.engine.worker.worker import Worker
from holdfast.errors import InvalidRequest
from holdfast.handle import HandleServices, RunHandle
from holdfast.model.arguments import Recording
from holdfast.model.budget import Budget, BudgetLimits
from holdfast.model.durations import Duration, days, milliseconds_of
from holdfast.model.hooks import Hooks
from holdfast.model.invocation import Model
from holdfast.model.moments import Moment, moment_ms
from holdfast.model.names import validated_labels, validated_name, validated_tenant
from holdfast.model.payload_limits import PayloadLimits
from holdfast.model.policy import Durability
from holdfast.model.program import Program, ResultT
from holdfast.model.progress import BulkProgress
from holdfast.model.quota import Quota
from holdfast.model.run import AmbiguousCall, OnBusy, RunPage, SessionQueueEntry
from holdfast.records.keys import RunKey, SessionQueueKey
from holdfast.records.run_filter import RunFilter
from holdfast.review.options import ReviewOptions, validated_review_options
from holdfast.review.reviews import worker_companions
from holdfast.storage import Store
from holdfast.storage import open as open_store
from holdfast.store_services import StoreServices

__all__ = ["Holdfast"]

T = TypeVar("T")
R = TypeVar("R")

_WEEK_MS = milliseconds_of(days(7), "expires")
_TWO_DAYS = days(2)
# How long calls of hooks may go on when an instance is closed.
_HOOK_SECONDS = 5.0


class Holdfast(StoreServices):
    """Starts runs on a store, lists them, acts on many of them, and makes workers.

    `run` and `start` return a `RunHandle`, which has the operations on one run. An instance belongs
    to one event loop. ``tenant`` is the tenant of calls that name none.
    """

    _worker_type: type[Worker] = Worker

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
        self._tenant = validated_tenant(tenant)
        check_resources(models, quotas, tasks)
        review_options = validated_review_options(reviews)
        recorder = ArgumentRecorder(record, redact)
        key, payload_limits = validated_user_key(user_key), validated_limits(limits)
        clock = clock or SystemClock()
        ids = ids or SystemIds(clock)
        self._store = store or open_store(url, clock=clock)
        self._kernel = Kernel(
            self._store, clock, ids, key, limits=payload_limits, telemetry=telemetry
        )
        self._resources = Resources(self._kernel, models, quotas, tasks, recorder=recorder)
        self._hooks = HookCalls(self._kernel, hooks)
        self._workers = ProcessWorkers(self._hooks)
        self._launcher = RunLauncher(self._kernel, self._workers)
        self._outcomes = RunOutcomes(self._kernel, self._workers)
        services = HandleServices(self._kernel, self._workers, self._resources, self._outcomes)
        super().__init__(
            services,
            tenant=self._tenant,
            public_url=public_url,
            reviews=review_options,
            search=chosen_search(search, self._store.url, clock=clock),
        )

    # --- runs -------------------------------------------------------------------------------------

    async def start(
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
        check_program(graph)
        if self._kernel.telemetry is not None:
            labels = self._kernel.telemetry.labels(labels)
        asked = starting.StartRequest(
            run=self._key(self._kernel.ids.new() if id is None else id, tenant),
            user=validated_user(user),
            labels=validated_labels(labels, pool=pool),
            starts_ms=None if start_at is None else moment_ms(start_at, "start_at"),
            expires_in_ms=_expires_in_ms(expires, graph),
            retention_ms=milliseconds_of(retention, "retention"),
            session=None if session is None else validated_name(session, "session"),
            on_busy=validated_on_busy(on_busy, session),
            budget=validated_budget(budget),
            on_pause=validated_durability(durability, graph) == "on_pause",
        )
        warn_about_waits(graph.check(), asked.expires_in_ms)
        if asked.budget is not None:
            warn_if_no_call_fits(asked.run, asked.budget, self._resources.models)
        launched = await self._launcher.start(graph, graph.admitted_input(input), asked)
        return RunHandle(
            self._services,
            launched.run,
            launched.graph,
            launched.outcome,
            repeated=launched.repeated,
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
        if graph is not None:
            check_program(graph)
        return RunHandle(self._services, self._key(id, tenant), graph)

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
        return await lists.list_runs(
            self._kernel,
            self._tenant_or_default(tenant),
            validated_filter(run_filter),
            limit=validated_limit(limit),
            cursor=cursor,
        )

    async def session_queue(
        self, session: str, *, user: str | None = None, tenant: str | None = None
    ) -> builtins.list[SessionQueueEntry]:
        """Return the runs of a session that have not ended, in the order of their starts.

        Raises:
            InvalidName: an invalid session, user or tenant.
        """
        of, tenant = validated_user(user), self._tenant_or_default(tenant)
        session = validated_name(session, "session")
        hash = None if of is None else await self._kernel.hash_user(of, tenant)
        key = SessionQueueKey(tenant, "-" if hash is None else hash.unbound, session)
        now = self._kernel.clock.now_ms()
        heads = await session_queue.list_queue(self._kernel, key)
        return [queue_entry_of(head, now_ms=now) for head in heads]

    def ambiguous(
        self, *, tenant: str | None = None, after: str | None = None
    ) -> AsyncGenerator[AmbiguousCall, None]:
        """Yield the at-most-once calls that may have been made, until `RunHandle.resolve`.

        ``after`` is the cursor of a list that a server returned.
        """
        return ambiguity.list_ambiguous_calls(
            self._kernel, self._tenant_or_default(tenant), after=ambiguity.checked_cursor(after)
        )

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

        A run that ends before its turn counts as refused. Pass ``everything=True`` to act on all
        runs. ``limit`` is the largest number of runs to act on. To continue an earlier call, pass
        the ``cursor`` of its last progress. ``dry_run`` only counts the runs.

        Raises:
            InvalidQuery: no filter, a status that cannot be cancelled, or a wrong limit or cursor.
            StoreUnavailable: the store did not answer; continue from the last cursor.
        """
        reason = validated_reason(reason)

        async def cancel(run: RunKey) -> None:
            await RunHandle(self._services, run, None).cancel(reason)

        return bulk.act_on_runs(
            self._kernel,
            self._tenant_or_default(tenant),
            validated_bulk_filter(
                run_filter, among=bulk.BULK_STATUSES["cancel"], everything=everything
            ),
            None if dry_run else cancel,
            limit=validated_bulk_limit(limit),
            cursor=cursor,
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

        ``keep_answers`` is that of `RunHandle.retry`.

        Raises:
            InvalidQuery: no filter, a status that cannot be retried, or a wrong limit or cursor.
            InvalidRequest: ``keep_answers`` is not a bool.
            StoreUnavailable: the store did not answer; continue from the last cursor.
        """
        kept = validated_keep_answers(keep_answers, from_node=None)

        async def retry(run: RunKey) -> None:
            await RunHandle(self._services, run, None).retry(keep_answers=kept)

        return bulk.act_on_runs(
            self._kernel,
            self._tenant_or_default(tenant),
            validated_bulk_filter(
                run_filter, among=bulk.BULK_STATUSES["retry"], everything=everything
            ),
            None if dry_run else retry,
            limit=validated_bulk_limit(limit),
            cursor=cursor,
        )

    # --- workers ----------------------------------------------------------------------------------

    def worker(
        self,
        graphs: Iterable[Program],
        *,
        options: WorkerOptions | None = None,
        **given: Unpack[WorkerKeywords],
    ) -> Worker:
        """Return a worker for these graphs: ``async with hf.worker([graph]): …``

        `WorkerOptions` has the options: concurrency, pools, lease, drain and more.
        Pass them by name, or as ``options``.

        Raises:
            InvalidGraph: a graph cannot be run.
            InvalidRequest: an unknown or invalid option, or two graphs of one name and version.
            ResourceMissing: a graph declares a model or a quota that this instance does not have.
        """
        if options is not None and given:
            raise InvalidRequest(
                "pass the options of a worker either by name or as options=…, not both"
            )
        if not isinstance(options, WorkerOptions | None):
            raise InvalidRequest(
                f"options must be WorkerOptions, got {options!r:.80}", field="options"
            )
        options = options or worker_options(given)
        worker = self._worker_type(
            self._kernel,
            graphs,
            options,
            on_ended=self._outcomes.notify_ended,
            on_paused=self._workers.cache_head,
            hooks=self._hooks,
            local_workers=self._workers,
            resources=self._resources,
            companions=worker_companions(self._reviews),
        )
        self._workers.add(worker)
        return worker

    async def close(self) -> None:
        """Stop the workers of this instance, and close the store."""
        await self._workers.stop()
        await self._hooks.close(_HOOK_SECONDS)
        await self._resources.close()
        if self.documents.search is not None:
            await self.documents.search.close()
        await self._store.close()

    def __enter__(self) -> NoReturn:
        raise InvalidRequest(
            "write `async with Holdfast(…) as hf` in a coroutine; in code without coroutines use "
            "`with holdfast.sync.Holdfast(…) as hf`"
        )

    def __exit__(self, *error: object) -> None: ...

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


def _expires_in_ms(expires: Duration | None, graph: Program) -> int:
    if expires is not None:
        return positive_ms(expires, "expires")
    return _WEEK_MS if graph.expires_in_ms is None else graph.expires_in_ms
