"""Requests of the client: what is repeated, for how long, and which error is raised at the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest

from holdfast.client import Client, RemoteRun
from holdfast.client.responses import error_of
from holdfast.clock import ManualClock
from holdfast.errors import (
    Forbidden,
    HoldfastError,
    InvalidName,
    InvalidRequest,
    InvalidResponse,
    PayloadTooLarge,
    RunEnded,
    ServerUnavailable,
    StoreUnavailable,
    TooManyRequests,
    Unauthenticated,
)
from holdfast.errors.registry import error_class
from holdfast.model.run import SignalReceipt
from tests.client.test_streams import Script
from tests.model.test_json_form import RUN

RECEIPT = SignalReceipt(repeated=False, answers_wait=True)
Answer = Callable[[httpx.Request], httpx.Response]


def answered(status: int, shown: Any = None, **headers: str) -> Answer:
    return lambda request: httpx.Response(status, json=shown, headers=headers)


def failed(error: Exception) -> Answer:
    def fail(request: httpx.Request) -> httpx.Response:
        raise error

    return fail


async def ask(
    script: Script, verb: Callable[[RemoteRun[Any]], Awaitable[Any]], clock: ManualClock
) -> Any:
    """Call a verb, and let the time pass while it waits."""
    async with Client("http://server", transport=script, timeout=30, clock=clock) as client:
        asked = asyncio.ensure_future(verb(client.run("a")))
        while not asked.done():
            await asyncio.wait({asked}, timeout=0.001)
            clock.advance(0.25)
        return await asked


@pytest.mark.parametrize(
    "trouble",
    [
        failed(httpx.ConnectError("refused")),
        failed(httpx.ConnectTimeout("slow")),
        failed(httpx.ReadError("reset")),
        failed(httpx.ReadTimeout("slow")),
        failed(httpx.RemoteProtocolError("disconnected")),
        answered(429, **{"retry-after": "1"}),
        answered(502),
        answered(503, {"code": "store_unavailable", "detail": "later"}),
        answered(504),
    ],
    ids=range(9),
)
async def test_a_request_that_is_safe_to_repeat_is_sent_again(trouble: Answer) -> None:
    script = Script(trouble, trouble, answered(200, RUN.as_dict()))
    assert await ask(script, lambda run: run.get(), ManualClock()) == RUN
    script = Script(trouble, trouble, answered(200, RECEIPT.as_dict()))
    assert await ask(script, lambda run: run.signal("go"), ManualClock()) == RECEIPT
    bodies = {request.content for request in script.seen}
    assert len(script.seen) == 3
    assert len(bodies) == 1, "each repetition of a signal has the same id"


@pytest.mark.parametrize(
    ("trouble", "expected"),
    [
        (failed(httpx.ReadError("reset")), ServerUnavailable),
        (failed(httpx.WriteTimeout("slow")), ServerUnavailable),
        (answered(502), ServerUnavailable),
        (answered(503, {"code": "store_unavailable", "detail": "later"}), StoreUnavailable),
    ],
    ids=range(4),
)
async def test_a_retry_of_a_run_is_not_sent_twice(
    trouble: Answer, expected: type[HoldfastError]
) -> None:
    script = Script(trouble, answered(204))
    with pytest.raises(expected):
        await ask(script, lambda run: run.retry(), ManualClock())
    assert len(script.seen) == 1


async def test_what_was_certainly_not_carried_out_is_sent_again() -> None:
    script = Script(failed(httpx.ConnectError("refused")), answered(429), answered(204))
    await ask(script, lambda run: run.retry(), ManualClock())
    assert len(script.seen) == 3


async def test_a_start_is_repeated_with_the_same_id() -> None:
    clock = ManualClock()
    script = Script(failed(httpx.ReadError("cut")), answered(503), answered(201, {"id": "r"}))
    async with Client("http://server", transport=script, clock=clock) as client:
        starting = asyncio.ensure_future(client.start("orders", {"item": "book"}))
        while not starting.done():
            await asyncio.wait({starting}, timeout=0.001)
            clock.advance(0.25)
        assert (await starting).id == "r"
    ids = {json.loads(request.content)["id"] for request in script.seen}
    assert (len(script.seen), len(ids)) == (3, 1)


async def test_the_time_limit_bounds_all_attempts_together() -> None:
    clock = ManualClock()
    script = Script(*[failed(httpx.ConnectError("refused"))] * 1000)
    with pytest.raises(ServerUnavailable, match="http://server cannot be reached: refused"):
        await ask(script, lambda run: run.get(), clock)
    assert 25 < clock.monotonic() < 35
    assert len(script.seen) < 30


class Endless(httpx.AsyncBaseTransport):
    """Sends one byte after the other, each of them in time."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=EndlessBytes())


class EndlessBytes(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.001)
            yield b" "


async def test_the_time_limit_bounds_a_response_that_trickles() -> None:
    async with asyncio.timeout(10), Client("http://server", transport=Endless(), timeout=0.1) as it:
        with pytest.raises(ServerUnavailable, match="no response in time"):
            await it.run("a").get()


async def test_a_server_that_asks_for_too_much_time_is_not_waited_for() -> None:
    script = Script(answered(429, {"code": "too_many_requests"}, **{"retry-after": "60"}))
    with pytest.raises(TooManyRequests) as raised:
        await ask(script, lambda run: run.get(), ManualClock())
    assert raised.value.retry_after_seconds == 60


async def test_retry_after_is_honoured() -> None:
    clock = ManualClock()
    script = Script(answered(429, **{"retry-after": "7"}), answered(200, RUN.as_dict()))
    await ask(script, lambda run: run.get(), clock)
    assert clock.monotonic() >= 7


async def test_the_server_waits_for_a_result_as_long_as_the_call_may() -> None:
    script = Script(answered(202, RUN.as_dict()), answered(200, {"result": 7}))
    assert await ask(script, lambda run: run.result(), ManualClock()) == 7
    assert [request.headers.get("prefer") for request in script.seen] == ["wait=15"] * 2
    script = Script(answered(202, RUN.as_dict()), answered(200, {"result": 7}))
    assert await ask(script, lambda run: run.result(timeout=5), ManualClock()) == 7
    assert script.seen[0].headers["prefer"] == "wait=5"


async def test_a_server_that_does_not_wait_is_asked_less_and_less_often() -> None:
    clock = ManualClock()
    script = Script(*[answered(202, RUN.as_dict())] * 1000)
    with pytest.raises(TimeoutError, match="has not ended within 1m"):
        await ask(script, lambda run: run.result(timeout=60), clock)
    assert 50 < clock.monotonic() < 70
    assert len(script.seen) < 80
    script = Script(answered(202, RUN.as_dict()))
    with pytest.raises(TimeoutError, match="within 0s"):
        await ask(script, lambda run: run.result(timeout=0), ManualClock())
    assert script.seen[0].headers.get("prefer") is None


@pytest.mark.parametrize(
    ("status", "shown", "expected"),
    [
        (409, {"code": "run_ended", "detail": "over"}, RunEnded),
        (422, {"code": "invalid_name", "detail": "x", "field": "id"}, InvalidName),
        (400, {"code": "bad_request", "detail": "x", "field": "limit"}, InvalidRequest),
        (401, {"code": "unauthenticated"}, Unauthenticated),
        (401, None, Unauthenticated),
        (403, "no", Forbidden),
        (404, {"code": "not_found"}, InvalidResponse),
        (404, None, InvalidResponse),
        (413, None, PayloadTooLarge),
        (418, [1], InvalidResponse),
        (301, None, InvalidResponse),
        (500, {"code": "internal", "detail": "See the server's log."}, ServerUnavailable),
        (500, None, ServerUnavailable),
        (599, {"code": ["a"], "detail": {}}, ServerUnavailable),
        (409, {"code": "from_the_future", "detail": "x"}, InvalidResponse),
    ],
)
def test_a_problem_becomes_the_error_of_the_library(
    status: int, shown: Any, expected: type[HoldfastError]
) -> None:
    request = httpx.Request("GET", "http://server/v1/runs/a")
    error = error_of(httpx.Response(status, json=shown, request=request))
    assert type(error) is expected
    if isinstance(shown, dict) and isinstance(error, InvalidRequest):
        assert error.field == shown["field"]


@pytest.mark.parametrize("body", [b"<html>", b"\xff", b"7", b"[]", b"{}", b'{"id": 7}'])
async def test_an_answer_that_is_no_row_is_an_error(body: bytes) -> None:
    script = Script(lambda request: httpx.Response(200, content=body))
    with pytest.raises(InvalidResponse):
        await ask(script, lambda run: run.get(), ManualClock())
    with pytest.raises(InvalidResponse):
        await ask(
            Script(lambda r: httpx.Response(202, content=body)), RemoteRun.result, ManualClock()
        )


async def test_the_credentials_and_the_tenant_are_sent() -> None:
    script = Script(*[answered(200, RUN.as_dict())] * 3)
    tokens = iter(["one", "two"])
    async with Client("http://a", transport=script, key="secret", tenant="shop") as client:
        await client.run("a").get()
    async with Client("http://a/base", transport=script, token=lambda: next(tokens)) as client:
        await client.run("a b").get()
        await client.run("a", tenant="other").get()
    sent = [
        (request.headers["authorization"], request.headers.get("holdfast-tenant"))
        for request in script.seen
    ]
    assert sent == [("Bearer secret", "shop"), ("Bearer one", None), ("Bearer two", "other")]
    assert str(script.seen[1].url) == "http://a/base/v1/runs/a%20b"


def test_every_error_of_the_library_is_found_by_its_code() -> None:
    def below(kind: type[HoldfastError]) -> set[type[HoldfastError]]:
        ours = [each for each in kind.__subclasses__() if "holdfast.errors" in each.__module__]
        return {*ours}.union(*map(below, ours))

    for kind in below(HoldfastError):
        found = error_class(kind.code)
        assert found is not None
        assert found.code == kind.code
    assert error_class("unheard") is None
