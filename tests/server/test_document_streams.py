"""Following the processing of a document over SSE and WebSockets, from a real server and store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from holdfast import Holdfast
from holdfast.model.document import DocumentWorkflow
from holdfast.server import JwtOptions, ServerOptions
from tests.server.stream_clients import Opens, Received, open_events, open_socket
from tests.server.streaming import SECONDS_MAX, Served, served

SECRET = "a-secret-that-issuers-share-with-servers"
FAST = ServerOptions(list_poll_seconds=0.02)
GUARDED = ServerOptions(list_poll_seconds=0.02, authentication=True, jwt=JwtOptions(secret=SECRET))
TRANSPORTS = pytest.mark.parametrize("opens", [open_events, open_socket])


@pytest.fixture
async def server(hf: Holdfast) -> AsyncIterator[Served]:
    async with served(hf, FAST) as opened:
        yield opened


@pytest.fixture
async def workflow(hf: Holdfast) -> DocumentWorkflow:
    return await processing(hf)


async def processing(hf: Holdfast, tenant: str = "default", total: int = 20) -> DocumentWorkflow:
    documents = hf.documents
    project = await documents.projects.create("Claims", tenant=tenant)
    document = await documents.add(
        project.id,
        file_uri="s3://inbox/claim.pdf",
        file_name="claim.pdf",
        file_type="application/pdf",
        tenant=tenant,
    )
    begun = await documents.begin(document.id, tenant=tenant)
    return await documents.set_status(begun.id, "in_progress", total_segments=total, tenant=tenant)


def path_of(opens: Opens, workflow: DocumentWorkflow) -> str:
    end = "events" if opens is open_events else "ws"
    return f"/v1/document-workflows/{workflow.id}/{end}"


async def until(messages: AsyncIterator[Received], kind: str, **expected: Any) -> Received:
    """Return the next message of a kind that has these values."""
    async for message in messages:
        if message.kind == kind and expected.items() <= message.data.items():
            return message
    raise AssertionError(f"the stream ended without {kind} {expected}")


@TRANSPORTS
async def test_a_follower_sees_steps_segments_and_the_end(
    hf: Holdfast, server: Served, workflow: DocumentWorkflow, opens: Opens
) -> None:
    documents, id = hf.documents, workflow.id
    await documents.put_segment(id, 1)
    async with (
        asyncio.timeout(SECONDS_MAX),
        opens(server.port, path_of(opens, workflow)) as messages,
    ):
        first = await anext(messages)
        assert first.kind == "snapshot"
        assert first.id
        assert first.data["workflow"]["counts"] == {"completed": 1, "failed": 0, "pending": 19}
        assert len(first.data["steps"]) == 10
        assert first.data["segments"]["completed"] == [[1, 1]]
        await documents.start_step(id, "segment_analyzer", total=20)
        step = await until(messages, "step", name="segment_analyzer")
        assert step.data["status"] == "in_progress"
        await documents.put_segment(id, 20, status="failed", error="too dark")
        segment = await until(messages, "segment", index=20)
        assert segment.data == {"index": 20, "status": "failed", "error": "too dark"}
        [connection] = await documents.connections(id)
        over = "sse" if opens is open_events else "websocket"
        assert connection.data == {"over": over, "by": "anonymous"}
        await documents.end_step(id, "segment_analyzer")
        await documents.set_status(id, "completed")
        last = await until(messages, "workflow", status="completed")
        assert last.data["counts"] == {"completed": 1, "failed": 1, "pending": 18}
        end = await until(messages, "end")
        assert end.data["reason"] == "ended"
        assert end.data["status"] == "completed"
    await server.app.services.streams.shut_down()
    assert await documents.connections(id) == []


@TRANSPORTS
async def test_a_cut_follower_goes_on_after_its_last_message(
    hf: Holdfast, server: Served, workflow: DocumentWorkflow, opens: Opens
) -> None:
    path = path_of(opens, workflow)
    async with asyncio.timeout(SECONDS_MAX):
        async with opens(server.port, path) as messages:
            await anext(messages)
            await hf.documents.put_segment(workflow.id, 1)
            last = (await until(messages, "segment", index=1)).id
            assert last is not None
        await hf.documents.put_segment(workflow.id, 2)
        async with opens(server.port, path, after=last) as messages:
            assert (await anext(messages)).data["segments"] is None
            await until(messages, "segment", index=2)


@TRANSPORTS
async def test_another_server_tells_everything_to_a_follower_of_the_first(
    hf: Holdfast, server: Served, workflow: DocumentWorkflow, opens: Opens
) -> None:
    await hf.documents.put_segment(workflow.id, 2)
    path = path_of(opens, workflow)
    async with asyncio.timeout(SECONDS_MAX), served(hf, FAST) as other:
        async with opens(server.port, path) as messages:
            last = (await anext(messages)).id or ""
        async with opens(other.port, path, after=last) as messages:
            assert (await anext(messages)).data["segments"]["completed"] == [[2, 2]]


@TRANSPORTS
async def test_what_exists_is_told_without_following(
    hf: Holdfast, server: Served, workflow: DocumentWorkflow, opens: Opens
) -> None:
    found = await server.read(opens, path_of(opens, workflow), follow="0")
    assert [each.kind for each in found] == ["snapshot", "end"]
    assert found[-1].data["reason"] == "caught_up"
    assert await hf.documents.connections(workflow.id) == []


@TRANSPORTS
@pytest.mark.parametrize(
    ("id", "query", "status"), [("none", {}, 404), (None, {"after": "x"}, 422)]
)
async def test_what_is_wrong_is_a_problem_before_the_stream(
    server: Served,
    workflow: DocumentWorkflow,
    opens: Opens,
    id: str | None,
    query: dict[str, str],
    status: int,
) -> None:
    path = path_of(opens, workflow).replace(workflow.id, id or workflow.id)
    with pytest.raises((httpx.HTTPStatusError, InvalidStatus)) as raised:
        await server.read(opens, path, **query)
    response = raised.value.response
    assert response.status_code == status
    body = response.content if isinstance(response, httpx.Response) else response.body
    assert json.loads(body)["status"] == status


@TRANSPORTS
async def test_another_tenant_cannot_follow(hf: Holdfast, server: Served, opens: Opens) -> None:
    theirs = await processing(hf, tenant="rival")
    with pytest.raises((httpx.HTTPStatusError, InvalidStatus)):
        await server.read(opens, path_of(opens, theirs))


@TRANSPORTS
async def test_a_deleted_document_ends_its_streams(
    hf: Holdfast, server: Served, workflow: DocumentWorkflow, opens: Opens
) -> None:
    async with (
        asyncio.timeout(SECONDS_MAX),
        opens(server.port, path_of(opens, workflow)) as messages,
    ):
        await anext(messages)
        await hf.documents.delete(workflow.document)
        assert (await until(messages, "end")).data["reason"] == "deleted"


@TRANSPORTS
async def test_a_shutdown_tells_where_to_resume(
    server: Served, workflow: DocumentWorkflow, opens: Opens
) -> None:
    async with (
        asyncio.timeout(SECONDS_MAX),
        opens(server.port, path_of(opens, workflow)) as messages,
    ):
        first = await anext(messages)
        stopping = asyncio.create_task(server.app.services.streams.shut_down())
        end = await until(messages, "end")
        assert end.data == {"reason": "shutdown", "status": None, "resume": first.id}
        await stopping


async def test_a_silent_stream_sends_heartbeats(hf: Holdfast, workflow: DocumentWorkflow) -> None:
    options = ServerOptions(list_poll_seconds=0.02, heartbeat_seconds=0.05)
    path = path_of(open_events, workflow)
    async with (
        asyncio.timeout(SECONDS_MAX),
        served(hf, options) as server,
        open_events(server.port, path) as messages,
    ):
        kinds = [(await anext(messages)).kind for _ in range(3)]
        assert kinds == ["snapshot", "heartbeat", "heartbeat"]


def token(role: str, tenant: str = "default") -> str:
    claims = {"exp": 10**10, "tenant": tenant, "role": role, "sub": "ann"}
    return jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(SECRET))


async def test_who_may_follow(hf: Holdfast, workflow: DocumentWorkflow) -> None:
    async with served(hf, GUARDED) as server, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{server.port}{path_of(open_events, workflow)}?follow=0"
        statuses = [
            (await client.get(url, headers=headers)).status_code
            for headers in (
                {},
                {"Authorization": f"Bearer {token('viewer')}"},
                {"Authorization": f"Bearer {token('admin', 'rival')}"},
            )
        ]
        assert statuses == [401, 200, 404]
        socket = f"ws://127.0.0.1:{server.port}{path_of(open_socket, workflow)}?follow=0"
        offered: Any = ["holdfast.v1", f"holdfast.bearer.{token('viewer')}"]
        async with connect(socket, subprotocols=offered) as opened:
            assert opened.subprotocol == "holdfast.v1"
            assert json.loads(await opened.recv())["kind"] == "snapshot"
        with pytest.raises(InvalidStatus) as raised:
            async with connect(socket, subprotocols=offered, origin="https://evil.example"):  # type: ignore[arg-type]
                pass
        assert raised.value.response.status_code == 403


async def test_what_following_a_document_costs(tmp_path: Path) -> None:
    """Each segment is read about once, and a look without news costs a few units."""
    total, looks = 300, 60
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db") as hf:
        workflow = await processing(hf, total=total)
        async with served(hf, ServerOptions(list_poll_seconds=600)) as server:
            streams = server.app.services.streams
            path = path_of(open_events, workflow)
            async with asyncio.timeout(60), open_events(server.port, path) as messages:
                await anext(messages)
                hub: Any = streams._hubs["workflow", "default", workflow.id]
                before = read_units(hf)
                size = total // looks
                for at in range(looks):
                    for index in range(at * size + 1, (at + 1) * size + 1):
                        await hf.documents.put_segment(workflow.id, index)
                    await hub.refresh()
                await hf.documents.set_status(workflow.id, "completed")
                await hub.refresh()
                told = {each.data["index"] async for each in messages if each.kind == "segment"}
                spent = read_units(hf) - before
    assert told == set(range(1, total + 1))
    # A look reads the workflow, its steps, and one gap. Reading everything would cost far more.
    assert spent <= looks * 4 + total / 8, spent


def read_units(hf: Holdfast) -> float:
    return hf.meter.report().units.read


async def test_a_socket_that_the_client_closes_frees_its_place(
    hf: Holdfast, server: Served, workflow: DocumentWorkflow
) -> None:
    url = f"ws://127.0.0.1:{server.port}{path_of(open_socket, workflow)}"
    async with asyncio.timeout(SECONDS_MAX):
        async with connect(url) as socket:
            await socket.recv()
            assert server.app.services.streams.followers == 1
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        while server.app.services.streams.followers or await hf.documents.connections(workflow.id):
            await hf.list()
