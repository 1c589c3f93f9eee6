"""Workflows on the command line: they are started, served and shown as graphs are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from holdfast.cli.targets import load_graph, load_graphs
from holdfast.sync import Holdfast as Blocking
from tests.cli.conftest import Holdfast
from tests.cli.test_run import URL, until

WORKFLOWS = """
import dataclasses

from holdfast import Context, signal, workflow


@dataclasses.dataclass
class Order:
    number: int
    total: float = 1.5


@dataclasses.dataclass
class Receipt:
    order: int
    paid: str


def charge(number: int) -> str:
    return f"paid {number}"


@workflow(signals=[signal("approved", bool)])
async def approve(order: Order, ctx: Context) -> Receipt:
    paid = await ctx.call(charge, order.number)
    await ctx.wait(signal("approved"))
    return Receipt(order.number, paid)


@workflow
def greet(name: str) -> str:
    return f"Hello {name}"


@workflow
async def nightly(ctx: Context) -> None:
    return None
"""


@pytest.fixture(autouse=True)
def _workflows(folder: Path) -> None:
    (folder / "orders.py").write_text(WORKFLOWS)


def test_targets_name_workflows_as_they_name_graphs() -> None:
    assert [each.name for each in load_graphs(["orders"])] == ["approve", "greet", "nightly"]
    assert load_graph("orders:greet").name == "greet"


def test_a_workflow_is_started_and_shown(holdfast: Holdfast) -> None:
    started = holdfast("run", "start", "orders:approve", '{"number": 4}', "--id", "a")
    assert started.stdout == "a\n", started.output
    with Blocking(URL) as hf, hf.worker(load_graphs(["orders"]), poll=0.01):
        until(hf.run("a"), "waiting")
        waiting = json.loads(holdfast("run", "show", "a", "--state", "--input", "--json").stdout)
        assert waiting["input"] == {"number": 4, "total": 1.5}
        assert waiting["state"] == {"input": {"number": 4, "total": 1.5}}
        assert holdfast("run", "signal", "a", "approved", "true").exit_code == 0
        hf.run("a").result(timeout=60)
    shown = holdfast("run", "show", "a").stdout
    assert re.search(r'^result +{"order":4,"paid":"paid 4"}$', shown, re.MULTILINE)
    result = {"order": 4, "paid": "paid 4"}
    assert json.loads(holdfast("run", "show", "a", "--json").stdout)["result"] == result
    state = json.loads(holdfast("run", "show", "a", "--state", "--json").stdout)["state"]
    assert state == {"input": {"number": 4, "total": 1.5}, "result": result}
    history = holdfast("run", "history", "a").stdout
    assert re.search(r'call +approve +visit=0 call=charge#1 arguments={"number":4}', history)


def test_inputs_and_results_are_any_json(holdfast: Holdfast) -> None:
    with Blocking(URL) as hf, hf.worker(load_graphs(["orders"]), poll=0.01):
        done = holdfast("run", "start", "orders:greet", '"Ann"', "--id", "g", "--wait")
        assert done.stdout == '"Hello Ann"\n', done.output
        for given in ((), ("{}",), ("null",)):
            done = holdfast("run", "start", "orders:nightly", *given, "--wait")
            assert done.stdout == "null\n", done.output
    assert json.loads(holdfast("run", "show", "g", "--json").stdout)["result"] == "Hello Ann"


def test_an_input_that_does_not_fit_is_refused(holdfast: Holdfast) -> None:
    for given in ('{"nummer": 4}', "4", "null", "[]"):
        done = holdfast("run", "start", "orders:approve", given)
        assert (done.exit_code, "[invalid_input]" in done.stderr) == (1, True), done.output
    missing = holdfast("run", "start", "orders:approve").stderr
    assert "no input was given; workflow 'approve' takes an Order" in missing
    assert "Expected `str`" in holdfast("run", "start", "orders:greet", "5").stderr
