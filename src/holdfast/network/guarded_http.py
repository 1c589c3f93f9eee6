"""An HTTP client that connects to public addresses and to those on an allow-list, and no others.

The address of each connection is checked, not the name: the name is resolved once, its addresses
are checked, and the connection is made to a checked address. So a name server that answers
differently the second time achieves nothing. TLS still checks the certificate against the name.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ipaddress import ip_address
from typing import Any, TypeAlias, cast

import httpcore
import httpx

from holdfast.errors import TargetRefused
from holdfast.network.addresses import Address, AllowList

__all__ = ["Resolve", "guarded_client", "resolve_host"]

Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
"""Returns the addresses of a host, as text."""

_CONNECTIONS_MAX = 64
_IDLE_CONNECTIONS_MAX = 16


async def resolve_host(host: str, port: int) -> list[str]:
    """Return the addresses of a host as the system resolves them."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def guarded_client(
    allow: AllowList, *, timeout_seconds: float, resolve: Resolve = resolve_host
) -> httpx.AsyncClient:
    """Return a client that raises `TargetRefused` instead of connecting to a refused address.

    It follows no redirects, keeps no cookies, and uses no proxy.
    """
    transport = _QuietTransport(verify=_ssl_context(), trust_env=False)
    # httpx offers no way to pass a backend, and its own transport maps all errors.
    transport._pool = httpcore.AsyncConnectionPool(  # pyright: ignore[reportPrivateUsage]
        ssl_context=_ssl_context(),
        max_connections=_CONNECTIONS_MAX,
        max_keepalive_connections=_IDLE_CONNECTIONS_MAX,
        network_backend=_GuardedBackend(allow, resolve),
    )
    return httpx.AsyncClient(
        transport=transport,
        timeout=timeout_seconds,
        trust_env=False,
        follow_redirects=False,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        event_hooks={"request": [_url_check(allow)]},
    )


class _QuietTransport(httpx.AsyncHTTPTransport):
    """Hides the path of each request from what httpx does afterwards: it logs the address.

    The address of an incoming webhook is a secret.
    """

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        finally:
            request.url = request.url.copy_with(raw_path=b"/")


@cache
def _ssl_context() -> ssl.SSLContext:
    """Return the context of all clients: to read the certificates takes a tenth of a second."""
    return httpx.create_ssl_context(trust_env=False)


def _url_check(allow: AllowList) -> Callable[[httpx.Request], Awaitable[None]]:
    """Return the check that each request passes, also one on an open connection."""

    async def check(request: httpx.Request) -> None:
        allow.check_url(str(request.url))

    return check


class _GuardedBackend(httpcore.AsyncNetworkBackend):
    """Resolves names itself, and connects to checked addresses only."""

    def __init__(self, allow: AllowList, resolve: Resolve) -> None:
        self._allow = allow
        self._resolve = resolve
        self._backend = cast(httpcore.AsyncNetworkBackend, httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature of httpcore
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await self._checked_addresses(host, port)
        error: Exception | None = None
        for address in addresses:
            try:
                return await self._backend.connect_tcp(
                    str(address), port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as failed:
                error = failed
        raise error or httpcore.ConnectError(f"{host!r:.120} has no address")

    async def _checked_addresses(self, host: str, port: int) -> list[Address]:
        """Return the addresses of a host.

        Raises:
            TargetRefused: one of them is refused. A name with a public and a private address is an
                attack, or a mistake.
        """
        try:
            found = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"{host!r:.120} cannot be resolved: {error}") from None
        addresses = list(dict.fromkeys(ip_address(text.partition("%")[0]) for text in found))
        for address in addresses:
            self._allow.check_connection(host, port, address)
        return addresses

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature of httpcore
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        raise TargetRefused("a socket of this machine must not be contacted", field="url")

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)
