"""Branches that wait: each for itself, and the run when all of them do."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from holdfast import Holdfast, hours, minutes, signal
from holdfast.engine.execution import waits
from holdfast.errors import RunFailed
from holdfast.model import signals
from holdfast.model.event import WaitsRecorded
from holdfast.model.signals import resolved_group
from holdfast.records.codec import unpack_events
from holdfast.records.journal import content_of
from tests.engine.branching import counted, each, entries, forked, through, waits_for
from tests.engine.support import (
    Gate,
    House,
    calls_of,
    item_of_head,
    journal_items,
)


async def test_a_run_pauses_when_all_its_branches_wait_and_is_due_at_the_earliest(
    either: House,
) -> None:
    gate = Gate()

    async def sleeps(state: Any, ctx: Any) -> Any:
        await ctx.sleep(hours(2))
        return {"log": ["slept"]}

    hf = either.open()
    graph = forked(waits_for("a"), waits_for("b", max_wait=hours(5)), sleeps, through(gate))
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r")
        await gate.waited_at()
        assert (await run.get()).status == "running"
        gate.open()
        await either.quiet(worker)
        row = await run.get()
        assert (row.status, row.reason, row.node) == ("waiting", "signal", "b0, b1, b2")
        assert {(wait.branch, wait.signal) for wait in row.waits} == {
            ("0.0", "a"),
            ("0.1", "b"),
            ("0.2", None),
        }
        assert row.due_at is not None
        began = either.clock.now_ms()
        assert began < row.due_at.timestamp() * 1000 <= began + 2 * 3_600_000
        await run.signal("b", "B")
        await either.quiet(worker)
        assert {wait.branch for wait in (await run.get()).waits} == {"0.0", "0.2"}
        await either.move(2 * 3600 + 1, worker)
        row = await run.get()
        assert [wait.branch for wait in row.waits] == ["0.0"]
        assert row.due_at == row.expires_at
        await run.signal("a", "A")
        await either.quiet(worker)
        assert await run.result(timeout=60) == {"log": ["A", "B", "slept", "through"]}


async def test_branches_that_wait_for_one_name_take_a_signal_each(either: House) -> None:
    counts: Counter[str] = Counter()
    hf = either.open()
    functions = [counted(waits_for("go"), counts, name) for name in "abc"]
    graph = forked(*functions)
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r")
        await either.quiet(worker)
        for number in range(3):
            assert len((await run.get()).waits) == 3 - number
            await run.signal("go", number, signal_id=f"s{number}")
            await run.signal("go", number, signal_id=f"s{number}")
            await either.quiet(worker)
        assert sorted((await run.result(timeout=60))["log"]) == [0, 1, 2]
    assert [kind for kind, _ in await entries(hf)].count("signal") == 3
    # One signal makes one of them run again, and leaves the others alone.
    assert counts == {"a": 2, "b": 2, "c": 2}


async def test_signals_that_are_there_already_are_shared_out(house: House, hf: Holdfast) -> None:
    graph = forked(waits_for("go", "go"), waits_for("go"), waits_for("go"))
    run = await hf.start(graph, id="r")
    for number in range(4):
        await run.signal("go", number, signal_id=f"s{number}")
        house.clock.advance(0.001)
    async with house.worker(hf, graph):
        assert sorted((await run.result(timeout=60))["log"]) == [0, 1, 2, 3]


async def test_many_waits_are_kept_in_the_journal_with_their_times(house: House) -> None:
    counts: Counter[str] = Counter()

    async def work(state: Any, ctx: Any) -> Any:
        counts[ctx.branch] += 1
        got = await ctx.wait(signal(f"go{state['item']}"), max_wait=hours(1 + state["item"]))
        return {"log": [got]}

    graph = each(work)
    hf = house.open()
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, {"items": list(range(20))}, id="r")
        await house.quiet(worker)
    assert counts == {f"0.{n}": 1 for n in range(20)}
    head = await item_of_head(hf, "r")
    written = await waits_in_journal(hf)
    assert len(written) == 20
    assert len(head["waits"]) == 8
    # The soonest are those that are shown; and nothing is written twice.
    assert [wait["until_ms"] for wait in head["waits"]] == sorted(w.deadline_ms for w in written)[
        :8
    ]
    assert head["waits"][0]["signal"] == "go0"
    house.clock.advance(60)
    other = house.open()
    async with house.worker(other, graph) as worker:
        await other.run("r").signal("go19", "last")  # which the row does not show
        await house.quiet(worker)
        assert await waits_in_journal(other) == written
        shown = (await item_of_head(other, "r"))["waits"]
        assert shown == head["waits"]
    assert counts == {f"0.{n}": 1 + (n == 19) for n in range(20)}
    third = house.open()
    async with house.worker(third, graph) as worker:
        await house.move(3600 - 60 + 1, worker)  # the first gives up at its own hour
        with pytest.raises(RunFailed) as caught:
            await third.run("r", graph=graph).result(timeout=60)
    assert caught.value.kind == "WaitTimedOut"
    assert ("timer", "work") in await entries(third)


async def waits_in_journal(hf: Holdfast) -> list[Any]:
    found: list[Any] = []
    for item in await journal_items(hf, "r"):
        data = content_of(item).data
        if "#IN#" in item["SK"] or data is None or item["SK"].endswith("#00000000"):
            continue
        for event in unpack_events(data):
            if isinstance(event, WaitsRecorded):
                found += event.waits
    return found


async def test_a_resume_runs_no_branch_that_still_waits(either: House) -> None:
    counts: Counter[str] = Counter()
    graph = forked(
        counted(waits_for("a"), counts, "a"),
        counted(waits_for("b"), counts, "b"),
        counted(waits_for("c"), counts, "c"),
    )
    first, second = either.open(), either.open()
    async with either.worker(first, graph) as worker:
        await first.start(graph, id="r")
        await either.quiet(worker)
    assert counts == {"a": 1, "b": 1, "c": 1}
    async with either.worker(second, graph) as worker:
        await second.run("r").signal("b", "B")
        await either.quiet(worker)
        assert counts == {"a": 1, "b": 2, "c": 1}
        for name in "ac":
            await second.run("r").signal(name, name.upper())
            await either.quiet(worker)
        assert await second.run("r", graph=graph).result(timeout=60) == {"log": ["A", "B", "C"]}
    assert counts == {"a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize("from_outside", [False, True])
async def test_a_branch_goes_on_with_its_answer_while_another_is_busy(
    either: House, from_outside: bool
) -> None:
    gate, answered = Gate(), asyncio.Event()

    async def waits(state: Any, ctx: Any) -> Any:
        got = await ctx.wait(signal("go"))
        answered.set()
        return {"log": [got]}

    hf, client = either.open(), either.open()
    graph = forked(waits, through(gate))
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="r")
        await gate.waited_at()
        await either.clock.asleep(4)  # three of the worker, and one between two looks
        await (client if from_outside else hf).run("r").signal("go", "gone")
        if from_outside:
            either.clock.advance(5)
        async with asyncio.timeout(60):
            await answered.wait()
        assert gate.inside == 1
        assert worker.running == 1
        gate.open()
        assert await run.result(timeout=60) == {"log": ["gone", "through"]}


async def test_between_two_looks_there_is_more_and_more_time(house: House, hf: Holdfast) -> None:
    gate = Gate()
    graph = forked(waits_for("go"), through(gate))
    async with house.worker(hf, graph, poll=10_000):
        run = await hf.start(graph, id="r")
        await gate.waited_at()
        looks: list[int] = []
        for _ in range(40):
            await house.clock.asleep(4)
            looks.append(calls_of(hf, "inbox").get(("inbox", "query"), 0))
            house.clock.advance(0.25)
        await house.clock.asleep(4)
        # In ten seconds: after 0.25, 0.5, 1, 2, 4 and then each 5 seconds.
        assert looks[-1] - looks[0] == 5
        gate.open()
        await run.signal("go")
        await run.result(timeout=60)


async def test_a_time_that_is_up_is_not_missed_while_another_is_busy(
    house: House, hf: Holdfast
) -> None:
    gate, up = Gate(), asyncio.Event()

    async def sleeps(state: Any, ctx: Any) -> Any:
        await ctx.sleep(minutes(3))
        up.set()

    graph = forked(sleeps, through(gate))
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="r")
        await gate.waited_at()
        await house.clock.asleep(4)
        house.clock.advance(179.9)
        await house.clock.asleep(4)
        assert not up.is_set()
        house.clock.advance(0.1)
        async with asyncio.timeout(60):
            await up.wait()
        gate.open()
        await run.result(timeout=60)


async def test_branches_sleep_side_by_side(either: House) -> None:
    async def sleeps(state: Any, ctx: Any) -> Any:
        await ctx.sleep(60 * (1 + state["item"]))
        return {"log": [state["item"]]}

    hf = either.open()
    graph = each(sleeps)
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, {"items": [2, 0, 1]}, id="r")
        await either.quiet(worker)
        for left in (2, 1):
            assert (await run.get()).reason == "timer"
            await either.move(60, worker)
            assert len((await run.get()).waits) == left
        await either.move(60, worker)
        assert (await run.result(timeout=60))["log"] == [2, 0, 1]


async def test_naps_in_place_share_a_record_with_what_follows(house: House, hf: Holdfast) -> None:
    async def naps(state: Any, ctx: Any) -> Any:
        await ctx.sleep(0.5)
        return {"log": [state["item"]]}

    graph = each(naps)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"items": list(range(5))}, id="r")
        await house.clock.asleep(3 + 5)
        await house.move(0.5, worker)
        assert (await run.result(timeout=60))["log"] == list(range(5))
        assert worker.counts["claimed"] == 0
    assert Counter(kind for kind, _ in await entries(hf)) == {"node": 7, "timer": 5, "finished": 1}


async def test_not_every_branch_is_asked_whenever_one_comes_to_wait(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Counter[str]()

    def counting(wait: Any, *rest: Any, **options: Any) -> Any:
        asked["waits"] += 1
        return resolved_group(wait, *rest, **options)

    for room in (signals, waits):
        monkeypatch.setattr(room, "resolved_group", counting)
    graph = each(waits_for("go"), concurrency=1)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"items": list(range(200))}, id="r")
        await house.quiet(worker)
        assert (await run.get()).status == "waiting"
    assert 200 <= asked["waits"] <= 3 * 200
