"""The changes that callers want to make to a quota's item: each is a pure function of its level."""

from __future__ import annotations

import asyncio
import math
from typing import NamedTuple, Protocol

import msgspec

from holdfast.model import quota_admission, quota_level
from holdfast.model.quota import Cost, Quota
from holdfast.model.quota_admission import PermitGranted
from holdfast.model.quota_level import QuotaLevel

__all__ = [
    "ClockReading",
    "LeaseRenewal",
    "PermitRelease",
    "PermitRequest",
    "QuotaChange",
    "UsageReport",
    "WriteTiming",
    "is_delayed",
    "write_order",
]


class ClockReading(NamedTuple):
    """One moment on both clocks: processes agree on the wall clock, and wait by the monotonic one.

    So setting the wall clock during a wait does not change the wait.
    """

    now_us: int
    monotonic: float

    def seconds_until(self, at_us: int, monotonic: float) -> float:
        """Return the seconds until a wall clock time, at a reading of the monotonic clock."""
        return (at_us - self.now_us) / 1_000_000 - (monotonic - self.monotonic)


class WriteTiming(NamedTuple):
    """How slow this process is, as far as a new permit must allow for it."""

    lead_us: int
    """How far ahead the granted moment must be, so that the reply arrives before it."""
    slack_us: int
    """How much more than the quota's grace the callers need to begin."""


class QuotaChange(Protocol):
    """A change to a quota's item."""

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be applied again where an earlier attempt may have been written."""
        ...

    def apply(self, level: QuotaLevel, *, now_us: int, timing: WriteTiming) -> QuotaLevel:
        """Return the level after the change."""
        ...

    def on_written(self, level: QuotaLevel, moment: ClockReading) -> None:
        """Take in that the change is durable."""
        ...

    def on_failed(self, error: BaseException) -> None:
        """Take in that the change was not written, or that its fate is unknown."""
        ...


class PermitRequest:
    """A caller asks for a permit.

    It is repeatable: a permit that was granted in a lost reply is forfeited.
    """

    is_repeatable = True

    def __init__(
        self, quota: Quota, cost: Cost, *, retry_at_us: int | None, token: str, lease_ms: int
    ) -> None:
        self.quota = quota
        self.cost = cost
        self.token = token if quota.concurrency is not None else ""
        self.lease_ms = lease_ms
        self.future: asyncio.Future[tuple[quota_admission.PermitReply, ClockReading]] = (
            asyncio.get_running_loop().create_future()
        )
        self.reply: quota_admission.PermitReply | None = None
        self.retry_at_us = retry_at_us

    def apply(self, level: QuotaLevel, *, now_us: int, timing: WriteTiming) -> QuotaLevel:
        """Return the level after the request; keep the reply to it."""
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

    def on_written(self, level: QuotaLevel, moment: ClockReading) -> None:
        """Hand the reply to the caller."""
        if not self.future.done():
            assert self.reply is not None
            self.future.set_result((self.reply, moment))

    def on_failed(self, error: BaseException) -> None:
        """Hand the error to the caller."""
        if not self.future.done():
            self.future.set_exception(error)


class UsageReport(msgspec.Struct, frozen=True):
    """What a call really used of its permit.

    It is not repeatable: applied twice, it would give back what other callers hold.
    """

    quota: Quota
    reserved: Cost
    used: Cost
    at_us: int
    is_repeatable: bool = False

    def apply(self, level: QuotaLevel, *, now_us: int, timing: WriteTiming) -> QuotaLevel:
        """Return the level with the real usage in place of the reserved one."""
        return quota_level.reconciled(
            level, self.quota, self.reserved, used=self.used, at_us=self.at_us, now_us=now_us
        )

    def on_written(self, level: QuotaLevel, moment: ClockReading) -> None:
        """Do nothing: no caller waits for it."""

    def on_failed(self, error: BaseException) -> None:
        """Leave the whole cost reserved: the quota then admits less than it could, never more."""


class PermitRelease(msgspec.Struct, frozen=True):
    """A call returns its concurrency permit."""

    token: str
    is_repeatable: bool = True

    def apply(self, level: QuotaLevel, *, now_us: int, timing: WriteTiming) -> QuotaLevel:
        """Return the level without the permit."""
        return quota_level.released(level, [self.token], now_ms=now_us // 1000)

    def on_written(self, level: QuotaLevel, moment: ClockReading) -> None:
        """Do nothing: no caller waits for it."""

    def on_failed(self, error: BaseException) -> None:
        """Do nothing: the permit's lease is not renewed any more, and expires."""


class LeaseRenewal:
    """This process renews all permits of an item that it holds, in one write."""

    is_repeatable = True

    def __init__(self, held_permits: dict[str, float], lease_ms: int) -> None:
        """Renew these permits; the dictionary is shared with the item, and updated."""
        self._held_permits = held_permits
        self._lease_ms = lease_ms

    def apply(self, level: QuotaLevel, *, now_us: int, timing: WriteTiming) -> QuotaLevel:
        """Return the level with later ends of the leases."""
        expires_ms = now_us // 1000 + self._lease_ms
        return quota_level.renewed(level, self._held_permits, expires_ms=expires_ms)

    def on_written(self, level: QuotaLevel, moment: ClockReading) -> None:
        """Count the renewed permits as ours for another lease."""
        lease_deadline = moment.monotonic + self._lease_ms / 1000
        for token in list(self._held_permits):
            if token in level.permits:
                self._held_permits[token] = lease_deadline

    def on_failed(self, error: BaseException) -> None:
        """Do nothing: the next renewal tries again."""


def write_order(change: QuotaChange) -> float:
    """Return the sort key of a change within one write: releases, then requests, newcomers last."""
    if not isinstance(change, PermitRequest):
        return 0
    return math.inf if change.retry_at_us is None else change.retry_at_us


def is_delayed(change: QuotaChange) -> bool:
    """Return whether the change is a request that is told to ask again later."""
    return isinstance(change, PermitRequest) and not isinstance(change.reply, PermitGranted)
