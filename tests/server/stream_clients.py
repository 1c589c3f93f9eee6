"""Clients of streams, as small as can be: messages of server-sent events and of a WebSocket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed


@dataclass(frozen=True)
class Received:
    """A message as a client gets it."""

    kind: str
    data: dict[str, Any]
    id: str | None


class Opens(Protocol):
    """Connects to a path of a server, and gives the messages of the stream."""

    def __call__(
        self, port: int, path: str, **query: str
    ) -> AbstractAsyncContextManager[AsyncIterator[Received]]: ...


@asynccontextmanager
async def open_events(port: int, path: str, **query: str) -> AsyncIterator[AsyncIterator[Received]]:
    async with httpx.AsyncClient(timeout=30) as client:
        url = f"http://127.0.0.1:{port}{path}"
        headers = {"Last-Event-ID": query.pop("after")} if "after" in query else {}
        async with client.stream("GET", url, params=query, headers=headers) as response:
            if response.status_code != 200:
                raise httpx.HTTPStatusError(
                    (await response.aread()).decode(), request=response.request, response=response
                )
            yield parsed_events(response.aiter_lines())


async def parsed_events(lines: AsyncIterator[str]) -> AsyncIterator[Received]:
    fields: dict[str, str] = {}
    try:
        async for line in lines:
            name, _, value = line.partition(": ")
            if line.startswith(":"):
                yield Received("heartbeat", {}, None)
            elif line:
                fields[name] = value
            elif fields:
                yield Received(fields["event"], json.loads(fields["data"]), fields.get("id"))
                fields = {}
    except httpx.TransportError:
        return


@asynccontextmanager
async def open_socket(port: int, path: str, **query: str) -> AsyncIterator[AsyncIterator[Received]]:
    if path.endswith("/stream"):
        path = f"{path.removesuffix('/stream')}/ws"
    url = httpx.URL(f"ws://127.0.0.1:{port}{path}", params=query)
    async with connect(str(url), open_timeout=30, close_timeout=1, max_size=None) as socket:

        async def messages() -> AsyncIterator[Received]:
            try:
                async for text in socket:
                    told = json.loads(text)
                    yield Received(told["kind"], told["data"], told["id"])
            except ConnectionClosed:
                return

        yield messages()
