"""Waits until runs end or have a status: notified by workers of this process, or by polling."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager, suppress

from holdfast.engine.client.process_workers import ProcessWorkers
from holdfast.engine.history.views import run_of
from holdfast.engine.journal.endings import RunOutcome, result_of
from holdfast.engine.journal.reader import load_journal
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.removal import check_journal_kept
from holdfast.engine.runs.rows import read_row
from holdfast.errors import HoldfastError, RunEnded
from holdfast.model.awaited_status import AwaitedStatus
from holdfast.model.durations import duration_text
from holdfast.model.execution import Execution
from holdfast.model.run import Run, Status
from holdfast.model.standing import standing
from holdfast.records.head import ENDED, Head
from holdfast.records.keys import RunKey

__all__ = ["RunOutcomes"]

# A caller that waits for a run in another process polls often at first, then less often.
_POLL_FIRST_SECONDS = 0.05
_POLL_SECONDS_MAX = 1.0
# The row of a run that a worker of this process drives may have one of these statuses.
_STATUSES_OF_OWNED = frozenset({"running", "closing"})


class RunOutcomes:
    """The callers of this process that wait for runs to end."""

    def __init__(self, kernel: Kernel, workers: ProcessWorkers) -> None:
        self._kernel = kernel
        self._workers = workers
        self._futures: dict[RunKey, set[asyncio.Future[RunOutcome]]] = {}

    def notify_ended(self, head: Head, execution: Execution, status: Status) -> None:
        """Tell the waiting callers how a run ended in this process."""
        # A quarantined run's own last failure is not why it is quarantined.
        failure = head.failure if status == "quarantined" else execution.failure
        node = head.node if status == "quarantined" else execution.ending_node
        outcome = RunOutcome(status, execution.state, failure, node, head.wrapped)
        self.notify(head.key, outcome)

    def notify(self, run: RunKey, outcome: RunOutcome) -> None:
        """Tell the callers that wait for a run its outcome."""
        for future in self._futures.pop(run, ()):
            if not future.done():
                future.set_result(outcome)

    async def wait_for_outcome(self, run: RunKey, seconds: float | None) -> RunOutcome:
        """Wait until a run has ended; return how.

        Raises:
            RunNotFound: there is no such run.
            TimeoutError: the run has not ended in that time.
        """
        timeout = asyncio.timeout(seconds)
        try:
            async with timeout:
                return await self._poll_outcome(run)
        except TimeoutError:
            if not timeout.expired():
                raise
        # With a very short timeout the row may not have been read at all: read it once.
        outcome = (
            None if self._workers.has_claimed(run) else await self._read_outcome(run, wait=False)
        )
        if outcome is None:
            limit = duration_text(round(1000 * (seconds or 0)))
            raise TimeoutError(f"run {run.id!r} has not ended within {limit}{await self._why(run)}")
        return outcome

    async def wait_for_status(
        self, run: RunKey, wanted: AwaitedStatus, seconds: float | None
    ) -> Run:
        """Wait until a run has one of the statuses; return its row.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: the run finished, or its input went into another run, without such a status.
            RunFailed, RunCancelled, RunExpired, RunQuarantined: the run ended in that way.
            TimeoutError: the run had none of the statuses in that time.
        """
        timeout = asyncio.timeout(seconds)
        try:
            async with timeout:
                return await self._poll_status(run, wanted)
        except TimeoutError:
            if not timeout.expired():
                raise
        # With a very short timeout the row may not have been read at all: read it once.
        row = await self._read_status(run, wanted)
        if row is None:
            limit = duration_text(round(1000 * (seconds or 0)))
            raise TimeoutError(
                f"run {run.id!r} was not {wanted} within {limit}{await self._why(run)}"
            )
        return row

    async def _poll_status(self, run: RunKey, wanted: AwaitedStatus) -> Run:
        poll_seconds = _POLL_FIRST_SECONDS
        reads_owned = not _STATUSES_OF_OWNED.isdisjoint(wanted.statuses)
        with self._kernel.notifier.subscribe(run) as changed:
            while True:
                changed.clear()
                if reads_owned or not self._workers.has_claimed(run):
                    row = await self._read_status(run, wanted)
                    if row is not None:
                        return row
                with suppress(TimeoutError):
                    async with asyncio.timeout(poll_seconds):
                        await changed.wait()
                poll_seconds = min(poll_seconds * 2, _POLL_SECONDS_MAX)

    async def _read_status(self, run: RunKey, wanted: AwaitedStatus) -> Run | None:
        """Return the row of a run if it has one of the statuses; None if it may have one later."""
        await self._workers.wait_for_exit(run)
        head = await read_row(self._kernel, run)
        user = await self._kernel.bind_user_hash(head)
        row = run_of(head, user=user, now_ms=self._kernel.clock.now_ms())
        if wanted.is_met_by(row):
            return row
        if row.status in ("finished", "promoted"):
            into = "" if row.into is None else f": its input went into run {row.into!r}"
            raise RunEnded(
                f"run {run.id!r} is {row.status}{into}; it will not be {wanted}",
                status=row.status,
            )
        if row.status in ENDED:
            result_of(run.id, RunOutcome(row.status, {}, head.failure, head.node), None)
        return None

    async def _why(self, run: RunKey) -> str:
        """Return why a run has not ended, as far as its row tells."""
        try:
            head = await read_row(self._kernel, run)
            now = self._kernel.clock.now_ms()
            shown = run_of(head, user=None, now_ms=now)
        except HoldfastError:
            return ""  # the caller asked for the end of the run, not for its row
        if shown.status in ENDED:  # it ended just now, or its input went into another run
            return "" if shown.into is None else f": its input went into run {shown.into!r}"
        return f": {standing(shown, now_ms=now, node=self._workers.node_of(run))}"

    async def _poll_outcome(self, run: RunKey) -> RunOutcome:
        await self._workers.wait_for_exit(run)
        poll_seconds = _POLL_FIRST_SECONDS
        while True:
            # Subscribed before reading, so that an end in between is not missed.
            with self._subscribe(run) as ended:
                outcome = None if self._workers.has_claimed(run) else await self._read_outcome(run)
                if outcome is not None:
                    return outcome
                with suppress(TimeoutError):
                    async with asyncio.timeout(poll_seconds):
                        return await ended
            poll_seconds = min(poll_seconds * 2, _POLL_SECONDS_MAX)

    @contextmanager
    def _subscribe(self, run: RunKey) -> Generator[asyncio.Future[RunOutcome], None, None]:
        """Yield a future that a worker of this process resolves when the run ends."""
        future: asyncio.Future[RunOutcome] = asyncio.get_running_loop().create_future()
        futures = self._futures.setdefault(run, set())
        futures.add(future)
        try:
            yield future
        finally:
            futures.discard(future)
            if not futures and self._futures.get(run) is futures:
                del self._futures[run]

    async def _read_outcome(self, run: RunKey, *, wait: bool = True) -> RunOutcome | None:
        head = await read_row(self._kernel, run)
        if head.status not in ENDED:
            return None
        if head.into is not None:
            into = RunKey(run.tenant, head.into)
            return await (
                self._poll_outcome(into) if wait else self._read_outcome(into, wait=False)
            )
        if head.status not in ("finished", "failed"):
            return RunOutcome(head.status, {}, head.failure, head.node)
        check_journal_kept(head)
        execution = (await load_journal(self._kernel, head)).execution
        node = execution.ending_node
        return RunOutcome(head.status, execution.state, execution.failure, node, head.wrapped)
