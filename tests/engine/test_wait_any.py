"""Waiting for the first of several: exactly one condition is taken, and the others stay."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from holdfast import (
    END,
    Graph,
    Holdfast,
    Retry,
    WaitAnswer,
    days,
    escalate,
    seconds,
    signal,
    timer,
)
from holdfast.engine.execution.inbox import Inbox
from holdfast.engine.execution.waits import Waits
from holdfast.errors import (
    InvalidRequest,
    NotPausable,
    RunFailed,
    RunNotFound,
    SignalMisfit,
    WaitBeyondExpiry,
    WaitTimedOut,
)
from holdfast.model.execution import Execution
from holdfast.model.signals import Signal
from holdfast.model.wait import Wait, group_key
from tests.engine.support import House, calls_of, item_of_head, kill

APPROVED, WITHDRAWN = signal("approved"), signal("withdrawn")


def graph_of(function: Any, **options: Any) -> Graph:
    """Return a graph of one node."""
    graph = Graph("g", dict)
    graph.node(name="node", **options)(function)
    return graph


def told(answer: WaitAnswer) -> list[Any]:
    return [answer.index, answer.payload]


async def kinds(hf: Holdfast, id: str) -> list[str]:
    return [entry.kind for entry in (await hf.run(id).history()).entries]


async def takes_first(state: Any, ctx: Any) -> Any:
    return {"got": told(await ctx.wait_any(APPROVED, WITHDRAWN, timer(days(2))))}


async def takes_both(state: Any, ctx: Any) -> Any:
    first = await ctx.wait_any(APPROVED, WITHDRAWN)
    second = await ctx.wait_any(APPROVED, WITHDRAWN)
    return {"got": [told(first), told(second)]}


async def test_the_answer_says_which_condition_and_what_it_brought(either: House) -> None:
    hf = either.open()
    seen: list[WaitAnswer] = []

    async def node(state: Any, ctx: Any) -> Any:
        answer = await ctx.wait_any(APPROVED, WITHDRAWN, timer(days(2)))
        seen.append(answer)
        match answer:
            case WaitAnswer(condition, index, payload) if condition is WITHDRAWN:
                return {"got": [index, payload]}

    graph = graph_of(node)
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await either.quiet(worker)
        row = await run.get()
        assert (row.status, row.reason) == ("waiting", "signal")
        assert [wait.kind.tag for wait in row.waits] == ["signal", "signal", "timer"]
        assert [wait.signal for wait in row.waits] == ["approved", "withdrawn", None]
        await run.signal("withdrawn", {"by": "ann"})
        await either.move(1, worker)
        assert await run.result(timeout=60) == {"got": [1, {"by": "ann"}]}
    assert seen == [WaitAnswer(WITHDRAWN, 1, {"by": "ann"})]
    assert await kinds(hf, "doc-42") == ["signal", "node", "finished"]


@pytest.mark.parametrize("order", [("approved", "withdrawn"), ("withdrawn", "approved")])
async def test_of_two_in_one_millisecond_the_first_accepted_wins_and_the_other_stays(
    either: House, order: tuple[str, str]
) -> None:
    hf = either.open()
    graph = graph_of(takes_both)
    run = await hf.start(graph, id="doc-42")
    for number, name in enumerate(order):
        await run.signal(name, number, signal_id=f"s{9 - number}")  # ids fall, names rise or fall
    async with either.worker(hf, graph) as worker:
        await either.quiet(worker)
    places = [("approved", "withdrawn").index(name) for name in order]
    assert await run.result(timeout=60) == {"got": [[places[0], 0], [places[1], 1]]}
    assert calls_of(hf, "inbox") == {("inbox", "write"): 2}


async def test_a_loser_is_there_for_a_plain_wait(house: House, hf: Holdfast) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        first = await ctx.wait_any(APPROVED, WITHDRAWN)
        return {"got": [told(first), await ctx.wait(APPROVED)]}

    graph = graph_of(node)
    run = await hf.start(graph, id="doc-42")
    await run.signal("withdrawn", 1)
    await run.signal("approved", 2)
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
    assert await run.result(timeout=60) == {"got": [[1, 1], 2]}


async def test_the_timer_wins_where_nothing_came_before_its_time(house: House) -> None:
    hf = house.open()
    graph = graph_of(takes_first)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        await house.move(2 * 86_400, worker)
        assert await run.result(timeout=60) == {"got": [2, None]}
    assert await kinds(hf, "doc-42") == ["timer", "node", "finished"]


@pytest.mark.parametrize(("late_ms", "winner"), [(-1, 0), (0, 1), (1, 1)])
async def test_a_signal_counts_if_it_was_accepted_before_the_timers_time(
    house: House, late_ms: int, winner: int
) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        answer = await ctx.wait_any(APPROVED, timer(seconds(60)))
        later = None if answer.condition is APPROVED else await ctx.wait(APPROVED)
        return {"got": [answer.index, later]}

    graph = graph_of(node)
    hf, client = house.open(), house.open()
    run = await hf.start(graph, id="doc-42")
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
        began_ms = (await run.get()).waits[0].since_ms
    # No worker runs when the time is up.
    house.clock.advance((began_ms + 60_000 + late_ms - house.clock.now_ms()) / 1000)
    await client.run("doc-42").signal("approved", "yes")
    house.clock.advance(5)
    async with house.worker(house.open(), graph) as worker:
        await house.quiet(worker)
    expected = [0, None] if winner == 0 else [1, "yes"]
    assert await run.result(timeout=60) == {"got": expected}


async def test_max_wait_times_out_and_the_timer_does_not_win(house: House, hf: Holdfast) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        got = []
        for conditions in ((APPROVED, timer(90)), (timer(90),), (APPROVED, WITHDRAWN)):
            try:
                await ctx.wait_any(*conditions, max_wait=60)
            except WaitTimedOut as error:
                got.append(str(error))
        return {"got": [*got, (await ctx.wait_any(APPROVED, timer(60), max_wait=60)).index]}

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        for _ in range(4):
            await house.quiet(worker)
            row = await run.get()
            assert {wait.deadline_ms for wait in row.waits} == {row.waits[0].since_ms + 60_000}
            house.clock.advance(60)
        await house.quiet(worker)
        late = "conditions came in time"
        expected = [f"none of the {n} {late}" for n in (2, 1, 2)]
        assert await run.result(timeout=60) == {"got": [*expected, 1]}


async def test_a_timer_of_no_time_asks_whether_a_signal_is_there(house: House) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        return {"got": [(await ctx.wait_any(APPROVED, timer(0))).index for _ in range(2)]}

    hf, graph = house.open(), graph_of(node)
    run = await hf.start(graph, id="doc-42")
    await run.signal("approved")
    house.clock.advance(0.001)
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
        assert await run.result(timeout=60) == {"got": [0, 1]}


async def test_a_node_that_runs_again_gets_the_same_answer(house: House, hf: Holdfast) -> None:
    seen: list[list[Any]] = []

    async def node(state: Any, ctx: Any) -> Any:
        first = told(await ctx.wait_any(APPROVED, WITHDRAWN))
        seen.append(first)
        if ctx.attempt == 1:
            raise ValueError("once")
        await ctx.sleep(3_600)
        return {"got": [first, told(await ctx.wait_any(APPROVED, WITHDRAWN))]}

    graph = graph_of(node, retry=Retry(attempts=2, backoff=0.1, jitter=0))
    run = await hf.start(graph, id="doc-42")
    await run.signal("withdrawn", 1)
    worker = house.worker(hf, graph)
    await worker.start()
    await house.clock.asleep(3 + 1)
    await house.move(0.2, worker)
    await run.signal("approved", 2)
    await house.quiet(worker)
    kill(worker)
    async with house.worker(house.open(), graph) as another:
        await house.move(3_700, another)
        assert await run.result(timeout=60) == {"got": [[1, 1], [0, 2]]}
    assert seen == [[1, 1]] * 3


async def test_a_kill_before_the_answer_is_durable_leaves_the_signals(
    house: House, hf: Holdfast
) -> None:
    held = asyncio.Event()

    async def node(state: Any, ctx: Any) -> Any:
        answer = told(await ctx.wait_any(APPROVED, WITHDRAWN))
        if not held.is_set():
            held.set()
            await asyncio.Event().wait()
        return {"got": [answer, told(await ctx.wait_any(APPROVED, WITHDRAWN))]}

    graph = graph_of(node)
    run = await hf.start(graph, id="doc-42")
    await run.signal("withdrawn", 1)
    await run.signal("approved", 2)
    worker = house.worker(hf, graph, lease=20)
    await worker.start()
    await held.wait()
    kill(worker)
    another = house.open()
    async with house.worker(another, graph, lease=20) as second:
        for _ in range(8):
            await house.move(10, second)
        assert await run.result(timeout=60) == {"got": [[1, 1], [0, 2]]}


async def test_the_wait_goes_on_after_a_signal_of_another_name(house: House, hf: Holdfast) -> None:
    entered: list[int] = []

    async def node(state: Any, ctx: Any) -> Any:
        entered.append(1)
        return {"got": told(await ctx.wait_any(APPROVED, WITHDRAWN))}

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        since = (await run.get()).waits[0].since_ms
        await run.signal("noise")
        await house.move(1, worker)
        row = await run.get()
        assert (row.status, row.waits[1].since_ms) == ("waiting", since)
        await run.signal("withdrawn", 5)
        await house.move(1, worker)
        assert await run.result(timeout=60) == {"got": [1, 5]}


async def test_more_conditions_than_the_row_has_room_for(house: House, hf: Holdfast) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        names = [signal(f"s{number}") for number in range(20)]
        return {"got": told(await ctx.wait_any(*names, max_wait=600, about="many"))}

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        row = await run.get()
        assert len(row.waits) == 8
        assert {wait.about for wait in row.waits} == {"many"}
    async with house.worker(house.open(), graph) as worker:
        await house.quiet(worker)  # it sleeps until its next poll, which the move brings
        await run.signal("s17", "late in the list")
        await house.move(1, worker)
        assert await run.result(timeout=60) == {"got": [17, "late in the list"]}
    assert await kinds(hf, "doc-42") == ["about", "signal", "node", "finished"]


async def test_a_stale_group_is_one_wait(house: House, hf: Holdfast) -> None:
    graph = graph_of(takes_first, max_pause=60, on_stale=escalate("manager"))

    @graph.node
    async def manager(state: Any) -> Any:
        return {"got": "escalated"}

    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        assert len({wait.stale_ms for wait in (await run.get()).waits}) == 1
        await house.move(61, worker)
        assert await run.result(timeout=60) == {"got": "escalated"}


async def test_an_answer_in_time_is_carried_out_past_the_expiry(house: House) -> None:
    hf, client = house.open(), house.open()

    async def node(state: Any, ctx: Any) -> Any:
        return {"got": told(await ctx.wait_any(APPROVED, WITHDRAWN))}

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", expires=60)
        await house.quiet(worker)
    house.clock.advance(59)
    await client.run("doc-42").signal("withdrawn", 1)
    house.clock.advance(10)
    async with house.worker(house.open(), graph) as worker:
        await house.quiet(worker)
        assert await run.result(timeout=60) == {"got": [1, 1]}


async def test_a_start_is_promoted_into_a_condition(house: House, hf: Holdfast) -> None:
    graph = graph_of(takes_first)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"n": 1}, id="one", session="desk")
        await house.quiet(worker)
        await hf.start(graph, {"n": 2}, id="two", session="desk", on_busy="promote")
        await house.move(1, worker)
        assert (await run.result(timeout=60))["got"] == [0, {"n": 2}]
        assert (await hf.run("two").get()).status == "promoted"


async def test_branches_share_the_inbox_and_each_signal_goes_to_one(
    house: House, hf: Holdfast
) -> None:
    graph = Graph("g", dict, reducers={"got": "append"})

    @graph.node
    async def split(state: Any) -> Any:
        return {}

    @graph.node(writes=["got"])
    async def left(state: Any, ctx: Any) -> Any:
        return {"got": [told(await ctx.wait_any(APPROVED, WITHDRAWN))]}

    @graph.node(writes=["got"])
    async def right(state: Any, ctx: Any) -> Any:
        return {"got": [told(await ctx.wait_any(APPROVED, WITHDRAWN))]}

    @graph.node
    async def join(state: Any) -> Any:
        return {}

    graph.fork(split, [left, right], join=join)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"got": []}, id="doc-42")
        await house.quiet(worker)
        assert len((await run.get()).waits) == 4
        await run.signal("withdrawn", 1)
        await run.signal("approved", 2)
        await house.move(1, worker)
        assert sorted((await run.result(timeout=60))["got"]) == [[0, 2], [1, 1]]


def test_a_signal_that_did_not_win_is_for_other_branches() -> None:
    """A branch resumes for one signal of its group; it must not keep the others from branches."""
    key = group_key("d", 1)
    group = tuple(
        Wait(visit=0, key=f"{key}/{i}", branch="0.0", signal=name, since_ms=0)
        for i, name in enumerate(("approved", "withdrawn"))
    )
    alone = Wait(visit=0, key="approved#1", branch="0.1", signal="approved", since_ms=0)
    waits, execution = Waits(), Execution(node="n", state={}, seed="s")
    waits.set_waiting("0.0", group, expires_ms=100)
    waits.set_waiting("0.1", (alone,), expires_ms=100)
    inbox = [Signal("withdrawn", "a", 1), Signal("approved", "b", 2)]
    waits.mark_changed()
    assert waits.pop_answered(inbox, execution, 5, expires_ms=100) == ["0.0", "0.1"]


async def test_a_timer_that_could_not_win_at_first_never_wins(house: House, hf: Holdfast) -> None:
    """A node may compute its timer from the clock: it is shorter whenever the node runs again."""
    left = [90, 30, 20]

    async def node(state: Any, ctx: Any) -> Any:
        async def first() -> Any:
            try:
                return (await ctx.wait_any(APPROVED, timer(left.pop(0)), max_wait=60)).index
            except WaitTimedOut:
                return "timed out"

        return {"got": await asyncio.gather(ctx.wait(WITHDRAWN), first())}

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        await run.signal("withdrawn", 1)
        await house.move(1, worker)
        assert [wait.signal for wait in (await run.get()).waits] == ["approved", None]
        await house.move(60, worker)
        assert await run.result(timeout=60) == {"got": [1, "timed out"]}
    assert left == []


async def test_each_visit_of_a_node_has_its_own_waits(house: House, hf: Holdfast) -> None:
    graph = Graph("g", dict, reducers={"got": "append"})

    @graph.node
    async def ask(state: Any, ctx: Any) -> Any:
        limit = 60 if len(state["got"]) % 2 else 120
        try:
            return {"got": [(await ctx.wait_any(APPROVED, timer(limit), max_wait=90)).index]}
        except WaitTimedOut:
            return {"got": ["timed out"]}

    graph.choose(ask, lambda state: ask if len(state["got"]) < 3 else END, to=[ask, END])
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, {"got": []}, id="doc-42")
        for _ in range(3):
            await house.quiet(worker)
            house.clock.advance(90)
        await house.quiet(worker)
        assert await run.result(timeout=60) == {"got": ["timed out", 1, "timed out"]}


def child_graph(*, fails: bool = False) -> Graph:
    graph = Graph("child", dict)

    @graph.node
    async def work(state: Any, ctx: Any) -> Any:
        await ctx.wait(signal("end"))
        if fails:
            raise ValueError("broken")
        return {"done": state["n"]}

    return graph


@pytest.mark.parametrize("fails", [False, True])
async def test_a_child_competes_with_signals(either: House, fails: bool) -> None:
    small = child_graph(fails=fails)

    async def node(state: Any, ctx: Any) -> Any:
        one = await ctx.start(small, {"n": 1}, id="one")
        two = await ctx.start(small, {"n": 2}, id="two")
        try:
            first = await ctx.wait_any(APPROVED, one, two, timer(days(1)))
        except RunFailed as error:
            return {"got": "broken" in str(error), "next": (await ctx.wait_any(APPROVED)).index}
        assert first.condition is two
        # It ended: whoever asks again is told the same.
        again = await ctx.wait_any(APPROVED, two)
        same = await two.result()
        second = await ctx.wait_any(APPROVED, one)
        return {"got": [told(first), again.payload == same, told(second)]}

    graph, hf = graph_of(node), either.open()
    async with either.worker(hf, graph, small) as worker:
        run = await hf.start(graph, id="doc-42")
        await either.quiet(worker)
        assert [wait.kind.tag for wait in (await run.get()).waits] == [
            "signal", "child", "child", "timer",
        ]  # fmt: skip
        await hf.run("two").signal("end")
        await either.move(1, worker)
        await run.signal("approved", "late")
        await either.move(1, worker)
        result = await run.result(timeout=60)
    expected: list[Any] = [[2, {"n": 2, "done": 2}], True, [0, "late"]]
    assert result == ({"got": True, "next": 0} if fails else {"got": expected})


async def test_a_child_that_lost_goes_on_and_its_result_can_be_taken(
    house: House, hf: Holdfast
) -> None:
    small = child_graph()

    async def node(state: Any, ctx: Any) -> Any:
        child = await ctx.start(small, {"n": 1}, id="one")
        first = await ctx.wait_any(child, APPROVED)
        return {"got": [told(first), await child.result()]}

    graph = graph_of(node)
    async with house.worker(hf, graph, small) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        await run.signal("approved", 1)
        await house.move(1, worker)
        assert (await hf.run("one").get()).status == "waiting"
        await hf.run("one").signal("end")
        await house.move(1, worker)
        assert await run.result(timeout=60) == {"got": [[1, 1], {"n": 1, "done": 1}]}


async def test_tasks_that_await_one_child_all_get_its_end(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, load = child_graph(), Inbox.load_payload

    async def slow(self: Any, signal: Any) -> Any:
        await house.clock.sleep(0)  # as if it were in a blob
        return await load(self, signal)

    monkeypatch.setattr(Inbox, "load_payload", slow)

    async def node(state: Any, ctx: Any) -> Any:
        child = await ctx.start(small, {"n": 1}, id="one")
        result, answer = await asyncio.gather(child.result(), ctx.wait_any(APPROVED, child))
        return {"got": [result, told(answer)]}

    graph = graph_of(node)
    async with house.worker(hf, graph, small) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        await hf.run("one").signal("end")
        await house.move(1, worker)
        ended = {"n": 1, "done": 1}
        assert await run.result(timeout=60) == {"got": [ended, [1, ended]]}


async def test_a_plain_function_waits_with_its_own_child(house: House, hf: Holdfast) -> None:
    small = child_graph()

    def node(state: Any, ctx: Any) -> Any:
        child = ctx.start(small, {"n": 1}, id="one")
        first = ctx.wait_any(child, APPROVED, about={"n": 1})
        assert first.condition is APPROVED
        second = ctx.wait_any(APPROVED, child)
        assert second.condition is child
        return {"got": [told(first), told(second)]}

    graph = graph_of(node)
    async with house.worker(hf, graph, small) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        assert (await run.get()).waits[0].about == {"n": 1}
        await run.signal("approved", 1)
        await house.move(1, worker)
        await hf.run("one").signal("end")
        await house.move(1, worker)
        assert await run.result(timeout=60) == {"got": [[1, 1], [1, {"n": 1, "done": 1}]]}


async def refusal_of(hf: Holdfast, house: House, *conditions: Any, **options: Any) -> Exception:
    """Return the error of a node that waits for these."""
    errors: list[Exception] = []

    async def node(state: Any, ctx: Any) -> Any:
        try:
            await ctx.wait_any(*[make(ctx) if callable(make) else make for make in conditions])
        except Exception as error:
            errors.append(error)

    graph = graph_of(node, **options)
    async with house.worker(hf, graph) as worker:
        await hf.start(graph)
        await house.quiet(worker)
    (error,) = errors
    return error


@pytest.mark.parametrize(
    ("conditions", "told"),
    [
        ((), "wait_any needs at least one condition"),
        (("approved",), "did you mean signal('approved')?"),
        ((APPROVED, lambda ctx: ctx.child("one").result()), "not child.result()"),
        ((APPROVED, None), "condition 2 of wait_any must be signal"),
        ((APPROVED, signal("approved")), "conditions 1 and 2 of wait_any both wait for the signal"),
        ((timer(1), APPROVED, timer(2)), "conditions 1 and 3 of wait_any are both timers"),
        (
            (lambda ctx: ctx.child("one"), lambda ctx: ctx.child("one")),
            "both wait for the end of run one",
        ),
    ],
)
async def test_what_is_no_condition_is_refused(
    house: House, hf: Holdfast, conditions: tuple[Any, ...], told: str
) -> None:
    error = await refusal_of(hf, house, *conditions)
    assert isinstance(error, InvalidRequest)
    assert told in str(error)


async def test_a_node_that_may_not_pause_may_not_wait(house: House, hf: Holdfast) -> None:
    assert isinstance(await refusal_of(hf, house, APPROVED, pausable="no"), NotPausable)


async def test_a_child_that_is_none_is_told_at_once(house: House, hf: Holdfast) -> None:
    error = await refusal_of(hf, house, APPROVED, lambda ctx: ctx.child("none"))
    assert isinstance(error, RunNotFound)


async def test_a_timer_alone_beyond_the_expiry_is_told_at_once(house: House, hf: Holdfast) -> None:
    error = await refusal_of(hf, house, timer(days(30)))
    assert isinstance(error, WaitBeyondExpiry)


@pytest.mark.parametrize("conditions", [(APPROVED, timer(days(30))), (timer(days(30)), APPROVED)])
@pytest.mark.parametrize("max_wait", [None, days(20)])
async def test_a_timer_beyond_the_expiry_wins_at_the_expiry(
    house: House, hf: Holdfast, conditions: tuple[Any, ...], max_wait: Any
) -> None:
    times: list[int] = []

    async def node(state: Any, ctx: Any) -> Any:
        try:
            answer = await ctx.wait_any(*conditions, max_wait=max_wait)
            got: Any = answer.condition is conditions[conditions[0] is APPROVED]
        except WaitTimedOut:
            got = "timed out"
        times.append(house.clock.now_ms())
        return {"got": got}

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        began = house.clock.now_ms()
        run = await hf.start(graph, expires=3600)
        await house.quiet(worker)
        await house.move(3599.9, worker)
        assert (await run.get()).status == "waiting"
        await house.move(0.2, worker)
        # A max_wait before the timer's time ends there, too, and the timer does not win.
        assert await run.result(timeout=60) == {"got": True if max_wait is None else "timed out"}
    assert began + 3_600_000 <= times[-1] <= began + 3_600_300


@pytest.mark.parametrize("wrong", [-1, "2 days", None, True])
def test_a_timer_needs_a_duration(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="timer"):
        timer(wrong)


async def test_a_row_without_groups_has_what_it_always_had(house: House, hf: Holdfast) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        await ctx.wait(APPROVED)

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        item = await item_of_head(hf, "doc-42")
    assert item["waits"] == [
        {"visit": 0, "key": "approved#1", "signal": "approved", "since_ms": item["updated_ms"]}
    ]
    assert item["show"] == {"graph": "g", "version": 1}


async def test_more_conditions_than_a_node_may_wait_for_are_refused(
    house: House, hf: Holdfast
) -> None:
    error = await refusal_of(hf, house, *(signal(f"s{number}") for number in range(1_001)))
    assert isinstance(error, NotPausable)
    assert "waits for more than 1000 things at once" in str(error)


async def test_a_signal_that_does_not_fit_is_set_aside_and_the_wait_goes_on(
    house: House, hf: Holdfast
) -> None:
    approved, withdrawn = signal("approved", bool), signal("withdrawn", str)

    async def node(state: Any, ctx: Any) -> Any:
        answer = await ctx.wait_any(approved, withdrawn)
        return {"got": [answer.index, answer.payload]}

    graph = graph_of(node)
    run = await hf.start(graph, id="doc-42")
    await run.signal("approved", "yes", signal_id="odd")  # no worker has told its type yet
    async with house.worker(hf, graph) as worker:
        await house.quiet(worker)
        assert [one.id for one in await run.set_aside()] == ["odd"]
        assert (await run.get()).status == "waiting"
        with pytest.raises(SignalMisfit, match="true or false"):
            await run.signal("approved", 1)
        await run.signal("withdrawn", "by ann")
        await house.move(1, worker)
        assert await run.result(timeout=60) == {"got": [1, "by ann"]}


async def test_after_a_retry_it_asks_again_unless_answers_are_kept(
    house: House, hf: Holdfast
) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        answer = await ctx.wait_any(APPROVED, WITHDRAWN)
        if answer.payload == "poison":
            raise ValueError("poisoned")
        return {"got": answer.payload}

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await run.signal("approved", "poison")
        await house.quiet(worker)
        assert (await run.get()).status == "failed"
        await run.retry(keep_answers=True)
        await house.move(1, worker)
        assert (await run.get()).status == "failed"
        await run.retry()
        await house.move(1, worker)
        assert (await run.get()).status == "waiting"
        await run.signal("withdrawn", "fine")
        await house.move(1, worker)
        assert await run.result(timeout=60) == {"got": "fine"}


async def test_all_conditions_say_what_the_wait_is_about(house: House, hf: Holdfast) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        await ctx.wait_any(APPROVED, WITHDRAWN, timer(60), about={"offer": "o-7"})

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        page = await run.waits()
        assert [wait.about for wait in page.waits] == [{"offer": "o-7"}] * 3
        told = repr(page.waits[0])
        assert told.startswith("Wait('signal', 'the signal approved', since_ms=")
        assert told.endswith("about={'offer': 'o-7'})")
        await house.move(60, worker)
    entries = (await run.history()).entries
    named = [entry.details["wait"] for entry in entries if "wait" in entry.details]
    assert [re.sub(r"[0-9a-f]{16}", "…", name) for name in named] == [
        "wait_any.…#1", "wait_any.…#1/2",
    ]  # fmt: skip
