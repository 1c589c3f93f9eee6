"""How much of a quota is used: what its item holds, and what is granted next.

Time is given out. Who asks gets a moment at which to begin, at most a second ahead, or is told when
to ask again; then nothing is taken.

Requests are *paced*: `tat_us` is when the next one would be on time if none came early, and grows
by the same interval for each (GCRA). Tokens and dollars are *counted*: they come in lumps, and what
was reserved and not used has to count no more, which a pace cannot undo. Their moments are kept for
as long as they count, those of one twenty-fourth of the window together.

A caller that keeps missing its moments asks for *slack*: for more time than the grace to begin in.
A request with slack may arrive that much later, and so come that much closer to those after it. So
as long as it can share a window with them, all requests are paced for a window that is longer by
the slack. Tokens and dollars with slack count for that much longer.

Those who are told to come back stand in a virtual line, spread over the time that all of them will
take, and newcomers stand behind them; a slot that becomes free is kept a while for them. One whose
turn has come but who needs more room than there is *holds* the quota: nobody after it gets anything
until it had its chance.

All of it is pure. Moments are microseconds of the wall clock.
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
"""A moment is given at most this far ahead."""

SLICES = 24
# What lies further ahead than this was written by a clock that is wrong.
_CLOCK_SKEW_US_MAX = 60_000_000
_QUEUE_US_MAX = 24 * 3600 * 1_000_000
HELD_MS_MAX = 60_000
_HELD_WEIGHT = 4
_USED_WEIGHT = 4
_USED_PERMILLE_MIN = 20


class SpentSlice(msgspec.Struct, frozen=True, array_like=True):
    """Tokens and money that were granted for about one moment; the last of them counts."""

    at_us: int
    tokens: int
    nanodollars: int


class PermitLease(msgspec.Struct, frozen=True, array_like=True):
    """One of the calls that may be under way at once; it is free when its lease ends."""

    taken_ms: int
    expires_ms: int


class PermitHold(msgspec.Struct, frozen=True, array_like=True):
    """Somebody whose turn has come waits for room, and those after it wait for it."""

    since_us: int
    """What it was told before: who was told to come back by then may pass."""
    retry_at_us: int
    """What it was told last."""
    expires_us: int


class Slack(msgspec.Struct, frozen=True, array_like=True):
    """A request was granted that may begin so much later than the grace."""

    slack_us: int
    expires_us: int
    """Until then requests may share a window with it."""


class QuotaLevel(msgspec.Struct, frozen=True, array_like=True):
    """How much of a quota is used. Fields are only ever added at the end."""

    tat_us: int = 0
    spent: tuple[SpentSlice, ...] = ()
    queue_end_us: int = 0
    """Where the line of those ends who were told to come back."""
    hold: PermitHold | None = None
    permits: Mapping[str, PermitLease] = {}
    held_ms: int = 0
    """How long a slot is held, about; 0 before the first release."""
    used_permille: int = 500
    """How much is used of what is reserved, about."""
    slacks: tuple[Slack, ...] = ()
    """The most slack first, and of less only what lasts longer."""


def reconciled(
    level: QuotaLevel, quota: Quota, reserved: Cost, *, used: Cost, at_us: int, now_us: int
) -> QuotaLevel:
    """Return the level once it is known how much of what was granted for a moment was used.

    What was used beyond it counts from now on.
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
    """Return the level without these slots, as far as they are there."""
    permits = dict(level.permits)
    held_ms = level.held_ms
    for token in tokens:
        if (permit := permits.pop(token, None)) is not None:
            lasted_ms = min(max(now_ms - permit.taken_ms, 1), HELD_MS_MAX)
            held_ms += (lasted_ms - held_ms) // _HELD_WEIGHT if held_ms else lasted_ms
    return msgspec.structs.replace(level, permits=permits, held_ms=held_ms)


def renewed(level: QuotaLevel, tokens: Iterable[str], *, expires_ms: int) -> QuotaLevel:
    """Return the level with these slots held until then; those that are gone stay gone."""
    longer = {
        token: PermitLease(level.permits[token].taken_ms, expires_ms)
        for token in tokens
        if token in level.permits
    }
    return msgspec.structs.replace(level, permits={**level.permits, **longer})


def resets_at_us(level: QuotaLevel, quota: Quota) -> int:
    """Return from when on the level is that of a quota which nobody has used."""
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
    """Return the level without what counts no more, and without what only a wrong clock can say."""
    span_us, now_ms, hold = quota.span_us, now_us // 1000, level.hold
    slack_us = min(max((slack.slack_us for slack in level.slacks), default=0), quota.slack_us_max)
    # Whoever was granted something by any clock has begun by then, and is out of every window.
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
    """Return how much earlier a request may be granted than one that was granted before it."""
    return 0 if quota.requests is None else quota.pace_us(quota.burst - 1)


def with_slack(slacks: tuple[Slack, ...], more: Slack) -> tuple[Slack, ...]:
    """Return the slacks with another one, without those that say less and not for longer."""
    if any(one.slack_us >= more.slack_us and one.expires_us >= more.expires_us for one in slacks):
        return slacks
    others = [
        one for one in slacks if one.slack_us > more.slack_us or one.expires_us > more.expires_us
    ]
    return tuple(sorted([*others, more], reverse=True, key=lambda one: one.slack_us))


def with_spent(
    spent: tuple[SpentSlice, ...], more: SpentSlice, slice_us: int
) -> tuple[SpentSlice, ...]:
    """Return what was spent with some more, or less, one for each slice, in the order of time."""
    if not (more.tokens or more.nanodollars):
        return spent
    slice_ = more.at_us // slice_us
    same = [more, *(one for one in spent if one.at_us // slice_us == slice_)]
    merged = SpentSlice(
        max(one.at_us for one in same),
        # Never less than nothing, should a window have been of another length meanwhile.
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
