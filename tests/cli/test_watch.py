"""The picture of a run: from its flowchart and its events to the lines on a terminal."""

from __future__ import annotations

import asyncio
import itertools
import os
import pty
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Context, Graph, HistoryEntry, Holdfast, Retry, signal, timer, workflow
from holdfast.cli.flowchart import Flowchart, parsed_flowchart
from holdfast.cli.live_screen import LiveScreen
from holdfast.cli.run_picture import Line, RunPicture, picture_lines
from holdfast.engine.history import ephemeral
from tests.cli.serving import serving

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)
CHART = parsed_flowchart(
    "flowchart TD\n"
    "    start((start))\n"
    '    n0["price"]\n    n1["pack #40;all#41;"]\n    n2["check<br/>may wait"]\n    n3["refund"]\n'
    "    finish(((END)))\n"
    '    start --> n0\n    n0 ==>|"each of items"| n1\n    n1 ==> n2\n    n2 -.-> n3\n'
    '    n2 -.-> finish\n    n3 -. "stale: restart" .-> n0\n'
)


def event(kind: str, node: str | None = None, **details: Any) -> HistoryEntry:
    return HistoryEntry(at=NOW, kind=kind, node=node, details=details, cursor="", ephemeral=True)


def shown(picture: RunPicture, *, width: int = 80, height: int = 24) -> list[str]:
    return [line.text for line in picture_lines(picture, now=NOW, width=width, height=height)]


def test_a_flowchart_is_read_back() -> None:
    assert (
        Flowchart(
            ("price", "pack (all)", "check", "refund"),
            {
                "price": ("pack (all)",),
                "pack (all)": ("check",),
                "check": ("refund",),
                "refund": ("price",),
            },
        )
        == CHART
    )
    assert parsed_flowchart("").steps == ()


@given(st.text())
def test_any_drawing_is_read(drawing: str) -> None:
    parsed_flowchart(drawing)
    parsed_flowchart(f'    n0["{drawing}"]')


def test_a_graph_is_read_as_it_is_drawn() -> None:
    graph = Graph("odd", dict)
    names = ("a", "b", "c")
    for name in names:
        graph.node(name=name)(lambda state: state)
    graph.route("a", "b")
    graph.route("b", "c")
    assert parsed_flowchart(graph.draw()) == Flowchart(names, {"a": ("b",), "b": ("c",)})


def test_a_run_is_filled_in_step_by_step() -> None:
    picture = RunPicture("o-1", CHART)
    picture.take(event("snapshot", "price", status="running", waits=[], progress=[]))
    picture.take(event("started", "price", graph="shop", version=2))
    picture.take(event("node_started", "price", attempt=2))
    picture.take(event("progress", "price", fraction=0.5, message="half"))
    assert shown(picture) == [
        "run o-1 · shop v2 · running",
        "  ▶ price       █████░░░░░ 50%  half",
        "  │",
        "  ○ pack (all)",
        "  │",
        "  ○ check",
        "  │",
        "  ○ refund        → price",
    ]
    picture.take(event("node", "price", visit=0, to=None, spent_ms=1500))
    for branch in ("0", "1", "2"):
        picture.take(event("node_started", "pack (all)", attempt=1, branch=branch))
    picture.take(event("node", "pack (all)", spent_ms=10, branch="1"))
    call = {"call": "pack.ask#1", "spent": {"usd": 0.25, "tokens": 1200}, "failure": None}
    picture.take(event("call", "pack (all)", **call))
    lines = shown(picture)
    assert lines[0] == "run o-1 · shop v2 · running · $0.250000, 1,200 tokens"
    assert lines[1] == "  ✓ price       1s500ms"
    assert lines[3] == "  ▶ pack (all)  1 done, 2 at work  10ms"


def test_a_wait_says_for_what_and_since_when() -> None:
    picture = RunPicture("o-1", CHART)
    picture.take(event("node_started", "check", attempt=1))
    wait = {
        "signal": "ok",
        "description": "the signal ok",
        "about": {"cents": 7},
        "since": (NOW - timedelta(minutes=2)).isoformat(),
        "until": "2026-11-24",
    }
    picture.take(event("paused", "check", reason="signal", waits=[wait]))
    lines = shown(picture)
    assert "  ⏸ check" in [line.rstrip().partition("  →")[0].rstrip() for line in lines]
    assert lines[-1] == 'waits for the signal ok about {"cents":7}, since 2m, until 2026-11-24'
    picture.take(event("resumed", "check"))
    assert not any(line.startswith("waits") for line in shown(picture))
    picture.take(event("paused", "check", reason="quota", waits=[]))
    assert shown(picture)[-1] == "waits: quota"


def test_a_failure_is_shown_where_it_happened() -> None:
    picture = RunPicture("o-1")  # without a flowchart, steps appear as they begin
    picture.take(event("node_started", "a", attempt=1))
    failure = {"type": "ValueError", "message": "a\x1b[31m\nb"}
    picture.take(event("attempt", "a", failure=failure))
    assert "ValueError" in shown(picture)[1]
    picture.take(event("failed", "a", failure=failure))
    picture.take(event("ended", "a", status="failed", failure=failure))
    lines = picture_lines(picture, now=NOW, width=80, height=24)
    assert lines[0] == Line("run o-1 · failed", "failed")
    assert lines[1] == Line("  ✗ a", "failed")
    assert lines[2].text == "ValueError: a\\x1b[31m\\nb"


def test_the_steps_of_a_workflow_are_its_calls_and_waits() -> None:
    chart = parsed_flowchart('    n0["look"]\n    n1["wait: ok"]\n    n0 --> n1\n')
    picture = RunPicture("o-1", chart)
    picture.take(event("node_started", "order", attempt=1))
    picture.take(event("call", "order", call="look#1", spent={}, failure=None))
    wait = {"signal": "ok", "description": "the signal ok", "about": "", "since": None}
    picture.take(event("paused", "order", reason="signal", waits=[{**wait, "until": None}]))
    assert shown(picture)[1:4] == ["  ✓ look", "  │", "  ⏸ wait: ok"]
    picture.take(event("signal", "order", name="ok"))
    picture.take(event("finished"))
    assert shown(picture) == ["run o-1 · finished", "  ✓ look", "  │", "  ✓ wait: ok"]


def test_a_small_terminal_shows_what_is_at_work() -> None:
    chart = Flowchart(tuple(f"step-{number}" for number in range(50)), {})
    picture = RunPicture("o-1", chart)
    for number in range(30):
        picture.take(event("node", f"step-{number}"))
    picture.take(event("node_started", "step-30", attempt=1))
    lines = shown(picture, width=20, height=8)
    assert len(lines) <= 7
    assert "  ▶ step-30" in lines
    assert lines[-1] == "  … 45 more steps"
    assert all(len(line) <= 20 for line in shown(picture, width=20))
    assert all(len(line) <= 1 for line in shown(picture, width=0, height=0))


@given(
    st.lists(st.sampled_from([*ephemeral.KINDS, "node", "finished", "attempt", "void"])),
    st.integers(0, 200),
    st.integers(0, 60),
)
def test_any_events_make_lines_that_fit(kinds: list[str], width: int, height: int) -> None:
    details = {
        "snapshot": {"status": "running", "waits": []},
        "started": {"graph": "g", "version": 1},
        "paused": {"waits": [], "reason": "signal"},
        "ended": {"status": "finished"},
        "progress": {"fraction": 7.0, "message": None},
    }
    picture = RunPicture("r", CHART)
    for kind in kinds:
        picture.take(event(kind, "price", **details.get(kind, {})))
    lines = shown(picture, width=width, height=height)
    assert all(len(line) <= max(1, width) for line in lines)
    assert len(lines) <= max(height, 4)


def test_other_events_change_nothing() -> None:
    picture = RunPicture("r", CHART)
    before = shown(picture)
    for kind in ("void", "of-another-release"):
        picture.take(event(kind, "price"))
    assert shown(picture) == before


def test_it_redraws_in_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen = LiveScreen()
    screen.draw([Line("a", "done"), Line("b")])
    assert capsys.readouterr().out == "\r\x1b[32ma\x1b[0m\x1b[K\n\rb\x1b[K\n\x1b[J"
    screen.draw([Line("c")])
    assert capsys.readouterr().out == "\x1b[2A\rc\x1b[K\n\x1b[J"
    monkeypatch.setenv("NO_COLOR", "1")
    LiveScreen().draw([Line("a", "failed")])
    assert capsys.readouterr().out == "\ra\x1b[K\n\x1b[J"


@workflow
async def asking(n: int, ctx: Context) -> int:
    await ctx.wait(signal("ok", bool))
    return n


@pytest.mark.parametrize("option", [None, "--plain", "--json"])
async def test_it_draws_on_a_terminal(tmp_path: Path, option: str | None) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    await finish_run(url)
    text = await asyncio.to_thread(typed_in_terminal, "o-1", option, "--url", url)
    assert ("\x1b[J" in text) == (option is None)
    plain = re.sub(r"\x1b\[[0-9;]*[a-zA-Z]", "", text)
    assert ("run o-1 · asking v1 · finished" in plain) == (option is None)


async def finish_run(url: str) -> None:
    async with Holdfast(url) as hf, hf.worker([asking]):
        run = await hf.start(asking, 3, id="o-1")
        await run.until("waiting")
        await run.signal("ok", True)
        await run.result()


async def test_it_draws_a_run_of_a_server(folder: Path) -> None:
    await finish_run(f"sqlite:///{folder}/runs.db")
    (folder / "shown.py").write_text("from tests.cli.test_watch import asking\n")
    with serving(folder) as url:
        text = await asyncio.to_thread(typed_in_terminal, "o-1", None, "--server", url)
    plain = re.sub(r"\x1b\[[0-9;]*[a-zA-Z]", "", text)
    assert "run o-1 · asking v1 · finished" in plain
    assert "✓ wait: ok" in plain


def typed_in_terminal(id: str, option: str | None, *target: str) -> str:
    """Watch a run that has ended in a terminal; return what it prints."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "holdfast", "run", "watch", id, *target]
    with subprocess.Popen(
        command if option is None else [*command, option],
        stdout=theirs,
        env={**os.environ, "COLUMNS": "60", "LINES": "20", "TERM": "xterm"},
    ) as process:
        assert process.wait(60) == 0
    os.close(theirs)
    text = os.read(ours, 100_000).decode()
    os.close(ours)
    return text


PAID = signal("payment", bool)


class Post:
    async def mail(self, number: int) -> int:
        return number


post = Post()
trucks = itertools.cycle([OSError("no truck"), OSError("no truck"), None])


async def request_payment(number: int) -> int:
    return number


async def bill(number: int) -> int:
    return number


async def ship(number: int) -> int:
    if broken := next(trucks):
        raise broken
    return number


@workflow
async def packing(number: int, ctx: Context) -> int:
    return number


@workflow(signals=[PAID])
async def sale(number: int, ctx: Context) -> int:
    await ctx.call(request_payment, number)
    await ctx.wait(PAID)
    await ctx.wait_any(PAID, timer("1ms"))
    await ctx.sleep("2ms")
    await ctx.call(post.mail, number)
    await ctx.with_options(key="bill").call(bill, number)
    if number > 5:
        await ctx.sleep("1d")
    await ctx.with_options(retry=Retry(attempts=5, backoff="1ms")).call(ship, number)
    await ctx.start(packing, number)
    return await ctx.run(packing, number)


async def test_a_finished_workflow_shows_every_step_that_it_executed() -> None:
    async with Holdfast("sqlite://:memory:") as hf, hf.worker([sale, packing], poll=0.01):
        run = await hf.start(sale, 1, id="s-1")
        await run.signal(PAID, True)
        await run.result(timeout=30)
        history = (await run.history()).entries
    picture = RunPicture("s-1", parsed_flowchart(sale.draw()))
    for entry in history:
        picture.take(entry)
    steps = [line.text.partition("→")[0].strip() for line in lines_of(picture) if line.mark]
    assert steps == [
        "run s-1 · finished",
        "✓ request_payment",
        "✓ wait: payment",
        "✓ wait: payment or 1ms",
        "✓ sleep: 2ms",
        "✓ post.mail",
        "✓ bill",
        "○ sleep: 1d",
        "✓ ship                  2 retries",
        "✓ start: packing",
        "✓ run: packing",
    ]


def lines_of(picture: RunPicture) -> list[Line]:
    return picture_lines(picture, now=NOW, width=80, height=60)


def test_a_workflow_shows_failed_calls_and_where_it_waits() -> None:
    picture = RunPicture("s-1", parsed_flowchart(sale.draw()))
    failure = {"type": "OSError", "message": "no truck", "trace": ""}
    picture.take(event("call_attempt", "sale", call="ship#1", failure=failure))
    assert "  ▶ ship                  1 retry  OSError: no truck" in shown(picture)
    picture.take(event("call", "sale", call="ship#1", spent={}, failure=failure))
    assert "  ✗ ship                  1 retry  OSError: no truck" in shown(picture)
    picture = RunPicture("s-1", parsed_flowchart(sale.draw()))
    since = NOW.isoformat()
    sleep = {"kind": "timer", "signal": None, "description": "a time", "about": "", "since": since}
    picture.take(event("paused", "sale", reason="timer", waits=[sleep]))
    assert [line.text for line in lines_of(picture) if line.mark == "waiting"] == [
        "  ⏸ sleep: 2ms",
        "waits for a time, since 0s",
    ]
    before = msgspec.structs.replace(
        event("signal", "sale", name="payment", wait="payment#1"), at=NOW - timedelta(seconds=1)
    )
    picture.take(before)  # what it waited for earlier
    assert [line.mark for line in lines_of(picture)].count("waiting") == 2
    paid = {**sleep, "kind": "signal", "signal": "payment"}
    picture.take(event("paused", "sale", reason="signal", waits=[paid, sleep]))
    assert "  ⏸ wait: payment or 1ms" in shown(picture)
    picture.take(event("resumed", "sale"))
    picture.take(event("attempt", "sale", failure=failure))
    assert shown(picture)[-1] == "an attempt failed: OSError: no truck"
    picture.take(event("finished"))
    assert "failed" not in shown(picture)[-1]
