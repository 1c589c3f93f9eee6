"""What can go wrong in the world, and how often: a value that a test turns on and off.

Rates are probabilities of one operation, or of one await. All are 0 unless said; each fault is
counted in `World.faults`, under the name of its rate, when it has taken effect and not when it was
drawn.

========================= ==========================================================================
``throttled``             raises Throttled, and nothing was written (some of a batch may be)
``unreachable``           raises EndpointUnreachable, and nothing was written (some of a batch may)
``lost_answer``           the write was applied, and the caller does not learn it
``unapplied_unknown``     the caller learns as much, and the write was not applied, ever
``late_write``            as much once more, and the write is applied later; also counted as
                          ``late_write_refused`` where its condition did not hold any more by then
``abandoned``             which part of late writes the sender does not outlive: it crashes
                          before it can send it again (counted as a crash, too)
``duplicate_write``       the caller learns that it was written, and it is written once more later,
                          if its condition holds again (else ``duplicate_write_refused``)
``cancelled_transaction`` TransactionCancelled although every condition held
``stale_index``           a query sees an index as it was, at once or each entry for itself
``stale_read``            an eventual read sees the table as it was
``slow``                  an answer takes seconds
``slow_signal``           so does a write into an inbox: meanwhile the run may expire, and be freed
``ttl_deletion``          an item whose time is up is deleted, within 48 hours, in any order
``blob_unreachable``      a blob is not written or not read (`delete_all` may have begun)
``blob_lost_answer``      a blob was written, and the caller learns EndpointUnreachable
``table_outage``          for seconds each operation of a process, or of all, raises what a store
                          raises that is full, read-only or refuses access (a rate of fleets)
``blob_outage``           the same of blobs alone (a rate of fleets)
``small_blobs``           in how many of those most records need a blob, those of calls as well
``crash``                 the process ends as by kill -9, at some moment of the await
``stall``                 the process stands still as by SIGSTOP, from some moment of the await on
``sluggish``              the process wakes late from every sleep and hears every answer late, as on
                          a machine with too much to do
``effect_lost``           a call does not reach the world outside, and its caller gets an error
``effect_unanswered``     it does, and its caller gets an error
``effect_late``           as much, and it reaches it only later
``effect_crash``          the process ends inside a call
``effect_stall``          the process stands still inside a call
``clock_jump``            the wall clock of a worker jumps, mostly ahead, by more than a lease
``clock_set_right``       it comes back; half of the workers crash before they can renew a lease
``settle_stall``          the process stands still past a lease as it is about to look at what a run
                          was given; then it sees it, and acts before it knows how late it is
``family_stall``          the same as it is about to look which children end with a run
``stream_broken``         a model breaks off in the middle of its text
``stream_crash``          the process ends in the middle of a text
``stream_stall``          the process stands still in the middle of a text
========================= ==========================================================================

How a caller learns that an answer was lost is as in `holdfast.storage.dynamodb.writer`: where the
write has a condition or adds, OutcomeUnknown; where it may just be repeated, EndpointUnreachable;
or, at the rate of ``settled``, the engine itself sends it again or reads its token back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

__all__ = ["NEVER", "FaultPlan", "Odds", "calm", "drawn", "hostile"]

Odds: TypeAlias = tuple[tuple[float, str | None], ...]
"""Kinds of fault, each with the sum of the rates up to it; None where one is muted."""

NEVER = 1e-300
"""A rate at which dice are thrown, and nothing ever strikes."""


@dataclass(frozen=True, kw_only=True)
class FaultPlan:
    """The rate of each kind of fault, and how bad it may be."""

    throttled: float = 0
    unreachable: float = 0
    lost_answer: float = 0
    unapplied_unknown: float = 0
    late_write: float = 0
    abandoned: float = 0
    duplicate_write: float = 0
    cancelled_transaction: float = 0
    stale_index: float = 0
    stale_read: float = 0
    slow: float = 0
    slow_signal: float = 0
    ttl_deletion: float = 0
    """Which part of the items is deleted at all, once the time is up."""
    blob_unreachable: float = 0
    blob_lost_answer: float = 0
    table_outage: float = 0
    blob_outage: float = 0
    small_blobs: float = 0.5
    """How many fleets have times in which their stores cannot be used: see `outages`."""
    crash: float = 0
    stall: float = 0
    sluggish: float = 0
    """Which part of the processes is slow in everything that it does."""
    effect_lost: float = 0
    effect_unanswered: float = 0
    effect_late: float = 0
    effect_crash: float = 0
    effect_stall: float = 0
    settle_stall: float = 0
    family_stall: float = 0
    stream_broken: float = 0
    stream_crash: float = 0
    stream_stall: float = 0

    dead_workers: float = 0
    """How many fleets find workers that died before; each has at most one of these three."""
    clock_jumps: float = 0
    """In how many fleets wall clocks of workers jump, and come back."""
    few_resumes: float = 0
    """How many fleets quarantine a run after two or three lost workers."""
    crowds: float = 0
    """In how many fleets inboxes are small, and somebody floods some of them."""
    restless: float = 0
    """In how many scenes of reviews people change them at the moment at which others decide."""
    strangers: float = 0
    """In how many fleets other users ask for the runs of somebody else: see `strangers`."""
    choosers: float = 0
    """In how many fleets some runs wait for the first of several: see `choices`."""
    absurd_usage: float = 0
    """In how many fleets models tell of usages that cannot be."""
    settled: float = 0.5
    """How many lost answers the engine makes up for by itself."""
    lag_seconds_max: float = 5.0
    """How old an index or an eventual read may be."""
    late_seconds_max: float = 30.0
    slow_seconds_max: float = 5.0
    slow_signal_seconds_max: float = 10.0
    stall_seconds_max: float = 150.0
    restart_seconds_max: float = 20.0
    ttl_seconds_max: float = 48 * 3600
    skew_seconds_max: float = 0
    """How far the wall clock of a process may be off, either way. A third of them is exact."""
    overshoot_seconds_max: float = 0
    """How much longer a sleep may take."""
    sluggish_seconds_min: float = 0.05
    sluggish_seconds_max: float = 0.5
    """How much longer everything takes in a process that is slow."""
    tick_ms: int = 1
    """How far a wall clock moves at once: much happens within what it takes for a millisecond."""
    muted: tuple[tuple[str, float], ...] = ()
    """Kinds that are drawn at these rates, as the other dice need it, and never strike."""

    def evolve(self, **changed: Any) -> FaultPlan:
        """Return this plan with other rates."""
        return dataclasses.replace(self, **changed)

    @property
    def kinds(self) -> list[str]:
        """The kinds of fault that strike now and then."""
        return [
            each.name
            for each in dataclasses.fields(self)
            if type(each.default) in (int, float)
            and not each.name.endswith("_max")
            and each.name != "settled"
            and getattr(self, each.name) > NEVER
        ]

    def without(self, kinds: Collection[str]) -> FaultPlan:
        """Return this plan with some kinds that do not strike, though the dice are thrown."""
        rates = {kind: getattr(self, kind) for kind in self.kinds if kind in kinds}
        if not rates:
            return self
        return self.evolve(**dict.fromkeys(rates, NEVER), muted=(*self.muted, *rates.items()))

    @cached_property
    def reads(self) -> Odds:
        return self._odds("throttled", "unreachable", "lost_answer")

    @cached_property
    def writes(self) -> Odds:
        return self._odds(*_WRITES, "duplicate_write")

    @cached_property
    def adding_writes(self) -> Odds:
        # An update that adds is never sent twice.
        return self._odds(*_WRITES)

    @cached_property
    def transactions(self) -> Odds:
        # The service carries a transaction out once, by its client token.
        return self._odds(*_WRITES, "cancelled_transaction")

    @cached_property
    def blobs(self) -> Odds:
        return self._odds("blob_unreachable", "blob_lost_answer")

    @cached_property
    def ends(self) -> Odds:
        return self._odds("crash", "stall")

    @cached_property
    def effects(self) -> Odds:
        ends = ("effect_crash", "effect_stall")
        return self._odds("effect_lost", "effect_unanswered", "effect_late", *ends)

    @cached_property
    def streams(self) -> Odds:
        return self._odds("stream_broken", "stream_crash", "stream_stall")

    def _odds(self, *kinds: str) -> Odds:
        odds: list[tuple[float, str | None]] = []
        reached = 0.0
        muted = dict(self.muted)
        for kind in kinds:
            rate = muted.get(kind) or getattr(self, kind)
            if rate:
                reached += rate
                odds.append((reached, None if kind in muted else kind))
        return tuple(odds)


_WRITES = ("throttled", "unreachable", "lost_answer", "unapplied_unknown", "late_write")


def drawn(odds: Odds, number: float) -> str | None:
    """Return the kind of fault for a number from 0 to 1, or None."""
    if not odds or number >= odds[-1][0]:  # nearly always
        return None
    for reached, kind in odds:
        if number < reached:
            return kind
    return None


def calm() -> FaultPlan:
    """Return a plan in which nothing goes wrong; operations still take their time."""
    return FaultPlan()


def hostile() -> FaultPlan:
    """Return a plan in which everything goes wrong now and then."""
    return FaultPlan(
        throttled=0.01,
        unreachable=0.01,
        lost_answer=0.015,
        unapplied_unknown=0.01,
        late_write=0.015,
        duplicate_write=0.005,
        cancelled_transaction=0.02,
        stale_index=0.3,
        stale_read=0.2,
        slow=0.01,
        ttl_deletion=1.0,
        blob_unreachable=0.01,
        blob_lost_answer=0.01,
        crash=0.001,
        stall=0.001,
        skew_seconds_max=2.0,
        overshoot_seconds_max=0.002,
    )
