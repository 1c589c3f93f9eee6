"""Spans of runs: one trace for each run, each span once, whatever happens to the processes."""

from __future__ import annotations

import json
import signal as signals
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace import StatusCode

from holdfast import Context, Graph, Holdfast, Retry, agent, signal, tool
from holdfast.engine.kernel.kernel import StoreOutage
from holdfast.errors import InvalidRequest, Throttled
from holdfast.integrations.offline import Offline
from holdfast.integrations.telemetry import OpenTelemetry
from holdfast.model.invocation import ToolCall
from holdfast.server.metrics import ServerMetrics
from holdfast.server.request_log import RequestLog

GO = signal("go", str)


class Traced:
    """A process with telemetry, and the spans that it emitted."""

    def __init__(self, url: str, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=options.pop("sampler", None))
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.hf = Holdfast(url, telemetry=OpenTelemetry(self.provider), **options)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> ReadableSpan:
        (span,) = [each for each in self.spans if each.name == name]
        return span

    def names(self) -> list[str]:
        return sorted(span.name for span in self.spans)


def id_of(span: ReadableSpan) -> int:
    return span.context.span_id


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


@dataclass
class Ask:
    text: str
    answer: str = ""


def url_of(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


async def look_up(text: str) -> str:
    return text.upper()


def asking_graph() -> Graph[Ask]:
    graph = Graph("ask", Ask, models=["small"])

    @graph.node
    async def ask(state: Ask, ctx: Context) -> Ask:
        answer = await ctx.model("small", state.text)
        await ctx.call(look_up, state.text)
        return replace(state, answer=answer.text)

    @graph.node
    async def approve(state: Ask, ctx: Context) -> Ask:
        await ctx.call(look_up, "before")
        return replace(state, answer=await ctx.wait(GO))

    graph.route(ask, approve)
    return graph


async def test_a_run_is_one_trace_with_nodes_calls_and_models(tmp_path: Path) -> None:
    graph = asking_graph()
    traced = Traced(url_of(tmp_path), models={"small": Offline(["a secret answer"])})
    async with traced.hf as hf, hf.worker([graph]):
        run = await hf.start(graph, Ask("a secret question"), id="r-1", session="s-1")
        await run.until("waiting")
    assert traced.names() == [
        "chat offline",
        "execute_tool look_up",
        "execute_tool look_up",
        "invoke_workflow ask",
        "node ask",
    ]
    assert len({span.context.trace_id for span in traced.spans}) == 1
    segment, node, chat = map(traced.named, ("invoke_workflow ask", "node ask", "chat offline"))
    assert parent_of(segment) is None
    assert parent_of(node) == id_of(segment)
    assert parent_of(chat) == id_of(node)
    assert chat.attributes is not None
    assert segment.attributes is not None
    assert segment.attributes["holdfast.run.status"] == "waiting"
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "offline",
        "gen_ai.conversation.id": "s-1",
        "holdfast.run.id": "r-1",
        "holdfast.tenant": "default",
        "holdfast.node": "ask",
    }
    assert expected.items() <= chat.attributes.items()
    assert type(chat.attributes["gen_ai.usage.output_tokens"]) is int
    assert "secret" not in "".join(span.to_json() for span in traced.spans)


async def test_another_process_continues_the_trace_after_a_pause(tmp_path: Path) -> None:
    graph, url = asking_graph(), url_of(tmp_path)
    first = Traced(url, models={"small": Offline(["yes"])})
    async with first.hf as hf, hf.worker([graph]):
        await (await hf.start(graph, Ask("?"), id="r-1")).until("waiting")
    second = Traced(url, models={"small": Offline(["no"])})
    async with second.hf as hf, hf.worker([graph]):
        await hf.run("r-1").signal(GO, "go")
        await hf.run("r-1").result()
    # The calls before the pause are answered from their records: they are not emitted again.
    assert second.names() == ["invoke_workflow ask", "node approve"]
    spans = [*first.spans, *second.spans]
    assert len({span.context.trace_id for span in spans}) == 1
    assert max(Counter(map(id_of, spans)).values()) == 1
    before, after = (each.named("invoke_workflow ask") for each in (first, second))
    assert [link.context.span_id for link in after.links] == [id_of(before)]
    early = [span for span in first.spans if span.name == "execute_tool look_up"]
    assert id_of(second.named("node approve")) in {parent_of(span) for span in early}


async def test_failed_attempts_are_spans_with_errors(tmp_path: Path) -> None:
    graph = Graph("flaky", Ask)
    tries = Counter[str]()

    async def fetch() -> str:
        tries["call"] += 1
        if tries["call"] == 1:
            raise OSError("secret of the service")
        return "fetched"

    @graph.node(retry=Retry(attempts=2, backoff=0.001))
    async def work(state: Ask, ctx: Context) -> Ask:
        caller = ctx.with_options(retry=Retry(attempts=2, backoff=0.001))
        answer = await caller.call(fetch)
        tries["node"] += 1
        if tries["node"] == 1:
            raise ValueError("secret of the node")
        return replace(state, answer=answer)

    traced = Traced(url_of(tmp_path))
    async with traced.hf as hf, hf.worker([graph]):
        await (await hf.start(graph, Ask("?"))).result()
    errors = Counter(
        (span.name.rpartition(".")[2], (span.attributes or {}).get("error.type", ""))
        for span in traced.spans
    )
    assert errors == {
        ("fetch", "OSError"): 1,
        ("fetch", ""): 1,
        ("node work", "ValueError"): 1,
        ("node work", ""): 1,
        ("invoke_workflow flaky", ""): 1,
    }
    failed = [span for span in traced.spans if span.status.status_code is StatusCode.ERROR]
    assert len(failed) == 2
    assert len({id_of(span) for span in traced.spans}) == 5
    assert "secret" not in "".join(span.to_json() for span in traced.spans)


async def test_a_failed_run_ends_its_trace_with_an_error(tmp_path: Path) -> None:
    graph = Graph("broken", Ask)

    @graph.node
    async def work(state: Ask) -> Ask:
        raise ValueError("no")

    traced = Traced(url_of(tmp_path))
    async with traced.hf as hf, hf.worker([graph]):
        run = await hf.start(graph, Ask("?"))
        await run.until("failed")
    segment = traced.named("invoke_workflow broken")
    assert segment.attributes is not None
    assert segment.attributes["error.type"] == "ValueError"
    assert segment.status.status_code is StatusCode.ERROR


async def test_branches_are_spans_of_the_same_segment(tmp_path: Path) -> None:
    graph = Graph("fork", Ask)

    @graph.node
    async def begin(state: Ask) -> Ask:
        return state

    @graph.node(writes=["text"])
    async def left(state: Ask, ctx: Context) -> dict[str, Any]:
        return {"text": await ctx.call(look_up, "l")}

    @graph.node(writes=["answer"])
    async def right(state: Ask, ctx: Context) -> dict[str, Any]:
        return {"answer": await ctx.call(look_up, "r")}

    @graph.node
    async def join(state: Ask) -> Ask:
        return state

    graph.fork(begin, [left, right], join=join)
    traced = Traced(url_of(tmp_path))
    async with traced.hf as hf, hf.worker([graph]):
        await (await hf.start(graph, Ask("?"))).result()
    segment = traced.named("invoke_workflow fork")
    calls = [span for span in traced.spans if span.name == "execute_tool look_up"]
    nodes = {id_of(traced.named(f"node {name}")) for name in ("left", "right")}
    assert {parent_of(span) for span in calls} == nodes
    assert {parent_of(traced.named(f"node {name}")) for name in ("left", "right", "join")} == {
        id_of(segment)
    }


async def test_an_agent_is_a_span_around_its_calls_and_is_not_repeated(tmp_path: Path) -> None:
    graph, url = Graph("helped", Ask, models=["small"]), url_of(tmp_path)
    helper = agent("small", [look_up])

    @graph.node
    async def work(state: Ask, ctx: Context) -> Ask:
        conversation = await helper(ctx, state.text)
        await ctx.wait(GO)
        return replace(state, answer=conversation.text)

    def model() -> Offline:
        return Offline([ToolCall("1", "look_up", {"text": "x"}), "done"])

    first = Traced(url, models={"small": model()})
    async with first.hf as hf, hf.worker([graph]):
        await (await hf.start(graph, Ask("?"), id="r-1")).until("waiting")
    conversation = first.named("invoke_agent small")
    inside = [span.name for span in first.spans if parent_of(span) == id_of(conversation)]
    assert sorted(inside) == ["chat offline", "chat offline", "execute_tool look_up"]
    second = Traced(url, models={"small": model()})
    async with second.hf as hf, hf.worker([graph]):
        await hf.run("r-1").signal(GO, "go")
        await hf.run("r-1").result()
    assert second.names() == ["invoke_workflow helped", "node work"]
    assert parent_of(conversation) == id_of(second.named("node work"))


async def test_the_callers_trace_is_linked_and_clients_nest_in_the_call(tmp_path: Path) -> None:
    graph = Graph("nested", Ask)
    traced = Traced(url_of(tmp_path))
    tracer = traced.provider.get_tracer("client")

    async def fetch() -> str:
        with tracer.start_as_current_span("GET"):
            return "x"

    @graph.node
    async def work(state: Ask, ctx: Context) -> Ask:
        with tracer.start_as_current_span("mine"):
            pass
        return replace(state, answer=await ctx.call(fetch))

    async with traced.hf as hf, hf.worker([graph]):
        with tracer.start_as_current_span("request") as request:
            run = await hf.start(graph, Ask("?"))
        await run.result()
    segment = traced.named("invoke_workflow nested")
    (link,) = segment.links
    assert link.context.span_id == request.get_span_context().span_id
    assert segment.context.trace_id != request.get_span_context().trace_id
    (call,) = [span for span in traced.spans if span.name.startswith("execute_tool")]
    assert parent_of(traced.named("GET")) == id_of(call)
    assert parent_of(traced.named("mine")) == id_of(traced.named("node work"))
    assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.mark.parametrize("number", [8, 9, 10])
async def test_a_start_with_all_labels_does_not_fail_for_its_trace(
    tmp_path: Path, number: int
) -> None:
    graph, traced = asking_graph(), Traced(url_of(tmp_path))
    given = {f"label-{each}": "x" for each in range(number)}
    async with traced.hf as hf:
        with traced.provider.get_tracer("client").start_as_current_span("request"):
            run = await hf.start(graph, Ask("?"), labels=given)
            with pytest.raises(InvalidRequest, match="labels must be"):
                await hf.start(graph, Ask("?"), labels=["x"])  # type: ignore[arg-type]
        assert ("traceparent" in (await run.get()).labels) is (number < 9)


async def test_the_trace_of_a_request_to_the_server_is_linked(tmp_path: Path) -> None:
    graph = Graph("quick", Ask)

    @graph.node
    async def work(state: Ask) -> Ask:
        return state

    traced = Traced(url_of(tmp_path))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await (await traced.hf.start(graph, Ask("?"), id="r-1")).result()

    async with traced.hf as hf, hf.worker([graph]):
        headers = [(b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
        scope = {"type": "http", "method": "POST", "headers": headers}
        await RequestLog(app, ServerMetrics(hf))(scope, None, None)
    (link,) = traced.named("invoke_workflow quick").links
    assert f"{link.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"


async def test_a_run_that_stays_in_memory_has_spans(tmp_path: Path) -> None:
    graph = Graph("quick", Ask)

    @graph.node
    async def work(state: Ask, ctx: Context) -> Ask:
        return replace(state, answer=await ctx.call(look_up, "x"))

    traced = Traced(url_of(tmp_path))
    async with traced.hf as hf, hf.worker([graph]):
        await (await hf.start(graph, Ask("?"), durability="on_pause")).result()
    assert traced.names() == ["execute_tool look_up", "invoke_workflow quick", "node work"]


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, ParentBased(TraceIdRatioBased(0.0))])
async def test_a_sampler_decides_for_the_whole_trace(tmp_path: Path, sampler: Any) -> None:
    graph = asking_graph()
    traced = Traced(url_of(tmp_path), sampler=sampler, models={"small": Offline(["yes"])})
    async with traced.hf as hf, hf.worker([graph]):
        await (await hf.start(graph, Ask("?"))).until("waiting")
    assert traced.spans == ()


async def test_an_exporter_that_fails_does_not_fail_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = asking_graph()
    traced = Traced(url_of(tmp_path), models={"small": Offline(["yes"])})

    def fail(*args: Any) -> None:
        raise RuntimeError("broken")

    traced.exporter.export = fail  # type: ignore[method-assign]
    async with traced.hf as hf, hf.worker([graph]):
        await (await hf.start(graph, Ask("?"))).until("waiting")


def test_a_provider_without_the_sdk_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="must be a TracerProvider of opentelemetry-sdk"):
        OpenTelemetry(trace.NoOpTracerProvider())  # type: ignore[arg-type]


def test_a_killed_process_and_its_successor_emit_recorded_work_once(tmp_path: Path) -> None:
    program, log = Path(__file__).with_name("traced_crash.py"), tmp_path / "spans.jsonl"
    command = [sys.executable, str(program), url_of(tmp_path), str(log)]
    killed = subprocess.run([*command, "die"], capture_output=True, timeout=60, check=False)
    assert killed.returncode == -signals.SIGKILL, killed.stderr
    before = [json.loads(line) for line in log.read_text().splitlines()]
    assert [span["name"] for span in before] == ["execute_tool fetch", "node first"]
    done = subprocess.run([*command, "live"], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    spans = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted(span["name"] for span in spans) == [
        "execute_tool fetch",
        "execute_tool late",
        "invoke_workflow crash",
        "node first",
        "node second",
    ]
    assert len({span["trace"] for span in spans}) == 1
    assert len({span["id"] for span in spans}) == len(spans)


async def test_runs_in_memory_have_traces_of_their_own(tmp_path: Path) -> None:
    graph, waiting = Graph("quick", Ask), Graph("slow", Ask)

    @graph.node
    async def work(state: Ask, ctx: Context) -> Ask:
        return replace(state, answer=await ctx.call(look_up, "x"))

    @waiting.node
    async def wait(state: Ask, ctx: Context) -> Ask:
        await ctx.call(look_up, "x")
        return replace(state, answer=await ctx.wait(GO))

    traced = Traced(url_of(tmp_path))
    async with traced.hf as hf, hf.worker([graph, waiting]):
        for id in ("a", "b"):
            await (await hf.start(graph, Ask("?"), id=id, durability="on_pause")).result()
        run = await hf.start(waiting, Ask("?"), id="c", durability="on_pause")
        await run.signal(GO, "go")
        await run.result()
    traces: dict[str, set[int]] = {}
    for span in traced.spans:
        assert span.attributes is not None
        traces.setdefault(str(span.attributes["holdfast.run.id"]), set()).add(span.context.trace_id)
    assert {id: len(found) for id, found in traces.items()} == {"a": 1, "b": 1, "c": 1}
    assert len(set.union(*traces.values())) == 3
    assert len({id_of(span) for span in traced.spans}) == len(traced.spans)


async def test_a_record_that_was_lost_in_an_outage_is_no_span(tmp_path: Path) -> None:
    graph = Graph("quick", Ask)
    outages = [Throttled("busy")]

    @graph.node
    async def work(state: Ask, ctx: Context) -> Ask:
        answer = await ctx.call(look_up, "x")
        if outages:
            raise StoreOutage(outages.pop())  # the record of the call is only buffered
        return replace(state, answer=answer)

    traced = Traced(url_of(tmp_path))
    async with traced.hf as hf, hf.worker([graph]):
        await (await hf.start(graph, Ask("?"), id="r-1")).result()
    ids = [id_of(span) for span in traced.spans]
    assert len(set(ids)) == len(ids)
    assert traced.names().count("execute_tool look_up") == 1


async def test_calls_of_a_long_node_are_emitted_as_they_become_durable(tmp_path: Path) -> None:
    graph = Graph("quick", Ask)
    emitted = 0

    @tool(at_most_once=True)
    async def book(number: int) -> int:
        return number

    @graph.node
    async def work(state: Ask, ctx: Context) -> Ask:
        nonlocal emitted
        for number in range(20):
            await ctx.call(book, number)
        emitted = len(traced.spans)
        return state

    traced = Traced(url_of(tmp_path))
    async with traced.hf as hf, hf.worker([graph]):
        await (await hf.start(graph, Ask("?"), id="r-1")).result()
    assert emitted >= 10
    assert len({id_of(span) for span in traced.spans}) == len(traced.spans) == 22
