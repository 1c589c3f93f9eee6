"""What an operator sees of a run that waits, and of what its node said about that."""

from __future__ import annotations

import json
import re
from typing import Any

from holdfast import Graph, days, signal, timer
from holdfast.sync import Holdfast as Blocking
from tests.cli.conftest import Holdfast

URL = "sqlite:///runs.db"


def wait_for_first(about: Any) -> None:
    """Leave a run that waits for the first of three."""
    graph = Graph("offer", dict)

    @graph.node
    async def decide(state: Any, ctx: Any) -> None:
        await ctx.wait_any(signal("approved"), signal("withdrawn"), timer(days(2)), about=about)

    with Blocking(URL) as hf, hf.worker([graph], poll=0.01):
        run = hf.start(graph, id="a", labels={"k": "v"})
        while run.get().status != "waiting":
            assert run.get().status in ("running", "waiting")


def test_show_and_list_tell_what_a_run_waits_for(holdfast: Holdfast) -> None:
    wait_for_first({"offer": "o-7", "price": 12.5})
    shown = holdfast("run", "show", "a").stdout
    waits = re.findall(r"^waits for +(.+?), since .*, about (.+)$", shown, re.MULTILINE)
    about = '{"offer":"o-7","price":12.5}'
    assert waits == [
        ("the signal approved", about), ("the signal withdrawn", about), ("a time", about),
    ]  # fmt: skip
    row = json.loads(holdfast("run", "show", "a", "--json").stdout)
    assert [wait["kind"] for wait in row["waits"]] == ["signal", "signal", "timer"]
    assert row["waits"][0]["about"] == {"offer": "o-7", "price": 12.5}
    header, line = holdfast("run", "list").stdout.splitlines()
    assert header.split()[-3:] == ["COST", "LABELS", "REASON"]
    assert line.endswith(f"k=v     signal {about}")
    (entry,) = json.loads(holdfast("run", "list", "--json").stdout)["runs"]
    assert entry["waits"][0]["about"] == {"offer": "o-7", "price": 12.5}


def test_what_a_wait_is_about_steers_no_terminal(holdfast: Holdfast) -> None:
    wait_for_first("a\x1b[31mred\n" + "x" * 500)
    for command in (("list",), ("show", "a"), ("list", "--json"), ("show", "a", "--json")):
        done = holdfast("run", *command)
        assert done.exit_code == 0
        assert "\x1b" not in done.stdout
    assert len(holdfast("run", "list").stdout.splitlines()[1]) < 300
