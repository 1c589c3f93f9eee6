"""Invocations of the handlers: what they start, run and release, and what a kill leaves."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest

from holdfast import Context, Graph, Holdfast, Run, WorkerOptions
from holdfast.errors import InvalidRequest
from holdfast.integrations import aws_lambda
from holdfast.integrations.aws_lambda.invocation import run_in_loop
from tests.integrations.lambda_calls import (
    FAST,
    Document,
    Invocation,
    documents,
    due_record,
    event_named,
    matches,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["sqlite", "moto"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/runs.db"
    else:
        server = request.getfixturevalue("moto_server")
        url = f"dynamodb://{tmp_path.name}?region=us-east-1&endpoint={server}"
        url += f"&bucket={tmp_path.name.replace('_', '-')}&bucket_endpoint={server}"
    opened = Holdfast(url)
    run_in_loop(opened.create)
    yield opened
    run_in_loop(opened.close)


@pytest.fixture
def file_hf(tmp_path: Path) -> Iterator[Holdfast]:
    opened = Holdfast(f"sqlite:///{tmp_path}/runs.db")
    yield opened
    run_in_loop(opened.close)


def uploads(hf: Holdfast, **options: Any) -> Callable[[Any], Any]:
    handler = aws_lambda.s3_trigger(
        hf, documents, input_of=lambda uploaded: Document(uploaded.uri), options=FAST, **options
    )
    return lambda event: handler(event, Invocation())


def runs_of(hf: Holdfast) -> list[Run]:
    async def read() -> list[Run]:
        return [await hf.run(entry.id).get() for entry in (await hf.list()).runs]

    return run_in_loop(read)


def start(hf: Holdfast, id: str, graph: Graph[Document] = documents) -> None:
    run_in_loop(lambda: hf.start(graph, Document(id), id=id))


# --- uploads --------------------------------------------------------------------------------------


def test_each_upload_starts_a_run_once_and_the_run_is_driven(hf: Holdfast) -> None:
    upload = uploads(hf)
    first = upload(event_named("s3_put"))
    assert (first["started"], first["repeated"]) == (2, 0)
    assert {run.status for run in runs_of(hf)} == {"waiting"}, "they wait for an approval"
    assert {run.owner for run in runs_of(hf)} == {None}, "and no worker holds them"

    again = upload(event_named("s3_put"))
    assert (again["started"], again["repeated"]) == (0, 2)
    repeated = upload(event_named("event_bridge_object_created"))
    assert (repeated["started"], repeated["repeated"]) == (0, 1), "the id is that of the object"
    assert len(runs_of(hf)) == 2


def test_a_queue_is_told_which_messages_failed(file_hf: Holdfast) -> None:
    told = uploads(file_hf)(event_named("sqs_s3"))
    failed = [{"itemIdentifier": "2e1424d4-f796-459a-8184-9c92662be6da"}]
    assert told == {"batchItemFailures": failed}
    assert len(runs_of(file_hf)) == 2


def test_an_upload_without_a_queue_fails_after_the_others_were_started(file_hf: Holdfast) -> None:
    def input_of(uploaded: aws_lambda.S3Object) -> Document:
        if "oven" in uploaded.key:
            raise ValueError("ovens are not insured")
        return Document(uploaded.uri)

    handler = aws_lambda.s3_trigger(file_hf, documents, input_of=input_of, options=FAST)
    with pytest.raises(ExceptionGroup, match="not all of 2 runs were started") as caught:
        handler(event_named("s3_put"), Invocation())
    assert [str(each) for each in caught.value.exceptions] == ["ovens are not insured"]
    assert [run.status for run in runs_of(file_hf)] == ["waiting"]


def test_ids_tenants_labels_and_awaited_inputs_are_those_of_the_caller(file_hf: Holdfast) -> None:
    async def input_of(uploaded: aws_lambda.S3Object) -> Document:
        return Document(uploaded.uri)

    handler = aws_lambda.s3_trigger(
        file_hf,
        documents,
        input_of=input_of,
        id_of=lambda uploaded: f"size-{uploaded.size}",
        tenant_of=lambda uploaded: uploaded.key.split("/")[0],
        labels_of=lambda uploaded: {"bucket": uploaded.bucket},
        options=FAST,
    )
    handler(event_named("event_bridge_object_created"), Invocation())
    run = run_in_loop(lambda: file_hf.run("size-84213", tenant="incoming").get())
    assert run.status == "waiting"
    assert run.labels == {"bucket": "warranty-uploads"}


def test_an_input_that_changes_starts_nothing_twice(file_hf: Holdfast) -> None:
    numbers = iter(range(10))
    handler = aws_lambda.s3_trigger(
        file_hf, documents, input_of=lambda _: Document(f"draft {next(numbers)}"), options=FAST
    )
    handler(event_named("event_bridge_object_created"), Invocation())
    told = handler(event_named("event_bridge_object_created"), Invocation())
    assert (told["started"], told["repeated"]) == (0, 1)


def test_an_upload_is_started_even_if_no_time_is_left_to_run_it(file_hf: Holdfast) -> None:
    handler = aws_lambda.s3_trigger(
        file_hf, documents, input_of=lambda uploaded: Document(uploaded.uri)
    )
    told = handler(event_named("event_bridge_object_created"), Invocation(1.9))
    assert (told["started"], told["runs"]) == (1, {})
    assert [run.status for run in runs_of(file_hf)] == ["ready"]


def test_a_start_that_did_not_end_in_time_is_repeated_by_the_queue(file_hf: Holdfast) -> None:
    async def never(uploaded: aws_lambda.S3Object) -> Document:
        await asyncio.Event().wait()
        return Document(uploaded.uri)

    handler = aws_lambda.s3_trigger(file_hf, documents, input_of=never, options=FAST)
    event = event_named("sqs_s3")
    event["Records"] = event["Records"][:1]
    told = handler(event, Invocation(3.0))
    assert [each["itemIdentifier"][:8] for each in told["batchItemFailures"]] == ["059f36b4"]
    with pytest.raises(ExceptionGroup) as caught:
        handler(event_named("event_bridge_object_created"), Invocation(3.0))
    assert isinstance(caught.value.exceptions[0], TimeoutError)


def test_a_start_goes_on_after_the_worker_has_stopped_claiming(file_hf: Holdfast) -> None:
    async def late(uploaded: aws_lambda.S3Object) -> Document:
        (worker,) = file_hf._workers._workers
        await worker.stopped.wait()
        return Document(uploaded.uri)

    handler = aws_lambda.s3_trigger(file_hf, documents, input_of=late, options=FAST)
    told = handler(event_named("event_bridge_object_created"), Invocation(4.0))
    assert told["started"] == 1
    assert [run.status for run in runs_of(file_hf)] == ["ready"]


# --- what is due ----------------------------------------------------------------------------------


def test_the_schedule_runs_what_is_due_and_ends_when_nothing_is(hf: Holdfast) -> None:
    start(hf, "d-1")
    handler = aws_lambda.schedule_trigger(hf, [documents], options=FAST)
    assert handler(event_named("schedule"), Invocation())["claimed"] == 1
    assert run_in_loop(hf.run("d-1").get).status == "waiting"
    began = time.monotonic()
    assert handler(event_named("schedule"), Invocation()) == {}
    assert time.monotonic() - began < 10
    assert run_in_loop(hf.fleet.workers) == []


def test_a_record_of_the_stream_runs_what_is_due(file_hf: Holdfast) -> None:
    start(file_hf, "d-1")
    handler = aws_lambda.stream_trigger(file_hf, [documents], options=FAST)
    for event in (None, {}, event_named("dynamodb_stream"), event_named("schedule")):
        assert handler(event, Invocation()) == {"batchItemFailures": []}
    assert [run.status for run in runs_of(file_hf)] == ["ready"], "none of them names its graph"

    later_ms = file_hf.clock.now_ms() + 3_600_000
    handler({"Records": [due_record(documents, later_ms)]}, Invocation())
    assert [run.status for run in runs_of(file_hf)] == ["ready"], "a timer for later is not due"

    now_ms = file_hf.clock.now_ms()
    told = handler({"Records": [{"poison": 1}, due_record(documents, now_ms)]}, Invocation())
    assert told == {"batchItemFailures": []}
    assert [run.status for run in runs_of(file_hf)] == ["waiting"]


def test_the_stream_of_the_table_tells_that_a_run_is_due(moto_server: str, tmp_path: Path) -> None:
    """The records are those of a table, not of a file: their names are the real ones."""
    url = f"dynamodb://{tmp_path.name}?region=us-east-1&endpoint={moto_server}"
    hf = Holdfast(f"{url}&bucket={tmp_path.name.replace('_', '-')}&bucket_endpoint={moto_server}")
    (criteria,) = aws_lambda.STREAM_FILTER["Filters"]
    handler = aws_lambda.stream_trigger(hf, [documents], options=FAST)
    try:
        run_in_loop(hf.create)
        start(hf, "d-1")
        records = stream_records(moto_server, tmp_path.name)
        passed = [each for each in records if matches(json.loads(criteria["Pattern"]), each)]
        assert len(passed) == 1
        assert len(records) > 1
        handler({"Records": passed}, Invocation())
        assert run_in_loop(hf.run("d-1").get).status == "waiting"

        # A pause is a row that is due at its expiry: that invokes the function, and runs nothing.
        records = stream_records(moto_server, tmp_path.name)
        paused = [each for each in records if matches(json.loads(criteria["Pattern"]), each)][1:]
        assert paused
        before = hf.meter.report().calls
        assert handler({"Records": paused}, Invocation()) == {"batchItemFailures": []}
        assert hf.meter.report().calls == before
    finally:
        run_in_loop(hf.close)


def stream_records(endpoint: str, table: str) -> list[Any]:
    """Return the records of a table's stream as Lambda passes them on."""
    client = boto3.client("dynamodbstreams", endpoint_url=endpoint)
    (stream,) = client.list_streams(TableName=table)["Streams"]
    described = client.describe_stream(StreamArn=stream["StreamArn"])["StreamDescription"]
    found: list[Any] = []
    for shard in described["Shards"]:
        iterator = client.get_shard_iterator(
            StreamArn=stream["StreamArn"],
            ShardId=shard["ShardId"],
            ShardIteratorType="TRIM_HORIZON",
        )["ShardIterator"]
        found += client.get_records(ShardIterator=iterator)["Records"]
    return json.loads(json.dumps(found, default=str))


def test_a_run_that_is_due_in_a_moment_is_waited_for(file_hf: Holdfast) -> None:
    due_ms = file_hf.clock.now_ms() + 1_500
    moment = datetime.fromtimestamp(due_ms / 1000, UTC)
    run_in_loop(lambda: file_hf.start(documents, Document("x"), start_at=moment))
    handler = aws_lambda.stream_trigger(file_hf, [documents], options=FAST)
    handler({"Records": [due_record(documents, due_ms)]}, Invocation())
    assert [run.node for run in runs_of(file_hf)] == ["approve"]


def slow_graph(began: threading.Event) -> Graph[Document]:
    graph = Graph("slow", Document)

    @graph.node
    async def work(document: Document, ctx: Context) -> Document:
        began.set()
        await asyncio.Event().wait()
        return document

    return graph


def test_a_node_that_outlasts_the_invocation_is_released_in_time(file_hf: Holdfast) -> None:
    graph = slow_graph(began := threading.Event())
    start(file_hf, "d-1", graph)
    invocation = Invocation(4.0)
    counts = aws_lambda.schedule_trigger(file_hf, [graph], options=FAST)({}, invocation)
    assert began.is_set()
    assert invocation.get_remaining_time_in_millis() > 0
    assert counts["claimed"] == 1
    run = run_in_loop(file_hf.run("d-1").get)
    assert (run.status, run.owner) == ("ready", None), "others can take it at once"
    # Not after the lease: the next invocation claims it immediately.
    began.clear()
    aws_lambda.schedule_trigger(file_hf, [graph], options=FAST)({}, Invocation(3.0))
    assert began.is_set()


def test_a_node_that_cannot_be_stopped_does_not_outlive_the_invocation(file_hf: Holdfast) -> None:
    graph, free = Graph("stubborn", Document), threading.Event()

    @graph.node
    def work(document: Document, ctx: Context) -> Document:
        free.wait(30)
        return document

    start(file_hf, "d-1", graph)
    invocation = Invocation(4.0)
    try:
        aws_lambda.schedule_trigger(file_hf, [graph], options=FAST)({}, invocation)
        assert invocation.get_remaining_time_in_millis() > 0
    finally:
        free.set()


def test_what_does_not_end_is_cut_off_in_time(
    file_hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    class Endless:
        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *error: object) -> None:
            await asyncio.Event().wait()

    invocation = Invocation(3.0)
    options = replace(FAST, beside=[Endless])
    aws_lambda.schedule_trigger(file_hf, [documents], options=options)({}, invocation)
    assert invocation.get_remaining_time_in_millis() > 0
    assert "the worker did not stop within" in caplog.text


def test_invocations_do_not_pile_up_workers(file_hf: Holdfast) -> None:
    handler = aws_lambda.schedule_trigger(
        file_hf, [documents], options=replace(FAST, idle_seconds=0.0)
    )
    for _ in range(3):
        handler({}, Invocation())
    assert len(file_hf._workers._workers) == 1
    assert [each for each in threading.enumerate() if "watchdog" in each.name] == []


def test_what_runs_beside_the_worker_is_entered_and_left(file_hf: Holdfast) -> None:
    seen: list[str] = []

    class Beside:
        async def __aenter__(self) -> None:
            seen.append("entered")

        async def __aexit__(self, *error: object) -> None:
            seen.append("left")

    options = replace(FAST, beside=[Beside, file_hf.webhooks.deliver])
    aws_lambda.schedule_trigger(file_hf, [documents], options=options)({}, Invocation())
    assert seen == ["entered", "left"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("idle_seconds", -1), ("idle_seconds", "1"), ("worker", {}), ("beside", [7]), ("beside", 7)],
)
def test_wrong_options_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} must be") as caught:
        aws_lambda.LambdaOptions(**{name: value})
    assert caught.value.field == name


@pytest.mark.parametrize("seconds", [-1, "5", float("nan"), float("inf"), True])
def test_wrong_seconds_are_refused(file_hf: Holdfast, seconds: Any) -> None:
    with pytest.raises(InvalidRequest, match="seconds must be a number"):
        run_in_loop(lambda: aws_lambda.run_due(file_hf, [documents], seconds=seconds))


# --- kills ----------------------------------------------------------------------------------------

DIES = """
import os, sys
from holdfast import Graph, Holdfast, WorkerOptions
from holdfast.integrations import aws_lambda
from tests.integrations.lambda_calls import Document, Invocation, event_named

documents = Graph("documents", Document)

@documents.node
async def read(document: Document) -> Document:
    print("reading", document.uri[:21], flush=True)
    os.kill(os.getpid(), 9)

@documents.node
async def approve(document: Document) -> Document:
    return document

documents.route(read, approve)
handler = aws_lambda.s3_trigger(
    Holdfast(sys.argv[1]),
    documents,
    input_of=lambda uploaded: Document(uploaded.uri),
    options=aws_lambda.LambdaOptions(worker=WorkerOptions(lease=1)),
)
handler(event_named("event_bridge_object_created"), Invocation())
"""


def test_another_invocation_goes_on_after_a_kill_in_a_node(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    killed = subprocess.run(
        [sys.executable, "-c", DIES, url], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (killed.returncode, killed.stdout) == (-9, "reading s3://warranty-uploads\n")
    hf = Holdfast(url)
    try:
        (run,) = runs_of(hf)
        assert run.owner is not None, "the dead worker holds it"
        # The next one finds the lease lapsed; until then it looks every quarter of a lease.
        options = replace(FAST, worker=WorkerOptions(lease=1, poll=0.2), idle_seconds=3.0)
        counts = aws_lambda.schedule_trigger(hf, [documents], options=options)({}, Invocation())
        assert counts["taken over"] == 1
        (run,) = runs_of(hf)
        assert (run.status, run.owner) == ("waiting", None)
    finally:
        run_in_loop(hf.close)


def test_a_node_that_ends_the_loop_ends_the_process(tmp_path: Path) -> None:
    program = DIES.replace("os.kill(os.getpid(), 9)", "raise SystemExit(7)")
    url = f"sqlite:///{tmp_path}/runs.db"
    ended = subprocess.run(
        [sys.executable, "-c", program, url], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert "the event loop has ended" in ended.stderr, "Lambda then starts a new process"


def test_the_handlers_need_no_extra() -> None:
    code = "import sys, holdfast.integrations.aws_lambda; print(json.dumps([*sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", f"import json\n{code}"], capture_output=True, text=True, check=True
    )
    assert not {"boto3", "litestar", "httpx", "aiohttp"} & set(json.loads(done.stdout))
