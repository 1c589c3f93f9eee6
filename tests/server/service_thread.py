"""A server with its own event loop in a thread, for tests that are not coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx

from holdfast import Holdfast
from holdfast.model.program import Program
from holdfast.server import ServerApp, ServerOptions, asgi

T = TypeVar("T")

# No request may take longer, whatever it asks for.
SECONDS_MAX = 20.0


class ServiceThread:
    """Asks a server without a network."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hf: Holdfast, app: ServerApp) -> None:
        self._loop = loop
        self.hf = hf
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    def do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's loop, for at most `SECONDS_MAX`."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(SECONDS_MAX)

    def request(self, method: str, url: str, **given: Any) -> httpx.Response:
        """Send a request, and return the response."""
        return self.do(self._client.request(method, url, **given))


@contextmanager
def service_thread(
    url: str, graphs: Sequence[Program], options: ServerOptions
) -> Iterator[ServiceThread]:
    """Serve graphs on a store."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def opened() -> tuple[ServiceThread, asyncio.Event, asyncio.Task[None]]:
        ready: asyncio.Future[ServiceThread] = loop.create_future()
        stop = asyncio.Event()

        async def serve() -> None:
            async with Holdfast(url, public_url="https://public.example") as hf:
                app = asgi(hf, graphs, options=options)
                async with app.lifespan():
                    ready.set_result(ServiceThread(loop, hf, app))
                    await stop.wait()

        task = loop.create_task(serve())
        return await ready, stop, task

    service, stop, task = asyncio.run_coroutine_threadsafe(opened(), loop).result(SECONDS_MAX)
    try:
        yield service
    finally:

        async def close() -> None:
            stop.set()
            await task

        asyncio.run_coroutine_threadsafe(close(), loop).result(SECONDS_MAX)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(SECONDS_MAX)
        loop.close()
