"""The kit: everything proceeds that can, time passes only by `skip`, and nothing is slept away."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Context, Graph, Quota, Retry, days, hours, minutes, signal, timer
from holdfast.errors import InvalidRequest, ResourceMissing, RunExpired, RunFailed
from holdfast.testing import NotSettled, TestKit, scripted
from tests.testing.flows import Order, approval, one_node

FAST_SECONDS = 1.0


async def test_a_flow_with_time_and_a_signal() -> None:
    graph = approval()
    async with TestKit(graph) as kit:
        run = await kit.hf.start(graph, Order(1))
        await kit.settled()
        assert (await run.get()).status == "waiting"
        await kit.skip(days(3))
        assert (await run.get()).status == "waiting"
        await run.signal("approved", True)
        await kit.settled()
        assert await run.result() == Order(1, approved=True)


async def test_the_clock_moves_by_what_is_skipped() -> None:
    async with TestKit(approval(), now="2026-03-01T12:00:00Z") as kit:
        assert kit.clock.now == datetime(2026, 3, 1, 12, tzinfo=UTC)
        await kit.settled()
        assert kit.clock.now == datetime(2026, 3, 1, 12, tzinfo=UTC)
        await kit.skip(timedelta(days=2, milliseconds=7))
        assert kit.clock.now == datetime(2026, 3, 3, 12, 0, 0, 7000, tzinfo=UTC)


async def test_moments_between_attempts_do_not_add_up() -> None:
    """A held sleep leaves a buffered record, which the engine writes a few milliseconds later."""

    async def nap(order: Order, ctx: Context) -> None:
        for _ in range(3):
            await ctx.call(str)
            await ctx.sleep(1)

    graph = one_node(nap)
    async with TestKit(graph) as kit:
        began = kit.clock.now
        await kit.hf.start(graph, Order())
        for seconds in range(1, 8):
            await kit.skip(1)
            late = kit.clock.now - began - timedelta(seconds=seconds)
            assert timedelta(0) <= late < timedelta(milliseconds=20)
        kit.clock.advance(60)
        await kit.skip(1)
        assert kit.clock.now - began >= timedelta(seconds=68)


@pytest.mark.parametrize("settles", [True, False])
async def test_a_skip_reaches_the_end_of_a_wait_that_began_after_such_a_moment(
    settles: bool,
) -> None:
    async def node(order: Order, ctx: Context) -> None:
        for _ in range(3):
            await ctx.call(str)
            await ctx.wait(signal("go"), max_wait=days(5))

    graph = one_node(node)
    async with TestKit(graph) as kit:
        run = await kit.hf.start(graph, Order())
        for _ in range(2):
            await kit.settled()
            await run.signal("go", None)
        if settles:
            await kit.settled()
        await kit.skip(days(5))
        assert (await run.get()).status == "failed"


async def test_max_wait_ends_at_its_time_and_not_before() -> None:
    graph = approval()
    async with TestKit(graph) as kit:
        run = await kit.hf.start(graph, Order(1))
        await kit.skip(days(5) - timedelta(milliseconds=1))
        assert (await run.get()).status == "waiting"
        await kit.skip(timedelta(milliseconds=1))
        assert (await run.get()).status == "failed"
        with pytest.raises(RunFailed, match="WaitTimedOut"):
            await run.result()


async def test_timers_fire_in_their_order_at_their_own_time() -> None:
    seen: list[tuple[int, datetime]] = []
    kit = TestKit()

    async def nap(order: Order, ctx: Context) -> None:
        await ctx.sleep(hours(order.id))
        seen.append((order.id, kit.clock.now))

    graph = one_node(nap)
    async with kit:
        kit.serves(graph)
        for hour in (3, 1, 2):
            await kit.hf.start(graph, Order(hour))
        began = kit.clock.now
        await kit.skip(days(1))
    assert seen == [(hour, began + timedelta(hours=hour)) for hour in (1, 2, 3)]


async def test_short_sleeps_are_work_of_the_worker_and_follow_the_clock() -> None:
    """A sleep that is shorter than ``hold`` is held by the worker: nothing is due."""

    async def nap(order: Order, ctx: Context) -> dict[str, list[str]]:
        await asyncio.gather(ctx.sleep(0.5), ctx.sleep(1.5))
        return {"log": ["awake"]}

    graph = one_node(nap)
    async with TestKit(graph) as kit:
        run = await kit.hf.start(graph, Order())
        await kit.settled()
        assert (await run.get()).status == "running"
        await kit.skip(1)
        assert (await run.get()).status == "running"
        await kit.skip(0.5)
        assert (await run.result()).log == ["awake"]


async def test_backoffs_of_nodes_and_calls_follow_the_clock() -> None:
    tries: list[str] = []

    async def flaky() -> None:
        tries.append("call")
        if tries.count("call") < 3:
            raise ConnectionError("busy")

    async def work(order: Order, ctx: Context) -> None:
        tries.append("node")
        if tries.count("node") < 2:
            raise ConnectionError("busy")
        await ctx.with_options(retry=Retry(attempts=3, backoff=600)).call(flaky)

    graph = one_node(work, retry=Retry(attempts=3, backoff=600))
    async with TestKit(graph) as kit:
        run = await kit.hf.start(graph, Order())
        await kit.settled()
        assert tries == ["node"]
        await kit.skip(minutes(20))
        assert tries[:3] == ["node", "node", "call"]
        await kit.skip(hours(3))
        assert tries.count("call") == 3
        assert (await run.get()).status == "finished"


async def test_a_year_is_skipped_fast() -> None:
    async def wait(order: Order, ctx: Context) -> None:
        await ctx.wait(signal("never"))

    graph = one_node(wait)
    async with TestKit(graph) as kit:
        run = await kit.hf.start(graph, Order(), expires=days(800))
        await kit.settled()
        began = time.monotonic()
        await kit.skip(days(365))
        assert time.monotonic() - began < FAST_SECONDS
        assert (await run.get()).status == "waiting"


async def test_many_due_times_are_visited_one_by_one() -> None:
    """A loop of 50 daily sleeps: each day is a step, and no poll in between is one."""
    days_seen: list[datetime] = []
    kit = TestKit()

    async def daily(order: Order, ctx: Context) -> dict[str, int]:
        await ctx.sleep(days(1))
        days_seen.append(kit.clock.now)
        return {"id": order.id + 1}

    graph = Graph("daily", Order)
    node = graph.node(daily)
    graph.choose(node, lambda order: "daily")
    async with kit:
        began = kit.clock.now
        await kit.serves(graph).hf.start(graph, Order(), expires=days(100))
        await kit.skip(days(50))
    assert [(seen - began).days for seen in days_seen] == list(range(1, 51))


async def test_expiry_and_start_times_follow_the_clock() -> None:
    graph = approval()
    async with TestKit(graph) as kit:
        expiring = await kit.hf.start(graph, Order(1), expires=days(1))
        later = await kit.hf.start(graph, Order(2), start_at=kit.clock.now + days(2))
        await kit.skip(hours(23))
        assert (await expiring.get()).status == "waiting"
        assert (await later.get()).reason == "scheduled"
        await kit.skip(days(2))
        assert (await expiring.get()).status in ("expired", "failed")
        assert (await later.get()).node == "ask"
        with pytest.raises((RunExpired, RunFailed)):
            await expiring.result()


async def test_quotas_follow_the_clock() -> None:
    model = scripted("1", "2", "3")

    async def ask(order: Order, ctx: Context) -> dict[str, list[str]]:
        return {"log": [(await ctx.model("small", f"question {order.id}")).text]}

    graph = one_node(ask)
    async with TestKit() as kit:
        kit.serves(
            graph,
            models={"small": model},
            quotas={"small": Quota(name="small", requests=1, per=minutes(1))},
        )
        runs = [await kit.hf.start(graph, Order(number)) for number in range(3)]
        await kit.settled()
        assert len(model.requests) == 1
        await kit.skip(minutes(0.9))
        assert len(model.requests) == 1
        await kit.skip(minutes(0.2))  # a quota allows for clocks that differ
        assert len(model.requests) == 2
        await kit.skip(minutes(5))
        assert sorted([(await run.result()).log[0] for run in runs]) == ["1", "2", "3"]
    model.assert_all_used()


async def test_a_wait_for_the_first_of_several_takes_the_timer_when_it_is_due() -> None:
    async def first(order: Order, ctx: Context) -> dict[str, list[str]]:
        answer = await ctx.wait_any(signal("go"), timer(hours(2)))
        return {"log": [str(answer.index)]}

    graph = one_node(first)
    async with TestKit(graph) as kit:
        run = await kit.hf.start(graph, Order())
        await kit.skip(hours(1))
        assert (await run.get()).status == "waiting"
        await kit.skip(hours(1))
        assert (await run.result()).log == ["1"]


# --- what is in progress --------------------------------------------------------------------------


async def test_settled_waits_for_threads() -> None:
    release = threading.Event()
    entered = threading.Event()

    def plain(order: Order, ctx: Any) -> dict[str, list[str]]:
        entered.set()
        release.wait(30)
        return {"log": [ctx.call(lambda: "called"), ctx.call(lambda: "twice")]}

    graph = one_node(plain)
    async with TestKit(graph) as kit:
        run = await kit.hf.start(graph, Order())
        settling = asyncio.ensure_future(kit.settled())
        await asyncio.to_thread(entered.wait, 30)
        assert not (await asyncio.wait({settling}, timeout=0.05))[0]
        release.set()
        await settling
        assert (await run.get()).status == "finished"
        assert (await run.result()).log == ["called", "twice"]


async def test_a_plain_node_that_sleeps_by_the_clock_is_settled() -> None:
    def plain(order: Order, ctx: Any) -> dict[str, list[str]]:
        ctx.sleep(1.5)
        return {"log": ["awake"]}

    graph = one_node(plain)
    async with TestKit(graph) as kit:
        run = await kit.hf.start(graph, Order())
        await kit.settled()
        assert (await run.get()).status == "running"
        await kit.skip(1.5)
        assert (await run.result()).log == ["awake"]


@pytest.mark.parametrize("repeat", range(20))
async def test_many_plain_nodes_never_look_settled_too_early(repeat: int) -> None:
    def plain(order: Order, ctx: Any) -> dict[str, list[str]]:
        return {"log": [ctx.call(str, number) for number in range(5)]}

    graph = one_node(plain)
    async with TestKit(graph) as kit:
        runs = [await kit.hf.start(graph, Order(number)) for number in range(5)]
        await kit.settled()
        assert [(await run.get()).status for run in runs] == ["finished"] * 5


async def test_settled_waits_for_real_input_and_output() -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        await answering.wait()
        writer.write(b"pong\n")
        writer.close()

    answering = asyncio.Event()
    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def fetch() -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"ping\n")
        line = await reader.readline()
        writer.close()
        return line.decode().strip()

    async def node(order: Order, ctx: Context) -> dict[str, list[str]]:
        both = await asyncio.gather(ctx.call(fetch), ctx.sleep(0))
        return {"log": [both[0]]}

    graph = one_node(node)
    async with server, TestKit(graph) as kit:
        run = await kit.hf.start(graph, Order())
        settling = asyncio.ensure_future(kit.settled())
        assert not (await asyncio.wait({settling}, timeout=0.05))[0]
        answering.set()
        await settling
        assert (await run.result()).log == ["pong"]


async def test_a_test_may_have_tasks_of_its_own() -> None:
    """They wait for whatever they like: only what works for a run counts."""
    graph = approval()
    async with TestKit(graph) as kit:
        idle = asyncio.ensure_future(asyncio.Event().wait())
        run = await kit.hf.start(graph, Order())
        ended = asyncio.ensure_future(run.result())
        await kit.settled(timeout=5)
        await run.signal("approved", True)
        await kit.settled(timeout=5)
        assert (await ended).approved
        idle.cancel()


async def awaits_event(event: asyncio.Event) -> None:
    await event.wait()


async def awaits_gather(event: asyncio.Event) -> None:
    await asyncio.gather(event.wait(), asyncio.gather(event.wait()))


async def awaits_group(event: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(awaits_event(event))


async def awaits_shield(event: asyncio.Event) -> None:
    await asyncio.shield(asyncio.ensure_future(awaits_event(event)))


async def awaits_wait(event: asyncio.Event) -> None:
    await asyncio.wait([asyncio.ensure_future(event.wait())])


async def awaits_generator(event: asyncio.Event) -> None:
    async def values() -> Any:
        await event.wait()
        yield 1

    async for _ in values():
        pass


@pytest.mark.parametrize(
    "awaits",
    [awaits_event, awaits_gather, awaits_group, awaits_shield, awaits_wait, awaits_generator],
)
async def test_what_never_settles_is_named(awaits: Any) -> None:
    event = asyncio.Event()

    async def node(order: Order, ctx: Context) -> None:
        await awaits(event)

    graph = one_node(node)
    async with TestKit(graph) as kit:
        run = await kit.hf.start(graph, Order(), id="stuck")
        with pytest.raises(NotSettled, match=r"run 'stuck', node 'node': awaits at .*test_kit\.py"):
            await kit.settled(timeout=0.2)
        event.set()
        await kit.settled()
        assert (await run.get()).status == "finished"


async def test_a_thread_that_never_ends_is_named() -> None:
    release = threading.Event()

    def node(order: Order) -> None:
        release.wait(30)

    graph = one_node(node)
    async with TestKit(graph) as kit:
        await kit.hf.start(graph, Order())
        with pytest.raises(NotSettled, match=r"thread holdfast-node-\d+: .*test_kit\.py.* in node"):
            await kit.settled(timeout=0.2)
        release.set()
        await kit.settled()


async def test_a_loop_of_sleeps_does_not_hang_the_test() -> None:
    async def tick(order: Order, ctx: Context) -> None:
        await ctx.sleep(60)

    graph = Graph("tick", Order)
    graph.choose(graph.node(tick), lambda order: "tick")
    async with TestKit(graph) as kit:
        await kit.hf.start(graph, Order(), expires=days(700))
        with pytest.raises(NotSettled, match="sleep and wake in a loop"):
            await kit.skip(days(365), timeout=0.5)


# --- crashes --------------------------------------------------------------------------------------


async def test_a_run_goes_on_after_a_crash_where_it_was() -> None:
    made: list[str] = []
    entered, never = asyncio.Event(), asyncio.Event()

    async def node(order: Order, ctx: Context) -> dict[str, list[str]]:
        await ctx.call(made.append, "mail")
        if not entered.is_set():
            entered.set()
            await never.wait()
        return {"log": list(made)}

    graph = one_node(node)
    async with TestKit(graph) as kit:
        run = await kit.hf.start(graph, Order())
        await entered.wait()
        began = kit.clock.now
        await kit.crash()
        await kit.settled()
        assert kit.clock.now - began < timedelta(seconds=1)
        assert (await run.get()).status == "finished"
        assert set(made) == {"mail"}


async def test_what_is_settled_is_durable() -> None:
    """A buffered record is written a few milliseconds later: that is work, not waiting."""
    made: list[str] = []

    async def node(order: Order, ctx: Context) -> None:
        await ctx.call(made.append, "mail")
        await ctx.sleep(1.5)

    graph = one_node(node)
    async with TestKit(graph) as kit:
        run = await kit.hf.start(graph, Order())
        await kit.settled()
        await kit.crash()
        await kit.skip(2)
        assert (await run.get()).status == "finished"
        assert made == ["mail"]


async def test_what_becomes_due_in_a_moment_between_attempts_is_not_forgotten() -> None:
    async def sleeps(order: Order, ctx: Context) -> None:
        await ctx.sleep(60)

    async def buffers(order: Order, ctx: Context) -> None:
        await ctx.call(str)
        await ctx.sleep(1.5)

    due, buffering = one_node(sleeps, "due"), one_node(buffers, "buffering")
    async with TestKit(due, buffering) as kit:
        run = await kit.hf.start(due, Order())
        await kit.skip(60 - 0.001)
        assert (await run.get()).status == "waiting"
        await kit.hf.start(buffering, Order())
        before = kit.clock.now_ms()
        await kit.settled()
        assert kit.clock.now_ms() > before, "the record of the call was flushed a moment later"
        assert (await run.get()).status == "finished"


async def test_a_waiting_run_survives_crashes() -> None:
    graph = approval()
    async with TestKit(graph) as kit:
        run = await kit.hf.start(graph, Order())
        for _ in range(3):
            await kit.settled()
            await kit.crash()
        await run.signal("approved", True)
        await kit.settled()
        assert (await run.result()).approved


# --- what it refuses ------------------------------------------------------------------------------


async def test_a_run_that_no_worker_serves_is_named() -> None:
    first, second = approval(), one_node(lambda order: None, "second")
    async with TestKit(first) as kit:
        await kit.settled()
        run = await kit.hf.start(second, id="b")
        says = r"run 'b' is ready, and no worker .* 'second': write kit\.serves\(second\)"
        with pytest.raises(NotSettled, match=says):
            await kit.settled()
        with pytest.raises(NotSettled, match=says):
            await kit.skip(60)
        kit.serves(second)
        await kit.settled()
        await run.result(timeout=0)
        await kit.hf.start(second, id="c", pool="gpu")
        with pytest.raises(NotSettled, match=r"'second' in pool 'gpu': .*, pools=\['gpu'\]\)"):
            await kit.settled()
        kit.serves(second, pools=["gpu"])
        await kit.settled()
        later = kit.clock.now + days(1)
        await kit.hf.start(one_node(lambda order: None, "third"), start_at=later)
        await kit.settled()  # it is not ready yet


async def test_wrong_arguments() -> None:
    graph = approval()
    with pytest.raises(InvalidRequest, match="now must be a datetime with a time zone"):
        TestKit(now=datetime(2026, 1, 1))
    async with TestKit() as kit:
        with pytest.raises(InvalidRequest, match="at least one workflow or graph"):
            kit.serves()
        with pytest.raises(InvalidRequest, match=r"got \[.*as in kit\.serves\(approve, refund\)"):
            kit.serves([graph])  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="duration must be"):
            await kit.skip("soon")  # type: ignore[arg-type]
        kit.serves(graph)
        with pytest.raises(InvalidRequest, match="models must be given before the first use"):
            kit.serves(graph, models={"small": scripted()})
    needy = approval(models=["small"])
    async with TestKit() as kit:
        with pytest.raises(ResourceMissing, match="small"):
            kit.serves(needy)


async def test_two_workers_serve_two_graphs() -> None:
    first, second = approval(), one_node(lambda order: None, "second")
    async with TestKit(first) as kit:
        kit.serves(second)
        runs = [await kit.hf.start(first, Order()), await kit.hf.start(second, Order())]
        await kit.settled()
        assert [(await run.get()).status for run in runs] == ["waiting", "finished"]


async def test_a_kit_that_is_not_used_closes() -> None:
    await TestKit().close()
