"""Streams of the client: each event once and in order, whatever happens to the connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Holdfast
from holdfast.client import Client
from holdfast.client.sse import ServerSentEvent, SseParser
from holdfast.clock import ManualClock
from holdfast.errors import (
    InvalidQuery,
    InvalidResponse,
    RunNotFound,
    ServerUnavailable,
    Unauthenticated,
)
from tests.client.graphs import Order, orders
from tests.client.wire import Wire
from tests.model.test_json_form import EVENT, RUN

# --- the parser -----------------------------------------------------------------------------------

FIELD = st.text(st.characters(blacklist_characters="\r\n\0", blacklist_categories=["Cs"]))
MESSAGES = st.lists(
    st.builds(
        lambda name, lines, id: (name, "\n".join(lines), id),
        st.sampled_from(["event", "text", "end"]),
        st.lists(FIELD, min_size=1, max_size=3),
        FIELD,
    ),
    max_size=5,
)


def fed(chunks: Iterator[bytes]) -> list[ServerSentEvent]:
    parser = SseParser()
    return [message for chunk in chunks for message in parser.feed(chunk)]


@given(MESSAGES, st.sampled_from(["\n", "\r", "\r\n"]), st.data())
def test_messages_are_the_same_however_the_bytes_are_cut(
    messages: list[tuple[str, str, str]], ending: str, data: st.DataObject
) -> None:
    lines: list[str] = []
    for name, text, id in messages:
        lines += [f"event: {name}", f"id: {id}", ": heartbeat"]
        lines += [f"data: {line}" for line in text.split("\n")]
        lines.append("")
    # The last empty line tells whether a CR was all of the end of line.
    sent = "".join(line + ending for line in lines).encode() + b":"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=9)))
    bounds = [0, *cuts, len(sent)]
    chunks = (sent[start:end] for start, end in pairwise(bounds))
    assert [(message.name, message.data, message.id) for message in fed(chunks)] == messages


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"data: a\n\n", [("message", "a", "", None)]),
        (b"\xef\xbb\xbfdata:a\n\n", [("message", "a", "", None)]),
        (b"data:  a\n\n", [("message", " a", "", None)]),
        (b"data\n\n", [("message", "", "", None)]),
        (b"event: x\n\ndata: a\n\n", [("message", "a", "", None)]),
        (
            b"id: 7\ndata: a\n\ndata: b\n\n",
            [("message", "a", "7", None), ("message", "b", "7", None)],
        ),
        (b"id: 7\0\ndata: a\n\n", [("message", "a", "", None)]),
        (b"retry: 250\ndata: a\n\n", [("message", "a", "", 250)]),
        (b"retry: soon\nnonsense: x\ndata: a\n\n", [("message", "a", "", None)]),
        (b"data: \xff\n\n", [("message", "\ufffd", "", None)]),
        (b": heartbeat\n\n", []),
        (b"data: cut off", []),
    ],
)
def test_a_stream_is_read_as_the_standard_says(sent: bytes, expected: list[Any]) -> None:
    assert [tuple(message) for message in fed(iter([sent]))] == expected


def test_a_message_without_an_end_is_not_collected_forever() -> None:
    parser = SseParser()
    line = b"data: " + b"x" * 1024 * 1024 + b"\n"
    assert not [message for _ in range(60) for message in parser.feed(line)]
    with pytest.raises(InvalidResponse):
        list(parser.feed(line * 5))


# --- with a run -----------------------------------------------------------------------------------


async def test_events_are_those_of_the_library(client: Client, hf: Holdfast) -> None:
    run = await client.start(orders, Order("book"), id="o-1")
    await run.until("waiting", timeout=5)
    there = [entry async for entry in hf.run("o-1").events(follow=False)]
    assert [entry async for entry in run.events(follow=False)] == there
    after = there[0].cursor
    assert [entry async for entry in run.events(after=after, follow=False)] == there[1:]
    await run.signal("approved", True)
    followed = [entry async for entry in run.events()]
    assert followed == [entry async for entry in hf.run("o-1").events(follow=False)]


async def test_a_stream_that_is_cut_goes_on_where_it_was(
    client: Client, wire: Wire, hf: Holdfast
) -> None:
    run = await client.start(orders, Order("book"), id="o-1")
    await run.until("waiting", timeout=5)
    await run.signal("approved", True)
    await run.result(timeout=5)
    wire.cut_after = b"event: event"
    assert [entry async for entry in run.events()] == [
        entry async for entry in hf.run("o-1").events(follow=False)
    ]
    assert sum(path.endswith("/stream") for path in wire.paths) == 2


async def test_the_row_is_the_first_of_the_unrecorded_events(client: Client) -> None:
    run = await client.start(orders, Order("book"), id="o-1")
    await run.until("waiting", timeout=5)
    kinds = [entry.kind async for entry in run.events(follow=False, ephemeral=True)]
    assert kinds[:2] == ["snapshot", "started"]
    await run.cancel()
    entries = [entry async for entry in run.events(ephemeral=True)]
    assert entries[-1].kind == "ended"
    assert entries[-1].details["status"] == "cancelled"


async def test_text_is_followed_until_the_run_ends(client: Client) -> None:
    run = await client.start(orders, Order("book"), id="o-1")
    await run.until("waiting", timeout=5)
    assert [piece async for piece in run.tokens(follow=False)] == []


async def test_an_unknown_run_or_cursor_is_an_error_before_the_block(client: Client) -> None:
    with pytest.raises(RunNotFound):
        async with client.run("none").events():
            pass
    run = await client.start(orders, Order("book"), id="o-1")
    with pytest.raises(InvalidQuery):
        await run.events(after="nonsense").open()


# --- with a server that is not well ---------------------------------------------------------------


class Script(httpx.AsyncBaseTransport):
    """Answers one request after the other as a test says."""

    def __init__(self, *answers: Callable[[httpx.Request], httpx.Response]) -> None:
        self._answers = iter(answers)
        self.seen: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        return next(self._answers)(request)


def frame(kind: str, id: str | None, data: str) -> bytes:
    return (f"id: {id}\n" if id else "").encode() + f"event: {kind}\ndata: {data}\n\n".encode()


class Chunks(httpx.AsyncByteStream):
    def __init__(self, chunks: tuple[bytes | Exception, ...]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk


def stream(*chunks: bytes | Exception) -> Callable[[httpx.Request], httpx.Response]:
    return lambda request: httpx.Response(200, stream=Chunks(chunks))


def entry(number: int) -> bytes:
    shown = {**EVENT.as_dict(), "cursor": f"c{number}", "details": {}}
    return frame("event", f"c{number}~", json.dumps(shown))


END = frame("end", None, '{"reason": "ended", "status": "finished", "resume": null}')


async def cursors_of(script: Script, *, clock: ManualClock | None = None) -> list[str]:
    async with Client("http://server", transport=script, timeout=5, clock=clock) as client:
        return [entry.cursor async for entry in client.run("a").events()]


async def test_a_cut_stream_is_resumed_after_its_last_id() -> None:
    script = Script(
        stream(entry(1), entry(2), entry(3)[:9], httpx.ReadError("cut")),
        stream(b": heartbeat\n\n", entry(3)),
        stream(httpx.ReadTimeout("silent")),
        lambda request: httpx.Response(503),
        stream(entry(4), END),
    )
    assert await cursors_of(script) == ["c1", "c2", "c3", "c4"]
    sent = [request.headers.get("last-event-id") for request in script.seen]
    assert sent == [None, "c2~", "c3~", "c3~", "c3~"]


async def test_a_server_that_ends_a_stream_says_where_to_resume() -> None:
    shutdown = frame("end", None, '{"reason": "shutdown", "resume": "c9~"}')
    slow = frame("end", None, '{"reason": "too_slow", "resume": "c10~"}')
    script = Script(stream(entry(1), shutdown), stream(slow), stream(entry(11), END))
    assert await cursors_of(script) == ["c1", "c11"]
    sent = [request.headers.get("last-event-id") for request in script.seen]
    assert sent == [None, "c9~", "c10~"]


async def test_what_comes_after_the_end_is_not_read() -> None:
    assert await cursors_of(Script(stream(entry(1), END + entry(2), entry(3)))) == ["c1"]


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ('{"reason": "deleted"}', RunNotFound),
        ('{"reason": "revoked"}', Unauthenticated),
        ('{"reason": "error", "code": "run_not_found"}', RunNotFound),
        ("nonsense", InvalidResponse),
    ],
)
async def test_an_end_that_is_an_error_is_raised(end: str, expected: type[Exception]) -> None:
    with pytest.raises(expected):
        await cursors_of(Script(stream(entry(1), frame("end", None, end))))


async def test_an_event_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(InvalidResponse, match="HistoryEntry"):
        await cursors_of(Script(stream(frame("event", "c", '{"kind": 7}'))))


async def test_a_server_that_stays_away_is_given_up_after_the_time_limit() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    clock = ManualClock()
    script = Script(stream(entry(1)), *[refuse] * 1000)
    following = asyncio.ensure_future(cursors_of(script, clock=clock))
    while not following.done():
        await asyncio.wait({following}, timeout=0.001)
        clock.advance(0.5)
    with pytest.raises(ServerUnavailable, match="refused"):
        await following
    assert 5 < len(script.seen) < 50


async def test_a_snapshot_comes_after_each_connect() -> None:
    row = frame("snapshot", None, json.dumps(RUN.as_dict()))
    script = Script(
        stream(row, entry(1)), stream(row, END), lambda r: httpx.Response(200, json=RUN.as_dict())
    )
    async with Client("http://server", transport=script) as client:
        kinds = [entry.kind async for entry in client.run("a").events(ephemeral=True)]
    assert kinds == ["snapshot", "started", EVENT.kind, "snapshot", "ended"]
