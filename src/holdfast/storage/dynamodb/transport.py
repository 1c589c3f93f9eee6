"""`HttpTransport`: one request and its response over HTTP, and the ways in which it can fail."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from io import BytesIO
from zlib import crc32

import aiohttp
import msgspec
from yarl import URL

from holdfast.clock import Clock
from holdfast.errors import StoreUnusable
from holdfast.redaction import without_credentials
from holdfast.storage.dynamodb.credentials import ConnectionSettings, CredentialChain
from holdfast.storage.dynamodb.requests import DynamoRequest
from holdfast.storage.dynamodb.signing import AccessKeys, Signer

__all__ = [
    "HttpResponse",
    "HttpTransport",
    "NotSent",
    "NotTrusted",
    "ResponseDamaged",
    "ResponseLost",
]

_VERSION = "DynamoDB_20120810"
_CONNECT_SECONDS_MAX = 3.1
# Shorter than the service's limit: a request on a connection that the service has just closed looks
# like a lost response.
_KEEP_ALIVE_SECONDS = 20.0
# A larger body is written in chunks, so that the event loop is not blocked.
_UNCHUNKED_BYTES_MAX = 256 * 1024


class NotSent(Exception):
    """There was no connection: nothing of the request reached the service."""


class NotTrusted(NotSent):
    """The server's certificate is not trusted. Retries do not help."""


class ResponseLost(Exception):
    """The request may have reached the service, but there is no complete response."""


class ResponseDamaged(ResponseLost):
    """A response arrived, but cannot be read."""


class HttpResponse(msgspec.Struct, frozen=True):
    """A response, and the access keys that signed its request."""

    status: int
    body: bytes
    keys: AccessKeys


class HttpTransport:
    """Signs and sends requests, a limited number at a time, over persistent connections."""

    def __init__(
        self,
        chain: CredentialChain,
        *,
        clock: Clock,
        in_flight_max: int,
        timeout_seconds: float,
        wait_seconds_max: float,
    ) -> None:
        self._chain = chain
        self._clock = clock
        self._in_flight = asyncio.Semaphore(in_flight_max)
        self._wait_seconds_max = wait_seconds_max
        self._timeout = aiohttp.ClientTimeout(
            total=timeout_seconds, connect=min(timeout_seconds, _CONNECT_SECONDS_MAX)
        )
        self._session: aiohttp.ClientSession | None = None
        self._url = URL()
        self._signer: Signer | None = None

    async def post(self, request: DynamoRequest) -> HttpResponse:
        """Send a request once and return its response.

        Raises:
            NotSent: the request did not reach the service.
            ResponseLost: the request may have reached the service.
            AccessDenied: there are no credentials (see `CredentialChain.load_keys`).
        """
        signer = self._signer or await self._open()
        assert self._session is not None
        async with self._limit_in_flight():
            keys = await self._chain.load_keys()
            headers = signer.signed_headers(
                target=f"{_VERSION}.{request.operation}",
                body=request.body,
                keys=keys,
                now_ms=self._clock.now_ms(),
            )
            try:
                async with self._session.post(
                    self._url, data=_payload(request.body), headers=headers, allow_redirects=False
                ) as response:
                    body = await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                failure = self._transport_error(error)
            else:
                checksum = response.headers.get("x-amz-crc32")
                if checksum is not None and checksum != str(crc32(body)):
                    raise ResponseDamaged("the body does not match its checksum")
                return HttpResponse(response.status, body, keys)
        # Outside of `except`: the original error contains the password of the proxy, and would
        # become the context of this one.
        raise failure

    def _transport_error(self, error: Exception) -> NotSent | ResponseLost:
        reason = without_credentials(error) or type(error).__name__
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return NotTrusted(reason)
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return NotSent(reason)
        if isinstance(error, TimeoutError):
            return ResponseLost(f"no response within {self._timeout.total} s")
        return ResponseLost(reason)

    @asynccontextmanager
    async def _limit_in_flight(self) -> AsyncGenerator[None]:
        """Wait until fewer than the maximum of requests are in flight, for a limited time."""
        try:
            async with asyncio.timeout(self._wait_seconds_max):
                await self._in_flight.acquire()
        except TimeoutError:
            raise NotSent(
                f"too many other requests were in flight for {self._wait_seconds_max} s"
            ) from None
        try:
            yield
        finally:
            self._in_flight.release()

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _open(self) -> Signer:
        place = await self._chain.load_endpoint()
        route = await self._chain.load_connection_settings()
        if self._session is None:
            self._url = URL(place.endpoint)
            # No compression: a compressed body does not match its checksum. No limit in the
            # connector: waiting for a free connection would count as a failure to connect.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS, ssl=_ssl_context(route)
                ),
                proxy=route.proxy,
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "holdfast", "Accept-Encoding": "identity"},
                skip_auto_headers=("Accept",),
            )
        self._signer = Signer(self._url.host_port_subcomponent or "", place.region)
        return self._signer


def _ssl_context(route: ConnectionSettings) -> ssl.SSLContext | bool:
    if route.ca_bundle is None:
        return True
    try:
        return ssl.create_default_context(cafile=route.ca_bundle)
    except OSError as error:
        raise StoreUnusable(
            f"cannot read the trusted certificates (AWS_CA_BUNDLE) in {route.ca_bundle}: {error}"
        ) from error


def _payload(body: bytes) -> bytes | BytesIO:
    return body if len(body) <= _UNCHUNKED_BYTES_MAX else BytesIO(body)
