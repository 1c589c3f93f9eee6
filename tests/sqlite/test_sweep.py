"""The expiry sweep: what it deletes, in what portions, and what the feed tells of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from holdfast.clock import ManualClock
from holdfast.storage.layout import Key
from holdfast.storage.meter import Meter
from holdfast.storage.sqlite import SqliteEngine
from holdfast.storage.sqlite.engine import SWEEP_ITEMS_MAX
from holdfast.storage.table import Table
from holdfast.storage.writes import Delete, Put, Update

YEAR_SECONDS = 365 * 24 * 3600
Opened = Callable[..., Table]


def seconds(clock: ManualClock, later: int = 0) -> int:
    return clock.now_ms() // 1000 + later


@pytest.fixture
async def engine(path: str, clock: ManualClock) -> AsyncIterator[SqliteEngine]:
    """An engine that has done its first sweep, and does no other until half a minute has passed."""
    engine = SqliteEngine(path, clock=clock)
    # What an engine does by itself comes after a job: after the first one, and before the second.
    await engine.sweep()
    await engine.sweep()
    yield engine
    await engine.close()


async def test_what_ttl_says_is_deleted_and_nothing_else(
    engine: SqliteEngine, clock: ManualClock
) -> None:
    table = Table(engine, Meter())
    ttls = {
        "past": -1,
        "now": 0,
        "future": 20,
        "mistaken": -6 * YEAR_SECONDS,  # as DynamoDB: over five years ago is taken for a mistake
    }
    for sk, later in ttls.items():
        await table.write(Put({"PK": "p", "SK": sk, "ttl": seconds(clock, later)}))
    await table.write(Put({"PK": "p", "SK": "without"}))
    assert await engine.sweep() == 1
    left = [item["SK"] for item in (await table.query("p")).items]
    assert left == ["future", "mistaken", "now", "without"]
    await table.write(Update(key=Key("p", "future"), set={"ttl": seconds(clock, 3600)}))
    clock.advance(21)
    assert await engine.sweep() == 1
    assert await table.get(Key("p", "future")) is not None


async def test_an_expired_item_is_read_until_it_is_swept(
    engine: SqliteEngine, clock: ManualClock
) -> None:
    """As on DynamoDB, where the deletion lags by up to 48 hours: who needs it exact compares."""
    table = Table(engine, Meter())
    await table.write(Put({"PK": "p", "SK": "s", "ttl": seconds(clock, 1)}))
    clock.advance(2)
    assert await table.get(Key("p", "s")) is not None


async def test_a_sweep_is_bounded(engine: SqliteEngine, clock: ManualClock) -> None:
    table = Table(engine, Meter())
    count = SWEEP_ITEMS_MAX + 10
    ttl = seconds(clock, 1)
    await table.write_many(Put({"PK": "p", "SK": f"{n:04}", "ttl": ttl}) for n in range(count))
    clock.advance(2)
    assert await engine.sweep() == SWEEP_ITEMS_MAX
    assert await engine.sweep() == 10
    assert await engine.sweep() == 0


async def test_the_feed_tells_expiry_from_deletion(
    opened: Opened, clock: ManualClock, path: str
) -> None:
    table = opened(changes=True)
    engine = SqliteEngine(path, clock=clock)
    await table.write(Put({"PK": "p", "SK": "expires", "ttl": seconds(clock, 1)}))
    await table.write(Put({"PK": "p", "SK": "deleted"}))
    start = (await table.read_changes()).position
    clock.advance(2)
    await engine.sweep()
    await table.write(Delete(Key("p", "deleted")))
    changes = (await table.read_changes(start)).changes
    assert [(change.key.sk, change.expired, change.new) for change in changes] == [
        ("expires", True, None),
        ("deleted", False, None),
    ]
    await engine.close()


async def test_sweeping_goes_on_in_the_background(opened: Opened, clock: ManualClock) -> None:
    """A writer sweeps when half a minute has passed, also while it is busy."""
    table = opened(changes=True)
    await table.write(Put({"PK": "p", "SK": "s", "ttl": seconds(clock, 1)}))
    clock.advance(31)
    async with asyncio.timeout(30):
        while await table.get(Key("p", "s")) is not None:
            await table.write(Put({"PK": "p", "SK": "busy"}))


async def test_an_idle_engine_sweeps_when_it_is_opened(opened: Opened, clock: ManualClock) -> None:
    await opened(changes=True).write(Put({"PK": "p", "SK": "s", "ttl": seconds(clock, 1)}))
    clock.advance(31)
    table = opened()
    async with asyncio.timeout(30):
        while not any(change.expired for change in (await table.read_changes()).changes):
            pass
