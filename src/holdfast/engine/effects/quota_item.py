"""Writes one quota's item for all callers of this process.

While one write is under way, further changes gather and go with the next one. The item is known
from the last write, so an admission without contention is one conditional write and no read. If
another process has written meanwhile, the failed condition returns the current item.

A lost reply never counts as a permit. What it may have granted is forfeited; a usage report that it
may have carried is not sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from holdfast.engine.effects.quota_changes import (
    ClockReading,
    PermitRelease,
    PermitRequest,
    QuotaChange,
    UsageReport,
    WriteTiming,
    is_delayed,
    write_order,
)
from holdfast.engine.effects.quota_waiters import PermitWaiters
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import ConditionFailed, HoldfastError, OutcomeUnknown, StoreUnavailable
from holdfast.log_context import context_without_run
from holdfast.model import quota_admission
from holdfast.model.quota import Cost, Quota
from holdfast.model.quota_admission import PermitGranted, slack_needed_us
from holdfast.model.quota_level import HORIZON_US, QuotaLevel
from holdfast.records.quota import level_of, level_write
from holdfast.storage import Key

__all__ = ["NO_COST", "NO_DELAY", "QuotaItem", "RequestDelay"]

NO_COST = Cost(0, 0, 0)

_BATCH_MAX = 100
# How long a usage report waits for another change to share a write with.
_LINGER_SECONDS = 0.5
# After this many failed conditions in a row the process waits a random time before it writes again.
_CONFLICTS_BEFORE_BACKOFF = 3
_BACKOFF_SECONDS = 0.02


class RequestDelay(NamedTuple):
    """How long a caller waits in place before its request is sent."""

    seconds: float
    permit_seconds: float = 0.0
    """How long it may wait for a concurrency permit that this process releases; 0 if it waits for
    something else."""


NO_DELAY = RequestDelay(0.0)


class QuotaItem:
    """One quota's item as this process knows it, with the changes that wait to be written."""

    def __init__(self, kernel: Kernel, key: Key) -> None:
        self._kernel = kernel
        self._table = kernel.store.records("quota")
        self._key = key
        self._stored: dict[str, Any] | None = None
        self._pending: list[QuotaChange] = []
        self._quota: Quota | None = None
        self._latency_us = 0
        self._lateness_us = 0
        self._lateness_since = 0.0
        self._write_task: asyncio.Task[None] | None = None
        self._linger_task: asyncio.Task[None] | None = None
        self.waiters = PermitWaiters[PermitRequest]()
        self.held_permits: dict[str, float] = {}
        """The permits of this process, each with the end of its lease by the monotonic clock."""

    @property
    def is_busy(self) -> bool:
        """Whether the item is still needed: it has changes, permits, waiters or a write."""
        return (
            bool(self._pending or self.held_permits or self.waiters) or self._write_task is not None
        )

    def holds(self, token: str) -> bool:
        """Return whether this process holds the permit, by its own clock."""
        return self._kernel.clock.monotonic() < self.held_permits.get(token, 0.0)

    def release(self, token: str) -> None:
        """Return a concurrency permit; only the first call counts."""
        if self.held_permits.pop(token, None) is not None:
            self.submit(PermitRelease(token))

    def report_usage(self, request: PermitRequest, granted: PermitGranted, used: Cost) -> None:
        """Submit what a call used, if the quota counts it and it differs from what was reserved."""
        quota, reserved = request.quota, request.cost
        counted = quota.tokens is not None or quota.usd is not None
        if counted and (used.tokens, used.nanodollars) != (reserved.tokens, reserved.nanodollars):
            report = UsageReport(quota, reserved, used, granted.counted_us)
            self.submit(report, urgent=False)

    def submit(self, change: QuotaChange, *, urgent: bool = True) -> None:
        """Queue a change to be written; one that is not urgent waits a while for others."""
        self._pending.append(change)
        if urgent:
            if self._write_task is None:
                self._write_task = _begin(self._write_pending())
        elif self._write_task is None and self._linger_task is None:
            self._linger_task = _begin(self._write_after_linger())

    async def request_permit(
        self, request: PermitRequest, delay: RequestDelay
    ) -> tuple[quota_admission.PermitReply, ClockReading]:
        """Send a request after a delay, and return the reply to it.

        If it waits for a concurrency permit, another write of this process may answer it before it
        is sent. If the caller is cancelled, what was granted is given back.
        """
        self._quota = request.quota
        sending: asyncio.Task[None] | None = None
        if delay.seconds > 0:
            sending = asyncio.create_task(self._send_after(request, delay))
        else:
            self.submit(request)
        try:
            return await asyncio.shield(request.future)
        except asyncio.CancelledError:
            self._withdraw(request)
            # The reply may be there already, or the write under way.
            request.future.add_done_callback(lambda future: self._cancel_unwanted(request, future))
            raise
        finally:
            if sending is not None:
                sending.cancel()

    async def _send_after(self, request: PermitRequest, delay: RequestDelay) -> None:
        if delay.permit_seconds:
            self.waiters.add(request)
        await self._kernel.clock.sleep(delay.seconds)
        if delay.permit_seconds and self._holds_all_permits(request.quota):
            # No permit becomes free before this process releases one, and that write answers it.
            await self._kernel.clock.sleep(delay.permit_seconds - delay.seconds)
        self.waiters.remove(request)
        self.submit(request)

    def _holds_all_permits(self, quota: Quota) -> bool:
        """Return whether this process holds all permits, and no other process has waiters."""
        permits = level_of(self._stored).permits.keys()
        full = quota.concurrency is not None and len(permits) >= quota.concurrency
        now_us = self._kernel.clock.now_ms() * 1000
        return full and permits <= self.held_permits.keys() and self.waiters.is_line_local(now_us)

    def _withdraw(self, request: PermitRequest) -> None:
        """Drop a request that was not sent yet."""
        self.waiters.remove(request)
        if request in self._pending:
            self._pending.remove(request)

    def _cancel_unwanted(
        self,
        request: PermitRequest,
        future: asyncio.Future[tuple[quota_admission.PermitReply, ClockReading]],
    ) -> None:
        """Give back a permit that was granted to a caller that is gone."""
        if not future.cancelled() and future.exception() is None:
            reply, _ = future.result()
            if isinstance(reply, PermitGranted):
                self.report_usage(request, reply, NO_COST)
                self.release(request.token)

    async def close(self) -> None:
        """Write what is still queued, as far as the store answers."""
        if self._linger_task is not None:
            self._linger_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._linger_task
            self._linger_task = None
        if self._pending and self._write_task is None:
            self._write_task = _begin(self._write_pending())
        if self._write_task is not None:
            await self._write_task

    async def _write_after_linger(self) -> None:
        await self._kernel.clock.sleep(_LINGER_SECONDS)
        self._linger_task = None
        if self._pending and self._write_task is None:
            self._write_task = _begin(self._write_pending())

    async def _write_pending(self) -> None:
        try:
            while self._pending:
                batch, self._pending = self._pending[:_BATCH_MAX], self._pending[_BATCH_MAX:]
                try:
                    await self._write_batch(batch)
                except OutcomeUnknown as error:
                    self._fail_batch(batch, StoreUnavailable(str(error)))
                except HoldfastError as error:
                    self._fail_batch(batch, error)
        finally:
            self._write_task = None

    def _fail_batch(self, batch: Sequence[QuotaChange], error: HoldfastError) -> None:
        self._stored = None
        for change in batch:
            change.on_failed(error)

    async def _write_batch(self, batch: list[QuotaChange]) -> None:
        """Write the item with these changes, again after each write of another process."""
        assert self._quota is not None
        clock, quota = self._kernel.clock, self._quota
        conflicts = 0
        while batch:
            moment = ClockReading(clock.now_ms() * 1000, clock.monotonic())
            level, before = level_of(self._stored), self._stored
            timing = WriteTiming(self._lead_us(quota), slack_needed_us(quota, self._lateness_us))
            level, early = self._apply_changes(level, batch, moment.now_us, timing=timing)
            resend_errors: list[HoldfastError] = []
            write = level_write(
                self._key, level, quota, item_read=before, token=self._kernel.ids.new()
            )
            try:
                self._stored = await self._kernel.resolve_write(
                    self._table, write, on_error=resend_errors.append
                )
            except ConditionFailed as failed:
                self._stored = None if failed.item is None else dict(failed.item)
                self.waiters.observe_line(level_of(self._stored).queue_end_us)
                if resend_errors:  # an earlier attempt may have been applied
                    batch = [change for change in batch if change.is_repeatable]
                conflicts += 1
                if conflicts > _CONFLICTS_BEFORE_BACKOFF:
                    await clock.sleep(_BACKOFF_SECONDS * self._kernel.ids.random())
                continue
            self._record_latency(round((clock.monotonic() - moment.monotonic) * 1_000_000))
            self.waiters.line_us = level.queue_end_us
            for request in early:
                self._withdraw(request)  # its delay may have ended meanwhile
            # Callers that begin are told first. Otherwise a caller of the same node that is told to
            # come back would release the run, and the call that begins would be lost.
            for change in sorted([*batch, *early], key=is_delayed):
                self._record_granted(change, moment)
                change.on_written(level, moment)
            return

    def _apply_changes(
        self, level: QuotaLevel, batch: Sequence[QuotaChange], now_us: int, *, timing: WriteTiming
    ) -> tuple[QuotaLevel, list[PermitRequest]]:
        """Return the level after these changes, and the waiting requests that it answers.

        A waiting request that gets no permit before its time keeps its place in the line.
        """
        shared = self.waiters.is_line_shared(now_us)
        waiting = self.waiters.due(now_us) if shared else self.waiters.next_early(now_us)
        answered_requests, full = list[PermitRequest](), False
        for change in sorted([*batch, *waiting], key=write_order):
            if not isinstance(change, PermitRequest) or change not in self.waiters:
                level = change.apply(level, now_us=now_us, timing=timing)
            elif not full:
                after = change.apply(level, now_us=now_us, timing=timing)
                full = not shared and not isinstance(change.reply, PermitGranted)
                if not full:
                    level = after
                    answered_requests.append(change)
        return level, answered_requests

    def _record_granted(self, change: QuotaChange, moment: ClockReading) -> None:
        if (
            isinstance(change, PermitRequest)
            and isinstance(change.reply, PermitGranted)
            and change.token
        ):
            self.held_permits[change.token] = moment.monotonic + change.lease_ms / 1000

    def seconds_until(self, at_us: int, asked_at: ClockReading) -> float:
        """Return the seconds until a moment that was granted."""
        return asked_at.seconds_until(at_us, self._kernel.clock.monotonic())

    async def sleep(self, seconds: float) -> None:
        """Sleep by the engine's clock."""
        await self._kernel.clock.sleep(seconds)

    def record_lateness(self, late_us: int, asked_at: ClockReading, *, missed: bool) -> None:
        """Take in how late a caller was for its moment."""
        if not missed:
            self._lateness_us = max(late_us, self._lateness_us * 7 // 8)
        elif asked_at.monotonic >= self._lateness_since:
            # It at most doubles, so that one stalled process does not slow down all
            # others; and it grows once for all requests made before the first of them was late.
            assert self._quota is not None
            self._lateness_us = min(late_us, 2 * max(self._lateness_us, self._quota.grace_us))
            self._lateness_since = self._kernel.clock.monotonic()

    def _record_latency(self, microseconds: int) -> None:
        self._latency_us = max(microseconds, self._latency_us * 7 // 8)

    def _lead_us(self, quota: Quota) -> int:
        """Return how far ahead the granted moment must be, so that the reply arrives before it."""
        return min(max(2 * self._latency_us - quota.grace_us // 2, 0), HORIZON_US // 2)


def _begin(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task that writes for all callers, and outlives the one that starts it."""
    return asyncio.create_task(work, context=context_without_run())
