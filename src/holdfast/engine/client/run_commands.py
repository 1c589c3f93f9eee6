"""Reads and commands of one run; the workers of this process learn of each command at once."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from holdfast.engine.client.awaiting import RunOutcomes
from holdfast.engine.client.process_workers import ProcessWorkers
from holdfast.engine.effects.resources import Resources
from holdfast.engine.history import events, text_stream
from holdfast.engine.history.children import list_children
from holdfast.engine.history.cursors import parse_event_cursor, parse_text_cursor
from holdfast.engine.history.views import run_of
from holdfast.engine.journal.endings import RunOutcome
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs import ambiguity, budget_changes, extension
from holdfast.engine.runs.argument_checks import (
    positive_ms,
    validated_budget,
    validated_limit,
    validated_node,
    validated_reason,
    validated_resolution,
)
from holdfast.engine.runs.budget_accounts import read_granted
from holdfast.engine.runs.cancelling import cancel_run
from holdfast.engine.runs.retrying import retry_run
from holdfast.engine.runs.rows import read_row
from holdfast.engine.runs.signalling import send_signal
from holdfast.errors import InvalidRequest
from holdfast.model.budget import Budget
from holdfast.model.durations import Duration
from holdfast.model.names import validated_name
from holdfast.model.run import HistoryEntry, HistoryPage, Run, RunEntry, TextPiece
from holdfast.model.spending import NO_SPENDING, Spending
from holdfast.records.head import ENDED
from holdfast.records.keys import RunKey

__all__ = ["RunControl"]


class RunControl:
    """Reads and changes runs, each by its key; `Holdfast` documents the arguments and errors.

    If a run has just ended in this process, each method waits until the run's row says so.
    """

    def __init__(
        self, kernel: Kernel, workers: ProcessWorkers, resources: Resources, outcomes: RunOutcomes
    ) -> None:
        self._kernel = kernel
        self._workers = workers
        self._resources = resources
        self._outcomes = outcomes

    async def get(self, run: RunKey) -> Run:
        """Return the row of a run."""
        await self._workers.wait_for_exit(run)
        head = await read_row(self._kernel, run)
        return run_of(head, user=await self._kernel.bind_user_hash(head))

    async def wait_for_outcome(self, run: RunKey, *, timeout_seconds: float | None) -> RunOutcome:
        """Wait until a run has ended, for so many seconds; return how it ended."""
        return await self._outcomes.wait_for_outcome(run, timeout_seconds)

    async def list_children(self, run: RunKey) -> list[RunEntry]:
        """Return the runs that a run started."""
        await self._workers.wait_for_exit(run)
        return await list_children(self._kernel, run)

    async def read_spending(self, run: RunKey) -> Spending:
        """Return what a run has spent, together with the runs that share its budget."""
        await self._workers.wait_for_exit(run)
        head = await read_row(self._kernel, run)
        granted_spending = None if head.budget is None else await read_granted(self._kernel, head)
        granted_spending = granted_spending or NO_SPENDING
        return Spending(
            max(head.tokens, granted_spending.tokens),
            max(head.nanodollars, granted_spending.nanodollars),
        )

    async def read_history(self, run: RunKey, *, limit: int, cursor: str | None) -> HistoryPage:
        """Return a page of a run's history."""
        limit, after = validated_limit(limit), parse_event_cursor(cursor, field="cursor")
        await self._workers.wait_for_exit(run)
        return await events.read_history(self._kernel, run, after=after, limit=limit)

    def stream_events(
        self, run: RunKey, *, after: str | None, follow: bool
    ) -> AsyncGenerator[HistoryEntry, None]:
        """Yield the entries of a run's history."""
        cursor = parse_event_cursor(after, field="after")
        return events.stream_events(self._kernel, run, after=cursor, follow=follow)

    def stream_text(
        self, run: RunKey, *, after: str | None, follow: bool
    ) -> AsyncGenerator[TextPiece, None]:
        """Yield the text of a run's answers."""
        cursor = parse_text_cursor(after, field="after")
        return text_stream.stream_text(self._kernel, run, after=cursor, follow=follow)

    async def send_signal(
        self, run: RunKey, name: str, payload: Any, *, signal_id: str | None
    ) -> None:
        """Send a run a signal."""
        await self._workers.wait_for_exit(run)
        await send_signal(
            self._kernel,
            self._workers,
            run,
            name=validated_name(name, "a signal's name"),
            id=validated_name(
                self._kernel.ids.new() if signal_id is None else signal_id, "signal_id"
            ),
            payload=payload,
        )

    async def set_budget(self, run: RunKey, budget: Budget) -> None:
        """Change the budget of a run, and of its account if it has one."""
        limits = validated_budget(budget)
        if limits is None:
            raise InvalidRequest("budget must be a Budget, got None", field="budget")
        await self._drop_cached_head(run)
        head = await budget_changes.fund_run(self._kernel, self._workers, run, limits)
        await self._resources.accounts.fund(self._workers, head)

    async def resolve_call(
        self, run: RunKey, call: str, *, result: Any, error: str | None, void: bool
    ) -> None:
        """Record the outcome of a call that is in doubt."""
        resolution = validated_resolution(result=result, error=error, void=void)
        name = validated_name(call, "call")
        await self._workers.wait_for_exit(run)
        await ambiguity.resolve_call(self._kernel, self._workers, run, name, resolution)

    async def cancel(self, run: RunKey, reason: str) -> None:
        """Cancel a run; a worker of this process that drives it stops at once."""
        reason = validated_reason(reason)
        await self._drop_cached_head(run)
        head = await cancel_run(self._kernel, run, reason=reason, workers=self._workers)
        if head.owner is None and head.index_key is not None and head.status not in ENDED:
            self._workers.offer(head.index_key)  # a worker has to cancel its children
        self._workers.interrupt(run)
        self._kernel.notifier.notify(run)
        if head.status in ENDED:
            self._outcomes.notify(run, RunOutcome("cancelled", {}, head.failure))

    async def extend(self, run: RunKey, expires: Duration) -> None:
        """Let a run expire after so long from now."""
        span_ms = positive_ms(expires, "expires")
        await self._drop_cached_head(run)
        await extension.extend_run(
            self._kernel, run, expires_ms=self._kernel.clock.now_ms() + span_ms
        )

    async def retry(self, run: RunKey, *, from_node: str | None) -> None:
        """Retry a run that failed, in this process if a worker has a free slot."""
        node = None if from_node is None else validated_node(from_node)
        await self._workers.wait_for_exit(run)
        self._workers.offer(await retry_run(self._kernel, run, from_node=node))

    async def _drop_cached_head(self, run: RunKey) -> None:
        """Drop the cached row of a run that is about to change."""
        await self._workers.wait_for_exit(run)
        self._workers.take_cached_head(run)
