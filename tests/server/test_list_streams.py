"""Streams of lists of runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from holdfast import Holdfast
from holdfast.errors import StoreUnavailable
from holdfast.model.run import RunEntry, RunPage
from holdfast.server import ServerOptions
from holdfast.server.streams import list_poller
from holdfast.server.streams.list_poller import ListPoller, join_list
from tests.server.graphs import APPROVED, Order, orders
from tests.server.stream_clients import Opens, Received, open_events, open_socket
from tests.server.streaming import SECONDS_MAX, Served, served

TRANSPORTS = pytest.mark.parametrize("opens", [open_events, open_socket])
EVENTS, SOCKET = "/v1/streams/runs", "/v1/streams/runs/ws"


@pytest.fixture
async def server(hf: Holdfast) -> AsyncIterator[Served]:
    async with served(hf, ServerOptions(list_poll_seconds=0.02)) as running:
        yield running


def path_of(opens: Opens) -> str:
    return EVENTS if opens is open_events else SOCKET


async def until(messages: AsyncIterator[Received], kind: str, id: str, **fields: str) -> Received:
    """Return the next message of this kind about a run in which the fields have these values."""
    async for message in messages:
        told = message.data
        if message.kind == kind and told["id"] == id and fields.items() <= told.items():
            return message
    raise AssertionError("the stream ended")


async def first_of(messages: AsyncIterator[Received]) -> tuple[list[str], list[str], str]:
    """Return the ids of the snapshot, those of the rows, and the cursor after them."""
    ids = (await anext(messages)).data["ids"]
    rows: list[str] = []
    while True:
        message = await anext(messages)
        rows.append(message.data["id"])
        if message.id is not None:
            return ids, rows, message.id


@TRANSPORTS
async def test_a_list_tells_its_runs_then_each_change_and_what_is_gone(
    hf: Holdfast, server: Served, opens: Opens
) -> None:
    for number in range(3):
        run = await hf.start(orders, Order("book"), id=f"o-{number}")
        await run.until("waiting")
    query = {"status": "waiting", "graph": "orders"}
    async with (
        asyncio.timeout(SECONDS_MAX),
        opens(server.port, path_of(opens), **query) as messages,
    ):
        ids, rows, cursor = await first_of(messages)
        assert ids == rows == ["o-2", "o-1", "o-0"]
        assert cursor
        await hf.run("o-1").signal(APPROVED, True)
        gone = await until(messages, "gone", "o-1")
        assert gone.data["reason"] == "no_match"
        await hf.start(orders, Order("pen"), id="o-9")
        new = await until(messages, "run", "o-9")
        assert new.data["status"] == "waiting"


@TRANSPORTS
async def test_a_run_that_newer_ones_push_out_is_gone_from_the_window(
    hf: Holdfast, server: Served, opens: Opens
) -> None:
    for number in range(2):
        await (await hf.start(orders, Order("book"), id=f"o-{number}")).until("waiting")
    async with (
        asyncio.timeout(SECONDS_MAX),
        opens(server.port, path_of(opens), limit="2") as messages,
    ):
        await first_of(messages)
        await hf.start(orders, Order("book"), id="o-2")
        assert (await until(messages, "gone", "o-0")).data["reason"] == "window"


@TRANSPORTS
async def test_a_list_resumes_with_what_has_changed(
    hf: Holdfast, server: Served, opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_poller, "_OVERLAP_MS", 0)
    for number in range(3):
        await (await hf.start(orders, Order("book"), id=f"o-{number}")).until("waiting")
    async with asyncio.timeout(SECONDS_MAX):
        async with opens(server.port, path_of(opens)) as messages:
            _, _, cursor = await first_of(messages)
        await hf.run("o-0").signal(APPROVED, True)
        await hf.run("o-0").result()
        async with opens(server.port, path_of(opens), after=cursor) as messages:
            ids, rows, cursor = await first_of(messages)
            assert ids == ["o-2", "o-1", "o-0"]
            assert "o-0" in rows
            assert "o-1" not in rows
        await (await hf.start(orders, Order("book"), id="o-3")).until("waiting")
        async with opens(server.port, path_of(opens), after=cursor) as messages:
            ids, rows, _ = await first_of(messages)  # other members: all rows are sent
            assert ids == rows == ["o-3", "o-2", "o-1", "o-0"]


async def test_followers_of_one_list_share_a_poller(hf: Holdfast, server: Served) -> None:
    await (await hf.start(orders, Order("book"), id="o-0")).until("waiting")
    streams = server.app.services.streams
    async with (
        asyncio.timeout(SECONDS_MAX),
        open_events(server.port, EVENTS, status="waiting", label="a=b") as one,
        open_socket(server.port, SOCKET, label="a=b", status="waiting") as other,
        open_events(server.port, EVENTS, status="waiting") as third,
    ):
        assert (await anext(one)).data == (await anext(other)).data == {"ids": []}
        assert (await anext(third)).data == {"ids": ["o-0"]}
        assert streams.hubs == 2


@TRANSPORTS
@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"after": "x"}, 422),
        ({"status": "odd"}, 400),
        ({"limit": "0"}, 400),
        ({"label": "x"}, 422),
        ({"since": "yesterday"}, 422),
        ({"reason": "none"}, 422),
    ],
)
async def test_a_wrong_filter_is_a_problem_before_the_stream(
    server: Served, opens: Opens, query: dict[str, str], status: int
) -> None:
    with pytest.raises((httpx.HTTPStatusError, InvalidStatus)) as raised:
        await server.read(opens, path_of(opens), **query)
    response = raised.value.response
    assert response.status_code == status
    body = response.content if isinstance(response, httpx.Response) else response.body
    assert json.loads(body)["status"] == status


@TRANSPORTS
async def test_another_tenant_sees_nothing(hf: Holdfast, server: Served, opens: Opens) -> None:
    await hf.start(orders, Order("book"), id="o-1", tenant="other")
    async with asyncio.timeout(SECONDS_MAX), opens(server.port, path_of(opens)) as messages:
        assert (await anext(messages)).data == {"ids": []}


@TRANSPORTS
async def test_a_shutdown_tells_where_to_resume(hf: Holdfast, server: Served, opens: Opens) -> None:
    await (await hf.start(orders, Order("book"), id="o-0")).until("waiting")
    async with asyncio.timeout(SECONDS_MAX), opens(server.port, path_of(opens)) as messages:
        _, _, cursor = await first_of(messages)
        stopping = asyncio.create_task(server.app.services.streams.shut_down())
        end = await anext(messages)
        assert end.data == {"reason": "shutdown", "status": None, "resume": cursor}
        await stopping


@TRANSPORTS
async def test_a_list_that_cannot_be_read_ends_with_the_error(
    hf: Holdfast, server: Served, opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*given: object, **named: object) -> None:
        raise StoreUnavailable

    async with asyncio.timeout(SECONDS_MAX), opens(server.port, path_of(opens)) as messages:
        await anext(messages)
        monkeypatch.setattr(hf, "list", fail)
        end = await anext(messages)
        assert (end.kind, end.data["reason"]) == ("end", "error")
        assert end.data["code"] == StoreUnavailable.code


async def test_what_changes_before_the_first_rows_are_taken_is_told() -> None:
    """A slow client takes the snapshot, and the list is read again before it takes more."""
    rows = {id: entry(id) for id in ("o-1", "o-2", "o-3")}
    page = RunPage([rows["o-2"], rows["o-1"]], None)

    async def read() -> RunPage:
        return page

    poller = ListPoller(read, poll_seconds=SECONDS_MAX)
    follower, first = await join_list(poller, None)
    page = RunPage([rows["o-3"], rows["o-2"]], None)
    await poller.refresh()
    told = [(each.kind, json.loads(each.data)["id"]) for each in await follower.take()]
    await poller.close()
    assert json.loads(first.data)["ids"] == ["o-2", "o-1"]
    assert told == [("run", "o-2"), ("run", "o-1"), ("gone", "o-1"), ("run", "o-3")]


def entry(id: str) -> RunEntry:
    """Return the row of a run in a list."""
    then = datetime(2026, 11, 1, tzinfo=UTC)
    return RunEntry(
        id=id,
        tenant="default",
        graph="orders",
        version=1,
        status="ready",
        labels={},
        created_at=then,
        updated_at=then,
    )
