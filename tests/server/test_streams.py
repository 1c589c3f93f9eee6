"""Streams of a run over server-sent events and WebSockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from holdfast import Holdfast
from holdfast.handle import RunHandle
from holdfast.server import ServerOptions
from holdfast.server.streams import registry
from holdfast.storage import Delete
from tests.engine.support import store_of
from tests.server.graphs import APPROVED, Order, orders
from tests.server.stream_clients import Opens, Received, open_events, open_socket
from tests.server.stream_process import CHAPTERS, WORDS, Story, stories, teller
from tests.server.streaming import SECONDS_MAX, Served, served

TRANSPORTS = pytest.mark.parametrize("opens", [open_events, open_socket])
PATH = "/v1/runs/o-1/stream"


@pytest.fixture
async def server(hf: Holdfast) -> AsyncIterator[Served]:
    async with served(hf) as running:
        yield running


async def waiting(hf: Holdfast) -> RunHandle[Any]:
    run = await hf.start(orders, Order("book"), id="o-1")
    await run.until("waiting")
    return run


async def history(run: RunHandle[Any]) -> list[dict[str, Any]]:
    return [entry.as_dict() async for entry in run.events(follow=False)]


def data_of(messages: list[Received], kind: str) -> list[dict[str, Any]]:
    return [message.data for message in messages if message.kind == kind]


def last_id(messages: list[Received]) -> str:
    return [message.id for message in messages if message.id][-1] or ""


@TRANSPORTS
async def test_a_stream_has_the_row_the_history_and_the_end(
    hf: Holdfast, server: Served, opens: Opens
) -> None:
    run = await waiting(hf)
    await run.signal(APPROVED, True)
    await run.result()
    messages = await server.read(opens, PATH)
    assert [each.kind for each in messages] == ["snapshot", *["event"] * 4, "end"]
    assert messages[0].data == (await run.get()).as_dict()
    assert data_of(messages, "event") == await history(run)
    resume = last_id(messages)
    assert messages[-1].data == {"reason": "ended", "status": "finished", "resume": resume}
    # A follower that has everything gets only the row and the end.
    again = await server.read(opens, PATH, after=resume)
    assert [each.kind for each in again] == ["snapshot", "end"]
    assert again[-1].data == messages[-1].data


@TRANSPORTS
async def test_a_follower_gets_what_happens_as_it_happens(
    hf: Holdfast, server: Served, opens: Opens
) -> None:
    run = await waiting(hf)
    got: list[Received] = []
    async with asyncio.timeout(SECONDS_MAX), opens(server.port, PATH) as messages:
        async for message in messages:
            got.append(message)
            if len(got) == 2:  # the row, and the event that existed
                await run.signal(APPROVED, True)
    assert got[0].data["status"] == "waiting"
    assert data_of(got, "event") == await history(run)
    assert "resumed" in [each["kind"] for each in data_of(got, "ephemeral")]
    assert all(each.id is None for each in got if each.kind == "ephemeral")
    assert got[-1].data["reason"] == "ended"


@TRANSPORTS
async def test_without_follow_a_stream_ends_at_what_exists(
    hf: Holdfast, server: Served, opens: Opens
) -> None:
    run = await waiting(hf)
    first = await server.read(opens, PATH, follow="0")
    assert [each.kind for each in first] == ["snapshot", "event", "end"]
    assert first[-1].data == {"reason": "caught_up", "status": "waiting", "resume": last_id(first)}
    await run.signal(APPROVED, True)
    await run.result()
    rest = await server.read(opens, PATH, follow="0", after=last_id(first))
    assert data_of(first, "event") + data_of(rest, "event") == await history(run)
    assert rest[-1].data["reason"] == "ended"


@TRANSPORTS
async def test_a_follower_gets_only_what_it_asks_for(
    hf: Holdfast, server: Served, opens: Opens
) -> None:
    run = await waiting(hf)
    await run.signal(APPROVED, True)
    await run.result()
    messages = await server.read(opens, PATH, events="0")
    assert [each.kind for each in messages] == ["snapshot", "end"]
    assert messages[-1].data["resume"] == "~"  # events that were not sent are still to come
    assert len(data_of(await server.read(opens, PATH, after="~"), "event")) == 4


@TRANSPORTS
async def test_text_arrives_once_and_resumes_with_the_events(tmp_path: Any, opens: Opens) -> None:
    async with (
        Holdfast(f"sqlite:///{tmp_path}/runs.db", models={"teller": teller()}) as hf,
        served(hf) as server,
    ):
        run = await hf.start(stories, Story("tale", chapters=3), id="o-1")
        events: list[dict[str, Any]] = []
        texts: dict[str, str] = {}
        query: dict[str, str] = {}
        reason = None
        while reason is None:
            async with asyncio.timeout(SECONDS_MAX), opens(server.port, PATH, **query) as messages:
                kept = 12
                async for message in messages:
                    query = {"after": message.id} if message.id else query
                    if message.kind == "event":
                        events.append(message.data)
                    elif message.kind == "text":
                        call = message.data["call"]
                        texts[call] = texts.get(call, "") + message.data["text"]
                    elif message.kind == "end":
                        reason = message.data["reason"]
                    kept -= 1
                    if not kept:
                        break
        assert reason == "ended"
        assert events == await history(run)
        assert [len(text.split()) for text in texts.values()] == [WORDS] * 3
        assert CHAPTERS > 3
        only = await server.read(opens, PATH, text="0")
        assert not data_of(only, "text")
        assert data_of(only, "event") == events


@TRANSPORTS
@pytest.mark.parametrize(
    ("path", "query", "status", "code"),
    [
        ("/v1/runs/none/stream", {}, 404, "run_not_found"),
        (PATH, {"after": "abc"}, 422, "invalid_query"),
        (PATH, {"after": "01a1eb9a-742a-7bcb-8c29-f1cc310cc4f4.1.0~"}, 422, "invalid_query"),
        (PATH, {"after": "{generation}.99.0~"}, 422, "invalid_query"),
        (PATH, {"after": "{generation}.1.77~"}, 422, "invalid_query"),
        (PATH, {"follow": "perhaps"}, 400, "bad_request"),
    ],
)
async def test_a_wrong_request_is_a_problem_before_the_stream(
    hf: Holdfast,
    server: Served,
    opens: Opens,
    path: str,
    query: dict[str, str],
    status: int,
    code: str,
) -> None:
    run = await waiting(hf)
    generation = (await run.get()).generation
    given = {name: text.format(generation=generation) for name, text in query.items()}
    for _ in range(2):  # the second time a hub may be there
        with pytest.raises((httpx.HTTPStatusError, InvalidStatus)) as raised:
            await server.read(opens, path, **given)
        response = raised.value.response
        body = response.content if isinstance(response, httpx.Response) else response.body
        assert response.status_code == status
        assert json.loads(body)["code"] == code
        async with opens(server.port, PATH) as messages:  # keeps a hub for the next round
            await anext(messages)


@TRANSPORTS
async def test_the_runs_of_another_tenant_are_unknown(
    hf: Holdfast, server: Served, opens: Opens
) -> None:
    await hf.start(orders, Order("book"), id="o-1", tenant="other")
    with pytest.raises((httpx.HTTPStatusError, InvalidStatus)) as raised:
        await server.read(opens, PATH)
    assert raised.value.response.status_code == 404


@TRANSPORTS
async def test_a_shutdown_tells_where_to_resume(hf: Holdfast, server: Served, opens: Opens) -> None:
    await waiting(hf)
    async with asyncio.timeout(SECONDS_MAX), opens(server.port, PATH) as messages:
        await anext(messages)
        event = await anext(messages)
        stopping = asyncio.create_task(server.app.services.streams.shut_down())
        end = await anext(messages)
        assert end.data == {"reason": "shutdown", "status": None, "resume": event.id}
        assert [each async for each in messages] == []
        await stopping
    with pytest.raises((httpx.HTTPStatusError, InvalidStatus)) as raised:
        await server.read(opens, PATH)
    assert raised.value.response.status_code == 503


@TRANSPORTS
async def test_a_revoked_key_ends_a_stream(
    hf: Holdfast, server: Served, opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_CHECK_SECONDS", 0.01)
    is_valid = True

    async def still_valid(requester: object) -> bool:
        return is_valid

    monkeypatch.setattr(server.app.services, "still_valid", still_valid)
    await waiting(hf)
    async with asyncio.timeout(SECONDS_MAX), opens(server.port, PATH) as messages:
        await anext(messages)
        await anext(messages)
        is_valid = False
        end = [each async for each in messages][-1]
    assert end.data["reason"] == "revoked"


@TRANSPORTS
async def test_a_silent_stream_sends_heartbeats(hf: Holdfast, opens: Opens) -> None:
    async with served(hf, ServerOptions(heartbeat_seconds=0.01)) as server:
        await waiting(hf)
        async with asyncio.timeout(SECONDS_MAX), opens(server.port, PATH) as messages:
            kinds = [(await anext(messages)).kind for _ in range(4)]
    assert kinds == ["snapshot", "event", "heartbeat", "heartbeat"]


@TRANSPORTS
async def test_a_deleted_run_ends_its_stream(hf: Holdfast, server: Served, opens: Opens) -> None:
    run = await waiting(hf)
    async with asyncio.timeout(SECONDS_MAX), opens(server.port, PATH) as messages:
        await anext(messages)
        await store_of(hf).table.write(Delete(run._key.head))
        end = [each async for each in messages][-1]
    assert end.data["reason"] == "deleted"


@TRANSPORTS
async def test_a_client_that_leaves_leaves_nothing(
    hf: Holdfast, server: Served, opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_LINGER_SECONDS", 0.0)
    run = await waiting(hf)
    streams = server.app.services.streams
    tasks = len(asyncio.all_tasks())
    async with asyncio.timeout(SECONDS_MAX):
        for _ in range(3):
            async with opens(server.port, PATH) as messages:
                await anext(messages)
                assert (streams.followers, streams.hubs) == (1, 1)
            while streams.followers or streams.hubs or len(asyncio.all_tasks()) > tasks:
                await hf.list()  # gives the server a turn
    assert not hf._kernel.live.is_followed(run._key)
    assert run._key not in hf._kernel.notifier._listeners
    assert run._key not in hf._kernel.spools.notifier._listeners


async def test_a_page_of_another_origin_opens_no_socket(hf: Holdfast, server: Served) -> None:
    await waiting(hf)
    url = f"ws://127.0.0.1:{server.port}/v1/runs/o-1/ws"
    with pytest.raises(InvalidStatus) as raised:
        async with connect(url, additional_headers={"Origin": "http://evil.example"}):
            pass
    assert raised.value.response.status_code == 403
    async with connect(url, additional_headers={"Origin": f"http://127.0.0.1:{server.port}"}):
        pass


async def test_the_server_selects_its_subprotocol_and_never_the_key(
    hf: Holdfast, server: Served
) -> None:
    await waiting(hf)
    url = f"ws://127.0.0.1:{server.port}/v1/runs/o-1/ws"
    offered = [Subprotocol("holdfast.bearer.secret"), Subprotocol("holdfast.v1")]
    async with connect(url, subprotocols=offered) as socket:
        assert socket.subprotocol == "holdfast.v1"


async def test_the_response_is_neither_stored_nor_buffered(hf: Holdfast, server: Served) -> None:
    await waiting(hf)
    async with httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{server.port}{PATH}?follow=0"
        response = await client.get(url)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-accel-buffering"] == "no"
    assert "retry: 1000\n" in response.text
