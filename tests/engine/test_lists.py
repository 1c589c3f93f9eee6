"""Lists and histories: what was there, newest first, page by page."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Graph, Holdfast, Retry, RunFilter, signal
from holdfast.errors import InvalidName, InvalidQuery, InvalidRequest, RunNotFound
from tests.engine.support import House, chain

GRAPH = Graph("warranty", dict)


@GRAPH.node
async def decide(state: Any, ctx: Any) -> Any:
    match state["n"] % 4:
        case 0:
            await ctx.wait(signal("never"))
        case 1:
            raise ValueError("it is broken")


OTHER = chain("other", 1, lambda number: {})


async def ids(hf: Holdfast, *, pages_of: int = 100, **filters: Any) -> list[str]:
    """Return the ids of every page; no page but the last may come without a cursor."""
    found: list[str] = []
    cursor = None
    while True:
        page = await hf.list(RunFilter(**filters), limit=pages_of, cursor=cursor)
        assert len(page.runs) <= pages_of
        found += [entry.id for entry in page.runs]
        cursor = page.cursor
        if cursor is None:
            return found


async def started(hf: Holdfast, house: House, count: int) -> list[str]:
    """Start runs, one a second; return their ids, the newest first."""
    async with house.worker(hf, GRAPH, OTHER, concurrency=count + 1) as worker:
        for number in range(count):
            house.clock.advance(1)
            graph = OTHER if number % 10 == 3 else GRAPH
            labels = {"parity": str(number % 2), "third": str(number % 3)}
            await hf.start(graph, {"n": number}, id=f"doc-{number:03}", labels=labels)
        await house.quiet(worker)
    return [f"doc-{number:03}" for number in reversed(range(count))]


def moment(house: House, seconds: float) -> datetime:
    return datetime.fromtimestamp(house.clock.now_ms() / 1000, UTC) + timedelta(seconds=seconds)


@pytest.mark.parametrize("pages_of", [1, 7, 50, 1000])
async def test_pages_bring_every_run_once_the_newest_first(
    house: House, monkeypatch: pytest.MonkeyPatch, pages_of: int
) -> None:
    monkeypatch.setattr(
        "holdfast.engine.history.lists._QUERY_ITEMS_MAX", 5
    )  # so that each partition has pages too
    hf = house.open()
    every = await started(hf, house, 50)
    assert await ids(hf, pages_of=pages_of) == every


async def test_lists_are_by_status_graph_label_and_time(either: House) -> None:
    hf = either.open()
    began = moment(either, 0)
    every = await started(hf, either, 40)
    number = {id: int(id[4:]) for id in every}
    others = [id for id in every if number[id] % 10 == 3]
    warranties = [id for id in every if id not in others]
    waiting = [id for id in warranties if number[id] % 4 == 0]
    failed = [id for id in warranties if number[id] % 4 == 1]
    for size in (3, 100):
        assert await ids(hf, pages_of=size, status="waiting") == waiting
        assert await ids(hf, pages_of=size, status="failed") == failed
        assert await ids(hf, pages_of=size, status="quarantined") == []
        assert await ids(hf, pages_of=size, graph="other") == others
        assert await ids(hf, pages_of=size, graph="nothing") == []
        assert await ids(hf, pages_of=size, labels={"parity": "1"}) == [
            id for id in every if number[id] % 2
        ]
        assert await ids(hf, pages_of=size, labels={"parity": "1", "third": "2"}) == [
            id for id in every if number[id] % 6 == 5
        ]
        assert await ids(hf, pages_of=size, status="failed", labels={"third": "0"}) == [
            id for id in failed if number[id] % 3 == 0
        ]
        # The first run was started one second after the beginning: since takes in, until does not.
        since, until = began + timedelta(seconds=11), began + timedelta(seconds=21)
        span = [id for id in every if 10 <= number[id] < 20]
        assert await ids(hf, pages_of=size, since=since, until=until) == span
        with pytest.raises(InvalidQuery):
            await hf.list(RunFilter(since=until, until=since))
        assert await ids(hf, pages_of=size, since=since, until=until, status="failed") == [
            id for id in failed if id in span
        ]


async def test_a_line_shows_the_run(house: House, hf: Holdfast) -> None:
    await started(hf, house, 2)
    newest, _ = (await hf.list()).runs
    assert (newest.id, newest.tenant, newest.graph) == ("doc-001", "default", "warranty")
    assert (newest.version, newest.status) == (1, "failed")
    assert newest.labels == {"parity": "1", "third": "1"}
    assert newest.created_at == (await hf.run("doc-001").get()).created_at


async def test_a_retried_run_leaves_the_list_of_the_failed(house: House, hf: Holdfast) -> None:
    await started(hf, house, 6)
    assert await ids(hf, status="failed") == ["doc-005", "doc-001"]
    await hf.run("doc-005").retry()
    assert await ids(hf, status="failed") == ["doc-001"]
    assert await ids(hf, status="ready") == ["doc-005"]
    assert len(await ids(hf)) == 6


async def test_runs_of_one_moment_are_all_there(hf: Holdfast) -> None:
    await asyncio.gather(*(hf.start(OTHER, {"n": n}, id=f"doc-{n:03}") for n in range(30)))
    for size in (1, 7, 30):
        found = await ids(hf, pages_of=size)
        assert sorted(found) == [f"doc-{n:03}" for n in range(30)]


async def test_many_that_do_not_fit_give_a_cursor_rather_than_a_long_read(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engine.history.lists._PAGE_ENTRIES_MAX", 10)
    await started(hf, house, 25)
    page = await hf.list(RunFilter(graph="nothing"))
    assert (page.runs, page.cursor is None) == ([], False)
    assert await ids(hf, graph="other") == ["doc-023", "doc-013", "doc-003"]


@pytest.mark.parametrize("limit", [0, -1, 1001, "5", None, True, 1.5])
async def test_a_wrong_limit_is_refused(hf: Holdfast, limit: Any) -> None:
    with pytest.raises(InvalidQuery) as refused:
        await hf.list(limit=limit)
    assert refused.value.field == "limit"


@pytest.mark.parametrize(
    "cursor",
    ["", "x", 5, "4000000000000", "4000000000000#", "400#x", "x" * 13 + "#y", b"4", "#"],
    ids=repr,
)
async def test_a_wrong_cursor_is_refused(hf: Holdfast, cursor: Any) -> None:
    with pytest.raises(InvalidQuery) as refused:
        await hf.list(cursor=cursor)
    assert refused.value.field == "cursor"


async def test_a_cursor_longer_than_any_is_refused(hf: Holdfast) -> None:
    with pytest.raises(InvalidRequest):
        await hf.list(cursor="4000000000000#" + "x" * 10_000)


@pytest.mark.parametrize(
    "status", ["done", "", "RUNNING", 5, [], ["failed", "done"], [["failed"]]], ids=repr
)
async def test_a_wrong_status_is_refused(hf: Holdfast, status: Any) -> None:
    with pytest.raises(InvalidQuery) as refused:
        await hf.list(RunFilter(status=status))
    assert refused.value.field == "status"


async def test_a_wrong_label_or_moment_is_refused(hf: Holdfast) -> None:
    with pytest.raises(InvalidName):
        await hf.list(RunFilter(labels={"a#b": "x"}))
    with pytest.raises(InvalidRequest):
        await hf.list(RunFilter(since=datetime(2026, 1, 1)))
    for until in ("2026-01-01", "yesterday", 5):
        with pytest.raises(InvalidRequest, match="until must be a datetime with a time zone"):
            RunFilter(until=until)  # type: ignore[arg-type]
    with pytest.raises(
        InvalidQuery, match=r"must be a RunFilter, such as RunFilter\(status=.*, got 'failed'"
    ):
        await hf.list("failed")  # type: ignore[arg-type]
    for act in (hf.list, hf.cancel_all, hf.retry_all):
        with pytest.raises(InvalidQuery, match=r"pass RunFilter\(status=…\) as its first argument"):
            act(status="failed")  # type: ignore[call-arg, operator]
    with pytest.raises(InvalidRequest, match=r"write `async with Holdfast\(…\) as hf`"), hf:
        pass
    assert RunFilter("failed") == RunFilter(status="failed")
    with pytest.raises(InvalidQuery, match=r"status must be one or several of .* got 'papers'"):
        RunFilter("papers")  # type: ignore[arg-type]


async def test_a_filter_takes_several_statuses_and_times_as_text(
    house: House, hf: Holdfast
) -> None:
    for number in range(3):
        await hf.start(chain("g", 1, lambda number: {}), id=f"doc-{number}")
        house.clock.advance(1)
    await hf.run("doc-1").cancel()
    started_at = [(await hf.run(f"doc-{number}").get()).created_at for number in range(3)]
    several = RunFilter(status={"ready", "waiting", "cancelled"})
    assert await ids(hf, status=several.status) == ["doc-2", "doc-1", "doc-0"]
    assert await ids(hf, status=["cancelled"]) == ["doc-1"]
    assert await ids(hf, since=started_at[1].isoformat()) == ["doc-2", "doc-1"]
    assert RunFilter(status="failed") == RunFilter(status=["failed"], labels={})
    with pytest.raises(InvalidQuery, match="status must be one or several of"):
        RunFilter(status=())


async def test_a_history_tells_what_happened_in_its_order(house: House, hf: Holdfast) -> None:
    graph = Graph("told", dict)

    @graph.node(retry=Retry(attempts=2, backoff=1, jitter=0))
    async def flaky(state: Any, ctx: Any) -> Any:
        if ctx.attempt == 1:
            raise OSError("not yet")
        return {"read": True}

    @graph.node
    async def review(state: Any, ctx: Any) -> Any:
        return {"decision": await ctx.wait(signal("decision"))}

    graph.route(flaky, review)
    began = house.clock.now_ms()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.clock.asleep(4)
        await house.move(1, worker)
        await run.signal("decision", "yes", signal_id="s1")
        await house.quiet(worker)
    history = (await run.history()).entries
    assert [entry.kind for entry in history] == ["attempt", "node", "signal", "node", "finished"]
    assert [entry.node for entry in history] == ["flaky", "flaky", "review", "review", None]
    assert [entry.at.timestamp() * 1000 - began for entry in history] == [0, 1000, 1000, 1000, 1000]
    assert history[0].details["failure"]["message"] == "not yet"
    assert history[2].details["id"] == "s1"
    assert history[3].details["delta"] == {"decision": "yes"}


async def test_there_is_no_history_of_an_unknown_run(hf: Holdfast) -> None:
    with pytest.raises(RunNotFound):
        await hf.run("nothing").history()
