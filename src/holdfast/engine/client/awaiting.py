"""Waits for runs to end: told by the workers of this process, or by asking now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager, suppress

from holdfast.engine.client.process_workers import Crew
from holdfast.engine.journal.endings import Outcome
from holdfast.engine.journal.reader import load_journal
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.removal import check_kept
from holdfast.engine.runs.rows import read_row
from holdfast.model.execution import Execution
from holdfast.model.run import Status
from holdfast.records.head import ENDED, Head
from holdfast.records.keys import RunKey

__all__ = ["Awaiting"]

# Somebody who waits for a run of another process asks at first often, then less so.
_ASK_FIRST_SECONDS = 0.05
_ASK_MOST_SECONDS = 1.0


class Awaiting:
    """Those in this process who wait for runs to end."""

    def __init__(self, kernel: Kernel, crew: Crew) -> None:
        self._kernel = kernel
        self._crew = crew
        self._told: dict[RunKey, set[asyncio.Future[Outcome]]] = {}

    def ended(self, head: Head, execution: Execution, status: Status) -> None:
        """Tell those who wait how a run ended here."""
        # A quarantined run's own last failure is not why it is quarantined.
        failure = head.failure if status == "quarantined" else execution.failure
        self.tell(head.key, Outcome(status, execution.state, failure))

    def tell(self, run: RunKey, outcome: Outcome) -> None:
        """Tell those who wait for a run."""
        for future in self._told.pop(run, ()):
            if not future.done():
                future.set_result(outcome)

    async def outcome_within(self, run: RunKey, seconds: float | None) -> Outcome:
        """Return how a run ended, once it has.

        Raises:
            RunNotFound: there is no such run any more.
            TimeoutError: it has not ended in that time.
        """
        timeout = asyncio.timeout(seconds)
        try:
            async with timeout:
                return await self._outcome(run)
        except TimeoutError:
            if not timeout.expired():
                raise
        # It may have ended before there was time to look, where little or none was given.
        outcome = None if self._crew.holds(run) else await self._asked(run, wait=False)
        if outcome is None:
            raise TimeoutError(f"run {run.id!r} has not ended within {seconds:g} seconds")
        return outcome

    async def _outcome(self, run: RunKey) -> Outcome:
        await self._crew.settled(run)
        pause = _ASK_FIRST_SECONDS
        while True:
            # Listening before asking: an ending that comes in between is heard.
            with self._listening(run) as told:
                outcome = None if self._crew.holds(run) else await self._asked(run)
                if outcome is not None:
                    return outcome
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        return await told
            pause = min(pause * 2, _ASK_MOST_SECONDS)

    @contextmanager
    def _listening(self, run: RunKey) -> Generator[asyncio.Future[Outcome], None, None]:
        """Yield what one of our own workers tells of how a run ended."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        waiting = self._told.setdefault(run, set())
        waiting.add(future)
        try:
            yield future
        finally:
            waiting.discard(future)
            if not waiting and self._told.get(run) is waiting:
                del self._told[run]

    async def _asked(self, run: RunKey, *, wait: bool = True) -> Outcome | None:
        head = await read_row(self._kernel, run)
        if head.status not in ENDED:
            return None
        if head.into is not None:
            into = RunKey(run.tenant, head.into)
            return await (self._outcome(into) if wait else self._asked(into, wait=False))
        if head.status not in ("finished", "failed"):
            return Outcome(head.status, {}, head.failure)
        check_kept(head)
        execution = (await load_journal(self._kernel, head)).execution
        return Outcome(head.status, execution.state, execution.failure)
