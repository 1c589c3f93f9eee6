"""`RunHandle`: one run, and what can be asked of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from holdfast.engine.client.run_commands import RunControl
from holdfast.engine.journal.endings import RunOutcome, result_of
from holdfast.model.budget import Budget
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.program import Program
from holdfast.model.run import HistoryEntry, HistoryPage, Run, TextPiece
from holdfast.records.keys import RunKey

__all__ = ["RunHandle"]


class RunHandle:
    """A run that was started, or is known by its id."""

    def __init__(
        self,
        steering: RunControl,
        key: RunKey,
        graph: Program | None,
        outcome: RunOutcome | None = None,
    ) -> None:
        self._outcome = outcome  # of a run that nobody wrote down
        self._steering = steering
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
        outcome = await self._steering.wait_for_outcome(self._key, timeout_seconds=limit)
        return result_of(self.id, outcome, self._graph)

    async def get(self) -> Run:
        """Return the run's row; see `Holdfast.get`."""
        return await self._steering.get(self._key)

    async def history(self, *, limit: int = 100, cursor: str | None = None) -> HistoryPage:
        """Return a page of what happened to the run; see `Holdfast.history`."""
        return await self._steering.read_history(self._key, limit=limit, cursor=cursor)

    def events(
        self, *, after: str | None = None, follow: bool = True
    ) -> AsyncGenerator[HistoryEntry, None]:
        """Yield what happens to the run until it has ended; see `Holdfast.events`."""
        return self._steering.stream_events(self._key, after=after, follow=follow)

    def tokens(
        self, *, after: str | None = None, follow: bool = True
    ) -> AsyncGenerator[TextPiece, None]:
        """Yield the text of the run's answers as it comes; see `Holdfast.tokens`."""
        return self._steering.stream_text(self._key, after=after, follow=follow)

    async def signal(self, name: str, payload: Any = None, *, signal_id: str | None = None) -> None:
        """Send the run a signal; see `Holdfast.signal`."""
        await self._steering.send_signal(self._key, name, payload, signal_id=signal_id)

    async def extend(self, expires: Duration) -> None:
        """Let the run expire later; see `Holdfast.extend`."""
        await self._steering.extend(self._key, expires)

    async def set_budget(self, budget: Budget) -> None:
        """Give the run another budget; see `Holdfast.set_budget`."""
        await self._steering.set_budget(self._key, budget)

    async def cancel(self, reason: str = "") -> None:
        """End the run; see `Holdfast.cancel`."""
        await self._steering.cancel(self._key, reason)

    async def retry(self, *, from_node: str | None = None) -> None:
        """Let the run go on that failed; see `Holdfast.retry`."""
        await self._steering.retry(self._key, from_node=from_node)

    def __repr__(self) -> str:
        return f"<run {self.id!r} of tenant {self.tenant!r}>"
