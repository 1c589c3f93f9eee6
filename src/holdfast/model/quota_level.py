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
from typing import Literal, TypeAlias

import msgspec

from holdfast.model.quota import Cost, Quota

__all__ = [
    "HORIZON_US",
    "LATENESS_US",
    "PermitDeferred",
    "PermitGranted",
    "PermitHold",
    "PermitLease",
    "QuotaLevel",
    "Slack",
    "SpentSlice",
    "acquired",
    "reconciled",
    "released",
    "renewed",
    "resets_at_us",
    "slack_needed_us",
]

HORIZON_US = 1_000_000
"""A moment is given at most this far ahead."""

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
_SLICES = 24
# What lies further ahead than this was written by a clock that is wrong.
_CLOCK_SKEW_US_MAX = 60_000_000
_QUEUE_US_MAX = 24 * 3600 * 1_000_000
# The estimate of how long a slot is held: the least before the first release, and the most ever.
_HELD_MS_MIN = 100
_HELD_MS_MAX = 60_000
_HELD_WEIGHT = 4
_USED_WEIGHT = 4
_USED_PERMILLE_MIN = 20
_USED_PERMILLE_CERTAIN = 900
# Where nobody ever says how much was used, all of it is.
_UNREPORTED_WEIGHT = 64


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
    names the slot that it takes where the quota has ``at_once``.

    Raises:
        QuotaTooSmall: the cost is more than the quota gives in a whole window.
    """
    quota.check_cost(cost)
    level = _current(level, quota, now_us, lease_ms)
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


def reconciled(
    level: QuotaLevel, quota: Quota, reserved: Cost, *, used: Cost, at_us: int, now_us: int
) -> QuotaLevel:
    """Return the level once it is known how much of what was granted for a moment was used.

    What was used beyond it counts from now on.
    """
    slice_us = quota.span_us // _SLICES
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
        spent = _with_spent(spent, unused, slice_us)
    return msgspec.structs.replace(
        level,
        spent=_with_spent(spent, more, slice_us),
        used_permille=_used_permille(level, reserved, used),
    )


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


def released(level: QuotaLevel, tokens: Iterable[str], *, now_ms: int) -> QuotaLevel:
    """Return the level without these slots, as far as they are there."""
    permits = dict(level.permits)
    held_ms = level.held_ms
    for token in tokens:
        if (permit := permits.pop(token, None)) is not None:
            lasted_ms = min(max(now_ms - permit.taken_ms, 1), _HELD_MS_MAX)
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
        *(slack.expires_us + _unpaced_us(quota) for slack in level.slacks),
        *(one.at_us + quota.span_us for one in level.spent),
        *(permit.expires_ms * 1000 for permit in level.permits.values()),
        0,
    )


def _current(level: QuotaLevel, quota: Quota, now_us: int, lease_ms: int) -> QuotaLevel:
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
            if slack.expires_us + _unpaced_us(quota) > now_us
        ),
    )


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
    tokens = quota.tokens is not None and cost.tokens * _SLICES > quota.tokens
    money = quota.nanodollars is not None and cost.nanodollars * _SLICES > quota.nanodollars
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


def _unpaced_us(quota: Quota) -> int:
    """Return how much earlier a request may be granted than one that was granted before it."""
    return 0 if quota.requests is None else quota.pace_us(quota.burst - 1)


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
            slacks = _with_slack(slacks, Slack(granted.slack_us, until_us))
    more = SpentSlice(
        granted.counted_us,
        cost.tokens if quota.tokens is not None else 0,
        cost.nanodollars if quota.dollars is not None else 0,
    )
    return msgspec.structs.replace(
        level,
        tat_us=tat_us,
        spent=_with_spent(level.spent, more, quota.span_us // _SLICES),
        hold=None
        if level.hold is not None and level.hold.retry_at_us == retry_at_us
        else level.hold,
        permits={**level.permits, **permit},
        used_permille=level.used_permille - (level.used_permille - 1_000) // _UNREPORTED_WEIGHT,
        slacks=slacks,
    )


def _with_slack(slacks: tuple[Slack, ...], more: Slack) -> tuple[Slack, ...]:
    """Return the slacks with another one, without those that say less and not for longer."""
    if any(one.slack_us >= more.slack_us and one.expires_us >= more.expires_us for one in slacks):
        return slacks
    others = [
        one for one in slacks if one.slack_us > more.slack_us or one.expires_us > more.expires_us
    ]
    return tuple(sorted([*others, more], reverse=True, key=lambda one: one.slack_us))


def _with_spent(
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


def _used_permille(level: QuotaLevel, reserved: Cost, used: Cost) -> int:
    if reserved.tokens:
        latest = 1_000 * used.tokens // reserved.tokens
    elif reserved.nanodollars:
        latest = 1_000 * used.nanodollars // reserved.nanodollars
    else:
        return level.used_permille
    change = (min(latest, 1_000) - level.used_permille) // _USED_WEIGHT
    return max(level.used_permille + change, _USED_PERMILLE_MIN)


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
    return min(max(now_ms - taken_ms, _HELD_MS_MIN), _HELD_MS_MAX)
