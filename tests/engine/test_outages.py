"""Stores that cannot be used for a while: no run fails for it, and none is held for ever."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest

from holdfast import Graph, Holdfast
from holdfast.clock import ManualClock, SeededIds
from holdfast.engine.execution import run_exit
from holdfast.engine.journal.writer import JournalWriter, _PendingAppend
from holdfast.engine.kernel.kernel import ClaimLost, Kernel, StoreOutage
from holdfast.errors import (
    AccessDenied,
    CredentialsExpired,
    EndpointUnreachable,
    HoldfastError,
    InvalidItem,
    OutcomeUnknown,
    RunFailed,
    StoreCorrupt,
    StoreFull,
    StoreMismatched,
    StoreNotFound,
    StoreReadOnly,
    StoreUnusable,
    Throttled,
)
from holdfast.storage import Key, Put, Update
from tests.engine.streets import Street, holding
from tests.engine.support import House, incompressible, store_without_blobs

ERRORS = [
    StoreFull("full"),
    StoreReadOnly("read-only"),
    StoreUnusable("input/output error"),
    StoreNotFound("no bucket"),
    AccessDenied("denied"),
    CredentialsExpired("expired"),
    EndpointUnreachable("cut off"),
]
PASSING = [
    StoreFull("full"),
    CredentialsExpired("expired"),
    Throttled("busy"),
    EndpointUnreachable("cut off"),
    OutcomeUnknown("lost"),
]
LASTING = [
    StoreNotFound("no table"),
    StoreReadOnly("read-only"),
    StoreCorrupt("damaged"),
    StoreMismatched("newer"),
    AccessDenied("denied"),
]


async def status_of(hf: Holdfast, run: str) -> str:
    return (await hf.run(run).get()).status


# --- what a run meets -----------------------------------------------------------------------------


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_call_inside_a_node_waits_until_its_record_can_be_written(
    street: Street, error: HoldfastError
) -> None:
    place = street.place()
    graph, made = Graph("calls", dict), list[str]()

    async def large() -> bytes:
        made.append("large")
        return incompressible(1, 40_000)

    async def small() -> int:
        made.append("small")
        return 1

    @graph.node
    async def calls(state: dict[str, Any], ctx: Any) -> dict[str, Any]:
        size = len(await ctx.call(large))
        return {"size": size + await ctx.call(small)}

    async with holding(place, graph):
        place.blobs.error = error
        run = await place.hf.start(graph, {})
        await street.until(lambda: place.blobs.failed >= 5)
        assert made == ["large"]
        place.blobs.error = None
        await street.until(lambda: made == ["large", "small"])
        assert (await run.result())["size"] == 40_001
    assert made == ["large", "small"]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_run_waits_until_its_table_can_be_used(
    street: Street, error: HoldfastError
) -> None:
    place = street.place()
    graph, made = Graph("calls", dict), list[str]()

    async def breaks() -> str:
        made.append("breaks")
        place.table.error = error
        return "broken"

    async def follows() -> str:
        made.append("follows")
        return "mended"

    @graph.node
    async def calls(state: dict[str, Any], ctx: Any) -> dict[str, Any]:
        return {"told": [await ctx.call(breaks), await ctx.call(follows)]}

    async with holding(place, graph):
        run = await place.hf.start(graph, {})
        await street.until(lambda: place.table.failed >= 5)
        assert made == ["breaks"]
        place.table.error = None
        await street.until(lambda: len(made) == 2)
        assert (await run.result())["told"] == ["broken", "mended"]
    assert made == ["breaks", "follows"]


async def test_a_run_whose_worker_cannot_use_blobs_is_left_to_others(
    street: Street, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = street.place(), street.place()
    graph = Graph("large", dict)

    @graph.node
    async def work(state: dict[str, Any]) -> dict[str, Any]:
        return {"done": True}

    run = await good.hf.start(graph, {"text": incompressible(1, 20_000)}, id="large")
    bad.blobs.error = EndpointUnreachable("no answer from the bucket")
    async with holding(bad, graph) as cut_off:
        cut_off._owner.store_retry_seconds = 20.0
        with caplog.at_level(logging.WARNING, "holdfast.worker"):

            async def let_go() -> bool:
                return (await good.hf.run("large").get()).reason == "store_unusable"

            await street.until(let_go)
            health, failed = cut_off.health, bad.blobs.failed
            assert not health.ok
            assert health.error is bad.blobs.error
            row = await good.hf.run("large").get()
            assert (row.owner, row.resume_failures) == (None, 0)
            # It does not claim it again, though it is due, but asks the bucket now and then.
            await street.until(lambda: bad.blobs.failed >= failed + 3)
            assert (await good.hf.run("large").get()).owner is None
            assert cut_off.counts["claimed"] == cut_off.counts["cut off"] == 1
            assert [r.message for r in caplog.records if "cannot" in r.message] == [
                f"worker {cut_off.id} cannot drive runs: EndpointUnreachable: "
                "no answer from the bucket"
            ]
            async with holding(good, graph) as healthy:
                await street.until(lambda: healthy.counts["finished"] == 1)
                assert (await run.result())["done"]
            bad.blobs.error = None
            await street.until(lambda: cut_off.health.ok)
        assert not bad.blobs.keys("keep-10d/probe")
        again = await good.hf.start(graph, {"text": incompressible(2, 20_000)})
        await street.until(lambda: cut_off.counts["finished"] == 1)
        assert (await again.result())["done"]


async def test_a_result_that_cannot_be_written_in_time_is_asked_for_again_under_its_key(
    street: Street,
) -> None:
    good, bad = street.place(), street.place()
    graph, keys = Graph("calls", dict), list[str]()

    async def large(*, idempotency_key: str) -> bytes:
        keys.append(idempotency_key)
        return incompressible(1, 40_000)

    async def small() -> int:
        return 1

    @graph.node
    async def calls(state: dict[str, Any], ctx: Any) -> dict[str, Any]:
        try:
            await ctx.call(large)
            return {"small": await ctx.call(small)}
        except Exception:  # which the node must not see
            return {"small": 0}

    bad.blobs.error = StoreFull("full")
    run = await good.hf.start(graph, {}, id="one")
    async with holding(bad, graph) as cut_off:
        cut_off._owner.store_retry_seconds = 20.0
        await street.until(lambda: cut_off.counts["cut off"] == 1)
        assert len(keys) == 1
        async with holding(good, graph):
            await street.until(lambda: len(keys) == 2)
            assert (await run.result())["small"] == 1
    assert keys[0] == keys[1]


async def test_a_shared_answer_waits_until_the_table_can_be_used(street: Street) -> None:
    place = street.place()
    kernel = place.hf._kernel
    answers, asked = place.hf._resources.shared_answers, list[str]()

    async def ask() -> str:
        asked.append("asked")
        return "answer"

    def patiently(action: Any, /) -> Any:
        return kernel.retry_store_errors(action, lambda: True)

    place.table.error = StoreFull("full")
    found = asyncio.ensure_future(
        answers.get_or_ask("t", b"digest", ask, keep_ms=1_000_000, retry_store=patiently)
    )
    await street.until(lambda: place.table.failed >= 4)
    assert not asked
    place.table.error = None
    await street.until(found.done)
    assert await found == ("answer", False)


# --- a row that refuses what it should say --------------------------------------------------------


async def test_a_fork_whose_last_branch_fails_shows_where_it_stood(either: House) -> None:
    hf = either.open()
    graph = Graph("fork", dict)
    left_done = asyncio.Event()

    @graph.node
    async def begin(state: dict[str, Any]) -> None: ...

    @graph.node(writes=[])
    async def left(state: dict[str, Any]) -> None:
        left_done.set()

    @graph.node(writes=[])
    async def right(state: dict[str, Any]) -> None:
        await left_done.wait()
        for _ in range(50):
            await either.clock.sleep(0)
        raise ValueError

    @graph.node
    async def join(state: dict[str, Any]) -> None: ...

    graph.fork(begin, [left, right], join=join)
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph)
        await either.quiet(worker)
    with pytest.raises(RunFailed):
        await run.result()
    row = await run.get()
    assert (row.status, row.node) == ("failed", "right")
    assert row.failure is not None
    assert (row.failure.type, row.failure.message) == ("ValueError", "")


async def test_a_cancelled_fork_shows_where_it_stood(either: House) -> None:
    hf = either.open()
    graph = Graph("fork", dict)

    @graph.node
    async def begin(state: dict[str, Any]) -> None: ...

    @graph.node(writes=[])
    async def left(state: dict[str, Any], ctx: Any) -> None:
        await ctx.sleep(1_000)

    @graph.node(writes=[])
    async def right(state: dict[str, Any], ctx: Any) -> None:
        await ctx.sleep(1_000)

    @graph.node
    async def join(state: dict[str, Any]) -> None: ...

    graph.fork(begin, [left, right], join=join)
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph)
        await either.quiet(worker)
        await run.cancel(reason="")
        await either.quiet(worker)
    row = await run.get()
    assert (row.status, row.node) == ("cancelled", "left, right")


async def test_a_run_whose_row_refuses_every_release_is_quarantined(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = street.place()
    graph = Graph("stuck", dict)

    @graph.node
    async def work(state: dict[str, Any]) -> None: ...

    def refused(*arguments: Any, **values: Any) -> Update:
        raise InvalidItem("node must not be empty")

    monkeypatch.setattr(run_exit.owner_writes, "end_write", refused)
    monkeypatch.setattr(run_exit.owner_writes, "release_write", refused)
    async with holding(place, graph, resumes_max=3) as worker:
        run = await place.hf.start(graph, {})

        async def quarantined() -> bool:
            return await status_of(place.hf, run.id) == "quarantined"

        await street.until(quarantined)
        await street.until(lambda: not worker.running)
    row = await run.get()
    assert row.failure is not None
    assert row.failure.message == "node must not be empty"
    assert row.resume_failures == 3


@pytest.mark.parametrize(
    "given", ["", b"", ["a", ""], {"a": {"b": ""}}], ids=["text", "bytes", "list", "map"]
)
async def test_no_record_of_the_product_holds_an_empty_text(street: Street, given: Any) -> None:
    records = street.place().hf._store.records("head")
    with pytest.raises(InvalidItem, match="node must not be or contain empty text"):
        await records.write(Put({"PK": "a", "SK": "b", "node": given}))
    with pytest.raises(InvalidItem, match="node must not be or contain empty text"):
        await records.write(Update(key=Key("a", "b"), set={"node": given}))
    with pytest.raises(InvalidItem, match="node must not be or contain empty text"):
        await records.with_purpose("list").transact([Put({"PK": "a", "SK": "b", "node": given})])


# --- workers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
async def test_a_worker_that_starts_on_a_store_that_may_recover_waits_for_it(
    street: Street, caplog: pytest.LogCaptureFixture, error: HoldfastError
) -> None:
    place, client = street.place(), street.place()
    graph = Graph("one", dict)

    @graph.node
    async def work(state: dict[str, Any]) -> None: ...

    run = await client.hf.start(graph, {})
    place.table.error = error
    worker = holding(place, graph)
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        starting = asyncio.ensure_future(worker.start())
        await street.until(starting.done)
        await starting
        assert (worker.id, worker.health.error) == ("", error)
        await street.until(lambda: place.table.failed >= 10)
        assert len([r for r in caplog.records if "cannot register" in r.message]) == 1
        place.table.error = None
        await street.until(lambda: worker.counts["finished"] == 1)
    assert worker.health.ok
    assert len([r for r in caplog.records if "cannot" in r.message]) == 1
    assert await run.result() == {}
    await worker.stop()


async def test_a_worker_that_waits_for_its_store_can_be_stopped(street: Street) -> None:
    place = street.place()
    graph = Graph("one", dict)

    @graph.node
    async def work(state: dict[str, Any]) -> None: ...

    place.table.error = StoreFull("full")
    worker = holding(place, graph)
    await worker.start()
    stopping = asyncio.ensure_future(worker.stop())
    await street.until(stopping.done)
    await stopping


@pytest.mark.parametrize("error", LASTING, ids=lambda error: type(error).__name__)
async def test_a_worker_does_not_start_on_a_store_that_is_set_up_wrongly(
    street: Street, error: HoldfastError
) -> None:
    place = street.place()
    graph = Graph("one", dict)

    @graph.node
    async def work(state: dict[str, Any]) -> None: ...

    place.table.error = error
    with pytest.raises(type(error)):
        await holding(place, graph).start()


async def test_a_worker_that_loses_its_lease_says_which_error_it_saw(
    street: Street, caplog: pytest.LogCaptureFixture
) -> None:
    place = street.place()
    graph = Graph("one", dict)

    @graph.node
    async def work(state: dict[str, Any]) -> None: ...

    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        async with holding(place, graph, lease=20.0) as worker:
            name = worker.id
            place.table.error = Throttled("the table is too busy")

            def lost() -> list[str]:
                return [r.message for r in caplog.records if "lost its lease" in r.message]

            await street.until(lost)
            place.table.error = None
            await street.until(lambda: worker.id not in ("", name))
    told = lost()[0]  # until the store works again it may lose another one
    lost_it = f"worker {name} lost its lease and registers again"
    started = re.match(rf"{lost_it}: last renewed ([0-9.]+) s", told)
    assert started is not None
    # Tries are up to 3 seconds apart, and none is made after the end.
    assert 17.0 <= float(started[1]) <= 23.0
    assert told.endswith("seconds, the last with Throttled: the table is too busy")


class Sleeper(ManualClock):
    """A clock on which to sleep takes no time."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)


@pytest.mark.parametrize("how", ["settle", "patiently"])
async def test_a_process_that_stalls_between_two_tries_sends_nothing_more(how: str) -> None:
    """Another worker may have freed the run by then: what it sent would be left behind."""
    clock = Sleeper()
    kernel = Kernel(store_without_blobs(clock), clock, SeededIds(1, clock))
    began, tries = clock.monotonic(), 0

    def alive() -> bool:
        return clock.monotonic() == began

    async def fails(*_: Any, **__: Any) -> None:
        nonlocal tries
        tries += 1
        raise Throttled("the table is too busy")

    kernel.texts.write = fails  # type: ignore[method-assign]
    again = {
        "settle": lambda: kernel.resolve_write(
            kernel.texts, Put({"PK": "a", "SK": "b"}), alive=alive
        ),
        "patiently": lambda: kernel.retry_store_errors(fails, alive),
    }
    with pytest.raises(ClaimLost):
        await again[how]()
    assert tries == 1


async def test_a_store_is_waited_for_until_the_deadline_and_not_longer() -> None:
    """A longer sleep would hold a run that other workers could drive."""
    clock = Sleeper()
    kernel = Kernel(store_without_blobs(clock), clock, SeededIds(1, clock))
    began, tries = clock.monotonic(), 0

    async def fails() -> None:
        nonlocal tries
        tries += 1
        raise Throttled("the table is too busy")

    with pytest.raises(StoreOutage):
        await kernel.retry_store_errors(fails, lambda: True, seconds_max=20.0)
    assert clock.monotonic() - began == pytest.approx(20.0)
    assert tries > 5


async def test_an_outage_is_noted_before_those_hear_of_it_who_wait_for_the_same_write() -> None:
    """A caller that hears of it may go on at once, and must not write without what is lost."""
    noted: list[BaseException] = []
    journal = object.__new__(JournalWriter)
    entry = _PendingAppend((), b"", asyncio.get_running_loop().create_future())
    journal._queued, journal._writing, journal._on_failure = [entry], True, noted.append

    async def fails(group: Any, until: Any) -> None:
        raise StoreOutage(Throttled("the table is too busy"))

    async def caller() -> list[BaseException]:
        assert entry.done is not None
        with pytest.raises(StoreOutage):
            await entry.done
        return list(noted)

    hears = asyncio.ensure_future(caller())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "_write_group", fails)
        writing = asyncio.ensure_future(journal._write_all())
        assert [type(error) for error in await hears] == [StoreOutage]
        with pytest.raises(StoreOutage):
            await writing
