"""One reader for all followers of a run, however many, fast or slow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from holdfast import END, Graph, Holdfast, signal
from holdfast.engine.execution.context import Context
from holdfast.errors import InvalidQuery, TooManyRequests
from holdfast.handle import RunHandle
from holdfast.server import ServerOptions
from holdfast.server.streams.cursor import StreamCursor, parse_stream_cursor
from holdfast.server.streams.follower import Wanted
from holdfast.server.streams.message import StreamMessage
from holdfast.server.streams.registry import OpenStream, Streams
from holdfast.server.streams.shared_read import SharedRead
from holdfast.storage import Delete
from tests.server.stream_process import Story, stories, teller
from tests.server.streaming import SECONDS_MAX, is_valid, messages_of

GO = signal("go", bool)
BEGIN = StreamCursor()


@dataclass
class Count:
    end: int
    at: int = 0


counts = Graph("counts", Count)


@counts.node
async def step(count: Count) -> Count:
    return replace(count, at=count.at + 1)


@counts.node
async def hold(count: Count, ctx: Context) -> Count:
    await ctx.wait(GO)
    return count


@counts.node
async def fail(count: Count, ctx: Context) -> Count:
    if not await ctx.wait(GO):
        raise ValueError("no")
    return count


counts.choose(step, lambda count: step if count.at < count.end else hold)
counts.route(hold, fail, END)


@pytest.fixture
async def working(hf: Holdfast) -> AsyncIterator[Holdfast]:
    async with hf.worker([counts]):
        yield hf


async def held(hf: Holdfast, steps: int) -> RunHandle[Any]:
    run = await hf.start(counts, Count(steps), id="c-1")
    await run.until("waiting", timeout=SECONDS_MAX)
    return run


async def finish(run: RunHandle[Any]) -> None:
    await run.signal(GO, True)
    await run.signal(GO, True)


def ids(messages: list[StreamMessage]) -> list[str]:
    return [json.loads(each.data)["cursor"] for each in messages if each.kind == "event"]


def end_of(messages: list[StreamMessage]) -> dict[str, Any]:
    assert messages[-1].kind == "end"
    return json.loads(messages[-1].data)


async def history(run: RunHandle[Any]) -> list[str]:
    return [entry.cursor async for entry in run.events(follow=False)]


def reads(hf: Holdfast) -> int:
    """Return how often the run was read so far, without the polls of the worker."""
    read = ("head", "journal", "text")
    rows = hf.meter.report().rows
    return sum(row.calls for row in rows if row.purpose in read and row.operation != "write")


async def cost(hf: Holdfast, run: RunHandle[Any], followers: int, options: ServerOptions) -> int:
    """Return how many reads followers cost that all read a run from its beginning."""
    streams = Streams(options)
    before = reads(hf)
    joins = (streams.follow_run(run, BEGIN, Wanted()) for _ in range(followers))
    opened = await asyncio.gather(*joins)
    found = await asyncio.gather(*map(messages_of, opened))
    spent = reads(hf) - before
    expected = await history(run)
    assert all(ids(messages) == expected for messages in found)
    assert all(end_of(messages)["reason"] == "ended" for messages in found)
    await streams.shut_down()
    return spent


async def test_a_thousand_followers_cost_one_reader(working: Holdfast) -> None:
    run = await held(working, 300)
    await finish(run)
    await run.result()
    one = await cost(working, run, 1, ServerOptions())
    assert await cost(working, run, 1000, ServerOptions()) <= one + 1


async def test_a_thousand_followers_share_a_beginning_that_no_buffer_holds(
    working: Holdfast,
) -> None:
    run = await held(working, 300)
    await finish(run)
    await run.result()
    small = ServerOptions(stream_messages_max=100)
    one = await cost(working, run, 1, small)
    assert await cost(working, run, 1000, small) <= one + 1


async def test_a_late_follower_reads_what_is_stored_and_joins_without_a_gap(
    working: Holdfast,
) -> None:
    run = await held(working, 60)
    streams = Streams(ServerOptions(stream_messages_max=5))
    stream = await streams.follow_run(run, BEGIN, Wanted())
    first = asyncio.create_task(messages_of(stream))
    async with asyncio.timeout(SECONDS_MAX):
        hub: Any = streams._hubs["run", "default", "c-1"]
        while hub.events.main.backlog.next < 60:
            await working.list()
    late = [
        asyncio.create_task(messages_of(await streams.follow_run(run, cursor, Wanted())))
        for cursor in (BEGIN, BEGIN, await cursor_at(run, 20), await cursor_at(run, 59))
    ]
    await finish(run)
    expected = await history_at_end(run)
    assert ids(await first) == expected
    assert [ids(await each) for each in late] == [
        expected,
        expected,
        expected[21:],
        expected[60:],
    ]
    await streams.shut_down()


async def cursor_at(run: RunHandle[Any], number: int) -> StreamCursor:
    return parse_stream_cursor(f"{(await history(run))[number]}~", field="after")


async def history_at_end(run: RunHandle[Any]) -> list[str]:
    await run.result(timeout=SECONDS_MAX)
    return await history(run)


async def test_a_slow_follower_is_told_where_to_resume_and_the_others_do_not_wait(
    working: Holdfast,
) -> None:
    run = await held(working, 40)
    streams = Streams(ServerOptions(stream_messages_max=10))
    slow = await streams.follow_run(run, BEGIN, Wanted())
    fast = await streams.follow_run(run, BEGIN, Wanted())
    batches = slow.batches(is_valid)
    got = [*await anext(batches)]
    await finish(run)
    expected = await history_at_end(run)
    assert ids(await messages_of(fast)) == expected  # while the slow one took nothing
    async for batch in batches:
        got += batch
    slow.close()
    assert end_of(got)["reason"] == "too_slow"
    resume = parse_stream_cursor(end_of(got)["resume"], field="after")
    again = await messages_of(await streams.follow_run(run, resume, Wanted()))
    assert ids(got) + ids(again) == expected
    await streams.shut_down()


async def test_a_retried_run_is_followed_from_the_cursor_of_its_end(working: Holdfast) -> None:
    run = await held(working, 3)
    streams = Streams(ServerOptions())
    following = asyncio.create_task(messages_of(await streams.follow_run(run, BEGIN, Wanted())))
    await run.signal(GO, True)
    await run.signal(GO, False)
    got = await following
    assert (end_of(got)["reason"], end_of(got)["status"]) == ("ended", "failed")
    await run.retry()
    await run.signal(GO, True)
    resume = parse_stream_cursor(end_of(got)["resume"], field="after")
    again = await messages_of(await streams.follow_run(run, resume, Wanted()))
    assert end_of(again)["status"] == "finished"
    assert ids(got) + ids(again) == await history(run)
    await streams.shut_down()


async def test_a_run_with_the_id_of_a_deleted_one_has_its_own_hub(working: Holdfast) -> None:
    run = await held(working, 3)
    streams = Streams(ServerOptions())
    old = await streams.follow_run(run, BEGIN, Wanted())
    before = await cursor_at(run, 0)
    await working._store.table.write(Delete(run._key.head))
    run = await working.start(counts, Count(2), id="c-1")
    new = await streams.follow_run(run, BEGIN, Wanted())
    assert end_of(await messages_of(old))["reason"] == "deleted"
    await finish(run)
    assert ids(await messages_of(new)) == await history_at_end(run)
    with pytest.raises(InvalidQuery, match="has no message"):
        await streams.follow_run(run, before, Wanted())
    await streams.shut_down()


async def test_followers_share_the_text_at_any_place(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Holdfast(url, models={"teller": teller()}) as hf, hf.worker([stories]):
        run = await hf.start(stories, Story("tale", chapters=4), id="s-1")
        streams = Streams(ServerOptions(stream_messages_max=20))
        whole = asyncio.create_task(messages_of(await streams.follow_run(run, BEGIN, Wanted())))
        parts: list[StreamMessage] = []
        cursor = BEGIN
        while not parts or parts[-1].kind != "end":
            stream = await streams.follow_run(run, cursor, Wanted())
            parts += await part_of(stream, 7)
            last = [each.id for each in parts if each.id]
            cursor = parse_stream_cursor(last[-1] if last else None, field="after")
        assert text_of(parts) == text_of(await whole)
        stored = [piece.text async for piece in run.tokens(follow=False)]
        assert text_of(parts) == "".join(stored)
        assert ids(parts) == await history(run)
        await streams.shut_down()


async def part_of(stream: OpenStream, count: int) -> list[StreamMessage]:
    """Return the next messages, and leave."""
    found: list[StreamMessage] = []
    batches = stream.batches(is_valid)
    async with asyncio.timeout(SECONDS_MAX):
        async for batch in batches:
            found += [each for each in batch if each.kind != "ephemeral"]
            if len(found) >= count:
                break
    await batches.aclose()
    stream.close()
    return found


def text_of(messages: list[StreamMessage]) -> str:
    return "".join(json.loads(each.data)["text"] for each in messages if each.kind == "text")


async def test_what_was_not_recorded_is_no_news_to_a_late_follower(working: Holdfast) -> None:
    run = await held(working, 2)
    streams = Streams(ServerOptions())
    early = await streams.follow_run(run, BEGIN, Wanted())
    batches = early.batches(is_valid)
    seen: list[StreamMessage] = []
    await run.signal(GO, True)
    async with asyncio.timeout(SECONDS_MAX):
        while '"paused"' not in str(seen):
            seen += await anext(batches)
    late = await streams.follow_run(run, BEGIN, Wanted())
    following = asyncio.create_task(messages_of(late))
    await run.signal(GO, True)
    kinds = [json.loads(each.data).get("kind") for each in await following]
    assert "paused" not in kinds  # its row said that
    assert "resumed" in kinds
    await batches.aclose()
    early.close()
    await streams.shut_down()


async def test_a_shared_read_begins_after_each_reader_asked() -> None:
    started: list[asyncio.Event] = []

    async def read() -> int:
        gate = asyncio.Event()
        started.append(gate)
        number = len(started)
        await gate.wait()
        return number

    shared = SharedRead(read)
    first = asyncio.create_task(shared.get())
    async with asyncio.timeout(SECONDS_MAX):
        while not started:
            await asyncio.wait({first}, timeout=0)
        others = [asyncio.create_task(shared.get()) for _ in range(3)]
        others[0].cancel()  # a reader that leaves takes nothing from the others
        started[0].set()
        assert await first == 1
        while len(started) < 2:
            await asyncio.wait(set(others), timeout=0)
        started[1].set()
        assert await asyncio.gather(*others[1:]) == [2, 2]


async def test_a_server_has_room_for_so_many_streams(working: Holdfast) -> None:
    run = await held(working, 2)
    streams = Streams(ServerOptions(followers_max=1))
    one = await streams.follow_run(run, BEGIN, Wanted())
    with pytest.raises(TooManyRequests):
        await streams.follow_run(run, BEGIN, Wanted())
    one.close()
    (await streams.follow_run(run, BEGIN, Wanted())).close()
    assert streams.followers == 0
    await streams.shut_down()


async def test_late_followers_share_the_read_of_what_is_stored(working: Holdfast) -> None:
    run = await held(working, 300)
    streams = Streams(ServerOptions(stream_messages_max=100))
    first = asyncio.create_task(messages_of(await streams.follow_run(run, BEGIN, Wanted())))
    async with asyncio.timeout(SECONDS_MAX):
        hub: Any = streams._hubs["run", "default", "c-1"]
        while hub.events.main.backlog.next < 300:
            await working.list()
    before = reads(working)
    joins = (streams.follow_run(run, BEGIN, Wanted()) for _ in range(100))
    late = asyncio.gather(*map(messages_of, await asyncio.gather(*joins)))
    async with asyncio.timeout(SECONDS_MAX):
        while any(lane.followers for lane in hub.events._behind):
            await working.list()
    spent = reads(working) - before
    await finish(run)
    expected = await history_at_end(run)
    assert all(ids(messages) == expected for messages in [await first, *await late])
    assert spent < 50  # each for itself would read at least three times
    await streams.shut_down()


async def test_a_cursor_inside_stored_text_gets_exactly_the_rest(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Holdfast(url, models={"teller": teller()}) as hf, hf.worker([stories]):
        run = await hf.start(stories, Story("tale", chapters=2), id="s-1")
        await run.result(timeout=SECONDS_MAX)
    async with Holdfast(url) as hf:  # has no text in memory
        run = hf.run("s-1")
        pieces = [piece async for piece in run.tokens(follow=False, joined=False)]
        streams = Streams(ServerOptions())
        places = range(0, len(pieces), 5)
        cursors = [
            parse_stream_cursor(f"~{pieces[place].cursor}", field="after") for place in places
        ]
        joins = (streams.follow_run(run, cursor, Wanted()) for cursor in [BEGIN, *cursors])
        found = await asyncio.gather(*map(messages_of, await asyncio.gather(*joins)))
        rests = ["".join(each.text for each in pieces[place + 1 :]) for place in places]
        assert [text_of(messages) for messages in found[1:]] == rests
        await streams.shut_down()
