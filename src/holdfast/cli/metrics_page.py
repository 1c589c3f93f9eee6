"""``--metrics``: serves the metrics of a worker process, without a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import click

from holdfast.app import Holdfast
from holdfast.engine.worker.worker import Worker

__all__ = ["metrics_option", "serve_metrics"]

F = TypeVar("F", bound=Callable[..., Any])


class _Address(click.ParamType[tuple[str, int]]):
    """An address as HOST:PORT."""

    name = "host:port"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        host, _, port = str(value).rpartition(":")
        if not host or not port.isascii() or not port.isdecimal() or int(port) > 65_535:
            self.fail(f"must look like 127.0.0.1:9464, got {value!r:.80}", param, ctx)
        return host.strip("[]"), int(port)


def metrics_option(command: F) -> F:
    """Add the option ``--metrics`` to a command."""
    return click.option(
        "--metrics",
        type=_Address(),
        metavar="HOST:PORT",
        help="Serve metrics for Prometheus at this address, to everyone who reaches it.",
    )(command)


@asynccontextmanager
async def serve_metrics(
    holdfast: Holdfast, working: Worker, address: tuple[str, int] | None
) -> AsyncGenerator[None]:
    """Serve the metrics of a worker inside of the block, if there is an address.

    Raises:
        click.ClickException: the extra is not installed, or the address cannot be used.
    """
    if address is None:
        yield
        return
    try:
        # Only here: the extra need not be installed, and it would slow all other commands down.
        from prometheus_client import start_http_server

        from holdfast.server.metrics import ServerMetrics
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"--metrics needs the extra server: pip install 'holdfast[server]' ({error})"
        ) from None
    metrics = ServerMetrics(holdfast, overview=holdfast.fleet.overview)
    metrics.watch(working)
    host, port = address
    try:
        server, thread = start_http_server(port, addr=host, registry=metrics.registry)
    except OSError as error:
        raise click.ClickException(f"cannot serve metrics at {host}:{port}: {error}") from None
    try:
        async with metrics.refreshing():
            yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
