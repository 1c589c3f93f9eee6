"""The connection to a server: credentials, retries within a time limit, typed errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import httpx
import msgspec

from holdfast.client.responses import error_of, json_of, retry_after_seconds
from holdfast.client.routes import ROUTES, path_of
from holdfast.clock import Clock, Ids
from holdfast.errors import HoldfastError, InvalidRequest, ServerUnavailable
from holdfast.model.names import validated_tenant

__all__ = ["Backoff", "ServerConnection", "Token"]

Token: TypeAlias = str | Callable[[], str]
"""A token of an identity provider, or a function that returns one that has not expired."""

_TENANT_HEADER = "Holdfast-Tenant"
_CONNECT_SECONDS_MAX = 5.0
_BACKOFF_FIRST_SECONDS = 0.1
_BACKOFF_SECONDS_MAX = 5.0
_CONNECTIONS_MAX = 1_000
# A gateway did not reach the server, or the server cannot use its store now.
_PASSING = frozenset({502, 503, 504})
_TOO_MANY = 429


class Backoff:
    """Waits between attempts: longer each time, with jitter, and never past a time limit."""

    def __init__(self, clock: Clock, ids: Ids, seconds: float) -> None:
        self._clock = clock
        self._ids = ids
        self._seconds = seconds
        self.reset()

    def reset(self) -> None:
        """Begin again, after a success."""
        self.renew()
        self._next = _BACKOFF_FIRST_SECONDS

    def renew(self) -> None:
        """Begin the time limit again; the waits stay as long as they are."""
        self._ends = self._clock.monotonic() + self._seconds

    @property
    def seconds_left(self) -> float:
        """How long attempts may go on."""
        return max(self._ends - self._clock.monotonic(), 0.0)

    async def wait(self, at_least: float | None = None) -> bool:
        """Wait before the next attempt; return False at once if there is no time for one."""
        jittered = self._next * (0.5 + self._ids.random() / 2)
        pause = max(jittered, at_least or 0.0)
        if pause >= self.seconds_left:
            return False
        self._next = min(self._next * 2, _BACKOFF_SECONDS_MAX)
        await self._clock.sleep(pause)
        return True


class ServerConnection:
    """Sends requests to one server, and repeats those that are safe to repeat."""

    def __init__(
        self,
        url: str,
        *,
        token: Token | None,
        tenant: str | None,
        seconds: float,
        clock: Clock,
        ids: Ids,
        transport: httpx.AsyncBaseTransport | None,
    ) -> None:
        self.clock = clock
        self.ids = ids
        self.tenant = None if tenant is None else validated_tenant(tenant)
        self.seconds = seconds
        self._url = _validated_url(url)
        self._token = token
        self._http = httpx.AsyncClient(
            base_url=self._url,
            transport=transport,
            # A stream holds its connection for as long as it is followed.
            limits=httpx.Limits(max_connections=_CONNECTIONS_MAX),
            headers={"Accept": "application/json", "User-Agent": "holdfast-client"},
        )

    def __repr__(self) -> str:
        return f"<server {self._url}>"

    def backoff(self) -> Backoff:
        """Return the waits of a call, which has the whole time limit."""
        return Backoff(self.clock, self.ids, self.seconds)

    async def call(
        self,
        verb: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        tenant: str | None = None,
        names: Mapping[str, str] | None = None,
        wait_seconds: int = 0,
        key: str | None = None,
    ) -> Any:
        """Call a route and return its answer, for which the server may wait so long.

        ``key`` is the idempotency key of the request.

        Raises:
            ServerUnavailable: the server did not answer in time, or failed.
            InvalidResponse: the answer is not one of a Holdfast server.
            HoldfastError: what the server answered, in the class that the library would raise.
        """
        headers: dict[str, str] = {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if wait_seconds:
            headers["Prefer"] = f"wait={wait_seconds}"
        if key is not None:
            headers["Idempotency-Key"] = key
        content = None if body is None else msgspec.json.encode(_given(body))
        return json_of(
            await self.exchange(
                verb, query=query, content=content, tenant=tenant, names=names, headers=headers
            )
        )

    async def exchange(
        self,
        verb: str,
        *,
        query: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        tenant: str | None = None,
        names: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send bytes to a route, and return its whole response.

        Raises:
            ServerUnavailable: the server did not answer in time, or failed.
            HoldfastError: what the server answered, in the class that the library would raise.
        """
        route = ROUTES[verb]
        sent = {**self._headers(tenant), **(headers or {})}
        backoff = self.backoff()
        while True:
            request = self._http.build_request(
                route.method,
                path_of(route, names or {}),
                params=_given(query),
                content=content,
                headers=sent,
                timeout=httpx.Timeout(
                    max(backoff.seconds_left, 0.001),
                    connect=min(_CONNECT_SECONDS_MAX, max(backoff.seconds_left, 0.001)),
                ),
            )
            failed, waits = await self._attempt(
                request, backoff.seconds_left, repeatable=route.repeatable
            )
            if not isinstance(failed, HoldfastError):
                return failed
            if waits is None or not await backoff.wait(waits):
                raise failed

    async def _attempt(
        self, request: httpx.Request, seconds: float, *, repeatable: bool
    ) -> tuple[httpx.Response | HoldfastError, float | None]:
        """Return the response, or an error and how long to wait at least before a repetition.

        The wait is None if the request must not be sent again.
        """
        try:
            # The time limits of httpx are those of one read, and a response may take many.
            async with asyncio.timeout(seconds):
                response = await self._http.send(request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            return self._unavailable(error), 0.0  # nothing was sent
        except (httpx.TransportError, TimeoutError) as error:
            return self._unavailable(error), 0.0 if repeatable else None
        if response.is_success:
            return response, None
        asked = retry_after_seconds(response) or 0.0
        may_repeat = response.status_code == _TOO_MANY or (
            repeatable and response.status_code in _PASSING
        )
        return error_of(response), asked if may_repeat else None

    @asynccontextmanager
    async def open_download(
        self, verb: str, *, names: Mapping[str, str], tenant: str | None
    ) -> AsyncGenerator[httpx.Response]:
        """Open a response with a file; the block reads it, piece by piece.

        Raises:
            ServerUnavailable: no connection, or it was cut.
            HoldfastError: what the server answered instead of a file.
        """
        route = ROUTES[verb]
        timeout = httpx.Timeout(self.seconds, connect=_CONNECT_SECONDS_MAX)
        try:
            async with self._http.stream(
                route.method,
                path_of(route, names),
                headers={**self._headers(tenant), "Accept": "*/*"},
                timeout=timeout,
            ) as response:
                if not response.is_success:
                    await response.aread()
                    raise error_of(response)
                yield response
        except httpx.TransportError as error:
            raise self._unavailable(error) from None

    @asynccontextmanager
    async def open_stream(
        self,
        verb: str,
        *,
        query: Mapping[str, Any],
        last_id: str | None,
        tenant: str | None,
        silence_seconds: float,
        names: Mapping[str, str],
    ) -> AsyncGenerator[httpx.Response]:
        """Open a stream of server-sent events; the block reads it.

        Raises:
            ServerUnavailable: no connection, or the server was silent for too long.
            HoldfastError: what the server answered instead of a stream.
        """
        route = ROUTES[verb]
        headers = {**self._headers(tenant), "Accept": "text/event-stream"}
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        timeout = httpx.Timeout(silence_seconds, connect=_CONNECT_SECONDS_MAX)
        try:
            async with self._http.stream(
                route.method,
                path_of(route, names),
                params=_given(query),
                headers=headers,
                timeout=timeout,
            ) as response:
                if not response.is_success:
                    await response.aread()
                    raise error_of(response)
                yield response
        except httpx.TransportError as error:
            raise self._unavailable(error) from None

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    def _headers(self, tenant: str | None) -> dict[str, str]:
        headers: dict[str, str] = {}
        if self._token is not None:
            token = self._token if isinstance(self._token, str) else self._token()
            headers["Authorization"] = f"Bearer {token}"
        tenant = self.tenant if tenant is None else validated_tenant(tenant)
        if tenant is not None:
            headers[_TENANT_HEADER] = tenant
        return headers

    def _unavailable(self, error: httpx.TransportError | TimeoutError) -> ServerUnavailable:
        told = str(error) or "no response in time"
        return ServerUnavailable(f"the server {self._url} cannot be reached: {told}")


def _given(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what is given: None stands for an argument that is left out."""
    if values is None:
        return None
    return {name: value for name, value in values.items() if value is not None}


def _validated_url(url: object) -> str:
    parts = None
    if isinstance(url, str):
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError:
            parts = None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest(
            f"url must be the address of a server such as 'https://runs.example.com', "
            f"got {url!r:.80}",
            field="url",
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidRequest(
            "url must not have credentials, a query or a fragment: pass the key as key=…",
            field="url",
        )
    return parts.geturl().rstrip("/")
