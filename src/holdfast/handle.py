"""`RunHandle`: every operation on one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from msgspec import UNSET

from holdfast.engine.client.awaiting import RunOutcomes
from holdfast.engine.client.map_handle import MapHandle
from holdfast.engine.client.process_workers import ProcessWorkers
from holdfast.engine.effects.resources import Resources
from holdfast.engine.history import events, states, text_stream
from holdfast.engine.history.children import list_children
from holdfast.engine.history.cursors import parse_event_cursor, parse_text_cursor
from holdfast.engine.history.run_stream import RunStream
from holdfast.engine.history.set_aside import list_set_aside
from holdfast.engine.history.views import run_of
from holdfast.engine.journal.endings import RunOutcome, result_of
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs import ambiguity, budget_changes, extension
from holdfast.engine.runs.argument_checks import (
    positive_ms,
    validated_budget,
    validated_keep_answers,
    validated_limit,
    validated_node,
    validated_pause_reason,
    validated_reason,
    validated_resolution,
    validated_signal_name,
    validated_statuses,
)
from holdfast.engine.runs.budget_accounts import read_granted
from holdfast.engine.runs.cancelling import cancel_run
from holdfast.engine.runs.map_reading import list_progress
from holdfast.engine.runs.retrying import retry_run
from holdfast.engine.runs.rows import read_row
from holdfast.engine.runs.signalling import send_signal
from holdfast.errors import InvalidRequest
from holdfast.model.awaited_status import AwaitedStatus
from holdfast.model.budget import Budget, BudgetLimits
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.map import MapProgress
from holdfast.model.names import validated_name
from holdfast.model.program import Program, ResultT
from holdfast.model.run import (
    HistoryEntry,
    HistoryPage,
    Run,
    RunEntry,
    SetAsideSignal,
    SignalReceipt,
    Status,
    TextPiece,
    WaitPage,
)
from holdfast.model.signals import SignalName
from holdfast.model.spending import NO_SPENDING, Spending
from holdfast.records.head import ENDED
from holdfast.records.keys import RunKey

__all__ = ["HandleServices", "RunHandle"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HandleServices:
    """The parts of one `Holdfast` that its handles use."""

    kernel: Kernel
    workers: ProcessWorkers
    resources: Resources
    outcomes: RunOutcomes


class RunHandle(Generic[ResultT]):
    """One run and the operations on it: returned by `Holdfast.start` and `Holdfast.run`.

    The result of a ``RunHandle[Receipt]`` is a ``Receipt``; that of a `Graph` is its state.

    To make a handle reads nothing: an operation raises `RunNotFound` where there is no such run.
    """

    def __init__(
        self,
        services: HandleServices,
        key: RunKey,
        graph: Program[Any, ResultT] | None,
        outcome: RunOutcome | None = None,
        *,
        repeated: bool = False,
    ) -> None:
        self.repeated = repeated
        """Whether the start that returned it found the run already there."""
        self._services = services
        self._kernel = services.kernel
        self._workers = services.workers
        self._key = key
        self._graph = graph
        self._outcome = outcome  # of a run that ended in memory and was never written

    @property
    def id(self) -> str:
        """The run's id."""
        return self._key.id

    @property
    def tenant(self) -> str:
        """The tenant that the run belongs to."""
        return self._key.tenant

    # --- reading ----------------------------------------------------------------------------------

    async def result(self, *, timeout: Duration | None = None) -> ResultT:  # noqa: ASYNC109
        """Wait until the run has ended, and return its result.

        That is the final state of a graph, and what a workflow returned. It has its type where the
        handle knows the graph, and is the stored form (dicts, lists, numbers, text) otherwise.

        Raises:
            RunFailed, RunCancelled, RunExpired, RunQuarantined: the run ended without a result.
            RunNotFound: there is no such run, or its rows are deleted.
            TimeoutError: the run did not end within ``timeout``; it goes on. The error says what
                the run waits for, or that no worker claimed it.
        """
        limit = None if timeout is None else milliseconds_of(timeout, "timeout") / 1000
        outcome = self._outcome
        if outcome is None:
            outcome = await self._services.outcomes.wait_for_outcome(self._key, limit)
        return result_of(self.id, outcome, self._graph)

    async def until(
        self,
        *statuses: Status,
        reason: str | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109
    ) -> Run:
        """Wait until the run has one of the statuses, and return its row.

        ``await run.until("waiting")`` returns when the pause is stored: `waits` lists what the run
        waits for, and a signal answers it. With ``reason="budget"`` only a pause for that reason
        counts; see `Run`. A status that passes quickly may be missed.

        Raises:
            RunFailed, RunCancelled, RunExpired, RunQuarantined: the run ended in that way, and the
                caller did not ask for it.
            RunEnded: the run finished, or its input went into another run, without such a status.
            RunNotFound: there is no such run.
            InvalidRequest: there is no status, or no such status or reason; or a reason is given,
                and ``"waiting"`` is not among the statuses.
            TimeoutError: the run had none of the statuses within ``timeout``; it goes on. The error
                says what the run does.
        """
        wanted = AwaitedStatus(
            validated_statuses(statuses), validated_pause_reason(reason, statuses)
        )
        limit = None if timeout is None else milliseconds_of(timeout, "timeout") / 1000
        return await self._services.outcomes.wait_for_status(self._key, wanted, limit)

    async def get(self) -> Run:
        """Return the run's row: its status, why it is paused, what it has used.

        Raises:
            RunNotFound: there is no such run.
        """
        await self._workers.wait_for_exit(self._key)
        head = await read_row(self._kernel, self._key)
        user = await self._kernel.bind_user_hash(head)
        return run_of(head, user=user, now_ms=self._kernel.clock.now_ms())

    async def input(self) -> Any:
        """Return the input of the run, with the default values of fields that were left out.

        Its type is that of the graph's state or of the workflow's input, as for `result`.

        Raises:
            RunNotFound: there is no such run, or its journal is deleted.
        """
        await self._workers.wait_for_exit(self._key)
        return await states.read_input(self._kernel, self._key, self._graph)

    async def state(self, *, at: str | None = None, branch: str = "") -> Any:
        """Return the state of the run after its last finished node, whatever its status.

        With the cursor of a history entry as ``at``, return the state after that entry. With a
        ``branch``, return the state as that branch sees it, in its stored form. Otherwise the type
        of the state is that of `result`; the state of a workflow is a dict with its ``input`` and,
        after its end, its ``result``.

        Raises:
            RunNotFound: there is no such run, or its journal is deleted.
            InvalidQuery: ``at`` is not a cursor of this run's history, or there is no such branch.
            InvalidState: the state does not fit the type; a handle from `Holdfast.run` without a
                graph returns it in its stored form.
        """
        cursor = parse_event_cursor(at, field="at")
        if not isinstance(branch, str):
            raise InvalidRequest(f"branch must be a string, got {branch!r:.80}", field="branch")
        if self._outcome is not None and cursor is None and not branch:
            return states.typed_state(self._graph, self._outcome.state)
        await self._workers.wait_for_exit(self._key)
        state = await states.read_state(self._kernel, self._key, at=cursor, branch=branch)
        return state if branch else states.typed_state(self._graph, state)

    async def waits(self, *, limit: int = 100, cursor: str | None = None) -> WaitPage:
        """Return a page of everything that the run waits for, the longest wait first.

        Raises:
            RunNotFound: there is no such run, or its journal is deleted.
            InvalidQuery: the limit is not from 1 to 1,000, or the cursor is not one of a list of
                waits.
        """
        limit = validated_limit(limit)
        await self._workers.wait_for_exit(self._key)
        return await states.read_waits(self._kernel, self._key, limit=limit, cursor=cursor)

    async def children(self) -> list[RunEntry]:
        """Return the runs that this run started, the oldest first.

        Raises:
            RunNotFound: there is no such run.
        """
        await self._workers.wait_for_exit(self._key)
        return await list_children(self._kernel, self._key)

    async def maps(self) -> list[MapProgress]:
        """Return the maps that this run has begun, and how far they are.

        Raises:
            RunNotFound: there is no such run.
        """
        await self._workers.wait_for_exit(self._key)
        return await list_progress(self._kernel, self._key)

    def map(self, id: str) -> MapHandle:
        """Return a handle on one of the maps of this run; `maps` names them.

        Raises:
            InvalidName: the id is not a valid name.
        """
        return MapHandle(self._kernel, self._workers, self._key, id, self._graph)

    async def spending(self) -> Spending:
        """Return what the run and all runs that share its budget have spent.

        Where the budget limits it, the sum includes what was reserved for those runs and is not
        spent yet.

        Raises:
            RunNotFound: there is no such run.
        """
        await self._workers.wait_for_exit(self._key)
        head = await read_row(self._kernel, self._key)
        granted = None if head.budget is None else await read_granted(self._kernel, head)
        granted = granted or NO_SPENDING
        return Spending(
            max(head.tokens, granted.tokens), max(head.nanodollars, granted.nanodollars)
        )

    async def history(self, *, limit: int = 100, cursor: str | None = None) -> HistoryPage:
        """Return a page of the run's history, the oldest entry first.

        Raises:
            RunNotFound: there is no such run, or its journal is deleted.
            InvalidQuery: the limit is not from 1 to 1,000, or the cursor is not one of this run.
        """
        limit, after = validated_limit(limit), parse_event_cursor(cursor, field="cursor")
        await self._workers.wait_for_exit(self._key)
        return await events.read_history(self._kernel, self._key, after=after, limit=limit)

    async def set_aside(self) -> list[SetAsideSignal]:
        """Return the signals that the run has set aside, the oldest first.

        A signal that was sent before its type was known may not fit the wait that would take it. No
        wait takes it then, and the run keeps waiting.

        Raises:
            RunNotFound: there is no such run, or its journal is deleted.
        """
        await self._workers.wait_for_exit(self._key)
        return await list_set_aside(self._kernel, self._key)

    def events(
        self, *, after: str | None = None, follow: bool = True, ephemeral: bool = False
    ) -> RunStream[HistoryEntry]:
        """Yield the run's history, then each new entry, until the run has ended.

        Each entry has a cursor. A call with the last one as ``after``, in this process or another,
        misses nothing and repeats nothing; make such a call after a retry. ``follow=False`` yields
        the entries that exist, and stops. ``async with run.events() as stream: …`` raises before
        the block if the run is unknown.

        With ``ephemeral`` it also yields events that are not recorded: what the run does now, its
        pauses, the progress of its nodes. Their cursor is empty, so remember the last cursor with
        ``last = entry.cursor or last``. The first one is a ``snapshot`` of the row, which
        supersedes those that were missed. The guide on events has all kinds.

        Raises:
            RunNotFound: there is no such run, or its journal is deleted.
            InvalidQuery: the cursor is not one of this run.
        """
        source = events.stream_events(
            self._kernel,
            self._key,
            after=parse_event_cursor(after, field="after"),
            follow=follow,
            drivers=self._workers if ephemeral else None,
        )
        return RunStream(source)

    def tokens(
        self, *, after: str | None = None, follow: bool = True, joined: bool = True
    ) -> RunStream[TextPiece]:
        """Yield the text of the run's model answers, then new text, until the run has ended.

        Only calls with ``stream=True`` write their text, which is kept for a day. Each piece has a
        cursor. A call with the last one as ``after``, in this process or another, misses nothing
        and repeats nothing. A piece with ``restarted`` says that the model is asked again: discard
        the text of that call so far. ``follow=False`` yields the text that exists, and stops. A
        piece joins what can be read at once; with ``joined=False`` it is what the model sent at
        once, so that all readers get the same pieces.

        Raises:
            RunNotFound: there is no such run, or its text is deleted.
            InvalidQuery: the cursor is not one of this run.
        """
        cursor = parse_text_cursor(after, field="after")
        return RunStream(
            text_stream.stream_text(
                self._kernel, self._key, after=cursor, follow=follow, joined=joined
            )
        )

    # --- acting -----------------------------------------------------------------------------------

    @overload
    async def signal(
        self, name: str, payload: Any = None, *, signal_id: str | None = None
    ) -> SignalReceipt: ...

    @overload
    async def signal(
        self, name: SignalName[None], *, signal_id: str | None = None
    ) -> SignalReceipt: ...

    @overload
    async def signal(
        self, name: SignalName[T], payload: T, *, signal_id: str | None = None
    ) -> SignalReceipt: ...

    async def signal(
        self, name: str | SignalName[Any], payload: Any = None, *, signal_id: str | None = None
    ) -> SignalReceipt:
        """Send the run a signal. After the return it is stored, and the run takes it exactly once.

        ``name`` may also be the ``signal(…)`` that the node waits for. The run need not wait for
        it yet; the receipt says whether it does. If you do not know whether a signal arrived, send
        it again with the same ``signal_id``.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: the run has ended or expired, and did not accept this signal before.
            RunClosing: the run is past its expiry and still carries out a decision, perhaps this
                signal: send it again later with the same ``signal_id``.
            AlreadyExists: the run has a signal of this id with another payload.
            PayloadTooLarge: the payload has more bytes than ``signal_bytes_max``.
            InvalidInput: the payload cannot be stored.
            SignalMisfit: the payload does not fit the type of the signal; or the run has set this
                signal aside for that.
            UnknownSignal: the graph declares its signals, and this is none of them.
            InboxFull: the run's inbox is full: send the signal again later.
        """
        await self._workers.wait_for_exit(self._key)
        return await send_signal(
            self._kernel,
            self._workers,
            self._key,
            name=validated_signal_name(name),
            id=validated_name(
                self._kernel.ids.new() if signal_id is None else signal_id, "signal_id"
            ),
            payload=payload,
        )

    async def cancel(self, reason: str = "") -> None:
        """End the run. A node that runs in another process ends at its next write.

        To cancel a cancelled run again does nothing.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: the run has ended in another way.
        """
        reason = validated_reason(reason)
        await self._drop_cached_head()
        head = await cancel_run(self._kernel, self._key, reason=reason, workers=self._workers)
        if head.owner is None and head.index_key is not None and head.status not in ENDED:
            self._workers.offer(head.index_key)  # a worker ends the children, too
        self._workers.interrupt(self._key)
        self._kernel.notifier.notify(self._key)
        if head.status in ENDED:
            outcome = RunOutcome("cancelled", {}, head.failure, head.node)
            self._services.outcomes.notify(self._key, outcome)

    async def retry(self, *, from_node: str | None = None, keep_answers: bool = False) -> None:
        """Let a failed or quarantined run go on, at ``from_node`` or at the node where it stopped.

        The state stays as it was; the node has all its attempts again. Its waits for signals ask
        again; with ``keep_answers`` they return the same answers as before. Recorded calls, ended
        children and finished sleeps count in both cases.

        Raises:
            RunNotFound: there is no such run.
            NotRetryable: the run is neither failed nor quarantined.
            RunEnded: the run has expired since it failed: `extend` it first.
            InvalidRequest: both ``from_node`` and ``keep_answers`` are given; a node that starts
                from its beginning has no answers.
        """
        node = None if from_node is None else validated_node(from_node)
        kept = validated_keep_answers(keep_answers, from_node=node)
        await self._workers.wait_for_exit(self._key)
        self._workers.offer(
            await retry_run(self._kernel, self._key, from_node=node, keep_answers=kept)
        )

    async def extend(self, expires: Duration) -> None:
        """Let the run expire that long from now. Its retention stays as it is.

        A run that failed or is quarantined can be extended too, and then retried, until its data is
        about to be deleted: at least 46 hours after its expiry. Two days after the old expiry,
        entries from before this call leave the history.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: the run has finished, expired or been cancelled; or its data is about to be
                deleted.
            ExpiryNotLater: the run already expires later than that.
        """
        span_ms = positive_ms(expires, "expires")
        await self._drop_cached_head()
        await extension.extend_run(
            self._kernel, self._key, expires_ms=self._kernel.clock.now_ms() + span_ms
        )

    async def set_budget(self, budget: Budget | BudgetLimits) -> None:
        """Replace the run's budget. If the run waits for a larger one, it goes on.

        So do the runs that share its budget. What was spent before counts. The budget of a `Run`
        can be passed, too.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: the run has ended or expired.
            BudgetShared: the run shares the budget of the run that started it; or it has a slice of
                that budget, which can only be lowered.
        """
        limits = validated_budget(budget)
        if limits is None:
            raise InvalidRequest("budget must be a Budget, got None", field="budget")
        await self._drop_cached_head()
        head = await budget_changes.fund_run(self._kernel, self._workers, self._key, limits)
        await self._services.resources.accounts.fund(self._workers, head)

    async def resolve(
        self, call: str, *, result: Any = UNSET, error: str | None = None, void: bool = False
    ) -> None:
        """Record the outcome of an ambiguous at-most-once call; then the run continues.

        Pass one of three: ``result`` if the call was carried out and returned that; ``error`` if it
        failed for good; ``void=True`` if nothing happened and nothing will happen under its
        idempotency key, so that the run may make the call again under another key.
        `Holdfast.ambiguous` lists such calls.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: the run has ended or expired.
            NotAmbiguous: the call does not wait for a resolution, or no longer.
            AlreadyExists: the call was resolved in another way before.
            InvalidInput: the result cannot be stored.
            InvalidRequest: none of the three is given, or more than one.
        """
        resolution = validated_resolution(result=result, error=error, void=void)
        name = validated_name(call, "call")
        await self._workers.wait_for_exit(self._key)
        await ambiguity.resolve_call(self._kernel, self._workers, self._key, name, resolution)

    async def _drop_cached_head(self) -> None:
        """Forget the cached row of the run, which is about to change."""
        await self._workers.wait_for_exit(self._key)
        self._workers.take_cached_head(self._key)

    def __repr__(self) -> str:
        return f"<run {self.id!r} of tenant {self.tenant!r}>"
