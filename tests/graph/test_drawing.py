"""The picture of a graph."""

from __future__ import annotations

from typing import Any

from holdfast.graph import END, Graph, escalate, fail, restart


def nothing(state: Any) -> None: ...


def test_everything_that_can_be_drawn() -> None:
    graph = Graph("test", dict, start="a")
    graph.node(name="b", pausable="no")(nothing)
    graph.node(name="a", max_pause=5, on_stale=escalate("c"))(nothing)
    graph.node(name="c", pausable="blocking", max_pause=5, on_stale=restart("a"))(nothing)
    graph.node(name="d", max_pause=5, on_stale=fail())(nothing)
    graph.route("a", "b")
    graph.choose("b", lambda state: "c", to=["c", "d", END])
    assert graph.check().draw() == (
        "flowchart TD\n"
        "    start((start))\n"
        '    n0["b<br/>not pausable"]\n'
        '    n1["a"]\n'
        '    n2["c<br/>may wait"]\n'
        '    n3["d"]\n'
        "    finish(((END)))\n"
        "    start --> n1\n"
        "    n0 -.-> n2\n"
        "    n0 -.-> n3\n"
        "    n0 -.-> finish\n"
        "    n1 --> n0\n"
        '    n1 -. "stale: escalate" .-> n2\n'
        "    n2 --> finish\n"
        '    n2 -. "stale: restart" .-> n1\n'
        "    n3 --> finish\n"
    )


def test_a_loop_without_an_end_has_none() -> None:
    graph = Graph("test", dict)
    graph.node(nothing)
    graph.route(nothing, nothing)
    assert "END" not in graph.draw()


def test_a_graph_that_is_not_finished_is_drawn_too() -> None:
    assert Graph("test", dict).draw() == "flowchart TD\n    start((start))\n"
    graph = Graph("test", dict)
    graph.route("a", "b")
    graph.node(name="a", on_stale=escalate("c"))(nothing)
    drawn = graph.draw()
    assert '["b<br/>missing"]' in drawn
    assert '["c<br/>missing"]' in drawn
    assert "n0 --> n2" in drawn


def test_hostile_names_stay_names() -> None:
    graph = Graph("test", dict)
    graph.node(name='"]\n click n0 "javascript:alert(1)" <script>#quot;`')(nothing)
    lines = graph.draw().splitlines()
    assert lines[2][:8] + lines[2][-2:] == '    n0[""]'
    assert not set(lines[2][8:-2]) & set('"<>`[]()')
    assert len(lines) == 6
