"""Waiting: a signal may come before, while or after the node waits, and counts exactly once."""

from __future__ import annotations

import asyncio
import copy
import gc
from typing import Any

import pytest

from holdfast import Graph, Holdfast, Retry, days, signal, timer
from holdfast.errors import AlreadyExists, RunEnded, RunFailed, WaitTimedOut
from tests.engine.support import Gate, House, calls_of, chain, journal_items, kill


def graph_of(function: Any, **options: Any) -> Graph:
    """Return a graph of one node."""
    graph = Graph("g", dict)
    graph.node(name="node", **options)(function)
    return graph


async def kinds(hf: Holdfast, id: str) -> list[str]:
    return [entry.kind for entry in (await hf.run(id).history()).entries]


async def takes_one(state: Any, ctx: Any) -> Any:
    return {"got": await ctx.wait(signal("decision"))}


async def test_a_run_waits_and_goes_on_with_the_signal(either: House) -> None:
    hf, client = either.open(), either.open()
    async with either.worker(hf, graph_of(takes_one)) as worker:
        run = await hf.start(graph_of(takes_one), id="doc-42")
        await either.quiet(worker)
        assert (await run.get()).status == "waiting"
        assert worker.running == 0
        await client.run("doc-42").signal("another")
        await either.move(1, worker)
        assert (await run.get()).status == "waiting"
        await client.run("doc-42").signal("decision", {"approved": [1, None]})
        await either.move(1, worker)
        assert await run.result(timeout=60) == {"got": {"approved": [1, None]}}


async def test_a_signal_may_come_before_the_run_is_claimed(either: House) -> None:
    hf = either.open()
    graph = graph_of(takes_one)
    run = await hf.start(graph, id="doc-42")
    await run.signal("decision", "early")
    async with either.worker(hf, graph) as worker:
        await either.quiet(worker)
    assert await run.result(timeout=60) == {"got": "early"}
    assert calls_of(hf, "inbox") == {("inbox", "write"): 1}  # the query of the resume brought it


async def test_a_signal_may_come_while_an_earlier_node_runs(either: House) -> None:
    hf, client = either.open(), either.open()
    gate = Gate()

    async def blocked(state: Any) -> Any:
        await gate.pass_through()

    graph = chain("g", 2, lambda number: {}, node0=blocked, node1=takes_one)
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await gate.waited_at()
        await client.run("doc-42").signal("decision", "meanwhile")
        gate.open()
        await either.quiet(worker)
        assert await run.result(timeout=60) == {"got": "meanwhile"}
        assert worker.counts["claimed"] == 0  # it never let go of the run


async def test_signals_of_one_name_count_in_the_order_of_their_acceptance(either: House) -> None:
    async def takes_three(state: Any, ctx: Any) -> Any:
        return {"got": [await ctx.wait(signal("decision")) for _ in range(3)]}

    graph = graph_of(takes_three)
    hf = either.open()
    run = await hf.start(graph, id="doc-42")
    for id, payload in (("z", "first"), ("m", "second"), ("a", "third")):
        await run.signal("decision", payload, signal_id=id)
        either.clock.advance(0.001)
    async with either.worker(hf, graph) as worker:
        await either.quiet(worker)
    assert await run.result(timeout=60) == {"got": ["first", "second", "third"]}


async def test_waits_of_one_node_are_answered_one_after_the_other(house: House) -> None:
    entered = []

    async def takes_two(state: Any, ctx: Any) -> Any:
        entered.append(ctx.visit)
        first = await ctx.wait(signal("decision"))
        second = await ctx.wait(signal("decision"))
        return {"got": [first, second]}

    graph = graph_of(takes_two)
    hf = house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        for payload in ("first", "second"):
            assert (await run.get()).status == "waiting"
            await run.signal("decision", payload)
            await house.quiet(worker)
        assert await run.result(timeout=60) == {"got": ["first", "second"]}
    assert entered == [0, 0, 0]
    assert await kinds(hf, "doc-42") == ["signal", "signal", "node", "finished"]


async def test_a_signal_is_durably_taken_before_anything_is_begun_with_it(
    house: House, hf: Holdfast
) -> None:
    recorded: list[list[str]] = []

    async def use(payload: str) -> None:
        recorded.append(await kinds(hf, "doc-42"))

    async def node(state: Any, ctx: Any) -> Any:
        await ctx.call(use, await ctx.wait(signal("decision")))

    graph = graph_of(node)
    run = await hf.start(graph, id="doc-42")
    await run.signal("decision", "yes")
    async with house.worker(hf, graph):
        await run.result(timeout=60)
    assert recorded == [["signal"]]


async def test_a_signal_of_which_a_lost_worker_had_not_written_is_taken_by_the_next(
    house: House,
) -> None:
    gate, seen = Gate(), list[str]()

    async def node(state: Any, ctx: Any) -> Any:
        seen.append(await ctx.wait(signal("decision")))
        await gate.pass_through()
        return {"got": seen[-1]}

    graph, hf = graph_of(node), house.open()
    worker = house.worker(hf, graph, lease=10)
    await worker.start()
    run = await hf.start(graph, id="doc-42")
    await run.signal("decision", "yes")
    await gate.waited_at()
    kill(worker)
    assert await kinds(hf, "doc-42") == []
    gate.open()
    async with house.worker(house.open(), graph) as heir:
        await house.move(30, heir)
    assert await run.result(timeout=60) == {"got": "yes"}
    assert seen == ["yes", "yes"]
    assert await kinds(hf, "doc-42") == ["fence", "signal", "node", "finished"]
    await worker.stop()


async def test_a_signal_sent_twice_counts_once(either: House) -> None:
    async def takes_two(state: Any, ctx: Any) -> Any:
        return {"got": [await ctx.wait(signal("decision")) for _ in range(2)]}

    graph = graph_of(takes_two)
    hf = either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        for _ in range(3):
            await run.signal("decision", {"a": 1, "b": 2}, signal_id="s1")
            await either.quiet(worker)
        assert (await run.get()).status == "waiting"
        await run.signal("decision", "other", signal_id="s2")
        await either.quiet(worker)
        assert await run.result(timeout=60) == {"got": [{"a": 1, "b": 2}, "other"]}


async def test_a_signal_id_with_another_payload_is_refused(either: House) -> None:
    graph = graph_of(takes_one)
    hf = either.open()
    run = await hf.start(graph, id="doc-42")
    await run.signal("decision", "yes", signal_id="s1")
    before = await journal_items(hf, "doc-42")
    with pytest.raises(AlreadyExists, match="s1"):
        await run.signal("decision", "no", signal_id="s1")
    assert await journal_items(hf, "doc-42") == before
    await run.signal("another name", "no", signal_id="s1")
    async with either.worker(hf, graph) as worker:
        await either.quiet(worker)
    assert await run.result(timeout=60) == {"got": "yes"}


@pytest.mark.parametrize("other", [False, 0.0, -0.0, None, "0", 1], ids=repr)
async def test_what_python_takes_for_equal_is_another_payload(house: House, other: Any) -> None:
    hf = house.open()
    run = await hf.start(graph_of(takes_one), id="doc-42")
    await run.signal("decision", {"approve": 0, "by": [1]}, signal_id="s1")
    await run.signal("decision", {"by": [1], "approve": 0}, signal_id="s1")
    with pytest.raises(AlreadyExists):
        await run.signal("decision", {"approve": other, "by": [1]}, signal_id="s1")


async def test_a_signal_that_ended_its_run_can_be_sent_again(either: House) -> None:
    """Whoever did not hear that it counted must be able to ask, from another process, too."""
    hf, other = either.open(), either.open()
    graph = graph_of(takes_one)
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await run.signal("nobody waits for", 1, signal_id="s1")
        await run.signal("decision", {"yes": True}, signal_id="s1")
        await either.quiet(worker)
        assert (await run.get()).status == "finished"
    for sender in (hf, other):
        await sender.run("doc-42").signal("decision", {"yes": True}, signal_id="s1")
        with pytest.raises(AlreadyExists):
            await sender.run("doc-42").signal("decision", {"yes": False}, signal_id="s1")
        for name, payload, id in (
            ("decision", {"yes": True}, "s2"),
            ("decision", {"yes": True}, None),
            ("decision", object(), "s1"),
            ("nobody waits for", 1, "s1"),
        ):
            with pytest.raises(RunEnded):
                await sender.run("doc-42").signal(name, payload, signal_id=id)


async def test_the_same_payload_in_another_order_of_keys_is_the_same_signal(hf: Holdfast) -> None:
    run = await hf.start(graph_of(takes_one), id="doc-42")
    await run.signal("decision", {"a": 1, "b": 2}, signal_id="s1")
    await run.signal("decision", {"b": 2, "a": 1}, signal_id="s1")


async def test_many_senders_at_the_same_time_lose_nothing(either: House) -> None:
    async def takes_many(state: Any, ctx: Any) -> Any:
        got = sorted([await ctx.wait(signal("decision")) for _ in range(20)])
        return {"got": got, "end": await ctx.wait(signal("end"))}

    graph = graph_of(takes_many)
    hf, client = either.open(), either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        sends = [
            sender.run("doc-42").signal("decision", number, signal_id=f"s{number}")
            for number in range(20)
            for sender in (hf, client)
        ]
        await asyncio.gather(*sends)
        await either.move(1, worker)
        assert [wait.signal for wait in (await run.get()).waits] == ["end"]
        await run.signal("end", "over")
        assert await run.result(timeout=60) == {"got": list(range(20)), "end": "over"}


async def test_a_signal_that_was_taken_is_not_said_to_have_come_too_late(house: House) -> None:
    gate = Gate()

    async def takes_both(state: Any, ctx: Any) -> Any:
        await gate.pass_through()
        return {"got": sorted([await ctx.wait(signal("decision")) for _ in range(2)])}

    graph = graph_of(takes_both)
    hf, slow = house.open(), house.open()
    held = Held(slow._kernel.heads)
    slow._kernel.heads = held  # type: ignore[assignment]
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await gate.waited_at()
        sending = asyncio.create_task(slow.run("doc-42").signal("decision", "slow"))
        await held.reached.wait()  # it lies in the inbox, and the run was not told yet
        await run.signal("decision", "quick")
        gate.open()
        await house.quiet(worker)
        assert await run.result(timeout=60) == {"got": ["quick", "slow"]}
        held.released.set()
        await sending


class Held:
    """A table whose writes wait until they are let go."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self.reached = asyncio.Event()
        self.released = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    async def write(self, *arguments: Any, **options: Any) -> Any:
        self.reached.set()
        await self.released.wait()
        return await self._table.write(*arguments, **options)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
async def test_a_node_may_wait_for_two_things_at_once(house: House, order: Any) -> None:
    async def takes_both(state: Any, ctx: Any) -> Any:
        a, b = await asyncio.gather(ctx.wait(signal("a")), ctx.wait(signal("b")))
        return {"got": [a, b]}

    graph = graph_of(takes_both)
    hf = house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        assert {wait.signal for wait in (await run.get()).waits} == {"a", "b"}
        for name in order:
            await run.signal(name, name)
            await house.quiet(worker)
        assert await run.result(timeout=60) == {"got": ["a", "b"]}
    assert (await kinds(hf, "doc-42")).count("signal") == 2


@pytest.mark.parametrize("early", ["a", "b"])
async def test_of_two_waits_in_a_task_group_one_may_be_answered_early(
    either: House, early: str
) -> None:
    async def takes_both(state: Any, ctx: Any) -> Any:
        async with asyncio.TaskGroup() as group:
            a = group.create_task(ctx.wait(signal("a")))
            b = group.create_task(ctx.wait(signal("b")))
        return {"got": [a.result(), b.result()]}

    graph = graph_of(takes_both)
    hf = either.open()
    run = await hf.start(graph, id="doc-42")
    await run.signal(early, "early")
    async with either.worker(hf, graph) as worker:
        await either.quiet(worker)
        assert (await run.get()).status == "waiting"
        await run.signal("ab".replace(early, ""), "late")
        await either.quiet(worker)
        assert sorted((await run.result(timeout=60))["got"]) == ["early", "late"]
    assert (await kinds(hf, "doc-42")).count("signal") == 2


async def test_a_wait_gives_up_in_time_and_the_node_may_go_on(either: House) -> None:
    async def reminds(state: Any, ctx: Any) -> Any:
        try:
            return {"got": await ctx.wait(signal("decision"), max_wait=60)}
        except WaitTimedOut:
            return {"got": await ctx.wait(signal("reminder"))}

    graph = graph_of(reminds)
    hf = either.open()
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await either.quiet(worker)
        await either.move(59.999, worker)
        assert [wait.signal for wait in (await run.get()).waits] == ["decision"]
        await either.move(0.001 + 0.2, worker)
        assert [wait.signal for wait in (await run.get()).waits] == ["reminder"]
        # Too late, and it stays so after every resume.
        await run.signal("decision", "late")
        await either.move(1, worker)
        await run.signal("reminder", "reminded")
        await either.quiet(worker)
        assert await run.result(timeout=60) == {"got": "reminded"}


async def test_a_wait_that_gives_up_fails_the_run_unless_it_is_caught(house: House) -> None:
    async def impatient(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("decision"), max_wait=60)

    hf = house.open()
    async with house.worker(hf, graph_of(impatient)) as worker:
        run = await hf.start(graph_of(impatient), id="doc-42")
        await house.quiet(worker)
        await house.move(60.2, worker)
        with pytest.raises(RunFailed, match="decision") as failed:
            await run.result(timeout=60)
    assert failed.value.kind == "WaitTimedOut"


async def test_a_signal_accepted_in_time_counts_though_nobody_was_there(house: House) -> None:
    async def impatient(state: Any, ctx: Any) -> Any:
        return {"got": await ctx.wait(signal("decision"), max_wait=60)}

    graph = graph_of(impatient)
    hf, client = house.open(), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
    house.clock.advance(59.999)
    await client.run("doc-42").signal("decision", "in time")
    house.clock.advance(3600)
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
    assert await run.result(timeout=60) == {"got": "in time"}


async def test_a_signal_accepted_too_late_does_not_undo_that_the_time_was_up(
    house: House,
) -> None:
    async def impatient(state: Any, ctx: Any) -> Any:
        try:
            return {"got": await ctx.wait(signal("decision"), max_wait=60)}
        except WaitTimedOut:
            return {"got": None}

    graph = graph_of(impatient)
    hf, client = house.open(), house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
    house.clock.advance(60)
    await client.run("doc-42").signal("decision", "too late")
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
    assert await run.result(timeout=60) == {"got": None}


async def test_a_short_sleep_is_waited_for_in_place(house: House, hf: Holdfast) -> None:
    async def naps(state: Any, ctx: Any) -> Any:
        await ctx.sleep(2)
        return {"woke_ms": house.clock.now_ms()}

    began = house.clock.now_ms()
    async with house.worker(hf, graph_of(naps)) as worker:
        run = await hf.start(graph_of(naps), id="doc-42")
        await house.clock.asleep(4)
        assert (await run.get()).owner == worker.id
        house.clock.advance(1.999)
        await house.clock.asleep(4)
        await house.move(0.001, worker)
        assert await run.result(timeout=60) == {"woke_ms": began + 2_000}
    assert len(await journal_items(hf, "doc-42")) == 1  # no record for the sleep


@pytest.mark.parametrize("plain", [False, True])
async def test_a_long_sleep_is_parked_and_wakes_exactly_when_due(
    either: House, plain: bool
) -> None:
    async def sleeps(state: Any, ctx: Any) -> Any:
        await ctx.sleep(days(1))
        return {"woke_ms": either.clock.now_ms()}

    def sleeps_plainly(state: Any, ctx: Any) -> Any:
        ctx.sleep(days(1))
        return {"woke_ms": either.clock.now_ms()}

    hf = either.open()
    graph = graph_of(sleeps_plainly if plain else sleeps)
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await either.quiet(worker)
        assert (await run.get()).reason == "timer"
        await run.signal("decision")  # which wakes nobody who sleeps
        await either.move(24 * 3600 - 0.001, worker)
        assert (await run.get()).status == "waiting"
        assert worker.counts["claimed"] == 0
        await either.move(0.001 + 0.2, worker)
        assert (await run.get()).status == "finished"
        assert worker.counts["claimed"] == 1


async def test_sleeps_and_waits_of_one_node_are_told_apart(house: House, hf: Holdfast) -> None:
    async def mixed(state: Any, ctx: Any) -> Any:
        await ctx.sleep(60)
        first = await ctx.wait(signal("a"))
        await ctx.sleep(60)
        return {"got": [first, await ctx.wait(signal("b"))]}

    async with house.worker(hf, graph_of(mixed)) as worker:
        run = await hf.start(graph_of(mixed), id="doc-42")
        await run.signal("b", "b")
        await house.quiet(worker)
        assert (await run.get()).reason == "timer"
        await house.move(60.2, worker)
        assert (await run.get()).reason == "signal"
        await run.signal("a", "a")
        await house.quiet(worker)
        assert (await run.get()).reason == "timer"
        await house.move(60.2, worker)
        assert await run.result(timeout=60) == {"got": ["a", "b"]}


async def test_signals_of_one_millisecond_are_taken_in_the_order_of_their_acceptance(
    either: House,
) -> None:
    """Their ids fall, as those of hashes may; the clock stands still."""

    async def votes(state: Any, ctx: Any) -> Any:
        return {"votes": [await ctx.wait(signal("vote")) for _ in range(8)]}

    graph = Graph("g", dict)
    graph.node(name="node")(votes)
    hf, client = either.open(), either.open()
    run = await hf.start(graph, id="doc-42")
    for index in range(8):
        await client.run("doc-42").signal("vote", index, signal_id=f"id-{9 - index}")
        await client.run("doc-42").signal(
            "vote", 0, signal_id="id-9"
        )  # sent again, it stays the first
    async with either.worker(hf, graph) as worker:
        await either.quiet(worker)
    assert (await run.result(timeout=60))["votes"] == list(range(8))


async def test_tasks_that_pause_and_are_not_asked_leave_no_error_in_the_log(
    house: House, hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        waits = [asyncio.create_task(ctx.wait(signal(name))) for name in ("one", "two")]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return {"got": [wait.result() for wait in waits]}

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        gc.collect()
        assert (await run.get()).status == "waiting"
        for name in ("one", "two"):
            await run.signal(name, name)
            await house.move(1, worker)
        assert await run.result(timeout=60) == {"got": ["one", "two"]}
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_a_node_that_changes_an_answer_gets_it_unchanged_in_its_next_attempt(
    house: House, hf: Holdfast
) -> None:
    seen: list[Any] = []

    async def leaf(state: Any) -> Any:
        return {"list": [{}]}

    async def node(state: Any, ctx: Any) -> Any:
        child = await ctx.start(graphs[1])
        answers: list[list[dict[str, Any]]] = [
            await ctx.wait(signal("plain")),
            await ctx.wait(signal("typed", list)),
            (await ctx.wait_any(signal("first"), timer(100))).payload,
            (await child.result())["list"],
            (await ctx.child(child.id).result())["list"],
        ]
        seen.append(copy.deepcopy(answers))
        for answer in answers:
            answer[0]["changed"] = True
            answer.append({})
        if len(seen) < 2:
            raise OSError("torn")

    graphs = [Graph("g", dict), Graph("leaf", dict)]
    graphs[0].node(name="node", retry=Retry(attempts=2, backoff=0))(node)
    graphs[1].node(name="leaf")(leaf)
    async with house.worker(hf, *graphs):
        run = await hf.start(graphs[0], id="doc-42")
        for name in ("plain", "typed", "first"):
            await run.signal(name, [{}])
        await run.result(timeout=60)
    assert seen == [[[{}]] * 5] * 2
