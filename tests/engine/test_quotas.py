"""The desk where a process asks for what quotas give: what it writes, awaits and gives back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from itertools import pairwise
from typing import Any

import pytest

from holdfast.clock import ManualClock, SeededIds
from holdfast.engine.effects.quotas import Permit, PermitDelay, QuotaLimiter
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import (
    InvalidName,
    JournalDamaged,
    QuotaTooSmall,
    StoreUnavailable,
)
from holdfast.model.quota import Cost, Quota
from holdfast.model.quota_level import QuotaLevel
from holdfast.records.quota import level_of, quota_item_key
from holdfast.storage import Key, Meter, Put, Store
from holdfast.storage.sqlite import MEMORY, SqliteEngine
from tests.engine.fallible import Fallible
from tests.engine.support import WAIT_SECONDS_MAX, House, StepClock

TENANT = "acme"


@pytest.fixture
async def engine() -> AsyncIterator[Fallible]:
    made = Fallible(SqliteEngine(MEMORY))
    yield made
    await made.close()


class Office:
    """Desks of several processes on one store, whose clock goes on whenever all of them wait."""

    def __init__(self, engine: Fallible, clock: StepClock) -> None:
        self._engine = engine
        self._store = Store(engine, None, url="test", meter=Meter())
        self.clock = clock
        self.desks: list[QuotaLimiter] = []
        self.kernels: list[Kernel] = []

    def desk(self, **options: Any) -> QuotaLimiter:
        kernel = Kernel(self._store, self.clock, SeededIds(len(self.desks) + 1, self.clock))
        self.kernels.append(kernel)
        self.desks.append(QuotaLimiter(kernel, **options))
        return self.desks[-1]

    async def level(self, quota: Quota, tenant: str = TENANT) -> QuotaLevel:
        table = self.kernels[0].store.table
        return level_of(await table.get(quota_item_key(quota, tenant)))

    async def done(self, *waited: Awaitable[Any], step: float = 0.01) -> list[Any]:
        """Move the clock until all of these have come to an end; return their results."""
        tasks = [asyncio.ensure_future(one) for one in waited]
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not all(task.done() for task in tasks):
                await self.still()
                self.clock.advance(step)
        return [task.result() for task in tasks]

    async def sent(self) -> None:
        """Return when a write is on its way."""
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not self._engine.under_way:
                await self.clock.sleep(0)

    async def still(self) -> None:
        """Let everything run that does not wait for the clock."""
        quiet = 0
        while quiet < 10:
            await self.clock.sleep(0)
            quiet = 0 if self._engine.under_way else quiet + 1


@pytest.fixture
async def office(engine: Fallible) -> AsyncIterator[Office]:
    clock = StepClock()
    made = Office(engine, clock)
    yield made
    engine.gone = False
    engine.open.set()
    for desk in made.desks:
        await desk.close()


async def granted(desk: QuotaLimiter, quota: Quota, **options: Any) -> Permit:
    answer = await desk.acquire(quota, TENANT, retry_at_ms=None, **options)
    assert isinstance(answer, Permit)
    return answer


def quota_calls(kernel: Kernel) -> dict[str, tuple[int, float]]:
    return {
        row.operation: (row.calls, row.units.writes)
        for row in kernel.store.meter.report().rows
        if row.purpose == "quota"
    }


# --- what it costs --------------------------------------------------------------------------------


async def test_an_admission_that_nobody_contends_for_is_one_write(either: House) -> None:
    desk = QuotaLimiter(either.open()._kernel)
    quota = Quota("model", requests=1_000, tokens=1_000_000, usd=5, per=60)
    desk._kernel.store.meter.reset()
    for number in range(1, 6):
        assert isinstance(
            await desk.acquire(quota, TENANT, cost=Cost(tokens=500), retry_at_ms=None), Permit
        )
        assert quota_calls(desk._kernel) == {"write": (number, number)}
    await desk.close()


async def test_what_a_second_process_does_not_know_costs_it_one_refusal(either: House) -> None:
    first, second = QuotaLimiter(either.open()._kernel), QuotaLimiter(either.open()._kernel)
    quota = Quota("model", requests=1_000, per=60)
    for _ in range(2):
        assert isinstance(await first.acquire(quota, TENANT, retry_at_ms=None), Permit)
    second._kernel.store.meter.reset()
    for _ in range(3):
        assert isinstance(await second.acquire(quota, TENANT, retry_at_ms=None), Permit)
    assert quota_calls(second._kernel) == {"write": (4, 4)}
    await first.close()
    await second.close()


async def test_those_who_ask_together_share_a_write(office: Office, engine: Fallible) -> None:
    desk, quota = office.desk(), Quota("model", tokens=1_000, per=60)
    await asyncio.gather(*(granted(desk, quota, cost=Cost(tokens=1)) for _ in range(250)))
    # The first goes alone or not; a hundred go with each further one.
    assert len(engine.writes) <= 4
    level = await office.level(quota)
    assert sum(one.tokens for one in level.spent) == 250


# --- moments --------------------------------------------------------------------------------------


async def test_a_caller_begins_at_its_moment(office: Office) -> None:
    desk, quota = office.desk(), Quota("model", requests=10)
    began: list[int] = []

    async def call() -> None:
        await granted(desk, quota)
        began.append(office.clock.now_ms())

    await office.done(*(call() for _ in range(8)), step=0.001)
    gaps = [after - before for before, after in pairwise(began)]
    assert all(107 <= gap <= 112 for gap in gaps), gaps


async def test_who_would_wait_longer_is_told_when_to_ask_again(office: Office) -> None:
    desk, quota = office.desk(), Quota("model", requests=2)
    answers = await office.done(*(desk.acquire(quota, TENANT, retry_at_ms=None) for _ in range(6)))
    later = [one for one in answers if isinstance(one, PermitDelay)]
    assert [isinstance(one, Permit) for one in answers[:2]] == [True, True]
    assert len(later) >= 3
    assert all(one.retry_at_ms > office.clock.now_ms() - 1_000 for one in later)
    office.clock.advance((max(one.retry_at_ms for one in later) - office.clock.now_ms()) / 1000)
    (again,) = await office.done(desk.acquire(quota, TENANT, retry_at_ms=later[0].retry_at_ms))
    assert isinstance(again, Permit)


async def test_an_answer_that_comes_too_late_for_its_moment_is_not_used(
    office: Office, engine: Fallible
) -> None:
    desk, quota = office.desk(), Quota("model", requests=10, tokens=100)
    engine.open.clear()
    asking = asyncio.ensure_future(granted(desk, quota, cost=Cost(tokens=10)))
    await office.sent()
    office.clock.advance(0.2)
    engine.open.set()
    began_ms = office.clock.now_ms()
    await office.done(asking, step=0.001)
    # It asked anew, for a moment so far ahead that the answer will be there.
    assert len(engine.writes) >= 2
    assert office.clock.now_ms() >= began_ms + 2 * 200 - quota.grace_us // 1000
    # What it did not begin with is given back.
    await office.done(desk._items[quota_item_key(quota, TENANT)].close())
    assert sum(one.tokens for one in (await office.level(quota)).spent) == 10


async def test_what_was_not_used_is_given_back_with_the_next_write(
    office: Office, engine: Fallible
) -> None:
    desk, quota = office.desk(), Quota("model", tokens=100, per=60)
    first = await granted(desk, quota, cost=Cost(tokens=90))
    first.report_usage(Cost(tokens=10))
    first.report_usage(Cost(tokens=0))  # only the first time counts
    await office.still()
    assert len(engine.writes) == 1
    await granted(desk, quota, cost=Cost(tokens=90))
    assert len(engine.writes) == 2
    assert sum(one.tokens for one in (await office.level(quota)).spent) == 100
    assert isinstance(
        await desk.acquire(quota, TENANT, cost=Cost(tokens=5), retry_at_ms=None), PermitDelay
    )


async def test_what_was_not_used_is_given_back_alone_after_a_while(
    office: Office, engine: Fallible
) -> None:
    desk, quota = office.desk(), Quota("model", tokens=100, per=60)
    (await granted(desk, quota, cost=Cost(tokens=90))).report_usage(Cost(tokens=10))
    await office.clock.asleep(1)
    office.clock.advance(1)
    await office.still()
    assert len(engine.writes) == 2
    assert sum(one.tokens for one in (await office.level(quota)).spent) == 10


async def test_a_settlement_with_nothing_to_say_costs_nothing(
    office: Office, engine: Fallible
) -> None:
    desk, quota = office.desk(), Quota("model", tokens=100, requests=10, per=60)
    passed = await granted(desk, quota, cost=Cost(tokens=90))
    passed.report_usage(Cost(tokens=90))
    passed.release()
    await desk.close()
    assert len(engine.writes) == 1


# --- several desks --------------------------------------------------------------------------------


async def test_two_desks_never_grant_more_than_the_limit(office: Office) -> None:
    quota = Quota("model", requests=50, tokens=1_000)
    desks = [office.desk(), office.desk()]
    began: list[int] = []

    async def caller(desk: QuotaLimiter) -> None:
        told_ms: int | None = None
        while True:
            answer = await desk.acquire(quota, TENANT, cost=Cost(tokens=20), retry_at_ms=told_ms)
            if isinstance(answer, Permit):
                began.append(office.clock.now_ms())
                return
            told_ms = answer.retry_at_ms
            await office.clock.sleep((told_ms - office.clock.now_ms()) / 1000)

    await office.done(*(caller(desks[number % 2]) for number in range(160)), step=0.002)
    began.sort()
    windows = [sum(start <= at < start + 1_000 for at in began) for start in began]
    assert max(windows) <= 50
    assert began[-1] - began[0] <= 160 / 50 * 1_000 * 1.25


async def test_tenants_are_apart_where_each_has_it_for_itself(office: Office) -> None:
    desk = office.desk()
    quota = Quota("model", requests=1, per=60, per_tenant=True)
    assert isinstance(await desk.acquire(quota, "one", retry_at_ms=None), Permit)
    assert isinstance(await desk.acquire(quota, "two", retry_at_ms=None), Permit)
    assert isinstance(await desk.acquire(quota, "one", retry_at_ms=None), PermitDelay)
    # Not even one called so is who shares a quota with everybody.
    shared = Quota("model", requests=1, per=60)
    for tenant in ("-", "_"):
        assert isinstance(await desk.acquire(quota, tenant, retry_at_ms=None), Permit)
    assert isinstance(await desk.acquire(shared, "-", retry_at_ms=None), Permit)
    assert isinstance(await desk.acquire(shared, "two", retry_at_ms=None), PermitDelay)


@pytest.mark.parametrize("name", ["a#b", "a/b", "x" * 129, " a", ".a", "a\x00", "\ud800", "~", "%"])
async def test_a_hostile_tenant_is_refused_before_anything_is_written(
    office: Office, engine: Fallible, name: str
) -> None:
    desk = office.desk()
    with pytest.raises(InvalidName):
        await desk.acquire(Quota("q", requests=1), name, retry_at_ms=None)
    assert engine.writes == []


async def test_a_cost_that_can_never_be_granted_is_an_error(
    office: Office, engine: Fallible
) -> None:
    with pytest.raises(QuotaTooSmall):
        await office.desk().acquire(
            Quota("q", tokens=10), TENANT, cost=Cost(tokens=11), retry_at_ms=None
        )
    assert engine.writes == []


@pytest.mark.parametrize(("before", "after"), [(100, 5), (5, 100)], ids=["lowered", "raised"])
async def test_another_limit_counts_with_the_next_deploy(
    office: Office, before: int, after: int
) -> None:
    old, new = office.desk(), office.desk()
    for _ in range(5):
        await granted(old, Quota("q", tokens=before, per=60), cost=Cost(tokens=1))
    answers = [
        await new.acquire(
            Quota("q", tokens=after, per=60), TENANT, cost=Cost(tokens=1), retry_at_ms=None
        )
        for _ in range(2)
    ]
    assert [isinstance(one, Permit) for one in answers] == [after > 5] * 2


async def test_an_item_of_a_newer_release_is_no_permission(office: Office) -> None:
    desk, quota = office.desk(), Quota("q", requests=10)
    key: Key = quota_item_key(quota, TENANT)
    item = {"PK": key.pk, "SK": key.sk, "level": b"\x07?", "ttl": 5_000_000_000}
    await office.kernels[0].store.table.write(Put(item, token="t"))
    with pytest.raises(JournalDamaged):
        await desk.acquire(quota, TENANT, retry_at_ms=None)


# --- lost answers ---------------------------------------------------------------------------------


async def test_a_lost_answer_is_told_by_what_stands(office: Office, engine: Fallible) -> None:
    desk, quota = office.desk(), Quota("q", tokens=100, per=60)
    engine.lost = 2
    (passed,) = await office.done(granted(desk, quota, cost=Cost(tokens=10)))
    assert isinstance(passed, Permit)
    assert len({write.write.token for write in engine.writes if isinstance(write.write, Put)}) == 1
    assert sum(one.tokens for one in (await office.level(quota)).spent) == 10


async def test_nothing_is_given_back_twice(office: Office, engine: Fallible) -> None:
    desk, other = office.desk(), office.desk()
    quota = Quota("q", tokens=100, per=60)
    await granted(other, quota, cost=Cost(tokens=40))
    first = await granted(desk, quota, cost=Cost(tokens=60))
    # The settlement is carried out, its answer is lost, and somebody builds upon it.
    engine.lost = 1

    async def meanwhile() -> None:
        await granted(other, quota, cost=Cost(tokens=50))

    first.report_usage(Cost(tokens=10))
    engine.meanwhile = meanwhile
    await office.done(desk.close())
    level = await office.level(quota)
    assert sum(one.tokens for one in level.spent) == 10 + 40 + 50


async def test_a_store_that_does_not_answer_is_no_permission(
    office: Office, engine: Fallible
) -> None:
    desk, quota = office.desk(), Quota("q", requests=10)
    await granted(desk, quota)
    engine.gone = True
    with pytest.raises(StoreUnavailable) as failed:
        await office.done(desk.acquire(quota, TENANT, retry_at_ms=None), step=1)
    assert failed.value.retryable
    engine.gone = False
    engine.lost = 1_000_000
    with pytest.raises(StoreUnavailable):
        await office.done(desk.acquire(quota, TENANT, retry_at_ms=None), step=1)
    engine.lost = 0
    office.clock.advance(5)
    assert isinstance((await office.done(granted(desk, quota)))[0], Permit)


# --- cancelled ------------------------------------------------------------------------------------


async def test_a_caller_that_is_cancelled_loses_nothing(office: Office, engine: Fallible) -> None:
    desk, quota = office.desk(), Quota("q", tokens=100, requests=10, concurrency=3, per=1)
    engine.open.clear()
    in_flight = asyncio.ensure_future(granted(desk, quota, cost=Cost(tokens=50)))
    await office.sent()
    gathered = asyncio.ensure_future(granted(desk, quota, cost=Cost(tokens=50)))
    await office.clock.sleep(0)
    for task in (in_flight, gathered):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    engine.open.set()
    await office.still()
    # One that waits for its moment.
    (first,) = await office.done(granted(desk, quota, cost=Cost(tokens=10)))
    sleeping = asyncio.ensure_future(granted(desk, quota, cost=Cost(tokens=50)))
    await office.clock.asleep(1)
    await office.still()
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping
    await desk.close()
    level = await office.level(quota)
    assert sum(one.tokens for one in level.spent) == 10
    assert len(level.permits) == 1
    assert first.is_held


# --- slots ----------------------------------------------------------------------------------------


async def test_slots_are_held_while_calls_run_and_free_afterwards(office: Office) -> None:
    desk, quota = office.desk(), Quota("q", concurrency=2)
    first, second = await granted(desk, quota), await granted(desk, quota)
    assert isinstance(
        (await office.done(desk.acquire(quota, TENANT, retry_at_ms=None)))[0], PermitDelay
    )
    async with first:
        assert first.is_held
    first.release()
    assert not first.is_held
    third = (await office.done(granted(desk, quota)))[0]
    second.release()
    third.release()
    await desk.close()
    assert (await office.level(quota)).permits == {}


async def test_slots_are_renewed_together_as_long_as_they_are_held(
    office: Office, engine: Fallible
) -> None:
    desk, other = office.desk(), office.desk()
    quota = Quota("q", concurrency=3)
    passes = [await granted(desk, quota) for _ in range(3)]
    engine.writes.clear()
    for _ in range(15):  # five minutes, at a lease of one
        await office.clock.asleep(1)
        office.clock.advance(20)
        await office.still()
    assert len(engine.writes) == 15
    assert all(one.is_held for one in passes)
    assert isinstance(
        (await office.done(other.acquire(quota, TENANT, retry_at_ms=None)))[0], PermitDelay
    )
    for one in passes:
        one.release()
    await office.still()
    assert isinstance((await office.done(granted(other, quota)))[0], Permit)


async def test_the_slots_of_who_is_gone_are_free_when_their_leases_end(office: Office) -> None:
    gone, other = office.desk(), office.desk()
    quota = Quota("q", concurrency=2)
    passes = [await granted(gone, quota) for _ in range(2)]
    assert gone._renew_task is not None
    gone._renew_task.cancel()
    office.clock.advance(55)
    assert isinstance(
        (await office.done(other.acquire(quota, TENANT, retry_at_ms=None)))[0], PermitDelay
    )
    office.clock.advance(6)
    assert not any(one.is_held for one in passes)
    for _ in range(2):
        assert isinstance((await office.done(granted(other, quota)))[0], Permit)


async def test_a_slot_that_was_lost_to_its_lease_is_not_released_for_another(
    office: Office,
) -> None:
    stalled, other = office.desk(), office.desk()
    quota = Quota("q", concurrency=1)
    passed = await granted(stalled, quota)
    assert stalled._renew_task is not None
    stalled._renew_task.cancel()
    office.clock.advance(61)
    await office.done(granted(other, quota))
    passed.release()
    await stalled.close()
    assert len((await office.level(quota)).permits) == 1


async def test_a_manual_clock_is_all_that_a_desk_needs() -> None:
    clock = ManualClock()
    store = Store(SqliteEngine(MEMORY, clock=clock), None, url="test", meter=Meter())
    desk = QuotaLimiter(Kernel(store, clock, SeededIds(1, clock)))
    assert isinstance(await desk.acquire(Quota("q", requests=5), TENANT, retry_at_ms=None), Permit)
    await desk.close()
    await store.close()
