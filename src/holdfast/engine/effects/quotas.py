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

from holdfast.engine.effects.quota_waiters import Waiters
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import ConditionFailed, HoldfastError, OutcomeUnknown, StoreUnavailable
from holdfast.model import level as levels
from holdfast.model.level import HORIZON_US, Granted, Level, slack_us_for
from holdfast.model.quota import ONE_REQUEST, Cost, Quota
from holdfast.records.quota import changed, key_of, level_of
from holdfast.storage import Key

__all__ = ["Later", "NotYet", "Pass", "QuotaDesk"]

LEASE_SECONDS = 60.0
_RENEWALS_A_LEASE = 3
_BATCH_MAX = 100
_COUNTERS_MAX = 10_000
# So long a settlement waits for another write with which to go.
_LINGER_SECONDS = 0.5
# From so many refusals in a row on, those who contend for an item part ways.
_REFUSALS_IN_STEP = 3
_APART_SECONDS = 0.02
_NOTHING = Cost(0, 0, 0)


class Later(msgspec.Struct, frozen=True):
    """Nothing was taken. Whoever asks again at this time says that it was told so."""

    until_ms: int


class NotYet(Exception):
    """A call that asked for room in its quota while it was being made gets it only later."""

    def __init__(self, later: Later, quota: Quota) -> None:
        super().__init__(f"the quota {quota.name!r} has room at {later.until_ms}")
        self.until_ms = later.until_ms
        self.quota = quota


class Pass:
    """The right to begin now, and a slot if the quota has them.

    The call is to begin at once: what comes between is taken from the little that is allowed for.
    To settle tells what was really used; without it all that was reserved counts. To release gives
    the slot back; ``async with`` does so at its end.
    """

    def __init__(self, counter: _Counter, ask: _Ask, granted: Granted, asked_at: _Moment) -> None:
        self._counter = counter
        self._ask = ask
        self._granted = granted
        self._asked_at = asked_at
        self._settled = False

    @property
    def quota(self) -> Quota:
        """The quota that gave it."""
        return self._ask.quota

    @property
    def cost(self) -> Cost:
        """What it reserves."""
        return self._ask.cost

    async def reach(self) -> bool:
        """Wait for its moment; return whether the caller can begin, and is not too late."""
        counter = self._counter
        try:
            while (seconds := counter.seconds_until(self._granted.at_us, self._asked_at)) > 0:
                await counter.sleep(seconds)
        except BaseException:
            self.give_back()
            raise
        return self.confirm()

    def confirm(self) -> bool:
        """Return whether the caller can begin now; give everything back where it is too late.

        Call it just before the call begins. The process learns from it how late its callers are.
        """
        late_us = self._late_us
        missed = late_us > self.quota.grace_us + self._granted.slack_us
        self._counter.learn(late_us, self._asked_at, missed=missed)
        if missed:
            self.give_back()
        return not missed

    @property
    def _late_us(self) -> int:
        return -round(self._counter.seconds_until(self._granted.at_us, self._asked_at) * 1_000_000)

    @property
    def held(self) -> bool:
        """Whether the slot is ours, as far as we know; always true where there are no slots."""
        return self._ask.quota.at_once is None or self._counter.holds(self._ask.token)

    def settle(self, used: Cost) -> None:
        """Say what was used: the rest is given back, and what goes beyond it counts too."""
        if self._settled:
            return
        self._settled = True
        quota, reserved = self._ask.quota, self._ask.cost
        counted = quota.tokens is not None or quota.dollars is not None
        if counted and (used.tokens, used.nanodollars) != (reserved.tokens, reserved.nanodollars):
            at_us = self._granted.counted_us
            self._counter.add(_Settlement(quota, reserved, used, at_us), urgent=False)

    def release(self) -> None:
        """Give the slot back; only the first time counts."""
        if self._ask.quota.at_once is not None:
            self._counter.let_go(self._ask.token)

    def give_back(self) -> None:
        """Give everything back that can be: nothing was begun."""
        self.settle(_NOTHING)
        self.release()

    async def __aenter__(self) -> Pass:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


class QuotaDesk:
    """Where everybody in this process asks for what quotas give."""

    def __init__(self, kernel: Kernel, *, lease_seconds: float = LEASE_SECONDS) -> None:
        self._kernel = kernel
        self._lease_seconds = lease_seconds
        self._counters: dict[Key, _Counter] = {}
        self.counts = Counter[str]()
        """How many were admitted, were told to come back, or were too late for their moment."""
        self._renewing: asyncio.Task[None] | None = None

    async def admit(
        self, quota: Quota, tenant: str, *, cost: Cost = ONE_REQUEST, told_ms: int | None
    ) -> Pass | Later:
        """Return the right to begin now, or when to ask again.

        It waits in place for up to about a second. ``told_ms`` is when a `Later` said to ask again,
        None for who asks for the first time: it is what keeps newcomers from overtaking.

        Raises:
            QuotaTooSmall: the cost is more than the quota gives in a whole window.
            InvalidName: the quota's or the tenant's name cannot be one.
            StoreUnavailable: the store does not answer; nothing is known to be granted.
        """
        quota.admit(cost)
        counter = self._counter(key_of(quota, tenant))
        clock = self._kernel.clock
        stays_until = clock.monotonic() + HORIZON_US / 1_000_000
        told_us = None if told_ms is None else told_ms * 1000
        wait = _NO_WAIT
        while True:
            ask = _Ask(quota, cost, told_us, self._kernel.ids.new(), self._lease_ms)
            answer, asked_at = await counter.answered(ask, wait)
            if isinstance(answer, Granted):
                granted = Pass(counter, ask, answer, asked_at)
                if await granted.reach():
                    self._keep_renewing(quota)
                    self.counts["admitted"] += 1
                    return granted
                self.counts["late"] += 1
                # Too late for its moment, not for its turn.
                told_us, wait = asked_at.now_us, _NO_WAIT
                continue
            told_us, now = answer.until_us, clock.monotonic()
            wait = _Wait(asked_at.seconds_until(told_us, now))
            stays = now + wait.seconds <= stays_until
            if stays and answer.waits_for == "slot":
                wait = wait._replace(slot_seconds=stays_until - now)
            elif answer.waits_for != "others":
                counter.waiters.note_away(told_us, now_us=asked_at.now_us)
            if not stays:
                self.counts["told"] += 1
                return Later(told_us // 1000)

    async def close(self) -> None:
        """Write down what was given back, as far as the store answers, and stop renewing."""
        if self._renewing is not None:
            self._renewing.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewing
        for counter in self._counters.values():
            await counter.close()

    @property
    def _lease_ms(self) -> int:
        return round(self._lease_seconds * 1000)

    def _counter(self, key: Key) -> _Counter:
        counter = self._counters.get(key)
        if counter is None:
            if len(self._counters) >= _COUNTERS_MAX:
                self._counters = {k: c for k, c in self._counters.items() if c.busy}
            counter = self._counters[key] = _Counter(self._kernel, key)
        return counter

    def _keep_renewing(self, quota: Quota) -> None:
        if quota.at_once is not None and (self._renewing is None or self._renewing.done()):
            self._renewing = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        while any(counter.held for counter in self._counters.values()):
            await self._kernel.clock.sleep(self._lease_seconds / _RENEWALS_A_LEASE)
            for counter in self._counters.values():
                if counter.held:
                    counter.add(_Renewal(counter, self._lease_ms))


class _Moment(NamedTuple):
    """One moment on both clocks: others go by the first, we wait by the second.

    So a wall clock that is set while we wait changes nothing.
    """

    now_us: int
    monotonic: float

    def seconds_until(self, at_us: int, monotonic: float) -> float:
        return (at_us - self.now_us) / 1_000_000 - (monotonic - self.monotonic)


class _Wait(NamedTuple):
    """How long a caller waits in place before it asks."""

    seconds: float
    slot_seconds: float = 0.0
    """Up to so long it can wait for a slot that this process releases; 0 if for something else."""


_NO_WAIT = _Wait(0.0)


class _Pace(NamedTuple):
    """How slow this process is."""

    lead_us: int
    """How far ahead a moment must be, lest the answer comes too late for it."""
    slack_us: int
    """How much more than the grace its callers need to begin."""


class _Change(Protocol):
    """What somebody wants to become of an item."""

    @property
    def repeatable(self) -> bool:
        """Whether it may be made again where an earlier sending of it may have counted."""
        ...

    def applied(self, level: Level, *, now_us: int, pace: _Pace) -> Level: ...

    def done(self, level: Level, moment: _Moment) -> None: ...

    def fail(self, error: BaseException) -> None: ...


class _Ask:
    """Somebody asks; what was granted to a lost answer is forfeited, so it may ask again."""

    repeatable = True

    def __init__(
        self, quota: Quota, cost: Cost, told_us: int | None, token: str, lease_ms: int
    ) -> None:
        self.quota = quota
        self.cost = cost
        self.token = token if quota.at_once is not None else ""
        self.lease_ms = lease_ms
        self.future: asyncio.Future[tuple[levels.Answer, _Moment]] = (
            asyncio.get_running_loop().create_future()
        )
        self.answer: levels.Answer | None = None
        self.told_us = told_us

    def applied(self, level: Level, *, now_us: int, pace: _Pace) -> Level:
        level, self.answer = levels.asked(
            level,
            self.quota,
            self.cost,
            now_us=now_us,
            told_us=self.told_us,
            lead_us=pace.lead_us,
            slack_us=pace.slack_us,
            token=self.token,
            lease_ms=self.lease_ms,
        )
        return level

    def done(self, level: Level, moment: _Moment) -> None:
        if not self.future.done():
            assert self.answer is not None
            self.future.set_result((self.answer, moment))

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class _Settlement(msgspec.Struct, frozen=True):
    """What was used of a grant. Given back twice, it would give away what others have."""

    quota: Quota
    reserved: Cost
    used: Cost
    at_us: int
    repeatable: bool = False

    def applied(self, level: Level, *, now_us: int, pace: _Pace) -> Level:
        return levels.settled(
            level, self.quota, self.reserved, used=self.used, at_us=self.at_us, now_us=now_us
        )

    def done(self, level: Level, moment: _Moment) -> None: ...

    def fail(self, error: BaseException) -> None:
        """Leave it reserved: that errs on the safe side."""


class _Release(msgspec.Struct, frozen=True):
    """A slot that is free again."""

    token: str
    repeatable: bool = True

    def applied(self, level: Level, *, now_us: int, pace: _Pace) -> Level:
        return levels.released(level, [self.token], now_ms=now_us // 1000)

    def done(self, level: Level, moment: _Moment) -> None: ...

    def fail(self, error: BaseException) -> None:
        """Leave it to its lease, which nobody renews."""


class _Renewal:
    """The slots of an item that this process holds, all in one write."""

    repeatable = True

    def __init__(self, counter: _Counter, lease_ms: int) -> None:
        self._counter = counter
        self._lease_ms = lease_ms

    def applied(self, level: Level, *, now_us: int, pace: _Pace) -> Level:
        until_ms = now_us // 1000 + self._lease_ms
        return levels.renewed(level, self._counter.held, until_ms=until_ms)

    def done(self, level: Level, moment: _Moment) -> None:
        until = moment.monotonic + self._lease_ms / 1000
        for token in list(self._counter.held):
            if token in level.slots:
                self._counter.held[token] = until

    def fail(self, error: BaseException) -> None:
        """Let the next one try."""


class _Counter:
    """One quota's item, as this process knows it, and those who want something of it."""

    def __init__(self, kernel: Kernel, key: Key) -> None:
        self._kernel = kernel
        self._table = kernel.store.records("quota")
        self._key = key
        self._standing: dict[str, Any] | None = None
        self._pending: list[_Change] = []
        self._quota: Quota | None = None
        self._lag_us = 0
        self._tardy_us = 0
        self._tardy_since = 0.0
        self._working: asyncio.Task[None] | None = None
        self._lingering: asyncio.Task[None] | None = None
        self.waiters = Waiters[_Ask]()
        self.held: dict[str, float] = {}
        """The slots of this process, and until when each is ours by our own clock."""

    @property
    def busy(self) -> bool:
        return bool(self._pending or self.held or self.waiters) or self._working is not None

    def holds(self, token: str) -> bool:
        return self._kernel.clock.monotonic() < self.held.get(token, 0.0)

    def let_go(self, token: str) -> None:
        if self.held.pop(token, None) is not None:
            self.add(_Release(token))

    def add(self, change: _Change, *, urgent: bool = True) -> None:
        """Let a change be written; what is not urgent waits a while for company."""
        self._pending.append(change)
        if urgent:
            if self._working is None:
                self._working = asyncio.create_task(self._work())
        elif self._working is None and self._lingering is None:
            self._lingering = asyncio.create_task(self._linger())

    async def answered(self, ask: _Ask, wait: _Wait) -> tuple[levels.Answer, _Moment]:
        """Return the answer to an ask, which is sent after a wait.

        If it waits for a slot, another write of this process may answer it before it is sent. A
        caller that is cancelled loses nothing.
        """
        self._quota = ask.quota
        sending: asyncio.Task[None] | None = None
        if wait.seconds > 0:
            sending = asyncio.create_task(self._send(ask, wait))
        else:
            self.add(ask)
        try:
            return await asyncio.shield(ask.future)
        except asyncio.CancelledError:
            self._withdraw(ask)
            # It may be answered already, or be on its way.
            ask.future.add_done_callback(lambda future: self._unwanted(ask, future))
            raise
        finally:
            if sending is not None:
                sending.cancel()

    async def _send(self, ask: _Ask, wait: _Wait) -> None:
        """Send an ask after a wait."""
        if wait.slot_seconds:
            self.waiters.add(ask)
        await self._kernel.clock.sleep(wait.seconds)
        if wait.slot_seconds and self._frees_slots_alone(ask.quota):
            # No slot becomes free before this process releases one, and that write answers it.
            await self._kernel.clock.sleep(wait.slot_seconds - wait.seconds)
        self.waiters.remove(ask)
        self.add(ask)

    def _frees_slots_alone(self, quota: Quota) -> bool:
        """Return whether this process holds all slots, and no other callers are in the line."""
        slots = level_of(self._standing).slots.keys()
        full = quota.at_once is not None and len(slots) >= quota.at_once
        now_us = self._kernel.clock.now_ms() * 1000
        return full and slots <= self.held.keys() and self.waiters.are_alone(now_us)

    def _withdraw(self, ask: _Ask) -> None:
        """Do not send an ask, if it was not sent yet."""
        self.waiters.remove(ask)
        if ask in self._pending:
            self._pending.remove(ask)

    def _unwanted(self, ask: _Ask, future: asyncio.Future[tuple[levels.Answer, _Moment]]) -> None:
        if not future.cancelled() and future.exception() is None:
            answer, asked_at = future.result()
            if isinstance(answer, Granted):
                Pass(self, ask, answer, asked_at).give_back()

    async def close(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            with suppress(asyncio.CancelledError):
                await self._lingering
            self._lingering = None
        if self._pending and self._working is None:
            self._working = asyncio.create_task(self._work())
        if self._working is not None:
            await self._working

    async def _linger(self) -> None:
        await self._kernel.clock.sleep(_LINGER_SECONDS)
        self._lingering = None
        if self._pending and self._working is None:
            self._working = asyncio.create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._pending:
                batch, self._pending = self._pending[:_BATCH_MAX], self._pending[_BATCH_MAX:]
                try:
                    await self._write(batch)
                except OutcomeUnknown as error:
                    self._forget(batch, StoreUnavailable(str(error)))
                except HoldfastError as error:
                    self._forget(batch, error)
        finally:
            self._working = None

    def _forget(self, batch: Sequence[_Change], error: HoldfastError) -> None:
        self._standing = None
        for change in batch:
            change.fail(error)

    async def _write(self, batch: list[_Change]) -> None:
        """Write what becomes of the item, until nobody else was faster."""
        assert self._quota is not None
        clock, quota = self._kernel.clock, self._quota
        refusals = 0
        while batch:
            moment = _Moment(clock.now_ms() * 1000, clock.monotonic())
            level, before = level_of(self._standing), self._standing
            pace = _Pace(self._lead_us(quota), slack_us_for(quota, self._tardy_us))
            level, waited = self._changed(level, batch, moment.now_us, pace=pace)
            doubtful = _Doubt()
            write = changed(self._key, level, quota, standing=before, token=self._kernel.ids.new())
            try:
                self._standing = await self._kernel.settle(
                    self._table, write, stands=doubtful.arises
                )
            except ConditionFailed as failed:
                self._standing = None if failed.item is None else dict(failed.item)
                self.waiters.see(level_of(self._standing).line_us)
                if doubtful.arisen:
                    batch = [change for change in batch if change.repeatable]
                refusals += 1
                if refusals > _REFUSALS_IN_STEP:
                    await clock.sleep(_APART_SECONDS * self._kernel.ids.random())
                continue
            self._took(round((clock.monotonic() - moment.monotonic) * 1_000_000))
            self.waiters.line_us = level.line_us
            for ask in waited:
                self._withdraw(ask)  # its time may have come meanwhile
            # Callers that begin hear of it first. A caller of the same node that is told to come
            # back would let go of the run otherwise, and the call that begins would be lost.
            for change in sorted([*batch, *waited], key=_is_told_later):
                self._note(change, moment)
                change.done(level, moment)
            return

    def _changed(
        self, level: Level, batch: Sequence[_Change], now_us: int, *, pace: _Pace
    ) -> tuple[Level, list[_Ask]]:
        """Return the level after these changes, and the waiting callers that are answered with it.

        A caller that takes no slot before its time keeps its place in the line.
        """
        shared = self.waiters.share_line(now_us)
        waiting = self.waiters.due(now_us) if shared else self.waiters.first(now_us)
        answered, full = list[_Ask](), False
        for change in sorted([*batch, *waiting], key=_turn):
            if not isinstance(change, _Ask) or change not in self.waiters:
                level = change.applied(level, now_us=now_us, pace=pace)
            elif not full:
                after = change.applied(level, now_us=now_us, pace=pace)
                full = not shared and not isinstance(change.answer, Granted)
                if not full:
                    level = after
                    answered.append(change)
        return level, answered

    def _note(self, change: _Change, moment: _Moment) -> None:
        if isinstance(change, _Ask) and isinstance(change.answer, Granted) and change.token:
            self.held[change.token] = moment.monotonic + change.lease_ms / 1000

    def seconds_until(self, at_us: int, asked_at: _Moment) -> float:
        """Return how long it is until a moment that was granted."""
        return asked_at.seconds_until(at_us, self._kernel.clock.monotonic())

    async def sleep(self, seconds: float) -> None:
        await self._kernel.clock.sleep(seconds)

    def learn(self, late_us: int, asked_at: _Moment, *, missed: bool) -> None:
        """Learn by how much a caller was late for its moment."""
        if not missed:
            self._tardy_us = max(late_us, self._tardy_us * 7 // 8)
        elif asked_at.monotonic >= self._tardy_since:
            # Twice as much at most, lest one that stood still slows all others down; and once for
            # all that were asked for before anything was learned from the first.
            assert self._quota is not None
            self._tardy_us = min(late_us, 2 * max(self._tardy_us, self._quota.grace_us))
            self._tardy_since = self._kernel.clock.monotonic()

    def _took(self, microseconds: int) -> None:
        self._lag_us = max(microseconds, self._lag_us * 7 // 8)

    def _lead_us(self, quota: Quota) -> int:
        """Return how far ahead a moment must be, lest the answer comes too late for it."""
        return min(max(2 * self._lag_us - quota.grace_us // 2, 0), HORIZON_US // 2)


def _turn(change: _Change) -> float:
    """Return the order of changes in a write: callers come after releases, newcomers last."""
    if not isinstance(change, _Ask):
        return 0
    return math.inf if change.told_us is None else change.told_us


def _is_told_later(change: _Change) -> bool:
    return isinstance(change, _Ask) and not isinstance(change.answer, Granted)


class _Doubt:
    """Whether a write that was refused at last may have been carried out before."""

    def __init__(self) -> None:
        self.arisen = False

    def arises(self, item: dict[str, Any]) -> bool:
        self.arisen = True
        return False
