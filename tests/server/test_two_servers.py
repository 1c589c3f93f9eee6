"""Two servers on one store, behind a load balancer that alternates: callers do not notice."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from tests.crash.processes import ended, line_of, running
from tests.server.balancer import Balancer, balancing
from tests.server.processes import Served, serving

START = {"graph": "orders", "input": {"item": "book"}}
KEY = {"Idempotency-Key": "order/7:ann@example.com"}
PAGE = 3


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


class Pair:
    """Two servers, and a client that gets another connection for each request."""

    def __init__(self, servers: list[Served], balancer: Balancer, http: httpx.AsyncClient) -> None:
        self.servers, self.balancer, self.http = servers, balancer, http

    async def get(self, path: str, **query: Any) -> Any:
        response = await self.http.get(path, params=query)
        assert response.status_code == 200, response.text
        return response.json()

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
        response = await self.http.post(path, json=body, headers=headers)
        assert response.status_code < 300, response.text
        return response.json() if response.content else None


@pytest.fixture
async def pair(url: str) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(url)) for _ in range(2)]
        addresses = [server.address for server in servers]
        balancer = await stack.enter_async_context(balancing(*addresses))
        # No connection is used twice, so that each request goes to the other server.
        limits = httpx.Limits(max_keepalive_connections=0)
        http = httpx.AsyncClient(base_url=balancer.address, limits=limits, timeout=30)
        yield Pair(servers, balancer, await stack.enter_async_context(http))


async def test_a_session_of_requests_does_not_notice(pair: Pair, url: str) -> None:
    first = await pair.post("/v1/runs", START, KEY)
    assert await pair.post("/v1/runs", START, KEY) == first  # on the other server
    others = [f"o-{number}" for number in range(5)]
    for id in others:
        assert (await pair.post("/v1/runs", {**START, "id": id}))["id"] == id
    listed: list[str] = []
    cursor: str | None = None
    while cursor is not None or not listed:  # each page from another server
        query = {"limit": PAGE} if cursor is None else {"limit": PAGE, "cursor": cursor}
        page = await pair.get("/v1/runs", **query)
        listed += [run["id"] for run in page["runs"]]
        cursor = page["cursor"]
    assert sorted(listed) == sorted([first["id"], *others])
    async with Holdfast(url) as hf:
        await hf.run("o-0").until("waiting", timeout=30)
        await pair.post("/v1/runs/o-0/signals", {"name": "approved", "payload": True})
        await hf.run("o-0").until("finished", timeout=30)
    assert (await pair.get("/v1/runs/o-0"))["status"] == "finished"
    assert min(pair.balancer.served) >= 4


async def test_a_stream_goes_on_at_the_other_server(pair: Pair, url: str) -> None:
    await pair.post("/v1/runs", {**START, "id": "o-1"})
    async with Holdfast(url) as hf:
        await hf.run("o-1").until("waiting", timeout=30)
        seen: list[str] = []
        last = await followed(pair.http, None, seen, stop_at="event")
        await hf.run("o-1").signal("approved", True)
        await followed(pair.http, last, seen, stop_at="end")
        recorded = [entry.cursor async for entry in hf.run("o-1").events() if entry.cursor]
    assert seen == recorded


async def followed(
    http: httpx.AsyncClient, last: str | None, seen: list[str], *, stop_at: str
) -> str | None:
    """Follow a run until a message of that kind, and note the cursors of its events."""
    headers = {} if last is None else {"Last-Event-ID": last}
    async with http.stream("GET", "/v1/runs/o-1/stream", headers=headers) as response:
        assert response.status_code == 200
        kind = ""
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            elif name == "id":
                last = value
            elif name == "data" and kind == "event":
                seen.append(json.loads(value)["cursor"])
            elif name == "data" and kind == "end":
                assert json.loads(value)["reason"] == "ended"
            if not line and kind == stop_at:
                return last
    return last


async def test_one_of_them_is_stopped_and_the_other_answers(pair: Pair) -> None:
    pair.servers[0].process.send_signal(signal.SIGTERM)
    assert (await pair.servers[0].ended())[0] == 0
    for number in range(4):
        await pair.post("/v1/runs", {**START, "id": f"o-{number}"})
    assert len((await pair.get("/v1/runs"))["runs"]) == 4


async def writes_of_a_start(url: str) -> int:
    """Return how many writes the start of a run makes."""
    async with running("-m", "tests.server.doomed", url, "0", "after") as doomed:
        address = await line_of(doomed)
        async with httpx.AsyncClient(base_url=address) as http:
            assert (await http.post("/v1/runs", json=START, headers=KEY)).status_code < 300
        doomed.terminate()
        _, said = await ended(doomed)
        return len([line for line in said if line.startswith("write ")])


async def test_a_start_that_is_killed_at_any_write_and_repeated_makes_one_run(
    tmp_path: Path,
) -> None:
    writes = await writes_of_a_start(f"sqlite:///{tmp_path}/count.db")
    assert writes >= 1
    for number in range(1, writes + 1):
        for side in ("before", "after"):
            await kill_and_repeat(f"sqlite:///{tmp_path}/{number}-{side}.db", number, side)


async def kill_and_repeat(url: str, number: int, side: str) -> None:
    async with running("-m", "tests.server.doomed", url, str(number), side) as doomed:
        address = await line_of(doomed)
        async with httpx.AsyncClient(base_url=address) as http:
            with pytest.raises(httpx.TransportError):  # the answer never comes
                await http.post("/v1/runs", json=START, headers=KEY)
        assert (await ended(doomed))[0] == -signal.SIGKILL
    async with running("-m", "tests.server.doomed", url, "0", "after") as other:
        address = await line_of(other)
        async with httpx.AsyncClient(base_url=address) as http:
            started = await http.post("/v1/runs", json=START, headers=KEY)
            assert started.status_code < 300, started.text
            repeated = await http.post("/v1/runs", json=START, headers=KEY)
            assert repeated.json() == started.json()
            listed = (await http.get("/v1/runs")).json()["runs"]
            assert [run["id"] for run in listed] == [started.json()["id"]]
