"""Lists of reviews: their order over all partitions, cursors, filters, and what they leave out."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Graph, Holdfast, hours, seconds
from holdfast.errors import InvalidQuery
from holdfast.model.review import ReviewEntry
from holdfast.records.review import ReviewKey
from holdfast.review import listing
from holdfast.storage import Delete, Put
from tests.engine.reviewers import reviewing, work
from tests.engine.support import House, item_of_head, reached, store_of, tenant_key

COUNT = 50


async def asked_many(house: House, hf: Holdfast, graph: Graph, count: int = COUNT) -> list[str]:
    """Start runs that ask one after the other; return the ids of their reviews."""
    for number in range(count):
        await hf.start(graph, {}, id=f"r{number:02}")
    async with house.worker(house.open(), graph, concurrency=count) as worker:
        await house.quiet(worker)
        for number in range(count):
            await reached(hf, f"r{number:02}", "waiting")
    entries = [(await hf.reviews.list(run=f"r{number:02}")).reviews for number in range(count)]
    return [entry.id for (entry,) in entries]


async def read_all(hf: Holdfast, *, limit: int, **asked: Any) -> list[ReviewEntry]:
    found: list[ReviewEntry] = []
    cursor: str | None = None
    while True:
        page = await hf.reviews.list(limit=limit, cursor=cursor, **asked)
        assert len(page.reviews) <= limit
        found += page.reviews
        cursor = page.cursor
        if cursor is None:
            return found


def ids_of(entries: list[ReviewEntry]) -> list[str]:
    return [entry.id for entry in entries]


async def test_pages_of_any_size_are_one_list(either: House) -> None:
    hf, graph = either.open(), reviewing()
    ids = await asked_many(either, hf, graph)
    whole = (await hf.reviews.list(limit=1000)).reviews
    assert sorted(ids_of(whole)) == sorted(ids)
    order = [(entry.created_at, entry.run) for entry in whole]
    assert order == sorted(order)
    for limit in (1, 7, 49, 50, 51, 100):
        assert await read_all(hf, limit=limit) == whole
    for number, id in enumerate(ids):
        either.clock.advance(1)
        by = hf.reviews.reject if number % 2 else hf.reviews.approve
        await by(id, by="ana")
    assert (await hf.reviews.list()).reviews == []
    decided = (await hf.reviews.list(status="decided", limit=1000)).reviews
    assert ids_of(decided) == ids[::-1]  # the newest first
    for limit in (1, 7, 100):
        assert await read_all(hf, limit=limit, status="decided") == decided
    approved = await read_all(hf, limit=7, status="approved")
    assert ids_of(approved) == ids[::2][::-1]


async def test_a_list_that_is_read_while_reviews_are_decided_has_each_of_the_others_once(
    house: House,
) -> None:
    hf = house.open()
    ids = await asked_many(house, hf, reviewing())
    found: list[str] = []
    decided: set[str] = set()
    cursor: str | None = None
    while True:
        page = await hf.reviews.list(limit=7, cursor=cursor)
        found += ids_of(page.reviews)
        cursor = page.cursor
        if cursor is None:
            break
        # One that was read, and one that perhaps was not.
        for id in (found[-1], next(id for id in reversed(ids) if id not in decided)):
            if id not in decided:
                await hf.reviews.approve(id, by="ana")
                decided.add(id)
    assert len(found) == len(set(found))
    assert {*ids} - decided <= {*found}


async def test_an_assignee_finds_what_they_may_decide(house: House) -> None:
    hf = house.open()
    for number, assignees in enumerate([["Ana", "bob"], ["bob"], []]):
        graph = reviewing(f"Question {number}?", assignees=assignees)
        await hf.start(graph, {}, id=f"r{number}")
        await work(house, graph)

    async def questions(**asked: Any) -> set[str]:
        return {entry.question[9] for entry in await read_all(hf, limit=1, **asked)}

    assert await questions() == {"0", "1", "2"}
    assert await questions(assignee="ana") == {"0", "2"}
    assert await questions(assignee="BOB") == {"0", "1", "2"}
    assert await questions(assignee="cleo") == {"2"}
    (entry,) = (await hf.reviews.list(run="r1")).reviews
    await hf.reviews.reassign(entry.id, by="bob", to="cleo")
    assert await questions(assignee="cleo") == {"1", "2"}
    assert await questions(assignee="bob") == {"0", "2"}
    assert await questions(assignee="bob", run="r1") == set()


@pytest.mark.parametrize("early_ms", [1, 0])
async def test_a_review_is_overdue_at_its_reminder(house: House, early_ms: int) -> None:
    hf, graph = house.open(), reviewing(remind_after=seconds(60), escalate_after=hours(1))
    await hf.start(graph, {}, id="r")
    await work(house, graph)
    (entry,) = (await hf.reviews.list()).reviews
    assert entry.due_at is not None
    due_ms = round(entry.due_at.timestamp() * 1000)
    house.clock.advance((due_ms - early_ms - house.clock.now_ms()) / 1000)
    overdue = (await hf.reviews.list(overdue=True)).reviews
    assert [each.overdue for each in overdue] == ([] if early_ms else [True])
    assert (await hf.reviews.get(entry.id)).overdue is not bool(early_ms)
    assert len((await hf.reviews.list()).reviews) == 1


async def test_a_damaged_entry_is_left_out_and_noted(house: House) -> None:
    hf = house.open()
    ids = await asked_many(house, hf, reviewing(), count=3)
    key = ReviewKey(
        tenant_key("r01"), (await item_of_head(hf, "r01"))["generation"], ids[1].rpartition("~")[2]
    )
    table = store_of(hf).table
    item = await table.get(key.entry)
    assert item is not None
    await table.write(Put({**item, "show": "?"}))
    for limit in (1, 10):
        found = ids_of(await read_all(hf, limit=limit))
        assert sorted(found) == [ids[0], ids[2]]
    assert (key.entry.pk, key.entry.sk) in store_of(hf).damage.keys


async def test_an_entry_without_its_run_is_left_out(house: House) -> None:
    hf = house.open()
    ids = await asked_many(house, hf, reviewing(), count=3)
    await store_of(hf).table.write(Delete(tenant_key("r01").head))
    assert sorted(ids_of(await read_all(hf, limit=1))) == [ids[0], ids[2]]


async def test_reviews_that_their_runs_left_are_settled_a_few_at_a_time(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_SETTLED_MAX", 2)
    hf, graph = house.open(), reviewing()
    await asked_many(house, hf, graph, count=5)
    for number in range(4):
        await hf.run(f"r{number:02}").cancel("not needed")
    await work(house, graph)
    for settled in (2, 4, 4):
        assert [entry.run for entry in (await hf.reviews.list()).reviews] == ["r04"]
        decided = (await hf.reviews.list(status="decided")).reviews
        assert [entry.status for entry in decided] == ["withdrawn"] * settled


async def test_a_page_reads_a_limited_number_of_entries(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_PAGE_ENTRIES_MAX", 4)
    hf = house.open()
    ids = await asked_many(house, hf, reviewing(assignees=["ana"]), count=10)
    page = await hf.reviews.list(assignee="bob")
    assert page.reviews == []
    assert page.cursor is not None  # the caller reads on
    assert await read_all(hf, limit=100, assignee="bob") == []
    assert sorted(ids_of(await read_all(hf, limit=3))) == sorted(ids)


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"status": "open"}, "status"),
        ({"status": None}, "status"),
        ({"assignee": ""}, "assignee"),
        ({"assignee": 7}, "assignee"),
        ({"overdue": 1}, "overdue"),
        ({"run": "a#b"}, "run"),
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
        ({"cursor": "x"}, "cursor"),
        ({"cursor": 7}, "cursor"),
        ({"cursor": "1700000000000#r#0123456789abcdeF"}, "cursor"),
    ],
)
async def test_a_wrong_query_names_the_argument(house: House, asked: Any, field: str) -> None:
    with pytest.raises(InvalidQuery) as caught:
        await house.open().reviews.list(**asked)
    assert caught.value.field == field
