"""Hooks: called once after each pause, failure and end, and never in the way of a run."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from typing import Any

import pytest

from holdfast import AttemptFailure, Graph, Hooks, Retry, Run, signal
from holdfast.engine.worker import hook_calls
from holdfast.errors import InvalidRequest, NodeError, RunFailed
from tests.engine.support import WAIT_SECONDS_MAX, Gate, House, chain, kill


async def waits(state: Any, ctx: Any) -> Any:
    return {"decision": await ctx.wait(signal("decision"))}


ASKING = chain("asking", 3, lambda number: {}, node1=waits)


class Calls:
    """What hooks were called with."""

    def __init__(self) -> None:
        self.made: list[tuple[str, Run]] = []
        self.failures: list[AttemptFailure] = []

    async def on_pause(self, run: Run) -> None:
        self.made.append(("pause", run))

    def on_failure(self, run: Run, failure: AttemptFailure) -> None:
        self.made.append(("failure", run))
        self.failures.append(failure)

    async def on_end(self, run: Run) -> None:
        self.made.append(("end", run))

    @property
    def hooks(self) -> Hooks:
        return Hooks(on_pause=self.on_pause, on_failure=self.on_failure, on_end=self.on_end)

    @property
    def names(self) -> list[tuple[str, str]]:
        return [(name, run.status) for name, run in self.made]


async def test_a_pause_and_an_end_are_told_once(house: House) -> None:
    calls = Calls()
    hf = house.open(hooks=calls.hooks)
    async with house.worker(hf, ASKING):
        run = await hf.start(ASKING, id="doc-42", user="ann")
        row = await run.until("waiting", timeout=WAIT_SECONDS_MAX)
        await hf._hooks.drain(WAIT_SECONDS_MAX)
        assert calls.made == [("pause", row)]
        await run.signal("decision", "yes")
        await run.result(timeout=WAIT_SECONDS_MAX)
    assert calls.names == [("pause", "waiting"), ("end", "finished")]
    assert calls.made[1][1] == await run.get()


async def test_a_failed_attempt_is_told_with_what_follows(house: House) -> None:
    calls = Calls()
    hf = house.open(hooks=calls.hooks)

    async def breaks(state: Any) -> Any:
        raise NodeError("no paper")

    graph = Graph("broken", dict)
    graph.node(name="node0", retry=Retry(attempts=2, backoff=0))(breaks)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        with pytest.raises(RunFailed):
            await run.result(timeout=WAIT_SECONDS_MAX)
    first, last = calls.failures
    assert (first.node, first.attempt, first.retried) == ("node0", 1, True)
    assert first.failure.message == "no paper"
    assert first.retry_at is not None
    assert (last.attempt, last.retried, last.retry_at) == (2, False, None)
    assert [name for name, _ in calls.made] == ["failure", "failure", "end"]
    assert calls.made[-1][1].status == "failed"


async def test_every_kind_of_end_is_told(house: House) -> None:
    calls = Calls()
    hf = house.open(hooks=calls.hooks)
    async with house.worker(hf, ASKING) as worker:
        for id in ("expired", "cancelled"):
            run = await hf.start(ASKING, id=id, expires=3600 if id == "expired" else None)
            await run.until("waiting", timeout=WAIT_SECONDS_MAX)
        await run.cancel("twice")
        await run.cancel("twice")  # does nothing
        await house.quiet(worker)  # the clock brings its next poll
        house.clock.advance(3601)
        await hf.run("expired").until("expired", timeout=WAIT_SECONDS_MAX)
    assert sorted(names for names in calls.names if names[0] == "end") == [
        ("end", "cancelled"),
        ("end", "expired"),
    ]


async def test_a_client_without_a_worker_tells_the_end_that_it_wrote(house: House) -> None:
    calls, others = Calls(), Calls()
    client, hf = house.open(hooks=calls.hooks), house.open(hooks=others.hooks)
    async with house.worker(hf, ASKING):
        run = await hf.start(ASKING, id="doc-42")
        await run.until("waiting", timeout=WAIT_SECONDS_MAX)
        await client.run("doc-42").cancel("twice")
        await client._hooks.drain(WAIT_SECONDS_MAX)
    assert calls.names == [("end", "cancelled")]
    assert others.names == [("pause", "waiting")]


async def test_a_run_in_memory_tells_its_end(house: House) -> None:
    calls = Calls()
    hf = house.open(hooks=calls.hooks)
    graph = chain("short", 2, lambda number: {})
    async with house.worker(hf, graph):
        await hf.start(graph, id="doc-42", durability="on_pause")
    assert calls.names == [("end", "finished")]


async def test_a_dead_worker_tells_nothing_and_its_successor_tells_the_end_once(
    house: House,
) -> None:
    calls, gate = Calls(), Gate()

    async def slow(state: Any) -> Any:
        await gate.pass_through()
        return {}

    graph = chain("slow", 1, dict, node0=slow)
    dying, hf = house.open(hooks=calls.hooks), house.open(hooks=calls.hooks)
    worker = house.worker(dying, graph, lease=60)
    await worker.start()
    await dying.start(graph, id="doc-42")
    await gate.waited_at()
    kill(worker)
    gate.open()
    async with house.worker(hf, graph, lease=60) as successor:
        await house.quiet(successor)  # the clock brings its next poll
        house.clock.advance(200)
        await house.patiently_quiet(successor)
        await hf.run("doc-42").until("finished", timeout=WAIT_SECONDS_MAX)
    assert calls.names == [("end", "finished")]


async def test_a_hook_that_raises_is_logged_with_its_place(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks(run: Run) -> None:
        raise ValueError("no mail server")

    def exits(run: Run) -> None:
        raise SystemExit(3)

    hf = house.open(hooks=Hooks(on_pause=exits, on_end=breaks))
    with caplog.at_level(logging.WARNING, "holdfast.hooks"):
        async with house.worker(hf, ASKING):
            run = await hf.start(ASKING, id="doc-42")
            await run.until("waiting", timeout=WAIT_SECONDS_MAX)
            await run.signal("decision", "yes")
            await run.result(timeout=WAIT_SECONDS_MAX)
    told = [record.getMessage() for record in caplog.records]
    assert any("on_pause failed" in line and "SystemExit" in line for line in told)
    (end,) = [line for line in told if "on_end" in line]
    assert "test_hooks.py" in end
    assert "ValueError: no mail server" in end


async def test_a_slow_hook_is_cut_off_and_delays_no_run(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    stuck = asyncio.Event()

    async def hangs(run: Run) -> None:
        await stuck.wait()

    hf = house.open(hooks=Hooks(on_pause=hangs, timeout=0.001))
    with caplog.at_level(logging.WARNING, "holdfast.hooks"):
        async with house.worker(hf, ASKING):
            run = await hf.start(ASKING, id="doc-42")
            await run.until("waiting", timeout=WAIT_SECONDS_MAX)
            await run.signal("decision", "yes")
            await run.result(timeout=WAIT_SECONDS_MAX)
    assert "on_pause took longer than 0.001 seconds and was cut off" in caplog.text


async def test_calls_are_bounded_and_plain_hooks_run_in_threads(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hook_calls, "_UNFINISHED_MAX", 1)
    threads: set[threading.Thread] = set()
    go = threading.Event()

    def blocks(run: Run) -> None:
        threads.add(threading.current_thread())
        go.wait(WAIT_SECONDS_MAX)

    hf = house.open(hooks=Hooks(on_pause=blocks))
    async with house.worker(hf, ASKING):
        for id in ("one", "two"):
            run = await hf.start(ASKING, id=id)
            await run.until("waiting", timeout=WAIT_SECONDS_MAX)
        go.set()
    assert "on_pause is not called, because 1 calls of hooks have not ended" in caplog.text
    assert len(threads) == 1
    assert threading.main_thread() not in threads


async def test_a_worker_that_stops_waits_for_hooks(house: House) -> None:
    ended: list[str] = []
    began = asyncio.Event()

    async def slowly(run: Run) -> None:
        began.set()
        for _ in range(5_000):
            await house.clock.sleep(0)
        ended.append(run.id)

    hf = house.open(hooks=Hooks(on_pause=slowly))
    async with house.worker(hf, ASKING):
        run = await hf.start(ASKING, id="doc-42")
        await run.until("waiting", timeout=WAIT_SECONDS_MAX)
        await began.wait()
    assert ended == ["doc-42"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"on_pause": "mail"}, "on_pause must be a function, got 'mail'"),
        (
            {"on_end": lambda: None},
            r"on_end must take 1 positional argument, as in def on_end\(run\), got .* \(\)",
        ),
        (
            {"on_failure": lambda run: None},
            r"on_failure must take 2 positional arguments, as in def on_failure\(run, failure\)",
        ),
        ({"on_pause": lambda run, *, to: None}, r"def on_pause\(run\), got the .*\(run, \*, to\)"),
        ({"timeout": 0}, "timeout must be more than 0 seconds, got 0"),
    ],
)
def test_wrong_hooks_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        Hooks(**given)


def test_hooks_with_other_ways_to_take_their_arguments_are_taken() -> None:
    told: list[Any] = []
    Hooks(on_end=told.append, on_pause=lambda *args: None, on_failure=print)
    Hooks(on_end=lambda run, to="ops": None, on_failure=functools.partial(lambda a, b, c: None, 1))


async def test_something_else_than_hooks_is_refused(house: House) -> None:
    with pytest.raises(InvalidRequest, match=r"hooks must be Hooks, got \{\}"):
        house.open(hooks={})
