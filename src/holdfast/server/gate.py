"""The gate in front of all routes: limits, hosts and origins of requests; headers of responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias

import msgspec

from holdfast.server.body_limits import LimitedReceive, Message
from holdfast.server.options import ServerOptions
from holdfast.server.problems import PROBLEM_JSON, Problem
from holdfast.server.request_body import BODY, RequestBody
from holdfast.server.streams.sockets import HandshakeRefusals

__all__ = ["Gate"]

App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

# Their signed tokens are all that they need, and they are used at the public address.
_SIGNED = ("/v1/callbacks/", "/r/")
_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
# A browser must not guess types, show a response as a page, or keep it.
_SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
# The client may still be sending a body that the server does not read.
_CLOSING_STATUSES = (408, 413)
_POLICY_VIOLATION = 1008


class _Headers(NamedTuple):
    """The headers that the gate looks at."""

    bytes: int
    hosts: tuple[str, ...]
    origin: str | None
    content_length: int | None


class Gate:
    """Refuses requests that no route should see, and adds security headers to every response."""

    def __init__(self, app: App, options: ServerOptions) -> None:
        self._app = app
        self._options = options
        self._hosts = _LOCAL_HOSTS | {host.lower() for host in options.allowed_hosts}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one connection, as ASGI says."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = _headers_of(scope)
        problem = self._problem_of(scope, headers)
        if scope["type"] == "websocket":
            if problem is None:
                await self._app(scope, receive, HandshakeRefusals(scope, send))
            else:
                await receive()
                await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return
        secured = _secured(send)
        if problem is None:
            # For a route that stores its body as it arrives; all others get it whole.
            scope[BODY] = RequestBody(
                receive, size=headers.content_length, seconds=self._options.body_seconds
            )
            body = LimitedReceive(scope, receive, self._options, size=headers.content_length)
            await self._app(scope, body, secured)
        else:
            await _send_problem(problem, secured)

    def _problem_of(self, scope: Any, headers: _Headers) -> Problem | None:
        options = self._options
        url_bytes = len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"]) + 1
        if url_bytes > options.url_bytes_max:
            return Problem(
                "URI Too Long",
                414,
                "uri_too_long",
                f"the URL must have at most {options.url_bytes_max:,} bytes",
            )
        if headers.bytes > options.header_bytes_max or len(scope["headers"]) > options.headers_max:
            return Problem(
                "Request Header Fields Too Large",
                431,
                "headers_too_large",
                f"a request may have at most {options.headers_max} headers with "
                f"{options.header_bytes_max:,} bytes",
            )
        if options.authentication or _path_of(scope).startswith(_SIGNED):
            return None
        return self._problem_of_site(headers)

    def _problem_of_site(self, headers: _Headers) -> Problem | None:
        """Return why a request to a server without authentication may come from a web page.

        A page has no credentials to steal here, but without this check it could drive the server:
        by a name that resolves to this machine, or by a form that it submits.
        """
        host = headers.hosts[0] if len(headers.hosts) == 1 else ""
        if "*" not in self._hosts and _without_port(host) not in self._hosts:
            return Problem(
                "Misdirected Request",
                421,
                "host_not_allowed",
                "without authentication the header Host must be localhost or one of allowed_hosts",
            )
        if headers.origin is None or headers.origin in self._options.cors_origins:
            return None
        if headers.origin.lower() in (f"http://{host}", f"https://{host}"):
            return None
        return Problem(
            "Forbidden",
            403,
            "origin_not_allowed",
            "without authentication pages of other origins may not use this server; "
            "cors_origins lists those that may",
        )


def _path_of(scope: Any) -> str:
    """Return the path of a request below the place where the server is mounted."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def _headers_of(scope: Any) -> _Headers:
    total, hosts, origin, length = 0, (), None, None
    for name, value in scope["headers"]:
        total += len(name) + len(value)
        if name == b"host":
            hosts = (*hosts, value.decode("latin-1").lower())
        elif name == b"origin":
            # Two origins are none that may be allowed.
            origin = value.decode("latin-1") if origin is None else "null"
        elif name == b"content-length" and value.isdigit():
            length = int(value[:20])
    return _Headers(total, hosts, origin, length)


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and (port.isascii() and port.isdigit()) else host


def _secured(send: Send) -> Send:
    async def secured(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            present = {name.lower() for name, _ in headers}
            headers += [each for each in _SECURITY_HEADERS if each[0] not in present]
            if message["status"] in _CLOSING_STATUSES:
                headers.append((b"connection", b"close"))
            message["headers"] = headers
        await send(message)

    return secured


async def _send_problem(problem: Problem, send: Send) -> None:
    body = msgspec.json.encode(problem)
    headers = [
        (b"content-type", PROBLEM_JSON.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
