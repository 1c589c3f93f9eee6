"""``holdfast run show --state``, ``--input`` and ``run waits``: what a run holds."""

from __future__ import annotations

import json
import re
from pathlib import Path

from holdfast.cli.targets import load_graphs
from holdfast.sync import Holdfast as Blocking
from tests.cli.conftest import Holdfast
from tests.cli.test_run import until, working

FANS = """
from holdfast import Graph, signal

fans = Graph("fans", dict)


@fans.node
async def first(state):
    return {"pages": list(range(12))}


@fans.node(writes=[])
async def ask(state, ctx):
    await ctx.wait(signal("answer"))


@fans.node
async def join(state): ...


fans.each(first, ask, over="pages", into="page", join=join)
"""


def test_show_prints_the_result_of_a_finished_run(holdfast: Holdfast) -> None:
    with working():
        holdfast("run", "start", "flows:counting", '{"number": 41}', "--id", "a", "--wait")
    assert re.search(r'^result +{"number":42}$', holdfast("run", "show", "a").stdout, re.MULTILINE)
    assert json.loads(holdfast("run", "show", "a", "--json").stdout)["result"] == {"number": 42}


def test_a_long_result_is_cut_and_state_shows_all_of_it(holdfast: Holdfast) -> None:
    long = "x" * 2_000
    with working():
        given = json.dumps({"number": 1, "mood": long})
        holdfast("run", "start", "flows:counting", given, "--id", "a", "--wait")
    shown = holdfast("run", "show", "a").stdout
    assert "… (--state shows all of it)" in shown
    assert long not in shown
    assert long in holdfast("run", "show", "a", "--state").stdout


def test_show_prints_state_and_input_of_a_run_that_waits(holdfast: Holdfast) -> None:
    with working() as hf:
        run = hf.start(load_graphs(["flows:asking"])[0], {"mood": "\x1b[31m"}, id="a")
        until(run, "waiting")
    shown = holdfast("run", "show", "a", "--state", "--input").stdout
    assert shown.count('"mood": "\\u001b[31m"') == 2
    assert "\x1b" not in shown
    assert "\ninput:\n{" in shown
    assert "\nstate:\n{" in shown
    row = json.loads(holdfast("run", "show", "a", "--state", "--input", "--json").stdout)
    assert row["state"] == row["input"] == {"mood": "\x1b[31m"}
    assert "result" not in row


def test_show_prints_the_state_after_an_entry_of_the_history(holdfast: Holdfast) -> None:
    with working() as hf:
        run = hf.start(load_graphs(["flows:asking"])[0], id="a")
        until(run, "waiting")
        run.signal("answer", "yes")
        run.result()
    entries = json.loads(holdfast("run", "history", "a", "--json").stdout)
    states = [
        json.loads(holdfast("run", "show", "a", "--state", "--at", cursor, "--json").stdout)[
            "state"
        ]
        for cursor in (entry["cursor"] for entry in entries)
    ]
    assert states == [{}, {"answer": "yes"}, {"answer": "yes"}]
    wrong = holdfast("run", "show", "a", "--state", "--at", "x")
    assert (wrong.exit_code, wrong.stdout) == (1, "")
    assert "not a cursor" in wrong.stderr
    misused = holdfast("run", "show", "a", "--at", entries[0]["cursor"])
    assert misused.exit_code == 2
    assert "need --state" in misused.stderr


def test_waits_lists_all_of_them_page_by_page(holdfast: Holdfast, folder: Path) -> None:
    (folder / "fanned.py").write_text(FANS)
    graph = load_graphs(["fanned"])
    with Blocking("sqlite:///runs.db") as hf, hf.worker(graph, poll=0.01):
        until(hf.start(graph[0], id="a"), "waiting")
    assert "there may be more: holdfast run waits" in holdfast("run", "show", "a").stdout
    lines = holdfast("run", "waits", "a").stdout.splitlines()
    assert lines[0].split() == ["BRANCH", "WAITS", "FOR"]
    assert sorted(line.split()[0] for line in lines[1:]) == sorted(f"0.{n}" for n in range(12))
    assert "the signal answer, since" in lines[1]
    first = holdfast("run", "waits", "a", "--limit", "10")
    cursor = first.stderr.split()[-1]
    rest = json.loads(holdfast("run", "waits", "a", "--cursor", cursor, "--json").stdout)
    assert len(rest["waits"]) == 2
    assert rest["cursor"] is None
    assert holdfast("run", "show", "a", "--state", "--branch", "0.3", "--json").exit_code == 0
    asked = holdfast("run", "show", "a", "--state", "--branch", "0.3", "--json").stdout
    assert json.loads(asked)["state"]["page"] == 3


def test_a_run_that_waits_for_nothing_has_no_waits(holdfast: Holdfast) -> None:
    with working():
        holdfast("run", "start", "flows:counting", "--id", "a", "--wait")
    done = holdfast("run", "waits", "a")
    assert (done.stdout, done.stderr) == ("", "no waits\n")
