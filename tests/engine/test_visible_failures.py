"""Failures show themselves: in the log, in `RunFailed`, and in what a crash loop says."""

from __future__ import annotations

import asyncio
import traceback
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Holdfast, Retry, tool
from holdfast.errors import CallFailed, RunFailed, RunQuarantined
from tests.engine.support import House, kill

FILE = __file__
SOURCE = Path(FILE).read_text().splitlines()
LEASE_SECONDS = 60


@tool(retry=Retry(attempts=2, backoff=1, jitter=0))
async def fetch(number: int) -> int:
    raise ConnectionError("refused")  # of the tool


async def read() -> None:
    raise ConnectionError("refused")  # of the function


def line_of(code: str) -> str:
    """Return ``file:line`` of the only line that ends with this code."""
    (found,) = [n for n, line in enumerate(SOURCE, 1) if line.endswith(code)]
    return f"{FILE}:{found}"


def messages(caplog: pytest.LogCaptureFixture, level: str = "") -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if level in ("", record.levelname) and record.name.startswith("holdfast")
    ]


def graph_of(function: Any, name: str = "orders", **options: Any) -> Graph:
    graph = Graph(name, dict)
    graph.node(name="charge", **options)(function)
    return graph


async def test_each_failed_attempt_is_logged_once_with_the_users_frames(
    house: House, hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    async def charge(state: Any) -> None:
        raise ValueError("a\x1b[31mred\nerror")  # of the node

    graph = graph_of(charge, retry=Retry(attempts=2, backoff=1, jitter=0))
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42", tenant="acme")
        await house.clock.asleep(4)
        house.clock.advance(1)
        await house.quiet(worker)
        with pytest.raises(RunFailed):
            await run.result(timeout=60)
    place = line_of("# of the node")
    (warning,), (error,) = messages(caplog, "WARNING"), messages(caplog, "ERROR")
    assert warning.splitlines()[0] == (
        "run doc-42 of tenant acme: node 'charge' of graph 'orders' failed in attempt 1 of 2 "
        f"at {place} and is attempted again in 1.0 seconds: ValueError: a\\x1b[31mred\\nerror"
    )
    assert error.splitlines()[0] == (
        "run doc-42 of tenant acme: the run has failed: node 'charge' of graph 'orders' failed in "
        f"attempt 2 of 2 at {place}: ValueError: a\\x1b[31mred\\nerror"
    )
    for shown in (warning, error):
        first, *frames = shown.splitlines()[1:]
        assert first == "  Traceback (most recent call last):"
        assert frames[0].startswith(f'    File "{FILE}", line ')
        assert "src/holdfast" not in shown
        assert all(line.startswith("  ") for line in frames)
    assert len(messages(caplog)) == 2


async def test_a_failed_call_is_logged_and_the_node_does_not_repeat_its_trace(
    house: House, hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    async def charge(state: Any, ctx: Context) -> None:
        await ctx.call(fetch, 1)

    graph = graph_of(charge)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.clock.asleep(4)
        house.clock.advance(1)
        await house.quiet(worker)
        with pytest.raises(RunFailed) as failed:
            await run.result(timeout=60)
    again, over, ended = messages(caplog)
    told = "run doc-42 of tenant default: call 'fetch' of node 'charge' failed in attempt"
    place = line_of("# of the tool")
    raised = "ConnectionError: refused\n"
    assert again.startswith(f"{told} 1 of 2 at {place} and is made again in 1.0 seconds: {raised}")
    assert over.startswith(f"{told} 2 of 2 at {place} and is not made again: {raised}")
    assert "# of the tool" in again
    assert "# of the tool" in over
    assert "src/holdfast" not in again + over
    assert ended.count("\n") == 0
    assert f"at {line_of('await ctx.call(fetch, 1)')}: CallFailed: 'fetch' failed: Conn" in ended
    # The trace of the run says both, where the node called and where the tool raised.
    assert failed.value.trace.index("await ctx.call(fetch, 1)") < failed.value.trace.index(
        "# of the tool"
    )


async def test_a_caught_failure_of_a_call_names_the_call_and_its_line(
    house: House, hf: Holdfast
) -> None:
    caught: list[CallFailed] = []

    async def charge(state: Any, ctx: Context) -> None:
        try:
            await ctx.call(read)
        except CallFailed as failed:
            caught.append(failed)

    graph = graph_of(charge)
    async with house.worker(hf, graph):
        await (await hf.start(graph)).result(timeout=60)
    (failed,) = caught
    shown = "".join(traceback.format_exception(failed))
    assert "Where call 'read' failed:\n" in shown
    assert "# of the function" in shown


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "other-process"])
async def test_a_failed_run_names_node_and_line_and_carries_the_trace_as_a_note(
    house: House, hf: Holdfast, elsewhere: bool
) -> None:
    async def charge(state: Any) -> None:
        raise KeyError("sku")  # of the run

    graph = graph_of(charge)
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        if elsewhere:
            with pytest.raises(RunFailed):
                await run.result(timeout=60)
            run = house.open().run("doc-42")
        with pytest.raises(RunFailed) as caught:
            await run.result(timeout=60)
    failed = caught.value
    place = line_of("# of the run")
    assert str(failed) == f"run 'doc-42' failed at node 'charge' ({place}): KeyError: 'sku'"
    assert (failed.node, failed.kind, failed.reason) == ("charge", "KeyError", "'sku'")
    shown = "".join(traceback.format_exception(failed))
    assert "\nWhere run 'doc-42' failed:\n  Traceback (most recent call last):\n    File " in shown
    assert 'raise KeyError("sku")' in shown
    assert 'raise KeyError("sku")' in failed.trace
    assert "src/holdfast" not in failed.trace


def pages_graph(**options: Any) -> Graph:
    """Return a graph whose second branch fails."""
    graph = Graph("pages", dict)

    @graph.node
    async def split(state: Any) -> Any:
        return {"pages": [1, 2]}

    @graph.node(writes=[])
    async def read(state: Any) -> None:
        if state["page"] == 2:
            raise ValueError("page 2")

    @graph.node
    async def join(state: Any) -> None: ...

    graph.each(split, read, over="pages", into="page", join=join, **options)
    return graph


async def test_a_run_that_fails_in_a_branch_names_the_node_of_the_branch(
    house: House, hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    graph = pages_graph()
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        with pytest.raises(RunFailed) as caught:
            await run.result(timeout=60)
        with pytest.raises(RunFailed) as read_back:
            await house.open().run("doc-42").result(timeout=60)
    assert caught.value.node == read_back.value.node == "read"
    (error,) = messages(caplog)
    assert "the run has failed: node 'read' of graph 'pages' failed in branch 0.1 at " in error


async def test_a_branch_that_fails_and_is_spared_is_a_warning(
    house: House, hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    graph = pages_graph(on_failure="spare")
    async with house.worker(hf, graph):
        await (await hf.start(graph, id="doc-42")).result(timeout=60)
    (warning,) = messages(caplog, "WARNING")
    assert "branch 0.1 has failed: node 'read' of graph 'pages' failed in branch 0.1 at" in warning


async def test_an_item_of_a_map_that_fails_is_named_in_the_log(
    house: House, hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    graph = Graph("pages", dict)

    @graph.item
    async def read_page(index: int) -> int:
        if index == 17:
            raise ValueError("torn")  # of the item
        return index

    @graph.node
    async def begin(state: Any, ctx: Context) -> Any:
        return {"read": (await ctx.map(read_page, 20, chunk=5, tolerate=1)).succeeded}

    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        assert (await run.result(timeout=60))["read"] == 19
    (warning,) = messages(caplog, "WARNING")
    assert (
        "node 'read_page' of graph 'pages' failed for item 17 of map '0.1' of run 'doc-42'"
    ) in warning
    assert "branch" not in warning


async def test_a_parent_gets_node_and_trace_of_its_child(house: House, hf: Holdfast) -> None:
    async def broken(state: Any) -> None:
        raise ValueError("out of paper")  # of the child

    child = graph_of(broken, "printing")
    caught: list[RunFailed] = []

    async def charge(state: Any, ctx: Context) -> None:
        try:
            await ctx.run(child, id="print")
        except RunFailed as failed:
            caught.append(failed)

    graph = graph_of(charge)
    async with house.worker(hf, graph, child):
        await (await hf.start(graph)).result(timeout=60)
    (failed,) = caught
    assert failed.node == "charge"
    assert f"failed at node 'charge' ({line_of('# of the child')}): ValueError" in str(failed)
    assert "# of the child" in "".join(traceback.format_exception(failed))


async def test_an_error_in_the_result_of_a_node_is_logged_without_engine_frames(
    house: House, hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    async def charge(state: Any) -> Any:
        return 7

    graph = graph_of(charge)
    async with house.worker(hf, graph):
        run = await hf.start(graph)
        with pytest.raises(RunFailed) as caught:
            await run.result(timeout=60)
    (error,) = messages(caplog)
    assert "\n" not in error
    assert "InvalidResult" in error
    assert not hasattr(caught.value, "__notes__")  # it would only repeat the message


async def test_a_crash_loop_names_its_node_each_time_and_at_the_end(
    house: House, hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    entered = asyncio.Event()

    async def deadly(state: Any) -> None:
        entered.set()
        await asyncio.Event().wait()

    graph = graph_of(deadly)
    run = await hf.start(graph, id="doc-42")
    for _ in range(2):
        worker = hf.worker([graph], resumes_max=2)
        await worker.start()
        async with asyncio.timeout(60):
            await entered.wait()
        entered.clear()
        kill(worker)
        await asyncio.wait(worker.drivers._tasks.values())
        house.clock.advance(LEASE_SECONDS + 1)
    async with hf.worker([graph], resumes_max=2) as worker:
        await house.quiet(worker)
        with pytest.raises(RunQuarantined) as caught:
            await run.result(timeout=60)
    told = "2 workers in a row were lost at node 'charge', and the run made no progress"
    assert str(caught.value) == f"run 'doc-42' is quarantined at node 'charge': CrashLoop: {told}"
    assert caught.value.node == "charge"
    (lost,) = [line for line in messages(caplog, "WARNING") if "was lost" in line]
    assert lost == (
        "run doc-42 of tenant default: its worker was lost at node 'charge'; after 2 in a row "
        "without progress the run is quarantined, this is number 1"
    )
    assert messages(caplog, "ERROR") == [
        f"run doc-42 of tenant default is quarantined at node 'charge': CrashLoop: {told}"
    ]


async def test_a_result_that_cannot_be_stored_has_no_place_in_a_library(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    async def charge(state: Any) -> Any:
        return {"x": object()}

    graph = graph_of(charge)
    async with hf.worker([graph]):
        run = await hf.start(graph, id="doc-42")
        with pytest.raises(RunFailed) as caught:
            await run.result(timeout=60)
    told = "InvalidResult: the result does not fit the state: x: it cannot be stored: "
    told += "an object has no durable form"
    assert str(caught.value) == f"run 'doc-42' failed at node 'charge': {told}"
    assert not hasattr(caught.value, "__notes__")
    assert messages(caplog, "ERROR") == [
        "run doc-42 of tenant default: the run has failed: node 'charge' of graph 'orders' failed: "
        f"{told}"
    ]


@tool
async def add(first: int, second: int) -> int:
    return first + second


@tool
def subtract(first: int, second: int) -> int:
    return first - second


@tool
async def confused(first: int) -> int:
    return len(first)  # type: ignore[arg-type] # of the confused tool


@pytest.mark.parametrize(
    ("function", "arguments", "told"),
    [
        (add, (3, 4, 5), "too many positional arguments"),
        (subtract, (3,), "missing a required argument: 'second'"),
    ],
)
async def test_a_call_with_wrong_arguments_names_the_parameters(
    hf: Holdfast,
    caplog: pytest.LogCaptureFixture,
    function: Any,
    arguments: tuple[int, ...],
    told: str,
) -> None:
    async def charge(state: Any, ctx: Context) -> None:
        await ctx.call(function, *arguments)

    graph = graph_of(charge)
    async with hf.worker([graph]):
        run = await hf.start(graph, id="doc-42")
        with pytest.raises(RunFailed) as caught:
            await run.result(timeout=60)
    told = f"the arguments do not fit the parameters of tool {function.name!r}: {told}; "
    told += "it takes first, second"
    assert f"InvalidRequest: {told}" in str(caught.value)
    assert messages(caplog, "WARNING")[0] == (
        f"run doc-42 of tenant default: call {function.name!r} of node 'charge' failed "
        f"and is not made again: InvalidRequest: {told}"
    )


async def test_a_type_error_within_a_tool_stays_what_it_is(hf: Holdfast) -> None:
    async def charge(state: Any, ctx: Context) -> None:
        await ctx.call(confused, 3)

    graph = graph_of(charge)
    async with hf.worker([graph]):
        run = await hf.start(graph, id="doc-42")
        with pytest.raises(RunFailed, match="'confused' failed: TypeError: object of type") as got:
            await run.result(timeout=60)
    assert "of the confused tool" in got.value.trace
