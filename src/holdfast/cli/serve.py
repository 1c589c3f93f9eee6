"""``holdfast serve``: the service as a process, with a worker in it, until a signal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from ipaddress import ip_address
from socket import socket
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from holdfast.app import Holdfast
from holdfast.cli.failures import show_errors
from holdfast.cli.lifetime import exit_soon, handle_signals, open_when_usable
from holdfast.cli.logs import announce, configure_logging
from holdfast.cli.opening import common_options
from holdfast.cli.parameters import DURATION, example
from holdfast.cli.server_options import server_options
from holdfast.cli.targets import FORMS, load_graphs
from holdfast.cli.worker_options import WorkerSettings, log_options, worker_options
from holdfast.errors import StoreError
from holdfast.model.durations import seconds_of
from holdfast.model.program import Program
from holdfast.model.public_url import validated_public_url

if TYPE_CHECKING:
    from holdfast.server.asgi import ServerApp
    from holdfast.server.options import ServerOptions

__all__ = ["Serving", "address_of", "bind", "run_server", "serve"]

# How long the requests under way may take after the server was asked to stop.
_REQUESTS_SECONDS = 10.0
_EPILOG = (
    f"\b\nTargets look like this:\n{FORMS}\n\n"
    + example(
        "holdfast serve shop.flows --url sqlite:///runs.db",
        "holdfast serve shop.flows --host 0.0.0.0 --auth --no-worker",
    )
    + "\n\nOn SIGTERM or SIGINT (Ctrl-C) the server is no longer ready, waits for "
    "--shutdown-delay, tells followers where to resume, lets requests finish, drains its worker, "
    "and exits with code 0. A second one kills it."
)


class Serving(NamedTuple):
    """What a process serves, where, and how it ends."""

    url: str
    graphs: Sequence[Program]
    settings: WorkerSettings
    options: ServerOptions
    host: str
    port: int
    with_worker: bool
    public_url: str | None = None
    """The address with which callbacks begin; None if only the environment may say it."""
    shutdown_delay_seconds: float = 0.0
    on_open: Callable[[str], None] | None = None
    """Called with the server's address when it serves."""


@click.command(epilog=_EPILOG)
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@common_options
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on. Other than loopback it needs --auth.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8400,
    show_default=True,
    help="0 takes a free port; the first line says which.",
)
@click.option(
    "--public-url",
    envvar="HOLDFAST_PUBLIC_URL",
    show_envvar=True,
    metavar="URL",
    help="The address under which other systems reach the server, with which callbacks begin.  "
    "[default: the address on which it listens]",
)
@server_options
@click.option("--no-worker", is_flag=True, help="Only serve; other processes run the workers.")
@click.option(
    "--shutdown-delay",
    type=DURATION,
    default="0s",
    show_default=True,
    help="How long the server goes on serving after it stopped being ready.",
)
@worker_options
@log_options
def serve(
    targets: Sequence[str],
    url: str,
    host: str,
    port: int,
    public_url: str | None,
    options: ServerOptions,
    no_worker: bool,
    shutdown_delay: str,
    settings: WorkerSettings,
    log_level: str | None,
    log_format: str,
) -> None:
    """Serve the graphs of the TARGETs over HTTP, with a worker, until a signal."""
    with show_errors():
        serving = Serving(
            url=url,
            graphs=load_graphs(targets),
            settings=settings,
            options=options,
            host=host,
            port=port,
            with_worker=not no_worker,
            public_url=None if public_url is None else validated_public_url(public_url),
            shutdown_delay_seconds=seconds_of(shutdown_delay, "shutdown_delay"),
        )
        configure_logging(log_level, log_format)
        run_server(serving)


def run_server(serving: Serving, on: socket | None = None) -> None:
    """Serve until a signal asks to stop, on a given socket or on one of its own.

    Raises:
        click.ClickException: the address cannot be used.
        InvalidRequest: the host needs authentication.
        StoreError: the store cannot be used as it is, or was deleted or replaced.
    """
    from holdfast.server.process import loop_factory

    on = bind(serving.host, serving.port, serving.options) if on is None else on
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(serving, on))


def bind(host: str, port: int, options: ServerOptions) -> socket:
    """Return a socket that listens.

    Raises:
        click.ClickException: the address cannot be used.
        InvalidRequest: the host needs authentication.
    """
    from holdfast.server.binding import checked_bind, listening_socket

    checked_bind(host, options)
    try:
        return listening_socket(host, port)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another --port, or 0 "
            "for a free one"
        ) from None


async def _serve(serving: Serving, on: socket) -> None:
    from holdfast.server.process import listen, shut_down

    stop_requested = asyncio.Event()
    with handle_signals(stop_requested.set, who="server"):
        address = address_of(on)
        async with listen(on, serving.options, requests_seconds_max=_REQUESTS_SECONDS) as listener:
            hf = await open_when_usable(
                serving.url,
                serving.settings.holdfast,
                stop_requested=stop_requested,
                who="server",
                on_wait=listener.wait_for_store,
            )
            if hf is None:
                return
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(hf)
                _set_public_url(hf, serving, on)
                app = await _start_app(hf, serving, stack, stop_requested)
                if app is None:
                    return
                listener.app = app
                announce("server", _opening_line(serving, app, address))
                if serving.on_open is not None:
                    serving.on_open(address)
                broken = await _wait_for_stop(app, stop_requested)
                announce("server", "server stops: readiness off, followers and requests end")
                await shut_down(
                    listener, app.services, delay_seconds=serving.shutdown_delay_seconds
                )
                if app.worker is not None:
                    running = app.worker.running
                    announce("server", f"server drains its worker: runs in progress {running}")
        announce("server", "server has stopped")
        exit_soon(0 if broken is None else 1)
        sys.stdout.flush()
        if broken is not None:
            raise broken


def _set_public_url(hf: Holdfast, serving: Serving, on: socket) -> None:
    """Let callbacks begin with the given address, or with that of the socket if it is just one."""
    own = None if ip_address(on.getsockname()[0]).is_unspecified else address_of(on)
    if url := serving.public_url or hf.callbacks.public_url or own:
        hf.callbacks.set_public_url(url)


async def _start_app(
    hf: Holdfast, serving: Serving, stack: AsyncExitStack, stop_requested: asyncio.Event
) -> ServerApp | None:
    """Start the application and its worker; return None if asked to stop before that."""
    from holdfast.server.asgi import asgi

    worker = serving.settings.options if serving.with_worker else False
    app = asgi(hf, serving.graphs, options=serving.options, worker=worker)
    starting, ending = (
        asyncio.ensure_future(stack.enter_async_context(app.lifespan())),
        asyncio.ensure_future(stop_requested.wait()),
    )
    try:
        await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            return None
        starting.result()
        return app
    finally:
        starting.cancel()
        ending.cancel()


async def _wait_for_stop(app: ServerApp, stop_requested: asyncio.Event) -> StoreError | None:
    """Wait until the process is asked to stop; return the error if the store failed first."""
    ending = asyncio.ensure_future(stop_requested.wait())
    ends: list[asyncio.Future[Any]] = [ending]
    if app.worker is not None:
        ends.append(asyncio.ensure_future(app.worker.wait_closed()))
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        return None if ending.done() else ends[1].result()
    finally:
        for end in ends:
            end.cancel()


def address_of(on: socket) -> str:
    """Return the address of a socket that listens, as clients use it."""
    host, port = on.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _opening_line(serving: Serving, app: ServerApp, address: str) -> str:
    names = ", ".join(sorted({graph.name for graph in serving.graphs}))
    if app.worker is None:
        worker = "no worker"
    else:
        worker = f"worker {app.worker.id}" if app.worker.id else "a worker that waits for the store"
    return (
        f"server listens on {address}, serves {names} on {serving.url} with {worker}; "
        f"API: {address}/v1/openapi.json"
    )
