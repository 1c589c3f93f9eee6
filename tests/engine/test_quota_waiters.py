"""Callers of one process that wait for a slot: they use it well, and leave others their turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import NamedTuple

import pytest

from holdfast.engine.effects.quota_waiters import PermitWaiters
from holdfast.engine.effects.quotas import Permit, QuotaLimiter
from holdfast.model.quota import Quota
from holdfast.model.quota_admission import LATENESS_US
from tests.engine.fallible import Fallible
from tests.engine.test_quotas import TENANT, Office, engine, granted, office

__all__ = ["engine", "office"]  # fixtures

CALL_SECONDS = 0.1


class Place(NamedTuple):
    retry_at_us: int | None


async def call(office: Office, desk: QuotaLimiter, quota: Quota) -> None:
    """Make one call as soon as the quota has a slot."""
    told_ms: int | None = None
    while not isinstance(answer := await desk.acquire(quota, TENANT, retry_at_ms=told_ms), Permit):
        told_ms = answer.retry_at_ms
        await office.clock.sleep((told_ms - office.clock.now_ms()) / 1000)
    async with answer:
        await office.clock.sleep(CALL_SECONDS)


# --- which of them may take a slot early ----------------------------------------------------------


def test_all_that_wait_may_take_a_slot_while_no_other_process_is_in_the_line() -> None:
    waiters, places = PermitWaiters[Place](), [Place(30), Place(20)]
    for place in places:
        waiters.add(place)
    assert waiters.next_early(10) == places
    assert waiters.is_line_local(10)
    waiters.remove(places[0])
    waiters.remove(places[0])
    assert waiters.next_early(10) == [Place(20)]


def test_no_caller_takes_a_slot_early_while_another_process_has_callers_in_the_line() -> None:
    waiters = PermitWaiters[Place]()
    waiters.add(Place(20))
    waiters.line_us = 20
    waiters.observe_line(20)  # the other process wrote, and has no caller in the line
    assert waiters.next_early(10) == [Place(20)]
    waiters.observe_line(50)
    over_us = 50 + LATENESS_US
    assert waiters.next_early(10) == waiters.next_early(over_us - 1) == []
    assert waiters.is_line_shared(over_us - 1)
    assert waiters.due(19) == []
    assert waiters.due(20) == [Place(20)]
    assert waiters.next_early(over_us) == [Place(20)]


def test_callers_that_were_told_to_come_back_later_are_not_overtaken() -> None:
    waiters = PermitWaiters[Place]()
    for told_us in (20, 40, 60):
        waiters.add(Place(told_us))
    waiters.note_deferred(50, now_us=10)
    waiters.note_deferred(40, now_us=10)
    assert waiters.next_early(10) == [Place(20), Place(40)]
    assert not waiters.is_line_local(49)
    assert waiters.next_early(50) == [Place(20), Place(40), Place(60)]
    # What has passed is forgotten.
    waiters.note_deferred(90, now_us=50)
    assert waiters.next_early(50) == [Place(20), Place(40), Place(60)]


def test_a_caller_whose_place_has_passed_keeps_only_the_next_one_that_is_away_its_turn() -> None:
    waiters = PermitWaiters[Place]()
    for told_us in (30, 50, 70):
        waiters.add(Place(told_us))
    for told_us in (60, 20, 40):
        waiters.note_deferred(told_us, now_us=10)
    assert waiters.next_early(10) == []
    assert waiters.next_early(20) == [Place(30)]
    assert waiters.next_early(40) == [Place(30), Place(50)]
    assert waiters.next_early(60) == [Place(30), Place(50), Place(70)]


# --- what comes of it -----------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 2, 5])
async def test_short_calls_leave_no_slot_free(
    office: Office, engine: Fallible, concurrency: int
) -> None:
    desk, quota = office.desk(), Quota("q", concurrency=concurrency)
    began = office.clock.monotonic()
    await office.done(*(call(office, desk, quota) for _ in range(30)), step=0.005)
    took = office.clock.monotonic() - began
    assert took <= 1.5 * 30 * CALL_SECONDS / concurrency
    assert len(engine.writes) <= 2.7 * 30


async def test_a_caller_takes_a_slot_in_the_write_that_releases_it(
    office: Office, engine: Fallible
) -> None:
    desk, quota = office.desk(), Quota("q", concurrency=1)
    first = await granted(desk, quota)
    waiting = [asyncio.ensure_future(granted(desk, quota)) for _ in range(3)]
    await office.still()
    # Their times pass. While this process holds all slots they need not ask.
    engine.writes.clear()
    office.clock.advance(0.5)
    await office.still()
    assert engine.writes == []
    first.release()
    newcomer = asyncio.ensure_future(granted(desk, quota))
    await office.still()
    assert [one.done() for one in (*waiting, newcomer)] == [True, False, False, False]
    assert len(engine.writes) <= 2
    assert list((await office.level(quota)).permits) == list(desk_slots(desk))
    for one in (*waiting[1:], newcomer):
        one.cancel()
    (await waiting[0]).release()
    await office.still()
    assert (await office.level(quota)).permits == {}


async def test_a_caller_that_begins_hears_of_it_before_one_that_is_told_to_come_back(
    office: Office,
) -> None:
    """In one node, the second would let go of the run while the first begins its call."""
    desk, quota, heard = office.desk(), Quota("q", concurrency=1), list[str]()
    first = await granted(desk, quota)
    office.clock.advance(1.2)
    first.release()
    await office.still()
    first = await granted(desk, quota)

    async def caller() -> None:
        heard.append(type(await desk.acquire(quota, TENANT, retry_at_ms=None)).__name__)

    waiting = asyncio.ensure_future(caller())
    await office.still()
    later = asyncio.ensure_future(caller())
    first.release()
    await office.done(waiting, later)
    assert heard == ["Permit", "PermitDelay"]


async def test_a_process_leaves_the_callers_of_another_one_their_turn(office: Office) -> None:
    quota, calls = Quota("q", concurrency=2), Counter[str]()
    busy, other = office.desk(), office.desk()
    until = office.clock.monotonic() + 20

    async def caller(name: str, desk: QuotaLimiter) -> None:
        while office.clock.monotonic() < until:
            await call(office, desk, quota)
            calls[name] += 1

    callers = [caller("busy", busy) for _ in range(6)]
    await office.done(*callers, caller("other", other), step=0.005)
    each = calls.total() / 7
    assert calls["other"] > each / 2
    assert calls.total() * CALL_SECONDS / 2 > 0.7 * 20


async def test_a_caller_that_is_cancelled_takes_no_slot(office: Office, engine: Fallible) -> None:
    desk, quota = office.desk(), Quota("q", concurrency=1)
    first = await granted(desk, quota)
    gone = asyncio.ensure_future(granted(desk, quota))
    lost = asyncio.ensure_future(granted(desk, quota))
    await office.still()
    gone.cancel()
    await office.still()
    engine.open.clear()
    first.release()
    await office.sent()
    lost.cancel()  # its slot is on its way
    engine.open.set()
    await office.still()
    assert (await office.level(quota)).permits == {}
    assert desk_slots(desk) == {}


async def test_a_caller_whose_time_comes_with_its_slot_on_the_way_asks_once(
    office: Office, engine: Fallible
) -> None:
    desk, quota = office.desk(), Quota("q", concurrency=1)
    first = await granted(desk, quota)
    waiting = asyncio.ensure_future(granted(desk, quota))
    await office.still()
    engine.writes.clear()
    engine.open.clear()
    first.release()
    await office.sent()
    office.clock.advance(0.01)
    engine.open.set()
    await office.still()
    assert waiting.done()
    assert len(engine.writes) == 1
    assert len((await office.level(quota)).permits) == 1


async def test_a_slot_whose_answer_is_lost_is_not_taken_twice(
    office: Office, engine: Fallible
) -> None:
    desk, quota = office.desk(), Quota("q", concurrency=2)
    first, _ = await granted(desk, quota), await granted(desk, quota)
    waiting = asyncio.ensure_future(granted(desk, quota))
    await office.still()
    engine.lost = 1_000_000
    first.release()
    await office.still()
    for _ in range(60):  # until this process gives up the write
        office.clock.advance(1)
        await office.still()
    engine.lost = 0
    await office.done(waiting)
    assert len((await office.level(quota)).permits) == 2


def desk_slots(desk: QuotaLimiter) -> dict[str, float]:
    (counter,) = desk._items.values()  # pyright: ignore[reportPrivateUsage]
    return counter.held_permits
