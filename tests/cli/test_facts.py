"""What ``run show`` and ``run history`` say in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.cli.facts import facts_of
from holdfast.cli.targets import load_graph
from holdfast.model.run import Run
from holdfast.sync import Holdfast as Blocking
from tests.cli.conftest import Holdfast

URL = "sqlite:///runs.db"
DEADLINE_SECONDS = 60

FORKS = """
from holdfast import Graph

forking = Graph("forking", dict)


@forking.node
async def begin(state):
    return {"pages": [1, 2, 3]}


@forking.node(writes=["a"])
async def left(state):
    return {"a": 1}


@forking.node(writes=["b"])
async def right(state):
    return {"b": 1}


@forking.node
async def middle(state): ...


@forking.node(writes=[])
async def read(state): ...


@forking.node
async def end(state): ...


forking.fork(begin, [left, right], join=middle)
forking.each(middle, read, over="pages", into="page", join=end)
"""


def row_after(target: str, input: Any = None, **options: Any) -> Run:
    """Return the row of the run ``a``, after a worker ran it to its end."""
    graph = load_graph(target)
    with Blocking(URL) as hf, hf.worker([graph], poll=0.01):
        run = hf.start(graph, input, id="a", **options)
        run.result(timeout=DEADLINE_SECONDS)
        return run.get()


def test_a_history_says_into_what_a_run_forks(holdfast: Holdfast, folder: Path) -> None:
    (folder / "forks.py").write_text(FORKS)
    row_after("forks:forking")
    lines = holdfast("run", "history", "a").stdout.splitlines()
    forks = [line.partition(" fork=")[2] for line in lines if " fork=" in line]
    assert forks == ["2 branches at left, right", "3 items of pages at read"]
    assert not [line for line in lines if " ops=" in line]


def test_counts_are_in_the_singular_where_there_is_one(holdfast: Holdfast) -> None:
    row = row_after("flows:counting", {"number": 1})
    facts = dict(facts_of(row))
    assert facts["used"].startswith("1 node, ")
    assert "1 record," in facts["journal"]
    many = msgspec.structs.replace(row, nodes_run=1_000, journal_records=2)
    facts = dict(facts_of(many))
    assert facts["used"].startswith("1,000 nodes, ")
    assert "2 records," in facts["journal"]


def test_node_and_counts_of_a_run_with_an_owner_are_said_to_be_older(holdfast: Holdfast) -> None:
    row = row_after("flows:counting", {"number": 1})
    facts = dict(facts_of(row))
    owned = dict(facts_of(msgspec.structs.replace(row, owner="w")))
    assert "pause" not in facts["node"] + facts["used"]
    for name in ("node", "used"):
        assert owned[name] == f"{facts[name]}, as of its start or last pause"


@pytest.mark.parametrize("left", [0, 2])
def test_retries_are_named_only_if_some_are_left(holdfast: Holdfast, left: int) -> None:
    row = msgspec.structs.replace(row_after("flows:counting", {"number": 1}), retries_left=left)
    assert dict(facts_of(row)).get("retries left") == (str(left) if left else None)
