"""One log line and one measurement for each request, and an id under which it is found.

The line has the template of the path and not the path itself, and no header, query or body: those
may contain secrets.
"""

from __future__ import annotations

import re
from typing import Any, cast

from litestar.connection import ASGIConnection

from holdfast.clock import SystemClock, SystemIds
from holdfast.display import get_logger
from holdfast.log_context import REQUEST_SCOPE, RequestScope
from holdfast.server.caller import Requester
from holdfast.server.metrics import ServerMetrics

__all__ = ["RequestLog", "note_caller", "note_route"]

_log = get_logger("holdfast.access")

_FACTS = "holdfast.request"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_EVENT_STREAM = b"text/event-stream"
# Probes and scrapes come every few seconds: their lines would hide the others.
_QUIET_ROUTES = frozenset(("/healthz", "/readyz", "/metrics"))
_SWITCHED, _REFUSED, _NO_ANSWER = 101, 403, 499
_DEBUG, _INFO = 10, 20


class _RequestFacts:
    """What becomes known of a request while it is handled."""

    def __init__(self, request_id: str) -> None:
        self.id = request_id
        self.route = ""
        self.identity = "-"
        self.tenant = "-"
        self.status = _NO_ANSWER
        self.streams = False

    @property
    def header(self) -> tuple[bytes, bytes]:
        """The header that tells the client the id."""
        return b"x-request-id", self.id.encode()


class RequestLog:
    """An ASGI application around another one, which logs and measures its requests."""

    def __init__(self, app: Any, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics
        self._clock = SystemClock()
        self._ids = SystemIds()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = _first_headers(scope)
        facts = _RequestFacts(_valid(_REQUEST_ID, headers.get(b"x-request-id")) or self._ids.new())
        scope[_FACTS] = facts
        traceparent = _valid(_TRACEPARENT, headers.get(b"traceparent"))
        token = REQUEST_SCOPE.set(RequestScope(facts.id, traceparent=traceparent))
        began = self._clock.monotonic()
        try:
            await self._app(scope, receive, self._observed_send(send, facts))
        finally:
            REQUEST_SCOPE.reset(token)
            self._finish(scope, facts, self._clock.monotonic() - began)

    def _observed_send(self, send: Any, facts: _RequestFacts) -> Any:
        async def observed(message: dict[str, Any]) -> None:
            match message["type"]:
                case "http.response.start":
                    facts.status = message["status"]
                    headers = [*message.get("headers", ()), facts.header]
                    if any(_is_event_stream(*header) for header in headers):
                        self._begin_stream(facts)
                    message = {**message, "headers": headers}
                case "websocket.accept":
                    facts.status = _SWITCHED
                    self._begin_stream(facts)
                case "websocket.http.response.start":
                    facts.status = message["status"]
                    message = {**message, "headers": [*message.get("headers", ()), facts.header]}
                case "websocket.close" if not facts.streams:
                    facts.status = _refusal(message.get("code", _REFUSED))
                case _:
                    pass
            await send(message)

        return observed

    def _begin_stream(self, facts: _RequestFacts) -> None:
        if not facts.streams:
            facts.streams = True
            self._metrics.streams_open += 1

    def _finish(self, scope: Any, facts: _RequestFacts, seconds: float) -> None:
        if facts.streams:
            self._metrics.streams_open -= 1
        method = "WEBSOCKET" if scope["type"] == "websocket" else str(scope["method"])[:16]
        self._metrics.record_request(method, facts.route, facts.status, seconds)
        fields = {
            "method": method,
            "route": facts.route or "none",
            "status": facts.status,
            "ms": round(seconds * 1000, 1),
            "identity": facts.identity,
            "tenant": facts.tenant,
            "request": facts.id,
        }
        _log.log(
            _DEBUG if facts.route in _QUIET_ROUTES else _INFO,
            "%s %s %d in %.1f ms by %s of tenant %s, request %s",
            *fields.values(),
            extra={"fields": fields},
        )


def note_route(connection: ASGIConnection[Any, Any, Any, Any]) -> None:
    """Remember the template of a request's path, for the log."""
    facts = _facts_of(connection)
    if facts is not None:
        scope = cast("dict[str, Any]", connection.scope)
        facts.route = str(scope.get("path_template") or "")


def note_caller(connection: ASGIConnection[Any, Any, Any, Any]) -> None:
    """Remember who makes a request, for the log."""
    facts = _facts_of(connection)
    requester: object = cast("dict[str, Any]", connection.scope).get("user")
    if facts is None or not isinstance(requester, Requester):
        return
    facts.identity, facts.tenant = requester.identity.name, requester.tenant
    scope = REQUEST_SCOPE.get()
    if scope is not None:
        REQUEST_SCOPE.set(RequestScope(scope.id, requester.tenant, scope.traceparent))


def _facts_of(connection: ASGIConnection[Any, Any, Any, Any]) -> _RequestFacts | None:
    facts: object = cast("dict[str, Any]", connection.scope).get(_FACTS)
    return facts if isinstance(facts, _RequestFacts) else None


def _first_headers(scope: Any) -> dict[bytes, bytes]:
    """Return the headers of a request; of those that are repeated, the first."""
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name, value)
    return headers


def _valid(pattern: re.Pattern[str], value: bytes | None) -> str:
    text = "" if value is None else value.decode("latin-1")
    return text if pattern.fullmatch(text) else ""


def _refusal(code: int) -> int:
    """Return the status for which a close code stands: 4404 is 404."""
    return code - 4000 if 4400 <= code < 4600 else _REFUSED


def _is_event_stream(name: bytes, value: bytes) -> bool:
    return name.lower() == b"content-type" and value.startswith(_EVENT_STREAM)
