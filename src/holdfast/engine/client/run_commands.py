"""What is asked of one run from outside, and what the workers of this process are told of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from holdfast.engine.client.awaiting import Awaiting
from holdfast.engine.client.process_workers import Crew
from holdfast.engine.effects.resources import Means
from holdfast.engine.history import events, text_stream
from holdfast.engine.history.children import list_children
from holdfast.engine.history.cursors import event_cursor_of, text_cursor_of
from holdfast.engine.history.views import run_of
from holdfast.engine.journal.endings import Outcome
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs import ambiguity, budget_changes, extension
from holdfast.engine.runs.argument_checks import (
    admitted_budget,
    admitted_limit,
    admitted_node,
    admitted_reason,
    admitted_resolution,
    positive_ms,
)
from holdfast.engine.runs.budget_accounts import granted
from holdfast.engine.runs.cancelling import cancel_run
from holdfast.engine.runs.retrying import retry_run
from holdfast.engine.runs.rows import read_row
from holdfast.engine.runs.signalling import send_signal
from holdfast.errors import InvalidRequest
from holdfast.model.budget import Budget
from holdfast.model.durations import Duration
from holdfast.model.run import HistoryEntry, HistoryPage, Run, RunEntry, TextPiece
from holdfast.model.spending import NOTHING, Spending
from holdfast.records.head import ENDED
from holdfast.records.keys import RunKey
from holdfast.records.names import admit_name

__all__ = ["Steering"]


class Steering:
    """The runs of a store, each by its key; `Holdfast` tells what can be asked, and what raises.

    A run that has just ended in this process is waited for until its row says so.
    """

    def __init__(self, kernel: Kernel, crew: Crew, means: Means, awaiting: Awaiting) -> None:
        self._kernel = kernel
        self._crew = crew
        self._means = means
        self._awaiting = awaiting

    async def get(self, run: RunKey) -> Run:
        """Return the row of a run."""
        await self._crew.settled(run)
        head = await read_row(self._kernel, run)
        return run_of(head, user=await self._kernel.shown_user(head))

    async def outcome(self, run: RunKey, *, within: float | None) -> Outcome:
        """Return how a run ended, once it has, within so many seconds."""
        return await self._awaiting.outcome_within(run, within)

    async def children(self, run: RunKey) -> list[RunEntry]:
        """Return the runs that a run started."""
        await self._crew.settled(run)
        return await list_children(self._kernel, run)

    async def spending(self, run: RunKey) -> Spending:
        """Return what a run has spent, with all those that share its budget."""
        await self._crew.settled(run)
        head = await read_row(self._kernel, run)
        given = None if head.budget is None else await granted(self._kernel, head)
        given = given or NOTHING
        return Spending(max(head.tokens, given.tokens), max(head.nanodollars, given.nanodollars))

    async def history(self, run: RunKey, *, limit: int, cursor: str | None) -> HistoryPage:
        """Return a page of what happened to a run."""
        limit, after = admitted_limit(limit), event_cursor_of(cursor, field="cursor")
        await self._crew.settled(run)
        return await events.history(self._kernel, run, after=after, limit=limit)

    def events(
        self, run: RunKey, *, after: str | None, follow: bool
    ) -> AsyncGenerator[HistoryEntry, None]:
        """Yield what happens to a run."""
        cursor = event_cursor_of(after, field="after")
        return events.followed(self._kernel, run, after=cursor, follow=follow)

    def tokens(
        self, run: RunKey, *, after: str | None, follow: bool
    ) -> AsyncGenerator[TextPiece, None]:
        """Yield the text of a run's answers."""
        cursor = text_cursor_of(after, field="after")
        return text_stream.followed(self._kernel, run, after=cursor, follow=follow)

    async def signal(self, run: RunKey, name: str, payload: Any, *, signal_id: str | None) -> None:
        """Send a run a signal."""
        await self._crew.settled(run)
        await send_signal(
            self._kernel,
            self._crew,
            run,
            name=admit_name(name, "a signal's name"),
            id=admit_name(self._kernel.ids.new() if signal_id is None else signal_id, "signal_id"),
            payload=payload,
        )

    async def set_budget(self, run: RunKey, budget: Budget) -> None:
        """Give a run another budget, and its account, where it has one."""
        limits = admitted_budget(budget)
        if limits is None:
            raise InvalidRequest("a budget is needed", field="budget")
        await self._forget(run)
        head = await budget_changes.fund(self._kernel, self._crew, run, limits)
        await self._means.accounts.fund(self._crew, head)

    async def resolve(
        self, run: RunKey, call: str, *, result: Any, error: str | None, void: bool
    ) -> None:
        """Say what became of a call that was made at most once."""
        resolution = admitted_resolution(result=result, error=error, void=void)
        name = admit_name(call, "call")
        await self._crew.settled(run)
        await ambiguity.resolve(self._kernel, self._crew, run, name, resolution)

    async def cancel(self, run: RunKey, reason: str) -> None:
        """End a run, and let whoever holds it here hear of it at once."""
        reason = admitted_reason(reason)
        await self._forget(run)
        head = await cancel_run(self._kernel, run, reason=reason, hands=self._crew)
        if head.owner is None and head.place is not None and head.status not in ENDED:
            self._crew.offer(head.place)  # a worker has to see to those that end with it
        self._crew.interrupt(run)
        self._kernel.news.tell(run)
        if head.status in ENDED:
            self._awaiting.tell(run, Outcome("cancelled", {}, head.failure))

    async def extend(self, run: RunKey, expires: Duration) -> None:
        """Let a run expire that long from now."""
        span_ms = positive_ms(expires, "expires")
        await self._forget(run)
        await extension.extend(self._kernel, run, expires_ms=self._kernel.clock.now_ms() + span_ms)

    async def retry(self, run: RunKey, *, from_node: str | None) -> None:
        """Let a run go on that failed, here if there is room."""
        node = None if from_node is None else admitted_node(from_node)
        await self._crew.settled(run)
        self._crew.offer(await retry_run(self._kernel, run, from_node=node))

    async def _forget(self, run: RunKey) -> None:
        """Forget what we remember of a run that is about to change."""
        await self._crew.settled(run)
        self._crew.recall(run)
