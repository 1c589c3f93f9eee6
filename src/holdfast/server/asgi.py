"""`asgi`: puts the application together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import msgspec
from litestar import Litestar
from litestar.config.cors import CORSConfig
from litestar.di import Provide
from litestar.handlers import BaseRouteHandler
from litestar.types import Scope

from holdfast.app import Holdfast
from holdfast.engine.worker.options import WorkerOptions
from holdfast.engine.worker.worker import Worker
from holdfast.errors import StoreClosed
from holdfast.model.program import Program
from holdfast.network.addresses import AllowList
from holdfast.server.caller import Requester
from holdfast.server.document_intake import sweeping_uploads, take_documents_in
from holdfast.server.encoding import JsonResponse
from holdfast.server.gate import Gate
from holdfast.server.openapi import api_description
from holdfast.server.options import ServerOptions
from holdfast.server.pages import PAGES
from holdfast.server.problems import problem_of
from holdfast.server.request_body import HEAD
from holdfast.server.request_checks import check_request
from holdfast.server.request_log import RequestLog, note_caller, note_route
from holdfast.server.roles import check_roles
from holdfast.server.routes import HANDLERS
from holdfast.server.routing import described_routes, options_handlers
from holdfast.server.services import OPENED, Connection, Services
from holdfast.server.streams.sockets import note_socket_error
from holdfast.server.tus import tus_capabilities

__all__ = ["ServerApp", "asgi"]

# What a page of another origin may send, besides what browsers send in any case.
_REQUEST_HEADERS = (
    "Authorization",
    "Content-Type",
    "Holdfast-Tenant",
    "Idempotency-Key",
    "If-None-Match",
    "Last-Event-ID",
    "Prefer",
    "Traceparent",
    "Tus-Resumable",
    "Upload-Checksum",
    "Upload-Length",
    "Upload-Metadata",
    "Upload-Offset",
    "X-Request-Id",
)
# What such a page may read, besides the body.
_RESPONSE_HEADERS = (
    "ETag",
    "Location",
    "Retry-After",
    "Tus-Extension",
    "Tus-Max-Size",
    "Tus-Resumable",
    "Tus-Version",
    "Upload-Expires",
    "Upload-Length",
    "Upload-Metadata",
    "Upload-Offset",
    "X-Request-Id",
)


def asgi(
    hf: Holdfast,
    graphs: Iterable[Program],
    *,
    options: ServerOptions | None = None,
    worker: bool | WorkerOptions = True,
) -> ServerApp:
    """Return an ASGI application that serves these graphs on the store of ``hf``.

    It runs a worker for them between its startup and its shutdown, unless ``worker`` is False. A
    framework that mounts it must enter `ServerApp.lifespan` in its own lifespan.
    """
    options = options or ServerOptions()
    hf.webhooks.allow = AllowList(options.webhook_allow)
    served = tuple(graphs)
    take_documents_in(hf, served, options)
    return ServerApp(Services(hf, served, options), worker)


class ServerApp:
    """The application: call it as ASGI says, or mount it and enter its `lifespan`."""

    def __init__(self, services: Services, worker: bool | WorkerOptions) -> None:
        self.services = services
        self.worker: Worker | None = None
        """The worker in this process, while it runs."""
        self._worker = worker
        self.litestar = _litestar(services, self._run)
        described = api_description(described_routes(HANDLERS))
        services.api_description = msgspec.json.encode(described)
        check_roles(self.litestar.routes)
        self._app = RequestLog(Gate(self.litestar, services.options), services.metrics)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET", HEAD: True}
            send = _headers_only(send)
        scope[OPENED] = []  # shared by copies of the scope
        try:
            await self._app(scope, receive, send)
        finally:
            self.services.release(scope)

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Start the worker and what else runs beside the requests; stop it at the end."""
        async with self._run(self.litestar):
            yield

    @asynccontextmanager
    async def _run(self, app: Litestar) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.services.bulk)
            if self.services.options.webhooks:
                # Before the worker: what the worker pauses or ends when it stops is delivered, too.
                await stack.enter_async_context(self.services.hf.webhooks.deliver())
            # Likewise: a mail about what it pauses leaves at once.
            await stack.enter_async_context(self.services.hf.reviews.notify())
            await stack.enter_async_context(sweeping_uploads(self.services.hf))
            if self._worker is not False:
                options = None if self._worker is True else self._worker
                working = self.services.hf.worker(self.services.graphs, options=options)
                self.services.readiness.watch(working)
                await stack.enter_async_context(working)
                self.worker = working
                self.services.metrics.watch(working)
            else:
                await stack.enter_async_context(_publishing(self.services))
            await stack.enter_async_context(self.services.metrics.refreshing())
            stack.push_async_callback(self.services.readiness.close)
            stack.push_async_callback(self.services.streams.shut_down)
            yield


@asynccontextmanager
async def _publishing(services: Services) -> AsyncGenerator[None]:
    """Store in the background what other processes should know of the graphs."""
    task = asyncio.create_task(services.hf.fleet.publish(services.graphs), name="holdfast publish")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, StoreClosed):
            await task


def _litestar(services: Services, run: Any) -> Litestar:
    def requester(scope: Scope) -> Requester:
        return scope["user"]  # from `Services.authorize`

    def give_services() -> Services:
        return services

    async def admit(connection: Connection, handler: BaseRouteHandler) -> None:
        # One guard, because Litestar copies the handler for each.
        note_route(connection)
        await services.authorize(connection, handler)
        note_caller(connection)
        check_request(connection, handler)

    # What a client of tus asks before it sends anything.
    told = {"/v1/uploads": tus_capabilities(services.options)}
    return Litestar(
        [*options_handlers(described_routes(HANDLERS), told), *HANDLERS, *PAGES],
        dependencies={
            "requester": Provide(requester, sync_to_thread=False),
            "services": Provide(give_services, sync_to_thread=False),
        },
        cors_config=_cors(services.options),
        after_exception=[note_socket_error],
        exception_handlers={Exception: problem_of},
        guards=[admit],
        lifespan=[run],
        logging_config=None,
        opt={"services": services},
        openapi_config=None,
        request_max_body_size=None,  # the gate has the limit
        response_class=JsonResponse,
    )


def _headers_only(send: Any) -> Any:
    """Return a sender for HEAD: the response, also of a stream, ends with its headers.

    The server then says that the client is gone, which ends a stream.
    """

    async def send_headers(message: Any) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b""})

    return send_headers


def _cors(options: ServerOptions) -> CORSConfig | None:
    """Return which origins a browser may let use the server; None sends no headers at all."""
    if not options.cors_origins:
        return None
    return CORSConfig(
        allow_origins=list(options.cors_origins),
        allow_credentials=False,
        allow_headers=list(_REQUEST_HEADERS),
        expose_headers=list(_RESPONSE_HEADERS),
    )
