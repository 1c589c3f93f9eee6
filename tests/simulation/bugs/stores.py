"""Bugs to plant in what is done while stores cannot be used: fleets with outages find them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.engine.execution import journal_session, run_exit
from holdfast.engine.journal.writer import PositionTaken
from holdfast.engine.kernel import kernel
from holdfast.engine.worker import health
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.model.execution import Execution, nodes_summary
from holdfast.records import owner_writes
from tests.simulation.bugs.planting import bug

_OUTAGES = {"table_outage": 0.7, "blob_outage": 0.9}
# What is lost must be a record that goes into a blob, while the row can be written and the worker
# lives.
_ONLY_BLOBS = {
    "blob_outage": 1.0,
    "table_outage": 0.0,
    "crash": 0.0005,
    "stall": 0.0005,
    "dead_workers": 0.0,
    "clock_jumps": 0.0,
    "few_resumes": 0.0,
}


@bug("calling", **_OUTAGES)
def an_unusable_store_blamed_on_the_run(patch: pytest.MonkeyPatch) -> None:
    """Only a store that does not answer is waited for; another error is raised where it is met."""
    patiently = kernel.Kernel.retry_store_errors

    async def impatient(
        self: Any, action: Callable[[], Awaitable[Any]], alive: Callable[[], bool], **given: Any
    ) -> Any:
        raised: list[StoreError] = []

        async def tried() -> Any:
            try:
                return await action()
            except StoreUnavailable:
                raise
            except StoreError as error:
                raised.append(error)

        value = await patiently(self, tried, alive, **given)
        if raised:
            raise raised[0]
        return value

    patch.setattr(kernel.Kernel, "retry_store_errors", impatient)


@bug(**_OUTAGES)
def a_run_held_for_as_long_as_the_lease_is_renewed(patch: pytest.MonkeyPatch) -> None:
    patiently = kernel.Kernel.retry_store_errors

    async def stubborn(self: Any, action: Any, alive: Any, **given: Any) -> Any:
        return await patiently(self, action, alive, seconds_max=1e9)

    patch.setattr(kernel.Kernel, "retry_store_errors", stubborn)


@bug(**_OUTAGES)
def an_outage_counted_against_the_run(patch: pytest.MonkeyPatch) -> None:
    async def unfair(self: Any, error: StoreError) -> None:
        self._claimed.owner.on_store_outage(error)
        self._claimed.journal.invalidate()
        await self.release("store_unusable", failures=self._claimed.head.resume_failures + 1)

    patch.setattr(run_exit.RunExit, "release_on_outage", unfair)


@bug(**_OUTAGES)
def claims_by_a_worker_that_cannot_drive_runs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(health.Outages, "__contains__", lambda self, what: False)


@bug("calling", **_ONLY_BLOBS, small_blobs=1.0)
def a_run_that_goes_on_without_what_could_not_be_written(patch: pytest.MonkeyPatch) -> None:
    def deaf(self: Any, error: BaseException) -> None:
        if isinstance(error, PositionTaken):
            self.invalidate()

    patch.setattr(journal_session.JournalSession, "_on_write_failed", deaf)


@bug(**_OUTAGES)
def a_row_that_says_nothing_of_where_a_run_stood(patch: pytest.MonkeyPatch) -> None:
    """A fork that has ended stands at no node, and no record may hold an empty text."""

    def shown(execution: Execution) -> str:
        over = execution.branches and execution.ending is not None
        return "" if over else nodes_summary(execution)

    patch.setattr(owner_writes, "nodes_summary", shown)
