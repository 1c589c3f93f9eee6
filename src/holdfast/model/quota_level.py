"""The level of a quota: how much of it is used, as its item stores it.

Requests are *paced* (GCRA): `tat_us` is the time at which the next request would be on time, and
each request moves it by one interval. Tokens and dollars are *counted*: their amounts differ, and a
reservation that was not used must be given back, which a pace cannot do. A slice sums what was
granted within one twenty-fourth of the window, and is kept for as long as it counts.

All functions are pure. Times are microseconds of the wall clock. See `quota_admission` for who gets
a permit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from holdfast.model.quota import Cost, Quota

__all__ = [
    "HELD_MS_MAX",
    "HORIZON_US",
    "SLICES",
    "PermitHold",
    "PermitLease",
    "QuotaLevel",
    "Slack",
    "SpentSlice",
    "current_level",
    "reconciled",
    "released",
    "renewed",
    "resets_at_us",
    "unpaced_us",
    "with_slack",
    "with_spent",
]

HORIZON_US = 1_000_000
"""A permit is granted for a time at most this far ahead."""

SLICES = 24
"""Into how many slices a window of counted amounts is divided."""
# A time further ahead than this was written by a wrong clock.
_CLOCK_SKEW_US_MAX = 60_000_000
_QUEUE_US_MAX = 24 * 3600 * 1_000_000
HELD_MS_MAX = 60_000
"""The upper limit of the estimated time for which a permit is held."""
_HELD_WEIGHT = 4
_USED_WEIGHT = 4
_USED_PERMILLE_MIN = 20


class SpentSlice(msgspec.Struct, frozen=True, array_like=True):
    """Tokens and money granted within one slice; ``at_us`` is the latest of these times."""

    at_us: int
    tokens: int
    nanodollars: int


class PermitLease(msgspec.Struct, frozen=True, array_like=True):
    """The lease of a permit for one concurrent call. The permit is free when the lease ends."""

    taken_ms: int
    expires_ms: int


class PermitHold(msgspec.Struct, frozen=True, array_like=True):
    """The quota is held for a caller that needs much room. Callers after it have to wait."""

    since_us: int
    """The retry time of the caller before the hold. Callers with an earlier one may pass."""
    retry_at_us: int
    """The latest retry time of the caller."""
    expires_us: int


class Slack(msgspec.Struct, frozen=True, array_like=True):
    """A granted request that may start later than the grace allows."""

    slack_us: int
    expires_us: int
    """Until then other requests may share a window with it."""


class QuotaLevel(msgspec.Struct, frozen=True, array_like=True):
    """How much of a quota is used. Fields are only ever added at the end."""

    tat_us: int = 0
    spent: tuple[SpentSlice, ...] = ()
    queue_end_us: int = 0
    """When the last caller in the queue gets its turn."""
    hold: PermitHold | None = None
    permits: Mapping[str, PermitLease] = {}
    held_ms: int = 0
    """The estimated time for which a permit is held; 0 before the first release."""
    used_permille: int = 500
    """The estimated share of reservations that is used."""
    slacks: tuple[Slack, ...] = ()
    """In descending order. A smaller slack is kept only if it lasts longer."""


def reconciled(
    level: QuotaLevel, quota: Quota, reserved: Cost, *, used: Cost, at_us: int, now_us: int
) -> QuotaLevel:
    """Return the level after a caller reported how much of its reservation it used.

    Usage beyond the reservation counts from now.
    """
    slice_us = quota.span_us // SLICES
    unused = SpentSlice(
        at_us,
        min(0, used.tokens - reserved.tokens),
        min(0, used.nanodollars - reserved.nanodollars),
    )
    more = SpentSlice(
        now_us,
        max(0, used.tokens - reserved.tokens),
        max(0, used.nanodollars - reserved.nanodollars),
    )
    spent = level.spent
    if any(one.at_us // slice_us == at_us // slice_us for one in spent):
        spent = with_spent(spent, unused, slice_us)
    return msgspec.structs.replace(
        level,
        spent=with_spent(spent, more, slice_us),
        used_permille=_used_permille(level, reserved, used),
    )


def released(level: QuotaLevel, tokens: Iterable[str], *, now_ms: int) -> QuotaLevel:
    """Return the level without these permits. Unknown tokens are ignored."""
    permits = dict(level.permits)
    held_ms = level.held_ms
    for token in tokens:
        if (permit := permits.pop(token, None)) is not None:
            lasted_ms = min(max(now_ms - permit.taken_ms, 1), HELD_MS_MAX)
            held_ms += (lasted_ms - held_ms) // _HELD_WEIGHT if held_ms else lasted_ms
    return msgspec.structs.replace(level, permits=permits, held_ms=held_ms)


def renewed(level: QuotaLevel, tokens: Iterable[str], *, expires_ms: int) -> QuotaLevel:
    """Return the level with the leases of these permits extended. Lost permits stay lost."""
    longer = {
        token: PermitLease(level.permits[token].taken_ms, expires_ms)
        for token in tokens
        if token in level.permits
    }
    return msgspec.structs.replace(level, permits={**level.permits, **longer})


def resets_at_us(level: QuotaLevel, quota: Quota) -> int:
    """Return the time from which the level equals that of an unused quota."""
    return max(
        level.tat_us,
        level.queue_end_us,
        level.hold.expires_us if level.hold is not None else 0,
        *(slack.expires_us + unpaced_us(quota) for slack in level.slacks),
        *(one.at_us + quota.span_us for one in level.spent),
        *(permit.expires_ms * 1000 for permit in level.permits.values()),
        0,
    )


def current_level(level: QuotaLevel, quota: Quota, now_us: int, lease_ms: int) -> QuotaLevel:
    """Return the level without what no longer counts, and without times from a wrong clock."""
    span_us, now_ms, hold = quota.span_us, now_us // 1000, level.hold
    slack_us = min(max((slack.slack_us for slack in level.slacks), default=0), quota.slack_us_max)
    # By then each granted caller has started, and is out of every window.
    safe_us = now_us + HORIZON_US + slack_us + span_us
    too_late_us = now_us + HORIZON_US + slack_us + _CLOCK_SKEW_US_MAX
    return QuotaLevel(
        tat_us=level.tat_us if level.tat_us <= too_late_us + 2 * span_us else safe_us,
        spent=tuple(
            one if one.at_us <= too_late_us else SpentSlice(safe_us - span_us, *_amounts(one))
            for one in level.spent
            if one.at_us + span_us > now_us
        ),
        queue_end_us=level.queue_end_us
        if level.queue_end_us <= now_us + 10 * span_us + _QUEUE_US_MAX
        else 0,
        hold=hold if hold is not None and hold.expires_us <= too_late_us + 2 * span_us else None,
        permits={
            token: PermitLease(permit.taken_ms, min(permit.expires_ms, now_ms + lease_ms + 60_000))
            for token, permit in level.permits.items()
            if permit.expires_ms > now_ms
        },
        held_ms=level.held_ms,
        used_permille=level.used_permille,
        slacks=tuple(
            slack
            if slack.expires_us <= too_late_us + 2 * span_us
            else Slack(slack.slack_us, safe_us)
            for slack in level.slacks
            if slack.expires_us + unpaced_us(quota) > now_us
        ),
    )


def unpaced_us(quota: Quota) -> int:
    """Return how much earlier than the request before it a request may be granted."""
    return 0 if quota.requests is None else quota.pace_us(quota.burst - 1)


def with_slack(slacks: tuple[Slack, ...], more: Slack) -> tuple[Slack, ...]:
    """Return the slacks with another one, without those that are smaller and end earlier."""
    if any(one.slack_us >= more.slack_us and one.expires_us >= more.expires_us for one in slacks):
        return slacks
    others = [
        one for one in slacks if one.slack_us > more.slack_us or one.expires_us > more.expires_us
    ]
    return tuple(sorted([*others, more], reverse=True, key=lambda one: one.slack_us))


def with_spent(
    spent: tuple[SpentSlice, ...], more: SpentSlice, slice_us: int
) -> tuple[SpentSlice, ...]:
    """Return the slices after an amount was added or given back, in the order of time."""
    if not (more.tokens or more.nanodollars):
        return spent
    slice_ = more.at_us // slice_us
    same = [more, *(one for one in spent if one.at_us // slice_us == slice_)]
    merged = SpentSlice(
        max(one.at_us for one in same),
        # Never negative, even if the length of the window has changed.
        max(0, sum(one.tokens for one in same)),
        max(0, sum(one.nanodollars for one in same)),
    )
    others = [one for one in spent if one.at_us // slice_us != slice_]
    return tuple(sorted([*others, merged], key=_at))


def _at(one: SpentSlice) -> int:
    return one.at_us


def _amounts(one: SpentSlice) -> tuple[int, int]:
    return one.tokens, one.nanodollars


def _used_permille(level: QuotaLevel, reserved: Cost, used: Cost) -> int:
    if reserved.tokens:
        latest = 1_000 * used.tokens // reserved.tokens
    elif reserved.nanodollars:
        latest = 1_000 * used.nanodollars // reserved.nanodollars
    else:
        return level.used_permille
    change = (min(latest, 1_000) - level.used_permille) // _USED_WEIGHT
    return max(level.used_permille + change, _USED_PERMILLE_MIN)
