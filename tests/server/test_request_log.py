"""The access log of the server, and the ids of requests."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.cli.logs import _JsonFormatter  # pyright: ignore[reportPrivateUsage]
from holdfast.log_context import REQUEST_SCOPE, log_fields
from holdfast.server.metrics import ServerMetrics
from holdfast.server.request_log import RequestLog
from tests.server.graphs import Order, orders


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="holdfast.access")
    return caplog


def fields_of(lines: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.fields for record in lines.records if record.name == "holdfast.access"]  # type: ignore[attr-defined]


async def test_each_request_is_one_line_without_its_path_query_or_headers(
    http: httpx.AsyncClient, hf: Holdfast, lines: pytest.LogCaptureFixture
) -> None:
    await hf.start(orders, Order("secret payload"), id="secret-id")
    secret = {"Authorization": "Bearer secret", "Cookie": "secret", "User-Agent": "secret"}
    await http.get("/v1/runs/secret-id?token=secret", headers={**secret, "X-Request-Id": "r-1"})
    (fields,) = fields_of(lines)
    assert fields.pop("ms") >= 0
    assert fields == {
        "method": "GET",
        "route": "/v1/runs/{id}",
        "status": 400,  # there is no such parameter
        "identity": "anonymous",
        "tenant": "default",
        "request": "r-1",
    }
    (record,) = [each for each in lines.records if each.name == "holdfast.access"]
    assert "secret" not in _JsonFormatter().format(record)
    assert "secret" not in record.getMessage()


async def test_a_request_without_a_route_is_logged_without_its_path(
    http: httpx.AsyncClient, lines: pytest.LogCaptureFixture
) -> None:
    await http.get("/secret/path")
    (fields,) = fields_of(lines)
    assert (fields["route"], fields["status"]) == ("none", 404)
    assert "secret" not in lines.text


async def test_probes_and_scrapes_are_not_logged(
    http: httpx.AsyncClient, lines: pytest.LogCaptureFixture
) -> None:
    await http.get("/metrics")
    assert fields_of(lines) == []


async def test_the_id_of_a_request_comes_back(http: httpx.AsyncClient) -> None:
    response = await http.get("/v1/runs", headers={"X-Request-Id": "abc-1.2_3"})
    assert response.headers["x-request-id"] == "abc-1.2_3"
    assert response.headers.get_list("x-request-id") == ["abc-1.2_3"]


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "a\x1b[31m", "<script>", "é"])
async def test_an_id_that_could_forge_a_line_is_replaced(
    http: httpx.AsyncClient, given: str
) -> None:
    response = await http.get("/v1/runs", headers={"X-Request-Id": given.encode()})
    made = response.headers["x-request-id"]
    assert made != given
    assert len(made) == 36


async def test_every_answer_has_an_id_also_an_error(http: httpx.AsyncClient) -> None:
    ids = {(await http.get(path)).headers["x-request-id"] for path in ("/v1/runs/x", "/none")}
    assert len(ids) == 2


async def test_streams_are_counted_while_they_are_open(hf: Holdfast) -> None:
    metrics = ServerMetrics(hf)
    open_while: list[int] = []

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"Content-Type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        open_while.append(metrics.streams_open)
        await send({"type": "http.response.body", "body": b""})

    async def socket(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        open_while.append(metrics.streams_open)
        raise ConnectionError("cut off")

    async def send(message: Any) -> None: ...

    scope = {"type": "http", "method": "GET", "headers": []}
    await RequestLog(stream, metrics)(scope, None, send)
    with pytest.raises(ConnectionError):
        await RequestLog(socket, metrics)({"type": "websocket", "headers": []}, None, send)
    assert open_while == [1, 1]
    assert metrics.streams_open == 0
    statuses = {labels[0]: labels[2] for labels in metrics.requests}
    assert statuses == {"GET": "200", "WEBSOCKET": "101"}


async def test_code_of_a_request_knows_its_id_and_the_callers_trace(hf: Holdfast) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((log_fields(), REQUEST_SCOPE.get()))

    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    log = RequestLog(app, ServerMetrics(hf))
    for given in (trace, "00-bad"):
        headers = [(b"x-request-id", b"r-1"), (b"traceparent", given.encode())]
        await log({"type": "http", "method": "GET", "headers": headers}, None, None)
    assert [scope.traceparent for _, scope in seen] == [trace, ""]
    assert seen[0][0] == {"request": "r-1"}
    assert log_fields() == {}
