"""Admission to a quota: which caller gets a permit, and when the others ask again.

A caller that asks gets a time at which it may start, at most a second ahead. Or it is told when to
ask again; then nothing is taken.

A caller that keeps starting too late asks for *slack*: for more time than the grace to start in. A
request with slack may arrive later, and so closer to the requests after it. So as long as it can
share a window with them, all requests are paced for a window that is longer by the slack. Tokens
and dollars with slack count for that much longer.

Callers that are told to come back form a virtual queue, spread over the time that all of them need.
New callers queue behind them, and a permit that becomes free is kept for the queue for a while. A
caller whose turn has come but that needs more room than there is *holds* the quota: callers after
it get nothing until it had its chance.

All functions are pure. Times are microseconds of the wall clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from holdfast.model.quota import Cost, Quota
from holdfast.model.quota_level import (
    HELD_MS_MAX,
    HORIZON_US,
    SLICES,
    PermitHold,
    PermitLease,
    QuotaLevel,
    Slack,
    SpentSlice,
    current_level,
    with_slack,
    with_spent,
)

__all__ = [
    "LATENESS_US",
    "PermitDeferred",
    "PermitGranted",
    "PermitReply",
    "acquired",
    "slack_needed_us",
]

# A caller comes back this much before its turn and waits for it in place: it may be that late.
_EARLY_US = HORIZON_US // 2
# A caller asks again no sooner than this, and at least so many times in each window.
_RETRY_US_MIN = 50_000
_RETRIES_PER_SPAN = 4
# A caller that comes back may be late by this much.
LATENESS_US = 100_000
# A hold ends this long after the retry time of its caller.
_HOLD_US = 2 * HORIZON_US
# The lower limit of the estimated time for which a permit is held, before the first release.
_HELD_MS_MIN = 100
_USED_PERMILLE_CERTAIN = 900
# Callers that never report their usage move the estimate to 100 %.
_UNREPORTED_WEIGHT = 64


class PermitGranted(msgspec.Struct, frozen=True):
    """The caller may start at this time, or later by at most the grace and the slack."""

    at_us: int
    slack_us: int = 0

    @property
    def counted_us(self) -> int:
        """The time at which its tokens and dollars count."""
        return self.at_us + self.slack_us


class PermitDeferred(msgspec.Struct, frozen=True):
    """Nothing was taken. The caller asks again at this time, and passes the time along."""

    retry_at_us: int
    waits_for: Literal["slot", "room", "others"] = "room"
    """``slot``: all permits are taken. ``room``: a limit is reached. ``others``: the free permits
    are kept for callers in the queue, and this caller is not in the queue."""


PermitReply: TypeAlias = PermitGranted | PermitDeferred


def acquired(
    level: QuotaLevel,
    quota: Quota,
    cost: Cost,
    *,
    now_us: int,
    retry_at_us: int | None = None,
    lead_us: int = 0,
    slack_us: int = 0,
    token: str = "",
    lease_ms: int = 60_000,
) -> tuple[QuotaLevel, PermitReply]:
    """Return the reply to a caller that asks for a cost, and the level after it.

    ``retry_at_us`` is the time at which the caller was told to come back, if it was. ``lead_us`` is
    how long the reply may take to arrive. ``slack_us`` is the time beyond the grace that the caller
    needs to start. ``token`` names the permit if the quota limits ``concurrency``.

    Raises:
        QuotaTooSmall: the cost is more than the quota allows in a whole window.
    """
    quota.check_cost(cost)
    level = current_level(level, quota, now_us, lease_ms)
    ready_us = now_us + lead_us
    paced_us = _paced_us(level, quota, cost, slack_us)
    counted_us = _counted_us(level, quota, cost)
    at_us = max(ready_us, paced_us, counted_us)
    far = at_us > now_us + HORIZON_US
    # The permit may be its own, from a write whose reply was lost.
    taken = len(level.permits.keys() - {token})
    full = quota.concurrency is not None and taken >= quota.concurrency
    held = _is_blocked_by_hold(level.hold, now_us, retry_at_us)
    # A new caller may use free room, but must not overtake the queue.
    overtakes = retry_at_us is None and ready_us < at_us < level.queue_end_us
    kept = retry_at_us is None and _is_reserved_for_queue(level, quota, taken, now_us)
    if not (far or full or held or overtakes or kept):
        permit = (
            {token: PermitLease(now_us // 1000, now_us // 1000 + lease_ms)}
            if quota.concurrency
            else {}
        )
        granted = PermitGranted(at_us, slack_us)
        return _with_grant(
            level, quota, cost, granted, retry_at_us=retry_at_us, permit=permit
        ), granted
    if full and not far:
        if retry_at_us is not None and now_us < retry_at_us <= level.queue_end_us + 1_000:
            return level, PermitDeferred(retry_at_us, "slot")  # it came early, and keeps its turn
        free_us = max(level.queue_end_us, now_us) + _spacing_us(level, quota, now_us)
        return msgspec.structs.replace(level, queue_end_us=free_us), _deferred(free_us, "slot")
    if kept and not (far or held or overtakes):
        return level, _deferred(now_us + _reserved_us(level, quota, now_us), "others")
    if held and level.hold is not None:
        counted_us = max(counted_us, level.hold.retry_at_us + 2 * _EARLY_US)
    if counted_us <= paced_us:
        return _queued(level, max(at_us, level.queue_end_us), _step_us(level, quota, cost), now_us)
    at_us = max(at_us, counted_us)
    if retry_at_us is None:
        likely_us = now_us + (at_us - now_us) * level.used_permille // 1_000
        place_us = max(likely_us, level.queue_end_us)
        level, _ = _queued(level, place_us, _step_us(level, quota, cost), now_us)
        return level, _deferred(_retry_at_us(level, quota, place_us, now_us))
    later = _deferred(_retry_at_us(level, quota, at_us, now_us))
    holds = not held and _is_large(quota, cost)
    return _with_hold(level, retry_at_us, later) if holds else level, later


def slack_needed_us(quota: Quota, tardy_us: int) -> int:
    """Return the slack for a caller that starts late by about ``tardy_us``.

    It is the grace times a power of two, so that there are few different values.
    """
    if tardy_us <= quota.grace_us:
        return 0
    slack_us = quota.grace_us
    while slack_us < 2 * tardy_us - quota.grace_us:
        slack_us *= 2
    return min(slack_us, quota.slack_us_max)


def _is_blocked_by_hold(hold: PermitHold | None, now_us: int, retry_at_us: int | None) -> bool:
    """Return whether the quota is held for a caller before this one."""
    if hold is None or now_us >= hold.expires_us:
        return False
    return retry_at_us is None or (retry_at_us > hold.since_us and retry_at_us != hold.retry_at_us)


def _queued(
    level: QuotaLevel, turn_us: int, step_us: int, now_us: int
) -> tuple[QuotaLevel, PermitDeferred]:
    """Return the level with one more caller in the queue, and its reply."""
    level = msgspec.structs.replace(level, queue_end_us=turn_us + step_us)
    return level, _deferred(max(turn_us - _EARLY_US, now_us + _RETRY_US_MIN))


def _retry_at_us(level: QuotaLevel, quota: Quota, place_us: int, now_us: int) -> int:
    """Return when a caller that waits for room asks again.

    If callers give back much of what they reserve, there is room long before the latest possible
    time. How much they give back is an estimate, so the caller asks several times.
    """
    until_us = place_us - _EARLY_US
    if level.used_permille < _USED_PERMILLE_CERTAIN:
        soon_us = max(quota.span_us // _RETRIES_PER_SPAN, (place_us - now_us) // 2)
        until_us = min(until_us, now_us + soon_us)
    return max(until_us, now_us + _RETRY_US_MIN)


def _with_hold(level: QuotaLevel, retry_at_us: int, later: PermitDeferred) -> QuotaLevel:
    """Return the level held for a caller whose turn has come, until it comes back."""
    hold = level.hold
    same = hold is not None and hold.retry_at_us == retry_at_us
    since_us = hold.since_us if hold is not None and same else retry_at_us
    hold = PermitHold(since_us, later.retry_at_us, later.retry_at_us + _HOLD_US)
    return msgspec.structs.replace(level, hold=hold)


def _is_large(quota: Quota, cost: Cost) -> bool:
    """Return whether many small costs could starve a caller with this cost."""
    tokens = quota.tokens is not None and cost.tokens * SLICES > quota.tokens
    money = quota.nanodollars is not None and cost.nanodollars * SLICES > quota.nanodollars
    return tokens or money


def _paced_us(level: QuotaLevel, quota: Quota, cost: Cost, slack_us: int) -> int:
    """Return when this many requests are on pace."""
    if quota.requests is None or not cost.requests:
        return 0
    beyond = cost.requests - quota.burst
    # Requests within the burst do not become earlier by the slack of others.
    return level.tat_us + quota.pace_us(beyond, _slack_us(level, slack_us) if beyond > 0 else 0)


def _slack_us(level: QuotaLevel, slack_us: int) -> int:
    """Return the largest slack in the window of a request with this slack."""
    return max(slack_us, level.slacks[0].slack_us if level.slacks else 0)


def _counted_us(level: QuotaLevel, quota: Quota, cost: Cost) -> int:
    """Return when there is room for the tokens and the money, if no other caller takes any."""
    tokens = _free_at_us(
        [(one.at_us, one.tokens) for one in level.spent], quota, quota.tokens, cost.tokens
    )
    money = _free_at_us(
        [(one.at_us, one.nanodollars) for one in level.spent],
        quota,
        quota.nanodollars,
        cost.nanodollars,
    )
    return max(tokens, money)


def _free_at_us(spent: list[tuple[int, int]], quota: Quota, limit: int | None, amount: int) -> int:
    if limit is None or not amount:
        return 0
    # Counts everything that is granted, also for later times: so each window that may contain the
    # new request has room for it.
    total, room_us = amount + sum(counts for _, counts in spent), 0
    for at_us, counts in spent:
        if total <= limit:
            break
        total -= counts
        room_us = max(room_us, at_us + quota.span_us)  # a wrong clock breaks the order
    return room_us


def _with_grant(
    level: QuotaLevel,
    quota: Quota,
    cost: Cost,
    granted: PermitGranted,
    *,
    retry_at_us: int | None,
    permit: Mapping[str, PermitLease],
) -> QuotaLevel:
    tat_us, slacks = level.tat_us, level.slacks
    paced = quota.requests is not None and cost.requests > 0
    if paced:
        pace_us = quota.pace_us(cost.requests, _slack_us(level, granted.slack_us))
        tat_us = max(granted.at_us, tat_us) + pace_us
    more = SpentSlice(
        granted.counted_us,
        cost.tokens if quota.tokens is not None else 0,
        cost.nanodollars if quota.usd is not None else 0,
    )
    if granted.slack_us and (paced or more.tokens or more.nanodollars):
        # Without it `current_level` would take a counted time that is far ahead for a wrong clock.
        until_us = granted.counted_us + quota.span_us
        slacks = with_slack(slacks, Slack(granted.slack_us, until_us))
    return msgspec.structs.replace(
        level,
        tat_us=tat_us,
        spent=with_spent(level.spent, more, quota.span_us // SLICES),
        hold=None
        if level.hold is not None and level.hold.retry_at_us == retry_at_us
        else level.hold,
        permits={**level.permits, **permit},
        used_permille=level.used_permille - (level.used_permille - 1_000) // _UNREPORTED_WEIGHT,
        slacks=slacks,
    )


def _deferred(
    retry_at_us: int, waits_for: Literal["slot", "room", "others"] = "room"
) -> PermitDeferred:
    # Callers get whole milliseconds.
    return PermitDeferred(-(-retry_at_us // 1000) * 1000, waits_for)


def _step_us(level: QuotaLevel, quota: Quota, cost: Cost) -> int:
    """Return the estimated time between this caller and the next one in the queue."""
    steps = [1]
    if quota.requests is not None:
        steps.append(quota.pace_us(cost.requests, _slack_us(level, 0)))
    likely_us = quota.span_us * level.used_permille // 1_000
    if quota.tokens is not None:
        steps.append(cost.tokens * likely_us // quota.tokens)
    if quota.nanodollars is not None:
        steps.append(cost.nanodollars * likely_us // quota.nanodollars)
    return max(steps)


def _is_reserved_for_queue(level: QuotaLevel, quota: Quota, taken: int, now_us: int) -> bool:
    """Return whether callers in the queue are due soon for all free permits.

    A process writes the releases and the requests of its callers together. Without this rule a
    busy process would take its own permits again, and the queue would never find one free.
    """
    if quota.concurrency is None or level.queue_end_us <= now_us:
        return False
    soon_us = min(level.queue_end_us - now_us, _reserved_us(level, quota, now_us))
    return quota.concurrency - taken <= -(-soon_us // _spacing_us(level, quota, now_us))


def _reserved_us(level: QuotaLevel, quota: Quota, now_us: int) -> int:
    """Return how long a free permit is kept for the queue. Its callers may have died."""
    return 2 * _spacing_us(level, quota, now_us) + LATENESS_US


def _spacing_us(level: QuotaLevel, quota: Quota, now_us: int) -> int:
    """Return the time between two callers in the queue for a permit.

    It is half of the estimated time between two releases. A caller that finds no permit goes to the
    end of the queue, and a free permit is wasted until the next caller comes.
    """
    assert quota.concurrency is not None
    return max(_held_ms(level, now_us) * 1000 // quota.concurrency // 2, 10_000)


def _held_ms(level: QuotaLevel, now_us: int) -> int:
    """Return the estimated time for which a permit is held.

    Before the first release it is the time for which the oldest permit has been held. Callers
    of short calls then come back soon, and callers of long calls less and less often.
    """
    if level.held_ms:
        return level.held_ms
    now_ms = now_us // 1000
    taken_ms = min((permit.taken_ms for permit in level.permits.values()), default=now_ms)
    return min(max(now_ms - taken_ms, _HELD_MS_MIN), HELD_MS_MAX)
