"""Who gets a permit of a quota, and when the others ask again."""

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

# Who comes back does so somewhat before its place in the line, and waits for its moment in place:
# it may well be that late.
_EARLY_US = HORIZON_US // 2
# Nobody asks again sooner than this, nor less often than so many times in the length of a window.
_RETRY_US_MIN = 50_000
_RETRIES_PER_SPAN = 4
# A caller that comes back may be late by this much.
LATENESS_US = 100_000
# How long after its moment somebody who needs much room may come, before others go on.
_HOLD_US = 2 * HORIZON_US
# The estimate of how long a slot is held: the least before the first release, and the most ever.
_HELD_MS_MIN = 100
_USED_PERMILLE_CERTAIN = 900
# Where nobody ever says how much was used, all of it is.
_UNREPORTED_WEIGHT = 64


class PermitGranted(msgspec.Struct, frozen=True):
    """The caller may begin at this moment, and later by the grace and the slack at most."""

    at_us: int
    slack_us: int = 0

    @property
    def counted_us(self) -> int:
        """The moment for which its tokens and dollars count."""
        return self.at_us + self.slack_us


class PermitDeferred(msgspec.Struct, frozen=True):
    """Nothing was taken; the caller asks again at this moment, and says that it was told so."""

    retry_at_us: int
    waits_for: Literal["slot", "room", "others"] = "room"
    """All slots are taken, a limit is reached, or the free slots are kept for callers in the line.

    A caller that waits for others has no place in the line itself.
    """


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
    """Return what somebody who asks for a cost is answered, and the level after it.

    ``told_us`` is when it was told to come back, if it was. ``lead_us`` is how long the answer may
    be on its way, ``slack_us`` how much more than the grace the caller needs to begin. ``token``
    names the slot that it takes where the quota has ``concurrency``.

    Raises:
        QuotaTooSmall: the cost is more than the quota gives in a whole window.
    """
    quota.check_cost(cost)
    level = current_level(level, quota, now_us, lease_ms)
    ready_us = now_us + lead_us
    paced_us = _paced_us(level, quota, cost, slack_us)
    counted_us = _counted_us(level, quota, cost)
    at_us = max(ready_us, paced_us, counted_us)
    far = at_us > now_us + HORIZON_US
    # Its own slot may stand there, of a sending whose answer was lost.
    taken = len(level.permits.keys() - {token})
    full = quota.concurrency is not None and taken >= quota.concurrency
    held = _is_blocked_by_hold(level.hold, now_us, retry_at_us)
    # Who comes first may use what nobody else does, but not overtake those in the line.
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
            return level, PermitDeferred(retry_at_us, "slot")  # it came early, and keeps its place
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
    """Return the slack that a caller needs which is late by about so much.

    It is the grace times a power of two, so that few are told apart.
    """
    if tardy_us <= quota.grace_us:
        return 0
    slack_us = quota.grace_us
    while slack_us < 2 * tardy_us - quota.grace_us:
        slack_us *= 2
    return min(slack_us, quota.slack_us_max)


def _is_blocked_by_hold(hold: PermitHold | None, now_us: int, retry_at_us: int | None) -> bool:
    """Return whether somebody before this one waits for room."""
    if hold is None or now_us >= hold.expires_us:
        return False
    return retry_at_us is None or (retry_at_us > hold.since_us and retry_at_us != hold.retry_at_us)


def _queued(
    level: QuotaLevel, turn_us: int, step_us: int, now_us: int
) -> tuple[QuotaLevel, PermitDeferred]:
    """Return the level with one more in the line, and when that one is to come back."""
    level = msgspec.structs.replace(level, queue_end_us=turn_us + step_us)
    return level, _deferred(max(turn_us - _EARLY_US, now_us + _RETRY_US_MIN))


def _retry_at_us(level: QuotaLevel, quota: Quota, place_us: int, now_us: int) -> int:
    """Return when somebody asks again who waits for room.

    Where much of what is reserved is given back, room comes long before it is certain to. How much
    is only guessed: so who waits asks again now and then.
    """
    until_us = place_us - _EARLY_US
    if level.used_permille < _USED_PERMILLE_CERTAIN:
        soon_us = max(quota.span_us // _RETRIES_PER_SPAN, (place_us - now_us) // 2)
        until_us = min(until_us, now_us + soon_us)
    return max(until_us, now_us + _RETRY_US_MIN)


def _with_hold(level: QuotaLevel, retry_at_us: int, later: PermitDeferred) -> QuotaLevel:
    """Return the level held for somebody whose turn has come, until it comes back."""
    hold = level.hold
    same = hold is not None and hold.retry_at_us == retry_at_us
    since_us = hold.since_us if hold is not None and same else retry_at_us
    hold = PermitHold(since_us, later.retry_at_us, later.retry_at_us + _HOLD_US)
    return msgspec.structs.replace(level, hold=hold)


def _is_large(quota: Quota, cost: Cost) -> bool:
    """Return whether a cost is so large that many small ones would never leave room for it."""
    tokens = quota.tokens is not None and cost.tokens * SLICES > quota.tokens
    money = quota.nanodollars is not None and cost.nanodollars * SLICES > quota.nanodollars
    return tokens or money


def _paced_us(level: QuotaLevel, quota: Quota, cost: Cost, slack_us: int) -> int:
    """Return when so many requests may come."""
    if quota.requests is None or not cost.requests:
        return 0
    beyond = cost.requests - quota.burst
    # What comes early is not earlier by the slack of others.
    return level.tat_us + quota.pace_us(beyond, _slack_us(level, slack_us) if beyond > 0 else 0)


def _slack_us(level: QuotaLevel, slack_us: int) -> int:
    """Return the most slack with which one that has so much may share a window."""
    return max(slack_us, level.slacks[0].slack_us if level.slacks else 0)


def _counted_us(level: QuotaLevel, quota: Quota, cost: Cost) -> int:
    """Return when there is room for so many tokens and so much money, if nobody else takes any."""
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
    # All that counts from then on is counted, also what is granted for later: so every window in
    # which the new one may come to lie has room for it.
    total, room_us = amount + sum(counts for _, counts in spent), 0
    for at_us, counts in spent:
        if total <= limit:
            break
        total -= counts
        room_us = at_us + quota.span_us
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
    if quota.requests is not None and cost.requests:
        pace_us = quota.pace_us(cost.requests, _slack_us(level, granted.slack_us))
        tat_us = max(granted.at_us, tat_us) + pace_us
        if granted.slack_us:
            until_us = granted.counted_us + quota.span_us
            slacks = with_slack(slacks, Slack(granted.slack_us, until_us))
    more = SpentSlice(
        granted.counted_us,
        cost.tokens if quota.tokens is not None else 0,
        cost.nanodollars if quota.dollars is not None else 0,
    )
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
    # Callers are told whole milliseconds.
    return PermitDeferred(-(-retry_at_us // 1000) * 1000, waits_for)


def _step_us(level: QuotaLevel, quota: Quota, cost: Cost) -> int:
    """Return how much of the time of all that one in the line takes, about."""
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
    """Return whether callers in the line are due soon for all free slots.

    A process writes the releases and the requests of its callers together. Without this rule a
    busy process would take its own slots again, and callers in the line would never find one free.
    """
    if quota.concurrency is None or level.queue_end_us <= now_us:
        return False
    soon_us = min(level.queue_end_us - now_us, _reserved_us(level, quota, now_us))
    return quota.concurrency - taken <= -(-soon_us // _spacing_us(level, quota, now_us))


def _reserved_us(level: QuotaLevel, quota: Quota, now_us: int) -> int:
    """Return how long a free slot waits for callers in the line, which may have died."""
    return 2 * _spacing_us(level, quota, now_us) + LATENESS_US


def _spacing_us(level: QuotaLevel, quota: Quota, now_us: int) -> int:
    """Return the time between two callers in the line for a slot.

    It is half of the estimated time between two releases. A caller that finds no slot goes to the
    end of the line, and a free slot is wasted until the next caller comes.
    """
    assert quota.concurrency is not None
    return max(_held_ms(level, now_us) * 1000 // quota.concurrency // 2, 10_000)


def _held_ms(level: QuotaLevel, now_us: int) -> int:
    """Return how long a slot is held, about.

    Before the first release it is the time for which the oldest slot has been held so far. Callers
    of short calls then come back soon, and callers of long calls less and less often.
    """
    if level.held_ms:
        return level.held_ms
    now_ms = now_us // 1000
    taken_ms = min((permit.taken_ms for permit in level.permits.values()), default=now_ms)
    return min(max(now_ms - taken_ms, _HELD_MS_MIN), HELD_MS_MAX)
