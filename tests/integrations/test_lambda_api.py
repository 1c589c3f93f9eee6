"""The server behind API Gateway, function URLs and load balancers."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Holdfast, signal
from holdfast.errors import InvalidRequest, StoreUnusable
from holdfast.integrations import aws_lambda
from holdfast.integrations.aws_lambda.invocation import run_in_loop
from holdfast.server import ServerApp, ServerOptions, asgi
from tests.integrations.lambda_calls import FAST, Document, Invocation, documents, event_named

PUBLIC = "https://api.example.com"
HOSTS = (
    "r3pmxmplak.execute-api.eu-west-1.amazonaws.com",
    "abcdefgh12345678.lambda-url.eu-west-1.on.aws",
    "70ixmpl4fl.execute-api.eu-west-1.amazonaws.com",
    "lambda-alb-123578498.eu-west-1.elb.amazonaws.com",
)
FORMS = ("http_api_v2", "function_url", "rest_api_v1", "load_balancer")

paying = Graph("paying", Document)
ADDRESSES: dict[str, str] = {}


@paying.node
async def pay(document: Document, ctx: Context) -> Document:
    ADDRESSES[document.uri] = await ctx.callback("paid")
    await ctx.wait(signal("paid"))
    return document


quick = Graph("quick", Document)


@quick.node
async def read(document: Document) -> Document:
    return document


@pytest.fixture(params=["sqlite", "moto"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/runs.db"
    else:
        server = request.getfixturevalue("moto_server")
        url = f"dynamodb://{tmp_path.name}?region=us-east-1&endpoint={server}"
        url += f"&bucket={tmp_path.name.replace('_', '-')}&bucket_endpoint={server}"
    opened = Holdfast(url, public_url=PUBLIC)
    run_in_loop(opened.create)
    yield opened
    run_in_loop(opened.close)


@pytest.fixture
def file_hf(tmp_path: Path) -> Iterator[Holdfast]:
    opened = Holdfast(f"sqlite:///{tmp_path}/runs.db", public_url=PUBLIC)
    yield opened
    run_in_loop(opened.close)


def served(hf: Holdfast, *graphs: Graph[Document], **options: Any) -> ServerApp:
    return asgi(
        hf,
        graphs or [documents, paying, quick],
        options=ServerOptions(**({"allowed_hosts": HOSTS} | options)),
        worker=False,
    )


def call(
    handler: Callable[[Any, Any], Any],
    method: str,
    path: str,
    body: object = None,
    *,
    form: str = "http_api_v2",
    headers: dict[str, str] | None = None,
    seconds: float = 30.0,
) -> tuple[int, Any, dict[str, Any]]:
    """Return the status, the body and the whole answer to a request in one of the forms."""
    event = event_named(form)
    added = {"content-type": "application/json"} | (headers or {})
    event["headers"].update(added)
    if form.startswith(("http_api", "function")):
        event["requestContext"]["http"].update(method=method, path=path)
        event.update(rawPath=path, rawQueryString="")
    else:
        event.update(httpMethod=method, path=path, queryStringParameters=None)
        event["multiValueQueryStringParameters"] = None
        event["requestContext"]["path"] = f"/prod{path}"
        if "multiValueHeaders" in event:
            event["multiValueHeaders"].update({name: [value] for name, value in added.items()})
    if body is not None:
        event.update(body=base64.b64encode(json.dumps(body).encode()).decode())
        event["isBase64Encoded"] = True
    answer = handler(event, Invocation(seconds))
    text = answer["body"]
    return answer["statusCode"], json.loads(text) if text else None, answer


def start(handler: Any, id: str, graph: str = "documents", **asked: Any) -> tuple[int, Any, Any]:
    body = {"graph": graph, "input": {"uri": id}, "id": id}
    return call(handler, "POST", "/v1/runs", body, **asked)


def test_a_decision_resumes_the_run_in_the_same_invocation(hf: Holdfast) -> None:
    handler = aws_lambda.api(served(hf), options=FAST)
    status, body, answer = start(handler, "d-1")
    assert (status, body["id"]) == (201, "d-1")
    assert answer["headers"]["location"] == "/v1/runs/d-1"
    assert call(handler, "GET", "/v1/runs/d-1")[1]["status"] == "waiting", "it was run until then"

    decision = {"name": "approved", "payload": True, "signal_id": "a"}
    assert call(handler, "POST", "/v1/runs/d-1/signals", decision)[0] == 200
    status, body, _ = call(handler, "GET", "/v1/runs/d-1")
    assert (status, body["status"]) == (200, "finished")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_reads_and_writes(file_hf: Holdfast, form: str) -> None:
    handler = aws_lambda.api(served(file_hf), run_seconds=0)
    assert call(handler, "GET", "/healthz", form=form)[0] == 200
    assert start(handler, "d-1", form=form)[0] == 201
    status, body, answer = call(handler, "GET", "/v1/runs/d-1", form=form)
    assert (status, body["status"]) == (200, "ready"), "it was not run"
    assert answer["isBase64Encoded"] is False
    assert call(handler, "GET", "/v1/runs/d-2", form=form)[0] == 404
    if form == "rest_api_v1":
        located = start(handler, "d-3", form=form)[2]["multiValueHeaders"]["location"]
        assert located == ["/prod/v1/runs/d-3"], "with the stage"
    status, body, answer = call(handler, "HEAD", "/v1/runs/d-1", form=form)
    assert (status, answer["body"]) == (200, "")


def test_a_callback_of_another_system_resumes_the_run(file_hf: Holdfast) -> None:
    handler = aws_lambda.api(served(file_hf), options=FAST)
    start(handler, "p-1", "paying")
    path = ADDRESSES["p-1"].removeprefix(PUBLIC)
    status, body, _ = call(handler, "POST", path, {"cents": 100})
    assert (status, body) == (202, {"repeated": False})
    assert call(handler, "GET", "/v1/runs/p-1")[1]["status"] == "finished"
    assert call(handler, "POST", path[:-3], {"cents": 100})[0] == 404


def test_a_request_that_waits_is_answered_when_its_run_has_ended(file_hf: Holdfast) -> None:
    handler = aws_lambda.api(served(file_hf), options=FAST)
    began = time.monotonic()
    status, body, _ = start(handler, "q-1", "quick", headers={"Prefer": "wait=20"})
    assert (status, body["status"]) == (201, "finished")
    assert time.monotonic() - began < 10


def test_a_request_does_not_wait_longer_than_the_invocation(file_hf: Holdfast) -> None:
    handler = aws_lambda.api(served(file_hf), options=FAST)
    status, body, _ = start(handler, "d-1", headers={"Prefer": "wait=60"}, seconds=6.0)
    assert (status, body["status"]) == (201, "waiting")


def test_a_caller_does_not_wait_for_a_long_node(file_hf: Holdfast) -> None:
    graph, began = Graph("slow", Document), threading.Event()

    @graph.node
    async def work(document: Document, ctx: Context) -> Document:
        began.set()
        await asyncio.Event().wait()
        return document

    handler = aws_lambda.api(served(file_hf, graph), run_seconds=2, options=FAST)
    asked = time.monotonic()
    assert start(handler, "s-1", "slow")[0] == 201
    assert began.is_set()
    assert time.monotonic() - asked < 8
    _, body, _ = call(handler, "GET", "/v1/runs/s-1")
    assert body["status"] == "ready", "another worker can take it at once"


def test_a_read_and_a_refused_request_run_nothing(file_hf: Holdfast) -> None:
    run_in_loop(lambda: file_hf.start(quick, Document("q"), id="q-1"))
    handler = aws_lambda.api(served(file_hf), options=FAST)
    call(handler, "GET", "/v1/runs")
    call(handler, "POST", "/v1/runs", {"graph": "none"})
    call(handler, "POST", "/v1/runs", {"graph": "none"}, headers={"Prefer": "wait=5"})
    assert run_in_loop(file_hf.run("q-1").get).status == "ready"


def test_a_caller_without_a_key_costs_no_worker(file_hf: Holdfast) -> None:
    closed = aws_lambda.api(served(file_hf, authentication=True), options=FAST)
    key = run_in_loop(lambda: file_hf.keys.create("ops", tenant="default", role="viewer")).secret
    other = key.replace(key[-1], "A" if key[-1] != "A" else "B")
    headers = {"authorization": f"Bearer {other}", "prefer": "wait=5"}
    assert start(closed, "d-1", headers=headers)[0] == 401
    assert start(closed, "d-1", headers=headers | {"authorization": f"Bearer {key}"})[0] == 403
    assert [row for row in file_hf.meter.report().rows if row.purpose == "worker"] == []


def test_a_bulk_job_is_carried_out(file_hf: Holdfast) -> None:
    handler = aws_lambda.api(served(file_hf), options=FAST)
    start(handler, "d-1")
    job = {"action": "cancel", "everything": True}
    status, body, _ = call(handler, "POST", "/v1/bulk", job)
    assert status == 202
    assert call(handler, "GET", f"/v1/bulk/{body['id']}")[1]["status"] == "finished"
    assert call(handler, "GET", "/v1/runs/d-1")[1]["status"] == "cancelled"


def test_a_stream_is_not_possible_here(file_hf: Holdfast) -> None:
    handler = aws_lambda.api(served(file_hf), run_seconds=0)
    start(handler, "d-1")
    headers = {"accept": "text/event-stream"}
    began = time.monotonic()
    status, body, answer = call(handler, "GET", "/v1/runs/d-1/stream", headers=headers)
    assert (status, body["status"], body["code"]) == (501, 501, "not_implemented")
    assert answer["headers"]["content-type"] == "application/problem+json"
    assert time.monotonic() - began < 10


def test_credentials_are_checked_and_hosts_that_are_not_allowed_are_refused(
    file_hf: Holdfast,
) -> None:
    closed = aws_lambda.api(served(file_hf, authentication=True), run_seconds=0)
    assert start(closed, "d-1")[0] == 401
    key = run_in_loop(lambda: file_hf.keys.create("ops", tenant="default", role="operator")).secret
    assert start(closed, "d-1", headers={"authorization": f"Bearer {key}"})[0] == 201
    local = aws_lambda.api(served(file_hf, allowed_hosts=()), run_seconds=0)
    assert start(local, "d-2")[0] == 421, "without authentication only this machine may ask"


def test_a_stage_is_part_of_the_addresses(file_hf: Holdfast) -> None:
    handler = aws_lambda.api(served(file_hf), run_seconds=0, base_path="/holdfast")
    body = {"graph": "documents", "input": {"uri": "x"}, "id": "d-1"}
    status, _, answer = call(handler, "POST", "/holdfast/v1/runs", body)
    assert (status, answer["headers"]["location"]) == (201, "/holdfast/v1/runs/d-1")


def test_a_body_that_is_not_what_it_says_is_refused(file_hf: Holdfast) -> None:
    handler = aws_lambda.api(served(file_hf), run_seconds=0)
    event = event_named("http_api_v2")
    event.update(body="%%%", isBase64Encoded=True)
    answer = handler(event, Invocation())
    assert (answer["statusCode"], json.loads(answer["body"])["detail"]) == (
        400,
        "body must be in base64",
    )
    with pytest.raises(InvalidRequest, match="event must be a request"):
        handler(event_named("schedule"), Invocation())


class Answering:
    """A server with one answer to everything."""

    def __init__(self, hf: Holdfast, answer: Callable[[Any, Any], Awaitable[None]]) -> None:
        self.services = served(hf).services
        self._answer = answer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._answer(receive, send)


@pytest.mark.parametrize(
    ("status", "expected"),
    [(200, "finished"), (303, "finished"), (409, "finished"), (404, "ready"), (500, "ready")],
)
def test_what_an_answer_says_decides_whether_something_is_run(
    file_hf: Holdfast, status: int, expected: str
) -> None:
    async def answer(receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    run_in_loop(lambda: file_hf.start(quick, Document("q"), id="q-1"))
    handler = aws_lambda.api(Answering(file_hf, answer), options=FAST)
    assert call(handler, "POST", "/reviews/r-1")[0] == status
    assert run_in_loop(file_hf.run("q-1").get).status == expected


def test_a_broken_or_silent_application_is_an_answer(file_hf: Holdfast) -> None:
    async def breaks(receive: Any, send: Any) -> None:
        raise RuntimeError("a bug")

    async def is_silent(receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    async def floods(receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": b"x" * 500_000, "more_body": True})
            await asyncio.wait({gone}, timeout=0)

    for answer, status in ((breaks, 500), (is_silent, 503), (floods, 500)):
        handler = aws_lambda.api(Answering(file_hf, answer), run_seconds=0)
        told = handler(event_named("http_api_v2"), Invocation(2.0))
        assert told["statusCode"] == status, answer
        assert json.loads(told["body"])["detail"]


def test_no_log_shows_the_path_of_a_request_that_broke_the_server(
    file_hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks(receive: Any, send: Any) -> None:
        raise RuntimeError("a bug")

    handler = aws_lambda.api(Answering(file_hf, breaks), run_seconds=0)
    handler({**event_named("http_api_v2"), "rawPath": "/r/v1.token"}, Invocation(2.0))
    assert "a bug" in caplog.text
    assert "v1.token" not in caplog.text


def test_an_answer_is_kept_if_what_is_due_cannot_be_run(
    file_hf: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handler = aws_lambda.api(served(file_hf), options=FAST)

    async def refuse(self: object) -> None:
        raise StoreUnusable("the table may only be read")

    monkeypatch.setattr("holdfast.engine.worker.worker.Worker.start", refuse)
    with caplog.at_level(logging.WARNING):
        assert start(handler, "d-1")[0] == 201
        assert start(handler, "d-2", headers={"Prefer": "wait=1"})[0] == 201
    assert "what is due was not run: the table may only be read" in caplog.text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run_seconds", -1),
        ("run_seconds", 0.5),
        ("run_seconds", 60),
        ("run_seconds", "5"),
        ("base_path", "x"),
        ("base_path", "/x/"),
        ("base_path", None),
    ],
)
def test_wrong_arguments_are_refused(file_hf: Holdfast, field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"{field} must") as caught:
        aws_lambda.api(served(file_hf), **{field: value})
    assert caught.value.field == field


def test_an_app_that_is_no_server_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"app must be what holdfast.server.asgi returns"):
        aws_lambda.api(documents)  # pyright: ignore[reportArgumentType]
