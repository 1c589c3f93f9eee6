"""Asks for what quotas give, waits for the moment that was granted, and gives back what is left.

All who ask in one process for the same quota share its writes: while one is under way others
gather, and go with the next one. The item is known from the last write, so that an admission which
nobody contends for is one conditional write and no read; where somebody else wrote meanwhile, the
refusal brings what stands there.

An answer that was lost is never taken for a yes. What may have been granted by it is forfeited;
what may have been given back by it is not given back twice.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import msgspec

from holdfast.engine.effects.quota_waiters import PermitWaiters
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import ConditionFailed, HoldfastError, OutcomeUnknown, StoreUnavailable
from holdfast.model import quota_admission, quota_level
from holdfast.model.quota import ONE_REQUEST, Cost, Quota
from holdfast.model.quota_admission import PermitGranted, PermitReply, slack_needed_us
from holdfast.model.quota_level import HORIZON_US, QuotaLevel
from holdfast.records.quota import level_of, level_write, quota_item_key
from holdfast.storage import Key

__all__ = ["Permit", "PermitDelay", "PermitUnavailable", "QuotaLimiter"]

LEASE_SECONDS = 60.0
_RENEWALS_PER_LEASE = 3
_BATCH_MAX = 100
_ITEMS_MAX = 10_000
# So long a settlement waits for another write with which to go.
_LINGER_SECONDS = 0.5
# From so many refusals in a row on, those who contend for an item part ways.
_CONFLICTS_BEFORE_BACKOFF = 3
_BACKOFF_SECONDS = 0.02
_NO_COST = Cost(0, 0, 0)


class PermitDelay(msgspec.Struct, frozen=True):
    """Nothing was taken. Whoever asks again at this time says that it was told so."""

    retry_at_ms: int


class PermitUnavailable(Exception):
    """A call that asked for room in its quota while it was being made gets it only later."""

    def __init__(self, delay: PermitDelay, quota: Quota) -> None:
        super().__init__(f"the quota {quota.name!r} has room at {delay.retry_at_ms}")
        self.retry_at_ms = delay.retry_at_ms
        self.quota = quota


class Permit:
    """The right to begin now, and a slot if the quota has them.

    The call is to begin at once: what comes between is taken from the little that is allowed for.
    To settle tells what was really used; without it all that was reserved counts. To release gives
    the slot back; ``async with`` does so at its end.
    """

    def __init__(
        self,
        item: _QuotaItem,
        request: _PermitRequest,
        granted: PermitGranted,
        asked_at: _ClockReading,
    ) -> None:
        self._item = item
        self._request = request
        self._granted = granted
        self._asked_at = asked_at
        self._is_reported = False

    @property
    def quota(self) -> Quota:
        """The quota that gave it."""
        return self._request.quota

    @property
    def cost(self) -> Cost:
        """What it reserves."""
        return self._request.cost

    async def wait(self) -> bool:
        """Wait for its moment; return whether the caller can begin, and is not too late."""
        item = self._item
        try:
            while (seconds := item.seconds_until(self._granted.at_us, self._asked_at)) > 0:
                await item.sleep(seconds)
        except BaseException:
            self.cancel()
            raise
        return self.confirm()

    def confirm(self) -> bool:
        """Return whether the caller can begin now; give everything back where it is too late.

        Call it just before the call begins. The process learns from it how late its callers are.
        """
        late_us = self._late_us
        missed = late_us > self.quota.grace_us + self._granted.slack_us
        self._item.record_lateness(late_us, self._asked_at, missed=missed)
        if missed:
            self.cancel()
        return not missed

    @property
    def _late_us(self) -> int:
        return -round(self._item.seconds_until(self._granted.at_us, self._asked_at) * 1_000_000)

    @property
    def is_held(self) -> bool:
        """Whether the slot is ours, as far as we know; always true where there are no slots."""
        return self._request.quota.concurrency is None or self._item.holds(self._request.token)

    def report_usage(self, used: Cost) -> None:
        """Say what was used: the rest is given back, and what goes beyond it counts too."""
        if self._is_reported:
            return
        self._is_reported = True
        quota, reserved = self._request.quota, self._request.cost
        counted = quota.tokens is not None or quota.dollars is not None
        if counted and (used.tokens, used.nanodollars) != (reserved.tokens, reserved.nanodollars):
            at_us = self._granted.counted_us
            self._item.submit(_UsageReport(quota, reserved, used, at_us), urgent=False)

    def release(self) -> None:
        """Give the slot back; only the first time counts."""
        if self._request.quota.concurrency is not None:
            self._item.release(self._request.token)

    def cancel(self) -> None:
        """Give everything back that can be: nothing was begun."""
        self.report_usage(_NO_COST)
        self.release()

    async def __aenter__(self) -> Permit:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


class QuotaLimiter:
    """Where everybody in this process asks for what quotas give."""

    def __init__(self, kernel: Kernel, *, lease_seconds: float = LEASE_SECONDS) -> None:
        self._kernel = kernel
        self._lease_seconds = lease_seconds
        self._items: dict[Key, _QuotaItem] = {}
        self.counts = Counter[str]()
        """How many were admitted, were told to come back, or were too late for their moment."""
        self._renew_task: asyncio.Task[None] | None = None

    async def acquire(
        self, quota: Quota, tenant: str, *, cost: Cost = ONE_REQUEST, retry_at_ms: int | None
    ) -> Permit | PermitDelay:
        """Return the right to begin now, or when to ask again.

        It waits in place for up to about a second. ``told_ms`` is when a `Later` said to ask again,
        None for who asks for the first time: it is what keeps newcomers from overtaking.

        Raises:
            QuotaTooSmall: the cost is more than the quota gives in a whole window.
            InvalidName: the quota's or the tenant's name cannot be one.
            StoreUnavailable: the store does not answer; nothing is known to be granted.
        """
        quota.check_cost(cost)
        item = self._item_for(quota_item_key(quota, tenant))
        clock = self._kernel.clock
        deadline = clock.monotonic() + HORIZON_US / 1_000_000
        retry_at_us = None if retry_at_ms is None else retry_at_ms * 1000
        delay = _NO_DELAY
        while True:
            request = _PermitRequest(
                quota, cost, retry_at_us, self._kernel.ids.new(), self._lease_ms
            )
            reply, asked_at = await item.request_permit(request, delay)
            if isinstance(reply, PermitGranted):
                granted = Permit(item, request, reply, asked_at)
                if await granted.wait():
                    self._start_renewing(quota)
                    self.counts["admitted"] += 1
                    return granted
                self.counts["late"] += 1
                # Too late for its moment, not for its turn.
                retry_at_us, delay = asked_at.now_us, _NO_DELAY
                continue
            retry_at_us, now = reply.retry_at_us, clock.monotonic()
            delay = _Delay(asked_at.seconds_until(retry_at_us, now))
            waits_here = now + delay.seconds <= deadline
            if waits_here and reply.waits_for == "slot":
                delay = delay._replace(permit_seconds=deadline - now)
            elif reply.waits_for != "others":
                item.waiters.note_deferred(retry_at_us, now_us=asked_at.now_us)
            if not waits_here:
                self.counts["told"] += 1
                return PermitDelay(retry_at_us // 1000)

    async def close(self) -> None:
        """Write down what was given back, as far as the store answers, and stop renewing."""
        if self._renew_task is not None:
            self._renew_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._renew_task
        for item in self._items.values():
            await item.close()

    @property
    def _lease_ms(self) -> int:
        return round(self._lease_seconds * 1000)

    def _item_for(self, key: Key) -> _QuotaItem:
        item = self._items.get(key)
        if item is None:
            if len(self._items) >= _ITEMS_MAX:
                self._items = {k: c for k, c in self._items.items() if c.is_busy}
            item = self._items[key] = _QuotaItem(self._kernel, key)
        return item

    def _start_renewing(self, quota: Quota) -> None:
        if quota.concurrency is not None and (self._renew_task is None or self._renew_task.done()):
            self._renew_task = asyncio.create_task(self._renew_leases())

    async def _renew_leases(self) -> None:
        while any(item.held_permits for item in self._items.values()):
            await self._kernel.clock.sleep(self._lease_seconds / _RENEWALS_PER_LEASE)
            for item in self._items.values():
                if item.held_permits:
                    item.submit(_LeaseRenewal(item, self._lease_ms))


class _ClockReading(NamedTuple):
    """One moment on both clocks: others go by the first, we wait by the second.

    So a wall clock that is set while we wait changes nothing.
    """

    now_us: int
    monotonic: float

    def seconds_until(self, at_us: int, monotonic: float) -> float:
        return (at_us - self.now_us) / 1_000_000 - (monotonic - self.monotonic)


class _Delay(NamedTuple):
    """How long a caller waits in place before it asks."""

    seconds: float
    permit_seconds: float = 0.0
    """Up to so long it can wait for a slot that this process releases; 0 if for something else."""


_NO_DELAY = _Delay(0.0)


class _Timing(NamedTuple):
    """How slow this process is."""

    lead_us: int
    """How far ahead a moment must be, lest the answer comes too late for it."""
    slack_us: int
    """How much more than the grace its callers need to begin."""


class _QuotaChange(Protocol):
    """What somebody wants to become of an item."""

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be made again where an earlier sending of it may have counted."""
        ...

    def apply(self, level: QuotaLevel, *, now_us: int, timing: _Timing) -> QuotaLevel: ...

    def on_written(self, level: QuotaLevel, moment: _ClockReading) -> None: ...

    def on_failed(self, error: BaseException) -> None: ...


class _PermitRequest:
    """Somebody asks; what was granted to a lost answer is forfeited, so it may ask again."""

    is_repeatable = True

    def __init__(
        self, quota: Quota, cost: Cost, retry_at_us: int | None, token: str, lease_ms: int
    ) -> None:
        self.quota = quota
        self.cost = cost
        self.token = token if quota.concurrency is not None else ""
        self.lease_ms = lease_ms
        self.future: asyncio.Future[tuple[PermitReply, _ClockReading]] = (
            asyncio.get_running_loop().create_future()
        )
        self.reply: PermitReply | None = None
        self.retry_at_us = retry_at_us

    def apply(self, level: QuotaLevel, *, now_us: int, timing: _Timing) -> QuotaLevel:
        level, self.reply = quota_admission.acquired(
            level,
            self.quota,
            self.cost,
            now_us=now_us,
            retry_at_us=self.retry_at_us,
            lead_us=timing.lead_us,
            slack_us=timing.slack_us,
            token=self.token,
            lease_ms=self.lease_ms,
        )
        return level

    def on_written(self, level: QuotaLevel, moment: _ClockReading) -> None:
        if not self.future.done():
            assert self.reply is not None
            self.future.set_result((self.reply, moment))

    def on_failed(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class _UsageReport(msgspec.Struct, frozen=True):
    """What was used of a grant. Given back twice, it would give away what others have."""

    quota: Quota
    reserved: Cost
    used: Cost
    at_us: int
    is_repeatable: bool = False

    def apply(self, level: QuotaLevel, *, now_us: int, timing: _Timing) -> QuotaLevel:
        return quota_level.reconciled(
            level, self.quota, self.reserved, used=self.used, at_us=self.at_us, now_us=now_us
        )

    def on_written(self, level: QuotaLevel, moment: _ClockReading) -> None: ...

    def on_failed(self, error: BaseException) -> None:
        """Leave it reserved: that errs on the safe side."""


class _PermitRelease(msgspec.Struct, frozen=True):
    """A slot that is free again."""

    token: str
    is_repeatable: bool = True

    def apply(self, level: QuotaLevel, *, now_us: int, timing: _Timing) -> QuotaLevel:
        return quota_level.released(level, [self.token], now_ms=now_us // 1000)

    def on_written(self, level: QuotaLevel, moment: _ClockReading) -> None: ...

    def on_failed(self, error: BaseException) -> None:
        """Leave it to its lease, which nobody renews."""


class _LeaseRenewal:
    """The slots of an item that this process holds, all in one write."""

    is_repeatable = True

    def __init__(self, item: _QuotaItem, lease_ms: int) -> None:
        self._item = item
        self._lease_ms = lease_ms

    def apply(self, level: QuotaLevel, *, now_us: int, timing: _Timing) -> QuotaLevel:
        until_ms = now_us // 1000 + self._lease_ms
        return quota_level.renewed(level, self._item.held_permits, expires_ms=until_ms)

    def on_written(self, level: QuotaLevel, moment: _ClockReading) -> None:
        lease_deadline = moment.monotonic + self._lease_ms / 1000
        for token in list(self._item.held_permits):
            if token in level.permits:
                self._item.held_permits[token] = lease_deadline

    def on_failed(self, error: BaseException) -> None:
        """Let the next one try."""


class _QuotaItem:
    """One quota's item, as this process knows it, and those who want something of it."""

    def __init__(self, kernel: Kernel, key: Key) -> None:
        self._kernel = kernel
        self._table = kernel.store.records("quota")
        self._key = key
        self._stored: dict[str, Any] | None = None
        self._pending: list[_QuotaChange] = []
        self._quota: Quota | None = None
        self._latency_us = 0
        self._lateness_us = 0
        self._lateness_since = 0.0
        self._write_task: asyncio.Task[None] | None = None
        self._linger_task: asyncio.Task[None] | None = None
        self.waiters = PermitWaiters[_PermitRequest]()
        self.held_permits: dict[str, float] = {}
        """The slots of this process, and until when each is ours by our own clock."""

    @property
    def is_busy(self) -> bool:
        return (
            bool(self._pending or self.held_permits or self.waiters) or self._write_task is not None
        )

    def holds(self, token: str) -> bool:
        return self._kernel.clock.monotonic() < self.held_permits.get(token, 0.0)

    def release(self, token: str) -> None:
        if self.held_permits.pop(token, None) is not None:
            self.submit(_PermitRelease(token))

    def submit(self, change: _QuotaChange, *, urgent: bool = True) -> None:
        """Let a change be written; what is not urgent waits a while for company."""
        self._pending.append(change)
        if urgent:
            if self._write_task is None:
                self._write_task = asyncio.create_task(self._write_pending())
        elif self._write_task is None and self._linger_task is None:
            self._linger_task = asyncio.create_task(self._write_after_linger())

    async def request_permit(
        self, request: _PermitRequest, delay: _Delay
    ) -> tuple[PermitReply, _ClockReading]:
        """Return the answer to an ask, which is sent after a wait.

        If it waits for a slot, another write of this process may answer it before it is sent. A
        caller that is cancelled loses nothing.
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
            # It may be answered already, or be on its way.
            request.future.add_done_callback(lambda future: self._cancel_unwanted(request, future))
            raise
        finally:
            if sending is not None:
                sending.cancel()

    async def _send_after(self, request: _PermitRequest, delay: _Delay) -> None:
        """Send an ask after a wait."""
        if delay.permit_seconds:
            self.waiters.add(request)
        await self._kernel.clock.sleep(delay.seconds)
        if delay.permit_seconds and self._holds_all_permits(request.quota):
            # No slot becomes free before this process releases one, and that write answers it.
            await self._kernel.clock.sleep(delay.permit_seconds - delay.seconds)
        self.waiters.remove(request)
        self.submit(request)

    def _holds_all_permits(self, quota: Quota) -> bool:
        """Return whether this process holds all slots, and no other callers are in the line."""
        slots = level_of(self._stored).permits.keys()
        full = quota.concurrency is not None and len(slots) >= quota.concurrency
        now_us = self._kernel.clock.now_ms() * 1000
        return full and slots <= self.held_permits.keys() and self.waiters.is_line_local(now_us)

    def _withdraw(self, request: _PermitRequest) -> None:
        """Do not send an ask, if it was not sent yet."""
        self.waiters.remove(request)
        if request in self._pending:
            self._pending.remove(request)

    def _cancel_unwanted(
        self,
        request: _PermitRequest,
        future: asyncio.Future[tuple[PermitReply, _ClockReading]],
    ) -> None:
        if not future.cancelled() and future.exception() is None:
            reply, asked_at = future.result()
            if isinstance(reply, PermitGranted):
                Permit(self, request, reply, asked_at).cancel()

    async def close(self) -> None:
        if self._linger_task is not None:
            self._linger_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._linger_task
            self._linger_task = None
        if self._pending and self._write_task is None:
            self._write_task = asyncio.create_task(self._write_pending())
        if self._write_task is not None:
            await self._write_task

    async def _write_after_linger(self) -> None:
        await self._kernel.clock.sleep(_LINGER_SECONDS)
        self._linger_task = None
        if self._pending and self._write_task is None:
            self._write_task = asyncio.create_task(self._write_pending())

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

    def _fail_batch(self, batch: Sequence[_QuotaChange], error: HoldfastError) -> None:
        self._stored = None
        for change in batch:
            change.on_failed(error)

    async def _write_batch(self, batch: list[_QuotaChange]) -> None:
        """Write what becomes of the item, until nobody else was faster."""
        assert self._quota is not None
        clock, quota = self._kernel.clock, self._quota
        conflicts = 0
        while batch:
            moment = _ClockReading(clock.now_ms() * 1000, clock.monotonic())
            level, before = level_of(self._stored), self._stored
            timing = _Timing(self._lead_us(quota), slack_needed_us(quota, self._lateness_us))
            level, early = self._apply_changes(level, batch, moment.now_us, timing=timing)
            unknown_outcome = _UnknownOutcome()
            write = level_write(
                self._key, level, quota, item_read=before, token=self._kernel.ids.new()
            )
            try:
                self._stored = await self._kernel.resolve_write(
                    self._table, write, was_applied=unknown_outcome.mark_occurred
                )
            except ConditionFailed as failed:
                self._stored = None if failed.item is None else dict(failed.item)
                self.waiters.observe_line(level_of(self._stored).queue_end_us)
                if unknown_outcome.occurred:
                    batch = [change for change in batch if change.is_repeatable]
                conflicts += 1
                if conflicts > _CONFLICTS_BEFORE_BACKOFF:
                    await clock.sleep(_BACKOFF_SECONDS * self._kernel.ids.random())
                continue
            self._record_latency(round((clock.monotonic() - moment.monotonic) * 1_000_000))
            self.waiters.line_us = level.queue_end_us
            for request in early:
                self._withdraw(request)  # its time may have come meanwhile
            # Callers that begin hear of it first. A caller of the same node that is told to come
            # back would let go of the run otherwise, and the call that begins would be lost.
            for change in sorted([*batch, *early], key=_is_delayed):
                self._note_held(change, moment)
                change.on_written(level, moment)
            return

    def _apply_changes(
        self, level: QuotaLevel, batch: Sequence[_QuotaChange], now_us: int, *, timing: _Timing
    ) -> tuple[QuotaLevel, list[_PermitRequest]]:
        """Return the level after these changes, and the waiting callers that are answered with it.

        A caller that takes no slot before its time keeps its place in the line.
        """
        shared = self.waiters.is_line_shared(now_us)
        waiting = self.waiters.due(now_us) if shared else self.waiters.next_early(now_us)
        answered_requests, full = list[_PermitRequest](), False
        for change in sorted([*batch, *waiting], key=_write_order):
            if not isinstance(change, _PermitRequest) or change not in self.waiters:
                level = change.apply(level, now_us=now_us, timing=timing)
            elif not full:
                after = change.apply(level, now_us=now_us, timing=timing)
                full = not shared and not isinstance(change.reply, PermitGranted)
                if not full:
                    level = after
                    answered_requests.append(change)
        return level, answered_requests

    def _note_held(self, change: _QuotaChange, moment: _ClockReading) -> None:
        if (
            isinstance(change, _PermitRequest)
            and isinstance(change.reply, PermitGranted)
            and change.token
        ):
            self.held_permits[change.token] = moment.monotonic + change.lease_ms / 1000

    def seconds_until(self, at_us: int, asked_at: _ClockReading) -> float:
        """Return how long it is until a moment that was granted."""
        return asked_at.seconds_until(at_us, self._kernel.clock.monotonic())

    async def sleep(self, seconds: float) -> None:
        await self._kernel.clock.sleep(seconds)

    def record_lateness(self, late_us: int, asked_at: _ClockReading, *, missed: bool) -> None:
        """Learn by how much a caller was late for its moment."""
        if not missed:
            self._lateness_us = max(late_us, self._lateness_us * 7 // 8)
        elif asked_at.monotonic >= self._lateness_since:
            # Twice as much at most, lest one that stood still slows all others down; and once for
            # all that were asked for before anything was learned from the first.
            assert self._quota is not None
            self._lateness_us = min(late_us, 2 * max(self._lateness_us, self._quota.grace_us))
            self._lateness_since = self._kernel.clock.monotonic()

    def _record_latency(self, microseconds: int) -> None:
        self._latency_us = max(microseconds, self._latency_us * 7 // 8)

    def _lead_us(self, quota: Quota) -> int:
        """Return how far ahead a moment must be, lest the answer comes too late for it."""
        return min(max(2 * self._latency_us - quota.grace_us // 2, 0), HORIZON_US // 2)


def _write_order(change: _QuotaChange) -> float:
    """Return the order of changes in a write: callers come after releases, newcomers last."""
    if not isinstance(change, _PermitRequest):
        return 0
    return math.inf if change.retry_at_us is None else change.retry_at_us


def _is_delayed(change: _QuotaChange) -> bool:
    return isinstance(change, _PermitRequest) and not isinstance(change.reply, PermitGranted)


class _UnknownOutcome:
    """Whether a write that was refused at last may have been carried out before."""

    def __init__(self) -> None:
        self.occurred = False

    def mark_occurred(self, item: dict[str, Any]) -> bool:
        self.occurred = True
        return False
