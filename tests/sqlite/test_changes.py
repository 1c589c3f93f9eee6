"""The change feed: what is in it, its order, its positions, who writes it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.clock import ManualClock
from holdfast.errors import ChangesOff, ChangesTrimmed, ConditionFailed, InvalidQuery
from holdfast.storage.layout import Key
from holdfast.storage.meter import Meter
from holdfast.storage.operations import LATEST, Change
from holdfast.storage.sqlite import MEMORY, SqliteEngine
from holdfast.storage.table import Table
from holdfast.storage.writes import Absent, Delete, Equals, Put, Update

DAY_SECONDS = 24 * 3600
Opened = Callable[..., Table]


def images(changes: list[Change]) -> list[tuple[object, object]]:
    return [
        (change.old and change.old.get("n"), change.new and change.new.get("n"))
        for change in changes
    ]


async def test_the_feed_tells_old_and_new_in_the_order_of_commits(
    opened: Opened, clock: ManualClock
) -> None:
    table = opened(changes=True)
    key = Key("p", "s")
    await table.write(Put({"PK": "p", "SK": "s", "n": 1}))
    clock.advance(5)
    await table.write(Update(key=key, add={"n": 1}))
    await table.transact([Put({"PK": "p", "SK": "t", "n": 7}), Delete(key)])
    page = await table.read_changes()
    assert [change.key for change in page.changes] == [key, key, Key("p", "t"), key]
    assert images(page.changes) == [(None, 1), (1, 2), (None, 7), (2, None)]
    assert [change.at_ms - clock.now_ms() for change in page.changes] == [-5000, 0, 0, 0]
    assert not any(change.expired for change in page.changes)
    assert page.changes[1].old == {"PK": "p", "SK": "s", "n": 1}
    assert page.changes[1].new == {"PK": "p", "SK": "s", "n": 2}


async def test_what_changed_nothing_is_not_in_the_feed(opened: Opened) -> None:
    table = opened(changes=True)
    await table.write(Put({"PK": "p", "SK": "s", "a": 1, "b": {"x": 1, "y": frozenset({1, 2})}}))
    await table.write(Put({"b": {"y": {2, 1}, "x": 1}, "a": 1, "SK": "s", "PK": "p"}))
    await table.write(Delete(Key("p", "none")))
    with pytest.raises(ConditionFailed):
        await table.write(Put({"PK": "p", "SK": "s"}, Absent("PK")))
    with pytest.raises(ConditionFailed):
        await table.write(Update(key=Key("p", "s"), add={"a": 1}, condition=Equals("a", 9)))
    assert len((await table.read_changes()).changes) == 1


async def test_a_reader_goes_on_from_where_it_was(opened: Opened) -> None:
    table = opened(changes=True)
    for n in range(5):
        await table.write(Put({"PK": "p", "SK": "s", "n": n}))
    first = await table.read_changes(limit=2)
    second = await table.read_changes(first.position, limit=2)
    third = await table.read_changes(second.position)
    fourth = await table.read_changes(third.position)
    seen = [
        change.new and change.new["n"] for page in (first, second, third) for change in page.changes
    ]
    assert seen == [0, 1, 2, 3, 4]
    assert (fourth.changes, fourth.position) == ([], third.position)
    positions = [change.position for page in (first, second, third) for change in page.changes]
    assert (await table.read_changes(positions[2])).changes == second.changes[1:] + third.changes


async def test_latest_skips_what_there_is(opened: Opened) -> None:
    table = opened(changes=True)
    start = await table.read_changes(LATEST)
    await table.write(Put({"PK": "p", "SK": "s", "n": 1}))
    assert images((await table.read_changes(start.position)).changes) == [(None, 1)]
    end = await table.read_changes(LATEST)
    assert end.changes == []
    assert (await table.read_changes(end.position)).changes == []


async def test_the_feed_binds_everybody_who_has_the_file_open(opened: Opened) -> None:
    other = opened()
    with pytest.raises(ChangesOff, match="changes=on"):
        await other.read_changes()
    await other.write(Put({"PK": "p", "SK": "before", "n": 0}))
    table = opened(changes=True)
    await other.write(Put({"PK": "p", "SK": "after", "n": 1}))
    assert images((await table.read_changes()).changes) == [(None, 1)]
    assert images((await other.read_changes()).changes) == [(None, 1)]
    # Who does not ask leaves it as it is; who turns it off turns it off for all.
    assert images((await opened().read_changes()).changes) == [(None, 1)]
    opened(changes=False)
    with pytest.raises(ChangesOff):
        await table.read_changes()


async def test_positions_are_never_given_out_twice(opened: Opened) -> None:
    table = opened(changes=True)
    await table.write(Put({"PK": "p", "SK": "s", "n": 1}))
    position = (await table.read_changes()).position
    opened(changes=False)
    await table.write(Put({"PK": "p", "SK": "s", "n": 2}))
    opened(changes=True)
    # Somebody who was reading learns that there is a gap …
    with pytest.raises(ChangesTrimmed):
        await table.read_changes(position)
    # … also if nothing has been written since, and if there was nothing to read before.
    await table.write(Put({"PK": "p", "SK": "s", "n": 3}))
    with pytest.raises(ChangesTrimmed):
        await table.read_changes(position)
    page = await table.read_changes()
    assert images(page.changes) == [(2, 3)]
    assert int(page.changes[0].position) > int(position)


async def test_a_gap_shows_also_in_a_feed_that_was_empty(opened: Opened) -> None:
    table = opened(changes=True)
    position = (await table.read_changes(LATEST)).position
    opened(changes=False)
    await table.write(Put({"PK": "p", "SK": "s", "n": 1}))
    opened(changes=True)
    with pytest.raises(ChangesTrimmed):
        await table.read_changes(position)


async def test_a_clock_that_was_set_back_makes_no_gap(
    opened: Opened, clock: ManualClock, path: str
) -> None:
    table = opened(changes=True)
    clock.advance(2 * DAY_SECONDS)
    await table.write(Put({"PK": "p", "SK": "s", "n": 1}))
    clock.advance(-2 * DAY_SECONDS)
    await table.write(Put({"PK": "p", "SK": "s", "n": 2}))
    clock.advance(2 * DAY_SECONDS)
    await table.write(Put({"PK": "p", "SK": "s", "n": 3}))
    sweeper = SqliteEngine(path, clock=clock)
    await sweeper.sweep()
    await sweeper.close()
    assert images((await table.read_changes()).changes) == [(None, 1), (1, 2), (2, 3)]


async def test_a_page_of_changes_ends_where_it_reaches_a_megabyte(opened: Opened) -> None:
    table = opened(changes=True)
    for n in range(6):
        await table.write(Put({"PK": "p", "SK": "s", "n": n, "text": "x" * 300_000}))
    first = await table.read_changes()
    # Each record but the first has two images: 1 + 2 + 2 of 300 KB are the first to reach 1 MB.
    assert images(first.changes) == [(None, 0), (0, 1), (1, 2)]
    second = await table.read_changes(first.position)
    third = await table.read_changes(second.position)
    assert images(second.changes + third.changes) == [(2, 3), (3, 4), (4, 5)]


async def test_a_day_is_kept(opened: Opened, clock: ManualClock, path: str) -> None:
    table = opened(changes=True)
    sweeper = SqliteEngine(path, clock=clock)
    await table.write(Put({"PK": "p", "SK": "s", "n": 1}))
    old = (await table.read_changes()).position
    clock.advance(DAY_SECONDS / 2)
    await table.write(Put({"PK": "p", "SK": "s", "n": 2}))
    recent = (await table.read_changes()).position
    clock.advance(DAY_SECONDS / 2 + 1)
    await sweeper.sweep()
    assert images((await table.read_changes()).changes) == [(1, 2)]
    assert images((await table.read_changes(old)).changes) == [(1, 2)]
    clock.advance(DAY_SECONDS)
    await sweeper.sweep()
    with pytest.raises(ChangesTrimmed):
        await table.read_changes(old)
    assert (await table.read_changes(recent)).changes == []
    assert (await table.read_changes()).changes == []
    await sweeper.close()


@pytest.mark.parametrize(
    "position",
    ["", "x", "-1", "1.5", "99", "1" * 5000, 7, "²", "\u0660", "1_0", " 0"],
    ids=itertools.count(),
)
async def test_a_foreign_position_is_refused(opened: Opened, position: str) -> None:
    table = opened(changes=True)
    with pytest.raises(InvalidQuery, match="not a position"):
        await table.read_changes(position)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    writes=st.lists(
        st.tuples(st.sampled_from("ab"), st.one_of(st.none(), st.integers(0, 2))), max_size=12
    ),
    limit=st.integers(1, 5),
)
def test_the_feed_replays_to_what_stands(writes: list[tuple[str, int | None]], limit: int) -> None:
    async def check() -> None:
        table = Table(SqliteEngine(MEMORY, changes=True), Meter())
        for sk, n in writes:
            key = Key("p", sk)
            await table.write(Delete(key) if n is None else Put({"PK": "p", "SK": sk, "n": n}))
        replayed: dict[Key, object] = {}
        position = None
        while (page := await table.read_changes(position, limit=limit)).changes:
            for change in page.changes:
                assert replayed.get(change.key) == change.old
                assert change.old != change.new
                replayed[change.key] = change.new
            position = page.position
        assert [item for item in replayed.values() if item] == [
            item for item in await table.get_many(replayed) if item
        ]
        await table.close()

    asyncio.run(check())
