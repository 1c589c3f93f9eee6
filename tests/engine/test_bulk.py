"""Acting on all runs of a filter: each once, page by page, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import BulkProgress, Graph, Holdfast, RunFilter, RunHandle, signal
from holdfast.engine.client import bulk
from holdfast.errors import (
    EndpointUnreachable,
    InvalidName,
    InvalidQuery,
    InvalidRequest,
    JournalDamaged,
    StoreUnavailable,
)
from tests.engine.support import House, item_of_head, reached

ASKS = Graph("asks", dict)
BREAKS = Graph("breaks", dict)
mended = False


@ASKS.node
async def ask(state: Any, ctx: Any) -> Any:
    await ctx.wait(signal("never"))


@BREAKS.node
async def break_down(state: Any) -> Any:
    if not mended:
        raise ValueError("broken")


@pytest.fixture(autouse=True)
def _unmended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.engine.test_bulk.mended", False)


async def every(steps: AsyncIterator[BulkProgress]) -> list[BulkProgress]:
    return [step async for step in steps]


async def last(steps: AsyncIterator[BulkProgress]) -> BulkProgress:
    return (await every(steps))[-1]


async def started(hf: Holdfast, house: House, graph: Graph, count: int, **labels: str) -> list[str]:
    """Start runs, one a second, and let them come to their wait or their failure."""
    ids = [f"{graph.name}-{number:03}" for number in range(count)]
    async with house.worker(hf, graph, concurrency=count + 1) as worker:
        for id in ids:
            house.clock.advance(1)
            await hf.start(graph, id=id, labels=labels)
        await house.quiet(worker)
    return ids


async def statuses(hf: Holdfast, ids: list[str]) -> set[str]:
    return {(await hf.run(id).get()).status for id in ids}


async def test_all_that_fit_are_cancelled_and_no_others(either: House) -> None:
    hf = either.open()
    asks = await started(hf, either, ASKS, 20, desk="a")
    breaks = await started(hf, either, BREAKS, 3, desk="a")
    progress = await last(hf.cancel_all(RunFilter(status="waiting", graph="asks"), reason="enough"))
    assert progress == BulkProgress(seen=20, done=20)
    assert await statuses(hf, asks) == {"cancelled"}
    assert await statuses(hf, breaks) == {"failed"}
    assert (await hf.run(asks[0]).get()).failure.message == "enough"  # type: ignore[union-attr]


async def test_what_has_ended_is_not_even_looked_at(house: House, hf: Holdfast) -> None:
    await started(hf, house, BREAKS, 5)
    assert await last(hf.cancel_all(RunFilter(graph="breaks"))) == BulkProgress()
    await started(hf, house, ASKS, 2)
    assert await last(hf.retry_all(everything=True, dry_run=True)) == BulkProgress(seen=5)


async def test_filters_by_label_and_time(house: House, hf: Holdfast) -> None:
    began = datetime.fromtimestamp(house.clock.now_ms() / 1000, UTC)
    ids = await started(hf, house, ASKS, 10, desk="a")
    assert (await last(hf.cancel_all(RunFilter(labels={"desk": "b"})))).seen == 0
    third_to_fifth = RunFilter(
        labels={"desk": "a"},
        since=began + timedelta(seconds=3),
        until=(began + timedelta(seconds=6)).isoformat(),
    )
    assert await last(hf.cancel_all(third_to_fifth)) == BulkProgress(seen=3, done=3)
    assert await statuses(hf, ids[2:5]) == {"cancelled"}
    assert await statuses(hf, ids[:2] + ids[5:]) == {"waiting"}


async def test_of_another_tenant_nothing_is_touched(house: House, hf: Holdfast) -> None:
    await started(hf, house, ASKS, 2)
    other = house.open(tenant="other")
    assert await last(other.cancel_all(everything=True)) == BulkProgress()
    assert await last(other.cancel_all(everything=True, tenant="default")) == BulkProgress(
        seen=2, done=2
    )


async def test_all_that_failed_are_retried(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await started(hf, house, BREAKS, 6)
    assert await last(hf.retry_all(RunFilter(graph="breaks"), dry_run=True)) == BulkProgress(seen=6)
    assert await statuses(hf, ids) == {"failed"}
    monkeypatch.setattr("tests.engine.test_bulk.mended", True)
    assert await last(hf.retry_all(RunFilter(graph="breaks"))) == BulkProgress(seen=6, done=6)
    async with house.worker(hf, BREAKS) as worker:
        await house.quiet(worker)
    assert await statuses(hf, ids) == {"finished"}


async def test_one_that_fails_again_at_once_is_retried_once(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_RUNS_PER_PAGE", 2)
    ids = await started(hf, house, BREAKS, 5)
    async with house.worker(hf, BREAKS, concurrency=10) as worker:
        steps: list[BulkProgress] = []
        async for step in hf.retry_all(RunFilter(status="failed")):
            steps.append(step)
            await house.quiet(worker)
    assert steps[-1] == BulkProgress(seen=5, done=5)
    for id in ids:
        assert [entry.kind for entry in (await hf.run(id).history()).entries] == [
            *("failed", "reroute", "failed")
        ]


# --- pages ----------------------------------------------------------------------------------------


async def test_progress_comes_after_each_page_and_can_be_gone_on_from(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_RUNS_PER_PAGE", 4)
    ids = await started(hf, house, ASKS, 10)
    stream = hf.cancel_all(RunFilter(graph="asks"))
    first = await anext(stream)
    await stream.aclose()
    assert (first.seen, first.done) == (4, 4)
    assert await statuses(hf, ids[6:]) == {"cancelled"}
    assert await statuses(hf, ids[:6]) == {"waiting"}
    rest = await every(hf.cancel_all(RunFilter(graph="asks"), cursor=first.cursor))
    assert [(step.seen, step.done) for step in rest][-1] == (6, 6)
    assert rest[-1].cursor is None
    assert await statuses(hf, ids) == {"cancelled"}


@pytest.mark.parametrize("limit", [1, 4, 5, 9])
async def test_a_limit_bounds_how_many(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(bulk, "_RUNS_PER_PAGE", 4)
    ids = await started(hf, house, ASKS, 10)
    progress = await last(hf.cancel_all(RunFilter(graph="asks"), limit=limit))
    assert (progress.seen, progress.done) == (limit, limit)
    assert await statuses(hf, ids[-limit:]) == {"cancelled"}
    assert await statuses(hf, ids[:-limit]) == {"waiting"}
    rest = await last(hf.cancel_all(RunFilter(graph="asks"), cursor=progress.cursor))
    assert rest.done == 10 - limit


async def test_no_more_than_a_few_are_acted_on_at_once(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    await started(hf, house, ASKS, 40)
    inside = most = 0
    cancel = RunHandle.cancel

    async def counted(*arguments: Any, **options: Any) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        try:
            await cancel(*arguments, **options)
        finally:
            inside -= 1

    monkeypatch.setattr(RunHandle, "cancel", counted)
    assert (await last(hf.cancel_all(RunFilter(graph="asks")))).done == 40
    assert most == 16


# --- what can happen meanwhile --------------------------------------------------------------------


async def test_what_ended_since_the_list_was_read_is_refused(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await started(hf, house, ASKS, 3)
    stale = await hf.list(RunFilter(graph="asks"))

    async def old_list(*arguments: Any, **options: Any) -> Any:
        return stale

    monkeypatch.setattr(bulk, "list_runs", old_list)
    async with house.worker(hf, ASKS) as worker:
        await hf.run(ids[1]).signal("never")
        await house.quiet(worker)
    assert (await hf.run(ids[1]).get()).status == "finished"
    assert await last(hf.cancel_all(RunFilter(graph="asks"))) == BulkProgress(
        seen=3, done=2, refused=1
    )
    # Told again to end, what was cancelled is; the history has it once.
    again = await last(hf.cancel_all(RunFilter(graph="asks")))
    assert (again.done, again.refused, again.failed) == (2, 1, 0)
    assert len((await hf.run(ids[0]).history()).entries) == 1
    assert await last(hf.retry_all(RunFilter(graph="asks"))) == BulkProgress(seen=3, refused=3)


async def test_one_that_cannot_be_read_fails_alone(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await started(hf, house, ASKS, 12)
    cancel = RunHandle.cancel

    async def damaged(run: RunHandle, reason: str) -> None:
        if int(run.id[-1]) % 2:
            raise JournalDamaged("a record is missing")
        await cancel(run, reason)

    monkeypatch.setattr(RunHandle, "cancel", damaged)
    progress = await last(hf.cancel_all(RunFilter(graph="asks")))
    assert (progress.seen, progress.done, progress.failed) == (12, 6, 6)
    assert len(progress.errors) == 5
    assert progress.errors[0] == f"run '{ids[11]}': a record is missing [journal_damaged]"


async def test_a_store_that_does_not_answer_is_waited_for_a_while(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await started(hf, house, ASKS, 3)
    cancel, silent = RunHandle.cancel, 4

    async def sometimes(*arguments: Any, **options: Any) -> None:
        nonlocal silent
        silent -= 1
        if silent >= 0:
            raise EndpointUnreachable
        await cancel(*arguments, **options)

    monkeypatch.setattr(RunHandle, "cancel", sometimes)
    cancelling = asyncio.create_task(last(hf.cancel_all(RunFilter(graph="asks"))))
    while not cancelling.done():
        await house.clock.sleep(0)
        house.clock.advance(0.1)
    assert cancelling.result() == BulkProgress(seen=3, done=3)
    assert await statuses(hf, ids) == {"cancelled"}


async def test_a_store_that_stays_away_is_raised_and_the_last_cursor_goes_on(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_RUNS_PER_PAGE", 2)
    ids = await started(hf, house, ASKS, 6)
    steps: list[BulkProgress] = []

    whole = RunHandle.cancel

    async def unreachable(*arguments: Any, **options: Any) -> None:
        raise EndpointUnreachable

    async def gather_steps() -> None:
        async for step in hf.cancel_all(RunFilter(graph="asks")):
            steps.append(step)
            monkeypatch.setattr(RunHandle, "cancel", unreachable)

    cancelling = asyncio.create_task(gather_steps())
    while not cancelling.done():
        await house.clock.sleep(0)
        house.clock.advance(1)
    assert isinstance(cancelling.exception(), StoreUnavailable)
    assert [(step.seen, step.done) for step in steps] == [(2, 2)]
    monkeypatch.setattr(RunHandle, "cancel", whole)
    rest = await last(hf.cancel_all(RunFilter(graph="asks"), cursor=steps[-1].cursor))
    assert rest.done == 4
    assert await statuses(hf, ids) == {"cancelled"}


async def test_a_run_under_way_here_is_interrupted_too(house: House, hf: Holdfast) -> None:
    graph = Graph("busy", dict)
    entered = asyncio.Event()

    @graph.node
    async def stay(state: Any) -> Any:
        entered.set()
        await asyncio.Event().wait()

    async with house.worker(hf, graph):
        await hf.start(graph, id="doc-42")
        await entered.wait()
        assert await last(hf.cancel_all(RunFilter(status="running"))) == BulkProgress(
            seen=1, done=1
        )
        await reached(hf, "doc-42", "cancelled")


# --- what is refused ------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, InvalidQuery, "everything"),
    ({"labels": {}}, InvalidQuery, "everything"),
    ({"everything": "yes"}, InvalidQuery, "everything"),
    ({"status": "finished"}, InvalidQuery, "status"),
    ({"status": "nonsense"}, InvalidQuery, "status"),
    ({"graph": 5}, InvalidQuery, "graph"),
    ({"graph": "g", "limit": 0}, InvalidQuery, "limit"),
    ({"graph": "g", "limit": True}, InvalidQuery, "limit"),
    ({"graph": "g", "tenant": "a/b"}, InvalidName, "tenant"),
    ({"since": datetime(2026, 1, 1)}, InvalidRequest, "since"),
]


@pytest.mark.parametrize(("asked", "error", "field"), WRONG, ids=lambda value: repr(value)[:40])
async def test_a_wrong_filter_is_refused_before_anything_is_read(
    hf: Holdfast, asked: dict[str, Any], error: type[InvalidRequest], field: str
) -> None:
    conditions = {name: asked[name] for name in asked.keys() & RunFilter.__struct_fields__}
    options = {name: asked[name] for name in asked.keys() - conditions.keys()}
    for act in (hf.cancel_all, hf.retry_all):
        with pytest.raises(error) as refused:
            act(RunFilter(**conditions), **options)
        assert refused.value.field == field
    assert hf.meter.report().calls == 0


async def test_a_status_in_which_nothing_can_be_done_is_refused(hf: Holdfast) -> None:
    with pytest.raises(InvalidQuery, match="one of closing, ready, running, waiting for"):
        hf.cancel_all(RunFilter(status="failed"))
    with pytest.raises(InvalidQuery, match="one of failed, quarantined for this action"):
        hf.retry_all(RunFilter(status="waiting"))
    with pytest.raises(InvalidRequest, match="reason"):
        hf.cancel_all(RunFilter(graph="g"), reason=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidQuery):
        await last(hf.cancel_all(RunFilter(graph="g"), cursor="nonsense"))


async def test_a_run_is_cancelled_for_what_one_alone_costs(house: House, hf: Holdfast) -> None:
    await started(hf, house, ASKS, 11)
    hf.meter.reset()
    await hf.run("asks-000").cancel()
    alone = hf.meter.report().by_purpose()["head"].writes
    hf.meter.reset()
    await last(hf.cancel_all(RunFilter(graph="asks")))
    assert hf.meter.report().by_purpose()["head"].writes == 10 * alone
    assert (await item_of_head(hf, "asks-005"))["status"] == "cancelled"
