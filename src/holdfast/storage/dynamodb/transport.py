"""One request and its answer over HTTP, and the three ways in which there is none."""

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
# Shorter than what the service allows: a connection that it has just closed would look like a
# lost answer.
_KEEP_ALIVE_SECONDS = 20.0
# Above this the body is written piece by piece, so that the event loop can do other things.
_UNCHUNKED_BYTES_MAX = 256 * 1024


class NotSent(Exception):
    """No connection: nothing of the request has reached the service."""


class NotTrusted(NotSent):
    """The other side is not who it should be, which no waiting will mend."""


class ResponseLost(Exception):
    """The request may have reached the service; its answer did not reach us whole."""


class ResponseDamaged(ResponseLost):
    """An answer came, but cannot be read."""


class HttpResponse(msgspec.Struct, frozen=True):
    """An answer, and the keys with which it was asked for."""

    status: int
    body: bytes
    keys: AccessKeys


class HttpTransport:
    """Signs and sends requests, so many at a time, over connections that are kept."""

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
        """Send a request once and return its answer.

        Raises:
            NotSent: the service was not reached.
            AnswerLost: it may have been reached.
            AccessDenied: there are no credentials (see `CredentialChain.keys`).
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
                    raise ResponseDamaged("a body that does not fit its checksum")
                return HttpResponse(response.status, body, keys)
        # Outside of `except`: the error itself shows the password of the proxy, and would stay
        # with this one as its context.
        raise failure

    def _transport_error(self, error: Exception) -> NotSent | ResponseLost:
        told = without_credentials(error) or type(error).__name__
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return NotTrusted(told)
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return NotSent(told)
        if isinstance(error, TimeoutError):
            return ResponseLost(f"no answer within {self._timeout.total} s")
        return ResponseLost(told)

    @asynccontextmanager
    async def _limit_in_flight(self) -> AsyncGenerator[None]:
        """Wait until fewer requests are under way than may be; not longer than a call may take."""
        try:
            async with asyncio.timeout(self._wait_seconds_max):
                await self._in_flight.acquire()
        except TimeoutError:
            raise NotSent(f"no turn within {self._wait_seconds_max} s") from None
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
            # Plain bytes: what is sent compressed would not fit its checksum. No limit of its own:
            # to wait for a turn is no failure to connect.
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
            f"the certificates to trust (AWS_CA_BUNDLE) cannot be read: {route.ca_bundle}: {error}"
        ) from error


def _payload(body: bytes) -> bytes | BytesIO:
    return body if len(body) <= _UNCHUNKED_BYTES_MAX else BytesIO(body)
