"""Log lines of nodes: they name the run, whatever thread or task they come from."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from holdfast import Context, Graph, Holdfast, RunLogFilter
from holdfast.cli.logs import _JsonFormatter, _TextFormatter  # pyright: ignore[reportPrivateUsage]
from holdfast.log_context import derived_trace_id, log_fields

mine = logging.getLogger("mine")


@dataclass
class Note:
    text: str


class Lines(logging.Handler):
    """Keeps each record as it was formatted when it came."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def lines() -> Lines:
    return Lines(_JsonFormatter())


def noting_graph() -> Graph[Note]:
    graph = Graph("notes", Note)

    async def fetch() -> None:
        mine.warning("in a call")

    @graph.node
    async def async_node(note: Note, ctx: Context) -> Note:
        mine.warning("in a node")
        await ctx.call(fetch)
        await asyncio.gather(*(inner(number) for number in range(2)))
        return note

    async def inner(number: int) -> None:
        mine.warning("in a task")

    @graph.node
    def plain_node(note: Note) -> Note:
        mine.warning("in a thread")
        return replace(note, text="secret result")

    graph.route(async_node, plain_node)
    return graph


async def run_with(handler: logging.Handler, tmp_path: Path) -> None:
    graph = noting_graph()
    mine.addHandler(handler)
    logging.getLogger("holdfast").addHandler(handler)
    try:
        async with Holdfast(f"sqlite:///{tmp_path}/a.db") as hf, hf.worker([graph]):
            await (await hf.start(graph, Note("secret input"), id="n-1", tenant="t")).result()
    finally:
        mine.removeHandler(handler)
        logging.getLogger("holdfast").removeHandler(handler)


async def test_lines_of_nodes_calls_tasks_and_threads_name_the_run(
    lines: Lines, tmp_path: Path
) -> None:
    await run_with(lines, tmp_path)
    told = [json.loads(line) for line in lines.lines if json.loads(line)["logger"] == "mine"]
    assert [(each["message"], each["node"]) for each in told] == [
        ("in a node", "async_node"),
        ("in a call", "async_node"),
        ("in a task", "async_node"),
        ("in a task", "async_node"),
        ("in a thread", "plain_node"),
    ]
    assert {(each["run"], each["tenant"]) for each in told} == {("n-1", "t")}
    assert len({each["trace_id"] for each in told}) == 1
    assert len({each["span_id"] for each in told}) == 2
    assert "secret" not in "".join(lines.lines)


async def test_text_lines_name_the_run_in_front_of_the_message(tmp_path: Path) -> None:
    handler = Lines(_TextFormatter())
    await run_with(handler, tmp_path)
    assert handler.lines[0].endswith(
        "WARNING mine [run n-1 of tenant t, node async_node]: in a node"
    )


async def test_a_filter_adds_the_ids_to_other_formatters(tmp_path: Path) -> None:
    handler = Lines(logging.Formatter("%(run)s %(node)s %(request)s %(message)s"))
    handler.addFilter(RunLogFilter())
    await run_with(handler, tmp_path)
    assert handler.lines[0] == "n-1 async_node - in a node"


def test_outside_of_runs_and_requests_nothing_is_added() -> None:
    assert log_fields() == {}


def test_ids_of_traces_have_the_right_form_and_follow_from_the_run() -> None:
    assert len(bytes.fromhex(derived_trace_id("a"))) == 16
    assert derived_trace_id("a") == derived_trace_id("a") != derived_trace_id("b")


def test_fields_of_other_libraries_do_not_replace_ours() -> None:
    record = logging.LogRecord("other", logging.INFO, "", 0, "hello", (), None)
    record.fields = {"message": "forged", "level": "forged"}
    told = json.loads(_JsonFormatter().format(record))
    assert (told["message"], told["level"]) == ("hello", "info")
