# Generated from src/holdfast/handle.py by checks/blocking.py; do not edit.
# To write it anew: python -m checks.blocking --write
"""The blocking `RunHandle`; the async one is `holdfast.handle.RunHandle`."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast, overload

from msgspec import UNSET

from holdfast.handle import RunHandle as AsyncRunHandle
from holdfast.model.budget import Budget, BudgetLimits
from holdfast.model.durations import Duration
from holdfast.model.map import MapProgress
from holdfast.model.program import ResultT
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
from holdfast.model.spending import Spending
from holdfast.portal import BlockingStream, Portal
from holdfast.sync.maps import MapHandle

__all__ = ["RunHandle"]

T = TypeVar("T")


class RunHandle(Generic[ResultT]):
    """One run and the operations on it: returned by `Holdfast.start` and `Holdfast.run`.

    To make a handle reads nothing: an operation raises `RunNotFound` where there is no such run.
    """

    def __init__(self, portal: Portal, handle: AsyncRunHandle[ResultT]) -> None:
        self._portal = portal
        self._handle = handle

    @property
    def id(self) -> str:
        """The run's id."""
        return self._handle.id

    @property
    def tenant(self) -> str:
        """The tenant that the run belongs to."""
        return self._handle.tenant

    def result(self, *, timeout: Duration | None = None) -> ResultT:
        """Wait until the run has ended, and return its result.

        That is the final state of a graph, and what a workflow returned. It has its type where the
        handle knows the graph, and is the stored form (dicts, lists, numbers, text) otherwise.

        Raises:
            RunFailed, RunCancelled, RunExpired, RunQuarantined: the run ended without a result.
            RunNotFound: there is no such run, or its rows are deleted.
            TimeoutError: the run did not end within ``timeout``; it goes on. The error says what
                the run waits for, or that no worker claimed it.
        """
        return self._portal.call(self._handle.result, timeout=timeout)

    def until(
        self, *statuses: Status, reason: str | None = None, timeout: Duration | None = None
    ) -> Run:
        """Wait until the run has one of the statuses, and return its row.

        ``run.until("waiting")`` returns when the pause is stored: `waits` lists what the run
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
        return self._portal.call(self._handle.until, *statuses, reason=reason, timeout=timeout)

    def get(self) -> Run:
        """Return the run's row: its status, why it is paused, what it has used.

        Raises:
            RunNotFound: there is no such run.
        """
        return self._portal.call(self._handle.get)

    def input(self) -> Any:
        """Return the input of the run, with the default values of fields that were left out.

        Its type is that of the graph's state or of the workflow's input, as for `result`.

        Raises:
            RunNotFound: there is no such run, or its journal is deleted.
        """
        return self._portal.call(self._handle.input)

    def state(self, *, at: str | None = None, branch: str = "") -> Any:
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
        return self._portal.call(self._handle.state, at=at, branch=branch)

    def waits(self, *, limit: int = 100, cursor: str | None = None) -> WaitPage:
        """Return a page of everything that the run waits for, the longest wait first.

        Raises:
            RunNotFound: there is no such run, or its journal is deleted.
            InvalidQuery: the limit is not from 1 to 1,000, or the cursor is not one of a list of
                waits.
        """
        return self._portal.call(self._handle.waits, limit=limit, cursor=cursor)

    def children(self) -> list[RunEntry]:
        """Return the runs that this run started, the oldest first.

        Raises:
            RunNotFound: there is no such run.
        """
        return self._portal.call(self._handle.children)

    def maps(self) -> list[MapProgress]:
        """Return the maps that this run has begun, and how far they are.

        Raises:
            RunNotFound: there is no such run.
        """
        return self._portal.call(self._handle.maps)

    def map(self, id: str) -> MapHandle:
        """Return a handle on one of the maps of this run; `maps` names them.

        Raises:
            InvalidName: the id is not a valid name.
        """
        self._portal.check()
        return MapHandle(self._portal, self._handle.map(id))

    def spending(self) -> Spending:
        """Return what the run and all runs that share its budget have spent.

        Where the budget limits it, the sum includes what was reserved for those runs and is not
        spent yet.

        Raises:
            RunNotFound: there is no such run.
        """
        return self._portal.call(self._handle.spending)

    def history(self, *, limit: int = 100, cursor: str | None = None) -> HistoryPage:
        """Return a page of the run's history, the oldest entry first.

        Raises:
            RunNotFound: there is no such run, or its journal is deleted.
            InvalidQuery: the limit is not from 1 to 1,000, or the cursor is not one of this run.
        """
        return self._portal.call(self._handle.history, limit=limit, cursor=cursor)

    def set_aside(self) -> list[SetAsideSignal]:
        """Return the signals that the run has set aside, the oldest first.

        A signal that was sent before its type was known may not fit the wait that would take it. No
        wait takes it then, and the run keeps waiting.

        Raises:
            RunNotFound: there is no such run, or its journal is deleted.
        """
        return self._portal.call(self._handle.set_aside)

    def events(
        self, *, after: str | None = None, follow: bool = True, ephemeral: bool = False
    ) -> BlockingStream[HistoryEntry]:
        """Yield the run's history, then each new entry, until the run has ended.

        Each entry has a cursor. A call with the last one as ``after``, in this process or another,
        misses nothing and repeats nothing; make such a call after a retry. ``follow=False`` yields
        the entries that exist, and stops. ``with run.events() as stream: …`` raises before
        the block if the run is unknown.

        With ``ephemeral`` it also yields events that are not recorded: what the run does now, its
        pauses, the progress of its nodes. Their cursor is empty, so remember the last cursor with
        ``last = entry.cursor or last``. The first one is a ``snapshot`` of the row, which
        supersedes those that were missed. The guide on events has all kinds.

        Raises:
            RunNotFound: there is no such run, or its journal is deleted.
            InvalidQuery: the cursor is not one of this run.
        """
        return self._portal.open_stream(
            self._handle.events, after=after, follow=follow, ephemeral=ephemeral
        )

    def tokens(
        self, *, after: str | None = None, follow: bool = True, joined: bool = True
    ) -> BlockingStream[TextPiece]:
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
        return self._portal.open_stream(
            self._handle.tokens, after=after, follow=follow, joined=joined
        )

    @overload
    def signal(
        self, name: str, payload: Any = None, *, signal_id: str | None = None
    ) -> SignalReceipt: ...

    @overload
    def signal(self, name: SignalName[None], *, signal_id: str | None = None) -> SignalReceipt: ...

    @overload
    def signal(
        self, name: SignalName[T], payload: T, *, signal_id: str | None = None
    ) -> SignalReceipt: ...

    def signal(
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
        return self._portal.call(cast(Any, self._handle.signal), name, payload, signal_id=signal_id)

    def cancel(self, reason: str = "") -> None:
        """End the run. A node that runs in another process ends at its next write.

        To cancel a cancelled run again does nothing.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: the run has ended in another way.
        """
        self._portal.call(self._handle.cancel, reason)

    def retry(self, *, from_node: str | None = None, keep_answers: bool = False) -> None:
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
        self._portal.call(self._handle.retry, from_node=from_node, keep_answers=keep_answers)

    def extend(self, expires: Duration) -> None:
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
        self._portal.call(self._handle.extend, expires)

    def set_budget(self, budget: Budget | BudgetLimits) -> None:
        """Replace the run's budget. If the run waits for a larger one, it goes on.

        So do the runs that share its budget. What was spent before counts. The budget of a `Run`
        can be passed, too.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: the run has ended or expired.
            BudgetShared: the run shares the budget of the run that started it; or it has a slice of
                that budget, which can only be lowered.
        """
        self._portal.call(self._handle.set_budget, budget)

    def resolve(
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
        self._portal.call(self._handle.resolve, call, result=result, error=error, void=void)

    def __repr__(self) -> str:
        return repr(self._handle)
