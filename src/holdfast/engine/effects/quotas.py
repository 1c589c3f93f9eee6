"""Grants permits of quotas to the callers of this process, and takes them back.

A caller asks the `QuotaLimiter`. It gets a `Permit` to begin at once or a moment later, or a
`PermitDelay` that says when to ask again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from types import TracebackType

import msgspec

from holdfast.engine.effects.quota_changes import ClockReading, LeaseRenewal, PermitRequest
from holdfast.engine.effects.quota_item import NO_COST, NO_DELAY, QuotaItem, RequestDelay
from holdfast.engine.kernel.kernel import Kernel
from holdfast.log_context import context_without_run
from holdfast.model.quota import ONE_REQUEST, Cost, Quota
from holdfast.model.quota_admission import PermitGranted
from holdfast.model.quota_level import HORIZON_US
from holdfast.records.quota import quota_item_key
from holdfast.storage import Key

__all__ = ["Permit", "PermitDelay", "PermitUnavailable", "QuotaLimiter"]

LEASE_SECONDS = 60.0
_RENEWALS_PER_LEASE = 3
_ITEMS_MAX = 10_000


class PermitDelay(msgspec.Struct, frozen=True):
    """The quota has no room now, and nothing was taken: ask again at this time, and pass it on."""

    retry_at_ms: int


class PermitUnavailable(Exception):
    """A call that asked for a permit while it was being made gets one only later."""

    def __init__(self, delay: PermitDelay, quota: Quota) -> None:
        super().__init__(f"the quota {quota.name!r} has room at {delay.retry_at_ms}")
        self.retry_at_ms = delay.retry_at_ms
        self.quota = quota


class Permit:
    """The right to begin a call now, with a concurrency permit if the quota limits concurrency.

    The caller must begin at once: the quota allows for a small delay only. ``report_usage`` says
    what the call really used; without it the whole reserved cost counts. ``release`` returns the
    concurrency permit; ``async with`` calls it at the end.
    """

    def __init__(
        self,
        item: QuotaItem,
        request: PermitRequest,
        granted: PermitGranted,
        asked_at: ClockReading,
    ) -> None:
        self._item = item
        self._request = request
        self._granted = granted
        self._asked_at = asked_at
        self._is_reported = False

    @property
    def quota(self) -> Quota:
        """The quota that granted it."""
        return self._request.quota

    @property
    def cost(self) -> Cost:
        """The cost that it reserves."""
        return self._request.cost

    async def wait(self) -> bool:
        """Wait for the granted moment; return whether the caller may begin, or is too late."""
        item = self._item
        try:
            while (seconds := item.seconds_until(self._granted.at_us, self._asked_at)) > 0:
                await item.sleep(seconds)
        except BaseException:
            self.cancel()
            raise
        return self.confirm()

    def confirm(self) -> bool:
        """Return whether the caller may begin now; if it is too late, give everything back.

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
        """Whether the lease of the concurrency permit lasts; always true without such a limit."""
        return self._request.quota.concurrency is None or self._item.holds(self._request.token)

    def report_usage(self, used: Cost) -> None:
        """Report what the call used: the rest is given back, and an excess counts too."""
        if not self._is_reported:
            self._is_reported = True
            self._item.report_usage(self._request, self._granted, used)

    def release(self) -> None:
        """Return the concurrency permit; only the first call counts."""
        self._item.release(self._request.token)

    def cancel(self) -> None:
        """Give everything back: the call did not begin."""
        self.report_usage(NO_COST)
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
    """Grants permits of all quotas to all callers of this process."""

    def __init__(self, kernel: Kernel, *, lease_seconds: float = LEASE_SECONDS) -> None:
        self._kernel = kernel
        self._lease_seconds = lease_seconds
        self._items: dict[Key, QuotaItem] = {}
        self.counts = Counter[str]()
        """How many requests were admitted, were told to come back, or missed their moment."""
        self._renew_task: asyncio.Task[None] | None = None

    async def acquire(
        self, quota: Quota, tenant: str, *, cost: Cost = ONE_REQUEST, retry_at_ms: int | None
    ) -> Permit | PermitDelay:
        """Return the right to begin now, or the time at which to ask again.

        It waits in place for up to about a second. ``retry_at_ms`` is the time that an earlier
        `PermitDelay` named, or None for the first request of a caller: by it the quota keeps
        newcomers from overtaking callers that already wait.

        Raises:
            QuotaTooSmall: the cost is more than the quota grants in a whole window.
            InvalidName: the tenant has an invalid name.
            StoreUnavailable: the store does not answer; nothing counts as granted.
        """
        quota.check_cost(cost)
        item = self._item_for(quota_item_key(quota, tenant))
        clock = self._kernel.clock
        deadline = clock.monotonic() + HORIZON_US / 1_000_000
        retry_at_us = None if retry_at_ms is None else retry_at_ms * 1000
        delay = NO_DELAY
        while True:
            request = PermitRequest(
                quota,
                cost,
                retry_at_us=retry_at_us,
                token=self._kernel.ids.new(),
                lease_ms=self._lease_ms,
            )
            reply, asked_at = await item.request_permit(request, delay)
            if isinstance(reply, PermitGranted):
                granted = Permit(item, request, reply, asked_at)
                if await granted.wait():
                    self._start_renewing(quota)
                    self.counts["admitted"] += 1
                    return granted
                self.counts["late"] += 1
                # The caller missed its moment, but keeps its place in the line.
                retry_at_us, delay = asked_at.now_us, NO_DELAY
                continue
            retry_at_us, now = reply.retry_at_us, clock.monotonic()
            delay = RequestDelay(asked_at.seconds_until(retry_at_us, now))
            waits_here = now + delay.seconds <= deadline
            if waits_here and reply.waits_for == "slot":
                delay = delay._replace(permit_seconds=deadline - now)
            elif reply.waits_for != "others":
                item.waiters.note_deferred(retry_at_us, now_us=asked_at.now_us)
            if not waits_here:
                self.counts["told"] += 1
                return PermitDelay(retry_at_us // 1000)

    async def close(self) -> None:
        """Write what was given back, as far as the store answers, and stop renewing leases."""
        if self._renew_task is not None:
            self._renew_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._renew_task
        for item in self._items.values():
            await item.close()

    @property
    def _lease_ms(self) -> int:
        return round(self._lease_seconds * 1000)

    def _item_for(self, key: Key) -> QuotaItem:
        item = self._items.get(key)
        if item is None:
            if len(self._items) >= _ITEMS_MAX:
                self._items = {k: c for k, c in self._items.items() if c.is_busy}
            item = self._items[key] = QuotaItem(self._kernel, key)
        return item

    def _start_renewing(self, quota: Quota) -> None:
        if quota.concurrency is not None and (self._renew_task is None or self._renew_task.done()):
            self._renew_task = asyncio.create_task(
                self._renew_leases(), context=context_without_run()
            )

    async def _renew_leases(self) -> None:
        while any(item.held_permits for item in self._items.values()):
            await self._kernel.clock.sleep(self._lease_seconds / _RENEWALS_PER_LEASE)
            for item in self._items.values():
                if item.held_permits:
                    item.submit(LeaseRenewal(item.held_permits, self._lease_ms))
