"""`asgi`: puts the application together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from litestar import Litestar
from litestar.di import Provide
from litestar.types import Scope

from holdfast.app import Holdfast
from holdfast.engine.worker.options import WorkerOptions
from holdfast.model.program import Program
from holdfast.server.caller import Requester
from holdfast.server.encoding import JsonResponse
from holdfast.server.openapi import openapi_config
from holdfast.server.options import ServerOptions
from holdfast.server.problems import problem_of
from holdfast.server.routes import HANDLERS
from holdfast.server.services import Services

__all__ = ["ServerApp", "asgi"]


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
    return ServerApp(Services(hf, tuple(graphs), options or ServerOptions()), worker)


class ServerApp:
    """The application: call it as ASGI says, or mount it and enter its `lifespan`."""

    def __init__(self, services: Services, worker: bool | WorkerOptions) -> None:
        self.services = services
        self._worker = worker
        self.litestar = _litestar(services, self._run)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.litestar(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Start the worker and what else runs beside the requests; stop it at the end."""
        async with self._run(self.litestar):
            yield

    @asynccontextmanager
    async def _run(self, app: Litestar) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            if self._worker is not False:
                options = None if self._worker is True else self._worker
                working = self.services.hf.worker(self.services.graphs, options=options)
                self.services.readiness.watch(working)
                await stack.enter_async_context(working)
            else:
                publishing = asyncio.create_task(
                    self.services.hf.fleet.publish(self.services.graphs), name="holdfast publish"
                )
                stack.callback(publishing.cancel)
            yield


def _litestar(services: Services, run: Any) -> Litestar:
    def requester(scope: Scope) -> Requester:
        return scope["user"]  # from `Services.authorize`

    def give_services() -> Services:
        return services

    return Litestar(
        HANDLERS,
        dependencies={
            "requester": Provide(requester, sync_to_thread=False),
            "services": Provide(give_services, sync_to_thread=False),
        },
        exception_handlers={Exception: problem_of},
        guards=[services.authorize],
        lifespan=[run],
        logging_config=None,
        openapi_config=openapi_config(),
        request_max_body_size=services.options.body_bytes_max,
        response_class=JsonResponse,
    )
