"""Attempts, timeouts, failures, retries by hand, quarantine."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest

from holdfast import Graph, Holdfast, Retry, RunFilter, signal
from holdfast.cli.facts import facts_of
from holdfast.errors import NotRetryable, RunEnded, RunFailed, RunNotFound, RunQuarantined
from holdfast.model.standing import standing
from tests.engine.support import (
    Gate,
    House,
    StepClock,
    chain,
    incompressible,
    kill,
    reached,
    store_without_blobs,
)

SOON = Retry(attempts=3, backoff=1, factor=2, jitter=0)

# For a node that does nothing, on a machine that does a lot.
PLENTY_SECONDS = 1


def graph_of(function: Any, **options: Any) -> Graph:
    """Return a graph of one node."""
    graph = Graph("g", dict)
    graph.node(name="node", **options)(function)
    return graph


async def test_a_node_is_tried_as_often_as_it_may(house: House, hf: Holdfast) -> None:
    attempts = []

    async def fails(state: Any, ctx: Any) -> Any:
        attempts.append((ctx.attempt, house.clock.now_ms()))
        raise OSError("not today")

    began = house.clock.now_ms()
    async with house.worker(hf, graph_of(fails, retry=SOON)) as worker:
        run = await hf.start(graph_of(fails, retry=SOON), id="doc-42")
        await house.clock.asleep(4)  # the pause is short: waited for in place
        assert (await run.get()).owner == worker.id
        house.clock.advance(1)
        await house.clock.asleep(4)
        await house.move(2, worker)
        with pytest.raises(RunFailed, match="not today") as failed:
            await run.result(timeout=60)
    assert attempts == [(1, began), (2, began + 1_000), (3, began + 3_000)]
    assert failed.value.kind == "OSError"
    history = [entry.kind for entry in (await run.history()).entries]
    assert history == ["attempt", "attempt", "failed"]
    row = await run.get()
    assert (row.status, row.node) == ("failed", "node")
    assert row.failure is not None
    assert (row.failure.type, row.failure.message) == ("OSError", "not today")


async def test_a_long_backoff_is_parked(either: House) -> None:
    attempts = []

    async def flaky(state: Any, ctx: Any) -> Any:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise OSError("not yet")
        return {"done": True}

    policy = Retry(attempts=3, backoff=100, factor=3, backoff_max=200, jitter=0)
    hf = either.open()
    async with either.worker(hf, graph_of(flaky, retry=policy)) as worker:
        run = await hf.start(graph_of(flaky, retry=policy), id="doc-42")
        await either.quiet(worker)
        row = await run.get()
        assert (row.status, row.reason, row.retries_left) == ("waiting", "retry", 1)
        await run.signal("anything")  # which is no reason to try again
        await either.move(99.999, worker)
        assert attempts == [1]
        await either.move(0.001 + 0.2, worker)
        assert attempts == [1, 2]
        assert (await run.get()).retries_left == 0
        await either.move(199.5, worker)
        assert attempts == [1, 2]
        await either.move(0.7, worker)
        assert await run.result(timeout=60) == {"done": True}
    assert (await run.get()).failure is None


async def test_only_errors_that_are_worth_it_are_tried_again(house: House, hf: Holdfast) -> None:
    attempts = []

    async def fails(state: Any, ctx: Any) -> Any:
        attempts.append(ctx.attempt)
        raise ConnectionError if ctx.attempt == 1 else KeyError("missing")

    policy = Retry(attempts=9, backoff=0, on=(ConnectionError, TimeoutError))
    async with house.worker(hf, graph_of(fails, retry=policy)):
        run = await hf.start(graph_of(fails, retry=policy), id="doc-42")
        with pytest.raises(RunFailed) as failed:
            await run.result(timeout=60)
    assert attempts == [1, 2]
    assert failed.value.kind == "KeyError"


async def test_a_wait_is_answered_the_same_in_every_attempt(house: House, hf: Holdfast) -> None:
    async def flaky(state: Any, ctx: Any) -> Any:
        got = await ctx.wait(signal("decision"))
        if ctx.attempt == 1:
            raise OSError("after the wait")
        return {"got": got}

    graph = graph_of(flaky, retry=Retry(attempts=2, backoff=0))
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await run.signal("decision", "first")
        await run.signal("decision", "second")
        await house.quiet(worker)
        assert await run.result(timeout=60) == {"got": "first"}


async def test_the_attempts_of_a_later_visit_count_anew(house: House, hf: Holdfast) -> None:
    graph = Graph("h", dict)

    @graph.node(retry=Retry(attempts=2, backoff=0))
    async def again(state: Any, ctx: Any) -> Any:
        if ctx.attempt == 1:
            raise OSError
        return {"rounds": state["rounds"] + 1}

    @graph.node
    async def last(state: Any) -> Any: ...

    graph.choose(again, lambda state: again if state["rounds"] < 3 else last, to=[again, last])
    async with house.worker(hf, graph):
        run = await hf.start(graph, {"rounds": 0}, id="doc-42")
        assert await run.result(timeout=60) == {"rounds": 3}


async def test_a_coroutine_that_takes_too_long_is_cancelled(house: House, hf: Holdfast) -> None:
    cancelled = []

    async def hangs(state: Any) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    graph = graph_of(hangs, timeout=0.05)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        with pytest.raises(RunFailed, match="longer than 50ms") as failed:
            await run.result(timeout=60)
    assert failed.value.kind == "NodeTimedOut"
    assert cancelled == [True]


async def test_one_that_takes_no_notice_took_too_long_nevertheless(
    house: House, hf: Holdfast
) -> None:
    async def stubborn(state: Any) -> Any:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return {"late": True}

    graph = graph_of(stubborn, timeout=0.05)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        with pytest.raises(RunFailed) as failed:
            await run.result(timeout=60)
    assert failed.value.kind == "NodeTimedOut"


async def test_a_timeout_is_worth_another_attempt(house: House, hf: Holdfast) -> None:
    async def slow_at_first(state: Any, ctx: Any) -> Any:
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return {"attempt": ctx.attempt}

    graph = graph_of(slow_at_first, timeout=PLENTY_SECONDS, retry=Retry(attempts=2, backoff=0))
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        assert await run.result(timeout=60) == {"attempt": 2}


async def test_a_timeout_of_the_nodes_own_is_an_error_like_any_other(
    house: House, hf: Holdfast
) -> None:
    async def impatient(state: Any) -> Any:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    graph = graph_of(impatient, timeout=60)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        with pytest.raises(RunFailed) as failed:
            await run.result(timeout=60)
    assert failed.value.kind == "TimeoutError"


async def test_a_plain_function_that_takes_too_long_can_do_nothing_more(
    house: House, hf: Holdfast
) -> None:
    timed_out, over = threading.Event(), threading.Event()
    caught = []

    def hangs(state: Any, ctx: Any) -> Any:
        if ctx.attempt == 2:
            return {"attempt": 2}
        timed_out.wait(60)
        try:
            ctx.wait(signal("decision"))
        except BaseException as error:
            caught.append(type(error).__name__)
        finally:
            over.set()

    graph = graph_of(hangs, timeout=PLENTY_SECONDS, retry=Retry(attempts=2, backoff=0))
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        assert await run.result(timeout=60) == {"attempt": 2}
        timed_out.set()
        assert await asyncio.to_thread(over.wait, 60)
    assert caught == ["VisitClosed"]
    assert [entry.kind for entry in (await run.history()).entries] == [
        "attempt",
        "node",
        "finished",
    ]


async def test_time_paused_is_no_time_of_the_node(house: House, hf: Holdfast) -> None:
    async def waits(state: Any, ctx: Any) -> Any:
        await ctx.sleep(3600)
        return {"got": await ctx.wait(signal("decision"))}

    graph = graph_of(waits, timeout=30)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        await house.move(3600.2, worker)
        await house.move(3600, worker)
        await run.signal("decision", "yes")
        assert await run.result(timeout=60) == {"got": "yes"}
    assert (await run.get()).spent_seconds == 0


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), BaseException("x"), StopIteration(), StopAsyncIteration()],
    ids=repr,
)
async def test_whatever_a_node_raises_fails_the_run(
    house: House, hf: Holdfast, error: BaseException
) -> None:
    async def raises(state: Any) -> Any:
        raise error

    graph = graph_of(raises)
    async with house.worker(hf, graph, drain=0):
        run = await hf.start(graph, id="doc-42")
        with pytest.raises(RunFailed):
            await run.result(timeout=5)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        BaseException("x"),
        StopIteration(),
        StopAsyncIteration(),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
    ],
    ids=repr,
)
@pytest.mark.parametrize("called", [False, True])
async def test_whatever_a_plain_function_raises_fails_the_run(
    house: House, hf: Holdfast, error: BaseException, called: bool
) -> None:
    """Something that ends a script, or a command line, must not end a worker."""

    def raises(state: Any) -> Any:
        raise error

    async def calls(state: Any, ctx: Any) -> Any:
        await ctx.call(raises, state)

    graph = graph_of(calls if called else raises)
    async with house.worker(hf, graph, drain=0):
        run = await hf.start(graph, id="doc-42")
        with pytest.raises(RunFailed):
            await run.result(timeout=5)


async def test_an_error_that_cannot_be_shown_fails_the_run(house: House, hf: Holdfast) -> None:
    class Shy(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not telling")

    async def fails(state: Any) -> Any:
        raise Shy

    async def surrogates(state: Any) -> Any:
        raise ValueError("\ud800\udfff")

    for number, function in enumerate((fails, surrogates)):
        graph = Graph(f"g{number}", dict)
        graph.node(name="node")(function)
        async with house.worker(hf, graph, drain=0):
            run = await hf.start(graph, id=f"doc-{number}")
            with pytest.raises(RunFailed):
                await run.result(timeout=5)


# --- retried by hand ------------------------------------------------------------------------------


def mendable(broken: list[bool]) -> Graph:
    graph = Graph("mendable", dict)

    @graph.node
    async def first(state: Any) -> Any:
        return {"firsts": state.get("firsts", 0) + 1}

    @graph.node(retry=Retry(attempts=2, backoff=0))
    async def second(state: Any) -> Any:
        if broken:
            raise OSError("broken")
        return {"done": True}

    graph.route(first, second)
    return graph


@pytest.mark.parametrize(("from_node", "firsts"), [(None, 1), ("second", 1), ("first", 2)])
async def test_a_failed_run_goes_on_where_it_is_told(
    house: House, from_node: str | None, firsts: int
) -> None:
    broken = [True]
    graph = mendable(broken)
    hf = house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        with pytest.raises(RunFailed):
            await run.result(timeout=60)
        await run.retry(from_node=from_node)
        await house.quiet(worker)
        assert (await run.get()).status == "failed"  # with as many attempts as before
        assert [entry.kind for entry in (await run.history()).entries].count("attempt") == 2
        broken.clear()
        await run.retry(from_node="second")
        await house.quiet(worker)
        assert await run.result(timeout=60) == {"firsts": firsts, "done": True}
        with pytest.raises(NotRetryable):
            await run.retry()


async def test_only_a_failed_run_can_be_retried(house: House, hf: Holdfast) -> None:
    async def waits(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("never"))

    graph = chain("g", 1, lambda number: {}, node0=waits)
    with pytest.raises(RunNotFound):
        await hf.run("doc-42").retry()
    run = await hf.start(graph, id="doc-42")
    with pytest.raises(NotRetryable, match="'doc-42' is ready; only a failed or quarantined run"):
        await run.retry()
    async with house.worker(hf, graph) as worker:
        await house.move(1, worker)
        with pytest.raises(NotRetryable, match="waiting"):
            await run.retry()
    await run.cancel("enough")
    with pytest.raises(NotRetryable, match="cancelled"):
        await run.retry()


async def test_a_failed_run_that_has_expired_since_is_not_retried(house: House) -> None:
    hf = house.open()
    graph = mendable([True])
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42", expires=60)
        with pytest.raises(RunFailed):
            await run.result(timeout=60)
    house.clock.advance(60)
    with pytest.raises(RunEnded) as refused:
        await run.retry()
    assert refused.value.status == "expired"


# --- quarantine -----------------------------------------------------------------------------------


def lesser() -> Graph:
    """Return the graph as a careless deploy left it: without the second node."""
    graph = Graph("mendable", dict, version=2)

    @graph.node
    async def first(state: Any) -> Any: ...

    return graph


async def test_a_run_that_cannot_be_resumed_is_quarantined_and_can_be_retried(
    either: House, caplog: pytest.LogCaptureFixture
) -> None:
    graph = Graph("mendable", dict)

    @graph.node
    async def first(state: Any) -> Any:
        return {"firsts": state.get("firsts", 0) + 1}

    @graph.node
    async def second(state: Any, ctx: Any) -> Any:
        return {"got": await ctx.wait(signal("decision"))}

    graph.route(first, second)
    hf = either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await either.quiet(worker)
    await run.signal("decision", "yes")
    async with either.worker(hf, lesser(), resumes_max=3) as worker:
        await either.quiet(worker)
        for failures in (1, 2):
            row = await run.get()
            assert (row.status, row.reason) == ("waiting", "resume_failed")
            assert row.resume_failures == failures
            assert row.failure is not None
            assert (row.failure.type, row.failure.trace) == ("UnknownNode", "")
            assert dict(facts_of(row))["failure"].startswith("UnknownNode: ")
            assert "tried again: UnknownNode: " in standing(row, now_ms=either.clock.now_ms())
            await either.move(2**failures - 0.001, worker)
            assert worker.counts["claimed"] == failures
            await either.move(0.001 + 0.2, worker)
        assert worker.counts["claimed"] == 3
        assert worker.counts["quarantined"] == 1
        with pytest.raises(RunQuarantined, match="second") as quarantined:
            await run.result(timeout=60)
    assert quarantined.value.kind == "UnknownNode"
    row = await run.get()
    assert (row.status, row.node) == ("quarantined", "second")
    assert row.failure is not None
    assert row.failure.type == "UnknownNode"
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warned == [
        f"run doc-42 of tenant default: it could not be resumed and is tried again in {seconds} "
        f"seconds; after 3 failures in a row the run is quarantined, this is number {number}: "
        f"UnknownNode: {row.failure.message}"
        for number, seconds in ((1, 2), (2, 4))
    ]
    (logged,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert (
        logged == "run doc-42 of tenant default is quarantined at node 'second': "
        f"UnknownNode: {row.failure.message}"
    )
    with pytest.raises(RunEnded):
        await run.signal("decision", "more")
    assert [entry.id for entry in (await hf.list(RunFilter(status="quarantined"))).runs] == [
        "doc-42"
    ]
    async with either.worker(hf, graph) as worker:
        await run.retry(from_node="second")
        await either.quiet(worker)
    # The signal was accepted, and counts still.
    assert await run.result(timeout=60) == {"firsts": 1, "got": "yes"}


async def test_a_run_that_can_be_resumed_again_counts_its_failures_anew(house: House) -> None:
    hf = house.open()

    async def waits(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("go"))
        await ctx.wait(signal("end"))

    whole = Graph("mendable", dict)
    whole.node(name="second")(waits)
    async with house.worker(hf, whole) as worker:
        run = await hf.start(whole, id="doc-42")
        await house.quiet(worker)
    await run.signal("go")
    async with house.worker(hf, lesser(), resumes_max=3) as worker:
        await house.quiet(worker)
        await house.move(2.2, worker)
        assert (await run.get()).resume_failures == 2
    async with house.worker(hf, whole) as worker:
        await house.move(10, worker)
        row = await run.get()
        assert (row.status, row.resume_failures, row.failure) == ("waiting", 0, None)


async def test_a_run_that_kills_its_workers_is_quarantined(house: House, hf: Holdfast) -> None:
    gate = Gate()

    async def deadly(state: Any) -> Any:
        await gate.pass_through()

    graph = graph_of(deadly)
    await hf.start(graph, id="doc-42")
    for number in range(1, 4):
        worker = hf.worker([graph], resumes_max=3)
        await worker.start()
        await gate.waited_at()
        assert gate.entered == number
        kill(worker)
        await asyncio.wait(worker.drivers._tasks.values())
        house.clock.advance(61)
    async with hf.worker([graph], resumes_max=3) as worker:
        await house.quiet(worker)
        run = await hf.run("doc-42").get()
    assert run.status == "quarantined"
    assert run.failure is not None
    assert run.failure.type == "CrashLoop"
    assert gate.entered == 3


async def test_a_signal_that_is_too_large_to_be_taken_fails_the_run(clock: StepClock) -> None:
    async def waits(state: Any, ctx: Any) -> None:
        await ctx.wait(signal("go"))

    graph = Graph("g", dict)
    graph.node(name="waits", retry=Retry(attempts=2, backoff=0))(waits)
    hf = Holdfast("", clock=clock, store=store_without_blobs(clock))
    async with hf, House.worker(hf, graph):
        run = await hf.start(graph, id="r")
        await reached(hf, "r", "waiting")
        # It fits into an item just so, and the record of its taking does not.
        await run.signal("go", incompressible(1, 380 * 1024 - 40))
        with pytest.raises(RunFailed, match="bucket"):
            await run.result(timeout=60)
