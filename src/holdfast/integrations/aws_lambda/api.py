"""`api`: serves a server's routes behind API Gateway, a function URL or a load balancer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

import msgspec

from holdfast.app import Holdfast
from holdfast.display import get_logger
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.integrations.aws_lambda.due_runs import LambdaOptions, run_due_beside
from holdfast.integrations.aws_lambda.http_events import (
    Headers,
    HttpRequest,
    answer_of,
    http_request_of,
    scope_of,
)
from holdfast.integrations.aws_lambda.invocation import (
    Event,
    Handler,
    LambdaContext,
    run_in_loop,
    seconds_left,
)
from holdfast.model.program import Program

__all__ = ["ServedApp", "api"]

_log = get_logger("holdfast.lambda")

# API Gateway gives up after 29 or 30 seconds.
_REQUEST_SECONDS_MAX = 25.0
# Lambda's limit is 6 MB for the whole answer.
_BODY_BYTES_MAX = 5_500_000
_CONFLICT = 409
_PROBLEM_JSON = "application/problem+json"
# A request that is refused is answered by then, and must not cost a worker.
_REFUSAL_SECONDS = 0.2
# The rest of the time is for the answer.
_WAIT_SHARE = 0.7
# What a request that waits for a run sends, see `holdfast.server.long_polls`.
_WAIT = re.compile(rb"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,9})", re.IGNORECASE)


class _BulkJobs(Protocol):
    async def carry_out_due(self) -> None: ...


class _Services(Protocol):
    @property
    def hf(self) -> Holdfast: ...

    @property
    def graphs(self) -> tuple[Program, ...]: ...

    @property
    def bulk(self) -> _BulkJobs: ...


class ServedApp(Protocol):
    """What `holdfast.server.asgi` returns."""

    @property
    def services(self) -> Any: ...

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]: ...


def api(
    app: ServedApp,
    *,
    run_seconds: float = 5.0,
    base_path: str = "",
    options: LambdaOptions | None = None,
) -> Handler:
    """Return a handler that answers the requests of a server: ``api(asgi(hf, [graph]))``.

    It takes requests of API Gateway (HTTP and REST APIs), of function URLs and of load balancers.
    ``base_path`` is the path under which a custom domain has the API, such as ``/holdfast``. The
    server's own worker, its streams and its metrics of the store do not run here: an address of a
    stream answers 501.

    A request that may have made a run due is answered after the handler has run what is due, for
    at most ``run_seconds``; a node that takes longer is interrupted, and goes on elsewhere. With 0
    the answer comes at once, and `stream_trigger` or `schedule_trigger` run it.

    Raises:
        InvalidRequest: an argument is wrong.
    """
    _check_arguments(app, run_seconds, base_path)
    adapter = _Adapter(app, run_seconds, options)

    def handle(event: Event, context: LambdaContext) -> dict[str, Any]:
        seconds = min(seconds_left(context), _REQUEST_SECONDS_MAX)
        try:
            request = http_request_of(event, base_path=base_path)
        except InvalidRequest as error:
            if error.field != "body":
                raise
            problem, headers = _Problem(400, str(error)), {"content-type": _PROBLEM_JSON}
            return {"statusCode": 400, "headers": headers, "body": problem.body.decode()}
        return run_in_loop(lambda: adapter.answer(request, seconds))

    return handle


def _check_arguments(app: object, run_seconds: Any, base_path: Any) -> None:
    if not callable(app) or getattr(app, "services", None) is None:
        raise InvalidRequest(
            f"app must be what holdfast.server.asgi returns, got {app!r:.80}", field="app"
        )
    is_number = type(run_seconds) in (int, float)
    if not (is_number and (run_seconds == 0 or 1 <= run_seconds <= _REQUEST_SECONDS_MAX)):
        raise InvalidRequest(
            f"run_seconds must be 0, or a number from 1 to {_REQUEST_SECONDS_MAX:g}, got "
            f"{run_seconds!r:.40}",
            field="run_seconds",
        )
    if base_path != "" and not re.fullmatch(r"/.*[^/]", str(base_path)):
        raise InvalidRequest(
            f"base_path must begin with / and must not end with /, got {base_path!r:.80}",
            field="base_path",
        )


class _Adapter:
    """Answers requests, and runs what they made due."""

    def __init__(self, app: ServedApp, run_seconds: float, options: LambdaOptions | None) -> None:
        self._app = app
        self._services: _Services = app.services
        self._run_seconds = run_seconds
        self._options = options

    async def answer(self, request: HttpRequest, seconds: float) -> dict[str, Any]:
        """Return the answer to a request for Lambda, within so many seconds."""
        clock = self._services.hf.clock
        deadline = clock.monotonic() + seconds
        response = _Response()
        request, wait_seconds = _limited_wait(request, seconds)
        waits = bool(self._run_seconds and wait_seconds)
        asked = asyncio.ensure_future(response.ask(self._app, request))
        try:
            at_first = min(_REFUSAL_SECONDS, seconds) if waits else seconds
            await asyncio.wait({asked}, timeout=at_first)
            left = max(0.0, deadline - clock.monotonic())
            if not asked.done() and waits:
                limit = min(left, wait_seconds + self._run_seconds)
                await self._run_due(limit, lambda: asyncio.wait({asked}))
                await asyncio.wait({asked}, timeout=max(0.0, deadline - clock.monotonic()))
            elif self._run_seconds and not request.is_safe and response.may_have_woken:
                limit = min(left, self._run_seconds)
                await self._run_due(limit, self._services.bulk.carry_out_due)
        finally:
            asked.cancel()
            await asyncio.wait({asked})
        return response.answer(request)

    async def _run_due(self, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
        services = self._services
        try:
            await run_due_beside(
                work, services.hf, services.graphs, seconds=seconds, options=self._options
            )
        except (HoldfastError, TimeoutError) as error:
            # The request is answered all the same: what is due stays due.
            _log.warning("what is due was not run: %s", error)


def _limited_wait(request: HttpRequest, seconds: float) -> tuple[HttpRequest, int]:
    """Return a request that does not wait too long for a run, and how long it waits."""
    for place, (name, value) in enumerate(request.headers):
        if name == b"prefer" and (found := _WAIT.search(value)):
            wait_seconds = min(int(found[1]), max(0, int(seconds * _WAIT_SHARE)))
            headers = [*request.headers]
            headers[place] = (name, b"wait=%d" % wait_seconds)
            return request._replace(headers=headers), wait_seconds
    return request, 0


class _Response:
    """Collects what the application answers to one request."""

    def __init__(self) -> None:
        self.status = 0
        self._is_broken = False
        self._headers: Headers = []
        self._body = bytearray()
        self._is_stream = False
        self._over = asyncio.Event()

    @property
    def may_have_woken(self) -> bool:
        """Whether the request may have made a run due."""
        # A page redirects after its form. A conflict may tell of an earlier decision, which the
        # request carried on.
        return 200 <= self.status < 400 or self.status == _CONFLICT

    async def ask(self, app: ServedApp, request: HttpRequest) -> None:
        """Let the application answer a request."""
        body: bytes | None = request.body

        async def receive() -> dict[str, Any]:
            nonlocal body
            if body is None:
                await self._over.wait()
                return {"type": "http.disconnect"}
            whole, body = body, None
            return {"type": "http.request", "body": whole, "more_body": False}

        try:
            await app(scope_of(request), receive, self._send)
        except Exception:
            # Not the path: that of a callback or of a link to a review is a secret.
            _log.exception("the server broke at a request with the method %s", request.method)
            self._is_broken = True

    async def _send(self, message: Any) -> None:
        if self._over.is_set():
            return
        if message["type"] == "http.response.start":
            self.status, self._headers = message["status"], [*message.get("headers", ())]
            self._is_stream = any(
                name.lower() == b"content-type" and value.startswith(b"text/event-stream")
                for name, value in self._headers
            )
        elif message["type"] == "http.response.body":
            self._body += message.get("body", b"")
        is_last = message["type"] == "http.response.body" and not message.get("more_body")
        if is_last or self._is_stream or len(self._body) > _BODY_BYTES_MAX:
            self._over.set()  # the application gets to know that the client is gone

    def answer(self, request: HttpRequest) -> dict[str, Any]:
        """Return the answer for Lambda."""
        status, headers, body = self.status, self._headers, bytes(self._body)
        if problem := self._problem():
            status, body = problem.status, problem.body
            headers = [each for each in headers if each[0].lower() == b"x-request-id"]
            headers.append((b"content-type", _PROBLEM_JSON.encode()))
        if request.method == "HEAD":
            body = b""
        return answer_of(request.form, status=status, headers=headers, body=body)

    def _problem(self) -> _Problem | None:
        """Return why the answer of the application cannot be passed on."""
        if self._is_stream:
            return _Problem(501, "streams are not possible on Lambda: ask `holdfast serve`")
        if len(self._body) > _BODY_BYTES_MAX:
            return _Problem(500, f"the answer has more than {_BODY_BYTES_MAX:,} bytes")
        if self._is_broken:
            return _Problem(500, "the server failed to answer")
        if not self._over.is_set():
            return _Problem(503, "the server did not answer in time; ask again")
        return None


class _Problem(NamedTuple):
    """An answer that says what went wrong, as RFC 9457 has it."""

    status: int
    detail: str

    @property
    def body(self) -> bytes:
        status = HTTPStatus(self.status)
        code = status.phrase.lower().replace(" ", "_")
        problem = {"title": status.phrase, "status": status, "code": code, "detail": self.detail}
        return msgspec.json.encode(problem)
